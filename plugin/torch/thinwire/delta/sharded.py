"""Sharded weights: each training rank sends its own shards, and no rank gathers them.

    publisher = Publisher(shards(model.state_dict()))        each training rank, as for whole tensors
    subscriber = ShardsSubscriber(model.state_dict())        inference, with whole tensors or other shards
    subscriber.apply(messages)                               one of each training rank, in rank order

In a message a shard is a tensor with a name like "up.weight[0:128,64:128]": the whole tensor's name and the
shard's range in each dimension. apply() writes nothing unless all messages are right."""

from __future__ import annotations

import math
import re
import typing
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

from . import message, tensors
from .message import Head, Version
from .sources import DeltaError
from .stream import Subscriber

if typing.TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

Box = tuple[tuple[int, int], ...]  # a part of a tensor: (begin, end) in each dimension
_NAME = re.compile(r"(.*)\[((?:\d+:\d+(?:,\d+:\d+)*)?)\]", re.DOTALL)


def shards(weights: Mapping[str, torch.Tensor], group: ProcessGroup | None = None) -> dict[str, torch.Tensor]:
    """Returns the tensors that this rank has to send: its parts of DTensors, and other tensors whole.
    Collective over `group` (None: the whole job): ranks exchange names, and of ranks with the same part only
    one sends it. TypeError for a DTensor whose local tensor is no part of the whole: a partial sum."""
    import torch.distributed as dist

    found = {}
    for name, tensor in weights.items():
        part = _part_of(name, tensor)
        if part and part[1].numel():
            found["%s[%s]" % (name, ",".join("%d:%d" % one for one in part[0]))] = part[1]
    if not dist.is_available() or not dist.is_initialized():
        return found
    names: list[typing.Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(names, list(found), group)
    having = defaultdict(list)
    for rank, theirs in enumerate(names):
        for name in theirs:
            having[name].append(rank)
    mine = dist.get_rank(group)
    return {name: one for name, one in found.items()
            if having[name][zlib.crc32(name.encode()) % len(having[name])] == mine}


def _part_of(name: str, tensor: typing.Any) -> tuple[Box, torch.Tensor] | None:
    """Returns (this rank's part of a tensor, the part's values), or None if this rank has no part of it."""
    if type(tensor).__name__ != "DTensor":
        return tuple((0, n) for n in tensor.shape), tensor
    mesh, box = tensor.device_mesh, [(0, n) for n in tensor.shape]
    coordinate, local = mesh.get_coordinate(), tensor.to_local()
    if coordinate is None:
        return None
    for i, dim in _order(name, tensor):
        begin, end = box[dim]
        step = -(-(end - begin) // mesh.size(i))
        box[dim] = min(begin + coordinate[i] * step, end), min(begin + (coordinate[i] + 1) * step, end)
    if tuple(end - begin for begin, end in box) != tuple(local.shape):
        raise TypeError("%s: a rank has %s of it, where its placements %s say %s" % (
            name, list(local.shape), tensor.placements, box))
    return tuple(box), local


def _order(name: str, tensor: typing.Any) -> list[tuple[int, int]]:
    """Returns [(dimension of the mesh, dimension of the tensor that it splits)], in the order of splitting.
    Usually that is the mesh's order. But FSDP2 splits last, although its dimension of the mesh comes before
    that of tensor or expert parallelism. torch calls FSDP2's part a strided shard."""
    placed = [(i, one) for i, one in enumerate(tensor.placements) if not one.is_replicate()]
    plain: list[tuple[int, int]] = []
    strided: list[tuple[int, int]] = []
    for i, one in placed:
        dim, factor = getattr(one, "dim", None), getattr(one, "split_factor", 1)
        later = math.prod(tensor.device_mesh.size(j) for j, other in placed
                          if j > i and getattr(other, "dim", None) == dim)
        if dim is None or factor not in (1, later):
            raise TypeError("%s: no parts of the whole: its placements are %s" % (name, tensor.placements))
        (plain if factor == 1 else strided).append((i, dim))
    return plain + strided[::-1]


def unfused(weights: Mapping[str, torch.Tensor], fused: Mapping[str, Mapping[str, int]]
            ) -> dict[str, torch.Tensor]:
    """Returns views of a server's weights under the trainer's names, for Subscriber or ShardsSubscriber.
    fused: {"qkv_proj": {"q_proj": 4096, "k_proj": 1024, "v_proj": 1024}}: a word of a tensor's name, and the
    parts of such a tensor in order, each with its rows in the whole tensor. If a DTensor's rows are sharded,
    each rank must have its share of every part's rows. TypeError if the rows do not add up."""
    found = {}
    for name, one in weights.items():
        words = name.split(".")
        at = next((i for i, word in enumerate(words) if word in fused), None)
        if at is None:
            found[name] = one
            continue
        parts = fused[words[at]]
        for part, view in zip(parts, _split(name, one.detach(), list(parts.values()))):
            found[".".join((*words[:at], part, *words[at + 1 :]))] = view
    return found


def _split(name: str, tensor: typing.Any, rows: list[int]) -> typing.Sequence[torch.Tensor]:
    is_sharded = type(tensor).__name__ == "DTensor"
    n_ranks = math.prod(tensor.device_mesh.size(i) for i, one in enumerate(tensor.placements)
                        if one.is_shard(0)) if is_sharded else 1
    if sum(rows) != tensor.shape[0] or any(n % n_ranks for n in rows):
        raise TypeError("%s: its %d rows on %d ranks are not parts of %s" % (
            name, tensor.shape[0], n_ranks, rows))
    if not is_sharded:
        return tensor.split(rows)
    return [tensor.from_local(one, tensor.device_mesh, tensor.placements, run_check=False,
                              shape=(n, *tensor.shape[1:]), stride=tensor.stride())
            for n, one in zip(rows, tensor.to_local().split([n // n_ranks for n in rows]))]


def _part(name: str) -> tuple[str, Box]:
    """Parse a shard's name. Returns (the whole tensor's name, the shard's part)."""
    found = _NAME.fullmatch(name)
    if not found:
        raise DeltaError("%s: not a name of a shard" % name)
    ends = [one.split(":") for one in found[2].split(",") if one]
    return found[1], tuple((int(begin), int(end)) for begin, end in ends)


def _common(a: Box, b: Box) -> Box | None:
    both = tuple((max(one[0], other[0]), min(one[1], other[1])) for one, other in zip(a, b))
    return both if all(begin < end for begin, end in both) else None


def _size(box: Box) -> int:
    return math.prod(end - begin for begin, end in box)


def _within(tensor: torch.Tensor, whole: Box, box: Box) -> torch.Tensor:
    """Returns a view of `box` in `tensor`. tensor: the part `whole` of a larger tensor. Both boxes are in the
    larger tensor's coordinates."""
    return tensor[tuple(slice(begin - at, end - at) for (begin, end), (at, _) in zip(box, whole))]


class ShardsSubscriber:
    """Weights, {name: tensor or DTensor}, that the training ranks' messages update in place. A shard that is
    only partly in this rank's part is kept in host memory; the common elements are copied."""

    def __init__(self, weights: Mapping[str, torch.Tensor], threads: int | None = None):
        self._threads = threads
        self._own: dict[str, tuple[Box, torch.Tensor]] = {}
        self._shapes = {name: tuple(one.shape) for name, one in weights.items()}
        for name, one in weights.items():
            part = _part_of(name, one)
            if part:
                self._own[name] = part[0], part[1].detach()
        self._ranks: list[Subscriber] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # (target, source)

    @property
    def versions(self) -> list[Version | None]:
        """For each training rank, the version of its weights here, for that rank's Publisher.since(). []
        before the first messages."""
        return [one.version for one in self._ranks]

    def apply(self, messages: Sequence[bytes]) -> None:
        """Apply one message of each training rank, in rank order. All must lead to the same version number.
        DeltaError, before anything is written, for the reasons of Subscriber.apply(), and if the shards do
        not cover these weights; the error names the rank. After a TornError all versions are None."""
        received = [message.received(one) for one in messages]
        heads = [one.head for one in received]
        numbers = [head.versions[1].number if head.versions else None for head in heads]
        for rank, number in enumerate(numbers):
            if number != numbers[0]:
                raise DeltaError("rank %d's message leads to version %s, rank 0's to %s" % (
                    rank, number, numbers[0]))
        ranks, copies = self._ranks, self._copies
        if [set(head.specs) for head in heads] != [set(one.weights) for one in ranks]:
            ranks, copies = self._lay_out(heads)
        writes = []
        for rank, (one, theirs) in enumerate(zip(ranks, received)):
            try:
                writes.append(one.ready(theirs))
            except DeltaError as error:
                raise DeltaError("rank %d: %s" % (rank, error)) from None
        self._ranks, self._copies = ranks, copies
        try:
            for write in writes:
                write()
            for to, of in copies:
                to.copy_(of)
        except BaseException:
            for one in ranks:
                one.version = None
            raise

    def _lay_out(self, heads: list[Head]) -> tuple[list[Subscriber], list[tuple[torch.Tensor, torch.Tensor]]]:
        """Returns a subscriber for each training rank's shards, and the copies (target, source) to make when
        all subscribers have applied their messages."""
        parts: dict[str, list[Box]] = defaultdict(list)
        ranks, copies = [], []
        for rank, head in enumerate(heads):
            weights = {}
            for name, spec in head.specs.items():
                whole, box = _part(name)
                if whole not in self._own:
                    raise DeltaError("%s: rank %d sends it, and there is no such tensor here" % (name, rank))
                own, tensor = self._own[whole]
                here = tensors.type_of(tensor)
                shape = self._shapes[whole]
                fits = len(box) == len(own) and all(a <= b <= n for (a, b), n in zip(box, shape))
                if not fits or spec.dtype != here or spec.n_elems != _size(box):
                    raise DeltaError("%s: rank %d sends %s of it, and here it is %s%s" % (
                        name, rank, message.text_of(spec), here, list(shape)))
                parts[whole].append(box)
                common = _common(own, box) if own else box
                if common == box:
                    weights[name] = _within(tensor, own, box)
                    continue
                weights[name] = tensor.new_empty([end - begin for begin, end in box], device="cpu")
                if common:
                    copies.append((_within(tensor, own, common), _within(weights[name], box, common)))
            ranks.append(Subscriber(weights, self._threads))
        for name in self._own:
            self._check_all(name, parts[name])
        return ranks, copies

    def _check_all(self, name: str, parts: list[Box]) -> None:
        """Raise DeltaError unless these parts have each element of the tensor exactly once."""
        twice = any(_common(one, other) for i, one in enumerate(parts) for other in parts[:i])
        if twice or sum(map(_size, parts)) != math.prod(self._shapes[name]):
            raise DeltaError("%s: the ranks' shards are not the whole of it, each element once" % name)
