"""Reads captures of test frames, and the forwarder's log. The tag is parsed as docs/book/tag.md describes it."""

import struct
from typing import NamedTuple

PCAP_HEADER, RECORD_HEADER, TAG_BYTES = 24, 16, 16
ETHERNET, UDP_END = 14, 42
SEND_TIME = 1 << 48


class Arrival(NamedTuple):
    """A test frame in a capture."""

    stream: int
    sequence: int
    at: int  # realtime, ns: the kernel's stamp
    sent: int  # monotonic, ns modulo 2^48: the tag's send time
    intact: bool  # the tag's check field agrees with the payload


class Fate(NamedTuple):
    """What the forwarder says that it did to a frame that entered."""

    stream: int
    sequence: int
    entered: int
    left: list
    flags: str


class Clocks:
    """Realtime less monotonic, between samples."""

    def __init__(self, samples):
        self.samples = sorted(samples)

    def monotonic(self, real):
        before = [sample for sample in self.samples if sample[0] <= real] or self.samples[:1]
        return real - before[-1][1]

    def offset_range(self):
        """How far the offset moved, and the widest reading."""
        offsets = [offset for _, offset, _ in self.samples]
        return max(offsets) - min(offsets) + max(width for _, _, width in self.samples)


def is_intact(frame):
    """The check field: the complement of the one's-complement sum of the payload before the tag."""
    payload = frame[UDP_END:-TAG_BYTES]
    payload += b"\0" * (len(payload) % 2)
    total = sum(struct.unpack(f">{len(payload) // 2}H", payload))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF) == int.from_bytes(frame[-2:], "big")


def parse_tag(tag):
    stream, sequence = struct.unpack_from(">HI", tag, 2)
    return stream, sequence, int.from_bytes(tag[8:14], "big")


def read_capture(path):
    """Test frames of a pcap file with nanoseconds, in its order."""
    with open(path, "rb") as file:
        data = file.read()
    arrivals, at = [], PCAP_HEADER
    while at + RECORD_HEADER <= len(data):
        seconds, nanoseconds, kept, _ = struct.unpack_from("<IIII", data, at)
        frame = data[at + RECORD_HEADER : at + RECORD_HEADER + kept]
        at += RECORD_HEADER + kept
        if len(frame) < UDP_END + TAG_BYTES + 20 or frame[12:14] != b"\x08\x00" or frame[23] != 17:
            continue
        stream, sequence, sent = parse_tag(frame[-TAG_BYTES:])
        arrivals.append(Arrival(stream, sequence, seconds * 10**9 + nanoseconds, sent, is_intact(frame)))
    return arrivals


def read_log(path):
    """The forwarder's fates, its clocks, and its notes (drops of its sockets)."""
    fates, samples, notes = [], [], []
    with open(path) as file:
        for line in file:
            if line.startswith("# clock"):
                samples.append(tuple(int(word) for word in line.split()[2:]))
            elif line.startswith("#"):
                notes.append(line[2:].strip())
            else:
                entered, flags, first, second, tag = line.split()
                if first == "0" and "D" not in flags:
                    # Held back for frames that the rig never sent: the device did nothing with it.
                    continue
                stream, sequence, _ = parse_tag(bytes.fromhex(tag))
                left = [int(first)] + ([int(second)] if "2" in flags else [])
                fates.append(Fate(stream, sequence, int(entered), [] if "D" in flags else left, flags))
    return fates, Clocks(samples), notes


def latency_of(arrival, clocks):
    """Nanoseconds from the tag's send time to the arrival."""
    difference = (clocks.monotonic(arrival.at) - arrival.sent) % SEND_TIME
    return difference - SEND_TIME if difference > SEND_TIME // 2 else difference


def by_stream(frames):
    streams = {}
    for frame in frames:
        streams.setdefault(frame.stream, []).append(frame)
    return streams
