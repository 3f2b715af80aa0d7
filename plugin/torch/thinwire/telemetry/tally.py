"""Counts of what Thinwire did in this process: calls, bytes, times, and why tensors were not quantized."""

from __future__ import annotations

import collections
import dataclasses
import os
import textwrap
import threading
import typing
from collections.abc import Sequence

import torch.distributed as dist

from ..switches import log, set_up_logging


@dataclasses.dataclass
class Loss:
    """The loss of quantization, measured on samples of a rank's values before the sum over ranks."""

    looks: int = 0  # number of measurements
    squares: float = 0.0  # sum of the values' squares
    errors: float = 0.0  # sum of the squares of their errors
    n_values: int = 0  # values that were not 0
    n_zeros: int = 0  # values that were not 0 and became 0

    @property
    def error(self) -> float:
        """The relative error: the 2-norm of the errors over the 2-norm of the values."""
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
    """Counts of one kind of operation. Bytes are those to other nodes, with scales and headers."""

    calls: int = 0
    plain_bytes: int = 0  # bytes without codecs
    sent_bytes: int = 0
    bound_bytes: int = 0  # the part of sent_bytes that is upper bounds of messages of varying length
    took_sec: float = 0.0  # sum of the times from post to end
    wait_sec: float = 0.0  # the part of took_sec in which the job waited, except for futures
    # {reason: number of tensors that were not quantized for it}
    unquantized: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    # {reason: number of gathers that had no replica for it}
    unkept: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    # {codec: number of gathers in which it rounded changes}
    rounded: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    # {(group of parameters, parameter): loss}
    losses: dict[tuple[str, str], Loss] = dataclasses.field(default_factory=dict)
    samples: int = 0  # number of samples that were encoded without loss, for the estimate
    sampled_bytes: int = 0  # plain bytes of these samples
    sampled_lossless_bytes: int = 0  # bytes of these samples when encoded without loss

    @property
    def exact(self) -> collections.Counter[str]:
        """The name of `unquantized` until version 0.2."""
        return self.unquantized

    def loss_by_group(self) -> dict[str, Loss]:
        found: dict[str, Loss] = {}
        for (group, _), one in self.losses.items():
            found.setdefault(group, Loss()).add(one.squares, one.errors, one.n_values, one.n_zeros, one.looks)
        return found

    def _lost(self) -> str:
        """Returns a text: the loss over all groups, and that of the group that loses the most."""
        groups = self.loss_by_group()
        whole = Loss()
        for one in groups.values():
            whole.add(one.squares, one.errors, one.n_values, one.n_zeros, one.looks)
        most = max(groups, key=lambda group: (groups[group].zeros, groups[group].error))
        of = " (of %s: %s)" % (most, groups[most]) if len(groups) > 1 else ""
        return "lost, by samples (%d): %s%s" % (whole.looks, whole, of)

    def lossless_bytes(self) -> int:
        """Returns an estimate of the bytes that lossless messages would have taken; 0 without samples."""
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
    """Operations that did not go over Thinwire. sent_bytes: roughly what this rank sent for them, to its own
    node as well; 0 if that is not known."""

    calls: int = 0
    sent_bytes: int = 0

    def line(self, kind: str, reason: str) -> str:
        calls = ["%d calls" % self.calls] if self.calls else []
        size = ["about %.1f MB" % (self.sent_bytes / 1e6)] if self.sent_bytes else []
        return ", ".join(["%s (%s)" % (kind, reason) if reason else kind] + calls + size)


LINE_CHARS = 109  # longest line of a text, without the logger's prefix of ten characters


def _short(number: float, places: int) -> str:
    """Returns a number as text, from 100 on without decimal places."""
    return "%.*f" % (places if number < 100 else 0, number)


def wrapped(text: str) -> list[str]:
    """Returns a text as lines of at most LINE_CHARS."""
    found = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        found += textwrap.wrap(line.lstrip(), LINE_CHARS, initial_indent=indent,
                               subsequent_indent=indent + "    ", break_long_words=False,
                               break_on_hyphens=False)
    return found


class _Book:
    """All counts of this process."""

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = collections.defaultdict(Tally)
        # {(kind of operation, why it did not go over Thinwire): counts}
        self.others: dict[tuple[str, str], Elsewhere] = collections.defaultdict(Elsewhere)
        self.lock = threading.Lock()
        self.asked = False  # the program or its environment has asked for Thinwire
        self.said: set[str] = set()  # texts that have been logged
        # (this process's id, whether it is the job's rank 0); None until that is known
        self._first: tuple[int, bool] | None = None

    def has_rank(self, rank: int) -> None:
        """Set this process's rank in the job, for torchcomms: there may be no default group to tell it."""
        self._first = self._first or (os.getpid(), rank == 0)

    def is_first(self) -> bool:
        """Returns whether this is the job's rank 0. False until torch has a group or has_rank() is called."""
        if self._first is None and dist.is_available() and dist.is_initialized():
            self._first = (os.getpid(), dist.get_rank() == 0)
        return self._first == (os.getpid(), True)  # False in a forked child

    def elsewhere(self, kind: str, reason: str, sent: int) -> None:
        """Count an operation that does not go over Thinwire. sent: roughly the bytes that this rank sends."""
        self.is_first()
        with self.lock:
            found = self.others[kind, reason]
            found.calls += 1
            found.sent_bytes += sent

    def add(self, kind: str, **counts: typing.Any) -> None:
        """Add to the fields of a kind's tally. counts: {field: number, or Counter of reasons}."""
        self.is_first()
        with self.lock:
            tally = self.tallies[kind]
            for name, more in counts.items():
                if more:
                    setattr(tally, name, getattr(tally, name) + more)

    def lost(self, kind: str, group: str, name: str, sums: tuple[float, float, int, int]) -> Loss:
        """Add a measurement of the loss of parameter `name`. sums: squares, errors, n_values, n_zeros of
        Loss. Returns a copy of the parameter's total."""
        with self.lock:
            found = self.tallies[kind].losses.setdefault((group, name), Loss())
            found.add(*sums)
            return dataclasses.replace(found)


book = _Book()


def say(text: str) -> None:
    """Log a text, wrapped into lines."""
    set_up_logging()
    for line in wrapped(text):
        log.info("%s", line)


def announce(text: str) -> None:
    """Log a text on rank 0, unless it has been logged before."""
    if text not in book.said:
        book.said.add(text)
        if book.is_first():
            say(text)


def warn(text: str, once: str = "") -> None:
    """Log a warning on rank 0, once for each text. once: a key that stands for a text that varies."""
    if (once or text) not in book.said:
        book.said.add(once or text)
        if book.is_first():
            set_up_logging()
            log.warning("%s", text)


def warn_of_patterns(variable: str, unmatched: Sequence[str]) -> None:
    """Warn of a variable's patterns that match no parameter."""
    for pattern in unmatched:
        warn("the pattern %s of %s matches the name of no parameter so far" % (pattern, variable))
