"""torchcomms: the backend of torchcomms, over torchcomms itself where it is installed; and what is
refused, everywhere."""

import importlib.util
import itertools
import os
import pathlib
import sys
import types
from datetime import timedelta

import pytest
import ranks
import thinwire
import torch
from test_nodes import in_cluster
from thinwire.torchcomms import abi

HERE = pathlib.Path(__file__).parent
N = 1 << 16
HEAD_BYTES = 64  # at most, before a plain message


# What is refused


def method(name, parameters):
    """As C++'s functions say what they take."""
    text = ", ".join("%s: collections.abc.Sequence[tuple[str, int]] | None = {'a': (1, 2)}" % one
                     for one in ("self", *parameters))
    return types.SimpleNamespace(__doc__="%s(%s) -> torchcomms._comms.TorchWork\n\nA text." % (name, text))


def module_of(**differing):
    """torchcomms, as far as it is looked at. differing: {method: its parameters, or None: there is none}"""
    methods = ({name: (*own, *abi.AT_EACH_CALL) for name, own in abi.COLLECTIVES.items()}
               | abi.OTHERS | differing)
    found = types.SimpleNamespace(**dict.fromkeys(abi.NAMES))
    found.TorchComm = types.SimpleNamespace(
        **{name: method(name, own) for name, own in methods.items() if own is not None})
    return found


def test_the_version_that_was_read_is_taken():
    assert abi.difference(module_of(), "0.3.0") == "" and abi.difference(module_of(), "0.3.1") == ""


@pytest.mark.parametrize("module, version, why", [
    (types.SimpleNamespace(), "0.0.1", "it takes no backends that are written in Python"),
    (module_of(), "0.4.0", "its interface was read in 0.3.x"),
    (module_of(), "0.30.0", "its interface was read in 0.3.x"),
    (module_of(), "of unknown version", "its interface was read in 0.3.x"),
    (module_of(all_reduce=("tensor", "op", "hints")), "0.3.0",
     "it has no TorchComm.all_reduce(tensor, op, async_op, hints, timeout)"),
    (module_of(abort=None, barrier=None), "0.3.0",
     "it has no TorchComm.barrier(async_op, hints, timeout), TorchComm.abort()"),
], ids=["placeholder", "later", "much later", "unknown", "other parameters", "fewer methods"])
def test_others_are_refused_with_the_reason(module, version, why):
    assert abi.difference(module, version) == why


# The backend

needs_torchcomms = pytest.mark.skipif(importlib.util.find_spec("torchcomms") is None,
                                      reason="not installed: torchcomms")
NAMES = itertools.count()


def run(world, function, **kwargs):
    """function(rank, comm) on all ranks, without a process group of torch's; comm: a communicator of all
    ranks."""

    def on(rank):
        made = comm()
        result = function(rank, made)
        if kwargs.get("leave", True):
            made.finalize()
        return result

    return ranks.run(world, on, backend=None, MASTER_PORT=str(ranks.free_port()), **kwargs)


def comm(hints=None, **kwargs):
    import torchcomms

    return torchcomms.new_comm("thinwire", torch.device("cpu"), "comm%d" % next(NAMES), hints=hints, **kwargs)


def values(rank, dtype=torch.float32, n=N):
    return torch.randn(n, generator=torch.Generator().manual_seed(rank)).to(dtype)


@needs_torchcomms
@pytest.mark.parametrize("world", [2, 4])
def test_all_collectives(world):
    from torchcomms import ReduceOp

    def check(rank, made):
        assert (made.get_rank(), made.get_size(), made.get_backend()) == (rank, world, "thinwire")
        assert made.get_backend_version() == thinwire.__version__
        for dtype, async_op in itertools.product((torch.float32, torch.bfloat16, torch.float16, torch.int64),
                                                 (False, True)):
            own, rows = values(rank, dtype), torch.stack([values(one, dtype) for one in range(world)])
            total = rows.sum(0, dtype=dtype)
            tolerance = {"rtol": 0.0, "atol": 0.05 if dtype in (torch.bfloat16, torch.float16) else 1e-5}

            def alike(found, expected, limits=tolerance):
                assert torch.allclose(found.double(), expected.double(), **limits)

            whole = torch.empty(world * N, dtype=dtype)
            made.all_gather_single(whole, own, async_op).wait()
            assert torch.equal(whole, rows.view(-1))
            listed = [torch.empty_like(own) for _ in range(world)]
            made.all_gather(listed, own, async_op).wait()
            assert torch.equal(torch.stack(listed), rows)
            made.all_gather_v(listed, own, async_op).wait()
            summed = own.clone()
            made.all_reduce(summed, ReduceOp.SUM, async_op).wait()
            alike(summed, total)
            for function, given in ((made.reduce_scatter_single, own),
                                    (made.reduce_scatter, list(own.chunk(world))),
                                    (made.reduce_scatter_v, list(own.chunk(world)))):
                part = torch.empty(N // world, dtype=dtype)
                function(part, given, ReduceOp.SUM, async_op).wait()
                alike(part, total.view(world, -1)[rank])
            swapped = torch.empty_like(own)
            made.all_to_all_single(swapped, own, async_op).wait()
            assert torch.equal(swapped, rows.view(world, world, -1)[:, rank].reshape(-1))
            again = torch.empty_like(own)
            made.all_to_all_v_single(again, own, [N // world] * world, [N // world] * world, async_op).wait()
            assert torch.equal(again, swapped)
            listed = [torch.empty(N // world, dtype=dtype) for _ in range(world)]
            made.all_to_all(listed, list(own.chunk(world)), async_op).wait()
            assert torch.equal(torch.cat(listed), swapped)
            sent = own.clone()
            made.broadcast(sent, 1, async_op).wait()
            assert torch.equal(sent, rows[1])
            at_root = own.clone()
            made.reduce(at_root, 1, ReduceOp.MAX, async_op).wait()
            assert torch.equal(at_root, rows.amax(0) if rank == 1 else own)
            listed = [torch.empty_like(own) for _ in range(world)] if rank == 0 else []
            made.gather(listed, own, 0, async_op).wait()
            assert rank or torch.equal(torch.stack(listed), rows)
            output = torch.empty_like(own)
            made.scatter(output, list(rows) if rank == 0 else [], 0, async_op).wait()
            assert torch.equal(output, own)
            if rank == 0:
                made.gather_single(whole, own, 0, async_op).wait()
                assert torch.equal(whole, rows.view(-1))
            else:
                made.gather_single(torch.empty(0, dtype=dtype), own, 0, async_op).wait()
            made.barrier(async_op).wait()

    run(world, check)


@needs_torchcomms
@pytest.mark.parametrize("codec, part, bound",
                         [("int8", 0.27, 0.05), ("int4", 0.15, 0.8), ("lossless", 0.95, 0.0)])
def test_hints_of_a_communicator_and_of_a_call(codec, part, bound):
    """What travels is smaller, as counted, and off by no more than the codec's step."""
    from torchcomms import ReduceOp

    def sent(call):
        before = thinwire.report().counted_bytes
        call().wait()
        return thinwire.report().counted_bytes - before

    def check(rank, plain):
        coded, later = comm({"codec": codec}), comm()
        later.set_hints({"codec": codec})
        own, rows = values(rank), torch.stack([values(0), values(1)])
        for made, hints in ((coded, None), (later, None), (plain, {"codec": codec})):
            whole, summed = torch.empty(2 * N), own.clone()
            scattered, swapped = torch.empty(N // 2), torch.empty(N)
            calls = {
                "all_gather_single": lambda: made.all_gather_single(whole, own, False, hints=hints),
                "reduce_scatter_single":
                    lambda: made.reduce_scatter_single(scattered, own, ReduceOp.SUM, True, hints),
                "all_reduce":
                    lambda: made.all_reduce(summed, op=ReduceOp.SUM, async_op=False, hints=hints,
                                            timeout=timedelta(seconds=50)),
                "all_to_all_single": lambda: made.all_to_all_single(swapped, own, True, hints=hints),
            }
            for name, call in calls.items():
                n_bytes = {"all_gather_single": 4 * N, "all_reduce": 4 * N}.get(name, 2 * N)
                assert 0 < sent(call) < part * n_bytes, name
            found = ((whole, rows.view(-1)), (summed, rows.sum(0)),
                     (scattered, rows.sum(0).view(2, -1)[rank]),
                     (swapped, rows.view(2, 2, -1)[:, rank].reshape(-1)))
            for one, expected in found:
                assert (one - expected).abs().max() <= 2 * bound
        n_bytes = sent(lambda: plain.all_gather_single(torch.empty(2 * N), own, False))
        assert 4 * N <= n_bytes <= 4 * N + HEAD_BYTES
        n_bytes = sent(lambda: coded.all_gather_single(torch.empty(2 * N), own, False, {"codec": "plain"}))
        assert n_bytes >= 4 * N
        coded.finalize()
        later.finalize()

    run(2, check, **ranks.SLOW)


@needs_torchcomms
def test_plain_and_lossless_have_gloos_bits():
    import torch.distributed as dist
    from torchcomms import ReduceOp

    def check(rank, made):
        place = "tcp://127.0.0.1:%d" % (int(os.environ["MASTER_PORT"]) + 1)
        dist.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
        for dtype, hints in itertools.product((torch.float32, torch.bfloat16, torch.float16),
                                              (None, {"codec": "lossless"})):
            ours, gloos = values(rank, dtype), values(rank, dtype)
            made.all_reduce(ours, ReduceOp.SUM, False, hints)
            dist.all_reduce(gloos)
            assert torch.equal(ours.view(torch.uint8), gloos.view(torch.uint8))
        dist.destroy_process_group()

    run(2, check)


@needs_torchcomms
def test_split():
    """Subgroups have the hints of the whole unless they have their own, and ranks in the order that was asked
    for."""
    from torchcomms import ReduceOp

    def check(rank, made):
        pair = [0, 2] if rank % 2 == 0 else [3, 1]
        part = made.split(pair, "pair", hints={"codec": "int8"})
        order = part.get_ranks() if hasattr(part, "get_ranks") else pair
        assert (part.get_rank(), part.get_size(), order) == (pair.index(rank), 2, pair)
        total = torch.full((N,), float(rank))
        part.all_reduce(total, ReduceOp.AVG, False)
        assert (total - sum(pair) / 2).abs().max() < 0.1
        inner = part.split([part.get_rank()], "alone")
        assert inner.get_size() == 1 and inner.get_backend_impl()._hints == {"codec": "int8"}
        inner.all_reduce(total, ReduceOp.SUM, False)
        assert made.split([], "none") is None
        with pytest.raises(RuntimeError, match="rank %d is not among the ranks" % rank):
            made.split([(rank + 1) % 4], "others")
        inner.finalize()
        part.finalize()

    run(4, check)


def test_split_leaves_the_callers_options_as_they_are():
    """With a torchcomms that is only a base class."""

    def check(_rank):
        sys.modules["torchcomms"] = types.SimpleNamespace(TorchCommBackend=object)
        from thinwire.torchcomms import backend

        def options(**hints):
            return types.SimpleNamespace(timeout=timedelta(seconds=20), store=None, hints=hints)

        whole, own = backend.Backend(), options()
        whole.init(torch.device("cpu"), "whole", options(codec="int8"))
        part = whole.split([0], "part", own)
        assert own.hints == {} and part._hints == {"codec": "int8"}
        other = whole.split([0], "other", options(codec="plain"))
        assert other._hints == {"codec": "plain"}
        for one in (other, part, whole):
            one.finalize()

    ranks.run(1, check, backend=None)


@needs_torchcomms
def test_a_name_and_a_store_may_be_used_again():
    import torchcomms

    def check(rank, made):
        store = torch.distributed.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]) + 1, 2, rank == 0)
        for _ in range(2):
            again = torchcomms.new_comm("thinwire", torch.device("cpu"), made.get_name(), store=store,
                                        timeout=timedelta(seconds=20))
            again.set_timeout(timedelta(seconds=30))
            again.barrier(False)
            again.finalize()
        made.barrier(False)

    run(2, check)


@needs_torchcomms
def test_nodes_in_a_box():
    """Two nodes of two ranks, in network namespaces: what stays in a node is plain, what leaves it is as
    large as the codec's."""
    found = in_cluster(HERE / "torchcomms_job.py", flags=("--nodes", "2", "--ranks-per-node", "2"))
    if not found[0]["in_nodes"]:
        pytest.skip("no network namespaces here")
    assert [one["rank"] for one in found] == [0, 1, 2, 3]
    for one in found:
        assert one["good"] and one["in_node"] == 0 and 0 < one["int8"] < 0.3 * one["plain"]


@needs_torchcomms
def test_what_goes_wrong_is_said():
    import torchcomms

    def check(rank, made):
        x = torch.ones(4)
        with pytest.raises(ValueError, match="does not know the hint 'codce'; it knows 'codec'"):
            made.all_reduce(x, torchcomms.ReduceOp.SUM, False, {"codce": "int8"})
        with pytest.raises(ValueError, match="'int3' is not a codec"):
            made.all_reduce(x, torchcomms.ReduceOp.SUM, False, {"codec": "int3"})
        with pytest.raises(ValueError, match="broadcast takes no codec"):
            made.broadcast(x, 0, False, {"codec": "int8"})
        with pytest.raises(ValueError, match="no reduction PREMUL_SUM"):
            made.all_reduce(x, torchcomms.ReduceOp.PREMUL_SUM(2.0), False)
        with pytest.raises(NotImplementedError, match="thinwire has no send"):
            made.send(x, 1 - rank, False)
        with pytest.raises(RuntimeError, match="ranks? .*codec=int8:block=2048"):
            comm({"codec": "int8"} if rank else {"codec": "plain"})
        with pytest.raises(RuntimeError, match="rank 1: thinwire does not know the hint 'cdec'"):
            comm({"cdec": "int8"} if rank else None)
        work = made.all_reduce(x, torchcomms.ReduceOp.SUM, True)
        assert not work.is_completed()
        work.wait()
        assert work.is_completed() and x.tolist() == [2.0] * 4
        made.finalize()
        made.finalize()
        with pytest.raises(RuntimeError, match="communicator comm0 is closed"):
            made.barrier(False)

    run(2, check, leave=False)


@needs_torchcomms
def test_a_rank_that_dies_or_gives_up_is_named():
    import torchcomms

    def check(rank, made):
        made.barrier(False)
        if rank == 1:
            ranks.die()
        with pytest.raises(thinwire.ThinwireError, match="rank 1"):
            made.all_reduce(torch.ones(N), torchcomms.ReduceOp.SUM, True).wait()

    run(3, check, may_die=(1,), leave=False)

    def give_up(rank, made):
        made.barrier(False)
        if rank == 1:
            made.abort()
            assert made.is_aborted()
        with pytest.raises(thinwire.ThinwireError):
            made.barrier(False)

    run(2, give_up, leave=False)


@needs_torchcomms
def test_hooks_and_other_backends_are_as_before():
    """The calls of other backends go where they went, and hooks see ours."""
    import torchcomms

    class Other(torchcomms.TorchCommBackend):
        init = finalize = lambda *_args: None
        get_rank, get_size = (lambda _self: 0), (lambda _self: 1)
        get_backend_name = get_comm_name = lambda _self: "other"
        all_reduce = lambda _self, tensor, _op, _async: tensor.add_(1) and None

    def check(rank, made):
        seen = []
        handle = made.register_pre_hook(lambda name, _number, _args: seen.append(name.name))
        made.all_reduce(torch.ones(3), torchcomms.ReduceOp.SUM, False)
        made.barrier(False)
        handle.remove()
        assert seen == ["all_reduce", "barrier"]
        torchcomms.register_backend("other", Other)
        other, x = torchcomms.new_comm("other", torch.device("cpu"), "other"), torch.zeros(1)
        other.all_reduce(x, torchcomms.ReduceOp.SUM, False, {"any": "hint"})
        assert x.item() == 1
        with pytest.raises(RuntimeError, match="abort not implemented"):
            other.abort()

    run(2, check)


def losses_of(mesh_of, steps=4, codec=None):
    """(losses of a small model under fully_shard, on a mesh)"""
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    mesh = mesh_of()
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(3)])
    for one in model:
        fully_shard(one, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-3), []
    for step in range(steps):
        x = torch.randn(8, 256,
                        generator=torch.Generator().manual_seed(7 * step + torch.distributed.get_rank()))
        loss = (model(x) - x.sin()).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@needs_torchcomms
def test_fully_shard_on_its_device_mesh():
    """FSDP2 over torchcomms' own mesh: plain has gloo's losses, int8 is near them with fewer bytes."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    def over_gloo(_rank):
        return losses_of(lambda: init_device_mesh("cpu", (2,)))

    def over_torchcomms(codec):
        def check(_rank, made):
            from torchcomms.device_mesh import init_device_mesh as mesh_of

            losses = losses_of(lambda: mesh_of(mesh_dim_comms=(made,), mesh_dim_names=("shard",)))
            return losses, thinwire.report().counted_bytes

        def on(rank):
            made = comm({"codec": codec})
            return check(rank, made)

        return ranks.run(2, on, backend=None, MASTER_PORT=str(ranks.free_port()))

    assert dist.is_available()
    expected = ranks.run(2, over_gloo)
    plain, coded = over_torchcomms("plain"), over_torchcomms("int8")
    assert [losses for losses, _ in plain] == expected
    for (losses, few), (_, many), exact in zip(coded, plain, expected):
        assert few < 0.3 * many and losses != exact
        assert all(abs(a - b) < 0.02 * abs(b) for a, b in zip(losses, exact))
