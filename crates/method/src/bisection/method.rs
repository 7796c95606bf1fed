//! A binary search for a load, as a test method.

use super::{Bisection, BisectionBounds, BisectionOptions};
use crate::{BoundCause, Load, TestMethod, TrialLength, TrialPurpose, TrialRequest, TrialResult};
use packetrig_units::{FrameSize, Nanos};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Options of a binary search for a load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BisectionPlan {
    #[serde(rename = "min_frames_per_second")]
    pub min: Load,
    #[serde(rename = "max_frames_per_second")]
    pub max: Load,
    pub resolution: SearchResolution,
    /// Failed trials after which a load counts as failed; 2 for TST 009, 1 for a plain binary search.
    pub tries: u32,
    #[serde(rename = "accepted_loss_ratio")]
    pub accepted_loss: f64,
    /// A load with a loss ratio above this is not tried again, unless the rig may have caused the loss.
    #[serde(rename = "hopeless_loss_ratio")]
    pub hopeless_loss: f64,
    /// Sending time of a trial.
    #[serde(rename = "trial_ns")]
    pub trial: Nanos,
    /// Size of all frames; `None` for the sizes of the plan.
    #[serde(rename = "frame_size_bytes")]
    pub size: Option<FrameSize>,
}

/// The search ends when the distance between its bounds is not above this.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchResolution {
    FramesPerSecond(f64),
    /// A share, from 0 to 1, of the range from the lowest to the highest load.
    ShareOfRange(f64),
}

/// Reason why a binary search cannot start.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BisectionPlanError {
    #[error("the highest load, {max}, must be finite, above 0 and not below the lowest load, {min}")]
    Range { min: Load, max: Load },
    #[error("the resolution must be above 0; write it like 0.1% or 1000 (frames/s)")]
    Resolution,
    #[error("the accepted loss is {0}, but must be from 0 to less than 1")]
    AcceptedLoss(f64),
    #[error("the length of a trial must be above 0; write it like 60s")]
    Trial,
}

impl FromStr for SearchResolution {
    type Err = BisectionPlanError;

    /// Parses `0.1%` of the range, or `1000` frames per second.
    fn from_str(text: &str) -> Result<Self, BisectionPlanError> {
        // `nan` and `inf` parse as numbers, but with such a resolution no search would end.
        let number =
            |text: &str| text.trim().parse::<f64>().ok().filter(|value| *value > 0.0 && value.is_finite());
        let resolution = match text.trim().strip_suffix('%') {
            Some(percent) => number(percent).map(|percent| Self::ShareOfRange(percent / 100.0)),
            None => number(text).map(Self::FramesPerSecond),
        };
        resolution.ok_or(BisectionPlanError::Resolution)
    }
}

impl BisectionPlan {
    /// Checks the plan and returns the resolution in frames per second.
    fn checked_resolution(&self) -> Result<f64, BisectionPlanError> {
        let Self { min, max, .. } = *self;
        let range = max.frames_per_second() - min.frames_per_second();
        // A range up to infinity has no middle, so it cannot be halved.
        if min > max || max.frames_per_second() <= 0.0 || !range.is_finite() {
            return Err(BisectionPlanError::Range { min, max });
        }
        // With an accepted loss of 1, every trial would pass, even one in which nothing arrived.
        if !(0.0..1.0).contains(&self.accepted_loss) {
            return Err(BisectionPlanError::AcceptedLoss(self.accepted_loss));
        }
        if self.trial == Nanos::ZERO {
            return Err(BisectionPlanError::Trial);
        }
        match self.resolution {
            SearchResolution::FramesPerSecond(rate) if rate > 0.0 => Ok(rate),
            SearchResolution::ShareOfRange(share) if share > 0.0 => Ok(share * range),
            _ => Err(BisectionPlanError::Resolution),
        }
    }
}

/// A binary search for the highest load that passes.
#[derive(Clone, Debug)]
pub struct BisectionMethod {
    plan: BisectionPlan,
    bisection: Bisection<f64>,
}

/// Bounds of the highest load that passes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BisectionResult {
    /// The highest load that passed.
    #[serde(rename = "lower_bound_frames_per_second")]
    pub lower_bound: Option<Load>,
    /// The lowest load that failed.
    #[serde(rename = "upper_bound_frames_per_second")]
    pub upper_bound: Option<Load>,
    /// Reason why the lower bound is not higher. With `Rig`, the device may carry more than the lower bound.
    #[serde(rename = "limited_by")]
    pub cause: BoundCause,
    pub is_over: bool,
}

impl BisectionMethod {
    pub fn new(plan: BisectionPlan) -> Result<Self, BisectionPlanError> {
        let resolution = plan.checked_resolution()?;
        let options = BisectionOptions {
            min: plan.min.frames_per_second(),
            max: plan.max.frames_per_second(),
            resolution,
            relative_resolution_permille: 0,
            tries: plan.tries,
            // TST 009, 12.3.3: one passed trial is enough.
            passes: 1,
            accepted_loss: plan.accepted_loss,
            hopeless_loss: plan.hopeless_loss,
        };
        Ok(Self { plan, bisection: Bisection::new(options) })
    }

    /// Returns the result so far.
    pub fn current_result(&self) -> BisectionResult {
        let BisectionBounds { lower, upper, cause } = self.bisection.bounds();
        let is_over = self.bisection.final_bounds().is_some();
        BisectionResult {
            lower_bound: lower.map(Load::new),
            upper_bound: upper.map(Load::new),
            cause,
            is_over,
        }
    }
}

impl TestMethod for BisectionMethod {
    fn next_trial_request(&self) -> Option<TrialRequest> {
        let load = Load::new(self.bisection.next_value()?);
        let length = TrialLength::Time(self.plan.trial);
        Some(TrialRequest::with_constant_load(TrialPurpose::Search, self.plan.size, load, length))
    }

    fn on_result(&mut self, result: &TrialResult) {
        // The rig may be unable to send the load. The search then stays near or below the load that the rig has sent.
        self.bisection.on_load_result(result);
    }

    fn describe_progress(&self) -> String {
        let result = self.current_result();
        match (result.lower_bound, result.upper_bound) {
            (None, None) => "throughput: nothing known yet".to_owned(),
            (Some(lower), None) => format!("throughput: at least {lower}"),
            (None, Some(upper)) => format!("throughput: below {upper}"),
            (Some(lower), Some(upper)) => format!("throughput: {lower} to {upper}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MethodSession;
    use crate::sim::SimulatedDevice;

    fn plan() -> BisectionPlan {
        BisectionPlan {
            min: Load::new(9000.0),
            max: Load::new(14_880_000.0),
            resolution: SearchResolution::FramesPerSecond(20_000.0),
            tries: 2,
            accepted_loss: 0.0,
            hopeless_loss: 1.0,
            trial: Nanos::from_secs(60),
            size: None,
        }
    }

    fn search(plan: BisectionPlan, device: &mut SimulatedDevice) -> (BisectionResult, u32) {
        let mut session = MethodSession::new(BisectionMethod::new(plan).unwrap());
        while let Some(order) = session.next_trial_request() {
            session.on_result(&device.perform_trial(&order));
        }
        (session.method().current_result(), session.trial_count())
    }

    #[test]
    fn bisection_finds_load_with_one_or_two_tries() {
        let mut device = SimulatedDevice::new(5.37e6, 0);
        let (verified, trials) = search(plan(), &mut device);
        assert_eq!(device.elapsed, Nanos::from_secs(60 * u64::from(trials)));
        let (plain, fewer) = search(BisectionPlan { tries: 1, ..plan() }, &mut device);
        assert_eq!(plain, verified);
        assert!(fewer < trials && plain.is_over && plain.cause == BoundCause::Device);
        let (lower, upper) = (plain.lower_bound.unwrap(), plain.upper_bound.unwrap());
        assert!(lower <= Load::new(5.37e6) && Load::new(5.37e6) < upper);
        assert!(upper.frames_per_second() - lower.frames_per_second() <= 20_000.0);
    }

    #[test]
    fn bisection_search_stays_below_rig_limit() {
        let mut device = SimulatedDevice { rig_limit: 316_000.0, ..SimulatedDevice::new(1e9, 0) };
        let (found, trials) = search(plan(), &mut device);
        let carried = found.lower_bound.unwrap().frames_per_second();
        assert!((316_000.0 * 0.97..=316_000.0).contains(&carried), "{found:?}");
        assert_eq!(found.cause, BoundCause::Rig);
        assert!(trials <= 60, "{trials}");
    }

    #[test]
    fn a_single_stall_misleads_a_plain_search_only() {
        let once = |tries| {
            let mut method = BisectionMethod::new(BisectionPlan { tries, ..plan() }).unwrap();
            let mut device = SimulatedDevice::new(5.37e6, 0);
            let mut has_stalled = false;
            while let Some(order) = method.next_trial_request() {
                let result = device.perform_trial(&order);
                let stalled = TrialResult { lost: crate::LostFrames { least: 1, most: 1 }, ..result.clone() };
                let is_stalled = order.load < Load::new(5.37e6) && !has_stalled;
                has_stalled |= is_stalled;
                method.on_result(if is_stalled { &stalled } else { &result });
            }
            method.current_result().lower_bound.unwrap()
        };
        assert!(once(2) > Load::new(5.3e6));
        assert!(once(1) < Load::new(5.3e6));
    }

    /// Makes a trial as a sender whose busy machine delays it at the end.
    fn perform_with_delayed_end(device: &mut SimulatedDevice, order: &TrialRequest) -> TrialResult {
        let load = Load::new(order.load.frames_per_second() * 0.95);
        let result = device.perform_trial(&TrialRequest { load, ..order.clone() });
        let late = result.sent / 20;
        TrialResult { sent_late: late, rig_fault: Some(format!("{late} frames left late")), ..result }
    }

    #[test]
    fn slowly_sent_load_counts_as_not_carried() {
        let mut device = SimulatedDevice::new(5.37e6, 0);
        let mut session = MethodSession::new(BisectionMethod::new(plan()).unwrap());
        while let Some(order) = session.next_trial_request() {
            let is_slow = order.load > Load::new(5.37e6);
            session.on_result(&if is_slow {
                perform_with_delayed_end(&mut device, &order)
            } else {
                device.perform_trial(&order)
            });
        }
        let result = session.method().current_result();
        assert!(result.lower_bound.unwrap() <= Load::new(5.37e6), "{result:?}");
        assert_eq!(result.cause, BoundCause::Rig, "{result:?}");
    }

    #[test]
    fn resolution_parses_as_percent_or_frame_rate() {
        assert_eq!("0.5%".parse(), Ok(SearchResolution::ShareOfRange(0.005)));
        assert_eq!("1000".parse(), Ok(SearchResolution::FramesPerSecond(1000.0)));
        for text in ["", "0", "-1%", "x", "inf"] {
            assert_eq!(text.parse::<SearchResolution>(), Err(BisectionPlanError::Resolution), "{text}");
        }
    }

    #[test]
    fn plans_that_cannot_be_searched_are_refused() {
        let refusal = |plan| BisectionMethod::new(plan).unwrap_err();
        assert!(matches!(
            refusal(BisectionPlan { min: Load::new(2e7), ..plan() }),
            BisectionPlanError::Range { .. }
        ));
        assert_eq!(refusal(BisectionPlan { trial: Nanos::ZERO, ..plan() }), BisectionPlanError::Trial);
        assert_eq!(
            refusal(BisectionPlan { accepted_loss: 1.0, ..plan() }),
            BisectionPlanError::AcceptedLoss(1.0)
        );
        let resolution = SearchResolution::ShareOfRange(0.0);
        assert_eq!(refusal(BisectionPlan { resolution, ..plan() }), BisectionPlanError::Resolution);
    }
}
