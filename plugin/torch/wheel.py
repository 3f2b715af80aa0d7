#!/usr/bin/env python3
"""wheel.py OUT --version-header core/core.h --library libthinwire.so [--nccl LIBRARY...] FILE.py...: a wheel
of the package `thinwire`, which carries the shared library, and those for NCCL in thinwire/nccl. The same
bytes for the same input; nothing is fetched.

OUT's name says the platform: linux_x86_64, or manylinux_2_N_x86_64, which pip installs only where glibc is
new enough; then no library may need a newer one. UCX is not inside: capi.py says what to install where
it is needed."""

import argparse
import base64
import hashlib
import pathlib
import re
import zipfile

SONAME = "libthinwire.so.0.3"
# {Debian package of a statically linked library: the file with its licence}
LINKED_IN = {name: pathlib.Path("/usr/share/doc/%s/copyright" % name)
             for name in ("libjansson-dev", "libsodium-dev", "libxxhash-dev", "libstdc++6")}
METADATA = """Metadata-Version: 2.1
Name: thinwire
Version: %s
Summary: Lossless and quantized collectives for training on slow networks: FSDP2, DDP and c10d
Requires-Python: >=3.10
Requires-Dist: torch (>=2.9)
Provides-Extra: ucx
Requires-Dist: libucx-cu13 ; extra == "ucx"
Provides-Extra: ucx-cu12
Requires-Dist: libucx-cu12 ; extra == "ucx-cu12"
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Programming Language :: C
Classifier: Topic :: System :: Distributed Computing
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

Thinwire sends the weights and gradients of FSDP2 and DDP between nodes with fewer bytes: without loss,
as changes and entropy-coded, or, where that is asked for, with 8, 4 or 2 bits an element.

    TW_FSDP=1 torchrun ... job.py
    python -m thinwire info
    torchrun ... -m thinwire doctor
    python -m thinwire diff OLD.safetensors NEW.safetensors -o FILE
    python -m thinwire patch OLD.safetensors FILE -o NEW.safetensors

Nodes of one rank need nothing else. Ranks that share a node talk through UCX, which is taken from the
system (Debian: libucx0) or from PyPI: `pip install "thinwire[ucx]"` beside a torch for CUDA 13,
`"thinwire[ucx-cu12]"` beside one for CUDA 12.
"""
WHEEL = """Wheel-Version: 1.0
Generator: thinwire
Root-Is-Purelib: false
Tag: py3-none-%s
"""
ENTRY_POINTS = """[torch.backends]
thinwire = thinwire:_autoload

[torchcomms.backends]
thinwire = thinwire.torchcomms.entry
[vllm.general_plugins]
thinwire = thinwire.delta.sender:register_in_vllm
"""


def version_of(header):
    return re.search(r'#define TW_VERSION "([^"]+)"', header.read_text(encoding="utf-8")).group(1)


def in_package(path):
    """Returns a source file's path in the wheel, which begins with the package's folder."""
    parts = path.parts
    return "/".join(parts[len(parts) - 1 - parts[::-1].index("thinwire"):])


def contents(out, header, library, nccl, sources):
    """Returns {path in the wheel: bytes}."""
    version = version_of(header)
    info = "thinwire-%s.dist-info/" % version
    files = {in_package(path): path.read_bytes() for path in sorted(sources)}
    files["thinwire/version.py"] = b'__version__ = "%s"\n' % version.encode()
    files["thinwire/py.typed"] = b""
    files["thinwire/" + SONAME] = library.read_bytes()
    files |= {"thinwire/nccl/" + path.name: path.read_bytes() for path in nccl}
    libraries = [data for name, data in files.items() if ".so" in name]
    files[info + "METADATA"] = (METADATA % version).encode()
    files[info + "WHEEL"] = (WHEEL % platform_of(out, libraries)).encode()
    files |= {info + "licenses/" + name: path.read_bytes()
              for name, path in sorted(LINKED_IN.items()) if path.exists()}
    files[info + "entry_points.txt"] = ENTRY_POINTS.encode()
    record = "".join("%s,sha256=%s,%d\n" % (name, digest(data), len(data)) for name, data in files.items())
    files[info + "RECORD"] = (record + info + "RECORD,,\n").encode()
    return files


def platform_of(out, libraries):
    """Returns the platform in a wheel's name. SystemExit if a library needs a newer glibc than the name's."""
    platform = pathlib.Path(out).stem.split("-")[-1]
    newest = max((int(minor) for one in libraries for minor in re.findall(rb"\0GLIBC_2\.(\d+)", one)),
                 default=0)
    promised = re.fullmatch(r"manylinux_2_(\d+)_\w+", platform)
    if promised and int(promised.group(1)) < newest:
        raise SystemExit("wheel.py: %s, but a library needs glibc 2.%d" % (platform, newest))
    return platform


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def write(out, header, library, nccl, sources):
    """Make the wheel `out`. header: has the version. nccl: libraries for NCCL. sources: Python files."""
    files = contents(out, header, library, nccl, sources)
    with zipfile.ZipFile(out, "w") as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            wheel.writestr(entry, data)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--version-header", type=pathlib.Path, required=True)
    parser.add_argument("--library", type=pathlib.Path, required=True)
    parser.add_argument("--nccl", type=pathlib.Path, action="append", default=[])
    parser.add_argument("sources", type=pathlib.Path, nargs="+")
    args = parser.parse_args()
    write(args.out, args.version_header, args.library, args.nccl, args.sources)


if __name__ == "__main__":
    main()
