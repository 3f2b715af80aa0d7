"""The files that checks read: those of the checkout itself, not Bazel's copies of them."""

import os
import re
import subprocess

C_FILES = (".c", ".h", ".cc", ".cu", ".cuh")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)  # of C


def enter():
    """Goes to the checkout's root."""
    os.chdir(os.path.dirname(os.path.realpath("WORKSPACE")))


def tracked(*endings):
    """Returns the tracked files with these endings, or all if none is given. Outside Git, every file
    counts."""
    found = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-z"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if found.returncode == 0:
        names = found.stdout.decode().split("\0")
    else:
        names = [os.path.relpath(os.path.join(folder, name), ".")
                 for folder, _, files in os.walk(".") if "/bazel-" not in folder and "/.git" not in folder
                 for name in files]
    return sorted(n for n in names if n.endswith(endings or ("",)) and os.path.isfile(n))


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
