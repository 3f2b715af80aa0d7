#!/usr/bin/env python3
"""Checks that no two files of the product lean on each other in a circle, x.c, x.h and x.cu taken as one
file.

A file leans on another one that it includes, or whose functions or variables it names. Only names with
external linkage count; they all begin with tw_. A folder's public header <folder>/<folder>.h is a file of its
own: the sources behind it include it for its types, and its macros and inline functions may name what it
declares.

A Python file leans on those that it imports, in functions, too, and on those whose names it gives to
importlib.import_module().
"""

import ast
import os
import re
import subprocess
import sys

TOPS = ("core", "quant", "transport", "collectives", "hpz", "plugin", "trainer", "safetensors", "cluster",
        "flags", "doctor", "bench")
SUFFIXES = (".c", ".h", ".cu", ".cuh")

COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
TAG = re.compile(r"\b(?:struct|union|enum)\s+tw_\w+")
NAME = re.compile(r"\btw_\w+")
# A declaration is no use: a prototype, a typedef of a function, an extern variable.
DECLARATION = re.compile(r"^[A-Za-z_][^;{}=]*;", re.M)
# At the beginning of a line: a function's definition, its brace on the next line; a variable's.
FUNCTION = re.compile(
    r"^(?!static\b|typedef\b|extern\b)[A-Za-z_][^;{}=]*?\b(tw_\w+)\((?:[^;{}]*)\)\s*\n\{", re.M)
VARIABLE = re.compile(
    r"^(?!static\b|typedef\b|extern\b)[A-Za-z_][^;{}()=]*?\b(tw_\w+)(?:\[[^\]]*\])*\s*=", re.M)


def sources(suffixes):
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--"] + ["*" + s for s in suffixes]
    found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if found.returncode == 0:
        names = found.stdout.decode().split("\0")
    else:
        names = [os.path.relpath(os.path.join(folder, name), ".")
                 for top in TOPS for folder, _, files in os.walk(top) for name in files]
    return sorted(n for n in names if n.split("/")[0] in TOPS and n.endswith(suffixes) and os.path.isfile(n))


def unit(path):
    """What counts as one file."""
    stem = os.path.splitext(path)[0]
    is_public = path.endswith(".h") and stem.split("/")[0] == "/".join(stem.split("/")[1:])
    return path if is_public else stem


def leaning(texts):
    """Returns {unit: {unit it leans on: why}}. texts: {path: text}."""
    owner, code = {}, {}
    for path, text in texts.items():
        code[path] = COMMENT_OR_STRING.sub(lambda m: " " if m[0][0] in "/" else '""', text)
        for name in FUNCTION.findall(code[path]) + VARIABLE.findall(code[path]):
            owner.setdefault(name, unit(path))
    leans = {unit(path): {} for path in texts}
    for path, text in texts.items():
        mine = leans[unit(path)]
        for target in INCLUDE.findall(text):
            if unit(target) in leans and unit(target) != unit(path):
                mine.setdefault(unit(target), "includes it")
        declared = set()
        if unit(path) == path:
            declared = set(NAME.findall(" ".join(DECLARATION.findall(code[path]))))
        for name in NAME.findall(DECLARATION.sub("", TAG.sub("", code[path]))):
            if name in owner and owner[name] != unit(path) and name not in declared:
                mine.setdefault(owner[name], "names " + name)
    return leans


def imported(tree):
    """Yields (dots, module, names) of each import of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                yield 0, one.name, []
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", [one.name for one in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            for one in node.args[:1]:
                if isinstance(one, ast.Constant):
                    name = one.value.lstrip(".")
                    yield len(one.value) - len(name), name, []


def python_leaning(texts):
    """Returns {path: {path that it imports: why}} of Python files. texts: {path: text}."""

    def files_of(stem):
        return [name for name in (stem + ".py", stem + "/__init__.py") if name in texts]

    leans = {path: {} for path in texts}
    for path, text in texts.items():
        for dots, module, names in imported(ast.parse(text)):
            base = "/".join(path.split("/")[:-max(dots, 1)] + [one for one in module.split(".") if one])
            for name in names or [""]:
                # What is imported from a package may be a file of it.
                for target in files_of(base + "/" + name) or files_of(base):
                    if target != path:
                        leans[path][target] = "imports it"
    return leans


def python_folders(leans):
    """The same, where all files of a package inside a package are one."""

    def room(path):
        folder = os.path.dirname(path)
        is_inner = {folder + "/__init__.py", os.path.dirname(folder) + "/__init__.py"} <= leans.keys()
        return folder + "/" if is_inner else path

    found = {room(path): {} for path in leans}
    for path, targets in leans.items():
        for target in targets:
            if room(target) != room(path):
                found[room(path)][room(target)] = "%s imports %s" % (path, target)
    return found


def circles(leans):
    """Strongly connected components of more than one unit (Tarjan)."""
    index, low, on_stack, stack, found = {}, {}, set(), [], []

    def visit(u):
        index[u] = low[u] = len(index)
        stack.append(u)
        on_stack.add(u)
        for v in leans[u]:
            if v not in index:
                visit(v)
                low[u] = min(low[u], low[v])
            elif v in on_stack:
                low[u] = min(low[u], index[v])
        if low[u] == index[u]:
            members = []
            while not members or members[-1] != u:
                members.append(stack.pop())
                on_stack.discard(members[-1])
            if len(members) > 1:
                found.append(sorted(members))

    sys.setrecursionlimit(10000)
    for u in sorted(leans):
        if u not in index:
            visit(u)
    return sorted(found)


def self_test():
    texts = {
        "core/a.c": '#include "core/a.h"\nvoid tw_a(void)\n{\n    tw_b();\n}\n',
        "core/a.h": "void tw_a(void);\nvoid tw_d_run(void);\n",
        "core/b.c": "void tw_b(void)\n{\n    /* tw_d */ tw_c_table[0].run();\n}\n",
        "core/c.c": '#include "core/a.h"\nconst tw_row_t tw_c_table[] = {0};\n',
        "core/core.h": "void tw_d_run(void);\n#define TW_RUN() tw_d_run()\n",
        "core/d.c": '#include "core/core.h"\nvoid tw_d_run(void)\n{\n    tw_a("tw_d");\n}\nint tw_d = 1;\n',
    }
    python = {
        "p/__init__.py": "import importlib\ndef f():\n    return importlib.import_module('.c', __name__)\n",
        "p/a.py": "from . import b, d\n",
        "p/b.py": "def f():\n    from .a import g\n",
        "p/c.py": "import os\n",
        "p/d.py": "from .e import f\n",
        "p/e/__init__.py": "",
        "p/e/f.py": "from ..g import h\n",
        "p/e/i.py": "",
        "p/g/__init__.py": "",
        "p/g/h.py": "from ..e.i import j\n",
    }
    leans = python_leaning(python)
    return (circles(leaning(texts)) == [["core/a", "core/b", "core/c"]]
            and circles(leans) == [["p/a.py", "p/b.py"]] and "p/c.py" in leans["p/__init__.py"]
            and circles(python_folders(leans)) == [["p/a.py", "p/b.py"], ["p/e/", "p/g/"]])


def read(names):
    texts = {}
    for name in names:
        with open(name, encoding="utf-8", errors="replace") as file:
            texts[name] = file.read()
    return texts


def main():
    os.chdir(os.path.dirname(os.path.realpath("WORKSPACE")))
    texts, python = read(sources(SUFFIXES)), python_leaning(read(sources((".py",))))
    n_files, n_found = len(texts) + len(python), 0
    for leans in (leaning(texts), python, python_folders(python)):
        for members in circles(leans):
            n_found += 1
            print("a circle of %d files:" % len(members))
            for u in members:
                for v in members:
                    if v in leans[u]:
                        print("  %s -> %s (%s)" % (u, v, leans[u][v]))
    print("%d files, %d circles" % (n_files, n_found))
    if not self_test():
        print("the check itself does not find a circle that is there")
        return 1
    return 1 if n_found or not texts else 0


if __name__ == "__main__":
    sys.exit(main())
