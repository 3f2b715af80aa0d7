"""TW_REPORT=FILE: the report of all ranks as one HTML page, which rank 0 writes when the program ends. The
page is a single file with its pictures inside, and needs no network and no script.

The ranks send their numbers to rank 0 through torch's store. The store is kept until then, because the
program may destroy its process groups earlier."""

from __future__ import annotations

import contextlib
import html
import json
import os
import pathlib
import sys
import time
import typing
from collections.abc import Iterable, Mapping

from ..engine import addresses, meeting
from ..switches import log
from ..telemetry import spans
from ..telemetry.tally import Tally, book
from ..version import __version__

VARIABLE = "TW_REPORT"
PATIENCE_SEC = 10.0  # longest time that rank 0 waits for the other ranks' numbers
STRIP_SEC = 2.0  # seconds that the timeline shows, from the end of the run
# Widths of a picture, of its labels and of its numbers, and the height of a row, in SVG units.
WIDTH, LEFT, RIGHT, ROW = 760, 190, 190, 22
COLOURS = ["#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b7791f", "#718096"]
GREY, PALE = "#a0aec0", "#bee3f8"
STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:780px;margin:2em auto;padding:0 1em;color:#1a202c}
h2{font-size:1.15em;margin:1.6em 0 .3em}svg{width:100%;height:auto}svg text{font:12px system-ui,sans-serif}
pre{white-space:pre-wrap;font-size:12px;background:#f7fafc;padding:1em}b.big{font-size:1.6em}"""
Part = tuple[float, str, str]  # part of a bar: (length, colour, tooltip)
Tallies = Mapping[str, Tally]  # {kind of operation: tally}
Known = dict[str, typing.Any]  # the numbers that a rank sends to rank 0


class _Kept:
    """The time of the first use of Thinwire, and the job's ranks and store."""

    def __init__(self) -> None:
        self.begin, self.world = time.monotonic(), meeting.default_world().under("thinwire/report/")


_kept: list[_Kept] = []


def keep() -> None:
    """If the program wants a page, keep the job's ranks and store for its end."""
    if os.environ.get(VARIABLE) and not _kept:
        with contextlib.suppress(Exception):  # there is no default group yet
            _kept.append(_Kept())


def _known(tallies: Tallies) -> Known:
    """Returns the numbers that this rank sends to rank 0."""
    kinds = {kind: [one.plain_bytes, one.sent_bytes, one.wait_sec] for kind, one in tallies.items()}
    return {"node": os.environ.get("TW_NODE_ID") or addresses.place(), "kinds": kinds}


def _gather(tallies: Tallies) -> dict[int, Known]:
    """Send numbers to rank 0. Returns, on rank 0, {rank: numbers} that came in time; elsewhere {}."""
    world = _kept[0].world
    if world.rank:
        world.store.set(str(world.rank), json.dumps(_known(tallies)))
        return {}

    def told() -> list[int]:
        return [rank for rank in world.ranks if rank and world.store.check([str(rank)])]

    # If an exception ends this program, do not wait: the other ranks wait for this one to end.
    patience = PATIENCE_SEC if getattr(sys, "last_value", None) is None else 0.0
    meeting.poll(lambda: len(told()) == len(world.ranks) - 1, patience)
    return {0: _known(tallies)} | {rank: json.loads(world.store.get(str(rank))) for rank in told()}


def _text(x: float, y: float, what: str, anchor: str = "start") -> str:
    return '<text x="%.1f" y="%.1f" text-anchor="%s" fill="currentColor">%s</text>' % (
        x, y, anchor, html.escape(what))


def _box(x: float, y: float, width: float, height: float, colour: str, says: str) -> str:
    return '<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"><title>%s</title></rect>' % (
        x, y, max(width, 0.5), height, colour, html.escape(says))


def _svg(height: float, inside_of_it: Iterable[str]) -> str:
    return '<svg viewBox="0 0 %d %d" role="img">%s</svg>' % (WIDTH, height, "".join(inside_of_it))


def _bars(rows: list[tuple[str, list[Part], str]]) -> str:
    """Returns a picture of bars. rows: (label, parts of the bar, text after the bar)."""
    longest = max((sum(length for length, _, _ in parts) for _, parts, _ in rows), default=0.0) or 1.0
    scale, drawn = (WIDTH - LEFT - RIGHT) / longest, []
    for number, (what, parts, words) in enumerate(rows):
        x, y = float(LEFT), number * ROW
        drawn.append(_text(LEFT - 8, y + 15, what, "end"))
        for length, colour, says in parts:
            drawn.append(_box(x, y + 3, length * scale, ROW - 6, colour, says))
            x += length * scale
        drawn.append(_text(x + 6, y + 15, words))
    return _svg(len(rows) * ROW, drawn)


def _bytes_picture(tallies: Tallies) -> str:
    rows: list[tuple[str, list[Part], str]] = []
    for kind, one in sorted(tallies.items()):
        plain, sent = one.plain_bytes / 1e6, one.sent_bytes / 1e6
        rows.append((kind, [(plain, GREY, "plain")], "plain %.1f MB" % plain))
        share = " (%.2f)" % (sent / plain) if plain else ""
        rows.append(("", [(sent, COLOURS[0], "sent")], "sent %.1f MB%s" % (sent, share)))
    return _bars(rows)


def _time_picture(tallies: Tallies) -> str:
    return _bars([(kind, [(one.wait_sec, COLOURS[1], "waited for: %.2f s" % one.wait_sec),
                          (max(one.took_sec - one.wait_sec, 0.0), PALE, "hidden behind computing")],
                   "%.2f s, waited %.2f s" % (one.took_sec, one.wait_sec))
                  for kind, one in sorted(tallies.items())])


def _ranks_picture(parts: dict[int, Known], seconds: float) -> str:
    kinds = sorted({kind for one in parts.values() for kind in one["kinds"]})
    nodes = list(dict.fromkeys(one["node"] for one in parts.values()))
    rows = []
    for rank, one in sorted(parts.items()):
        waits = [(one["kinds"][kind][2], COLOURS[number % len(COLOURS)], kind)
                 for number, kind in enumerate(kinds) if kind in one["kinds"]]
        waited = sum(wait for wait, _, _ in waits)
        rows.append(("rank %d, node %d" % (rank, nodes.index(one["node"])), waits,
                     "%.2f s, %.0f %% of the run" % (waited, 100 * waited / seconds)))
    legend = ['<b style="color:%s">%s</b>' % (COLOURS[number % len(COLOURS)], html.escape(kind))
              for number, kind in enumerate(kinds)]
    return "<p>For %s.</p>" % ", ".join(legend) + _bars(rows)


def _loss_picture(tallies: Tallies) -> str:
    rows = [("%s: %s" % (kind, group or "the root"), loss) for kind, one in sorted(tallies.items())
            for group, loss in sorted(one.loss_by_group().items())]
    if not rows:
        return "<p>No samples: the codecs above lose nothing, or are not sampled.</p>"
    return "<p>Relative error, from samples.</p>" + _bars(
        [(what[-28:], [(loss.error, COLOURS[3], what)], str(loss).partition("error ")[2])
         for what, loss in rows])


def _strip(kept: list[spans.Span]) -> str:
    """Returns a picture of the end of the run: operations in lanes, and the job's waits below them."""
    end = max((one.end for one in kept), default=0.0)
    shown = [one for one in kept if one.end > end - STRIP_SEC]
    lanes = spans.lanes([one for one in shown if one.thread is None])
    below, scale = max(lanes.values(), default=-1) + 1, (WIDTH - 80) / STRIP_SEC
    drawn = [_text(72, 15, "operations", "end"), _text(72, below * ROW + 15, "waits", "end")]
    for one in shown:
        begin = max(one.begin, end - STRIP_SEC)
        x = 80 + (begin - end + STRIP_SEC) * scale
        row, colour = (below, COLOURS[1]) if one.thread else (lanes[id(one)], COLOURS[0])
        drawn.append(_box(x, row * ROW + 3, (one.end - begin) * scale, ROW - 6, colour,
                          "%s: %.1f ms" % (one.name, 1e3 * (one.end - one.begin))))
    return _svg((below + 1) * ROW, drawn)


def _page(tallies: Tallies, parts: dict[int, Known], words: str) -> str:
    world, seconds = len(_kept[0].world.ranks), time.monotonic() - _kept[0].begin
    plain, sent = (sum(kind[i] for one in parts.values() for kind in one["kinds"].values()) for i in (0, 1))
    silent = [rank for rank in range(world) if rank not in parts]
    first = "%.1f MB sent to other nodes by all ranks, %.1f MB saved%s" % (
        sent / 1e6, (plain - sent) / 1e6, ": %.2f of plain" % (sent / plain) if plain else "")
    nodes = len({one["node"] for one in parts.values()})
    about = "%d ranks on %d nodes, %.0f s, Thinwire %s." % (world, nodes, seconds, __version__)
    about += " Nothing was heard from %s." % meeting.ranks_text(silent) if silent else ""
    codecs = [one for one in sorted(book.said) if one.startswith(("FSDP2 over", "DDP over"))]
    about += "".join("<br>" + html.escape(one) for one in codecs)
    sections = [("Bytes to other nodes, rank 0", _bytes_picture(tallies)),
                ("Time of operations, rank 0: waited for, and hidden", _time_picture(tallies)),
                ("How long each rank waited", _ranks_picture(parts, seconds)),
                ("What was rounded", _loss_picture(tallies)),
                ("The last %.0f s of rank 0" % STRIP_SEC, _strip(list(spans.kept))),
                ("In words", "<pre>%s</pre>" % html.escape(words))]
    return "<!DOCTYPE html>\n<html lang=en><meta charset=utf-8><title>Thinwire: report</title>" \
        "<style>%s</style><h1>Thinwire</h1><p><b class=big>%s</b><p>%s%s</html>\n" % (
            STYLE, first, about, "".join("<h2>%s</h2>%s" % one for one in sections))


def write(tallies: Tallies, words: str) -> None:
    """At the program's end, on all ranks: collect the numbers on rank 0, which writes the page. words: the
    text of this rank's report. Errors are only logged."""
    path = os.environ.get(VARIABLE, "")
    keep()
    if not path or not _kept:
        return
    try:
        parts = _gather(tallies)
        if parts:
            pathlib.Path(path).write_text(_page(tallies, parts, words), encoding="utf-8")
    except (OSError, RuntimeError) as error:  # torch's store raises RuntimeError
        log.warning("%s=%s: %s", VARIABLE, path, error)
