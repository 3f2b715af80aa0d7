"""reporting/page.py: one page of what all ranks have done, which a browser shows without a network."""

import html.parser
import re
import shutil
import subprocess

import pytest
import ranks
import torch
from thinwire.fsdp import hooks
from thinwire.reporting import page, report
from thinwire.telemetry import spans
from torch import nn
from torch.distributed.fsdp import fully_shard

WIDTH = 96


def pages(path, silent=(), **environment):
    """The page that three ranks have written, and what each has logged of it."""

    def use(rank):
        hooks.patch()
        page.PATIENCE_SEC = 0.2 if silent else 30.0
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        for _ in range(6):
            model(torch.ones(4, WIDTH)).sum().backward()
        if rank not in silent:
            report._log()
        return ranks.logged("TW_REPORT"), {kind: one.sent_bytes for kind, one in report.report().items()}

    found = ranks.run(3, use, nodes=[0, 0, 1], TW_REPORT=str(path), TW_MIN_BYTES="1", **ranks.SLOW,
                      **environment)
    return (path.read_text() if path.exists() else ""), found


class Reader(html.parser.HTMLParser):
    """Tags that are open, and what is in the page."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not {"src", "href", "onload"} & dict(attrs).keys()
        self.open += [tag] if tag not in ("meta", "p", "br") else []

    def handle_endtag(self, tag):
        assert tag == "p" or self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_what_all_ranks_have_done(tmp_path):
    text, found = pages(tmp_path / "report.html", TW_GRADS="int4")
    assert [lines for lines, _ in found] == [[]] * 3
    read = Reader(text)
    assert not read.open and "script" not in read.tags and read.tags.count("svg") == 5
    assert "http" not in text and "url(" not in text
    sent = sum(sum(kinds.values()) for _, kinds in found)
    assert text.count("%.1f MB sent to other nodes by all ranks" % (sent / 1e6)) == 1
    assert "3 ranks on 2 nodes" in text
    for label in ("rank 0, node 0", "rank 1, node 0", "rank 2, node 1", "all-gather", "reduce-scatter: 1"):
        assert label in read.texts, label
    assert re.search(r"[0-9.]+ s, \d+ % of the run", text) and re.search(r"0\.\d+, \d+ % became 0", text)


def test_ranks_that_say_nothing_are_named(tmp_path):
    text, _ = pages(tmp_path / "report.html", silent=(1,))
    assert "Nothing was heard from rank 1." in text and "rank 2, node 1" in text
    assert "<br>FSDP2 over thinwire: weights delta, gradients lossless" in text and "No samples" in text


def test_a_file_that_cannot_be_written(tmp_path):
    text, found = pages(tmp_path / "nowhere/report.html")
    assert not text and len(found[0][0]) == 1 and found[1][0] == found[2][0] == []
    assert "TW_REPORT=%s: " % (tmp_path / "nowhere/report.html") in found[0][0][0]


def test_operations_of_before_the_strip_begin_and_end_with_it():
    picture = page._strip([spans.Span("long", 0.0, 10.0), spans.Span("old", 0.0, 10.0 - page.STRIP_SEC)])
    (one,) = re.findall(r'<rect x="([0-9.]+)" y="[0-9.]+" width="([0-9.]+)"', picture)
    assert one == ("80.0", "%.1f" % (page.WIDTH - 80)) and "long: 10000.0 ms" in picture


def test_names_are_escaped():
    assert "<i>" not in page._bars([("<i>", [(1.0, page.GREY, "<i>")], "<i>")])


def test_in_a_browser(tmp_path):
    """Chromium draws every bar, and finds nothing to complain of."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("not installed: chromium")
    text, _ = pages(tmp_path / "report.html", TW_GRADS="int4")
    picture = tmp_path / "picture.png"
    flags = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir=%s" % tmp_path,
             "--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND"]
    shown = subprocess.run([*flags, "--dump-dom", (tmp_path / "report.html").as_uri()], capture_output=True,
                           text=True, timeout=100)
    assert shown.returncode == 0 and "CONSOLE" not in shown.stderr, shown.stderr
    assert shown.stdout.count("<rect") == text.count("<rect") > 10
    assert "<title>Thinwire: report</title>" in shown.stdout
    subprocess.run([*flags, "--screenshot=%s" % picture, (tmp_path / "report.html").as_uri()],
                   capture_output=True, timeout=100, check=True)
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10000
