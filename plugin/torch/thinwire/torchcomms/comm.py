"""A communicator with torchcomms' collectives, on tensors of any type in any memory.

Thinwire works on contiguous host memory. Tensors in GPU memory, and tensors that are not contiguous, are
copied to host memory and back. Lists of tensors are joined. Types that Thinwire cannot sum are moved as
bytes. Values that Thinwire cannot reduce are moved to the rank that needs the result, which reduces them in
rank order. A call posts at most one operation, so operations have the same order on all ranks."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Sequence

import torch

from .. import capi, policy
from ..collectives import operations, shapes
from ..engine import agreement, communicators, segments
from ..engine.communicators import Waitable
from ..engine.meeting import World
from ..reporting import report
from ..telemetry.tally import book

KIND = "torchcomms "
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
Store = Callable[[], object]  # copies an operation's result to the caller's tensors

# {name of a reduction of torchcomms: torch's function of two tensors}
_BINARY = {
    "SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
    "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
}
_SUMS = {"SUM": capi.SUM, "AVG": capi.MEAN}  # reductions that Thinwire itself has, for _FLOATS


def check_timeout(timeout_sec: float) -> None:
    """Raise ValueError for a timeout of 0 or less."""
    if timeout_sec <= 0:
        raise ValueError("a timeout of %g s: it has to be above 0" % timeout_sec)


_check_environment = functools.cache(policy.check_environment)  # warns once


@dataclasses.dataclass(frozen=True)
class Call:
    """Hints and timeout of one call."""

    codec: str | None = None  # None: the communicator's codec, or plain for a small tensor
    timeout_sec: float | None = None  # None: the communicator's timeout


def _fold(rows: torch.Tensor, op: str) -> torch.Tensor:
    """Reduce rows (W, n) to (n), in rank order, in the tensor's own type."""
    total = functools.reduce(_BINARY[op], rows.unbind(0))
    if op != "AVG":
        return total
    if total.is_floating_point() or total.is_complex():
        return total / rows.size(0)
    return total.div(rows.size(0), rounding_mode="trunc")


def _sums(tensor: torch.Tensor, op: str) -> bool:
    """Returns whether Thinwire itself reduces such a tensor. ValueError for an unknown reduction."""
    if op not in _BINARY:
        raise ValueError("thinwire has no reduction %s: it has %s" % (op, ", ".join(_BINARY)))
    return op in _SUMS and tensor.dtype in _FLOATS


def _put(tensor: torch.Tensor, values: torch.Tensor) -> None:
    tensor.detach().copy_(values.view(tensor.shape))


class Work:
    """A posted operation, for torchcomms. finish: called once, after the operation."""

    def __init__(self, request: Waitable, kind: str, finish: Store | None):
        self._request, self._kind, self._finish = request, kind, finish
        self._done, self._lock = False, threading.Lock()

    def wait(self) -> None:
        with self._lock:
            if not self._done:
                operations.wait(self._request, self._kind)
                if self._finish is not None:
                    self._finish()
                self._done, self._finish = True, None


def _host(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor's elements, (n), in host memory: the tensor's own memory, or a copy."""
    return tensor.detach().cpu().contiguous().view(-1)


def _room(tensor: torch.Tensor) -> tuple[torch.Tensor, Store | None]:
    """Returns (host memory for a tensor's elements, a function that then copies them to the tensor). The
    memory may be the tensor's own; then there is no function."""
    tensor = tensor.detach()
    if tensor.device.type == "cpu" and tensor.is_contiguous():
        return tensor.view(-1), None
    room = torch.empty(tensor.numel(), dtype=tensor.dtype)
    return room, lambda: tensor.copy_(room.view(tensor.shape))


def _same_type(*tensors: torch.Tensor) -> None:
    kinds = {one.dtype for one in tensors}
    if len(kinds) > 1:
        raise ValueError("tensors of several types: %s" % ", ".join(sorted(map(str, kinds))))


def _expect(n_elems: int, expected: int, what: str) -> None:
    if n_elems != expected:
        raise ValueError("%s has %d elements, %d are expected" % (what, n_elems, expected))


def _join(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the elements of all tensors, one after another, in host memory."""
    _same_type(*tensors)
    return torch.cat([_host(one) for one in tensors])


def _spread(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Store]:
    """As _room(), for several tensors. Their elements follow one another in the memory."""
    _same_type(*tensors)
    sizes = [one.numel() for one in tensors]
    room = torch.empty(sum(sizes), dtype=tensors[0].dtype)

    def store() -> None:
        for tensor, values in zip(tensors, room.split(sizes)):
            tensor.detach().copy_(values.view(tensor.shape))

    return room, store


def _row_elems(tensor: torch.Tensor) -> int:
    """Returns a tensor's last dimension; 0 if it is no matrix."""
    return tensor.size(-1) if tensor.dim() > 1 else 0


@dataclasses.dataclass(frozen=True)
class _Move:
    """One operation on host memory. source, target: (n), of one type; without a source the data is in the
    target. counts, recv_counts: elements for each rank, and from each; None: evenly. finish: see Work."""

    kind: str
    op: int
    source: torch.Tensor | None
    target: torch.Tensor
    finish: Store | None = None
    counts: Sequence[int] | None = None
    recv_counts: Sequence[int] | None = None
    reduction: int = capi.SUM
    root: int = 0
    row_elems: int = 0
    codec: capi.Codec | None = None

    def as_bytes(self) -> _Move:
        """Returns this operation on bytes, for a type that Thinwire does not know."""
        counts, recv_counts = (None if one is None else [n * self.target.itemsize for n in one]
                               for one in (self.counts, self.recv_counts))
        source = None if self.source is None else self.source.view(torch.uint8)
        return dataclasses.replace(self, source=source, target=self.target.view(torch.uint8), counts=counts,
                                   recv_counts=recv_counts, row_elems=0, codec=None)

    @property
    def whole(self) -> torch.Tensor:
        """The one of source and target that has the elements of all ranks."""
        is_source = self.source is not None and self.op in (capi.REDUCE_SCATTER, capi.ALLTOALL)
        return self.source if is_source else self.target

    def key(self) -> tuple[object, ...]:
        """Returns all that the table of segments depends on. Includes the root, which sends more."""
        return (self.op, self.target.dtype, self.row_elems, tuple(self.counts or ()),
                tuple(self.recv_counts or ()), self.root)


class Comm:
    """A communicator of `ranks`, in that order. All these ranks must make it and close it together."""

    def __init__(self, world: World, ranks: Sequence[int], name: str, codec: Callable[[], str | None],
                 timeout_sec: float):
        """codec: returns the codec's text, or raises. RuntimeError on all ranks if ranks differ in their
        codec, or if one cannot use Thinwire; the error names the rank."""
        self._name, self._timeout_sec = name, timeout_sec
        self._ranks, self.rank, self.size = list(ranks), list(ranks).index(world.rank), len(ranks)
        self.codec: capi.Codec | None = None
        self._min_bytes = policy.MIN_BYTES
        self._shapes, self._steps = shapes.Shapes(), itertools.count()
        self._nothing = torch.empty(1)  # its address stands for that of empty tensors, which would be 0
        book.has_rank(world.rank)
        report.log_at_exit()
        self._agree(agreement.Life(world, falls_back=False), codec)
        self._engine = communicators.separate(world, timeout_sec)
        try:
            self._communicator = self._engine.communicator(name, self._ranks, timeout_sec)
        except BaseException:
            self._engine.abort()
            self._engine.close()
            raise

    def _agree(self, life: agreement.Life, codec: Callable[[], str | None]) -> None:
        def prepare() -> dict[str, str]:
            _check_environment()
            check_timeout(self._timeout_sec)
            self._min_bytes = policy.from_environment().min_bytes
            self.codec = capi.parse_codec(codec())
            return {"codec": str(self.codec or "plain"), "TW_MIN_BYTES": str(self._min_bytes),
                    "ranks": str(self._ranks)}

        state = life.speak(False, prepare)
        # speak() has told the other ranks what this rank lacks.
        own = "rank %d: %s" % (life.rank, state.lacks) if state and state.lacks else ""
        why = own or life.refused(tuple(sorted(self._ranks)), self._timeout_sec)
        if why:
            raise RuntimeError("thinwire: communicator %s: %s" % (self._name, why))

    def close(self) -> None:
        """Leave the communicator. The first rank waits until the others have left or failed."""
        self._engine.close()

    def abort(self) -> None:
        """End all operations of all ranks of this communicator with an error."""
        self._engine.abort()

    def set_timeout(self, timeout_sec: float) -> None:
        check_timeout(timeout_sec)
        self._timeout_sec = timeout_sec

    def _use(self, timeout_sec: float | None) -> None:
        """Set the timeout of this call; 0 or None for the communicator's. Until the next call it is also the
        timeout of operations under way."""
        if timeout_sec:
            check_timeout(timeout_sec)
        self._communicator.keep_time(timeout_sec or self._timeout_sec)

    def _chosen(self, n_bytes: int, call: Call) -> capi.Codec | None:
        """Set the call's timeout. Returns its codec. n_bytes: the size over all ranks, equal on all."""
        self._use(call.timeout_sec)
        if call.codec is not None:
            return capi.parse_codec(call.codec)
        return self.codec if n_bytes >= self._min_bytes else None

    # One collective operation of the C library

    def _address(self, tensor: torch.Tensor) -> int:
        return tensor.data_ptr() or self._nothing.data_ptr()

    def _post(self, move: _Move) -> Work:
        move = move if move.target.dtype in _FLOATS else move.as_bytes()
        whole = move.whole.numel()
        pieces = [segments.Piece(whole, "")]
        shape = self._shapes.get((*move.key(), whole), lambda: shapes.Shape.of(
            segments.Whole(whole, move.row_elems, move.counts, move.recv_counts), pieces))
        source = self._address(move.source) if move.source is not None else 0
        target, kind = self._address(move.target), KIND + move.kind
        operation = shapes.Operation(
            kind, move.op, move.target.dtype, shape, lambda table: table.move(source, target), move.codec,
            (move.target,) if move.source is None else (move.source, move.target), (move.reduction, 1.0),
            next(self._steps), root=move.root)
        return Work(operations.post([operation], self._communicator), kind, move.finish)

    def _only(self, root: int, n: int) -> list[int]:
        """Returns counts with n elements for the root and 0 for the other ranks."""
        return [n if rank == root else 0 for rank in range(self.size)]

    # Gathers

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, call: Call = Call()) -> Work:
        _same_type(output, tensor)
        _expect(output.numel(), tensor.numel() * self.size, "all_gather_single's output")
        room, finish = _room(output)
        return self._post(_Move("all-gather", capi.ALLGATHER, _host(tensor), room, finish,
                                row_elems=_row_elems(tensor), codec=self._chosen(room.nbytes, call)))

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, call: Call = Call()) -> Work:
        """Gather tensors whose sizes may differ by rank. All ranks must know all sizes."""
        _expect(len(outputs), self.size, "all_gather's list")
        _same_type(outputs[0], tensor)
        _expect(outputs[self.rank].numel(), tensor.numel(), "all_gather's own output")
        room, finish = _spread(outputs)
        return self._post(_Move("all-gather", capi.ALLGATHER, _host(tensor), room, finish,
                                counts=[one.numel() for one in outputs], row_elems=_row_elems(tensor),
                                codec=self._chosen(room.nbytes, call)))

    def gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int,
               call: Call = Call()) -> Work:
        self._plain("gather", call)
        room, finish = torch.empty(0, dtype=tensor.dtype), None
        if self.rank == root:
            _expect(len(outputs), self.size, "gather's list")
            room, finish = _spread(outputs)
            _expect(room.numel(), tensor.numel() * self.size, "gather's output")
        received = [tensor.numel() if self.rank == root else 0] * self.size
        return self._post(_Move("gather", capi.ALLTOALL, _host(tensor), room, finish,
                                counts=self._only(root, tensor.numel()), recv_counts=received))

    # Reductions

    def all_reduce(self, tensor: torch.Tensor, op: str, call: Call = Call()) -> Work:
        codec = self._chosen(tensor.nbytes, call)
        if _sums(tensor, op):
            room, finish = _room(tensor)
            if finish is not None:
                room.copy_(_host(tensor))
            return self._post(_Move("all-reduce", capi.ALLREDUCE, None, room, finish, reduction=_SUMS[op],
                                    row_elems=_row_elems(tensor), codec=codec))
        rows = torch.empty(self.size, tensor.numel(), dtype=tensor.dtype)
        return self._post(_Move("all-reduce", capi.ALLGATHER, _host(tensor), rows.view(-1),
                                lambda: _put(tensor, _fold(rows, op))))

    def reduce(self, tensor: torch.Tensor, root: int, op: str, call: Call = Call()) -> Work:
        self._plain("reduce", call)
        n, here = tensor.numel(), self.rank == root
        if _sums(tensor, op):
            room = torch.empty(n if here else 0, dtype=tensor.dtype)
            return self._post(_Move("reduce", capi.REDUCE_SCATTER, _host(tensor), room,
                                    (lambda: _put(tensor, room)) if here else None,
                                    counts=self._only(root, n), reduction=_SUMS[op]))
        rows = torch.empty(self.size if here else 0, n, dtype=tensor.dtype)
        return self._post(_Move("reduce", capi.ALLTOALL, _host(tensor), rows.view(-1),
                                (lambda: _put(tensor, _fold(rows, op))) if here else None,
                                counts=self._only(root, n), recv_counts=[n if here else 0] * self.size))

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, op: str,
                              call: Call = Call()) -> Work:
        _same_type(output, tensor)
        _expect(tensor.numel(), output.numel() * self.size, "reduce_scatter_single's input")
        return self._reduce_scatter(output, _host(tensor), [output.numel()] * self.size, op,
                                    _row_elems(output), call)

    def reduce_scatter(self, output: torch.Tensor, inputs: Sequence[torch.Tensor], op: str,
                       call: Call = Call()) -> Work:
        """Reduce and scatter tensors whose sizes may differ by rank. All ranks must know all sizes."""
        _expect(len(inputs), self.size, "reduce_scatter's list")
        _same_type(output, inputs[0])
        _expect(output.numel(), inputs[self.rank].numel(), "reduce_scatter's output")
        return self._reduce_scatter(output, _join(inputs), [one.numel() for one in inputs], op,
                                    _row_elems(output), call)

    def _reduce_scatter(self, output: torch.Tensor, source: torch.Tensor, counts: list[int], op: str,
                        row_elems: int, call: Call) -> Work:
        codec = self._chosen(source.nbytes, call)
        if _sums(output, op):
            room, finish = _room(output)
            return self._post(_Move("reduce-scatter", capi.REDUCE_SCATTER, source, room, finish,
                                    counts=counts, reduction=_SUMS[op], row_elems=row_elems, codec=codec))
        rows = torch.empty(self.size, output.numel(), dtype=output.dtype)
        return self._post(_Move("reduce-scatter", capi.ALLTOALL, source, rows.view(-1),
                                lambda: _put(output, _fold(rows, op)), counts=counts,
                                recv_counts=[output.numel()] * self.size))

    # Operations that only move elements

    def all_to_all_single(self, output: torch.Tensor, tensor: torch.Tensor, output_rows: Sequence[int] = (),
                          input_rows: Sequence[int] = (), call: Call = Call()) -> Work:
        """Exchange rows of the first dimension. output_rows, input_rows: rows from and to each rank; empty
        for equal shares. With rows the communicator's codec is used even for small tensors, as a rank does
        not know the others' sizes."""
        _same_type(output, tensor)
        counts = self._split(tensor, input_rows, "input")
        received = self._split(output, output_rows, "output")
        codec = self._chosen(self._min_bytes if input_rows or output_rows else tensor.nbytes, call)
        room, finish = _room(output)
        return self._post(_Move("all-to-all", capi.ALLTOALL, _host(tensor), room, finish, counts=counts,
                                recv_counts=received, row_elems=_row_elems(tensor), codec=codec))

    def _split(self, tensor: torch.Tensor, rows: Sequence[int], what: str) -> list[int]:
        if not rows:
            if tensor.numel() % self.size:
                raise ValueError("all_to_all_single's %s has %d elements, for %d ranks"
                                 % (what, tensor.numel(), self.size))
            return [tensor.numel() // self.size] * self.size
        _expect(len(rows), self.size, "the list of the %s's rows" % what)
        _expect(sum(rows), tensor.size(0), "the first dimension of all_to_all_v_single's %s" % what)
        return [n * (tensor.numel() // max(1, tensor.size(0))) for n in rows]

    def all_to_all(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
                   call: Call = Call()) -> Work:
        for tensors, what in ((outputs, "output"), (inputs, "input")):
            _expect(len(tensors), self.size, "all_to_all's %s list" % what)
        _same_type(outputs[0], inputs[0])
        codec = self._chosen(self._min_bytes, call)
        room, finish = _spread(outputs)
        return self._post(_Move("all-to-all", capi.ALLTOALL, _join(inputs), room, finish,
                                counts=[one.numel() for one in inputs],
                                recv_counts=[one.numel() for one in outputs], codec=codec))

    def scatter(self, output: torch.Tensor, inputs: Sequence[torch.Tensor], root: int,
                call: Call = Call()) -> Work:
        self._plain("scatter", call)
        source, counts = torch.empty(0, dtype=output.dtype), [0] * self.size
        if self.rank == root:
            _expect(len(inputs), self.size, "scatter's list")
            _same_type(output, *inputs)
            source, counts = _join(inputs), [one.numel() for one in inputs]
        room, finish = _room(output)
        return self._post(_Move("scatter", capi.ALLTOALL, source, room, finish, counts=counts,
                                recv_counts=self._only(root, output.numel())))

    def broadcast(self, tensor: torch.Tensor, root: int, call: Call = Call()) -> Work:
        self._plain("broadcast", call)
        room, finish = _room(tensor)
        if finish is not None and self.rank == root:
            room.copy_(_host(tensor))
        return self._post(_Move("broadcast", capi.BROADCAST, None, room, finish, root=root))

    def barrier(self, call: Call = Call()) -> Work:
        self._plain("barrier", call)
        args = capi.Args(op=capi.BARRIER, type=capi.BYTE)
        return Work(self._communicator.post(args, None, KIND + "barrier"), KIND + "barrier", None)

    def _plain(self, what: str, call: Call) -> None:
        """Set the timeout of a call that has no codec. ValueError if the call asks for one."""
        self._use(call.timeout_sec)
        if call.codec not in (None, "plain"):
            raise ValueError("thinwire: %s takes no codec" % what)
