//! What packets are wrapped in: headers of real protocols, written here and not by the product.

use super::{HEADERS_KEPT, PacketParts};
use packetrig_flow::{FlowKey, TunnelKind};

/// From the outside to the packet that is metered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// Ethernet and IPv4.
    Ipv4,
    /// One 802.1Q tag.
    Vlan,
    /// An 802.1ad tag and an 802.1Q tag.
    TwoVlans,
    /// Two labels.
    Mpls,
    /// Ethernet and IPv6.
    Ipv6,
    /// IPv6 with hop-by-hop, destination options and a routing header.
    Ipv6Extended,
    /// IPv4, GRE with a key, IPv4.
    Gre,
    /// IPv4, UDP, VXLAN, Ethernet, IPv4.
    Vxlan,
}

/// A frame's headers and what is true of it.
#[derive(Clone, Debug)]
pub(super) struct Wrapped {
    /// As its sender sees it.
    pub(super) key: FlowKey,
    /// The frame, without FCS, up to [`HEADERS_KEPT`].
    pub(super) frame: Vec<u8>,
    pub(super) frame_bytes: u32,
    pub(super) ip_bytes: u32,
}

const ETHERNET: usize = 14;
const FCS: usize = 4;
const V4: usize = 20;
const V6: usize = 40;
const PORT: u16 = 443;
const NETWORK: u32 = 77;

/// The next packet of a flow, by the flow's number.
pub(super) fn wrap(stack: Stack, number: u32, packet: PacketParts) -> Wrapped {
    let is_v6 = matches!(stack, Stack::Ipv6 | Stack::Ipv6Extended);
    let least = (if is_v6 { V6 } else { V4 }) + extensions(stack).len() + if packet.is_tcp { 20 } else { 8 };
    let ip_bytes = (usize::from(packet.size) - ETHERNET - FCS).max(least);
    let inner = ip_packet(stack, number, packet, ip_bytes);
    let outside = outside(stack, ip_bytes);
    let frame_bytes = (outside.len() + ip_bytes).max(64 - FCS);
    let mut frame = [outside, inner].concat();
    frame.resize(frame_bytes.min(HEADERS_KEPT), 0);
    Wrapped {
        key: key(stack, number, packet),
        frame,
        frame_bytes: u32::try_from(frame_bytes).unwrap_or(u32::MAX),
        ip_bytes: u32::try_from(ip_bytes).unwrap_or(u32::MAX),
    }
}

/// Ends of a flow: the number is in both addresses and in the port, so that no two flows are alike.
fn addresses(stack: Stack, number: u32) -> [Vec<u8>; 2] {
    let [a, b, c, d] = number.to_be_bytes();
    if matches!(stack, Stack::Ipv6 | Stack::Ipv6Extended) {
        let of = |end| [&[0x20, 1, 0xd, 0xb8, 0, 0, 0, end, 0, 0, 0, 0][..], &[a, b, c, d]].concat();
        return [of(1), of(2)];
    }
    [vec![198, 18, c, d], vec![198, 19, a, b]]
}

fn port(number: u32) -> u16 {
    1024 + u16::try_from(number % 50_000).unwrap_or(0)
}

fn key(stack: Stack, number: u32, packet: PacketParts) -> FlowKey {
    let [source, destination] = addresses(stack, number).map(|address| whole(&address));
    let there = FlowKey {
        source,
        destination,
        source_port: port(number),
        destination_port: PORT,
        protocol: if packet.is_tcp { 6 } else { 17 },
        ..FlowKey::default()
    };
    let there = match stack {
        Stack::Vlan => FlowKey { vlan: 100, ..there },
        Stack::TwoVlans => FlowKey { vlan: 200, inner_vlan: 100, ..there },
        Stack::Gre => FlowKey { tunnel: TunnelKind::Gre, tunnel_id: NETWORK, ..there },
        Stack::Vxlan => FlowKey { tunnel: TunnelKind::Vxlan, tunnel_id: NETWORK, ..there },
        Stack::Ipv4 | Stack::Mpls | Stack::Ipv6 | Stack::Ipv6Extended => there,
    };
    if packet.is_back { there.opposite_direction() } else { there }
}

/// An address of IPv4 is mapped.
fn whole(address: &[u8]) -> [u8; 16] {
    let mut whole = [0; 16];
    if address.len() < whole.len() {
        whole[10..12].fill(0xff);
    }
    whole[16 - address.len()..].copy_from_slice(address);
    whole
}

/// Behind the IPv6 header: hop-by-hop, destination options, routing (type 4, nothing left).
fn extensions(stack: Stack) -> Vec<u8> {
    if stack != Stack::Ipv6Extended {
        return Vec::new();
    }
    let padding = [1, 4, 0, 0, 0, 0];
    let routing = [[0, 2, 4, 0, 0, 0, 0, 0], [0x20, 1, 0xd, 0xb8, 0, 0, 0, 9], [0; 8]].concat();
    [&[60, 0][..], &padding, &[43, 0], &padding, &routing].concat()
}

fn ip_packet(stack: Stack, number: u32, packet: PacketParts, length: usize) -> Vec<u8> {
    let [source, destination] = addresses(stack, number);
    let protocol = if packet.is_tcp { 6 } else { 17 };
    let [from, to] = if packet.is_back { [&destination, &source] } else { [&source, &destination] };
    let header = if source.len() == 16 {
        let mut extensions = extensions(stack);
        let next = if extensions.is_empty() { protocol } else { 0 };
        if !extensions.is_empty() {
            extensions[16] = protocol;
        }
        let [high, low] = short(length - V6);
        [&[0x60, 0, 0, 0, high, low, next, packet.ttl][..], from, to, &extensions].concat()
    } else {
        [&ipv4(protocol, packet.ttl, length)[..], from, to].concat()
    };
    let [from_port, to_port] = if packet.is_back { [PORT, port(number)] } else { [port(number), PORT] };
    let ports = [from_port.to_be_bytes(), to_port.to_be_bytes()].concat();
    let rest = length - header.len();
    let transport = if packet.is_tcp {
        [&[0; 8][..], &[0x50, packet.tcp_flags, 0xff, 0xff, 0, 0, 0, 0]].concat()
    } else {
        [short(rest), [0, 0]].concat()
    };
    [header, ports, transport].concat()
}

/// Up to the addresses.
fn ipv4(protocol: u8, ttl: u8, length: usize) -> [u8; 12] {
    let [high, low] = short(length);
    [0x45, 0, high, low, 0, 0, 0, 0, ttl, protocol, 0, 0]
}

/// Everything before the packet that is metered.
fn outside(stack: Stack, inside: usize) -> Vec<u8> {
    let ethernet = |rest: &[u8]| [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], rest].concat();
    let carrier = |protocol, length: usize| {
        let header = ipv4(protocol, 64, V4 + length);
        ethernet(&[&[8, 0][..], &header, &[198, 51, 100, 1, 198, 51, 100, 2]].concat())
    };
    let [_, n2, n1, n0] = NETWORK.to_be_bytes();
    match stack {
        Stack::Ipv4 => ethernet(&[8, 0]),
        Stack::Ipv6 | Stack::Ipv6Extended => ethernet(&[0x86, 0xdd]),
        Stack::Vlan => ethernet(&[0x81, 0, 0, 100, 8, 0]),
        Stack::TwoVlans => ethernet(&[0x88, 0xa8, 0, 200, 0x81, 0, 0, 100, 8, 0]),
        Stack::Mpls => ethernet(&[0x88, 0x47, 0, 1, 0x20, 64, 0, 1, 0x31, 64]),
        Stack::Gre => [carrier(47, 8 + inside), vec![0x20, 0, 8, 0, 0, n2, n1, n0]].concat(),
        Stack::Vxlan => {
            let length = 8 + 8 + ETHERNET + inside;
            let [high, low] = short(length);
            let udp = [0xc0, 1, 0x12, 0xb5, high, low, 0, 0, 8, 0, 0, 0, n2, n1, n0, 0];
            [carrier(17, length), udp.to_vec(), ethernet(&[8, 0])].concat()
        }
    }
}

fn short(value: usize) -> [u8; 2] {
    u16::try_from(value).unwrap_or(u16::MAX).to_be_bytes()
}
