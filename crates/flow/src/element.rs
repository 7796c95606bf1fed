//! The columns of a flow record, which files, sinks, tables and queries share. They are named like
//! IANA's IPFIX information elements.
//!
//! One list describes each column: its name, its short name, its number, the kind and unit of its values, its
//! meaning, and how it is read from a record. A column without an element at IANA has a name in the same
//! style and no number. The list is in the order of columns.

use crate::foreign::{ForeignFields, OtherFields};
use crate::packet::TunnelKind;
use crate::record::FlowRecord;

#[derive(Clone, Copy, Debug)]
pub struct FlowElement {
    pub name: &'static str,
    /// Short name for users to type.
    pub short: &'static str,
    /// IANA's number of the element; 0 if it has none.
    pub id: u16,
    /// True if the column is the reverse of the element (RFC 5103).
    pub reverse: bool,
    /// Kind of the column's values.
    pub kind: ElementKind,
    /// Unit of the values; empty if they have none.
    pub unit: &'static str,
    pub meaning: &'static str,
    /// Reads the column's value from a record.
    pub value: for<'a> fn(&'a FlowRecord) -> ElementValue<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementKind {
    /// A whole number of this many bits.
    Unsigned(u8),
    /// A point in time, as nanoseconds since 1970.
    Time,
    /// An IPv6 address; IPv4 is mapped.
    Address,
    Mac,
    Word,
    Flag,
    /// Names and values, as an object of JSON.
    Fields,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementValue<'a> {
    /// Value of [`ElementKind::Unsigned`] and [`ElementKind::Time`].
    Number(u64),
    /// Value of [`ElementKind::Address`].
    Address([u8; 16]),
    /// Value of [`ElementKind::Mac`].
    Mac([u8; 6]),
    /// Value of [`ElementKind::Word`].
    Word(&'static str),
    /// Value of [`ElementKind::Flag`].
    Flag(bool),
    /// Value of [`ElementKind::Fields`].
    Fields(&'a OtherFields),
}

macro_rules! elements {
    ($($name:literal $short:literal $id:literal $kind:expr, $unit:literal, $record:ident => $value:expr, $meaning:literal;)*) => {
        &[$(FlowElement {
            name: $name,
            short: $short,
            id: $id,
            reverse: is_reverse_name($name),
            kind: $kind,
            unit: $unit,
            meaning: $meaning,
            value: |$record| $value,
        }),*]
    };
}

const fn is_reverse_name(name: &str) -> bool {
    matches!(name.as_bytes(), [b'r', b'e', b'v', b'e', b'r', b's', b'e', ..])
}

const U8: ElementKind = ElementKind::Unsigned(8);
const U16: ElementKind = ElementKind::Unsigned(16);
const U32: ElementKind = ElementKind::Unsigned(32);
const U64: ElementKind = ElementKind::Unsigned(64);

/// Returns a field that only other exporters send; the default value if the record has no such fields.
fn foreign_field<T: Default>(record: &FlowRecord, field: impl Fn(&ForeignFields) -> T) -> T {
    record.foreign.as_deref().map(field).unwrap_or_default()
}

pub const FLOW_ELEMENTS: &[FlowElement] = elements! {
    "flowStartNanoseconds" "start" 156 ElementKind::Time, "ns", record => ElementValue::Number(record.first_ns()),
        "time of the first packet of either direction";
    "flowEndNanoseconds" "end" 157 ElementKind::Time, "ns", record => ElementValue::Number(record.last_ns()),
        "time of the last packet of either direction";
    "ipVersion" "version" 60 U8, "", record => number_value(if record.key.is_ipv4() { 4_u8 } else { 6 }),
        "4 or 6";
    "sourceIPv6Address" "src-ip" 27 ElementKind::Address, "", record => ElementValue::Address(record.key.source),
        "address of the end that sent the first packet seen";
    "destinationIPv6Address" "dst-ip" 28 ElementKind::Address, "", record => ElementValue::Address(record.key.destination),
        "address of the other end";
    "sourceTransportPort" "src-port" 7 U16, "", record => number_value(record.key.source_port),
        "port of the source; 0 if the protocol has no ports";
    "destinationTransportPort" "dst-port" 11 U16, "", record => number_value(record.shown_destination_port()),
        "port of the destination; for ICMP: type × 256 + code of the first packet";
    "protocolIdentifier" "protocol" 4 U8, "", record => number_value(record.key.protocol),
        "number of the IP protocol; for IPv6: the one after the extension headers";
    "packetDeltaCount" "packets" 2 U64, "packets", record => number_value(record.forward.packets),
        "packets from source to destination";
    "octetDeltaCount" "bytes" 1 U64, "bytes", record => number_value(record.forward.bytes),
        "IP bytes, headers included, from source to destination";
    "layer2OctetDeltaCount" "frame-bytes" 352 U64, "bytes", record => number_value(record.forward.frame_bytes),
        "bytes of whole frames, without FCS, from source to destination";
    "tcpControlBits" "flags" 6 U16, "", record => number_value(record.forward.tcp_flags),
        "all TCP flags seen from source to destination";
    "reversePacketDeltaCount" "packets-back" 2 U64, "packets", record => number_value(record.reverse.packets),
        "packets from destination to source; 0 in one-way records";
    "reverseOctetDeltaCount" "bytes-back" 1 U64, "bytes", record => number_value(record.reverse.bytes),
        "IP bytes, headers included, from destination to source";
    "reverseLayer2OctetDeltaCount" "frame-bytes-back" 352 U64, "bytes", record => number_value(record.reverse.frame_bytes),
        "bytes of whole frames, without FCS, from destination to source";
    "reverseTcpControlBits" "flags-back" 6 U16, "", record => number_value(record.reverse.tcp_flags),
        "all TCP flags seen from destination to source";
    "dot1qVlanId" "vlan" 243 U16, "", record => number_value(record.key.vlan),
        "outermost VLAN; 0 if untagged";
    "dot1qCustomerVlanId" "inner-vlan" 245 U16, "", record => number_value(record.key.inner_vlan),
        "VLAN inside the outermost one";
    "tunnelKind" "tunnel" 0 ElementKind::Word, "", record => ElementValue::Word(tunnel_word(record.key.tunnel)),
        "empty, `ip`, `gre`, `vxlan`, `gtp-u`, `geneve`";
    "layer2SegmentId" "tunnel-id" 351 U32, "", record => number_value(record.key.tunnel_id),
        "identifier: VXLAN or Geneve VNI, GTP TEID, or GRE key";
    "outerSourceIPv6Address" "outer-src-ip" 0 ElementKind::Address, "", record => ElementValue::Address(record.outer_source),
        "source of the outermost IP header, if the flow was tunnelled";
    "outerDestinationIPv6Address" "outer-dst-ip" 0 ElementKind::Address, "", record => ElementValue::Address(record.outer_destination),
        "destination of the outermost IP header, if the flow was tunnelled";
    "mplsTopLabelStackSection" "mpls1" 70 U32, "", record => number_value(record.mpls[0] >> 8),
        "outermost MPLS entry of the first packet, without its TTL";
    "mplsLabelStackSection2" "mpls2" 71 U32, "", record => number_value(record.mpls[1] >> 8),
        "second MPLS entry of the first packet, without its TTL";
    "mplsLabelStackSection3" "mpls3" 72 U32, "", record => number_value(record.mpls[2] >> 8),
        "third MPLS entry of the first packet, without its TTL";
    "sourceMacAddress" "src-mac" 56 ElementKind::Mac, "", record => ElementValue::Mac(record.source_mac),
        "source MAC address of the first packet";
    "destinationMacAddress" "dst-mac" 80 ElementKind::Mac, "", record => ElementValue::Mac(record.destination_mac),
        "destination MAC address of the first packet";
    "minimumTTL" "ttl-min" 52 U8, "", record => number_value(record.ttl_min),
        "smallest time to live seen";
    "maximumTTL" "ttl-max" 53 U8, "", record => number_value(record.ttl_max),
        "largest time to live seen";
    "ipClassOfService" "tos" 5 U8, "", record => number_value(record.tos),
        "type of service of the first packet";
    "icmpTypeCode" "icmp" 0 U16, "", record => number_value(record.icmp),
        "type × 256 + code of the first ICMP packet (IANA has one element for each version of IP: 32, 139)";
    "flowEndReason" "end-reason" 136 U8, "", record => number_value(record.end as u8),
        "reason of the record: 1 idle, 2 still active, 3 end of the flow seen, 4 meter stopped, 5 lack of resources";
    "flowId" "flow-id" 148 U64, "", record => number_value(record.flow_id),
        "number of the flow: the same for both directions, and at every meter with the same flow-id key";
    "flowPart" "part" 0 U16, "records", record => number_value(record.part),
        "number of earlier records of this flow";
    "samplingInterval" "sampling" 34 U32, "packets", record => number_value(record.sampling),
        "one packet out of this many was metered";
    "ingressInterface" "in-if" 10 U32, "", record => number_value(record.input),
        "interface where the flow came in";
    "observedLoss" "loss" 0 ElementKind::Flag, "", record => ElementValue::Flag(record.loss),
        "packets were lost before the meter while the flow was active";
    "observedMerge" "merged" 0 ElementKind::Flag, "", record => ElementValue::Flag(record.merged),
        "packets were merged before the meter and counted as one, so the packets and bytes are too low";
    "egressInterface" "out-if" 14 U32, "", record => number_value(foreign_field(record, |of| of.output)),
        "interface where the flow left the exporter";
    "bgpSourceAsNumber" "src-as" 16 U32, "", record => number_value(foreign_field(record, |of| of.source_as)),
        "autonomous system of the source";
    "bgpDestinationAsNumber" "dst-as" 17 U32, "", record => number_value(foreign_field(record, |of| of.destination_as)),
        "autonomous system of the destination";
    "ipNextHopIPv6Address" "next-hop" 62 ElementKind::Address, "", record => ElementValue::Address(foreign_field(record, |of| of.next_hop)),
        "the next router";
    "bgpNextHopIPv6Address" "bgp-next-hop" 63 ElementKind::Address, "", record => ElementValue::Address(foreign_field(record, |of| of.bgp_next_hop)),
        "the next router according to BGP";
    "postVlanId" "post-vlan" 59 U16, "", record => number_value(foreign_field(record, |of| of.post_vlan)),
        "VLAN in which the flow left the exporter";
    "postIpClassOfService" "post-tos" 55 U8, "", record => number_value(foreign_field(record, |of| of.post_tos)),
        "type of service with which the flow left the exporter";
    "postNATSourceIPv6Address" "nat-src-ip" 281 ElementKind::Address, "", record => ElementValue::Address(foreign_field(record, |of| of.nat_source)),
        "source address after NAT";
    "postNATDestinationIPv6Address" "nat-dst-ip" 282 ElementKind::Address, "", record => ElementValue::Address(foreign_field(record, |of| of.nat_destination)),
        "destination address after NAT";
    "postNAPTSourceTransportPort" "nat-src-port" 227 U16, "", record => number_value(foreign_field(record, |of| of.nat_source_port)),
        "source port after NAT";
    "postNAPTDestinationTransportPort" "nat-dst-port" 228 U16, "", record => number_value(foreign_field(record, |of| of.nat_destination_port)),
        "destination port after NAT";
    "otherFields" "other" 0 ElementKind::Fields, "", record => ElementValue::Fields(record.foreign.as_deref().map_or(OtherFields::NONE, |of| &of.others)),
        "further fields that the exporter sent, by name";
};

fn number_value(value: impl Into<u64>) -> ElementValue<'static> {
    ElementValue::Number(value.into())
}

/// Returns the kind of tunnel with this word.
pub fn tunnel_by_name(word: &str) -> Option<TunnelKind> {
    TunnelKind::ALL.into_iter().find(|kind| tunnel_word(*kind) == word)
}

/// Returns the word for a kind of tunnel.
const fn tunnel_word(tunnel: TunnelKind) -> &'static str {
    match tunnel {
        TunnelKind::None => "",
        TunnelKind::Ip => "ip",
        TunnelKind::Gre => "gre",
        TunnelKind::Vxlan => "vxlan",
        TunnelKind::Gtp => "gtp-u",
        TunnelKind::Geneve => "geneve",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_numbers_are_told_apart() {
        let names: BTreeSet<_> = FLOW_ELEMENTS.iter().map(|element| element.name).collect();
        assert_eq!(names.len(), FLOW_ELEMENTS.len());
        let short: BTreeSet<_> = FLOW_ELEMENTS.iter().map(|element| element.short).collect();
        assert_eq!(short.len(), FLOW_ELEMENTS.len());
        let numbers: Vec<_> = FLOW_ELEMENTS.iter().filter(|element| element.id > 0).collect();
        let set: BTreeSet<_> = numbers.iter().map(|element| (element.id, element.reverse)).collect();
        assert_eq!(set.len(), numbers.len());
    }

    #[test]
    fn values_are_of_their_kind() {
        let record = FlowRecord::default();
        for element in FLOW_ELEMENTS {
            let fits = match ((element.value)(&record), element.kind) {
                (ElementValue::Number(value), ElementKind::Unsigned(bits)) => {
                    bits == 64 || value >> bits == 0
                }
                (ElementValue::Number(_), ElementKind::Time)
                | (ElementValue::Address(_), ElementKind::Address)
                | (ElementValue::Mac(_), ElementKind::Mac)
                | (ElementValue::Word(_), ElementKind::Word)
                | (ElementValue::Flag(_), ElementKind::Flag)
                | (ElementValue::Fields(_), ElementKind::Fields) => true,
                _ => false,
            };
            assert!(fits, "{}", element.name);
        }
    }
}
