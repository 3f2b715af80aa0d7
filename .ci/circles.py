#!/usr/bin/env python3
"""Checks that there is no circle of files that depend on each other ("lean"), nor of neighbouring folders.

In C, C++ and CUDA, x.c, x.h, x.cc and x.cu count as one file. It leans on each file that it includes, and on
each file that defines a function or variable with external linkage that it names. A name that begins with tw_
always counts; any other name counts only if a header that declares it is included. A folder's own header
<folder>/<folder>.h counts as a separate file, because the folder's sources include it for its types.

Folders in the same folder are neighbours. One leans on another if any of its files, also in folders inside
it, includes a file of the other. A folder and the folders inside it may include each other."""

import ast
import os
import re
import sys

import tracked

COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
TAG = re.compile(r"\b(?:struct|union|enum)\s+\w+")
# A name after "." or "->" is a struct's member, and does not count as a use of another file's name.
NAME = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*")
# A declaration (a prototype, a typedef of a function, an extern variable) does not count as a use.
DECLARATION = re.compile(r"^[A-Za-z_][^;{}=]*;", re.M)
DECLARED = re.compile(r"\b(\w+)(?=\(|\s*;|\[)")
# Unnamed namespaces: what they define cannot be used in other files.
INSIDE = re.compile(r"^namespace\s*\{.*?^\}", re.M | re.S)
# Definitions at the beginning of a line: of a function, with its brace on the next line; of a variable.
FUNCTION = re.compile(
    r"^(?!static\b|typedef\b|extern\b)[A-Za-z_][^;{}=()]*?(?<!:)\b(\w+)\((?:[^;{}]*)\)\s*\n\{", re.M)
VARIABLE = re.compile(
    r"^(?!static\b|typedef\b|extern\b|using\b|namespace\b|(?:struct|union|enum|class) \w+;)"
    r"[A-Za-z_][^;{}()=]*?(?<!:)\b(\w+)(?:\[[^\]]*\])*\s*[=;]", re.M)


def unit(path):
    """Returns the unit of a path: x for x.c, x.h and so on, but a folder's own header is a separate unit."""
    stem = os.path.splitext(path)[0]
    is_rooms = path.endswith(".h") and os.path.basename(stem) == os.path.basename(os.path.dirname(stem))
    return path if is_rooms else stem


def includes_of(texts):
    """Returns {path: {files of `texts` that it includes}}."""
    return {path: {name for name in INCLUDE.findall(text) if name in texts} for path, text in texts.items()}


def reach(path, includes, known):
    """Returns all files that a path includes, directly or through other files. Caches results in `known`."""
    if path not in known:
        known[path] = set()
        for name in includes[path]:
            known[path] |= {name} | reach(name, includes, known)
    return known[path]


def is_declared(header, owner, path, reached):
    """Returns whether `path` is or includes `header`, and `header` is in the folder of `owner`."""
    return (header in reached or header == path) and os.path.dirname(header) == os.path.dirname(owner)


def owners_of(code):
    """Returns {name: units that define it}. Leaves out units if several in a folder define the name: a
    program links only one of these."""
    owners = {}
    for path, text in code.items():
        outside = INSIDE.sub("", text)
        for name in FUNCTION.findall(outside) + VARIABLE.findall(outside):
            if path.endswith((".c", ".cc", ".cu")) and not name.startswith("nccl"):
                owners.setdefault(name, set()).add(unit(path))
    folders = {name: [os.path.dirname(one) for one in units] for name, units in owners.items()}
    return {name: {one for one in units if folders[name].count(os.path.dirname(one)) == 1}
            for name, units in owners.items()}


def declarers_of(code):
    """Returns {name: headers that declare it}."""
    declared = {}
    for path, text in code.items():
        for declaration in DECLARATION.findall(text) if path.endswith((".h", ".cuh")) else ():
            for name in DECLARED.findall(declaration):
                declared.setdefault(name, set()).add(path)
    return declared


# Known circles that are still to be removed: quant.h includes the codecs' headers for its users, and the
# codecs include quant.h.
HELD = {("quant/quant.h", "quant/%s.h" % part)
        for part in ("block_codec", "codec", "lossless_codec", "message_codec", "streams")}


def leaning(texts):
    """Returns {unit: {unit that it leans on: why}}. texts: {path: text}."""
    code = {path: COMMENT_OR_STRING.sub(lambda m: " " if m[0][0] in "/" else '""', text)
            for path, text in texts.items()}
    owners, declarers, includes, known = owners_of(code), declarers_of(code), includes_of(texts), {}
    leans = {unit(path): {} for path in texts}
    for path in texts:
        mine = leans[unit(path)]
        for target in includes[path]:
            if unit(target) != unit(path) and (path, target) not in HELD:
                mine.setdefault(unit(target), "includes it")
        declared = set()
        if unit(path) == path:
            declared = set(NAME.findall(" ".join(DECLARATION.findall(code[path]))))
        for name in set(NAME.findall(DECLARATION.sub("", TAG.sub("", code[path])))) - declared:
            if unit(path) in owners.get(name, ()):
                continue
            for owner in owners.get(name, ()):
                if name.startswith("tw_") or any(
                        is_declared(header, owner, path, reach(path, includes, known))
                        for header in declarers.get(name, ())):
                    mine.setdefault(owner, "names " + name)
    return leans


def circles(leans):
    """Returns the strongly connected components of more than one unit (Tarjan's algorithm)."""
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


def neighbours(path, other):
    """Returns the two neighbouring folders that hold the two paths, or None if one's folder holds the
    other."""
    mine, others = os.path.dirname(path).split("/"), os.path.dirname(other).split("/")
    for depth, (a, b) in enumerate(zip(mine, others), 1):
        if a != b:
            return "/".join(mine[:depth]), "/".join(others[:depth])
    return None


def folders(texts):
    """Returns {folder: {neighbouring folder that it leans on: why}}."""
    leans = {}
    for path, targets in includes_of(texts).items():
        for target in targets:
            pair = neighbours(path, target)
            if pair and unit(target) != target:
                leans.setdefault(pair[0], {}).setdefault(pair[1], "%s includes %s" % (path, target))
                leans.setdefault(pair[1], {})
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
                # A name imported from a package may be one of its files.
                for target in files_of(base + "/" + name) or files_of(base):
                    if target != path:
                        leans[path][target] = "imports it"
    return leans


def python_folders(leans):
    """Returns python_leaning()'s result with each package inside a package as one unit."""

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


def complaints(leans):
    for members in circles(leans):
        yield "a circle of %d:" % len(members)
        for u in members:
            yield from ("  %s -> %s (%s)" % (u, v, leans[u][v]) for v in members if v in leans[u])


def main():
    tracked.enter()
    texts = {name: tracked.read(name) for name in tracked.tracked(*tracked.C_FILES)}
    python = python_leaning({name: tracked.read(name) for name in tracked.tracked(".py")})
    found = [one for leans in (leaning(texts), folders(texts), python, python_folders(python))
             for one in complaints(leans)]
    print("\n".join(found + ["%d files, %d complaints" % (len(texts) + len(python), len(found))]))
    return 1 if found or not texts else 0


if __name__ == "__main__":
    sys.exit(main())
