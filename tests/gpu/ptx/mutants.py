#!/usr/bin/env python3
"""Does gpu_check on the PTX machine notice when a kernel lacks an instruction that protects it?

    ./bazelw run //tests/gpu/ptx:mutants -- [--only trainer] [--kinds barrier,wait] [--n 0] [--jobs 2]

takes out, one at a time, barriers (bar.sync, bar.warp.sync), waits for copies (cp.async.wait), branches
around what is out of bounds, and guards (`@%p` before an instruction) of the PTX of kernels that a quick run
launches: `n` of them, drawn by `seed`, 0 for all. Of each mutant those tests run that launch its kernel, the
quickest first, until one notices: it fails, or does not end. Each mutant is "noticed", by which test, or
"survived", with the line. A survivor is a missing test, or an instruction that makes no difference: somebody
has to look at each one."""

import argparse
import concurrent.futures
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

KINDS = {
    "barrier": re.compile(r"\s(bar\.sync|bar\.warp\.sync|barrier\.sync)"),
    "wait": re.compile(r"\scp\.async\.wait"),
    "branch": re.compile(r"@!?%p\d+ bra"),
    "guard": re.compile(r"@!?%p\d+ (?!bra)"),
}
FOREVER = "5000000"  # branches backwards of a launch
LIMIT_SEC = 600
Site = tuple[str, str, str]  # kind, FILE:LINE, kernel


class Checks:
    """The tests of a part of gpu_check, and which kernels each of them launches."""

    def __init__(self, program: str, only: str, ptx: list[str], tests: str):
        self.command = [program, "--only=" + only, "--quick"]
        self.variables = {"PTX_FILES": " ".join(ptx), "PTX_EXPECT": "PARAMS-OVER-4K,UNINIT-SHARED",
                          "PTX_BRANCHES": FOREVER, "PTX_RACES": "1"}
        self.tests_of: dict[str, list[str]] = {}
        found = []
        for test in self._list():
            begin = time.monotonic()
            kernels = self._kernels(test) if re.match(tests, test) else None
            found.append((time.monotonic() - begin, test, kernels or set()))
        for _, test, kernels in sorted(found, key=lambda one: one[:2]):
            for kernel in kernels:
                self.tests_of.setdefault(kernel, []).append(test)

    def _list(self) -> list[str]:
        listed = subprocess.run([*self.command, "--gtest_list_tests"], capture_output=True, text=True,
                                check=True).stdout
        suite, names = "", []
        for line in listed.splitlines():
            if re.fullmatch(r"\S+\.", line.split("  #")[0]):
                suite = line.split("  #")[0]
            elif line.startswith("  "):
                names.append(suite + line.split("#")[0].strip())
        return names

    def passes(self, test: str, **variables: str) -> bool:
        """Runs a test; whether it passed."""
        try:
            done = subprocess.run(
                [*self.command, "--gtest_filter=" + test], env={**os.environ, **self.variables, **variables},
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                timeout=LIMIT_SEC, check=False)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def _kernels(self, test: str) -> set[str] | None:
        """The kernels that a test launches."""
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "log")
            if not self.passes(test, PTX_LOG=str(log)):
                print("left out: %s does not pass with the kernels as they are" % test, flush=True)
                return None
            lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        return {line.split()[2] for line in lines if line.startswith("KERNEL ")}

    def who_notices(self, site: Site) -> str | None:
        """The first test that fails without what stands there."""
        return next((test for test in self.tests_of[site[2]] if not self.passes(test, PTX_MUTANT=site[1])),
                    None)


def sites_of(path: str, kernels: set[str], kinds: list[str]) -> list[Site]:
    """What may be taken out of these kernels."""
    sites, kernel = [], ""
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if ".entry " in line:
                kernel = line.split(".entry ")[1].split("(")[0].strip()
            for kind in kinds if kernel in kernels else []:
                if KINDS[kind].search(line):
                    sites.append((kind, f"{os.path.basename(path)}:{number}", kernel))
    return sites


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="gpu_check on the machine")
    parser.add_argument("ptx", nargs="+", help="files of kernels")
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="sums", help="a part of gpu_check")
    parser.add_argument("--tests", default="", help="a pattern of names: only these tests")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    checks = Checks(options.program, options.only, options.ptx, options.tests)
    sites = [site for path in options.ptx
             for site in sites_of(path, set(checks.tests_of), options.kinds.split(","))]
    if options.n:
        sites = random.Random(options.seed).sample(sites, min(options.n, len(sites)))
    survived = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for (kind, place, kernel), test in zip(sites, pool.map(checks.who_notices, sites)):
            survived += test is None
            print(f"noticed  {kind} {place} by {test}" if test else f"survived {kind} {place} {kernel}",
                  flush=True)
    print(f"{len(sites) - survived} noticed, {survived} survived")
    return 0


if __name__ == "__main__":
    sys.exit(main())
