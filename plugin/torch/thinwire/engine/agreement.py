"""Decides whether Thinwire is used: by all ranks of a job, or by none.

A rank may be without Thinwire, and then runs none of this code. The others cannot tell such a rank from a
late one. So every rank with Thinwire speaks early: it writes to torch's store whether it is ready, and its
settings. With TW_FSDP or TW_DDP it speaks when the default group is made, otherwise when it first wants to
use Thinwire. Before its first collective a rank needs the verdict: yes or no, also in the store. The last
rank to speak writes it, or a rank that has waited too long. The first verdict holds for all. If a rank never
speaks the verdict is no. That rank is then in torch's own collective, where the others join it.

With TW_FSDP or TW_DDP the whole job agrees, within TW_JOIN_TIMEOUT. If the program itself calls Thinwire, the
ranks of each group agree, and wait for one another as long as torch would."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import threading
import typing
import weakref
from collections.abc import Callable

import torch.distributed as dist

from .. import capi, inside, policy, switches
from ..switches import log
from ..version import __version__
from .meeting import World, default_world, poll, ranks_text

# Variables of the library that must be the same on all ranks.
SAME = ("TW_COLL_CHECK", "TW_COLL_CHUNK", "TW_COLL_MODEL", "TW_COLL_SCRATCH", "TW_NET_ENCRYPT")
READY = ""
ASKED = "is Thinwire installed there, and TW_FSDP or TW_DDP set?"
# Longest wait, in seconds, for a rank's "here" key in the store. A rank writes it before most imports.
HERE_SEC = 10.0
PART_SEC = 10.0  # longest time that rank 0 waits until the others have read a verdict that ends the job


@dataclasses.dataclass
class State:
    """What a rank writes about itself to the store."""

    lacks: str  # why it cannot use Thinwire, or READY
    settings: dict[str, str]  # settings that must be equal on all ranks

    def text(self) -> str:
        return json.dumps([self.lacks, self.settings])


def _settings(asked: bool) -> dict[str, str]:
    found = {"Thinwire": __version__, "library": capi.LIBRARY,
             "TW_JOB_TOKEN": "set" if os.environ.get("TW_JOB_TOKEN") else "not set"}
    found |= {name: "y" if asked and switches.is_on(name) else "n" for name in switches.SWITCHES}
    found |= {name: os.environ.get(name) or "not set" for name in SAME}
    return found | (policy.from_environment().settings() if asked else {})


# A function that makes a rank ready. It may return more settings for State.settings.
Prepare = Callable[[], typing.Optional[dict[str, str]]]


def _ready(asked: bool, prepare: Prepare | None) -> State:
    """Make this rank ready. Returns its state; State.lacks tells the other ranks of an exception."""
    try:
        capi.check_ucx()
        settings = _settings(asked)
        return State(READY, settings | ((prepare() if prepare is not None else None) or {}))
    except Exception as error:
        return State(str(error) or type(error).__name__, {})


def why_not(states: dict[int, State], silent: list[int], waited: str) -> str:
    """Returns which ranks lack what, and which settings differ; "" if all ranks are ready with equal
    settings. silent: ranks that have not spoken. waited: how long they were waited for, as text."""
    found = ["nothing was heard from %s %s" % (ranks_text(silent), waited)] if silent else []
    for lack in sorted({state.lacks for state in states.values()} - {READY}):
        lacking = [rank for rank, state in states.items() if state.lacks == lack]
        found.append("%s: %s" % (ranks_text(lacking), lack))
    ready = {rank: state for rank, state in states.items() if state.lacks == READY}
    for name in dict.fromkeys(name for state in ready.values() for name in state.settings):
        values: dict[str, list[int]] = {}
        for rank, state in sorted(ready.items()):
            values.setdefault(state.settings.get(name, "not set"), []).append(rank)
        if len(values) > 1:
            found.append(", ".join("%s: %s=%s" % (ranks_text(ranks), name, value)
                                   for value, ranks in values.items()))
    return "; ".join(found)


def may_fall_back(why: str) -> str:
    """Returns `why`, the reason why operations have to be torch's own. RuntimeError if there is a reason (not
    "") and the job's variables forbid falling back to torch."""
    if why and switches.is_on("TW_NET_ENCRYPT"):
        raise RuntimeError("TW_NET_ENCRYPT=y, and what torch would fall back to is not sealed: " + why)
    if why and switches.requiring():
        raise RuntimeError("%s=%s, and nothing goes over Thinwire: %s"
                           % (switches.requiring(), os.environ[switches.requiring()], why))
    return why


class Life:
    """One rank's part in the agreements of a world: what it has said, and the verdicts that it knows."""

    def __init__(self, world: World, falls_back: bool = True):
        """falls_back: whether torch's own collectives are used if the verdict is no. If False, the caller
        raises an error with the reason."""
        self.rank, self._ranks, self._store = world.rank, world.ranks, world.store
        self._falls_back = falls_back
        self._lock = threading.Lock()
        self._asked: bool | None = None  # None until this rank has spoken
        self._lacks = READY  # what this rank itself lacks
        self._verdicts: dict[tuple[int, ...], str] = {}

    def speak(self, asked: bool, prepare: Prepare | None = None) -> State | None:
        """Write this rank's state to the store, and return it. Returns None if this rank has already spoken.
        asked: TW_FSDP or TW_DDP asks for Thinwire."""
        with self._lock:
            return self._speak(asked, prepare) if self._asked is None else None

    def _speak(self, asked: bool, prepare: Prepare | None) -> State:
        self._store.set(self._here_key(self.rank), "")
        state, self._asked = _ready(asked, prepare), asked
        self._lacks = state.lacks
        self._store.set(self._key(self.rank), state.text())
        if self._store.add("spoken", 1) == len(self._ranks):
            self._judge(self._ranks, "")
        return state

    @staticmethod
    def _key(rank: int) -> str:
        return "state/%d" % rank

    @staticmethod
    def _here_key(rank: int) -> str:
        return "here/%d" % rank

    @staticmethod
    def _verdict_key(members: tuple[int, ...]) -> str:
        return "verdict/" + hashlib.sha256(" ".join(map(str, members)).encode()).hexdigest()[:16]

    def _judge(self, members: tuple[int, ...], waited: str) -> None:
        """Write the verdict for these ranks, unless another rank has written it. waited: see why_not()."""
        present = [rank for rank in members if self._store.check([self._key(rank)])]
        texts = self._store.multi_get([self._key(rank) for rank in present])
        states = {rank: State(*json.loads(text)) for rank, text in zip(present, texts)}
        why = why_not(states, [rank for rank in members if rank not in states], waited)
        ready = [rank for rank in present if states[rank].lacks == READY]
        verdict = json.dumps([why, min(ready, default=self.rank)])
        self._store.compare_set(self._verdict_key(members), "", verdict)

    def _settle(self, members: tuple[int, ...], waited_sec: float, what: str) -> None:
        """Write a verdict at the end of the wait, unless there is one."""
        if not self._store.check([self._verdict_key(members)]):
            self._judge(members, "within %.0f s (%s)" % (waited_sec, what))

    def _remind(self, members: tuple[int, ...], limit_sec: float) -> None:
        """Warn of the ranks that have not spoken."""
        missing = [rank for rank in members if not self._store.check([self._key(rank)])]
        if missing:
            log.warning("rank %d waits for %s to use Thinwire, too, for %.0f s; does the program call it "
                        "there?", self.rank, ranks_text(missing), limit_sec)

    def _verdict(self, members: tuple[int, ...], limit_sec: float) -> str:
        key, states = self._verdict_key(members), [self._key(rank) for rank in members]

        def is_known() -> bool:
            return self._store.check([key]) or self._store.check(states)

        # Do not wait too long: ranks without Thinwire may already wait in torch's own collective.
        patience = min(policy.join_timeout(), limit_sec / 2)
        limit_sec = patience if self._asked else limit_sec
        if not poll(is_known, patience) and limit_sec > patience:
            self._remind(members, limit_sec)
            poll(is_known, limit_sec - patience)
        unknown = "TW_JOIN_TIMEOUT; " + ASKED if self._asked else "the group's timeout"
        self._settle(members, limit_sec, unknown)
        why, teller = json.loads(self._store.get(key))
        if why and teller == self.rank and self._falls_back:
            log.warning("nothing goes over Thinwire: %s", why)
        return why

    def _agree(self, ranks: tuple[int, ...], limit_sec: float) -> None:
        self.speak(asked=False)
        with self._lock:
            if ranks not in self._verdicts:
                members = self._ranks if self._asked else ranks
                self._verdicts[ranks] = self._verdict(members, limit_sec) if len(members) > 1 else ""

    def refused(self, ranks: tuple[int, ...], limit_sec: float) -> str:
        if ranks not in self._verdicts:
            self._agree(ranks, limit_sec)
        return may_fall_back(self._verdicts[ranks]) if self._falls_back else self._verdicts[ranks]

    def meet(self, is_ready: bool) -> None:
        """Wait for the verdict of a new default group. RuntimeError on all ranks if the verdict is no."""
        everybody, ready = [self._key(rank) for rank in self._ranks], self._verdict_key(self._ranks)
        patience = policy.join_timeout() if is_ready else HERE_SEC
        here = [self._here_key(rank) for rank in self._ranks]
        # With gloo all ranks were in init_process_group() together. With NCCL some may not even have started.
        limit_sec = min(HERE_SEC, patience) if "gloo" in dist.get_backend_config() else patience
        if poll(lambda: self._store.check(here), limit_sec):
            limit_sec = patience
            poll(lambda: self._store.check([ready]) or self._store.check(everybody), limit_sec)
        self._settle(self._ranks, limit_sec, ASKED)
        why = json.loads(self._store.get(ready))[0]
        with self._lock:
            self._verdicts[self._ranks] = why
        self._part(why)
        may_fall_back(why)

    def _part(self, why: str) -> None:
        """Note that this rank has read the verdict. If the verdict ends the job, rank 0 waits for the others
        first, because its process may be the store's server."""
        self._store.add("heard", 1)
        if why and self.rank == 0:
            poll(lambda: self._store.add("heard", 0) >= self._store.add("spoken", 0), PART_SEC)

    def reasons(self) -> list[str]:
        """Returns the reasons why operations of this world have not used Thinwire."""
        own = ["rank %d: %s" % (self.rank, self._lacks)] if self._lacks else []
        return [why for why in dict.fromkeys(self._verdicts.values()) if why] or own


class _Lives:
    """Keeps the Life of torch's present default group, which a program may destroy and make again. An old
    Life is dropped together with its store, because the next store may need the port."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # recursive: a group may be finalized in a thread that holds the lock
        self._n = 0
        self._group: weakref.ref[dist.ProcessGroup] | None = None
        self._life: Life | None = None
        self._past: list[str] = []  # reasons of earlier Lives

    def now(self) -> Life:
        """Returns the Life of the present default group. Makes it if the group is new."""
        group = inside.default_group()
        with self._lock:
            if self._life is None or self._group is None or self._group() is not group:
                self._forget(self._group)
                # Number the groups: several default groups, one after the other, may use one store.
                world = default_world().under("thinwire/%d/" % self._n)
                self._n, self._life = self._n + 1, Life(world)
                self._group = weakref.ref(group, self._forget)
            return self._life

    def _forget(self, group: weakref.ref[dist.ProcessGroup] | None) -> None:
        with self._lock:
            if self._life is not None and self._group is group:
                self._past += self._life.reasons()
                self._life = None

    def reasons(self) -> list[str]:
        with self._lock:
            return self._past + (self._life.reasons() if self._life is not None else [])


_lives = _Lives()


def speak(prepare: Prepare) -> str:
    """With TW_FSDP or TW_DDP: make this rank ready, and tell the ranks of a new default group. Returns what
    this rank lacks (READY: nothing). RuntimeError if the job requires Thinwire and the verdict is no."""
    life = _lives.now()
    state = life.speak(True, prepare)
    if switches.requiring():
        life.meet(state is None or state.lacks == READY)
    return state.lacks if state is not None else READY


def refused(ranks: tuple[int, ...], limit_sec: float) -> str:
    """Returns why operations between these ranks do not go over Thinwire; "" if they do. ranks: ascending.
    All of them must call this. limit_sec: how long torch itself would wait for a rank."""
    return _lives.now().refused(ranks, limit_sec)


def reasons() -> list[str]:
    """Returns the reasons why this rank's groups did not use Thinwire although they wanted to."""
    return _lives.reasons()
