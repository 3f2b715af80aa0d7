"""What Thinwire did in this process: calls, bytes, time, and what was not quantized and why."""

from __future__ import annotations

import atexit
import collections
import contextlib
import copy
import dataclasses
import logging
import os
import textwrap
import threading
from collections.abc import Sequence

import torch.distributed as dist

from . import agreement, autoload
from . import engine as engines

log = logging.getLogger("thinwire")


@dataclasses.dataclass
class Loss:
    """Of samples of what was sent with loss, before sums."""

    looks: int = 0
    squares: float = 0.0  # of the values
    errors: float = 0.0  # squares of what was added to them
    n_values: int = 0  # that were not 0
    n_zeros: int = 0  # of those, that became 0

    @property
    def error(self) -> float:
        """The relative error: of the 2-norms."""
        return (self.errors / self.squares) ** 0.5 if self.squares else 0.0

    @property
    def zeros(self) -> float:
        """The share of values that became 0."""
        return self.n_zeros / self.n_values if self.n_values else 0.0

    def add(self, squares: float, errors: float, n_values: int, n_zeros: int, looks: int = 1) -> None:
        self.looks += looks
        self.squares += squares
        self.errors += errors
        self.n_values += n_values
        self.n_zeros += n_zeros

    def __str__(self) -> str:
        return "relative error %.3f, %.0f %% became 0" % (self.error, 100 * self.zeros)


@dataclasses.dataclass
class Tally:
    """Of one kind of operation. Bytes are those that this rank sends to other nodes, scales and headers
    included."""

    calls: int = 0
    plain_bytes: int = 0  # had nothing been quantized
    sent_bytes: int = 0
    bound_bytes: int = 0  # of sent_bytes: what lossless messages could take at most
    took_sec: float = 0.0  # from each post to its end, summed up
    wait_sec: float = 0.0  # of that, the job waited so long; futures are waited for unseen
    # {reason: tensors}
    unquantized: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    # {reason: gathers without replicas}
    unkept: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    # {codec: gathers with loss of changes}
    rounded: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    # {(group of parameters, parameter): what is lost}
    losses: dict[tuple[str, str], Loss] = dataclasses.field(default_factory=dict)
    samples: int = 0  # of what lossless messages would have been
    sampled_bytes: int = 0  # plain
    sampled_lossless_bytes: int = 0

    @property
    def exact(self) -> collections.Counter[str]:
        """What `unquantized` was called before."""
        return self.unquantized

    def loss_by_group(self) -> dict[str, Loss]:
        found: dict[str, Loss] = {}
        for (group, _), one in self.losses.items():
            found.setdefault(group, Loss()).add(one.squares, one.errors, one.n_values, one.n_zeros, one.looks)
        return found

    def _lost(self) -> str:
        """Of all, and of the group that loses the most."""
        groups = self.loss_by_group()
        whole = Loss()
        for one in groups.values():
            whole.add(one.squares, one.errors, one.n_values, one.n_zeros, one.looks)
        most = max(groups, key=lambda group: (groups[group].zeros, groups[group].error))
        of = " (of %s: %s)" % (most, groups[most]) if len(groups) > 1 else ""
        return "lost, by samples (%d): %s%s" % (whole.looks, whole, of)

    def lossless_bytes(self) -> int:
        """What lossless messages would have taken, about, from samples of what was sent with loss; 0: there
        are none."""
        if not self.sampled_bytes:
            return 0
        return self.plain_bytes * self.sampled_lossless_bytes // self.sampled_bytes

    def _rest(self) -> list[str]:
        def listed(counts: collections.Counter[str]) -> str:
            return ", ".join("%s %d" % (reason, n) for reason, n in sorted(counts.items()))

        lossless = "lossless would have been about %.1f MB, an estimate from samples (%d)" % (
            self.lossless_bytes() / 1e6, self.samples)
        texts = [(self.unquantized, "not quantized: "), (self.unkept, "without replicas: "),
                 (self.rounded, "changes with loss: ")]
        found = [name + listed(counts) for counts, name in texts if counts]
        found += [self._lost()] if self.losses else []
        return found + ([lossless] if self.lossless_bytes() else [])

    def line(self, name: str) -> str:
        ratio = " (%.2f)" % (self.sent_bytes / self.plain_bytes) if self.plain_bytes else ""
        text = "%s: %d calls, %s MB to other nodes, plain %s MB%s" % (
            name, self.calls, _short(self.sent_bytes / 1e6, 1), _short(self.plain_bytes / 1e6, 1), ratio)
        text += ", took %s s, waited for %s s" % (_short(self.took_sec, 2), _short(self.wait_sec, 2))
        return "; ".join([text] + self._rest())


@dataclasses.dataclass
class Elsewhere:
    """What went another way: operations, and about how many bytes this rank has sent for them, to its own
    node, too. 0: not known."""

    calls: int = 0
    sent_bytes: int = 0

    def line(self, kind: str, reason: str) -> str:
        calls = ["%d calls" % self.calls] if self.calls else []
        size = ["about %.1f MB" % (self.sent_bytes / 1e6)] if self.sent_bytes else []
        return ", ".join(["%s (%s)" % (kind, reason) if reason else kind] + calls + size)


LINE_CHARS = 109  # and ten for who says it


def _short(number: float, places: int) -> str:
    """Large ones are whole numbers."""
    return "%.*f" % (places if number < 100 else 0, number)


def wrapped(text: str) -> list[str]:
    """Its lines as they are logged."""
    found = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        found += textwrap.wrap(line.lstrip(), LINE_CHARS, initial_indent=indent,
                               subsequent_indent=indent + "    ", break_long_words=False,
                               break_on_hyphens=False)
    return found


class Report(dict[str, Tally]):
    """{kind of operation: Tally}; elsewhere: {(kind, why it went another way): Elsewhere}; str() is the
    text."""

    def __init__(self, tallies: dict[str, Tally], elsewhere: dict[tuple[str, str], Elsewhere],
                 counted_bytes: int, nonfinite_blocks: int):
        super().__init__(tallies)
        self.elsewhere, self.counted_bytes, self.nonfinite_blocks = elsewhere, counted_bytes, nonfinite_blocks

    def _nothing(self) -> str:
        """Why no node has got anything."""
        kinds = collections.defaultdict(list)
        for kind, reason in sorted(self.elsewhere):
            kinds[reason].append(kind)
        if self:
            kinds["ranks of one node"] = sorted(self)
        reasons = ["%s: %s" % (", ".join(names), reason) for reason, names in kinds.items()]
        return "nothing went over thinwire to other nodes, because of " + (
            "; ".join(reasons or agreement.reasons())
            or "no use: no model was given to fully_shard or to a hook, or none was trained")

    def __str__(self) -> str:
        lines = ["  " + tally.line(name) for name, tally in sorted(self.items())]
        sent = any(tally.plain_bytes for tally in self.values())
        reasons = collections.Counter(kind for kind, _ in self.elsewhere)
        for (kind, reason), one in sorted(self.elsewhere.items()):
            is_said = not sent and reasons[kind] == 1  # by _nothing()
            if one.calls or one.sent_bytes or not is_said:
                lines.append("  not over thinwire: " + one.line(kind, "" if is_said else reason))
        nonfinite = ", %d blocks with NaN or Inf" % self.nonfinite_blocks if self.nonfinite_blocks else ""
        counted = "%.1f MB sent to other nodes, as counted" % (self.counted_bytes / 1e6)
        first = counted if sent else self._nothing()
        return "\n".join([first + nonfinite] + lines)


class _Book:
    """The process's tallies."""

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}
        self.others: dict[tuple[str, str], Elsewhere] = {}
        self.lock = threading.Lock()
        self.asked = False  # the program or its environment has asked for Thinwire
        self.said: set[str] = set()
        # (process, whether it is the job's rank 0), when that is known
        self._first: tuple[int, bool] | None = None

    def has_rank(self, rank: int) -> None:
        """Of a job that may have no default group."""
        self._first = self._first or (os.getpid(), rank == 0)

    def is_first(self) -> bool:
        """Whether this process is rank 0 of the job. Known once there has been a default group, or
        has_rank()."""
        if self._first is None and dist.is_available() and dist.is_initialized():
            self._first = (os.getpid(), dist.get_rank() == 0)
        return self._first == (os.getpid(), True)  # a forked child is none

    def elsewhere(self, kind: str, reason: str, sent: int, calls: int = 1) -> None:
        self.is_first()
        with self.lock:
            found = self.others.setdefault((kind, reason), Elsewhere())
            found.calls += calls
            found.sent_bytes += sent

    def record(self, kind: str, plain: int, sent: int, unquantized: collections.Counter[str],
               bound: int = 0) -> None:
        """bound: of `sent`, what is lossless, of which less may be sent."""
        self.is_first()
        with self.lock:
            tally = self.tallies.setdefault(kind, Tally())
            tally.calls += 1
            tally.plain_bytes += plain
            tally.sent_bytes += sent
            tally.bound_bytes += bound
            tally.unquantized.update(unquantized)

    def sampled(self, kind: str, plain: int, lossless: int) -> None:
        """What so many bytes of an operation would have taken."""
        with self.lock:
            tally = self.tallies.setdefault(kind, Tally())
            tally.samples += 1
            tally.sampled_bytes += plain
            tally.sampled_lossless_bytes += lossless

    def lost(self, kind: str, group: str, name: str, sums: tuple[float, float, int, int]) -> Loss:
        """Sums of one look, as Loss has them; a copy of all there are."""
        with self.lock:
            losses = self.tallies.setdefault(kind, Tally()).losses
            found = losses.setdefault((group, name), Loss())
            found.add(*sums)
            return dataclasses.replace(found)

    def sent(self, kind: str, n_bytes: int) -> None:
        """Of an operation that was recorded before this was known."""
        with self.lock:
            self.tallies.setdefault(kind, Tally()).sent_bytes += n_bytes

    def unkept(self, kind: str, reason: str) -> None:
        with self.lock:
            self.tallies.setdefault(kind, Tally()).unkept[reason] += 1

    def rounded(self, kind: str, codec: str) -> None:
        with self.lock:
            self.tallies.setdefault(kind, Tally()).rounded[codec] += 1

    def took(self, kind: str, seconds: float) -> None:
        with self.lock:
            self.tallies.setdefault(kind, Tally()).took_sec += seconds

    def waited(self, kind: str, seconds: float) -> None:
        with self.lock:
            self.tallies.setdefault(kind, Tally()).wait_sec += seconds


book = _Book()


def _say(text: str) -> None:
    autoload.set_up_logging()
    for line in wrapped(text):
        log.info("%s", line)


def announce(text: str) -> None:
    """Once, by rank 0, when that is true for the first time."""
    if text not in book.said:
        book.said.add(text)
        if book.is_first():
            _say(text)


def warn(text: str, once: str = "") -> None:
    """Once, by rank 0. once: what it is about, if its text differs from time to time."""
    if (once or text) not in book.said:
        book.said.add(once or text)
        if book.is_first():
            autoload.set_up_logging()
            log.warning("%s", text)


def warn_of_patterns(variable: str, unmatched: Sequence[str]) -> None:
    """Of those that match no parameter."""
    for pattern in unmatched:
        warn("the pattern %s of %s matches the name of no parameter so far" % (pattern, variable))


def _spare(tallies: dict[str, Tally], spared: int) -> None:
    """Lossless messages were shorter by so much, all kinds together: each gets its part."""
    bound = sum(one.bound_bytes for one in tallies.values())
    for one in (one for one in tallies.values() if one.bound_bytes):
        share = spared * one.bound_bytes // bound
        one.sent_bytes -= share
        spared, bound = spared - share, bound - one.bound_bytes


def report() -> Report:
    """A copy of what has been counted so far, of this rank."""
    from . import unused

    with book.lock:
        tallies = {name: dataclasses.replace(tally, unquantized=tally.unquantized.copy(),
                                             unkept=tally.unkept.copy(), rounded=tally.rounded.copy(),
                                             losses=copy.deepcopy(tally.losses))
                   for name, tally in book.tallies.items()}
        elsewhere = {key: dataclasses.replace(one) for key, one in book.others.items()}
    running = engines.running()
    _spare(tallies, sum(one.spared_bytes() for one in running))
    return Report(tallies, elsewhere | unused.found(), sum(one.sent_bytes() for one in running),
                  sum(one.nonfinite_blocks() for one in running))


@atexit.register
def _say_at_exit() -> None:
    """Before the ranks part, as this module comes after engine.py."""
    with contextlib.suppress(Exception):
        if (book.asked or book.tallies) and book.is_first():
            _say(str(report()))
