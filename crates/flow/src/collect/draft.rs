//! A flow record under construction: its fields may come in any order and in several notations.
//!
//! Invariant: of two fields for the same value, a later one replaces an earlier one only if its rank is
//! at least as high.

use super::addresses::{set_endpoint_address, set_ipv6_address, set_known_address, set_mac_address};
use super::meaning::{FieldMeaning, FieldRank, TimeNotation};
use super::options::ExporterDecodingState;
use super::reader::{low_u8, low_u16, low_u32, read_number};
use super::sampling::SamplingState;
use super::template::TemplateField;
use crate::canonical::is_icmp;
use crate::export::write::NTP_EPOCH_OFFSET_S;
use crate::foreign::ForeignFields;
use crate::history::FlowHistory;
use crate::packet::TunnelKind;
use crate::record::{EndReason, FlowHalf, FlowRecord};
use std::sync::Arc;

/// Times that the message header states.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MessageTime {
    /// Time at which the message was sent, nanoseconds since 1970.
    pub(super) sent_ns: u64,
    /// Uptime of the exporter when it sent the message, in milliseconds; wraps at 32 bits.
    pub(super) uptime_ms: Option<u32>,
    /// Time at which the exporter started, milliseconds since 1970.
    pub(super) boot_ms: Option<u64>,
}

/// A record after all its fields have been read.
#[derive(Clone, Debug)]
pub(super) struct FinishedRecord {
    pub(super) record: FlowRecord,
    /// True if the exporter stated the times of the record.
    pub(super) is_timed: bool,
}

/// Times of the first and the last packet, nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct FlowTimes {
    first_ns: u64,
    last_ns: u64,
}

impl FlowTimes {
    const fn write_times_to(self, half: &mut FlowHalf) {
        half.first_ns = self.first_ns;
        half.last_ns = self.last_ns;
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct DraftTimes {
    start: StatedFlowTime,
    end: StatedFlowTime,
    duration_ns: Option<u64>,
}

/// A stated time, in the finest notation that the exporter sent.
#[derive(Clone, Copy, Debug, Default)]
struct StatedFlowTime {
    finest: Option<(TimeNotation, u64)>,
    /// The time as an uptime. It is stored separately, because it can be converted only if the exporter's
    /// start time is known.
    uptime: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct DraftFieldRanks {
    packets: Option<FieldRank>,
    octets: Option<FieldRank>,
    frame_octets: Option<FieldRank>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct RecordDraft {
    record: FlowRecord,
    foreign: ForeignFields,
    history: Option<Box<FlowHistory>>,
    times: [DraftTimes; 2],
    ranks: [DraftFieldRanks; 2],
    vlan: Option<FieldRank>,
    sampling: SamplingState,
}

impl RecordDraft {
    /// Sets the value of a field. A number of more than eight bytes is ignored.
    pub(super) fn set_field(&mut self, field: TemplateField, bytes: &[u8]) {
        if self.set_bytes_field(field.meaning, bytes) {
            return;
        }
        // No number of a record has more than eight bytes.
        let Some(value) = read_number(bytes) else { return };
        if !self.set_direction_field(field, value) && !self.sampling.set_field(field.meaning, value) {
            self.set_record_field(field.meaning, value);
        }
    }

    /// Sets a field whose value is not a number. Returns false for any other field.
    fn set_bytes_field(&mut self, meaning: FieldMeaning, bytes: &[u8]) -> bool {
        let record = &mut self.record;
        let foreign = &mut self.foreign;
        let key = &mut record.key;
        match meaning {
            // Numbers of an exporter about itself belong into options records; a flow has no column for them.
            FieldMeaning::Skipped
            | FieldMeaning::Statistic(_)
            | FieldMeaning::Boot
            | FieldMeaning::Account(_) => {}
            FieldMeaning::Track => self.history.get_or_insert_default().set_track(bytes),
            // The value is kept as bytes: it may be longer than the eight bytes of a number.
            FieldMeaning::Other(name) => foreign.others.add_field(name.enterprise, name.id, bytes),
            FieldMeaning::Source4 | FieldMeaning::Source6 => {
                set_endpoint_address(&mut key.source, &mut record.outer_source, bytes);
            }
            FieldMeaning::Destination4 | FieldMeaning::Destination6 => {
                set_endpoint_address(&mut key.destination, &mut record.outer_destination, bytes);
            }
            FieldMeaning::NextHop => set_known_address(&mut foreign.next_hop, bytes),
            FieldMeaning::BgpNextHop => set_known_address(&mut foreign.bgp_next_hop, bytes),
            FieldMeaning::NatSource => set_known_address(&mut foreign.nat_source, bytes),
            FieldMeaning::NatDestination => set_known_address(&mut foreign.nat_destination, bytes),
            FieldMeaning::OuterSource => set_ipv6_address(&mut record.outer_source, bytes),
            FieldMeaning::OuterDestination => set_ipv6_address(&mut record.outer_destination, bytes),
            FieldMeaning::SourceMac => set_mac_address(&mut record.source_mac, bytes),
            FieldMeaning::DestinationMac => set_mac_address(&mut record.destination_mac, bytes),
            _ => return false,
        }
        true
    }

    /// Sets a field that exists for each direction. Returns false for any other field.
    fn set_direction_field(&mut self, field: TemplateField, value: u64) -> bool {
        // Elements 232 and 299 count what the responder has sent since the flow began: the reverse
        // direction of the record.
        let of_responder = |meaning| TemplateField { meaning, reverse: true, ..field };
        let field = match field.meaning {
            FieldMeaning::AnswerPackets => of_responder(FieldMeaning::Packets(FieldRank::Total)),
            FieldMeaning::AnswerOctets => of_responder(FieldMeaning::Octets(FieldRank::Total)),
            _ => field,
        };
        let direction = usize::from(field.reverse);
        let times = &mut self.times[direction];
        let ranks = &mut self.ranks[direction];
        let half = if field.reverse { &mut self.record.reverse } else { &mut self.record.forward };
        match field.meaning {
            FieldMeaning::Packets(rank) => {
                replace_if_better(&mut ranks.packets, rank, &mut half.packets, value);
            }
            FieldMeaning::Octets(rank) => replace_if_better(&mut ranks.octets, rank, &mut half.bytes, value),
            FieldMeaning::FrameOctets(rank) => {
                replace_if_better(&mut ranks.frame_octets, rank, &mut half.frame_bytes, value);
            }
            FieldMeaning::TcpFlags => half.tcp_flags = low_u16(value),
            FieldMeaning::Start(clock) => times.start.set_time(clock, value),
            FieldMeaning::End(clock) => times.end.set_time(clock, value),
            FieldMeaning::DurationMillis => times.duration_ns = Some(value.saturating_mul(1_000_000)),
            FieldMeaning::DurationMicros => times.duration_ns = Some(value.saturating_mul(1_000)),
            _ => return false,
        }
        true
    }

    fn set_record_field(&mut self, meaning: FieldMeaning, value: u64) {
        let record = &mut self.record;
        match meaning {
            FieldMeaning::SourcePort => record.key.source_port = low_u16(value),
            FieldMeaning::DestinationPort => record.key.destination_port = low_u16(value),
            FieldMeaning::Protocol => record.key.protocol = low_u8(value),
            FieldMeaning::Tos => record.tos = low_u8(value),
            // The upper four bits of a tag are priority and drop eligibility (IEEE 802.1Q), not the identifier.
            FieldMeaning::Vlan(rank) => {
                replace_if_better(&mut self.vlan, rank, &mut record.key.vlan, low_u16(value) & 0xfff);
            }
            FieldMeaning::InnerVlan => record.key.inner_vlan = low_u16(value) & 0xfff,
            FieldMeaning::IcmpTypeCode => record.icmp = low_u16(value),
            // Type and code may come as two elements in either order, so each of them keeps the other's byte.
            FieldMeaning::IcmpType => record.icmp = record.icmp & 0xff | low_u16(value) << 8,
            FieldMeaning::IcmpCode => record.icmp = record.icmp & 0xff00 | low_u16(value) & 0xff,
            // Elements 70 to 72 are three bytes: label, traffic class and bottom of stack. The time to live comes as a
            // field of its own, before or after them.
            FieldMeaning::Mpls(at) => {
                replace_bits(&mut record.mpls[usize::from(at)], 0xff, low_u32(value) << 8);
            }
            FieldMeaning::MplsTtl(at) => {
                replace_bits(&mut record.mpls[usize::from(at)], 0xffff_ff00, u32::from(low_u8(value)));
            }
            // The first byte of element 351 is the kind of segment; 1 is VXLAN.
            FieldMeaning::Segment if value >> 56 == 1 => {
                record.key.tunnel = TunnelKind::Vxlan;
                record.key.tunnel_id = low_u32(value);
            }
            FieldMeaning::TunnelKind => {
                record.key.tunnel =
                    u8::try_from(value).ok().and_then(TunnelKind::from_number).unwrap_or_default();
            }
            FieldMeaning::TunnelId => record.key.tunnel_id = low_u32(value),
            FieldMeaning::Part => record.part = low_u16(value),
            // A boolean of IPFIX: 1 is true, 2 is false.
            FieldMeaning::Loss => record.loss = value == 1,
            FieldMeaning::Merged => record.merged = value == 1,
            FieldMeaning::LeastTtl => record.ttl_min = low_u8(value),
            FieldMeaning::GreatestTtl => record.ttl_max = low_u8(value),
            // One value for all packets is both the least and the greatest.
            FieldMeaning::Ttl => {
                record.ttl_min = low_u8(value);
                record.ttl_max = low_u8(value);
            }
            FieldMeaning::EndReason => {
                record.end = u8::try_from(value).ok().and_then(EndReason::from_number).unwrap_or_default();
            }
            FieldMeaning::FlowId => record.flow_id = value,
            FieldMeaning::History(element) => {
                self.history.get_or_insert_default().set_element(element, value);
            }
            FieldMeaning::Input => record.input = low_u32(value),
            _ => self.set_foreign_field(meaning, value),
        }
    }

    /// Sets a field that packetrig's own meter does not send.
    const fn set_foreign_field(&mut self, meaning: FieldMeaning, value: u64) {
        let foreign = &mut self.foreign;
        match meaning {
            FieldMeaning::Output => foreign.output = low_u32(value),
            FieldMeaning::SourceAs => foreign.source_as = low_u32(value),
            FieldMeaning::DestinationAs => foreign.destination_as = low_u32(value),
            FieldMeaning::NatSourcePort => foreign.nat_source_port = low_u16(value),
            FieldMeaning::NatDestinationPort => foreign.nat_destination_port = low_u16(value),
            FieldMeaning::PostVlan => foreign.post_vlan = low_u16(value) & 0xfff,
            FieldMeaning::PostTos => foreign.post_tos = low_u8(value),
            _ => {}
        }
    }

    pub(super) fn finish_record(
        mut self,
        moment: &MessageTime,
        about: &ExporterDecodingState,
    ) -> FinishedRecord {
        let [there, back] = self.times;
        let stated = there.resolve_times(moment);
        // A record without times gets the time of its message, so that it is stored near records of the same time.
        // `timeless` counts such records.
        let times = stated.unwrap_or(FlowTimes { first_ns: moment.sent_ns, last_ns: moment.sent_ns });
        let record = &mut self.record;
        record.history = self.history;
        times.write_times_to(&mut record.forward);
        // NetFlow puts the ICMP type and code into the destination port.
        if record.icmp == 0 && is_icmp(record.key.protocol) {
            record.icmp = record.key.destination_port;
        }
        let is_biflow = record.reverse.packets > 0 || record.reverse.bytes > 0;
        if is_biflow {
            // A direction without packets has no times here, whatever the exporter put into its template.
            if record.forward.packets == 0 && record.forward.bytes == 0 {
                FlowTimes { first_ns: 0, last_ns: 0 }.write_times_to(&mut record.forward);
            }
            back.resolve_times(moment).unwrap_or(times).write_times_to(&mut record.reverse);
        } else {
            record.reverse = FlowHalf::default();
        }
        if self.foreign != ForeignFields::default() {
            record.foreign = Some(Arc::new(self.foreign));
        }
        record.sampling = self
            .sampling
            .sampling_interval_of_record()
            .unwrap_or_else(|| about.sampling_interval_or_one(self.sampling.sampler));
        FinishedRecord { record: self.record, is_timed: stated.is_some() }
    }
}

fn replace_if_better<T>(have: &mut Option<FieldRank>, rank: FieldRank, place: &mut T, value: T) {
    if have.is_none_or(|have| have <= rank) {
        *have = Some(rank);
        *place = value;
    }
}

const fn replace_bits(place: &mut u32, keep: u32, value: u32) {
    *place = *place & keep | value;
}

impl StatedFlowTime {
    fn set_time(&mut self, clock: TimeNotation, raw: u64) {
        if clock == TimeNotation::Uptime {
            self.uptime = Some(raw);
        } else if self.finest.is_none_or(|(known, _)| known <= clock) {
            self.finest = Some((clock, raw));
        }
    }

    fn resolve_time_ns(&self, moment: &MessageTime) -> Option<u64> {
        let finest = self.finest.and_then(|(clock, raw)| moment.decode_time(clock, raw));
        let uptime = self.uptime.and_then(|raw| moment.decode_time(TimeNotation::Uptime, raw));
        // An uptime counts milliseconds, but NetFlow 9 states the time of day for an uptime only in whole seconds. So
        // an uptime is better than seconds and worse than any other notation.
        let is_finer = self.finest.is_some_and(|(clock, _)| clock > TimeNotation::Uptime);
        if is_finer { finest.or(uptime) } else { uptime.or(finest) }
    }
}

impl DraftTimes {
    /// Returns the times of the first and last packet. If one is missing, it is computed from the duration, or is equal
    /// to the other one. `None` if the exporter stated neither of them.
    fn resolve_times(&self, moment: &MessageTime) -> Option<FlowTimes> {
        let duration = self.duration_ns.unwrap_or(0);
        let start = self.start.resolve_time_ns(moment);
        let end = self.end.resolve_time_ns(moment);
        // Without start and end, a duration alone gives no times.
        Some(FlowTimes {
            first_ns: start.or_else(|| Some(end?.saturating_sub(duration)))?,
            last_ns: end.or_else(|| Some(start?.saturating_add(duration)))?,
        })
    }
}

impl MessageTime {
    fn decode_time(&self, clock: TimeNotation, raw: u64) -> Option<u64> {
        match clock {
            // Exporters choose the number. A number that does not fit into nanoseconds is no valid time.
            TimeNotation::Seconds => raw.checked_mul(1_000_000_000),
            TimeNotation::Millis => raw.checked_mul(1_000_000),
            TimeNotation::Before => Some(self.sent_ns.saturating_sub(raw.saturating_mul(1_000))),
            TimeNotation::Micros => Some(decode_ntp(raw, 1_000_000)),
            TimeNotation::Nanos => Some(decode_ntp(raw, 1_000_000_000)),
            TimeNotation::Uptime => self.time_of_uptime(low_u32(raw)),
        }
    }

    /// Converts an uptime to nanoseconds since 1970. The uptime wraps after 49.7 days: of the possible times, this is
    /// the one nearest to the time at which the message was sent.
    fn time_of_uptime(&self, uptime_ms: u32) -> Option<u64> {
        let sent_ms = self.sent_ns / 1_000_000;
        let now_ms = match (self.uptime_ms, self.boot_ms) {
            (Some(now), _) => now,
            // The time is cut to 32 bits like the uptimes in records, so that the difference below wraps
            // in the same way.
            (None, Some(boot)) => low_u32(sent_ms.wrapping_sub(boot)),
            (None, None) => return None,
        };
        // The difference is signed: a flow may end a little after the header was written.
        let ago_ms = now_ms.wrapping_sub(uptime_ms).cast_signed();
        Some(self.sent_ns.saturating_add_signed(-i64::from(ago_ms) * 1_000_000))
    }
}

/// Converts NTP time (seconds since 1900 modulo 2^32, and a fraction) to nanoseconds since 1970, rounded to 1/`parts`
/// of a second.
fn decode_ntp(raw: u64, parts: u64) -> u64 {
    let seconds = raw >> 32;
    // The first bit is set until 2036; then the seconds start again at zero (RFC 4330 section 3).
    let era = if seconds >> 31 == 1 { 0 } else { 1 << 32 };
    let fraction = ((raw & 0xffff_ffff) * parts + (1 << 31)) >> 32;
    (seconds + era).saturating_sub(NTP_EPOCH_OFFSET_S) * 1_000_000_000 + fraction * (1_000_000_000 / parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ntp_time_is_read_to_the_nanosecond() {
        for nanos in [0_u64, 1, 499_999_999, 500_000_000, 999_999_999] {
            let fraction = (nanos << 32) / 1_000_000_000;
            for fraction in [fraction, (fraction + 1).min(0xffff_ffff)] {
                let raw = (1_800_000_000 + NTP_EPOCH_OFFSET_S) << 32 | fraction;
                assert_eq!(decode_ntp(raw, 1_000_000_000), 1_800_000_000_000_000_000 + nanos);
            }
        }
        let after_2036 = (1_u64 << 31) << 32;
        assert_eq!(
            decode_ntp(after_2036 - (1 << 32), 1_000_000),
            ((1 << 32) + (1_u64 << 31) - 1 - NTP_EPOCH_OFFSET_S) * 1_000_000_000
        );
        assert_eq!(decode_ntp(0, 1_000_000), ((1 << 32) - NTP_EPOCH_OFFSET_S) * 1_000_000_000);
    }

    #[test]
    fn uptimes_wrap() {
        let moment = MessageTime { sent_ns: 5_000_000_000_000, uptime_ms: Some(100), boot_ms: None };
        assert_eq!(moment.decode_time(TimeNotation::Uptime, 90), Some(4_999_990_000_000));
        assert_eq!(moment.decode_time(TimeNotation::Uptime, u64::from(u32::MAX)), Some(4_999_899_000_000));
        let booted = MessageTime { sent_ns: 5_000_000_000_000, uptime_ms: None, boot_ms: Some(4_990_000) };
        assert_eq!(booted.decode_time(TimeNotation::Uptime, 9_500), Some(4_999_500_000_000));
        assert_eq!(MessageTime::default().decode_time(TimeNotation::Uptime, 1), None);
    }

    /// An uptime is worthless unless it is known when the exporter began.
    #[test]
    fn unreadable_uptime_does_not_replace_known_time() {
        let field = |meaning| TemplateField { length: 4, reverse: false, meaning };
        let mut draft = RecordDraft::default();
        for (meaning, value) in [
            (FieldMeaning::Start(TimeNotation::Seconds), 5_u32),
            (FieldMeaning::Start(TimeNotation::Uptime), 70),
            (FieldMeaning::End(TimeNotation::Uptime), 90),
            (FieldMeaning::End(TimeNotation::Seconds), 6),
        ] {
            draft.set_field(field(meaning), &value.to_be_bytes());
        }
        let FinishedRecord { record, is_timed } =
            draft.clone().finish_record(&MessageTime::default(), &ExporterDecodingState::default());
        assert_eq!(
            (record.forward.first_ns, record.forward.last_ns, is_timed),
            (5_000_000_000, 6_000_000_000, true)
        );
        let known = MessageTime { sent_ns: 7_000_000_000, uptime_ms: Some(100), boot_ms: None };
        let record = draft.finish_record(&known, &ExporterDecodingState::default()).record;
        assert_eq!((record.forward.first_ns, record.forward.last_ns), (6_970_000_000, 6_990_000_000));
    }

    #[test]
    fn the_finer_time_and_the_delta_are_believed() {
        let field = |meaning| TemplateField { length: 8, reverse: false, meaning };
        let mut draft = RecordDraft::default();
        draft.set_field(field(FieldMeaning::Start(TimeNotation::Millis)), &5_u64.to_be_bytes());
        draft.set_field(field(FieldMeaning::Start(TimeNotation::Seconds)), &9_u64.to_be_bytes());
        draft.set_field(field(FieldMeaning::DurationMillis), &2_u64.to_be_bytes());
        draft.set_field(field(FieldMeaning::Packets(FieldRank::Delta)), &[3]);
        draft.set_field(field(FieldMeaning::Packets(FieldRank::Post)), &[4]);
        draft.set_field(field(FieldMeaning::Packets(FieldRank::Total)), &[5]);
        let reverse = TemplateField { reverse: true, ..field(FieldMeaning::Packets(FieldRank::Delta)) };
        draft.set_field(reverse, &[6]);
        draft.set_field(field(FieldMeaning::AnswerPackets), &[7]);
        draft.set_field(field(FieldMeaning::AnswerOctets), &[8]);
        let FinishedRecord { record, is_timed } =
            draft.finish_record(&MessageTime::default(), &ExporterDecodingState::default());
        assert_eq!((record.forward.first_ns, record.forward.last_ns, is_timed), (5_000_000, 7_000_000, true));
        assert_eq!((record.forward.packets, record.sampling), (3, 1));
        assert_eq!((record.reverse.packets, record.reverse.bytes), (6, 8));
    }
}
