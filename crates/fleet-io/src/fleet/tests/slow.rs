//! Nodes that are far away, and disks that are slow: the controller's, and a node's.

use super::*;
use packetrig_fleet::fabric::{Endpoint, Error as FabricError};
use packetrig_fleet::local::LocalEndpoint;
use packetrig_fleet::message::{MessageBody, MessageEnvelope, NodeCommand};
use packetrig_report::outcome::RunState;
use std::collections::VecDeque;

/// An endpoint that receives everything later, and confirmations of starts perhaps not at all.
pub(super) struct SlowEndpoint {
    inner: LocalEndpoint,
    delay: Nanos,
    loses_confirmations: Arc<AtomicBool>,
    under_way: VecDeque<(MonoTime, MessageEnvelope)>,
}

impl SlowEndpoint {
    pub(super) fn new(inner: LocalEndpoint, delay: Nanos, loses_confirmations: Arc<AtomicBool>) -> Self {
        Self { inner, delay, loses_confirmations, under_way: VecDeque::new() }
    }

    /// The next message, unless it is lost.
    fn hear(&mut self, within: Nanos) -> Option<MessageEnvelope> {
        let letter = self.inner.receive_message(within)?;
        let is_confirmation = matches!(letter.body, MessageBody::Command(_, NodeCommand::Confirm { .. }));
        (!is_confirmation || !self.loses_confirmations.load(Ordering::Relaxed)).then_some(letter)
    }
}

impl Endpoint for SlowEndpoint {
    fn name(&self) -> &NodeName {
        self.inner.name()
    }

    fn post_message(&mut self, to: &NodeName, body: MessageBody) -> Result<(), FabricError> {
        self.inner.post_message(to, body)
    }

    fn post_to_all_nodes(&mut self, body: MessageBody) -> Result<(), FabricError> {
        self.inner.post_to_all_nodes(body)
    }

    fn listen_to(&mut self, nodes: &[NodeName]) -> Result<(), FabricError> {
        self.inner.listen_to(nodes)
    }

    fn stop_listening_to(&mut self, nodes: &[NodeName]) {
        self.inner.stop_listening_to(nodes);
    }

    fn receive_message(&mut self, within: Nanos) -> Option<MessageEnvelope> {
        if self.delay == Nanos::ZERO {
            return self.hear(within);
        }
        let until = crate::agent::now() + within;
        loop {
            let here = crate::agent::now();
            if self.under_way.front().is_some_and(|(due, _)| here >= *due) {
                return self.under_way.pop_front().map(|(_, letter)| letter);
            }
            let next = self.under_way.front().map_or(until, |(due, _)| until.min(*due));
            if let Some(letter) = self.hear(next.since(here)) {
                self.under_way.push_back((crate::agent::now() + self.delay, letter));
            } else if crate::agent::now() >= until {
                return None;
            }
        }
    }

    fn dropped_telemetry(&self) -> u64 {
        self.inner.dropped_telemetry()
    }
}

#[test]
fn slow_node_takes_part_in_run() {
    // Mostly they wait, so they do it at the same time.
    std::thread::scope(|scope| {
        for delay in [200, 900].map(Nanos::from_millis) {
            scope.spawn(move || assert_completes_with_delay(delay));
        }
    });
}

fn assert_completes_with_delay(delay: Nanos) {
    let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
    let _nodes = [("north", Nanos::ZERO), ("south", delay)].map(|(name, delay)| {
        let half = HalfPlane { node: name.into(), ..HalfPlane::default() };
        let request = NodeRequest { delay, terms: LeaseTerms::FLEET_TERMS, ..NodeRequest::default() };
        TestNode::with(&fabric, name, place.path(), (half.clone(), half), request)
    });
    let mut fleet = FleetExecutor::become_controller(&fabric, charge("c", MemoryShelf::default())).unwrap();
    let (report, events) = run(&mut fleet, &|| false);
    let report = report.unwrap_or_else(|error| panic!("{delay}: {error}: {events:?}"));
    assert_eq!(report.outcome, RunOutcome::Complete { stopped: false }, "{delay}: {events:?}");
}

#[test]
fn leases_continue_while_run_record_is_written() {
    let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
    let _nodes = NODES.map(|name| {
        let half = HalfPlane { node: name.into(), endless: true, ..HalfPlane::default() };
        let request = NodeRequest { terms: LeaseTerms::FLEET_TERMS, ..NodeRequest::default() };
        TestNode::with(&fabric, name, place.path(), (half.clone(), half), request)
    });
    let is_kept = Arc::<AtomicBool>::default();
    let keeps = Arc::clone(&is_kept);
    let mut charge = charge("c", MemoryShelf::default());
    charge.note = Box::new(move |record| {
        if record.state == RunState::Running {
            std::thread::sleep(std::time::Duration::from_nanos(2 * LeaseTerms::FLEET_TERMS.ttl.as_u64()));
            keeps.store(true, Ordering::Relaxed);
        }
        Ok(())
    });
    let mut fleet = FleetExecutor::become_controller(&fabric, charge).unwrap();
    let (report, events) = run(&mut fleet, &|| is_kept.load(Ordering::Relaxed));
    assert_eq!(report.unwrap().outcome, RunOutcome::Complete { stopped: true }, "{events:?}");
}

#[test]
fn leases_renew_while_node_writes_samples() {
    static WRITTEN: AtomicBool = AtomicBool::new(false);
    let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
    let _nodes = NODES.map(|name| {
        let half = HalfPlane { node: name.into(), endless: true, ..HalfPlane::default() };
        let disk = || {
            std::thread::sleep(std::time::Duration::from_nanos(2 * LeaseTerms::FLEET_TERMS.ttl.as_u64()));
            WRITTEN.store(true, Ordering::Relaxed);
        };
        let request = NodeRequest { terms: LeaseTerms::FLEET_TERMS, disk, ..NodeRequest::default() };
        TestNode::with(&fabric, name, place.path(), (half.clone(), half), request)
    });
    let mut fleet = FleetExecutor::become_controller(&fabric, charge("c", MemoryShelf::default())).unwrap();
    let (report, events) = run(&mut fleet, &|| WRITTEN.load(Ordering::Relaxed));
    assert_eq!(report.unwrap().outcome, RunOutcome::Complete { stopped: true }, "{events:?}");
}

/// The user has stopped the output of a terminal, or reads a pipe slowly.
#[test]
fn leases_renew_while_reader_of_events_waits() {
    let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
    let _nodes = NODES.map(|name| {
        let half = HalfPlane { node: name.into(), endless: true, ..HalfPlane::default() };
        let request = NodeRequest { terms: LeaseTerms::FLEET_TERMS, ..NodeRequest::default() };
        TestNode::with(&fabric, name, place.path(), (half.clone(), half), request)
    });
    let mut fleet = FleetExecutor::become_controller(&fabric, charge("c", MemoryShelf::default())).unwrap();
    lead(&mut fleet, DOCUMENT).unwrap();
    let has_waited = AtomicBool::new(false);
    let mut events = Vec::new();
    let mut note = |event: &RunEvent| {
        if matches!(event.kind, RunEventKind::StateChanged(RunState::Running)) {
            std::thread::sleep(std::time::Duration::from_nanos(2 * LeaseTerms::FLEET_TERMS.ttl.as_u64()));
            has_waited.store(true, Ordering::Relaxed);
        }
        events.push(event.kind.clone());
    };
    let stop = || has_waited.load(Ordering::Relaxed);
    let report = run_document(&mut fleet, DOCUMENT, options(), (&stop, &mut note)).unwrap();
    assert_eq!(report.outcome, RunOutcome::Complete { stopped: true }, "{events:?}");
    assert_eq!(events.last(), Some(&RunEventKind::Ended(report.outcome)));
}

#[test]
fn round_trip_ignores_answers_to_earlier_call() {
    let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
    let _near = TestNode::start(&fabric, "north", place.path(), false, false);
    let half = HalfPlane { node: "south".into(), ..HalfPlane::default() };
    let request = NodeRequest {
        delay: Nanos::from_millis(300),
        terms: LeaseTerms::FLEET_TERMS,
        ..NodeRequest::default()
    };
    let _far = TestNode::with(&fabric, "south", place.path(), (half.clone(), half), request);
    let mut fleet = FleetExecutor::become_controller(&fabric, charge("c", MemoryShelf::default())).unwrap();
    for _ in 0..3 {
        // The answer to an abandoned call is still on its way when the next call is made.
        use packetrig_fleet::message::Nonce;
        fleet.endpoint.post_to_all_nodes(MessageBody::RollCall(Nonce(1))).unwrap();
        fleet.ask_all_nodes().unwrap();
        let far = fleet.round_trips.longest_round_trip([&NodeName("south".into())]);
        assert!(far >= Nanos::from_millis(300), "{far}");
    }
}
