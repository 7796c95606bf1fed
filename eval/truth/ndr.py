#!/usr/bin/env python3
"""ndr.py PROGRAM DIRECTORY: the loss-free load of a policer on a busy machine, searched by MLRsearch.

The device forwards 10 000 frames/s with room for 200 at once, so without a loss it carries for a second what that makes:
10 200. LOAD (default 5) programs keep the processors busy. Needs root, or a private lab (`xtask lab`)."""

import json
import os
import shutil
import subprocess
import sys

from goals import print_goal
from lab import Lab
from run import build_forwarder

RATE, BURST, SECONDS = 10_000, 200, 1
TRUTH = RATE + BURST / SECONDS
WANTED = 0.5


def search(program, forwarder, directory, load):
    """The report of the search."""
    shutil.rmtree(directory, ignore_errors=True)
    goal = f"loss=0%,duration={SECONDS}s,sum=11s,exceed=50%,width=0.2%,initial=1s"
    command = [program, "test", "mlrsearch", "--tx", "tx0", "--rx", "rx0", "--max-rate", "15kpps", "--min-rate", "5kpps"]
    command += ["--goal", goal, "--store", f"{directory}/store", "--json", "--quiet"]
    with Lab(directory) as lab:
        lab.connect_device(False)
        running = lab.start_forwarder(forwarder, [f"police rate={RATE} burst={BURST}"])
        lab.start_load(load)
        done = subprocess.run(lab.within(lab.rig, command), capture_output=True, text=True, timeout=900)
        lab.end_forwarder(running)
    return json.loads(done.stdout) if done.stdout.strip() else done.stderr


def main():
    program, directory = map(os.path.abspath, sys.argv[1:])
    load = int(os.environ.get("LOAD", "5"))
    os.makedirs(directory, exist_ok=True)
    report = search(program, build_forwarder(directory), f"{directory}/ndr", load)
    if isinstance(report, str):
        print(report)
        return 1
    found = report["result"]["goals"][0]
    carried, limit = found["lower_bound_frames_per_second"] or 0, found["limited_by"]
    error = 100 * (carried / TRUTH - 1)
    measured = f"{carried:.0f} of {TRUTH:.0f} frames/s ({error:+.2f} %), {report['trials']} trials, limited by: {limit}"
    is_met = abs(error) <= WANTED
    # A rig that could not sustain the trials and says so has blamed nobody.
    is_excused = limit == "rig" and error < 0 and not is_met
    return print_goal("ndr", f"{measured}, load {load}", f"within {WANTED} %", is_met, 0 if is_excused else 1)


if __name__ == "__main__":
    sys.exit(main())
