#!/usr/bin/env python3
"""figures.py: checks that every figure in the tables of the pages below is in a file of bench/results.

A comment above a table, `<!-- figures: torch-1gbit torch-100mbit -->`, names its files. A row is compared
with some lines of these files. If a cell is a value in some lines (a mode, an algorithm, a number of bytes),
only those lines count. Each figure of the row, except in its first cell, must be a number in one of the
lines, in the table's unit and rounding. Last the check tests itself: it must find figures that it has
altered."""

import json
import pathlib
import re
import sys

PAGES = ("README.md", "docs/results.md", "docs/loss.md")
# Pages in which only tables below a comment that matches MARK are checked.
MARKED = ("docs/pytorch.md", "docs/gpu.md")
MARK = re.compile(r"<!-- figures: ([\w. -]+?) -->")
FIGURE = re.compile(r"(?<![\w.])([+-]?\d[\d,]*(?:\.\d+)?)(?: ?(ms|us|s|MB|KB|GB|K|M|%)(?!\w))?")
SIZES = {"K": 1 << 10, "M": 1 << 20}
# {ending of a key: {unit in which its values may be written: factor}}; unit "" if only the head names it.
UNITS = {"_us": {"us": 1, "ms": 1e-3, "s": 1e-6}, "_sec": {"s": 1, "ms": 1e3, "": 1},
         "bytes": {"": 1, "KB": 1e-3, "MB": 1e-6, "GB": 1e-9}, "params": {"": 1, "M": 1e-6}}
OTHERS = {"": 1, "%": 100}
PERCENT = {"%": 1, "": 1}
SEEN_PART = 0.8  # the check must find at least this part of the figures that it altered


def numbers(key, value):
    """Returns [(key, number)] of a value in a line of JSON, also of objects inside it."""
    if isinstance(value, dict):
        return [one for name, inner in value.items()
                for one in numbers(key + "_per_sec" if key == "tokens" else name, inner)]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return []
    return [(key, float(value))]


def units_of(key):
    if "percent" in key or key.startswith("off_"):
        return PERCENT
    parts = [unit for ending, unit in UNITS.items()
             if key.endswith(ending) or ending + "_" in key or (ending == "bytes" and "bytes" in key)]
    return OTHERS if not parts or "ratio" in key or "per_sec" in key else parts[0]


def is_written(text, unit, key, value):
    factor = units_of(key).get(unit or "")
    digits = len(text.partition(".")[2])
    written = float(text.replace(",", ""))
    return factor is not None and abs(value * factor - written) <= 0.5000001 * 10.0 ** -digits


def cells_of(line):
    return [one.strip(" *`") for one in line.strip().strip("|").split("|")]


def words_of(lines):
    return [{str(value) for value in line.values() if isinstance(value, str)}
            | {str(int(line["bytes"])) if "bytes" in line else ""} for line in lines]


def said(cell):
    """Returns a cell's text as lines of JSON have it: "64K" becomes "65536"."""
    size = re.fullmatch(r"(\d+)([KM])", cell)
    return str(int(size[1]) * SIZES[size[2]]) if size else cell


def chosen(cells, lines):
    """Returns the lines that match a row's cells, and the indices of the cells that were used to choose
    them."""
    words, left = words_of(lines), set()
    kept = list(range(len(lines)))
    for at, cell in enumerate(cells):
        names = [said(part) for part in re.split(r", ", cell)]
        having = [i for i in kept if all(name in words[i] for name in names)]
        if having and cell:
            kept = having
            left.add(at)
    return [lines[i] for i in kept], left


def row_unfound(line, lines):
    cells = cells_of(line)
    picked, words = chosen(cells, lines)
    known = [one for row in picked for key, value in row.items() for one in numbers(key, value)]
    return [cell for at, cell in enumerate(cells) if at > 0 and at not in words
            for text, unit in FIGURE.findall(cell)
            if not any(is_written(text, unit, key, value) for key, value in known)]


def tables(text):
    """Returns [(files or None, rows)] of a page's tables. A table's head is no row."""
    files, found, before = None, [], ""
    for line in text.splitlines():
        mark = MARK.fullmatch(line.strip())
        if mark:
            files = mark[1].split()
        if line.startswith("|") and not before.startswith("|"):
            found.append((files, []))
            files = None
        elif line.startswith("|") and not re.fullmatch(r"[|: -]+", line):
            found[-1][1].append(line)
        before = line
    return found


def read_lines(files, folder):
    return [json.loads(one) for name in files
            for one in (folder / (name + ".jsonl")).read_text(encoding="utf-8").splitlines()]


def alterations(line):
    """Yields, for each figure of a row, the row with that figure altered: the check must find it."""
    for match in FIGURE.finditer(line, line.index("|", 1)):
        digits = match[1]
        at = max(i for i, one in enumerate(digits) if one.isdigit())
        other = digits[:at] + str((int(digits[at]) + 4) % 10) + digits[at + 1:]
        yield line[:match.start(1)] + other + line[match.end(1):]


def check_page(page, root):
    """Returns (complaints, number of altered figures, number of altered figures that the check found)."""
    complaints, altered, seen = [], 0, 0
    for files, rows in tables((root / page).read_text(encoding="utf-8")):
        if files is None and page in MARKED:
            continue
        if files is None:
            complaints += ["%s: no <!-- figures: FILE --> above a table of figures: %s" % (page, row)
                           for row in rows if FIGURE.search(row)]
            continue
        lines = read_lines(files, root / "bench/results")
        for row in rows:
            complaints += ["%s: '%s' is in no line of %s: %s" % (page, cell, " ".join(files), row)
                           for cell in row_unfound(row, lines)]
            for other in alterations(row):
                altered, seen = altered + 1, seen + bool(row_unfound(other, lines))
    return complaints, altered, seen


def main():
    root = pathlib.Path("WORKSPACE").resolve().parent
    found = [check_page(page, root) for page in PAGES + MARKED]
    complaints = [one for page in found for one in page[0]]
    altered, seen = (sum(page[i] for page in found) for i in (1, 2))
    if altered == 0 or seen < SEEN_PART * altered:
        complaints.append("of %d altered figures only %d were seen" % (altered, seen))
    print("\n".join(complaints), file=sys.stderr)
    print("# of %d figures, each altered in turn, %d were missed" % (altered, altered - seen))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
