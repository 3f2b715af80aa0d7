#!/usr/bin/env python3
"""pictures.py check|fix: docs/step.svg, a training step on two nodes, and docs/layers.svg, the folders of the
code. Both are drawn here; the arrows between folders are those of .ci/layers.py."""

import os
import pathlib
import runpy
import sys
from xml.sax.saxutils import escape

WIDTH = 960
INK, GREY, PAPER = "#1f2328", "#59636e", "#ffffff"
NETWORK, MEMORY = "#c2410c", "#0969da"
FONT = "Verdana, 'DejaVu Sans', sans-serif"
BOX = {"stroke": "#8c959f", "rx": 6}


class Picture:
    """What is drawn, in order, as lines of SVG."""

    def __init__(self, height, title):
        self.lines = [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">'
            % (WIDTH, height, WIDTH, height), "<title>%s</title>" % escape(title)]
        self.box(0, 0, WIDTH, height, PAPER, stroke="none")

    def add(self, name, text=None, **attributes):
        words = " ".join('%s="%s"' % (key.replace("_", "-"), value) for key, value in attributes.items())
        end = "/>" if text is None else ">%s</%s>" % (escape(text), name)
        self.lines.append("<%s %s%s" % (name, words, end))

    def box(self, x, y, width, height, fill, **attributes):
        self.add("rect", x=x, y=y, width=width, height=height, fill=fill, **attributes)

    def text(self, x, y, text, size=14, fill=INK, anchor="middle", weight="normal"):
        self.add("text", text, x=x, y=y, font_family=FONT, font_size=size, fill=fill, text_anchor=anchor,
                 font_weight=weight)

    def arrow(self, start, end, thick=1.5, colour=GREY, both=False):
        """A line with a head at its end, or at both: heads are triangles, as wide as the line needs."""
        (x, y), (to_x, to_y) = start, end
        length = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5
        along = ((to_x - x) / length, (to_y - y) / length)
        head = max(8.0, thick * 0.9)
        half = max(4.5, thick * 0.9)
        from_x, from_y = (x + along[0] * head, y + along[1] * head) if both else (x, y)
        self.add("line", x1="%.1f" % from_x, y1="%.1f" % from_y, x2="%.1f" % (to_x - along[0] * head),
                 y2="%.1f" % (to_y - along[1] * head), stroke=colour, stroke_width=thick)
        for tip, way in ([(end, 1), (start, -1)] if both else [(end, 1)]):
            back = (tip[0] - way * along[0] * head, tip[1] - way * along[1] * head)
            corners = [tip, (back[0] - along[1] * half, back[1] + along[0] * half),
                       (back[0] + along[1] * half, back[1] - along[0] * half)]
            self.add("polygon", points=" ".join("%.1f,%.1f" % corner for corner in corners), fill=colour)

    def svg(self):
        return "\n".join(self.lines + ["</svg>", ""])


# ---- a step on two nodes -----------------------------------------------------------------------------------

# Per phase: its name, what travels between nodes (what, parts of M), and two lines of explanation.
PLAIN = [
    ("forward", [("weights", 1.0)],
     ["each layer's weights are gathered", "from all ranks, then thrown away"]),
    ("backward", [("weights", 1.0), ("gradients", 1.0)],
     ["the weights are gathered again;", "gradients are reduced"]),
    ("update", [], ["each rank updates its quarter", "of the weights"]),
]
THINWIRE = [
    ("forward", [], ["the weights are gathered from", "the replica that the node keeps"]),
    ("backward", [("gradients", 0.65)], ["weights likewise; gradients are", "entropy-coded, and reduced"]),
    ("update", [("changes", 0.15)], ["each rank sends how its quarter has", "changed; replicas apply that"]),
]
M_THICK = 18  # of an arrow that stands for M bytes
PANEL, NODE, GAP = 306, 84, 118


def draw_node(picture, x, y, node, held):
    picture.box(x, y, NODE, 132, "#f6f8fa", **BOX)
    picture.text(x + NODE / 2, y + 17, "node %d" % node, 13, GREY)
    for i in range(2):
        top = y + 25 + i * 58
        picture.box(x + 8, top, NODE - 16, 40, PAPER, **BOX)
        picture.text(x + NODE / 2, top + 17, "rank %d" % (2 * node + i), 13)
        picture.text(x + NODE / 2, top + 33, held[2 * node + i], 12, GREY)


def draw_phase(picture, x, y, phase, held):
    """Two nodes, what goes between them, and what stays inside."""
    name, sent, words = phase
    left, right = x + 10 + NODE, x + 10 + NODE + GAP
    picture.text(x + 10 + NODE + GAP / 2, y, name, 15, weight="bold")
    for node in range(2):
        draw_node(picture, x + 10 + node * (NODE + GAP), y + 14, node, held)
        if name != "update":
            middle = x + 10 + NODE / 2 + node * (NODE + GAP)
            picture.arrow((middle, y + 79), (middle, y + 97), 2, MEMORY, both=True)
    for i, (what, part) in enumerate(sent):
        at = y + 80 if len(sent) == 1 else y + 52 + i * 66
        picture.text((left + right) / 2, at - 15, what, 13, NETWORK)
        picture.arrow((left + 4, at), (right - 4, at), part * M_THICK, NETWORK, both=True)
        picture.text((left + right) / 2, at + 26, "M" if part == 1 else "%.2f M" % part, 14, NETWORK,
                     weight="bold")
    if not sent:
        picture.text((left + right) / 2, y + 85, "nothing", 13, GREY)
    for i, line in enumerate(words):
        picture.text(x + 10 + NODE + GAP / 2, y + 168 + 18 * i, line, 13)


def draw_way(picture, y, title, phases, held):
    total = sum(part for phase in phases for _, part in phase[1])
    picture.box(12, y, WIDTH - 24, 250, PAPER, stroke="#d0d7de", rx=8)
    picture.text(30, y + 26, title, 16, anchor="start", weight="bold")
    picture.text(WIDTH - 30, y + 26, "%s M between nodes" % ("%.2f" % total if total % 1 else "%d" % total),
                 16, NETWORK, "end", "bold")
    for i, phase in enumerate(phases):
        draw_phase(picture, 24 + i * PANEL, y + 52, phase, held)


def step():
    picture = Picture(612, "A training step on two nodes of two ranks: plain ZeRO-3, and Thinwire, lossless")
    draw_way(picture, 12, "Plain ZeRO-3", PLAIN, ["w0", "w1", "w2", "w3"])
    draw_way(picture, 274, "Thinwire, lossless: the same losses, bit for bit", THINWIRE,
             ["w0 w2", "w1 w3", "w0 w2", "w1 w3"])
    picture.arrow((30, 546), (90, 546), 8, NETWORK, both=True)
    picture.text(102, 551, "between nodes, over the network: the wider, the more bytes", 13, anchor="start")
    picture.arrow((560, 546), (600, 546), 2, MEMORY, both=True)
    picture.text(612, 551, "inside a node, through shared memory", 13, anchor="start")
    picture.text(30, 578, "M: the bytes of the model in bf16. w0 to w3: quarters of its weights; under each "
                 "rank, those that it keeps between steps.", 13, anchor="start")
    picture.text(30, 598, "How long lossless messages are depends on what they carry: 0.65 M and 0.15 M are "
                 "usual.", 13, anchor="start")
    return picture.svg()


# ---- the layers of the code --------------------------------------------------------------------------------

# folder -> place of its box's middle, what it is
FOLDERS = {
    "trainer": (270, 130, ["models, ZeRO engine,", "data, checkpoints, planner"]),
    "plugin": (590, 130, ["under NCCL,", "in PyTorch"]),
    "doctor": (846, 130, ["measures links,", "says what is slow"]),
    "flags": (114, 250, ["programs' command lines"]),
    "hpz": (405, 250, ["who owns which weights,", "replicas, their changes"]),
    "cluster": (114, 370, ["a cluster in a box"]),
    "safetensors": (270, 490, ["files of weights"]),
    "collectives": (490, 370, ["topology, cost model,", "algorithms, requests"]),
    "quant": (570, 490, ["codecs: CPU, CUDA"]),
    "transport": (846, 490, ["rendezvous, sockets,", "UCX, counters"]),
}
BOX_WIDTH, BOX_HEIGHT = 204, 66
TOP, BOTTOM = (40, "bench, tests", "may include any folder's public header"), \
    (600, "core", "status, log, configuration tables, JSON")


def direct(below):
    """Arrows that no chain of others says already."""
    def reached(folder):
        return set(below[folder]).union(*[reached(one) for one in below[folder]])
    return [(folder, one) for folder in FOLDERS for one in below[folder]
            if not any(one in reached(other) for other in below[folder])]


def draw_bar(picture, bar):
    y, name, words = bar
    picture.box(12, y - 24, WIDTH - 24, 48, "#f6f8fa", **BOX)
    picture.text(30, y + 5, name, 16, anchor="start", weight="bold")
    picture.text(WIDTH - 30, y + 5, words, 13, GREY, "end")


def ends(folder, other):
    """Where an arrow leaves a folder's box and reaches another's, by their places."""
    x, y, _ = FOLDERS[folder]
    if other == "core":
        return (x, y + BOX_HEIGHT / 2), (x, BOTTOM[0] - 24)
    to_x, to_y, _ = FOLDERS[other]
    lean = max(-0.38, min(0.38, (to_x - x) / 600)) * BOX_WIDTH
    return (x + lean, y + BOX_HEIGHT / 2), (to_x - lean, to_y - BOX_HEIGHT / 2)


def layers():
    sys.path.insert(0, ".ci")  # what the script imports is beside it
    below = runpy.run_path(".ci/layers.py")["BELOW"]
    assert set(below) == set(FOLDERS) | {"core", "bench", "tests"}, "a folder has no place in the picture"
    picture = Picture(640, "The folders of the code: an arrow goes to what a folder is built on")
    draw_bar(picture, TOP)
    draw_bar(picture, BOTTOM)
    for folder, other in direct(below):
        picture.arrow(*ends(folder, other))
    for name, (x, y, words) in FOLDERS.items():
        picture.box(x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2, BOX_WIDTH, BOX_HEIGHT, "#ddf4ff", **BOX)
        picture.text(x, y - 11 if len(words) > 1 else y - 4, name, 16, weight="bold")
        for i, line in enumerate(words):
            picture.text(x, y + (9 if len(words) > 1 else 17) + 16 * i, line, 13, GREY)
    return picture.svg()


def main(mode):
    # A symbolic link under Bazel leads to the checkout.
    os.chdir(pathlib.Path("WORKSPACE").resolve().parent)
    wrong = 0
    for path, drawn in (("docs/step.svg", step()), ("docs/layers.svg", layers())):
        file = pathlib.Path(path)
        if mode == "fix":
            file.write_text(drawn, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != drawn:
            print("%s is not what docs/pictures.py draws: docs/pictures.py fix" % path, file=sys.stderr)
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
