"""reporting, telemetry, collectives/operations.py: what the report and the first line say, to whom."""

import os
import subprocess
import sys
import threading
import time
import types

import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
from thinwire import capi, inside
from thinwire.collectives import operations, shapes
from thinwire.engine import communicators, segments
from thinwire.fsdp import hooks
from thinwire.reporting import report, unused
from thinwire.telemetry import tally
from torch import nn
from torch.distributed import _functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

WIDTH = 48


def said_in(world, function, **kwargs):
    """The lines that rank 0 has said, the report's last; the others have said nothing."""

    def check(rank):
        lines = []
        tally.say = lambda text: lines.extend(text.splitlines())
        hooks.patch()
        function(rank)
        report._log()
        return lines

    first, *others = ranks.run(world, check, **kwargs)
    assert others == [[]] * (world - 1)
    return first


def step(model, dtype=torch.float32):
    model(torch.ones(4, WIDTH, dtype=dtype)).sum().backward()


def test_the_first_line_comes_with_the_first_use():
    def use(rank):
        model = fully_shard(nn.Linear(WIDTH, WIDTH))
        assert not tally.book.said
        step(model)
        step(model)

    lines = said_in(2, use, TW_MIN_BYTES="1")
    assert lines[0].startswith("FSDP2 over thinwire: weights delta, gradients lossless")
    assert lines[1].startswith("weights are kept in host memory: ")
    assert "MB sent to other nodes, as counted" in lines[2]
    assert not any("FSDP2 over" in line for line in lines[1:])


def test_ddp_without_the_hook():
    def use(rank):
        model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH, bias=False))
        for _ in range(3):
            step(model)
        with model.no_sync():
            step(model)
        del model

    lines = said_in(2, use)
    assert lines[0].startswith("nothing went over thinwire to other nodes, because of "
                               "DistributedDataParallel: TW_DDP=1 or register_comm_hook(")
    assert len(lines) == 2 and lines[1].endswith("3 calls, about 0.0 MB")

    def exactly(rank):
        use(rank)
        (found,) = thinwire.report().elsewhere.values()
        assert found == tally.Elsewhere(3, 3 * 4 * WIDTH * WIDTH)

    said_in(2, exactly)


def test_ddp_with_the_hook():
    def use(rank):
        model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
        model.register_comm_hook(None, thinwire.ddp_hook("int8", min_bytes=1))
        step(model)

    lines = said_in(2, use)
    assert lines[0].startswith("DDP over thinwire: gradients int8") and "as counted" in lines[1]
    assert not any("not over" in line for line in lines)


def test_fsdp1():
    def use(rank):
        for _ in range(2):
            step(FullyShardedDataParallel(nn.Linear(WIDTH, WIDTH), device_id=torch.device("cpu")))

    first, *lines = said_in(2, use)
    assert first == ("not over thinwire: FullyShardedDataParallel, FSDP1; "
                     "fully_shard is what goes over thinwire")
    assert lines[0].startswith("nothing went over thinwire to other nodes, because of "
                               "FullyShardedDataParallel, FSDP1: fully_shard")
    assert len(lines) == 2 and lines[1].endswith("4 calls, about 0.0 MB")


# How a model is sharded; collectives of a step, and how often each of 4 ranks sends all of the model for it.
FSDP1 = [
    (ShardingStrategy.FULL_SHARD, 2, 2 * 3 / 4),
    (ShardingStrategy.SHARD_GRAD_OP, 2, 2 * 3 / 4),
    (ShardingStrategy.NO_SHARD, 1, 2 * 3 / 4),
    # halves in pairs, and of each half an all-reduce
    (ShardingStrategy.HYBRID_SHARD, 3, 2 * 1 / 2 + 1 / 2 * 2 * 1 / 2),
]


@pytest.mark.parametrize("strategy, calls, share", FSDP1)
def test_what_fsdp1_sends_is_counted(strategy, calls, share):
    def use(rank):
        hybrid = strategy is ShardingStrategy.HYBRID_SHARD
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b")) if hybrid else None
        model = FullyShardedDataParallel(nn.Linear(WIDTH, WIDTH, bias=False), device_id=torch.device("cpu"),
                                         sharding_strategy=strategy, device_mesh=mesh)
        assert thinwire.report().elsewhere == {(unused._FSDP1, unused.FSDP1_WHY): tally.Elsewhere()}
        for _ in range(3):
            step(model)
        (found,) = thinwire.report().elsewhere.values()
        assert found == tally.Elsewhere(3 * calls, int(3 * share * 4 * WIDTH * WIDTH))

    said_in(4, use)


def test_libraries_with_collectives_of_their_own():
    def use(rank):
        sys.modules["deepspeed.comm.comm"] = types.SimpleNamespace(cdb=None)
        # of a version that has not what is asked for
        sys.modules["megatron.core.parallel_state"] = types.SimpleNamespace()
        assert not thinwire.report().elsewhere
        sys.modules["deepspeed.comm.comm"].cdb = object()
        sys.modules["megatron.core.parallel_state"].model_parallel_is_initialized = lambda: True

    (first,) = said_in(2, use)
    assert first.startswith("nothing went over thinwire to other nodes, because of "
                            "DeepSpeed, Megatron: it calls collectives of its own")
    assert first.endswith("LD_PRELOAD=libthinwire-nccl.so")


def gathered_in_a_graph(shard, group):
    """As SimpleFSDP has it: the whole is made in the graph."""
    whole = funcol.all_gather_tensor(shard, 0, group)
    return funcol.reduce_scatter_tensor(whole * 2, "sum", 0, group)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_collectives_of_a_graph(backend):
    """A graph's are counted when it runs, not when it is made; small ones are not."""

    def use(rank):
        compiled = torch.compile(gathered_in_a_graph, backend=backend, fullgraph=True)
        for n in (32 << 10, 32 << 10, 32):
            out = compiled(torch.full((n,), 1.0 + rank), dist.group.WORLD)
            assert out.shape == (n,) and out[0].item() == (4.0 if rank == 0 else 8.0)
        assert {kind: one.calls for (kind, _), one in thinwire.report().elsewhere.items()} == {
            "functional all-gather": 2, "functional reduce-scatter": 2}

    first, *lines = said_in(2, use)
    assert first.startswith("nothing went over thinwire to other nodes, because of "
                            "functional all-gather, functional reduce-scatter: a graph's")
    assert first.endswith("LD_PRELOAD=libthinwire-nccl.so")
    assert len(lines) == 2 and all(line.endswith(", 2 calls, about 0.3 MB") for line in lines)


def test_where_the_interposer_takes_them_nothing_is_said():
    def use(rank):
        gathered_in_a_graph(torch.ones(32 << 10), dist.group.WORLD)
        sys.modules["deepspeed.comm.comm"] = types.SimpleNamespace(cdb=object())

    lines = said_in(2, use, LD_PRELOAD="/none/libthinwire-nccl.so")
    assert len(lines) == 1 and "because of no use" in lines[0]


def test_a_dtensor_that_is_redistributed():
    def use(rank):
        mesh = init_device_mesh("cpu", (2,))
        whole = distribute_tensor(torch.ones(64 << 10), mesh, [Shard(0)]).full_tensor()
        assert whole.sum().item() == 64 << 10
        assert [kind for kind, _ in thinwire.report().elsewhere] == ["functional all-gather"]

    assert "a DTensor's own" in said_in(2, use)[0]


def test_a_type_that_is_not_carried():
    def use(rank):
        step(fully_shard(nn.Linear(WIDTH, WIDTH).double()), torch.float64)
        found = thinwire.report()
        half = 8 * WIDTH * (WIDTH + 1) // 2
        assert found.elsewhere == {("all-gather", "torch.float64"): tally.Elsewhere(1, half),
                                   ("reduce-scatter", "torch.float64"): tally.Elsewhere(1, half)}

    lines = said_in(2, use)
    assert lines[0] == ("nothing went over thinwire to other nodes, because of "
                        "all-gather, reduce-scatter: torch.float64")
    assert lines[1] == "  not over thinwire: all-gather, 1 calls, about 0.0 MB"


def test_ranks_of_one_node():
    lines = said_in(2, lambda rank: step(fully_shard(nn.Linear(WIDTH, WIDTH))), nodes=[0, 0])
    assert lines[0] == ("nothing went over thinwire to other nodes, because of "
                        "all-gather, reduce-scatter: ranks of one node")
    assert not any("FSDP2 over" in line for line in lines)


def test_ranks_that_do_not_agree():
    def check(rank):
        lines = []
        tally.say = lambda text: lines.extend(text.splitlines())
        step(fully_shard(nn.Linear(WIDTH, WIDTH)))
        report._log()
        return lines

    first, second = ranks.run(2, check, differing={1: {"TW_WEIGHTS": "int4"}}, TW_FSDP="1", TW_MIN_BYTES="1")
    assert second == [] and len(first) == 3
    assert first[0].startswith("nothing went over thinwire to other nodes, because of "
                               "all-gather, reduce-scatter: rank 0: TW_WEIGHTS=delta")
    assert "rank 1: TW_WEIGHTS=int4" in first[0]
    assert first[1].startswith("  not over thinwire: all-gather, ") and "TW_WEIGHTS" not in "".join(first[1:])


def test_a_rank_that_lacks_something_says_so_itself():
    def check(rank):
        return str(thinwire.report())

    first, second = ranks.run(2, check, differing={0: {"TW_GRADS": "int5"}}, TW_FSDP="1")
    assert "because of rank 0: TW_GRADS: 'int5' is not a codec" in first and "no model" not in first


def test_a_ddp_model_has_nothing_of_ours_that_would_be_pickled():
    def use(rank):
        model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
        model.register_comm_hook(None, thinwire.ddp_hook())
        step(model)
        assert not any("thinwire" in name for name in vars(model))

    said_in(2, use)


def test_a_forked_child_says_nothing():
    def use(rank):
        step(fully_shard(nn.Linear(WIDTH, WIDTH)))
        pid = os.fork()
        if pid == 0:
            os._exit(int(tally.book.is_first()))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert tally.book.is_first() == (rank == 0)

    said_in(2, use)


def test_no_model_at_all():
    lines = said_in(2, lambda rank: dist.barrier())
    assert len(lines) == 1 and "no model was given to fully_shard" in lines[0]


def test_what_others_have_put_in_our_place():
    def use(rank):
        model = fully_shard(nn.Linear(WIDTH, WIDTH))
        theirs = types.new_class("Theirs", (inside.default_comms()[0],))
        for group in inside.groups_of(model):
            group._all_gather_comm = theirs()
        step(model)
        step(thinwire.disable(model))
        assert {key: one.calls for key, one in thinwire.report().elsewhere.items()} == {
            ("all-gather", "Theirs is in its place"): 2,
            ("reduce-scatter", "thinwire is not enabled there"): 1}

    assert any(line.startswith("  not over thinwire: all-gather (Theirs") for line in said_in(2, use))


def test_enable_says_as_much():
    def check(rank):
        lines = []
        tally.say = lambda text: lines.extend(text.splitlines())
        step(thinwire.enable(fully_shard(nn.Linear(WIDTH, WIDTH)), "int8", "plain", min_bytes=1))
        report._log()
        return lines

    first, second = ranks.run(2, check)
    assert first[0].startswith("FSDP2 over thinwire: weights int8") and first[0].endswith("gradients plain")
    assert "as counted" in first[1] and second == []


JOB = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
if sys.argv[1] == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    model(torch.ones(2, 64)).sum().backward()
    del model
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("how, told", [("ddp", "DistributedDataParallel"), ("nothing", "no model was given")])
def test_of_a_job_of_torchrun_one_process_speaks(how, told, tmp_path):
    job = tmp_path / "job.py"
    job.write_text(JOB)
    start = ["--no-python", "sh", "-c", 'TW_NODE_ID=$RANK exec "$@"', "sh", sys.executable, str(job), how]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
               "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    environment = os.environ | {"TW_FSDP": "1", "TW_NET_DEVICES": "lo"}
    done = subprocess.run(command + start, env=environment, capture_output=True, text=True)
    # torch's own threads of a DDP job may abort a process at its very end, with or without us
    is_torchs_end = how == "ddp" and "terminate called without an active exception" in done.stderr
    assert done.returncode == 0 or is_torchs_end, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("thinwire: ")]
    assert len([line for line in lines if "nothing went over thinwire" in line and told in line]) == 1, lines
    assert not any("FSDP2 over thinwire" in line or "as counted" in line for line in lines), lines


class Library:
    """Writes down where the data of an operation is."""

    def __init__(self):
        self.seen = []
        self.turn = threading.Barrier(2)

    def tw_coll_n_nodes(self, _coll):
        return 2

    def tw_coll_post(self, _coll, args, _request):
        one = args._obj
        self.seen.append((one.step, one.segments[0].dst))
        return capi.OK

    def tw_coll_test(self, _request):
        return capi.OK

    def tw_coll_planned_inter_node_bytes(self, _coll, _args, out):
        return capi.OK


def run_together(function):
    """function(1) and function(2), each in a thread."""
    threads = [threading.Thread(target=function, args=(number,)) for number in (1, 2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()


def test_two_threads_that_post_operations_of_one_shape_do_not_mix_them_up(monkeypatch):
    library = Library()
    monkeypatch.setattr(capi, "lib", lambda: library)
    monkeypatch.setattr(operations, "book", tally._Book())
    owner = types.SimpleNamespace(check_usable=lambda: None, check=lambda status, what: None)
    made = communicators.Communicator(owner, capi.C.c_void_p(1), rank=0, world=2, timeout_sec=1.0)
    pieces = [segments.Piece(8, "")]
    shape = shapes.Shape.of(segments.Plain(pieces, 4), pieces)

    def post(number):
        def place(table):
            table.reduce(1000 * number)
            # the other one has set its pointers, too, if it can
            try:
                library.turn.wait(0.5)
            except threading.BrokenBarrierError:
                pass

        operations.post([shapes.Operation("all-reduce", capi.ALLREDUCE, torch.float32, shape, place, None, (),
                                          step=number)], made)

    run_together(post)
    assert sorted(library.seen) == [(1, 1000), (2, 2000)]


def test_two_threads_compare_settings_once(monkeypatch):
    compared = []

    def compare(_communicator, _ranks, settings):
        compared.append(settings)
        time.sleep(0.3)  # for the other thread to come by
        return ""

    communicator = types.SimpleNamespace(keep_time=lambda *_args: None)
    made = types.SimpleNamespace(communicator=lambda *_args: communicator)
    monkeypatch.setattr(communicators.agreement, "refused", lambda *_args: "")
    monkeypatch.setattr(communicators._job, "engine", lambda *_args: made)
    monkeypatch.setattr(communicators, "_disagreement", compare)
    use, found = communicators.Use({"TW_GRADS": "int4"}), []
    run_together(lambda _number: found.append(use.communicator_of("group", [0, 1], 1.0)))
    assert found == [communicator] * 2 and len(compared) == 1


def test_two_threads_use_one_process_group():
    """Both for the first time, then each in its turn, as that is the order on all ranks; one waits while the
    other one posts."""
    n_elems, n_steps = 5000, 60

    def check(rank):
        use, pieces = communicators.Use({"TW_GRADS": "plain"}), [segments.Piece(n_elems, "")]
        shape = shapes.Shape.of(segments.Plain(pieces, 4), pieces)
        turn, posted, sums = threading.Condition(), [], {}

        def post(communicator, step, data):
            with turn:
                assert turn.wait_for(lambda: len(posted) == step, 30)
                request = operations.post([shapes.Operation(
                    "all-reduce", capi.ALLREDUCE, torch.float32, shape,
                    lambda table: table.reduce(data.data_ptr()), None, (data,), step=step)], communicator)
                posted.append(request)
                turn.notify_all()
            return request

        def train(number):
            communicator = use.communicator(dist.group.WORLD)
            for step in range(number - 1, n_steps, 2):
                data = torch.full((n_elems,), float(step + 100 * rank))
                post(communicator, step, data).wait()
                sums[step] = data.unique().tolist()

        run_together(train)
        assert len(communicators.running()) == 1
        return sums

    expected = {step: [2.0 * step + 100] for step in range(n_steps)}
    assert ranks.run(2, check) == [expected] * 2


def test_ranks_that_reduce_different_groups_are_told():
    """Two threads that share a process group have no common order: what ranks then disagree about is an
    error."""

    def check(rank):
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(2)])
        for one in model:
            fully_shard(one)
        thinwire.enable(fully_shard(model), "plain", "plain")
        model(torch.ones(2, WIDTH))  # torch names its groups now
        with pytest.raises(thinwire.ThinwireError, match="disagree about"):
            model[rank].unshard()
            model[1 - rank].unshard()
        return True

    assert all(ranks.run(2, check, leave=False))
