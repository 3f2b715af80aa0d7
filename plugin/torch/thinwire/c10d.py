"""A backend of torch.distributed for CPUs: init_process_group("cpu:thinwire,cuda:nccl").

Large all-gathers, reduce-scatters and all-reduces go over Thinwire, all other operations to gloo. Nothing is
quantized until a program calls quantize() for a group, because a backend cannot know whether a gather is for
a checkpoint, which must be exact, or for a forward pass."""

from __future__ import annotations

import functools
import itertools
import typing
from collections.abc import Callable

import torch
import torch.distributed as dist

from . import capi, inside, policy
from .collectives import operations, shapes
from .engine import segments
from .engine.communicators import TYPES, Communicator, Use
from .reporting import report
from .switches import log

# Methods that are passed on to gloo, if this version of torch has them.
DELEGATED = (
    "allgather", "allgather_coalesced", "all_gather_single_coalesced", "allgather_into_tensor_coalesced",
    "allreduce_coalesced", "allreduce_sparse", "alltoall", "alltoall_base", "all_to_all_single", "barrier",
    "broadcast", "gather", "gather_single", "gather_into_tensor", "monitored_barrier", "recv",
    "recv_anysource", "reduce", "reduce_scatter", "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced", "scatter", "send", "abort", "set_timeout",
    *inside.BACKEND_SETTINGS,
)


class _Backend:
    """The backend of one process group. _class() adds torch's own class, which has rank(), as a base."""

    base: typing.Any
    gloo: typing.Any  # gloo's class
    rank: Callable[[], int]
    size: Callable[[], int]

    def __init__(self, options: typing.Any):
        self.base.__init__(self, options.group_rank, options.group_size)
        report.log_at_exit()
        self._gloo = self.gloo(options.store, options.group_rank, options.group_size, options.timeout)
        self._ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        self._id = options.group_id
        self.codec: capi.Codec | None = None
        self._min_bytes = policy.from_environment().min_bytes
        self._shapes = shapes.Shapes()
        self._steps = itertools.count()
        self._use = Use({})
        self._store = options.store
        self._same_rules: bool | None = None
        self._store.set(self._key(self.rank()), str(self._min_bytes))

    def name(self) -> str:
        return "thinwire"

    def getBackendName(self) -> str:
        return "thinwire"

    @property
    def options(self):
        return self._gloo.options

    @staticmethod
    def _key(rank: int) -> str:
        return "thinwire/%d" % rank

    def _ranks_agree(self) -> bool:
        """Returns whether all ranks have the same TW_MIN_BYTES. If not, all operations go to gloo: otherwise
        some ranks would choose Thinwire and others gloo for one operation."""
        if self._same_rules is None:
            keys = [self._key(rank) for rank in range(self.size())]
            limits = [one.decode() for one in self._store.multi_get(keys)]
            self._same_rules = len(set(limits)) == 1
            if not self._same_rules and self.rank() == 0:
                log.warning("all goes to gloo: TW_MIN_BYTES is %s on ranks 0 to %d",
                            ", ".join(limits), self.size() - 1)
        return self._same_rules

    def _communicator(self) -> Communicator | None:
        return self._use.communicator_of("c10d " + self._id, self._ranks,
                                         inside.backend_timeout_sec(self._gloo))

    def _fits(self, whole: torch.Tensor, shard: torch.Tensor, shards: int) -> bool:
        """Returns whether an operation goes over Thinwire; equal on all ranks. False for wrong arguments."""
        plain = all(one.layout == torch.strided and one.is_contiguous() and one.device.type == "cpu"
                    for one in (whole, shard))
        same = whole.dtype == shard.dtype and whole.numel() == shard.numel() * shards
        if not plain or not same or len(self._ranks) == 1 or not self._ranks_agree():
            return False
        return whole.nbytes >= self._min_bytes and self._communicator() is not None

    def _shape(self, tensor: torch.Tensor, n_elems: int,
               make: Callable[[list[segments.Piece]], segments.Table]) -> shapes.Shape:
        pieces = [segments.Piece(n_elems, "")]
        key = (tensor.dtype, n_elems, make.__name__)
        return self._shapes.get(key, lambda: shapes.Shape.of(make(pieces), pieces))

    def _post(self, operation: shapes.Operation, result: list[torch.Tensor]) -> operations.Work:
        operation.codec, operation.step = self.codec, next(self._steps)
        communicator = self._communicator()
        assert communicator is not None, "_fits() has said that there is one"
        return operations.Work(operations.post([operation], communicator), operation.kind, result)

    def _rank_major(self, pieces: list[segments.Piece], itemsize: int) -> segments.Table:
        return segments.RankMajor(len(self._ranks), self.rank(), pieces, itemsize)

    def _all_gather(self, output: torch.Tensor, input: torch.Tensor, *options: typing.Any) -> dist.Work:
        if not self._fits(output, input, len(self._ranks)):
            return self._to_gloo(inside.ALL_GATHER, output, input, *options)
        # Thinwire gathers tensors of a type that it does not know as bytes.
        dtype = output.dtype if output.dtype in TYPES else torch.uint8
        whole, shard = output.view(-1).view(dtype), input.view(-1).view(dtype)
        own = whole.narrow(0, self.rank() * shard.numel(), shard.numel())
        if own.data_ptr() != shard.data_ptr():
            own.copy_(shard)

        def gather(pieces: list[segments.Piece]) -> segments.Table:
            return self._rank_major(pieces, whole.itemsize)

        shape = self._shape(whole, shard.numel(), gather)
        return self._post(shapes.Operation(
            "c10d all-gather", capi.ALLGATHER, dtype, shape, lambda table: table.gather(whole.data_ptr()),
            None, (output, input)), [output])

    def _reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, *options: typing.Any) -> dist.Work:
        reduction = operations.reduction(options[0].reduceOp) if options else (capi.SUM, 1.0)
        floats = input.is_floating_point() and input.dtype in TYPES
        if reduction is None or not floats or not self._fits(input, output, len(self._ranks)):
            return self._to_gloo(inside.REDUCE_SCATTER, output, input, *options)

        def scatter(pieces: list[segments.Piece]) -> segments.Table:
            return self._rank_major(pieces, input.itemsize)

        shape = self._shape(input, output.numel(), scatter)
        return self._post(shapes.Operation(
            "c10d reduce-scatter", capi.REDUCE_SCATTER, input.dtype, shape,
            lambda table: table.scatter(input.data_ptr(), output.data_ptr()), None, (output, input),
            reduction), [output])

    def allreduce(self, tensors: list[torch.Tensor], *options: typing.Any) -> dist.Work:
        tensor = tensors[0]
        reduction = operations.reduction(options[0].reduceOp) if options else (capi.SUM, 1.0)
        floats = tensor.is_floating_point() and tensor.dtype in TYPES
        if len(tensors) > 1 or reduction is None or not floats or not self._fits(tensor, tensor, 1):
            return self._gloo.allreduce(tensors, *options)

        def reduce(pieces: list[segments.Piece]) -> segments.Table:
            return segments.Plain(pieces, tensor.itemsize)

        shape = self._shape(tensor, tensor.numel(), reduce)
        return self._post(shapes.Operation(
            "c10d all-reduce", capi.ALLREDUCE, tensor.dtype, shape,
            lambda table: table.reduce(tensor.data_ptr()), None, (tensor,), reduction), tensors)

    def shutdown(self) -> None:
        """End the backend. torch calls this when it destroys the group."""
        _backends.pop(self._id, None)
        self._gloo.shutdown()

    def _to_gloo(self, names: tuple[str, ...], *args: object) -> dist.Work:
        name = next(name for name in names if hasattr(self._gloo, name))
        return getattr(self._gloo, name)(*args)


_said: set[str] = set()


def _delegate(name: str) -> Callable[..., object]:
    def call(self, *args, **kwargs):
        if name not in _said:
            _said.add(name)
            log.info("%s goes to gloo", name)
        return getattr(self._gloo, name)(*args, **kwargs)

    call.__name__ = name
    return call


@functools.cache
def _class() -> typing.Any:
    """Make the backend's class from _Backend and the base class that this version of torch has."""
    inside.check_backend()
    base, gloo = inside.backend_classes()
    ours = {"base": base, "gloo": gloo} | dict.fromkeys(inside.ALL_GATHER, _Backend._all_gather)
    ours |= dict.fromkeys(inside.REDUCE_SCATTER, _Backend._reduce_scatter)
    delegates = {name: _delegate(name) for name in DELEGATED if hasattr(gloo, name)}
    return type("ThinwireBackend", (_Backend, base), ours | delegates)


# {name of a group: its backend}, until the group is destroyed. torch keeps only a backend's C++ object
# alive, not its Python object.
_backends: dict[str, typing.Any] = {}


def create(options: typing.Any, _backend_options: object) -> object:
    """Make the backend of a new process group. torch calls this for groups of the backend "thinwire"."""
    backend = _backends[options.group_id] = _class()(options)
    return backend


def quantize(group: dist.ProcessGroup, codec: str | None) -> None:
    """Set the codec of all that this group sends over the backend "thinwire" from now on: "int8",
    "int4:hadamard". None or "plain": no codec. All ranks of the group must call this between the same two
    operations. Do not quantize a group that also gathers checkpoints."""
    backend = _backends.get(group.group_name)
    if backend is None:
        raise ValueError("the group %r is not of the backend thinwire" % group.group_name)
    backend.codec = capi.parse_codec(codec)
