#!/usr/bin/env python3
"""links.py check: checks that links in pages lead to files, pictures and headings that exist. Skips URLs."""

import pathlib
import re
import sys

import tracked

LINK = re.compile(r"\]\(([^)\s]+)\)")
BLOCK, CODE = re.compile(r"```.*?```", re.DOTALL), re.compile(r"`[^`\n]*`")


def headings(page):
    """Returns the anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in found}


def complaints(page):
    for link in LINK.findall(CODE.sub("", BLOCK.sub("", page.read_text(encoding="utf-8")))):
        path, _, anchor = link.partition("#")
        to = page.parent / path if path else page
        if re.match(r"[a-z]+:", link):
            continue
        if not to.exists() or (anchor and anchor not in headings(to)):
            yield "%s: there is no %s" % (page, link)


def main():
    tracked.enter()
    names = tracked.tracked(".md")
    found = [one for name in names for one in complaints(pathlib.Path.cwd() / name)]
    print("\n".join(found + ["%d pages, %d complaints" % (len(names), len(found))]))
    return 1 if found or not names else 0


if __name__ == "__main__":
    sys.exit(main())
