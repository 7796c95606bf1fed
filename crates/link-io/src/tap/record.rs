//! Records copies into a file: a thread reads the rings of both directions and passes the frames to the recorder.
//!
//! Forwarding never depends on this thread: when it or the disk is slow, rings fill, and lost frames are counted. The thread
//! alternates between the two directions, so frames in the file may be slightly out of the order of their times.

use super::account::RecordingAccount;
use super::hold::PreparedTapInterface;
use super::{DEFAULT_COPY_BYTES, TapSpec};
use crate::Error;
use packetrig_engine::capture::record::{
    CaptureFileFormat, CaptureRecorder, FileRotation, RecordSpec, RecordTarget, RecordingOutcome,
};
use packetrig_engine::packet::{PacketTap, TAP_RING_BLOCKS, TapOptions};
use packetrig_engine::port::{FrameRx, RxFrame, WorkerClock};
use packetrig_stats::port::StampKind;
use packetrig_sys::clock::{self, RealtimeOffset};
use packetrig_sys::xdp::tap::TapRings;
use packetrig_units::MonoTime;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Number of frames taken from one direction before the other has its turn.
const MAX_FRAMES_PER_DIRECTION: usize = 256;
/// Pause after a poll without frames.
const IDLE_PAUSE_NS: u64 = 1_000_000;
/// Interval for asking the kernel about losses, even if frames keep coming.
const LOSS_CHECK_INTERVAL_NS: u64 = 100_000_000;
/// Time after a stop during which arriving frames are still recorded. Frames that arrived before the stop are
/// in the file by then.
const END_DRAIN_TIMEOUT_NS: u64 = 1_000_000_000;
/// Number of successive pauses after a stop without a frame. No frame is in transit after that.
const MAX_IDLE_PAUSES_AT_END: u32 = 30;
/// Memory between this thread and the disk, bytes.
const DISK_QUEUE_BYTES: usize = 64 << 20;

/// Source of the frames of one direction.
pub(super) enum RecordSource {
    /// Rings that BPF programs fill.
    Kernel(TapRings),
    /// A separate packet ring, in addition to the ring of the lane.
    Socket(Box<PacketTap>),
}

impl RecordSource {
    /// Opens a separate ring at a side, because the ring of a lane cannot be shared.
    pub(super) fn open_with_tap(side: &PreparedTapInterface, spec: &TapSpec) -> Result<Self, Error> {
        let options = TapOptions {
            filter: spec.filter.as_ref().map(|(_, program)| program.clone()),
            snap_len: spec.snap_len,
            promiscuous: true,
            outgoing: false,
            blocks: TAP_RING_BLOCKS,
        };
        Ok(Self::Socket(Box::new(PacketTap::open_interface(&side.location, options)?)))
    }

    fn receive_frames(&mut self, sink: &mut dyn FnMut(RxFrame<'_>)) -> Result<usize, Error> {
        match self {
            Self::Kernel(rings) => Ok(rings.receive_frames(MAX_FRAMES_PER_DIRECTION, &mut |frame| {
                sink(RxFrame::single_packet(
                    frame.bytes,
                    frame.full_len,
                    MonoTime::from_nanos(frame.monotonic_ns),
                    StampKind::Driver,
                ));
            })),
            Self::Socket(tap) => Ok(tap.receive_frames(MAX_FRAMES_PER_DIRECTION, sink)?),
        }
    }

    fn dropped_frames(&mut self) -> Result<u64, Error> {
        match self {
            Self::Kernel(rings) => Ok(rings.dropped_frames()),
            Self::Socket(tap) => Ok(tap.ring_stats()?.dropped),
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

/// Result of a recording.
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
    /// Creates the file and starts the thread.
    pub(super) fn begin_recording(
        spec: &TapSpec,
        file: &Path,
        sources: [RecordSource; 2],
        clock: impl WorkerClock + 'static,
    ) -> Result<Self, Error> {
        let recorder =
            CaptureRecorder::start(record_spec(spec, file), stamp_offset_of_sources(&sources), clock.now())?;
        let stop = Arc::new(AtomicBool::new(false));
        let published = Arc::<PublishedRecording>::default();
        let work = TapRecordingTask { recorder, sources, published: Arc::clone(&published), frames: 0 };
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("tap-record".into());
        let thread = thread.spawn(move || work.run_recording(&clock, &stopped));
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

    /// Writes the frames that have arrived, and ends the file.
    pub(super) fn end_recording(mut self) -> Result<EndedRecording, Error> {
        self.stop.store(true, Ordering::Release);
        let thread = self.thread.take().ok_or(Error::Bug("a recording ended twice"))?;
        let outcome = thread.join().map_err(|_| Error::Panicked("tap-record".into()))??;
        // The queue can lose frames until the file is closed, so both counts are read from the final outcome.
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
            // `end_recording` was not called, so no caller wants the outcome.
            drop(thread.join());
        }
    }
}

struct TapRecordingTask {
    recorder: CaptureRecorder,
    sources: [RecordSource; 2],
    published: Arc<PublishedRecording>,
    frames: u64,
}

impl TapRecordingTask {
    /// Records until the stop, and then the frames that are still in transit.
    fn run_recording(
        mut self,
        clock: &impl WorkerClock,
        stop: &AtomicBool,
    ) -> Result<RecordingOutcome, Error> {
        let mut rests = 0;
        let mut looked_ns = 0;
        let mut give_up_ns = None;
        while rests < MAX_IDLE_PAUSES_AT_END {
            // The stop flag is read before the rings, and some polls without frames follow: a kernel
            // ring releases a block that is not full only after a timeout.
            let is_over = stop.load(Ordering::Acquire);
            let now_ns = clock::monotonic_ns();
            // A link with continuous traffic must not prevent a recording from ending, or from reporting its
            // losses.
            if is_over && now_ns >= *give_up_ns.get_or_insert(now_ns + END_DRAIN_TIMEOUT_NS) {
                break;
            }
            let asks_for_losses = now_ns >= looked_ns + LOSS_CHECK_INTERVAL_NS;
            if asks_for_losses {
                looked_ns = now_ns;
            }
            if self.poll_once(clock, asks_for_losses)? == 0 {
                rests = if is_over { rests + 1 } else { 0 };
                clock::sleep_until_ns(clock::monotonic_ns() + IDLE_PAUSE_NS);
            } else {
                rests = 0;
            }
        }
        Ok(self.recorder.finish_recording(clock.now())?)
    }

    /// Takes the frames that have arrived. Reads the losses if no frame arrived or on request, because
    /// this costs system calls.
    fn poll_once(&mut self, clock: &impl WorkerClock, asks_for_losses: bool) -> Result<usize, Error> {
        let mut taken = 0;
        let mut dropped = 0;
        // Interface 0 is side A, as the comment in the file states.
        for (interface, source) in (0..).zip(&mut self.sources) {
            taken += source.receive_frames(&mut |frame| {
                self.recorder.record_interface_frame(interface, &frame);
                self.frames += 1;
            })?;
        }
        if taken == 0 {
            self.recorder.flush_when_idle(clock.now());
        }
        if taken == 0 || asks_for_losses {
            for source in &mut self.sources {
                dropped += source.dropped_frames()?;
            }
            self.recorder.set_kernel_dropped(dropped);
            self.published.ring_dropped.store(dropped, Ordering::Relaxed);
        }
        let dropped = self.recorder.dropped_frames();
        self.published.frames.store(self.frames, Ordering::Relaxed);
        self.published.queue_dropped.store(dropped.queue, Ordering::Relaxed);
        self.published.disk_lost.store(dropped.disk, Ordering::Relaxed);
        Ok(taken)
    }
}

/// Returns the clock offset that was used to convert the frames' times: converting back gives the original stamp.
fn stamp_offset_of_sources(sources: &[RecordSource; 2]) -> RealtimeOffset {
    match &sources[0] {
        RecordSource::Kernel(_) => clock::measure_realtime_offset(),
        RecordSource::Socket(tap) => tap.offset(),
    }
}

fn record_spec(spec: &TapSpec, file: &Path) -> RecordSpec {
    let [a, b] = [spec.sides[0].to_string(), spec.sides[1].to_string()];
    RecordSpec {
        target: RecordTarget::File(file.to_owned()),
        format: CaptureFileFormat::Pcapng,
        comment: format!(
            "packetrig tap {a} {b}: interface 0 has the frames received on {a}, interface 1 those on {b}"
        ),
        interface: a,
        further: vec![b],
        filter: spec.filter.as_ref().map_or_else(String::new, |(text, _)| text.clone()),
        snap_len: Some(spec.snap_len.unwrap_or(DEFAULT_COPY_BYTES)),
        fcs: false,
        budget: None,
        rotation: FileRotation::default(),
        zstd: None,
        queue: DISK_QUEUE_BYTES,
    }
}
