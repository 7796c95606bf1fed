#!/usr/bin/env python3
"""Reads a forwarder log, prints as JSON what happened to each stream in each direction.

    judge.py LOG_FILE [--key K] [--min-outage FRAMES]

A frame "left" when a copy of it, whatever the reason, went out of the right interface: the one its ingress
interface is passed to.  Whether what left was intact is counted apart (`intact`).
"""
import argparse
import collections
import json

LEAVING = ("sent", "copy", "flood", "reflect", "misdeliver")
LOST_BY = ("drop", "police", "arp_drop", "no_route")
COUNTS = ("received", "forwarded", "intact", "left_total", "dropped", "copies", "corrupted", "rewritten",
          "misdelivered", "flooded", "reflected", "delayed", "reordered", "send_failed")
FRAME_COUNT = {"corrupt": "corrupted", "rewrite_mac": "rewritten", "misdeliver": "misdelivered", "flood": "flooded",
               "reflect": "reflected", "delay": "delayed", "reorder": "reordered", "send_failed": "send_failed"}


def read_footer(path):
    footer = {"pass": {}, "kernel_drops": {}, "unread": {}, "offload": {}, "totals": {}}
    with open(path) as log:
        for line in log:
            if not line.startswith("#"):
                continue
            name, *words = line[1:].split()
            if name == "pass":
                footer["pass"][words[0]] = None if words[1] == "-" else words[1]
            elif name in ("kernel_drops", "unread"):
                footer[name][words[0]] = int(words[1])
            elif name == "offload":
                footer[name][words[0]] = pairs(words[1:])
            elif name == "totals":
                footer[name] = pairs(words)
            else:  # start_ns, end_ns
                footer[name] = int(words[0])
    return footer


def pairs(words):
    return {name: int(value) for name, value in (word.split("=") for word in words)}


class Stream:
    def __init__(self, in_if, key, out_if):
        self.in_if, self.key, self.out_if = in_if, key, out_if
        self.count = collections.Counter()
        self.lost_by = collections.Counter()
        self.errors = collections.Counter()
        self.outages, self.outage, self.last_good_ns = [], None, None

    def add(self, number, received_ns, fates):
        """`fates`: [kind, ...] lists in log order."""
        count = self.count
        count["received"] += 1
        left_ns, left, intact, altered = None, 0, False, False
        kinds = set()
        for kind, *rest in fates:
            kinds.add(kind)
            if kind in ("corrupt", "rewrite_mac"):
                altered = True  # whatever stands to the right of this carries the change
            elif kind in LEAVING:
                count["copies"] += kind == "copy"
                if rest[0] == self.out_if:
                    left += 1
                    intact |= not altered
                    left_ns = int(rest[1]) if left_ns is None else min(left_ns, int(rest[1]))
            elif kind == "send_failed":
                self.errors[rest[1]] += 1
        for kind in kinds:
            if kind in FRAME_COUNT:
                count[FRAME_COUNT[kind]] += 1
            elif kind in LOST_BY:
                self.lost_by[kind] += 1
                count["dropped"] += 1  # a frame has at most one of these at its end
        count["forwarded"] += left > 0
        count["intact"] += intact
        count["left_total"] += left
        if left == 0:
            if self.outage is None:
                self.outage = {"first": number, "last": number, "frames": 0, "before_ns": self.last_good_ns,
                               "after_ns": None, "first_received_ns": received_ns, "last_received_ns": received_ns}
            self.outage.update(last=number, last_received_ns=received_ns)
            self.outage["frames"] += 1
        else:
            self.end_outage(left_ns)
            self.last_good_ns = left_ns

    def end_outage(self, after_ns):
        if self.outage is not None:
            self.outage["after_ns"] = after_ns
            self.outages.append(self.outage)
            self.outage = None

    def report(self, min_outage):
        self.end_outage(None)
        result = {"key": self.key, "from": self.in_if, "to": self.out_if}
        result.update((name, self.count[name]) for name in COUNTS)
        result["dropped_by"] = dict(self.lost_by)
        result["send_errors"] = dict(self.errors)
        result["outages"] = [o for o in self.outages if o["frames"] >= min_outage]
        return result


def judge(path, only_key=None, min_outage=1):
    footer = read_footer(path)
    streams, problems, totals, last_received = {}, [], collections.Counter(), 0
    with open(path) as log:
        if not next(log, "").startswith("in_if\t"):
            problems.append("the log has no header")
        for line in log:
            if line.startswith("#"):
                continue
            in_if, key, number, _hash, received_ns, fates = line.rstrip("\n").split("\t")
            key, number, received_ns = int(key), int(number), int(received_ns)
            stream = streams.get((in_if, key))
            if stream is None:
                stream = streams[in_if, key] = Stream(in_if, key, footer["pass"].get(in_if))
            if number != stream.count["received"]:
                problems.append(f"{in_if} key {key}: number {number} where {stream.count['received']} was due")
            if received_ns < last_received:
                problems.append(f"{in_if} key {key} number {number}: received before the line above")
            last_received = received_ns
            fates = [fate.split(":") for fate in fates.split(",")]
            totals["received"] += 1
            for kind, *rest in fates:
                totals[kind] += 1
                if kind in LEAVING and int(rest[1]) < received_ns:
                    problems.append(f"{in_if} key {key} number {number}: left before it was received")
            if not fates[0][0]:
                problems.append(f"{in_if} key {key} number {number}: no fate")
            stream.add(number, received_ns, fates)
    for name, value in footer["totals"].items():
        if totals[name] != value:
            problems.append(f"totals: {name}={value}, the lines have {totals[name]}")
    if not footer["totals"]:
        problems.append("the log has no end")
    if totals["unsent"]:
        problems.append(f"{totals['unsent']} frames never sent")
    for name in ("kernel_drops", "unread"):
        problems += [f"{name} {port}: {n}" for port, n in footer[name].items() if n]
    for port, counts in footer["offload"].items():
        problems += [f"offload {port}: {name}={n}: turn the sender's offloads off" for name, n in counts.items() if n]
    return {"sound": not problems, "problems": problems[:50], **footer,
            "streams": [s.report(min_outage) for (_, key), s in sorted(streams.items())
                        if only_key is None or key == only_key]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="sums up a forwarder log as JSON")
    parser.add_argument("log")
    parser.add_argument("--key", type=int, help="only this stream key")
    parser.add_argument("--min-outage", type=int, default=1, help="leave out shorter outages")
    arguments = parser.parse_args()
    print(json.dumps(judge(arguments.log, arguments.key, arguments.min_outage), indent=1))
