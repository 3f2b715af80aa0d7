#!/usr/bin/env python3
"""torch_venv.py [--torch VERSION] [--dir DIR] [--find]: a virtual environment with PyTorch for a machine
without a GPU, and its interpreter's path on stdout. It is made once, in the user's cache, and kept.

PyTorch's wheel links a dozen CUDA libraries that a job on CPUs loads and never calls. They are gigabytes;
here, small stand-ins with the same names take their place. For tests and benches only."""

import argparse
import fcntl
import os
import pathlib
import re
import subprocess
import sys
import tempfile

NEWEST = "2.15.0"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "thinwire")
# pytest runs the tests; PyTorch's own distributed tests want the next ones; examples, test_clients.py,
# test_muon.py and test_store.py the rest.
EXTRAS = ["pytest", "numpy", "expecttest", "hypothesis", "transformers", "accelerate", "peft", "trl",
          "datasets", "lightning", "torchao", "torchtitan", "muon-optimizer", "s3fs", "moto[s3]", "flask",
          "flask-cors"]
# Not fetched: GPU libraries, but for the CUDA runtime, which an import does call.
GPU = re.compile(r"Requires-Dist: (nvidia-|cuda-|triton)")
SYSTEM = re.compile(r"^(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|z|quadmath)|ld-linux-x86-64)\.so")
NEEDED = re.compile(r"\(NEEDED\).*\[(.*)\]")
RUNTIME = re.compile(r"libcudart\.so\.(\d+)")


def say(text):
    print("torch_venv.py: " + text, file=sys.stderr, flush=True)


def run(*command):
    """Runs a command whose output is for people: on stderr."""
    subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr)


def output(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def install(python, *packages):
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check", *packages)


def forget_gpus(site):
    """Take the GPU libraries out of what the installed torch says that it needs, so that pip does not miss
    them."""
    path = next(site.glob("torch-*.dist-info")) / "METADATA"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(one for one in lines if not GPU.match(one)), encoding="utf-8")


def libraries(site):
    return [path for path in (site / "torch" / "lib").glob("*.so*") if path.is_file()]


def needed(path):
    return NEEDED.findall(output("readelf", "-dW", path))


def missing(site):
    """Libraries that torch links and nobody has, besides the CUDA runtime."""
    have = {path.name for path in libraries(site)}
    names = {name for path in libraries(site) for name in needed(path)} - have
    return sorted(name for name in names if not SYSTEM.match(name) and not RUNTIME.match(name))


def symbols(site):
    """(undefined, defined): undefined names of torch's libraries with their versions, and all that they
    define."""
    undefined, defined = set(), set()
    for path in libraries(site):
        for line in output("nm", "-DP", path).splitlines():
            name, kind = line.split()[:2]
            if kind in "UwV":
                undefined.add((name, kind))
            else:
                defined.add(name.split("@")[0])
    return {name for name, kind in undefined if kind == "U"}, defined


def version_owners(site):
    """{symbol version: library that defines it}."""
    owners = {}
    for path in libraries(site):
        library = None
        for line in output("readelf", "-VW", path).splitlines():
            line_file = re.search(r"File: (\S+)", line)
            library = line_file.group(1) if line_file else library
            line_name = re.search(r"Name: (\S+) +Flags", line)
            if line_name and library:
                owners[line_name.group(1)] = library
    return owners


def sort_symbols(site, libs):
    """{library: {version or None: [symbol]}} of what the stand-ins must define. Names without a version may
    be in any of them."""
    undefined, defined = symbols(site)
    owners = version_owners(site)
    plan = {library: {} for library in libs}
    for symbol in sorted(undefined):
        name, _, version = symbol.replace("@@", "@").partition("@")
        library = owners.get(version, "") if version else libs[0]
        if library in plan and name not in defined and not name.startswith(("Py", "_Py")):
            plan[library].setdefault(version or None, []).append(name)
    return plan


def stand_in(path, versions):
    """Compile a library whose functions all return 1: an error, in CUDA's libraries."""
    with tempfile.TemporaryDirectory() as folder:
        source, script = pathlib.Path(folder, "s.c"), pathlib.Path(folder, "s.map")
        names = sorted(name for names in versions.values() for name in names)
        source.write_text("".join("long %s(void) { return 1; }\n" % name for name in names)
                          + "extern int none;\n")
        script.write_text("".join("%s { global: %s; };\n" % (version, "; ".join(names))
                                  for version, names in versions.items() if version))
        flags = ["-Wl,--version-script=%s" % script] if script.stat().st_size else []
        run("gcc", "-w", "-fno-builtin", "-shared", "-fPIC", "-o", path, source, "-Wl,-soname," + path.name,
            *flags)


def stand_ins(site):
    libs = missing(site)
    for library, versions in sort_symbols(site, libs).items():
        stand_in(site / "torch" / "lib" / library, versions)
    say("stand-ins for %s" % " ".join(libs))


def runtime_package(site):
    """The PyPI name of the CUDA runtime that this torch links: with CUDA's major version until 12."""
    for path in libraries(site):
        for name in needed(path):
            found = RUNTIME.match(name)
            if found:
                major = int(found.group(1))
                return "nvidia-cuda-runtime==%d.*" % major if major > 12 else "nvidia-cuda-runtime-cu12"
    return None


def install_with_needs(python, packages):
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages)


def site_of(folder):
    return next((folder / "lib").glob("python3*")) / "site-packages"


def make(folder, version):
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python3"
    say("fetching torch %s, half a gigabyte" % version)
    install(python, "torch==" + version)
    site = site_of(folder)
    forget_gpus(site)
    install_with_needs(python, ["torch==" + version, *EXTRAS])
    runtime = runtime_package(site)
    if runtime:
        install(python, runtime)
        stand_ins(site)
    run(python, "-c", "import torch, torch.distributed.fsdp; print('torch', torch.__version__, 'imports')")


def interpreter(folder):
    return folder / "venv" / "bin" / "python3"


def cached(folder, version):
    """Make it unless it is there, and add what has been asked for since; one process at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    done, extras = folder / "done", "".join(one + "\n" for one in EXTRAS)
    with open(folder / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(folder / "venv", version)
        elif done.read_text(encoding="utf-8") != extras:
            forget_gpus(site_of(folder / "venv"))
            install_with_needs(interpreter(folder), EXTRAS)
        done.write_text(extras, encoding="utf-8")
    return interpreter(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--torch", default=NEWEST, help="version (default %(default)s)")
    parser.add_argument("--dir", type=pathlib.Path, help="default ~/.cache/thinwire/torch-VERSION")
    parser.add_argument("--find", action="store_true", help="only print the path; nothing if there is none")
    args = parser.parse_args()
    folder = args.dir or CACHE / ("torch-" + args.torch)
    if args.find:
        print(interpreter(folder) if (folder / "done").exists() else "")
        return 0
    try:
        print(cached(folder, args.torch))
    except (subprocess.CalledProcessError, OSError) as error:
        say("failed: %s" % error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
