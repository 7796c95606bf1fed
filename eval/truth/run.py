#!/usr/bin/env python3
"""run.py PROGRAM DIRECTORY [GROUP:NUMBER …]: runs scenarios with PROGRAM and judges its reports; prints goals.

Each result is a line of DIRECTORY/KEY/results.jsonl, where KEY is of the program, this judge and the seed. What has its
line there is not run again. RUNS: scenarios (default 20; 1000 for all); BARE, POLICERS: runs of these groups (default
half of RUNS, at most 500 and 300). LANES: how many side by side (default 2, at most 3). SEED. Needs root, or a private
lab (`xtask lab`). GROUP:NUMBER runs that one again and shows everything.
"""

import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import time

import goals
from captures import by_stream, latency_of, read_capture, read_log
from device import add_flags, device_truth, differs_from_script
from figures import device_rows, rig_figures
from judgement import (
    count_differences,
    excuse_hidden,
    judge_criteria,
    longest_lateness,
    outage_differences,
    rate_differences,
    span_differences,
    time_differences,
)
from lab import Lab, wait_for_first
from scenarios import DRAW, option_values

from judging import build_program, key_of, read_results  # isort: skip; `lab` has told where it is

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = ("captures", "device", "figures", "judgement", "lab", "run", "scenarios")
TIMEOUT = 60
# Directories of runs with something to look at.
MOST_KEPT = 80


def command_of(program, scenario, directory):
    ports = ["--tx", "b0", "--rx", "b1"] if scenario["group"] == "bare_cable" else ["--tx", "tx0", "--rx", "rx0"]
    load = f"--rate {scenario['rate']}pps --packets {scenario['packets']} --streams {scenario['streams']}".split()
    plan = ports + load
    if scenario.get("ratio", 1) != 1:
        plan = [write_plan(program, plan, scenario["ratio"], directory)]
    where = f"--store {directory}/store --out {directory}/out --no-html -q --seed 1".split()
    limits = option_values(scenario["limits"]) + scenario["options"]
    return [program, "run", *plan, "--back-end", scenario["back_end"], *where, *limits]


def write_plan(program, options, ratio, directory):
    """The plan of these options, which asks for several copies of each frame: there is no option for that."""
    command = [program, "run", *options, "--print-plan"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    asked = f"    loss: true\n    rx_tx_ratio:\n      choice: value\n      value: {ratio}\n"
    with open(f"{directory}/plan.yaml", "w") as file:
        file.write(text.replace("    loss: true\n", asked))
    return f"{directory}/plan.yaml"


def run_program(lab, command, scenario, first, happened):
    """Its exit code, or what went wrong."""
    process = lab.start(
        lab.within(lab.rig, command), stdout=subprocess.DEVNULL, stderr=open(f"{lab.directory}/stderr", "w")
    )
    lab.start_load(scenario["load"])
    thread = wait_for_first(first, process, scenario["faults"], lab, happened)
    try:
        code = process.wait(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        return "it did not end", thread
    return code, thread


def run_scenario(program, forwarder_program, scenario, directory):
    """Runs it; returns the exit code and what really happened to the rig."""
    happened = []
    with Lab(directory) as lab:
        command = command_of(program, scenario, directory)
        if scenario["group"] == "bare_cable":
            lab.connect_cable()
            code, _ = run_program(lab, command, scenario, lambda: time.sleep(0.3) or "go", happened)
            return code, happened
        lab.connect_device(scenario["back_end"] == "xdp")
        forwarder = lab.start_forwarder(forwarder_program, scenario["rules"])
        code, thread = run_program(lab, command, scenario, forwarder.stdout.readline, happened)
        lab.end_forwarder(forwarder)
        thread.join(timeout=5)
    return code, happened


def read_report(directory):
    try:
        with open(f"{directory}/out/report.json") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def last_words(directory):
    try:
        with open(f"{directory}/stderr") as file:
            return file.read()[-400:]
    except OSError:
        return ""


def compare_figures(report, scenario, before, after, arrived, clocks):
    """How the report differs from the captures at the rig's end, or for XDP at the device's end of the cable."""
    changed = {fault.get("interface") for fault in scenario["faults"] if fault["kind"] != "mac"}
    exact = scenario["back_end"] == "packet"
    if scenario.get("ratio", 1) != 1 or "tx0" in changed or ("rx0" in changed and not exact):
        return None
    ends, found = arrived if exact else after, []
    figures = rig_figures(before, ends, clocks)
    for index, stream in enumerate(report["streams"]):
        if index not in figures or not stream.get("measured"):
            found.append(f"stream {index}: not in the captures, or not measured")
            continue
        rows = [(a.sequence, a.at, latency_of(a, clocks)) for a in by_stream(ends).get(index, [])]
        here = count_differences(stream, figures[index]) + time_differences(stream, rows, exact)
        here += outage_differences(stream, figures[index], scenario, exact, longest_lateness(before, scenario))
        here += rate_differences(stream, figures[index], scenario)
        here += span_differences(stream, figures[index]) if exact else []
        found += [f"stream {index}: {text}" for text in here]
    return found


def judge_device_run(report, scenario, directory):
    fates, clocks, notes = read_log(f"{directory}/log.tsv")
    before, after, arrived = (read_capture(f"{directory}/{name}.pcap") for name in ("in", "out", "rx"))
    streams = add_flags(device_rows(before, after, fates), fates)
    if not streams:
        return {"class": "nothing was sent", "rows": []}
    truth = device_truth(streams, scenario)
    sent = sum(len(rows["entered"]) for rows in streams.values())
    lost_notes = [note for note in notes if not note.endswith(" 0")]
    if differs_from_script(streams, scenario):
        lost_notes.append("the forwarder did not do what its script says")
    return {
        "rows": excuse_hidden(judge_criteria(report, scenario, truth), report, scenario),
        "figures": compare_figures(report, scenario, before, after, arrived, clocks),
        "lateness": longest_lateness(before, scenario),
        "unsent": scenario["packets"] * scenario["streams"] - sent,
        "judge_lost": lost_notes,
    }


def judge_bare_run(report, scenario):
    """A cable does nothing to frames: every FAIL is wrong."""
    truth = {name: (0, 0) for name in scenario["limits"]} | {"rate": (1, 1)}
    return {"rows": judge_criteria(report, scenario, truth, cable=0), "figures": None}


def judge_run(program, forwarder_program, scenario, directory):
    began = time.monotonic()
    shutil.rmtree(directory, ignore_errors=True)
    result = {"group": scenario["group"], "number": scenario["number"], "scenario": scenario}
    code, happened = run_scenario(program, forwarder_program, scenario, directory)
    report = read_report(directory)
    result.update(code=code, happened=happened)
    if report is None:
        result.update(verdict=None, rows=[], figures=None, why=last_words(directory))
    else:
        judged = (
            judge_bare_run(report, scenario)
            if scenario["group"] == "bare_cable"
            else judge_device_run(report, scenario, directory)
        )
        reasons = report["verdict"].get("reasons", [])
        result.update(judged, verdict=report["verdict"]["verdict"], reasons=reasons[:6])
    result["seconds"] = round(time.monotonic() - began, 2)
    return result


def work(task):
    program, forwarder_program, seed, group, number, base = task
    directory = f"{base}/runs/{group}-{number}"
    try:
        result = judge_run(program, forwarder_program, DRAW[group](seed, number), directory)
    except (OSError, subprocess.SubprocessError) as error:
        return {"group": group, "number": number, "error": str(error)}
    kept = len(os.listdir(f"{base}/runs")) - MOST_KEPT
    if not goals.is_remarkable(result) or kept > 0:
        shutil.rmtree(directory, ignore_errors=True)
    return result


def build_forwarder(base):
    return build_program(base, f"{HERE}/forwarder.c", "-lpthread")


def counts():
    runs = int(os.environ.get("RUNS", "20"))
    bare, policers = os.environ.get("BARE", min(500, runs // 2)), os.environ.get("POLICERS", min(300, runs // 2))
    return {"scenario": runs, "bare_cable": int(bare), "policer": int(policers)}


def main():
    program, directory, *only = sys.argv[1:]
    seed = os.environ.get("SEED", "1")
    judge = (f"{HERE}/forwarder.c", *(f"{HERE}/{name}.py" for name in SOURCES))
    base = f"{os.path.abspath(directory)}/{key_of(program, judge, seed)}"
    os.makedirs(base, exist_ok=True)
    forwarder_program = build_forwarder(base)
    if only:
        for one in only:
            group, number = one.split(":")
            run = f"{base}/runs/{group}-{number}"
            print(
                json.dumps(
                    judge_run(os.path.abspath(program), forwarder_program, DRAW[group](seed, int(number)), run),
                    indent=1,
                )
            )
        return 0
    path = f"{base}/results.jsonl"
    results, wanted = read_results(path, lambda result: (result["group"], result["number"])), counts()
    tasks = [
        (os.path.abspath(program), forwarder_program, seed, group, number, base)
        for group, count in wanted.items()
        for number in range(1, count + 1)
        if (group, number) not in results
    ]
    print(
        f"seed {seed}: {sum(wanted.values())} runs, {sum(wanted.values()) - len(tasks)} of them made before; {path}",
        flush=True,
    )
    lanes = min(3, int(os.environ.get("LANES", "2")))
    with concurrent.futures.ProcessPoolExecutor(lanes) as pool, open(path, "a") as file:
        for future in concurrent.futures.as_completed([pool.submit(work, task) for task in tasks]):
            result = future.result()
            if "error" in result:
                print(f"{result['group']}:{result['number']}: the lab failed: {result['error']}", flush=True)
                continue
            results[result["group"], result["number"]] = result
            file.write(json.dumps(result) + "\n")
            file.flush()
            goals.show_run(result)
    kept = [result for (group, number), result in sorted(results.items()) if number <= wanted.get(group, 0)]
    return goals.print_goals(kept, wanted)


if __name__ == "__main__":
    sys.exit(main())
