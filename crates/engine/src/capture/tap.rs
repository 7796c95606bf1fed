//! The part of a port's capture that runs on the receiving thread.
//!
//! Commands (start, stop) wait in a slot. The thread normally reads only the flag of the slot; it takes the lock only
//! when a command waits. At the end the recorder is sent through a channel to another thread, which finishes it.
//!
//! Invariant: the recorder receives exactly the frames that arrived between start and stop and passed the filter.

use super::record::CaptureRecorder;
use crate::port::{RingDrainTarget, RingProgress, RxFrame};
use crossbeam_channel::Sender;
use packetrig_units::{MonoTime, Nanos, clamp_to_u32};
use packetrig_wire::bpf::FilterProgram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Upper bound of the time from a frame's arrival until it is in the ring.
const MAX_FRAME_TRANSIT_TIME: Nanos = Nanos::from_millis(60);
/// Upper bound of the time until the kernel hands over a partly filled block: a few milliseconds,
/// unless the processor stalls.
const MAX_REMAINING_DRAIN_TIME: Nanos = Nanos::from_secs(5);

/// Tracks whether all frames that arrived before the end of a recording have been read.
#[derive(Default)]
pub(super) struct RecordingDrain(RingDrainTarget);

impl RecordingDrain {
    /// Returns whether every frame that arrived before `end` must be in the ring by now; false if there is no `end`.
    pub(super) fn have_frames_reached_ring(end: Option<MonoTime>, now: MonoTime) -> bool {
        end.is_some_and(|end| now >= end + MAX_FRAME_TRANSIT_TIME)
    }

    /// Returns whether everything that was in the ring at the first call has been read, or [`MAX_REMAINING_DRAIN_TIME`]
    /// has passed since `end`.
    pub(super) fn is_read_or_timed_out(
        &mut self,
        progress: RingProgress,
        end: Option<MonoTime>,
        now: MonoTime,
    ) -> bool {
        self.0.is_read(progress) || end.is_some_and(|end| now >= end + MAX_REMAINING_DRAIN_TIME)
    }
}

pub(super) enum CaptureCommand {
    /// Record frames that arrive from this instant on.
    Begin(Box<CaptureRecorder>, MonoTime),
    /// Return the recorder when all frames that arrived until this instant are in it.
    End(MonoTime),
}

#[derive(Default)]
pub(super) struct CaptureCommandSlot {
    is_called: AtomicBool,
    order: Mutex<Option<CaptureCommand>>,
}

impl CaptureCommandSlot {
    /// Puts a command into the slot. If the previous command is still there, drops the new one, and removes and returns
    /// the previous one; the slot is then empty.
    pub(super) fn put_command(&self, order: CaptureCommand) -> Option<CaptureCommand> {
        let mut slot = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let before = slot.take();
        if before.is_none() {
            *slot = Some(order);
        }
        // The flag is set under the lock, so that it is never false while the slot holds a command.
        self.is_called.store(slot.is_some(), Ordering::Release);
        before
    }

    fn take_command(&self) -> Option<CaptureCommand> {
        let mut slot = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_called.store(false, Ordering::Release);
        slot.take()
    }
}

pub struct CaptureTap {
    program: Option<FilterProgram>,
    /// Whether all frames in the port's ring pass the filter, so that the ring's drops are losses of this capture.
    is_filtered_before: bool,
    is_alone: bool,
    slot: Arc<CaptureCommandSlot>,
    back: Sender<Box<CaptureRecorder>>,
    active: Option<ActiveCapture>,
}

impl std::fmt::Debug for CaptureTap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaptureTap").field("active", &self.active.is_some()).finish_non_exhaustive()
    }
}

struct ActiveCapture {
    recorder: Box<CaptureRecorder>,
    begin: MonoTime,
    end: Option<MonoTime>,
    rest: RecordingDrain,
    is_over: bool,
    /// Number of frames that the ring had dropped when the capture began; `None` until read.
    lost_before: Option<u64>,
}

impl CaptureTap {
    pub(super) fn new(
        program: Option<FilterProgram>,
        slot: Arc<CaptureCommandSlot>,
        back: Sender<Box<CaptureRecorder>>,
    ) -> Self {
        Self { is_filtered_before: program.is_none(), is_alone: false, program, slot, back, active: None }
    }

    /// Marks this tap as the only reader of the port's frames.
    pub(crate) fn mark_as_only_reader(&mut self) {
        self.is_alone = true;
    }

    /// Returns the filter if it may run before the ring: this tap must be the only reader of the port's frames.
    pub fn ring_filter(&self) -> Option<&FilterProgram> {
        self.program.as_ref().filter(|_| self.is_alone)
    }

    /// Records that the filter also runs before the ring. From then on, the ring's drops are losses of this capture.
    pub fn mark_filtered_before_ring(&mut self) {
        self.is_filtered_before = true;
    }

    /// Records a frame that passes the filter if a capture is running. Does not wait.
    pub fn offer_frame(&mut self, frame: &RxFrame<'_>) {
        if self.has_pending_command() {
            self.execute_capture_command();
        }
        let Some(active) = &mut self.active else { return };
        if active.end.is_some_and(|end| frame.at > end) {
            active.is_over = true;
            return;
        }
        // The ring may still hold frames from before the capture began.
        if frame.at < active.begin {
            return;
        }
        let full_len = clamp_to_u32(frame.full_len);
        let program = self.program.as_ref();
        if program.is_none_or(|program| program.matches_truncated_frame(frame.bytes, full_len)) {
            active.recorder.record_frame(frame);
        }
    }

    /// Updates the capture between batches of frames; `is_idle` means that no frame is waiting. Returns whether the
    /// caller must call [`Self::on_ring_read`] and [`Self::on_ring_dropped`] now.
    pub fn update_capture(&mut self, now: MonoTime, is_idle: bool) -> bool {
        if self.has_pending_command() {
            self.execute_capture_command();
        }
        let Some(active) = &mut self.active else { return false };
        if is_idle {
            active.recorder.flush_when_idle(now);
        }
        active.is_over
            || active.lost_before.is_none()
            || (is_idle && RecordingDrain::have_frames_reached_ring(active.end, now))
    }

    /// Reports how far the port's ring was read. A capture is over once its end has passed and all its frames have been
    /// read. An empty ring does not prove that all frames have arrived.
    pub fn on_ring_read(&mut self, progress: RingProgress, now: MonoTime) {
        let Some(active) = &mut self.active else { return };
        if RecordingDrain::have_frames_reached_ring(active.end, now) {
            active.is_over |= active.rest.is_read_or_timed_out(progress, active.end, now);
        }
    }

    /// Reports how many frames the port's ring has dropped so far. If the capture is over, returns the recorder.
    pub fn on_ring_dropped(&mut self, frames: u64) {
        let Some(active) = &mut self.active else { return };
        // Earlier drops of the ring do not count for this capture.
        let before = *active.lost_before.get_or_insert(frames);
        // If the filter runs after the ring, it is unknown whether the lost frames would have passed the filter.
        if self.is_filtered_before {
            active.recorder.set_kernel_dropped(frames.saturating_sub(before));
        }
        if active.is_over {
            self.return_recorder();
        }
    }

    /// Returns whether a command waits.
    pub(super) fn has_pending_command(&self) -> bool {
        self.slot.is_called.load(Ordering::Acquire)
    }

    fn execute_capture_command(&mut self) {
        match self.slot.take_command() {
            Some(CaptureCommand::Begin(recorder, begin)) => {
                // A previous capture that still waits for its last frames ends here.
                self.return_recorder();
                let rest = RecordingDrain::default();
                self.active = Some(ActiveCapture {
                    recorder,
                    begin,
                    end: None,
                    rest,
                    is_over: false,
                    lost_before: None,
                });
            }
            Some(CaptureCommand::End(end)) => {
                if let Some(active) = &mut self.active {
                    active.end = Some(end);
                }
            }
            None => {}
        }
    }

    fn return_recorder(&mut self) {
        if let Some(active) = self.active.take() {
            // At most one recorder exists and the channel has room for it; without a receiver the recorder
            // finishes itself when dropped.
            drop(self.back.try_send(active.recorder));
        }
    }
}

impl Drop for CaptureTap {
    fn drop(&mut self) {
        self.return_recorder();
    }
}
