"""Every header, read back by another program."""

import scapy.contrib.mpls  # noqa: F401  (teaches the parser)
import wire
from scapy.contrib.mpls import MPLS
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoReply, ICMPv6EchoRequest, IPv6
from scapy.layers.l2 import ARP, GRE, Dot1AD, Dot1Q, Ether
from scapy.layers.vxlan import VXLAN
from talk import config


def one(talk, fill, size=128):
    found = wire.sent(talk, fill, 2, size=size)
    assert all(len(frame) == size - 4 for frame in found)
    return wire.parsed(found)[0]


def fields(layer, **expected):
    seen = {name: getattr(layer, name) for name in expected}
    assert seen == expected


def test_ethernet(talk):
    def fill(flow):
        ethernet = flow.packet.ethernet()[-1]
        ethernet.src.value, ethernet.dst.value, ethernet.ether_type.value = "02:00:00:00:00:01", "02:AA:bb:00:00:02", 0x9000

    fields(one(talk, fill)[Ether], src="02:00:00:00:00:01", dst="02:aa:bb:00:00:02", type=0x9000)


def test_no_header_is_an_ethernet_header(talk):
    packet = one(talk, lambda flow: None, 64)
    fields(packet[Ether], dst="00:00:00:00:00:00", src="00:00:00:00:00:00")


def test_vlans(talk):
    def fill(flow):
        ethernet, outer, inner, _ = flow.packet.ethernet().vlan().vlan().ipv4()
        ethernet.ether_type.value = 0x88A8
        outer.id.value, outer.priority.value, outer.cfi.value = 100, 5, 1
        inner.id.value, inner.priority.value = 200, 2

    packet = one(talk, fill)
    assert packet[Ether].type == 0x88A8
    fields(packet[Dot1AD], vlan=100, prio=5, dei=1, type=0x8100)
    fields(packet[Dot1Q], vlan=200, prio=2, dei=0, type=0x0800)


def test_ipv4(talk):
    def fill(flow):
        _, ipv4 = flow.packet.ethernet().ipv4()
        ipv4.priority.raw.value = 0xB9
        ipv4.identification.value, ipv4.time_to_live.value, ipv4.protocol.value = 77, 9, 253
        ipv4.dont_fragment.value, ipv4.fragment_offset.value = 1, 5
        ipv4.src.value, ipv4.dst.value = "198.18.0.1", "198.18.1.2"

    packet = one(talk, fill)
    fields(packet[IP], version=4, ihl=5, tos=0xB9, len=110, id=77, ttl=9, proto=253, frag=5, src="198.18.0.1", dst="198.18.1.2")
    assert packet[IP].flags == "DF" and packet[Ether].type == 0x0800


def test_ipv4_services(talk):
    def dscp(flow):
        _, ipv4 = flow.packet.ethernet().ipv4()
        ipv4.priority.dscp.phb.value, ipv4.priority.dscp.ecn.value = 46, 2

    def tos(flow):
        _, ipv4 = flow.packet.ethernet().ipv4()
        ipv4.priority.tos.precedence.value, ipv4.priority.tos.delay.value = 5, 1

    assert one(talk, dscp)[IP].tos == 46 << 2 | 2
    assert one(talk, tos)[IP].tos == 5 << 5 | 1 << 4


def test_ipv6(talk):
    def fill(flow):
        _, ipv6, _ = flow.packet.ethernet().ipv6().udp()
        ipv6.traffic_class.value, ipv6.flow_label.value, ipv6.hop_limit.value = 0xB8, 0xABCDE, 3
        ipv6.src.value, ipv6.dst.value = "2001:2::1", "2001:2::2"

    packet = one(talk, fill)
    fields(packet[IPv6], version=6, tc=0xB8, fl=0xABCDE, hlim=3, nh=17, plen=70, src="2001:2::1", dst="2001:2::2")
    fields(packet[UDP], len=70)


def test_tcp(talk):
    def fill(flow):
        _, _, tcp = flow.packet.ethernet().ipv4().tcp()
        tcp.src_port.value, tcp.dst_port.value, tcp.seq_num.value, tcp.ack_num.value = 1, 2, 3, 4
        tcp.window.value, tcp.ctl_syn.value, tcp.ctl_ack.value, tcp.ecn_echo.value = 5, 1, 1, 1

    packet = one(talk, fill)
    # An offset that nobody gave is worked out.
    fields(packet[TCP], sport=1, dport=2, seq=3, ack=4, window=5, dataofs=5)
    assert packet[TCP].flags == "SAE" and packet[IP].proto == 6


def test_udp(talk):
    def fill(flow):
        _, _, udp = flow.packet.ethernet().ipv4().udp()
        udp.src_port.value, udp.dst_port.value = 1234, 65535

    packet = one(talk, fill)
    fields(packet[UDP], sport=1234, dport=65535, len=90)


def test_a_udp_length_that_is_given_stays(talk):
    def fill(flow):
        _, _, udp = flow.packet.ethernet().ipv4().udp()
        udp.length.value = 33

    assert one(talk, fill)[UDP].len == 33


def test_icmp(talk):
    def fill(flow):
        _, _, icmp = flow.packet.ethernet().ipv4().icmp()
        icmp.echo.type.value, icmp.echo.identifier.value, icmp.echo.sequence_number.value = 8, 7, 9

    packet = one(talk, fill)
    fields(packet[ICMP], type=8, code=0, id=7, seq=9)
    again = IP(bytes(packet[IP]))
    del again[ICMP].chksum
    assert IP(bytes(again))[ICMP].chksum == packet[ICMP].chksum and packet[IP].proto == 1


def test_icmpv6(talk):
    def fill(flow):
        _, ipv6, icmp = flow.packet.ethernet().ipv6().icmpv6()
        ipv6.src.value, ipv6.dst.value = "2001:2::1", "2001:2::2"
        icmp.echo.type.value, icmp.echo.identifier.value, icmp.echo.sequence_number.value = 128, 7, 9

    packet = one(talk, fill)
    fields(packet[ICMPv6EchoRequest], id=7, seq=9)
    assert ICMPv6EchoReply not in packet and packet[IPv6].nh == 58
    again = IPv6(bytes(packet[IPv6]))
    del again[ICMPv6EchoRequest].cksum
    assert IPv6(bytes(again))[ICMPv6EchoRequest].cksum == packet[ICMPv6EchoRequest].cksum


def test_arp(talk):
    def fill(flow):
        _, arp = flow.packet.ethernet().arp()
        arp.operation.value = 2
        arp.sender_hardware_addr.value, arp.sender_protocol_addr.value = "02:00:00:00:00:01", "198.18.0.1"
        arp.target_hardware_addr.value, arp.target_protocol_addr.value = "02:00:00:00:00:02", "198.18.0.2"

    packet = one(talk, fill)
    fields(packet[ARP], hwtype=1, ptype=0x800, hwlen=6, plen=4, op=2, hwsrc="02:00:00:00:00:01", psrc="198.18.0.1")
    fields(packet[ARP], hwdst="02:00:00:00:00:02", pdst="198.18.0.2")
    assert packet[Ether].type == 0x0806


def test_gre(talk):
    def fill(flow):
        flow.packet.ethernet().ipv4().gre().ipv4().udp()

    packet = one(talk, fill)
    fields(packet[GRE], proto=0x0800, version=0)
    assert packet[IP].proto == 47
    inner = packet[GRE].payload
    # No Ethernet header inside: nothing is reserved.
    fields(inner, len=128 - 4 - 14 - 20 - 4)


def test_vxlan_reserves_an_fcs_for_the_inner_frame(talk):
    def fill(flow):
        _, _, outer, vxlan, _, _, _ = flow.packet.ethernet().ipv6().udp().vxlan().ethernet().ipv4().tcp()
        outer.dst_port.value, vxlan.vni.value = 4789, 0xABCDEF

    packet = one(talk, fill, 256)
    fields(packet[IPv6], plen=198)
    fields(packet[UDP], len=198)
    fields(packet[VXLAN], vni=0xABCDEF, flags=8)
    fields(packet[VXLAN][IP], len=164)


def test_vxlan_with_ipv6_inside(talk):
    def fill(flow):
        _, _, outer, _, _, _, _ = flow.packet.ethernet().ipv4().udp().vxlan().ethernet().ipv6().udp()
        outer.dst_port.value = 4789

    packet = one(talk, fill, 256)
    left = 256 - 4 - 14 - 20 - 8 - 8 - 14 - 40
    fields(packet[IP], len=238)
    fields(packet[VXLAN][IPv6], plen=left - 4)


def test_mpls(talk):
    def fill(flow):
        _, top, bottom, _ = flow.packet.ethernet().mpls().mpls().ipv4()
        top.label.value, top.traffic_class.value, top.time_to_live.value = 1000, 3, 9
        bottom.label.value = 2000

    packet = one(talk, fill)
    assert packet[Ether].type == 0x8847
    fields(packet[MPLS], label=1000, cos=3, s=0, ttl=9)
    fields(packet[MPLS].payload, label=2000, s=1)
    fields(packet[IP], len=128 - 18 - 8)


def test_custom_bytes_anywhere(talk):
    def fill(flow):
        flow.packet.custom()[-1].bytes = "ff:ff ff ff ff ff 02 00 00 00 00 01 88b5"
        flow.packet.ipv4().custom()[-1].bytes = "00112233"

    packet = one(talk, fill)
    assert bytes(packet)[:14].hex() == "ffffffffffff02000000000188b5"
    assert bytes(packet)[34:38].hex() == "00112233"


def test_pause(talk):
    def fill(flow):
        pause = flow.packet.ethernetpause()[-1]
        pause.src.value, pause.time.value = "02:00:00:00:00:01", 0x1234

    frame = bytes(one(talk, fill, 64))
    assert frame[:18].hex() == "0180c2000001" + "020000000001" + "8808" + "0001" + "1234"


def test_pfcpause(talk):
    def fill(flow):
        pause = flow.packet.pfcpause()[-1]
        pause.src.value, pause.class_enable_vector.value = "02:00:00:00:00:01", 0x81
        pause.pause_class_0.value, pause.pause_class_7.value = 0x1111, 0x7777

    frame = bytes(one(talk, fill, 64))
    assert frame[:18].hex() == "0180c2000001" + "020000000001" + "8808" + "0101" + "0081"
    assert frame[18:34].hex() == "1111" + "0000" * 6 + "7777"


def test_a_header_that_is_not_there_is_refused_with_its_path(talk):
    made = config(rx=False)
    flow = made.flows.flow(name="f1")[-1]
    flow.tx_rx.port.tx_name = "p1"
    flow.packet.ethernet().ipv4().igmpv1()
    assert any(line.startswith("flows[0].packet[2].igmpv1") for line in talk.refused(lambda: talk.set(made)))
