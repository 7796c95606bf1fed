use super::*;
use packetrig_fleet::fabric::{Fabric, Outgoing};
use packetrig_fleet::local::Local;

/// Stores everything but some of it.
#[derive(Debug, Default)]
struct PickyShelf {
    /// How many came together.
    batches: Vec<usize>,
}

impl Shelf for PickyShelf {
    fn store(&mut self, segments: &[ReceivedSegment]) -> StoredBatch {
        self.batches.push(segments.len());
        let mut batch = StoredBatch::default();
        for ReceivedSegment { id, .. } in segments {
            batch.outcomes.push(match id.node.0.as_str() {
                "no-room" => Err(ShelfError::ForNow("no room".into())),
                "nonsense" => Err(ShelfError::Unreadable("nonsense".into())),
                _ => Ok(()),
            });
            let mark = Watermark { run: id.run.clone(), attempt: id.attempt, below: 1 };
            batch.parts.push(Arrival { node: id.node.clone(), mark, shelved: Shelved::default() });
        }
        batch
    }

    fn knows(&self, _: &RunId) -> bool {
        true
    }
}

fn append(fabric: &Local, nodes: &[String]) {
    for node in nodes {
        let node = NodeName(node.clone());
        let id = SegmentId { run: RunId("r".into()), attempt: 1, node: node.clone(), number: 0 };
        fabric.outgoing(&node).unwrap().append(&id, b"x").unwrap();
    }
}

#[test]
fn what_waits_is_stored_together_and_no_more_than_so_much_of_it() {
    let fabric = Local::default();
    let mut incoming = fabric.incoming("me").unwrap();
    incoming.read_run(&RunId("r".into()), &BTreeSet::new()).unwrap();
    let nodes: Vec<String> = (0..2 * MOST_TOGETHER + 3).map(|number| format!("n{number}")).collect();
    append(&fabric, &nodes);
    let mut shelf = PickyShelf::default();
    let mut arrived = 0;
    for _ in 0..3 {
        let deliveries = take_waiting(&mut incoming);
        arrived += store(&mut incoming, &mut shelf, deliveries).len();
    }
    assert_eq!(shelf.batches, [MOST_TOGETHER, MOST_TOGETHER, 3]);
    assert_eq!(arrived, nodes.len());
    assert!(incoming.waiting_runs().unwrap().is_empty(), "all are confirmed");
}

#[test]
fn only_what_is_stored_or_never_will_be_is_confirmed() {
    let fabric = Local::default();
    let run = RunId("r".into());
    let mut incoming = fabric.incoming("me").unwrap();
    incoming.read_run(&run, &BTreeSet::new()).unwrap();
    append(&fabric, &["good", "no-room", "nonsense"].map(str::to_owned));
    let deliveries = take_waiting(&mut incoming);
    let events = store(&mut incoming, &mut PickyShelf::default(), deliveries);
    let kinds = events.iter().map(|event| match event {
        Told::Arrival(part) => part.node.0.clone(),
        Told::Trouble(text) => text.clone(),
        Told::Refused { node, why, .. } => format!("{node}: {why}"),
    });
    let kinds: BTreeSet<String> = kinds.collect();
    let wanted = ["good", "nonsense: nonsense", "segment r.1.no-room.0 was not stored: no room"];
    assert_eq!(kinds, wanted.map(str::to_owned).into());
    drop(incoming);
    let mut again = fabric.incoming("next").unwrap();
    again.read_run(&run, &BTreeSet::new()).unwrap();
    let left: Vec<String> = take_waiting(&mut again).into_iter().map(|delivery| delivery.id.node.0).collect();
    assert_eq!(left, ["no-room"]);
}

/// Somebody else reads the run by now and tells of it.
#[test]
fn a_collector_that_was_replaced_tells_of_nothing() {
    let fabric = Local::default();
    let run = RunId("r".into());
    let mut incoming = fabric.incoming("me").unwrap();
    incoming.read_run(&run, &BTreeSet::new()).unwrap();
    append(&fabric, &["a".to_owned()]);
    let deliveries = take_waiting(&mut incoming);
    fabric.incoming("next").unwrap().read_run(&run, &BTreeSet::from(["me".to_owned()])).unwrap();
    let events = store(&mut incoming, &mut PickyShelf::default(), deliveries);
    assert!(matches!(&events[..], [Told::Trouble(_)]), "{events:?}");
}
