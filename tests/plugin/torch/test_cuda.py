"""GPU memory: what is enqueued and on which stream, with a library that writes down its calls instead of a
GPU."""

import contextlib
import types

import pytest
import torch
from thinwire import capi, policy
from thinwire.collectives import operations, staging
from thinwire.engine import communicators
from thinwire.engine.communicators import Communicator
from thinwire.fsdp import backward, comms as fsdp_comms, replicas
from thinwire.reporting import report
from thinwire.telemetry import tally


class Library:
    """Records operations; everything succeeds at once. gains: whether codecs are worth it."""

    gains = True

    def __init__(self, log):
        self.log = log

    def tw_coll_request_plan(self, _request, plan):
        plan._obj.quantized = int(self.gains)
        plan._obj.reason = None if self.gains else b"plain is as fast on this link"

    def tw_coll_wait(self, _request):
        return capi.OK

    def tw_coll_n_nodes(self, _coll):
        return 2

    def tw_coll_post(self, _coll, args, request):
        one = args._obj
        self.log.append(("post", one.op, one.stream, bool(one.codec), request is None))
        return capi.OK

    def tw_coll_planned_inter_node_bytes(self, _coll, _args, out):
        out._obj.value = 10
        return capi.OK


class Stream:
    """A CUDA stream's part in the order of things."""

    def __init__(self, log, address):
        self.log, self.cuda_stream = log, address

    def record_event(self):
        self.log.append(("record", self.cuda_stream))
        return types.SimpleNamespace(query=lambda: False)

    def wait_event(self, _event):
        self.log.append(("wait", self.cuda_stream))


@pytest.fixture
def log(monkeypatch):
    calls = []
    monkeypatch.setattr(capi, "lib", lambda: Library(calls))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream(calls, 0x1234))
    owner = types.SimpleNamespace(check_usable=lambda: None, check=lambda status, what: None)
    made = [Communicator(owner, capi.C.c_void_p(1), rank=0, world=2, timeout_sec=1.0, cuda=cuda)
            for cuda in (True, False)]
    monkeypatch.setattr(communicators.Use, "communicator", lambda self, group, cuda, staged: made[staged])
    monkeypatch.setattr(staging, "_lanes", {})
    return calls


class Parameter(types.SimpleNamespace):
    """FSDP2's of a parameter, which is a key of dictionaries."""

    __hash__ = object.__hash__


def parameter():
    state = types.SimpleNamespace(name="SHARDED")
    data = torch.zeros(64, 64)
    return Parameter(_orig_size=torch.Size([128, 64]), _sharded_param_data=data.flatten(),
                     sharded_state=state, _sharded_local_tensor=data, param_dtype=None,
                     _param_fqn="layer.weight", padded_sharded_param_size=data.size())


GROUP = types.SimpleNamespace(size=lambda: 2, group_name="0")


# No library is asked: their bits stand for what they are.
INT8, INT4, LOSSLESS = capi.Codec(kind=8), capi.Codec(kind=4), capi.Codec(kind=0)


def comms(keeps=False, weights=INT8, grads=INT4):
    group = types.SimpleNamespace(fsdp_params=[parameter()], _module_fqn="")
    rules = policy.Policy(weights, grads, 0, keeps)
    gather, scatter = fsdp_comms.classes()
    use = communicators.Use({})
    made = gather(group, rules, use), scatter(group, rules, use)
    made[1].params = group.fsdp_params
    return made


@pytest.fixture(autouse=True)
def names(monkeypatch):
    for name in ("lossless", "says_length"):
        monkeypatch.setattr(capi.Codec, name, property(lambda self: self.kind == 0))
    text = lambda self: "lossless" if self.lossless else "int%d" % self.kind
    monkeypatch.setattr(capi.Codec, "__str__", text)


class Device:
    """Writes down what is asked of a GPU, and does copies at once. operates: its streams have memory
    operations."""

    def __init__(self, log, operates=True):
        self.log, self.operates = log, operates

    def holds(self, _tensor):
        return True

    def current(self, _tensor):
        return Staging(self.log, "current")

    def stream(self, _tensor):
        is_first = not any(str(one).startswith("stream") for one in self.log)
        return Staging(self.log, "out" if is_first else "into")

    def pinned(self, n_elems, dtype):
        return torch.zeros(n_elems, dtype=dtype)

    def copy(self, target, source, stream):
        self.log.append("copy on " + stream.name)
        target.copy_(source)

    def check(self, _stream):
        pass

    def write(self, count, value, stream):
        self.log.append("%s writes %d" % (stream.name, value) if self.operates else "cannot write")
        count.fill_(value)
        return self.operates

    def wait_for(self, _count, value, stream):
        self.log.append("%s waits for %d" % (stream.name, value))
        return True


class Staging:
    def __init__(self, log, name):
        self.log, self.name = log, name
        log.append("stream " + name)

    def record_event(self):
        self.log.append("record on " + self.name)
        return types.SimpleNamespace(of=self.name,
                                     synchronize=lambda: self.log.append("host waits for " + self.name))

    def wait_event(self, event):
        self.log.append("%s waits for %s" % (self.name, event.of))


def kept(log, error=None):
    """A unit that gives what it gets plus one."""

    def post(stage, lossless):
        log.append("post%s" % (" lossless" if lossless else ""))
        stage += 1
        return types.SimpleNamespace(wait=wait, take_elapsed=lambda: 2.5)

    def wait():
        log.append("gathered")
        if error is not None:
            raise error

    return types.SimpleNamespace(communicator=types.SimpleNamespace(rank=1), post=post, name="unit")


BEGIN = ["record on current", "out waits for current", "copy on out"]


def order_of(calls):
    return [one for one in calls if not str(one).startswith("stream ")]


def test_a_staged_gather(monkeypatch):
    """Out after the shard is written; posted when the stream has said that it is here; in behind a wait for
    the end, and the stream of whoever waits waits for that."""
    calls, whole = [], torch.tensor([7, 8], dtype=torch.uint8)
    monkeypatch.setattr(staging, "device", Device(calls))
    monkeypatch.setattr(staging, "_lanes", {})
    with policy.unquantized():
        work = replicas.gather_staged(kept(calls), whole, whole[1:])
    work.wait()
    assert [one for one in order_of(calls) if one not in ("post lossless", "gathered")] == [
        *BEGIN, "out writes 1", "into waits for 1", "copy on into", "record on into",
        "current waits for into"]
    assert calls.index("out writes 1") < calls.index("post lossless") < calls.index("gathered")
    assert work.test() and work.take_elapsed() == 2.5
    failing = replicas.gather_staged(kept(calls, ValueError("rank 3")), whole, whole[1:])
    with pytest.raises(ValueError, match="rank 3"):
        failing.wait()
    assert failing.exception() is not None
    [lane] = staging._lanes.values()
    assert lane._ended.item() == 2, "the GPU would wait for ever"


def test_memory_operations_of_a_stream(monkeypatch):
    """As cuda.h declares them; what the driver does not have, or refuses, is False."""
    called, results = [], {"cuStreamWriteValue32_v2": 0, "cuStreamWaitValue32_v2": 801}

    def operation(name):
        return lambda *args: called.append((name, *[one.value for one in args])) or results[name]

    monkeypatch.setattr(staging, "_operation", operation)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: contextlib.nullcontext())
    stream, count = types.SimpleNamespace(cuda_stream=0x5678, device="cuda:0"), torch.zeros(1)
    assert staging.Cuda().write(count, 7, stream) and not staging.Cuda().wait_for(count, 8, stream)
    assert called == [("cuStreamWriteValue32_v2", 0x5678, count.data_ptr(), 7, 0),
                      ("cuStreamWaitValue32_v2", 0x5678, count.data_ptr(), 8, 0)]


def test_a_staged_gather_with_an_old_driver(monkeypatch):
    """The host waits for the first copy, and enqueues the second one."""
    calls, whole = [], torch.tensor([7, 8], dtype=torch.uint8)
    monkeypatch.setattr(staging, "device", Device(calls, operates=False))
    monkeypatch.setattr(staging, "_lanes", {})
    work = replicas.gather_staged(kept(calls), whole, whole[1:])
    work.wait()
    assert order_of(calls) == [*BEGIN, "cannot write", "record on out", "host waits for out", "post",
                               "gathered", "copy on into", "record on into", "current waits for into"]
    assert whole.tolist() == [1, 9]
    failing = replicas.gather_staged(kept(calls, ValueError("rank 3")), whole, whole[1:])
    with pytest.raises(ValueError, match="rank 3"):
        failing.wait()
    assert whole.tolist() == [1, 9]


def test_weights_that_cannot_be_kept_are_staged(log, monkeypatch):
    """They go without loss from host memory."""
    monkeypatch.setattr(staging, "device", Device(log))
    monkeypatch.setattr(replicas, "keeper_of", lambda ranks: None)
    monkeypatch.setattr(fsdp_comms, "_announce_memory", lambda ranks, limit: None)
    whole = torch.zeros(2 * 64 * 64)
    before = tally.book.tallies.setdefault("all-gather", tally.Tally()).unkept[replicas.UNEVEN]
    gather, _ = comms(keeps=True, weights=LOSSLESS)
    work = gather(output_tensor=whole, input_tensor=whole[: 64 * 64], group=GROUP, async_op=False)
    assert work.wait() and ("post", capi.ALLGATHER, None, True, False) in log
    assert tally.book.tallies["all-gather"].unkept[replicas.UNEVEN] == before + 1


def reduced(scatter):
    shard, whole = torch.zeros(64 * 64), torch.zeros(2 * 64 * 64)
    return scatter(output_tensor=shard, input_tensor=whole, group=GROUP, op=torch.distributed.ReduceOp.AVG)


@pytest.mark.parametrize("operates", [True, False])
def test_gradients_that_are_to_lose_nothing_are_staged(log, monkeypatch, operates):
    """The stream that is current waits for the result, and the pass does at its end."""
    monkeypatch.setattr(staging, "device", Device(log, operates))
    ended = []
    monkeypatch.setattr(backward, "make_room", lambda group: ended.append("room"))
    monkeypatch.setattr(backward, "end_with", lambda group, request, kind: ended.append(request))
    _, scatter = comms(grads=LOSSLESS)
    assert reduced(scatter) is None
    room, request = ended
    assert room == "room" and request.is_coded() and request.number == int(operates)
    request.wait()
    steps = order_of(log)
    post = ("post", capi.REDUCE_SCATTER, None, True, False)
    assert steps.count(post) == 1 and steps.index("copy on out") < steps.index(post)
    steps.remove(post)
    enqueued = ["copy on into", "record on into", "current waits for into"]
    if operates:
        assert steps[: len(BEGIN) + 5] == [*BEGIN, "out writes 1", "into waits for 1", *enqueued]
    else:
        assert steps[: len(BEGIN) + 6] == [*BEGIN, "cannot write", "record on out", "host waits for out",
                                           *enqueued]


def test_an_all_reduce_between_replicas_is_staged(log, monkeypatch):
    monkeypatch.setattr(staging, "device", Device(log))
    monkeypatch.setattr(backward, "make_room", lambda group: None)
    monkeypatch.setattr(backward, "end_with", lambda group, request, kind: request.wait())
    _, scatter = comms(grads=LOSSLESS)
    assert scatter.all_reduce(torch.zeros(64 * 64), torch.distributed.ReduceOp.AVG, GROUP)
    assert ("post", capi.ALLREDUCE, None, True, False) in log


def test_what_gains_nothing_goes_over_nccl_from_then_on(log, monkeypatch):
    """Which the report says."""
    monkeypatch.setattr(staging, "device", Device([]))
    monkeypatch.setattr(backward, "make_room", lambda group: None)
    monkeypatch.setattr(backward, "end_with", lambda group, request, kind: request.wait())
    monkeypatch.setattr(Library, "gains", False)
    _, scatter = comms(grads=LOSSLESS)
    found = tally.book.tallies.setdefault("reduce-scatter", tally.Tally())
    before = found.unquantized[operations.DECLINED]
    for _ in range(3):
        assert reduced(scatter) is None
    assert log == [("post", capi.REDUCE_SCATTER, None, True, False)] + [
        ("post", capi.REDUCE_SCATTER, 0x1234, False, True)] * 2
    assert found.unquantized[operations.DECLINED] == before + 3


def test_what_is_not_to_be_coded_now_goes_over_nccl(log, monkeypatch):
    monkeypatch.setattr(staging, "device", Device([]))
    _, scatter = comms(grads=LOSSLESS)
    with policy.unquantized():
        assert reduced(scatter) is None
    assert log == [("post", capi.REDUCE_SCATTER, 0x1234, False, True)]


def test_a_gather_is_in_the_order_of_its_stream(log):
    gather, _ = comms()
    whole = torch.zeros(2 * 64 * 64)
    assert gather(output_tensor=whole, input_tensor=whole[: 64 * 64], group=GROUP, async_op=False) is None
    # quantized, on the stream that is current, and nobody waits on the host
    assert log == [("post", capi.ALLGATHER, 0x1234, True, True)]
    work = gather(output_tensor=whole, input_tensor=whole[: 64 * 64], group=GROUP, async_op=True)
    assert log[1:] == [("post", capi.ALLGATHER, 0x1234, True, True), ("record", 0x1234)]
    assert work.wait() and log[-1] == ("wait", 0x1234) and not work.is_completed()


def test_a_reduction_is_in_the_order_of_its_stream(log):
    _, scatter = comms()
    shard, whole = torch.zeros(64 * 64), torch.zeros(2 * 64 * 64)
    assert scatter(output_tensor=shard, input_tensor=whole, group=GROUP,
                   op=torch.distributed.ReduceOp.AVG) is None
    assert log == [("post", capi.REDUCE_SCATTER, 0x1234, True, True)]


def test_an_all_reduce_between_replicas_is_in_the_order_of_its_stream(log):
    _, scatter = comms()
    assert scatter.all_reduce(torch.zeros(64 * 64), torch.distributed.ReduceOp.AVG, GROUP)
    assert log == [("post", capi.ALLREDUCE, 0x1234, True, True)]


def test_a_gather_of_mixed_types_is_two_operations_and_one_work(log):
    gather, _ = comms()
    norm = parameter()
    norm._orig_size, norm._sharded_param_data = torch.Size([128]), torch.zeros(64, dtype=torch.bfloat16)
    gather.group.fsdp_params.append(norm)
    run = 64 * 64 * 4 + 64 * 2
    whole = torch.zeros(2 * run, dtype=torch.uint8)
    work = gather(output_tensor=whole, input_tensor=whole[:run], group=GROUP, async_op=True)
    posts = [("post", capi.ALLGATHER, 0x1234, quantized, True) for quantized in (True, False)]
    assert log == posts + [("record", 0x1234)]
    assert work.wait() and log[-1] == ("wait", 0x1234)


def test_without_cuda_in_the_library_torch_goes_its_own_way(monkeypatch):
    def refuse(self, group, cuda, staged):
        asked.append(group)
        raise error

    monkeypatch.setattr(capi, "lib",
                        lambda: types.SimpleNamespace(tw_status_string=lambda status: b"not supported"))
    monkeypatch.setattr(communicators.Use, "communicator", refuse)
    on_gpu = types.SimpleNamespace(is_cuda=True, dtype=torch.bfloat16, nbytes=10**6, layout=torch.strided)
    error, asked = capi.ThinwireError("communicator", capi.UNSUPPORTED), []
    for _ in range(2):
        assert operations.carrier("all-gather", communicators.Use({}), GROUP, on_gpu) is None
    # it is not asked for again, and the report says what went NCCL's way
    assert len(asked) == 1
    assert report.report().elsewhere["all-gather", str(error)] == tally.Elsewhere(2, 10**6)
    error = capi.ThinwireError("communicator", -11)
    with pytest.raises(capi.ThinwireError):
        operations.carrier("all-gather", communicators.Use({}),
                           types.SimpleNamespace(size=lambda: 2, group_name="1"), on_gpu)


def test_staged_gathers_need_no_backend_for_host_memory(monkeypatch):
    def backend(device):
        assert device.type == "cuda"
        return types.SimpleNamespace()

    group = types.SimpleNamespace(size=lambda: 2, group_name="2", _get_backend=backend)
    monkeypatch.setattr(torch.distributed, "get_process_group_ranks", lambda group: [0, 1])
    monkeypatch.setattr(communicators.agreement, "refused",
                        lambda members, timeout_sec: "rank 1 lacks the package")
    on_gpu = types.SimpleNamespace(is_cuda=True, dtype=torch.bfloat16, nbytes=10**6, layout=torch.strided)
    assert operations.carrier("all-gather", communicators.Use({}), group, on_gpu, None, staged=True) is None
    assert ("all-gather", "rank 1 lacks the package") in report.report().elsewhere


def test_the_communicator_of_nccl_is_the_groups(monkeypatch):
    used = []
    backend = types.SimpleNamespace(_comm_ptr=lambda: 77 if used else 0)
    group = types.SimpleNamespace(_get_backend=lambda device: backend)
    monkeypatch.setattr(torch, "zeros", lambda *args, **kwargs: None)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, group: used.append(group))
    assert communicators.nccl_comm(group) == 77 and used == [group]
    assert communicators.nccl_comm(group) == 77 and len(used) == 1


def test_reductions():
    operation = torch.distributed.ReduceOp
    assert operations.reduction(operation.SUM) == (capi.SUM, 1.0)
    assert operations.reduction(operation.AVG) == (capi.MEAN, 1.0)
    assert operations.reduction(operation(operation.AVG)) == (capi.MEAN, 1.0)
    assert operations.reduction(operation.MAX) is None
    scaled = torch.distributed._make_nccl_premul_sum(0.25)
    assert operations.reduction(scaled) == (capi.SUM, 0.25)
