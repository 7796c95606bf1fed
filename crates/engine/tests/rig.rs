//! The rig with its threads, on the real clock: back ends of both levels must produce the same numbers.

mod bed;

use bed::mock::{LATENCY, MockPorts};
use bed::plans::{begin, execute, options, plan, plan_stream, watch};
use packetrig_engine::Error;
use packetrig_engine::chaos::{ChaosLevel, ChaosWorker};
use packetrig_engine::clock::RealClock;
use packetrig_engine::receiver::TestReceiver;
use packetrig_engine::rig::{DataPlane as _, HeldPort, OpenPort, PortOpener};
use packetrig_engine::sender::TestSender;
use packetrig_engine::sim::{FaultChance, LinkSpec, SimLink, SimPorts, SimRx, SimTx};
use packetrig_engine::stream::{NextStep, StreamControl, StreamTx, TxJob};
use packetrig_plan::{CaptureFormat, Plan, PlannedCapture, Port, StreamAmount};
use packetrig_stats::caveat::CaveatKind;
use packetrig_stats::counts::StreamTxCounts;
use packetrig_stats::latency::Latency;
use packetrig_stats::ledger::LedgerAccount;
use packetrig_stats::port::{BackEnd, TxCounters};
use packetrig_stats::port_event::PortEventKind;
use packetrig_stats::result::{NodeResult, SendResult, SentTotal};
use packetrig_units::{FrameSize, MonoTime, Nanos};
use packetrig_wire::filter::FrameFilter;
use pcap_parser::traits::PcapReaderIterator;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One stream there, one back.
fn both_ways() -> Plan {
    let mut plan = plan(&["left", "right"]);
    plan.streams = vec![
        plan_stream("there", 0, &[1], 20_000, StreamAmount::Packets(2000)),
        plan_stream(
            "back",
            1,
            &[0],
            5_000,
            StreamAmount::Bursts {
                bursts: 10,
                packets: 50,
                between: packetrig_plan::OtgPause::Time(Nanos::from_millis(1)),
            },
        ),
    ];
    plan
}

/// Asserts the result of [`both_ways`] on every back end when the frames 9, 19, 29 … are lost.
fn demand(result: &NodeResult, back_end: BackEnd) {
    assert_eq!(result.node, "local");
    assert!(result.started < result.senders_done && result.senders_done <= result.ended);
    let sent: Vec<_> =
        result.send.iter().map(|s| (s.stream, s.planned, s.counts.frames, s.counts.bytes)).collect();
    assert_eq!(sent, [(0, 2000, 2000, 256_000), (1, 500, 500, 64_000)]);
    let mut received: Vec<_> = result
        .receive
        .iter()
        .map(|r| (r.stream, r.port, r.counts.frames, r.counts.sequence.lost, r.counts.sequence.loss_bursts))
        .collect();
    received.sort_unstable();
    assert_eq!(received, [(0, 1, 1800, 200, 200), (1, 0, 450, 50, 50)]);
    for received in &result.receive {
        assert_eq!(received.latency.as_ref().map(Latency::count), Some(received.counts.frames));
    }
    for (index, port) in result.ports.iter().enumerate() {
        assert_eq!((port.port, port.info.back_end), (index, back_end));
        assert_eq!((port.ledger.find_imbalances(), port.ledger.unchecked_rules()), (vec![], vec![]));
    }
    assert_eq!(result.ports[0].ledger.get(LedgerAccount::HandedOver), Some(2000));
    assert_eq!(result.ports[1].ledger.get(LedgerAccount::Counted), Some(1800));
    let grave: Vec<_> = result.caveats.iter().filter(|caveat| caveat.matters).collect();
    assert!(grave.is_empty(), "{grave:?}");
}

#[test]
fn the_frame_level_meets_the_demands() {
    let link = || LinkSpec { loss: FaultChance::at_positions((9..5000).step_by(10)), ..LinkSpec::default() };
    let ports = SimPorts::default().add_wire("left", "right", link()).add_wire("right", "left", link());
    demand(&execute(both_ways(), &options(None), &ports).unwrap(), BackEnd::Sim);
    let lost: Vec<usize> = ports.truths().iter().map(|truth| truth.lost.len()).collect();
    assert_eq!(lost, [200, 50]);
}

#[test]
fn mock_stream_port_meets_same_demands() {
    let ports = MockPorts { lost: (9..5000).step_by(10).collect(), ..MockPorts::default() };
    let result = execute(both_ways(), &options(None), &ports).unwrap();
    demand(&result, BackEnd::Mock);
    assert_eq!(result.receive[0].latency.as_ref().unwrap().max(), Some(LATENCY));
    assert_eq!(result.ports[0].clock_bound, Nanos::new(9));
}

#[test]
fn own_receiver_losses_become_caveat() {
    let ports = MockPorts { ring_dropped: 3, ..MockPorts::default() };
    let result = execute(both_ways(), &options(None), &ports).unwrap();
    let lost: Vec<_> = result.caveats.iter().filter(|c| c.doubt == CaveatKind::ReceiverLost).collect();
    assert_eq!((lost.len(), lost[0].subject.as_str(), lost[0].matters), (2, "left", true));
    assert!(lost[0].text.contains("3 frames"), "{}", lost[0].text);
}

#[test]
fn several_receivers_each_keep_their_own_account() {
    let mut plan = plan(&["a", "b", "c"]);
    plan.streams = vec![plan_stream("one to two", 0, &[1, 2], 20_000, StreamAmount::Packets(500))];
    let lossy = LinkSpec { loss: FaultChance::at_positions([1, 2, 3]), ..LinkSpec::default() };
    let ports = SimPorts::default().add_wire("a", "b", LinkSpec::default()).add_wire("a", "c", lossy);
    let result = execute(plan, &options(None), &ports).unwrap();
    let lost: Vec<_> = result.receive.iter().map(|r| (r.port, r.counts.sequence.lost)).collect();
    assert_eq!(lost, [(1, 0), (2, 3)]);
}

#[test]
fn samples_grow_and_stopping_ends_an_endless_stream() {
    let mut plan = plan(&["left", "right"]);
    plan.streams = vec![
        plan_stream("endless", 0, &[1], 2_000, StreamAmount::Continuous),
        plan_stream("long", 0, &[1], 2_000, StreamAmount::Packets(1_000_000)),
    ];
    let ports = SimPorts::default().add_wire("left", "right", LinkSpec::default());
    let mut rig = begin(plan, &options(None), &ports).unwrap();
    let (mut last, mut growths) = (0, 0);
    watch(&mut rig, &mut |sample| {
        let seen: u64 = sample.rx.iter().map(|(_, _, counts)| counts.frames).sum();
        assert!(seen >= last, "counts are cumulative");
        growths += u32::from(seen > last);
        last = seen;
        growths >= 3 && sample.latency.is_some()
    })
    .unwrap();
    rig.stop_senders();
    watch(&mut rig, &mut |_| false).unwrap();
    assert_eq!(rig.sent_totals().unwrap().len(), 2);
    let result = rig.finish_run("local", &[]).unwrap();
    for sent in &result.send {
        assert!(sent.counts.frames > 0 && sent.planned >= sent.counts.frames && sent.planned < 1_000_000);
    }
    for received in &result.receive {
        assert_eq!(received.counts.sequence.lost, 0);
    }
    assert!(
        result.caveats.iter().any(|caveat| caveat.doubt == CaveatKind::Interrupted),
        "`long` was cut short"
    );
}

#[test]
fn local_sender_counts_outweigh_claimed_totals() {
    let mut plan = plan(&["here"]);
    plan.ports.push(Port { name: "there".into(), ..plan.ports[0].clone() });
    plan.streams = vec![plan_stream("from afar", 1, &[0], 1000, StreamAmount::Packets(10))];
    let mut rig =
        packetrig_engine::rig::TestRig::prepare_with(plan, &options(None), &SimPorts::default()).unwrap();
    rig.arm_ports().unwrap();
    let total = |stream, frames| SentTotal { stream, frames };
    let result = rig.finish_run("local", &[total(0, 7), total(99, 5)]).unwrap();
    // The sender of this node sent nothing.
    assert_eq!(result.receive[0].counts.sequence.lost, 0);
}

#[test]
fn captures_hold_every_frame_that_arrived() {
    let dir = tempfile::tempdir().unwrap();
    let mut plan = both_ways();
    plan.captures = vec![PlannedCapture {
        name: "c".into(),
        ports: vec![1],
        format: CaptureFormat::Pcap,
        snap_len: Some(60),
        overwrite: true,
        filter: FrameFilter::default(),
    }];
    let mut only_planned = options(Some(dir.path().into()));
    only_planned.terms.capture_all = false;
    let ports = SimPorts::default().add_wire("left", "right", LinkSpec::default()).add_wire(
        "right",
        "left",
        LinkSpec::default(),
    );
    let result = execute(plan, &only_planned, &ports).unwrap();
    assert_eq!(result.captures.len(), 1);
    assert_eq!(
        (result.captures[0].port, result.captures[0].written, result.captures[0].dropped),
        (1, 2000, 0)
    );
    let bytes = std::fs::read(&result.captures[0].file).unwrap();
    let mut reader = pcap_parser::LegacyPcapReader::new(65_536, &bytes[..]).unwrap();
    let mut frames = 0;
    loop {
        match reader.next() {
            Ok((used, block)) => {
                if let pcap_parser::PcapBlockOwned::Legacy(frame) = block {
                    assert_eq!((frame.caplen, frame.origlen), (60, 128));
                    frames += 1;
                }
                reader.consume(used);
            }
            Err(pcap_parser::PcapError::Incomplete(_)) => reader.refill().unwrap(),
            Err(pcap_parser::PcapError::Eof) => break,
            Err(error) => panic!("{error:?}"),
        }
    }
    assert_eq!(frames, 2000);
}

#[test]
fn capture_without_directory_is_refused() {
    let mut capture_all = options(None);
    capture_all.terms.capture_all = true;
    let error = execute(both_ways(), &capture_all, &MockPorts::default()).unwrap_err();
    assert!(matches!(error, Error::NoCaptureDirectory));
}

#[test]
fn oversized_frames_are_refused_before_sending() {
    let mut plan = both_ways();
    // The index is that of the flow, which differs from the stream's if flows have several streams.
    plan.streams[1].flow = 3;
    plan.streams[1].frames = bed::template(packetrig_wire::header::HeaderKind::Udp, 1600).into();
    let text = execute(plan, &options(None), &MockPorts::default()).unwrap_err().to_string();
    assert!(text.contains("flows[3].size") && text.contains("1600 B") && text.contains("1518 B"), "{text}");
}

#[test]
fn single_vlan_tag_may_exceed_port_frame_limit() {
    use packetrig_wire::header::{HeaderKind, PacketHeader};
    use packetrig_wire::{FrameTemplate, size::SizePattern};
    let tagged = |tags: usize, size: u32, ether_type: Option<u128>| {
        let mut spec = bed::template(HeaderKind::Udp, size).spec().clone();
        spec.headers.splice(1..1, std::iter::repeat_n(PacketHeader::new(HeaderKind::Vlan), tags));
        if let Some(ether_type) = ether_type {
            spec.headers[0] = spec.headers[0].clone().with_field("ether_type", ether_type);
        }
        spec.size = SizePattern::Fixed(FrameSize::new(size));
        let mut plan = both_ways();
        plan.streams[1].frames = Arc::new(FrameTemplate::new(spec).unwrap()).into();
        execute(plan, &options(None), &MockPorts::default()).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(tagged(1, 1522, None), Ok(()));
    assert_eq!(tagged(2, 1522, None), Ok(()));
    for (tags, size, ether_type) in
        [(1, 1523, None), (2, 1526, None), (1, 1522, Some(0x88a8)), (0, 1522, None)]
    {
        let text = tagged(tags, size, ether_type).unwrap_err();
        assert!(text.contains("are too long"), "{text}");
    }
}

/// Simulated ports with a fault; records whether they were restored.
#[derive(Default)]
struct Trouble {
    mood: ChaosLevel,
    rx_mood: ChaosLevel,
    panics: bool,
    settled: Arc<AtomicBool>,
    restored: Arc<AtomicBool>,
}

struct Restore(Arc<AtomicBool>, Arc<AtomicBool>);

impl HeldPort for Restore {
    fn await_ready(&mut self) -> Result<(), Error> {
        self.0.store(true, Ordering::Release);
        Ok(())
    }

    fn caveats(&self) -> Vec<String> {
        vec!["GRO stayed on".into()]
    }

    fn switch_link(&mut self, _: bool) -> Result<(), Error> {
        Ok(())
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Release);
    }
}

/// Sends nothing and panics at the start.
struct Panics;

impl StreamTx for Panics {
    fn arm_sender(&mut self, _job: TxJob) -> Result<(), Error> {
        Ok(())
    }
    fn apply_control(&mut self, _control: StreamControl) {
        panic!("made to panic by a test");
    }
    fn send_due(&mut self, now: MonoTime) -> Result<NextStep, Error> {
        Ok(NextStep::IdleUntil(now + Nanos::from_millis(1)))
    }
    fn stream_counts(&self) -> Vec<StreamTxCounts> {
        vec![]
    }
    fn port_counters(&mut self) -> Result<TxCounters, Error> {
        Ok(TxCounters::default())
    }
    fn finish_sending(&mut self) -> Vec<SendResult> {
        vec![]
    }
}

impl PortOpener for Trouble {
    fn open_port(&self, port: &Port, largest: Option<FrameSize>) -> Result<OpenPort, Error> {
        let link = SimLink::new(LinkSpec::default());
        let tx = TestSender::new(
            ChaosWorker::new(SimTx::new(vec![link.clone()], RealClock::new()), self.mood),
            RealClock::new(),
        );
        let rx = SimRx::new(vec![link], RealClock::new());
        let rx = TestReceiver::new(ChaosWorker::new(rx, self.rx_mood));
        let open = MockPorts::default().open_port(port, largest)?;
        Ok(OpenPort {
            tx: if self.panics { Box::new(Panics) } else { Box::new(tx) },
            rx: Box::new(rx),
            hold: Box::new(Restore(Arc::clone(&self.settled), Arc::clone(&self.restored))),
            ..open
        })
    }
}

impl Trouble {
    fn endless() -> Plan {
        let mut plan = plan(&["left", "right"]);
        plan.streams = vec![plan_stream("endless", 0, &[1], 1_000, StreamAmount::Continuous)];
        plan
    }

    /// Runs until the fault; asserts that the ports were restored by then.
    fn failure(&self) -> Error {
        let mut rig = begin(Self::endless(), &options(None), self).expect("it begins well");
        assert!(self.settled.load(Ordering::Acquire) && !self.restored.load(Ordering::Acquire));
        let error = watch(&mut rig, &mut |_| false).expect_err("something goes wrong");
        drop(rig);
        assert!(self.restored.load(Ordering::Acquire), "the port was not given back");
        error
    }
}

/// Runs a sender or receiver that fails at one call; returns the result after all ports were restored.
fn run_with_failure(trouble: &Trouble, plan: Plan) -> NodeResult {
    let mut rig = begin(plan, &options(None), trouble).expect("it begins well");
    watch(&mut rig, &mut |_| false).expect("a fault of a port is no error of the run");
    let result = rig.finish_run("here", &[]).expect("what was counted is in the result");
    drop(rig);
    assert!(trouble.restored.load(Ordering::Acquire), "the port was not given back");
    result
}

/// Returns the traces of a failing half: caveats that forbid PASS, and events of the ports.
fn said_of_failure(result: &NodeResult) -> (Vec<&str>, Vec<(usize, PortEventKind, bool)>) {
    let caveats = result.caveats.iter().filter(|caveat| caveat.doubt == CaveatKind::PortFailed);
    assert!(caveats.clone().all(|caveat| caveat.matters));
    let events = result.ports.iter().flat_map(|port| {
        // A busy machine may have held the sender up as well.
        let failures = port.events.iter().filter(|event| event.what == PortEventKind::PortFailed);
        failures.map(|event| (port.port, event.what, event.only_sending)).collect::<Vec<_>>()
    });
    (caveats.map(|caveat| caveat.text.as_str()).collect(), events.collect())
}

fn bounded(packets: u64) -> Plan {
    let mut plan = plan(&["left", "right"]);
    plan.streams = vec![plan_stream("bounded", 0, &[1], 1_000, StreamAmount::Packets(packets))];
    plan
}

#[test]
fn failing_sender_keeps_counts_and_port_is_restored() {
    let mood = ChaosLevel { fail_at: Some(50), ..ChaosLevel::default() };
    let result = run_with_failure(&Trouble { mood, ..Trouble::default() }, Trouble::endless());
    let (caveats, events) = said_of_failure(&result);
    assert_eq!(caveats, ["its sender stopped and sent no more frames: injected failure of call 50"]);
    assert_eq!(events, [(0, PortEventKind::PortFailed, true)]);
    assert!(result.send[0].counts.frames >= 50, "{:?}", result.send[0].counts);
    assert_eq!(result.receive.len(), 1);
}

#[test]
fn failed_sender_counts_rest_as_unsent() {
    let mood = ChaosLevel { fail_at: Some(50), ..ChaosLevel::default() };
    let result = run_with_failure(&Trouble { mood, ..Trouble::default() }, bounded(500));
    assert_eq!(result.send[0].planned, 500);
    assert!(result.caveats.iter().any(|caveat| caveat.doubt == CaveatKind::SenderShort));
    let imbalances: Vec<_> = result.ports.iter().flat_map(|port| port.ledger.find_imbalances()).collect();
    assert_eq!(imbalances, []);
}

#[test]
fn failing_receiver_keeps_counts_while_sender_continues() {
    let rx_mood = ChaosLevel { fail_at: Some(20), ..ChaosLevel::default() };
    let result = run_with_failure(&Trouble { rx_mood, ..Trouble::default() }, bounded(300));
    let (caveats, events) = said_of_failure(&result);
    // Both ports have a receiver.
    let text = "its receiver stopped and counted no more frames: injected failure of call 20";
    assert_eq!(caveats, [text, text]);
    let kind = PortEventKind::PortFailed;
    assert_eq!(events, [(0, kind, false), (1, kind, false)]);
    assert_eq!((result.send[0].planned, result.send[0].counts.frames), (300, 300));
    assert_eq!(result.receive.len(), 1);
}

#[test]
fn panicking_worker_ends_run_and_restores_port() {
    let error = Trouble { panics: true, ..Trouble::default() }.failure();
    assert_eq!(error.to_string(), "worker `tx-0` panicked");
}

#[test]
fn dropping_running_rig_restores_ports() {
    let trouble = Trouble::default();
    let rig = begin(Trouble::endless(), &options(None), &trouble).unwrap();
    drop(rig);
    assert!(trouble.restored.load(Ordering::Acquire));
}

#[test]
fn doubts_about_a_port_are_in_the_result() {
    let result =
        execute(Plan { streams: vec![], ..Trouble::endless() }, &options(None), &Trouble::default()).unwrap();
    let texts: Vec<_> =
        result.caveats.iter().map(|c| (c.doubt, c.subject.as_str(), c.text.as_str())).collect();
    assert_eq!(
        texts,
        [(CaveatKind::NotQuiet, "left", "GRO stayed on"), (CaveatKind::NotQuiet, "right", "GRO stayed on")]
    );
}
