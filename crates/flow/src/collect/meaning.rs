//! Meaning of a template field for a record. Numbers are those of IANA's information elements; below 128, they are also
//! the field types of NetFlow v9.

use super::template::FieldName;
use crate::account::{ENTERPRISE_NUMBER, ledger_value_by_id};
use crate::export::section::{REVERSE_ENTERPRISE, own};
use crate::foreign::reverse_name;
use crate::iana;

/// Notation of a time, from the coarsest to the finest. Times count from 1970 unless they name another origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimeNotation {
    Seconds,
    /// Milliseconds since the exporter was started.
    Uptime,
    Millis,
    /// Microseconds before the message was sent.
    Before,
    /// NTP time, precise to the microsecond.
    Micros,
    Nanos,
}

/// Rank of a field among several fields for the same value: the highest rank wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FieldRank {
    Post,
    /// Total since the flow began.
    Total,
    /// Count since the last record of the flow.
    Delta,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldMeaning {
    /// The field carries no separate information.
    Skipped,
    /// The field has no column, so it is kept under its name.
    Other(FieldName),
    Packets(FieldRank),
    Octets(FieldRank),
    FrameOctets(FieldRank),
    /// Packets that the responder sent: the reverse direction of the record.
    AnswerPackets,
    AnswerOctets,
    Start(TimeNotation),
    End(TimeNotation),
    DurationMillis,
    DurationMicros,
    Source4,
    Destination4,
    Source6,
    Destination6,
    SourcePort,
    DestinationPort,
    Protocol,
    Tos,
    TcpFlags,
    Vlan(FieldRank),
    InnerVlan,
    IcmpTypeCode,
    IcmpType,
    IcmpCode,
    Mpls(u8),
    SourceMac,
    DestinationMac,
    LeastTtl,
    GreatestTtl,
    Ttl,
    EndReason,
    FlowId,
    Input,
    Output,
    SourceAs,
    DestinationAs,
    NextHop,
    BgpNextHop,
    NatSource,
    NatDestination,
    NatSourcePort,
    NatDestinationPort,
    PostVlan,
    PostTos,
    Segment,
    TunnelKind,
    TunnelId,
    OuterSource,
    OuterDestination,
    /// Time to live of an MPLS label.
    MplsTtl(u8),
    Part,
    Loss,
    Merged,
    /// Sampling interval: one of this many packets is sampled. It comes in options or in each record.
    SamplingInterval,
    /// Number of consecutive packets that are sampled before packets are skipped.
    SamplingTaken,
    /// Number of packets that are skipped after the sampled ones.
    SamplingSpace,
    /// The number of a sampler; an options record states the interval of this sampler.
    Sampler,
    /// Time at which the exporter started, milliseconds since 1970.
    Boot,
    Statistic(ExporterStatistic),
    /// Time at which the options were valid, milliseconds since 1970.
    Observed,
    /// An element of the [history](crate::FlowHistory) of a flow or of the
    /// [membership](crate::GroupMembership) of a meter, by its number.
    History(u16),
    /// The [history](crate::FlowHistory) of a flow as a byte string, without group, meter and interface.
    Track,
    /// A count (account) of the ledger of a packetrig meter, by its element number.
    Account(u16),
}

/// Numbers of an exporter about itself, in options records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExporterStatistic {
    ExportedOctets,
    ExportedMessages,
    ExportedRecords,
    Packets,
    Dropped,
    Ignored,
    NotSentRecords,
    NotSentPackets,
    NotSentOctets,
    Flows,
}

impl ExporterStatistic {
    pub(super) const ALL: [Self; 10] = [
        Self::ExportedOctets,
        Self::ExportedMessages,
        Self::ExportedRecords,
        Self::Packets,
        Self::Dropped,
        Self::Ignored,
        Self::NotSentRecords,
        Self::NotSentPackets,
        Self::NotSentOctets,
        Self::Flows,
    ];
}

impl FieldMeaning {
    /// Keeps a meaning that exists for each direction. Any other meaning becomes [`Self::Other`], because the reverse
    /// direction has no column for it.
    const fn keep_if_per_direction(self, name: FieldName) -> Self {
        match self {
            Self::Packets(_)
            | Self::Octets(_)
            | Self::FrameOctets(_)
            | Self::TcpFlags
            | Self::Start(_)
            | Self::End(_)
            | Self::DurationMillis
            | Self::DurationMicros => self,
            _ => Self::Other(name),
        }
    }
}

pub(super) fn field_meaning(name: FieldName) -> FieldMeaning {
    let known = match name.enterprise {
        0 => iana_meaning(name.id),
        // `keep_if_per_direction` turns an unknown element into `Other`, so its value is kept under its own name.
        REVERSE_ENTERPRISE => {
            return iana_meaning(name.id).unwrap_or(FieldMeaning::Skipped).keep_if_per_direction(name);
        }
        ENTERPRISE_NUMBER => packetrig_field_meaning(name.id),
        _ => None,
    };
    known.unwrap_or(FieldMeaning::Other(name))
}

fn iana_meaning(id: u16) -> Option<FieldMeaning> {
    use FieldMeaning as M;
    Some(match id {
        1 | 231 => M::Octets(FieldRank::Delta),
        2 | 298 => M::Packets(FieldRank::Delta),
        85 => M::Octets(FieldRank::Total),
        // In options records, this is the number of packets that an exporter saw in total. In a flow record, it is read
        // as the total of the flow.
        86 => M::Packets(FieldRank::Total),
        23 | 171 => M::Octets(FieldRank::Post),
        24 | 172 => M::Packets(FieldRank::Post),
        352 => M::FrameOctets(FieldRank::Delta),
        353 => M::FrameOctets(FieldRank::Total),
        232 => M::AnswerOctets,
        299 => M::AnswerPackets,
        4 => M::Protocol,
        5 => M::Tos,
        6 => M::TcpFlags,
        // Elements 180 to 183 are the ports of UDP and of TCP alone.
        7 | 180 | 182 => M::SourcePort,
        11 | 181 | 183 => M::DestinationPort,
        8 => M::Source4,
        12 => M::Destination4,
        27 => M::Source6,
        28 => M::Destination6,
        10 => M::Input,
        32 | 139 => M::IcmpTypeCode,
        176 | 178 => M::IcmpType,
        177 | 179 => M::IcmpCode,
        52 => M::LeastTtl,
        53 => M::GreatestTtl,
        192 => M::Ttl,
        56 => M::SourceMac,
        80 => M::DestinationMac,
        // Exporters may send both: 243 (dot1qVlanId) outranks the older 58 (vlanId).
        58 => M::Vlan(FieldRank::Total),
        243 => M::Vlan(FieldRank::Delta),
        245 => M::InnerVlan,
        70 => M::Mpls(0),
        71 => M::Mpls(1),
        72 => M::Mpls(2),
        200 => M::MplsTtl(0),
        136 => M::EndReason,
        148 => M::FlowId,
        351 => M::Segment,
        _ => return router_meaning(id).or_else(|| time_meaning(id)),
    })
}

/// Elements that routers and firewalls send.
fn router_meaning(id: u16) -> Option<FieldMeaning> {
    use FieldMeaning as M;
    Some(match id {
        14 => M::Output,
        15 | 62 => M::NextHop,
        16 => M::SourceAs,
        17 => M::DestinationAs,
        18 | 63 => M::BgpNextHop,
        55 => M::PostTos,
        59 | 254 => M::PostVlan,
        225 | 281 => M::NatSource,
        226 | 282 => M::NatDestination,
        227 => M::NatSourcePort,
        228 => M::NatDestinationPort,
        _ => return None,
    })
}

fn time_meaning(id: u16) -> Option<FieldMeaning> {
    use FieldMeaning as M;
    Some(match id {
        21 => M::End(TimeNotation::Uptime),
        22 => M::Start(TimeNotation::Uptime),
        150 => M::Start(TimeNotation::Seconds),
        151 => M::End(TimeNotation::Seconds),
        152 => M::Start(TimeNotation::Millis),
        153 => M::End(TimeNotation::Millis),
        154 => M::Start(TimeNotation::Micros),
        155 => M::End(TimeNotation::Micros),
        156 => M::Start(TimeNotation::Nanos),
        157 => M::End(TimeNotation::Nanos),
        158 => M::Start(TimeNotation::Before),
        159 => M::End(TimeNotation::Before),
        161 => M::DurationMillis,
        162 => M::DurationMicros,
        160 => M::Boot,
        _ => return exporter_meaning(id),
    })
}

const fn exporter_meaning(id: u16) -> Option<FieldMeaning> {
    use FieldMeaning as M;
    Some(match id {
        // Element 0 does not exist, 210 is padding, and 60 is the IP version, which the addresses show anyway.
        0 | 60 | 210 => M::Skipped,
        34 | 50 => M::SamplingInterval,
        305 => M::SamplingTaken,
        306 => M::SamplingSpace,
        48 | 302 => M::Sampler,
        323 => M::Observed,
        40 => M::Statistic(ExporterStatistic::ExportedOctets),
        41 => M::Statistic(ExporterStatistic::ExportedMessages),
        42 => M::Statistic(ExporterStatistic::ExportedRecords),
        135 => M::Statistic(ExporterStatistic::Dropped),
        163 => M::Statistic(ExporterStatistic::Flows),
        164 => M::Statistic(ExporterStatistic::Ignored),
        166 => M::Statistic(ExporterStatistic::NotSentRecords),
        167 => M::Statistic(ExporterStatistic::NotSentPackets),
        168 => M::Statistic(ExporterStatistic::NotSentOctets),
        _ => return None,
    })
}

/// Returns the meaning of an element that packetrig's own meter defines; `None` if the number is not known.
fn packetrig_field_meaning(id: u16) -> Option<FieldMeaning> {
    Some(match id {
        own::PART_ELEMENT => FieldMeaning::Part,
        own::LOSS_ELEMENT => FieldMeaning::Loss,
        own::MERGED_ELEMENT => FieldMeaning::Merged,
        own::TUNNEL_ELEMENT => FieldMeaning::TunnelKind,
        own::TUNNEL_ID => FieldMeaning::TunnelId,
        own::OUTER_SOURCE => FieldMeaning::OuterSource,
        own::OUTER_DESTINATION => FieldMeaning::OuterDestination,
        own::SECOND_TTL => FieldMeaning::MplsTtl(1),
        own::THIRD_TTL => FieldMeaning::MplsTtl(2),
        own::HISTORY_ELEMENT => FieldMeaning::Track,
        id if own::GROUP_ELEMENT_RANGE.contains(&id) => FieldMeaning::History(id),
        id if ledger_value_by_id(id).is_some() => FieldMeaning::Account(id),
        _ => return None,
    })
}

/// Returns the name of a field that users see in the list of fields without a column.
pub(super) fn field_label(name: FieldName) -> String {
    match (name.enterprise, iana::element_by_id(name.id).map(|element| element.name)) {
        (0, Some(known)) => known.to_owned(),
        (0, None) => format!("element {}", name.id),
        (REVERSE_ENTERPRISE, Some(known)) => reverse_name(known),
        (REVERSE_ENTERPRISE, None) => format!("reverse element {}", name.id),
        (enterprise, _) => format!("element {} of enterprise {enterprise}", name.id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::FLOW_ELEMENTS;

    #[test]
    fn every_numbered_column_is_understood() {
        for element in FLOW_ELEMENTS.iter().filter(|element| element.id > 0) {
            let enterprise = if element.reverse { REVERSE_ENTERPRISE } else { 0 };
            let found = field_meaning(FieldName { enterprise, id: element.id });
            assert!(
                !matches!(found, FieldMeaning::Skipped | FieldMeaning::Other(_))
                    || element.name == "ipVersion",
                "{} {}",
                element.name,
                element.id
            );
        }
    }

    #[test]
    fn skipped_field_label_is_name_or_number() {
        assert_eq!(field_label(FieldName { enterprise: 0, id: 14 }), "egressInterface");
        assert_eq!(field_label(FieldName { enterprise: 0, id: 9999 }), "element 9999");
        assert_eq!(field_label(FieldName { enterprise: 9, id: 14 }), "element 14 of enterprise 9");
        assert_eq!(
            field_label(FieldName { enterprise: REVERSE_ENTERPRISE, id: 14 }),
            "reverseEgressInterface"
        );
        assert_eq!(
            field_label(FieldName { enterprise: REVERSE_ENTERPRISE, id: 9999 }),
            "reverse element 9999"
        );
    }
}
