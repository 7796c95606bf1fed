"""sflow_judge.py PROGRAM FILE…: sends recorded sFlow datagrams to a collector, and compares its records with what the samples state.

A FILE is a capture (pcap, Ethernet, IPv4), or Go source of tests with datagrams in it (`[]byte{0x00, …}`). This reads sFlow version 5 by
itself: flow samples, plain and expanded, with raw headers of Ethernet frames. Prints what was compared as JSON."""

import collections
import json
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time

COLUMNS = "exporter-ip,sampling,in-if,out-if,vlan,src-ip,dst-ip,src-port,dst-port,protocol,bytes"
SFLOW_PORT = 6343
DISCARDED_OR_MANY = 0x3FFFFFFF


def datagrams_of_capture(data):
    order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    at = 24
    while at + 16 <= len(data):
        length = struct.unpack(order + "I", data[at + 8 : at + 12])[0]
        frame, at = data[at + 16 : at + 16 + length], at + 16 + length
        if frame[12:14] == b"\x08\x00" and frame[23] == 17:
            udp = 14 + 4 * (frame[14] & 15)
            if struct.unpack(">H", frame[udp + 2 : udp + 4])[0] == SFLOW_PORT:
                yield frame[udp + 8 :]


def datagrams_of_source(text):
    for block in re.findall(r":= \[\]byte\{(.*?)\n\t\}", text, re.S):
        data = bytes(int(number, 16) for number in re.findall(r"0x([0-9a-fA-F]{2})", block))
        if data[:4] == b"\0\0\0\5":
            yield data


def datagrams(path):
    with open(path, "rb") as file:
        data = file.read()
    return list(datagrams_of_source(data.decode()) if path.endswith(".go") else datagrams_of_capture(data))


class Words:
    """Big-endian words, one after the other."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def word(self):
        return struct.unpack(">I", self.bytes(4))[0]

    def bytes(self, count):
        self.at += count
        return self.data[self.at - count : self.at]


def packet_of_header(header):
    """VLAN, addresses, ports, protocol and bytes of the IP packet behind an Ethernet header."""
    at, vlan = 12, 0
    if header[at : at + 2] == b"\x81\x00":
        vlan, at = struct.unpack(">H", header[at + 2 : at + 4])[0] & 0xFFF, at + 4
    if header[at : at + 2] != b"\x08\x00":
        return None
    ip = header[at + 2 :]
    size = 4 * (ip[0] & 15)
    protocol, total = ip[9], struct.unpack(">H", ip[2:4])[0]
    source, destination = (f"::ffff:{socket.inet_ntoa(ip[at:at + 4])}" for at in (12, 16))
    ports = struct.unpack(">HH", ip[size : size + 4]) if protocol in (6, 17) else (0, 0)
    if protocol == 1:
        ports = (0, ip[size] << 8 | ip[size + 1])
    return (vlan, source, destination, *ports, protocol, total)


def interface(kind, number):
    return number if kind == 0 and number != DISCARDED_OR_MANY else 0


def records_of_datagram(data):
    words = Words(data)
    assert words.word() == 5, "version 5"
    assert words.word() == 1, "an agent with an IPv4 address"
    agent = f"::ffff:{socket.inet_ntoa(words.bytes(4))}"
    words.bytes(12)
    for _ in range(words.word()):
        kind, length = words.word(), words.word()
        sample = Words(words.bytes(length))
        if kind not in (1, 3):
            continue
        sample.word()
        sample.bytes(8 if kind == 3 else 4)
        rate = sample.word()
        sample.bytes(8)
        if kind == 3:
            ways = [interface(sample.word(), sample.word()) for _ in range(2)]
        else:
            ways = [interface(way >> 30, way & DISCARDED_OR_MANY) for way in (sample.word(), sample.word())]
        for _ in range(sample.word()):
            form, length = sample.word(), sample.word()
            record = Words(sample.bytes(length))
            if form == 1 and record.word() == 1:
                record.bytes(8)
                packet = packet_of_header(record.bytes(record.word()))
                if packet:
                    yield (agent, rate, *ways, *packet)


def collected(program, sent):
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as exporter:
        place = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
        place.close()
        words = [program, "collect", "--quiet", "--listen", f"udp://127.0.0.1:{port}", "--directory", directory]
        collector = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while "listening" not in collector.stderr.readline():
            assert collector.poll() is None, "the collector has ended"
        for datagram in sent:
            exporter.sendto(datagram, ("127.0.0.1", port))
            time.sleep(0.001)
        time.sleep(0.5)
        collector.send_signal(2)
        collector.communicate(timeout=30)
        shown = subprocess.run([program, "flows", "show", directory, "--json", "--columns", COLUMNS], capture_output=True, text=True)
        return [tuple(json.loads(line).values()) for line in shown.stdout.splitlines()]


def main():
    program, *paths = sys.argv[1:]
    sent = [datagram for path in paths for datagram in datagrams(path)]
    stated = collections.Counter(record for datagram in sent for record in records_of_datagram(datagram))
    stored = collections.Counter(collected(program, sent))
    differ = list((stated - stored).elements()) + list((stored - stated).elements())
    print(json.dumps({"datagrams": len(sent), "samples": stated.total(), "stored": stored.total(), "differ": differ}))


if __name__ == "__main__":
    main()
