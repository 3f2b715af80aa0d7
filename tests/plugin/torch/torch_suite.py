#!/usr/bin/env python3
"""torch_suite.py gloo|thinwire [NAME...]: PyTorch's own tests of collectives on CPUs, with that backend in
gloo's place.

By hand: it takes minutes. Prints a line "STATUS NAME" for each test, sorted, so that two runs can be compared
with diff. The interpreter is that of torch_venv.py, with the wheel unpacked in PYTHONPATH."""

import os
import sys
import tempfile
import unittest

WORLD = 3


def set_environment():
    os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": str(WORLD), "INIT_METHOD": "file://",
                   "TEMP_DIR": tempfile.mkdtemp(), "TW_MIN_BYTES": "1", "TW_NET_DEVICES": "lo",
                   "TW_PEER_TIMEOUT": "60s", "OMP_NUM_THREADS": "1"}
    for folder in ("barrier", "init_dir", "test_dir"):
        os.makedirs(os.path.join(os.environ["TEMP_DIR"], folder), exist_ok=True)


def take_gloos_place():
    """Groups that ask for gloo get Thinwire's backend."""
    import torch.distributed.distributed_c10d as c10d
    from thinwire.c10d import create

    c10d.Backend._ensure_backend_registered("gloo")
    plain = c10d.Backend._plugins["GLOO"]
    c10d.Backend._plugins["GLOO"] = plain._replace(creator_fn=create, extended_api=True)


def make_suite(names):
    import torch
    from torch.testing._internal.distributed import distributed_test

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # A fork is cheaper than an interpreter that imports torch.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    found = unittest.defaultTestLoader.getTestCaseNames(Suite)
    return [Suite(name) for name in found if not names or name in names]


def status_of(test):
    result = unittest.TestResult()
    test.run(result)
    for _, text in result.failures + result.errors:
        print(text, file=sys.stderr)
    if result.skipped:
        return "skipped"
    return "failed" if result.failures or result.errors else "passed"


def main():
    backend, names = sys.argv[1], sys.argv[2:]
    set_environment()
    if backend == "thinwire":
        take_gloos_place()
    for test in make_suite(names):
        print(status_of(test), test._testMethodName, flush=True)


if __name__ == "__main__":
    main()
