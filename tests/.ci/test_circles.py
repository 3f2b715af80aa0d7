#!/usr/bin/env python3
"""Checks that circles.py sees circles of each kind."""

import importlib
import os
import sys

sys.dont_write_bytecode = True

# Files of Python in circles.
PYTHON = {
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

# (what sees it, files, the circle that they are in)
CASES = [
    # a function with tw_, a table of them; what a public header's macro names is no circle
    ("leaning", {
        "core/a.c": '#include "core/a.h"\nvoid tw_a(void)\n{\n    tw_b();\n}\n',
        "core/a.h": "void tw_a(void);\nvoid tw_d_run(void);\n",
        "core/b.c": "void tw_b(void)\n{\n    /* tw_d */ tw_c_table[0].run();\n}\n",
        "core/c.c": '#include "core/a.h"\nconst tw_row_t tw_c_table[] = {0};\n',
        "core/core.h": "void tw_d_run(void);\n#define TW_RUN() tw_d_run()\n",
        "core/d.c": '#include "core/core.h"\nvoid tw_d_run(void)\n{\n    tw_a("tw_d");\n}\nint tw_d = 1;\n',
    }, ["core/a", "core/b", "core/c"]),
    # names without tw_, in C and in a namespace of C++
    ("leaning", {
        "bench/x/x.h": "void meet(int n);\nvoid part(void);\n",
        "bench/x/a.c": '#include "bench/x/x.h"\nvoid meet(int n)\n{\n    part();\n}\n',
        "bench/x/b.c": '#include "bench/x/x.h"\nvoid part(void)\n{\n    meet(1);\n}\n',
        "bench/y.c": "void other(void)\n{\n    int meet = part;\n}\n",
    }, ["bench/x/a", "bench/x/b"]),
    ("leaning", {
        "tests/a.h": "namespace a\n{\nint first(int n);\n}\n",
        "tests/a.cc": '#include "tests/b.h"\nnamespace a\n{\n'
                      "int first(int n)\n{\n    return b::last;\n}\n}\n",
        "tests/b.h": "namespace b\n{\nextern int last;\n}\n",
        "tests/b.cc": '#include "tests/a.h"\nnamespace b\n{\nint last = a::first(1);\n}\n',
    }, ["tests/a", "tests/b"]),
    ("folders", {
        "core/one/a.h": '#include "core/two/b.h"\n', "core/two/b.h": '#include "core/c.h"\n',
        "core/two/d.h": '#include "core/one/deep/e.h"\n', "core/c.h": '#include "core/one/a.h"\n',
        "core/one/deep/e.h": '#include "core/one/a.h"\n',
    }, ["core/one", "core/two"]),
]


def load():
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath("WORKSPACE")), ".ci"))
    return importlib.import_module("circles")


def main():
    check = load()
    missed = [circle for sees, files, circle in CASES
              if check.circles(getattr(check, sees)(files)) != [circle]]
    leans = check.python_leaning(PYTHON)
    if (check.circles(leans) != [["p/a.py", "p/b.py"]] or "p/c.py" not in leans["p/__init__.py"]
            or check.circles(check.python_folders(leans)) != [["p/a.py", "p/b.py"], ["p/e/", "p/g/"]]):
        missed.append("those of Python")
    for circle in missed:
        print("the check does not see the circle of %s" % circle)
    print("%d kinds of circles, %d missed" % (len(CASES) + 1, len(missed)))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
