//! Finds the column of a record that holds a field of an exporter.

use super::meaning::{FieldMeaning, field_meaning};
use super::template::FieldName;
use crate::export::section::REVERSE_ENTERPRISE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldPlace {
    /// The field is in the column of this name.
    Column(&'static str),
    /// The field is among the other fields, under its own name.
    OtherFields,
    /// The field is in no record: it is about the exporter, or carries no information.
    NoRecord,
}

/// Finds where the values of an element are stored. Enterprise 0 is IANA.
pub fn field_place(enterprise: u32, id: u16) -> FieldPlace {
    if (enterprise, id) == (0, 60) {
        // The field is skipped, because the addresses show the version.
        return FieldPlace::Column("ipVersion");
    }
    let meaning = field_meaning(FieldName { enterprise, id });
    // The history of a flow is stored with each record of a group of meters.
    if let FieldMeaning::Other(_) | FieldMeaning::Track | FieldMeaning::History(_) = meaning {
        return FieldPlace::OtherFields;
    }
    let column = if enterprise == REVERSE_ENTERPRISE { reverse_column_name(meaning) } else { None };
    column.or_else(|| column_for_meaning(meaning)).map_or(FieldPlace::NoRecord, FieldPlace::Column)
}

const fn reverse_column_name(meaning: FieldMeaning) -> Option<&'static str> {
    Some(match meaning {
        FieldMeaning::Packets(_) => "reversePacketDeltaCount",
        FieldMeaning::Octets(_) => "reverseOctetDeltaCount",
        FieldMeaning::FrameOctets(_) => "reverseLayer2OctetDeltaCount",
        FieldMeaning::TcpFlags => "reverseTcpControlBits",
        _ => return None,
    })
}

const fn column_for_meaning(meaning: FieldMeaning) -> Option<&'static str> {
    use FieldMeaning as M;
    Some(match meaning {
        M::Packets(_) => "packetDeltaCount",
        M::Octets(_) => "octetDeltaCount",
        M::FrameOctets(_) => "layer2OctetDeltaCount",
        M::AnswerPackets => "reversePacketDeltaCount",
        M::AnswerOctets => "reverseOctetDeltaCount",
        M::Start(_) => "flowStartNanoseconds",
        // A duration gives the end of a flow whose exporter sends only its start.
        M::End(_) | M::DurationMillis | M::DurationMicros => "flowEndNanoseconds",
        M::Source4 | M::Source6 => "sourceIPv6Address",
        M::Destination4 | M::Destination6 => "destinationIPv6Address",
        M::SourcePort => "sourceTransportPort",
        M::DestinationPort => "destinationTransportPort",
        M::Protocol => "protocolIdentifier",
        M::TcpFlags => "tcpControlBits",
        M::SamplingInterval | M::SamplingTaken | M::SamplingSpace | M::Sampler => "samplingInterval",
        M::EndReason => "flowEndReason",
        M::FlowId => "flowId",
        M::Part => "flowPart",
        M::Loss => "observedLoss",
        M::Merged => "observedMerge",
        _ => return header_column_name(meaning),
    })
}

const fn header_column_name(meaning: FieldMeaning) -> Option<&'static str> {
    use FieldMeaning as M;
    Some(match meaning {
        M::Tos => "ipClassOfService",
        M::Vlan(_) => "dot1qVlanId",
        M::InnerVlan => "dot1qCustomerVlanId",
        M::IcmpTypeCode | M::IcmpType | M::IcmpCode => "icmpTypeCode",
        M::Mpls(0) => "mplsTopLabelStackSection",
        M::Mpls(1) => "mplsLabelStackSection2",
        M::Mpls(_) => "mplsLabelStackSection3",
        M::SourceMac => "sourceMacAddress",
        M::DestinationMac => "destinationMacAddress",
        M::LeastTtl | M::Ttl => "minimumTTL",
        M::GreatestTtl => "maximumTTL",
        M::Segment | M::TunnelId => "layer2SegmentId",
        M::TunnelKind => "tunnelKind",
        M::OuterSource => "outerSourceIPv6Address",
        M::OuterDestination => "outerDestinationIPv6Address",
        _ => return router_column_name(meaning),
    })
}

/// Returns the column of an element that routers and firewalls send; `None` for any other element.
const fn router_column_name(meaning: FieldMeaning) -> Option<&'static str> {
    use FieldMeaning as M;
    Some(match meaning {
        M::Input => "ingressInterface",
        M::Output => "egressInterface",
        M::SourceAs => "bgpSourceAsNumber",
        M::DestinationAs => "bgpDestinationAsNumber",
        M::NextHop => "ipNextHopIPv6Address",
        M::BgpNextHop => "bgpNextHopIPv6Address",
        M::PostVlan => "postVlanId",
        M::PostTos => "postIpClassOfService",
        M::NatSource => "postNATSourceIPv6Address",
        M::NatDestination => "postNATDestinationIPv6Address",
        M::NatSourcePort => "postNAPTSourceTransportPort",
        M::NatDestinationPort => "postNAPTDestinationTransportPort",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::draft::{MessageTime, RecordDraft};
    use super::super::options::ExporterDecodingState;
    use super::super::template::TemplateField;
    use super::*;
    use crate::FlowRecord;
    use crate::account::ENTERPRISE_NUMBER;
    use crate::element::{ElementValue, FLOW_ELEMENTS, FlowElement};
    use crate::iana;

    /// The record of an exporter that sends nothing but this field, and that there was a way back.
    fn record_of(enterprise: u32, id: u16, bytes: &[u8]) -> FlowRecord {
        let mut draft = RecordDraft::default();
        let field = |enterprise, id| TemplateField {
            length: 1,
            reverse: enterprise == REVERSE_ENTERPRISE,
            meaning: field_meaning(FieldName { enterprise, id }),
        };
        // This field has the lowest rank, so any other count of bytes replaces it.
        draft.set_field(field(REVERSE_ENTERPRISE, 23), &[1]);
        draft.set_field(field(0, 153), &1_700_000_000_000_u64.to_be_bytes());
        draft.set_field(field(enterprise, id), bytes);
        let moment = MessageTime {
            sent_ns: 1_700_000_000_000_000_000,
            uptime_ms: Some(5000),
            boot_ms: Some(1_699_000_000_000),
        };
        draft.finish_record(&moment, &ExporterDecodingState::default()).record
    }

    fn has_others(record: &FlowRecord) -> bool {
        record.foreign.as_ref().is_some_and(|foreign| foreign.others != crate::OtherFields::default())
    }

    fn registered() -> impl Iterator<Item = (u32, u16)> {
        let known = (0..=u16::MAX).filter(|id| iana::element_by_id(*id).is_some());
        let ours = (0..64).map(|id| (ENTERPRISE_NUMBER, id));
        known.flat_map(|id| [(0, id), (REVERSE_ENTERPRISE, id)]).chain(ours).chain([
            (0, 0),
            (9, 8232),
            (REVERSE_ENTERPRISE, 0),
        ])
    }

    #[test]
    fn field_place_decides_membership_in_other_fields() {
        for (enterprise, id) in registered() {
            let place = field_place(enterprise, id);
            if is_history(enterprise, id) {
                // The group adds these fields, not the draft of the record.
                assert_eq!(place, FieldPlace::OtherFields, "{id}");
                continue;
            }
            let others = [&[1; 1][..], &[1; 4], &[1; 8], &[1; 16]]
                .map(|bytes| has_others(&record_of(enterprise, id, bytes)));
            assert_eq!(others, [place == FieldPlace::OtherFields; 4], "{enterprise}/{id} {place:?}");
            if let FieldPlace::Column(name) = place {
                assert!(FLOW_ELEMENTS.iter().any(|element| element.name == name), "{name}");
            }
        }
    }

    /// A field that is not among the others changes the column that is named, or none at all.
    #[test]
    fn a_field_with_a_column_changes_it() {
        let before = record_of(9, 1, &[]);
        for (enterprise, id) in registered() {
            let changed = |bytes: &[u8]| {
                let after = record_of(enterprise, id, bytes);
                let differs = |element: &&FlowElement| (element.value)(&after) != (element.value)(&before);
                let names = FLOW_ELEMENTS.iter().filter(differs).map(|element| element.name);
                names.filter(|name| *name != "otherFields").collect::<Vec<_>>()
            };
            let changed =
                [&[1; 1][..], &[3; 1], &[3; 2], &[3; 6], &[1; 8], &[3; 8], &[3; 16]].map(changed).concat();
            match field_place(enterprise, id) {
                // The addresses say the version; times need a start, samplers their options.
                FieldPlace::Column(
                    "ipVersion" | "flowStartNanoseconds" | "flowEndNanoseconds" | "samplingInterval",
                ) => {}
                FieldPlace::Column(name) => {
                    assert!(changed.contains(&name), "{enterprise}/{id}: {changed:?}");
                }
                FieldPlace::OtherFields | FieldPlace::NoRecord => {
                    assert!(
                        changed.is_empty() || is_ttl_of_mpls(enterprise, id),
                        "{enterprise}/{id}: {changed:?}"
                    );
                }
            }
        }
        assert_eq!((FLOW_ELEMENTS[0].value)(&before), ElementValue::Number(before.first_ns()));
    }

    fn is_history(enterprise: u32, id: u16) -> bool {
        let meaning = field_meaning(FieldName { enterprise, id });
        matches!(meaning, FieldMeaning::Track | FieldMeaning::History(_))
    }

    fn is_ttl_of_mpls(enterprise: u32, id: u16) -> bool {
        matches!(field_meaning(FieldName { enterprise, id }), FieldMeaning::MplsTtl(_))
    }
}
