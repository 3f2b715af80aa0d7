#!/usr/bin/env python3
"""`pip wheel .` in a copy of the tracked files, without Bazel; what the wheel has and can do,
installed by pip. Nothing is fetched. Arguments: the same libraries as Bazel makes them."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
import venv

LIBRARIES = sys.argv[1:]
# Of a public header, what only kernels have.
WITH_CUDA = {"tw_quant_cuda_status"}
RANK = """
import ctypes as C, json, os
from thinwire import capi
capi.lib().tw_coll_world_create.argtypes = [C.c_void_p, C.c_void_p]
n, rank, coll, request = 100003, int(os.environ["RANK"]), C.c_void_p(), C.c_void_p()
begin, n_own = (0, (n + 1) // 2) if rank == 0 else ((n + 1) // 2, n // 2)
source, whole = (C.c_float * n_own)(*range(begin, begin + n_own)), (C.c_float * n)()
capi.check(capi.lib().tw_coll_world_create(C.byref(capi.Params(mem=capi.HOST)), C.byref(coll)), "create")
segment = capi.Segment(src=C.addressof(source), dst=C.addressof(whole), n_elems=n)
args = capi.Args(op=capi.ALLGATHER, type=capi.FP32, segments=C.pointer(segment), n_segments=1)
capi.check(capi.lib().tw_coll_post(coll, C.byref(args), C.byref(request)), "post")
capi.check(capi.lib().tw_coll_wait(request), "wait")
sent = capi.Counters()
capi.lib().tw_coll_counters_get(coll, C.byref(sent))
capi.lib().tw_coll_destroy(coll)
print(json.dumps([list(whole) == list(range(n)), sent.inter_node_bytes]))
"""


def environment(**more):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "TW_", "THINWIRE_", "CC"))}
    return kept | more


def run(*command, **more):
    words = [str(one) for one in command]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(**more))
    assert done.returncode == 0, "%s\n%s%s" % (command, done.stdout, done.stderr)
    return done.stdout


def copy_tracked(to):
    root = pathlib.Path(os.path.realpath("WORKSPACE")).parent
    listed = subprocess.run(["git", "-C", root, "-c", "safe.directory=*", "ls-files", "-z"],
                            capture_output=True)
    if listed.returncode:  # a source archive
        shutil.copytree(root, to, ignore=shutil.ignore_patterns("bazel-*"))
        return
    for name in os.fsdecode(listed.stdout).split("\0"):
        if name and (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, to / name)


def exported(library):
    lines = run("nm", "-D", "--defined-only", library).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines}


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.source = cls.folder / "source"
        copy_tracked(cls.source)
        venv.create(cls.folder / "venv", with_pip=True)
        cls.python = cls.folder / "venv/bin/python3"
        pip = (cls.python, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir")
        run(*pip, "wheel", "--no-index", "--no-deps", "-w", cls.folder, cls.source)
        (cls.wheel,) = cls.folder.glob("thinwire-*-py3-none-linux_*.whl")
        run(*pip, "install", "--no-index", "--no-deps", cls.wheel)
        (cls.site,) = (cls.folder / "venv").glob("lib/python3*/site-packages/thinwire")

    def test_what_is_exported_is_what_bazels_export(self):
        ours = {path.name: path for path in self.site.rglob("lib*.so*")}
        self.assertEqual(len(ours), 2, ours)
        for bazels in LIBRARIES:
            (own,) = [path for name, path in ours.items() if name.startswith(pathlib.Path(bazels).name)]
            self.assertGreater(len(exported(own)), 10)
            self.assertEqual(exported(own) - WITH_CUDA, exported(bazels) - WITH_CUDA)

    def test_two_ranks_gather_over_tcp(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        job = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": str(port), "TW_NET_DEVICES": "lo", "TW_NET_TLS": "tcp"}
        ranks = [subprocess.Popen([self.python, "-c", RANK], stdout=subprocess.PIPE, text=True,
                                  env=environment(RANK=str(rank), TW_NODE_ID="node%d" % rank, **job))
                 for rank in range(2)]
        for rank, process in enumerate(ranks):
            is_right, sent_bytes = json.loads(process.communicate(timeout=100)[0])
            self.assertTrue(is_right, rank)
            self.assertGreaterEqual(sent_bytes, 4 * 50001)

    def test_it_says_what_it_has_not(self):
        info = run(self.python, "-m", "thinwire", "info")
        self.assertIn("on GPUs none: built without CUDA", info)
        self.assertIn("no interposer (libthinwire-nccl.so)", info)
        plugin = run(self.python, "-m", "thinwire", "nccl", "--plugin").strip()
        run(self.python, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1]).ncclNetPlugin_v12", plugin)
        said = run("bash", "-c", run(self.python, "-m", "thinwire", "nccl") + 'echo "$NCCL_NET_PLUGIN"')
        self.assertEqual(said, "thinwire\n")

    def build(self, program):
        """What is said where a build fails."""
        path = "import sys; sys.path[:0] = ['package', 'plugin/torch']; import backend, pathlib\n"
        done = subprocess.run([sys.executable, "-c", path + program], cwd=self.source, capture_output=True,
                              text=True, env=environment())
        self.assertEqual(done.returncode, 1, done.stderr)
        return done.stderr

    def test_a_missing_library_is_named(self):
        said = self.build("backend.Build.prefixes = lambda _: [pathlib.Path('/nowhere')]\n"
                          "backend.build_wheel('.')")
        self.assertIn("libjansson is in none of these folders: /nowhere\n", said)
        for word in ("libsodium-dev", "jansson-devel", "conda-forge", "THINWIRE_PREFIX"):
            self.assertIn(word, said)

    def test_what_the_build_files_say_is_not_left_out(self):
        (self.source / "core/BUILD").write_text((self.source / "core/BUILD").read_text().replace(
            '    srcs = glob(["*.c"]),', '    srcs = glob(["*.c"]),\n    defines = ["X=1"],'))
        said = self.build("backend.build_wheel('.')")
        self.assertIn("core/BUILD: core has what package/backend.py does not know: defines\n", said)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
