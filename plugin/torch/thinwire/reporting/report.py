"""The report: what went over Thinwire, how long it was waited for, and what went another way, and why."""

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
    """{kind of operation: Tally}. elsewhere: {(kind, why it went another way): Elsewhere}. str() is the
    text."""

    def __init__(self, tallies: dict[str, Tally], elsewhere: dict[tuple[str, str], Elsewhere],
                 counted_bytes: int, nonfinite_blocks: int):
        super().__init__(tallies)
        self.elsewhere, self.counted_bytes, self.nonfinite_blocks = elsewhere, counted_bytes, nonfinite_blocks

    def _nothing(self) -> str:
        """Why nothing went to other nodes."""
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
            is_said = not sent and reasons[kind] == 1  # _nothing() says it
            if one.calls or one.sent_bytes or not is_said:
                lines.append("  not over thinwire: " + one.line(kind, "" if is_said else reason))
        nonfinite = ", %d blocks with NaN or Inf" % self.nonfinite_blocks if self.nonfinite_blocks else ""
        counted = "%.1f MB sent to other nodes, as counted" % (self.counted_bytes / 1e6)
        counted += ": %.1f MB saved" % (saved / 1e6) if saved > 0 else ""
        first = counted if sent else self._nothing()
        return "\n".join([first + nonfinite] + lines)


def _spare(tallies: dict[str, Tally], spared: int) -> None:
    """Subtract the bytes that lossless messages of all kinds saved together, from each kind its share."""
    bound = sum(one.bound_bytes for one in tallies.values())
    for one in (one for one in tallies.values() if one.bound_bytes):
        share = spared * one.bound_bytes // bound
        one.sent_bytes -= share
        spared, bound = spared - share, bound - one.bound_bytes


def report() -> Report:
    """What this rank has sent so far, how long it was waited for, and what was not quantized: a copy of the
    counts, whose str() is the text."""
    with book.lock:
        tallies = copy.deepcopy(book.tallies)
        elsewhere = copy.deepcopy(book.others)
    running = communicators.running()
    _spare(tallies, sum(one.spared_bytes() for one in running))
    return Report(tallies, elsewhere | unused.found(), sum(one.sent_bytes() for one in running),
                  sum(one.nonfinite_blocks() for one in running))


def _log() -> None:
    """Log rank 0's report, if the program has asked for Thinwire or something has gone over it."""
    with contextlib.suppress(Exception):
        if book.asked or book.tallies:
            found = report()
            if book.is_first():
                tally.say(str(found))
            page.write(found, str(found))


@functools.cache
def log_at_exit() -> None:
    """Log the report when the program ends, while the ranks are still connected: communicators.py has
    registered their end before. Runs once in a process."""
    page.keep()
    atexit.register(_log)


def asked() -> None:
    """Note that the program or its environment has asked for Thinwire: the report says so even if nothing
    was sent."""
    book.asked = True
    log_at_exit()
