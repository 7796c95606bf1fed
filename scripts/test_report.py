#!/usr/bin/env python3
"""What the test runner's JUnit files say beyond pass and fail: how many tests ran, which took longest, and which did not run, by cause.

Usage: test_report.py [--brief] [--expected FILE] JUNIT…

A test that does not run, or leaves a part out, prints a line `skipped: CAUSE`. With --expected, a cause that does not begin
with a line of FILE is a failure: CI says beforehand what it leaves out.
"""
import argparse
import collections
import re
import sys
import xml.etree.ElementTree as ET

SLOWEST = 10
SKIPPED = re.compile(r"^skipped: (.*)$", re.MULTILINE)


def read(path):
    """(name, seconds, output, failed) of each test of a file."""
    for case in ET.parse(path).getroot().iter("testcase"):
        output = "\n".join(node.text or "" for tag in ("system-out", "system-err") for node in case.iter(tag))
        failed = any(case.find(tag) is not None for tag in ("failure", "error"))
        yield f"{case.get('classname')} {case.get('name')}", float(case.get("time", 0)), output, failed


def print_times(tests):
    print(f"{len(tests)} tests, {sum(seconds for _, seconds, _, _ in tests):.0f} s in all; the slowest:")
    for name, seconds, _, _ in sorted(tests, key=lambda test: -test[1])[:SLOWEST]:
        print(f"{seconds:8.1f} s  {name}")
    by_room = collections.defaultdict(lambda: [0, 0.0])
    for name, seconds, _, _ in tests:
        of_room = by_room[name.split(" ")[0]]
        of_room[0] += 1
        of_room[1] += seconds
    print("by test program:")
    for room, (count, seconds) in sorted(by_room.items(), key=lambda row: -row[1][1]):
        print(f"{seconds:8.1f} s  {count:5}  {room}")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--expected")
    arguments.add_argument("--brief", action="store_true", help="no times")
    arguments.add_argument("files", nargs="+")
    arguments = arguments.parse_args()
    tests = [test for path in arguments.files for test in read(path)]
    causes = collections.defaultdict(set)
    for name, _, output, _ in tests:
        for cause in SKIPPED.findall(output):
            causes[cause.strip()].add(name)

    if not arguments.brief:
        print_times(tests)
    for cause, names in sorted(causes.items()):
        print(f"skipped: {cause}")
        for name in sorted(names):
            print(f"    {name}")
    unexpected = set()
    if arguments.expected:
        with open(arguments.expected, encoding="utf-8") as file:
            expected = tuple(line.strip() for line in file if line.strip() and not line.startswith("#"))
        unexpected = {cause for cause in causes if not cause.startswith(expected)}
        for cause in sorted(unexpected):
            print(f"not expected to be skipped here: {cause}")
    skipped = {name for names in causes.values() for name in names}
    failed = sum(failed for _, _, _, failed in tests)
    print(f"{len(tests) - len(skipped) - failed} passed, {failed} failed, {len(skipped)} skipped")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
