#!/usr/bin/env python3
"""Prints which tests a change reaches: as options of cargo, as a filter of the test runner, or as a list.

Usage: changed.py cargo|filter|crates [SINCE]

A change is what differs from commit SINCE. Without SINCE it is what is not committed yet or, if all is committed, the last commit.
The change reaches the unit tests of the changed crates and of all crates that depend on them. It reaches a system test program if
tests/budget.toml names a changed crate in its `reaches`. Changes that belong to no crate and to no test program, such as Cargo.lock,
reach everything.
"""
import json
import os
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Texts. Those in docs/ reach only the program, which contains them (`packetrig docs`); others reach no test.
TEXTS = (".md", ".svg", ".png", ".txt")


def output_of(*command):
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def changed_files(since):
    uncommitted = output_of("git", "status", "--porcelain", "--untracked-files=all", "--no-renames").splitlines()
    files = {line[3:] for line in uncommitted}
    if since or not files:
        files |= set(output_of("git", "diff", "--name-only", "--no-renames", since or "HEAD~1").splitlines())
    return files


def workspace():
    """Name of the package in each directory, the packages of the workspace that each one uses, and the test programs of each."""
    metadata = json.loads(output_of("cargo", "metadata", "--format-version", "1", "--no-deps", "--locked", "--offline"))
    packages = metadata["packages"]
    names = {package["name"] for package in packages}
    directories = {os.path.relpath(os.path.dirname(package["manifest_path"]), ROOT): package["name"] for package in packages}
    uses = {package["name"]: {d["name"] for d in package["dependencies"]} & names for package in packages}
    programs = {package["name"]: [t["name"] for t in package["targets"] if "test" in t["kind"]] for package in packages}
    return directories, uses, programs


def package_of(file, directories):
    """Name of the package that contains the file; None if no package does."""
    holders = [directory for directory in directories if file.startswith(directory + "/")]
    return directories[max(holders, key=len)] if holders else None


def dependents(packages, uses):
    reached = set(packages)
    while True:
        more = {name for name, used in uses.items() if used & reached} - reached
        if not more:
            return reached
        reached |= more


def reached_tests(since):
    """(packages, system test programs), or None if the change reaches everything."""
    directories, uses, _ = workspace()
    with open(ROOT / "tests/budget.toml", "rb") as file:
        programs = tomllib.load(file)["programs"]
    changed, system = set(), set()
    for file in changed_files(since):
        package = package_of(file, directories)
        if package == "packetrig-tests":
            parts = pathlib.PurePath(file).parts
            if parts[1] != "tests":
                return None
            system.add(parts[2].removesuffix(".rs"))
        elif package:
            changed.add(package)
        elif not file.endswith(TEXTS):
            return None
        elif file.startswith("docs/"):
            changed.add("packetrig")
    if "packetrig-sys" in changed or "packetrig-units" in changed:
        return None
    crates = {name.removeprefix("packetrig-") for name in changed}
    for name, program in programs.items():
        package, _, binary = name.partition("::")
        if package == "packetrig-tests" and crates & set(program.get("reaches", [])):
            system.add(binary)
    return dependents(changed, uses) - {"packetrig-tests", "packetrig-eval"}, system


def main():
    what = sys.argv[1]
    reached = reached_tests(sys.argv[2] if len(sys.argv) > 2 else None)
    if what == "crates":
        packages, system = reached or (["all"], ["all"])
        print("crates:", *sorted(packages), "system tests:", *sorted(system))
    elif what == "filter":
        packages, system = reached or ({}, {})
        terms = [f"package({name})" for name in sorted(packages)]
        terms += [f"(package(packetrig-tests) & binary({name}))" for name in sorted(system)]
        print("all()" if reached is None else " | ".join(terms) or "none()")
    elif reached:
        programs = workspace()[2]
        tests = reached[1].union(*(programs[package] for package in reached[0]))
        print("--lib --bins", *(f"--test {name}" for name in sorted(tests)))


if __name__ == "__main__":
    main()
