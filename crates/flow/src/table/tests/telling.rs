//! Open flows are reported again.

use super::*;

/// Flows as they are reported to an outlet.
#[derive(Default)]
struct ToldFlows(Vec<(u64, FlowKey, u64)>);

impl FlowEventReceiver for ToldFlows {
    fn on_record(&mut self, _: &FlowRecord) {}

    fn on_flow_opened(&mut self, flow_id: u64, key: &FlowKey, at_ns: u64) {
        self.0.push((flow_id, *key, at_ns));
    }
}

#[test]
fn open_flows_are_reported_again_unchanged() {
    let mut table = FlowTable::<()>::new(&small());
    let mut opened = ToldFlows::default();
    for n in 1..=9 {
        table.meter_packets(&[packet(n, 100, SECOND * u64::from(n))], SECOND * u64::from(n), &mut opened);
        // An answer does not turn the key round.
        table.meter_packets(
            &[packet(100, n, SECOND * u64::from(n) + 1)],
            SECOND * u64::from(n) + 1,
            &mut opened,
        );
    }
    table.advance_to(11 * SECOND + 2 * TICK, &mut opened);
    assert_eq!((opened.0.len(), table.flow_count()), (9, 8), "the first one has ended");
    let mut told = ToldFlows::default();
    let mut from = Some(0);
    while let Some(at) = from {
        from = table.report_open_flows(at, 3, &mut told);
    }
    told.0.sort_by_key(|(.., at_ns)| *at_ns);
    assert_eq!(told.0, opened.0[1..]);
}
