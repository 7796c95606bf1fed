#!/usr/bin/env python3
"""flow_oracle.py PACKETRIG DIRECTORY EVERY: flows of captures, read without any code of packetrig, against what it stores.

Of every EVERY-th capture in DIRECTORY the packets are read, sorted by time and put into flows of one direction (idle 30 s, active
300 s, FIN or RST and then one second, or SYN). Then packetrig meters the capture into a file, collects that, and shows what it stored; the
same with the packets in a seeded random order. Prints JSON. Captures that are not read here are counted as beyond.
"""

import collections
import ipaddress
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

IDLE, ACTIVE, GRACE = 30 * 10**9, 300 * 10**9, 10**9
FIN, SYN, RST = 1, 2, 4
MOST_PACKETS = 30_000


class Beyond(Exception):
    """The capture has something that is not read here."""


def frames(data):
    """Yields link type, time in ns, bytes and full length of every packet."""
    if len(data) < 24:
        raise Beyond("short")
    magic = data[:4]
    if magic == b"\n\r\r\n":
        yield from pcapng(data)
        return
    kinds = {b"\xd4\xc3\xb2\xa1": ("<", 1000), b"\xa1\xb2\xc3\xd4": (">", 1000), b"M<\xb2\xa1": ("<", 1), b"\xa1\xb2<M": (">", 1)}
    if magic not in kinds:
        raise Beyond("magic")
    order, unit = kinds[magic]
    link = struct.unpack_from(order + "I", data, 20)[0] & 0xFFFF
    at = 24
    while at < len(data):
        if at + 16 > len(data):
            raise Beyond("cut")
        seconds, part, captured, full = struct.unpack_from(order + "IIII", data, at)
        if at + 16 + captured > len(data):
            raise Beyond("cut")
        yield link, seconds * 10**9 + part * unit, data[at + 16 : at + 16 + captured], full
        at += 16 + captured


def pcapng(data):
    at, order, links = 0, "<", []
    while at + 12 <= len(data):
        if data[at : at + 4] == b"\n\r\r\n":
            order = "<" if data[at + 8 : at + 12] == b"M<+\x1a" else ">"
            links = []
        kind, length = struct.unpack_from(order + "II", data, at)
        body = data[at + 8 : at + length - 4]
        if length < 12 or at + length > len(data):
            raise Beyond("cut")
        if kind == 1:
            resolution, place = 6, 8
            while place + 4 <= len(body):
                option, size = struct.unpack_from(order + "HH", body, place)
                if option == 9:
                    resolution = body[place + 4]
                if option == 14:
                    raise Beyond("offset")
                if option == 0:
                    break
                place += 4 + (size + 3) // 4 * 4
            if resolution & 0x80 or resolution > 9:
                raise Beyond("resolution")
            links.append((struct.unpack_from(order + "H", body)[0], 10 ** (9 - resolution)))
        elif kind == 6:
            interface, high, low, captured, full = struct.unpack_from(order + "IIIII", body)
            link, unit = links[interface]
            yield link, (high << 32 | low) * unit, body[20 : 20 + captured], full
        elif kind in (2, 3):
            raise Beyond("block")
        at += length


def network(link, frame):
    """EtherType and the bytes behind it."""
    if link in (12, 14, 101, 228, 229):
        return (0x0800 if frame[0] >> 4 == 4 else 0x86DD), frame
    if link == 113:
        return struct.unpack_from(">H", frame, 14)[0], frame[16:]
    if link in (0, 108):
        return (0x0800 if frame[4] >> 4 == 4 else 0x86DD), frame[4:]
    if link != 1:
        raise Beyond(f"link {link}")
    kind, at = struct.unpack_from(">H", frame, 12)[0], 14
    while kind in (0x8100, 0x88A8, 0x9100):
        kind, at = struct.unpack_from(">H", frame, at + 2)[0], at + 4
    if kind in (0x8847, 0x8848, 0x8864) or kind < 0x600:
        raise Beyond("below IP")
    return kind, frame[at:]


def packet(link, frame, full):
    """Key, bytes and TCP flags of a packet; nothing if it is not IP."""
    if len(frame) < 14:
        raise Beyond("short")
    kind, ip = network(link, frame)
    whole = full - (len(frame) - len(ip))
    if kind == 0x0800:
        if len(ip) < 20 or ip[0] >> 4 != 4 or struct.unpack_from(">H", ip, 6)[0] & 0x3FFF:
            raise Beyond("IPv4")
        length, head, protocol = struct.unpack_from(">H", ip, 2)[0] or whole, (ip[0] & 15) * 4, ip[9]
        ends = ["::ffff:" + str(ipaddress.IPv4Address(ip[at : at + 4])) for at in (12, 16)]
        if head < 20 or length < head:
            raise Beyond("IPv4")
    elif kind == 0x86DD:
        if len(ip) < 40 or ip[0] >> 4 != 6:
            raise Beyond("IPv6")
        payload, protocol, head = struct.unpack_from(">H", ip, 4)[0], ip[6], 40
        length = 40 + payload if payload else whole
        ends = [str(ipaddress.IPv6Address(ip[at : at + 16])) for at in (8, 24)]
        while protocol in (0, 43, 60):
            if len(ip) < head + 8:
                raise Beyond("IPv6")
            protocol, head = ip[head], head + 8 + ip[head + 1] * 8
        if protocol in (44, 59, 135, 139, 140):
            raise Beyond("IPv6")
    else:
        return None
    if protocol == 51:
        # An authentication header says what follows, in either version.
        protocol, head = ip[head], head + (ip[head + 1] + 2) * 4
    rest, ports, flags = ip[head:length], (0, 0), 0
    if protocol in (6, 17, 132, 33, 136):
        if len(rest) < 20:
            if protocol != 17 or len(rest) < 8:
                raise Beyond("ports")
        ports = struct.unpack_from(">HH", rest)
        flags = rest[13] if protocol == 6 else 0
    elif protocol in (1, 58):
        if len(rest) < 2:
            raise Beyond("ICMP")
        ports = (0, rest[0] << 8 | rest[1])
    return (*ends, *ports, protocol), length, flags


class Flow:
    def __init__(self, at):
        self.start, self.last, self.packets, self.bytes, self.first, self.ended = at, at, 0, 0, at, False


def flows(packets):
    """Records of packets that are in order."""
    known, records = {}, collections.Counter()

    def report(key, flow):
        if flow.packets:
            records[(*key, flow.packets, flow.bytes, flow.first, flow.last)] += 1
        flow.packets = flow.bytes = 0

    def settle(key, flow, at):
        """What is due by a time; whether the flow goes on."""
        while True:
            end, part = flow.last + (GRACE if flow.ended else IDLE), flow.start + ACTIVE
            is_part = flow.packets > 0 and part < end
            if (part if is_part else end) > at:
                return True
            report(key, flow)
            if not is_part:
                return False

    for at, (key, length, flags) in packets:
        flow = known.get(key)
        if flow and not settle(key, flow, at):
            flow = None
        if flow and flow.ended and flags & SYN:
            report(key, flow)
            flow = None
        if not flow:
            flow = known[key] = Flow(at)
        if not flow.packets:
            flow.start = flow.first = at
        flow.packets, flow.bytes, flow.last = flow.packets + 1, flow.bytes + length, max(flow.last, at)
        flow.ended |= bool(flags & (FIN | RST)) and key[4] == 6
    for key, flow in known.items():
        report(key, flow)
    return records


def stored(packetrig, capture, place):
    """Records that packetrig stores of a capture."""

    def run(*arguments):
        done = subprocess.run([packetrig, *arguments], cwd=place, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{arguments}: {done.returncode}: {done.stderr[-500:]}")
        return done.stdout

    run("meter", capture, "-q", "--json", "--uniflow", "--depth", "0", "--key", "icmp", "--export", "file:x.ipfix")
    run("collect", "x.ipfix", "-q", "--json", "--directory", "d")
    records = collections.Counter()
    if not os.path.isdir(os.path.join(place, "d", "flows")):
        return records
    for line in run("flows", "show", "--json", "d").splitlines():
        row = json.loads(line)
        ends = []
        for name in ("sourceIPv6Address", "destinationIPv6Address"):
            address = ipaddress.ip_address(row[name])
            mapped = getattr(address, "ipv4_mapped", None)
            ends.append(f"::ffff:{mapped}" if mapped else str(address))
        key = (*ends, row["sourceTransportPort"], row["destinationTransportPort"], row["protocolIdentifier"])
        counts = (row["packetDeltaCount"], row["octetDeltaCount"])
        records[(*key, *counts, row["flowStartNanoseconds"], row["flowEndNanoseconds"])] += 1
    return records


def write(path, link, packets):
    with open(path, "wb") as out:
        out.write(struct.pack("<IHHIIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, link))
        for at, frame, full in packets:
            out.write(struct.pack("<IIII", at // 10**9, at % 10**9, len(frame), full) + frame)


def examine(packetrig, path, orders, differing):
    with open(path, "rb") as file:
        read = list(frames(file.read()))
    if len(read) > MOST_PACKETS or len({link for link, *_ in read}) != 1:
        raise Beyond("size")
    metered = [(at, packet(link, frame, full)) for link, at, frame, full in read]
    wanted = flows(sorted((one for one in metered if one[1]), key=lambda one: one[0]))
    shuffled = [(at, frame, full) for _, at, frame, full in read]
    # Equal times have no order that could be found again.
    if len({at for at, *_ in shuffled}) == len(shuffled):
        random.Random(os.path.basename(path)).shuffle(shuffled)
    else:
        shuffled = None
    for order in ("as captured", "shuffled"):
        if order == "shuffled" and shuffled is None:
            continue
        with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
            capture = path
            if order == "shuffled":
                capture = os.path.join(place, "shuffled.pcap")
                write(capture, read[0][0], shuffled)
            found = stored(packetrig, capture, place)
        row = orders[order]
        row["captures"] += 1
        row["packets"] += len(read)
        row["records"] += sum(wanted.values())
        if found != wanted:
            row["differ"] += 1
            less, more = wanted - found, found - wanted
            sample = next(iter(less.elements()), None), next(iter(more.elements()), None)
            name = os.path.basename(path)
            differing.append(f"{name} {order}: {sum(less.values())} missing, {sum(more.values())} more: {sample}")


def main():
    packetrig, directory, every = os.path.abspath(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    orders = {order: collections.Counter() for order in ("as captured", "shuffled")}
    differing, beyond = [], collections.Counter()
    for name in sorted(os.listdir(directory))[::every]:
        try:
            examine(packetrig, os.path.abspath(os.path.join(directory, name)), orders, differing)
        except (Beyond, IndexError, struct.error) as reason:
            beyond[str(reason)] += 1
    print(json.dumps({"orders": orders, "differing": differing, "beyond": sum(beyond.values()), "why": beyond}))


main()
