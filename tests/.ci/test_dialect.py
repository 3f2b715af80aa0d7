#!/usr/bin/env python3
"""Checks each of dialect.py's rules: with lines that break it, and with lines like them that do not."""

import importlib
import os
import sys

sys.dont_write_bytecode = True

CONDITION = "in a condition it is p or !p, without NULL"
BEFORE = "it is i++"
TRY = "it is TW_TRY"
TORN = "a torn declaration: its comment goes above it"
BESIDE = "torn by the comment beside it, which goes above it"
HANGING = "a comment beside a member ends in its line, or goes above it"
TITLE = "a torn title"
ABOVE = "the comment above a function begins with /**"
BEGIN = "what a header declares stands after TW_C_BEGIN"

BODY = "int f(void)\n{\n%s}\n"
DECLARATION = "int tw_f(int x);\n"
GUARDED = "TW_C_BEGIN\n\n" + DECLARATION + "\nTW_C_END\n"

# (file, text, [(line, what is said of it)])
CODE = [
    ("a.c", "    if (p == NULL) {\n", [(1, CONDITION)]),
    ("a.c", "    while (next(p) != NULL) {\n", [(1, CONDITION)]),
    ("a.c", "    x = p == NULL ? 1 : 2;\n", [(1, CONDITION)]),
    ("a.c", "    x = y && p != NULL;\n", [(1, CONDITION)]),
    ("a.c", "    x = NULL != p;\n", [(1, CONDITION)]),
    ("a.c", "    x = p == NULL && y;\n", [(1, CONDITION)]),
    ("a.c", "    if (!p && q) {\n", []),
    ("a.c", "    is_last = p == NULL;\n", []),
    ("a.c", "    if (has == (p != NULL)) {\n", []),
    ("a.c", "    p = NULL;\n    /* if (p == NULL) */\n    say(\"if (p == NULL)\");\n", []),
    ("a.cc", "    // if (p == NULL)\n    q = p;\n    ++q;\n", [(3, BEFORE)]),
    ("a.c", "    for (i = 0; i < n; ++i) {\n", [(1, BEFORE)]),
    ("a.c", "    --list->n;\n", [(1, BEFORE)]),
    ("a.c", "    for (i = 0; i < n; i++) {\n    list->n--;\n    x = ++i;\n", []),
    ("a.c", BODY % "    status = g();\n    if (status != TW_OK) {\n        return status;\n    }\n",
     [(3, TRY)]),
    ("a.c", BODY % "    tw_status_t status = g(1,\n        2);\n"
     "    if (status) {\n        return status;\n    }\n", [(3, TRY)]),
    ("a.h", "    status = g();\n    if (status) {\n        return status;\n    }\n", []),
    ("a.c", BODY % "    TW_TRY(g());\n", []),
    ("a.c", BODY % "    status = g();\n    if (status != TW_OK) {\n"
     "        free(p);\n        return status;\n    }\n", []),
    ("a.c", "struct a {\n    const char\n        *name;\n};\n", [(2, TORN)]),
    ("a.c", "struct a {\n    int\n        values[3];\n};\n", [(2, TORN)]),
    ("a.c", "struct a {\n    int /* how many */\n        values[3];\n};\n", [(2, TORN)]),
    ("a.c", "struct a {\n    /* how many */\n    int values[3];\n};\n", []),
    ("a.c", BODY % "    return\n        x;\n", []),
    ("a.h", "struct a {\n    int one,\n        two; /**< both */\n};\n", [(2, BESIDE)]),
    ("a.h", "struct a {\n    int one[3],\n        two[3]; /* both */\n};\n", [(2, BESIDE)]),
    ("a.h", "struct a {\n    void (*f)(\n        int x); /**< moves */\n};\n", [(2, BESIDE)]),
    ("a.h", "#define A \\\n    6 /**< six */\n", [(1, BESIDE)]),
    ("a.c", BODY % "    f(x,\n      y); /* why */\n", [(3, BESIDE)]),
    ("a.h", "struct a {\n    /** both */\n    int one,\n        two;\n};\n", []),
    ("a.h", "struct a {\n    int one, two; /**< both */\n};\n", []),
    ("a.h", "#define A(x) \\\n    f(x)\n", []),
    ("a.h", "    int %s,\n        two; /* too long for one line */\n" % ("o" * 100), []),
    ("a.c", "    x = (y_t){.a = 1,\n              .b = f(2),\n              .c = 3}; /* why */\n", []),
    ("a.h", "struct a {\n    int x; /**< one\n            *   two */\n};\n", [(2, HANGING)]),
    ("a.h", "struct a {\n    /** one\n     *  two */\n    int x; /**< three */\n};\n", []),
    ("a.h", "/* ---- title\n * ------------------------------ Text. */\n", [(1, TITLE)]),
    ("a.h", "/* ---- title ---------------- */\n\n/* Text. */\n", []),
    ("core/a.c", "int x;\n\n/* Adds\n * one. */\nstatic int f(int x)\n{\n}\n", [(3, ABOVE)]),
    ("core/a.cu", "/* Adds one. */\n__global__ void f(int *x)\n{\n}\n", [(1, ABOVE)]),
    ("core/a.c", "/** Adds one. */\nint f(int x)\n{\n}\n", []),
    ("core/a.c", "/* ---- sums ---- */\n\n/* Ten. */\nstatic const int x = f(10);\n", []),
    ("tests/core/a.cc", "/* Adds one. */\nTEST(A, B)\n{\n}\n", []),
    ("core/a.h", DECLARATION, [(1, BEGIN)]),
    ("core/a.h", "/** A word,\n *  and one more. */\n" + DECLARATION, [(3, BEGIN)]),
    ("core/a.h", GUARDED, []),
    ("core/a.h", "static inline int tw_f(int x)\n{\n    return x;\n}\n", []),
    ("core/a.h", "typedef int tw_f_t(int x);\nstatic int tw_g(int x);\n#define RETURNS(x) f(x);\n", []),
    ("core/a.c", DECLARATION, []),
    ("tests/core/a.h", DECLARATION, []),
]

NAMES = {"here.c", "here.h"}
COMMENTS = [
    ("/* see gone.c */\n", [(1, "there is no file gone.c")]),
    ("/* One line,\n * and core/gone.h */\n", [(2, "there is no file core/gone.h")]),
    ("// gone.py does it\n", [(1, "there is no file gone.py")]),
    ("/* see here.c, core/here.h and llm.c */\n", []),
    ("#include \"gone.h\"\n", []),
    ("/* as of gone.cpp, gone.json */\n", []),
]

CHECKED = ["core/a.c", "a.cuh", "bench/a.py", "README.md", "docs/a.md", "bench/results/README.md"]
NOT_CHECKED = ["bench/results/a.jsonl", "BUILD"]

PYTHON = [
    ("x" * 110 + "\n" + "x" * 111 + "\n", [(2, "111 characters, more than 110")]),
    ("def f():\n" + "    x\n" * 60, [(1, "f() has more than 60 lines")]),
    ("def f():\n" + "    x\n" * 59, []),
]

PAGES = [
    ("docs/a.md", "x" * 121 + "\n", [(1, "121 characters, more than 120")]),
    ("docs/a.md", "short\n" + "x" * 120 + "\n", []),
    ("README.md", "x\n" * 151, [(151, "more than 150 lines: the rest belongs in docs/")]),
    ("README.md", "x\n" * 150, []),
    ("docs/a.md", "x\n" * 151, []),
]


def load():
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath("WORKSPACE")), ".ci"))
    return importlib.import_module("dialect")


def main():
    dialect = load()
    cases = [(path, text, dialect.code_complaints(path, text), expected) for path, text, expected in CODE]
    cases += [("a comment", text, dialect.name_complaints(text, NAMES), expected)
              for text, expected in COMMENTS]
    cases += [("a.py", text, dialect.python_complaints(text), expected) for text, expected in PYTHON]
    cases += [(path, text, dialect.page_complaints(path, text), expected) for path, text, expected in PAGES]
    cases += [(path, "", [dialect.is_checked(path)], [True]) for path in CHECKED]
    cases += [(path, "", [dialect.is_checked(path)], [False]) for path in NOT_CHECKED]
    n_wrong = 0
    for path, text, found, expected in cases:
        found = sorted(found)
        if found != expected:
            n_wrong += 1
            print("%s: %r\n  says %s\n  not  %s" % (path, text[:200], found, expected))
    print("%d cases, %d of them wrong" % (len(cases), n_wrong))
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
