"""ddp.py: DistributedDataParallel with Thinwire's hook, registered by the program or by TW_DDP."""

import contextlib
import copy
import io
import pickle

import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
from thinwire.collectives import operations
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

WIDTH = 48


def make():
    torch.manual_seed(0)
    return nn.Sequential(*[
        nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 95), nn.ReLU(), nn.Linear(95, WIDTH))
        for _ in range(3)])


def train(rank, hook=None, group=None, steps=4, dtype=torch.float32, accumulate=1):
    model = DistributedDataParallel(make().to(dtype), bucket_cap_mb=0.03, process_group=group)
    if hook is not None:
        model.register_comm_hook(group, hook)
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        for micro in range(accumulate):
            x = torch.randn(8, WIDTH, generator=generator, dtype=torch.float32).to(dtype)
            model.require_backward_grad_sync = micro == accumulate - 1
            loss = (model(x) - x).float().square().mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, [one.detach().clone() for one in model.parameters()]


def same_everywhere(tensors):
    for one in tensors:
        others = [torch.empty_like(one) for _ in range(dist.get_world_size())]
        dist.all_gather(others, one)
        assert all(torch.equal(one, other) for other in others)
    return True


def test_plain_hook():
    def check(rank):
        losses, weights = train(rank)
        own_losses, own = train(rank, thinwire.ddp_hook("plain"))
        assert own_losses == losses and all(torch.equal(a, b) for a, b in zip(weights, own))
        train(rank, thinwire.ddp_hook("plain"), accumulate=2)
        return same_everywhere(own)

    assert all(ranks.run(2, check))


@pytest.mark.parametrize("codec", ["int8:block=128,columns=no", "ecdq:step=0.25"])
def test_quantized_hook(codec):
    def check(rank):
        losses, _ = train(rank, steps=8)
        near, own = train(rank, thinwire.ddp_hook(codec, min_bytes=1024), steps=8)
        found = thinwire.report()["ddp all-reduce"]
        assert found.sent_bytes < 0.32 * found.plain_bytes and found.unquantized["norms and biases"] > 0
        torch.testing.assert_close(torch.tensor(near), torch.tensor(losses), rtol=0.02, atol=0.02)
        return same_everywhere(own)

    assert all(ranks.run(3, check))


def test_types_and_groups():
    def check(rank):
        pair = dist.new_group([0, 2])
        if rank != 1:
            losses, _ = train(rank, group=pair)
            own, _ = train(rank, thinwire.ddp_hook("plain"), pair)
            assert losses == own
        # a type that Thinwire has not: torch's own way
        losses, _ = train(rank, dtype=torch.float64)
        own, _ = train(rank, thinwire.ddp_hook("int4"), dtype=torch.float64)
        assert losses == own
        with thinwire.unquantized():
            losses, _ = train(rank, thinwire.ddp_hook("int4", min_bytes=0), dtype=torch.bfloat16)
        own, _ = train(rank, thinwire.ddp_hook("plain"), dtype=torch.bfloat16)
        assert losses == own
        return True

    assert all(ranks.run(3, check))


def test_a_wrong_codec_is_refused():
    def check(_rank):
        with pytest.raises(ValueError, match="int5"):
            thinwire.ddp_hook("int5")
        return True

    assert all(ranks.run(1, check, backend=None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_without_loss(dtype):
    """By default."""

    def check(rank):
        losses, weights = train(rank, thinwire.ddp_hook("plain"), dtype=dtype, steps=6)
        plain = thinwire.report().counted_bytes
        own_losses, own = train(rank, thinwire.ddp_hook(), dtype=dtype, steps=6)
        assert own_losses == losses and all(torch.equal(a, b) for a, b in zip(weights, own))
        found = thinwire.report()
        assert set(found["ddp all-reduce"].unquantized) <= {operations.DECLINED}
        assert found["ddp all-reduce"].bound_bytes > 0
        return found.counted_bytes - plain, plain

    # on a fast link such sizes would go plain
    for lossless, plain in ranks.run(3, check, TW_COLL_MODEL="inter:beta=1mbit"):
        assert 0 < lossless < 0.98 * plain


ON = {"TW_DDP": "1", "TW_MIN_BYTES": "1", "TW_JOIN_TIMEOUT": "10s"}


def switched_on(world, function, **kwargs):
    return ranks.run(world, function, **(ON | kwargs))


def test_by_a_variable():
    def check(rank):
        losses, own = train(rank)
        found = thinwire.report()
        assert found["ddp all-reduce"].unquantized["norms and biases"] > 0 and not found.elsewhere
        assert found["ddp all-reduce"].sent_bytes < 0.5 * found["ddp all-reduce"].plain_bytes
        assert len(ranks.logged("DDP over thinwire: gradients int8")) == (rank == 0)
        return same_everywhere(own)

    assert all(switched_on(3, check, TW_GRADS="int8:block=128,columns=no"))


def test_by_a_variable_the_numbers_are_as_with_the_hook():
    def by_hook(rank):
        return train(rank, thinwire.ddp_hook("int4", min_bytes=1))

    def by_variable(rank):
        return train(rank)

    for (losses, weights), (own_losses, own) in zip(ranks.run(2, by_hook),
                                                    switched_on(2, by_variable, TW_GRADS="int4")):
        assert own_losses == losses and all(torch.equal(a, b) for a, b in zip(weights, own))


def test_a_group_of_some_ranks_by_a_variable():
    def check(rank):
        pair = dist.new_group([0, 2])
        if rank != 1:
            train(rank, group=pair)
            assert thinwire.report()["ddp all-reduce"].calls > 0
        return True

    assert all(switched_on(3, check))


def elsewhere():
    return [reason for kind, reason in thinwire.report().elsewhere if kind == "DistributedDataParallel"]


def test_hooks_of_the_job_stay():
    def check(rank):
        called = []

        def theirs(state, bucket):
            called.append(bucket.index())
            return default_hooks.allreduce_hook(state, bucket)

        model = DistributedDataParallel(make())
        model.register_comm_hook(None, theirs)
        model(torch.ones(2, WIDTH)).sum().backward()
        assert called and "ddp all-reduce" not in thinwire.report()
        assert elsewhere() == [
            "it has a hook of its own, test_hooks_of_the_job_stay.<locals>.check.<locals>.theirs"]
        model = DistributedDataParallel(make())
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        model(torch.ones(2, WIDTH)).sum().backward()
        model = DistributedDataParallel(make())
        model._register_fused_optim(torch.optim.SGD, 0.1)
        model(torch.ones(2, WIDTH)).sum().backward()
        assert "ddp all-reduce" not in thinwire.report() and len(elsewhere()) == 3
        # of the program's own: once
        model = DistributedDataParallel(make())
        model.register_comm_hook(None, thinwire.ddp_hook("plain"))
        model(torch.ones(2, WIDTH)).sum().backward()
        found = thinwire.report()["ddp all-reduce"]
        return found.calls > 0 and found.sent_bytes == found.plain_bytes

    assert all(switched_on(2, check))


@pytest.mark.parametrize("differing", [{"TW_DDP": ""}, {"TW_DDP": "", "TW_FSDP": "1"}, {"TW_GRADS": "int8"},
                                       {"TW_LIBRARY": "/nowhere"}], ids=str)
def test_a_rank_that_differs(differing):
    def plain(rank):
        return train(rank)[0]

    def check(rank):
        losses, own = train(rank)
        assert "ddp all-reduce" not in thinwire.report() and same_everywhere(own)
        return losses, ranks.logged("nothing goes over Thinwire")

    results = switched_on(2, check, differing={1: differing}, TW_JOIN_TIMEOUT="2s")
    assert [losses for losses, _ in results] == ranks.run(2, plain)
    (line,) = [line for _, lines in results for line in lines]
    assert "rank 1" in line


def test_models_are_pickled_and_copied_as_before():
    def check(rank):
        model = DistributedDataParallel(make())
        copy.deepcopy(model), pickle.dumps(model)
        model(torch.ones(2, WIDTH)).sum().backward()
        copied, file = copy.deepcopy(model), io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        assert all(torch.equal(a, b) for one in (copied, loaded)
                   for a, b in zip(one.parameters(), model.parameters()))
        return True

    assert all(switched_on(2, check))


def test_sparse_gradients_go_as_torch_sends_them():
    def check(rank):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Embedding(50, 64, sparse=True), nn.Linear(64, 64)))
        model(torch.arange(rank, rank + 3)).sum().backward()
        found = thinwire.report()
        return [reason for _, reason in found.elsewhere] == ["sparse"] and found["ddp all-reduce"].calls > 0

    assert all(switched_on(2, check))


def joined(rank, batches, **how):
    """The weights after join() with so many batches on each rank, and after a step without it."""
    model = DistributedDataParallel(make(), bucket_cap_mb=0.03)
    optimizer, generator = torch.optim.SGD(model.parameters(), 0.1), torch.Generator().manual_seed(rank)

    def step():
        x = torch.randn(8, WIDTH, generator=generator)
        (model(x) - x).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    with model.join(**how):
        for _ in range(batches[rank]):
            step()
    step()
    return [one.detach().clone() for one in model.parameters()]


@pytest.mark.parametrize("batches", [(4, 2), (0, 3), (3, 1, 2)], ids=str)
@pytest.mark.parametrize("divides_by_all", [True, False])
def test_uneven_inputs(batches, divides_by_all):
    """A rank that has none at all joins before its first forward pass."""
    def check(rank):
        weights = joined(rank, batches, divide_by_initial_world_size=divides_by_all)
        return weights, thinwire.report().counted_bytes

    world = len(batches)
    plain, ours = ranks.run(world, check), switched_on(world, check, TW_GRADS="lossless")
    assert all(n_bytes == 0 for _, n_bytes in plain) and all(n_bytes > 0 for _, n_bytes in ours)
    rtol, atol = (0, 0) if world == 2 else (1e-4, 1e-6)  # on more ranks gloo sums in another order
    for (before, _), (weights, _) in zip(plain, ours):
        torch.testing.assert_close(weights, before, rtol=rtol, atol=atol)


def test_uneven_inputs_after_steps_without_join():
    """The hook is there already, and ranks that fall back divide by what is left, too."""
    def check(rank):
        model = DistributedDataParallel(nn.Linear(64, 64), bucket_cap_mb=0.01)
        for joins in (False, True):
            with model.join(enable=joins, divide_by_initial_world_size=False):
                for i in range(3 - rank * joins):
                    model(torch.full((2, 64), 1.0 + i + rank)).sum().backward()
        return model.module.weight.grad.clone() if rank == 0 else None

    plain = ranks.run(2, check)[0]
    assert torch.equal(switched_on(2, check, TW_GRADS="lossless")[0], plain)
    assert torch.equal(switched_on(2, check, differing={1: {"TW_GRADS": "int8"}})[0], plain)


def halved(state, bucket):
    return default_hooks.allreduce_hook(state, bucket).then(lambda future: future.value() / 2)


@pytest.mark.parametrize("register", [
    lambda model: model.register_comm_hook(None, halved),
    lambda model: model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS),
    lambda model: model._register_fused_optim(torch.optim.SGD, 0.1),
], ids=["own", "built in", "fused optimizer"])
def test_a_hook_of_the_job_that_comes_later(register):
    """torch takes it after the first step; ours gives way."""
    def check(rank):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(256, 64))
        for step in range(3):
            if step == 1:
                register(model)
                with pytest.raises(RuntimeError, match="can only be called once"):
                    model.register_comm_hook(None, halved)
            model.zero_grad()
            model(torch.full((2, 256), 1.1 + rank)).square().sum().backward()
        found = thinwire.report().get("ddp all-reduce")
        return ([one.grad.clone() for one in model.parameters()],
                [one.detach().clone() for one in model.parameters()],
                found.calls if found else 0, elsewhere())

    plain, ours = ranks.run(2, check), switched_on(2, check, TW_GRADS="lossless")
    for (*before, _, _), (*after, calls, reasons) in zip(plain, ours):
        for one, other in zip(before, after):
            assert all(map(torch.equal, one, other))
        assert calls == 1 and len(reasons) == 1 and "it has a hook of its own" in reasons[0]


class NoStream(contextlib.nullcontext):
    """In the place of a stream and of an event, where there is no accelerator."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: self


def test_mixed_precision_of_ddp_itself():
    def check(rank):
        from torch.nn.parallel.distributed import _MixedPrecision

        torch.Stream = torch.Event = torch.accelerator.current_stream = NoStream
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(64, 64), mixed_precision=_MixedPrecision(torch.bfloat16))
        model(torch.full((2, 64), 1.1 + rank)).sum().backward()
        return elsewhere()

    assert switched_on(2, check)[0] == ["its mixed precision has a hook of torch's own"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype):
    def check(rank):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
        scaler = torch.amp.GradScaler("cpu")
        optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
        for _ in range(3):
            with torch.autocast("cpu", dtype):
                loss = model(torch.full((2, 64), 1.1 + rank)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, [one.detach().clone() for one in model.parameters()]

    plain, ours = ranks.run(2, check), switched_on(2, check, TW_GRADS="lossless")
    assert plain[0][0] == ours[0][0] and all(map(torch.equal, plain[0][1], ours[0][1]))


def gradients(rank, hook=None, named=False):
    """{name: gradient} of a first step, and of a later one."""
    model, found = DistributedDataParallel(make(), bucket_cap_mb=0.03), []
    if hook is not None:
        model.register_comm_hook(None, hook(model) if named else hook())
    generator = torch.Generator().manual_seed(rank)
    for _ in range(5):
        model.zero_grad()
        x = torch.randn(40, WIDTH, generator=generator)
        x[:, 3] *= 100  # a feature that is far larger than the others
        (model.module[0][1:](x) + model(x) - x).square().mean().backward()
        found.append({name: one.grad.clone() for name, one in model.module.named_parameters()})
    return found


def differing(one, other):
    return {name for name in one if not torch.equal(one[name], other[name])}


def test_gradients_by_name():
    def check(rank):
        expected = gradients(rank, lambda: thinwire.ddp_hook("plain"))
        some = {"*": "int8:columns=no", "*.3": "lossless", "1.1": "plain"}
        found = gradients(rank, lambda model: thinwire.ddp_hook(some, 0, model), named=True)
        with pytest.raises(ValueError, match="need the model"):
            thinwire.ddp_hook(some)
        return differing(found[-1], expected[-1]), gradients(rank)

    def by_variable(rank):
        return gradients(rank)

    results = ranks.run(2, check)
    assert [one for one, _ in results] == [{"0.1.weight", "2.1.weight"}] * 2
    text = "int8:columns=no;*.3=lossless;1.1=plain;*.nobody=plain"
    for own, (_, plain) in zip(switched_on(2, by_variable, TW_GRADS=text), results):
        assert differing(own[-1], plain[-1]) == {"0.1.weight", "2.1.weight"}


def test_scales_of_columns():
    """What a large feature does to the others' gradients."""

    def check(rank):
        expected = gradients(rank, lambda: thinwire.ddp_hook("plain"))[-1]["0.1.weight"]
        errors = []
        for codec in ("int4:columns=no", "int4"):
            found = gradients(rank, lambda: thinwire.ddp_hook(codec, 0))[-1]["0.1.weight"]
            small = torch.arange(WIDTH) != 3
            errors.append(((found - expected)[:, small].norm() / expected[:, small].norm()).item())
        found = thinwire.report()["ddp all-reduce"].losses
        assert ("bucket 0", "a parameter of 48 x 95") in found
        return errors

    for without, under in ranks.run(2, check):
        assert under < 0.35 and without > 2 * under
