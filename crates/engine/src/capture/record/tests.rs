use super::*;
use crate::port::{RingProgress, RxFrame};
use packetrig_stats::port::StampKind;
use packetrig_sys::clock::RealtimeOffset;
use packetrig_units::clamp_to_usize;
use std::cell::Cell;
use std::path::{Path, PathBuf};

const FRAME: [u8; 1000] = [7; 1000];

/// Delivers one frame per millisecond, and loses some in the ring.
struct ScriptedFrames {
    sent: u64,
    lost: u64,
}

impl FrameRx for ScriptedFrames {
    fn receive_frames(&mut self, most: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> Result<usize, Error> {
        for _ in 0..most {
            let at = MonoTime::from_nanos(self.sent * 1_000_000);
            sink(RxFrame::single_packet(&FRAME, FRAME.len(), at, StampKind::Software));
            self.sent += 1;
        }
        Ok(most)
    }

    fn wait_for_frames(&mut self, _: Nanos) -> Result<(), Error> {
        Ok(())
    }

    fn read_rx_counters(&mut self) -> Result<RxCounters, Error> {
        Ok(RxCounters { ring_dropped: self.lost, seen: self.sent, ..RxCounters::default() })
    }

    fn clock_bound(&self) -> Nanos {
        Nanos::ZERO
    }
}

/// All frames arrive before the end, and the last ones are in a block that is handed over long after it.
struct LateBlock {
    given: u64,
    looks: u64,
}

impl FrameRx for LateBlock {
    fn receive_frames(&mut self, most: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> Result<usize, Error> {
        self.looks += 1;
        let there = if self.looks < 500 { 7 } else { 10 };
        let count = (there - self.given).min(most as u64);
        for _ in 0..count {
            let at = MonoTime::from_nanos(self.given * 1_000_000);
            sink(RxFrame::single_packet(&FRAME, FRAME.len(), at, StampKind::Software));
            self.given += 1;
        }
        Ok(clamp_to_usize(count))
    }

    fn wait_for_frames(&mut self, _: Nanos) -> Result<(), Error> {
        Ok(())
    }

    fn read_rx_counters(&mut self) -> Result<RxCounters, Error> {
        Ok(RxCounters { seen: self.given, ..RxCounters::default() })
    }

    fn ring_progress(&mut self) -> Result<RingProgress, Error> {
        Ok(RingProgress { arrived: 10, read: self.given })
    }

    fn clock_bound(&self) -> Nanos {
        Nanos::ZERO
    }
}

/// A clock that advances by a millisecond with every look.
#[derive(Default)]
struct TickingClock(Cell<u64>);

impl WorkerClock for TickingClock {
    fn now(&self) -> MonoTime {
        self.0.set(self.0.get() + 1_000_000);
        MonoTime::from_nanos(self.0.get())
    }

    fn wait_until(&self, _: MonoTime) {}
}

fn spec(file: PathBuf) -> RecordSpec {
    RecordSpec {
        target: RecordTarget::File(file),
        format: CaptureFileFormat::Pcapng,
        interface: "eth0".into(),
        further: Vec::new(),
        comment: "a test".into(),
        filter: String::new(),
        snap_len: None,
        fcs: false,
        budget: None,
        rotation: FileRotation::default(),
        zstd: None,
        queue: 8 << 20,
    }
}

fn run(spec: RecordSpec, limits: RecordLimits) -> RecordSummary {
    let clock = TickingClock::default();
    let offset = RealtimeOffset { offset_ns: 1_700_000_000_000_000_000, bound_ns: 1 };
    let recorder = CaptureRecorder::start(spec, offset, clock.now()).unwrap();
    let mut rx = ScriptedFrames { sent: 0, lost: 3 };
    record_frames(&mut rx, &clock, Some(recorder), (limits, &|| false), &mut |_, _| {}).unwrap()
}

fn frames(limit: u64) -> RecordLimits {
    RecordLimits { frames: Some(limit), ..RecordLimits::default() }
}

fn assert_all_accounted(summary: &RecordSummary) -> &RecordingOutcome {
    let recorded = summary.recorded.as_ref().unwrap();
    let accounts = recorded.written + recorded.beyond_budget + recorded.queue_dropped + recorded.disk_lost;
    assert_eq!(summary.counts.frames, accounts, "{recorded:?}");
    recorded
}

/// Length of a frame's block in a file.
const RECORD: u64 = 28 + 1000 + 4;

fn size(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

#[test]
fn recording_honours_frame_limit_and_reports_kernel_drops() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pcapng");
    let summary = run(spec(path.clone()), frames(700));
    let recorded = assert_all_accounted(&summary);
    assert_eq!((summary.counts.frames, summary.counts.kernel_dropped), (700, 3));
    assert_eq!(summary.counts.bytes, 700 * 1004, "with FCS");
    assert_eq!((recorded.files.as_slice(), recorded.removed), (&[path.clone()][..], 0));
    let written = size(&path);
    assert!((1..1000).contains(&(written - recorded.written * RECORD)), "{written}");
}

#[test]
fn counting_without_file_fills_series_by_arrival() {
    let clock = TickingClock::default();
    let mut rx = ScriptedFrames { sent: 0, lost: 3 };
    let summary = record_frames(&mut rx, &clock, None, (frames(2500), &|| false), &mut |_, _| {}).unwrap();
    // Counting began at 1 ms, frame n arrives at n ms.
    assert_eq!(summary.series.seconds, [(1001, 1001 * 1004), (1000, 1000 * 1004), (499, 499 * 1004)]);
    assert_eq!((summary.counts.frames, summary.counts.kernel_dropped), (2500, 3));
    assert_eq!(summary.recorded.map(|recorded| recorded.written), None);
}

#[test]
fn frames_after_time_limit_are_not_counted() {
    let dir = tempfile::tempdir().unwrap();
    let limits = RecordLimits { time: Some(Nanos::from_millis(100)), ..RecordLimits::default() };
    let summary = run(spec(dir.path().join("a.pcap")), limits);
    assert_all_accounted(&summary);
    // The clock showed 2 ms when the recording started; frame n arrives at n ms.
    assert_eq!(summary.counts.frames, 103);
}

#[test]
fn timed_rotation_bounds_files_and_removes_oldest() {
    let dir = tempfile::tempdir().unwrap();
    let rotation =
        FileRotation { every: Some(Nanos::from_millis(100)), keep: Some(2), ..FileRotation::default() };
    // The queue has room for everything, so the speed of the disk does not matter.
    let spec = RecordSpec { rotation, queue: 64 << 20, ..spec(dir.path().join("a.pcapng")) };
    let summary = run(spec, frames(1000));
    let recorded = assert_all_accounted(&summary);
    assert_eq!((recorded.files.len(), recorded.removed), (2, 8), "{recorded:?}");
    assert_eq!(recorded.files[1], dir.path().join("a-00010.pcapng"));
    assert!(recorded.files.iter().all(|file| size(file) / RECORD <= 100));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn full_disk_ends_recording_with_all_frames_accounted() {
    let summary = run(spec("/dev/full".into()), frames(1_000_000));
    let recorded = assert_all_accounted(&summary);
    assert_eq!(recorded.written, 0);
    assert!(recorded.disk_lost > 0 && summary.counts.frames < 1_000_000, "{recorded:?}");
    let (path, error) = recorded.failure.as_ref().unwrap();
    assert_eq!((path.as_path(), error.kind()), (Path::new("/dev/full"), std::io::ErrorKind::StorageFull));
}

#[test]
fn a_slow_disk_costs_frames_and_not_time() {
    // Frames are made faster than any disk writes, through a queue of four blocks.
    let dir = tempfile::tempdir().unwrap();
    let spec = RecordSpec { queue: 0, ..spec(dir.path().join("a.pcapng")) };
    let summary = run(spec, frames(100_000));
    let recorded = assert_all_accounted(&summary);
    assert!(recorded.written > 0);
    let extra = size(&recorded.files[0]) - recorded.written * RECORD;
    assert!(extra < 1000, "only whole records: {extra}");
}

#[test]
fn compressed_files_decode_to_plain_capture() {
    let dir = tempfile::tempdir().unwrap();
    let rotation = FileRotation { bytes: Some(3 << 20), ..FileRotation::default() };
    let base = |name: &str| RecordSpec { rotation, queue: 64 << 20, ..spec(dir.path().join(name)) };
    let plain = run(RecordSpec { format: CaptureFileFormat::PcapNanos, ..base("a.pcap") }, frames(5000));
    let zstd = Some(3);
    let squeezed =
        run(RecordSpec { format: CaptureFileFormat::PcapNanos, zstd, ..base("b.pcap.zst") }, frames(5000));
    assert_all_accounted(&plain);
    let recorded = assert_all_accounted(&squeezed);
    assert!(recorded.files.len() >= 2 && !recorded.direct);
    assert_eq!(recorded.files[1], dir.path().join("b-00002.pcap.zst"));
    for (plain, squeezed) in plain.recorded.unwrap().files.iter().zip(&recorded.files) {
        let content = zstd::decode_all(std::fs::File::open(squeezed).unwrap()).unwrap();
        assert!(content == std::fs::read(plain).unwrap() && size(squeezed) < size(plain) / 10);
    }
}

#[test]
fn late_kernel_block_counts_frames_before_deadline() {
    let clock = TickingClock::default();
    let limits = RecordLimits { time: Some(Nanos::from_millis(100)), ..RecordLimits::default() };
    let mut rx = LateBlock { given: 0, looks: 0 };
    let summary = record_frames(&mut rx, &clock, None, (limits, &|| false), &mut |_, _| {}).unwrap();
    assert_eq!(summary.counts.frames, 10);
}
