//! Steered runs on two nodes in one process: what each is asked for, and real rigs over simulated cables.

use super::*;
use crate::RunSession;
use packetrig_engine::rig::{PlanPortLocations, RigOptions, TestRig};
use packetrig_engine::sim::{LinkSpec, SimPorts};
use packetrig_fleet::served::SteeredRun as _;
use packetrig_plan::PortLocation;
use std::collections::{BTreeMap, BTreeSet};

fn open(fabric: &LocalFabric, document: &str, note: impl FnMut(&RunEvent) + Send + 'static) -> RunSession {
    let mut fleet = FleetExecutor::become_controller(fabric, charge("c", MemoryShelf::default())).unwrap();
    let options = RunOptions { drain: Nanos::from_millis(150), ..options() };
    lead(&mut fleet, document).unwrap();
    RunSession::open_session(fleet, read(document), options, note).unwrap()
}

#[test]
fn steering_steps_reach_all_nodes_or_are_undone() {
    let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
    let nodes = ["north", "south"].map(|name| TestNode::start(&fabric, name, place.path(), true, false));
    let mut session = open(&fabric, DOCUMENT, |_| {});
    let asked = || {
        let take = |node: &TestNode| std::mem::take(&mut *node.half.asked.lock().unwrap());
        nodes.each_ref().map(take)
    };
    session.make_change(PlanChange::Start(vec![0])).unwrap();
    let steps = ["hold Start([0])", "announce [(0, 7)] at", "begin at"].map(String::from).to_vec();
    assert_eq!(asked(), [steps.clone(), steps], "what north holds is announced to both");
    session.make_change(PlanChange::Pause(vec![0])).unwrap();
    assert_eq!(asked(), [vec!["Pause([0])".to_owned()], vec!["Pause([0])".to_owned()]]);
    // South fails on this one.
    let fault = session.make_change(PlanChange::Resume(vec![0])).unwrap_err();
    assert!(fault.text.contains("made to fail"), "{fault:?}");
    let [north, south] = asked();
    assert_eq!(north, ["hold Resume([0])", "undo"]);
    assert_eq!(south, ["hold Resume([0])"], "where nothing is held nothing is undone");
    session.make_change(PlanChange::Replan(read(DOCUMENT))).unwrap();
    assert_eq!(asked()[1][1..], ["announce [(0, 7)]".to_owned(), "begin".to_owned()]);
    assert_eq!(session.end_run().unwrap().outcome, RunOutcome::Complete { stopped: false });
}

/// Rigs on simulated ports.
struct SimulatedRigs {
    node: &'static str,
    cables: Arc<SimPorts>,
}

impl PlaneSource for SimulatedRigs {
    fn prepare_plane(
        &mut self,
        preparation: &RunPreparation,
        plan: Arc<Plan>,
    ) -> Result<PreparedPlane, EngineError> {
        let here = |place: &packetrig_report::PortPlace| {
            (place.node.0 == self.node).then(|| place.interface.parse::<PortLocation>().unwrap())
        };
        let options = RigOptions {
            engine: None,
            run: String::new(),
            terms: preparation.terms.clone(),
            confirmed: BTreeSet::new(),
            capture_dir: None,
            site: PlanPortLocations::PartOfFleet {
                places: preparation.places.iter().map(here).collect(),
                permit: Arc::new(GenerousPermit),
            },
            gate: SendGate::without_lease(),
        };
        let rig = TestRig::prepare_with(Arc::unwrap_or_clone(plan), &options, self.cables.as_ref())?;
        let ports = rig.ports().into_iter().map(|(_, info)| info).collect();
        Ok((Box::new(rig), ports))
    }
}

/// A flow there and one back, with numbered frames of a pattern, and one that may be added.
fn document(pps: u32, added: bool) -> String {
    let flow = |name: &str, tx: &str, rx: &str, pps: u32| {
        format!(
            "- {{name: {name}, tx_rx: {{choice: port, port: {{tx_name: {tx}, rx_names: [{rx}]}}}},
   packet: [{{choice: ethernet, ethernet: {{}}}}, {{choice: ipv4, ipv4: {{}}}}, {{choice: udp, udp:
     {{src_port: {{choice: increment, increment: {{start: 1, step: 1, count: 50000}}}}}}}}],
   size: {{choice: fixed, fixed: 128}}, rate: {{choice: pps, pps: {pps}}},
   metrics: {{enable: true, latency: {{enable: true}}}}}}
"
        )
    };
    let more = if added { flow("more", "a", "b", 3000) } else { String::new() };
    let flows = flow("there", "a", "b", pps) + &flow("back", "b", "a", 2000) + &more;
    format!("ports: [{{name: a, location: north/a0}}, {{name: b, location: south/b0}}]\nflows:\n{flows}")
}

/// Frames sent and received so far, by stream.
type SeenFrames = Arc<Mutex<BTreeMap<usize, (u64, u64)>>>;

fn note(seen: &SeenFrames) -> impl FnMut(&RunEvent) + Send + 'static {
    let seen = Arc::clone(seen);
    move |event| {
        let RunEventKind::Counters { sample, .. } = &event.kind else { return };
        let mut seen = seen.lock().unwrap();
        for (stream, counts) in &sample.tx {
            seen.entry(*stream).or_default().0 = counts.frames;
        }
        for (stream, _, counts) in &sample.rx {
            seen.entry(*stream).or_default().1 = counts.frames;
        }
    }
}

/// Waits until `more` frames of these streams were sent and received than now.
fn flow(seen: &SeenFrames, streams: &[usize], more: u64) {
    let now = |stream: usize| seen.lock().unwrap().get(&stream).copied().unwrap_or_default();
    let before: Vec<_> = streams.iter().map(|stream| now(*stream)).collect();
    for _ in 0..2_000 {
        let mut both = streams.iter().zip(&before);
        if both.all(|(stream, (tx, rx))| now(*stream).0 >= tx + more && now(*stream).1 >= rx + more) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("nothing flows: {:?}", seen.lock().unwrap());
}

#[test]
fn two_node_rigs_steer_without_loss() {
    let cables = SimPorts::default().add_wire("a", "b", LinkSpec::default());
    let cables = Arc::new(cables.add_wire("b", "a", LinkSpec::default()));
    let (fabric, place, seen) = (LocalFabric::default(), tempfile::tempdir().unwrap(), SeenFrames::default());
    let _nodes = ["north", "south"].map(|node| {
        let planes = SimulatedRigs { node, cables: Arc::clone(&cables) };
        let half_and_planes = (HalfPlane::default(), planes);
        TestNode::with(&fabric, node, place.path(), half_and_planes, NodeRequest::default())
    });
    let mut session = open(&fabric, &document(4000, false), note(&seen));
    session.make_change(PlanChange::Start(vec![0, 1])).unwrap();
    flow(&seen, &[0, 1], 100);
    session.make_change(PlanChange::Pause(vec![0])).unwrap();
    flow(&seen, &[1], 100);
    session.make_change(PlanChange::Resume(vec![0])).unwrap();
    flow(&seen, &[0], 100);
    session.make_change(PlanChange::Replan(read(&document(1000, true)))).unwrap();
    session.make_change(PlanChange::Start(vec![2])).unwrap();
    flow(&seen, &[0, 2], 100);
    session.make_change(PlanChange::Stop(vec![0])).unwrap();
    session.make_change(PlanChange::Start(vec![0])).unwrap();
    flow(&seen, &[0], 100);
    let report = session.end_run().unwrap();
    assert_eq!(report.outcome, RunOutcome::Complete { stopped: false });
    assert_eq!((report.imbalances.as_slice(), report.streams.len()), (&[][..], 3));
    for stream in &report.streams {
        let (sent, received) = (stream.sent.as_ref().unwrap(), stream.received.as_ref().unwrap());
        assert!(sent.frames >= 100);
        assert_eq!((received.sequence.unique, received.altered), (sent.frames, 0), "{}", stream.name);
        assert_eq!(stream.loss.unwrap().lost, 0, "{}", stream.name);
        assert!(stream.latency.is_some(), "{}: one clock", stream.name);
    }
}
