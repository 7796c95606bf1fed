#!/usr/bin/env python3
"""figures.py DIRECTORY [PACKETS RATE]: every figure of a report, computed from captures.

PACKETS and RATE (frames/s) are those that the plan asks of each stream.

DIRECTORY holds in.pcap, out.pcap, rx.pcap and log.tsv of forwarder.c. Prints one JSON object per stream: the figures
from the tag's send time to the arrival at the rig (`rig`), and those of the device alone, from capture to capture
(`device`). The program and this file share no code. Definitions:

expected    frames that entered the first capture, each once
lost        expected less distinct frames that arrived
duplicates  arrivals of a number that had arrived
bursts      runs of consecutive lost numbers
reordered   RFC 4737: first arrivals with a number below the largest before
extent      RFC 4737: arrivals since the first one with a larger number
rate        distinct frames over the time that was asked for
percentile  nearest rank: the smallest value that ceil(p n) values do not exceed
jitter      RFC 3550: J += (|D| - J) / 16 for each arrival, in order of arrival; at the end, and the largest
pdv         RFC 5481: p99.9 of the latency less its minimum            ipdv       RFC 5481: |latency - latency before|
outage      longest time between the arrivals around a run of lost numbers. At the end of a stream: from the last
            arrival until the last frame sent would have arrived with the median latency
"""

import bisect
import json
import math
import sys

from captures import by_stream, latency_of, read_capture, read_log

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "p9999": 0.9999}


def percentile(values, share):
    """Of sorted values."""
    return values[max(0, math.ceil(round(share * len(values), 9)) - 1)]


def latency_figures(latencies):
    if not latencies:
        return {}
    ordered = sorted(latencies)
    figures = {name: percentile(ordered, share) for name, share in PERCENTILES.items()}
    figures.update(min=ordered[0], max=ordered[-1], mean=sum(ordered) / len(ordered), count=len(ordered))
    return figures


def jitter_figures(latencies):
    """Latencies in order of arrival."""
    if len(latencies) < 2:
        return {}
    smoothed = largest = 0.0
    changes = [abs(after - before) for before, after in zip(latencies, latencies[1:])]
    for change in changes:
        smoothed += (change - smoothed) / 16
        largest = max(largest, smoothed)
    ordered = sorted(latencies)
    return {
        "rfc3550": smoothed,
        "rfc3550_max": largest,
        "pdv_p999": percentile(ordered, 0.999) - ordered[0],
        "ipdv_mean": sum(changes) / len(changes),
        "ipdv_max": max(changes),
    }


def first_arrivals(arrivals):
    """(sequence, at) of the first copy of each number, in order of arrival."""
    seen, first = set(), []
    for sequence, at in arrivals:
        if sequence not in seen:
            seen.add(sequence)
            first.append((sequence, at))
    return first


def order_figures(first):
    """RFC 4737, of first arrivals."""
    largest, running, reordered, extent = -1, [], 0, 0
    for index, (sequence, _) in enumerate(first):
        if sequence < largest:
            reordered += 1
            extent = max(extent, index - bisect.bisect_right(running, sequence))
        largest = max(largest, sequence)
        running.append(largest)
    return {"reordered": reordered, "max_extent": extent}


def lost_runs(expected, arrived):
    """(first, last) of each run of consecutive lost numbers; both sorted."""
    present, runs = set(arrived), []
    for sequence in expected:
        if sequence in present:
            continue
        if runs and runs[-1][1] == sequence - 1:
            runs[-1][1] = sequence
        else:
            runs.append([sequence, sequence])
    return runs


def outages(runs, first, due):
    """Nanoseconds of each outage; `due` says when a number should have arrived."""
    at, found = dict(first), []
    for begin, end in runs:
        before, after = at.get(begin - 1), at.get(end + 1)
        if before is not None:
            found.append((after if after is not None else due(end)) - before)
    return found


def stream_figures(arrivals, expected, due):
    """Figures of (sequence, at, latency) in order of arrival; `expected`: numbers that were sent."""
    expected = sorted(set(expected))
    first = first_arrivals([(sequence, at) for sequence, at, _ in arrivals])
    runs = lost_runs(expected, [sequence for sequence, _ in first])
    latencies = [latency for _, _, latency in arrivals]
    lengths = outages(runs, first, due)
    figures = {
        "expected": len(expected),
        "received": len(arrivals),
        "unique": len(first),
        "lost": len(expected) - len(first),
        "duplicates": len(arrivals) - len(first),
        "bursts": len(runs),
        "longest_burst": max((end - begin + 1 for begin, end in runs), default=0),
        "longest_outage": max(lengths, default=None),
        "is_open_at_end": bool(runs) and runs[-1][1] == (expected[-1] if expected else None),
        "first": arrivals[0][1] if arrivals else None,
        "last": arrivals[-1][1] if arrivals else None,
        "latency": latency_figures(latencies),
        "jitter": jitter_figures(latencies),
    }
    figures.update(order_figures(first))
    return figures


def rig_figures(before, after, clocks):
    """From the tag's send time to the arrival at the rig, for each stream."""
    entered, arrived, found = by_stream(before), by_stream(after), {}
    for stream, frames in entered.items():
        sent = {frame.sequence: frame.at for frame in frames}
        rows = [(a.sequence, a.at, latency_of(a, clocks)) for a in arrived.get(stream, [])]
        median = percentile(sorted(row[2] for row in rows), 0.5) if rows else 0
        found[stream] = stream_figures(
            rows, sent, lambda number, sent=sent, median=median: sent.get(number, 0) + median
        )
        found[stream]["damaged"] = sum(not a.intact for a in arrived.get(stream, []))
    return found


def device_rows(before, after, fates):
    """Of each stream: when each number entered, and (number, at, time inside) of each exit.

    Frames that the log says were sent, but no capture has because the cable had no carrier, have the log's time."""
    entered = {(frame.stream, frame.sequence): frame.at for frame in before}
    exits = {}
    for frame in after:
        exits.setdefault((frame.stream, frame.sequence), []).append(frame.at)
    rows = {}
    for fate in fates:
        key = (fate.stream, fate.sequence)
        stream = rows.setdefault(fate.stream, {"entered": {}, "exits": []})
        stream["entered"][fate.sequence] = entered.get(key, fate.entered)
        captured = exits.get(key, [])
        for index, logged in enumerate(fate.left):
            at = captured[index] if index < len(captured) else logged
            stream["exits"].append((fate.sequence, at, at - stream["entered"][fate.sequence]))
    for stream in rows.values():
        stream["exits"].sort(key=lambda row: row[1])
    return rows


def add_rate(figures, packets, rate):
    """Distinct frames over the time that was asked for, in frames/s."""
    figures["rate_delivered"] = figures["unique"] * rate / packets


def main():
    directory, *plan = sys.argv[1:]
    fates, clocks, notes = read_log(f"{directory}/log.tsv")
    before, after, arrived = (read_capture(f"{directory}/{name}.pcap") for name in ("in", "out", "rx"))
    device = device_rows(before, after, fates)
    rig = rig_figures(before, arrived, clocks)
    for stream, rows in sorted(device.items()):
        alone = stream_figures(rows["exits"], rows["entered"], lambda number, rows=rows: rows["entered"].get(number, 0))
        if plan:
            add_rate(alone, *map(int, plan))
            add_rate(rig[stream], *map(int, plan))
        print(json.dumps({"stream": stream, "rig": rig.get(stream), "device": alone, "notes": notes}))


if __name__ == "__main__":
    main()
