//! Changes that give streams new segments (frames and schedule), in three steps: hold, announce, begin.
//!
//! First the senders stop the streams concerned and report the next frame number of each. Then the receivers get the
//! segments that follow. Then the senders continue with these segments. So a receiver can compare every frame with the
//! frame as sent, and other streams are not interrupted. With several nodes, all nodes complete a step before any node
//! begins the next one; the controller ensures that.
//!
//! Invariant: a change that the plan or the ports do not allow fails in the hold step, where it can still be undone.

use super::prepare::{bind_plan, build_stream_spec, check_frame_sizes};
use super::steering::{SteeredStreamState, check_steerable};
use super::{SteeredPlane, TestRig};
use crate::Error;
use crate::port::WorkerClock;
use crate::segment::StreamSegment;
use crate::stream::StreamSpec;
use packetrig_plan::timeline::StreamTimeline;
use packetrig_plan::{BoundPlan, Plan, PlanChange, PlanGrowth, PlanProblem, PlanProblems, StreamResumePoint};
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::{FrameIndex, FrameTemplate};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Time from the announcement of a change to its first frame. Receivers may be asleep, and need it
/// to process the announcement.
const CHANGE_LEAD_TIME: Nanos = Nanos::from_millis(12);

/// A change in progress.
pub(super) struct RigChange {
    /// Segments with which the held streams of this node continue.
    own: BTreeMap<usize, StreamContinuation>,
    /// New plan, which is applied with the announcement; `None` if the plan stays as it is.
    growth: Option<ChangedRigPlan>,
    /// Announced time of the change, from the start of the run; `None` before the announcement.
    origin: Option<Nanos>,
}

/// How a held stream continues. The time of the change is decided in a later step.
struct StreamContinuation {
    first: FrameIndex,
    /// Time from the change to the first frame.
    delay: Nanos,
    /// Due time of the first frame before the change, if the stream was being sent: the frame never leaves earlier.
    due: Option<Nanos>,
    template: Arc<FrameTemplate>,
    timeline: StreamTimeline,
}

/// The plan and its streams after the change.
struct ChangedRigPlan {
    plan: BoundPlan,
    specs: Vec<Arc<StreamSpec>>,
    gone: BTreeSet<usize>,
}

impl StreamContinuation {
    fn segment_from(&self, origin: Nanos) -> StreamSegment {
        // A stream that was sending continues no earlier than its next frame was due.
        let at = (origin + self.delay).max(self.due.unwrap_or_default());
        StreamSegment::new(self.first, at, Arc::clone(&self.template), self.timeline)
    }
}

impl SteeredPlane for TestRig {
    fn apply_change(&mut self, steer: &PlanChange<PlanGrowth>) -> Result<(), Error> {
        self.require_change_allowed()?;
        // An earlier change that was held and never began is undone first: otherwise its streams would stay held.
        self.undo_change()?;
        match steer {
            PlanChange::Start(_) | PlanChange::Resume(_) | PlanChange::Replan(_) => {
                let held = self.hold_for_change(steer)?;
                self.announce_change(&held, None)?;
                self.begin_change(None)
            }
            PlanChange::Stop(streams) => {
                self.stop_or_pause_streams(&self.check_stream_numbers(streams)?, false)
            }
            PlanChange::Pause(streams) => {
                self.stop_or_pause_streams(&self.check_stream_numbers(streams)?, true)
            }
            PlanChange::Capture { ports, on } => self.switch_captures(ports, *on),
            PlanChange::Protocols { on } => self.set_protocols_enabled(*on),
            PlanChange::Ping(pings) => self.send_pings(pings),
            PlanChange::Link { ports, up } => self.switch_links(ports, *up),
        }
    }

    fn hold_for_change(&mut self, steer: &PlanChange<PlanGrowth>) -> Result<Vec<StreamResumePoint>, Error> {
        self.require_change_allowed()?;
        self.undo_change()?;
        let change = match steer {
            PlanChange::Start(streams) => {
                self.hold_idle_streams(&self.check_stream_numbers(streams)?, false)?
            }
            PlanChange::Resume(streams) => {
                self.hold_idle_streams(&self.check_stream_numbers(streams)?, true)?
            }
            PlanChange::Replan(growth) => self.hold_changed_streams(growth)?,
            _ => return Err(Error::Bug("streams were held for a change that does not restart them")),
        };
        let held = change.own.iter().map(|(stream, next)| {
            let FrameIndex { number, index } = next.first;
            StreamResumePoint { stream: *stream, number, index, mac: self.resolved.get(stream).copied() }
        });
        let held = held.collect();
        self.change = Some(change);
        Ok(held)
    }

    fn announce_change(&mut self, held: &[StreamResumePoint], at: Option<MonoTime>) -> Result<(), Error> {
        let mut change = self.change.take().ok_or(Error::Bug("a change was announced before it was held"))?;
        let announced = self.announce_change_segments(&mut change, held, at);
        // The change is stored again after an error too: otherwise `undo_change` could not let
        // the held streams continue.
        self.change = Some(change);
        announced
    }

    fn begin_change(&mut self, at: Option<MonoTime>) -> Result<(), Error> {
        const UNANNOUNCED_CHANGE_ERROR: Error = Error::Bug("a change began before it was announced");
        let change = self.change.take().ok_or(UNANNOUNCED_CHANGE_ERROR)?;
        let announced = change.origin.ok_or(UNANNOUNCED_CHANGE_ERROR)?;
        // Frames that were due while the rig waited for other streams are skipped, not sent late.
        let now = self.clock.now();
        let origin = announced.max(self.since_start(at.map_or(now, |at| at.max(now))));
        self.continue_streams(
            change.own.iter().map(|(stream, next)| (*stream, next.segment_from(origin))).collect(),
        )
    }

    fn undo_change(&mut self) -> Result<(), Error> {
        if self.change.as_ref().is_some_and(|change| change.origin.is_some()) {
            return self.begin_change(None);
        }
        let Some(change) = self.change.take() else { return Ok(()) };
        // The sender does not catch up on frames that became due during the hold: the schedule continues from now.
        let soonest = self.since_start(self.clock.now());
        let mut segments = Vec::new();
        for (stream, next) in change.own.iter().filter(|(_, next)| next.due.is_some()) {
            // A stream that never began has nothing to continue.
            let Some(take) = &self.steered_streams_mut()[*stream].segment else { continue };
            let first = take.frame_index(next.first.number);
            let at = take.due_time(first.number).max(soonest);
            let rhythm = take.timeline_continued_at(first.index, *take.timeline());
            segments.push((*stream, StreamSegment::new(first, at, Arc::clone(take.template()), rhythm)));
        }
        self.continue_streams(segments)
    }
}

impl TestRig {
    fn announce_change_segments(
        &mut self,
        change: &mut RigChange,
        held: &[StreamResumePoint],
        at: Option<MonoTime>,
    ) -> Result<(), Error> {
        if let Some(growth) = change.growth.take() {
            self.apply_changed_plan(growth)?;
        }
        // All nodes get the same start time, but it may reach one node late. That node starts as soon as its own
        // receivers have had time to process the announcement.
        let soonest = self.clock.now() + CHANGE_LEAD_TIME;
        let origin = self.since_start(at.map_or(soonest, |at| at.max(soonest)));
        let mut segments = Vec::with_capacity(held.len());
        for held in held {
            let segment = match change.own.get(&held.stream) {
                Some(next) => next.segment_from(origin),
                None => self.build_remote_segment(held, origin)?,
            };
            segments.push((self.specs[held.stream].number, segment));
        }
        for running in &mut self.running_ports {
            running.announce_segments(&segments)?;
        }
        change.origin = Some(origin);
        Ok(())
    }

    fn since_start(&self, at: MonoTime) -> Nanos {
        at.since(self.started.unwrap_or_default())
    }

    /// Holds the streams that are not being sent now; streams that are being sent continue undisturbed.
    fn hold_idle_streams(&mut self, streams: &BTreeSet<usize>, resume: bool) -> Result<RigChange, Error> {
        let here: BTreeSet<usize> = self
            .locally_sent_streams()
            .filter(|stream| streams.contains(stream) && !self.gone.contains(stream))
            .collect();
        let sending = self.sending_streams(&here)?;
        let idle: BTreeSet<usize> = here.difference(&sending).copied().collect();
        self.resolve_neighbours(&idle)?;
        let mut own = BTreeMap::new();
        for (stream, number) in self.hold_streams(&idle)? {
            let TemplateAndTimeline { template, timeline } = require_template_source(&self.specs[stream])?;
            let state = &self.steered_streams_mut()[stream];
            let paused = state.paused.filter(|_| resume);
            let first = FrameIndex { number, index: paused.map_or(0, |nth| nth.index) };
            let delay = if paused.is_some() { Nanos::ZERO } else { timeline.delay };
            // A stream that resumes keeps the rest of its time limit; a stream that starts again gets the whole limit.
            // Changes made during the pause apply from here on.
            let timeline = match (&state.segment, paused) {
                (Some(take), Some(nth)) => take.timeline_continued_at(nth.index, timeline),
                _ => timeline,
            };
            own.insert(stream, StreamContinuation { first, delay, due: None, template, timeline });
        }
        Ok(RigChange { own, growth: None, origin: None })
    }

    /// Holds the streams that are being sent and whose frames or schedule change. Other streams get their change
    /// when they start again.
    fn hold_changed_streams(&mut self, growth: &PlanGrowth) -> Result<RigChange, Error> {
        // The new plan is compiled before any stream is held: an impossible plan must not interrupt the traffic.
        let growth = self.compile_changed_plan(growth)?;
        let both = self.specs.iter().zip(&growth.specs).enumerate();
        let changed = both
            .filter(|(_, (own, newer))| !has_same_frames_and_schedule(own, newer))
            .map(|(stream, _)| stream)
            .collect();
        let sending = self.sending_streams(&changed)?;
        let mut own = BTreeMap::new();
        for (stream, number) in self.hold_streams(&sending)? {
            let TemplateAndTimeline { template, timeline: wanted } =
                require_template_source(&growth.specs[stream])?;
            let Some(take) = &self.steered_streams_mut()[stream].segment else { continue };
            let first = take.frame_index(number);
            let timeline = take.timeline_continued_at(first.index, wanted);
            let due = Some(take.due_time(number));
            own.insert(stream, StreamContinuation { first, delay: Nanos::ZERO, due, template, timeline });
        }
        Ok(RigChange { own, growth: Some(growth), origin: None })
    }

    /// Compiles the changed plan for the ports of this node. Fails if a run does not allow such a change.
    fn compile_changed_plan(&self, growth: &PlanGrowth) -> Result<ChangedRigPlan, Error> {
        const MISSED_CHANGE_ERROR: Error = Error::Bug("this node has missed an earlier change of the plan");
        let mut newer = Plan::clone(growth.newer());
        self.places.write_local_locations_into_plan(&mut newer);
        // Ports are opened and locked once, and their counters cover the whole run.
        if newer.ports != self.plan.plan.ports {
            return Err(plan_change_error("ports", "ports cannot be changed during a run"));
        }
        if newer.interfaces != self.plan.plan.interfaces {
            return Err(plan_change_error("devices", "devices cannot be changed during a run"));
        }
        check_steerable(&newer)?;
        let infos = self.ports();
        check_frame_sizes(&newer, &infos)?;
        let newer = bind_plan(newer, &self.places, &infos)?;
        let plan = self.plan.with_growth(growth, &newer).ok_or(MISSED_CHANGE_ERROR)?;
        let kept: BTreeSet<usize> = growth.indices().iter().copied().collect();
        let gone: BTreeSet<usize> = (0..self.specs.len()).filter(|stream| !kept.contains(stream)).collect();
        self.places.check_permit_of_open_ports(&plan_without_streams(&plan, &gone), &infos)?;
        let mut specs = Vec::with_capacity(plan.streams.len());
        for stream in 0..plan.streams.len() {
            let mac = self.resolved.get(&stream).copied();
            specs.push(build_stream_spec(&plan, &self.places, stream, mac)?);
        }
        Ok(ChangedRigPlan { plan, specs, gone })
    }

    fn apply_changed_plan(&mut self, growth: ChangedRigPlan) -> Result<(), Error> {
        let ChangedRigPlan { plan, specs, gone } = growth;
        // Removed streams keep their index and their counts: numbers in tags and results never change their meaning.
        self.stop_or_pause_streams(&gone, false)?;
        let known = self.specs.len();
        for running in &mut self.running_ports {
            running.add_streams(&plan.plan, &specs, known)?;
        }
        let all = specs.len();
        self.plan = plan;
        self.specs = specs;
        self.gone = gone;
        self.steered_streams
            .as_mut()
            .into_iter()
            .for_each(|courses| courses.resize(all, SteeredStreamState::default()));
        Ok(())
    }

    /// Builds the segment of a stream that another node sends. This node knows only roughly when the frames are due,
    /// which is enough to assign a lost frame to a second.
    fn build_remote_segment(
        &mut self,
        held: &StreamResumePoint,
        origin: Nanos,
    ) -> Result<StreamSegment, Error> {
        let StreamResumePoint { stream, number, index, mac } = *held;
        // Another node must not decide what this node sends or to which address it sends.
        if !self.specs.get(stream).is_some_and(|spec| spec.sent_elsewhere) {
            let message = format!("another node announced stream {stream}, but no other node sends it");
            return Err(Error::NotPermitted(vec![message]));
        }
        let awaits = self.plan.plan.streams[stream].awaits.is_some();
        if let Some(mac) = mac.filter(|mac| awaits && self.resolved.get(&stream) != Some(mac)) {
            self.specs[stream] = build_stream_spec(&self.plan, &self.places, stream, Some(mac))?;
            self.resolved.insert(stream, mac);
        }
        let TemplateAndTimeline { template, timeline } = require_template_source(&self.specs[stream])?;
        let delay = if index == 0 { timeline.delay } else { Nanos::ZERO };
        Ok(StreamSegment::new(FrameIndex { number, index }, origin + delay, template, timeline))
    }

    fn continue_streams(&mut self, segments: Vec<(usize, StreamSegment)>) -> Result<(), Error> {
        let numbered: Vec<(u16, StreamSegment)> =
            segments.iter().map(|(stream, take)| (self.specs[*stream].number, take.clone())).collect();
        for running in &mut self.running_ports {
            running.begin_segments(&numbered)?;
        }
        for (stream, take) in segments {
            self.steered_streams_mut()[stream] = SteeredStreamState { segment: Some(take), paused: None };
        }
        Ok(())
    }
}

/// Returns a copy of the plan without the removed streams, for the permit check: they are never sent again.
fn plan_without_streams(plan: &BoundPlan, gone: &BTreeSet<usize>) -> BoundPlan {
    let mut rest = plan.clone();
    rest.plan.streams = clone_without_indices(&plan.plan.streams, gone);
    rest.streams = clone_without_indices(&plan.streams, gone);
    rest
}

fn clone_without_indices<T: Clone>(all: &[T], gone: &BTreeSet<usize>) -> Vec<T> {
    all.iter().enumerate().filter(|(index, _)| !gone.contains(index)).map(|(_, one)| one.clone()).collect()
}

fn plan_change_error(what: &str, message: &str) -> Error {
    Error::Plan(PlanProblems(vec![PlanProblem::error(what, message)]))
}

/// Template and schedule of a stream's frames.
struct TemplateAndTimeline {
    template: Arc<FrameTemplate>,
    timeline: StreamTimeline,
}

fn require_template_source(spec: &StreamSpec) -> Result<TemplateAndTimeline, Error> {
    let template = spec
        .source
        .template()
        .ok_or(Error::Bug("a change was requested for a stream from a capture file"))?;
    Ok(TemplateAndTimeline { template: Arc::clone(template), timeline: spec.timeline })
}

fn has_same_frames_and_schedule(one: &StreamSpec, other: &StreamSpec) -> bool {
    let own = one.source.template().map(|template| template.spec());
    let newer = other.source.template().map(|template| template.spec());
    one.timeline == other.timeline && own == newer
}
