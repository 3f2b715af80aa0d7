"""Functions that the benches in Python share."""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import zipfile

TORCH_VENV = "tests/plugin/torch/torch_venv.py"
# 97.5 % quantiles of Student's distribution for 1, 2, ... degrees of freedom.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
           2.201, 2.179, 2.160, 2.145, 2.131)


def bases():
    """Return folders that may hold this repository's files: Bazel's working folder and runfiles, then, for a
    bench that was started by its path, the checkout and bazel-bin."""
    runfiles = pathlib.Path(os.environ.get("RUNFILES_DIR", "."))
    sources = pathlib.Path(__file__).resolve().parent.parent
    return [pathlib.Path.cwd(), runfiles / "thinwire", sources, sources / "bazel-bin"]


def runfile(path):
    """Return the path of a file of this repository."""
    return next(base / path for base in bases() if (base / path).exists()).absolute()


def find_python(version=None):
    """Return an interpreter with torch: $TW_TORCH_PYTHON, or one in the user's cache with this version of
    torch, which is made if it does not exist."""
    if os.environ.get("TW_TORCH_PYTHON"):
        return os.environ["TW_TORCH_PYTHON"]
    command = [sys.executable, runfile(TORCH_VENV)]
    command += ["--torch", version] if version else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit("no interpreter with PyTorch")
    return done.stdout.split()[-1]


def unpack_wheel(folder):
    """Unpack the wheel of the package thinwire into a folder, for PYTHONPATH."""
    wheel = next(found for base in bases() for found in base.glob("plugin/torch/thinwire-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)


def run_job(python, folder, args, flags, variables, limit_sec=0):
    """Run bench/fsdp_job.py on a cluster in a box, with the package thinwire in `folder`. Stops it after
    limit_sec (0: no limit). Returns (the job's JSON line as a dictionary, or None if it failed; its
    output)."""
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
    """Return half of the width of the 95 % confidence interval of a mean; None for a single value."""
    if len(values) < 2:
        return None
    quantile = STUDENT[min(len(values) - 2, len(STUDENT) - 1)]
    return quantile * statistics.stdev(values) / len(values) ** 0.5


def users(path):
    """Return a path that the user gave, relative to the user's folder, as `bazel run` changes the folder."""
    return pathlib.Path(os.environ.get("BUILD_WORKING_DIRECTORY", "."), path)


def finish(rows, path):
    """Write the rows as JSON lines to `path`, unless it is None. Returns the exit code: 1 if a row is not
    ok."""
    if path:
        users(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    bad = sum(not row["ok"] for row in rows)
    print("# %d rows, %d not ok" % (len(rows), bad))
    return 1 if bad else 0
