#!/usr/bin/env python3
"""Prints what the JUnit files of the test runner say: how many tests ran, which ones took longest, and which ones were skipped, by cause.

Usage: test_report.py [--brief] [--expected FILE] [--budget FILE:TABLE [--enforce]] JUNIT…
       test_report.py --failures JUNIT…

A test that does not run, or leaves a part out, prints a line `skipped: CAUSE`. With --expected, every cause must begin with
a line of FILE; otherwise the report fails. CI lists there what it cannot run.

With --budget, the report lists the test programs that take longer than their line in this table of FILE. With --enforce it
fails if a program takes more than twice its line, or if all programs together take more than 1.3 times their lines. A slow or
busy machine is slow for all programs, so these limits are multiplied by a factor from 1 to 2: the factor by which a quarter of
the programs exceeds its line.

With --failures, each file is a run of the same tests. The report lists which tests failed in which run, and fails if there are any.
"""
import argparse
import collections
import re
import statistics
import sys
import tomllib
import xml.etree.ElementTree as ET

SLOWEST = 10
# The line of the budget that is shared by all programs without their own line.
REST = "rest"
PROGRAM_LIMIT = 2.0
TOTAL_LIMIT = 1.3
# Largest factor that is taken for the slowness of the machine.
SLOWEST_MACHINE = 2.0
SKIPPED = re.compile(r"^skipped: (.*)$", re.MULTILINE)


def read(path):
    """(name, seconds, output, failed) of each test of a file."""
    for case in ET.parse(path).getroot().iter("testcase"):
        output = "\n".join(node.text or "" for tag in ("system-out", "system-err") for node in case.iter(tag))
        failed = any(case.find(tag) is not None for tag in ("failure", "error"))
        yield f"{case.get('classname')} {case.get('name')}", float(case.get("time", 0)), output, failed


def seconds_by_program(tests):
    """Number of tests and their seconds, by test program."""
    programs = collections.defaultdict(lambda: [0, 0.0])
    for name, seconds, _, _ in tests:
        program = programs[name.split(" ")[0]]
        program[0] += 1
        program[1] += seconds
    return programs


def machine_slowness(measured, lines):
    """Factor by which a quarter of the programs takes longer than on the reference machine, or more. It is not the median, because
    most tests wait, and waiting takes as long on every machine."""
    ratios = [seconds / lines[program]["seconds"] for program, seconds in measured.items()]
    upper_quartile = statistics.quantiles(ratios, n=4, method="inclusive")[2] if len(ratios) > 1 else ratios[0]
    return min(max(upper_quartile, 1.0), SLOWEST_MACHINE)


def over_budget(tests, lines):
    """Prints the programs that take longer than their line. Returns those that exceed their limit."""
    measured = collections.Counter()
    for program, (_, seconds) in seconds_by_program(tests).items():
        measured[program if program in lines else REST] += seconds
    if not measured:
        return []
    slowness = machine_slowness(measured, lines)
    causes = []
    for program, seconds in sorted(measured.items(), key=lambda row: -row[1]):
        wanted = lines[program]["seconds"]
        if seconds > wanted:
            print(f"over budget: {program} took {seconds:.0f} s, {seconds / wanted:.1f} times its {wanted} s")
        if seconds > PROGRAM_LIMIT * slowness * wanted:
            causes.append(program)
    total = sum(measured.values())
    wanted = sum(lines[program]["seconds"] for program in measured)
    print(f"budget: {total:.0f} of {wanted} test-seconds; this machine counts as {slowness:.1f} times slower than the reference")
    if total > TOTAL_LIMIT * slowness * wanted:
        causes.append("all tests together")
    return causes


def print_times(tests):
    print(f"{len(tests)} tests, {sum(seconds for _, seconds, _, _ in tests):.0f} s in all; the slowest:")
    for name, seconds, _, _ in sorted(tests, key=lambda test: -test[1])[:SLOWEST]:
        print(f"{seconds:8.1f} s  {name}")
    print("by test program:")
    for program, (count, seconds) in sorted(seconds_by_program(tests).items(), key=lambda row: -row[1][1]):
        print(f"{seconds:8.1f} s  {count:5}  {program}")


def print_failures(paths):
    """Prints the failed tests of each run. Returns whether there are any."""
    runs_of = collections.defaultdict(list)
    for run, path in enumerate(paths, 1):
        tests = list(read(path))
        failed = [name for name, _, _, failed in tests if failed]
        print(f"run {run}: {len(tests) - len(failed)} passed, {len(failed)} failed")
        for name in failed:
            runs_of[name].append(run)
    for name, runs in sorted(runs_of.items()):
        print(f"failed in run {', '.join(map(str, runs))}: {name}")
    return bool(runs_of)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--expected")
    arguments.add_argument("--brief", action="store_true", help="do not print times")
    arguments.add_argument("--budget", help="FILE:TABLE: the table of a TOML file with the test-seconds of each test program")
    arguments.add_argument("--enforce", action="store_true", help="fail if tests take far longer than the budget allows")
    arguments.add_argument("--failures", action="store_true", help="print only which tests failed in which run")
    arguments.add_argument("files", nargs="+")
    arguments = arguments.parse_args()
    if arguments.failures:
        return int(print_failures(arguments.files))
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
    excesses = []
    if arguments.budget:
        path, _, table = arguments.budget.partition(":")
        with open(path, "rb") as file:
            excesses = over_budget(tests, tomllib.load(file)[table])
        if arguments.enforce:
            for excess in excesses:
                print(f"far over budget ({arguments.budget}): {excess}")
    skipped = {name for names in causes.values() for name in names}
    failed = sum(failed for _, _, _, failed in tests)
    print(f"{len(tests) - len(skipped) - failed} passed, {failed} failed, {len(skipped)} skipped")
    return 1 if unexpected or (arguments.enforce and excesses) else 0


if __name__ == "__main__":
    sys.exit(main())
