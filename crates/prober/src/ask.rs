//! Series of probes at work: each released at its instant through its target's dispatcher, answers heard in between.
//!
//! ```text
//!  Line (way, method, dispatcher, schedule) --\                     /--> Event: sent, answered, ... as it happens
//!  Line ...                                ----> one thread, in order of instants
//!                          ears  ------------/                     \--> Series of each line
//! ```
//! One thread does all: between instants it looks into the ears' rings, and the kernel has stamped what it finds there.
//!
//! Invariant: instants are the schedule's, added to one start; being late never moves the next one.

use crate::Error;
use crate::ear::{HeardFrame, PIECE, PacketListener};
use crate::now;
use crate::path::ProbePath;
use crate::release::{DueFrame, ReleaseDispatcher};
use packetrig_probe::answer::{PathTrouble, ProbeAnswer};
use packetrig_probe::method::{ProbeMethod, ProbeReply, ReplyMeaning};
use packetrig_probe::series::{AnswerMeaning, ProbeSeries};
use packetrig_probe::{BudgetExceeded, PlannedProbe, ProbeSchedule};
use packetrig_units::{MonoTime, Nanos};
use std::fmt;

/// The start is so far ahead that the first probe is not late.
const HEAD_START: Nanos = Nanos::from_millis(5);
/// After the last answer that is expected one waits so much longer for what nobody expects.
const LINGER: Nanos = Nanos::from_millis(50);

/// Probes to one target.
pub struct ProbeLine<'m> {
    pub way: ProbePath,
    /// What its probes say.
    pub method: Box<dyn ProbeMethod + 'm>,
    pub dispatcher: ReleaseDispatcher,
    pub schedule: ProbeSchedule,
    /// Moves the whole schedule, so that lines take turns.
    pub shift: Nanos,
}

impl fmt::Debug for ProbeLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeLine").field("target", &self.way.ends.target).finish_non_exhaustive()
    }
}

/// Why a line has no more probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineEnd {
    Done,
    Stopped,
    /// Too many were lost.
    Lossy,
    /// Somebody on the way does not want them.
    Prohibited,
    /// The limits did not allow them.
    Limits(BudgetExceeded),
}

/// What has just happened.
#[derive(Debug)]
pub enum AskEvent<'a> {
    /// An answer that belongs to a probe.
    Answered {
        line: usize,
        reply: ProbeReply,
        meaning: AnswerMeaning,
        answer: ProbeAnswer<'a>,
        /// Bytes of its frame.
        length: usize,
    },
    /// A line has come to its end early.
    Ended { line: usize, end: LineEnd },
}

/// What became of a line.
#[derive(Debug)]
pub struct LineOutcome {
    pub series: ProbeSeries,
    /// Why there are no more.
    pub end: LineEnd,
}

#[derive(Clone, Copy)]
pub struct AskOptions<'a> {
    /// How long an answer may take.
    pub answer: Nanos,
    /// Whether to stop now.
    pub stop: &'a dyn Fn() -> bool,
}

impl fmt::Debug for AskOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskOptions").field("answer", &self.answer).finish_non_exhaustive()
    }
}

/// Whether a schedule keeps its target's limits: told before the first probe leaves.
pub fn fits(line: &ProbeLine<'_>) -> Result<(), BudgetExceeded> {
    let mut budget = packetrig_probe::ProbeBudget::new(line.way.permitted.limits());
    line.schedule.probes().iter().try_for_each(|probe| {
        let length = probe.length.max(60);
        budget.take(MonoTime::from_nanos(1) + probe.at, length)
    })
}

/// Sends all probes of all lines and hears their answers.
pub fn run(
    lines: &mut [ProbeLine<'_>],
    ears: &mut [PacketListener],
    patience: AskOptions<'_>,
    tell: &mut dyn FnMut(AskEvent<'_>),
) -> Result<Vec<LineOutcome>, Error> {
    let start = now() + HEAD_START;
    let mut asking = AskState { lines: Vec::new(), ears, patience, tell, frame: Vec::new() };
    let mut order: Vec<(Nanos, usize, usize)> = Vec::new();
    for (number, line) in lines.iter_mut().enumerate() {
        fits(line)?;
        let due = line.schedule.probes().iter().map(|probe| (probe.at + line.shift, number));
        order.extend(due.zip(0..).map(|((at, line), probe)| (at, line, probe)));
        asking.lines.push(AskedProbe { line, series: ProbeSeries::new(), end: None, settled: 0 });
    }
    order.sort_unstable();
    for (at, line, probe) in order {
        if asking.is_over() {
            break;
        }
        asking.send(line, probe, start + at)?;
    }
    asking.hear_the_last()?;
    Ok(asking.lines.into_iter().map(AskedProbe::outcome).collect())
}

struct AskedProbe<'a, 'm> {
    line: &'a mut ProbeLine<'m>,
    series: ProbeSeries,
    end: Option<LineEnd>,
    /// Probes that have had their time.
    settled: usize,
}

impl AskedProbe<'_, '_> {
    fn outcome(self) -> LineOutcome {
        let is_whole = self.series.records().len() == self.line.schedule.probes().len();
        let end = self.end.unwrap_or(if is_whole { LineEnd::Done } else { LineEnd::Stopped });
        LineOutcome { series: self.series, end }
    }

    /// Probes go to rest in order; counts those whose time is over.
    fn settle(&mut self, now: MonoTime, patience: Nanos) {
        let records = self.series.records();
        while records.get(self.settled).is_some_and(|record| record.planned + patience < now) {
            self.settled += 1;
        }
    }

    fn is_lossy(&self) -> bool {
        let (sent, lost) = self.series.losses(self.settled);
        self.line.way.permitted.limits().is_lossy(sent, lost)
    }
}

struct AskState<'a, 'l, 'm> {
    lines: Vec<AskedProbe<'l, 'm>>,
    ears: &'a mut [PacketListener],
    patience: AskOptions<'a>,
    tell: &'a mut dyn FnMut(AskEvent<'_>),
    frame: Vec<u8>,
}

impl AskState<'_, '_, '_> {
    fn is_over(&self) -> bool {
        (self.patience.stop)() || self.lines.iter().all(|asked| asked.end.is_some())
    }

    /// Listens until it is time, then sends.
    fn send(&mut self, line: usize, probe: usize, at: MonoTime) -> Result<(), Error> {
        let lead = self.lines[line].line.dispatcher.lead();
        while now() + lead < at {
            self.listen((at - lead).since(now()))?;
            if self.is_over() {
                return Ok(());
            }
        }
        self.judge(line);
        let asked = &mut self.lines[line];
        if asked.end.is_some() {
            return Ok(());
        }
        let planned: PlannedProbe = asked.line.schedule.probes()[probe];
        asked.line.method.write(planned.number, at, planned.length, &mut self.frame);
        let mut gone = Vec::with_capacity(1);
        let refused = asked.line.dispatcher.send(&[DueFrame { at, frame: &self.frame }], &mut gone)?;
        let length = u32::try_from(self.frame.len()).unwrap_or(u32::MAX);
        let gone = gone.pop().unwrap_or_default();
        asked.series.sent(gone.into_record(PlannedProbe { length, ..planned }, at));
        if let Some(exceeded) = refused {
            self.end(line, LineEnd::Limits(exceeded));
        }
        Ok(())
    }

    fn judge(&mut self, line: usize) {
        let asked = &mut self.lines[line];
        asked.settle(now(), self.patience.answer);
        if asked.end.is_none() && asked.is_lossy() {
            self.end(line, LineEnd::Lossy);
        }
    }

    fn end(&mut self, line: usize, end: LineEnd) {
        let asked = &mut self.lines[line];
        if asked.end.is_none() {
            asked.end = Some(end);
            (self.tell)(AskEvent::Ended { line, end });
        }
    }

    /// Waits for frames at most so long, and takes those there are.
    fn listen(&mut self, within: Nanos) -> Result<(), Error> {
        // With several ears none may keep the others from being looked into.
        let piece = if self.ears.len() > 1 { Nanos::from_millis(2) } else { PIECE };
        if let Some(ear) = self.ears.first_mut() {
            ear.wait(within.min(piece))?;
        }
        let mut prohibited = Vec::new();
        for ear in &mut *self.ears {
            let (lines, tell) = (&mut self.lines, &mut *self.tell);
            ear.listen(|heard| {
                if let Some(line) = take(lines, &heard, tell) {
                    prohibited.push(line);
                }
            });
        }
        for line in prohibited {
            self.end(line, LineEnd::Prohibited);
        }
        Ok(())
    }

    /// After the last probe: until all are answered and a little longer, or their time is over.
    fn hear_the_last(&mut self) -> Result<(), Error> {
        let begun = now();
        let last =
            self.lines.iter().filter_map(|asked| asked.series.records().last()).map(|r| r.planned).max();
        let deadline = last.unwrap_or(begun).max(begun) + self.patience.answer;
        let mut complete_since = None;
        while now() < deadline && !(self.patience.stop)() {
            self.listen(PIECE)?;
            let is_complete = self.lines.iter().all(|asked| asked.series.counts().lost == 0);
            complete_since = if is_complete { complete_since.or_else(|| Some(now())) } else { None };
            if complete_since.is_some_and(|since| now().since(since) > LINGER) {
                break;
            }
        }
        self.listen(Nanos::ZERO)
    }
}

/// Finds the probe that a frame answers. Gives the line if the answer forbids more of them.
fn take(
    lines: &mut [AskedProbe<'_, '_>],
    heard: &HeardFrame<'_>,
    tell: &mut dyn FnMut(AskEvent<'_>),
) -> Option<usize> {
    let answer = heard.answer()?;
    for (line, asked) in lines.iter_mut().enumerate() {
        let Some(reply) = asked.line.method.read(&answer) else { continue };
        let meaning = asked.series.answered(&reply, heard.at);
        tell(AskEvent::Answered { line, reply, meaning, answer, length: heard.frame.len() });
        return (reply.says == ReplyMeaning::Trouble(PathTrouble::Prohibited)).then_some(line);
    }
    None
}

#[cfg(test)]
mod tests;
