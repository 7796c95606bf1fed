//! Copies for a file: a thread that reads the rings of both directions and gives the recorder what is in them.
//!
//! No forwarding depends on it: when it or the disk is slow, rings fill, and what finds them full is counted. Frames
//! of the two directions are taken in turn, so in the file they may stand a little out of the order of their times.

use super::account::RecordingAccount;
use super::hold::TapHold;
use super::{TapSpec, WHOLE};
use crate::Error;
use packetrig_engine::capture::record::{
    CaptureFileFormat, DirectionRecorder, FileRotation, RecordSpec, RecordTarget, RecordingOutcome,
};
use packetrig_engine::packet::{BLOCKS, PacketTap, TapOptions};
use packetrig_engine::port::{FrameRx, RxFrame, WorkerClock};
use packetrig_stats::port::StampKind;
use packetrig_sys::clock::{self, RealtimeOffset};
use packetrig_sys::xdp::tap::TapRings;
use packetrig_units::MonoTime;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Frames taken from one direction before the other has its turn.
const BATCH: usize = 256;
/// How long to rest when nothing came.
const REST_NS: u64 = 1_000_000;
/// How often the kernel is asked what it lost, even if frames keep coming.
const LOOK_NS: u64 = 100_000_000;
/// How long after a stop frames that keep coming are recorded: what arrived before the stop is in the file by then.
const LAST_NS: u64 = 1_000_000_000;
/// Rests in a row after which nothing is on its way any more.
const LAST_RESTS: u32 = 30;
/// Memory between this thread and the disk, bytes.
const QUEUE: usize = 64 << 20;

/// Where frames of one direction come from.
pub(super) enum RecordSource {
    /// Rings that programs fill.
    Kernel(TapRings),
    /// A ring of its own beside that of the lane.
    Socket(Box<PacketTap>),
}

impl RecordSource {
    /// Listens at a side on its own account, for a tap whose lanes have rings that are not ours to read.
    pub(super) fn beside(side: &TapHold, spec: &TapSpec) -> Result<Self, Error> {
        let options = TapOptions {
            filter: spec.filter.as_ref().map(|(_, program)| program.clone()),
            snap_len: spec.snap_len,
            promiscuous: true,
            outgoing: false,
            blocks: BLOCKS,
        };
        Ok(Self::Socket(Box::new(PacketTap::open(&side.location, options)?)))
    }

    fn receive(&mut self, sink: &mut dyn FnMut(RxFrame<'_>)) -> Result<usize, Error> {
        match self {
            Self::Kernel(rings) => Ok(rings.receive(BATCH, &mut |frame| {
                sink(RxFrame::single(
                    frame.bytes,
                    frame.full_len,
                    MonoTime::from_nanos(frame.monotonic_ns),
                    StampKind::Driver,
                ));
            })),
            Self::Socket(tap) => Ok(tap.receive(BATCH, sink)?),
        }
    }

    fn dropped(&mut self) -> Result<u64, Error> {
        match self {
            Self::Kernel(rings) => Ok(rings.dropped()),
            Self::Socket(tap) => Ok(tap.ring()?.dropped),
        }
    }
}

#[derive(Debug, Default)]
struct PublishedRecording {
    frames: AtomicU64,
    ring_dropped: AtomicU64,
    queue_dropped: AtomicU64,
    disk_lost: AtomicU64,
}

/// A recording at its end.
pub(super) struct EndedRecording {
    pub(super) outcome: RecordingOutcome,
    pub(super) account: RecordingAccount,
}

pub(super) struct RecordThread {
    stop: Arc<AtomicBool>,
    published: Arc<PublishedRecording>,
    thread: Option<JoinHandle<Result<RecordingOutcome, Error>>>,
}

impl RecordThread {
    /// Makes the file and begins.
    pub(super) fn begin(
        spec: &TapSpec,
        file: &Path,
        sources: [RecordSource; 2],
        clock: impl WorkerClock + 'static,
    ) -> Result<Self, Error> {
        let recorder = DirectionRecorder::start(record_spec(spec, file), offset_of(&sources), clock.now())?;
        let stop = Arc::new(AtomicBool::new(false));
        let published = Arc::<PublishedRecording>::default();
        let work = RecordWork { recorder, sources, published: Arc::clone(&published), frames: 0 };
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("tap-record".into());
        let thread = thread.spawn(move || work.run(&clock, &stopped));
        let thread = thread.map_err(|source| Error::Thread { name: "tap-record".into(), source })?;
        Ok(Self { stop, published, thread: Some(thread) })
    }

    pub(super) fn counts(&self) -> RecordingAccount {
        let PublishedRecording { frames, ring_dropped, queue_dropped, disk_lost } = &*self.published;
        RecordingAccount {
            frames: frames.load(Ordering::Relaxed),
            ring_dropped: ring_dropped.load(Ordering::Relaxed),
            queue_dropped: queue_dropped.load(Ordering::Relaxed),
            disk_lost: disk_lost.load(Ordering::Relaxed),
        }
    }

    /// Writes what has arrived, and ends the file.
    pub(super) fn end(mut self) -> Result<EndedRecording, Error> {
        self.stop.store(true, Ordering::Release);
        let thread = self.thread.take().ok_or(Error::Bug("a recording ended twice"))?;
        let outcome = thread.join().map_err(|_| Error::Panicked("tap-record".into()))??;
        let account = RecordingAccount {
            queue_dropped: outcome.queue_dropped,
            disk_lost: outcome.disk_lost,
            ..self.counts()
        };
        Ok(EndedRecording { outcome, account })
    }
}

impl Drop for RecordThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // `end` was not called, so the outcome is not wanted.
            drop(thread.join());
        }
    }
}

struct RecordWork {
    recorder: DirectionRecorder,
    sources: [RecordSource; 2],
    published: Arc<PublishedRecording>,
    frames: u64,
}

impl RecordWork {
    /// Records until told to stop, and what is on its way by then.
    fn run(mut self, clock: &impl WorkerClock, stop: &AtomicBool) -> Result<RecordingOutcome, Error> {
        let mut rests = 0;
        let mut looked_ns = 0;
        let mut give_up_ns = None;
        while rests < LAST_RESTS {
            // Read before the rings, and then some quiet rounds are waited for: a ring of the kernel hands over a block
            // that is not full only after its timeout.
            let is_over = stop.load(Ordering::Acquire);
            let now_ns = clock::monotonic_ns();
            // A link that is never quiet must not keep a recording from ending, nor hide what it loses.
            if is_over && now_ns >= *give_up_ns.get_or_insert(now_ns + LAST_NS) {
                break;
            }
            let asks_for_losses = now_ns >= looked_ns + LOOK_NS;
            if asks_for_losses {
                looked_ns = now_ns;
            }
            if self.turn(clock, asks_for_losses)? == 0 {
                rests = if is_over { rests + 1 } else { 0 };
                clock::sleep_until_ns(clock::monotonic_ns() + REST_NS);
            } else {
                rests = 0;
            }
        }
        Ok(self.recorder.finish(clock.now())?)
    }

    /// Takes what has come. What was lost is asked for if nothing has, or if told to: that costs system calls.
    fn turn(&mut self, clock: &impl WorkerClock, asks_for_losses: bool) -> Result<usize, Error> {
        let mut taken = 0;
        let mut dropped = 0;
        for (interface, source) in (0..).zip(&mut self.sources) {
            taken += source.receive(&mut |frame| {
                self.recorder.frame_of(interface, &frame);
                self.frames += 1;
            })?;
        }
        if taken == 0 {
            self.recorder.idle(clock.now());
        }
        if taken == 0 || asks_for_losses {
            for source in &mut self.sources {
                dropped += source.dropped()?;
            }
            self.recorder.lost_before(dropped);
            self.published.ring_dropped.store(dropped, Ordering::Relaxed);
        }
        let dropped = self.recorder.dropped();
        self.published.frames.store(self.frames, Ordering::Relaxed);
        self.published.queue_dropped.store(dropped.queue, Ordering::Relaxed);
        self.published.disk_lost.store(dropped.disk, Ordering::Relaxed);
        Ok(taken)
    }
}

/// Of frames stamped by the wall clock, what their times were converted with: converting back gives the stamp.
fn offset_of(sources: &[RecordSource; 2]) -> RealtimeOffset {
    match &sources[0] {
        RecordSource::Kernel(_) => clock::realtime_offset(),
        RecordSource::Socket(tap) => tap.offset(),
    }
}

fn record_spec(spec: &TapSpec, file: &Path) -> RecordSpec {
    let [a, b] = [spec.sides[0].to_string(), spec.sides[1].to_string()];
    RecordSpec {
        target: RecordTarget::File(file.to_owned()),
        format: CaptureFileFormat::Pcapng,
        comment: format!("packetrig tap {a} {b}: interface 0 is what arrived at {a}, 1 what arrived at {b}"),
        interface: a,
        further: vec![b],
        filter: spec.filter.as_ref().map_or_else(String::new, |(text, _)| text.clone()),
        snap_len: Some(spec.snap_len.unwrap_or(WHOLE)),
        fcs: false,
        budget: None,
        rotation: FileRotation::default(),
        zstd: None,
        queue: QUEUE,
    }
}
