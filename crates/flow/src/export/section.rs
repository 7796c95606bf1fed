//! Sections, of which templates consist. A section has some fields and the code that writes them, side by side, so
//! that they cannot disagree.
//!
//! A direction without packets gets the time of the other one, because no reader understands a missing time;
//! its count of packets is 0.

use super::write::ValueWriter;
use crate::account::ENTERPRISE_NUMBER;
use crate::foreign::ForeignFields;
use crate::history::{FlowHistory, RecordOriginMark};
use crate::narrow::fitting_u16;
use crate::packet::TunnelKind;
use crate::record::{FlowHalf, FlowRecord};
use std::sync::LazyLock;

/// Enterprise number of reverse elements (RFC 5103).
pub(crate) const REVERSE_ENTERPRISE: u32 = 29305;

/// A field of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SectionField {
    /// Number of the element.
    pub(crate) id: u16,
    /// Enterprise that defines the element; 0 is IANA.
    pub(crate) enterprise: u32,
    /// Length of a value in bytes; 65 535 means that each value states its own length.
    pub(crate) length: u16,
}

/// The length of fields whose values state their own length.
pub(crate) const VARIABLE_LENGTH: u16 = u16::MAX;

/// Numbers of our own elements in flow records; those of the ledger begin at 100.
pub(crate) mod own {
    use std::ops::RangeInclusive;

    /// Number of earlier records of this flow: 16 bits.
    pub(crate) const PART_ELEMENT: u16 = 1;
    /// True if packets were lost before the meter while the flow was active: boolean.
    pub(crate) const LOSS_ELEMENT: u16 = 2;
    /// Kind of tunnel that carried the packets, the number of [`TunnelKind`](crate::TunnelKind): 8 bits.
    pub(crate) const TUNNEL_ELEMENT: u16 = 3;
    /// Number of the tunnel: 32 bits.
    pub(crate) const TUNNEL_ID: u16 = 4;
    /// Source of the outermost IP header, an IPv6 address; IPv4 is mapped.
    pub(crate) const OUTER_SOURCE: u16 = 5;
    pub(crate) const OUTER_DESTINATION: u16 = 6;
    /// Time to live of the second MPLS label: 8 bits.
    pub(crate) const SECOND_TTL: u16 = 7;
    pub(crate) const THIRD_TTL: u16 = 8;
    /// The group of the meter that made the record, a hash of its name: 64 bits.
    pub(crate) const GROUP_ELEMENT: u16 = 9;
    /// The number of the meter in its group: 32 bits.
    pub(crate) const METER_ELEMENT: u16 = 10;
    /// Index of the interface in the meter's list of interfaces: 16 bits.
    pub(crate) const INTERFACE_INDEX_ELEMENT: u16 = 11;
    /// The term in which a meter is the active one of its group; 0 for a standby: 64 bits.
    pub(crate) const TERM_ELEMENT: u16 = 29;
    /// Time of the meter's last change of role, nanoseconds since 1970: 64 bits.
    pub(crate) const ROLE_SINCE_ELEMENT: u16 = 30;
    /// Time for which the previous active meter had been silent, in nanoseconds: 64 bits.
    pub(crate) const SILENCE_TIME_ELEMENT: u16 = 31;
    /// Time from which the meter has exported its kept records, nanoseconds since 1970: 64 bits.
    pub(crate) const REPLAY_FROM: u16 = 32;
    /// Number of kept records that the meter exported when it became active: 64 bits.
    pub(crate) const REPLAYED_RECORDS_ELEMENT: u16 = 33;
    /// Packets that the meter saw on its copy of the link: 64 bits.
    pub(crate) const COPY_PACKETS_ELEMENT: u16 = 34;
    /// History of the flow as its meter followed it, see [`FlowHistory`](crate::FlowHistory): bytes.
    pub(crate) const HISTORY_ELEMENT: u16 = 41;
    /// True if packets were merged before the meter and counted as one: boolean.
    pub(crate) const MERGED_ELEMENT: u16 = 60;
    /// Autonomous systems on the way to the destination, as an agent of sFlow reports them: text.
    pub(crate) const AS_PATH: u16 = 61;
    /// Local preference of the route: 32 bits.
    pub(crate) const LOCAL_PREFERENCE: u16 = 62;
    /// Numbers of all elements about groups of meters.
    pub(crate) const GROUP_ELEMENT_RANGE: RangeInclusive<u16> = GROUP_ELEMENT..=COPY_PACKETS_ELEMENT;

    /// All own elements, each with its name, its data type (RFC 5610: 0 bytes, 1 to 4 unsigned, 11 boolean, 13 text, 19
    /// IPv6 address) and its semantics (0 default, 3 counter that only grows, 4 identifier).
    pub(crate) const ALL: &[(u16, &str, u8, u8)] = &[
        (PART_ELEMENT, "flowPart", 2, 0),
        (LOSS_ELEMENT, "observedLoss", 11, 0),
        (TUNNEL_ELEMENT, "tunnelKind", 1, 4),
        (TUNNEL_ID, "tunnelId", 3, 4),
        (OUTER_SOURCE, "outerSourceIPv6Address", 19, 0),
        (OUTER_DESTINATION, "outerDestinationIPv6Address", 19, 0),
        (SECOND_TTL, "mplsSecondLabelTTL", 1, 0),
        (THIRD_TTL, "mplsThirdLabelTTL", 1, 0),
        (GROUP_ELEMENT, "meterGroup", 4, 4),
        (METER_ELEMENT, "meterNumber", 3, 4),
        (INTERFACE_INDEX_ELEMENT, "meterLane", 2, 4),
        (TERM_ELEMENT, "groupTerm", 4, 4),
        (ROLE_SINCE_ELEMENT, "groupRoleSinceNanoseconds", 4, 0),
        (SILENCE_TIME_ELEMENT, "groupSilenceNanoseconds", 4, 0),
        (REPLAY_FROM, "groupReplayFromNanoseconds", 4, 0),
        (REPLAYED_RECORDS_ELEMENT, "groupReplayedRecords", 4, 3),
        (COPY_PACKETS_ELEMENT, "groupCopyPackets", 4, 3),
        (HISTORY_ELEMENT, "flowTrack", 0, 0),
        (MERGED_ELEMENT, "observedMerge", 11, 0),
        (AS_PATH, "bgpAsPath", 13, 0),
        (LOCAL_PREFERENCE, "bgpLocalPreference", 3, 0),
    ];
}

/// Some fields of a template, and the code that writes their values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TemplateSection {
    pub(crate) fields: &'static [SectionField],
    pub(crate) write: fn(&FlowRecord, &mut Vec<u8>),
}

impl TemplateSection {
    /// Returns how many bytes of a record the section's fields of fixed length take.
    pub(crate) fn fixed_length(&self) -> usize {
        self.fields
            .iter()
            .map(|field| field.length)
            .filter(|length| *length != VARIABLE_LENGTH)
            .map(usize::from)
            .sum()
    }

    pub(crate) fn has_variable_fields(&self) -> bool {
        self.fields.iter().any(|field| field.length == VARIABLE_LENGTH)
    }
}

/// `element [@ enterprise] [# own] length: writing;` for each field. Own elements: `0 … # name`.
macro_rules! section {
    ($name:ident, $doc:literal, |$record:ident, $out:ident| { $($id:literal $(@ $enterprise:ident)? $(# $own:ident)? $length:literal: $write:expr;)* }) => {
        #[doc = $doc]
        pub(crate) const $name: TemplateSection = TemplateSection {
            fields: &[$(SectionField { id: $id $(+ own::$own)?, enterprise: 0 $(+ $enterprise)?, length: $length }),*],
            write: |$record, $out| { $($write;)* },
        };
    };
}

section!(TIMES, "Start and end of the forward direction, in milliseconds for all readers, in nanoseconds \
    for readers that support them.", |record, out| {
    152 8: out.put_millis(forward_or_reverse(record).first_ns);
    153 8: out.put_millis(forward_or_reverse(record).last_ns);
    156 8: out.put_ntp(forward_or_reverse(record).first_ns);
    157 8: out.put_ntp(forward_or_reverse(record).last_ns);
});

/// Returns the flags as one byte: our meter sees only eight, and RFC 9565 lets them be sent in one byte then.
pub(super) const fn direction_flags(flags: u16) -> u8 {
    flags.to_le_bytes()[0]
}

fn record_history(record: &FlowRecord) -> FlowHistory {
    record.history.as_deref().copied().unwrap_or_default()
}

section!(ADDRESSES_V4, "Addresses of IPv4.", |record, out| {
    8 4: out.put_ipv4(&record.key.source);
    12 4: out.put_ipv4(&record.key.destination);
});

section!(ADDRESSES_V6, "Addresses of IPv6.", |record, out| {
    27 16: out.put_bytes(&record.key.source);
    28 16: out.put_bytes(&record.key.destination);
});

section!(COMMON, "Fields that every record has.", |record, out| {
    7 2: out.put_u16(record.key.source_port);
    11 2: out.put_u16(record.key.destination_port);
    4 1: out.put_u8(record.key.protocol);
    6 1: out.put_u8(direction_flags(record.forward.tcp_flags));
    5 1: out.put_u8(record.tos);
    136 1: out.put_u8(record.end as u8);
    2 8: out.put_u64(record.forward.packets);
    1 8: out.put_u64(record.forward.bytes);
    352 8: out.put_u64(record.forward.frame_bytes);
    148 8: out.put_u64(record.flow_id);
    10 4: out.put_u32(record.input);
    34 4: out.put_u32(record.sampling);
    56 6: out.put_bytes(&record.source_mac);
    80 6: out.put_bytes(&record.destination_mac);
    52 1: out.put_u8(record.ttl_min);
    53 1: out.put_u8(record.ttl_max);
});

section!(OWN, "Fields for which IANA has no element.", |record, out| {
    0 @ENTERPRISE_NUMBER #PART_ELEMENT 2: out.put_u16(record.part);
    0 @ENTERPRISE_NUMBER #LOSS_ELEMENT 1: out.put_u8(if record.loss { 1 } else { 2 });
    0 @ENTERPRISE_NUMBER #MERGED_ELEMENT 1: out.put_u8(if record.merged { 1 } else { 2 });
});

/// Returns how many bytes the history of a record takes, its length bytes included.
pub(super) fn history_track_length(record: &FlowRecord) -> usize {
    LONG_LENGTH_FIELD_BYTES + record_history(record).encode_track().len()
}

/// RFC 7011 section 7: a first byte of 255 announces a length of two bytes.
const LONG_LENGTH_FIELD_BYTES: usize = 3;

fn write_history_track(record: &FlowRecord, out: &mut Vec<u8>) {
    // A history has 100 to 200 bytes, around the limit of the short form. The
    // long form is valid for every length.
    let track = record_history(record).encode_track();
    out.put_u8(u8::MAX);
    out.put_u16(fitting_u16(track.len()));
    out.put_bytes(&track);
}

/// Fields that identify which packets of the flow the record has, for a meter of a group. They are not made by the
/// macro, because the last field states its own length.
pub(crate) const HISTORY_SECTION: TemplateSection = TemplateSection {
    fields: &[
        packetrig_field(own::GROUP_ELEMENT, 8),
        packetrig_field(own::METER_ELEMENT, 4),
        packetrig_field(own::INTERFACE_INDEX_ELEMENT, 2),
        packetrig_field(own::HISTORY_ELEMENT, VARIABLE_LENGTH),
    ],
    write: |record, out| {
        let RecordOriginMark { group, meter, lane } = record_history(record).mark;
        out.put_u64(group);
        out.put_u32(meter);
        out.put_u16(lane);
        write_history_track(record, out);
    },
};

const fn packetrig_field(id: u16, length: u16) -> SectionField {
    SectionField { id, enterprise: ENTERPRISE_NUMBER, length }
}

section!(BACK, "The reverse direction (RFC 5103).", |record, out| {
    152 @REVERSE_ENTERPRISE 8: out.put_millis(reverse_or_forward(record).first_ns);
    153 @REVERSE_ENTERPRISE 8: out.put_millis(reverse_or_forward(record).last_ns);
    156 @REVERSE_ENTERPRISE 8: out.put_ntp(reverse_or_forward(record).first_ns);
    157 @REVERSE_ENTERPRISE 8: out.put_ntp(reverse_or_forward(record).last_ns);
    2 @REVERSE_ENTERPRISE 8: out.put_u64(record.reverse.packets);
    1 @REVERSE_ENTERPRISE 8: out.put_u64(record.reverse.bytes);
    352 @REVERSE_ENTERPRISE 8: out.put_u64(record.reverse.frame_bytes);
    6 @REVERSE_ENTERPRISE 1: out.put_u8(direction_flags(record.reverse.tcp_flags));
});

section!(TAGS, "VLANs; the outer one twice, because older readers know only the first of its elements.", |record, out| {
    58 2: out.put_u16(record.key.vlan);
    243 2: out.put_u16(record.key.vlan);
    245 2: out.put_u16(record.key.inner_vlan);
});

section!(LABELS, "An MPLS stack. Elements 70 to 72 are the three bytes of an entry in front of its time to live.", |record, out| {
    70 3: out.put_bytes(&record.mpls[0].to_be_bytes()[..3]);
    71 3: out.put_bytes(&record.mpls[1].to_be_bytes()[..3]);
    72 3: out.put_bytes(&record.mpls[2].to_be_bytes()[..3]);
    200 1: out.put_u8(record.mpls[0].to_be_bytes()[3]);
});

section!(SEGMENT, "A VXLAN network, in the form of IANA's element 351.", |record, out| {
    351 8: out.put_u64(segment_id(record));
});

fn routed_fields(record: &FlowRecord) -> &ForeignFields {
    static NONE: LazyLock<ForeignFields> = LazyLock::new(ForeignFields::default);
    record.foreign.as_deref().unwrap_or(&NONE)
}

section!(ROUTES, "Fields that only other exporters know: routes, and addresses after NAT.", |record, out| {
    14 4: out.put_u32(routed_fields(record).output);
    16 4: out.put_u32(routed_fields(record).source_as);
    17 4: out.put_u32(routed_fields(record).destination_as);
    62 16: out.put_bytes(&routed_fields(record).next_hop);
    63 16: out.put_bytes(&routed_fields(record).bgp_next_hop);
    59 2: out.put_u16(routed_fields(record).post_vlan);
    55 1: out.put_u8(routed_fields(record).post_tos);
    281 16: out.put_bytes(&routed_fields(record).nat_source);
    282 16: out.put_bytes(&routed_fields(record).nat_destination);
    227 2: out.put_u16(routed_fields(record).nat_source_port);
    228 2: out.put_u16(routed_fields(record).nat_destination_port);
});

section!(TUNNEL, "The tunnel that carried the packets.", |record, out| {
    0 @ENTERPRISE_NUMBER #TUNNEL_ELEMENT 1: out.put_u8(record.key.tunnel as u8);
    0 @ENTERPRISE_NUMBER #TUNNEL_ID 4: out.put_u32(record.key.tunnel_id);
    0 @ENTERPRISE_NUMBER #OUTER_SOURCE 16: out.put_bytes(&record.outer_source);
    0 @ENTERPRISE_NUMBER #OUTER_DESTINATION 16: out.put_bytes(&record.outer_destination);
});

section!(LOWER_TTLS, "Times to live of the labels below the top, which IANA has no elements for.", |record, out| {
    0 @ENTERPRISE_NUMBER #SECOND_TTL 1: out.put_u8(record.mpls[1].to_be_bytes()[3]);
    0 @ENTERPRISE_NUMBER #THIRD_TTL 1: out.put_u8(record.mpls[2].to_be_bytes()[3]);
});

section!(ICMP_V4, "ICMP type and code.", |record, out| {
    32 2: out.put_u16(record.icmp);
});

section!(ICMP_V6, "ICMPv6 type and code.", |record, out| {
    139 2: out.put_u16(record.icmp);
});

const fn forward_or_reverse(record: &FlowRecord) -> &FlowHalf {
    if record.forward.packets == 0 { &record.reverse } else { &record.forward }
}

const fn reverse_or_forward(record: &FlowRecord) -> &FlowHalf {
    if record.reverse.packets == 0 { &record.forward } else { &record.reverse }
}

/// Returns the value of element 351: its first byte is the kind of segment (1 is VXLAN), the others are the number. 0
/// for any other tunnel.
const fn segment_id(record: &FlowRecord) -> u64 {
    match record.key.tunnel {
        TunnelKind::Vxlan => 1 << 56 | record.key.tunnel_id as u64,
        _ => 0,
    }
}
