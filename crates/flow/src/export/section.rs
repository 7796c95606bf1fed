//! Parts of templates. A section is some fields and the code that writes them, side by side, so that they cannot disagree.
//!
//! A time of a direction that had no packet is that of the other one, because no reader knows a time that is absent; its count
//! of packets is 0.

use super::write::ValueWriter;
use crate::account::ENTERPRISE;
use crate::history::FlowHistory;
use crate::packet::TunnelKind;
use crate::record::{FlowHalf, FlowRecord};

/// Of reverse elements (RFC 5103).
pub(crate) const REVERSE: u32 = 29305;

/// A field of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SectionField {
    /// Number of its element.
    pub(crate) id: u16,
    /// Whose element it is; 0: IANA's.
    pub(crate) enterprise: u32,
    /// Length of its values; 65 535: each says its own.
    pub(crate) length: u16,
}

/// The length of fields whose values state their own length.
pub(crate) const VARIABLE: u16 = u16::MAX;

/// Numbers of our own elements in flow records; those of the ledger begin at 100.
pub(crate) mod own {
    use std::ops::RangeInclusive;

    /// How many records of this flow came before: 16 bits.
    pub(crate) const PART: u16 = 1;
    /// Whether packets were lost before the meter while the flow lived: boolean.
    pub(crate) const LOSS: u16 = 2;
    /// What the packets were carried in, the number of [`TunnelKind`](crate::Tunnel): 8 bits.
    pub(crate) const TUNNEL: u16 = 3;
    /// Its number: 32 bits.
    pub(crate) const TUNNEL_ID: u16 = 4;
    /// Source of the outermost IP header, an IPv6 address; IPv4 is mapped.
    pub(crate) const OUTER_SOURCE: u16 = 5;
    pub(crate) const OUTER_DESTINATION: u16 = 6;
    /// Time to live of the second MPLS label: 8 bits.
    pub(crate) const SECOND_TTL: u16 = 7;
    pub(crate) const THIRD_TTL: u16 = 8;
    /// The group of the meter that made the record, a hash of its name: 64 bits.
    pub(crate) const GROUP: u16 = 9;
    /// The number of that meter in its group: 32 bits.
    pub(crate) const METER: u16 = 10;
    /// Which of its interfaces, in their order: 16 bits.
    pub(crate) const LANE: u16 = 11;
    /// Whether the source is the end that comes second in the order of ends: boolean.
    pub(crate) const FLIPPED: u16 = 12;
    /// When the flow began, nanoseconds since 1970; the elements with this prefix count from then: 64 bits.
    pub(crate) const BEGAN: u16 = 13;
    /// The same after a silence of the timeout: 64 bits.
    pub(crate) const RESUMED: u16 = 14;
    pub(crate) const BEGAN_PACKETS: u16 = 15;
    pub(crate) const BEGAN_BYTES: u16 = 16;
    pub(crate) const BEGAN_FRAME_BYTES: u16 = 17;
    pub(crate) const RESUMED_PACKETS: u16 = 18;
    pub(crate) const RESUMED_BYTES: u16 = 19;
    pub(crate) const RESUMED_FRAME_BYTES: u16 = 20;
    pub(crate) const BEGAN_PACKETS_BACK: u16 = 21;
    pub(crate) const BEGAN_BYTES_BACK: u16 = 22;
    pub(crate) const BEGAN_FRAME_BYTES_BACK: u16 = 23;
    pub(crate) const RESUMED_PACKETS_BACK: u16 = 24;
    pub(crate) const RESUMED_BYTES_BACK: u16 = 25;
    pub(crate) const RESUMED_FRAME_BYTES_BACK: u16 = 26;
    /// Whether the meter surely saw the flow's beginning: boolean.
    pub(crate) const WHOLE: u16 = 27;
    /// The last moment at which a part of the flow was cut while the flow was quiet, nanoseconds since 1970, or 0: 64 bits.
    pub(crate) const CUT: u16 = 28;
    /// The term in which a meter is the active one of its group, or 0: 64 bits.
    pub(crate) const TERM: u16 = 29;
    /// Since when it is active, or not, nanoseconds since 1970: 64 bits.
    pub(crate) const SINCE: u16 = 30;
    /// For how long the active meter before it had not been heard, in nanoseconds: 64 bits.
    pub(crate) const SILENT: u16 = 31;
    /// From when on it has exported what it had kept, nanoseconds since 1970: 64 bits.
    pub(crate) const REPLAY_FROM: u16 = 32;
    /// Records that it had kept and exported then: 64 bits.
    pub(crate) const REPLAYED: u16 = 33;
    /// Packets of its copy of the link: 64 bits.
    pub(crate) const COPY: u16 = 34;
    pub(crate) const CUT_PACKETS: u16 = 35;
    pub(crate) const CUT_BYTES: u16 = 36;
    pub(crate) const CUT_FRAME_BYTES: u16 = 37;
    pub(crate) const CUT_PACKETS_BACK: u16 = 38;
    pub(crate) const CUT_BYTES_BACK: u16 = 39;
    pub(crate) const CUT_FRAME_BYTES_BACK: u16 = 40;
    /// All elements of groups of meters.
    pub(crate) const OF_GROUP: RangeInclusive<u16> = GROUP..=CUT_FRAME_BYTES_BACK;

    /// Each with its name, its data type (RFC 5610: 1 to 4 unsigned, 11 boolean, 19 IPv6 address) and its semantics (0 default,
    /// 3 counter that only grows, 4 identifier).
    pub(crate) const ALL: &[(u16, &str, u8, u8)] = &[
        (PART, "flowPart", 2, 0),
        (LOSS, "observedLoss", 11, 0),
        (TUNNEL, "tunnelKind", 1, 4),
        (TUNNEL_ID, "tunnelId", 3, 4),
        (OUTER_SOURCE, "outerSourceIPv6Address", 19, 0),
        (OUTER_DESTINATION, "outerDestinationIPv6Address", 19, 0),
        (SECOND_TTL, "mplsSecondLabelTTL", 1, 0),
        (THIRD_TTL, "mplsThirdLabelTTL", 1, 0),
        (GROUP, "meterGroup", 4, 4),
        (METER, "meterNumber", 3, 4),
        (LANE, "meterLane", 2, 4),
        (FLIPPED, "flowFlipped", 11, 0),
        (BEGAN, "flowBeganNanoseconds", 4, 0),
        (RESUMED, "flowResumedNanoseconds", 4, 0),
        (BEGAN_PACKETS, "flowBeganPackets", 4, 3),
        (BEGAN_BYTES, "flowBeganOctets", 4, 3),
        (BEGAN_FRAME_BYTES, "flowBeganLayer2Octets", 4, 3),
        (RESUMED_PACKETS, "flowResumedPackets", 4, 3),
        (RESUMED_BYTES, "flowResumedOctets", 4, 3),
        (RESUMED_FRAME_BYTES, "flowResumedLayer2Octets", 4, 3),
        (BEGAN_PACKETS_BACK, "reverseFlowBeganPackets", 4, 3),
        (BEGAN_BYTES_BACK, "reverseFlowBeganOctets", 4, 3),
        (BEGAN_FRAME_BYTES_BACK, "reverseFlowBeganLayer2Octets", 4, 3),
        (RESUMED_PACKETS_BACK, "reverseFlowResumedPackets", 4, 3),
        (RESUMED_BYTES_BACK, "reverseFlowResumedOctets", 4, 3),
        (RESUMED_FRAME_BYTES_BACK, "reverseFlowResumedLayer2Octets", 4, 3),
        (WHOLE, "flowBeginningSeen", 11, 0),
        (CUT, "flowCutNanoseconds", 4, 0),
        (TERM, "groupTerm", 4, 4),
        (SINCE, "groupRoleSinceNanoseconds", 4, 0),
        (SILENT, "groupSilenceNanoseconds", 4, 0),
        (REPLAY_FROM, "groupReplayFromNanoseconds", 4, 0),
        (REPLAYED, "groupReplayedRecords", 4, 3),
        (COPY, "groupCopyPackets", 4, 3),
        (CUT_PACKETS, "flowCutPackets", 4, 3),
        (CUT_BYTES, "flowCutOctets", 4, 3),
        (CUT_FRAME_BYTES, "flowCutLayer2Octets", 4, 3),
        (CUT_PACKETS_BACK, "reverseFlowCutPackets", 4, 3),
        (CUT_BYTES_BACK, "reverseFlowCutOctets", 4, 3),
        (CUT_FRAME_BYTES_BACK, "reverseFlowCutLayer2Octets", 4, 3),
    ];
}

/// Some fields and the code that writes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TemplateSection {
    pub(crate) fields: &'static [SectionField],
    pub(crate) write: fn(&FlowRecord, &mut Vec<u8>),
}

impl TemplateSection {
    /// How many bytes it takes of a record.
    pub(crate) const fn length(&self) -> usize {
        let mut length = 0;
        let mut at = 0;
        while at < self.fields.len() {
            length += self.fields[at].length as usize;
            at += 1;
        }
        length
    }
}

/// `element[@enterprise] length: writing;` for each field.
macro_rules! section {
    ($name:ident, $doc:literal, |$record:ident, $out:ident| { $($id:literal $(@ $enterprise:ident)? $(# $own:ident)? $length:literal: $write:expr;)* }) => {
        #[doc = $doc]
        pub(crate) const $name: TemplateSection = TemplateSection {
            fields: &[$(SectionField { id: $id $(+ own::$own)?, enterprise: 0 $(+ $enterprise)?, length: $length }),*],
            write: |$record, $out| { $($write;)* },
        };
    };
}

section!(TIMES, "Start and end of the forward direction, in milliseconds for all readers, in nanoseconds for those who can.", |record, out| {
    152 8: out.millis(forward(record).first_ns);
    153 8: out.millis(forward(record).last_ns);
    156 8: out.ntp(forward(record).first_ns);
    157 8: out.ntp(forward(record).last_ns);
});

/// Eight flags are all that our meter sees; RFC 9565 lets them be sent in one byte then.
pub(super) const fn seen_flags(flags: u16) -> u8 {
    flags.to_le_bytes()[0]
}

fn history(record: &FlowRecord) -> FlowHistory {
    record.history.as_deref().copied().unwrap_or_default()
}

section!(ADDRESSES_V4, "Addresses of IPv4.", |record, out| {
    8 4: out.v4(&record.key.source);
    12 4: out.v4(&record.key.destination);
});

section!(ADDRESSES_V6, "Addresses of IPv6.", |record, out| {
    27 16: out.bytes(&record.key.source);
    28 16: out.bytes(&record.key.destination);
});

section!(COMMON, "What every record has.", |record, out| {
    7 2: out.u16(record.key.source_port);
    11 2: out.u16(record.key.destination_port);
    4 1: out.u8(record.key.protocol);
    6 1: out.u8(seen_flags(record.forward.tcp_flags));
    5 1: out.u8(record.tos);
    136 1: out.u8(record.end as u8);
    2 8: out.u64(record.forward.packets);
    1 8: out.u64(record.forward.bytes);
    352 8: out.u64(record.forward.frame_bytes);
    148 8: out.u64(record.flow_id);
    10 4: out.u32(record.input);
    34 4: out.u32(record.sampling);
    56 6: out.bytes(&record.source_mac);
    80 6: out.bytes(&record.destination_mac);
    52 1: out.u8(record.ttl_min);
    53 1: out.u8(record.ttl_max);
});

section!(OWN, "What IANA has no element for.", |record, out| {
    0 @ENTERPRISE #PART 2: out.u16(record.part);
    0 @ENTERPRISE #LOSS 1: out.u8(if record.loss { 1 } else { 2 });
});

section!(HISTORY, "What the flow had since it began, of a meter of a group.", |record, out| {
    0 @ENTERPRISE #GROUP 8: out.u64(history(record).mark.group);
    0 @ENTERPRISE #METER 4: out.u32(history(record).mark.meter);
    0 @ENTERPRISE #LANE 2: out.u16(history(record).mark.lane);
    0 @ENTERPRISE #FLIPPED 1: out.u8(if history(record).flipped { 1 } else { 2 });
    0 @ENTERPRISE #WHOLE 1: out.u8(if history(record).is_whole { 1 } else { 2 });
    0 @ENTERPRISE #CUT 8: out.u64(history(record).cut.at_ns);
    0 @ENTERPRISE #BEGAN 8: out.u64(history(record).began.at_ns);
    0 @ENTERPRISE #RESUMED 8: out.u64(history(record).resumed.at_ns);
    0 @ENTERPRISE #BEGAN_PACKETS 8: out.u64(history(record).began.forward.packets);
    0 @ENTERPRISE #BEGAN_BYTES 8: out.u64(history(record).began.forward.bytes);
    0 @ENTERPRISE #BEGAN_FRAME_BYTES 8: out.u64(history(record).began.forward.frame_bytes);
    0 @ENTERPRISE #RESUMED_PACKETS 8: out.u64(history(record).resumed.forward.packets);
    0 @ENTERPRISE #RESUMED_BYTES 8: out.u64(history(record).resumed.forward.bytes);
    0 @ENTERPRISE #RESUMED_FRAME_BYTES 8: out.u64(history(record).resumed.forward.frame_bytes);
    0 @ENTERPRISE #CUT_PACKETS 8: out.u64(history(record).cut.forward.packets);
    0 @ENTERPRISE #CUT_BYTES 8: out.u64(history(record).cut.forward.bytes);
    0 @ENTERPRISE #CUT_FRAME_BYTES 8: out.u64(history(record).cut.forward.frame_bytes);
});

section!(HISTORY_BACK, "The same of the reverse direction.", |record, out| {
    0 @ENTERPRISE #BEGAN_PACKETS_BACK 8: out.u64(history(record).began.reverse.packets);
    0 @ENTERPRISE #BEGAN_BYTES_BACK 8: out.u64(history(record).began.reverse.bytes);
    0 @ENTERPRISE #BEGAN_FRAME_BYTES_BACK 8: out.u64(history(record).began.reverse.frame_bytes);
    0 @ENTERPRISE #RESUMED_PACKETS_BACK 8: out.u64(history(record).resumed.reverse.packets);
    0 @ENTERPRISE #RESUMED_BYTES_BACK 8: out.u64(history(record).resumed.reverse.bytes);
    0 @ENTERPRISE #RESUMED_FRAME_BYTES_BACK 8: out.u64(history(record).resumed.reverse.frame_bytes);
    0 @ENTERPRISE #CUT_PACKETS_BACK 8: out.u64(history(record).cut.reverse.packets);
    0 @ENTERPRISE #CUT_BYTES_BACK 8: out.u64(history(record).cut.reverse.bytes);
    0 @ENTERPRISE #CUT_FRAME_BYTES_BACK 8: out.u64(history(record).cut.reverse.frame_bytes);
});

section!(BACK, "The reverse direction (RFC 5103).", |record, out| {
    152 @REVERSE 8: out.millis(reverse(record).first_ns);
    153 @REVERSE 8: out.millis(reverse(record).last_ns);
    156 @REVERSE 8: out.ntp(reverse(record).first_ns);
    157 @REVERSE 8: out.ntp(reverse(record).last_ns);
    2 @REVERSE 8: out.u64(record.reverse.packets);
    1 @REVERSE 8: out.u64(record.reverse.bytes);
    352 @REVERSE 8: out.u64(record.reverse.frame_bytes);
    6 @REVERSE 1: out.u8(seen_flags(record.reverse.tcp_flags));
});

section!(TAGS, "VLANs; the outer one twice, because older readers know only the first of its elements.", |record, out| {
    58 2: out.u16(record.key.vlan);
    243 2: out.u16(record.key.vlan);
    245 2: out.u16(record.key.inner_vlan);
});

section!(LABELS, "An MPLS stack. Elements 70 to 72 are the three bytes of an entry in front of its time to live.", |record, out| {
    70 3: out.bytes(&record.mpls[0].to_be_bytes()[..3]);
    71 3: out.bytes(&record.mpls[1].to_be_bytes()[..3]);
    72 3: out.bytes(&record.mpls[2].to_be_bytes()[..3]);
    200 1: out.u8(record.mpls[0].to_be_bytes()[3]);
});

section!(SEGMENT, "A VXLAN network, as IANA numbers such.", |record, out| {
    351 8: out.u64(segment(record));
});

section!(TUNNEL, "What the packets were carried in.", |record, out| {
    0 @ENTERPRISE #TUNNEL 1: out.u8(record.key.tunnel as u8);
    0 @ENTERPRISE #TUNNEL_ID 4: out.u32(record.key.tunnel_id);
    0 @ENTERPRISE #OUTER_SOURCE 16: out.bytes(&record.outer_source);
    0 @ENTERPRISE #OUTER_DESTINATION 16: out.bytes(&record.outer_destination);
});

section!(LOWER_TTLS, "Times to live of the labels below the top, which IANA has no elements for.", |record, out| {
    0 @ENTERPRISE #SECOND_TTL 1: out.u8(record.mpls[1].to_be_bytes()[3]);
    0 @ENTERPRISE #THIRD_TTL 1: out.u8(record.mpls[2].to_be_bytes()[3]);
});

section!(ICMP_V4, "ICMP type and code.", |record, out| {
    32 2: out.u16(record.icmp);
});

section!(ICMP_V6, "ICMPv6 type and code.", |record, out| {
    139 2: out.u16(record.icmp);
});

const fn forward(record: &FlowRecord) -> &FlowHalf {
    if record.forward.packets == 0 { &record.reverse } else { &record.forward }
}

const fn reverse(record: &FlowRecord) -> &FlowHalf {
    if record.reverse.packets == 0 { &record.forward } else { &record.reverse }
}

/// Element 351: its first byte says what the rest is; 1 is VXLAN.
const fn segment(record: &FlowRecord) -> u64 {
    match record.key.tunnel {
        TunnelKind::Vxlan => 1 << 56 | record.key.tunnel_id as u64,
        _ => 0,
    }
}
