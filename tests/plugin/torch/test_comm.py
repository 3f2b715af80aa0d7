"""torchcomms/comm.py: all collectives of a communicator, with tensors of any kind. torch's own arithmetic is
the measure."""

import dataclasses
import functools
import gc
import itertools
import json
import logging
import os
import socket
import threading
import time
import weakref
from unittest import mock

import pytest
import ranks
import thinwire
import torch
from thinwire import capi
from thinwire.engine import meeting
from thinwire.torchcomms.comm import Call, Comm

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
OTHERS = (torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)
N = 1001  # of a tensor: no round number
HEAD_BYTES = 64  # at most, before a plain message
NAMES = itertools.count()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def world_of(rank, world, members=None):
    """Of the default group, which no communicator here needs but for its store."""
    found = meeting.default_world().under("hostcomm/%d/" % next(NAMES))
    own = tuple(range(world)) if members is None else tuple(sorted(members))
    return meeting.World(rank, own, found.store)


def make(rank, world, codec=None, order=None, timeout_sec=60.0):
    order = list(range(world)) if order is None else order
    return Comm(world_of(rank, world, order), order, "test", lambda: codec, timeout_sec)


def values(rank, dtype, n=N, seed=0):
    """Another tensor on each rank."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype.is_floating_point:
        return torch.randn(n, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 5, (n,), generator=generator).to(dtype)


def run(world, function, nodes=None, **kwargs):
    """function(comm, rank) on all ranks."""

    def on(rank):
        comm = make(rank, world)
        function(comm, rank)
        comm.close()

    ranks.run(world, on, nodes=nodes, **kwargs)


def check_what_is_moved_arrives(comm, rank, world):
    for dtype in FLOATS + OTHERS:
        own, all_of = values(rank, dtype), [values(one, dtype) for one in range(world)]
        whole = torch.empty(world * N, dtype=dtype)
        comm.all_gather_single(whole, own).wait()
        assert torch.equal(whole, torch.cat(all_of))
        uneven = [one[: 7 * i] for i, one in enumerate(all_of)]
        outputs = [torch.empty_like(one) for one in uneven]
        comm.all_gather(outputs, uneven[rank]).wait()
        assert all(map(torch.equal, outputs, uneven))
        for root in {0, world - 1}:
            sent = own.clone()
            comm.broadcast(sent, root).wait()
            assert torch.equal(sent, all_of[root])
            outputs = [torch.empty_like(own) for _ in range(world)] if rank == root else []
            comm.gather(outputs, own, root).wait()
            assert rank != root or all(map(torch.equal, outputs, all_of))
            output = torch.empty(N, dtype=dtype)
            comm.scatter(output, [one.flip(0) for one in all_of] if rank == root else [], root).wait()
            assert torch.equal(output, own.flip(0))
        comm.barrier().wait()


def check_all_to_all(comm, rank, world):
    for dtype in FLOATS + OTHERS:
        full = [values(one, dtype, world * 40) for one in range(world)]
        output = torch.empty_like(full[rank])
        comm.all_to_all_single(output, full[rank]).wait()
        assert torch.equal(output, torch.cat([one.view(world, -1)[rank] for one in full]))
        # Rows of a matrix: i + 2j of them from rank i to rank j, none between the first and itself.
        rows = [[i + 2 * j for j in range(world)] for i in range(world)]
        mats = [values(i, dtype, 3 * sum(rows[i])).view(-1, 3) for i in range(world)]
        incoming = [rows[i][rank] for i in range(world)]
        output = torch.empty(sum(incoming), 3, dtype=dtype)
        comm.all_to_all_single(output, mats[rank], incoming, rows[rank]).wait()
        parts = [mats[i].split(rows[i])[rank] for i in range(world)]
        assert torch.equal(output, torch.cat(parts))
        outputs = [torch.empty_like(one) for one in parts]
        comm.all_to_all(outputs, list(mats[rank].split(rows[rank]))).wait()
        assert all(map(torch.equal, outputs, parts))


REDUCED = {
    "SUM": lambda rows: rows.sum(0), "AVG": lambda rows: rows.sum(0) / rows.size(0),
    "PRODUCT": lambda rows: rows.prod(0), "MIN": lambda rows: rows.amin(0), "MAX": lambda rows: rows.amax(0),
}


def close(found, expected, dtype):
    """Of values near 1: a few roundings apart."""
    return torch.allclose(found.double(), expected.double(), rtol=8 * torch.finfo(dtype).eps,
                          atol=8 * torch.finfo(dtype).eps)


def check_reductions(comm, rank, world):
    for dtype, op in itertools.product((*FLOATS, torch.float64), REDUCED):
        rows = torch.stack([values(one, dtype, world * 40) for one in range(world)])
        expected = REDUCED[op](rows.double())
        whole = rows[rank].clone()
        comm.all_reduce(whole, op).wait()
        assert close(whole, expected, dtype)
        output = torch.empty(40, dtype=dtype)
        comm.reduce_scatter_single(output, rows[rank], op).wait()
        assert (torch.equal(output, whole.view(world, 40)[rank])
                or close(output, expected.view(world, 40)[rank], dtype))
        sizes = [(i * 40 * world) // sum(range(world + 1)) for i in range(1, world)]
        parts = expected.split([*sizes, 40 * world - sum(sizes)])
        inputs = list(rows[rank].split([len(one) for one in parts]))
        output = torch.empty(len(parts[rank]), dtype=dtype)
        comm.reduce_scatter(output, inputs, op).wait()
        assert close(output, parts[rank], dtype)
        at_root = rows[rank].clone()
        comm.reduce(at_root, world - 1, op).wait()
        assert close(at_root, expected, dtype) if rank == world - 1 else torch.equal(at_root, rows[rank])


def check_reductions_of_integers(comm, rank, world):
    """They wrap, and a mean is cut, as gloo's."""
    for dtype in (torch.int64, torch.int32, torch.uint8):
        rows = torch.stack([values(one, dtype, 20 * world) for one in range(world)])
        folds = {
            "SUM": rows.sum(0, dtype=dtype), "MAX": rows.amax(0), "MIN": rows.amin(0),
            "PRODUCT": rows.prod(0, dtype=dtype),
            "AVG": rows.sum(0, dtype=dtype).div(world, rounding_mode="trunc").to(dtype),
            "BAND": functools.reduce(torch.bitwise_and, rows),
            "BOR": functools.reduce(torch.bitwise_or, rows),
            "BXOR": functools.reduce(torch.bitwise_xor, rows),
        }
        for op, expected in folds.items():
            whole, output, at_root = rows[rank].clone(), torch.empty(20, dtype=dtype), rows[rank].clone()
            comm.all_reduce(whole, op).wait()
            assert torch.equal(whole, expected), op
            comm.reduce_scatter_single(output, rows[rank], op).wait()
            assert torch.equal(output, expected.view(world, 20)[rank])
            comm.reduce(at_root, world - 1, op).wait()
            assert torch.equal(at_root, expected if rank == world - 1 else rows[rank])


def check_tensors_that_are_not_contiguous(comm, rank, world):
    """As those in another memory, they are copied there and back."""
    mats = [values(one, torch.float32, 600).view(20, 30) for one in range(world)]
    turned = mats[rank].t()
    whole = torch.zeros(30, 20 * world).t()
    comm.all_gather_single(whole, turned.reshape(20, 30)).wait()
    assert torch.equal(whole, torch.cat([one.t().reshape(20, 30) for one in mats]))
    summed = mats[rank].clone().t()
    work = comm.all_reduce(summed, "SUM")
    work.wait()
    work.wait()
    assert close(summed, sum(mats).t(), torch.float32)
    sent = mats[rank].clone()[:, ::3]
    comm.broadcast(sent, world - 1).wait()
    assert torch.equal(sent, mats[-1][:, ::3])


@pytest.mark.parametrize("world, nodes", [(1, [0]), (3, [0, 1, 1])])
def test_collectives(world, nodes):
    def check(comm, rank):
        for one in (check_what_is_moved_arrives, check_all_to_all, check_reductions,
                    check_reductions_of_integers, check_tensors_that_are_not_contiguous):
            one(comm, rank, world)

    run(world, check, nodes)


def test_ranks_in_an_order_of_their_own_and_subsets():
    def check(rank):
        comm = make(rank, 3, order=[2, 0, 1])
        assert comm.rank == [2, 0, 1].index(rank)
        whole = torch.empty(3, dtype=torch.int64)
        comm.all_gather_single(whole, torch.tensor([rank])).wait()
        assert whole.tolist() == [2, 0, 1]
        if rank != 1:
            pair = make(rank, 3, order=[2, 0])
            part = torch.empty(2, dtype=torch.int64)
            pair.all_gather_single(part, torch.tensor([rank])).wait()
            assert part.tolist() == [2, 0]
            pair.close()
        comm.close()

    ranks.run(3, check)


def test_a_subset_does_not_take_the_launchers_word():
    """A node has fewer of its ranks than the launcher has started there, and the one port may be another
    subset's."""

    def check(_rank):
        world = meeting.World(0, (0,), torch.distributed.HashStore(), launched=False)
        for found, local_world in ((world, -1), (dataclasses.replace(world, launched=True), 1)):
            job, listener = meeting.Meeting(found, (0,), 10.0).job()
            assert job.local_world == local_world
            os.close(listener)

    ranks.run(1, check, backend=None)


def test_the_fixed_port_is_one_communicators_at_a_time():
    """The next one meets at another port, and once the first is closed the port is free again."""

    def check(rank):
        first = make(rank, 2)
        second = make(rank, 2)
        for comm in (first, second):
            total = torch.ones(5)
            comm.all_reduce(total, "SUM").wait()
            assert total.tolist() == [2.0] * 5
        holder = meeting._fixed_port._holder
        assert (holder is first._engine._meeting) == (rank == 0)
        second.close()
        assert (meeting._fixed_port._holder is None) == (rank == 1)
        first.close()
        assert meeting._fixed_port._holder is None
        again = make(rank, 2)
        assert (meeting._fixed_port._holder is None) == (rank == 1)
        again.close()

    ranks.run(2, check, TW_RENDEZVOUS_PORT=str(free_port()))


def test_a_closed_communicator_keeps_no_store():
    def check(rank):
        comm = make(rank, 2)
        seen = weakref.ref(comm._engine._meeting)
        comm.close()
        gc.collect()
        assert seen() is None

    ranks.run(2, check)


def test_a_timeout_of_nothing_is_refused_and_a_calls_is_the_communicators():
    def check(rank):
        with pytest.raises(RuntimeError, match="ranks? .*a timeout of 0 s: it has to be above 0"):
            make(rank, 2, timeout_sec=0.0 if rank == 0 else 20.0)
        comm = make(rank, 2)
        with pytest.raises(ValueError, match="a timeout of 0 s"):
            comm.set_timeout(0.0)
        with pytest.raises(ValueError, match="a timeout of -1 s"):
            comm.barrier(Call(timeout_sec=-1.0))
        if rank == 1:
            time.sleep(0.3)  # a limit of nothing would have passed by now
        total = torch.ones(5)
        comm.all_reduce(total, "SUM", Call(timeout_sec=0.0)).wait()
        assert total.tolist() == [2.0] * 5 and comm._communicator._timeout_sec == 60.0
        comm.close()

    ranks.run(2, check)


def test_what_refuses_a_communicator_is_said_once():
    """In the error: torch's collectives are no way out here, so nobody is warned of them."""

    def check(rank):
        lines = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())
        logging.getLogger("thinwire").addHandler(handler)
        with pytest.raises(RuntimeError, match="rank 1: 'int3' is not a codec"):
            make(rank, 2, "int3" if rank == 1 else None)
        assert not [line for line in lines if "rank 1" in line]

    ranks.run(2, check)


def test_a_first_rank_that_cannot_listen_is_heard_of():
    """The others have its reason at once, not the end of their time."""

    def check(_rank):
        store, places = torch.distributed.HashStore(), []

        def refuse(address, _port):
            places.append(address)
            return -1

        second = meeting.Meeting(meeting.World(1, (0, 1), store, launched=False), (0, 1), 60.0)
        second._store.set("1", json.dumps([meeting.addresses.place(), meeting.addresses.own(store)]))
        first = meeting.Meeting(meeting.World(0, (0, 1), store, launched=False), (0, 1), 60.0)
        with mock.patch.object(capi.lib(), "tw_transport_listen", refuse):
            with pytest.raises(OSError, match="rank 0 cannot listen on "):
                first.job()
        with pytest.raises(OSError, match="rank 0 cannot listen on "):
            second.job()
        assert len(places) == 1

    ranks.run(1, check, backend=None)


QMAX, PART = {"int8": 127, "int4": 7}, {"int8": 0.27, "int4": 0.15, "lossless": 0.95}


def sent(work):
    """Bytes to other nodes while a call is made and waited for."""
    before = thinwire.report().counted_bytes
    work().wait()
    return thinwire.report().counted_bytes - before


def check_codec(made, rank, codec, call):
    """Rounding is off by half a step of the largest in a block, whose scale is a bf16; sums are rounded once
    more on their way back."""
    n, both = 1 << 16, [values(one, torch.float32, 1 << 16) for one in range(2)]
    own, other = both[rank], both[1 - rank]
    bound = 1.01 * max(own.abs().max(), other.abs().max()) / (2 * QMAX[codec]) if codec in QMAX else 0.0
    whole, total, part, swapped = torch.empty(2 * n), own.clone(), torch.empty(n // 2), torch.empty(n)
    assert 0 < sent(lambda: made.all_gather_single(whole, own, call)) < PART[codec] * 4 * n
    assert (whole - torch.cat(both)).abs().max() <= bound
    assert 0 < sent(lambda: made.all_reduce(total, "SUM", call)) < PART[codec] * 4 * n
    assert (total - (own + other)).abs().max() <= 4 * bound
    assert 0 < sent(lambda: made.reduce_scatter_single(part, own, "AVG", call)) < PART[codec] * 2 * n
    assert (part - ((own + other) / 2).view(2, -1)[rank]).abs().max() <= bound
    assert 0 < sent(lambda: made.all_to_all_single(swapped, own, call=call)) < PART[codec] * 2 * n
    assert (swapped.view(2, -1)[1 - rank] - other.view(2, -1)[rank]).abs().max() <= bound
    assert torch.equal(swapped.view(2, -1)[rank], own.view(2, -1)[rank])


def test_codecs_are_within_their_bounds_and_take_fewer_bytes():
    """A communicator's for what is not small, a call's for whatever it is given; integers are what they
    were."""

    def check(rank):
        plain, comm = make(rank, 2), make(rank, 2, "int8")
        for codec in PART:
            if codec != "int8":
                comm.codec = capi.parse_codec(codec)
            check_codec(comm, rank, codec, Call())
            check_codec(plain, rank, codec, Call(codec))
            small, counts = torch.full((5,), 1 / 3), torch.arange(100000) * (rank + 1)
            comm.all_reduce(small, "SUM").wait()
            comm.all_reduce(counts, "SUM").wait()
            assert torch.equal(small, torch.full((5,), 1 / 3) * 2)
            assert torch.equal(counts, torch.arange(100000) * 3)
            n_bytes = sent(
                lambda: comm.all_gather_single(torch.empty(2 << 16), torch.ones(1 << 16), Call("plain")))
            assert 4 << 16 <= n_bytes <= (4 << 16) + HEAD_BYTES
        comm.close()
        plain.close()

    ranks.run(2, check, **ranks.SLOW)


def test_what_makes_no_sense_is_named():
    def check(comm, rank):
        x = torch.ones(4)
        for call, what in (
            (lambda: comm.all_reduce(x, "PREMUL_SUM"), "no reduction PREMUL_SUM: it has SUM, AVG"),
            (lambda: comm.all_gather_single(torch.empty(9), x),
             "all_gather_single's output has 9 elements, 8 are expected"),
            (lambda: comm.all_gather_single(torch.empty(8).half(), x),
             "several types: torch.float16, torch.float32"),
            (lambda: comm.all_gather([x], x), "all_gather's list has 1 elements, 2 are expected"),
            (lambda: comm.reduce_scatter_single(x, x, "SUM"),
             "reduce_scatter_single's input has 4 elements, 8 are expected"),
            (lambda: comm.all_to_all_single(x[:3], x[:3]), "has 3 elements, for 2 ranks"),
            (lambda: comm.all_to_all_single(x, x, [2, 2], [1, 2]),
             "first dimension of all_to_all_v_single's input has 3 elements, 4 are"),
            (lambda: comm.broadcast(x, 0, Call("int8")), "broadcast takes no codec"),
            (lambda: comm.all_reduce(x, "SUM", Call("int3")), "'int3' is not a codec"),
        ):
            with pytest.raises(ValueError, match=what.replace("(", r"\(")):
                call()
        comm.barrier().wait()

    run(2, check)


# What one rank has instead: its environment, {codec: what all are told}.
DIFFERING = [
    ({"TW_MIN_BYTES": "2"}, {
        None: "rank 1: TW_MIN_BYTES=2", "int8": "ranks 0, 2: codec=plain, rank 1: codec=int8:block=2048",
        "int3": "rank 1: 'int3' is not a codec"}),
    ({"TW_LIBRARY": "/nowhere/lib.so"}, {None: "rank 1: cannot load /nowhere/lib.so"}),
]


@pytest.mark.parametrize("environment, told", DIFFERING)
def test_a_rank_that_differs_is_told_to_all(environment, told):
    def refused(rank, codec):
        with pytest.raises(RuntimeError) as error:
            make(rank, 3, codec if rank == 1 else None)
        return str(error.value)

    for texts in ranks.run(3, lambda rank: [refused(rank, codec) for codec in told],
                           differing={1: environment}):
        for text, expected in zip(texts, told.values()):
            assert text.startswith("thinwire: communicator test: ") and expected in text


def test_a_rank_that_does_not_come_is_named():
    def check(rank):
        if rank == 0:
            with pytest.raises(RuntimeError, match="nothing was heard from rank 1 within 1 s"):
                make(rank, 2, timeout_sec=1.0)

    ranks.run(2, check)


def test_ranks_whose_calls_differ_get_an_error():
    def check(rank):
        comm = make(rank, 2)
        with pytest.raises(thinwire.ThinwireError):
            comm.all_gather_single(torch.empty(1 << 18), torch.ones(1 << 17),
                                   Call("int8" if rank else None)).wait()

    ranks.run(2, check, leave=False)


def test_a_rank_that_dies_is_named():
    def check(rank):
        comm = make(rank, 3)
        comm.barrier().wait()
        if rank == 1:
            ranks.die()
        with pytest.raises(thinwire.ThinwireError, match="rank 1"):
            for _ in range(100000):
                comm.all_reduce(torch.ones(10), "SUM").wait()

    ranks.run(3, check, may_die=(1,), leave=False)


def test_a_call_has_a_limit_of_its_own():
    def check(rank):
        comm, store = make(rank, 2), meeting.default_world().store
        if rank == 0:
            with pytest.raises(thinwire.ThinwireError, match="timed out"):
                comm.barrier(Call(timeout_sec=1.0)).wait()
            # Nobody is there who would end torch's own groups, or the process.
            assert "thinwire-watch" not in [one.name for one in threading.enumerate()]
            store.set("over", "")
        else:
            store.wait(["over"])

    ranks.run(2, check, leave=False)
