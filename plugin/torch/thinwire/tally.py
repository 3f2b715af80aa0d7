"""What Thinwire did in this process: calls, bytes, time, and what stayed exact and why."""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading

from . import engine as engines

log = logging.getLogger("thinwire")


@dataclasses.dataclass
class Tally:
    """Of one kind of operation. Bytes are those that this rank sends to other nodes, scales and headers included."""

    calls: int = 0
    plain_bytes: int = 0  # had nothing been quantized
    sent_bytes: int = 0
    took_sec: float = 0.0  # from each post to its end, summed up
    wait_sec: float = 0.0  # of that, the job waited so long; futures are waited for unseen
    exact: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)  # reason: tensors

    def line(self, name: str) -> str:
        ratio = " (%.2f)" % (self.sent_bytes / self.plain_bytes) if self.plain_bytes else ""
        text = "%s: %d calls, %.1f MB to other nodes where exact is %.1f MB%s, took %.2f s, waited for %.2f s" % (
            name, self.calls, self.sent_bytes / 1e6, self.plain_bytes / 1e6, ratio, self.took_sec, self.wait_sec)
        reasons = ", ".join("%s %d" % (reason, n) for reason, n in sorted(self.exact.items()))
        return text + ("; exact: " + reasons if reasons else "")


class Report(dict[str, Tally]):
    """{kind of operation: Tally}; str() is the text."""

    def __init__(self, tallies: dict[str, Tally], counted_bytes: int, nonfinite_blocks: int):
        super().__init__(tallies)
        self.counted_bytes, self.nonfinite_blocks = counted_bytes, nonfinite_blocks

    def __str__(self) -> str:
        if not self:
            return "nothing was sent"
        lines = ["  " + tally.line(name) for name, tally in sorted(self.items())]
        nonfinite = ", %d blocks with NaN or Inf" % self.nonfinite_blocks if self.nonfinite_blocks else ""
        return "\n".join(["%.1f MB sent to other nodes, as counted%s" % (self.counted_bytes / 1e6, nonfinite)] + lines)


class _Book:
    """The process's tallies."""

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}
        self.lock = threading.Lock()

    def record(self, kind: str, plain: int, sent: int, exact: collections.Counter[str]) -> None:
        with self.lock:
            tally = self.tallies.setdefault(kind, Tally())
            tally.calls += 1
            tally.plain_bytes += plain
            tally.sent_bytes += sent
            tally.exact.update(exact)

    def took(self, kind: str, seconds: float) -> None:
        with self.lock:
            self.tallies.setdefault(kind, Tally()).took_sec += seconds

    def waited(self, kind: str, seconds: float) -> None:
        with self.lock:
            self.tallies.setdefault(kind, Tally()).wait_sec += seconds


book = _Book()


def report() -> Report:
    """A copy of what has been counted so far, of this rank."""
    with book.lock:
        tallies = {name: dataclasses.replace(tally, exact=tally.exact.copy()) for name, tally in book.tallies.items()}
    running = engines.running()
    return Report(tallies, sum(one.sent_bytes() for one in running), sum(one.nonfinite_blocks() for one in running))


def _log_at_exit() -> None:
    if book.tallies and any(one.rank == 0 for one in engines.running()):
        for line in str(report()).splitlines():
            log.info("%s", line)


engines.at_exit(_log_at_exit)
