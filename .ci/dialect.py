#!/usr/bin/env python3
"""dialect.py check: checks the rules of docs/style.md on the dialect and on lengths that a program can check.

Prints a line for each complaint, as file:line: text. Under Bazel: //:dialect_check."""

import ast
import os
import re
import sys

import tracked

CODE_COLUMNS = 110
DOC_COLUMNS = 120
README_LINES = 150
FUNCTION_LINES = 60  # of Python; clang-tidy counts those of C

# Files outside this repository that comments and pages name.
NOT_OURS = {"cublasLt.h", "job.py", "llm.c", "stdio.h", "stdlib.h", "sysexits.h", "transformer.h",
            "x.c", "x.cu", "x.h"}

# `p != NULL` is right as a value, as in `x = (p != NULL)`; in a condition it must be `p`.
VALUE_OF_NULL = re.compile(r"[=!]= \([^()]*[=!]= NULL\)")
NULL_IN_CONDITION = re.compile(
    r"\b(if|while) \(.*[=!]= NULL|[=!]= NULL( \?| &&| \|\|)|(&&|\|\|) .*[=!]= NULL|\bNULL [=!]=")
BEFORE = re.compile(r"(; |^\s*)(\+\+|--)[A-Za-z_][\w.>\[\]-]*[;)]")
TRY = re.compile(
    r"^( +)(?:tw_status_t )?status = [^;?]+;\n\n?\1if \((?:status|status != TW_OK)\) \{\n"
    r" +return status;\n\1\}", re.MULTILINE)
TORN = re.compile(
    r"^ +(?!return\b|else\b|typedef\b|case\b)[A-Za-z_][\w *]*[\w*]\n +(?:\*+\w+|\w+\[\w*\]|\[\w*\]|\w+);$"
    r"|\[\w*\]\n +\[\w*\];$", re.MULTILINE)
# A declaration that clang-format broke in two lines because of a comment beside it. It is a complaint if the
# two lines would fit in one. Matches the text with its comments.
TORN_BESIDE = re.compile(
    r"^( +[^\s.\"][^\n/]*[,(]|#define \w+ \\)\n +([^\n;]*;|[^\n;/]*[^\s;/]) +/\*", re.MULTILINE)
HANGING = re.compile(r"\S[^\n]*/\*\*<(?:(?!\*/)[^\n])*\n")
TORN_TITLE = re.compile(r"^/\* -{4} [^\n]*\n \* -{8}", re.MULTILINE)
# A comment above a function that begins with /* in place of /**. Not for tests, which have titles there.
PLAIN_ABOVE = re.compile(
    r"^/\*(?!\*)(?! ?[-=]{3})(?:(?!\*/).)*\*/\n(?!static_assert|typedef|extern)"
    r"(?=[A-Za-z_][^;{=#/]*\([^;{=#]*[;{])", re.MULTILINE | re.DOTALL)
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
FILE_NAME = re.compile(r"[\w/-]*\b\w+\.(?:c|h|cc|cu|cuh|py)\b")
DECLARES = re.compile(r"^(?!static|typedef|return|#)[A-Za-z_][\w ]* \**\w+\([^{}]*\);", re.MULTILINE)


def is_torn(match):
    """Returns whether the two lines of a match of TORN_BESIDE would fit in one."""
    first, last = match.group(1).rstrip("\\").rstrip(), match.group(2)
    is_define = first.startswith("#define")
    length = len(first) + (not first.endswith("(")) + len(last)
    return is_define != last.endswith(";") and length <= CODE_COLUMNS


def spaces(match):
    """Returns a match with all characters replaced by spaces, except line ends, so that lines keep their
    numbers."""
    return re.sub(r"[^\n]", " ", match.group())


def lines_of(text, pattern):
    for number, line in enumerate(text.split("\n"), 1):
        if pattern.search(VALUE_OF_NULL.sub("", line)):
            yield number


def code_complaints(path, text):
    """Yields (line, complaint) of a file of C or C++."""
    code = STRING.sub('""', tracked.COMMENT.sub(spaces, text))
    for number in lines_of(code, NULL_IN_CONDITION):
        yield number, "in a condition it is p or !p, without NULL"
    for number in lines_of(code, BEFORE):
        yield number, "it is i++"
    if path.endswith((".c", ".cc")):
        for match in TRY.finditer(code):
            yield code.count("\n", 0, match.start()) + 1, "it is TW_TRY"
    stripped = re.sub(r" +$", "", code, flags=re.MULTILINE)
    for match in TORN.finditer(stripped):
        yield stripped.count("\n", 0, match.start()) + 1, "a torn declaration: its comment goes above it"
    for match in TORN_BESIDE.finditer(text):
        if is_torn(match):
            yield text.count("\n", 0, match.start()) + 1, "torn by the comment beside it, which goes above it"
    for match in HANGING.finditer(text):
        yield (text.count("\n", 0, match.start()) + 1,
               "a comment beside a member ends in its line, or goes above it")
    for match in TORN_TITLE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, "a torn title"
    if not path.startswith("tests/"):
        for match in PLAIN_ABOVE.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, "the comment above a function begins with /**"
    if path.endswith(".h") and not path.startswith("tests/") and "TW_C_BEGIN" not in code:
        match = DECLARES.search(code)
        if match:
            yield code.count("\n", 0, match.start()) + 1, "what a header declares stands after TW_C_BEGIN"


def name_complaints(text, names):
    """Yields (line, complaint) for each name in a comment that is no file's of this repository."""
    for comment in tracked.COMMENT.finditer(text):
        for match in FILE_NAME.finditer(comment.group()):
            name = os.path.basename(match.group())
            if name not in names and name not in NOT_OURS:
                number = text.count("\n", 0, comment.start() + match.start()) + 1
                yield number, "there is no file %s" % match.group()


def long_lines(lines, columns):
    """Yields (line, complaint) for each line of more than `columns` characters."""
    for number, line in enumerate(lines, 1):
        if len(line) > columns:
            yield number, "%d characters, more than %d" % (len(line), columns)


def python_complaints(text):
    """Yields (line, complaint) of a file of Python."""
    yield from long_lines(text.split("\n"), CODE_COLUMNS)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= FUNCTION_LINES:
            yield node.lineno, "%s() has more than %d lines" % (node.name, FUNCTION_LINES)


def page_complaints(path, text):
    """Yields (line, complaint) of a page in Markdown."""
    lines = text.rstrip("\n").split("\n")
    yield from long_lines(lines, DOC_COLUMNS)
    if path == "README.md" and len(lines) > README_LINES:
        yield len(lines), "more than %d lines: the rest belongs in docs/" % README_LINES


def is_checked(path):
    return path.endswith(tracked.C_FILES + (".py", ".md"))


def complaints_of(path, names):
    text = tracked.read(path)
    if path.endswith(tracked.C_FILES):
        yield from code_complaints(path, text)
        yield from name_complaints(text, names)
    elif path.endswith(".py"):
        yield from python_complaints(text)
    else:
        yield from page_complaints(path, text)


def main():
    tracked.enter()
    everything = tracked.tracked()
    names = {os.path.basename(path) for path in everything}
    paths = [path for path in everything if is_checked(path)]
    complaints = ["%s:%d: %s" % (path, *found)
                  for path in paths for found in sorted(complaints_of(path, names))]
    print("\n".join(complaints + ["%d files, %d complaints" % (len(paths), len(complaints))]))
    return 1 if complaints or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
