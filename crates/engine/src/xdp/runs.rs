//! Cuts the schedules of a port's streams into runs: frames of one stream and one size, evenly spaced, without another
//! stream's frame due between them.
//!
//! Pure. Each run starts at the exact due time of its first frame, so rounding errors do not add up over the runs.

use crate::stream::StreamSpec;
use packetrig_plan::timeline::SendPattern;
use packetrig_units::{FrameSize, MonoTime};
use packetrig_wire::FrameTemplate;
use packetrig_wire::size::SizePattern;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// Frames per run at most: few enough that `index * step` fits 64 bits.
const MAX_FRAMES_PER_RUN: u64 = 1 << 14;

/// A run: consecutive frames of one stream in one size. `lane` is the index of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlannedFrameRun {
    pub(super) lane: usize,
    pub(super) size: FrameSize,
    /// Number of the first frame.
    pub(super) number: u64,
    pub(super) count: u64,
    /// Due time of the first frame.
    pub(super) due: MonoTime,
    /// Distance between frames, in 2^-20 ns.
    pub(super) step: u64,
}

/// A stream and the number of its next frame.
#[derive(Debug)]
struct RunPlannerStream {
    spec: Arc<StreamSpec>,
    next: u64,
}

/// Forms runs in the order in which they are due.
#[derive(Debug)]
pub(super) struct FrameRunPlanner {
    lanes: Vec<RunPlannerStream>,
    due: BinaryHeap<Reverse<(MonoTime, usize)>>,
    start: MonoTime,
}

impl FrameRunPlanner {
    pub(super) fn new(streams: &[Arc<StreamSpec>], start: MonoTime) -> Self {
        let due = streams.iter().enumerate().filter(|(_, spec)| spec.timeline.total_frames() != Some(0));
        let due = due.map(|(lane, spec)| Reverse((start + spec.timeline.due_time(0), lane))).collect();
        let lanes = streams.iter().map(|spec| RunPlannerStream { spec: Arc::clone(spec), next: 0 }).collect();
        Self { lanes, due, start }
    }

    /// Returns whether no run is left.
    pub(super) fn is_over(&self) -> bool {
        self.due.is_empty()
    }

    /// Returns the next run whose first frame is due before `until`. Frames due at or after it are left for later runs.
    pub(super) fn next_run(&mut self, until: MonoTime) -> Option<PlannedFrameRun> {
        let Reverse((due, lane)) = *self.due.peek()?;
        if due >= until {
            return None;
        }
        // The lane is taken out, so that the heap's top is the next frame of another stream.
        self.due.pop();
        // A run ends before another stream's next frame: the program sends runs one after another, so a longer run
        // would delay that frame.
        let others = self.due.peek().map_or(until, |Reverse((other, _))| until.min(*other));
        let start = self.start;
        let RunPlannerStream { spec, next } = &mut self.lanes[lane];
        // Streams without a template were refused when the tables were compiled.
        let template = spec.source.template()?;
        let number = *next;
        let count = count_frames_in_run(spec, template, number, start, others);
        let last = spec.timeline.due_time(number + count - 1);
        let span = last.saturating_sub(spec.timeline.due_time(number)).as_u64();
        // The mean distance within this run, in 2^-20 ns. Rounded down it is short by at most a sixty-fourth of a
        // nanosecond over the longest run, and the next run starts from the exact schedule.
        // The shift keeps all bits of spans up to 2^44 ns, almost five hours; a run is much shorter.
        let step = (span << 20).checked_div(count - 1).unwrap_or(0);
        *next += count;
        if spec.timeline.total_frames().is_none_or(|total| *next < total) {
            self.due.push(Reverse((start + spec.timeline.due_time(*next), lane)));
        }
        Some(PlannedFrameRun { lane, size: template.frame_size(number), number, count, due, step })
    }
}

/// Returns the number of frames, from `number` on, in a run that ends before `until`; at least one.
fn count_frames_in_run(
    spec: &StreamSpec,
    template: &FrameTemplate,
    number: u64,
    start: MonoTime,
    until: MonoTime,
) -> u64 {
    let mut most =
        spec.timeline.frames_due_before(until.since(start)).saturating_sub(number).min(MAX_FRAMES_PER_RUN);
    // A run has one distance, so it must not cross the pause between two bursts.
    if let SendPattern::Bursts { frames, .. } = spec.timeline.shape {
        most = most.min(frames - number % frames);
    }
    // Frames of two streams may be due at the same time. Then no frame fits before the other stream's frame,
    // but a run has at least one.
    let most = most.max(1);
    if matches!(template.spec().size, SizePattern::Fixed(_)) {
        return most;
    }
    let size = template.frame_size(number);
    // A shape has one size, so the run ends where the size changes.
    (1..most).find(|n| template.frame_size(number + n) != size).unwrap_or(most)
}

#[cfg(test)]
mod tests;
