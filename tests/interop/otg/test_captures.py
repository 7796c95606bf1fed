"""Captures that the server makes: whole and in part, filtered, of the right length, over every transport; links."""

import zlib

import frames
import pytest
import snappi
from rig import eventually
from scapy.layers.inet import UDP
from scapy.layers.l2 import Dot1Q, Ether
from talk import Talk, config, flow, udp

SIZE = 128


def made_with(packets=50, size=SIZE, pps=2_000, fill=None):
    made = config()
    capture = made.captures.capture(name="c")[-1]
    capture.port_names, capture.format = ["p2"], capture.PCAP
    added = flow(made, packets=packets, size=size, pps=pps)
    if fill:
        fill(added)
    else:
        header = udp(added)[2]
        header.src_port.increment.start, header.src_port.increment.count = 1000, packets
    return made, capture


def run(talk, made):
    talk.set(made)
    talk.capture("start")
    talk.start()
    talk.ended()


def ports_of(captured):
    return [Ether(frame)[UDP].sport for _, _, frame in captured]


@pytest.fixture(params=["http", "grpc", "grpc in slices"])
def client(server, request):
    kind = "http" if request.param == "http" else "grpc"
    return Talk(server.api(kind, slices=request.param == "grpc in slices"), kind)


def test_captured_frames_are_those_that_were_sent(client):
    made, _ = made_with()
    run(client, made)
    captured = frames.records(client.captured("p2"))
    assert ports_of(captured) == list(range(1000, 1050))
    for _, original, frame in captured:
        # The length is the size, the check sequence with it, and that is right.
        assert original == len(frame) == SIZE
        assert zlib.crc32(frame[:-4]).to_bytes(4, "little") == frame[-4:]
    times = [time for time, _, _ in captured]
    assert times == sorted(times)


def test_a_capture_is_on_while_it_is_on(talk):
    made, _ = made_with(packets=20)
    run(talk, made)
    assert talk.ports()["p2"].capture == "started"
    talk.capture("stop")
    assert talk.ports()["p2"].capture == "stopped"
    talk.start()
    talk.ended()
    assert len(frames.records(talk.captured("p2"))) == 20, "what came after the stop is not in it"
    # Fetched a second time it is the same.
    assert len(frames.records(talk.captured("p2"))) == 20


def test_fetching_stops_the_capture(talk):
    made, _ = made_with(packets=20)
    run(talk, made)
    assert len(frames.records(talk.captured("p2"))) == 20
    assert talk.ports()["p2"].capture == "stopped"


def test_a_capture_without_frames_is_a_file(client):
    made, _ = made_with()
    client.set(made)
    client.capture("start")
    client.capture("stop")
    assert frames.records(client.captured("p2")) == []


def test_a_slice(client):
    made, _ = made_with()
    run(client, made)
    assert ports_of(frames.records(client.captured("p2", 10, 5))) == list(range(1009, 1014)), "the first is number 1"
    assert len(frames.records(client.captured("p2", 46, 50))) == 5


def test_frames_are_cut_where_asked(talk):
    made, capture = made_with()
    capture.packet_size = 60
    run(talk, made)
    assert {(original, len(frame)) for _, original, frame in frames.records(talk.captured("p2"))} == {(SIZE, 60)}


def test_large_captures(server):
    """More than one message of gRPC takes: in slices, and over HTTP."""
    made, _ = made_with(packets=4_000, size=1500, pps=4_000)
    talk = Talk(server.api("grpc", slices=True), "grpc")
    run(talk, made)
    sliced = talk.captured("p2")
    assert len(sliced) == 24 + 4_000 * 1516 > 4 << 20
    assert ports_of(frames.records(sliced)) == [1000 + n for n in range(4_000)]
    assert Talk(server.api("http"), "http").captured("p2") == sliced


def test_pcapng(talk):
    made, capture = made_with(packets=5)
    capture.format = capture.PCAPNG
    run(talk, made)
    captured = talk.captured("p2")
    assert captured[:4].hex() == "0a0d0d0a" and len(captured) > 5 * SIZE


# By filter kind: what it asks for, and the numbers of the frames that pass.
FILTERS = {
    "ethernet": (lambda f: setattr(f.ethernet()[-1].src, "value", "020000000001"), {0, 2, 4, 6, 8}),
    "ethernet mask": (lambda f: masked(f.ethernet()[-1].src, "020000000001", "0000000000ff"), set(range(10))),
    "ethernet negated": (lambda f: negated(f.ethernet()[-1].src, "020000000001"), {1, 3, 5, 7, 9}),
    "vlan": (lambda f: setattr(f.vlan()[-1].id, "value", "2"), {1, 6}),
    "ipv4": (lambda f: setattr(f.ipv4()[-1].src, "value", "c6120003"), {2, 7}),
    "custom": (lambda f: custom(f.custom()[-1], 38 * 8, 16, "03eb"), {3}),
}


def masked(field, value, mask):
    field.value, field.mask = value, mask


def negated(field, value):
    field.value, field.negate = value, True


def custom(field, offset, bits, value):
    field.offset, field.bit_length, field.value, field.mask = offset, bits, value, "00" * (bits // 8)


@pytest.mark.parametrize("kind", FILTERS)
def test_filters(grpc, kind):
    fill, expected = FILTERS[kind]

    def headers(added):
        ethernet, vlan, ipv4, header = added.packet.ethernet().vlan().ipv4().udp()
        ethernet.src.values = ["02:00:00:00:00:01", "02:00:00:00:00:02"]
        vlan.id.increment.start, vlan.id.increment.count = 1, 5
        ipv4.src.increment.start, ipv4.src.increment.count = "198.18.0.1", 5
        header.src_port.increment.start, header.src_port.increment.count = 1000, 10

    made, capture = made_with(packets=10, fill=headers)
    fill(capture.filters)
    run(grpc, made)
    captured = frames.records(grpc.captured("p2"))
    assert {port - 1000 for port in ports_of(captured)} == expected
    assert all(Dot1Q in Ether(frame) for _, _, frame in captured)


def test_ipv6_filter(grpc):
    def headers(added):
        _, ipv6, header = added.packet.ethernet().ipv6().udp()
        ipv6.dst.increment.start, ipv6.dst.increment.count = "2001:2::1", 5
        header.src_port.increment.start, header.src_port.increment.count = 1000, 10

    made, capture = made_with(packets=10, fill=headers)
    capture.filters.ipv6()[-1].dst.value = "20010002000000000000000000000002"
    run(grpc, made)
    assert ports_of(frames.records(grpc.captured("p2"))) == [1001, 1006]


def test_a_port_without_capture_is_refused(talk):
    made, _ = made_with()
    talk.set(made)
    assert any("p1" in line for line in talk.refused(lambda: talk.captured("p1")))
    assert any("p9" in line for line in talk.refused(lambda: talk.captured("p9")))


def test_links_go_down_and_up(talk):
    made = config()
    udp(flow(made, packets=20))
    talk.set(made)
    talk.link("down", "p1")
    eventually("the other end has seen it", lambda: talk.ports()["p2"].link == "down")
    eventually("its own end, too", lambda: talk.ports()["p1"].link == "down")
    talk.link("up", "p1")
    eventually("both are up", lambda: all(port.link == "up" for port in talk.ports().values()))
    asked = snappi.MetricsRequest()
    asked.port.column_names = ["last_change"]
    assert all(row.last_change > 1_600_000_000_000_000_000 for row in talk.api.get_metrics(asked).port_metrics)
    talk.start()
    assert talk.ended()["f1"].frames_rx == 20


def test_tags_of_providers_are_put_back_as_they_were(grpc):
    """The kernel takes tags out of frames, whatever their type."""
    def headers(added):
        ethernet, outer, inner, _, header = added.packet.ethernet().vlan().vlan().ipv4().udp()
        ethernet.ether_type.value, outer.id.value, inner.id.value = 0x88A8, 100, 200
        header.src_port.value = 1000

    made, _ = made_with(packets=5, fill=headers)
    run(grpc, made)
    captured = frames.records(grpc.captured("p2"))
    assert len(captured) == 5
    for _, original, frame in captured:
        assert original == len(frame) == SIZE
        assert frame[12:22].hex() == "88a8" + "0064" + "8100" + "00c8" + "0800"
