#!/usr/bin/env python3
"""Do the tests notice when a line of the product changes?

    tests/mutation/mutate.py MODULE [--n 100] [--seed 1] [--work DIR] [--only PREFIX] [--ids 3,17]
                             [--config asan]

copies the tree to DIR, changes MODULE (core, quant, transport or collectives) in `n` places drawn by `seed`,
and builds that once: each change is `(tw_mutant(17) ? changed : original)`, and the environment variable
MUTANT picks one. Then it runs the tests of the changed file for each mutant, the quick ones first, until one
fails. The outcome is one JSON line for each mutant in DIR/results.jsonl: {id, file, line, before, after,
outcome, test, sec}; `outcome` is "failed", "timeout", "crashed" (killed so far), "equivalent" (EQUIVALENT
says why; not run) or "survived". A run that was interrupted goes on where it stopped; results of mutants that
are there are kept.

A survivor is a missing test, or a change that makes no difference: somebody has to look at each one."""

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", ".."))

# By the beginning of a file's name, the first match: its tests, the quick ones first.
TESTS = {
    "quant": [
        ("quant/codec.c", ["test_quant_codec", "test_quant_layout", "test_quant_error"]),
        ("quant/quant.c", ["test_quant", "test_adamw"]),
        ("quant/arithmetic/adamw", ["test_quant_adamw_element", "test_adamw"]),
        ("quant/arithmetic/", ["test_quant_block", "test_quant_layout", "test_quant_float",
                               "test_quant_philox", "test_quant_codec", "test_quant_ref", "test_convert",
                               "test_quant_stochastic", "test_quant_compose", "test_quant_cuda_strip",
                               "test_quant_cuda_tiling", "test_quant_error", "test_quant_twins"]),
        ("quant/host/adamw", ["test_adamw"]),
        ("quant/host/convert", ["test_convert"]),
        ("quant/host/host", ["test_quant_ref", "test_quant"]),
        ("quant/host/ref", ["test_quant_ref", "test_quant_compose", "test_quant_stochastic", "test_quant",
                            "test_quant_twins"]),
        ("quant/host/", ["test_quant_compose", "test_quant_stochastic", "test_convert", "test_quant_error",
                         "test_quant_twins"]),
        ("quant/lossless/", ["lossless:test_lossless_codec", "lossless:test_lossless_stream",
                             "lossless:fuzz_lossless"]),
        ("quant/delta/", ["delta:test_delta_value", "delta:test_delta_model", "delta:test_delta_codec",
                          "delta:fuzz_delta"]),
        ("quant/entropy/", ["delta:test_delta_model", "delta:test_delta_codec",
                            "lossless:test_lossless_codec", "delta:fuzz_delta", "lossless:fuzz_lossless"]),
        ("quant/cuda/lossless", ["test_messages_cuda"]),
        ("quant/cuda/ecdq", ["test_messages_cuda"]),
        ("quant/cuda/messages", ["test_messages_cuda", "lossless:test_lossless_stream"]),
        ("quant/cuda/tiling", ["test_quant_cuda_tiling", "test_quant_cuda_job", "test_quant_cuda_twins"]),
        ("quant/cuda/strip", ["test_quant_cuda_strip", "test_quant_cuda_twins"]),
        ("quant/cuda/job", ["test_quant_cuda_job", "test_quant_cuda_tiling", "test_quant_cuda_twins",
                            "test_adamw_cuda_emulated"]),
        ("quant/cuda/", ["test_adamw_cuda_emulated", "test_quant_cuda_job", "test_quant_cuda_twins"]),
    ],
    "transport": [
        ("transport/monitor/outage", ["test_monitor_outage", "test_monitor_monitor"]),
        ("transport/monitor/", ["test_monitor_outage", "test_monitor_monitor", "test_rendezvous_rendezvous"]),
        ("transport/p2p/tcp_", ["test_p2p_tcp", "test_p2p", "fuzz_p2p"]),
        ("transport/p2p/greeting", ["test_p2p_greeting", "test_p2p_tcp"]),
        ("transport/seal", ["test_p2p_greeting", "test_p2p_tcp", "test_control_connection",
                            "test_rendezvous_join_sealed"]),
        ("transport/p2p/ucx_memory", ["test_p2p_ucx_memory", "test_ranks_ranks"]),
        ("transport/p2p/", ["test_p2p_request", "test_p2p", "test_p2p_tcp", "test_ranks_ranks"]),
        ("transport/options", ["test_options", "test_rendezvous_rendezvous"]),
        ("transport/control/", ["test_control_token", "test_control_messages", "test_control_socket",
                                "test_control_connection", "fuzz_control", "test_rendezvous_rendezvous",
                                "test_rendezvous_join_sealed", "test_monitor_monitor"]),
        ("transport/rendezvous/", ["test_rendezvous_job_env", "test_rendezvous_job_text",
                                   "test_rendezvous_node_id", "test_rendezvous_rendezvous",
                                   "test_rendezvous_join_sealed"]),
        ("transport/", ["test_backend_local", "test_ranks_ranks"]),
    ],
    # Of the files that are not here, all tests.
    "collectives": [],
    "core": [],
}
# Changes that make no difference: (file, before, after) and why.
EQUIVALENT = {
    ("collectives/quantized/alltoall.c", "c < n_chunks", "c <= n_chunks"):
        "a round in which no rank has a chunk is empty",
}
# What a test finds in its environment: a program of its own.
PROGRAMS = {"RANK_MAIN": "tests/transport/rank_main"}

SOURCES = {
    "quant": ("quant/",),
    "transport": ("transport/",),
    "collectives": ("collectives/",),
    "core": ("core/",),
}
# Not built without CUDA, or no code.
SKIPPED = re.compile(r"\.cu$|device\.cuh$|launch\.cuh$|select\.cuh$|/gpu/device|nccl|_cuda\.c$")

RUNTIME = """#ifndef TW_MUTANT_RUNTIME
#define TW_MUTANT_RUNTIME
#include <stdlib.h>
#ifdef __cplusplus
extern "C" {
#endif
extern int tw_mutant_chosen;
__attribute__((weak)) int tw_mutant_chosen = 0;
void tw_mutant_choose(void);
__attribute__((weak, constructor(101))) void tw_mutant_choose(void)
{
    const char *text = getenv("MUTANT");
    tw_mutant_chosen = text ? atoi(text) : 0;
}
static inline int tw_mutant(int id)
{
    return tw_mutant_chosen == id;
}
#ifdef __cplusplus
}
#endif
#endif
#line 1
"""

# ---- places ------------------------------------------------------------------------------------------------

BLANKED = re.compile(
    r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*',
    re.S | re.M)
DEVICE_ONLY = re.compile(r"^#if[^\n]*__CUDA[^\n]*\n(.*?)^#(?:else|endif)", re.S | re.M)
CONDITION = re.compile(r"\b(?:if|while)\s*(\()")
FOR = re.compile(r"\bfor\s*(\()")
RETURN = re.compile(r"\breturn\s+([^;{}]+);")
ASSIGNMENT = re.compile(
    r"(?<=[;{}])\s*([^;{}=():?]*[\w\])])\s*(?<![=!<>])((?:[-+*/|&]|<<|>>)?=)(?!=)\s*([^;{}]+);")
CALL = re.compile(r"(?<=[;{}])\s*(\w+\([^;{}]*\));")
NO_CALL = re.compile(
    r"^(?:if|for|while|switch|return|sizeof|free|tw_(?:error|warn|info|debug|trace|buffer_free)"
    r"|__builtin_prefetch|__builtin_assume|static_assert|_Static_assert|asm)\b|^[A-Z_0-9]+\(")
BRACKETS = re.compile(r"\[[^\]]*\]")
DECLARED = re.compile(r"\w[\s*]+\w")  # a type, then a name

SWAPS = [(r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "), (r" == ", " != "),
         (r" != ", " == "), (r" && ", " || "), (r" \|\| ", " && "), (r" \+ ", " - "), (r" - ", " + "),
         (r" \* ", " + "), (r" / ", " * "), (r" % ", " / "), (r" << ", " >> "), (r" >> ", " << "),
         (r" & ", " | "), (r" \| ", " & ")]
NUMBER = re.compile(r"(?<![\w.])(\d+)(u|ull)?(?![\w.])")


def blank(text):
    """Comments, strings, preprocessor lines and what only nvcc compiles become blanks of the same length."""
    text = DEVICE_ONLY.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    return BLANKED.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def closing(text, at):
    """The parenthesis that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    return None


def first_part(text, separator):
    """Up to the first separator outside of parentheses and brackets."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if c == separator and depth == 0:
            return text[:i]
    return text


def depths(code):
    """Before each character: how many braces and how many parentheses are open."""
    braces, parens, found = 0, 0, []
    for c in code:
        found.append((braces, parens))
        braces += (c == "{") - (c == "}")
        parens += (c == "(") - (c == ")")
    return found


def variants(code, text, condition):
    """Changed versions of an expression: `code` is its blanked text."""
    found = []
    for pattern, swap in SWAPS:
        for m in re.finditer(pattern, code):
            found.append(text[:m.start()] + swap + text[m.end():])
    for m in NUMBER.finditer(code):
        found.append(text[:m.start(1)] + str(int(m[1]) + 1) + text[m.end(1):])
    if condition:
        found.append("!(" + text + ")")
    return found


def places(text):
    """Yields (begin, end, before, after): the text of a place, and of its change. after None: the statement
    goes."""
    code, found = blank(text), []
    depth = depths(code)

    def expression(begin, end, condition):
        part = text[begin:end]
        if "{" in code[begin:end] or not part.strip():
            return
        for after in variants(code[begin:end], part, condition):
            found.append((begin, end, part, after))

    for m in CONDITION.finditer(code):
        end = closing(code, m.start(1))
        if end is not None and "constexpr" not in code[max(0, m.start() - 12):m.start(1)]:
            expression(m.start(1) + 1, end, True)
    for m in FOR.finditer(code):
        end = closing(code, m.start(1))
        semicolons = [i for i in range(m.start(1), end or 0) if code[i] == ";"]
        if len(semicolons) == 2 and not re.search(r"UNROLL\s*$", code[:m.start()]):
            begin = semicolons[0] + 1
            begin += len(code[begin:]) - len(code[begin:].lstrip())
            expression(begin, semicolons[1], False)
    for m in RETURN.finditer(code):
        if depth[m.start()][0] > 0:
            expression(m.start(1), m.end(1), False)
    for m in ASSIGNMENT.finditer(code):
        at = m.start(1)
        if (depth[at][0] == 0 or depth[at][1] > 0
                or re.search(r"\b(?:static|constexpr|typedef|using|enum|template)\b", m[1])):
            continue
        declared = DECLARED.search(BRACKETS.sub("", m[1])) is not None
        value = first_part(m[3], ",") if declared else m[3]
        expression(m.start(3), m.start(3) + len(value.rstrip()), False)
        if not declared:
            found.append((at, m.end(), text[at:m.end()], None))
    for m in CALL.finditer(code):
        at = m.start(1)
        if depth[at][0] > 0 and depth[at][1] == 0 and not NO_CALL.match(m[1]):
            found.append((at, m.end(), text[at:m.end()], None))
    return found


def choose(files, n, seed):
    """`n` mutants, not two at the same place: [{id, file, line, begin, end, before, after}]."""
    every, chosen, taken = [], [], {}
    for name, text in files.items():
        every += [(name,) + p for p in places(text)]
    random.Random(seed).shuffle(every)
    for name, begin, end, before, after in every:
        if len(chosen) == n:
            break
        if any(begin < e and b < end for b, e in taken.setdefault(name, [])):
            continue
        taken[name].append((begin, end))
        chosen.append({"id": len(chosen) + 1, "file": name, "line": files[name].count("\n", 0, begin) + 1,
                       "begin": begin, "end": end, "before": before, "after": after})
    return chosen


def apply(text, mutants):
    for m in sorted(mutants, key=lambda m: -m["begin"]):
        if m["after"] is None:
            new = "if (!tw_mutant(%d)) { %s }" % (m["id"], m["before"])
        else:
            new = "(tw_mutant(%d) ? (%s) : (%s))" % (m["id"], m["after"], m["before"])
        text = text[:m["begin"]] + new + text[m["end"]:]
    return RUNTIME + text


# ---- building ----------------------------------------------------------------------------------------------

def tracked():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], stdout=subprocess.PIPE, check=True)
    return [n for n in listed.stdout.decode().split("\0") if n and os.path.isfile(os.path.join(ROOT, n))]


def copy_tree(tree):
    for name in tracked():
        target = os.path.join(tree, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy2(os.path.join(ROOT, name), target)


def tests_of(module, name):
    for prefix, tests in TESTS[module]:
        if name.startswith(prefix):
            return ["//tests/%s/%s" % (module, t) if ":" in t else "//tests/%s:%s" % (module, t)
                    for t in tests]
    return None


def all_tests(tree, module):
    query = ('kind(".*_test", //tests/%s/...) '
             'except attr("tags", "cluster|slow|exclusive|manual", //tests/%s/...)' % (module, module))
    out = subprocess.run(["./bazelw", "query", "--noshow_progress", "--repo_env=TW_CUDA=0", query], cwd=tree,
                         stdout=subprocess.PIPE, check=True)
    return out.stdout.decode().split()


def build(tree, targets, flags, files, mutants):
    """Build the mutated tree; what does not compile is left out. Returns the mutants that are in."""
    for _ in range(12):
        for name, text in files.items():
            mine = [m for m in mutants if m["file"] == name]
            with open(os.path.join(tree, name), "w") as out:
                out.write(apply(text, mine) if mine else text)
        command = ["./bazelw", "build", "-k", "--repo_env=TW_CUDA=0", "--copt=-w"] + flags + targets
        run = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        log = run.stdout.decode(errors="replace")
        with open(os.path.join(tree, "..", "build.log"), "w") as out:
            out.write(log)
        if run.returncode == 0:
            return mutants
        wrong = {(name, int(line)) for name, line in re.findall(r"^(\S+?):(\d+):\d+: error", log, re.M)}
        wrong |= {(name, int(line))
                  for name, line in re.findall(r"(\S+\.\w+):(\d+):\d+:   (?:required|in)", log)}

        def fails(m):
            last = m["line"] + m["before"].count("\n")
            return any((m["file"], line) in wrong for line in range(m["line"], last + 1))

        left = [m for m in mutants if not fails(m)]
        if len(left) == len(mutants):
            sys.exit("the mutated tree does not build, and no mutant is to blame: see build.log")
        print("left out %d mutants that do not compile" % (len(mutants) - len(left)), flush=True)
        mutants = left
    sys.exit("too many mutants that do not compile")


# ---- running -----------------------------------------------------------------------------------------------

def test_environment(config):
    """What every test is run with: nothing of Thinwire's from here, and for a sanitizer what .bazelrc gives
    it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TW_")}
    with open(os.path.join(ROOT, ".bazelrc")) as lines:
        for line in lines:
            given = re.match(r"test:(\S+) --test_env=(\w+)=(\S+)", line)
            if given and given[1] in ("sanitizer", config) and config:
                env[given[2]] = given[3]
    return env


def limits():
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_test(tree, work, env, target, mutant, limit_sec):
    """(outcome, seconds) of one test program; outcome: passed, failed, crashed, timeout."""
    path = target[2:].replace(":", "/")
    binary = os.path.join(tree, "bazel-bin", path)
    runfiles = binary + ".runfiles/thinwire"
    env = dict(env, MUTANT=str(mutant), GTEST_FAIL_FAST="1", GTEST_BRIEF="1",
               TEST_TMPDIR=os.path.join(work, "tmp"), TEST_SRCDIR=binary + ".runfiles",
               TEST_WORKSPACE="thinwire")
    env.update({name: os.path.join(tree, "bazel-bin", program) for name, program in PROGRAMS.items()})
    args = [binary]
    if os.path.basename(path).startswith("fuzz_"):
        folder = os.path.join(tree, os.path.dirname(path))
        corpus = os.path.join(folder, "corpus_" + os.path.basename(path)[5:])
        corpus = corpus if os.path.isdir(corpus) else os.path.join(folder, "corpus")
        args += ["--mutations=2000"] + [os.path.join(corpus, n) for n in sorted(os.listdir(corpus))]
    os.makedirs(env["TEST_TMPDIR"], exist_ok=True)
    start = time.monotonic()
    with open(os.path.join(work, "test.log"), "wb") as log:
        child = subprocess.Popen(args, cwd=runfiles if os.path.isdir(runfiles) else tree, env=env, stdout=log,
                                 stderr=log, preexec_fn=limits)
        try:
            code = child.wait(limit_sec)
            outcome = "passed" if code == 0 else "crashed" if code < 0 else "failed"
        except subprocess.TimeoutExpired:
            outcome = "timeout"
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
    return outcome, time.monotonic() - start


def baseline(tree, work, env, targets):
    """Seconds of each test without a mutant, as an earlier run found it; a test that fails then is left
    out."""
    path = os.path.join(work, "baseline.jsonl")
    seconds = {line["test"]: line["sec"] for line in read_lines(path)}
    for target in targets:
        if target in seconds:
            continue
        outcome, sec = run_test(tree, work, env, target, 0, 300)
        if outcome != "passed":
            print("%s: %s without a mutant; left out" % (target, outcome), flush=True)
            continue
        seconds[target] = sec
        with open(path, "a") as out:
            out.write(json.dumps({"test": target, "sec": round(sec, 2)}) + "\n")
    return seconds


def judge(tree, work, env, mutant, targets, seconds):
    start = time.monotonic()
    if (mutant["file"], mutant["before"], mutant["after"]) in EQUIVALENT:
        return "equivalent", None, 0
    for target in targets:
        outcome, _ = run_test(tree, work, env, target, mutant["id"], 10 + 6 * seconds[target])
        if outcome != "passed":
            return outcome, target, time.monotonic() - start
    return "survived", None, time.monotonic() - start


def report(mutant, outcome, target, sec):
    line = {k: mutant[k] for k in ("id", "file", "line", "before", "after")}
    line.update(outcome=outcome, test=target, sec=round(sec, 2))
    return json.dumps(line)


def read_lines(path):
    if not os.path.exists(path):
        return []
    with open(path) as lines:
        return [json.loads(line) for line in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", choices=sorted(SOURCES))
    parser.add_argument("--n", type=int, default=100, help="mutants to make (default 100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work",
                        help="folder for the mutated tree and the results (default: ./mutation-MODULE)")
    parser.add_argument("--only", default="", help="change only files whose names begin like this")
    parser.add_argument("--ids", default="", help="run only these mutants, again")
    parser.add_argument("--config", help="a configuration of .bazelrc, such as asan: more is noticed, "
                                         "at several times the cost")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long; the next run goes on")
    options = parser.parse_args()
    work = os.path.realpath(options.work or "mutation-" + options.module)
    tree, results = os.path.join(work, "tree"), os.path.join(work, "results.jsonl")
    os.makedirs(tree, exist_ok=True)
    stop = time.monotonic() + 60 * options.minutes

    known = os.path.join(work, "mutants.jsonl")
    if not os.path.exists(known):
        copy_tree(tree)
    names = [n for n in tracked() if n.startswith(SOURCES[options.module])
             and re.search(r"\.(c|h|cuh)$", n) and not SKIPPED.search(n)]
    if os.path.exists(known):
        mutants = read_lines(known)
        files = {m["file"]: None for m in mutants}
    else:
        files = {n: open(os.path.join(ROOT, n)).read() for n in names if n.startswith(options.only)}
        mutants = choose(files, options.n, options.seed)
        files = {m["file"]: files[m["file"]] for m in mutants}
    flags = ["--config=" + options.config] if options.config else []
    everything = all_tests(tree, options.module)
    targets = sorted({t for n in files for t in tests_of(options.module, n) or everything})
    gone = [t for t in targets if t not in everything]
    if gone:
        sys.exit("TESTS names tests that are not there: " + " ".join(gone))
    if not os.path.exists(known):
        mutants = build(tree, targets, flags, files, mutants)
        with open(known, "w") as out:
            out.writelines(json.dumps(m) + "\n" for m in mutants)
    env = test_environment(options.config)
    seconds = baseline(tree, work, env, targets)

    ids = {int(i) for i in options.ids.split(",") if i}
    done = {r["id"] for r in read_lines(results)} - ids
    for m in mutants:
        if m["id"] in done or (ids and m["id"] not in ids) or time.monotonic() > stop:
            continue
        tests = tests_of(options.module, m["file"]) or sorted(everything, key=lambda t: seconds.get(t, 0))
        mine = [t for t in tests if t in seconds]
        outcome = judge(tree, work, env, m, mine, seconds)
        with open(results, "a") as out:
            out.write(report(m, *outcome) + "\n")
        if outcome[0] == "survived":
            print("survived: %d %s:%d\n    %s\n    %s"
                  % (m["id"], m["file"], m["line"], m["before"], m["after"]), flush=True)
    latest = {r["id"]: r for r in read_lines(results)}
    alive = sum(r["outcome"] == "survived" for r in latest.values())
    print("%d mutants, %d run, %d survived" % (len(mutants), len(latest), alive))


if __name__ == "__main__":
    main()
