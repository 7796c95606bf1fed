"""Every kind of pattern, in fields of every width, as captured bytes show them."""

import ipaddress

import pytest
import wire
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from talk import config


def mac(number):
    return ":".join(f"{byte:02x}" for byte in number.to_bytes(6, "big"))


def ipv4(number):
    return str(ipaddress.IPv4Address(number))


def ipv6(number):
    return str(ipaddress.IPv6Address(number))


def ipv6_number(text):
    return int(ipaddress.IPv6Address(text))


def stack(flow, kind):
    return {
        "vlan": lambda: flow.packet.ethernet().vlan().ipv4().udp(),
        "tcp": lambda: flow.packet.ethernet().ipv4().tcp(),
        "ipv6": lambda: flow.packet.ethernet().ipv6().udp(),
        "udp": lambda: flow.packet.ethernet().ipv4().udp(),
    }[kind]()


# Where the field is, how many bits it has, how it is written, how it is read, and a first value.
FIELDS = {
    "ethernet.dst": ("udp", lambda s: s[0].dst, 48, mac, lambda p: p[Ether].dst, 0x0200000000F0),
    "ethernet.src": ("udp", lambda s: s[0].src, 48, mac, lambda p: p[Ether].src, 0x02FFFFFFFFF0),
    "vlan.id": ("vlan", lambda s: s[1].id, 12, int, lambda p: p[Dot1Q].vlan, 4090),
    "vlan.priority": ("vlan", lambda s: s[1].priority, 3, int, lambda p: p[Dot1Q].prio, 5),
    "ipv4.src": ("udp", lambda s: s[1].src, 32, ipv4, lambda p: p[IP].src, 0xC61200FA),
    "ipv4.dst": ("udp", lambda s: s[1].dst, 32, ipv4, lambda p: p[IP].dst, 0xC61201FA),
    "ipv4.identification": ("udp", lambda s: s[1].identification, 16, int, lambda p: p[IP].id, 65530),
    "ipv4.time_to_live": ("udp", lambda s: s[1].time_to_live, 8, int, lambda p: p[IP].ttl, 250),
    "ipv4.dscp": ("udp", lambda s: s[1].priority.dscp.phb, 6, int, lambda p: p[IP].tos >> 2, 60),
    "ipv6.src": ("ipv6", lambda s: s[1].src, 128, ipv6, lambda p: p[IPv6].src, 0x20010002 << 96 | 0xFFFA),
    "ipv6.flow_label": ("ipv6", lambda s: s[1].flow_label, 20, int, lambda p: p[IPv6].fl, 0xFFFFA),
    "ipv6.hop_limit": ("ipv6", lambda s: s[1].hop_limit, 8, int, lambda p: p[IPv6].hlim, 250),
    "udp.src_port": ("udp", lambda s: s[2].src_port, 16, int, lambda p: p[UDP].sport, 65530),
    "tcp.seq_num": ("tcp", lambda s: s[2].seq_num, 32, int, lambda p: p[TCP].seq, 0xFFFFFFFA),
    "tcp.window": ("tcp", lambda s: s[2].window, 16, int, lambda p: p[TCP].window, 65530),
}


def described(made, name, field, fill, packets):
    """A flow in which `fill` says what the field does."""
    kind, pick, *_ = FIELDS[field]
    flow = made.flows.flow(name=name)[-1]
    flow.tx_rx.port.tx_name, flow.size.fixed, flow.rate.pps = "p1", 128, 5000
    flow.duration.fixed_packets.packets = packets
    fill(pick(stack(flow, kind)))


def observe(talk, field, fills, packets):
    """For every flow that `fills` describes, by name: the values of the field, frame by frame."""
    read = FIELDS[field][4]
    made = config(rx=False)
    for name, fill in fills.items():
        described(made, name, field, fill, packets)
    talk.set(made)
    seen = {name: wire.started(packets, talk, name) for name in fills}
    return {name: [read(packet) for packet in wire.parsed(found)] for name, found in seen.items()}


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_follows_its_pattern(grpc, field):
    _, _, bits, write, _, first = FIELDS[field]
    # The increment wraps at the width of the field, the decrement below zero.
    step, count, packets, wrap = 3, 5, 13, 1 << bits

    def value(pattern):
        pattern.value = write(first)

    def values(pattern):
        pattern.values = [write(first), write(1), write(first)]

    def increment(pattern):
        pattern.increment.start, pattern.increment.step, pattern.increment.count = write(first), write(step), count

    def decrement(pattern):
        pattern.decrement.start, pattern.decrement.step, pattern.decrement.count = write(4), write(step), count

    fills = {"value": value, "values": values, "increment": increment, "decrement": decrement}
    expected = {
        "value": lambda i: first,
        "values": lambda i: [first, 1, first][i % 3],
        "increment": lambda i: (first + step * (i % count)) % wrap,
        "decrement": lambda i: (4 - step * (i % count)) % wrap,
    }
    seen = observe(grpc, field, fills, packets)
    for kind, at in expected.items():
        assert seen[kind] == [write(at(i)) for i in range(packets)], kind


RANDOM = {
    "ipv4.src": (0xC6120001, 0xC61200FE, lambda text: int(ipaddress.IPv4Address(text))),
    "ipv4.dst": (0xC6120001, 0xC61200FE, lambda text: int(ipaddress.IPv4Address(text))),
    "ipv6.flow_label": (1000, 2000, int),
    "udp.src_port": (10000, 20000, int),
}


@pytest.mark.parametrize("field", RANDOM)
def test_random_values_repeat_and_follow_their_seed(grpc, field):
    low, high, number = RANDOM[field]
    write = FIELDS[field][3]

    def draw(seed, count=20):
        def fill(pattern):
            random = pattern.random
            random.min, random.max, random.seed, random.count = write(low), write(high), seed, count

        return fill

    fills = {"seed 7": draw(7), "again": draw(7), "seed 8": draw(8), "one": draw(3, count=1)}
    seen = {name: list(map(number, values)) for name, values in observe(grpc, field, fills, 50).items()}
    values = seen["seed 7"]
    assert all(low <= value <= high for value in values)
    assert values[20:40] == values[:20] and values[40:] == values[:10]
    assert len(set(values)) > 5
    assert seen["again"] == values and seen["seed 8"] != values
    assert len(set(seen["one"])) == 1


def test_fields_advance_in_lock_step(talk):
    def fill(flow):
        ethernet, vlan, ipv4_header, tcp = flow.packet.ethernet().vlan().ipv4().tcp()
        ethernet.src.increment.start, ethernet.src.increment.step, ethernet.src.increment.count = mac(1), mac(2), 7
        vlan.id.decrement.start, vlan.id.decrement.step, vlan.id.decrement.count = 100, 1, 3
        ipv4_header.src.increment.start, ipv4_header.src.increment.step = "1.1.1.1", "0.1.2.3"
        ipv4_header.src.increment.count = 11
        ipv4_header.dst.values = ["192.0.2.1", "192.0.2.2"]
        ipv4_header.identification.increment.count = 1000
        tcp.src_port.increment.start, tcp.src_port.increment.step, tcp.src_port.increment.count = 23250, 7, 13
        tcp.seq_num.decrement.start, tcp.seq_num.decrement.step, tcp.seq_num.decrement.count = 5, 2, 5

    first = int(ipaddress.IPv4Address("1.1.1.1"))
    step = int(ipaddress.IPv4Address("0.1.2.3"))
    for i, packet in enumerate(wire.parsed(wire.sent(talk, fill, 100))):
        assert packet[Ether].src == mac(1 + 2 * (i % 7))
        assert packet[Dot1Q].vlan == 100 - i % 3
        assert packet[IP].src == ipv4(first + step * (i % 11))
        assert packet[IP].dst == ["192.0.2.1", "192.0.2.2"][i % 2]
        assert packet[IP].id == i
        assert packet[TCP].sport == 23250 + 7 * (i % 13)
        assert packet[TCP].seq == (5 - 2 * (i % 5)) % 2**32
        # Checksums follow every field.
        assert_checksums(packet)


def assert_checksums(packet):
    again = Ether(bytes(packet))
    for layer in (IP, TCP, UDP):
        if layer in again:
            del again[layer].chksum
    again = Ether(bytes(again))
    for layer in (IP, TCP, UDP):
        if layer in packet:
            assert packet[layer].chksum == again[layer].chksum, layer


def test_every_start_begins_its_patterns_anew(grpc):
    made = config(rx=False)
    flow = made.flows.flow(name="f1")[-1]
    flow.tx_rx.port.tx_name, flow.rate.pps = "p1", 2000
    flow.duration.fixed_packets.packets = 10
    _, _, udp = flow.packet.ethernet().ipv4().udp()
    udp.src_port.increment.start, udp.src_port.increment.count = 100, 1000
    for found in (wire.transmitted(grpc, made, 10), wire.started(10, grpc), wire.started(10, grpc)):
        assert [packet[UDP].sport for packet in wire.parsed(found)] == list(range(100, 110))


def test_checksums_are_good_bad_or_given(talk):
    def fill(how):
        def inner(flow):
            _, ipv4_header, udp = flow.packet.ethernet().ipv4().udp()
            for checksum in (ipv4_header.header_checksum, udp.checksum):
                if how == "custom":
                    checksum.custom = 0x1234
                elif how:
                    checksum.generated = how

        return inner

    for how in (None, "good"):
        for packet in wire.parsed(wire.sent(talk, fill(how), 3)):
            assert_checksums(packet)
    for packet in wire.parsed(wire.sent(talk, fill("custom"), 3)):
        assert (packet[IP].chksum, packet[UDP].chksum) == (0x1234, 0x1234)
    for packet in wire.parsed(wire.sent(talk, fill("bad"), 3)):
        for layer in (IP, UDP):
            with pytest.raises(AssertionError):
                again = Ether(bytes(packet))
                del again[layer].chksum
                assert Ether(bytes(again))[layer].chksum == packet[layer].chksum
