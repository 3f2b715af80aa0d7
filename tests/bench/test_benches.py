#!/usr/bin/env python3
"""bench/torch_bench.py, bench/suite.py, bench/loss.py, bench/zero.py: what they make of what was measured."""

import argparse
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path("bench").resolve()))

import loss
import suite
import torch_bench
import zero


def bench(**modes):
    """Runs of one round: mode=(seconds of a step, bytes of a step, losses)."""
    args = argparse.Namespace(nodes=4, link="1gbit", compute_ms=0, job_args="")
    runs = {mode.replace("_", "-"): [{"params": 10, "step_sec": [9.0] + [seconds] * 3, "sent_bytes": [n] * 4,
                                      "losses": losses, "times": {}}]
            for mode, (seconds, n, losses) in modes.items()}
    return argparse.Namespace(args=args, runs=runs)


class TorchBench(unittest.TestCase):
    def rows(self, **modes):
        return {row["mode"]: row for row in torch_bench.rows(bench(**modes))}

    def test_plain_is_the_base_and_computing_is_taken_off(self):
        found = self.rows(alone=(0.2, 0, [9.0]), gloo=(1.4, 150, [3.0]), plain=(1.0, 100, [3.0]),
                          default=(0.4, 21, [3.0]))
        self.assertNotIn("alone", found)
        self.assertEqual([0.21, 1.5], [found[mode]["bytes_ratio"] for mode in ("default", "gloo")])
        self.assertAlmostEqual(2.5, found["default"]["speedup"])
        self.assertAlmostEqual(1.0 / 1.4, found["gloo"]["speedup"])
        self.assertAlmostEqual(0.8 / 0.2, found["default"]["added_speedup"])
        self.assertEqual(0.2, found["gloo"]["computing_sec"])
        self.assertTrue(all(row["ok"] for row in found.values()), found)

    def test_lossless_is_plain_bit_for_bit(self):
        found = self.rows(alone=(0.2, 0, [9.0]), plain=(1.0, 100, [3.0]), default=(0.4, 21, [3.0 + 1e-12]))
        self.assertFalse(found["default"]["ok"])
        self.assertIn("plain's", found["default"]["why"])

    def test_gloo_may_sum_in_another_order_on_more_than_two_ranks(self):
        made = bench(alone=(0.2, 0, [9.0]), gloo=(1.4, 150, [3.0]), plain=(1.0, 100, [3.00001]))
        found = {row["mode"]: row for row in torch_bench.rows(made)}
        self.assertTrue(found["plain"]["ok"], found["plain"]["why"])
        self.assertFalse(found["plain"]["losses_equal_gloo"])
        made.args.nodes = 2
        self.assertFalse({row["mode"]: row for row in torch_bench.rows(made)}["plain"]["ok"])

    def test_a_lossy_mode_may_differ_but_not_send_too_much(self):
        found = self.rows(alone=(0.2, 0, [9.0]), plain=(1.0, 100, [3.0]), delta_int4=(0.4, 26, [4.0]))
        self.assertIn("sends 0.260 of plain's bytes", found["delta-int4"]["why"])


class Suite(unittest.TestCase):
    def row(self, losses, target, sec=2.0):
        return suite.make_row({"params": 1, "losses": losses, "step_sec": [sec] * len(losses),
                               "sent_bytes": [3e6] * len(losses)}, target)

    def test_a_loss_is_the_mean_of_a_window(self):
        self.assertEqual([4.0, 3.0, 2.0], suite.smooth([4, 2, 0]))
        self.assertEqual(2.0, suite.smooth([9.0] * 5 + [2.0] * suite.WINDOW)[-1])

    def test_the_target_is_come_to_once(self):
        # The first of these means is low by chance.
        row = self.row([1.0, 7.0] + [5.0] * 10 + [3.0] * 10, 4.0)
        self.assertEqual((17, 51.0, 34.0), tuple(row[key] for key in (
            "steps_to_target", "mb_to_target", "sec_to_target")))
        self.assertEqual((3.0, (66.0, 44.0, 3.0)), (row["loss_last"], row["curve"][-1]))
        self.assertNotIn("steps_to_target", self.row([5.0] * 20, 4.0))

    def test_compared_with_the_first(self):
        base, row = self.row([3.0] * 10, 4.0), self.row([5.0] * 6 + [3.0] * 10, 4.0, sec=0.5)
        suite.compare(row, base)
        self.assertAlmostEqual(row["mb_to_target"] / 30, row["bytes_ratio"])
        self.assertAlmostEqual(20 / row["sec_to_target"], row["speedup"])
        row = self.row([5.0] * 20, 4.0)
        suite.compare(row, base)
        self.assertIn("       -", suite.line(row | {"entrant": "", "why": ""}))

    def test_an_error_is_what_a_rank_says_first(self):
        said = "[rank 1] [rank1]: Traceback\n[rank 1] [rank1]: a.b.SomeError: no such op\nkilled by 15\n"
        self.assertEqual(["a.b.SomeError: no such op"], suite.ERROR.findall(said))


class Loss(unittest.TestCase):
    def row(self, losses, digest):
        return {"seed_losses": losses, "losses": digest, "curve": [losses]}

    def test_distances_are_of_the_same_seed(self):
        row = self.row([1.1, 2.2, 3.3], "b")
        loss.compare(row, self.row([1.0, 2.0, 3.0], "a"))
        self.assertAlmostEqual(10.0, row["off_percent"])
        self.assertAlmostEqual(0.0, row["off_percent_interval"])
        self.assertEqual([loss.WINDOW, 10.0, 0.0], row["off_curve"][0])
        self.assertFalse(row["equal"])

    def test_interval_is_students(self):
        row = self.row([1.0, 1.02, 1.04], "b")
        loss.compare(row, self.row([1.0, 1.0, 1.0], "a"))
        self.assertAlmostEqual(4.303 * 2.0 / 3 ** 0.5, row["off_percent_interval"])

    def test_equal_means_the_same_bits(self):
        row = self.row([1.0, 2.0], "a")
        loss.compare(row, self.row([1.0, 2.0], "a"))
        self.assertTrue(row["equal"])
        self.assertIn("bit for bit", loss.line(row | {"case": "", "grads": "", "params": 0, "loss": 0,
                                                      "processor_sec": 0}))

    def test_reads_what_is_there(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "loss.jsonl")
            self.assertEqual([], loss.read_rows(path))
            path.write_text(json.dumps({"case": "outlier"}) + "\n")
            self.assertEqual([{"case": "outlier"}], loss.read_rows(path))


def zero_row(seconds=0.5, losses="a", ok=True, sent=6e6):
    return {"step_sec_median": seconds, "losses": losses, "ok": ok, "inter_node_bytes_per_step": sent}


class Zero(unittest.TestCase):
    def test_of_rounds_the_middle_one_counts(self):
        rounds = [zero_row(seconds) | {"round": i} for i, seconds in enumerate((0.5, 0.2, 0.3, 0.9, 0.3))]
        for n, (seconds, number) in enumerate(((0.5, 0), (0.2, 1), (0.3, 2), (0.3, 2), (0.3, 4)), 1):
            row = zero.middle(rounds[:n])
            self.assertEqual((seconds, number, True), (row["step_sec_median"], row["round"], row["ok"]))
        self.assertFalse(zero.middle(rounds + [zero_row(losses="b")])["ok"], "a round had other losses")
        self.assertFalse(zero.middle(rounds + [zero_row(ok=False)])["ok"], "a round failed")

    def test_compared_with_the_base(self):
        row = zero_row(0.125, sent=1.5e6)
        zero.compare(row, zero_row())
        self.assertEqual((0.25, 4, True), (row["bytes_ratio"], row["speedup"], row["losses_equal"]))
        zero.compare(row, zero_row(losses="b"))
        self.assertFalse(row["losses_equal"])

    def test_no_node_sends_anything(self):
        row = zero_row(sent=0)
        zero.compare(row, zero_row(sent=0))
        self.assertIsNone(row["bytes_ratio"])

    def test_a_dash_stands_for_what_is_not_known(self):
        self.assertEqual("  -", zero.cell(zero.text_of(None, 2, 1), 3))
        self.assertEqual("12.5  ", zero.cell(zero.text_of(0.125, 1, 100), -6))


if __name__ == "__main__":
    unittest.main()
