"""Sums results up: one line for each goal, and the runs that missed it."""

from collections import Counter

from judgement import HELD_UP, is_outside, misses_truth

NO_RIGHT = 5


def wrong_rows(result):
    return [row for row in result["rows"] if row["class"].startswith("wrong")]


def has_no_results(result):
    return result["verdict"] is None or not result["rows"] or any(row["class"] == "no result" for row in result["rows"])


def is_calm(result):
    """Neither a fault of the rig by the script, nor one by this machine."""
    scenario = result["scenario"]
    is_scripted = scenario["faults"] or scenario["load"]
    # The captures say so, too: it left later than its own criterion allows.
    most_late = 5_000_000 if "--max-late" in scenario.get("options", []) else HELD_UP
    return not is_scripted and result.get("lateness", 0) < most_late and not result.get("unsent")


def is_needlessly_unknown(result):
    """INCONCLUSIVE without a fault of the rig, and with no criterion whose limit is inside its stated interval."""
    unknown = [row for row in result["rows"] if row["class"] == "unknown"]
    if result["verdict"] == "INCONCLUSIVE" and not unknown:
        return True
    return any(is_outside(row) for row in unknown)


def missed_bounds(result):
    """Of scenarios, not of bare cables. What left while the rig's receiver was down, the rig cannot know."""
    scenario = result["scenario"]
    if result["group"] != "scenario" or any(fault.get("interface") == "rx0" for fault in scenario["faults"]):
        return []
    has_rig_fault = bool(scenario["faults"] or scenario["load"])
    return [row for row in result["rows"] if misses_truth(row, has_rig_fault)]


def is_remarkable(result):
    return bool(
        has_no_results(result)
        or wrong_rows(result)
        or result.get("figures")
        or missed_bounds(result)
        or (is_calm(result) and is_needlessly_unknown(result))
    )


def describe(result):
    scenario = result["scenario"]
    what = [scenario["back_end"], scenario.get("device_fault", "no device fault")]
    what += [
        f"{fault.get('interface', '')} {fault['kind']} {fault['length']:.3f} s".strip() for fault in scenario["faults"]
    ]
    what += [f"load {scenario['load']}"] if scenario["load"] else []
    return f"{result['group']}:{result['number']} ({', '.join(what)})"


def show_row(row):
    return f"{row['class']}: {row['name']} {row['measured']}, limit {row['limit']:.6g}, the device alone {row['truth']}"


def show_run(result):
    """What is wrong with one run; nothing if nothing is."""
    lines = [show_row(row) for row in wrong_rows(result)]
    lines += [
        f"stated without the truth: {show_row(row)}"
        for row in missed_bounds(result)
        if not row["class"].startswith("wrong")
    ]
    lines += [f"figure: {text}" for text in result.get("figures") or []]
    if has_no_results(result):
        absent = [row["name"] for row in result["rows"] if row["class"] == "no result"]
        lines.append(f"no results: {result.get('why', '')[-200:].strip()} {', '.join(absent)}")
    if is_calm(result) and is_needlessly_unknown(result):
        lines.append(f"UNKNOWN without a fault of the rig: {result['reasons']}")
    if result.get("judge_lost"):
        lines.append(f"the judge itself lost frames: {result['judge_lost']}")
    for line in lines:
        print(f"{describe(result)}: {line}", flush=True)


def print_goal(name, measured, wanted, is_met, count):
    outcome = "unsupported (no run tells)" if count == 0 else "met" if is_met else "missed"
    print(f"goal truth.{name}: measured {measured}, wanted {wanted}: {outcome}", flush=True)
    return outcome == "missed"


def unknown_criteria(results):
    """How many criteria whose limits lie near the truth the rig could not decide although nothing disturbed it."""
    rows = [row for result in results for row in result["rows"] if row["limit"] not in (0.0, 1.0)]
    names = Counter(row["name"].split()[0] for row in rows if row["class"] == "unknown")
    shown = ", ".join(f"{name} {count}" for name, count in names.most_common()) or "none"
    return f"of {len(rows)} criteria near the truth UNKNOWN: {shown}"


def kinds_of(rows):
    """Wrong results by criterion."""
    found = Counter(f"{row['class']} of {row['name'].split()[0]}" for row in rows)
    return "".join(f"; {count} {kind}" for kind, count in found.most_common())


def print_goals(results, wanted):
    refused = [result for result in results if result.get("code") == NO_RIGHT]
    if refused:
        print(f"{len(refused)} runs are left out: no right to use their back end (exit code {NO_RIGHT})")
    results = [result for result in results if result.get("code") != NO_RIGHT]
    groups = {group: [result for result in results if result["group"] == group] for group in wanted}
    scenarios, missed = groups["scenario"], 0
    wrong = [result for result in scenarios if wrong_rows(result) or has_no_results(result)]
    every_wrong_row = [row for result in wrong for row in wrong_rows(result)]
    missed += print_goal(
        "verdicts",
        f"wrong {len(wrong)} of {len(scenarios)}{kinds_of(every_wrong_row)}",
        f"0 of {wanted['scenario']}",
        not wrong and len(scenarios) + len(refused) >= wanted["scenario"],
        len(scenarios),
    )
    compared = [result for result in results if result.get("figures") is not None and not result.get("judge_lost")]
    unequal = [result for result in compared if result["figures"]]
    missed += print_goal(
        "figures",
        f"{len(compared) - len(unequal)} of {len(compared)} reports equal to the captures",
        "all",
        not unequal,
        len(compared),
    )
    rows = [row for result in scenarios for row in result["rows"] if row.get("stated")]
    outside = [row for result in scenarios for row in missed_bounds(result)]
    missed += print_goal(
        "bounds",
        f"{len(rows) - len(outside)} of {len(rows)} stated intervals hold the truth{kinds_of(outside)}",
        "all",
        not outside,
        len(rows),
    )
    calm = [result for result in scenarios if is_calm(result) and not has_no_results(result)]
    unknown = [result for result in calm if is_needlessly_unknown(result)]
    share = 100 * len(unknown) / max(1, len(calm))
    measured = f"{share:.1f} % ({len(unknown)} of {len(calm)}) without overlap; {unknown_criteria(calm)}"
    missed += print_goal("unknown", measured, "<= 2 % without overlap", share <= 2, len(calm))
    empty = [result for result in results if has_no_results(result)]
    missed += print_goal("results", f"{len(empty)} of {len(results)} without results", "0", not empty, len(results))
    for group, name in (("bare_cable", "bare_cable"), ("policer", "policer")):
        failed = [result for result in groups[group] if result["verdict"] == "FAIL"]
        verdicts = Counter(str(result["verdict"]) for result in groups[group])
        shown = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
        rows = [row for result in failed for row in wrong_rows(result)]
        missed += print_goal(
            name,
            f"{len(failed)} FAIL of {len(groups[group])} ({shown}){kinds_of(rows)}",
            f"0 FAIL of {wanted[group]}",
            not failed and len(groups[group]) + len(refused) >= wanted[group],
            len(groups[group]),
        )
    took = sum(result["seconds"] for result in results) / max(1, len(results))
    print(f"{took:.1f} s for a run on average")
    return 1 if missed else 0
