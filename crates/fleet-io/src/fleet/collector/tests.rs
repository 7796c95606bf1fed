use super::*;
use packetrig_fleet::fabric::{Fabric, ResultSender};
use packetrig_fleet::local::LocalFabric;

/// Stores everything but some of it.
#[derive(Debug, Default)]
struct PickyStore {
    /// Numbers of segments that came together.
    batches: Vec<usize>,
}

impl ResultStore for PickyStore {
    fn store_segments(&mut self, segments: &[ReceivedSegment]) -> StoredBatch {
        self.batches.push(segments.len());
        let mut batch = StoredBatch::default();
        for ReceivedSegment { id, .. } in segments {
            batch.outcomes.push(match id.node.0.as_str() {
                "no-room" => Err(ResultStoreError::ForNow("no room".into())),
                "nonsense" => Err(ResultStoreError::Unreadable("nonsense".into())),
                _ => Ok(()),
            });
            let mark = StoredWatermark { run: id.run.clone(), attempt: id.attempt, below: 1 };
            let (node, contents) = (id.node.clone(), PartContents::default());
            batch.parts.push(StoredPart { node, mark, contents, completed: None });
        }
        batch
    }

    fn knows_run(&self, _: &RunId) -> bool {
        true
    }
}

fn append(fabric: &LocalFabric, nodes: &[String]) {
    for node in nodes {
        let node = NodeName(node.clone());
        let id = SegmentId { run: RunId("r".into()), attempt: 1, node: node.clone(), number: 0 };
        fabric.open_result_outlet(&node).unwrap().append_segment(&id, b"x").unwrap();
    }
}

#[test]
fn waiting_segments_are_stored_in_bounded_batches() {
    let fabric = LocalFabric::default();
    let mut incoming = fabric.open_result_inlet("me").unwrap();
    incoming.read_run(&RunId("r".into()), &BTreeSet::new()).unwrap();
    let nodes: Vec<String> =
        (0..2 * MAX_SEGMENTS_STORED_TOGETHER + 3).map(|number| format!("n{number}")).collect();
    append(&fabric, &nodes);
    let mut store = PickyStore::default();
    let mut arrived = 0;
    for _ in 0..3 {
        let deliveries = take_waiting_segments(&mut incoming);
        arrived += store_deliveries(&mut incoming, &mut store, deliveries).len();
    }
    assert_eq!(store.batches, [MAX_SEGMENTS_STORED_TOGETHER, MAX_SEGMENTS_STORED_TOGETHER, 3]);
    assert_eq!(arrived, nodes.len());
    assert!(incoming.list_runs_with_waiting_segments().unwrap().is_empty(), "all are confirmed");
}

#[test]
fn segments_are_confirmed_once_stored_or_refused() {
    let fabric = LocalFabric::default();
    let run = RunId("r".into());
    let mut incoming = fabric.open_result_inlet("me").unwrap();
    incoming.read_run(&run, &BTreeSet::new()).unwrap();
    append(&fabric, &["good", "no-room", "nonsense"].map(str::to_owned));
    let deliveries = take_waiting_segments(&mut incoming);
    let events = store_deliveries(&mut incoming, &mut PickyStore::default(), deliveries);
    let kinds = events.iter().map(|event| match event {
        CollectorEvent::Stored(part) => part.node.0.clone(),
        CollectorEvent::Trouble(text) => text.clone(),
        CollectorEvent::Refused { node, why, .. } => format!("{node}: {why}"),
    });
    let kinds: BTreeSet<String> = kinds.collect();
    let wanted = [
        "good",
        "nonsense: nonsense",
        "cannot store segment r.1.no-room.0 of the results yet: no room; trying again",
    ];
    assert_eq!(kinds, wanted.map(str::to_owned).into());
    drop(incoming);
    let mut again = fabric.open_result_inlet("next").unwrap();
    again.read_run(&run, &BTreeSet::new()).unwrap();
    let left: Vec<String> =
        take_waiting_segments(&mut again).into_iter().map(|delivery| delivery.id.node.0).collect();
    assert_eq!(left, ["no-room"]);
}

/// Another controller reads the run by now and reports it.
#[test]
fn a_collector_that_was_replaced_tells_of_nothing() {
    let fabric = LocalFabric::default();
    let run = RunId("r".into());
    let mut incoming = fabric.open_result_inlet("me").unwrap();
    incoming.read_run(&run, &BTreeSet::new()).unwrap();
    append(&fabric, &["a".to_owned()]);
    let deliveries = take_waiting_segments(&mut incoming);
    fabric.open_result_inlet("next").unwrap().read_run(&run, &BTreeSet::from(["me".to_owned()])).unwrap();
    let events = store_deliveries(&mut incoming, &mut PickyStore::default(), deliveries);
    assert!(matches!(&events[..], [CollectorEvent::Trouble(_)]), "{events:?}");
}

/// Can read nothing.
struct FailingInlet;

impl ResultReceiver for FailingInlet {
    type Token = ();

    fn read_run(&mut self, _: &RunId, _: &BTreeSet<String>) -> Result<(), fabric::Error> {
        Ok(())
    }
    fn leave_run(&mut self, _: &RunId) {}
    fn list_runs_with_waiting_segments(
        &mut self,
    ) -> Result<std::collections::BTreeMap<RunId, BTreeSet<String>>, fabric::Error> {
        Ok(std::collections::BTreeMap::new())
    }
    fn receive_segment(&mut self, _: Nanos) -> Option<SegmentDelivery<()>> {
        None
    }
    fn confirm_segment(&mut self, (): ()) -> Result<(), fabric::Error> {
        Ok(())
    }
    fn take_problems(&mut self) -> Vec<fabric::Error> {
        vec![fabric::Error::NotPermitted("the results of r".into())]
    }
}

#[test]
fn unreadable_results_are_reported_as_trouble() {
    let events = take_refusal_events(&mut FailingInlet);
    let [CollectorEvent::Trouble(text)] = &events[..] else { panic!("{events:?}") };
    assert!(text.contains("not permitted: the results of r"), "{text}");
}
