#!/usr/bin/env python3
"""Hands the metrics of a training run (train --metrics FILE) on to TensorBoard or Weights & Biases.

usage: metrics FILE [--tensorboard FOLDER] [--wandb PROJECT] [--follow]

Each line of FILE is a step, or a text sampled after one. A run that went on after a fault may have a step
twice: the later one counts.
TensorBoard needs torch or tensorboardX, Weights & Biases the package wandb; neither is needed for the other.
"""
import argparse
import json
import sys
import time

ASIDE = ("run", "step")


def fail(why):
    sys.exit(f"metrics: {why}")


class TensorBoard:
    """Writes a folder of events for each run. Steps that are done again replace the earlier ones."""

    def __init__(self, folder):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            try:
                from tensorboardX import SummaryWriter
            except ImportError:
                fail("--tensorboard needs torch with tensorboard, or tensorboardX")
        self.make, self.folder = SummaryWriter, folder
        self.writer, self.run, self.step = None, None, 0

    def add(self, run, step, values):
        if run != self.run or step <= self.step:
            self.close()
            self.writer = self.make(f"{self.folder}/{run}", purge_step=step)
        self.run, self.step = run, step
        for key, value in values.items():
            self.writer.add_scalar(key, value, step)
        self.writer.flush()

    def add_text(self, run, step, text):
        if run == self.run:
            self.writer.add_text("sample", text, step)

    def close(self):
        if self.writer:
            self.writer.close()
            self.writer = None


class Wandb:
    """Logs a run under its id. The step is logged as a value, since W&B's own step cannot go back."""

    def __init__(self, project):
        try:
            import wandb
        except ImportError:
            fail("--wandb needs the package wandb")
        self.wandb, self.project, self.run = wandb, project, None

    def add(self, run, step, values):
        if run != self.run:
            self.close()
            self.wandb.init(project=self.project, id=run, name=run, resume="allow")
            self.wandb.define_metric("step")
            self.wandb.define_metric("*", step_metric="step")
            self.run = run
        self.wandb.log(dict(values, step=step))

    def add_text(self, run, step, text):
        if run == self.run:
            self.wandb.log({"sample": text, "step": step})

    def close(self):
        if self.run:
            self.wandb.finish()
            self.run = None


def lines_of(path, follows):
    """Yields complete lines. With `follows`, waits for more lines, and starts again if the file shrinks."""
    rest = ""
    with open(path, encoding="utf-8", errors="replace") as file:
        while True:
            text = file.readline()
            rest += text
            if rest.endswith("\n"):
                yield rest
                rest = ""
            elif not text:
                if not follows:
                    return
                if file.tell() > file.seek(0, 2):
                    rest = ""
                    file.seek(0)
                time.sleep(1)


def parse(line):
    """Returns run, step, and numbers or a sampled text. None if a killed process left the line incomplete."""
    try:
        values = json.loads(line)
        run, step = str(values["run"]), int(values["step"])
    except (ValueError, KeyError, TypeError):
        return None
    if isinstance(values.get("sample"), str):
        return run, step, values["sample"]
    numbers = {k: v for k, v in values.items() if k not in ASIDE and isinstance(v, (int, float))}
    if numbers.get("step_sec", 0) > 0 and "tokens" in numbers:
        numbers["tokens_per_sec"] = numbers["tokens"] / numbers["step_sec"]
    return run, step, numbers


def main():
    parser = argparse.ArgumentParser(prog="metrics", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--tensorboard", metavar="FOLDER")
    parser.add_argument("--wandb", metavar="PROJECT")
    parser.add_argument("--follow", action="store_true", help="wait for more lines, until it is interrupted")
    args = parser.parse_args()
    if not args.tensorboard and not args.wandb:
        parser.error("where to: --tensorboard FOLDER or --wandb PROJECT")
    sinks = [TensorBoard(args.tensorboard)] if args.tensorboard else []
    sinks += [Wandb(args.wandb)] if args.wandb else []
    try:
        for line in lines_of(args.file, args.follow):
            step = parse(line)
            for sink in sinks if step else []:
                (sink.add_text if isinstance(step[2], str) else sink.add)(*step)
    except OSError as error:
        fail(error)
    except KeyboardInterrupt:
        pass
    finally:
        for sink in sinks:
            sink.close()


if __name__ == "__main__":
    main()
