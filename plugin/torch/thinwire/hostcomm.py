"""A communicator with the collectives that torchcomms asks for, on tensors of any type in any memory.

Thinwire moves runs of host memory. Tensors that are elsewhere, or not contiguous, are copied there and back;
lists of tensors are laid one after another; types without sums move as bytes, and what Thinwire cannot reduce
is moved to where it is needed and reduced there, in the order of the ranks. Each call posts one operation at
most, so that calls under way keep their order on all ranks."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Sequence

import torch

from . import agreement, capi, engine, operations, policy, segments
from .meeting import World
from .tally import book

KIND = "torchcomms "
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
Store = Callable[[], object]  # what is left to do when an operation has ended

# torchcomms' reductions, by name
_BINARY = {
    "SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
    "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
}
_SUMS = {"SUM": capi.SUM, "AVG": capi.MEAN}  # those that Thinwire has, of _FLOATS


def check_timeout(timeout_sec: float) -> None:
    """ValueError if nothing could ever come within it."""
    if timeout_sec <= 0:
        raise ValueError("a timeout of %g s: it has to be above 0" % timeout_sec)


_check_environment = functools.cache(policy.check_environment)  # warns once


@dataclasses.dataclass(frozen=True)
class Call:
    """What one call asks for beside its arguments."""

    codec: str | None = None  # None: the communicator's, for what is not small
    timeout_sec: float | None = None  # None: the communicator's


def _fold(rows: torch.Tensor, op: str) -> torch.Tensor:
    """(W, n) -> (n), in the order of the ranks, in the tensor's own type."""
    total = functools.reduce(_BINARY[op], rows.unbind(0))
    if op != "AVG":
        return total
    if total.is_floating_point() or total.is_complex():
        return total / rows.size(0)
    return total.div(rows.size(0), rounding_mode="trunc")


def _sums(tensor: torch.Tensor, op: str) -> bool:
    """Whether Thinwire has that reduction. ValueError if there is none here."""
    if op not in _BINARY:
        raise ValueError("thinwire has no reduction %s: it has %s" % (op, ", ".join(_BINARY)))
    return op in _SUMS and tensor.dtype in _FLOATS


def _put(tensor: torch.Tensor, values: torch.Tensor) -> None:
    tensor.detach().copy_(values.view(tensor.shape))


class Work:
    """An operation under way: what torchcomms waits for."""

    def __init__(self, request: operations.AnyRequest, kind: str, finish: Store | None):
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
    """Its elements, (n), in host memory: its own, or a copy."""
    return tensor.detach().cpu().contiguous().view(-1)


def _room(tensor: torch.Tensor) -> tuple[torch.Tensor, Store | None]:
    """(room for its elements in host memory, what then puts them into the tensor)"""
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
    _same_type(*tensors)
    return torch.cat([_host(one) for one in tensors])


def _spread(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Store]:
    """(room for the elements of all of them, what then puts them there)"""
    _same_type(*tensors)
    sizes = [one.numel() for one in tensors]
    room = torch.empty(sum(sizes), dtype=tensors[0].dtype)

    def store() -> None:
        for tensor, values in zip(tensors, room.split(sizes)):
            tensor.detach().copy_(values.view(tensor.shape))

    return room, store


def _row_elems(tensor: torch.Tensor) -> int:
    """Of a matrix."""
    return tensor.size(-1) if tensor.dim() > 1 else 0


class Comm:
    """Between all ranks of a world, in an order of their own. Collective when it is made, and when it is
    closed."""

    def __init__(self, world: World, ranks: Sequence[int], name: str, codec: Callable[[], str | None],
                 timeout_sec: float):
        """codec: says it, or why there is none. RuntimeError that names the rank if one differs, or lacks
        something."""
        self._name, self._timeout_sec = name, timeout_sec
        self._ranks, self.rank, self.size = list(ranks), list(ranks).index(world.rank), len(ranks)
        self.codec: capi.Codec | None = None
        self._min_bytes = policy.MIN_BYTES
        self._shapes, self._steps = operations.Shapes(), itertools.count()
        self._nothing = torch.empty(1)  # empty tensors are at no address
        book.has_rank(world.rank)
        self._agree(agreement.Life(world, falls_back=False), codec)
        self._engine = engine.separate(world, timeout_sec)
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
        own = "rank %d: %s" % (life.rank, state.lacks) if state.lacks else ""  # the others hear of it
        why = own or life.refused(tuple(sorted(self._ranks)), self._timeout_sec)
        if why:
            raise RuntimeError("thinwire: communicator %s: %s" % (self._name, why))

    def close(self) -> None:
        """The first of the ranks stays until the others have left or failed."""
        self._engine.close()

    def abort(self) -> None:
        """Give up, on all ranks."""
        self._engine.abort()

    def set_timeout(self, timeout_sec: float) -> None:
        check_timeout(timeout_sec)
        self._timeout_sec = timeout_sec

    def _use(self, timeout_sec: float | None) -> None:
        """A call's own limit holds for what is under way, until the next call; 0 is none, as torch has it."""
        if timeout_sec:
            check_timeout(timeout_sec)
        self._communicator.keep_time(timeout_sec or self._timeout_sec)

    def _chosen(self, n_bytes: int, call: Call) -> capi.Codec | None:
        """n_bytes: over all ranks, the same on all of them."""
        self._use(call.timeout_sec)
        if call.codec is not None:
            return capi.parse_codec(call.codec)
        return self.codec if n_bytes >= self._min_bytes else None

    # One operation of Thinwire's

    def _address(self, tensor: torch.Tensor) -> int:
        return tensor.data_ptr() or self._nothing.data_ptr()

    def _post(self, kind: str, op: int, source: torch.Tensor | None, target: torch.Tensor,
              finish: Store | None, *, counts: Sequence[int] | None = None,
              recv_counts: Sequence[int] | None = None, reduction: int = capi.SUM, root: int = 0,
              row_elems: int = 0, codec: capi.Codec | None = None) -> Work:
        """source, target: (n) in host memory, of one type; no source: it is in the target, where it belongs.
        counts: of elements."""
        if target.dtype not in _FLOATS:
            counts, recv_counts = [one and [n * target.itemsize for n in one]
                                   for one in (counts, recv_counts)]
            source = None if source is None else source.view(torch.uint8)
            target, row_elems, codec = target.view(torch.uint8), 0, None
        whole = source if op in (capi.REDUCE_SCATTER, capi.ALLTOALL) else target
        pieces = [segments.Piece(whole.numel(), "")]
        key = (op, target.dtype, whole.numel(), row_elems, tuple(counts or ()), tuple(recv_counts or ()),
               root)  # a root sends more
        shape = self._shapes.get(key, lambda: operations.shape(
            segments.Whole(whole.numel(), row_elems, counts, recv_counts), pieces))
        addresses = self._address(source) if source is not None else 0, self._address(target)
        operation = operations.Operation(
            KIND + kind, op, target.dtype, shape, lambda table: table.move(*addresses), codec,
            (target,) if source is None else (source, target), (reduction, 1.0), next(self._steps), root=root)
        return Work(operation.post(self._communicator), KIND + kind, finish)

    def _exchange(self, kind: str, source: torch.Tensor, target: torch.Tensor, counts: Sequence[int],
                  recv_counts: Sequence[int], finish: Store | None, row_elems: int = 0,
                  codec: capi.Codec | None = None) -> Work:
        return self._post(kind, capi.ALLTOALL, source, target, finish, counts=counts,
                          recv_counts=recv_counts, row_elems=row_elems, codec=codec)

    def _only(self, root: int, n: int) -> list[int]:
        """For the root alone."""
        return [n if rank == root else 0 for rank in range(self.size)]

    # Gathers

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, call: Call = Call()) -> Work:
        _same_type(output, tensor)
        _expect(output.numel(), tensor.numel() * self.size, "all_gather_single's output")
        room, finish = _room(output)
        return self._post("all-gather", capi.ALLGATHER, _host(tensor), room, finish,
                          row_elems=_row_elems(tensor), codec=self._chosen(room.nbytes, call))

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, call: Call = Call()) -> Work:
        """Of any sizes, as all ranks know them."""
        _expect(len(outputs), self.size, "all_gather's list")
        _same_type(outputs[0], tensor)
        _expect(outputs[self.rank].numel(), tensor.numel(), "all_gather's own output")
        room, finish = _spread(outputs)
        return self._post("all-gather", capi.ALLGATHER, _host(tensor), room, finish,
                          counts=[one.numel() for one in outputs], row_elems=_row_elems(tensor),
                          codec=self._chosen(room.nbytes, call))

    def gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int,
               call: Call = Call()) -> Work:
        self._plain("gather", call)
        room, finish = torch.empty(0, dtype=tensor.dtype), None
        if self.rank == root:
            _expect(len(outputs), self.size, "gather's list")
            room, finish = _spread(outputs)
            _expect(room.numel(), tensor.numel() * self.size, "gather's output")
        received = [tensor.numel() if self.rank == root else 0] * self.size
        return self._exchange("gather", _host(tensor), room, self._only(root, tensor.numel()), received,
                              finish)

    # Reductions

    def all_reduce(self, tensor: torch.Tensor, op: str, call: Call = Call()) -> Work:
        codec = self._chosen(tensor.nbytes, call)
        if _sums(tensor, op):
            room, finish = _room(tensor)
            if finish is not None:
                room.copy_(_host(tensor))
            return self._post("all-reduce", capi.ALLREDUCE, None, room, finish, reduction=_SUMS[op],
                              row_elems=_row_elems(tensor), codec=codec)
        rows = torch.empty(self.size, tensor.numel(), dtype=tensor.dtype)
        return self._post("all-reduce", capi.ALLGATHER, _host(tensor), rows.view(-1),
                          lambda: _put(tensor, _fold(rows, op)))

    def reduce(self, tensor: torch.Tensor, root: int, op: str, call: Call = Call()) -> Work:
        self._plain("reduce", call)
        n, here = tensor.numel(), self.rank == root
        if _sums(tensor, op):
            room = torch.empty(n if here else 0, dtype=tensor.dtype)
            return self._post("reduce", capi.REDUCE_SCATTER, _host(tensor), room,
                              (lambda: _put(tensor, room)) if here else None,
                              counts=self._only(root, n), reduction=_SUMS[op])
        rows = torch.empty(self.size if here else 0, n, dtype=tensor.dtype)
        return self._exchange("reduce", _host(tensor), rows.view(-1), self._only(root, n),
                              [n if here else 0] * self.size,
                              (lambda: _put(tensor, _fold(rows, op))) if here else None)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, op: str,
                              call: Call = Call()) -> Work:
        _same_type(output, tensor)
        _expect(tensor.numel(), output.numel() * self.size, "reduce_scatter_single's input")
        return self._reduce_scatter(output, _host(tensor), [output.numel()] * self.size, op,
                                    _row_elems(output), call)

    def reduce_scatter(self, output: torch.Tensor, inputs: Sequence[torch.Tensor], op: str,
                       call: Call = Call()) -> Work:
        """Of any sizes, as all ranks know them."""
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
            return self._post("reduce-scatter", capi.REDUCE_SCATTER, source, room, finish, counts=counts,
                              reduction=_SUMS[op], row_elems=row_elems, codec=codec)
        rows = torch.empty(self.size, output.numel(), dtype=output.dtype)
        return self._exchange("reduce-scatter", source, rows.view(-1), counts, [output.numel()] * self.size,
                              lambda: _put(output, _fold(rows, op)))

    # What is only moved

    def all_to_all_single(self, output: torch.Tensor, tensor: torch.Tensor, output_rows: Sequence[int] = (),
                          input_rows: Sequence[int] = (), call: Call = Call()) -> Work:
        """Rows of the first dimension, from and to each rank; none: as many to each. The communicator's codec
        is for rows of any number, as ranks do not know one another's."""
        _same_type(output, tensor)
        counts = self._split(tensor, input_rows, "input")
        received = self._split(output, output_rows, "output")
        codec = self._chosen(self._min_bytes if input_rows or output_rows else tensor.nbytes, call)
        room, finish = _room(output)
        return self._exchange("all-to-all", _host(tensor), room, counts, received, finish,
                              _row_elems(tensor), codec)

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
        return self._exchange("all-to-all", _join(inputs), room, [one.numel() for one in inputs],
                              [one.numel() for one in outputs], finish, codec=codec)

    def scatter(self, output: torch.Tensor, inputs: Sequence[torch.Tensor], root: int,
                call: Call = Call()) -> Work:
        self._plain("scatter", call)
        source, counts = torch.empty(0, dtype=output.dtype), [0] * self.size
        if self.rank == root:
            _expect(len(inputs), self.size, "scatter's list")
            _same_type(output, *inputs)
            source, counts = _join(inputs), [one.numel() for one in inputs]
        room, finish = _room(output)
        return self._exchange("scatter", source, room, counts, self._only(root, output.numel()), finish)

    def broadcast(self, tensor: torch.Tensor, root: int, call: Call = Call()) -> Work:
        self._plain("broadcast", call)
        room, finish = _room(tensor)
        if finish is not None and self.rank == root:
            room.copy_(_host(tensor))
        return self._post("broadcast", capi.BROADCAST, None, room, finish, root=root)

    def barrier(self, call: Call = Call()) -> Work:
        self._plain("barrier", call)
        args = capi.Args(op=capi.BARRIER, type=capi.BYTE)
        return Work(self._communicator.post(args, None, KIND + "barrier"), KIND + "barrier", None)

    def _plain(self, what: str, call: Call) -> None:
        self._use(call.timeout_sec)
        if call.codec not in (None, "plain"):
            raise ValueError("thinwire: %s takes no codec" % what)
