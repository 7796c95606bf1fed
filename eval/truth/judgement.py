"""Compares a report with the truth: each criterion's result with the device alone, each figure with the captures."""

import re

from figures import first_arrivals, jitter_figures, latency_figures
from scenarios import LATENCIES, SHARES

US, MS = 1000, 1_000_000
# The cables between the captures and the rig, and the reading of two clocks.
CABLE = 10 * US
# What the way on the cables may add to a figure of which a report states no more than that it is there.
UNSTATED_WAY = 40 * US
# A PASS is wrong only if the truth is beyond its limit by more than this: cables and the sender may hide as much.
HIDDEN = {"latency": 3 * US, "jitter": 20 * US, "outage": 300 * US}
CRITERION = {"damaged": "damage", "misdelivered": "misdelivery", "reordered": "reordering", "altered": "alteration"}
# Beyond this, the machine itself held up the sender: no scenario without a fault of the rig any more.
HELD_UP = 100 * MS


def criterion_name(name):
    """As the report has it."""
    if name.startswith("latency"):
        return f"latency {LATENCIES[name.split()[1]]}"
    return CRITERION.get(name, name)


def judge_result(name, result, limit, truth, cable=CABLE):
    """right, unknown, wrong PASS or wrong FAIL."""
    least, blame = truth
    if name == "rate":
        keeps, breaks = blame >= limit - 1e-9, least < limit - 1e-9
    elif name in SHARES:
        keeps, breaks = blame <= limit + 1e-9, least > limit + 1e-9
    else:
        hidden = HIDDEN[name.split()[0]]
        keeps, breaks = blame + cable <= limit, least > limit * (1.01 if name == "jitter" else 1) + hidden
    if result == "FAIL" and keeps:
        return "wrong FAIL"
    if result == "PASS" and breaks:
        return "wrong PASS"
    return "unknown" if result == "UNKNOWN" else "right"


def stated_interval(subject, name, asked):
    """(least, most) that the report states: nanoseconds, or a share of the frames expected or of the rate asked for."""
    figure = subject.get("figure")
    if not figure:
        return None
    ends = figure["least"], figure["most"]
    if name == "rate":
        return ends[0] / 1000 / asked, ends[1] / 1000 / asked
    if name not in SHARES:
        return ends
    total = re.match(r"\d+ of (\d+) frames", subject["measured"])
    return tuple(end / max(1, int(total[1])) for end in ends) if total else None


def worst_stated(row, name, asked):
    """Of all streams; None if the report does not list each of them."""
    stated = [stated_interval(subject, name, asked) for subject in row["subjects"]]
    if None in stated or len(stated) < row["judged"] or not stated:
        return None
    choose = min if name == "rate" else max
    return choose(low for low, _ in stated), choose(high for _, high in stated)


def judge_rig_criteria(judged):
    """Criteria about the rig are never FAIL."""
    failed = [
        judged[name]
        for name in ("verified", "lateness", "skew", "capture")
        if judged.get(name, {}).get("result") == "FAIL"
    ]
    return [
        {
            "name": row["criterion"],
            "limit": 0,
            "result": "FAIL",
            "truth": (0, 0),
            "stated": None,
            "class": "wrong FAIL",
            "measured": [subject.get("measured") for subject in row["subjects"]][:3],
        }
        for row in failed
    ]


def judge_criteria(report, scenario, truth, cable=CABLE):
    """One row for each criterion: what the report says, and what is right."""
    judged = {row["criterion"]: row for row in report.get("judged", [])}
    rows = judge_rig_criteria(judged)
    limits, asked = scenario["limits"], scenario["rate"] / scenario["streams"]
    for name, limit in limits.items():
        row = judged.get(criterion_name(name))
        if row is None:
            rows.append({"name": name, "limit": limit, "class": "no result"})
            continue
        rows.append(
            {
                "name": name,
                "limit": limit,
                "result": row["result"],
                "truth": truth[name],
                "stated": worst_stated(row, name, asked),
                "measured": [subject.get("measured") for subject in row["subjects"]][:3],
                "class": judge_result(name, row["result"], limit, truth[name], cable),
            }
        )
    return rows


def excuse_hidden(rows, report, scenario):
    """What the device did while the rig's receiver heard nothing, the rig cannot know. Its criterion may say PASS if
    the run does not."""
    if report["verdict"]["verdict"] == "PASS" or not any(
        fault.get("interface") == "rx0" for fault in scenario["faults"]
    ):
        return rows
    return [row | {"class": "hidden"} if row["class"] == "wrong PASS" else row for row in rows]


def is_outside(row):
    """UNKNOWN although the limit is outside of the interval that the report itself states."""
    if row["class"] != "unknown" or not row.get("stated"):
        return False
    low, high = row["stated"]
    return not low <= row["limit"] <= high


def misses_truth(row, has_rig_fault):
    """The truth is outside of the interval that the report states for it. None if nothing is stated."""
    if not row.get("stated"):
        return None
    low, high = row["stated"]
    least, most = sorted(row["truth"])
    # Shares: four digits are printed, and what the rig itself lost is in one denominator and not in the other.
    if row["name"] in SHARES:
        slack, way = 2e-6 + 0.05 * most * has_rig_fault, 0
    else:
        slack, way = HIDDEN[row["name"].split()[0]] + 0.005 * most, UNSTATED_WAY
    return most < low - slack - way or least > high + slack


def longest_lateness(before, plan):
    """How late frames entered the device, by the plan; beginning with the frame that was most on time."""
    interval = 10**9 * plan["streams"] / plan["rate"]
    offsets = [frame.at - frame.sequence * interval for frame in before]
    return max(offsets) - min(offsets) if offsets else 0


# ---- figures ----


def near(value, wanted, absolute, relative=0.0):
    return value is not None and abs(value - wanted) <= absolute + relative * abs(wanted)


def count_differences(stream, figures):
    received, loss = stream["received"], stream["loss"]
    sequence = received["sequence"]
    pairs = [
        ("sent", stream["sent"]["frames"], figures["expected"]),
        ("received", received["frames"], figures["received"]),
        ("unique", sequence["unique"], figures["unique"]),
        ("lost", loss["lost"], figures["lost"]),
        ("duplicates", sequence["duplicates"], figures["duplicates"]),
        ("reordered", sequence["reordered"], figures["reordered"]),
        ("reordering extent", sequence["max_extent"], figures["max_extent"]),
        ("loss bursts", loss["bursts"], figures["bursts"]),
        ("longest burst", loss["longest_burst"], figures["longest_burst"]),
        ("corrupt", received["corrupt"], figures["damaged"]),
    ]
    return [f"{name} {found}, captures {wanted}" for name, found, wanted in pairs if found != wanted]


def figure_variants(rows):
    """Copies counted or not; neighbours by arrival or by number. A figure must agree with one of them."""
    firsts = {(sequence, at) for sequence, at in first_arrivals([(s, at) for s, at, _ in rows])}
    once = [row for row in rows if (row[0], row[1]) in firsts]
    variants = [[row[2] for row in rows], [row[2] for row in once], [row[2] for row in sorted(once)]]
    return [(latency_figures(latencies), jitter_figures(latencies)) for latencies in variants]


def time_differences(stream, rows, exact):
    """Latencies and jitter. `exact`: the captures have the very stamps of the rig. Else a figure may be larger, by the
    way from the device's end of the cable, and only its smallest value is compared."""
    found, variants = [], figure_variants(rows)
    latency, jitter = stream.get("latency") or {}, stream.get("jitter") or {}
    if not rows or not variants[0][1]:
        return found

    def compare(name, value, wanted, absolute, relative):
        if value is None or exact and not any(near(value, w, absolute, relative) for w in wanted):
            found.append(f"{name} {value}, captures {round(wanted[0])}")
        elif not exact and all(value < w * (1 - relative) - absolute - 3 * US for w in wanted):
            found.append(f"{name} {value}, captures at least {round(wanted[0])}")

    for name in ("min", "mean", "max"):
        compare(f"latency {name}", latency.get(name), [v[0][name] for v in variants], 2 * US, 0)
    for name in LATENCIES:
        if name.startswith("p"):
            compare(f"latency {name}", latency.get(name), [v[0][name] for v in variants], 2 * US, 0.004)
    noise, relative = (300, 0.002) if exact else (100 * US, 0.02)
    names = [("rfc3550", "rfc3550"), ("ipdv_mean", "ipdv_mean"), ("ipdv_max", "ipdv_max"), ("pdv_p999", "pdv_p999")]
    for key in ("rfc3550_max", "rfc3550_largest", "largest"):
        if key in jitter:
            names.append((key, "rfc3550_max"))
    for key, figure in names:
        extra = 0.004 if key == "pdv_p999" else 0
        compare(
            f"jitter {key}",
            jitter.get(key),
            [v[1][figure] for v in variants],
            noise + (2 * US if extra else 0),
            relative + extra,
        )
    return found


def outage_differences(stream, figures, plan, exact, lateness):
    """The longest outage, to within the clocks; at an open end to one frame, the sender's lateness and 1 ms."""
    interval = 10**9 * plan["streams"] / plan["rate"]
    longest, wanted = (stream.get("outages") or {}).get("longest"), figures["longest_outage"]
    if figures["reordered"] or wanted is None or figures["unique"] == 0:
        return []
    slack = interval + lateness + MS if figures["is_open_at_end"] else 2 * US if exact else MS
    return [] if near(longest or 0, wanted, slack) else [f"longest outage {longest}, captures {wanted}"]


def span_differences(stream, figures):
    """First to last arrival."""
    received = stream["received"]
    if not figures["received"] or received.get("first") is None:
        return []
    span, wanted = received["last"] - received["first"], figures["last"] - figures["first"]
    return [] if near(span, wanted, 2 * US, 1e-6) else [f"first to last arrival {span}, captures {wanted}"]


def rate_differences(stream, figures, plan):
    """Distinct frames over the time that was asked for, or over that between the first and the last if it is longer."""
    stated = stream.get("delivered_milli")
    if not stated or not figures["unique"]:
        return []
    asked = plan["packets"] * plan["streams"] / plan["rate"]
    wanted = 1000 * figures["unique"] / max(asked, (figures["last"] - figures["first"]) / 1e9)
    is_near = near(stated["value"], wanted, 1000, 0.001)
    return [] if is_near else [f"rate delivered {stated['value']}, captures {wanted:.0f}"]
