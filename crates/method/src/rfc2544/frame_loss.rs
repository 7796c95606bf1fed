//! The frame-loss curve (RFC 2544, 26.3): from the maximum load down, until two successive trials lose nothing or the
//! next load would be 0.

use super::{
    FrameLossCurve, FrameLossPoint, Rfc2544Options, SizeBenchmark, build_timed_order, find_invalidity_reason,
};
use crate::{Load, TrialPurpose, TrialRequest, TrialResult};
use packetrig_units::{FrameSize, Nanos, Ratio};

#[derive(Clone, Debug)]
pub(super) struct FrameLossTrials {
    size: FrameSize,
    maximum: Load,
    time: Nanos,
    step_percent: f64,
    points: Vec<FrameLossPoint>,
    /// Number of successive trials without loss, up to the last one.
    lossless: u32,
}

impl FrameLossTrials {
    pub(super) const fn new(options: &Rfc2544Options, row: &SizeBenchmark) -> Self {
        Self {
            size: row.frame_size_bytes,
            maximum: row.maximum_frames_per_second,
            time: options.durations.loss_trial_ns,
            step_percent: options.loss_step_percent,
            points: Vec::new(),
            lossless: 0,
        }
    }

    /// Returns the next load in percent of the maximum load; `None` at the end of the curve.
    fn next_percent(&self) -> Option<f64> {
        // The share is computed from the number of points each time: with repeated subtraction, rounding errors
        // would add up.
        let percent = self.points.len() as f64 * -self.step_percent + 100.0;
        // With fractional steps, rounding errors can make the last share slightly different from 0.
        (!self.is_complete() && percent > self.step_percent * 1e-6).then_some(percent)
    }

    const fn is_complete(&self) -> bool {
        // RFC 2544, 26.3: two successive trials without loss end the curve.
        self.lossless >= 2
    }

    pub(super) fn next_trial_request(&self) -> Option<TrialRequest> {
        let load = self.maximum.scale_by(self.next_percent()? / 100.0);
        Some(build_timed_order(TrialPurpose::LossRate, self.size, load, self.time))
    }

    pub(super) fn on_result(&mut self, result: &TrialResult) {
        let Some(percent) = self.next_percent() else { return };
        // A trial that the rig could not sustain is not without loss, so it never ends the curve.
        self.lossless = if result.is_without_loss() { self.lossless + 1 } else { 0 };
        self.points.push(FrameLossPoint {
            percent_of_maximum: percent,
            frames_per_second: self.maximum.scale_by(percent / 100.0),
            sent_frames: result.sent,
            received_frames: result.received,
            unsent_frames: result.unsent_frames(),
            // RFC 2544, 26.3: the share refers to the sent frames. Unlike in a search, unsent frames are no
            // loss here; they have their own column.
            least_loss_percent: Ratio::new(result.lost.least, result.sent).percent(),
            most_loss_percent: Ratio::new(result.lost.most, result.sent).percent(),
            rig_fault: find_invalidity_reason(result),
        });
    }

    pub(super) fn to_curve(&self) -> FrameLossCurve {
        FrameLossCurve { points: self.points.clone(), is_complete: self.is_complete() }
    }

    pub(super) fn describe_progress(&self) -> String {
        match self.points.last() {
            None => "frame loss".to_owned(),
            Some(point) => {
                let FrameLossPoint { percent_of_maximum, most_loss_percent, .. } = point;
                format!(
                    "frame loss: {most_loss_percent:.3} % at {percent_of_maximum:.0} % of the maximum load"
                )
            }
        }
    }
}
