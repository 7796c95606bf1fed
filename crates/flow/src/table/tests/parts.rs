//! Where parts of the flows of a group end.

use super::*;
use crate::history::GroupMark;

/// Of two meters, one has cut a part before the clock was set back and the other has not: a collector that took the moment for the
/// same one would place the second where the first was.
#[test]
fn a_moment_that_comes_twice_because_the_clock_was_set_back_is_not_named_again() {
    let moments = |is_cut_before: bool| {
        let group = Some(GroupMark { group: 9, meter: 1, lane: 0 });
        let mut table = FlowTable::<()>::new(&TableOptions { active: Nanos::from_secs(2), group, ..small() });
        // Halfway between two packets.
        let moment = moment_after(1000 * SECOND, &table, &packet(1, 2, 0), 2 * SECOND);
        let from = |at_ns: u64| (0..).map(move |n| packet(1, 2, at_ns + (2 * n + 1) * SECOND / 20));
        let mut records = metered(&mut table, &from(moment - SECOND).take(10).collect::<Vec<_>>());
        table.advance(if is_cut_before { moment + 2 * TICK } else { moment + 1 }, &mut records);
        assert_eq!(records.len(), usize::from(is_cut_before));
        // Set back by less than a part: the moment comes again.
        records.extend(metered(&mut table, &from(moment - SECOND).take(50).collect::<Vec<_>>()));
        (moment, cuts(&records).collect::<Vec<_>>())
    };
    let (moment, cuts) = moments(true);
    assert_eq!(cuts.iter().filter(|at_ns| **at_ns == moment).count(), 1, "{cuts:?}");
    assert!(cuts.iter().any(|at_ns| *at_ns > moment), "later ones are named again: {cuts:?}");
    let (moment, cuts) = moments(false);
    assert!(!cuts.contains(&moment), "{cuts:?}");
}

/// The moments at which records were made while their flow was quiet.
fn cuts(records: &[FlowRecord]) -> impl Iterator<Item = u64> {
    let histories = records.iter().filter_map(|record| record.history.as_ref());
    histories.map(|history| history.cut).filter(|cut| cut.forward.packets == 0).map(|cut| cut.at_ns)
}

/// The first moment from a time on at which parts of a packet's flow end.
fn moment_after(at_ns: u64, table: &FlowTable<()>, packet: &PacketInfo, active: u64) -> u64 {
    let part = FlowHistories::part(active);
    let phase = table.flow_id(packet) % part;
    at_ns + (part + phase - at_ns % part) % part
}

/// A flow with a packet each active timeout, a moment after a part ends: it was cut at a packet each time, and no meter that came
/// late was ever placed in it.
#[test]
fn a_flow_with_the_period_of_the_active_timeout_is_quiet_when_its_parts_are_cut() {
    let group = Some(GroupMark { group: 9, meter: 1, lane: 0 });
    let active = 2 * SECOND;
    let mut table = FlowTable::<()>::new(&TableOptions { active: Nanos::new(active), group, ..small() });
    let from = 1000 * SECOND + table.flow_id(&packet(1, 2, 0)) % active;
    let mut records =
        metered(&mut table, &(0..4).map(|n| packet(1, 2, from + n * active + 1)).collect::<Vec<_>>());
    table.advance(from + 4 * active, &mut records);
    let mut cuts =
        records.iter().filter_map(|record| record.history.as_ref()).map(|history| history.cut.at_ns);
    assert!(cuts.any(|at_ns| at_ns > 0), "{records:?}");
}
