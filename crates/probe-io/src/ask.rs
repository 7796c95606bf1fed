//! Sends series of probes: releases each probe on time through its target's dispatcher, and receives answers in between.
//!
//! ```text
//!  ProbeLine (path, method, dispatcher, schedule) --\                     /--> ProbeSeriesEvent: answered, ended, as it happens
//!  ProbeLine ...                                 ----> one thread, in order of departure times
//!                       PacketListeners  ----------/                     \--> ProbeSeries of each line
//! ```
//! One thread does all the work. Between two departures it reads the listeners' rings, where the kernel
//! has stamped each frame.
//!
//! Invariant: departure times are those of the schedule, added to one start time. A late probe does not move
//! the departure times of later probes.

use crate::Error;
use crate::listener::{PacketListener, ReceivedFrame, STOP_CHECK_INTERVAL};
use crate::path::ProbePath;
use crate::release::{DepartedFrame, DueFrame, ReleaseDispatcher};
use crate::{frame_length, now};
use packetrig_probe::answer::{PathFailure, ProbeAnswer};
use packetrig_probe::method::{ProbeMethod, ProbeReply, ReplyMeaning};
use packetrig_probe::series::{AnswerMeaning, ProbeSeries};
use packetrig_probe::{BudgetExceeded, PlannedProbe, ProbeRecord, ProbeSchedule};
use packetrig_units::{MonoTime, Nanos};
use std::fmt;

/// Time between the call and the first departure, so that the first probe is not late.
const FIRST_DEPARTURE_DELAY: Nanos = Nanos::from_millis(5);
/// Time to listen after the last expected answer, for duplicates and late errors.
const EXTRA_LISTEN_TIME: Nanos = Nanos::from_millis(50);

/// A series of probes to one target, with everything that is needed to send it.
pub struct ProbeLine<'m> {
    pub way: ProbePath,
    pub method: Box<dyn ProbeMethod + 'm>,
    pub dispatcher: ReleaseDispatcher,
    pub schedule: ProbeSchedule,
    /// Offset of the whole schedule, so that probes of several series alternate.
    pub shift: Nanos,
}

impl fmt::Debug for ProbeLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeLine").field("target", &self.way.ends.target).finish_non_exhaustive()
    }
}

/// Reason why a series ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesEndReason {
    Done,
    Stopped,
    /// Too many probes were lost.
    Lossy,
    /// A host or router reported that probes are administratively prohibited.
    Prohibited,
    /// The limits of the target did not allow further probes.
    Limits(BudgetExceeded),
}

/// An event that is reported to the caller while a series runs.
#[derive(Debug)]
pub enum ProbeSeriesEvent<'a> {
    /// The probe with this number was handed to the release mechanism; the kernel may have dropped it.
    Sent { line: usize, number: u32 },
    /// An answer that belongs to a probe.
    Answered {
        line: usize,
        reply: ProbeReply,
        meaning: AnswerMeaning,
        answer: ProbeAnswer<'a>,
        /// Bytes of the answer's frame, without FCS.
        length: usize,
    },
    /// A series was ended by its losses, a limit or a prohibition. A stop by the caller is not reported.
    Ended { line: usize, end: SeriesEndReason },
}

/// Outcome of one series of probes.
#[derive(Debug)]
pub struct ProbeSeriesOutcome {
    pub series: ProbeSeries,
    pub end: SeriesEndReason,
}

#[derive(Clone, Copy)]
pub struct ProbeSeriesOptions<'a> {
    /// Time limit for an answer.
    pub answer: Nanos,
    /// Returns true when the series is to stop.
    pub stop: &'a dyn Fn() -> bool,
}

impl fmt::Debug for ProbeSeriesOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeSeriesOptions").field("answer", &self.answer).finish_non_exhaustive()
    }
}

/// Checks a whole schedule against its target's limits, before the first probe leaves.
pub fn check_limits(line: &ProbeLine<'_>) -> Result<(), BudgetExceeded> {
    let mut budget = packetrig_probe::ProbeBudget::new(line.way.permitted.limits());
    line.schedule.probes().iter().try_for_each(|probe| {
        // Methods never write a frame shorter than the Ethernet minimum (60 bytes without FCS), whatever the schedule says.
        let length = probe.length.max(60);
        budget.deduct_frame(MonoTime::from_nanos(1) + probe.at, length)
    })
}

/// Sends the probes of several series (lines) and receives their answers. Fails before the first probe leaves
/// if a schedule exceeds the limits of its target.
pub fn run_lines(
    lines: &mut [ProbeLine<'_>],
    listeners: &mut [PacketListener],
    options: ProbeSeriesOptions<'_>,
    on_event: &mut dyn FnMut(ProbeSeriesEvent<'_>),
) -> Result<Vec<ProbeSeriesOutcome>, Error> {
    run_lines_from(now() + FIRST_DEPARTURE_DELAY, lines, listeners, options, on_event)
}

/// Does the same as [`run_lines`], with departure times counted from `start`.
pub fn run_lines_from(
    start: MonoTime,
    lines: &mut [ProbeLine<'_>],
    listeners: &mut [PacketListener],
    options: ProbeSeriesOptions<'_>,
    on_event: &mut dyn FnMut(ProbeSeriesEvent<'_>),
) -> Result<Vec<ProbeSeriesOutcome>, Error> {
    let mut asking = ProbeSeriesRun {
        lines: Vec::new(),
        listeners,
        options,
        heard_until: start,
        on_event,
        frame: Vec::new(),
    };
    let mut order = Vec::new();
    for (number, line) in lines.iter_mut().enumerate() {
        // The limits of all series are checked before the first probe of any series leaves.
        check_limits(line)?;
        order.extend(line.schedule.probes().iter().enumerate().map(|(probe, planned)| PlannedDeparture {
            at: planned.at + line.shift,
            line: number,
            probe,
        }));
        asking.lines.push(RunningProbeLine { line, series: ProbeSeries::new(), end: None, settled: 0 });
    }
    // One thread sends for all series, so their probes are sorted by departure time. Probes of one
    // series keep their order.
    order.sort_unstable();
    for PlannedDeparture { at, line, probe } in order {
        if asking.is_over() {
            break;
        }
        asking.send_probe(line, probe, start + at)?;
    }
    asking.drain_late_answers()?;
    Ok(asking.lines.into_iter().map(RunningProbeLine::into_outcome).collect())
}

/// Position of a probe in the common order of all series. The derived ordering depends on the order of the fields.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PlannedDeparture {
    at: Nanos,
    line: usize,
    probe: usize,
}

struct RunningProbeLine<'a, 'm> {
    line: &'a mut ProbeLine<'m>,
    series: ProbeSeries,
    end: Option<SeriesEndReason>,
    /// Number of probes, from the first on, that can no longer be answered in time.
    settled: usize,
}

impl RunningProbeLine<'_, '_> {
    fn into_outcome(self) -> ProbeSeriesOutcome {
        let is_whole = self.series.records().len() == self.line.schedule.probes().len();
        // If all probes are recorded, the series is done, even if the caller ended the wait for late answers.
        let end = self.end.unwrap_or(if is_whole { SeriesEndReason::Done } else { SeriesEndReason::Stopped });
        ProbeSeriesOutcome { series: self.series, end }
    }

    /// Advances `settled` over the first probes whose time limit for an answer has passed.
    fn advance_settled_probes(&mut self, heard_until: MonoTime, timeout: Nanos) {
        let records = self.series.records();
        while records.get(self.settled).is_some_and(|record| latest_departure(record) + timeout < heard_until)
        {
            self.settled += 1;
        }
    }

    fn is_lossy(&self) -> bool {
        // Only probes that can no longer be answered in time count: otherwise probes in flight would look
        // like loss on a long path.
        let settled = self.series.count_losses_after_timeout(self.settled);
        self.line.way.permitted.limits().is_lossy(settled.sent, settled.lost)
    }
}

/// Latest possible departure of a probe. It can be long after the planned time if this thread did not get a processor.
fn latest_departure(record: &ProbeRecord) -> MonoTime {
    record.handed_over.map_or(record.planned, |stamp| record.planned.max(MonoTime::from_nanos(stamp.hi)))
}

struct ProbeSeriesRun<'a, 'l, 'm> {
    lines: Vec<RunningProbeLine<'l, 'm>>,
    listeners: &'a mut [PacketListener],
    options: ProbeSeriesOptions<'a>,
    /// Time of the last reading of the rings. Earlier frames have been handled, unless there were too
    /// many for one call.
    heard_until: MonoTime,
    on_event: &'a mut dyn FnMut(ProbeSeriesEvent<'_>),
    frame: Vec<u8>,
}

impl ProbeSeriesRun<'_, '_, '_> {
    fn is_over(&self) -> bool {
        (self.options.stop)() || self.lines.iter().all(|asked| asked.end.is_some())
    }

    /// Listens until shortly before the departure time, then sends the probe unless its series has ended.
    fn send_probe(&mut self, line: usize, probe: usize, at: MonoTime) -> Result<(), Error> {
        let lead = self.lines[line].line.dispatcher.lead_time();
        // Listen at least once, so that answers do not stay in the ring when probes are overdue.
        loop {
            self.handle_arrivals((at - lead).since(now()))?;
            if self.is_over() {
                return Ok(());
            }
            if now() + lead >= at {
                break;
            }
        }
        // Loss is judged after listening, with the answers that arrived meanwhile. A prohibition among them has
        // already ended the series.
        self.end_line_if_lossy(line);
        let asked = &mut self.lines[line];
        if asked.end.is_some() {
            return Ok(());
        }
        let planned: PlannedProbe = asked.line.schedule.probes()[probe];
        asked.line.method.write_probe(planned.number, at, planned.length, &mut self.frame);
        let mut gone = Vec::with_capacity(1);
        let refused = asked.line.dispatcher.send_train(&[DueFrame { at, frame: &self.frame }], &mut gone)?;
        // The record has the length of the frame as it was sent: a method may pad or shorten its frame.
        let length = frame_length(&self.frame);
        // Refused probes are recorded too, as unsent.
        let gone = gone.pop().unwrap_or_else(DepartedFrame::new_unsent);
        let has_left = !gone.is_unsent();
        asked.series.add_sent_probe(gone.into_record(PlannedProbe { length, ..planned }, at));
        if has_left {
            (self.on_event)(ProbeSeriesEvent::Sent { line, number: planned.number });
        }
        if let Some(exceeded) = refused {
            self.end_probe_line(line, SeriesEndReason::Limits(exceeded));
        }
        Ok(())
    }

    fn end_line_if_lossy(&mut self, line: usize) {
        let asked = &mut self.lines[line];
        asked.advance_settled_probes(self.heard_until, self.options.answer);
        if asked.end.is_none() && asked.is_lossy() {
            self.end_probe_line(line, SeriesEndReason::Lossy);
        }
    }

    fn end_probe_line(&mut self, line: usize, end: SeriesEndReason) {
        let asked = &mut self.lines[line];
        if asked.end.is_none() {
            asked.end = Some(end);
            (self.on_event)(ProbeSeriesEvent::Ended { line, end });
        }
    }

    /// Waits for frames, for at most `within`, and handles the frames that arrived.
    fn handle_arrivals(&mut self, within: Nanos) -> Result<(), Error> {
        // Only the first listener is waited for. With several listeners the wait must be short, because frames
        // stay in the rings of the other listeners meanwhile, and a full ring drops frames.
        let piece = if self.listeners.len() > 1 { Nanos::from_millis(2) } else { STOP_CHECK_INTERVAL };
        if let Some(listener) = self.listeners.first_mut() {
            listener.wait_for_frames(within.min(piece))?;
        }
        self.heard_until = now();
        // Lines are ended after the loop, because the closure borrows them.
        let mut prohibited = Vec::new();
        for listener in &mut *self.listeners {
            let lines = &mut self.lines;
            let on_event = &mut *self.on_event;
            listener.receive_waiting_frames(|heard| {
                if let Some(line) = record_answer_in_series(lines, &heard, on_event) {
                    prohibited.push(line);
                }
            });
        }
        for line in prohibited {
            self.end_probe_line(line, SeriesEndReason::Prohibited);
        }
        Ok(())
    }

    /// Listens after the last probe until all probes are answered or refused, and a little longer. The time
    /// limit or `stop` may end the wait earlier.
    fn drain_late_answers(&mut self) -> Result<(), Error> {
        let begun = now();
        let last =
            self.lines.iter().filter_map(|asked| asked.series.records().last()).map(latest_departure).max();
        let deadline = last.unwrap_or(begun).max(begun) + self.options.answer;
        let mut complete_since = None;
        while now() < deadline && !(self.options.stop)() {
            self.handle_arrivals(STOP_CHECK_INTERVAL)?;
            // Duplicates, or errors after a good answer, may arrive after the last expected answer. So the loop
            // continues for `EXTRA_LISTEN_TIME` after all answers have arrived.
            let is_complete = self.lines.iter().all(|asked| asked.series.counts().lost == 0);
            complete_since = if is_complete { complete_since.or_else(|| Some(now())) } else { None };
            if complete_since.is_some_and(|since| now().since(since) > EXTRA_LISTEN_TIME) {
                break;
            }
        }
        // If this thread had no processor until the deadline, the answers are still in the rings.
        self.handle_arrivals(Nanos::ZERO)
    }
}

/// Finds the probe that a frame answers and records the answer. Returns the index of the probe's series if the
/// answer prohibits further probes.
fn record_answer_in_series(
    lines: &mut [RunningProbeLine<'_, '_>],
    heard: &ReceivedFrame<'_>,
    tell: &mut dyn FnMut(ProbeSeriesEvent<'_>),
) -> Option<usize> {
    // The method of each series checks the frame, because all targets of an interface share a listener.
    let answer = heard.read_answer()?;
    for (line, asked) in lines.iter_mut().enumerate() {
        let Some(reply) = asked.line.method.read_reply(&answer) else { continue };
        let meaning = asked.series.add_answer(&reply, heard.at);
        tell(ProbeSeriesEvent::Answered { line, reply, meaning, answer, length: heard.frame.len() });
        return (reply.says == ReplyMeaning::Trouble(PathFailure::Prohibited)).then_some(line);
    }
    None
}

#[cfg(test)]
mod tests;
