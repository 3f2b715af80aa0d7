"""FSDP2: its all-gather of weights, its reduce-scatter of gradients and its all-reduce between replicas, over
Thinwire.

FSDP2 has a place for the first two on every group of parameters; its all-reduce is taken from where it calls
it. The boundaries of parameters in its flat buffers are read from the group; inside.py knows how."""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import logging
import threading
import types
import weakref
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from . import (
    backward,
    capi,
    inside,
    names,
    operations,
    policy,
    prefetch,
    replicas,
    segments,
    staging,
    tally,
    unused,
)
from .engine import TYPES, Communicator, Use

log = logging.getLogger("thinwire")
UNKNOWN = "unknown boundaries"
OWN_GATHER = "gathered as %s says"  # by a tensor's own class: of fp8, or of 4 bits

# What one operation does: tensors of one type, with one codec, None for plain.
Shaped = tuple[torch.dtype, operations.Shape, capi.Codec | None]


class _Comm:
    """What the directions share: the parameters, the policy, the shapes that have occurred."""

    variable = ""  # which says how it is encoded
    # Of torch: makes the buffers after set_allocate_memory_from_process_group_for_comm(True).
    allocator: object | None = None

    def __init__(self, group: object, rules: policy.Policy, use: Use):
        super().__init__()
        self.group, self._rules, self._use = group, rules, use
        self._usual, self._by_name = rules.of(self.variable)
        self._shapes: dict[object, list[Shaped]] = {}
        self._units: dict[object, tuple[replicas.Unit | None, str]] = {}
        self._steps = itertools.count()
        self._text = "FSDP2 over thinwire: %s" % rules

    def allocate(self, size, *, dtype, device):
        take = self.allocator.allocate if self.allocator is not None else super().allocate
        return take(size, dtype=dtype, device=device)

    def _carrier(self, kind: str, group: dist.ProcessGroup, whole: torch.Tensor,
                 op: dist.ReduceOp | None = None, staged: bool = False) -> Communicator | None:
        found = operations.carrier(kind, self._use, group, whole, op, staged)
        if found is not None and found.n_nodes > 1:
            tally.announce(self._text)
        return found

    def _codec(self, name: str = "") -> capi.Codec | None:
        """Of a parameter of that name; without one, of what no pattern matches."""
        return self._by_name.codec(name, self._usual) if name else self._usual

    def _why_unquantized(self, param: object, itemsize: int) -> str:
        size, codec = inside.size(param), self._codec(_name(param))
        if codec is None and self._usual is not None:
            return names.BY_NAME
        return policy.why_unquantized(self._rules, codec, len(size), size.numel() * itemsize)

    def _pieces(self, params: Sequence[object], sizes: Sequence[int], run: int,
                itemsize: int) -> tuple[segments.Piece, ...]:
        """Of a run in which all parameters have the same type."""
        if sum(sizes) != run:
            return (segments.Piece(run, UNKNOWN),)
        return tuple(segments.Piece(n, self._why_unquantized(param, itemsize), _row(param),
                                    _name(param), _columns(param))
                     for param, n in zip(params, sizes))

    def _shape(self, dtype: torch.dtype, pieces: tuple[segments.Piece, ...], key: object,
               make: Callable[[Sequence[segments.Piece], Sequence[int]], segments.Table],
               copies: int = 1) -> list[Shaped]:
        """An operation for each codec. make: the table of some pieces, which begin at these bytes. copies:
        runs in what is reduced."""
        key = (dtype, pieces, key)
        if key not in self._shapes:
            offsets = segments.offsets_of(pieces, dtype.itemsize)
            self._shapes[key] = [
                (dtype, operations.shape(
                    make(mine, at), mine,
                    operations.scaling(codec, mine, at, dtype.itemsize, copies)), codec)
                for codec, mine, at in operations.by_codec(pieces, offsets, self._codec)]
        return self._shapes[key]

    def _next(self) -> int:
        """The number of the operation. With the second one all groups of parameters have had their first."""
        step = next(self._steps)
        if step == 1 and self._by_name.rules:
            tally.warn_of_patterns(self.variable, self._by_name.unmatched())
        return step

    def _post(self, kind: str, op: int, shapes: list[Shaped], place: Callable[[segments.Table], None],
              keep: tuple[torch.Tensor, ...], communicator: Communicator,
              reduction: tuple[int, float] = (capi.SUM, 1.0)) -> operations.AnyRequest:
        """keep: the result, and what is reduced."""
        step, of = self._next(), "%s of %s" % (kind, inside.name(self.group) or "the root")
        together = [operations.Operation(kind, op, dtype, shape, place, codec, keep, reduction, step, of,
                                         source=keep[-1], result=keep[0])
                    for dtype, shape, codec in shapes]
        return operations.post(together, communicator)


def _name(param: object) -> str:
    return names.cleaned(inside.param_name(param))


def _row(param: object) -> int:
    """Elements of a row of a shard; 0: it is no matrix."""
    size = inside.shard_size(param)
    return size[-1] if len(size) > 1 else 0


def _columns(param: object) -> int:
    size = inside.shard_size(param)
    return size[1:].numel() if len(size) > 1 else 0


def _rank_major(ranks: Communicator, dtype: torch.dtype,
                run: int) -> Callable[[Sequence[segments.Piece], Sequence[int]], segments.Table]:
    """Tables of some pieces of runs of so many elements."""
    return lambda pieces, offsets: segments.RankMajor(ranks.world, ranks.rank, pieces, dtype.itemsize,
                                                      offsets, run * dtype.itemsize)


@dataclasses.dataclass(frozen=True)
class _Place:
    """A parameter in a run of bytes."""

    offset: int  # in bytes
    dtype: torch.dtype
    piece: segments.Piece

    def as_bytes(self, reason: str) -> segments.Piece:
        return segments.Piece(self.piece.n_elems * self.dtype.itemsize, reason)


def _split(places: Sequence[_Place], run: int, communicator: Communicator,
           codec_of: Callable[[str], capi.Codec | None]) -> list[Shaped]:
    """A gather of mixed types: an operation for each type and codec of what is quantized, and one for all the
    rest, as bytes."""

    def shaped(dtype: torch.dtype, pieces: Sequence[segments.Piece], offsets: Sequence[int],
               codec: capi.Codec | None) -> Shaped:
        table = segments.RankMajor(communicator.world, communicator.rank, pieces, dtype.itemsize,
                                   offsets, run)
        return dtype, operations.shape(table, pieces), codec

    shapes = []
    for dtype in sorted({one.dtype for one in places if not one.piece.unquantized}, key=str):
        mine = [one for one in places if one.dtype == dtype and not one.piece.unquantized]
        shapes += [shaped(dtype, pieces, offsets, codec) for codec, pieces, offsets in operations.by_codec(
            [one.piece for one in mine], [one.offset for one in mine], codec_of)]
    rest = [one for one in places if one.piece.unquantized]
    if rest:
        as_bytes = [one.as_bytes(one.piece.unquantized) for one in rest]
        shapes.append(shaped(torch.uint8, as_bytes, [one.offset for one in rest], codec_of("")))
    return shapes


_keeping: weakref.WeakSet[object] = weakref.WeakSet()  # groups whose weights are kept


_announced_bytes = 0


def _kept_bytes(ranks: Communicator) -> int:
    """What the replicas of all groups there are will take."""
    params = (one for group in list(_keeping) for one in inside.params(group))
    return ranks.n_nodes * sum(
        inside.shard_size(one).numel() * (inside.gathered_dtype(one).itemsize + replicas.STATE_BYTES)
        for one in params)


def _announce_memory(ranks: Communicator, limit: int) -> None:
    """Before any of it is taken; again when it is to be more."""
    global _announced_bytes
    if _kept_bytes(ranks) <= _announced_bytes:
        return
    gc.collect()  # models that nobody has any more are still there
    total = _kept_bytes(ranks)
    if total <= _announced_bytes:
        return
    _announced_bytes = total
    bound = ", at most %.1f MB (TW_REPLICA_MEM)" % (limit / 1e6) if limit else " (TW_REPLICA_MEM bounds it)"
    tally.announce("weights are kept in host memory: %.1f MB on each rank%s" % (total / 1e6, bound))


@functools.cache
def _classes() -> tuple[type, type]:
    """(all-gather, reduce-scatter): torch's own are their bases, so that torch may put its own in their place
    again."""
    inside.check()
    default_gather, default_reduction = inside.default_comms()

    class AllGather(_Comm, default_gather):
        variable = "TW_WEIGHTS"

        def _places(self, gathered: Sequence[tuple[int, torch.dtype]], run: int) -> tuple[_Place, ...]:
            """Of a run of bytes."""
            offsets = [0, *itertools.accumulate(n * dtype.itemsize for n, dtype in gathered)]
            places = []
            for param, (n, dtype), offset in zip(inside.params(self.group), gathered, offsets):
                reason = self._why_unquantized(param, dtype.itemsize)
                if not dtype.is_floating_point or dtype not in TYPES:
                    reason = str(dtype)
                elif offset % dtype.itemsize or run % dtype.itemsize:
                    reason = reason or "not aligned"
                piece = segments.Piece(n, reason, name=_name(param))
                places.append(_Place(offset, dtype, piece))
            return tuple(places)

        def _mixed(self, gathered: Sequence[tuple[int, torch.dtype]], run: int,
                   ranks: Communicator) -> list[Shaped]:
            places = self._places(gathered, run)
            split = self._rules.codes_weights() and not policy.is_unquantized() and ranks.n_nodes > 1
            key = (places, split, ranks.world, ranks.rank)
            if key not in self._shapes:
                if not split:
                    pieces = [dataclasses.replace(one.piece, unquantized="mixed types") for one in places]
                    places = [dataclasses.replace(one, piece=piece) for one, piece in zip(places, pieces)]
                self._shapes[key] = _split(places, run, ranks, self._codec)
            return self._shapes[key]

        def _shapes_of(self, dtype: torch.dtype, run: int, ranks: Communicator) -> list[Shaped]:
            params = inside.params(self.group)
            gathered = [inside.gathered(one) for one in params]
            own = all(one is not None and one[1] == dtype for one in gathered)
            if (dtype == torch.uint8 and not own and None not in gathered
                    and sum(n * one.itemsize for n, one in gathered) == run):
                return self._mixed(gathered, run, ranks)
            sizes = [n for n, _ in gathered] if own else []
            pieces = self._pieces(params, sizes, run, dtype.itemsize)
            if None in gathered:
                pieces = (segments.Piece(run, OWN_GATHER % inside.class_name(params[gathered.index(None)])),)
            return self._shape(dtype, pieces, (ranks.world, ranks.rank), _rank_major(ranks, dtype, run))

        def _kept_parts(self, dtype: torch.dtype, run: int) -> list[replicas.Part]:
            """Of a run of so many elements of the buffer's type, which is bytes for mixed types."""
            whole, rounds, run = dtype != torch.uint8, self._rules.rounds is not None, run * dtype.itemsize
            if whole and not rounds:
                return [replicas.Part(0, run // dtype.itemsize, dtype)]
            gathered = [inside.gathered(one) for one in inside.params(self.group)]
            if None in gathered or sum(n * one.itemsize for n, one in gathered) != run:
                return [replicas.Part(0, run // dtype.itemsize, dtype, UNKNOWN)] if whole else []
            return [replicas.Part(one.offset, one.piece.n_elems, one.dtype,
                                  self._why_not_rounded(param, one) if rounds else "")
                    for param, one in zip(inside.params(self.group), self._places(gathered, run))
                    if one.dtype in TYPES]

        def _why_not_rounded(self, param: object, place: _Place) -> str:
            size, rounds = inside.size(param), self._rules.rounds
            if self._by_name.codec(place.piece.name, rounds) is not rounds:
                return names.EXACT_BY_NAME
            return place.piece.unquantized or policy.why_unquantized(
                self._rules, rounds, len(size), size.numel() * place.dtype.itemsize)

        def _unit(self, dtype: torch.dtype, run: int, ranks: Communicator) -> replicas.Unit | None:
            """What is kept of such gathers, or None: counted with the reason."""
            parts = self._kept_parts(dtype, run)
            key = (ranks, run, dtype, tuple(parts))
            if key not in self._units:
                self._units[key] = self._new_unit(run * dtype.itemsize, parts, ranks)
            unit, why = self._units[key]
            if unit is None:
                tally.book.unkept("all-gather", why)
            return unit

        def _new_unit(self, run_bytes: int, parts: list[replicas.Part],
                      ranks: Communicator) -> tuple[replicas.Unit | None, str]:
            _announce_memory(ranks, self._rules.replica_bytes)
            keeper = replicas.keeper_of(ranks)
            if keeper is None:
                return None, replicas.UNEVEN
            return keeper.unit(inside.name(self.group) or "the root", run_bytes, parts,
                               self._rules.replica_bytes, self._rules.rounds)

        def __call__(self, output_tensor, input_tensor, group, async_op=False):
            if output_tensor.itemsize == 1:  # of fp8, too, which gloo has not
                output_tensor, input_tensor = (one.view(torch.uint8) for one in (output_tensor, input_tensor))
            staged = self._rules.keeps and staging.holds(output_tensor)
            ranks = self._carrier("all-gather", group, output_tensor, None, staged)
            if ranks is None:
                return super().__call__(output_tensor, input_tensor, group, async_op)
            if self._rules.keeps and ranks.n_nodes > 1:
                self._next()
                unit = self._unit(output_tensor.dtype, input_tensor.numel(), ranks)
                if unit is not None and staged:
                    return operations.Work(staging.gather(unit, output_tensor, input_tensor), "all-gather")
                if unit is not None:
                    return prefetch.Gathering(unit.post(output_tensor, policy.is_unquantized()), self.group)
            if staged:  # there is no replica
                ranks = self._carrier("all-gather", group, output_tensor)
                if ranks is None:
                    return super().__call__(output_tensor, input_tensor, group, async_op)
            shapes = self._shapes_of(output_tensor.dtype, input_tensor.numel(), ranks)
            request = self._post(
                "all-gather", capi.ALLGATHER, shapes, lambda table: table.gather(output_tensor.data_ptr()),
                (output_tensor,), ranks)
            if ranks.cuda:
                return operations.StreamWork() if async_op else None
            # FSDP2 waits where it copies out, so that a prefetched gather runs beside the computation.
            return prefetch.Gathering(request, self.group)

    class ReduceScatter(_Comm, default_reduction):
        variable = "TW_GRADS"
        params: Sequence[object] = ()  # of the reduction that is posted
        call: backward.Call | None = None  # it need not be waited for

        def allocate(self, size, *, dtype, device):
            made = super().allocate(size, dtype=dtype, device=device)
            return self.call.allocated(made) if self.call is not None and self.allocator is None else made

        def _sizes(self) -> list[int]:
            return [inside.shard_size(one).numel() for one in self.params]

        def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
            ranks = self._carrier("reduce-scatter", group, input_tensor, op)
            output = backward.value_of(output_tensor)
            if ranks is None:
                return super().__call__(output, input_tensor, group, op, async_op)
            dtype = output.dtype
            pieces = self._pieces(self.params, self._sizes(), output.numel(), dtype.itemsize)
            shapes = self._shape(dtype, pieces, (ranks.world, ranks.rank),
                                 _rank_major(ranks, dtype, output.numel()), ranks.world)
            request = self._post(
                "reduce-scatter", capi.REDUCE_SCATTER, shapes,
                lambda table: table.scatter(input_tensor.data_ptr(), output.data_ptr()),
                (output, input_tensor), ranks, operations.reduction(op))
            if ranks.cuda:
                return operations.StreamWork() if async_op else None
            self._wait(request, "reduce-scatter", output_tensor)
            return None

        def _wait(self, request: operations.AnyRequest, kind: str, result: torch.Tensor) -> None:
            """Now, or when the result is read: FSDP2 drops what is returned to it."""
            if isinstance(result, backward.Pending):
                result.result.comes_of(request, kind)
            else:
                operations.wait(request, kind)

        def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp, group: dist.ProcessGroup) -> bool:
            """Between replicas: of this rank's shards of gradients, or of whole ones. False: torch's own
            way."""
            if isinstance(tensor, backward.Pending):
                tensor.result.wait()  # for the reduce-scatter
            value = backward.value_of(tensor)
            ranks = self._carrier("all-reduce", group, value, op)
            if ranks is None:
                return False
            pieces = self._pieces(self.params, self._sizes(), value.numel(), value.itemsize)
            shapes = self._shape(value.dtype, pieces, "replicas",
                                 lambda mine, at: segments.Plain(mine, value.itemsize, at))
            request = self._post(
                "all-reduce", capi.ALLREDUCE, shapes, lambda table: table.reduce(value.data_ptr()),
                (value,), ranks, operations.reduction(op))
            if not ranks.cuda:
                self._wait(request, "all-reduce", tensor)
            return True

    return AllGather, ReduceScatter


class _Distributed(types.ModuleType):
    """torch.distributed as FSDP2's collectives see it: an all-reduce between replicas is ours."""

    reducing = threading.local()  # comm: the reduce-scatter whose gradients are reduced

    def __getattr__(self, name: str) -> object:
        return getattr(dist, name)

    def all_reduce(self, tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        comm = getattr(self.reducing, "comm", None)
        if comm is None or async_op or not comm.all_reduce(tensor, op, group or dist.group.WORLD):
            return dist.all_reduce(backward.value_of(tensor), op, group, async_op)
        return None


def _of_kind(kind: type, args: Sequence[object], kwargs: dict[str, object]) -> object | None:
    """The argument of that class: its place differs from version to version."""
    return next((one for one in (*args, *kwargs.values()) if isinstance(one, kind)), None)


def _others(comm: object) -> str:
    if type(comm) in inside.default_comms():
        return "thinwire is not enabled there"
    return "%s is in its place" % type(comm).__name__


def _count_elsewhere(comm: object, shards: dist.ProcessGroup | None, replicas: dist.ProcessGroup | None,
                     n_bytes: int) -> None:
    """Gradients of so many bytes, reduced in somebody else's way."""
    operations.elsewhere("reduce-scatter", _others(comm), shards, n_bytes)
    shard_bytes = n_bytes // (shards.size() if shards is not None else 1)
    operations.elsewhere("all-reduce", _others(comm), replicas, shard_bytes)


def _watch_reductions(distributed: types.ModuleType) -> None:
    """Tell a reduction which parameters have gradients, as FSDP2 passes only a flat buffer; count what goes
    another way."""

    def make(reduce):
        def foreach_reduce(fsdp_params, unsharded_grads, group, *args, **kwargs):
            comm = _of_kind(inside.comm_kinds()[1], args, kwargs)
            if not isinstance(comm, _classes()[1]):
                n_bytes = sum(one.nbytes for one in unsharded_grads)
                _count_elsewhere(comm, group, _of_kind(dist.ProcessGroup, args, kwargs), n_bytes)
                return reduce(fsdp_params, unsharded_grads, group, *args, **kwargs)
            comm.params, distributed.reducing.comm = list(fsdp_params), comm
            try:
                with backward.reduction(comm.group, comm.params, unsharded_grads) as comm.call:
                    return reduce(fsdp_params, unsharded_grads, group, *args, **kwargs)
            finally:
                distributed.reducing.comm = comm.call = None

        return foreach_reduce

    inside.wrap_reductions(make)


def _watch_gathers() -> None:
    """Count what goes another way."""

    def make(gather):
        def foreach_all_gather(fsdp_params, group, *args, **kwargs):
            result = gather(fsdp_params, group, *args, **kwargs)
            comm = _of_kind(inside.comm_kinds()[0], args, kwargs)
            if result is not None and not isinstance(comm, _classes()[0]):
                operations.elsewhere("all-gather", _others(comm), group, inside.gathered_bytes(result))
            return result

        return foreach_all_gather

    inside.wrap_gathers(make)


def _watch_allocation() -> None:
    """set_allocate_memory_from_process_group_for_comm() puts torch's own in our place: ours stay, with
    buffers as it says."""

    def make(original):
        def set_allocate_memory_from_process_group(self, enable):
            ours = [getattr(self, name) for name in inside.COMMS]
            original(self, enable)
            for name, comm, kind in zip(inside.COMMS, ours, _classes()):
                if isinstance(comm, kind):
                    comm.allocator = getattr(self, name)
                    setattr(self, name, comm)

        return set_allocate_memory_from_process_group

    inside.wrap_allocation(make)


def _watch() -> None:
    tally.book.asked = True
    tally.book.is_first()
    _watch_reductions(inside.replace_distributed(_Distributed))
    _watch_gathers()
    _watch_allocation()
    prefetch.watch()


def _attach(group: object, rules: policy.Policy, use: Use) -> None:
    """Put ours in either place, unless somebody else has put something there."""
    for name, kind, default, allocating in zip(inside.COMMS, _classes(), inside.default_comms(),
                                               inside.allocating_comms()):
        there = getattr(group, name)
        if not isinstance(there, (kind, default, allocating)):
            log.warning("%s of FSDP2 is left as it is", type(there).__name__)
            continue
        ours = kind(group, rules, use)
        if rules.keeps and name == inside.COMMS[0]:
            _keeping.add(group)
        ours.allocator = there if isinstance(there, allocating) else getattr(there, "allocator", None)
        setattr(group, name, ours)


def enable(model: torch.nn.Module, weights: policy.ByName | None = None, grads: policy.ByName | None = None,
           min_bytes: int | None = None) -> torch.nn.Module:
    """Send this model's weights and gradients over Thinwire; call it after fully_shard, on all ranks. What is
    not given is the environment's. weights, grads: a codec, with exceptions perhaps as in TW_WEIGHTS and
    TW_GRADS, or {pattern of parameters' names: codec}, of which the last that matches holds. Returns the
    model. ValueError for a codec that makes no sense or a model without FSDP2."""
    inside.check()
    rules, groups = policy.make(weights, grads, min_bytes), list(inside.groups_of(model))
    if not groups:
        raise ValueError("no module of this model has been given to fully_shard")
    _watch()
    use = Use(rules.settings())
    for state in inside.states_of(model):
        prefetch.watch_state(state)
    for group in groups:
        _attach(group, rules, use)
    return model


def disable(model: torch.nn.Module) -> torch.nn.Module:
    """Back to torch's own collectives. On all ranks. Returns the model."""
    for group in inside.groups_of(model):
        for name, kind, default in zip(inside.COMMS, _classes(), inside.default_comms()):
            ours = getattr(group, name)
            if isinstance(ours, kind):
                setattr(group, name, ours.allocator or default())
    return model


def patch() -> None:
    """Every FSDP2 model from now on. RuntimeError, with nothing changed, for a torch whose inside differs."""
    inside.check()
    rules = policy.from_environment()
    use = Use(rules.settings())
    _watch()
    unused.watch()

    def make(original):
        def __init__(self, *args, **kwargs):
            original(self, *args, **kwargs)
            _attach(self, rules, use)

        return __init__

    inside.wrap_group_init(make)
