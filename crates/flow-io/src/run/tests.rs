//! Workers whose sources are made up.

use super::*;
use crate::backpressure::{BackpressurePolicy, OutputQueue};
use crate::batch::WorkerBatch;
use crate::export::open_export_queue;
use crate::source::TakeOutcome;
use packetrig_flow::group::CopyComparison;
use packetrig_flow::table::TableOptions;
use packetrig_sys::clock;
use packetrig_units::MonoTime;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

/// A source that gives nothing until it is stopped, or panics if it is to.
struct IdleSource {
    panics: bool,
    is_stopped: bool,
    ended: mpsc::Sender<()>,
}

impl Drop for IdleSource {
    fn drop(&mut self) {
        self.ended.send(()).unwrap_or(());
    }
}

impl PacketSource for IdleSource {
    fn take_packets(&mut self, _: &mut PacketIntake) -> Result<TakeOutcome, Error> {
        assert!(!self.panics, "as wanted");
        Ok(if self.is_stopped { TakeOutcome::Ended } else { TakeOutcome::Nothing })
    }

    fn delivered_until_ns(&mut self, _: bool) -> u64 {
        1
    }

    fn wait_for_packets(&mut self, _: u64) -> Result<(), Error> {
        std::thread::yield_now();
        Ok(())
    }

    fn ring_dropped(&mut self) -> Result<u64, Error> {
        Ok(0)
    }

    fn stop_receiving(&mut self) -> Result<(), Error> {
        self.is_stopped = true;
        Ok(())
    }

    fn delivered_frames(&self) -> u64 {
        0
    }
}

fn options() -> MeterOptions {
    MeterOptions {
        input: MeterInput::Files(FileOptions { files: vec![], workers: 1, pace: None }),
        parse: ParseOptions::default(),
        table: TableOptions { capacity: 64, ..TableOptions::default() },
        share: None,
        has_top: false,
        has_compared_copies: false,
    }
}

/// Starts a worker for each of these, which says whether it is to panic.
fn launch(panics: &[bool]) -> (RunningMeter, mpsc::Receiver<()>) {
    let (ended, are_ended) = mpsc::channel();
    let source = |panics: &bool| {
        let source = IdleSource { panics: *panics, is_stopped: false, ended: ended.clone() };
        Box::new(source) as Box<dyn PacketSource>
    };
    let sources = panics.iter().map(source).collect();
    let opened = OpenedSources { sources, reader: None, captured: LedgerPacketSource::Nothing };
    let accounts = MeterAccounts::new();
    let processors = vec![None; panics.len()];
    let meter =
        RunningMeter::launch_workers(&options(), processors, &OutputChannels::default(), &accounts, || {
            Ok(opened)
        })
        .unwrap();
    (meter, are_ended)
}

#[test]
fn meter_is_over_after_worker_panic() {
    let (meter, ended) = launch(&[false, true]);
    // The test would run into its time limit if the meter were never over.
    while !meter.has_ended_or_failed() {
        std::thread::yield_now();
    }
    meter.stop_sources();
    assert!(matches!(meter.join_workers(), Err(Error::Panicked("a worker"))));
    assert_eq!(ended.try_iter().count(), 2, "the other one has ended, too");
}

/// Gives a packet of each of so many flows, then fails.
struct Failing {
    flows: u32,
}

impl PacketSource for Failing {
    fn take_packets(&mut self, intake: &mut PacketIntake) -> Result<TakeOutcome, Error> {
        while intake.free_slots() > 0 {
            self.flows = self.flows.checked_sub(1).ok_or(Error::Panicked("the interface"))?;
            let ip = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0];
            let source = (0xc612_0000 + self.flows).to_be_bytes();
            let frame = [&[2; 12][..], &[8, 0], &ip, &source, &[198, 19, 0, 1]].concat();
            intake.add_frame(&frame, 60, 1, 1);
        }
        Ok(TakeOutcome::Some)
    }

    fn delivered_until_ns(&mut self, _: bool) -> u64 {
        1
    }

    fn wait_for_packets(&mut self, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn ring_dropped(&mut self) -> Result<u64, Error> {
        Ok(0)
    }

    fn stop_receiving(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn delivered_frames(&self) -> u64 {
        0
    }
}

#[test]
fn worker_flushes_outputs_after_source_failure() {
    const FLOWS: u32 = 64 * 32;
    let accounts = MeterAccounts::new();
    let (queue, taken) = bounded(1);
    let sinks = vec![OutputQueue::new(queue, accounts.backpressure())];
    let channels = OutputChannels { export: None, sinks, backpressure: accounts.backpressure().clone() };
    let sources = vec![Box::new(Failing { flows: FLOWS }) as Box<dyn PacketSource>];
    let opened = OpenedSources { sources, reader: None, captured: LedgerPacketSource::Nothing };
    let mut options = options();
    options.table.capacity = 2 * FLOWS;
    let meter =
        RunningMeter::launch_workers(&options, vec![None], &channels, &accounts, || Ok(opened)).unwrap();
    drop(channels);
    // The records are taken only after the failure: until then a worker waits for no output.
    while !meter.has_ended_or_failed() {
        std::thread::yield_now();
    }
    let records: u64 = taken.iter().map(|batch| batch.carried_records().records).sum();
    assert_eq!(records, u64::from(FLOWS));
    assert!(matches!(meter.join_workers(), Err(Error::Panicked("the interface"))));
}

/// A ring that has dropped packets after its 32nd. Each packet is a tenth of a second later than the one before.
struct FullRing {
    taken: u64,
    was_empty: bool,
}

impl FullRing {
    const BEFORE_HOLE: u64 = 32;
    const fn time_ns(number: u64) -> u64 {
        1_790_000_000_000_000_000 + number * 100_000_000
    }
}

impl PacketSource for FullRing {
    fn take_packets(&mut self, intake: &mut PacketIntake) -> Result<TakeOutcome, Error> {
        // The worker asks for the dropped packets every 50 ms, which is once or twice before the hole.
        std::thread::sleep(std::time::Duration::from_millis(4));
        if self.taken == Self::BEFORE_HOLE && !std::mem::replace(&mut self.was_empty, true) {
            return Ok(TakeOutcome::Nothing);
        }
        if self.taken == Self::BEFORE_HOLE + 8 {
            return Ok(TakeOutcome::Ended);
        }
        let ip = [0x45, 0, 0, 20, 0, self.taken.to_le_bytes()[0], 0, 0, 64, 17, 0, 0];
        let frame = [&[2; 12][..], &[8, 0], &ip, &[198, 18, 0, 1, 198, 19, 0, 1]].concat();
        intake.add_frame(&frame, 60, Self::time_ns(self.taken), 1);
        self.taken += 1;
        Ok(TakeOutcome::Some)
    }

    fn delivered_until_ns(&mut self, _: bool) -> u64 {
        Self::time_ns(self.taken.saturating_sub(1))
    }

    fn wait_for_packets(&mut self, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn ring_dropped(&mut self) -> Result<u64, Error> {
        Ok(5)
    }

    fn stop_receiving(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn delivered_frames(&self) -> u64 {
        self.taken
    }
}

#[test]
fn ring_loss_lies_after_packets_that_were_in_the_ring() {
    let accounts = MeterAccounts::new();
    let (queue, taken) = bounded(1000);
    let sinks = vec![OutputQueue::new(queue, accounts.backpressure())];
    let channels = OutputChannels { export: None, sinks, backpressure: accounts.backpressure().clone() };
    let sources = vec![Box::new(FullRing { taken: 0, was_empty: false }) as Box<dyn PacketSource>];
    let opened = OpenedSources { sources, reader: None, captured: LedgerPacketSource::Nothing };
    let mut options = options();
    options.table.group = Some(RecordOriginMark { group: 1, meter: 1, lane: 0 });
    let meter =
        RunningMeter::launch_workers(&options, vec![None], &channels, &accounts, || Ok(opened)).unwrap();
    drop(channels);
    meter.join_workers().unwrap();
    let records = taken.iter().flat_map(|batch| match batch {
        WorkerBatch::Records(records) => records,
        WorkerBatch::Sim(_) => Vec::new(),
    });
    let last = records.max_by_key(packetrig_flow::FlowRecord::last_ns).unwrap();
    assert_eq!(last.history.unwrap().since_ns, FullRing::time_ns(FullRing::BEFORE_HOLE));
}

/// A copy of a link that is cut for half a second after its second packet. Its packets are 1 ms apart otherwise.
struct CutCopy {
    begun_ns: u64,
    taken: Arc<AtomicU64>,
    is_stopped: bool,
}

impl CutCopy {
    const BEFORE_CUT: u64 = 2;
    const PACKETS: u64 = 5;
    /// Time of a packet since the first one.
    const fn offset_ns(number: u64) -> u64 {
        let cut_ms = if number < Self::BEFORE_CUT { 0 } else { 500 };
        (number + cut_ms) * 1_000_000
    }
}

impl PacketSource for CutCopy {
    fn take_packets(&mut self, intake: &mut PacketIntake) -> Result<TakeOutcome, Error> {
        let number = self.taken.load(Ordering::Acquire);
        if number == Self::PACKETS {
            return Ok(if self.is_stopped { TakeOutcome::Ended } else { TakeOutcome::Nothing });
        }
        let ip = [0x45, 0, 0, 20, 0, number.to_le_bytes()[0], 0, 0, 64, 17, 0, 0];
        let frame = [&[2; 12][..], &[8, 0], &ip, &[198, 18, 0, 1, 198, 19, 0, 1]].concat();
        intake.add_frame(&frame, 60, self.begun_ns + Self::offset_ns(number), 1);
        self.taken.store(number + 1, Ordering::Release);
        Ok(TakeOutcome::Some)
    }

    fn delivered_until_ns(&mut self, _: bool) -> u64 {
        self.begun_ns + Self::offset_ns(self.taken.load(Ordering::Acquire).saturating_sub(1))
    }

    fn wait_for_packets(&mut self, _: u64) -> Result<(), Error> {
        std::thread::yield_now();
        Ok(())
    }

    fn ring_dropped(&mut self) -> Result<u64, Error> {
        Ok(0)
    }

    fn stop_receiving(&mut self) -> Result<(), Error> {
        self.is_stopped = true;
        Ok(())
    }

    fn delivered_frames(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }
}

/// Meters a copy that was cut, and returns since when its flow is followed: nanoseconds since its first packet.
fn followed_since_ns(has_loss: bool) -> u64 {
    let accounts = MeterAccounts::new();
    let (queue, taken) = bounded(1000);
    let (export, receiver) = open_export_queue(1 << 20, accounts.backpressure());
    let channels = OutputChannels {
        export: Some((export, false)),
        sinks: vec![OutputQueue::new(queue, accounts.backpressure())],
        backpressure: accounts.backpressure().clone(),
    };
    let delivered = Arc::new(AtomicU64::new(0));
    // Packets that are held have times of now.
    let begun_ns = clock::wall_clock_ns();
    let source = CutCopy { begun_ns, taken: Arc::clone(&delivered), is_stopped: false };
    let opened = OpenedSources {
        sources: vec![Box::new(source)],
        reader: None,
        captured: LedgerPacketSource::Nothing,
    };
    let mut options = MeterOptions { has_compared_copies: true, ..options() };
    options.table.group = Some(RecordOriginMark { group: 1, meter: 1, lane: 0 });
    let meter =
        RunningMeter::launch_workers(&options, vec![None], &channels, &accounts, || Ok(opened)).unwrap();
    drop(channels);
    while delivered.load(Ordering::Acquire) < CutCopy::PACKETS {
        std::thread::yield_now();
    }
    receiver.publish_copy_comparison(CopyComparison {
        losses: has_loss.into(),
        compared_until: MonoTime::from_nanos(u64::MAX),
        ..CopyComparison::default()
    });
    let metered =
        || meter.worker_statuses.iter().map(|worker| worker.published_counts().counts.metered).sum::<u64>();
    while metered() < CutCopy::PACKETS {
        std::thread::yield_now();
    }
    meter.stop_sources();
    meter.join_workers().unwrap();
    let records = taken.iter().flat_map(|batch| match batch {
        WorkerBatch::Records(records) => records,
        WorkerBatch::Sim(_) => Vec::new(),
    });
    let last = records.max_by_key(packetrig_flow::FlowRecord::last_ns).unwrap();
    last.history.unwrap().since_ns - begun_ns
}

#[test]
fn loss_shown_by_other_meters_lies_before_held_packets() {
    assert_eq!(followed_since_ns(false), 0);
    assert_eq!(followed_since_ns(true), CutCopy::offset_ns(CutCopy::BEFORE_CUT));
}

#[test]
fn a_meter_that_is_stopped_is_over() {
    let (meter, ended) = launch(&[false, false]);
    assert!(!meter.has_ended_or_failed());
    meter.stop_sources();
    meter.join_workers().unwrap();
    assert_eq!(ended.try_iter().count(), 2);
}

#[test]
fn failed_source_opening_stops_all_workers() {
    let (queue, taken) = bounded(1);
    let sinks = vec![OutputQueue::new(queue, &BackpressurePolicy::default())];
    let channels = OutputChannels { sinks, ..OutputChannels::default() };
    let accounts = MeterAccounts::new();
    let refused = RunningMeter::launch_workers(&options(), vec![None; 3], &channels, &accounts, || {
        Err(Error::Panicked("nobody"))
    });
    assert!(matches!(refused, Err(Error::Panicked("nobody"))));
    drop(channels);
    assert!(taken.try_recv().is_err_and(|error| error.is_disconnected()), "no worker holds a queue any more");
}

#[test]
fn large_interface_index_is_refused_by_name() {
    assert_eq!(to_record_index("eth1", 65_535).unwrap(), 65_535);
    let refused = to_record_index("eth1", 65_536).unwrap_err().to_string();
    assert!(refused.starts_with("eth1 has interface index 65536, and flow records have room"), "{refused}");
}
