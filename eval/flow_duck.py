"""flow_duck.py PROGRAM DIRECTORY ROUNDS: asks packetrig and DuckDB the same questions about the same files in turn, with as many threads as
the machine has processors. Prints what each took as JSON."""

import csv
import glob
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import duckdb

SOURCE, DESTINATION = "sourceIPv6Address", "destinationIPv6Address"
SOURCE_PORT, PORT, PROTOCOL = "sourceTransportPort", "destinationTransportPort", "protocolIdentifier"
TIMES = "min(flowStartNanoseconds), max(flowEndNanoseconds)"
HOST = "from_hex('00000000000000000000FFFFC6120003')"
COLUMNS = {"start": "flowStartNanoseconds", "src-ip": SOURCE, "dst-ip": DESTINATION, "dst-port": PORT, "packets": "packetDeltaCount", "bytes": "octetDeltaCount"}


def by_direction(key, reverse, order="bytes", where="true", where_reverse="true"):
    """The 20 largest groups; each direction of a record counts for itself."""

    def half(names, prefix, condition):
        packets, octets = (f"{prefix}PacketDeltaCount", f"{prefix}OctetDeltaCount") if prefix else ("packetDeltaCount", "octetDeltaCount")
        keys = ", ".join(f"{name} k{number}" for number, name in enumerate(names))
        return f"select {keys}, {packets} p, {octets} o, flowPart f, flowStartNanoseconds, flowEndNanoseconds from flows where ({condition}) and {packets} > 0"

    keys = ", ".join(f"k{number}" for number in range(len(key)))
    both = f"{half(key, '', where)} union all {half(reverse, 'reverse', where_reverse)}"
    totals = f"count(*) filter (f = 0), sum(p) packets, sum(o) bytes, {TIMES}"
    return f"select packets, bytes from (select {keys}, {totals} from ({both}) group by {keys} order by {order} desc limit 20)"


TOTALS = (
    f"select sum(packetDeltaCount + reversePacketDeltaCount)::int64, sum(octetDeltaCount + reverseOctetDeltaCount)::int64, count(*), {TIMES} from flows",
    f"select {PROTOCOL}, count(*), sum(octetDeltaCount + reverseOctetDeltaCount) from flows group by 1",
    "select time_bucket(interval '5 minutes', flowStartNanoseconds), count(*), sum(octetDeltaCount + reverseOctetDeltaCount) from flows group by 1",
)
PAIRS = (
    f"select p, b from (select least({SOURCE}, {DESTINATION}), greatest({SOURCE}, {DESTINATION}), count(*) filter (flowPart = 0), "
    f"sum(packetDeltaCount + reversePacketDeltaCount) p, sum(octetDeltaCount + reverseOctetDeltaCount) b, {TIMES} from flows group by 1, 2 order by b desc limit 20)"
)
FIVE = [SOURCE, DESTINATION, SOURCE_PORT, PORT, PROTOCOL]
FIVE_BACK = [DESTINATION, SOURCE, PORT, SOURCE_PORT, PROTOCOL]
# What is asked, our command, and DuckDB's statements. The first one has packets and bytes.
QUESTIONS = [
    ("sums, protocols, timeline", ["stats", "--json"], TOTALS),
    ("who sent most bytes", ["top"], [by_direction([SOURCE], [DESTINATION])]),
    ("ports by packets", ["top", "--by", "dst-port,protocol", "--order", "packets"], [by_direction([PORT, PROTOCOL], [SOURCE_PORT, PROTOCOL], "packets")]),
    ("pairs", ["top", "--by", "pair"], [PAIRS]),
    ("five columns", ["top", "--by", "src-ip,dst-ip,src-port,dst-port,protocol"], [by_direction(FIVE, FIVE_BACK)]),
    (
        "one of eight hosts: its peers",
        ["top", "--by", "dst-ip", "--filter", "src ip 198.18.0.3"],
        [by_direction([DESTINATION], [SOURCE], where=f"{SOURCE} = {HOST}", where_reverse=f"{DESTINATION} = {HOST}")],
    ),
    ("a port out of 65 536", ["top", "--filter", "dst port 40001"], [by_direction([SOURCE], [DESTINATION], where=f"{PORT} = 40001", where_reverse=f"{SOURCE_PORT} = 40001")]),
    (
        "two conditions",
        ["top", "--filter", "proto tcp and dst port 443"],
        [by_direction([SOURCE], [DESTINATION], where=f"{PROTOCOL} = 6 and {PORT} = 443", where_reverse=f"{PROTOCOL} = 6 and {SOURCE_PORT} = 443")],
    ),
    ("the largest records", ["show", "--order", "bytes", "--most", "20", "--columns", ",".join(COLUMNS)], [f"select packetDeltaCount, octetDeltaCount, {', '.join(COLUMNS.values())} from flows order by octetDeltaCount desc limit 20"]),
    ("all records as CSV", ["show", "--columns", ",".join(COLUMNS)], [f"copy (select {', '.join(COLUMNS.values())} from flows) to '{{file}}' (format csv)"]),
]


def processor_seconds(whose):
    usage = resource.getrusage(whose)
    return usage.ru_utime + usage.ru_stime


def ask_duckdb(connection, statements, file):
    began, before = time.perf_counter(), processor_seconds(resource.RUSAGE_SELF)
    rows = [connection.execute(statement.format(file=file)).fetchall() for statement in statements]
    return time.perf_counter() - began, processor_seconds(resource.RUSAGE_SELF) - before, rows[0]


def ask_packetrig(program, arguments, directory, file):
    form = [] if "--json" in arguments else ["--csv"] + (["-n", "20"] if arguments[0] == "top" else [])
    began, before = time.perf_counter(), processor_seconds(resource.RUSAGE_CHILDREN)
    with open(file, "wb") as output:
        subprocess.run([program, "flows", *arguments, *form, directory], stdout=output, check=True)
    took = time.perf_counter() - began, processor_seconds(resource.RUSAGE_CHILDREN) - before
    with open(file, encoding="utf-8") as text:
        return *took, text.read()


def is_same(arguments, text, rows, file):
    """Packets and bytes of each row, in any order: equal ones may be ranked differently."""
    if "--json" in arguments:
        sums = json.loads(text)
        return (sums["packets"], sums["bytes"]) == tuple(rows[0][:2])
    lines = list(csv.DictReader(io.StringIO(text)))
    if arguments[0] == "show" and "--order" not in arguments:
        with open(file, encoding="utf-8") as theirs:
            return len(lines) == sum(1 for _ in theirs) - 1
    of = ("packets", "bytes") if arguments[0] == "top" else ("packetDeltaCount", "octetDeltaCount")
    ours = sorted(tuple(int(line[name]) for name in of) for line in lines)
    theirs = sorted(tuple(int(value) for value in row[:2]) for row in rows)
    # Of records that are equal in what they are ordered by, any may be among the first.
    return ours == theirs or arguments[0] == "show" and [pair[1] for pair in ours] == [pair[1] for pair in theirs]


def main():
    program, directory, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    files = [path for path in glob.glob(f"{directory}/**/*.parquet", recursive=True) if not os.path.basename(path).startswith("meter_stats")]
    connection = duckdb.connect()
    connection.execute(f"set threads = {os.cpu_count()}")
    connection.execute(f"create view flows as select * from read_parquet({files!r})")
    rows, ratios, same = [], [], 0
    with tempfile.TemporaryDirectory() as kept:
        for what, arguments, statements in QUESTIONS:
            theirs, ours = [], []
            for _ in range(rounds):
                theirs.append(ask_duckdb(connection, statements, f"{kept}/theirs"))
                ours.append(ask_packetrig(program, arguments, directory, f"{kept}/ours"))
            times = [statistics.median(answer[place] for answer in answers) for place in (0, 1) for answers in (theirs, ours)]
            equal = is_same(arguments, ours[0][2], theirs[0][2], f"{kept}/theirs")
            same += equal
            ratios.append(times[1] / times[0])
            cells = [f"{seconds:.3f}" for seconds in times]
            rows.append([what, *cells[:2], f"{ratios[-1]:.2f}", *cells[2:], f"{times[3] / max(times[2], 1e-3):.2f}", "yes" if equal else "no"])
    print(json.dumps({"version": duckdb.__version__, "rows": rows, "median": statistics.median(ratios), "worst": max(ratios), "same": same, "of": len(rows)}))


if __name__ == "__main__":
    main()
