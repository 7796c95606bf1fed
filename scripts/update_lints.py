#!/usr/bin/env python3
"""Writes scripts/lints.txt: the lints that `make lint` treats as errors, as flags of the compiler.

They are named one by one, because groups such as `warnings` and `clippy::all` grow with each compiler, and a new
compiler must not fail code that nobody changed. Run this script when the toolchain changes, then fix
what `make lint` finds, and commit the fixes with the list.
"""
import pathlib
import re
import subprocess
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
GROUPS = ("clippy::all", "clippy::pedantic")
# Lints about the names of this list, not about the code: another compiler may not know all names.
OF_THE_LIST = {"unknown-lints", "renamed-and-removed-lints"}
LEFT_OUT = OF_THE_LIST | {"warnings", "default-overrides-default-fields", "test-unstable-lint"}


def known(help_text):
    """(lints that warn by default, members of groups by name)."""
    warn, groups = set(), {}
    for line in help_text.splitlines():
        if row := re.match(r"\s+([\w:-]+)  (allow|warn|deny|forbid)  ", line):
            if row[2] != "allow":
                warn.add(row[1])
        elif row := re.match(r"\s+(clippy::[\w-]+)  (clippy::.*)$", line):
            groups[row[1]] = {name.strip() for name in row[2].split(",")}
    return warn, groups


def main():
    help_text = subprocess.run(["clippy-driver", "-W", "help"], capture_output=True, text=True, check=True).stdout
    warn, groups = known(help_text)
    wanted = {name for name in warn if not name.startswith("clippy::")}
    for group in GROUPS:
        wanted |= groups[group]
    lints = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["lints"]
    for tool, levels in lints.items():
        for name, level in levels.items():
            if isinstance(level, dict):
                continue
            lint = name.replace("_", "-")
            lint = f"clippy::{lint}" if tool == "clippy" else lint
            (wanted.discard if level == "allow" else wanted.add)(lint)
    version = subprocess.run(["clippy-driver", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    lines = [f"# Lints that are errors, of {version}. Written by scripts/update_lints.py."]
    lines += sorted(f"-D{lint}" for lint in wanted - LEFT_OUT)
    lines += sorted(f"-A{lint}" for lint in OF_THE_LIST)
    (ROOT / "scripts/lints.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
