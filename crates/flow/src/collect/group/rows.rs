//! Makes the records that the collector stores: only the new packets, with the flow's history, from which a restarted
//! collector finds their positions again.

use super::side::{PlacedReport, SideReport};
use crate::history::{CountTotals, FlowHistory, RecordOriginMark};
use crate::record::{FlowHalf, FlowRecord};
use std::sync::Arc;

/// Returns the times of the first and the last packet of a record. A record without packets has the times of the
/// landmarks that it names or, without landmarks, the time since which the meter follows the flow.
pub(super) fn record_times(history: &FlowHistory, record: &FlowRecord) -> [u64; 2] {
    if record.last_ns() > 0 {
        return [record.first_ns(), record.last_ns()];
    }
    let landmarks = [false, true].map(|is_reverse| history.direction(is_reverse).landmarks);
    let times = || landmarks.iter().flatten().map(|landmark| landmark.at_ns).filter(|at_ns| *at_ns > 0);
    [times().min().unwrap_or(history.since_ns), times().max().unwrap_or(history.since_ns)]
}

/// Adds the flow's history to a record, as extra fields for the store. From these, a restarted collector learns which
/// packets are already stored.
pub(super) fn record_with_history(mut record: FlowRecord, history: &FlowHistory) -> FlowRecord {
    let mut fields = record.foreign.take().map(Arc::unwrap_or_clone).unwrap_or_default();
    history.add_to_other_fields(&mut fields.others);
    record.foreign = Some(Arc::new(fields));
    record
}

/// Makes the record of packets that a meter reported earlier and that had no position then. `placing` is the record of
/// the same flow that gave them a position. The packets get a record of their own, because the history of a record
/// states which packets are stored with it.
pub(super) fn build_record_of_waiting_report(
    placing: &FlowRecord,
    history: &FlowHistory,
    is_reverse: bool,
    report: &SideReport,
    placed: &PlacedReport,
) -> FlowRecord {
    let mut half = FlowHalf { first_ns: report.first_ns, last_ns: report.last_ns, ..FlowHalf::default() };
    set_half_counts(&mut half, placed.new);
    let mark = RecordOriginMark { meter: report.meter, ..history.mark };
    let SideReport { since_ns, is_strange, direction, .. } = *report;
    let mut own =
        FlowHistory { mark, flipped: history.flipped, since_ns, is_strange, ..FlowHistory::default() };
    own.stored[usize::from(is_reverse)] = placed.stored;
    let mut record =
        FlowRecord { forward: FlowHalf::default(), reverse: FlowHalf::default(), ..placing.clone() };
    if is_reverse {
        (record.reverse, own.reverse) = (half, direction);
    } else {
        (record.forward, own.forward) = (half, direction);
    }
    record_with_history(record, &own)
}

pub(super) const fn half_counts(half: &FlowHalf) -> CountTotals {
    CountTotals { packets: half.packets, bytes: half.bytes, frame_bytes: half.frame_bytes }
}

pub(super) const fn set_half_counts(half: &mut FlowHalf, counts: CountTotals) {
    (half.packets, half.bytes, half.frame_bytes) = (counts.packets, counts.bytes, counts.frame_bytes);
}

/// Sets the times of a direction that has packets but no times, because it got the packets of a lost record.
pub(super) fn set_missing_times(record: &mut FlowRecord, [first_ns, last_ns]: [u64; 2]) {
    for half in [&mut record.forward, &mut record.reverse] {
        if half.packets > 0 && half.last_ns == 0 {
            (half.first_ns, half.last_ns) = (first_ns, last_ns);
        }
    }
}
