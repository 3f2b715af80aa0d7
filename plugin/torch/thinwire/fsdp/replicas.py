"""Replicas: each node keeps all weights in host memory. A gather sends only changes since the last gather.

The C library's keeper (hpz/keeper.h) does the work. This is its interface to FSDP2's groups of parameters."""

from __future__ import annotations

import collections
import contextlib
import ctypes as C
import dataclasses
import threading
import typing
import weakref
from collections.abc import Sequence

import torch

from .. import capi, policy
from ..collectives import staging
from ..engine import segments
from ..engine.communicators import TYPES, Communicator, UnderWay
from ..telemetry import spans
from ..telemetry.tally import book

KIND = "all-gather"
STATE_BYTES = 1  # bytes of the codec's state for each number
UNEVEN = "nodes have unequal numbers of ranks"
NO_ROOM = "beyond TW_REPLICA_MEM"
TOO_FAST = "on this link (TW_COLL_MODEL) copies to the host and coding take longer than they save"
# Seconds per byte to copy over the GPU's bus, to encode and to decode. docs/gpu_step.py has their source.
_BUS_SEC, _ENCODE_SEC, _DECODE_SEC = 1 / 32e9, 1 / 1.38e9, 1 / 1.85e9
_SAVED = 1 - 3 / 32  # saved share: a step sends one change of 3 bits a number, not two gathers of 16
HALVES = "lower halves of fp32, which are noise"


@dataclasses.dataclass(frozen=True)
class Part:
    """Consecutive numbers of one type in a rank's run."""

    offset: int  # in bytes
    n_elems: int
    dtype: torch.dtype
    unquantized: str = ""  # why its changes must not be rounded, or ""

    def why_plain(self, rounds: bool) -> str:
        """Returns why not all of this part is coded, or "". rounds: whether the job rounds changes."""
        return self.unquantized or ("" if rounds or self.dtype != torch.float32 else HALVES)


class Gather(UnderWay):
    """A posted gather through replicas. keep: the result's tensor, which stays alive until the end."""

    def __init__(self, unit: Unit, keep: torch.Tensor):
        super().__init__()
        self._unit, self._keep = unit, keep
        self._elapsed = 0.0
        self.span = spans.begun(spans.name_of(KIND, unit.name))

    def _look(self, waits: bool) -> None:
        look = capi.lib().tw_hpz_kept_wait if waits else capi.lib().tw_hpz_kept_test
        gathered = capi.Gathered()
        status = look(self._unit.pointer, C.byref(gathered))
        if status != capi.IN_PROGRESS:
            self._end(status, gathered)

    def _end(self, status: int, gathered: capi.Gathered) -> None:
        self._done, self._keep = True, None
        self._elapsed = gathered.elapsed_sec
        try:
            self._unit.communicator.engine.check(status, "gather of %s" % self._unit.name)
        except capi.ThinwireError as error:
            self._error = error
        rounded = [self._unit.codec] if gathered.rounded_bytes else []
        book.add(KIND, sent_bytes=gathered.inter_node_bytes, rounded=collections.Counter(rounded))
        self._unit.ended(self)

    def take_elapsed(self) -> float:
        seconds, self._elapsed = self._elapsed, 0.0
        return seconds


class Unit:
    """The replicas of a group of parameters, for one shape of its shards. Their memory is freed with
    this object."""

    def __init__(self, keeper: Keeper, pointer: C.c_void_p, params: capi.KeptParams, memory_bytes: int,
                 reasons: collections.Counter[str]):
        """params: the library's parameters of the replicas. memory_bytes: their host memory. reasons:
        {reason: number of parts that are not coded for it}."""
        self.communicator, self.pointer, self.name = keeper.communicator, pointer, params.name.decode()
        # The name of the codec that rounds changes; "" if changes are not rounded.
        self.codec = str(params.codec.contents) if params.codec else ""
        self._reasons, self.plain_bytes = reasons, _plain_bytes(keeper.communicator, params.run_bytes)
        self._last: Gather | None = None  # the gather under way
        keeper.units.add(self)
        self._free = weakref.finalize(self, _free, pointer, memory_bytes)
        self._free.atexit = False

    def ended(self, gather: Gather) -> None:
        """Note that `gather` has ended. The gather calls this."""
        if self._last is gather:
            self._last = None

    def post(self, whole: torch.Tensor, lossless: bool) -> Gather:
        """Post a gather. whole: the result, with this rank's run already in its place; if changes are rounded
        the run gets the rounded values, as on the other ranks. lossless: round nothing this time."""
        if (last := self._last) is not None:
            last.wait()  # its caller may have dropped it without waiting
        self.communicator.engine.check_usable()
        gather = Gather(self, whole)
        with spans.shown(gather.span.name):
            status = capi.lib().tw_hpz_kept_gather_post(self.pointer, whole.data_ptr(), int(lossless))
        self.communicator.engine.check(status, "gather of %s" % self.name)
        self._last = gather
        book.add(KIND, calls=1, plain_bytes=self.plain_bytes, unquantized=self._reasons)
        return gather

    def free(self) -> None:
        if (last := self._last) is not None:
            with contextlib.suppress(capi.ThinwireError):
                last.wait()
        self._free()


def cost_more(ranks: Communicator, run_bytes: int) -> bool:
    """Returns whether replicas of GPU memory would take longer in a step than they save. A step has two
    gathers. Both copy all weights from the host to the GPU; the first also encodes and decodes the changes.
    The ranks of a node share its link and the decoding."""
    whole, local = run_bytes * ranks.world, ranks.world / ranks.n_nodes
    others, link_byte_sec = 1 - 1 / ranks.n_nodes, capi.lib().tw_coll_link_byte_sec(ranks.pointer)
    copies = (run_bytes + 2 * whole) * _BUS_SEC
    coding = run_bytes * _ENCODE_SEC + whole * others / local * _DECODE_SEC
    return copies + coding > 2 * whole * others * _SAVED * link_byte_sec


def gather_staged(unit: Unit, whole: torch.Tensor, own: torch.Tensor) -> staging.Staged:
    """Post a gather of GPU memory through replicas, ordered after earlier work of the current stream. own:
    this rank's run. whole: the result."""
    whole, own = (one.view(-1).view(torch.uint8) for one in (whole, own))
    room, first = staging.device.pinned(whole.numel(), torch.uint8), unit.communicator.rank * own.numel()
    unquantized = policy.is_unquantized()
    return staging.post("replicas", lambda: unit.post(room, unquantized),
                        (own, room[first : first + own.numel()]), (room, whole),
                        spans.name_of(KIND, unit.name))


def _plain_bytes(communicator: Communicator, run_bytes: int) -> int:
    """Returns the bytes that this rank would send to other nodes in a plain gather with runs of this size."""
    table = segments.RankMajor(communicator.world, communicator.rank, [segments.Piece(run_bytes, "")], 1)
    table.gather(C.addressof(table.segments))  # planning needs some address, and reads nothing there
    return communicator.planned_bytes(table.args(op=capi.ALLGATHER, type=capi.BYTE))


class _Memory:
    """Counts the bytes of host memory of all units of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.taken = 0

    def add(self, n_bytes: int) -> None:
        with self.lock:
            self.taken += n_bytes


memory = _Memory()


def _free(pointer: C.c_void_p, memory_bytes: int) -> None:
    capi.lib().tw_hpz_kept_destroy(pointer)
    memory.add(-memory_bytes)


class Keeper:
    """Makes and closes the replicas on one communicator; both are collective over its ranks."""

    def __init__(self, communicator: Communicator):
        self.communicator, self.pointer = communicator, C.c_void_p()
        self.units: weakref.WeakSet[Unit] = weakref.WeakSet()
        self._names: collections.Counter[str] = collections.Counter()
        status = capi.lib().tw_hpz_keeper_create(communicator.pointer, C.byref(self.pointer))
        communicator.engine.check(status, "replicas")

    def unit(self, name: str, run_bytes: int, parts: Sequence[Part], limit: int,
             rounds: capi.Codec | None = None, staged: bool = False) -> tuple[Unit | None, str]:
        """Make the replicas of a group of parameters. Collective. Returns (replicas, ""), or (None, reason)
        if any rank has no room for them or would lose time. run_bytes: bytes of a rank's run. limit: most
        bytes for all units of this process; 0 for no limit. rounds: the codec that rounds changes; None if
        changes are lossless. staged: the gathers are of GPU memory."""
        self._names[name] += 1
        if self._names[name] > 1:  # another model, or the same group in another shape, has this name
            name = "%s (%d)" % (name, self._names[name])
        table = (capi.Part * len(parts))(*[
            capi.Part(one.offset, one.n_elems, TYPES[one.dtype],
                      int(rounds is not None and not one.unquantized))
            for one in parts])
        codec = C.pointer(rounds) if rounds is not None else None
        params = capi.KeptParams(name.encode(), run_bytes, table, len(parts), 1, codec)
        library, pointer, refusing = capi.lib(), C.c_void_p(), C.c_int(-1)
        n_bytes = library.tw_hpz_kept_memory_bytes(self.pointer, C.byref(params))
        dear, room = cost_more(self.communicator, run_bytes), not limit or memory.taken + n_bytes <= limit
        params.has_room = int(room and not (dear and staged))
        status = library.tw_hpz_kept_create(self.pointer, C.byref(params), C.byref(pointer),
                                            C.byref(refusing))
        self.communicator.engine.check(status, "replicas of %s" % name)
        if refusing.value >= 0:
            return None, TOO_FAST if dear and room else NO_ROOM
        memory.add(n_bytes)
        reasons = collections.Counter(filter(None, (one.why_plain(rounds is not None) for one in parts)))
        return Unit(self, pointer, params, n_bytes, reasons), ""

    def keep_time(self, timeout_sec: float) -> None:
        """Set the timeout of gathers, including those under way."""
        capi.lib().tw_hpz_keeper_timeout_set(self.pointer, timeout_sec)

    def sent_bytes(self) -> int:
        return capi.lib().tw_hpz_keeper_inter_node_bytes(self.pointer)

    def close(self) -> None:
        for unit in list(self.units):
            unit.free()
        capi.lib().tw_hpz_keeper_destroy(self.pointer)


def keeper_of(communicator: Communicator) -> Keeper | None:
    """Returns a communicator's keeper, or None because of UNEVEN. The first call is collective."""
    with communicator.keeping:
        if communicator.keeper is None and not communicator.is_uneven:
            try:
                communicator.keeper = Keeper(communicator)
            except capi.ThinwireError as error:
                if error.status != capi.UNSUPPORTED:
                    raise
                communicator.is_uneven = True
        return typing.cast("Keeper | None", communicator.keeper)
