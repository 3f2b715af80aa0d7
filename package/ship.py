#!/usr/bin/env python3
"""ship.py LIBRARY OUT: copies a shared library for other machines. Removes symbols that only debuggers need,
and the build machine's folders to search for libraries (DT_RUNPATH, DT_RPATH)."""

import pathlib
import platform
import shutil
import struct
import subprocess
import sys

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
PROGRAM = struct.Struct("<IIQQQQQQ")
ENTRY = struct.Struct("<qQ")
PT_LOAD, PT_DYNAMIC = 1, 2
E_MACHINE, EM_AARCH64 = 18, b"\xb7\0"
DT_NULL, DT_STRTAB, DT_RPATH, DT_RUNPATH = 0, 5, 15, 29


def segments(image):
    """Yields (type, offset in the file, address, size in the file) of each segment of an ELF file."""
    header = HEADER.unpack_from(image)
    if header[0][:6] != b"\x7fELF\x02\x01":
        sys.exit("ship.py: not a library for 64 bits, little-endian")
    at, size, count = header[5], header[9], header[10]
    for i in range(count):
        kind, _, offset, address, _, in_file, _, _ = PROGRAM.unpack_from(image, at + i * size)
        yield kind, offset, address, in_file


def without_paths(image):
    """Remove DT_RPATH and DT_RUNPATH from the dynamic section, and overwrite their strings with zeros."""
    loads = [one for one in segments(image) if one[0] == PT_LOAD]
    for _, begin, _, in_file in [one for one in segments(image) if one[0] == PT_DYNAMIC]:
        entries = [ENTRY.unpack_from(image, begin + at) for at in range(0, in_file, ENTRY.size)]
        table = next(value for tag, value in entries if tag == DT_STRTAB)
        strings = next(table - address + offset
                       for _, offset, address, size in loads if address <= table < address + size)
        for _, text in [one for one in entries if one[0] in (DT_RPATH, DT_RUNPATH)]:
            end = image.index(b"\0", strings + text)
            image[strings + text : end] = bytes(end - strings - text)
        kept = [one for one in entries if one[0] not in (DT_RPATH, DT_RUNPATH)]
        kept += [(DT_NULL, 0)] * (len(entries) - len(kept))
        for i, entry in enumerate(kept):
            ENTRY.pack_into(image, begin + i * ENTRY.size, *entry)
    return image


def main():
    library, out = map(pathlib.Path, sys.argv[1:])
    shutil.copy(library, out)
    out.chmod(0o755)
    is_arm = out.read_bytes()[E_MACHINE : E_MACHINE + 2] == EM_AARCH64
    strip = "aarch64-linux-gnu-strip" if is_arm and platform.machine() != "aarch64" else "strip"
    subprocess.run([strip, "--strip-unneeded", str(out)], check=True)
    out.write_bytes(without_paths(bytearray(out.read_bytes())))


if __name__ == "__main__":
    main()
