//! Options of a benchmark according to RFC 2544.

use super::criteria::Rfc2544Criteria;
use crate::any_method::{OptionProblem, find_first_problem};
use crate::{Load, TrialPurpose, TrialRequest, TrialWaits, line_rate::theoretical_load};
use packetrig_units::{BitRate, FrameSize, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Options of the method `rfc2544`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rfc2544Options {
    /// The line rate of all senders together.
    pub line_bits_per_second: BitRate,
    pub frame_sizes_bytes: Vec<FrameSize>,
    /// The requested tests. The throughput is also measured if one of them needs it.
    pub tests: BTreeSet<Rfc2544Test>,
    pub durations: Rfc2544Durations,
    pub repetitions: Rfc2544Repetitions,
    /// The highest load for all sizes, if it is below the rate of the line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum_frames_per_second: Option<Load>,
    /// The highest load for all sizes, as a percentage of the rate of the line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum_percent_of_line: Option<f64>,
    /// The highest load of single sizes, if it is below the other limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub maximum_of_sizes: Vec<SizeMaximum>,
    /// Distance of the bounds at which the search for the throughput ends, in percent of the maximum load.
    pub resolution_percent: f64,
    /// The step of the frame-loss curve, in percent of the maximum load.
    pub loss_step_percent: f64,
    /// Distance of the bounds at which the search for the longest burst ends.
    pub burst_step_frames: u64,
    pub latency_definition: LatencyDefinition,
    #[serde(default)]
    pub criteria: Rfc2544Criteria,
}

/// The highest load that is tried with one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SizeMaximum {
    pub frame_size_bytes: FrameSize,
    pub frames_per_second: Load,
}

/// The tests of RFC 2544, section 26.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rfc2544Test {
    Throughput,
    Latency,
    FrameLoss,
    BackToBack,
    Recovery,
    Reset,
}

impl Rfc2544Test {
    /// All tests, in the order in which they are made.
    pub const ALL: [Self; 6] =
        [Self::Throughput, Self::Latency, Self::FrameLoss, Self::BackToBack, Self::Recovery, Self::Reset];

    /// True if the load or the result of the test depends on the throughput.
    pub const fn needs_throughput(self) -> bool {
        // RFC 9004 needs the throughput twice: bursts are pointless if it is the maximum, and the buffer time
        // is corrected by it.
        matches!(self, Self::Throughput | Self::Latency | Self::BackToBack | Self::Recovery | Self::Reset)
    }
}

/// Definition of a device's latency: the bits between which it is measured (RFC 1242).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LatencyDefinition {
    /// First bit in to first bit out, for devices that begin to send a frame before they have all of it.
    #[default]
    BitForwarding,
    /// Last bit in to first bit out: the transmission time of the frame is subtracted.
    StoreAndForward,
}

/// Lengths of the trials, and the waits around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rfc2544Durations {
    /// Trials that guide the search for the throughput.
    pub search_trial_ns: Nanos,
    /// Trials that confirm the throughput.
    pub final_trial_ns: Nanos,
    pub latency_trial_ns: Nanos,
    pub loss_trial_ns: Nanos,
    /// The longest burst at the maximum load.
    pub longest_burst_ns: Nanos,
    pub recovery_overload_ns: Nanos,
    /// Time for which the lower load is sent after the overload.
    pub recovery_after_ns: Nanos,
    pub reset_trial_ns: Nanos,
    /// Time of the reset, after the first frame.
    pub reset_at_ns: Nanos,
    pub waits: TrialWaits,
}

/// Numbers of repetitions of trials and searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rfc2544Repetitions {
    pub latency: u32,
    /// Independent searches for the longest burst. RFC 2544 requires 50; RFC 9004 leaves the number open
    /// and wants it reported.
    pub back_to_back: u32,
    pub recovery: u32,
}

impl Rfc2544Durations {
    /// The durations that RFC 2544 and RFC 9004 require.
    pub const STANDARD: Self = Self {
        // RFC 2544, 24: a search may use shorter trials, but the final ones take at least 60 s.
        search_trial_ns: Nanos::from_secs(10),
        final_trial_ns: Nanos::from_secs(60),
        // RFC 2544, 26.2: the stream lasts at least 120 s.
        latency_trial_ns: Nanos::from_secs(120),
        loss_trial_ns: Nanos::from_secs(60),
        longest_burst_ns: Nanos::from_secs(30),
        // RFC 2544, 26.5: the overload lasts at least 60 s.
        recovery_overload_ns: Nanos::from_secs(60),
        recovery_after_ns: Nanos::from_secs(60),
        reset_trial_ns: Nanos::from_secs(300),
        reset_at_ns: Nanos::from_secs(10),
        waits: TrialWaits::RFC2544,
    };

    /// Durations of a few seconds. The results then do not conform to RFC 2544.
    pub const QUICK: Self = Self {
        search_trial_ns: Nanos::from_secs(1),
        final_trial_ns: Nanos::from_secs(2),
        latency_trial_ns: Nanos::from_secs(1),
        loss_trial_ns: Nanos::from_secs(1),
        longest_burst_ns: Nanos::from_secs(2),
        recovery_overload_ns: Nanos::from_secs(2),
        recovery_after_ns: Nanos::from_secs(2),
        reset_trial_ns: Nanos::from_secs(20),
        reset_at_ns: Nanos::from_secs(2),
        waits: TrialWaits::QUICK,
    };
}

impl Rfc2544Options {
    /// The sizes of RFC 2544 for Ethernet, section 9.1.
    pub const STANDARD_SIZES: [FrameSize; 7] = [
        FrameSize::new(64),
        FrameSize::new(128),
        FrameSize::new(256),
        FrameSize::new(512),
        FrameSize::new(1024),
        FrameSize::new(1280),
        FrameSize::new(1518),
    ];

    /// Throughput, latency, frame loss and back-to-back frames as the RFCs require them. The tests take hours.
    pub fn standard(line: BitRate) -> Self {
        Self {
            line_bits_per_second: line,
            frame_sizes_bytes: Self::STANDARD_SIZES.to_vec(),
            tests: Rfc2544Test::ALL.into_iter().filter(|test| *test <= Rfc2544Test::BackToBack).collect(),
            durations: Rfc2544Durations::STANDARD,
            // RFC 2544: 20 trials of the latency (26.2), 50 of the bursts (26.4).
            repetitions: Rfc2544Repetitions { latency: 20, back_to_back: 50, recovery: 5 },
            maximum_frames_per_second: None,
            maximum_percent_of_line: None,
            maximum_of_sizes: Vec::new(),
            resolution_percent: 0.1,
            loss_step_percent: 10.0,
            burst_step_frames: 1,
            latency_definition: LatencyDefinition::default(),
            criteria: Rfc2544Criteria::default(),
        }
    }

    /// The tests of [`standard`](Self::standard) with short trials, which take minutes. The results do not
    /// conform to RFC 2544.
    pub fn quick(line: BitRate) -> Self {
        Self {
            durations: Rfc2544Durations::QUICK,
            repetitions: Rfc2544Repetitions { latency: 5, back_to_back: 3, recovery: 1 },
            ..Self::standard(line)
        }
    }

    pub(crate) fn find_problem(&self) -> Option<OptionProblem> {
        let durations = &self.durations;
        let times = [
            durations.search_trial_ns,
            durations.final_trial_ns,
            durations.latency_trial_ns,
            durations.loss_trial_ns,
            durations.longest_burst_ns,
            durations.recovery_overload_ns,
            durations.recovery_after_ns,
            durations.reset_trial_ns,
        ];
        let repetitions =
            [self.repetitions.latency, self.repetitions.back_to_back, self.repetitions.recovery];
        // With the least loss step, 0.01 %, a frame-loss curve has ten thousand points.
        find_first_problem(&[
            (self.line_bits_per_second.bits_per_second() == 0, "line_bits_per_second", "must be above 0"),
            (self.frame_sizes_bytes.is_empty(), "frame_sizes_bytes", "must name at least one size"),
            (self.tests.is_empty(), "tests", "must name at least one test"),
            (times.contains(&Nanos::ZERO), "durations", "must not be 0"),
            (
                // A reset after the last frame costs no frame, so the outage would look like 0.
                self.includes_test(Rfc2544Test::Reset) && durations.reset_at_ns >= durations.reset_trial_ns,
                "durations",
                "must have a reset_trial_ns that is longer than reset_at_ns",
            ),
            (repetitions.contains(&0), "repetitions", "must be at least 1"),
            (
                self.maximum_frames_per_second == Some(Load::ZERO),
                "maximum_frames_per_second",
                "must be above 0",
            ),
            (
                self.maximum_percent_of_line.is_some_and(|percent| !is_percent(percent)),
                "maximum_percent_of_line",
                "must be above 0 and at most 100",
            ),
            (
                self.maximum_of_sizes.iter().any(|maximum| maximum.frames_per_second == Load::ZERO),
                "maximum_of_sizes",
                "must have rates above 0",
            ),
            (!is_percent(self.resolution_percent), "resolution_percent", "must be above 0 and at most 100"),
            (
                !is_percent(self.loss_step_percent) || self.loss_step_percent < 0.01,
                "loss_step_percent",
                "must be at least 0.01 and at most 100",
            ),
        ])
    }

    /// True if the benchmark makes this test: it was requested, or it is the throughput, which another test needs.
    pub(super) fn includes_test(&self, test: Rfc2544Test) -> bool {
        let is_needed =
            test == Rfc2544Test::Throughput && self.tests.iter().any(|test| test.needs_throughput());
        is_needed || self.tests.contains(&test)
    }

    /// Returns the load of this size that fills the line.
    pub fn theoretical_load(&self, size: FrameSize) -> Load {
        theoretical_load(self.line_bits_per_second, size)
    }

    /// Returns the highest load that is tried with this size.
    pub fn maximum_load(&self, size: FrameSize) -> Load {
        let line =
            self.theoretical_load(size).scale_by(self.maximum_percent_of_line.unwrap_or(100.0) / 100.0);
        let of_sizes = self.maximum_of_sizes.iter().filter(|maximum| maximum.frame_size_bytes == size);
        let caps = of_sizes.map(|maximum| maximum.frames_per_second).chain(self.maximum_frames_per_second);
        caps.fold(line, |least, cap| if cap < least { cap } else { least })
    }

    /// Returns the waits around a trial. The wait after a burst is at least as long as the burst: the buffer must be
    /// empty before the next one.
    pub fn trial_waits(&self, order: &TrialRequest) -> TrialWaits {
        let waits = self.durations.waits;
        match order.purpose {
            TrialPurpose::BackToBack => {
                TrialWaits { late_frames_ns: waits.late_frames_ns.max(order.sending_time()), ..waits }
            }
            _ => waits,
        }
    }

    /// Lists where the options ask for less than the RFCs require: shorter or fewer trials, coarser steps, lower loads
    /// or shorter waits. If the list is not empty, the results do not conform to RFC 2544.
    pub fn find_shortfalls(&self) -> Vec<String> {
        let asked = &self.durations;
        let full = &Rfc2544Durations::STANDARD;
        let times = [
            (Rfc2544Test::Throughput, "throughput trials", asked.final_trial_ns, full.final_trial_ns),
            (Rfc2544Test::Latency, "latency trials", asked.latency_trial_ns, full.latency_trial_ns),
            (Rfc2544Test::FrameLoss, "frame-loss trials", asked.loss_trial_ns, full.loss_trial_ns),
            // RFC 2544, 26.4: a burst of at least two seconds is enough.
            (Rfc2544Test::BackToBack, "the longest burst", asked.longest_burst_ns, Nanos::from_secs(2)),
            (Rfc2544Test::Recovery, "the overload", asked.recovery_overload_ns, full.recovery_overload_ns),
        ];
        let short =
            times.into_iter().filter(|(test, _, asked, full)| self.includes_test(*test) && asked < full);
        let mut shortfalls: Vec<String> =
            short.map(|(_, what, asked, full)| format!("{what}: {asked}, not {full}")).collect();
        // RFC 2544, 26.2: at least 20 repetitions.
        if self.tests.contains(&Rfc2544Test::Latency) && self.repetitions.latency < 20 {
            shortfalls.push(format!("latency: {} repetitions, not 20", self.repetitions.latency));
        }
        // RFC 2544, 26.3: steps of at most 10 %.
        if self.tests.contains(&Rfc2544Test::FrameLoss) && self.loss_step_percent > 10.0 {
            shortfalls.push(format!("frame loss: steps of {} %, not 10 %", self.loss_step_percent));
        }
        shortfalls.extend(self.describe_maximum_below_line());
        shortfalls.extend(self.describe_short_waits());
        shortfalls
    }

    /// Describes a maximum load below the capacity of the line, if there is one. RFC 2544, 20 asks for the theoretical
    /// maximum of the medium. The loss curve (26.3) begins there, and bursts (26.4) have the minimum gap.
    fn describe_maximum_below_line(&self) -> Option<String> {
        let mut sizes = self.frame_sizes_bytes.iter().copied();
        let size = sizes.find(|size| self.maximum_load(*size) < self.theoretical_load(*size))?;
        let most = self.maximum_load(size);
        let theoretical = self.theoretical_load(size);
        Some(format!("loads with frames of {size}: up to {most}, not {theoretical}"))
    }

    fn describe_short_waits(&self) -> Option<String> {
        let waits = self.durations.waits;
        let full = TrialWaits::RFC2544;
        // RFC 2544, 23 asks for each of the waits, so a single short one is a shortfall.
        let is_full = waits.before_ns >= full.before_ns
            && waits.late_frames_ns >= full.late_frames_ns
            && waits.settle_ns >= full.settle_ns;
        let TrialWaits { before_ns, late_frames_ns, settle_ns } = waits;
        (!is_full).then(|| {
            format!(
                "waits of a trial (before it, for late frames, to settle): {before_ns}, {late_frames_ns} and \
                {settle_ns}, not 2s, 2s and 5s"
            )
        })
    }
}

fn is_percent(percent: f64) -> bool {
    percent > 0.0 && percent <= 100.0
}

#[cfg(test)]
mod tests;
