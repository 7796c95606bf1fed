//! Estimates the number of trials and the time of a method, by rehearsals with simulated devices.
//!
//! The number of trials of a search depends on the device. Devices that never lose frames, that lose them at every
//! load, and some in between bound the number from both sides. A device with stalls may still need more trials
//! than any of them.

use crate::session::MAX_TRIAL_REPEATS;
use crate::sim::SimulatedDevice;
use crate::{MethodOptions, MethodOptionsError, StartedMethod, TestMethod, TrialRequest};
use packetrig_units::Nanos;

/// Maximum number of trials of a rehearsal. A real test with more trials would take weeks.
const MAX_TRIALS: usize = 100_000;

/// Limits of the simulated devices, as shares of the highest load that the method orders. That is the load of
/// the smallest frames, so the smallest shares stand for devices that do not reach the line rate with any frame size,
/// not even with jumbo frames.
const ASSUMED_DEVICE_LIMITS: [f64; 8] = [2.0, 0.999, 0.809, 0.5, 0.1, 0.03, 0.005, 0.0];

/// Trials and time of a rehearsed method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RehearsedCost {
    pub trials: u32,
    /// The sum of the sending times.
    pub sending: Nanos,
    /// The sum of the waits around the trials.
    pub waits: Nanos,
}

impl RehearsedCost {
    /// Time of all trials, without the time that the rig needs between them.
    pub fn total_time(&self) -> Nanos {
        self.sending + self.waits
    }

    /// Returns the one of the two costs that takes longer in total.
    fn longer_cost_of(self, other: Self) -> Self {
        if other.total_time() > self.total_time() { other } else { self }
    }

    /// Computes the cost of these trials.
    pub fn from_orders(options: &MethodOptions, orders: &[TrialRequest]) -> Self {
        let mut cost = Self { trials: u32::try_from(orders.len()).unwrap_or(u32::MAX), ..Self::default() };
        for order in orders {
            cost.sending += order.sending_time();
            cost.waits += options.trial_waits(order).total_wait();
        }
        cost
    }
}

/// Lower and upper estimate of the cost of a method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostRange {
    pub least: RehearsedCost,
    pub most: RehearsedCost,
}

/// Maximum time that a busy rig needs between two trials.
const MAX_PAUSE_BETWEEN_TRIALS: Nanos = Nanos::from_secs(1);

impl CostRange {
    /// Raises the upper end to the cost with a rig that needs all repeats of every trial. Pauses
    /// between trials are included.
    #[must_use]
    pub fn with_repeats(self) -> Self {
        // The session makes a trial once and repeats it up to `MAX_TRIAL_REPEATS` times.
        let times = u64::from(MAX_TRIAL_REPEATS) + 1;
        let often = |time: Nanos| Nanos::new(time.as_u64().saturating_mul(times));
        let trials = self.most.trials.saturating_mul(MAX_TRIAL_REPEATS + 1);
        let between = Nanos::new(MAX_PAUSE_BETWEEN_TRIALS.as_u64().saturating_mul(u64::from(trials)));
        let most = RehearsedCost {
            trials,
            sending: often(self.most.sending),
            waits: often(self.most.waits) + between,
        };
        // The lower end is unchanged: a rig that sustains every trial repeats none.
        Self { least: self.least, most }
    }
}

impl MethodOptions {
    /// Returns the trials that the method orders for this device: the plan of a dry run.
    pub fn rehearse_trials(&self, device: &SimulatedDevice) -> Result<Vec<TrialRequest>, MethodOptionsError> {
        Ok(rehearse_method(self.start_method()?, device.clone()))
    }

    /// Returns the trials with a device that never loses a frame: each search tries its highest load.
    pub fn rehearse_lossless(&self) -> Result<Vec<TrialRequest>, MethodOptionsError> {
        self.rehearse_trials(&simulate_device(f64::INFINITY))
    }

    /// Returns a device that carries half of the highest load, for the plan of a dry run.
    pub fn half_load_device(&self) -> Result<SimulatedDevice, MethodOptionsError> {
        Ok(simulate_device(self.highest_load()? * 0.5))
    }

    /// Returns the lowest and the highest cost over several simulated devices. Repeats of trials that the rig
    /// cannot sustain are not included; see [`CostRange::with_repeats`].
    pub fn estimate_cost(&self) -> Result<CostRange, MethodOptionsError> {
        self.remaining_cost(&self.start_method()?)
    }

    /// Returns the remaining cost of a started method. This rehearses the method to its end several times, so call it
    /// only once per trial.
    pub fn remaining_cost(&self, method: &StartedMethod) -> Result<CostRange, MethodOptionsError> {
        // The highest load comes from a new method, because a started one may now order only lower loads.
        let highest = self.highest_load()?;
        let costs = ASSUMED_DEVICE_LIMITS.map(|share| {
            // The rehearsal uses a copy, so that the running method does not change.
            let orders = rehearse_method(method.clone(), simulate_device(highest * share));
            RehearsedCost::from_orders(self, &orders)
        });
        let least = costs.into_iter().min_by_key(RehearsedCost::total_time);
        // Both ends are chosen by time, because users plan with time.
        let most = costs.into_iter().max_by_key(RehearsedCost::total_time).unwrap_or_default();
        // The simulated devices always give the same results. MLRsearch needs the most trials with a device
        // whose trials at a load differ, so such a device is included as well.
        let most =
            self.estimate_unstable_device_cost(method).map_or(most, |wavering| wavering.longer_cost_of(most));
        Ok(CostRange { least: least.unwrap_or_default(), most })
    }

    /// Cost of an MLRsearch with a device whose trials at a load differ, which needs the most trials.
    /// `None` for other methods.
    fn estimate_unstable_device_cost(&self, method: &StartedMethod) -> Option<RehearsedCost> {
        let (Self::Mlrsearch(options), StartedMethod::Mlrsearch { search, .. }) = (self, method) else {
            return None;
        };
        let most = search.remaining_cost().most;
        let waits = options.waits.total_wait().as_u64().saturating_mul(u64::from(most.trials));
        Some(RehearsedCost { waits: Nanos::new(waits), ..most })
    }

    /// Returns the highest load that the method orders for a device that never loses frames.
    fn highest_load(&self) -> Result<f64, MethodOptionsError> {
        let orders = self.rehearse_lossless()?;
        Ok(orders.iter().map(|order| order.load.frames_per_second()).fold(0.0, f64::max))
    }
}

/// Returns the trials that a method still orders, at most [`MAX_TRIALS`].
fn rehearse_method(mut method: StartedMethod, mut device: SimulatedDevice) -> Vec<TrialRequest> {
    let mut orders = Vec::new();
    while let Some(order) = method.next_trial_request().filter(|_| orders.len() < MAX_TRIALS) {
        method.on_result(&device.perform_trial(&order));
        orders.push(order);
    }
    orders
}

/// Returns a device that forwards at most `limit` frames per second. Events happen (with an outage of 0), so that
/// trials with events do not fail.
fn simulate_device(limit: f64) -> SimulatedDevice {
    SimulatedDevice { outage: Some(Nanos::ZERO), ..SimulatedDevice::new(limit, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convergence::ConvergenceOptions;
    use crate::mlrsearch::{MlrOptions, SearchGoal};
    use crate::rfc2544::{Rfc2544Options, Rfc2544Test};
    use crate::{Load, TrialWaits};
    use packetrig_units::{BitRate, FrameSize};

    fn rfc2544(tests: &[Rfc2544Test]) -> MethodOptions {
        MethodOptions::Rfc2544(Box::new(Rfc2544Options {
            tests: tests.iter().copied().collect(),
            frame_sizes_bytes: vec![FrameSize::MIN],
            ..Rfc2544Options::standard(BitRate::new(1_000_000_000))
        }))
    }

    #[test]
    fn search_cost_is_least_when_maximum_passes() {
        let cost = rfc2544(&[Rfc2544Test::Throughput]).estimate_cost().unwrap();
        // One short trial, one long one, and nine seconds around each.
        assert_eq!((cost.least.trials, cost.least.sending), (2, Nanos::from_secs(70)));
        assert_eq!(cost.least.waits, Nanos::from_secs(18));
        assert!(cost.most.trials >= 11 && cost.most.total_time() > Nanos::from_secs(180), "{cost:?}");
    }

    #[test]
    fn rfc2544_latency_uses_twenty_trials_of_120_s() {
        let options = rfc2544(&[Rfc2544Test::Latency]);
        let orders = options.rehearse_trials(&options.half_load_device().unwrap()).unwrap();
        let latency = orders.iter().filter(|order| order.sending_time() == Nanos::from_secs(120)).count();
        assert_eq!(latency, 20);
    }

    #[test]
    fn highest_cost_covers_device_overloaded_at_every_size() {
        let options = MethodOptions::Rfc2544(Box::new(Rfc2544Options::standard(BitRate::new(1_000_000_000))));
        // Seven sizes with twenty trials of 120 s and fifty searches for the longest burst.
        let most = options.estimate_cost().unwrap().most;
        assert!(most.sending > Nanos::from_secs(7 * 20 * 120) && most.trials > 7 * 50 * 16, "{most:?}");
    }

    #[test]
    fn remaining_cost_shrinks_to_zero() {
        let options = rfc2544(&[Rfc2544Test::Throughput, Rfc2544Test::FrameLoss]);
        let (mut method, mut device) = (options.start_method().unwrap(), options.half_load_device().unwrap());
        let mut done = 0;
        while let Some(order) = method.next_trial_request() {
            let to_go = options.remaining_cost(&method).unwrap();
            let total = u32::try_from(options.rehearse_trials(&device).unwrap().len()).unwrap();
            assert!(
                to_go.least.trials >= 1 && to_go.least.trials <= total - done,
                "{to_go:?} {done} {total}"
            );
            method.on_result(&device.perform_trial(&order));
            done += 1;
        }
        assert_eq!(options.remaining_cost(&method).unwrap(), CostRange::default());
    }

    #[test]
    fn highest_search_cost_exceeds_steady_device_cost() {
        let options = MethodOptions::Mlrsearch(crate::MlrsearchOptions {
            search: MlrOptions {
                goals: vec![SearchGoal::NDR],
                min: Load::new(1000.0),
                max: Load::new(1e6),
                size: None,
                warmup: None,
                fail_fast: false,
            },
            waits: TrialWaits::QUICK,
            required_frames_per_second: None,
        });
        let steady = options.rehearse_trials(&options.half_load_device().unwrap()).unwrap();
        let CostRange { least, most } = options.estimate_cost().unwrap();
        assert!(least.trials <= u32::try_from(steady.len()).unwrap());
        assert!(
            most.total_time() > RehearsedCost::from_orders(&options, &steady).total_time(),
            "{least:?} {most:?}"
        );
        assert_eq!(most.waits, Nanos::from_millis(200 * u64::from(most.trials)));
        // The estimate at the first trial is the same as before the start.
        assert_eq!(
            options.remaining_cost(&options.start_method().unwrap()).unwrap(),
            CostRange { least, most }
        );
    }

    #[test]
    fn remaining_cost_covers_unstable_device() {
        let options = MethodOptions::Mlrsearch(crate::MlrsearchOptions {
            search: MlrOptions {
                goals: vec![SearchGoal::NDR],
                min: Load::new(1000.0),
                max: Load::new(20_000.0),
                size: None,
                warmup: None,
                fail_fast: false,
            },
            waits: TrialWaits::QUICK,
            required_frames_per_second: None,
        });
        // Stalls show in some trials of a load only.
        let device = SimulatedDevice::new(10_000.0, 200).with_stalls(0.4, 300, 3);
        let mut method = options.start_method().unwrap();
        let most = options.remaining_cost(&method).unwrap().most.trials;
        let (mut device, mut trials) = (device, 0);
        while let Some(order) = method.next_trial_request() {
            method.on_result(&device.perform_trial(&order));
            trials += 1;
        }
        assert!(
            trials <= most
                && trials
                    > options
                        .rehearse_trials(&options.half_load_device().unwrap())
                        .unwrap()
                        .len()
                        .try_into()
                        .unwrap()
        );
    }

    #[test]
    fn a_method_without_a_search_has_one_cost() {
        let options = MethodOptions::Convergence(ConvergenceOptions {
            frame_size_bytes: None,
            frames_per_second: Load::new(1000.0),
            trial_ns: Nanos::from_secs(10),
            event_at_ns: Nanos::from_secs(3),
            repetitions: 4,
            waits: TrialWaits::QUICK,
            maximum_convergence_ns: None,
        });
        let CostRange { least, most } = options.estimate_cost().unwrap();
        assert_eq!(least, most);
        assert_eq!((least.trials, least.total_time()), (4, Nanos::from_millis(40_800)));
    }
}
