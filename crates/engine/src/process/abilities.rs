//! Checks whether an engine can send the streams of a port: all problems at once, each with its path in the plan.
//!
//! Pure: no file is opened.

use super::messages::{EngineAbilities, EngineHello};
use super::render::{EngineFileFrames, MAX_BYTES, MAX_FRAMES};
use crate::stream::StreamSpec;
use packetrig_plan::timeline::SendPattern;
use packetrig_plan::{PlanProblem, PlanProblems};
use packetrig_units::Nanos;
use packetrig_wire::FrameTemplate;
use std::sync::Arc;

/// Checks one stream against the abilities of the engine, and collects all problems.
struct StreamCheck<'a> {
    engine: &'a EngineHello,
    spec: &'a StreamSpec,
    problems: Vec<PlanProblem>,
}

impl StreamCheck<'_> {
    fn refuse_setting(&mut self, below: &str, what: impl AsRef<str>) {
        let message = format!("engine {} {}", self.engine.name, what.as_ref());
        self.problems.push(PlanProblem::error(format!("flows[{}].{below}", self.spec.number), message));
    }

    fn check_stream_schedule(&mut self) {
        let timeline = self.spec.timeline;
        let EngineAbilities { delay, bursts, endless, frames_per_second, .. } = self.engine.abilities;
        if matches!(timeline.shape, SendPattern::Bursts { .. }) && !bursts {
            self.refuse_setting("duration", "cannot send bursts with pauses");
        }
        if timeline.delay != Nanos::ZERO && !delay {
            self.refuse_setting("duration", "cannot delay the first frame");
        }
        if timeline.total_frames().is_none() && !endless {
            self.refuse_setting("duration", "cannot send an endless flow");
        }
        if timeline.total_frames() == Some(0) {
            self.refuse_setting("duration", "cannot send a flow of 0 frames");
        }
        let asked = timeline.rate.frames_within(Nanos::from_secs(1));
        if let Some(most) = frames_per_second.filter(|most| asked > *most) {
            self.refuse_setting("rate", format!("sends at most {most} frames/s; the plan asks for {asked}"));
        }
    }

    fn check_frames(&mut self, template: &FrameTemplate) -> Option<EngineFileFrames> {
        let size = &template.spec().size;
        let [shortest, longest] = [size.min_size(), size.max_size()].map(|size| size.kernel_len() as u64);
        // The protocol counts bytes without FCS, the plan with it.
        if let Some([from, to]) = self.engine.abilities.frame_bytes
            && (shortest < from || longest > to)
        {
            let found = format!("{} to {} B", shortest + 4, longest + 4);
            let able = format!("sends frames of {} to {} B (FCS included)", from + 4, to.saturating_add(4));
            self.refuse_setting("size", format!("{able}; the plan asks for {found}"));
        }
        let Some(need) =
            EngineFileFrames::from_template(template, self.spec.number, self.spec.timeline.total_frames())
        else {
            let what = "plays frames from a file, so the frames of an endless flow must repeat: send them \
                without a tag (`metrics.enable: false`) and in one size";
            self.refuse_setting("duration", what);
            return None;
        };
        if need.repeat && !self.engine.abilities.repeat {
            self.refuse_setting("duration", "cannot play a file repeatedly");
        }
        // The number of frames is limited even if the engine has no limit: the file is written before the run starts.
        let most = self.engine.abilities.frames.unwrap_or(MAX_FRAMES).min(MAX_FRAMES);
        // 16 bytes precede each frame in a pcap file.
        let most = most.min(MAX_BYTES / (longest + 16).max(1));
        if need.frames > most {
            let what = format!(
                "plays at most {most} different frames of this size from a file; this flow has {}",
                need.frames
            );
            self.refuse_setting("duration", what);
        }
        Some(need)
    }
}

/// Returns how many frames the file of each stream needs, or all problems of all streams.
pub(super) fn check_streams(
    engine: &EngineHello,
    streams: &[Arc<StreamSpec>],
) -> Result<Vec<EngineFileFrames>, PlanProblems> {
    let mut needs = Vec::new();
    let mut problems = Vec::new();
    // An engine that does not mention streams can send one.
    let most = engine.abilities.streams.max(1);
    if streams.len() as u64 > most {
        let message = format!(
            "engine {} sends at most {most} flows from a port; the plan has {}",
            engine.name,
            streams.len()
        );
        problems.push(PlanProblem::error("flows", message));
    }
    for spec in streams {
        let mut check = StreamCheck { engine, spec, problems: Vec::new() };
        check.check_stream_schedule();
        match spec.source.template() {
            Some(template) => needs.extend(check.check_frames(template)),
            None => check
                .refuse_setting("x_replay", "gets its frames from packetrig and cannot send capture files"),
        }
        problems.append(&mut check.problems);
    }
    if problems.is_empty() { Ok(needs) } else { Err(PlanProblems(problems)) }
}
