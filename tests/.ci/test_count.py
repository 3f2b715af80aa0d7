#!/usr/bin/env python3
"""Checks what count.py says of three runs: one in which a case fails, one target does not build and one ran
twice; one cut short; and one that has left nothing."""

import contextlib
import importlib
import io
import json
import os
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True

CASES = ('<testsuites><testsuite><testcase name="good"/>'
         '<testcase name="odd">%s</testcase></testsuite></testsuites>')
EXPECTED = """\
FAILED //a:one odd
FAILED //a:broken does not build
default         4 passed, 2 failed, 1 skipped
FAILED //a:one odd
FAILED cut.json did not finish
sanitizers      1 passed, 2 failed
FAILED nothing.json did not finish
nothing         0 passed, 1 failed
FAILED: //a:broken (default)
FAILED: //a:one (default, sanitizers)
FAILED: the run itself (sanitizers, nothing)
5 passed, 5 failed, 1 skipped
"""


def load():
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath("WORKSPACE")), ".ci"))
    return importlib.import_module("count")


def result(folder, label, status, odd, shard=1):
    """A test's event: one case is good, the other as `odd` says."""
    path = folder / ("%s%d.xml" % (label.strip("/").replace(":", "_"), shard))
    path.write_text(CASES % odd, encoding="utf-8")
    return {
        "id": {"testResult": {"label": label, "run": 1, "shard": shard}},
        "testResult": {"status": status, "testActionOutput": [{"name": "test.xml", "uri": path.as_uri()}]},
    }


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        fails = result(folder, "//a:one", "FAILED", "<failure/>")
        full = [
            fails,
            result(folder, "//a:one", "PASSED", "", shard=2),
            result(folder, "//a:two", "PASSED", "<skipped/>"),
            {"id": {"targetCompleted": {"label": "//a:broken"}}, "completed": {}},
            {"id": {"targetCompleted": {"label": "//a:for_arm"}}, "aborted": {"reason": "SKIPPED"}},
            {"finished": {"exitCode": {"code": 1}}},
        ]
        paths = [folder / "default.json", folder / "sanitizers.json", folder / "nothing.json"]
        for path, events in zip(paths, [full, [fails]]):
            path.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            code = load().main([str(path) for path in paths])
    text = said.getvalue().replace(str(paths[1]), "cut.json").replace(str(paths[2]), "nothing.json")
    if text != EXPECTED or code != 1:
        print("exit code %d, and:\n%s" % (code, text))
        return 1
    print("the count is right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
