"""backward.py: backward goes on while gradients are reduced, and nobody sees a gradient that is not there
yet."""

import pytest
import ranks
import thinwire
import torch
from models import BF16, WIDTH, Block, batch, loss_of, make, train
from thinwire import inside
from thinwire.collectives import operations
from thinwire.fsdp import backward, comms, prefetch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

# Gradients in bf16 are cast to the parameters' type; those in fp16 FSDP2 divides itself.
POLICIES = [BF16, MixedPrecisionPolicy(), MixedPrecisionPolicy(torch.bfloat16),
            MixedPrecisionPolicy(torch.float16)]
SHIFT = 0.5


def locals_of(model):
    """This rank's parts of all gradients."""
    return [one.grad._local_tensor for one in model.parameters() if one.grad is not None]


def bits(tensors):
    return [one.detach().clone() for one in tensors]


def same(tensors, others):
    return (len(tensors) == len(others) > 0
            and all(torch.equal(one, other) for one, other in zip(tensors, others)))


def enable(model, grads="plain"):
    return thinwire.enable(model, "plain", grads)


class Waiting:
    """Backward waits for each reduction inside."""

    def __enter__(self):
        self.before, backward.UNDER_WAY = backward.UNDER_WAY, 0

    def __exit__(self, *_error):
        backward.UNDER_WAY = self.before


def both(function):
    """What it returns with and without waiting for each reduction."""
    with Waiting():
        expected = function()
    return function(), expected


def clipped(model, rank):
    """Losses and norms; gradients are read at once after backward."""
    optimizer, found = torch.optim.SGD(model.parameters(), 1e-1), []
    for step in range(3):
        loss = loss_of(model, rank, step)
        loss.backward()
        assert not any(isinstance(one, backward.Pending) for one in locals_of(model))
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        found += [loss.item(), norm.full_tensor().item()]
        optimizer.step()
        optimizer.zero_grad(set_to_none=step == 1)
    return found


@pytest.mark.parametrize("world, policies", [(2, POLICIES[:2]), (3, POLICIES[2:])])
def test_losses_are_the_same_without_waiting(world, policies):
    def check(rank):
        for policy in policies:
            for how in ({}, {"accumulate": 3}, {"accumulate": 2, "sync": False}):
                one, other = both(lambda: train(enable(make(policy, 3)), rank, **how))
                assert one == other, (policy, how)
            one, other = both(lambda: clipped(enable(make(policy, 3), "int4"), rank))
            assert one == other, policy
        return True

    assert all(ranks.run(world, check, TW_MIN_BYTES="1"))


def events_of(model, rank, monkeypatch):
    """Which reductions are posted and waited for in a backward pass."""
    found = []
    post, wait = operations.post, operations.wait

    def posted(shapes, communicator):
        found.append("post")
        return post(shapes, communicator)

    def waited(request, kind):
        found.append("wait")
        return wait(request, kind)

    loss = loss_of(model, rank, 0)
    with monkeypatch.context() as patch:
        patch.setattr(operations, "post", posted)
        patch.setattr(operations, "wait", waited)
        patch.setattr(prefetch.Gathering, "end", lambda self: self._request.wait())
        # gathers are torch's
        patch.setattr(comms.classes()[0], "__call__", comms.classes()[0].default.__call__)
        loss.backward()
    return found


def test_the_next_reduction_is_posted_before_the_last_is_waited_for(monkeypatch):
    def check(rank):
        model = enable(make(blocks=4))
        found = [events_of(model, rank, monkeypatch)]
        found.append(events_of(model, rank, monkeypatch))  # adds to gradients
        with Waiting():
            found.append(events_of(model, rank, monkeypatch))
        return found

    later = "post post wait post wait post wait wait".split()
    assert ranks.run(2, check) == [[later, later, ["post", "wait"] * 4]] * 2


READERS = {
    "to_local": lambda grad: grad.to_local().clone(),
    "numpy": lambda grad: torch.from_numpy(grad.to_local().numpy().copy()),
    "list": lambda grad: torch.tensor(grad._local_tensor.tolist()),
    "norm": lambda grad: grad._local_tensor.norm(),
    "foreach": lambda grad: torch._foreach_mul([grad._local_tensor], 1.0)[0],
    "text": lambda grad: str(grad._local_tensor),
    "memory": lambda grad: (grad._local_tensor.data_ptr(), grad._local_tensor.clone())[1],
}


def test_a_hook_sees_gradients_that_are_there():
    """On one rank alone: reading posts nothing."""

    def look(name, rank, accumulate):
        model, found = enable(make(blocks=3)), []
        grad_of = lambda: model[2].up.weight.grad
        if accumulate:
            loss_of(model, rank, 5).backward()

        def hook(*_args):
            if rank == 0:
                assert isinstance(grad_of()._local_tensor, backward.Pending) == bool(backward.UNDER_WAY)
                found.append(READERS[name](grad_of()))

        model[1].register_full_backward_hook(hook)
        loss_of(model, rank, 0).backward()
        return found, READERS[name](grad_of()), bits(locals_of(model))

    def check(rank):
        for name in READERS:
            for accumulate in (False, True):
                (seen, last, grads), (_, expected, others) = both(lambda: look(name, rank, accumulate))
                equal = torch.equal if isinstance(last, torch.Tensor) else str.__eq__
                assert equal(last, expected) and same(grads, others), name
                assert all(equal(one, expected) for one in seen) and len(seen) == (rank == 0), name
        return True

    assert all(ranks.run(2, check))


def test_a_hook_that_changes_a_gradient():
    def change(rank):
        model = enable(make(blocks=3))

        def halve(*_args):
            model[2].up.weight.grad.mul_(SHIFT)

        model[1].register_full_backward_hook(halve)
        loss_of(model, rank, 0).backward()
        return bits(locals_of(model))

    def check(rank):
        return same(*both(lambda: change(rank)))

    assert all(ranks.run(2, check))


def in_backward(rank):
    """An optimizer for each parameter that steps when its gradient has come, and at the same time somebody
    who only looks."""
    model, seen = enable(make(blocks=3)), []
    own = {one: torch.optim.SGD([one], 1e-1) for one in model[2].parameters()}

    def step(param):
        seen.append(param.grad._local_tensor.clone())
        assert not isinstance(param.grad._local_tensor, backward.Pending)
        own[param].step()
        own[param].zero_grad()

    for one in own:
        one.register_post_accumulate_grad_hook(step)
    losses = []
    for number in range(3):
        loss = loss_of(model, rank, number)
        loss.backward()
        losses.append(loss.item())
    return losses, seen


def test_an_optimizer_in_backward():
    def check(rank):
        (losses, seen), (others, expected) = both(lambda: in_backward(rank))
        return losses == others and same(seen, expected)

    assert all(ranks.run(2, check))


class Stop(Exception):
    pass


def test_an_exception_in_backward():
    """Gradients that were reduced before it are there, those of an earlier batch are not lost, and training
    goes on."""

    def failing(rank):
        model = enable(make(blocks=4))
        loss_of(model, rank, 7).backward()
        before = bits(locals_of(model))

        def fail(*_args):
            raise Stop

        handle = model[0].register_full_backward_pre_hook(fail)
        with pytest.raises(Stop):
            loss_of(model, rank, 8).backward()
        handle.remove()
        after = [one + 0 for one in locals_of(model)]
        assert len(before) == len(after) and not same(before, after)
        for state in (one._get_fsdp_state() for one in model.modules() if hasattr(one, "_get_fsdp_state")):
            state._training_state = type(state._training_state).IDLE
            state._state_ctx.post_backward_final_callback_queued = False
        model.zero_grad()
        return after, train(model, rank)

    def check(rank):
        (grads, losses), (others, expected) = both(lambda: failing(rank))
        return same(grads, others) and losses == expected

    assert all(ranks.run(2, check))


def fails_in_backward(model, rank):
    """Rank 1 dies in a backward pass, which is an error of the other ranks'."""
    train(model, rank, 1)
    if rank == 1:
        model[1].register_full_backward_pre_hook(lambda *_args: ranks.die())
    with pytest.raises(thinwire.ThinwireError) as caught:
        loss_of(model, rank, 3).backward()
    assert caught.value.failed_rank == 1
    return True


def test_a_rank_that_dies_in_backward_is_an_error_of_backward():
    def check(rank):
        return fails_in_backward(enable(make(blocks=4)), rank)

    assert ranks.run(2, check, may_die=(1,), leave=False, TW_PEER_TIMEOUT="3s")[0]


def test_replicas():
    """HSDP: the all-reduce is what is left; where there is none, FSDP2 adds up what has been reduced."""

    def training(rank, shape, how):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        model, losses = enable(make(MixedPrecisionPolicy(torch.bfloat16), 3, mesh=mesh)), []
        optimizer = torch.optim.SGD(model.parameters(), 1e-1)
        for step in range(4):
            if how == "all-reduce later":
                model.set_requires_all_reduce(step % 2 == 1)
            loss = loss_of(model, rank, step)
            loss.backward()
            losses.append(loss.item())
            if how == "each" or step % 2 == 1:
                optimizer.step()
                optimizer.zero_grad()
        return losses

    def check(rank):
        for shape, how in (((2, 2), "each"), ((2, 2), "all-reduce later"), ((4, 1), "accumulate"),
                           ((4, 1), "all-reduce later")):
            one, other = both(lambda: training(rank, shape, how))
            assert one == other, (shape, how)
        return True

    assert all(ranks.run(4, check, nodes=[0, 0, 1, 1]))


def test_a_hook_of_the_jobs_on_reductions_gets_the_result():
    def hooked(rank):
        model, seen = enable(make(blocks=3)), []

        def hook(output):
            assert not isinstance(output, backward.Pending)
            seen.append(output.clone())
            output.mul_(SHIFT)

        for block in model:
            block.set_all_reduce_hook(hook)
        loss_of(model, rank, 0).backward()
        return seen + bits(locals_of(model))

    def check(rank):
        return same(*both(lambda: hooked(rank)))

    assert all(ranks.run(2, check))


class Twice(nn.Module):
    """A block that is used twice: its gradients are reduced twice."""

    def __init__(self):
        super().__init__()
        self.first, self.block = fully_shard(Block(), mp_policy=BF16), fully_shard(Block(), mp_policy=BF16)

    def forward(self, x):
        return self.block(self.block(self.first(x)))


def test_a_group_that_is_reduced_twice():
    def training(rank):
        torch.manual_seed(0)
        return train(enable(fully_shard(Twice(), mp_policy=BF16)), rank, accumulate=2)

    def check(rank):
        one, other = both(lambda: training(rank))
        return one == other

    assert all(ranks.run(2, check))


def test_a_type_that_torch_reduces():
    """fp64 goes torch's way, which fills the result at once."""

    def training(rank):
        torch.manual_seed(0)
        model = nn.Sequential(*[fully_shard(nn.Linear(WIDTH, WIDTH).double()) for _ in range(3)])
        for part in range(2):
            fully_shard(model) if part == 0 else None
            enable(model)
            model(batch(rank, part).double()).square().mean().backward()
        return bits(locals_of(model))

    def check(rank):
        return same(*both(lambda: training(rank)))

    assert all(ranks.run(2, check))


@pytest.fixture
def unprobed():
    inside.reduces_later.cache_clear()
    yield
    inside.reduces_later.cache_clear()


def test_a_torch_that_differs_waits(monkeypatch, unprobed):
    monkeypatch.setattr(inside, "_LATER",
                        {"_fsdp_param": {"FSDPParam": ("sharded_param", "of_another_name")}})

    def check(rank):
        return events_of(enable(make(blocks=2)), rank, monkeypatch)

    assert ranks.run(2, check) == [["post", "wait"] * 2] * 2
