//! Parses frames of all supported link types into [`PacketInfo`]s.
//!
//! ```text
//!  frame -> fast: Ethernet, two VLAN tags, IP without options, TCP, UDP or ICMP -------------------> Packet
//!             | anything else
//!             +-> link (Ethernet, VLAN, MPLS, PPPoE) -> ip (options, fragments) -> transport ------> Packet
//!                   ^                                                                  |
//!                   +---------- tunnel (GRE, VXLAN, Geneve, GTP-U, IP in IP)  <-------+
//! ```
//! Up to `depth` nested tunnels are entered. The meter counts the innermost IP packet that can be read. If the content
//! of a tunnel is unreadable, the outer packet is metered. The parser reassembles nothing and refuses no packet for a
//! wrong checksum: a meter counts the packets that arrived.
//!
//! Invariant: any bytes give a packet or the reason why they are ignored. The parser never panics or allocates, and its
//! time is bounded by the length of the frame.

mod capture;
mod content;
mod encapsulation;
mod fast;
mod fragments;
mod ip;
mod link;
pub mod merged;
mod span;
mod transport;
mod tunnel;
pub mod unified;

pub use capture::LinkKind;
pub use encapsulation::{LinkPayload, describe_unread_link_type};
pub use fragments::FragmentCounts;

use crate::packet::ipv4_mapped;
use crate::{IgnoredReason, PacketInfo};
use fast::FastParser;
use fragments::FragmentTable;
use ip::PacketPart;
use link::Layer3;
use packetrig_units::clamp_to_u32;
use span::FrameSpan;
use tunnel::TunnelContent;

/// Options of the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseOptions {
    /// Maximum number of nested tunnels that are entered; with 0, the outermost packet is metered.
    pub depth: u8,
    /// Number of fragmented packets with remembered ports, rounded up to a power of two; 0 remembers none.
    pub fragments: usize,
    /// Time for which ports are kept for later fragments, ns.
    pub fragment_ns: u64,
    /// Key of the hash that spreads kept ports: random per process, so that an attacker cannot choose packets
    /// that all fall into one set.
    pub hash_key: [u64; 2],
    /// True if packets get the hash of their content, which only meters of a group use.
    pub hashes_content: bool,
}

impl Default for ParseOptions {
    fn default() -> Self {
        Self { depth: 2, fragments: 4096, fragment_ns: 3_000_000_000, hash_key: [0; 2], hashes_content: true }
    }
}

/// Reads frames. Its only state is the ports of fragmented packets.
#[derive(Debug)]
pub struct FrameParser {
    depth: u8,
    hashes_content: bool,
    fragments: FragmentTable,
}

impl FrameParser {
    /// Creates a parser. All memory it will ever have is allocated here.
    pub fn new(options: ParseOptions) -> Self {
        let ParseOptions { depth, hashes_content, .. } = options;
        Self { depth, hashes_content, fragments: FragmentTable::new(options) }
    }

    /// Reads a frame that begins with its Ethernet header and has no FCS. `full_len` is the length of the frame before
    /// the capture cut it.
    ///
    /// On `Ok`, all of `packet` is written; otherwise its content must not be used.
    #[inline]
    pub fn parse_frame(
        &mut self,
        frame: &[u8],
        full_len: usize,
        at_ns: u64,
        input: u16,
        packet: &mut PacketInfo,
    ) -> Result<(), IgnoredReason> {
        // A source may state a length below the bytes that it captured; the bytes are the better evidence.
        let arrival = FrameArrival { at_ns, input, frame_bytes: clamp_length(full_len.max(frame.len())) };
        // A failed attempt may leave any value in `packet`; the general path writes all of it again.
        let fast = FastParser { enters_tunnels: self.depth > 0, hashes_content: self.hashes_content };
        if fast.try_read_frame(frame, arrival, packet) {
            return Ok(());
        }
        self.read_frame(LinkKind::Ethernet, frame, arrival, packet)
    }

    /// Reads a frame that begins with any link layer, as files may have it.
    #[expect(clippy::too_many_arguments, reason = "those of `parse_frame` and one more")]
    pub fn parse_frame_as(
        &mut self,
        link: LinkKind,
        frame: &[u8],
        full_len: usize,
        at_ns: u64,
        input: u16,
        packet: &mut PacketInfo,
    ) -> Result<(), IgnoredReason> {
        if link == LinkKind::Ethernet {
            return self.parse_frame(frame, full_len, at_ns, input, packet);
        }
        let arrival = FrameArrival { at_ns, input, frame_bytes: clamp_length(full_len.max(frame.len())) };
        self.read_frame(link, frame, arrival, packet)
    }

    /// Returns the counts of fragments so far.
    pub const fn fragment_counts(&self) -> FragmentCounts {
        self.fragments.counts()
    }

    #[inline(never)]
    fn read_frame(
        &mut self,
        link: LinkKind,
        frame: &[u8],
        arrival: FrameArrival,
        packet: &mut PacketInfo,
    ) -> Result<(), IgnoredReason> {
        *packet = arrival.to_packet();
        // Bytes that a snap length cut off: lengths in headers are compared with the whole frame, not with the captured
        // part.
        let missing = (arrival.frame_bytes as usize).saturating_sub(frame.len());
        let outermost = link.find_ip_packet(FrameSpan { bytes: frame, missing }, packet)?;
        let mut carried = self.read_ip_packet(outermost, packet)?;
        // The depth bounds the work: a frame may nest as many headers as it has room for.
        for _ in 0..self.depth {
            let Some(tunnel) = carried else { break };
            // The content is read into a copy: if it cannot be read, the tunnel's own packet is metered, unchanged.
            let mut inner = tunnel.inner_packet(packet);
            let Ok(layer3) = link::read_tunnel_payload_to_ip(tunnel.kind, tunnel.bytes, &mut inner) else {
                break;
            };
            let Ok(next) = self.read_ip_packet(layer3, &mut inner) else { break };
            *packet = inner;
            carried = next;
        }
        Ok(())
    }

    /// Reads one IP packet. Returns the content of a tunnel if the packet carries one that can be entered.
    #[inline]
    fn read_ip_packet<'a>(
        &mut self,
        layer3: Layer3<'a>,
        packet: &mut PacketInfo,
    ) -> Result<Option<TunnelContent<'a>>, IgnoredReason> {
        let inside = match layer3 {
            Layer3::V4(bytes) => ip::read_ipv4(bytes, packet)?,
            Layer3::V6(bytes) => ip::read_ipv6(bytes, packet)?,
        };
        if self.hashes_content {
            packet.content =
                content::hash_payload(packet.protocol, inside.identification, inside.bytes.bytes);
        }
        match inside.part {
            PacketPart::Whole => {
                transport::read_header(inside.bytes.bytes, packet);
                Ok(tunnel::read_tunnel(inside.bytes, packet))
            }
            // A tunnel is entered in whole packets only: later fragments of it could not follow.
            PacketPart::First(id) => {
                transport::read_header(inside.bytes.bytes, packet);
                self.fragments.remember_ports(id, packet);
                Ok(None)
            }
            PacketPart::Later(id) => {
                self.fragments.fill_fragment_ports(id, packet);
                Ok(None)
            }
        }
    }
}

/// Properties of a frame that are known without reading it.
#[derive(Clone, Copy, Debug)]
struct FrameArrival {
    at_ns: u64,
    input: u16,
    frame_bytes: u32,
}

impl FrameArrival {
    fn to_packet(self) -> PacketInfo {
        PacketInfo {
            at_ns: self.at_ns,
            input: self.input,
            frame_bytes: self.frame_bytes,
            ..PacketInfo::default()
        }
    }
}

#[inline]
fn clamp_length(len: usize) -> u32 {
    clamp_to_u32(len)
}

#[cfg(test)]
mod tests;
