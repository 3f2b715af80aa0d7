#!/usr/bin/env python3
"""names.py check: checks rules of docs/style.md on names and parameters, which compilers do not check.

- A static function's name is used in at most two files outside the tests, so that it tells in a profile or a
stack which function it is. - A function has at most six parameters, unless others set its signature
(SET_BY_OTHERS) or its parameters are the operands of a kernel (KERNELS). - A test is named after its source
or its folder: tests/<folder>/test_<source or folder>[_<what of it>].

Known exceptions are the lines of .ci/names_left.txt. Prints a line for each other complaint. `names.py left`
prints the present content for that file."""

import collections
import os
import re
import sys

import tracked

FILES_MAX = 2
PARAMETERS_MAX = 6
LEFT = ".ci/names_left.txt"
PRODUCT = (".c", ".h", ".cu", ".cuh")

# Files with functions of NCCL's plugin interface and API, and a callback of UCX.
SET_BY_OTHERS = re.compile(r"plugin/nccl/\w+/versions\.c|plugin/interpose/wrappers\.c"
                           r"|transport/p2p/ucx_load\.c")
# Files of functions that are inlined into loops over elements. Their parameters are arrays and sizes, which a
# struct would only rename.
KERNELS = re.compile(r".*\.cuh|.*\.cu|quant/host/group_\w+\.h|trainer/model/kernels\.c")

# Files that define the same functions, each for another set of instructions. A source includes only one.
WORDS = re.compile(r"quant/entropy/vec_\w+\.h")

ATTRIBUTE = re.compile(r"__attribute__\(\([^()]*(?:\([^()]*\))?[^()]*\)\)")
FUNCTION = re.compile(r"^([A-Za-z_][^;{}=()]*?)\b(\w+)\(([^;{}]*?)\)\s*\{", re.M)


def functions(text):
    """Yields (name, is it static, number of parameters) of each function that a file defines."""
    for before, name, parameters in FUNCTION.findall(ATTRIBUTE.sub("", tracked.COMMENT.sub("", text))):
        while re.search(r"\([^()]*\)", parameters):  # remove the parameters of a parameter that is a function
            parameters = re.sub(r"\([^()]*\)", "", parameters)
        yield name, "static" in before.split(), parameters.count(",") + 1


def too_common(defined):
    files = collections.defaultdict(set)
    for path, found in defined.items():
        for name, is_static, _ in found:
            if is_static and not WORDS.match(path):
                files[name].add(path)
    for name, paths in files.items():
        if len(paths) > FILES_MAX:
            yield "static " + name, "in %d files: %s" % (len(paths), " ".join(sorted(paths)))


def too_many_parameters(defined):
    for path, found in defined.items():
        if not SET_BY_OTHERS.match(path) and not KERNELS.match(path):
            for name, _, n in found:
                if n > PARAMETERS_MAX:
                    yield "parameters %s %s" % (path, name), "%d, more than %d" % (n, PARAMETERS_MAX)


def names_in(folder, files):
    """Returns the names with which a test's name may begin: those of the folder, and of files and folders in
    it. If the folder exists only in tests/, those in tests/ count."""
    inside = ([f for f in files if f.startswith(folder + "/")]
              or [f[len("tests/"):] for f in files if f.startswith("tests/%s/" % folder)])
    parts = folder.split("/") + [part for f in inside for part in f[len(folder) + 1:].split("/")]
    return {os.path.splitext(part)[0] for part in parts}


def misnamed_tests(everything):
    files = [f for f in everything if not os.path.basename(f).startswith("test_")]
    known = {}
    for path in everything:
        name = os.path.splitext(os.path.basename(path))[0]
        if path.startswith("tests/") and name.startswith("test_") and path.endswith((".cc", ".py", ".sh")):
            folder = os.path.dirname(path)[len("tests/"):]
            if folder not in known:
                known[folder] = names_in(folder, files)
            words = name.split("_")[1:]
            if not any("_".join(words[:n]) in known[folder] for n in range(1, len(words) + 1)):
                yield "test " + path, "is named after no source and no room of %s" % folder


def complaints():
    """Returns {line of names_left.txt for a breach of a rule: details}."""
    everything = tracked.tracked()
    defined = {path: list(functions(tracked.read(path))) for path in everything
               if path.endswith(PRODUCT) and not path.startswith(("tests/", "third_party/"))}
    return dict([*too_common(defined), *too_many_parameters(defined), *misnamed_tests(everything)])


# (text, expected result of functions())
SELF_TESTS = [
    ("static int a(int x)\n{\n}\n", [("a", True, 1)]),
    ("static inline __attribute__((format(printf, 1, 2))) void a(int x, int (*f)(int, int), int y)\n{\n",
     [("a", True, 3)]),
    ("int tw_a(int x,\n         int y)\n{\n    if (a(1, 2, 3)) {\n", [("tw_a", False, 2)]),
    ("static int a(int x);\n", []),
]


def main():
    tracked.enter()
    found = complaints()
    if sys.argv[1:] == ["left"]:
        print("\n".join(sorted(found)))
        return 0
    left = set(tracked.read(LEFT).split("\n")) - {""}
    lines = ["%s: %s" % one for one in sorted(found.items()) if one[0] not in left]
    lines += ["%r is read as %s" % (text, list(functions(text)))
              for text, expected in SELF_TESTS if list(functions(text)) != expected]
    for line in sorted(left - set(found)):
        print("%s: no more needed: %s" % (LEFT, line))
    print("\n".join(lines + ["%d complaints, %d are left" % (len(lines), len(left & set(found)))]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
