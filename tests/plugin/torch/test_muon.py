"""muon.py: torch.optim.Muon under FSDP2, each matrix at its owner."""

import pytest
import ranks
import thinwire
import torch
from thinwire import ddp, inside, muon
from thinwire.fsdp import hooks
from thinwire.reporting import unused
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.nn.parallel import DistributedDataParallel

# Wide, tall, square, with rows that no number of ranks divides, and with fewer rows than there are ranks.
SHAPES = [(96, 160), (160, 96), (128, 128), (7, 33), (2, 65)]
STEPS = 3


def matrices(shapes=SHAPES):
    torch.manual_seed(0)
    return nn.ParameterList(nn.Parameter(torch.randn(shape)) for shape in shapes)


def stepped(parameters, kind=torch.optim.Muon, **options):
    """The parameters after some steps."""
    optimizer = kind(list(parameters), lr=0.1, **options)
    for step in range(STEPS):
        torch.manual_seed(step)
        for one in parameters:
            whole = torch.randn(one.shape)
            is_sharded = hasattr(one, "placements")
            one.grad = distribute_tensor(whole, one.device_mesh, one.placements) if is_sharded else whole
        optimizer.step()
    return parameters


def same(found, expected):
    return all(torch.equal(one.full_tensor() if hasattr(one, "placements") else one, other)
               for one, other in zip(found, expected))


OPTIONS = [{}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.0}]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_updates_are_those_of_one_process(world):
    expected = [stepped(matrices(), **one) for one in OPTIONS]

    def check(_rank):
        hooks.patch()
        found = [stepped(fully_shard(matrices()), **options) for options in OPTIONS]
        report = thinwire.report()
        assert not report.elsewhere
        assert all(map(same, found, expected))
        return report[muon.KIND].calls, report[muon.KIND].plain_bytes, report[muon.KIND].sent_bytes

    found = ranks.run(world, check, **ranks.SLOW)
    assert [calls for calls, _, _ in found] == [2 * 2 * STEPS] * world
    # Each matrix goes to its owner and back in bf16, but for what the owner has.
    elems = sum(torch.Size(shape).numel() for shape in SHAPES)
    whole = 2 * STEPS * len(OPTIONS) * 2 * elems * (world - 1) / world
    assert 0.9 * whole < sum(plain for _, plain, _ in found) < 1.1 * whole
    assert sum(sent for _, _, sent in found) < 0.95 * sum(plain for _, plain, _ in found)


def test_bytes_beside_torchs():
    """DTensors send nine times as much, and on more ranks more."""

    def check(_rank):
        unused.watch()
        stepped(fully_shard(matrices(shapes)))
        theirs = sum(one.sent_bytes for one in thinwire.report().elsewhere.values())
        hooks.patch()
        stepped(fully_shard(matrices(shapes)))
        return theirs, thinwire.report()[muon.KIND].plain_bytes

    shapes = [(256, 256), (512, 256)]  # what is smaller is not counted
    for theirs, ours in ranks.run(2, check):
        assert theirs > 9 * ours, (theirs, ours)


def under_fsdp2(grads):
    return thinwire.enable(fully_shard(nn.Linear(128, 128, bias=False)), "plain", grads, min_bytes=0)


def under_ddp(grads):
    model = DistributedDataParallel(nn.Linear(128, 128, bias=False))
    model.register_comm_hook(None, ddp.hook(grads, min_bytes=0))
    ddp.patch()
    return model


@pytest.mark.parametrize("made", [under_fsdp2, under_ddp])
@pytest.mark.parametrize("grads", ["int4", "int8", "lossless"])
def test_rounded_gradients_are_warned_of(made, grads):
    """Once, on rank 0; fine codes are no matter. A model is needed: only its reductions round."""

    def check(_rank):
        torch.manual_seed(0)
        model = made(grads)
        optimizer = torch.optim.Muon(model.parameters())
        for _ in range(4):
            model(torch.randn(8, 128)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return len(ranks.logged("Muon updates matrices"))

    assert ranks.run(2, check, TW_COLL_MODEL="inter:beta=400gbit") == ([1, 0] if grads == "int4" else [0, 0])


def test_replicas_step_alike():
    """HSDP: exchanges are between the ranks that have a matrix's rows."""
    expected = stepped(matrices())

    def check(_rank):
        hooks.patch()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        found = stepped(fully_shard(matrices(), mesh=mesh))
        return same(found, expected)

    assert all(ranks.run(4, check))


def test_without_thinwire_torch_moves_the_rows():
    """A rank that cannot use it: the same owners, by torch's own all-to-all."""
    expected = stepped(matrices())

    def check(_rank):
        hooks.patch()
        found = stepped(fully_shard(matrices()))
        ((kind, why),) = thinwire.report().elsewhere
        assert same(found, expected) and kind == muon.KIND
        return why

    for why in ranks.run(2, check, differing={1: {"TW_MIN_BYTES": "1"}}, TW_FSDP="1"):
        assert "rank 1: TW_MIN_BYTES=1" in why


def test_what_is_not_sharded_by_rows_is_torchs():
    expected = stepped(matrices()[:1])

    def check(_rank):
        hooks.patch()
        assert same(stepped(matrices()[:1]), expected)
        return muon.KIND in thinwire.report()

    assert ranks.run(2, check) == [False] * 2


def orthogonal(matrix):
    """The cubic iteration, as Muons that are not torch's have theirs: on the matrix that they are given."""
    x = matrix.bfloat16()
    x = x / x.norm()
    for _ in range(3):
        x = 1.5 * x - 0.5 * (x @ x.mT) @ x
    return x


class OneByOne(torch.optim.Optimizer):
    """Moonlight's shape: a step goes from matrix to matrix, which may be DTensors."""

    def __init__(self, params, lr, compute=orthogonal):
        super().__init__(params, {"lr": lr})
        self.compute = compute

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group["params"]:
                one.add_(self.compute(one.grad), alpha=-group["lr"])


def test_other_muons_matrices_go_to_their_owner():
    expected = stepped(matrices(), OneByOne)
    plain = 2 * STEPS * 2 * sum(torch.Size(shape).numel() for shape in SHAPES) * 2 / 3

    def check(_rank):
        compute = thinwire.at_owner(orthogonal, torch.bfloat16)
        assert same(stepped(matrices(), OneByOne, compute=compute), expected)
        found = stepped(fully_shard(matrices()), OneByOne, compute=compute)
        assert same(found, expected) and not thinwire.report().elsewhere
        return thinwire.report()[muon.KIND].plain_bytes

    assert 0.9 * plain < sum(ranks.run(3, check, **ranks.SLOW)) < 1.1 * plain


def test_a_muon_of_pypi(monkeypatch):
    """muon-optimizer's, on DTensors, by one line of the job's."""
    package = pytest.importorskip("muon")
    expected = stepped(matrices(), package.SingleDeviceMuon)

    def check(_rank):
        name = "zeropower_via_newtonschulz5"
        monkeypatch.setattr(package, name, thinwire.at_owner(getattr(package, name), torch.bfloat16))
        found = stepped(fully_shard(matrices()), package.SingleDeviceMuon)
        return same(found, expected), muon.KIND in thinwire.report()

    assert ranks.run(2, check, **ranks.SLOW) == [(True, True)] * 2


def test_owners_share_the_work():
    costs = [0] * 4
    shapes = [torch.empty(64, 64, device="meta")] * 7 + [torch.empty(64, 256, device="meta")]
    for owner, one in zip(muon._owners(shapes, 4), shapes):
        costs[owner] += one.numel()
    assert sorted(costs) == [2 * 4096, 2 * 4096, 3 * 4096, 4 * 4096]


def test_another_muon_is_left_alone(monkeypatch):
    monkeypatch.setitem(inside._MUON, "_adjust_lr", ("another",))
    inside._muon.cache_clear()
    before = torch.optim._muon._single_tensor_muon
    muon.watch()
    assert torch.optim._muon._single_tensor_muon is before
    inside._muon.cache_clear()
