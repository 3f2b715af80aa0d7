"""Thinwire's replacements of FSDP2's collectives: an all-gather of weights, and a reduce-scatter of
gradients. The reduce-scatter's class also does the all-reduce between replicas of HSDP.

FSDP2 passes flat buffers. inside.py reads where parameters begin and end in them from FSDP2's objects."""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import itertools
import typing
import weakref
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from .. import capi, inside, names, policy
from ..collectives import operations, shapes, staging
from ..collectives.shapes import Shaped
from ..engine import segments
from ..engine.communicators import TYPES, Communicator, Use, Waitable
from ..telemetry import tally
from . import backward, buffers, prefetch, replicas

UNKNOWN = "unknown boundaries"
OWN_GATHER = "gathered as %s says"  # a tensor's class, as of fp8 or 4 bits, decides what bytes are gathered

# {operation: the report's name for it}
KINDS = {capi.ALLGATHER: "all-gather", capi.REDUCE_SCATTER: "reduce-scatter", capi.ALLREDUCE: "all-reduce"}


class _Comm:
    """Base of both collectives. Has the group of parameters, the policy, and the shapes used so far."""

    variable = ""  # the environment variable with its codec
    default: typing.Any  # torch's own class, which classes() adds as a second base
    # torch's object that allocates buffers after set_allocate_memory_from_process_group_for_comm(True)
    allocator: typing.Any = None

    def __init__(self, group: object, rules: policy.Policy, use: Use):
        super().__init__()
        self.group, self._rules, self._use = group, rules, use
        self._usual, self._by_name = rules.of(self.variable)
        self._says_length = capi.says_length(self._usual, *(one.codec for one in self._by_name.rules))
        self._shapes: dict[object, list[Shaped]] = {}
        self._units: dict[object, tuple[replicas.Unit | None, str]] = {}
        self._steps = itertools.count()
        self._text = "FSDP2 over thinwire: %s" % rules

    def allocate(self, size, *, dtype, device):
        if self.allocator is not None:
            return self.allocator.allocate(size, dtype=dtype, device=device)
        return self.default.allocate(self, size, dtype=dtype, device=device)

    def _carrier(self, kind: str, group: dist.ProcessGroup, whole: torch.Tensor,
                 op: dist.ReduceOp | None = None, staged: bool = False) -> Communicator | None:
        found = operations.carrier(kind, self._use, group, whole, op, staged)
        if found is not None and found.n_nodes > 1:
            tally.announce(self._text)
        return found

    def _codec(self, name: str = "") -> capi.Codec | None:
        """Returns the codec for the parameter of this name. "": for parameters that match no pattern."""
        return self._by_name.codec(name, self._usual) if name else self._usual

    def _why_unquantized(self, param: object, itemsize: int) -> str:
        size, codec = inside.size(param), self._codec(_name(param))
        if codec is None and self._usual is not None:
            return names.BY_NAME
        return policy.why_unquantized(self._rules, codec, len(size), size.numel() * itemsize)

    def _pieces(self, params: Sequence[object], sizes: Sequence[int], run: int,
                itemsize: int) -> tuple[segments.Piece, ...]:
        """Returns the parameters' pieces of a run, all of one type. sizes: elements of each. run: elements of
        the run; if the sizes do not add up to that, the result is one piece, which is not quantized."""
        if sum(sizes) != run:
            return (segments.Piece(run, UNKNOWN),)
        return tuple(segments.Piece(n, self._why_unquantized(param, itemsize), _row(param),
                                    _name(param), _columns(param))
                     for param, n in zip(params, sizes))

    def _shape(self, dtype: torch.dtype, pieces: tuple[segments.Piece, ...], key: object,
               make: Callable[[Sequence[segments.Piece], Sequence[int]], segments.Table],
               copies: int = 1) -> list[Shaped]:
        """Returns the parts of an operation, one for each codec. key: what else makes its shape differ from
        others. make: makes a table, given pieces and their offsets in bytes. copies: runs in the source."""
        key = (dtype, pieces, key)
        if key not in self._shapes:
            offsets = segments.offsets_of(pieces, dtype.itemsize)
            self._shapes[key] = [
                Shaped(dtype, shapes.Shape.of(
                    make(mine, at), mine,
                    shapes.scaling(codec, mine, at, dtype.itemsize, copies)), codec)
                for codec, mine, at in shapes.by_codec(pieces, offsets, self._codec)]
        return self._shapes[key]

    def _next(self) -> int:
        """Returns the number of the next operation. At the second one, warns of patterns that match no
        parameter: by then all groups of parameters have had their first operation."""
        step = next(self._steps)
        if step == 1 and self._by_name.rules:
            tally.warn_of_patterns(self.variable, self._by_name.unmatched())
        return step

    def _together(self, op: int, shaped: list[Shaped], place: Callable[[typing.Any], None],
                  keep: tuple[torch.Tensor, ...],
                  reduction: tuple[int, float] = (capi.SUM, 1.0)) -> list[shapes.Operation]:
        """Returns the parts of one operation for operations.post(). place: sets a table's pointers. keep: the
        operation's tensors, with the result first and the source last."""
        kind = KINDS[op]
        step, of = self._next(), "%s of %s" % (kind, inside.name(self.group) or "the root")
        return [shapes.Operation(kind, op, dtype, shape, place, codec, keep, reduction, step, of,
                                 source=keep[-1], result=keep[0])
                for dtype, shape, codec in shaped]


def _name(param: object) -> str:
    return names.cleaned(inside.param_name(param))


def _row(param: object) -> int:
    """Returns the last dimension of a parameter's shard; 0 if it is no matrix."""
    size = inside.shard_size(param)
    return size[-1] if len(size) > 1 else 0


def _columns(param: object) -> int:
    """Returns the product of all dimensions but the first of a parameter's shard; 0 if it is no matrix."""
    size = inside.shard_size(param)
    return size[1:].numel() if len(size) > 1 else 0


def _rank_major(ranks: Communicator, dtype: torch.dtype,
                run: int) -> Callable[[Sequence[segments.Piece], Sequence[int]], segments.Table]:
    """Returns a function that makes the table for some pieces and their offsets. run: elements of a run."""
    return lambda pieces, offsets: segments.RankMajor(ranks.world, ranks.rank, pieces, dtype.itemsize,
                                                      offsets, run * dtype.itemsize)


@dataclasses.dataclass(frozen=True)
class _Place:
    """A parameter's place in a run of mixed types, which FSDP2 gathers as bytes."""

    offset: int  # in bytes
    dtype: torch.dtype
    piece: segments.Piece

    def as_bytes(self, reason: str) -> segments.Piece:
        return segments.Piece(self.piece.n_elems * self.dtype.itemsize, reason)


def _split(places: Sequence[_Place], run: int, communicator: Communicator,
           codec_of: Callable[[str], capi.Codec | None]) -> list[Shaped]:
    """Split a gather of mixed types into parts: one for each type and codec of quantized parameters, and one
    for all other parameters, as bytes. run: bytes of a run."""

    def shaped(dtype: torch.dtype, pieces: Sequence[segments.Piece], offsets: Sequence[int],
               codec: capi.Codec | None) -> Shaped:
        table = segments.RankMajor(communicator.world, communicator.rank, pieces, dtype.itemsize,
                                   offsets, run)
        return Shaped(dtype, shapes.Shape.of(table, pieces), codec)

    made = []
    for dtype in sorted({one.dtype for one in places if not one.piece.unquantized}, key=str):
        mine = [one for one in places if one.dtype == dtype and not one.piece.unquantized]
        made += [shaped(dtype, pieces, offsets, codec) for codec, pieces, offsets in shapes.by_codec(
            [one.piece for one in mine], [one.offset for one in mine], codec_of)]
    rest = [one for one in places if one.piece.unquantized]
    if rest:
        as_bytes = [one.as_bytes(one.piece.unquantized) for one in rest]
        made.append(shaped(torch.uint8, as_bytes, [one.offset for one in rest], codec_of("")))
    return made


keeping: weakref.WeakSet[object] = weakref.WeakSet()  # groups of parameters that have replicas


_announced_bytes = 0


def _kept_bytes(ranks: Communicator) -> int:
    """Returns the bytes of host memory that the replicas of all living groups will take on a rank."""
    params = (one for group in list(keeping) for one in inside.params(group))
    return ranks.n_nodes * sum(inside.shard_size(one).numel() * _kept_bytes_each(one) for one in params)


def _kept_bytes_each(param: object) -> int:
    """Returns the bytes of host memory that a replica takes for each element. A tensor whose own class
    decides what is gathered usually gathers fp8: one byte, and no state of the codec."""
    if inside.gathers_own(param):
        return 1
    return inside.gathered_dtype(param).itemsize + replicas.STATE_BYTES


def _announce_memory(ranks: Communicator, limit: int) -> None:
    """Log how much host memory replicas take, before they are made, and again if it becomes more."""
    global _announced_bytes
    if _kept_bytes(ranks) <= _announced_bytes:
        return
    gc.collect()  # dead models may still be counted
    total = _kept_bytes(ranks)
    if total <= _announced_bytes:
        return
    _announced_bytes = total
    bound = ", at most %.1f MB (TW_REPLICA_MEM)" % (limit / 1e6) if limit else " (TW_REPLICA_MEM bounds it)"
    tally.announce("weights are kept in host memory: %.1f MB on each rank%s" % (total / 1e6, bound))


class _AllGather(_Comm):
    """The all-gather of weights."""

    variable = "TW_WEIGHTS"

    def _places(self, gathered: Sequence[tuple[int, torch.dtype]], run: int) -> tuple[_Place, ...]:
        """Returns the parameters' places in a run of mixed types. gathered: (elements, type). run: bytes."""
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
        places: Sequence[_Place] = self._places(gathered, run)
        split = self._rules.codes_weights() and not policy.is_unquantized() and ranks.n_nodes > 1
        key = (places, split, ranks.world, ranks.rank)
        if key not in self._shapes:
            if not split:
                pieces = [dataclasses.replace(one.piece, unquantized="mixed types") for one in places]
                places = [dataclasses.replace(one, piece=piece) for one, piece in zip(places, pieces)]
            self._shapes[key] = _split(places, run, ranks, self._codec)
        return self._shapes[key]

    def _gathered(self) -> list[tuple[int, torch.dtype]]:
        """Returns [(elements in a rank's run, type)] by parameter; [] if a tensor's class decides what is
        gathered (OWN_GATHER)."""
        found = [inside.gathered(one) for one in inside.params(self.group)]
        return [] if None in found else [one for one in found if one is not None]

    def _shapes_of(self, dtype: torch.dtype, run: int, ranks: Communicator) -> list[Shaped]:
        params, gathered = inside.params(self.group), self._gathered()
        own = bool(gathered) and all(one == dtype for _, one in gathered)
        if (gathered and dtype == torch.uint8 and not own
                and sum(n * one.itemsize for n, one in gathered) == run):
            return self._mixed(gathered, run, ranks)
        sizes = [n for n, _ in gathered] if own else []
        pieces = self._pieces(params, sizes, run, dtype.itemsize)
        if not gathered:
            strange = next(one for one in params if inside.gathered(one) is None)
            pieces = (segments.Piece(run, OWN_GATHER % inside.class_name(strange)),)
        return self._shape(dtype, pieces, (ranks.world, ranks.rank), _rank_major(ranks, dtype, run))

    def _kept_parts(self, dtype: torch.dtype, run: int) -> list[replicas.Part]:
        """Returns the parts of a run that replicas keep. dtype: the buffer's type, uint8 for mixed types.
        run: elements of that type in a run."""
        whole, rounds, run = dtype != torch.uint8, self._rules.rounds is not None, run * dtype.itemsize
        if whole and not rounds:
            return [replicas.Part(0, run // dtype.itemsize, dtype)]
        gathered = [inside.gathered(one) or (inside.own_elems(one), torch.uint8)
                    for one in inside.params(self.group)]
        if sum(n * one.itemsize for n, one in gathered) != run:
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

    def _unit(self, dtype: torch.dtype, run: int, ranks: Communicator,
              staged: bool) -> replicas.Unit | None:
        """Returns the replica for gathers of runs of this type and size. If there is none, counts why, for
        the report, and returns None."""
        parts = self._kept_parts(dtype, run)
        key = (ranks, run, dtype, tuple(parts))
        if key not in self._units:
            self._units[key] = self._new_unit(run * dtype.itemsize, parts, ranks, staged)
        unit, why = self._units[key]
        if unit is None:
            tally.book.add("all-gather", unkept=collections.Counter([why]))
        return unit

    def _new_unit(self, run_bytes: int, parts: list[replicas.Part], ranks: Communicator,
                  staged: bool) -> tuple[replicas.Unit | None, str]:
        keeper = replicas.keeper_of(ranks)
        if keeper is None:
            return None, replicas.UNEVEN
        if not (staged and replicas.cost_more(ranks, run_bytes)):
            _announce_memory(ranks, self._rules.replica_bytes)
        return keeper.unit(inside.name(self.group) or "the root", run_bytes, parts,
                           self._rules.replica_bytes, self._rules.rounds, staged)

    def _kept(self, whole: torch.Tensor, own: torch.Tensor, ranks: Communicator,
              staged: bool) -> dist.Work | None:
        """Gather through a replica. Returns None if there is no replica."""
        self._next()
        unit = self._unit(whole.dtype, own.numel(), ranks, staged)
        if unit is None:
            return None
        if staged:
            return operations.Work(replicas.gather_staged(unit, whole, own), "all-gather")
        return prefetch.Gathering(unit.post(whole, policy.is_unquantized()), self.group)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        if output_tensor.itemsize == 1:  # gloo has no fp8
            output_tensor, input_tensor = (one.view(torch.uint8) for one in (output_tensor, input_tensor))
        find = functools.partial(self._carrier, "all-gather", group, output_tensor, None)
        if self._rules.keeps:
            staged = staging.device.holds(output_tensor)
            ranks = find(staged)
            if ranks is None:
                return self.default.__call__(self, output_tensor, input_tensor, group, async_op)
            work = self._kept(output_tensor, input_tensor, ranks, staged) if ranks.n_nodes > 1 else None
            if work is not None:
                return work

        def shaped_of(ranks):
            return self._shapes_of(output_tensor.dtype, input_tensor.numel(), ranks)

        def together(_own, whole):
            return self._together(capi.ALLGATHER, shaped_of(ranks),
                                  lambda table: table.gather(whole.data_ptr()), (whole,))

        ranks, staged = staging.carrier(find, output_tensor, self._says_length, shaped_of)
        if ranks is None:
            return self.default.__call__(self, output_tensor, input_tensor, group, async_op)
        if staged:
            request = staging.operate(together, input_tensor, output_tensor, ranks,
                                      ranks.rank * input_tensor.numel())
            return operations.Work(request, "all-gather")
        request = operations.post(together(input_tensor, output_tensor), ranks)
        if ranks.cuda:
            return operations.StreamWork() if async_op else None
        # FSDP2 waits only when it copies the weights out, so a prefetched gather runs during computation.
        return prefetch.Gathering(request, self.group)


class _ReduceScatter(_Comm):
    """The reduce-scatter of gradients, and their all-reduce between replicas."""

    variable = "TW_GRADS"
    params: Sequence[object] = ()  # parameters of the next reduction
    call: backward.Call | None = None  # the present foreach_reduce; None if it must wait for its reduction

    def allocate(self, size, *, dtype, device):
        if self.call is None or self.allocator is not None:
            return super().allocate(size, dtype=dtype, device=device)
        made = (buffers.shared.take(size, dtype) if self.call.asks_for_input()
                else super().allocate(size, dtype=dtype, device=device))
        return self.call.allocated(made)

    def _sizes(self) -> list[int]:
        return [inside.shard_size(one).numel() for one in self.params]

    def _reduce(self, kind: int, group: dist.ProcessGroup, op: dist.ReduceOp, given: torch.Tensor,
                result: torch.Tensor, shaped_of: Callable[[Communicator], list[Shaped]],
                place: Callable[[typing.Any, int, int], None]) -> bool:
        """Reduce `given` into `result`, which may be the same tensor. place: sets the pointers of a table,
        given addresses of source and result. Returns False if torch has to do the reduction."""
        value, name = backward.value_of(result), KINDS[kind]
        ranks, staged = staging.carrier(functools.partial(self._carrier, name, group, given, op), given,
                                        self._says_length, shaped_of)
        if ranks is None:
            return False
        reduction = operations.reduction(op)
        assert reduction is not None, "_carrier() has looked"

        def together(source, target):
            return self._together(kind, shaped_of(ranks),
                                  lambda table: place(table, source.data_ptr(), target.data_ptr()),
                                  (target, source), reduction)

        if staged:
            backward.make_room(self.group)
            posted = staging.operate(together, given, value, ranks, 0 if value is given else None)
            posted.follow()
            backward.end_with(self.group, posted, name)
            return True
        request = operations.post(together(given, value), ranks)
        if not ranks.cuda:
            self._wait(request, name, result)
        return True

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        output = backward.value_of(output_tensor)

        def shaped_of(ranks):
            return self._reduced(output, (ranks.world, ranks.rank),
                                 _rank_major(ranks, output.dtype, output.numel()), ranks.world)

        if not self._reduce(capi.REDUCE_SCATTER, group, op, input_tensor, output_tensor, shaped_of,
                            lambda table, source, result: table.scatter(source, result)):
            return self.default.__call__(self, output, input_tensor, group, op, async_op)
        return operations.StreamWork() if async_op and output.is_cuda else None

    def _reduced(self, run: torch.Tensor, key: object,
                 make: Callable[[Sequence[segments.Piece], Sequence[int]], segments.Table],
                 copies: int = 1) -> list[Shaped]:
        """Returns the parts of a reduction with a result like `run`. key, make, copies: see _shape(). The
        result is cached by parameters and sizes, because asking for their pieces takes time."""
        sizes = self._sizes()
        known = (run.dtype, run.numel(), key, *self.params, *sizes)
        if known not in self._shapes:
            pieces = self._pieces(self.params, sizes, run.numel(), run.itemsize)
            self._shapes[known] = self._shape(run.dtype, pieces, key, make, copies)
        return self._shapes[known]

    def _wait(self, request: Waitable, kind: str, result: torch.Tensor) -> None:
        """If the result is Pending, let its reader wait for the request. Otherwise wait now: FSDP2 would not
        wait, as it drops the handle that it gets."""
        if isinstance(result, backward.Pending):
            result.result.comes_of(request, kind)
        else:
            operations.wait(request, kind)

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp, group: dist.ProcessGroup) -> bool:
        """All-reduce gradients between replicas of HSDP. Returns False if torch has to do it."""
        if isinstance(tensor, backward.Pending):
            tensor.result.wait()  # the reduce-scatter that fills this tensor
        value = backward.value_of(tensor)

        def shaped_of(_ranks):
            return self._reduced(value, "replicas",
                                 lambda mine, at: segments.Plain(mine, value.itemsize, at))

        return self._reduce(capi.ALLREDUCE, group, op, value, tensor, shaped_of,
                            lambda table, source, _result: table.reduce(source))


@functools.cache
def classes() -> tuple[typing.Any, typing.Any]:
    """Returns the classes (all-gather, reduce-scatter). torch's own classes are their bases, because FSDP2's
    set_allocate_memory_from_process_group() replaces no collectives of other classes."""
    inside.check()
    made = [type(ours.__name__.lstrip("_"), (ours, default), {"default": default})
            for ours, default in zip((_AllGather, _ReduceScatter), inside.default_comms())]
    return made[0], made[1]
