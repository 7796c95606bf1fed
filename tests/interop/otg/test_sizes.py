"""Sizes of frames, and what is in them behind the headers."""

import collections

import pytest
import wire
from scapy.layers.inet import IP, UDP
from scapy.packet import Raw
from talk import config

FCS = 4
PREDEFINED = {
    "imix": {64: 7, 570: 4, 1518: 1},
    "ipsec_imix": {90: 58.67, 92: 2, 594: 23.66, 1418: 15.67},
    "ipv6_imix": {60: 58.67, 496: 2, 594: 23.66, 1518: 15.67},
    "standard_imix": {58: 58.67, 62: 2, 594: 23.66, 1518: 15.67},
    "tcp_imix": {90: 58.67, 92: 2, 594: 23.66, 1518: 15.67},
}


def sizes(found):
    return [len(frame) + FCS for frame in found]


def udp(flow):
    flow.packet.ethernet().ipv4().udp()


def test_fixed(talk):
    for size in (64, 65, 1518):
        def fill(flow):
            udp(flow)
            flow.size.fixed = size

        found = wire.sent(talk, fill, 5, size=None)
        assert sizes(found) == [size] * 5
        for packet in wire.parsed(found):
            # The size has the FCS in it; so have lengths that headers tell.
            assert packet[IP].len == size - 18 and packet[UDP].len == size - 38


def test_increment(talk):
    def fill(flow):
        udp(flow)
        flow.size.increment.start, flow.size.increment.end, flow.size.increment.step = 64, 100, 7

    found = wire.sent(talk, fill, 20, size=None)
    assert sizes(found) == [64 + 7 * (i % 6) for i in range(20)]
    assert all(packet[IP].len == size - 18 for packet, size in zip(wire.parsed(found), sizes(found)))


def test_random(talk):
    def fill(flow):
        udp(flow)
        flow.size.random.min, flow.size.random.max = 100, 200

    seen = sizes(wire.sent(talk, fill, 300, size=None))
    assert all(100 <= size <= 200 for size in seen)
    assert len(set(seen)) > 50, "about 95 of the 101 sizes are expected"


@pytest.mark.parametrize("name", PREDEFINED)
def test_predefined_mixes(grpc, name):
    weights = PREDEFINED[name]
    # Sizes that Ethernet does not allow are sent as the least it allows.
    wanted = collections.Counter()
    packets = 12 * 25 if name == "imix" else 1000
    for size, weight in weights.items():
        wanted[max(size, 64)] += packets * weight / sum(weights.values())

    def fill(flow):
        udp(flow)
        flow.size.weight_pairs.predefined = name

    seen = collections.Counter(sizes(wire.sent(grpc, fill, packets, size=None, pps=20000)))
    assert set(seen) == set(wanted)
    for size, share in wanted.items():
        # Exact over one period; within one a few frames.
        assert abs(seen[size] - share) <= 0.02 * packets + 2, (seen, wanted)


def test_imix_is_exact_over_a_period(talk):
    def fill(flow):
        udp(flow)
        flow.size.weight_pairs.predefined = "imix"

    seen = sizes(wire.sent(talk, fill, 36, size=None))
    for period in range(3):
        assert collections.Counter(seen[12 * period : 12 * period + 12]) == {64: 7, 570: 4, 1518: 1}


def test_custom_weights(talk):
    def fill(flow):
        udp(flow)
        pairs = flow.size.weight_pairs.custom
        for size, weight in ((100, 1), (300, 3), (700, 4)):
            pairs.custom(size=size, weight=weight)

    seen = sizes(wire.sent(talk, fill, 16, size=None))
    for period in (seen[:8], seen[8:]):
        assert collections.Counter(period) == {100: 1, 300: 3, 700: 4}


def test_runts_are_padded_with_a_warning(talk):
    made = config(rx=False)
    flow = made.flows.flow(name="f1")[-1]
    flow.tx_rx.port.tx_name, flow.size.fixed = "p1", 60
    flow.packet.ethernet()
    assert any(line.startswith("flows[0].size") and "64" in line for line in talk.set(made))


def payload(**members):
    def fill(flow):
        udp(flow)
        if members.get("choice"):
            flow.payload.choice = members["choice"]
        else:
            flow.payload.fixed.pattern, flow.payload.fixed.repeat = members["pattern"], members["repeat"]

    return fill


@pytest.mark.parametrize("repeat", [True, False])
def test_fixed_payload(talk, repeat):
    pattern = "deadbeef01"
    for packet in wire.parsed(wire.sent(talk, payload(pattern=pattern, repeat=repeat), 3)):
        data = bytes(packet[Raw])
        assert len(data) == 128 - FCS - 42
        times = len(data) // 5 + 1
        expected = bytes.fromhex(pattern * times)[: len(data)] if repeat else bytes.fromhex(pattern).ljust(len(data), b"\0")
        assert data == expected


SERIES = {
    "increment_byte": lambda n: bytes(i % 256 for i in range(n)),
    "decrement_byte": lambda n: bytes((255 - i) % 256 for i in range(n)),
    "increment_word": lambda n: b"".join((i % 65536).to_bytes(2, "big") for i in range(n))[:n],
    "decrement_word": lambda n: b"".join(((65535 - i) % 65536).to_bytes(2, "big") for i in range(n))[:n],
}


@pytest.mark.parametrize("choice", SERIES)
def test_payloads_that_count(talk, choice):
    for packet in wire.parsed(wire.sent(talk, payload(choice=choice), 3, size=1000)):
        data = bytes(packet[Raw])
        assert len(data) == 1000 - FCS - 42 and data == SERIES[choice](len(data))


def test_without_metrics_every_byte_is_as_described(talk):
    def fill(flow):
        flow.packet.ethernet().custom()[-1].bytes = "00 01 02:03"
        flow.packet[0].src.value, flow.packet[0].dst.value = "02:00:00:00:00:0A", "02:00:00:00:00:0b"
        flow.packet[0].ether_type.value = 0x88B5
        flow.payload.fixed.pattern = "a5"

    expected = bytes.fromhex("02000000000b02000000000a88b500010203") + b"\xa5" * 42
    assert wire.sent(talk, fill, 4, size=64) == [expected] * 4


def test_with_metrics_the_frame_does_not_grow(talk):
    for size in (64, 65, 70, 128):
        def fill(flow):
            udp(flow)
            flow.size.fixed = size

        found = wire.sent(talk, fill, 5, size=None, metrics=True)
        assert sizes(found) == [size] * 5
        for packet in wire.parsed(found):
            again = IP(bytes(packet[IP]))
            del again.chksum, again[UDP].chksum
            again = IP(bytes(again))
            assert (packet[IP].chksum, packet[UDP].chksum) == (again.chksum, again[UDP].chksum), size


def test_what_does_not_fit_is_refused(talk):
    made = config(rx=False)
    flow = made.flows.flow(name="f1")[-1]
    flow.tx_rx.port.tx_name, flow.size.fixed = "p1", 64
    flow.packet.ethernet().ipv6().tcp()
    assert any(line.startswith("flows[0].") for line in talk.refused(lambda: talk.set(made)))
