#!/usr/bin/env python3
"""exports.py VERSION_NAME OUT.options OUT.map OUT.names HEADER...: makes a library export exactly the
functions and variables that public headers declare. Writes linker options (--undefined) that pull these
names out of archives, a version script that exports the names under VERSION_NAME, and a list of the names."""

import re
import sys

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
MACRO = re.compile(r"^\s*#(?:[^\n\\]|\\.|\\\n)*", re.M | re.S)
INLINE = re.compile(r"^static inline [^{;]*\{.*?^\}", re.M | re.S)
TYPE = re.compile(
    r"^(?:typedef\b[^;{}]*|(?:struct|enum|union)\s+\w+\s*)\{.*?\}[^;{}]*;|^typedef\b[^{};]*;", re.M | re.S)
FUNCTION = re.compile(
    r"^[A-Za-z_][^;{}()=]*?\b(tw_\w+)\s*\([^;{}]*\)\s*(?:__attribute__\s*\(\(.*?\)\)\s*)?;", re.M)
VARIABLE = re.compile(r"^extern\s+[^;{}()]*?\b(tw_\w+)(?:\[[^\]]*\])*;", re.M)


def exported(text):
    """Returns the names that a header declares."""
    for pattern in (COMMENT, MACRO, INLINE, TYPE):
        text = pattern.sub("", text)
    return FUNCTION.findall(text) + VARIABLE.findall(text)


def main():
    version, taken, exports, listed = sys.argv[1:5]
    names = set()
    for path in sys.argv[5:]:
        with open(path, encoding="utf-8") as header:
            names.update(exported(header.read()))
    with open(taken, "w", encoding="utf-8") as out:
        out.write("".join("--undefined=%s\n" % name for name in sorted(names)))
    with open(listed, "w", encoding="utf-8") as out:
        out.write("".join("%s\n" % name for name in sorted(names)))
    with open(exports, "w", encoding="utf-8") as out:
        lines = "".join("    %s;\n" % name for name in sorted(names))
        out.write("%s {\n  global:\n%s  local:\n    *;\n};\n" % (version, lines))


if __name__ == "__main__":
    main()
