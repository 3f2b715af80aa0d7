"""c10d.py: the backend "thinwire" of torch.distributed. gloo is the measure."""

import gc

import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
from thinwire import c10d
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

if not ranks.python_backends():
    pytest.skip("backends of torch %s cannot be written in Python" % torch.__version__,
                allow_module_level=True)

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8]
OPERATIONS = [dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT]
N = 30000  # elements: above and below the smallest size that goes over Thinwire, by type


def values(n, dtype, rank):
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(0, 3, (n,), generator=generator).to(dtype)


def everything(rank, world, group):
    """Results of all collectives in a group."""
    found = []
    for dtype in TYPES:
        whole = torch.empty(world * N, dtype=dtype)
        dist.all_gather_into_tensor(whole, values(N, dtype, rank), group=group)
        shards = [torch.empty(N, dtype=dtype) for _ in range(world)]
        dist.all_gather(shards, values(N, dtype, rank), group=group)
        found += [whole, *shards]
        for operation in OPERATIONS:
            one = values(N, dtype, rank)
            dist.all_reduce(one, operation, group=group)
            shard = torch.empty(N, dtype=dtype)
            dist.reduce_scatter_tensor(shard, values(world * N, dtype, rank), operation, group=group)
            found += [one, shard]
        one = values(N, dtype, rank)
        dist.broadcast(one, dist.get_global_rank(group, world - 1), group=group)
        exchanged = torch.empty(world * N, dtype=dtype)
        dist.all_to_all_single(exchanged, values(world * N, dtype, rank), group=group)
        found += [one, exchanged]
    work = dist.all_reduce(values(N, torch.float32, rank), group=group, async_op=True)
    found.append(work.get_future().wait()[0])
    assert work.wait()
    strided = torch.ones(N, 2)[:, 0] * (rank + 1)
    dist.all_reduce(strided, group=group)
    dist.barrier(group=group)
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    assert [one["rank"] for one in objects] == dist.get_process_group_ranks(group)
    return found + [strided]


@pytest.mark.parametrize("world", [2, 3])
def test_results_are_gloos(world):
    def check(rank):
        gloo = dist.new_group(backend="gloo")
        expected = everything(rank, world, gloo)
        found = everything(rank, world, dist.group.WORLD)
        assert dist.get_backend() == "thinwire" and thinwire.report()["c10d all-reduce"].calls > 0
        return all(torch.equal(a, b) for a, b in zip(found, expected)) and len(found) == len(expected)

    assert all(ranks.run(world, check, backend="thinwire"))


def test_means_and_subgroups():
    def check(rank):
        pair = dist.new_group([0, 2])
        if rank != 1:
            one = torch.full((N,), float(rank))
            dist.all_reduce(one, dist.ReduceOp.AVG, group=pair)
            assert torch.equal(one, torch.ones(N))
            two = torch.full((N,), float(rank), requires_grad=True)
            dist.all_reduce(two.detach(), group=pair)
            with pytest.raises((ValueError, RuntimeError)):
                dist.all_gather_into_tensor(torch.empty(N), torch.empty(N + 1), group=pair)
        dist.barrier()
        return True

    assert all(ranks.run(3, check, backend="cpu:thinwire"))


def test_quantized_only_when_asked():
    def gathered(rank):
        torch.manual_seed(rank)
        whole = torch.empty(3 * N)
        dist.all_gather_into_tensor(whole, torch.randn(N))
        return whole

    def check(rank):
        exact = gathered(rank)
        thinwire.quantize(dist.group.WORLD, "int8")
        near = gathered(rank)
        thinwire.quantize(dist.group.WORLD, None)
        assert torch.equal(gathered(rank), exact) and not torch.equal(near, exact)
        torch.testing.assert_close(near, exact, rtol=0, atol=0.05)
        with pytest.raises(ValueError, match="thinwire"):
            thinwire.quantize(dist.new_group(backend="gloo"), "int8")
        return near.sum().item()

    assert len(set(ranks.run(3, check, backend="thinwire"))) == 1


def test_ddp_and_fsdp_over_the_backend():
    def ddp(rank, group):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(200, 200), process_group=group)
        loss = model(torch.full((2, 200), float(rank))).square().mean()
        loss.backward()
        return model.module.weight.grad.clone()

    def fsdp(rank):
        torch.manual_seed(0)
        model = fully_shard(nn.Linear(200, 200),
                            mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
        model(torch.full((2, 200), float(rank))).square().mean().backward()
        return model.weight.grad.full_tensor()

    def check(rank):
        assert torch.equal(ddp(rank, dist.group.WORLD), ddp(rank, dist.new_group(backend="gloo")))
        assert fsdp(rank).isfinite().all()
        return thinwire.report()["c10d reduce-scatter"].calls > 0

    assert all(ranks.run(2, check, backend="thinwire"))


def test_groups_that_have_gone_leave_nothing_behind():
    def check(_rank):
        found = []
        for _ in range(20):
            group = dist.new_group(backend="thinwire")
            thinwire.quantize(group, "lossless")
            one = torch.ones(N)
            dist.all_reduce(one, group=group)
            assert one.eq(2).all()
            dist.barrier()
            dist.destroy_process_group(group)
            del group
            gc.collect()
            found.append(ranks.held())
        assert not c10d._backends
        assert len(set(found[1:])) == 1, found
        return True

    assert all(ranks.run(2, check, backend="gloo"))
