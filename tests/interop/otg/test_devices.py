"""Emulated devices: neighbours found and told, flows between devices, pings, protocols begun and ended."""

import frames
import snappi
from rig import eventually
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from talk import config

A, B = "02:00:00:00:0a:01", "02:00:00:00:0b:02"


def devices(*, vlan=None):
    made = config()
    sides = (("a", "p1", A, "198.18.0.1", "198.18.0.2", "2001:2::1", "2001:2::2"), ("b", "p2", B, "198.18.0.2", "198.18.0.1", "2001:2::2", "2001:2::1"))
    for name, port, mac, v4, gateway4, v6, gateway6 in sides:
        ethernet = made.devices.device(name=name)[-1].ethernets.ethernet(name=f"{name}.eth", mac=mac)[-1]
        ethernet.connection.port_name = port
        if vlan:
            ethernet.vlans.vlan(name=f"{name}.vlan", id=vlan)
        ethernet.ipv4_addresses.ipv4(name=f"{name}.4", address=v4, gateway=gateway4, prefix=24)
        ethernet.ipv6_addresses.ipv6(name=f"{name}.6", address=v6, gateway=gateway6, prefix=64)
    return made


def neighbours(talk, family):
    asked = snappi.StatesRequest()
    getattr(asked, f"ipv{family}_neighbors").ethernet_names = []
    rows = getattr(talk.api.get_states(asked), f"ipv{family}_neighbors")
    address = f"ipv{family}_address"
    return sorted((row.ethernet_name, getattr(row, address), row.link_layer_address) for row in rows)


def test_neighbours_are_found_without_being_asked(talk):
    talk.set(devices())
    for family, (first, second) in ((4, ("198.18.0.1", "198.18.0.2")), (6, ("2001:2::1", "2001:2::2"))):
        expected = [("a.eth", second, B), ("b.eth", first, A)]
        eventually(f"IPv{family} neighbours are found", lambda: neighbours(talk, family) == expected)
    # Their frames are counted apart from test traffic.
    assert all((row.frames_tx, row.frames_rx) == (0, 0) for row in talk.ports().values())


def test_neighbours_in_a_vlan(grpc):
    grpc.set(devices(vlan=100))
    eventually("found", lambda: [row[2] for row in neighbours(grpc, 4)] == [B, A])


def device_flow(made, name, tx, rx, packets=100):
    added = made.flows.flow(name=name)[-1]
    added.tx_rx.device.tx_names, added.tx_rx.device.rx_names = [tx], [rx]
    added.size.fixed, added.rate.pps, added.metrics.enable = 128, 1_000, True
    added.duration.fixed_packets.packets = packets
    return added


def test_flows_between_devices(talk):
    made = devices()
    device_flow(made, "f4", "a.4", "b.4").packet.ethernet().ipv4().udp()
    device_flow(made, "f6", "b.6", "a.6").packet.ethernet().ipv6().udp()
    capture = made.captures.capture(name="c")[-1]
    capture.port_names, capture.format = ["p1", "p2"], capture.PCAP
    # Headers of devices are those that the client writes: addresses it leaves out are `auto` only if it says so.
    for added, header, (source, target) in ((made.flows[0], made.flows[0].packet[1], ("198.18.0.1", "198.18.0.2")), (made.flows[1], made.flows[1].packet[1], ("2001:2::2", "2001:2::1"))):
        header.src.value, header.dst.value = source, target
        added.packet[0].src.value = A if header is made.flows[0].packet[1] else B
    talk.set(made)
    eventually("resolved", lambda: len(neighbours(talk, 4)) == 2 and all(row[2] for row in neighbours(talk, 4)))
    talk.capture("start")
    talk.start()
    rows = talk.ended()
    assert {name: (row.frames_tx, row.frames_rx) for name, row in rows.items()} == {"f4": (100, 100), "f6": (100, 100)}
    ours = [Ether(frame) for _, _, frame in frames.records(talk.captured("p2")) if UDP in Ether(frame)]
    assert len(ours) == 100 and {(p[Ether].src, p[Ether].dst, p[IP].dst) for p in ours} == {(A, B, "198.18.0.2")}
    ours = [Ether(frame) for _, _, frame in frames.records(talk.captured("p1")) if UDP in Ether(frame)]
    assert len(ours) == 100 and {(p[Ether].src, p[Ether].dst, p[IPv6].src) for p in ours} == {(B, A, "2001:2::2")}


def test_bidirectional_flows_have_two_rows(grpc):
    made = devices()
    added = device_flow(made, "both", "a.4", "b.4")
    added.tx_rx.device.bidirectional = True
    _, ipv4, udp = added.packet.ethernet().ipv4().udp()
    ipv4.src.value, ipv4.dst.value, udp.src_port.value, udp.dst_port.value = "198.18.0.1", "198.18.0.2", 1, 2
    grpc.set(made)
    grpc.start()
    asked = snappi.MetricsRequest()
    asked.flow.flow_names = ["both"]

    def look():
        rows = grpc.api.get_metrics(asked).flow_metrics
        return rows if all(row.transmit == "stopped" and row.frames_rx == 100 for row in rows) else None

    rows = eventually("both ways have ended", look)
    assert sorted((row.port_tx, row.port_rx) for row in rows) == [("p1", "p2"), ("p2", "p1")]


def ping(talk, *requests):
    asked = snappi.ControlAction()
    for source, target in requests:
        family = asked.protocol.ipv6 if ":" in target else asked.protocol.ipv4
        family.ping.requests.add(src_name=source, dst_ip=target)
    answer = talk.api.set_control_action(asked).response.protocol
    kind = answer.ipv6 if ":" in requests[0][1] else answer.ipv4
    return [(row.src_name, row.dst_ip, row.result) for row in kind.ping.responses]


def test_pings(talk):
    talk.set(devices())
    eventually("resolved", lambda: all(row[2] for row in neighbours(talk, 4) + neighbours(talk, 6)))
    assert ping(talk, ("a.4", "198.18.0.2"), ("b.4", "198.18.0.1")) == [
        ("a.4", "198.18.0.2", "succeeded"),
        ("b.4", "198.18.0.1", "succeeded"),
    ]
    assert ping(talk, ("a.4", "198.18.0.77")) == [("a.4", "198.18.0.77", "failed")]
    assert ping(talk, ("a.6", "2001:2::2")) == [("a.6", "2001:2::2", "succeeded")]


def protocols(talk, state):
    asked = snappi.ControlState()
    asked.protocol.all.state = state
    talk.api.set_control_state(asked)


def test_protocols_begin_and_end(talk):
    made = devices()
    made.options.protocol_options.auto_start_all = False
    talk.set(made)
    assert all(row[2] is None for row in neighbours(talk, 4))
    protocols(talk, "start")
    eventually("resolved", lambda: [row[2] for row in neighbours(talk, 4)] == [B, A])
    protocols(talk, "stop")
    assert ping(talk, ("a.4", "198.18.0.2"))[0][2] == "failed"
    protocols(talk, "start")
    eventually("resolved again", lambda: ping(talk, ("a.4", "198.18.0.2"))[0][2] == "succeeded")


def test_a_gateway_that_does_not_answer_is_named(grpc):
    made = devices()
    made.devices[0].ethernets[0].ipv4_addresses[0].gateway = "198.18.0.99"
    # In another network: the way there is through the gateway.
    far = made.devices[1].ethernets[0].ipv4_addresses[0]
    far.address, far.gateway = "192.0.2.5", "192.0.2.1"
    device_flow(made, "lost", "a.4", "b.4").packet.ethernet().ipv4().udp()
    # The configuration does not wait for it; the start cannot do without.
    grpc.api.request_timeout = 10
    grpc.set(made)
    grpc.api.request_timeout = 60
    try:
        grpc.start()
    except Exception as error:
        read = grpc.api.from_exception(error)
        assert read is not None and any("198.18.0.99" in line for line in read.errors), error
    else:
        raise AssertionError("a flow without a neighbour has started")
    assert grpc.flow("lost").frames_tx == 0


def test_the_way_back_swaps_addresses_and_ports(grpc):
    made = devices()
    added = device_flow(made, "both", "a.4", "b.4", packets=5)
    added.tx_rx.device.bidirectional = True
    _, ipv4, udp = added.packet.ethernet().ipv4().udp()
    ipv4.src.value, ipv4.dst.value, udp.src_port.value, udp.dst_port.value = "198.18.0.1", "198.18.0.2", 1, 2
    capture = made.captures.capture(name="c")[-1]
    capture.port_names, capture.format = ["p1"], capture.PCAP
    grpc.set(made)
    grpc.capture("start")
    grpc.start()
    eventually("ended", lambda: grpc.flow("both").transmit == "stopped" and grpc.ports()["p1"].frames_rx == 5)
    ours = [Ether(frame) for _, _, frame in frames.records(grpc.captured("p1")) if UDP in Ether(frame)]
    seen = {(p[Ether].src, p[Ether].dst, p[IP].src, p[IP].dst, p[UDP].sport, p[UDP].dport) for p in ours}
    assert seen == {(B, A, "198.18.0.2", "198.18.0.1", 2, 1)} and len(ours) == 5
