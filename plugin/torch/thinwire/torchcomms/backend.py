"""torchcomms' backend "thinwire", for the versions of torchcomms that abi.py accepts."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
import torchcomms as api

from .. import capi, switches
from ..engine.meeting import World
from ..version import __version__
from . import comm
from .abi import AT_EACH_CALL, COLLECTIVES, NAME

HINTS = ("codec",)
# Launchers' variables with rank and size, in the order in which torchcomms looks for them.
LAUNCHERS = (("TORCHCOMM_RANK", "TORCHCOMM_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
             ("PMI_RANK", "PMI_SIZE"), ("RANK", "WORLD_SIZE"))


class _Asked(threading.local):
    """Hints and timeout of the call that runs in this thread. torchcomms does not pass them to backends in
    Python, so wrappers put them here. None if C++ code calls, and not a wrapper."""

    call: comm.Call | None = None


_asked = _Asked()
_made: collections.Counter[str] = collections.Counter()  # {name and ranks: number of communicators made}


def codec_of(hints: Mapping[str, str] | None) -> str | None:
    """Returns the hint `codec`, or None. ValueError for an unknown hint."""
    unknown = sorted(set(hints or ()) - set(HINTS))
    if unknown:
        raise ValueError("thinwire does not know the hint %r; it knows %s"
                         % (unknown[0], ", ".join(map(repr, HINTS))))
    return (hints or {}).get("codec")


def _number(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise ValueError("thinwire: %s=%s is no number" % (name, os.environ[name])) from None


def rank_and_size() -> tuple[int, int]:
    for names in LAUNCHERS:
        if all(name in os.environ for name in names):
            rank, size = map(_number, names)
            if not 0 <= rank < size:
                raise ValueError("thinwire: %s=%d, %s=%d" % (names[0], rank, names[1], size))
            return rank, size
    raise RuntimeError("thinwire: no rank: none of %s is set"
                       % ", ".join(" and ".join(names) for names in LAUNCHERS))


def _store(rank: int, size: int, timeout: datetime.timedelta) -> dist.Store:
    """Returns the store at MASTER_ADDR and MASTER_PORT, as torch.distributed does (perhaps torchrun's)."""
    if size == 1:
        return dist.HashStore()
    store, _, _ = next(dist.rendezvous("env://", rank, size, timeout=timeout))
    return store


def _op(reduction: api.ReduceOp) -> str:
    return reduction.type.name


class Backend(api.TorchCommBackend):
    """The backend of one communicator. torchcomms calls its methods."""

    def __init__(self) -> None:
        super().__init__()
        self._comm: comm.Comm | None = None
        self._world: World | None = None
        self._name, self._aborted = "", False

    def init(self, device: torch.device, name: str, options: api.CommOptions) -> None:
        switches.set_up_logging()
        comm.check_timeout(options.timeout.total_seconds())
        rank, size = rank_and_size()
        self._hints = dict(options.hints)
        store = options.store if options.store is not None else _store(rank, size, options.timeout)
        self._begin(World(rank, tuple(range(size)), store), range(size), device, name, options)

    def _begin(self, world: World, ranks: Sequence[int], device: torch.device, name: str,
               options: api.CommOptions) -> None:
        # A program may use a name again after closing its communicator, so the key counts communicators.
        key = "torchcomms/%s/%s/" % (name, hashlib.sha256(str(list(ranks)).encode()).hexdigest()[:16])
        _made[key] += 1
        self._world, self._rank, self._ranks = world, list(ranks).index(world.rank), list(ranks)
        self._device, self._name = device, name
        self._comm = comm.Comm(world.under(key + str(_made[key])), ranks, name,
                                   lambda: codec_of(self._hints), options.timeout.total_seconds())

    def finalize(self) -> None:
        if self._comm is not None:
            self._comm.close()
            self._comm = self._world = None

    def split(self, ranks: Sequence[int], name: str, options: api.CommOptions) -> Backend | None:
        if not ranks:
            return None
        if self._world is None:
            raise RuntimeError("thinwire: communicator %s is closed" % self._name)
        if self.get_rank() not in ranks:
            raise RuntimeError("thinwire: rank %d is not among the ranks %s that it splits off"
                               % (self.get_rank(), list(ranks)))
        members = [self._ranks[one] for one in ranks]
        found = Backend()
        world = dataclasses.replace(self._world, ranks=tuple(sorted(members)), launched=False)
        found._hints = dict(options.hints or self._hints)
        found._begin(world, members, self._device, name, options)
        return found

    @property
    def _live(self) -> comm.Comm:
        if self._comm is None:
            raise RuntimeError("thinwire: communicator %s is closed" % self._name)
        return self._comm

    def get_rank(self) -> int:
        return self._rank

    def get_size(self) -> int:
        return len(self._ranks)

    def get_backend_name(self) -> str:
        return NAME

    def get_comm_name(self) -> str:
        return self._name

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._live.set_timeout(timeout.total_seconds())

    # torchcomms' own versions of the next methods do not call a Python backend: register() replaces them.

    def set_hints(self, hints: dict[str, str]) -> None:
        """Set the communicator's hints. All ranks must call this between the same two operations."""
        self._live.codec = capi.parse_codec(codec_of(hints))
        self._hints = dict(hints)  # split() passes them on to new communicators

    def abort(self) -> None:
        if self._comm is not None:
            self._aborted = True
            self._comm.abort()

    def is_aborted(self) -> bool:
        return self._aborted

    def is_abort_supported(self) -> bool:
        return True

    def get_backend_version(self) -> str:
        return __version__

    def get_device(self) -> torch.device:
        return self._device

    # Collectives

    @staticmethod
    def _ends(work: comm.Work, async_op: bool) -> comm.Work | None:
        """Returns the work if the caller wants to wait later; otherwise waits now. Waits for C++ callers
        (process groups) in any case: they may drop a work without holding the GIL, which is not safe."""
        if async_op and _asked.call is not None:
            return work
        work.wait()
        return None

    @property
    def _call(self) -> comm.Call:
        return _asked.call or comm.Call()

    def all_gather_single(self, output, input, async_op):
        return self._ends(self._live.all_gather_single(output, input, self._call), async_op)

    def all_gather(self, tensor_list, tensor, async_op):
        return self._ends(self._live.all_gather(tensor_list, tensor, self._call), async_op)

    all_gather_v = all_gather

    def all_reduce(self, tensor, op, async_op):
        return self._ends(self._live.all_reduce(tensor, _op(op), self._call), async_op)

    def reduce(self, tensor, root, op, async_op):
        return self._ends(self._live.reduce(tensor, root, _op(op), self._call), async_op)

    def reduce_scatter_single(self, output, input, op, async_op):
        return self._ends(self._live.reduce_scatter_single(output, input, _op(op), self._call), async_op)

    def reduce_scatter(self, output, input_list, op, async_op):
        return self._ends(self._live.reduce_scatter(output, input_list, _op(op), self._call), async_op)

    reduce_scatter_v = reduce_scatter

    def all_to_all_single(self, output, input, async_op):
        return self._ends(self._live.all_to_all_single(output, input, call=self._call), async_op)

    def all_to_all_v_single(self, output, input, output_split_sizes, input_split_sizes, async_op):
        work = self._live.all_to_all_single(output, input, output_split_sizes, input_split_sizes, self._call)
        return self._ends(work, async_op)

    def all_to_all(self, output_tensor_list, input_tensor_list, async_op):
        return self._ends(self._live.all_to_all(output_tensor_list, input_tensor_list, self._call), async_op)

    def broadcast(self, tensor, root, async_op):
        return self._ends(self._live.broadcast(tensor, root, self._call), async_op)

    def scatter(self, output_tensor, input_tensor_list, root, async_op):
        return self._ends(self._live.scatter(output_tensor, input_tensor_list, root, self._call), async_op)

    def gather(self, output_tensor_list, input_tensor, root, async_op):
        return self._ends(self._live.gather(output_tensor_list, input_tensor, root, self._call), async_op)

    def barrier(self, async_op):
        return self._ends(self._live.barrier(self._call), async_op)

    def send(self, tensor, dst, async_op):
        raise NotImplementedError("thinwire has no send: it has collectives; make a second communicator, "
                                  "of another backend, for it")

    def recv(self, tensor, src, async_op):
        raise NotImplementedError("thinwire has no recv: it has collectives; make a second communicator, "
                                  "of another backend, for it")


@contextlib.contextmanager
def _asking(hints: dict[str, str] | None, timeout: datetime.timedelta | None) -> Iterator[None]:
    before = _asked.call
    _asked.call = comm.Call(codec_of(hints), timeout.total_seconds() if timeout is not None else None)
    try:
        yield
    finally:
        _asked.call = before


def _with_hints(original: Callable, names: tuple[str, ...]) -> Callable:
    @functools.wraps(original, updated=())
    def call(self, *args, **kwargs):
        if self.get_backend() != NAME:
            return original(self, *args, **kwargs)
        given = dict(zip(names, args)) | kwargs
        with _asking(given.get("hints"), given.get("timeout")):
            return original(self, *args, **kwargs)

    return call


def _by_backend(original: Callable, name: str) -> Callable:
    @functools.wraps(original, updated=())
    def call(self, *args, **kwargs):
        if self.get_backend() != NAME:
            return original(self, *args, **kwargs)
        return getattr(self.get_backend_impl(), name)(*args, **kwargs)

    return call


_registered = False


def register() -> None:
    """Register the backend, once, and wrap the methods whose arguments torchcomms does not pass to it."""
    global _registered
    if _registered:
        return
    for name, own in COLLECTIVES.items():
        setattr(api.TorchComm, name, _with_hints(getattr(api.TorchComm, name), (*own, *AT_EACH_CALL)))
    for name in ("abort", "get_backend_version", "get_device", "is_abort_supported", "is_aborted",
                 "set_hints"):
        setattr(api.TorchComm, name, _by_backend(getattr(api.TorchComm, name), name))
    api.register_backend(NAME, Backend)
    _registered = True
