#!/usr/bin/env python3
"""Counts the test cases that ran, from Bazel's build event files (JSON, one per run).

Each case of a GoogleTest binary counts, and a script counts as one case. A target that does not build, times
out or dies counts as one failure in addition to the cases in its report. Prints the failed cases,
one line per run, "FAILED: TARGET (RUN, ...)" for each target, and last "N passed, N failed"
(", N skipped" if any). Exits 1 if anything failed.
"""

import collections
import json
import os
import sys
import urllib.parse
import xml.etree.ElementTree

Count = collections.Counter


def cases_of(path):
    """Returns (Count, names of failed cases) of one test.xml; both are empty if it cannot be read."""
    count, failed = Count(), []
    try:
        root = xml.etree.ElementTree.parse(path).getroot()
    except (OSError, xml.etree.ElementTree.ParseError):
        return count, failed
    for case in root.iter("testcase"):
        name = ".".join(filter(None, [case.get("classname"), case.get("name")]))
        if case.find("failure") is not None or case.find("error") is not None:
            count["failed"] += 1
            failed.append(name)
        elif case.find("skipped") is not None or case.get("result") == "skipped":
            count["skipped"] += 1
        elif case.get("status") != "notrun":
            count["passed"] += 1
    return count, failed


def xml_path(result):
    for output in result.get("testActionOutput", []):
        if output.get("name") == "test.xml":
            return urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)
    return None


def count_result(label, result):
    """Counts one run of one test target."""
    path = xml_path(result)
    count, failed = cases_of(path) if path else (Count(), [])
    if result.get("status") != "PASSED" and not count["failed"]:
        count["failed"] += 1
        failed.append(result.get("status", "NO STATUS"))
    if not sum(count.values()):
        count["failed"] += 1
        failed.append("ran no test case")
    for name in failed:
        print("FAILED %s %s" % (label, name))
    return count


def count_run(path):
    """Returns (Count, labels of failed targets) of one Bazel run."""
    results, broken, finished = {}, [], False
    # If Bazel did not start, there is no file, and the run counts as not finished.
    with open(path if os.path.exists(path) else os.devnull, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # cut short: `finished` is missing then
            ident = event.get("id", {})
            if "testResult" in ident and "testResult" in event:
                key = ident["testResult"]
                # Only the last attempt counts.
                results[key["label"], key.get("run"), key.get("shard")] = event["testResult"]
            elif event.get("aborted", {}).get("reason") == "SKIPPED":
                pass  # a target for another processor
            elif "targetCompleted" in ident and not event.get("completed", {}).get("success"):
                broken.append(ident["targetCompleted"]["label"])
            elif "finished" in event:
                # 0: success; 3: tests failed; 4: no tests. Otherwise something did not build.
                finished = event["finished"].get("exitCode", {}).get("code", 0) in (0, 3, 4)
    count, failed = Count(), []
    for (label, _, _), result in sorted(results.items(), key=lambda item: item[0][0]):
        one = count_result(label, result)
        count += one
        failed += [label] if one["failed"] else []
    for label in broken:
        print("FAILED %s does not build" % label)
        count["failed"] += 1
    if not finished and not broken:
        print("FAILED %s did not finish" % path)
        count["failed"] += 1
        broken.append("the run itself")
    return count, failed + broken


def summary(count):
    text = "%d passed, %d failed" % (count["passed"], count["failed"])
    return text + (", %d skipped" % count["skipped"] if count["skipped"] else "")


def main(paths):
    total, runs_of = Count(), {}
    for path in paths:
        run = os.path.basename(path)[: -len(".json")]
        count, failed = count_run(path)
        print("%-15s %s" % (run, summary(count)))
        total += count
        for label in failed:
            runs_of.setdefault(label, {})[run] = None  # in order, and once for several shards
    # At the end, so that it is seen in the last lines of a log.
    for label, runs in sorted(runs_of.items()):
        print("FAILED: %s (%s)" % (label, ", ".join(runs)))
    print(summary(total))
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
