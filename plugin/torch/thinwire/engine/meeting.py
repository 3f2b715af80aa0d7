"""How the ranks of a transport find each other: the first rank writes its address, a port and a secret to
torch's store, and the others connect."""

from __future__ import annotations

import contextlib
import ctypes as C
import dataclasses
import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable

import torch.distributed as dist

from .. import capi, inside, policy
from ..switches import log
from . import addresses

POLL_SEC = (0.005, 0.1)  # first and longest pause between two looks into the store; pauses double


def poll(is_there: Callable[[], bool], limit_sec: float) -> bool:
    """Poll until is_there() returns True. Returns False if it does not within limit_sec. Unlike store.wait(),
    this lets other threads use the store, and lets Python handle signals."""
    until, pause = time.monotonic() + limit_sec, POLL_SEC[0]
    while not is_there():
        if time.monotonic() >= until:
            return False
        time.sleep(min(pause, max(0.0, until - time.monotonic())))
        pause = min(2 * pause, POLL_SEC[1])
    return True


def ranks_text(ranks: list[int]) -> str:
    """Returns ranks as a text: "rank 3" or "ranks 1-3, 7"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    items = [str(run[0]) if len(run) == 1 else "%d-%d" % (run[0], run[-1]) for run in runs]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(items)


@dataclasses.dataclass(frozen=True)
class World:
    """Ranks that share a store. rank: this process's. ranks: all of them, ascending."""

    rank: int
    ranks: tuple[int, ...]
    store: dist.Store
    launched: bool = True  # these are all ranks of the launcher, so LOCAL_RANK and such are right for them

    def under(self, prefix: str) -> World:
        """Returns a World of the same ranks whose keys in the store have this prefix."""
        return dataclasses.replace(self, store=dist.PrefixStore(prefix, self.store))


def default_world() -> World:
    """Returns the World of torch's default group."""
    group = inside.default_group()
    return World(group.rank(), tuple(range(group.size())), inside.default_store())


class _FixedPort:
    """Gives TW_RENDEZVOUS_PORT to one meeting of this process at a time. Others listen on any free port."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: Meeting | None = None

    def take(self, meeting: Meeting) -> int:
        """Returns the meeting's port; 0 if none is set or if another meeting has it."""
        port = int(os.environ.get("TW_RENDEZVOUS_PORT") or 0)
        with self._lock:
            self._holder = self._holder or (meeting if port else None)
            if self._holder is meeting:
                return port
        if port:
            log.info("TW_RENDEZVOUS_PORT=%d is another communicator's of this process: this one meets at any "
                     "port", port)
        return 0

    def leave(self, meeting: Meeting) -> None:
        with self._lock:
            self._holder = None if self._holder is meeting else self._holder


_fixed_port = _FixedPort()


class Meeting:
    """One meeting of ranks (ascending) of a world. Every attempt to join a transport needs a new one."""

    def __init__(self, world: World, ranks: tuple[int, ...], timeout_sec: float):
        name = hashlib.sha256(" ".join(map(str, ranks)).encode()).hexdigest()[:16]
        self._world, self._store = world, world.under("thinwire/%s/" % name).store
        self._ranks, self._place, self._timeout_sec = ranks, ranks.index(world.rank), timeout_sec

    def _await(self, places: list[int]) -> None:
        """Wait until the ranks at these places in self._ranks have written to the store. A rank may be as
        late for its first collective as torch's timeout allows. ThinwireError if it is later."""
        keys = [str(place) for place in places]
        patience = min(policy.join_timeout(), self._timeout_sec)
        if poll(lambda: self._store.check(keys), patience):
            return
        missing = [self._ranks[place] for place in places if not self._store.check([str(place)])]
        log.warning("rank %d has waited %.0f s for %s to come to the first collective of its group",
                    self._world.rank, patience, ranks_text(missing))
        if not poll(lambda: self._store.check(keys), self._timeout_sec - patience):
            raise capi.ThinwireError(
                "join", capi.TIMEOUT, missing[0],
                "nothing came from %s within %.0f s" % (ranks_text(missing), self._timeout_sec))

    def _invite(self, fixed_port: int) -> tuple[str, int, str, int]:
        """Do the first rank's part: wait for the others, listen, and write where. Returns (address, port,
        secret, listening socket; -1 for a fixed port, on which the library listens)."""
        others = list(range(1, len(self._ranks)))
        self._await(others)
        keys = [str(place) for place in others]
        told = [json.loads(one) for one in self._store.multi_get(keys)] if others else []
        alone = {place for place, _ in told} <= {addresses.place()}
        own = addresses.own(self._world.store)
        address = addresses.LOOPBACK if alone else addresses.reachable(own, [one for _, one in told])
        port, listener = C.c_int(fixed_port), -1
        if not fixed_port:
            listener = capi.lib().tw_transport_listen(address.encode(), C.byref(port))
            if listener < 0:
                reason = "rank %d cannot listen on %s" % (self._world.rank, address)
                # Tell the others, so that they fail now and not after a timeout.
                self._store.set("0", json.dumps({"error": reason}))
                raise OSError(reason)
        secret = secrets.token_hex(16)
        self._store.set("0", json.dumps([address, port.value, secret]))
        return address, port.value, secret, listener

    def _come(self) -> tuple[str, int, str, int]:
        """Do another rank's part. Returns what the first rank has written: (address, port, secret, -1)."""
        self._store.set(str(self._place), json.dumps([addresses.place(), addresses.own(self._world.store)]))
        self._await([0])
        told = json.loads(self._store.get("0"))
        if isinstance(told, dict):
            raise OSError(told["error"])
        address, port, secret = told
        return address, port, secret, -1

    def job(self) -> tuple[capi.Job, int]:
        """Meet. Returns the library's description of the job, and the first rank's listening socket (-1 on
        other ranks), which the caller owns. Ranks are torch's, because there may be no launcher. Local ranks
        are the environment's, if all ranks of the launcher meet."""
        environment, world = os.environ, len(self._ranks)
        everybody = self._world.launched and self._ranks == self._world.ranks
        fixed_port = _fixed_port.take(self) if everybody and self._place == 0 else 0
        address, port, secret, listener = self._invite(fixed_port) if self._place == 0 else self._come()
        launched = everybody and environment.get("RANK") == str(self._place)
        local = [int(environment.get(name, -1)) if launched else -1
                 for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")]
        token = environment.get("TW_JOB_TOKEN") or secret
        log.debug("%s meet at %s, port %d", ranks_text(list(self._ranks)), address, port)
        job = capi.Job(self._place, world, local[0], local[1], address.encode(), port, token.encode(),
                       b"torch")
        return job, listener

    def leave(self) -> None:
        """Let other meetings have the fixed port. Call this when nothing listens on it any more."""
        _fixed_port.leave(self)

    def forget(self) -> None:
        """After all ranks have met, delete this meeting's keys and drop the store. A store that stays alive
        keeps its port, which the program's next store may need."""
        if self._place == 0:
            for place in range(len(self._ranks)):
                with contextlib.suppress(RuntimeError):
                    self._store.delete_key(str(place))
        del self._world, self._store
