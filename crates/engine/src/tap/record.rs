//! Copies for a file: a thread that reads the rings of both directions and gives the recorder what is in them.
//!
//! It is nobody's way to anywhere: when it or the disk is slow, rings fill, and what finds them full is counted. Frames
//! of the two directions are taken in turn, so in the file they may stand a little out of the order of their times.

use super::account::RecordingAccount;
use super::hold::TapHold;
use super::{TapSpec, WHOLE};
use crate::Error;
use crate::capture::record::{
    CaptureFileFormat, DirectionRecorder, FileRotation, RecordSpec, RecordTarget, RecordingOutcome,
};
use crate::packet::{BLOCKS, PacketTap, TapOptions};
use crate::port::{FrameRx, RxFrame, WorkerClock};
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
                sink(RxFrame {
                    bytes: frame.bytes,
                    full_len: frame.full_len,
                    at: MonoTime::from_nanos(frame.monotonic_ns),
                    stamp: StampKind::Driver,
                });
            })),
            Self::Socket(tap) => tap.receive(BATCH, sink),
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
        let (stop, published) = (Arc::new(AtomicBool::new(false)), Arc::<PublishedRecording>::default());
        let mut work = RecordWork { recorder, sources, published: Arc::clone(&published), frames: 0 };
        let is_over = Arc::clone(&stop);
        let run = move || {
            let mut rests = 0;
            while rests < LAST_RESTS {
                // Read before the rings, and then some quiet rounds are waited for: a ring of the kernel hands over a
                // block that is not full only after its timeout.
                let is_over = is_over.load(Ordering::Acquire);
                if work.turn(&clock)? == 0 {
                    rests = if is_over { rests + 1 } else { 0 };
                    clock::sleep_until_ns(clock::monotonic_ns() + REST_NS);
                }
            }
            work.finish(&clock)
        };
        let thread = std::thread::Builder::new().name("tap-record".into()).spawn(run);
        let thread = thread.map_err(|source| Error::Thread { name: "tap-record".into(), source })?;
        Ok(Self { stop, published, thread: Some(thread) })
    }

    pub(super) fn counts(&self) -> RecordingAccount {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RecordingAccount {
            frames: read(&self.published.frames),
            ring_dropped: read(&self.published.ring_dropped),
            queue_dropped: read(&self.published.queue_dropped),
            disk_lost: read(&self.published.disk_lost),
        }
    }

    /// Writes what has arrived, and ends the file.
    pub(super) fn end(mut self) -> Result<(RecordingOutcome, RecordingAccount), Error> {
        self.stop.store(true, Ordering::Release);
        let thread = self.thread.take().ok_or(Error::Bug("a recording ended twice"))?;
        let recorded = thread.join().map_err(|_| Error::Panicked("tap-record".into()))??;
        let counts = RecordingAccount {
            queue_dropped: recorded.queue_dropped,
            disk_lost: recorded.disk_lost,
            ..self.counts()
        };
        Ok((recorded, counts))
    }
}

impl Drop for RecordThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // Nobody asked what became of it.
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
    fn turn(&mut self, clock: &impl WorkerClock) -> Result<usize, Error> {
        let mut taken = 0;
        let mut dropped = 0;
        for (interface, source) in (0..).zip(&mut self.sources) {
            let (recorder, frames) = (&mut self.recorder, &mut self.frames);
            taken += source.receive(&mut |frame| {
                recorder.frame_of(interface, &frame);
                *frames += 1;
            })?;
        }
        if taken == 0 {
            // Losses are asked for only when nothing came: it costs system calls, and the numbers are totals.
            self.recorder.idle(clock.now());
            for source in &mut self.sources {
                dropped += source.dropped()?;
            }
            self.recorder.lost_before(dropped);
            self.published.ring_dropped.store(dropped, Ordering::Relaxed);
        }
        let (queue, disk) = self.recorder.dropped();
        self.published.frames.store(self.frames, Ordering::Relaxed);
        self.published.queue_dropped.store(queue, Ordering::Relaxed);
        self.published.disk_lost.store(disk, Ordering::Relaxed);
        Ok(taken)
    }

    fn finish(self, clock: &impl WorkerClock) -> Result<RecordingOutcome, Error> {
        self.recorder.finish(clock.now())
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
