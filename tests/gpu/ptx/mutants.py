#!/usr/bin/env python3
"""Does gpu_check on the PTX machine notice when a kernel lacks an instruction that protects it?

    ./bazelw run //tests/gpu/ptx:mutants -- [--n 20] [--seed 1] [--only sums] [--kinds barrier,guard]

takes out, one at a time, barriers (bar.sync, bar.warp.sync), waits for copies (cp.async.wait), branches
around what is out of bounds, and guards (`@%p` before an instruction) of the PTX of kernels that a quick run
launches: `n` of them, drawn by `seed`, 0 for all. Each is "noticed" (the run failed, or did not end) or
"survived", with the line. A survivor is a missing test, or an instruction that makes no difference: somebody
has to look at each one."""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile

KINDS = {
    "barrier": re.compile(r"\s(bar\.sync|bar\.warp\.sync|barrier\.sync)"),
    "wait": re.compile(r"\scp\.async\.wait"),
    "branch": re.compile(r"@!?%p\d+ bra"),
    "guard": re.compile(r"@!?%p\d+ (?!bra)"),
}
FOREVER = "5000000"  # branches backwards of a launch
LIMIT_SEC = 600


def run(program: str, only: str, variables: dict[str, str]) -> bool:
    """Runs a part of gpu_check; whether it passed."""
    try:
        done = subprocess.run(
            [program, "--only=" + only, "--quick"], env={**os.environ, **variables},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, timeout=LIMIT_SEC,
            check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def kernels_of(log: str) -> set[str]:
    """The kernels that a run's log names."""
    with open(log, encoding="utf-8") as lines:
        return {line.split()[2] for line in lines if line.startswith("KERNEL ")}


def sites_of(path: str, kernels: set[str], kinds: list[str]) -> list[tuple[str, str]]:
    """Kind and FILE:LINE of what may be taken out of these kernels."""
    sites, inside = [], False
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if ".entry " in line:
                inside = line.split(".entry ")[1].split("(")[0].strip() in kernels
            for kind in kinds if inside else []:
                if KINDS[kind].search(line):
                    sites.append((kind, f"{os.path.basename(path)}:{number}"))
    return sites


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="gpu_check on the machine")
    parser.add_argument("ptx", nargs="+", help="files of kernels")
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="sums")
    parser.add_argument("--kinds", default=",".join(KINDS))
    options = parser.parse_args()
    variables = {"PTX_FILES": " ".join(options.ptx), "PTX_EXPECT": "PARAMS-OVER-4K,UNINIT-SHARED",
                 "PTX_BRANCHES": FOREVER}
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        if not run(options.program, options.only, {**variables, "PTX_LOG": log}):
            print("the kernels as they are do not pass")
            return 1
        sites = [site for path in options.ptx
                 for site in sites_of(path, kernels_of(log), options.kinds.split(","))]
    if options.n:
        sites = random.Random(options.seed).sample(sites, min(options.n, len(sites)))
    survived = 0
    for kind, place in sites:
        passed = run(options.program, options.only, {**variables, "PTX_MUTANT": place})
        survived += passed
        print(f"{'survived' if passed else 'noticed '} {kind} {place}", flush=True)
    print(f"{len(sites) - survived} noticed, {survived} survived")
    return 0


if __name__ == "__main__":
    sys.exit(main())
