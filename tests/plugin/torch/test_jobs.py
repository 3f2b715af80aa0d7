"""What jobs do with FSDP2 and DDP: with changes of weights and lossless gradients all numbers are, bit for
bit, those that they have without Thinwire. Several run in one job, one after the other."""

import contextlib

import pytest
import ranks
import thinwire
import torch
from torch import nn
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

WIDTH, WORDS, STEPS = 32, 64, 4


class Net(nn.Module):
    """Words, layers, words."""

    def __init__(self, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 50), nn.GELU(), nn.Linear(50, WIDTH))
            for _ in range(3))
        if tied:
            self.head.weight = self.embed.weight
        self.used, self.chunks, self.saves = range(3), 1, False

    def forward(self, ids):
        x = self.embed(ids)
        for i in self.used:
            x = x + (checkpoint(self.layers[i], x, use_reentrant=False) if self.saves else self.layers[i](x))
        return torch.cat([self.head(one) for one in x.chunk(self.chunks)])


class Job:
    """A model, over Thinwire or not, its optimizer, and all numbers that it has come to."""

    def __init__(self, rank, make, optimizer=torch.optim.AdamW):
        self.rank, self.model, self.numbers = rank, make(), []
        learnt = [one for one in self.model.parameters() if one.requires_grad]
        self.optimizer, self.step_number = optimizer(learnt, 1e-2), 0

    def loss(self, model=None):
        self.step_number += 1
        generator = torch.Generator().manual_seed(10 * self.step_number + self.rank)
        ids = torch.randint(WORDS, (8, 5), generator=generator)
        found = nn.functional.cross_entropy((model or self.model)(ids).flatten(0, 1).float(), ids.flatten())
        self.numbers.append(found.item())
        return found

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, steps=STEPS, **changes):
        """changes: of the model, from one step to the next: {attribute: values in turn}"""
        for step in range(steps):
            for name, values in changes.items():
                setattr(getattr(self.model, "module", self.model), name, values[step % len(values)])
            self.loss().backward()
            self.update()
        return self

    def result(self):
        shards = [getattr(one, "_local_tensor", one).detach().clone() for one in self.model.parameters()]
        return self.numbers, shards


# FSDP2


def sharded(use, net=None, every=True, **how):
    model = net or Net()
    for layer in [*model.layers, model.head] if every else []:
        fully_shard(layer, **how)
    return use(fully_shard(model, **how))


def tied_words(rank, use):
    return Job(rank, lambda: sharded(use, Net(tied=True), every=False)).train()


def a_layer_that_only_some_steps_use(rank, use):
    return Job(rank, lambda: sharded(use)).train(used=[(0, 1, 2), (0, 2), (2, 0)])


def a_layer_that_only_the_last_batch_of_a_step_uses(rank, use):
    job = Job(rank, lambda: sharded(use))
    for _ in range(2):
        for used in ((0,), (0,), (0, 1, 2)):
            job.model.used = used
            job.model.set_requires_gradient_sync(len(used) == 3)
            job.loss().backward()
        job.update()
    return job


def averages_in_the_weights_place(rank, use):
    """For an evaluation: copied in and out, and exchanged."""
    job = Job(rank, lambda: sharded(use))
    shards = [one.to_local() for one in job.model.parameters()]
    averages = [one.detach().clone() for one in shards]
    for exchange in (False, True, False):
        job.train(2)
        with torch.no_grad():
            for average, shard in zip(averages, shards):
                average.lerp_(shard, 0.5)
            kept = [one.clone() for one in shards]
            for shard, average in zip(shards, averages):
                shard.copy_(average)
            job.loss()
            for shard, old in zip(shards, kept):
                shard.data.copy_(old) if exchange else shard.copy_(old)
    return job


def other_storages(rank, use):
    """A state that is assigned, not copied."""
    job = Job(rank, lambda: sharded(use), torch.optim.SGD).train(2)
    old = {name: one.detach().clone() for name, one in job.model.state_dict().items()}
    job.train(2)
    job.model.load_state_dict(old, assign=True)
    job.optimizer = torch.optim.SGD(job.model.parameters(), 1e-2)
    return job.train(2)


def a_head_that_is_called_in_chunks(rank, use):
    return Job(rank, lambda: sharded(use)).train(chunks=[4, 2])


def meshes_of_one(rank, use):
    jobs = [Job(rank, lambda mesh=mesh: sharded(use, mesh=mesh)).train(2) for mesh in (
        init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")),
        init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard")))]
    jobs[0].numbers += jobs[1].numbers
    return jobs[0]


def whole_states_in_between(rank, use):
    """Saved by all ranks, loaded from rank 0's."""
    job = Job(rank, lambda: sharded(use)).train(2)
    options = states.StateDictOptions(full_state_dict=True, cpu_offload=True)
    saved = states.get_model_state_dict(job.model, options=options)
    moments = states.get_optimizer_state_dict(job.model, job.optimizer, options=options)
    job.train(2)
    options = states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    states.set_model_state_dict(job.model, saved if rank == 0 else {}, options=options)
    states.set_optimizer_state_dict(job.model, job.optimizer, moments if rank == 0 else {}, options=options)
    return job.train(2)


def batches_that_are_added_up(rank, use):
    job = Job(rank, lambda: sharded(use))
    for micro in (0, 1, 2, 0, 1, 2):
        job.model.set_requires_gradient_sync(micro == 2)
        job.model.set_reshard_after_backward(micro == 2)
        job.loss().backward()
        if micro == 2:
            torch.nn.utils.clip_grad_norm_(job.model.parameters(), 0.5)
            job.update()
    return job


def forward_computed_again(rank, use):
    return Job(rank, lambda: sharded(use)).train(saves=[True, False])


def two_passes_for_one_loss(rank, use):
    job = Job(rank, lambda: sharded(use))
    for _ in range(3):
        (job.loss() + 0.5 * job.loss()).backward()
        job.update()
    return job


def adapters_beside_what_is_frozen(rank, use):
    net = Net()
    for name, one in net.named_parameters():
        one.requires_grad_("layers.1" in name)
    return Job(rank, lambda: sharded(use, net.to(torch.bfloat16))).train()


def whole_weights_by_hand(rank, use):
    job = Job(rank, lambda: sharded(use, reshard_after_forward=False)).train(2)
    with torch.no_grad():
        job.model.unshard()
        job.numbers.append(job.model.embed.weight.sum().item())
        job.model.reshard()
        for one in job.model.parameters():
            one.to_local().clamp_(-0.1, 0.1)
    return job.train(2)


def gradients_kept_as_zeros(rank, use):
    job = Job(rank, lambda: sharded(use, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)))
    for _ in range(STEPS):
        job.loss().backward()
        job.optimizer.step()
        job.optimizer.zero_grad(set_to_none=False)
    return job


def a_pass_that_fails(rank, use):
    job = Job(rank, lambda: sharded(use)).train(2)
    with contextlib.suppress(IndexError):
        job.model(torch.full((2, 5), WORDS))
    return job.train(2)


FSDP2 = [tied_words, a_layer_that_only_some_steps_use, a_layer_that_only_the_last_batch_of_a_step_uses,
         averages_in_the_weights_place, other_storages, a_head_that_is_called_in_chunks, meshes_of_one,
         whole_states_in_between, batches_that_are_added_up, forward_computed_again, two_passes_for_one_loss,
         adapters_beside_what_is_frozen, whole_weights_by_hand, gradients_kept_as_zeros, a_pass_that_fails]


# DDP


def alike(use, net=None, **how):
    return use(DistributedDataParallel(net or Net(), bucket_cap_mb=0.01, **how))


def ddp_of_tied_words(rank, use):
    return Job(rank, lambda: alike(use, Net(tied=True))).train()


def ddp_that_looks_for_unused_parameters(rank, use):
    return Job(rank, lambda: alike(use, find_unused_parameters=True)).train(used=[(0, 1, 2), (0, 2), (1,)])


def ddp_of_a_static_graph(rank, use):
    return Job(rank, lambda: alike(use, static_graph=True)).train(saves=[True])


def ddp_with_views_of_buckets(rank, use):
    job = Job(rank, lambda: alike(use, gradient_as_bucket_view=True))
    for micro in (0, 1, 2, 0, 1, 2):
        with job.model.no_sync() if micro < 2 else contextlib.nullcontext():
            job.loss().backward()
        if micro == 2:
            torch.nn.utils.clip_grad_norm_(job.model.parameters(), 0.5)
            job.update()
    return job


def ddp_with_buffers(rank, use):
    net = Net()
    net.layers[1] = nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(WIDTH), nn.Unflatten(0, (-1, 5)))
    return Job(rank, lambda: alike(use, net)).train()


def ddp_of_some_parameters(rank, use):
    net = Net()
    net.embed.weight.requires_grad_(False)
    return Job(rank, lambda: alike(use, net)).train()


DDP = [ddp_of_tied_words, ddp_that_looks_for_unused_parameters, ddp_of_a_static_graph,
       ddp_with_views_of_buckets, ddp_with_buffers, ddp_of_some_parameters]


def fsdp2_over_thinwire(model):
    return thinwire.enable(model, "delta", "lossless", min_bytes=1)


def ddp_over_thinwire(model):
    model.register_comm_hook(None, thinwire.ddp_hook("lossless", min_bytes=1))
    return model


def same(ours, plain):
    (numbers, shards), (their_numbers, their_shards) = ours.result(), plain.result()
    return numbers == their_numbers and all(map(torch.equal, shards, their_shards))


def differing(rank, jobs, over):
    """The names of the jobs whose numbers are others over Thinwire, or that have not used it."""
    found = []
    for job in jobs:
        calls = sum(one.calls for one in thinwire.report().values())
        ours = job(rank, over)
        used = sum(one.calls for one in thinwire.report().values()) > calls
        if not used or not same(ours, job(rank, lambda model: model)):
            found.append(job.__name__)
    return found


@pytest.mark.parametrize("part", range(3))
def test_fsdp2(part):
    jobs = FSDP2[part::3]
    assert ranks.run(2, lambda rank: differing(rank, jobs, fsdp2_over_thinwire), limit_sec=250) == [[], []]


def test_ddp():
    assert ranks.run(2, lambda rank: differing(rank, DDP, ddp_over_thinwire)) == [[], []]
