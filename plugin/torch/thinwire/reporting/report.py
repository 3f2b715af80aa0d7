"""The report: the operations that went over Thinwire, with bytes and times, those that did not, and why."""

from __future__ import annotations

import atexit
import collections
import contextlib
import copy
import functools

from ..engine import agreement, communicators
from ..telemetry import tally
from ..telemetry.tally import Elsewhere, Tally, book
from . import page, unused


class Report(dict[str, Tally]):
    """{kind of operation: Tally}; str() returns the text. elsewhere: {(kind, why it did not go over
    Thinwire): Elsewhere}. counted_bytes: bytes that transports have sent to other nodes."""

    def __init__(self, tallies: dict[str, Tally], elsewhere: dict[tuple[str, str], Elsewhere],
                 counted_bytes: int, nonfinite_blocks: int):
        super().__init__(tallies)
        self.elsewhere, self.counted_bytes, self.nonfinite_blocks = elsewhere, counted_bytes, nonfinite_blocks

    def _nothing(self) -> str:
        """Returns a text on why nothing went over Thinwire to other nodes."""
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
        lines = ["  " + one.line(name) for name, one in sorted(self.items())]
        sent = any(one.plain_bytes for one in self.values())
        saved = sum(one.plain_bytes - one.sent_bytes for one in self.values())
        reasons = collections.Counter(kind for kind, _ in self.elsewhere)
        for (kind, reason), one in sorted(self.elsewhere.items()):
            is_said = not sent and reasons[kind] == 1  # the first line, from _nothing(), says it
            if one.calls or one.sent_bytes or not is_said:
                lines.append("  not over thinwire: " + one.line(kind, "" if is_said else reason))
        nonfinite = ", %d blocks with NaN or Inf" % self.nonfinite_blocks if self.nonfinite_blocks else ""
        counted = "%.1f MB sent to other nodes, as counted" % (self.counted_bytes / 1e6)
        counted += ": %.1f MB saved" % (saved / 1e6) if saved > 0 else ""
        first = counted if sent else self._nothing()
        return "\n".join([first + nonfinite] + lines)


def _spare(tallies: dict[str, Tally], spared: int) -> None:
    """Correct sent_bytes, which has upper bounds for messages of varying length. spared: the bytes by which
    all of them were shorter. Each kind of operation gets its share, in proportion to bound_bytes."""
    bound = sum(one.bound_bytes for one in tallies.values())
    for one in (one for one in tallies.values() if one.bound_bytes):
        share = spared * one.bound_bytes // bound
        one.sent_bytes -= share
        spared, bound = spared - share, bound - one.bound_bytes


def report() -> Report:
    """Returns this rank's counts so far, as a copy: bytes sent, times waited, and what was not quantized.
    str() of it is the report's text."""
    with book.lock:
        tallies = copy.deepcopy(book.tallies)
        elsewhere = copy.deepcopy(book.others)
    running = communicators.running()
    _spare(tallies, sum(one.spared_bytes() for one in running))
    return Report(tallies, elsewhere | unused.found(), sum(one.sent_bytes() for one in running),
                  sum(one.nonfinite_blocks() for one in running))


def _log() -> None:
    """Log rank 0's report, and write the page, if the program has asked for Thinwire or used it."""
    with contextlib.suppress(Exception):
        if book.asked or book.tallies:
            found = report()
            if book.is_first():
                tally.say(str(found))
            page.write(found, str(found))


@functools.cache
def log_at_exit() -> None:
    """Log the report when the program ends. communicators.py has registered its own function before.
    That one runs later, so ranks are still connected. Only the first call has an effect."""
    page.keep()
    atexit.register(_log)


def asked() -> None:
    """Note that the program or its environment asks for Thinwire: the report then always appears."""
    book.asked = True
    log_at_exit()
