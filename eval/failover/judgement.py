"""Compares what the collector has stored with what the sender sent, by flow and direction."""

import glob
import json

# Fewer packets that carry the same as the one before: meters can tell the packets of this direction apart.
MOST_ALIKE = 0.3
# Directions that a result names.
MOST_NAMED = 12
KEY = "sourceIPv6Address, destinationIPv6Address, sourceTransportPort, destinationTransportPort, protocolIdentifier"


def read_stored(directory):
    """By key (addresses, ports, protocol): packets, bytes of IP, and the number of records of each direction."""
    import duckdb

    if not glob.glob(f"{directory}/flows/**/*.parquet", recursive=True):
        return {}
    rows = duckdb.sql(f"""
        SELECT {KEY}, sum(packetDeltaCount)::BIGINT, sum(octetDeltaCount)::BIGINT,
               sum(reversePacketDeltaCount)::BIGINT, sum(reverseOctetDeltaCount)::BIGINT
        FROM read_parquet('{directory}/flows/**/*.parquet', hive_partitioning = true) GROUP BY ALL""").fetchall()
    stored = {}
    for *ends, packets, octets, reverse_packets, reverse_octets in rows:
        source, destination, source_port, destination_port, protocol = ends
        add_counts(stored, (source, destination, source_port, destination_port, protocol), packets, octets)
        back = (destination, source, destination_port, source_port, protocol)
        add_counts(stored, back, reverse_packets, reverse_octets)
    return stored


def add_counts(stored, key, packets, octets):
    """A record has one direction forward that another record has in reverse."""
    before = stored.get(key, (0, 0))
    stored[key] = (before[0] + packets, before[1] + octets)


def is_alike(sent):
    """Whether nobody could tell the packets of this direction apart."""
    return sent["is_constant"] or sent["same"] > MOST_ALIKE * sent["packets"]


def compare(truth, stored):
    """Missing and twice, apart for directions whose packets are alike; and the directions that differ."""
    names = ("sent", "missing", "twice", "bytes", "directions", "wrong")
    found = {side: dict.fromkeys(names, 0) for side in ("unlike", "alike")}
    differing = []
    for key, sent in truth.items():
        packets, octets = stored.get(key, (0, 0))
        side = found["alike" if is_alike(sent) else "unlike"]
        side["sent"] += sent["packets"]
        side["directions"] += 1
        side["missing"] += max(0, sent["packets"] - packets)
        side["twice"] += max(0, packets - sent["packets"])
        if packets == sent["packets"] and octets == sent["bytes"]:
            continue
        side["wrong"] += 1
        side["bytes"] += abs(octets - sent["bytes"]) if packets == sent["packets"] else 0
        differing.append({**sent, "alike": is_alike(sent), "stored": packets, "stored_bytes": octets})
    foreign = sum(packets for key, (packets, _) in stored.items() if key not in truth)
    differing.sort(key=lambda row: -abs(row["packets"] - row["stored"]))
    return {**found, "foreign": foreign, "differing": differing[:MOST_NAMED]}


def stated_missing(summary):
    """Packets of which the collector's summary says that they are not stored, or may not be."""
    groups = sum(group.get("unplaced_packets", 0) for group in summary.get("groups", []))
    places = [sink[where] for sink in summary.get("sinks", []) for where in ("lost", "queue_dropped")]
    sinks = sum(place.get("packets", 0) for place in places)
    return groups + sinks + sum(missing_packets(entry) for entry in summary.get("missing", []))


def missing_packets(entry):
    return entry.get("packets", 0) if isinstance(entry, dict) else 0


def read_summary(text):
    """The collector's; nothing if it printed none."""
    try:
        return json.loads(text)
    except ValueError:
        return {}


def group_figures(summary):
    names = ("packets", "repeated", "overlapping", "known_packets", "recovered_packets", "unplaced_packets")
    return [{name: group.get(name) for name in names} for group in summary.get("groups", [])]


def judge(truth, stored, summary):
    """The judged part of a result."""
    result = compare(truth, stored)
    stated = stated_missing(summary)
    missing = result["unlike"]["missing"] + result["alike"]["missing"]
    result.update(stated=stated, unstated=max(0, missing - stated), groups=group_figures(summary))
    result["collector_missing"] = summary.get("missing", [])
    return result


def is_wrong(result):
    if result.get("why") or "unlike" not in result:
        return True
    return any(result[side]["wrong"] for side in ("unlike", "alike")) or result["foreign"] > 0


def lost_by_judge(cables, truth, plan):
    """What the lab's cables lost. A copy that was cut by a fault is not lost."""
    sent = sum(row["packets"] for row in truth.values())
    cut = any(fault["kind"] == "copy" for fault in plan["faults"])
    lost = [line for line in cables if not line.startswith("m0 of")]
    if not cut:
        lost += [line for line in cables if line.startswith("m0 of") and int(line.split(": ")[1]) != sent]
    return lost
