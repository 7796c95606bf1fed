#!/usr/bin/env python3
"""run.py PROGRAM DIRECTORY [NUMBER …]: groups of meters under chains of faults, judged by the sender's counts.

Each result is a line of DIRECTORY/KEY/results.jsonl, where KEY is of the program, this judge and the seed. What has its
line there is not run again. MINUTES: one pair for so long, a fault after the other; KINDS=copy,collector: short ones of
these kinds in turn. TRIALS (default 20; 300 for all), SEED, LANES: how many side by side (default 2, most 4).
Needs root, or a private lab (`xtask lab`), and DuckDB. NUMBER runs that trial again and shows everything. Directories
of wrong trials are kept under KEY/trials: records, what the programs said, and the sender's log of packets.
"""

import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import time

import goals
from chains import draw_long_trial, draw_trial
from judgement import is_wrong, judge, lost_by_judge, read_stored, read_summary
from traffic import read_truth
from trial import NotReady, Trial

from judging import build_program, key_of, read_results  # isort: skip; `lab` has told where it is

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = ("chains", "judgement", "lab", "run", "traffic", "trial", "watch")
# Directories of wrong trials.
MOST_KEPT = 40


def failures_of(codes):
    """Programs that were asked to end, and did not, or not well. What was killed is not asked."""
    return [f"{name} ended with {code}" for name, ended in codes.items() for code in ended if code not in (0, -9)]


def run_trial(program, sender, plan, directory):
    began = time.monotonic()
    trial = Trial(plan, program, sender, directory)
    result = {"number": plan["number"], "plan": plan}
    try:
        result.update(trial.run())
    except (NotReady, subprocess.SubprocessError) as error:
        result.update(why=str(error), events=trial.events, seconds=round(time.monotonic() - began, 1))
        return result
    truth = read_truth(f"{directory}/truth", trial.flows)
    summary = read_summary(trial.collector.summary())
    result.update(judge(truth, read_stored(f"{directory}/records"), summary))
    failed = failures_of(result["codes"])
    if failed:
        result["why"] = ", ".join(failed)
    result["judge_lost"] = lost_by_judge(result.pop("cables"), truth, plan)
    result["seconds"] = round(time.monotonic() - began, 1)
    return result


def work(task):
    program, sender, seed, number, base = task
    directory = f"{base}/trials/{number}"
    try:
        result = run_trial(program, sender, draw_trial(seed, number), directory)
    except OSError as error:
        return {"number": number, "error": str(error)}
    is_worth_keeping = is_wrong(result) or result.get("judge_lost")
    if not is_worth_keeping or len(os.listdir(f"{base}/trials")) > MOST_KEPT:
        shutil.rmtree(directory, ignore_errors=True)
    return result


def run_all(tasks, path, results):
    lanes = min(4, int(os.environ.get("LANES", "2")))
    with concurrent.futures.ProcessPoolExecutor(lanes) as pool, open(path, "a") as file:
        for future in concurrent.futures.as_completed([pool.submit(work, task) for task in tasks]):
            result = future.result()
            if "error" in result:
                print(f"{result['number']}: the lab failed: {result['error']}", flush=True)
                continue
            results[result["number"]] = result
            file.write(json.dumps(result) + "\n")
            file.flush()
            goals.show_trial(result)


def main():
    program, directory, *only = sys.argv[1:]
    program, seed = os.path.abspath(program), os.environ.get("SEED", "1")
    judge = (f"{HERE}/sender.c", f"{HERE}/frames.h", *(f"{HERE}/{name}.py" for name in SOURCES))
    base = f"{os.path.abspath(directory)}/{key_of(program, judge, seed)}"
    os.makedirs(f"{base}/trials", exist_ok=True)
    sender = build_program(base, f"{HERE}/sender.c", "-lm")
    if minutes := int(os.environ.get("MINUTES", "0")):
        kinds = [kind for kind in os.environ.get("KINDS", "").split(",") if kind]
        result = run_trial(program, sender, draw_long_trial(seed, minutes, kinds), f"{base}/long")
        goals.show_trial(result)
        return goals.print_goals([result], 1)
    if only:
        for number in map(int, only):
            print(json.dumps(run_trial(program, sender, draw_trial(seed, number), f"{base}/again-{number}"), indent=1))
        return 0
    path, wanted = f"{base}/results.jsonl", int(os.environ.get("TRIALS", "20"))
    results = read_results(path, lambda result: result["number"])
    tasks = [(program, sender, seed, number, base) for number in range(1, wanted + 1) if number not in results]
    print(f"seed {seed}: {wanted} trials, {wanted - len(tasks)} of them made before; {path}", flush=True)
    run_all(tasks, path, results)
    return goals.print_goals([result for number, result in sorted(results.items()) if number <= wanted], wanted)


if __name__ == "__main__":
    sys.exit(main())
