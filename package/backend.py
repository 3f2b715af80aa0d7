"""The build backend (PEP 517) that `pip wheel .` and `pip install .` call. It needs only a C compiler.
The wheel has no CUDA code: no kernels for GPUs and no interposer.

Sources, compiler flags and exported names are read from Bazel's own files (targets.py, .bazelrc).

  CC                 the compiler, with arguments if it needs any (default: cc)
  THINWIRE_PREFIX    folders to search for libraries first, separated by ":"; each has include and lib
  THINWIRE_PLATFORM  the wheel's platform (default: linux_ARCH of this machine). With manylinux_2_N_ARCH
                     the build fails if a library needs a newer glibc than 2.N."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import typing

import wheel
from targets import Attributes, Tree

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLAG = re.compile(r"^build(?::release)? --(?:conly|c)opt=(?!-g|-W)(\S+)$", re.M)
# {target: (a header to look for, the library to link; "" for a library that needs only its headers)}
LIBRARIES = {
    "//third_party/jansson:jansson": ("jansson.h", "libjansson"),
    "//third_party/sodium:sodium": ("sodium.h", "libsodium"),
    "//third_party/ucx:ucx": ("ucp/api/ucp.h", ""),
    "//third_party/xxhash:xxhash": ("xxhash.h", ""),
}
# Headers of LIBRARIES, and the headers that they include in turn.
HEADERS = ("jansson*.h", "sodium*", "uc[mpst]", "xxh*.h")
# Attributes of Bazel rules that this build reads or can ignore. Any other attribute is an error.
KNOWN = {"additional_linker_inputs", "alwayslink", "copts", "deps", "folder", "hdrs", "linkopts",
         "linkshared", "local_defines", "name", "rule", "srcs", "target_compatible_with", "textual_hdrs",
         "visibility"}
MISSING = """%s is in none of these folders: %s
What to install, then try again:
  Debian, Ubuntu  apt-get install libjansson-dev libsodium-dev libucx-dev libxxhash-dev
  Fedora, RHEL    dnf install jansson-devel libsodium-devel ucx-devel xxhash-devel (RHEL: with EPEL)
  conda           conda install -c conda-forge jansson libsodium ucx xxhash
  UCX alone       pip install libucx-cu13
Without root: unpack packages into a folder, and name it in THINWIRE_PREFIX (docs/pytorch.md#installing)."""


def fail(text: str) -> typing.NoReturn:
    raise SystemExit("thinwire: " + text)


def run(*command: object) -> None:
    words = [str(one) for one in command]
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    except OSError as error:
        fail("%s: %s; CC=PROGRAM names a C compiler" % (words[0], error.strerror))
    if done.returncode:
        fail("%s\n%s%s" % (shlex.join(words), done.stdout, done.stderr))


class Build:
    """A build for `machine` ("x86_64", "aarch64") in the folder `out`, which the caller removes."""

    def __init__(self, out: pathlib.Path, machine: str):
        self.out, self.machine, self.tree = out, machine, Tree(ROOT, machine)
        self.compiler = shlex.split(os.environ.get("CC") or "cc")
        self.flags = [*FLAG.findall((ROOT / ".bazelrc").read_text(encoding="utf-8")), "-fPIC", "-DNDEBUG",
                      "-DXXH_INLINE_ALL", "-I.", "-isystem", str(out / "include")]
        self.objects: dict[tuple[str, ...], pathlib.Path] = {}  # {(source, flags...): object file}

    def prefixes(self) -> list[pathlib.Path]:
        given = os.environ.get("THINWIRE_PREFIX", "").split(":")
        pypi = sysconfig.get_path("purelib") + "/libucx"
        found = (*given, os.environ.get("CONDA_PREFIX"), sys.prefix, pypi, "/usr/local", "/usr")
        return [pathlib.Path(one) for one in found if one]

    def _find(self, header: str, library: str) -> list[str]:
        """Symlinks a library's headers into the build's folder. Returns the linker's arguments for it:
        the static archive if there is one, else the shared library."""
        for prefix in self.prefixes():
            folders = [prefix / "lib" / (self.machine + "-linux-gnu"), prefix / "lib64", prefix / "lib"]
            paths = [folder / (library + end) for end in (".a", ".so") for folder in folders]
            found = next((path for path in paths if library and path.exists()), None)
            if not (prefix / "include" / header).exists() or (library and not found):
                continue
            for path in [one for pattern in HEADERS for one in (prefix / "include").glob(pattern)]:
                if not (self.out / "include" / path.name).exists():
                    (self.out / "include" / path.name).symlink_to(path.resolve())
            if not found:
                return []
            is_elsewhere = found.suffix == ".so" and prefix != pathlib.Path("/usr")
            return [str(found), *(["-Wl,-rpath,%s" % found.parent.resolve()] if is_elsewhere else [])]
        fail(MISSING % (library or header, ", ".join(map(str, self.prefixes()))))

    def _plan(self, target: Attributes) -> list[pathlib.Path]:
        """Returns the object files of a target's own C sources, and registers them to be compiled."""
        if target["rule"] == "cuda_library":
            return []
        if set(target) - KNOWN:
            fail("%s/BUILD: %s has what package/backend.py does not know: %s" % (
                target["folder"], target["name"], ", ".join(sorted(set(target) - KNOWN))))
        flags = [*target.get("copts", []), *("-D" + one for one in target.get("local_defines", []))]
        sources = ["%s/%s" % (target["folder"], one) for one in target.get("srcs", []) if one.endswith(".c")]
        return [self.objects.setdefault((one, *flags), self.out / ("%d.o" % len(self.objects)))
                for one in sources]

    def _compile(self, item: tuple[tuple[str, ...], pathlib.Path]) -> None:
        (source, *flags), made = item
        run(*self.compiler, *self.flags, *flags, "-c", source, "-o", made)

    def _link(self, target: Attributes, inputs: typing.Sequence[object]) -> pathlib.Path:
        made = self.out / target["name"].replace("_linked", "")
        # Drop options that the build replaces: libraries are in `inputs`, _export() writes its own script.
        options = [one for one in target["linkopts"] if not one.startswith(("-l:", "-Wl,@"))]
        places = {"$(location :": "%s/" % self.out, "$(location ": target["folder"] + "/", ")": ""}
        for text, place in places.items():
            options = [one.replace(text, place) for one in options]
        run(*self.compiler, "-shared", "-s", *inputs, *options, "-lm", "-ldl", "-lpthread", "-o", made)
        return made

    def _export(self) -> None:
        """Writes the linker's version script, which exports the names that public headers declare."""
        defs = self.tree.run("package", "defs.bzl")
        scripts = [self.out / ("exported." + end) for end in ("options", "map", "names")]
        run(sys.executable, "package/exports.py", "THINWIRE_" + defs["ABI"], *scripts,
            *["/".join(self.tree.split(label, "")) for label in defs["PUBLIC_HEADERS"]])
        # This build has no CUDA functions, and some linkers refuse an undefined name in the script.
        text = re.sub(r"^ *tw_\w+_cuda_\w+;\n", "", scripts[1].read_text(), flags=re.M)
        scripts[1].write_text(text)

    def make(self, *labels: str) -> list[pathlib.Path]:
        """Builds the shared libraries of these targets. Returns their paths."""
        (self.out / "include").mkdir()
        found = {label: self._find(*library) for label, library in LIBRARIES.items()}
        needs = [(label, self.tree.closure(label)) for label in labels]
        inputs = [[one for target in need.values() for one in self._plan(target)]
                  + [one for target in LIBRARIES if target in need for one in found[target]]
                  for _, need in needs]
        self._export()
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(self._compile, self.objects.items()))
        return [self._link(need[label], own) for (label, need), own in zip(needs, inputs, strict=True)]


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: object = None) -> str:
    """Writes the metadata that pip reads before it builds. Returns the name of the metadata's folder."""
    version = wheel.version_of(ROOT / "core/core.h")
    name = "thinwire-%s.dist-info" % version
    folder = pathlib.Path(metadata_directory) / name
    folder.mkdir()
    (folder / "METADATA").write_text(wheel.METADATA % version, encoding="utf-8")
    return name


def build_wheel(wheel_directory: str, config_settings: object = None,
                metadata_directory: object = None) -> str:
    """Builds the wheel. Returns its file name."""
    named = os.environ.get("THINWIRE_PLATFORM") or "linux_" + platform.machine()
    machine = next((one for one in ("x86_64", "aarch64") if named.endswith("_" + one)), "")
    if not machine:
        fail("%s: Thinwire is for Linux on x86_64 and aarch64" % named)
    header = ROOT / "core/core.h"
    name = "thinwire-%s-py3-none-%s.whl" % (wheel.version_of(header), named)
    with tempfile.TemporaryDirectory() as folder:
        library, net = Build(pathlib.Path(folder), machine).make(
            "//package:libthinwire_linked.so", "//plugin/nccl:libnccl-net-thinwire.so")
        wheel.write(pathlib.Path(wheel_directory) / name, header, library, [net],
                    list((ROOT / "plugin/torch/thinwire").rglob("*.py")))
    return name
