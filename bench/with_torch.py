"""What the benches in Python share: this repository's files, an interpreter with torch, the wheel, rows
as JSON lines."""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import zipfile

TORCH_VENV = "tests/plugin/torch/torch_venv.py"
# 97.5 % quantiles for 1, 2, ... degrees of freedom.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
           2.201, 2.179, 2.160, 2.145, 2.131)


def bases():
    """Return folders that may hold this repository's files: where Bazel runs things or puts what they need;
    and the sources, with what Bazel has built, for a bench that is started by its path."""
    runfiles = pathlib.Path(os.environ.get("RUNFILES_DIR", "."))
    sources = pathlib.Path(__file__).resolve().parent.parent
    return [pathlib.Path.cwd(), runfiles / "thinwire", sources, sources / "bazel-bin"]


def runfile(path):
    """Return the path of a file of this repository."""
    return next(base / path for base in bases() if (base / path).exists()).absolute()


def find_python(version=None):
    """Return an interpreter with torch: the caller's, or one in the user's cache, made if need be, with that
    version of torch."""
    if os.environ.get("TW_TORCH_PYTHON"):
        return os.environ["TW_TORCH_PYTHON"]
    command = [sys.executable, runfile(TORCH_VENV)]
    command += ["--torch", version] if version else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit("no interpreter with PyTorch")
    return done.stdout.split()[-1]


def unpack_wheel(folder):
    """Unpack the package thinwire into a folder for PYTHONPATH."""
    wheel = next(found for base in bases() for found in base.glob("plugin/torch/thinwire-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)


def run_job(python, folder, args, flags, variables, limit_sec=0):
    """Run bench/fsdp_job.py on the nodes of a cluster in a box, with the wheel that lies in `folder`; stop it
    after limit_sec. args: the bench's. Returns (the job's line or None, what was said)."""
    result = pathlib.Path(folder, "result.json")
    result.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TW_")}
    environment |= {"PYTHONPATH": folder, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"} | variables
    command = ["timeout", limit_sec, runfile("bench/cluster"), "--nodes", args.nodes, "--link", args.link,
               "--", python, runfile("bench/fsdp_job.py"), "--params", args.params, "--steps", args.steps,
               "--json", result, "--nic", "eth0", *flags, *args.job_args.split()]
    done = subprocess.run([str(word) for word in command], env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    is_done = done.returncode == 0 and result.exists()
    return json.loads(result.read_text(encoding="utf-8")) if is_done else None, done.stdout


def interval(values):
    """Return half of the 95 % interval of a mean, by Student's distribution; None for a single value."""
    if len(values) < 2:
        return None
    quantile = STUDENT[min(len(values) - 2, len(STUDENT) - 1)]
    return quantile * statistics.stdev(values) / len(values) ** 0.5


def users(path):
    """Return a user's path, relative to the user's folder: `bazel run` starts programs elsewhere."""
    return pathlib.Path(os.environ.get("BUILD_WORKING_DIRECTORY", "."), path)


def finish(rows, path):
    """Write the rows as JSON lines to `path`, unless it is None, and count those that are not ok. Returns the
    exit code."""
    if path:
        users(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    bad = sum(not row["ok"] for row in rows)
    print("# %d rows, %d not ok" % (len(rows), bad))
    return 1 if bad else 0
