use super::*;
use crate::BackpressurePolicy;
use crate::backpressure::OutputQueue;
use crate::export::accounts::{BatchContent, TargetAccount};
use crate::export::dispatch::BacklogBatch;
use crate::export::outbox::{self, BATCH_BYTES, WorkerExportBuffer};
use crate::group::GroupStatus;
use crossbeam_channel::{Receiver, bounded};
use packetrig_flow::FlowRecord;
use packetrig_flow::group::RoleChange;
use packetrig_flow::sim::SimEvent;
use packetrig_units::MonoTime;

const TERM: GroupTerm = GroupTerm { count: 1, meter: 1 };
const FOREVER: MonoTime = MonoTime::from_nanos(u64::MAX);

/// A gate with one worker and one target, which the test simulates.
struct GateRig {
    gate: ExportGate,
    handle: GroupRoleHandle,
    dispatcher: Dispatcher,
    outbox: WorkerExportBuffer,
    handed: Receiver<BacklogBatch>,
    account: TargetAccount,
}

impl GateRig {
    fn new(keep_bytes: usize) -> Self {
        Self::with(keep_bytes, BatchContent::Records)
    }

    fn with(keep_bytes: usize, content: BatchContent) -> Self {
        let handle = GroupRoleHandle::new(GroupStatus::new_standby("g", 1, MeterCoverage::seen_since(0)));
        let (queue, inlet) = outbox::open_export_queue(16 * BATCH_BYTES, &BackpressurePolicy::default());
        let (room, handed) = bounded(32);
        let account = inlet.accounts.add_target("target".into(), content);
        let backlogs = vec![OutputQueue::new(room, &inlet.backpressure)];
        // SIM has no history, so its collectors would store repeated packets again.
        let resend_time = if content == BatchContent::Records { Nanos::from_secs(5) } else { Nanos::ZERO };
        Self {
            gate: ExportGate::new(&handle, keep_bytes, Nanos::ZERO, resend_time),
            handle,
            dispatcher: Dispatcher::new(inlet, backlogs, Nanos::from_millis(50)),
            outbox: queue.make_outbox(),
            handed,
            account,
        }
    }

    /// A record leaves the table at this time.
    fn keep(&mut self, at_ns: u64) {
        self.outbox.add_record(&FlowRecord::default());
        self.outbox.flush_batches();
        let batch = self.dispatcher.batches().recv().unwrap();
        self.gate.kept.push_batch(at_ns, batch);
        self.gate.poll_once(&self.dispatcher);
    }

    fn change(&mut self, change: RoleChange, watermark: Option<u64>) {
        self.handle.publish_role(Some(change), watermark, FOREVER);
        self.gate.poll_once(&self.dispatcher);
    }

    fn become_active(&mut self, replay_from_ns: u64) {
        self.change(RoleChange::BecameActive { term: TERM, replay_from_ns }, None);
    }

    /// The target takes everything.
    fn send_all(&self) -> usize {
        let batches: Vec<BacklogBatch> = self.handed.try_iter().collect();
        for handed in &batches {
            self.account.count_sent(handed.batch.carried_records(), 0, 0);
        }
        batches.len()
    }
}

const fn seconds(seconds: u64) -> u64 {
    seconds * 1_000_000_000
}

#[test]
fn takeover_sends_records_after_active_watermark() {
    let mut rig = GateRig::new(1 << 20);
    for at in 10..20 {
        rig.keep(seconds(at));
    }
    assert!(rig.handed.is_empty());
    rig.handle.publish_role(None, Some(seconds(17)), MonoTime::default());
    rig.gate.poll_once(&rig.dispatcher);
    assert_eq!(rig.account.export_counts().left_to_others.records, 3);
    rig.become_active(seconds(20));
    assert_eq!(rig.account.export_counts().left_to_others.records, 6);
    assert_eq!((rig.send_all(), rig.gate.kept.is_empty()), (4, true));
    rig.keep(seconds(21));
    assert_eq!(rig.send_all(), 1);
    let counts = rig.account.export_counts();
    assert_eq!((counts.sent.records, counts.offered.records, counts.waiting.records), (5, 11, 0));
}

/// The active meter and the collector are killed one after the other. The collector has lost the last records of the dead meter.
#[test]
fn new_connection_gets_records_that_another_meter_had_sent() {
    let mut rig = GateRig::new(1 << 20);
    for at in 10..30 {
        rig.keep(seconds(at));
    }
    rig.handle.publish_role(None, Some(seconds(29)), MonoTime::default());
    rig.gate.poll_once(&rig.dispatcher);
    rig.become_active(seconds(29));
    assert_eq!(rig.send_all(), 5, "the collector has the others");
    let before = rig.account.export_counts();
    assert_eq!((before.left_to_others.records, before.sent.records, before.waiting.records), (15, 5, 0));
    rig.account.note_connection();
    rig.gate.poll_once(&rig.dispatcher);
    let again: Vec<BacklogBatch> = rig.handed.try_iter().collect();
    // Those of the last five seconds.
    assert!(again.len() == 6 && again.iter().all(|handed| handed.is_repeated), "{again:?}");
    assert_eq!(rig.account.export_counts(), before, "they are in no account again");
    rig.gate.poll_once(&rig.dispatcher);
    assert!(rig.handed.is_empty(), "once");
}

#[test]
fn standby_remembers_exported_records_within_its_memory() {
    let mut rig = GateRig::new(9000);
    for at in 10..30 {
        rig.keep(seconds(at));
        rig.handle.publish_role(None, Some(seconds(at)), MonoTime::default());
    }
    rig.gate.poll_once(&rig.dispatcher);
    assert_eq!(rig.account.export_counts().queue_dropped.records, 0);
    assert!(rig.gate.exported.bytes() > 0);
    assert!(rig.gate.exported.bytes() + rig.gate.kept.bytes() <= 9000);
}

#[test]
fn standby_buffer_drops_oldest_and_counts_them() {
    let mut rig = GateRig::new(2000);
    for at in 10..30 {
        rig.keep(seconds(at));
    }
    let dropped = rig.account.export_counts().queue_dropped.records;
    assert!((10..20).contains(&dropped), "{dropped}");
    rig.become_active(0);
    assert_eq!(rig.send_all() as u64, 20 - dropped);
}

#[test]
fn the_watermark_is_what_all_targets_have() {
    let mut rig = GateRig::new(1 << 20);
    rig.become_active(0);
    rig.keep(seconds(10));
    rig.outbox.report_progress(WorkerProgress {
        settled_ns: seconds(11),
        delivered_ns: seconds(11),
        packets: 5,
        ring_dropped: 0,
        ..WorkerProgress::default()
    });
    rig.gate.poll_once(&rig.dispatcher);
    let watermark = |rig: &GateRig| rig.handle.inputs().exported.map(|(_, ns)| ns);
    assert_eq!(watermark(&rig), Some(0), "nothing was settled at the takeover");
    rig.gate.poll_once(&rig.dispatcher);
    assert_eq!(watermark(&rig), Some(0));
    assert_eq!(rig.send_all(), 1);
    // The first watermark was taken before the batch was sent.
    for _ in 0..2 {
        rig.gate.poll_once(&rig.dispatcher);
    }
    assert_eq!(watermark(&rig), Some(seconds(11)));
    assert_eq!(rig.handle.inputs().seen.packets, 5);
}

/// A meter may take seconds to end. Its successor must send the records of these seconds.
#[test]
fn watermark_stays_where_metering_ended() {
    let mut rig = GateRig::new(1 << 20);
    rig.become_active(0);
    let last = WorkerProgress {
        settled_ns: seconds(11),
        delivered_ns: seconds(11),
        packets: 5,
        ..WorkerProgress::default()
    };
    rig.outbox.report_progress(last);
    let GateRig { mut gate, handle, dispatcher, outbox, .. } = rig;
    drop(outbox);
    for _ in 0..3 {
        gate.poll_once(&dispatcher);
    }
    set_final_watermark(&handle, dispatcher.combined_progress(), true);
    assert_eq!(handle.inputs().exported, Some((TERM, seconds(11))));
    assert_eq!(handle.inputs().seen.packets, 0, "a meter that ends counts no packets");
}

#[test]
fn watermark_stops_after_lost_records() {
    let mut rig = GateRig::new(1 << 20);
    rig.become_active(0);
    rig.keep(seconds(10));
    assert!(rig.handle.inputs().can_export);
    let handed = rig.handed.recv().unwrap();
    rig.account.count_refused(handed.batch.carried_records());
    rig.outbox.report_progress(WorkerProgress {
        settled_ns: seconds(11),
        delivered_ns: seconds(11),
        packets: 5,
        ring_dropped: 0,
        ..WorkerProgress::default()
    });
    rig.gate.poll_once(&rig.dispatcher);
    rig.gate.poll_once(&rig.dispatcher);
    assert_eq!(rig.handle.inputs().exported, Some((TERM, 0)));
    assert!(!rig.handle.inputs().can_export);
    // A new term starts without the loss.
    rig.change(RoleChange::BecameStandby { active: Some(2) }, Some(0));
    let term = GroupTerm { count: 3, meter: 1 };
    rig.change(RoleChange::BecameActive { term, replay_from_ns: 0 }, None);
    rig.gate.poll_once(&rig.dispatcher);
    assert_eq!(rig.handle.inputs().exported, Some((term, seconds(11))));
}

#[test]
fn packet_loss_and_strange_flows_make_coverage_incomplete() {
    let mut rig = GateRig::new(1 << 20);
    await_ready(&mut rig);
    rig.outbox.report_progress(WorkerProgress {
        settled_ns: 1,
        delivered_ns: 1,
        packets: 5,
        ring_dropped: 3,
        ..WorkerProgress::default()
    });
    rig.gate.poll_once(&rig.dispatcher);
    let coverage = rig.handle.coverage();
    assert!(coverage.complete_from_ns.is_none() && coverage.seen_since_ns > 0);
    // Coverage stays incomplete while a flow is strange.
    let progress = WorkerProgress {
        settled_ns: 1,
        delivered_ns: 1,
        packets: 5,
        read_ns: 1,
        ring_dropped: 3,
        strange_flows: 1,
        has_ended: false,
    };
    rig.outbox.report_progress(progress);
    for _ in 0..60 {
        rig.gate.poll_once(&rig.dispatcher);
        clock::sleep_until_ns(clock::monotonic_ns() + 20_000_000);
    }
    assert!(rig.handle.coverage().complete_from_ns.is_none());
    rig.outbox.report_progress(WorkerProgress { strange_flows: 0, ..progress });
    await_ready(&mut rig);
}

fn await_ready(rig: &mut GateRig) {
    while rig.handle.coverage().complete_from_ns.is_none() {
        rig.gate.poll_once(&rig.dispatcher);
        clock::sleep_until_ns(clock::monotonic_ns() + 20_000_000);
    }
}

#[test]
fn stopping_standby_leaves_records_to_live_active() {
    for (is_alive, left, dropped) in [(true, 1, 0), (false, 0, 1)] {
        let mut rig = GateRig::new(1 << 20);
        rig.keep(clock::wall_clock_ns());
        let watermark = if is_alive { clock::wall_clock_ns() + seconds(60) } else { 7 };
        rig.handle.publish_role(None, Some(watermark.min(seconds(4) + 1)), MonoTime::default());
        rig.handle.publish_role(None, Some(watermark), MonoTime::default());
        rig.gate.finish_export(&rig.dispatcher);
        let counts = rig.account.export_counts();
        assert_eq!((counts.left_to_others.records, counts.queue_dropped.records), (left, dropped));
    }
}

#[test]
fn a_batch_of_a_standby_is_small() {
    let mut rig = GateRig::new(1 << 20);
    rig.outbox.add_record(&FlowRecord::default());
    rig.outbox.flush_batches();
    let WorkerBatch::Records(records) = rig.dispatcher.batches().recv().unwrap() else { panic!("records") };
    assert!(records.capacity() > 1);
    rig.gate.kept.push_batch(1, WorkerBatch::Records(records));
    let Some(WorkerBatch::Records(records)) = rig.gate.kept.pop_oldest().map(|kept| kept.batch) else {
        panic!("records")
    };
    assert_eq!(records.capacity(), 1);
}

#[test]
fn sim_packets_are_kept_until_active_sends_them() {
    let mut rig = GateRig::with(1 << 20, BatchContent::Sim);
    for at in 10..20 {
        rig.outbox.add_event(SimEvent::Packet { flow_id: 1, bytes: 100, at_ns: seconds(at) });
        rig.outbox.flush_batches();
        let batch = rig.dispatcher.batches().recv().unwrap();
        rig.gate.kept.push_batch(seconds(at), batch);
    }
    rig.handle.publish_role(None, Some(seconds(17)), MonoTime::default());
    rig.gate.poll_once(&rig.dispatcher);
    assert!(rig.handed.is_empty() && !rig.outbox.take_takeover_flag());
    assert_eq!(rig.account.export_counts().left_to_others.packets, 3);
    // A new connection gets nothing again: its collector would count it twice.
    rig.account.note_connection();
    rig.become_active(seconds(20));
    assert!(rig.outbox.take_takeover_flag(), "the worker is to tell of the flows that go on");
    assert!(!rig.outbox.take_takeover_flag());
    assert_eq!(rig.account.export_counts().left_to_others.packets, 6);
    rig.outbox.report_progress(WorkerProgress {
        settled_ns: seconds(21),
        delivered_ns: seconds(21),
        packets: 10,
        ring_dropped: 0,
        ..WorkerProgress::default()
    });
    rig.gate.poll_once(&rig.dispatcher);
    let watermark = |rig: &GateRig| rig.handle.inputs().exported.map(|(_, ns)| ns);
    assert_eq!(watermark(&rig), None, "nothing has reached the target");
    assert_eq!(rig.send_all(), 4);
    for _ in 0..3 {
        rig.gate.poll_once(&rig.dispatcher);
    }
    assert_eq!(watermark(&rig), Some(seconds(21)));
}

/// A batch of a few events takes the memory of a full one unless it is made smaller.
#[test]
fn sim_standby_buffer_is_bounded() {
    let mut rig = GateRig::with(10 * size_of::<SimEvent>(), BatchContent::Sim);
    for at in 10..40 {
        rig.outbox.add_event(SimEvent::Packet { flow_id: 1, bytes: 100, at_ns: seconds(at) });
        rig.outbox.flush_batches();
        let batch = rig.dispatcher.batches().recv().unwrap();
        rig.gate.kept.push_batch(seconds(at), batch);
        rig.gate.poll_once(&rig.dispatcher);
    }
    assert_eq!(rig.account.export_counts().queue_dropped.packets, 20);
    rig.become_active(0);
    assert_eq!(rig.send_all(), 10);
}
