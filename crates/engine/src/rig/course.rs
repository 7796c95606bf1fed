//! Steering: where each stream of a steered run is, and the changes users ask for while it runs.
//!
//! Every change has three steps. The senders hold the streams concerned and say which number comes next; the receivers are
//! told of the takes that follow; the senders go on with them. So no frame arrives of which its receiver does not know what
//! it should look like, and streams that are not concerned never notice.

use super::{Rig, stream_spec};
use crate::Error;
use crate::port::Clock;
use crate::stream::StreamSpec;
use crate::take::Take;
use packetrig_plan::{Plan, Problem, Problems, ReadOptions, Steer};
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::{Nth, Template};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// From the decision to the first frame: the receivers have to hear of it first, and may be asleep.
const LEAD: Nanos = Nanos::from_millis(12);

/// Where a stream is.
#[derive(Clone, Debug, Default)]
pub(super) struct Course {
    /// The last take it was given.
    take: Option<Take>,
    /// Which frame comes after a pause.
    paused: Option<Nth>,
}

impl Course {
    pub(super) const fn is_paused(&self) -> bool {
        self.paused.is_some()
    }
}

impl Rig {
    /// Does what the user asks for. `at` is the instant of a start that several rigs have in common. An error leaves the run as it
    /// was.
    pub fn steer(&mut self, steer: &Steer, at: Option<MonoTime>) -> Result<(), Error> {
        if self.courses.is_none() || self.started.is_none() || self.interrupted {
            return Err(Error::Bug("a run was steered that is not under way, or not to be steered"));
        }
        match steer {
            Steer::Start(streams) => self.start(&self.known(streams)?, at, false),
            Steer::Resume(streams) => self.start(&self.known(streams)?, at, true),
            Steer::Stop(streams) => self.halt(&self.known(streams)?, false),
            Steer::Pause(streams) => self.halt(&self.known(streams)?, true),
            Steer::Replan(document) => self.replan(document),
            Steer::Capture { ports, on } => self.capture(ports, *on),
            Steer::Protocols { on } => self.protocols(*on),
            Steer::Ping(pings) => self.send_pings(pings),
            Steer::Link { ports, up } => self.link(ports, *up),
        }
    }

    fn capture(&mut self, ports: &[usize], on: bool) -> Result<(), Error> {
        let captures = self.captures();
        let bare = ports.iter().find(|port| !captures.iter().any(|(of, _)| of == *port));
        if let Some(port) = bare.and_then(|port| self.infos.get(*port)) {
            let message = format!("port `{}` has no capture", port.name);
            return Err(Error::Plan(Problems(vec![Problem::error("captures", message)])));
        }
        for (_, capture) in captures.iter().filter(|(port, _)| ports.contains(port)) {
            if on {
                capture.start()?;
            } else {
                capture.stop()?;
            }
        }
        Ok(())
    }

    fn link(&mut self, ports: &[usize], up: bool) -> Result<(), Error> {
        for port in ports {
            let bench =
                self.benches.get_mut(*port).ok_or(Error::Bug("a port was switched that is not there"))?;
            bench.switch_link(up)?;
        }
        Ok(())
    }

    fn known(&self, streams: &[usize]) -> Result<BTreeSet<usize>, Error> {
        if streams.iter().any(|stream| *stream >= self.specs.len()) {
            return Err(Error::Bug("a stream was steered that the plan does not have"));
        }
        Ok(streams.iter().copied().collect())
    }

    fn courses(&mut self) -> &mut [Course] {
        self.courses.as_deref_mut().unwrap_or_default()
    }

    /// Those of these streams that are being sent.
    fn sending(&mut self, streams: &BTreeSet<usize>) -> Result<BTreeSet<usize>, Error> {
        let mut sending = BTreeSet::new();
        for bench in &mut self.benches {
            sending.extend(bench.sending(streams)?);
        }
        Ok(sending)
    }

    fn hold(&mut self, streams: &BTreeSet<usize>) -> Result<BTreeMap<usize, u64>, Error> {
        let mut next = BTreeMap::new();
        for bench in &mut self.benches {
            next.extend(bench.hold(streams)?.into_iter().map(|(stream, number)| (stream.into(), number)));
        }
        Ok(next)
    }

    /// What is being sent goes on undisturbed.
    fn start(&mut self, streams: &BTreeSet<usize>, at: Option<MonoTime>, resume: bool) -> Result<(), Error> {
        let sending = self.sending(streams)?;
        let streams: BTreeSet<usize> = streams.difference(&sending).copied().collect();
        self.resolve(&streams)?;
        let next = self.hold(&streams)?;
        let origin = self.since_start(at);
        let mut takes = Vec::with_capacity(streams.len());
        for (stream, number) in next {
            let (template, timeline) = self.source_of(stream)?;
            let course = &self.courses()[stream];
            let paused = course.paused.filter(|_| resume);
            let at = if paused.is_some() { origin } else { origin + timeline.delay };
            let first = Nth { number, index: paused.map_or(0, |nth| nth.index) };
            // What was changed while it was paused is followed from here on.
            let timeline = match (&course.take, paused) {
                (Some(take), Some(nth)) => take.rhythm_from(nth.index, timeline),
                _ => timeline,
            };
            takes.push((self.specs[stream].number, Take::new(first, at, template, timeline)));
        }
        self.go_on(takes)
    }

    /// When a change that is decided now takes place, from T.
    fn since_start(&self, at: Option<MonoTime>) -> Nanos {
        let soonest = self.clock.now() + LEAD;
        at.map_or(soonest, |at| at.max(soonest)).since(self.started.unwrap_or_default())
    }

    fn source_of(&self, stream: usize) -> Result<(Arc<Template>, packetrig_plan::timeline::Timeline), Error> {
        let spec = &self.specs[stream];
        let template = spec.source.template().ok_or(Error::Bug("a recording was to be steered"))?;
        Ok((Arc::clone(template), spec.timeline))
    }

    fn go_on(&mut self, takes: Vec<(u16, Take)>) -> Result<(), Error> {
        for bench in &mut self.benches {
            bench.announce(&takes)?;
        }
        for bench in &mut self.benches {
            bench.begin(&takes)?;
        }
        for (stream, take) in takes {
            self.courses()[usize::from(stream)] = Course { take: Some(take), paused: None };
        }
        Ok(())
    }

    fn halt(&mut self, streams: &BTreeSet<usize>, pause: bool) -> Result<(), Error> {
        let sending = self.sending(streams)?;
        let next = self.hold(&sending)?;
        for stream in streams {
            let number = next.get(stream);
            let course = &mut self.courses()[*stream];
            let left = number.zip(course.take.as_ref()).map(|(number, take)| take.nth(*number));
            // A pause of what is paused changes nothing, and what has ended has nothing left to pause.
            course.paused = if pause { left.or(course.paused) } else { None };
        }
        Ok(())
    }

    /// Changes rates and sizes, takes on new streams, stops those that are gone.
    fn replan(&mut self, document: &str) -> Result<(), Error> {
        let newer = Plan::read_with(document, ReadOptions { seed: self.seed, ..ReadOptions::default() })?;
        if newer.ports != self.plan.plan.ports {
            let problem = Problem::error("ports", "the ports of a run under way cannot be changed");
            return Err(Error::Plan(Problems(vec![problem])));
        }
        if newer.interfaces != self.plan.plan.interfaces {
            let problem = Problem::error("devices", "the devices of a run under way cannot be changed");
            return Err(Error::Plan(Problems(vec![problem])));
        }
        check(&newer)?;
        super::check_sizes(&newer, &self.infos)?;
        let newer = newer.bind(&self.speeds())?;
        let known = self.specs.len();
        let mut grown = self.plan.clone();
        let places: BTreeSet<usize> = grown.grow(&newer).into_iter().collect();
        let specs: Vec<Arc<StreamSpec>> = (0..grown.streams.len())
            .map(|s| stream_spec(&grown, s, self.resolved.get(&s).copied()))
            .collect::<Result<_, _>>()?;
        let gone: BTreeSet<usize> = (0..known).filter(|stream| !places.contains(stream)).collect();
        let changed: BTreeSet<usize> =
            (0..known).filter(|stream| !is_same(&self.specs[*stream], &specs[*stream])).collect();
        self.halt(&gone, false)?;
        for bench in &mut self.benches {
            bench.add(&grown.plan, &specs, known)?;
        }
        (self.plan, self.specs) = (grown, specs);
        let all = self.specs.len();
        self.courses.as_mut().into_iter().for_each(|courses| courses.resize(all, Course::default()));
        self.change(&changed)
    }

    fn speeds(&self) -> Vec<Option<packetrig_units::BitRate>> {
        self.infos.iter().map(|info| info.speed).collect()
    }

    /// Streams that are being sent go on with their new frames and rates; the others follow them when they begin again.
    fn change(&mut self, streams: &BTreeSet<usize>) -> Result<(), Error> {
        let sending = self.sending(streams)?;
        let next = self.hold(&sending)?;
        let soonest = self.since_start(None);
        let mut takes = Vec::with_capacity(next.len());
        for (stream, number) in next {
            let (template, wanted) = self.source_of(stream)?;
            let Some(take) = &self.courses()[stream].take else { continue };
            let nth = take.nth(number);
            let timeline = take.rhythm_from(nth.index, wanted);
            let at = take.due(number).max(soonest);
            takes.push((self.specs[stream].number, Take::new(nth, at, template, timeline)));
        }
        self.go_on(takes)
    }
}

/// What can be steered has templates: a file is read once, from its beginning to its end.
pub(super) fn check(plan: &Plan) -> Result<(), Error> {
    let recorded = plan.streams.iter().enumerate().filter(|(_, stream)| stream.frames.recording().is_some());
    let problem = |(index, _)| {
        let message = "frames of a capture file cannot be started and stopped by themselves";
        Problem::error(format!("flows[{index}]"), message).with_hint("use `packetrig replay`")
    };
    let problems: Vec<Problem> = recorded.map(problem).collect();
    if problems.is_empty() { Ok(()) } else { Err(Error::Plan(Problems(problems))) }
}

fn is_same(one: &StreamSpec, other: &StreamSpec) -> bool {
    let (own, newer) = (one.source.template(), other.source.template());
    one.timeline == other.timeline && own.map(|it| it.spec()) == newer.map(|it| it.spec())
}
