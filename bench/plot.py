#!/usr/bin/env python3
"""Draws JSON lines as one picture: a benchmark's bandwidth over size, a line per mode; a training run's loss,
bytes or bits over its steps, a line per set and seed; the suite's losses over bytes or seconds, a line per
entrant; or what lossy gradients do to losses, a panel per case.

usage: plot FILE.json [-o FILE.png] [--y KEY] [--title TEXT]
"""
import argparse
import json
import os
import shutil
import subprocess
import sys

NEEDED = ("op", "mode", "bytes", "nodes", "ranks_per_node", "link_bps")
UNITS = {
    "algbw_GBps": "bandwidth of source bytes (GB/s)",
    "busbw_GBps": "bus bandwidth (GB/s)",
    "time_us_median": "median time (us)",
    "speedup": "speed-up over plain",
    "rel_rmse": "relative RMSE",
    "link_utilization": "part of the link's rate in use",
}
STEP_UNITS = {
    "loss": "training loss",
    "delta_bits": "bits a parameter of the weights' changes",
    "inter_node_bytes": "bytes between nodes in a step",
    "step_sec": "seconds a step",
}
# {choice of --y: (index in a point of the suite's curves, label)}
ENTRANT_UNITS = {"loss_over_bytes": (0, "MB that a node has sent"), "loss_over_sec": (1, "seconds")}
WINDOW = 10  # number of steps whose mean is a point of a noisy line
# Pictures of cases: panels in a row, and pixels of a panel.
PANEL_COLUMNS, PANEL_SIZE = 3, (520, 300)
SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def fail(text):
    sys.exit("plot: " + text)


def kind_of(path):
    """Return what wrote the file: "steps" (a training run), "cases" (loss.py), "suite" or "benchmark"."""
    try:
        with open(path) as file:
            first = json.loads(file.readline() or "{}")
    except OSError as error:
        fail("%s: %s" % (path, error.strerror))
    except ValueError:
        return "benchmark"
    found = [kind for kind, key in (("steps", "step"), ("cases", "case"), ("suite", "entrant"))
             if isinstance(first, dict) and key in first]
    return found[0] if found else "benchmark"


def read_rows(path, needed):
    """Read the objects of a file of JSON lines. Each must have the keys `needed`."""
    rows = []
    try:
        with open(path) as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if isinstance(row, dict) and "sample" in row:
                    continue  # text that the run has sampled
                for name in needed:
                    if not isinstance(row, dict) or name not in row:
                        fail("%s:%d: has no '%s'" % (path, number, name))
                rows.append(row)
    except OSError as error:
        fail("%s: %s" % (path, error.strerror))
    except ValueError as error:
        fail("%s:%d: not JSON: %s" % (path, number, error))
    if not rows:
        fail("%s: holds no lines" % path)
    return rows


def describe(row):
    return "%s, %d x %d ranks" % (row["op"].replace("_", "-"), row["nodes"], row["ranks_per_node"])


def size_text(size):
    for unit, name in SIZES:
        if size >= unit:
            return "%g %s" % (round(size / unit, 2), name)
    return "0"


def make_lines(rows, key):
    """Returns [(label, [(bytes, value)])] in the order of their first appearance."""
    several = len({describe(row) for row in rows}) > 1
    lines = {}
    for row in rows:
        label = row["mode"] + (" (%s)" % describe(row) if several else "")
        if row.get(key) is not None:
            lines.setdefault(label, []).append((row["bytes"], row[key]))
    return [(label, sorted(points)) for label, points in lines.items() if points]


def line_rate(rows, key):
    """Return [(bytes, rate that plain would reach if it used the whole link)], as far as known."""
    points = []
    for row in rows:
        used = row.get("link_utilization")
        if row["mode"] == "plain" and key.endswith("_GBps") and used:
            points.append((row["bytes"], row[key] / used))
    return sorted(points)


def quote(text):
    return '"%s"' % text.replace("\\", "\\\\").replace('"', '\\"')


def make_title(rows):
    link = rows[0]["link_bps"]
    what = ", ".join(dict.fromkeys(describe(row) for row in rows))
    return what + (", %g Gb/s links" % (link / 1e9) if link else ", links not shaped")


def data_of(name, form, points):
    """Returns gnuplot's command that defines a data block with a line for each point."""
    return "$%s << EOD\n%sEOD" % (name, "".join(form % tuple(point) + "\n" for point in points))


def picture_of(args, title, labels, settings, data, plots):
    """Returns gnuplot's commands for a picture of one panel. labels: those of the x and the y axis."""
    return "\n".join([
        *data,
        "set terminal pngcairo size 960,600 enhanced font 'sans,12'",
        "set output " + quote(args.output),
        "set title %s noenhanced" % quote(args.title or title),
        "set xlabel " + quote(labels[0]),
        "set ylabel " + quote(labels[1]),
        "set grid",
        *settings,
        "plot " + ", \\\n     ".join(plots),
        "",
    ])


def make_script(rows, args):
    """Returns gnuplot's commands that draw values over sizes."""
    lines = make_lines(rows, args.y)
    full = line_rate(rows, args.y)
    if full:
        lines.append(("plain on a full link", full))
    sizes = sorted({row["bytes"] for row in rows})
    data, plots = [], []
    for i, (label, points) in enumerate(lines):
        is_full = full and i == len(lines) - 1
        style = ("lines dashtype 2 linecolor 'gray40'" if is_full
                 else "linespoints linewidth 2 pointtype %d" % (i % 12 + 4))
        data.append(data_of("line%d" % i, "%d %.9g", points))
        plots.append("$line%d using 1:2 with %s title %s" % (i, style, quote(label)))
    tics = ", ".join("%s %d" % (quote(size_text(size)), size) for size in sizes)
    return picture_of(args, make_title(rows),
                      ("size of the whole tensors in their source type", UNITS.get(args.y, args.y)),
                      ["set logscale x 2", "set xrange [%g:%g]" % (sizes[0] / 1.3, sizes[-1] * 1.3),
                       "set xtics (%s)" % tics, "set yrange [0:*]", "set key top left"], data, plots)


def make_step_lines(rows, key):
    """Returns [(label, [(step, mean of the last steps)])] in the order of their first appearance."""
    rows = [row for row in rows if row.get("round", 1) == 1]  # all rounds have the same losses
    several = len({row.get("seed") for row in rows}) > 1
    lines = {}
    for row in rows:
        label = row.get("set", key) + (", seed %s" % row["seed"] if several else "")
        # delta_bits is 0 or missing in a run's first step, and in sets without deltas.
        if row.get(key) or (row.get(key) is not None and key != "delta_bits"):
            lines.setdefault(label, {})[row["step"]] = row[key]  # the last row of a step counts
    sorts = {label: sorted(points.items()) for label, points in lines.items()}
    return [(label, list(zip([step for step, _ in points], smooth([value for _, value in points]))))
            for label, points in sorts.items()]


def smooth(values):
    """Returns, for each value, the mean of the last WINDOW values up to it; the first have fewer."""
    windows = (values[max(0, i + 1 - WINDOW):i + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def make_suite_script(rows, args):
    """Returns gnuplot's commands that draw losses over the bytes sent so far, or over the time."""
    place, unit = ENTRANT_UNITS[args.y]
    points = [{"set": row["entrant"], "step": point[place], "loss": point[2]}
              for row in rows for point in row.get("curve", [])]
    return make_step_script(points, args, "loss", unit)


def make_step_script(rows, args, key=None, over="step"):
    key = key or args.y
    lines = make_step_lines(rows, key)
    if not lines:
        fail("%s: no line has any '%s'" % (args.file, key))
    data = [data_of("line%d" % i, "%.9g %.9g", points) for i, (_, points) in enumerate(lines)]
    plots = ["$line%d using 1:2 with lines linewidth 2 title %s noenhanced" % (i, quote(label))
             for i, (label, _) in enumerate(lines)]
    return picture_of(args, os.path.basename(args.file), (over, STEP_UNITS[key]),
                      ["set yrange [%s:*]" % ("*" if key == "loss" else "0")], data, plots)


def make_panel(number, case, rows, colours):
    data, plots = [], ["0 with lines linecolor 'gray40' notitle"]
    for i, row in enumerate(rows):
        name, colour = "case%dline%d" % (number, i), colours.index(row["grads"]) + 1
        data.append(data_of(name, "%d %.9g %.9g", row["off_curve"]))
        plots += ["$%s using 1:($2-$3):($2+$3) with filledcurves linecolor %d notitle" % (name, colour),
                  "$%s using 1:2 with lines linewidth 2 linecolor %d title %s noenhanced"
                  % (name, colour, quote(row["grads"]))]
    return [*data, "set title %s noenhanced" % quote(case + ": " + rows[0]["why"]),
            "plot " + ", \\\n     ".join(plots)]


def make_case_script(rows, args):
    """Returns gnuplot's commands that draw a panel for each case, with a line for each choice: the distance
    of its training loss from plain's. A choice with the same losses as plain is left out: it would be 0."""
    cases = {}
    for row in rows:
        if "off_curve" in row and not row["equal"]:
            cases.setdefault(row["case"], []).append(row)
    if not cases:
        fail("%s: no line has a distance from plain's" % args.file)
    colours = list(dict.fromkeys(row["grads"] for own in cases.values() for row in own))
    width = min(PANEL_COLUMNS, len(cases))
    height = (len(cases) + width - 1) // width
    title = args.title or "training loss, percent off plain's, over steps: mean of seeds, 95 % interval"
    script = ["set terminal pngcairo size %d,%d enhanced font 'sans,9'"
              % (width * PANEL_SIZE[0], height * PANEL_SIZE[1] + 40),
              "set output " + quote(args.output),
              "set style fill transparent solid 0.15 noborder",
              "set grid",
              "set key top right font 'sans,7'",
              "set multiplot layout %d,%d title %s noenhanced" % (height, width, quote(title))]
    for number, (case, own) in enumerate(cases.items()):
        script += make_panel(number, case, own, colours)
    return "\n".join(script + ["unset multiplot", ""])


# {kind: (function that makes the script, keys a row needs, choices of --y, default of --y, what writes it)}
KINDS = {"benchmark": (make_script, NEEDED, UNITS, "algbw_GBps", "benchmarks"),
         "steps": (make_step_script, ("step",), STEP_UNITS, "loss", "training runs"),
         "suite": (make_suite_script, ("entrant",), ENTRANT_UNITS, "loss_over_bytes", "the suite"),
         "cases": (make_case_script, ("case", "why", "grads"), {}, None, "losses")}


def main():
    folder = os.environ.get("BUILD_WORKING_DIRECTORY")
    if folder:
        os.chdir(folder)
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file", help="JSON lines, as the benchmarks' --json writes them")
    parser.add_argument("-o", "--output", help="the picture (default: FILE with .png instead of .json)")
    choices = [*sorted(UNITS), *sorted(STEP_UNITS), *ENTRANT_UNITS]
    parser.add_argument("--y", choices=choices, metavar="KEY",
                        help="what to draw: %s (default: algbw_GBps, or loss over steps or bytes)"
                        % ", ".join(choices))
    parser.add_argument("--title", help="default: what was measured, on how many nodes")
    args = parser.parse_args()
    args.output = args.output or os.path.splitext(args.file)[0] + ".png"
    kind = kind_of(args.file)
    make, needed, units, key, _ = KINDS[kind]
    if args.y and args.y not in units:
        whose = [KINDS[one][4] for one in KINDS if args.y in KINDS[one][2]]
        fail("%s: --y %s is for %s" % (args.file, args.y, whose[0]))
    args.y = args.y or key
    rows = read_rows(args.file, needed)
    gnuplot = shutil.which("gnuplot")
    if not gnuplot:
        fail("gnuplot is not installed (Debian: gnuplot-nox)")
    done = subprocess.run([gnuplot], input=make(rows, args).encode(), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE)
    if done.returncode != 0:
        fail("gnuplot: " + done.stderr.decode(errors="replace").strip())
    print(args.output)


if __name__ == "__main__":
    main()
