//! Sending live frames: the kernel runs `bpf/send.bpf.c` over and over on a thread of this process, and the program
//! makes the frames that are due.
//!
//! ```text
//!  caller -> tables (shapes, fields, fills), once -> runs ("200 frames of shape 3 from now on") -> program -> interface
//!  caller <- counters per lane, histograms <- program
//! ```
//! The thread never sleeps. [`LiveTx::stop_sending`] ends sending at once; dropping the value ends the thread.

mod runs;
mod tables;

pub use runs::{FrameRun, RunProgress};
pub use tables::{FieldChange, FieldChangeKind, FrameShape, FrameTables, ShapeChecksum};

use super::buckets::BUCKET_COUNT;
use super::{SEND_PROGRAM, XDP_SECTION};
use crate::area::SharedArea;
use crate::bpf::{BpfMap, BpfProgram, MapKind};
use crate::error::ignore_failure;
use crate::layout::send::{self as layout, control, lane};
use crate::netns::NetNs;
use crate::{Error, sched, signal};
use runs::RunQueue;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tables::TableMaps;

/// Maximum number of bytes of [`FrameShape::image`].
pub const MAX_IMAGE_BYTES: usize = layout::IMAGE;
/// Maximum number of checksums of a shape.
pub const MAX_CHECKSUMS: usize = layout::CHECKS;
/// Maximum number of varying fields of a shape.
pub const MAX_VARYING_FIELDS: usize = layout::OPS;
/// Maximum number of bytes of each of [`FrameTables::fills`].
pub const MAX_FILL_BYTES: usize = layout::LONGEST_FILL;
/// Maximum number of runs that can wait.
pub const MAX_WAITING_RUNS: u64 = layout::RUNS as u64;
/// Maximum length of a frame that fits into a page of the kernel with its headroom and tail room, without FCS.
pub const MAX_LIVE_FRAME_BYTES: usize = 3_300;
/// Maximum number of frames in a batch, which the kernel gives to the driver together.
pub const MAX_BATCH: u32 = 64;

#[derive(Clone, Copy, Debug)]
pub struct LiveOptions {
    /// Key of the tags.
    pub key: u64,
    /// A frame that is made more than this long after its due time counts as late.
    pub late_after_ns: u64,
    /// Maximum number of frames in a batch: a power of two up to [`MAX_BATCH`].
    pub batch: u32,
    pub pace: LivePace,
}

/// How the program returns to its schedule after a delay (hold-up).
#[derive(Clone, Copy, Debug)]
pub struct LivePace {
    /// A frame that is at most this late counts as on time.
    pub slack_ns: u64,
    /// Divisor: while the program catches up, its lag shrinks by the time that passes divided by this.
    pub part: u64,
    /// Time over which the program adds up its hold-ups. If the program cannot catch up with them in this time, it
    /// makes up for delays of at most `hold_up_ns` at once.
    pub window_ns: u64,
    pub hold_up_ns: u64,
    /// Tolerance: frames may follow earlier frames this much sooner than planned without counting as ahead.
    pub tolerance_ns: u64,
}

/// The program's counts of the frames of one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounts {
    pub frames: u64,
    /// Bytes of the frames, including FCS.
    pub bytes: u64,
    /// Times at which the first and the last frame were made; 0 if none was made.
    pub first_ns: u64,
    pub last_ns: u64,
    pub late: u64,
    /// The longest time from the due time of a frame to the time when it was made.
    pub error_max_ns: u64,
}

/// State shared by the caller and the thread.
#[derive(Debug)]
struct SharedSender {
    program: BpfProgram,
    quit: AtomicBool,
    frame: Vec<u8>,
    batch: u32,
}

/// A sender of live frames.
#[derive(Debug)]
pub struct LiveTx {
    shared: Arc<SharedSender>,
    runs: RunQueue,
    lanes: SharedArea,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl LiveTx {
    /// Loads the program with its tables. Frames will leave through the interface with this number.
    pub fn open_on_interface(index: u32, tables: &FrameTables, options: LiveOptions) -> Result<Self, Error> {
        assert!(options.batch.is_power_of_two() && options.batch <= MAX_BATCH, "batch {}", options.batch);
        let control_map = BpfMap::create_zeroed("control", MapKind::SharedArray, control::SIZE, 1)?;
        let lanes = BpfMap::create_zeroed("lanes", MapKind::SharedArray, lane::SIZE, tables.lanes)?;
        let table_maps = tables.create_maps()?;
        let scratch = BpfMap::create_zeroed("scratch", MapKind::Array, layout::scratch::SIZE, 1)?;
        let TableMaps { shapes, ops, values, fills } = &table_maps;
        let maps = [&control_map, &lanes, shapes, ops, values, fills, &scratch];
        let program = BpfProgram::load_xdp("send", &SEND_PROGRAM.link_program(XDP_SECTION, &maps)?, false)?;
        // The program does not run yet, so plain writes are enough.
        let mut shared = control_map.share_memory()?;
        shared.bytes_mut(control::KEY, 8).copy_from_slice(&options.key.to_ne_bytes());
        let LivePace { slack_ns, part, window_ns, hold_up_ns, tolerance_ns } = options.pace;
        let numbers = [
            (control::LATE_AFTER, options.late_after_ns),
            (control::SLACK, slack_ns),
            (control::PART, part),
            (control::TOLERANCE, tolerance_ns),
            (control::WINDOW, window_ns),
            (control::HOLD_UP, hold_up_ns),
        ];
        for (at, number) in numbers {
            shared.bytes_mut(at, 8).copy_from_slice(&number.to_ne_bytes());
        }
        shared.bytes_mut(control::IFINDEX, 4).copy_from_slice(&index.to_ne_bytes());
        shared.bytes_mut(control::BATCH, 4).copy_from_slice(&options.batch.to_ne_bytes());
        let runs = RunQueue::new(shared);
        let longest = tables.shapes.iter().map(|shape| shape.len as usize).max().unwrap_or(60);
        let frame = vec![0; longest.min(MAX_LIVE_FRAME_BYTES)];
        let shared = SharedSender { program, quit: AtomicBool::new(false), frame, batch: options.batch };
        Ok(Self { shared: Arc::new(shared), runs, lanes: lanes.share_memory()?, thread: None })
    }

    /// Starts the thread that runs the program, in the interface's namespace. From now on frames leave when they are due.
    pub fn start_thread(&mut self, netns: &NetNs, name: String) -> Result<(), Error> {
        signal::install_interrupt_handler()?;
        let shared = Arc::clone(&self.shared);
        self.thread = Some(netns.spawn_in_namespace(name, move || {
            // Without CAP_SYS_NICE the thread is only late more often, which the frames' errors show.
            ignore_failure(sched::raise_thread_priority());
            // Each call ends after a signal, or when the program has run `u32::MAX` times.
            while !shared.quit.load(Ordering::Acquire) {
                shared.program.run_on_live_frames(&shared.frame, shared.batch, u32::MAX)?;
            }
            Ok(())
        })?);
        Ok(())
    }

    /// Queues a run for the program; `false` if [`MAX_WAITING_RUNS`] runs wait already.
    pub fn push_run(&mut self, run: &FrameRun) -> bool {
        self.runs.push_run(run)
    }

    /// Ends sending immediately, even if runs wait. A frame that is being made is still sent.
    pub fn stop_sending(&self) {
        self.runs.stop_sending();
    }

    /// Reads the program's progress through the runs.
    pub fn read_progress(&self) -> RunProgress {
        self.runs.read_progress()
    }

    /// Returns true if all pushed frames have been made. They may still wait for the end of their batch.
    pub fn is_drained(&self) -> bool {
        self.runs.is_drained()
    }

    /// Number of runs that were pushed and have not begun.
    pub fn waiting_runs(&self) -> u64 {
        self.runs.waiting_runs()
    }

    /// Returns an error if the thread has ended by itself.
    pub fn check_thread(&mut self) -> Result<(), Error> {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            return self.end_thread();
        }
        Ok(())
    }

    /// Stops sending and ends the thread. By then, all frames that were made were handed to the driver.
    pub fn end_thread(&mut self) -> Result<(), Error> {
        self.stop_sending();
        self.shared.quit.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        while !thread.is_finished() {
            // A nudge has no effect while the thread is between two calls, so it is repeated until the thread has seen
            // `quit`.
            signal::interrupt_thread_syscall(&thread);
            std::thread::sleep(Duration::from_micros(200));
        }
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Reads the counts of a lane.
    pub fn read_lane_counts(&self, lane: u32) -> LaneCounts {
        LaneCounts {
            frames: self.lane_field(lane, lane::FRAMES),
            bytes: self.lane_field(lane, lane::BYTES),
            first_ns: self.lane_field(lane, lane::FIRST),
            last_ns: self.lane_field(lane, lane::LAST),
            late: self.lane_field(lane, lane::LATE),
            error_max_ns: self.lane_field(lane, lane::ERROR_MAX),
        }
    }

    fn lane_field(&self, lane: u32, field: usize) -> u64 {
        self.lanes.atomic_u64(lane as usize * lane::SIZE + field).load(Ordering::Relaxed)
    }

    /// Histogram of a lane: frames by how long after their due time they were made, in the buckets of [`super::buckets`].
    pub fn read_lane_error_histogram(&self, lane: u32) -> Vec<u64> {
        let start = lane as usize * lane::SIZE + lane::ERRORS;
        (0..BUCKET_COUNT)
            .map(|bucket| self.lanes.atomic_u64(start + 8 * bucket).load(Ordering::Relaxed))
            .collect()
    }

    /// Histogram of upper bounds for the time from making a frame until the driver gets its batch, and
    /// the largest such bound.
    pub fn read_batch_delay_histogram(&self) -> (Vec<u64>, u64) {
        let bounds = (0..BUCKET_COUNT).map(|bucket| self.control_field(control::BOUNDS + 8 * bucket));
        (bounds.collect(), self.control_field(control::BOUNDS_MAX))
    }

    fn control_field(&self, at: usize) -> u64 {
        self.runs.area().atomic_u64(at).load(Ordering::Relaxed)
    }

    /// Measures the program's time for one frame of a shape, in ns: the mean of 2^20 frames, which are
    /// made without an interface.
    pub fn time_per_frame(&mut self, shape: u32) -> Result<u32, Error> {
        const FRAMES: u32 = 1 << 20;
        let run = FrameRun { due_ns: 0, step: 0, number: 0, cutoff_ns: u64::MAX, count: FRAMES, shape };
        assert!(self.thread.is_none() && self.push_run(&run), "only before the start");
        self.shared.program.measure_run_time_ns(&self.shared.frame, FRAMES)
    }

    /// Makes one frame without an interface, for tests, as if it were due at time zero. `None` if the program made no
    /// frame of `len` bytes.
    pub fn build_single_frame(
        &mut self,
        shape: u32,
        number: u64,
        len: usize,
    ) -> Result<Option<Vec<u8>>, Error> {
        let run = FrameRun { due_ns: 0, step: 0, number, cutoff_ns: u64::MAX, count: 1, shape };
        assert!(self.thread.is_none() && self.push_run(&run), "only before the start");
        let longest = self.shared.frame.len();
        let (answer, frame) = self.shared.program.run_program_once(&vec![0xa5; longest])?;
        Ok((answer == XDP_REDIRECT_ACTION && frame.len() == len).then_some(frame))
    }
}

/// `XDP_REDIRECT`.
const XDP_REDIRECT_ACTION: u32 = 4;

impl Drop for LiveTx {
    fn drop(&mut self) {
        // A sender is dropped without `end_thread` only while another error is handled.
        drop(self.end_thread());
    }
}
