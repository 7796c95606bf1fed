"""Sums results up: one line for each goal, and the trials that missed it."""

from statistics import median

from chains import describe
from judgement import is_wrong


def sum_of(results, side, name):
    return sum(result[side][name] for result in results)


def show_direction(row):
    kind = "".join((" constant" * row["is_constant"], " steady" * row["is_steady"]))
    return f"flow {row['flow']}/{row['direction']}{kind}: sent {row['packets']}, stored {row['stored']}"


def show_trial(result):
    """What is wrong with one trial; nothing if nothing is."""
    if result.get("judge_lost"):
        print(f"{describe(result['plan'])}: the lab itself lost packets: {result['judge_lost']}", flush=True)
    if not is_wrong(result):
        return
    if "unlike" not in result:
        print(f"{describe(result['plan'])}: no result: {result.get('why')}", flush=True)
        return
    counts = "; ".join(
        f"{side} missing {result[side]['missing']}, twice {result[side]['twice']}, bytes {result[side]['bytes']}"
        for side in ("unlike", "alike")
    )
    named = "; ".join(show_direction(row) for row in result["differing"][:4])
    why = f" {result['why']};" if result.get("why") else ""
    print(f"{describe(result['plan'])}:{why} {counts}; unstated {result['unstated']}: {named}", flush=True)


def print_goal(name, measured, is_met, count):
    outcome = "unsupported (no trials)" if count == 0 else "met" if is_met else "missed"
    print(f"goal groups.{name}: measured {measured}, wanted 0: {outcome}", flush=True)
    return outcome == "missed"


def print_count(name, results, side, field):
    count, hit = sum_of(results, side, field), sum(1 for result in results if result[side][field])
    measured = f"{count} of {sum_of(results, side, 'sent')} packets in {hit} of {len(results)} trials"
    return print_goal(name, measured, count == 0, len(results))


def print_gaps(results):
    """Not a goal: the machine is shared, and records that come late are not lost."""
    for advertise in ("10ms", "100ms"):
        gaps = [result["gap"] for result in results if result["plan"]["advertise"] == advertise and is_gap_ours(result)]
        if gaps:
            print(f"longest time without records, {advertise}: middle {median(gaps):.2f} s, most {max(gaps):.2f} s")


def is_gap_ours(result):
    """While the collector is away, nothing can come."""
    return not any(fault["kind"] == "collector" for fault in result["plan"]["faults"])


def print_goals(results, wanted):
    lost = [result for result in results if result.get("judge_lost")]
    if lost:
        print(f"{len(lost)} trials are left out: the lab itself lost packets")
    results = [result for result in results if not result.get("judge_lost")]
    judged = [result for result in results if "unlike" in result]
    missed = print_count("missing", judged, "unlike", "missing")
    missed += print_count("twice", judged, "unlike", "twice")
    bytes_wrong = sum_of(judged, "unlike", "bytes") + sum_of(judged, "alike", "bytes")
    missed += print_goal("bytes", f"{bytes_wrong} where packets are equal", bytes_wrong == 0, len(judged))
    unstated = sum(result["unstated"] for result in judged)
    missed += print_goal("unstated", f"{unstated} packets", unstated == 0, len(judged))
    alike = f"missing {sum_of(judged, 'alike', 'missing')}, twice {sum_of(judged, 'alike', 'twice')}"
    measured = f"{alike} of {sum_of(judged, 'alike', 'sent')} packets"
    wrong_alike = sum_of(judged, "alike", "missing") + sum_of(judged, "alike", "twice")
    missed += print_goal("alike", measured, wrong_alike == 0, len(judged))
    failed = [result for result in results if result.get("why")]
    missed += print_goal("results", f"{len(failed)} trials in which a program failed", not failed, len(results))
    wrong = [result for result in results if is_wrong(result)]
    print(f"wrong {len(wrong)} of {len(results)} trials; {wanted} wanted")
    print_gaps(judged)
    return 1 if missed or len(results) + len(lost) < wanted else 0
