//! A port's capture: any thread can start it, stop it and fetch its result while the port keeps receiving.
//!
//! ```text
//!  start_capture(): recorder -> slot -> CaptureTap (receiving thread)
//!  stop_capture():  end -> slot -> CaptureTap -> all earlier frames recorded -> recorder -> finish, join -> one file
//! ```
//! The file gets its name only when it is complete: during the capture it is called `FILE.part`, or `FILE-00001.part`
//! and so on if old frames are overwritten.
//!
//! Invariant: between two starts every call of `stop_capture` returns the same file with the same counts.

use super::join::join_capture_parts;
use super::record::{
    CaptureFileFormat, CaptureRecorder, FileRotation, RecordSpec, RecordTarget, RecordingOutcome,
};
use super::tap::{CaptureCommand, CaptureCommandSlot, CaptureTap};
use crate::Error;
use crate::clock::RealClock;
use crate::port::WorkerClock;
use crossbeam_channel::{Receiver, bounded};
use packetrig_sys::clock;
use packetrig_wire::filter::FrameFilter;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Number of files of a ring; the oldest is removed when there would be one more.
const RING_FILE_COUNT: u64 = 8;
/// Memory of the queue between receiver and disk, bytes.
const DISK_QUEUE_BYTES: usize = 64 << 20;
/// Time to wait for the recorder; longer than a receiver needs to notice the end of a capture.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Parameters of a capture.
#[derive(Clone, Debug)]
pub struct CaptureSpec {
    /// The output file; an existing one is replaced.
    pub file: PathBuf,
    pub format: CaptureFileFormat,
    /// Interface name that is written into the file.
    pub interface: String,
    /// Comment that is written into the file.
    pub comment: String,
    /// Maximum number of bytes to record of each frame, FCS included.
    pub snap_len: Option<u32>,
    pub filter: FrameFilter,
    /// Size limit of the file, bytes.
    pub budget: u64,
    /// When the size limit is reached, keep the newest frames instead of the first.
    pub overwrite: bool,
}

/// Frames that passed the filter and are not in the file, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissingFrames {
    /// The file had reached its size limit.
    pub beyond_budget: u64,
    /// Newer frames overwrote them, as requested.
    pub overwritten: u64,
    /// The disk was behind and the queue was full.
    pub queue: u64,
    pub disk: u64,
}

impl MissingFrames {
    pub fn total(&self) -> u64 {
        self.beyond_budget + self.overwritten + self.queue + self.disk
    }

    /// Describes the reasons in words; empty if no frame is missing.
    pub fn describe_reasons(&self) -> Vec<String> {
        let reasons = [
            (self.beyond_budget, "arrived after the file had reached its size limit"),
            (self.overwritten, "overwritten by newer frames"),
            (self.queue, "dropped because the queue to the disk was full"),
            (self.disk, "lost because writing failed"),
        ];
        let some = reasons.iter().filter(|(frames, _)| *frames > 0);
        some.map(|(frames, why)| format!("{why}: {frames}")).collect()
    }
}

/// Result of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureOutcome {
    pub file: PathBuf,
    pub written: u64,
    /// Frames that passed the filter and are not in the file.
    pub missing: MissingFrames,
    /// Reason why writing failed, if it did.
    pub failure: Option<String>,
}

/// Handle of a capture. Clones control the same capture.
#[derive(Clone)]
pub struct PortCapture(Arc<PortCaptureState>);

struct PortCaptureState {
    spec: CaptureSpec,
    slot: Arc<CaptureCommandSlot>,
    back: Receiver<Box<CaptureRecorder>>,
    state: Mutex<CapturePhase>,
}

enum CapturePhase {
    Blank,
    Running,
    Stopped(CaptureOutcome),
}

impl std::fmt::Debug for PortCapture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PortCapture").field(&self.0.spec).finish()
    }
}

impl PortCapture {
    /// Creates a capture that has not started, and the tap to which the port's receiver offers its frames.
    pub fn new(spec: CaptureSpec) -> Result<(Self, CaptureTap), Error> {
        let program = spec.filter.compile_program().map_err(|reason| {
            let filter = format!("the capture filter for {}", spec.interface);
            Error::Filter { filter, reason }
        })?;
        let slot = Arc::new(CaptureCommandSlot::default());
        let (back_in, back) = bounded(1);
        let tap = CaptureTap::new(program, Arc::clone(&slot), back_in);
        Ok((
            Self(Arc::new(PortCaptureState { spec, slot, back, state: Mutex::new(CapturePhase::Blank) })),
            tap,
        ))
    }

    /// Starts to capture the frames that arrive from now on, and ends a running capture before that. When this capture
    /// ends, its file replaces the file of the previous capture.
    pub fn start_capture(&self) -> Result<(), Error> {
        let mut state = self.lock_state();
        if matches!(*state, CapturePhase::Running) {
            *state = CapturePhase::Stopped(self.end_recording()?);
        }
        let recorder = self.start_recorder()?;
        // The slot is empty, so the earlier capture has ended.
        self.0.slot.put_command(CaptureCommand::Begin(Box::new(recorder), RealClock::new().now()));
        *state = CapturePhase::Running;
        Ok(())
    }

    /// Stops a running capture and returns its result; further calls return the same result until the next start. A
    /// capture that was never started produces a file without frames.
    pub fn stop_capture(&self) -> Result<CaptureOutcome, Error> {
        let mut state = self.lock_state();
        // The lock is held while the recorder finishes. So a second `stop_capture` waits and gets the same result,
        // and `start_capture` cannot put its command into the slot between the end and the result.
        let captured = match &*state {
            CapturePhase::Stopped(captured) => return Ok(captured.clone()),
            CapturePhase::Running => self.end_recording(),
            CapturePhase::Blank => self.start_recorder().and_then(|recorder| self.finish_recording(recorder)),
        };
        // After an error the capture counts as never started, so that a retry does not wait for the lost recorder.
        *state =
            captured.as_ref().map_or(CapturePhase::Blank, |captured| CapturePhase::Stopped(captured.clone()));
        captured
    }

    /// Returns the outcome of a capture that could not be ended because of `error`: without frames, with this failure.
    pub(crate) fn failed_outcome(&self, error: &Error) -> CaptureOutcome {
        let failure = Some(error.to_string());
        CaptureOutcome { file: self.0.spec.file.clone(), failure, ..CaptureOutcome::default() }
    }

    /// Ends the capture of a failed run: the file gets its final name, and a file without frames is removed.
    pub(crate) fn stop_capture_of_failed_run(&self) {
        if !self.is_running() {
            return;
        }
        // An error is ignored: the partial file then stays as it is.
        if let Ok(captured) = self.stop_capture()
            && captured.written == 0
        {
            drop(std::fs::remove_file(&captured.file));
        }
    }

    /// Returns the last result, unless the capture was started again since.
    pub fn last_outcome(&self) -> Option<CaptureOutcome> {
        if let CapturePhase::Stopped(captured) = &*self.lock_state() { Some(captured.clone()) } else { None }
    }

    /// Returns whether the capture is running.
    pub fn is_running(&self) -> bool {
        matches!(*self.lock_state(), CapturePhase::Running)
    }

    fn lock_state(&self) -> MutexGuard<'_, CapturePhase> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_recording(&self) -> Result<CaptureOutcome, Error> {
        // `put_command` returns the previous command if the receiving thread never took it. If that is the start
        // command, it contains the recorder, and no wait is needed.
        let recorder = match self.0.slot.put_command(CaptureCommand::End(RealClock::new().now())) {
            // The receiver has not run since the capture began.
            Some(CaptureCommand::Begin(recorder, _)) => recorder,
            _ => self
                .0
                .back
                .recv_timeout(END_TIMEOUT)
                .map_err(|_| Error::Bug("a receiver kept the recorder of a stopped capture"))?,
        };
        self.finish_recording(*recorder)
    }

    fn start_recorder(&self) -> Result<CaptureRecorder, Error> {
        let CaptureSpec { format, interface, comment, snap_len, budget, overwrite, file, .. } = &self.0.spec;
        let mut part = file.clone().into_os_string();
        part.push(".part");
        let spec = RecordSpec {
            target: RecordTarget::File(part.into()),
            format: *format,
            interface: interface.clone(),
            further: Vec::new(),
            comment: comment.clone(),
            filter: String::new(),
            snap_len: *snap_len,
            fcs: true,
            budget: (!overwrite).then_some(*budget),
            // With `overwrite`, the capture is a ring of eight files: removing the oldest file loses only about an
            // eighth of the budget. `join_capture_parts` makes one file of them at the end.
            rotation: FileRotation {
                bytes: overwrite.then_some(budget / RING_FILE_COUNT),
                every: None,
                keep: usize::try_from(RING_FILE_COUNT).ok(),
                before: 0,
            },
            zstd: None,
            queue: DISK_QUEUE_BYTES,
        };
        CaptureRecorder::start(spec, clock::measure_realtime_offset(), RealClock::new().now())
    }

    fn finish_recording(&self, recorder: CaptureRecorder) -> Result<CaptureOutcome, Error> {
        let file = &self.0.spec.file;
        let recorded = recorder.finish_recording(RealClock::new().now())?;
        let Err(error) = join_capture_parts(&recorded.files, recorded.head, file) else {
            return Ok(outcome_from_recording(file.clone(), &recorded));
        };
        // This does not fail the run: the frames are in other files than intended, but not lost. `join_capture_parts`
        // removes a part only when its frames are in the first one, so the parts that still exist hold every frame.
        let parts: Vec<_> = recorded.files.iter().filter(|part| part.exists()).collect();
        let first = parts.first().map_or(file, |part| *part).clone();
        let mut captured = outcome_from_recording(first, &recorded);
        let why = format!("cannot write {}: {error}; partial files kept: {}", file.display(), parts.len());
        captured.failure = captured.failure.or(Some(why));
        Ok(captured)
    }
}

fn outcome_from_recording(file: PathBuf, recorded: &RecordingOutcome) -> CaptureOutcome {
    let failure = recorded.failure.as_ref();
    CaptureOutcome {
        file,
        // Frames in removed parts were overwritten on purpose; they are not in the result.
        written: recorded.written - recorded.removed_frames,
        missing: MissingFrames {
            beyond_budget: recorded.beyond_budget,
            overwritten: recorded.removed_frames,
            queue: recorded.queue_dropped,
            disk: recorded.disk_lost,
        },
        failure: failure.map(|(path, error)| format!("{}: {error}", path.display())),
    }
}
