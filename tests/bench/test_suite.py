#!/usr/bin/env python3
"""bench/suite.py: a real run of two nodes, with an entrant that joins by its file and one that cannot run."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

JOINING = '''
NEEDS = []
ENTRANTS = {"joining": {"TW_DDP": "1", "TW_COLL_MODEL": "inter:beta=1mbit"}, "broken": {}}


def prepare(name, model, make_optimizer):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    if name == "broken":
        raise ValueError("it cannot run here")
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    found = DistributedDataParallel(model)
    return found, make_optimizer(found)
'''
STEPS = 12


def has_torch():
    finder = [sys.executable, "tests/plugin/torch/torch_venv.py", "--find"]
    return bool(os.environ.get("TW_TORCH_PYTHON") or subprocess.check_output(finder).strip())


@unittest.skipUnless(has_torch(), "no interpreter with PyTorch")
class Suite(unittest.TestCase):
    def run_suite(self, folder, *flags):
        command = [sys.executable, "bench/suite.py", "--nodes", "2", "--params", "100K", "--steps",
                   str(STEPS), "--json", str(folder / "out.json"), *flags]
        return subprocess.run(command, capture_output=True, text=True)

    def test_who_joins_by_a_file(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "joining.py").write_text(JOINING)
            done = self.run_suite(folder, "--entrants", "ddp,%s" % (folder / "joining.py"))
            self.assertEqual(1, done.returncode, "one cannot run\n" + done.stdout + done.stderr)
            ddp, joining, broken = map(json.loads, (folder / "out.json").read_text().splitlines())
        self.assertEqual(["# ddp", "# joining", "# broken"], done.stderr.splitlines())
        self.assertEqual("ValueError: it cannot run here", broken["why"])
        self.assertEqual([True, True, False], [row["ok"] for row in (ddp, joining, broken)])
        # Two ranks' gradients go to the other one once, in fp32. A rank may read its count while the other
        # one still sends the last step's.
        sent = ddp["curve"][-1][0] * 1e6
        self.assertLess(4 * ddp["params"] * (STEPS - 1), sent)
        self.assertLess(sent, 1.25 * 4 * ddp["params"] * STEPS)
        # Thinwire's hook, which the file asks for, loses nothing and sends less.
        self.assertEqual([point[2] for point in ddp["curve"]], [point[2] for point in joining["curve"]])
        self.assertLess(joining["bytes_ratio"], 0.95)
        self.assertIn("# to a loss of %.4f; part, faster: beside ddp" % ddp["target"], done.stdout)

    def test_an_unknown_one_is_named(self):
        done = self.run_suite(pathlib.Path("."), "--entrants", "ddp,nobody")
        self.assertEqual(1, done.returncode)
        self.assertIn("no such entrant: nobody; there are ddp, ", done.stderr)


if __name__ == "__main__":
    unittest.main()
