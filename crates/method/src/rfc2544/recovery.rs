//! System recovery (RFC 2544, 26.5): sends 110 % of the throughput, then half of that load, and measures how
//! long frames are still lost.

use super::{
    RecoveryBenchmark, RecoveryTrial, Rfc2544Options, SizeBenchmark, SkippedSizeReason, ThroughputBasis,
};
use super::{build_timed_order, find_invalidity_reason};
use crate::{Load, LoadStep, SampleStatistics, StreamTrial, TrialPurpose, TrialRequest, TrialResult};
use packetrig_units::{FrameSize, Nanos};

/// Loss after this percentage of the time at the lower load means that the device did not recover.
const END_PERCENT: u64 = 99;

#[derive(Clone, Debug)]
pub(super) struct RecoveryTrials {
    size: FrameSize,
    basis: ThroughputBasis,
    overload: Load,
    overload_time: Nanos,
    after: LoadStep,
    trials: Vec<RecoveryTrial>,
    repetitions: u32,
}

impl RecoveryTrials {
    pub(super) fn start_trials(
        options: &Rfc2544Options,
        row: &SizeBenchmark,
    ) -> Result<Self, SkippedSizeReason> {
        let basis = row.throughput_basis()?;
        let maximum = row.maximum_frames_per_second;
        if basis.frames_per_second >= maximum {
            let reason = "the throughput is the highest load of the test: the device cannot be overloaded";
            return Err(SkippedSizeReason::NotApplicable(reason.to_owned()));
        }
        // RFC 2544, 26.5: 110 % of the throughput or the maximum, whichever is lower.
        let wanted = basis.frames_per_second.scale_by(1.1);
        let overload = if wanted < maximum { wanted } else { maximum };
        Ok(Self {
            size: row.frame_size_bytes,
            basis,
            overload,
            overload_time: options.durations.recovery_overload_ns,
            // RFC 2544, 26.5: half of the overload, not half of the throughput.
            after: LoadStep { load: overload.scale_by(0.5), time: options.durations.recovery_after_ns },
            trials: Vec::new(),
            repetitions: options.repetitions.recovery,
        })
    }

    pub(super) fn next_trial_request(&self) -> Option<TrialRequest> {
        let order = build_timed_order(TrialPurpose::Recovery, self.size, self.overload, self.overload_time);
        let order = TrialRequest { then: Some(self.after), ..order };
        (self.trials.len() < self.repetitions as usize).then_some(order)
    }

    pub(super) fn on_result(&mut self, result: &TrialResult) {
        self.trials.push(self.evaluate_trial(result));
    }

    fn evaluate_trial(&self, result: &TrialResult) -> RecoveryTrial {
        // Each stream has a row at the overload. The rows at the lower load follow after those rows.
        let (overload, after) = result.streams.split_at(result.streams.len() / 2);
        let overload_lost_frames = overload.iter().map(|stream| stream.lost.most).sum();
        let after_lost_frames = after.iter().map(|stream| stream.lost.most).sum();
        let trial = RecoveryTrial {
            recovery_ns: None,
            is_recovered: false,
            overload_lost_frames,
            after_lost_frames,
            note: find_invalidity_reason(result),
        };
        // The lost frames are shown, but the rig may have caused the loss, so no recovery time is computed.
        if trial.note.is_some() {
            return trial;
        }
        if after.is_empty() || overload.len() != after.len() {
            let note = "no recovery time: the trial did not report each stream at the lower load separately"
                .to_owned();
            return RecoveryTrial { note: Some(note), ..trial };
        }
        self.evaluate_last_loss(after, trial)
    }

    fn evaluate_last_loss(&self, after: &[StreamTrial], trial: RecoveryTrial) -> RecoveryTrial {
        if trial.after_lost_frames == 0 {
            // The RFC requires an overload. If no frame was lost, there was no overload, and the note says
            // that a recovery time of 0 means little.
            let note = (trial.overload_lost_frames == 0).then(|| {
                "no frame was lost during the overload, so the device was not overloaded".to_owned()
            });
            return RecoveryTrial { recovery_ns: Some(Nanos::ZERO), is_recovered: true, note, ..trial };
        }
        // The stream that lost frames for the longest time decides. A stream with an unknown time may be that one.
        let lossy = after.iter().filter(|stream| stream.lost.most > 0);
        let times: Option<Vec<Nanos>> = lossy.map(|stream| stream.last_loss).collect();
        let Some(last) = times.and_then(|times| times.into_iter().max()) else {
            let note = "the time at which the last frame was lost is unknown".to_owned();
            return RecoveryTrial { note: Some(note), ..trial };
        };
        // The division comes first: multiplying a very long time first would overflow.
        let end = self.after.time.as_u64() / 100 * END_PERCENT;
        let is_recovered = last.as_u64() < end;
        let note = (!is_recovered)
            .then(|| "frames were lost until the end of the trial: the recovery takes longer".to_owned());
        RecoveryTrial { recovery_ns: Some(last), is_recovered, note, ..trial }
    }

    pub(super) fn to_benchmark(&self) -> RecoveryBenchmark {
        let times: Vec<f64> = self
            .trials
            .iter()
            .filter_map(|trial| trial.recovery_ns)
            .map(|time| time.as_u64() as f64)
            .collect();
        RecoveryBenchmark {
            basis: self.basis,
            overload_frames_per_second: self.overload,
            after_frames_per_second: self.after.load,
            trials: self.trials.clone(),
            repetitions: self.repetitions,
            recovery_ns: SampleStatistics::from_values(&times),
        }
    }

    pub(super) fn describe_progress(&self) -> String {
        format!("recovery: {} of {} trials", self.trials.len(), self.repetitions)
    }
}
