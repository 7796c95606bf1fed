//! Converts a flow sample to a flow record of one packet.

use super::super::draft::MessageTime;
use super::super::reader::{ByteReader, low_u8, low_u16};
use super::gateway::read_gateway;
use super::sample::{FlowSampleHead, SampleOutput};
use super::{address_or_zero, read_address};
use crate::canonical::is_icmp;
use crate::foreign::ForeignFields;
use crate::key::FlowKey;
use crate::packet::{PacketInfo, ipv4_mapped};
use crate::parse::{FrameParser, LinkKind, ParseOptions};
use crate::record::{EndReason, FlowHalf, FlowRecord};
use std::sync::Arc;

/// Numbers of the kinds of sample parts that are decoded.
mod part {
    pub(super) const RAW_HEADER: u32 = 1;
    pub(super) const ETHERNET: u32 = 2;
    pub(super) const IPV4: u32 = 3;
    pub(super) const IPV6: u32 = 4;
    pub(super) const EXTENDED_SWITCH: u32 = 1001;
    pub(super) const EXTENDED_ROUTER: u32 = 1002;
    pub(super) const EXTENDED_GATEWAY: u32 = 1003;
    pub(super) const EXTENDED_NAT: u32 = 1007;
    pub(super) const NAT_PORT: u32 = 1020;
}

/// Maximum number of nested tunnels that the parser enters, as by default in packetrig's meter.
const MAX_TUNNEL_DEPTH: u8 = 2;
/// Bytes of the frame check sequence, which an agent counts and packetrig's meter does not.
const FCS: usize = 4;
const IANA_ENTERPRISE: u32 = 0;
/// IANA elements for the prefix length of the source address: for IPv4, for IPv6. `DESTINATION_PREFIX` is the
/// same for the destination.
const SOURCE_PREFIX: [u16; 2] = [9, 29];
const DESTINATION_PREFIX: [u16; 2] = [13, 30];
/// IANA element for what happened to the packet (forwardingStatus).
const FORWARDING_STATUS: u16 = 89;

/// Record of a sample, and whether the sample was read to its end.
pub(super) struct DecodedSample {
    /// `None` if the sample has no IP packet that could be read.
    pub(super) record: Option<FlowRecord>,
    /// False if a part was cut off; the parts before it are in the record.
    pub(super) is_whole: bool,
}

/// Values from the parts of a sample that have been read so far.
#[derive(Default)]
struct SampleParts {
    /// The packet, parsed from its sampled header: the best source.
    parsed: Option<PacketInfo>,
    /// The packet, from fields that the agent has parsed itself.
    stated: Option<PacketInfo>,
    ethernet: Option<[[u8; 6]; 2]>,
    source_vlan: u16,
    prefixes: Option<[u32; 2]>,
    routes: ForeignFields,
}

pub(super) fn read_record(
    head: &FlowSampleHead,
    reader: &mut ByteReader<'_>,
    moment: &MessageTime,
) -> DecodedSample {
    let mut parts = SampleParts::default();
    let mut is_whole = true;
    for _ in 0..head.parts {
        if parts.read_sample_part(reader).is_none() {
            is_whole = false;
            break;
        }
    }
    DecodedSample { record: parts.into_record(head, moment), is_whole }
}

impl SampleParts {
    /// Reads one part of a sample. `None` if it is cut off.
    fn read_sample_part(&mut self, reader: &mut ByteReader<'_>) -> Option<()> {
        // A kind has the enterprise in its upper 20 bits; 0 means sFlow itself.
        let kind = reader.read_u32()?;
        let length = usize::try_from(reader.read_u32()?).ok()?;
        // Each part is read separately: a wrong length inside one part must not read into the next.
        let content = reader.read_bytes(length)?;
        let mut part = ByteReader::new(content);
        match kind {
            part::RAW_HEADER => self.read_raw_header(&mut part)?,
            part::ETHERNET => self.ethernet = Some(read_ethernet(&mut part)?),
            part::IPV4 => self.stated = Some(read_stated_packet(&mut part, 4)?),
            part::IPV6 => self.stated = Some(read_stated_packet(&mut part, 16)?),
            part::EXTENDED_SWITCH => {
                self.source_vlan = read_vlan(&mut part)?;
                // The priority is that of 802.1p, for which records have no column.
                let _priority = part.read_u32()?;
                self.routes.post_vlan = read_vlan(&mut part)?;
            }
            part::EXTENDED_ROUTER => {
                self.routes.next_hop = address_or_zero(read_address(&mut part)?);
                self.prefixes = Some([part.read_u32()?, part.read_u32()?]);
            }
            part::EXTENDED_GATEWAY => read_gateway(content, &mut self.routes)?,
            part::EXTENDED_NAT => {
                self.routes.nat_source = address_or_zero(read_address(&mut part)?);
                self.routes.nat_destination = address_or_zero(read_address(&mut part)?);
            }
            part::NAT_PORT => {
                self.routes.nat_source_port = low_u16(part.read_u32()?.into());
                self.routes.nat_destination_port = low_u16(part.read_u32()?.into());
            }
            // The length of an unknown part is known, so it is skipped.
            _ => {}
        }
        Some(())
    }

    /// Parses the sampled header of a packet. `None` if the part is truncated.
    fn read_raw_header(&mut self, part: &mut ByteReader<'_>) -> Option<()> {
        let protocol = part.read_u32()?;
        let length = usize::try_from(part.read_u32()?).ok()?;
        // Bytes that the agent removed before it took the header: tags, outer headers, the FCS. The
        // length above counts them.
        let _stripped = part.read_u32()?;
        let captured = usize::try_from(part.read_u32()?).ok()?;
        let header = part.read_bytes(captured)?;
        let (link, length) = match protocol {
            1 => (LinkKind::Ethernet, length.saturating_sub(FCS)),
            7 => (LinkKind::Ppp, length),
            11 | 12 => (LinkKind::Ip, length),
            15 => (LinkKind::Wireless, length.saturating_sub(FCS)),
            // Headers of other protocols are not parsed. The record may still come from fields that the agent states.
            _ => return Some(()),
        };
        // Fragments are not joined: most likely, the other fragments were not sampled.
        let options = ParseOptions { depth: MAX_TUNNEL_DEPTH, fragments: 0, ..ParseOptions::default() };
        let mut packet = PacketInfo::default();
        let parsed = FrameParser::new(options).parse_frame_as(link, header, length, 0, 0, &mut packet);
        // A packet without IP makes no record, but its sample still counts as read.
        if parsed.is_ok() {
            self.parsed = Some(packet);
        }
        Some(())
    }

    fn into_record(mut self, head: &FlowSampleHead, moment: &MessageTime) -> Option<FlowRecord> {
        // The parsed header comes first: it is the sampled packet itself. The fields that the agent states are
        // only a part of it.
        let mut packet = self.parsed.or(self.stated)?;
        if let Some([destination, source]) = self.ethernet.filter(|_| packet.source_mac == [0; 6]) {
            (packet.destination_mac, packet.source_mac) = (destination, source);
        }
        if packet.vlan == 0 {
            // The packet has no tag, as at an untagged port: only the agent knows the VLAN.
            packet.vlan = self.source_vlan;
        }
        self.add_prefix_lengths(packet.source[..12] == crate::packet::IPV4_MAPPED_PREFIX);
        match head.output {
            SampleOutput::Interface(output) => self.routes.output = output,
            SampleOutput::Discarded(reason) => {
                self.routes.others.add_field(
                    IANA_ENTERPRISE,
                    FORWARDING_STATUS,
                    &[forwarding_status_for_drop(reason)],
                );
            }
            SampleOutput::Several => {}
        }
        // A sample has no time of its own: agents send a datagram at most a second after its oldest sample.
        let at_ns = moment.sent_ns;
        let forward = FlowHalf {
            packets: 1,
            bytes: packet.bytes.into(),
            frame_bytes: packet.frame_bytes.into(),
            first_ns: at_ns,
            last_ns: at_ns,
            tcp_flags: packet.tcp_flags.into(),
        };
        let routes = (self.routes != ForeignFields::default()).then(|| Arc::new(self.routes));
        let mut record = FlowRecord {
            key: FlowKey::from_packet(&packet),
            forward,
            end: EndReason::Idle,
            ttl_min: packet.ttl,
            ttl_max: packet.ttl,
            tos: packet.tos,
            icmp: if is_icmp(packet.protocol) { packet.destination_port } else { 0 },
            mpls: packet.mpls,
            source_mac: packet.source_mac,
            destination_mac: packet.destination_mac,
            outer_source: packet.outer_source,
            outer_destination: packet.outer_destination,
            // As a factor, 0 would make every count zero.
            sampling: head.rate.max(1),
            input: head.input,
            ..FlowRecord::default()
        };
        record.foreign = routes;
        Some(record)
    }

    fn add_prefix_lengths(&mut self, is_ipv4: bool) {
        let Some(lengths) = self.prefixes else { return };
        let version = usize::from(!is_ipv4);
        for (element, length) in [SOURCE_PREFIX, DESTINATION_PREFIX].into_iter().zip(lengths) {
            self.routes.others.add_field(IANA_ENTERPRISE, element[version], &[low_u8(length.into())]);
        }
    }
}

/// Converts a drop reason of sFlow to IANA's forwarding status. Reasons below 256 are ICMP
/// codes for unreachable destinations.
const fn forwarding_status_for_drop(reason: u32) -> u8 {
    match reason {
        // Denied by an access list.
        9 | 10 | 13 | 258 => 129,
        // Unroutable.
        0 | 1 | 5..=8 | 11 | 12 => 131,
        // Too large to be forwarded.
        4 | 262 => 133,
        // The time to live has run out.
        257 => 137,
        // Policed, and dropped early.
        261 => 138,
        260 => 139,
        // Dropped, for another reason.
        _ => 128,
    }
}

/// Reads both addresses of an Ethernet header: destination and source.
fn read_ethernet(part: &mut ByteReader<'_>) -> Option<[[u8; 6]; 2]> {
    let _length = part.read_u32()?;
    // Addresses of six bytes take eight (XDR).
    let source = *part.read_bytes(8)?.first_chunk()?;
    let destination = *part.read_bytes(8)?.first_chunk()?;
    Some([destination, source])
}

/// Reads the fields of an IP packet that the agent states, with addresses of this many bytes.
fn read_stated_packet(part: &mut ByteReader<'_>, address_bytes: usize) -> Option<PacketInfo> {
    let bytes = part.read_u32()?;
    let protocol = low_u8(part.read_u32()?.into());
    let source = read_plain_address(part, address_bytes)?;
    let destination = read_plain_address(part, address_bytes)?;
    let mut number = || part.read_u32().map(u64::from);
    let source_port = low_u16(number()?);
    let destination_port = low_u16(number()?);
    let tcp_flags = low_u8(number()?);
    let tos = low_u8(number()?);
    Some(PacketInfo {
        source,
        destination,
        bytes,
        source_port,
        destination_port,
        protocol,
        tcp_flags,
        tos,
        ..PacketInfo::default()
    })
}

fn read_plain_address(part: &mut ByteReader<'_>, bytes: usize) -> Option<[u8; 16]> {
    let address = part.read_bytes(bytes)?;
    match address.try_into() {
        Ok(address) => Some(ipv4_mapped(address)),
        Err(_) => address.try_into().ok(),
    }
}

/// Reads a VLAN; 0 if the agent does not know it (all ones).
fn read_vlan(part: &mut ByteReader<'_>) -> Option<u16> {
    let vlan = part.read_u32()?;
    Some(if vlan == u32::MAX { 0 } else { low_u16(vlan.into()) & 0xfff })
}
