//! The tables of header fields. Offsets and widths follow the named standards; names and defaults are OTG's.

use super::AbsentValue::{Computed as Auto, Nothing, Value};
use super::AddressRole::{AskedDestination, Destination, Source};
use super::ComputedField::{
    BottomOfStack, Checksum as Sum, HeaderChecksum, HeaderWords, LengthBehind, LengthFromHere, NextHeader,
    OptionWords,
};
use super::ExtraPatternChoice::{Auto as OrAuto, Device, None as Plain, Random, RandomOrDevice};
use super::FieldNotation::{self, Checksum, Ipv4, Ipv6, Mac, Number};
use super::{AbsentValue, ExtraPatternChoice, FieldDef, HeaderDef, HeaderKind, NumberSpace};

const fn field(
    name: &'static str,
    at: u32,
    bits: u32,
    form: FieldNotation,
    absent: AbsentValue,
    extra: ExtraPatternChoice,
) -> FieldDef {
    FieldDef { name, at, bits, form, absent, extra, shown: false }
}

impl FieldDef {
    /// Marks the field as one that an explanation of the plan shows.
    const fn shown(self) -> Self {
        Self { shown: true, ..self }
    }
}

/// A numeric field with a default.
const fn number(name: &'static str, at: u32, bits: u32, default: u128) -> FieldDef {
    field(name, at, bits, Number, Value(default), Plain)
}

/// A numeric field that shares its bits with another field. It is written only if the plan sets it.
const fn overlay_field(name: &'static str, at: u32, bits: u32) -> FieldDef {
    field(name, at, bits, Number, Nothing, Plain)
}

// The multicast address of flow control frames, which bridges never forward.
const PAUSE_DESTINATION_MAC: u128 = 0x0180_c200_0001;
const PAUSE_ETHERTYPE: u128 = 0x8808;

/// The EtherType of the next header. If no header follows, OTG uses 0xffff.
const ETHER_TYPE: AbsentValue = Auto(NextHeader { space: NumberSpace::EtherType, none: 0xffff });
/// The IP protocol of the next header. Before an unknown payload, OTG uses 61, "any host internal protocol".
const IPV4_PROTOCOL: AbsentValue = Auto(NextHeader { space: NumberSpace::IpProtocol, none: 61 });
/// The IP protocol of the next header. In IPv6, 59 means that there is no next header.
const IPV6_NEXT_HEADER: AbsentValue = Auto(NextHeader { space: NumberSpace::IpProtocol, none: 59 });

const fn header(
    name: &'static str,
    ether_types: &'static [u16],
    ip_protocols: &'static [u16],
    fields: &'static [FieldDef],
) -> HeaderDef {
    HeaderDef { name, ether_types, ip_protocols, fields }
}

/// Returns the definition of a kind of header: name, EtherTypes, IP protocols and fields.
pub(super) fn header_definition(kind: HeaderKind) -> HeaderDef {
    match kind {
        // GRE carries Ethernet as "transparent Ethernet bridging" (RFC 7637).
        HeaderKind::Ethernet => header("ethernet", &[0x6558], &[], ETHERNET_FIELDS),
        HeaderKind::Vlan => header("vlan", &[0x8100, 0x88a8, 0x9100], &[], VLAN_FIELDS),
        HeaderKind::Ipv4 => header("ipv4", &[0x0800], &[4], IPV4_FIELDS),
        HeaderKind::Ipv6 => header("ipv6", &[0x86dd], &[41], IPV6_FIELDS),
        HeaderKind::Tcp => header("tcp", &[], &[6], TCP_FIELDS),
        HeaderKind::Udp => header("udp", &[], &[17], UDP_FIELDS),
        HeaderKind::Icmp => header("icmp", &[], &[1], ICMP_FIELDS),
        HeaderKind::Icmpv6 => header("icmpv6", &[], &[58], ICMPV6_FIELDS),
        HeaderKind::Arp => header("arp", &[0x0806], &[], ARP_FIELDS),
        HeaderKind::Gre => header("gre", &[], &[47], GRE_FIELDS),
        HeaderKind::Vxlan => header("vxlan", &[], &[], VXLAN_FIELDS),
        HeaderKind::Geneve => header("x_geneve", &[], &[], GENEVE_FIELDS),
        HeaderKind::Mpls => header("mpls", &[0x8847, 0x8848], &[137], MPLS_FIELDS),
        HeaderKind::EthernetPause => header("ethernetpause", &[0x8808], &[], ETHERNET_PAUSE_FIELDS),
        HeaderKind::PfcPause => header("pfcpause", &[0x8808], &[], PFC_PAUSE_FIELDS),
        HeaderKind::Custom => header("custom", &[], &[], &[]),
    }
}

/// IEEE 802.3.
const ETHERNET_FIELDS: &[FieldDef] = &[
    field("dst", 0, 48, Mac(Destination), Value(0), OrAuto).shown(),
    field("src", 48, 48, Mac(Source), Value(0), Plain).shown(),
    field("ether_type", 96, 16, Number, ETHER_TYPE, OrAuto),
];

/// IEEE 802.1Q. OTG's `tpid` is the two bytes *after* the tag control information.
const VLAN_FIELDS: &[FieldDef] = &[
    number("priority", 0, 3, 0),
    number("cfi", 3, 1, 0),
    number("id", 4, 12, 0).shown(),
    field("tpid", 16, 16, Number, ETHER_TYPE, OrAuto),
];

/// RFC 791, with the DSCP field of RFC 2474 and the ECN bits of RFC 3168 in place of the old type of service.
const IPV4_FIELDS: &[FieldDef] = &[
    number("version", 0, 4, 4),
    field("header_length", 4, 4, Number, Auto(HeaderWords), OrAuto),
    number("priority.raw", 8, 8, 0),
    overlay_field("priority.tos.precedence", 8, 3),
    overlay_field("priority.tos.delay", 11, 1),
    overlay_field("priority.tos.throughput", 12, 1),
    overlay_field("priority.tos.reliability", 13, 1),
    overlay_field("priority.tos.monetary", 14, 1),
    overlay_field("priority.tos.unused", 15, 1),
    overlay_field("priority.dscp.phb", 8, 6),
    overlay_field("priority.dscp.ecn", 14, 2),
    field("total_length", 16, 16, Number, Auto(LengthFromHere), OrAuto),
    number("identification", 32, 16, 0),
    number("reserved", 48, 1, 0),
    number("dont_fragment", 49, 1, 0),
    number("more_fragments", 50, 1, 0),
    number("fragment_offset", 51, 13, 0),
    number("time_to_live", 64, 8, 64),
    field("protocol", 72, 8, Number, IPV4_PROTOCOL, OrAuto),
    field("header_checksum", 80, 16, Checksum, Auto(HeaderChecksum), Plain),
    field("src", 96, 32, Ipv4(Source), Value(0), RandomOrDevice).shown(),
    field("dst", 128, 32, Ipv4(Destination), Value(0), RandomOrDevice).shown(),
];

/// RFC 8200.
const IPV6_FIELDS: &[FieldDef] = &[
    number("version", 0, 4, 6),
    number("traffic_class", 4, 8, 0),
    field("flow_label", 12, 20, Number, Value(0), Random),
    field("payload_length", 32, 16, Number, Auto(LengthBehind), OrAuto),
    field("next_header", 48, 8, Number, IPV6_NEXT_HEADER, OrAuto),
    number("hop_limit", 56, 8, 64),
    field("src", 64, 128, Ipv6(Source), Value(0), Device).shown(),
    field("dst", 192, 128, Ipv6(Destination), Value(0), Device).shown(),
];

/// RFC 9293; the NS bit of RFC 3540.
const TCP_FIELDS: &[FieldDef] = &[
    field("src_port", 0, 16, Number, Value(0), Random).shown(),
    field("dst_port", 16, 16, Number, Value(0), Random).shown(),
    number("seq_num", 32, 32, 0),
    number("ack_num", 64, 32, 0),
    field("data_offset", 96, 4, Number, Auto(HeaderWords), Plain),
    number("ecn_ns", 103, 1, 0),
    number("ecn_cwr", 104, 1, 0),
    number("ecn_echo", 105, 1, 0),
    number("ctl_urg", 106, 1, 0),
    number("ctl_ack", 107, 1, 0),
    number("ctl_psh", 108, 1, 0),
    number("ctl_rst", 109, 1, 0),
    number("ctl_syn", 110, 1, 0),
    number("ctl_fin", 111, 1, 0),
    number("window", 112, 16, 0),
    field("checksum", 128, 16, Checksum, Auto(Sum { pseudo: true, never_zero: false }), Plain),
    // OTG has no name for the urgent pointer. Without this field, the header would be two bytes too short.
    number("urgent_pointer", 144, 16, 0),
];

/// RFC 768.
const UDP_FIELDS: &[FieldDef] = &[
    field("src_port", 0, 16, Number, Value(0), Random).shown(),
    field("dst_port", 16, 16, Number, Value(0), Random).shown(),
    field("length", 32, 16, Number, Auto(LengthFromHere), Plain),
    field("checksum", 48, 16, Checksum, Auto(Sum { pseudo: true, never_zero: true }), Plain),
];

/// RFC 792, echo.
const ICMP_FIELDS: &[FieldDef] = &[
    number("echo.type", 0, 8, 8),
    number("echo.code", 8, 8, 0),
    field("echo.checksum", 16, 16, Checksum, Auto(Sum { pseudo: false, never_zero: false }), Plain),
    number("echo.identifier", 32, 16, 0),
    number("echo.sequence_number", 48, 16, 0),
];

/// RFC 4443, echo: the checksum covers a pseudo-header.
const ICMPV6_FIELDS: &[FieldDef] = &[
    number("echo.type", 0, 8, 128),
    number("echo.code", 8, 8, 0),
    field("echo.checksum", 16, 16, Checksum, Auto(Sum { pseudo: true, never_zero: false }), Plain),
    number("echo.identifier", 32, 16, 0),
    number("echo.sequence_number", 48, 16, 0),
];

/// RFC 826 for IPv4 over Ethernet.
const ARP_FIELDS: &[FieldDef] = &[
    number("hardware_type", 0, 16, 1),
    number("protocol_type", 16, 16, 0x0800),
    number("hardware_length", 32, 8, 6),
    number("protocol_length", 40, 8, 4),
    number("operation", 48, 16, 1),
    field("sender_hardware_addr", 64, 48, Mac(Source), Value(0), Plain),
    field("sender_protocol_addr", 112, 32, Ipv4(Source), Value(0), Plain),
    field("target_hardware_addr", 144, 48, Mac(AskedDestination), Value(0), Plain),
    field("target_protocol_addr", 192, 32, Ipv4(Destination), Value(0), Plain),
];

/// RFC 2784. The second word exists only if `checksum_present` is 1.
const GRE_FIELDS: &[FieldDef] = &[
    number("checksum_present", 0, 1, 0),
    number("reserved0", 1, 12, 0),
    number("version", 13, 3, 0),
    field("protocol", 16, 16, Number, ETHER_TYPE, OrAuto),
    field("checksum", 32, 16, Checksum, Auto(Sum { pseudo: false, never_zero: false }), Plain),
    number("reserved1", 48, 16, 0),
];

/// RFC 7348.
const VXLAN_FIELDS: &[FieldDef] = &[
    number("flags", 0, 8, 8),
    number("reserved0", 8, 24, 0),
    field("vni", 32, 24, Number, Value(0), OrAuto).shown(),
    number("reserved1", 56, 8, 0),
];

/// RFC 8926, without its options.
const GENEVE_FIELDS: &[FieldDef] = &[
    number("version", 0, 2, 0),
    field("options_length", 2, 6, Number, Auto(OptionWords), OrAuto),
    number("control", 8, 1, 0),
    number("critical", 9, 1, 0),
    number("reserved0", 10, 6, 0),
    field("protocol_type", 16, 16, Number, ETHER_TYPE, OrAuto),
    number("vni", 32, 24, 0).shown(),
    number("reserved1", 56, 8, 0),
];

/// RFC 3032, one label. Labels below 16 are reserved, so OTG's default is 16.
const MPLS_FIELDS: &[FieldDef] = &[
    field("label", 0, 20, Number, Value(16), OrAuto).shown(),
    number("traffic_class", 20, 3, 0),
    field("bottom_of_stack", 23, 1, Number, Auto(BottomOfStack), OrAuto),
    number("time_to_live", 24, 8, 64),
];

/// IEEE 802.3 annex 31B: a whole frame, addresses included.
const ETHERNET_PAUSE_FIELDS: &[FieldDef] = &[
    field("dst", 0, 48, Mac(Destination), Value(PAUSE_DESTINATION_MAC), Plain),
    field("src", 48, 48, Mac(Source), Value(0), Plain),
    number("ether_type", 96, 16, PAUSE_ETHERTYPE),
    number("control_op_code", 112, 16, 1),
    number("time", 128, 16, 0),
];

/// IEEE 802.1Qbb: a whole frame, addresses included.
const PFC_PAUSE_FIELDS: &[FieldDef] = &[
    field("dst", 0, 48, Mac(Destination), Value(PAUSE_DESTINATION_MAC), Plain),
    field("src", 48, 48, Mac(Source), Value(0), Plain),
    number("ether_type", 96, 16, PAUSE_ETHERTYPE),
    number("control_op_code", 112, 16, 0x0101),
    number("class_enable_vector", 128, 16, 0),
    number("pause_class_0", 144, 16, 0),
    number("pause_class_1", 160, 16, 0),
    number("pause_class_2", 176, 16, 0),
    number("pause_class_3", 192, 16, 0),
    number("pause_class_4", 208, 16, 0),
    number("pause_class_5", 224, 16, 0),
    number("pause_class_6", 240, 16, 0),
    number("pause_class_7", 256, 16, 0),
];
