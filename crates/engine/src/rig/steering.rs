//! Steering: the state of each stream in a steered run, and the changes that users request while it runs.
//!
//! [`change`](super::change) handles the changes that create new segments.

use super::TestRig;
use crate::Error;
use crate::segment::StreamSegment;
use packetrig_plan::{Plan, PlanProblem, PlanProblems};
use packetrig_wire::FrameIndex;
use std::collections::{BTreeMap, BTreeSet};

/// State of one stream in a steered run.
#[derive(Clone, Debug, Default)]
pub(super) struct SteeredStreamState {
    /// Frames and schedule that this node sends, or sent last; `None` if it has not started the stream.
    pub(super) segment: Option<StreamSegment>,
    /// Frame with which a paused stream continues; `None` if the stream is not paused.
    pub(super) paused: Option<FrameIndex>,
}

impl SteeredStreamState {
    pub(super) const fn is_paused(&self) -> bool {
        self.paused.is_some()
    }
}

impl TestRig {
    pub(super) fn require_change_allowed(&self) -> Result<(), Error> {
        if self.steered_streams.is_none() || self.started.is_none() || self.interrupted {
            return Err(Error::Bug(
                "a change was requested for a run that is not running or cannot be changed",
            ));
        }
        Ok(())
    }

    pub(super) fn switch_captures(&mut self, ports: &[usize], on: bool) -> Result<(), Error> {
        let captures = self.captures();
        let mut here = ports.iter().filter(|port| self.places.is_local_port(**port));
        // All ports are checked first, so that an error starts or stops no capture at all.
        let bare = here.find(|port| !captures.iter().any(|(of, _)| of == *port));
        if let Some(port) = bare.and_then(|port| self.plan.plan.ports.get(*port)) {
            let message = format!("port `{}` has no capture", port.name);
            return Err(Error::Plan(PlanProblems(vec![PlanProblem::error("captures", message)])));
        }
        for (_, capture) in captures.iter().filter(|(port, _)| ports.contains(port)) {
            if on {
                capture.start_capture()?;
            } else {
                capture.stop_capture()?;
            }
        }
        Ok(())
    }

    pub(super) fn switch_links(&mut self, ports: &[usize], up: bool) -> Result<(), Error> {
        for port in ports.iter().filter(|port| self.places.is_local_port(**port)).copied().collect::<Vec<_>>()
        {
            if let Some(watcher) = &self.watcher {
                // The change is declared before the link is switched. Otherwise the watcher could see the link change
                // first, and the report would blame the device or the cable.
                watcher.declare_link_change(port, !up);
            }
            let running = self
                .running_port_mut(port)
                .ok_or(Error::Bug("the link of a port on another node was switched"))?;
            running.switch_link(up)?;
        }
        Ok(())
    }

    pub(super) fn check_stream_numbers(&self, streams: &[usize]) -> Result<BTreeSet<usize>, Error> {
        if streams.iter().any(|stream| *stream >= self.specs.len()) {
            return Err(Error::Bug("a change was requested for a stream that is not in the plan"));
        }
        Ok(streams.iter().copied().collect())
    }

    pub(super) fn steered_streams_mut(&mut self) -> &mut [SteeredStreamState] {
        self.steered_streams.as_deref_mut().unwrap_or_default()
    }

    /// Returns those of `streams` that local ports are sending now.
    pub(super) fn sending_streams(&mut self, streams: &BTreeSet<usize>) -> Result<BTreeSet<usize>, Error> {
        let mut sending = BTreeSet::new();
        for running in &mut self.running_ports {
            sending.extend(running.sending_streams(streams)?);
        }
        Ok(sending)
    }

    pub(super) fn hold_streams(&mut self, streams: &BTreeSet<usize>) -> Result<BTreeMap<usize, u64>, Error> {
        let mut next = BTreeMap::new();
        for running in &mut self.running_ports {
            next.extend(
                running.hold_streams(streams)?.into_iter().map(|(stream, number)| (stream.into(), number)),
            );
        }
        Ok(next)
    }

    pub(super) fn stop_or_pause_streams(
        &mut self,
        streams: &BTreeSet<usize>,
        pause: bool,
    ) -> Result<(), Error> {
        let sending = self.sending_streams(streams)?;
        let next = self.hold_streams(&sending)?;
        for stream in streams {
            let number = next.get(stream);
            let state = &mut self.steered_streams_mut()[*stream];
            let left = number.zip(state.segment.as_ref()).map(|(number, take)| take.frame_index(*number));
            // Pausing a paused stream changes nothing, and a stream that has ended has nothing left to pause.
            state.paused = if pause { left.or(state.paused) } else { None };
        }
        Ok(())
    }
}

/// Checks that no stream comes from a capture file: the file is read once from beginning to end, so its stream cannot
/// be stopped and started again.
pub(super) fn check_steerable(plan: &Plan) -> Result<(), Error> {
    let mut problems = Vec::new();
    for (index, stream) in plan.streams.iter().enumerate() {
        if stream.frames.recording().is_some() {
            let message = "a flow from a capture file cannot be started or stopped separately";
            problems.push(
                PlanProblem::error(format!("flows[{index}]"), message).with_hint("use `packetrig replay`"),
            );
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(Error::Plan(PlanProblems(problems))) }
}
