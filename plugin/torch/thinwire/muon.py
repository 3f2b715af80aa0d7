"""Muon under FSDP2: torch.optim.Muon, and other implementations through at_owner().

Muon makes each matrix's update orthogonal, and needs the whole matrix for that. torch computes with DTensors.
For a matrix that is sharded by rows this takes 15 all-gathers a step, or 10 all-reduces for a tall matrix
(torch 2.15). Here each matrix has an owner rank. The ranks send the owner their rows of the update, in bf16,
which is what Muon computes in. The owner computes, and sends each rank its rows of the result. So each matrix
crosses the network twice, ranks share the computing, and the result is bit for bit that of one process."""

from __future__ import annotations

import functools
import itertools
import typing
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from . import capi, inside, policy
from .collectives import losses, operations, shapes
from .engine import segments
from .engine.communicators import Use

KIND = "muon all-to-all"
_use, _shapes, _steps = Use({}), shapes.Shapes(), itertools.count()


def _group_of(matrix: torch.Tensor) -> dist.ProcessGroup | None:
    """Returns the group of ranks over which a matrix's rows are sharded. None if the matrix is not sharded by
    rows, or if the group has only one rank."""
    if not isinstance(matrix, DTensor) or matrix.placements[-1] != Shard(0):
        return None
    if not all(isinstance(one, Replicate) for one in matrix.placements[:-1]):
        return None
    group = matrix.device_mesh.get_group(matrix.device_mesh.ndim - 1)
    return group if group.size() > 1 else None


def _exchange(source: torch.Tensor, counts: list[int], received: list[int],
              group: dist.ProcessGroup) -> torch.Tensor:
    """All-to-all. counts: the elements of `source` for each rank, in rank order. received: the elements that
    come from each rank. Returns what has come, in rank order."""
    room = source.new_empty(max(1, sum(received)))  # an empty tensor's address would be 0
    target = room[: sum(received)]
    ranks = None
    if source.is_cuda:
        operations.elsewhere(KIND, "in GPU memory", group, source.nbytes)
    else:
        ranks = operations.carrier(KIND, _use, group, source)
    if ranks is None:
        as_bytes = [[one * source.itemsize for one in sizes] for sizes in (received, counts)]
        dist.all_to_all_single(target.view(torch.uint8), source.view(torch.uint8), *as_bytes, group=group)
        return target
    shape = _shapes.get((source.dtype, *counts, *received), lambda: shapes.Shape.of(
        segments.Whole(source.numel(), 0, counts, received), [segments.Piece(source.numel(), "")]))
    codec = capi.lossless() if policy.from_environment().grads is not None else None
    operations.wait(operations.post([shapes.Operation(
        KIND, capi.ALLTOALL, source.dtype, shape,
        lambda table: table.move(source.data_ptr() or room.data_ptr(), room.data_ptr()), codec,
        (source, room), step=next(_steps), of=KIND)], ranks), KIND)
    return target


def _owners(matrices: Sequence[torch.Tensor], world: int) -> list[int]:
    """Returns each matrix's owner rank. Expensive matrices come first, each to the rank with least work."""
    costs, found = [0] * world, [0] * len(matrices)
    cost = [one.numel() * min(one.shape) for one in matrices]
    for i in sorted(range(len(matrices)), key=cost.__getitem__, reverse=True):
        found[i] = costs.index(min(costs))
        costs[found[i]] += cost[i]
    return found


def _orthogonal(updates: list[torch.Tensor], matrices: Sequence[torch.Tensor], group: dist.ProcessGroup,
                compute: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """Let owners compute the matrices' results. Returns this rank's rows of each. updates: this rank's rows
    of each matrix's update. compute: makes a whole result from a whole update."""
    world, rank = group.size(), group.rank()
    owners = _owners(matrices, world)
    chunks = [-(-one.size(0) // world) for one in matrices]
    rows = [[max(0, min(chunk, one.size(0) - i * chunk)) for i in range(world)]
            for one, chunk in zip(matrices, chunks)]

    def elems(i: int, of: int) -> int:
        return rows[i][of] * matrices[i].size(1)

    by_owner = sorted(range(len(matrices)), key=owners.__getitem__)
    mine = [i for i in by_owner if owners[i] == rank]
    sent = [sum(elems(i, rank) for i in by_owner if owners[i] == owner) for owner in range(world)]
    received = [sum(elems(i, sender) for i in mine) for sender in range(world)]
    there = _exchange(torch.cat([updates[i].reshape(-1) for i in by_owner]), sent, received, group)
    parts = there.split([elems(i, sender) for sender in range(world) for i in mine])
    wholes = [compute(torch.cat(parts[n :: len(mine)]).view(matrices[i].shape)) for n, i in enumerate(mine)]
    split = [one.split(rows[i]) for i, one in zip(mine, wholes)]
    back = [one[receiver].reshape(-1) for receiver in range(world) for one in split]
    here = _exchange(torch.cat(back or [there]), received, sent, group)
    own = here.split([elems(i, rank) for i in by_owner])
    return [one.view(updates[i].shape) for i, one in sorted(zip(by_owner, own), key=lambda pair: pair[0])]


def _step(group: dist.ProcessGroup, matrices: list[typing.Any], grads: list[typing.Any],
          momenta: list[typing.Any], options: dict[str, typing.Any]) -> None:
    """Do the step of torch.optim.Muon for these matrices, which are sharded by rows over `group`."""
    kept, momentum, updates = 1 - float(options["lr"]) * options["weight_decay"], options["momentum"], []
    for grad, buffer in zip([one.to_local() for one in grads], [one.to_local() for one in momenta]):
        buffer.lerp_(grad, 1 - momentum)
        update = grad.lerp(buffer, momentum) if options["nesterov"] else buffer
        updates.append(update.bfloat16())
    found = _orthogonal(updates, matrices, group, lambda whole: inside.muon_orthogonal(whole, options))
    for matrix, update in zip(matrices, found):
        matrix.to_local().mul_(kept).add_(update, alpha=-inside.muon_rate(options, matrix.shape))


def at_owner(compute: Callable[..., torch.Tensor], dtype: torch.dtype) -> Callable[..., typing.Any]:
    """Make a function of a whole matrix, such as another Muon's iteration, work for matrices that FSDP2
    shards by rows. One rank calls `compute`, the others wait. dtype: the type in which rows are sent, which
    should be the type that `compute` converts its matrix to; also the type of its result."""

    @functools.wraps(compute)
    def computed(matrix: typing.Any, *options: object, **named: object) -> typing.Any:
        losses.sampler.has_muon = True
        group = _group_of(matrix)
        if group is None:
            return compute(matrix, *options, **named)
        (rows,) = _orthogonal([matrix.to_local().to(dtype)], [matrix], group,
                              lambda whole: compute(whole, *options, **named))
        return DTensor.from_local(rows, matrix.device_mesh, matrix.placements, run_check=False,
                                  shape=matrix.shape, stride=matrix.stride())

    return computed


def watch() -> None:
    """From now on _step() does torch.optim.Muon's step for sharded matrices, if this torch is supported."""

    def make(original):
        def _single_tensor_muon(params, grads, muon_momentum_bufs, **options):
            losses.sampler.has_muon = True
            lists, found = (params, grads, muon_momentum_bufs), {}
            for i, param in enumerate(params):
                found.setdefault(_group_of(param), []).append(i)
            for group, indices in found.items():
                some = [[one[i] for i in indices] for one in lists]
                original(*some, **options) if group is None else _step(group, *some, options)

        return _single_tensor_muon

    inside.wrap_muon(make)
