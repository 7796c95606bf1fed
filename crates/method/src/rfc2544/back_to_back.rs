//! Back-to-back frames (RFC 9004): the longest burst at the maximum load that is forwarded without loss.
//!
//! Each repetition is a separate binary search, as RFC 9004 requires.

use super::{
    BackToBackBenchmark, BurstSearch, Rfc2544Options, SizeBenchmark, SkippedSizeReason, ThroughputBasis,
};
use crate::bisection::{Bisection, BisectionOptions};
use crate::rounding::whole_part;
use crate::{BoundCause, Load, SampleStatistics, TrialLength, TrialPurpose, TrialRequest, TrialResult};
use packetrig_units::FrameSize;

/// A mean above this share of the longest burst is not valid: the buffer may hold more.
const NEAR_LONGEST_BURST_SHARE: f64 = 0.95;

#[derive(Clone, Debug)]
pub(super) struct BurstSearches {
    size: FrameSize,
    basis: ThroughputBasis,
    theoretical: Load,
    maximum: Load,
    options: BisectionOptions<u64>,
    search: Bisection<u64>,
    searches: Vec<BurstSearch>,
    repetitions: u32,
}

impl BurstSearches {
    pub(super) fn start_searches(
        options: &Rfc2544Options,
        row: &SizeBenchmark,
    ) -> Result<Self, SkippedSizeReason> {
        let basis = row.throughput_basis()?;
        let maximum = row.maximum_frames_per_second;
        let theoretical = row.theoretical_frames_per_second;
        if basis.frames_per_second >= maximum {
            let what = if maximum < theoretical { "highest requested load" } else { "theoretical maximum" };
            // RFC 9004: if the device forwards as fast as frames arrive, no frame ever waits in the buffer.
            let reason = format!("the throughput is the {what}, so no burst fills the device's buffer");
            return Err(SkippedSizeReason::NotApplicable(reason));
        }
        let seconds = options.durations.longest_burst_ns.as_secs_f64();
        // At low rates the time may be too short for one frame, and a search needs a burst to try.
        let longest = whole_part(maximum.frames_per_second() * seconds).max(1);
        let options_of_search =
            BisectionOptions::without_retries(0, longest, options.burst_step_frames.max(1));
        Ok(Self {
            size: row.frame_size_bytes,
            basis,
            theoretical,
            maximum,
            options: options_of_search,
            search: Bisection::new(options_of_search),
            searches: Vec::new(),
            repetitions: options.repetitions.back_to_back,
        })
    }

    pub(super) fn next_trial_request(&self) -> Option<TrialRequest> {
        let length = TrialLength::Frames(self.search.next_value()?);
        Some(TrialRequest::with_constant_load(
            TrialPurpose::BackToBack,
            Some(self.size),
            self.maximum,
            length,
        ))
    }

    pub(super) fn on_result(&mut self, result: &TrialResult) {
        // `on_load_result` is not used: all bursts have the same load, so a ceiling of the load does not
        // limit their length.
        self.search.on_result(result);
        if let Some(found) = self.search.final_bounds() {
            self.searches.push(BurstSearch {
                burst_frames: found.lower.unwrap_or(0),
                lost_at_frames: found.upper,
                limited_by: found.cause,
            });
            // If the device did not set the bound, a repeated search would not find the limit of the device, either.
            if found.cause == BoundCause::Device && self.searches.len() < self.repetitions as usize {
                self.search = Bisection::new(self.options);
            }
        }
    }

    pub(super) fn to_benchmark(&self) -> BackToBackBenchmark {
        let bursts: Vec<f64> = self.searches.iter().map(|search| search.burst_frames as f64).collect();
        let statistics = SampleStatistics::from_values(&bursts);
        let invalid = self.describe_invalid(statistics);
        // An invalid mean is left out, because the true burst may be longer.
        let valid = statistics.filter(|_| invalid.is_none());
        let theoretical = self.theoretical.frames_per_second();
        // RFC 9004 divides by the theoretical frame rate, also if the bursts had a lower one.
        let implied = valid.map(|bursts| bursts.mean * 1e9 / theoretical);
        // The device forwards while the burst arrives. Only the remaining frames wait in the buffer.
        let unused = 1.0 - self.basis.frames_per_second.frames_per_second() / theoretical;
        BackToBackBenchmark {
            basis: self.basis,
            burst_frames_per_second: self.maximum,
            step_frames: self.options.resolution,
            longest_burst_frames: self.options.max,
            searches: self.searches.clone(),
            repetitions: self.repetitions,
            burst_frames: valid,
            implied_buffer_time_ns: implied,
            corrected_buffer_time_ns: implied.map(|time| time * unused),
            invalid,
        }
    }

    fn describe_invalid(&self, bursts: Option<SampleStatistics>) -> Option<String> {
        let longest = self.options.max;
        // Checking the last search suffices: the next search begins only if the device set the bound of the one before.
        let cause = self.searches.last()?.limited_by;
        match cause {
            BoundCause::Rig => {
                Some("the rig could not sustain bursts longer than the longest burst that passed".to_owned())
            }
            BoundCause::Range => Some(format!(
                "the longest allowed burst, {longest} frames, passed without loss; allow longer bursts \
                (--longest-burst)"
            )),
            BoundCause::Device
                if bursts.is_some_and(|bursts| bursts.mean > longest as f64 * NEAR_LONGEST_BURST_SHARE) =>
            {
                Some(format!(
                    "the result is close to the longest allowed burst, {longest} frames; allow longer bursts \
                    (--longest-burst)"
                ))
            }
            BoundCause::Device => None,
        }
    }

    pub(super) fn describe_progress(&self) -> String {
        let bounds = self.search.bounds();
        let lower = bounds.lower.unwrap_or(0);
        let upper = bounds.upper.unwrap_or(self.options.max);
        let number = (self.searches.len() + 1).min(self.repetitions as usize);
        format!("back-to-back: search {number} of {}: {lower} to {upper} frames", self.repetitions)
    }
}
