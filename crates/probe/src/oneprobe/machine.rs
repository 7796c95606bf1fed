//! The course of a series: connect, have the server fill its queue, probe, ask what remained open, connect again where a connection
//! cannot be told from any other any more.
//!
//! After a lost answer or a lost first segment the connection is given up: what the server repeats, and when, is its own business and would
//! be mistaken for answers.
//!
//! Invariant: while a probe is out, nothing else of ours is.

use super::evidence::{ProbeEvidence, after};
use super::report::{OneprobeOutcome, OneprobeReport};
use super::{
    ArrivalOrder, ForwardOutcome, HttpRequest, OneprobeFailure, OneprobeOptions, OutgoingSegment,
    ProbeVerdict, UselessReason,
};
use crate::frame::flags;
use packetrig_wire::pattern::mix;
use std::collections::VecDeque;

mod hear;
pub use hear::IncomingSegment;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OneprobeStep {
    Send(OutgoingSegment),
    /// Release both together at this instant, and say by [`OneprobeMachine::left`] when they left.
    Pair {
        at: u64,
        segments: [OutgoingSegment; 2],
    },
    /// Nothing before this instant, unless something is heard.
    Wait(u64),
    /// The series is over.
    Over,
}

/// Numbers of the connection that is open.
#[derive(Clone, Copy, Debug, Default)]
struct OpenConnection {
    first: u32,
    next: u32,
    /// The server's next one.
    expected: u32,
    /// The server's number up to which it may send, while it fills its queue.
    edge: u32,
    /// Up to where the server has ours, and how much more it takes.
    acknowledged: u32,
    room: u16,
    /// The round trip, smoothed as the server does it for its own clock of repetitions.
    round_trip: Option<u64>,
    has_data: bool,
    is_used: bool,
}

impl OpenConnection {
    /// Takes in a round trip.
    fn took(&mut self, took: u64) {
        self.round_trip = Some(self.round_trip.map_or(took, |smoothed| smoothed - smoothed / 8 + took / 8));
    }
}

#[derive(Clone, Debug)]
enum OneprobeState {
    Closed { again_at: u64 },
    Calling { at: u64, tries: u32 },
    Warming { since: u64, asked_at: u64, quiet_at: u64 },
    Settling { asked_at: u64, tries: u32 },
    Ready,
    Out(PendingProbe),
    Asking { probe: PendingProbe, asked_at: u64, tries: u32 },
    Over,
}

/// A probe on its way.
#[derive(Clone, Debug)]
struct PendingProbe {
    number: u32,
    evidence: ProbeEvidence,
    left: Option<u64>,
    until: u64,
    /// A loss on the way there was said once, and is asked for again.
    is_asked_again: bool,
}

#[derive(Debug)]
pub struct OneprobeMachine {
    manner: OneprobeOptions,
    request: HttpRequest,
    state: OneprobeState,
    connection: OpenConnection,
    queue: VecDeque<OutgoingSegment>,
    report: OneprobeReport,
    failure: Option<OneprobeFailure>,
    /// The instant of the first probe.
    first_at: Option<u64>,
    next_at: u64,
    /// Connections in a row that told nothing.
    futile: u32,
    last_word: u64,
}

const MS: u64 = 1_000_000;
/// How long before its instant a probe is handed out.
const LEAD: u64 = 3 * MS;
/// Answers that are not there so long after a round trip are asked for.
const PATIENCE: u64 = 100 * MS;
/// From so long after a round trip on, what is heard may be a repetition: no server repeats earlier.
const REPEATS: u64 = 190 * MS;
/// How often is asked or called before giving up.
const TRIES: u32 = 5;
/// Connections in a row that tell nothing.
const FUTILE: u32 = 3;
/// How long a server may take to send the first data.
const MUTE: u64 = 5_000 * MS;
/// The longest segment that is sent.
const LONGEST: usize = 1_400;

impl OneprobeMachine {
    /// A series that has not begun.
    pub fn new(manner: OneprobeOptions, request: HttpRequest) -> Self {
        Self {
            manner,
            request,
            state: OneprobeState::Closed { again_at: 0 },
            connection: OpenConnection::default(),
            queue: VecDeque::new(),
            report: OneprobeReport::default(),
            failure: None,
            first_at: None,
            next_at: 0,
            futile: 0,
            last_word: 0,
        }
    }

    /// What was found so far, and why it ended early, if it did.
    pub const fn report(&self) -> (&OneprobeReport, Option<OneprobeFailure>) {
        (&self.report, self.failure)
    }

    /// Ends the series now: what is out is not waited for.
    pub fn stop(&mut self) {
        if !matches!(
            self.state,
            OneprobeState::Closed { .. } | OneprobeState::Calling { .. } | OneprobeState::Over
        ) {
            self.reset();
        }
        self.state = OneprobeState::Over;
    }

    /// What to do now.
    pub fn step(&mut self, now: u64) -> OneprobeStep {
        loop {
            if let Some(out) = self.queue.pop_front() {
                return OneprobeStep::Send(out);
            }
            if let Some(step) = self.advance(now) {
                return step;
            }
        }
    }

    /// `None`: something changed, look again.
    fn advance(&mut self, now: u64) -> Option<OneprobeStep> {
        match self.state.clone() {
            OneprobeState::Over => Some(OneprobeStep::Over),
            OneprobeState::Closed { again_at } if now < again_at => Some(OneprobeStep::Wait(again_at)),
            OneprobeState::Closed { .. } => self.call(now, 0),
            OneprobeState::Calling { at, tries } => self.call_again(now, at, tries),
            OneprobeState::Warming { since, asked_at, quiet_at } => self.warm(now, since, asked_at, quiet_at),
            OneprobeState::Settling { asked_at, tries } => self.ask_again(now, asked_at, tries, None),
            OneprobeState::Ready => self.probe(now),
            OneprobeState::Out(probe) if now < probe.until => Some(OneprobeStep::Wait(probe.until)),
            OneprobeState::Out(probe) => {
                self.state = OneprobeState::Asking { probe, asked_at: now, tries: 1 };
                self.ask();
                None
            }
            OneprobeState::Asking { probe, asked_at, tries } => {
                self.ask_again(now, asked_at, tries, Some(probe))
            }
        }
    }

    fn call(&mut self, now: u64, tries: u32) -> Option<OneprobeStep> {
        if tries == 0 {
            if self.report.probes >= u64::from(self.manner.count) {
                self.state = OneprobeState::Over;
                return None;
            }
            self.report.connections += 1;
            let first = u32::try_from(mix(self.manner.seed, self.report.connections) >> 32).unwrap_or(0);
            self.connection = OpenConnection {
                first,
                next: first,
                acknowledged: first,
                // What connections have in common is the path.
                round_trip: self.connection.round_trip,
                ..OpenConnection::default()
            };
        }
        let size = self.manner.answer.to_be_bytes();
        self.queue.push_back(OutgoingSegment {
            sequence: self.connection.first,
            flags: flags::SYN,
            window: self.manner.answer,
            options: vec![2, 4, size[0], size[1]],
            ..OutgoingSegment::default()
        });
        self.state = OneprobeState::Calling { at: now, tries: tries + 1 };
        None
    }

    fn call_again(&mut self, now: u64, at: u64, tries: u32) -> Option<OneprobeStep> {
        let again_at = at + ((1_000 * MS) << tries.saturating_sub(1).min(3));
        if now < again_at {
            return Some(OneprobeStep::Wait(again_at));
        }
        if tries < TRIES {
            return self.call(now, tries);
        }
        self.fail(OneprobeFailure::Silent)
    }

    fn fail(&mut self, failure: OneprobeFailure) -> Option<OneprobeStep> {
        (self.failure, self.state) = (Some(failure), OneprobeState::Over);
        None
    }

    /// The server fills its queue: whole requests, and room for two answers.
    fn warm(&mut self, now: u64, since: u64, asked_at: u64, quiet_at: u64) -> Option<OneprobeStep> {
        if self.connection.has_data {
            if now < quiet_at {
                return Some(OneprobeStep::Wait(quiet_at));
            }
            self.state = OneprobeState::Settling { asked_at: now, tries: 1 };
            self.ask();
            return None;
        }
        if now >= since + MUTE {
            return self.reopen(now, false);
        }
        let again_at = asked_at + 1_000 * MS;
        if now < again_at {
            return Some(OneprobeStep::Wait(again_at));
        }
        self.request_first();
        self.state = OneprobeState::Warming { since, asked_at: now, quiet_at };
        None
    }

    fn request_first(&mut self) {
        let whole = self.request.length();
        let length = (whole * (LONGEST / whole.max(1)).clamp(1, 4)).min(LONGEST);
        let first = self.connection.first.wrapping_add(1);
        self.queue.push_back(self.data(
            first,
            length,
            self.connection.edge.wrapping_sub(self.connection.expected),
        ));
        self.connection.next = first.wrapping_add(number(length));
    }

    /// Of the stream of requests, with the window open for so many bytes.
    fn data(&self, sequence: u32, length: usize, window: u32) -> OutgoingSegment {
        let from = sequence.wrapping_sub(self.connection.first.wrapping_add(1));
        OutgoingSegment {
            sequence,
            acknowledgement: self.connection.expected,
            flags: flags::ACK | flags::PSH,
            window: u16::try_from(window).unwrap_or(u16::MAX),
            options: Vec::new(),
            payload: self.request.piece(from, length),
        }
    }

    /// Says what we have, and closes the window.
    fn acknowledge(&mut self, window: u32) {
        self.queue.push_back(OutgoingSegment {
            sequence: self.connection.next,
            acknowledgement: self.connection.expected,
            flags: flags::ACK,
            window: u16::try_from(window).unwrap_or(u16::MAX),
            ..OutgoingSegment::default()
        });
    }

    /// A byte the server has long had: it answers with its state.
    fn ask(&mut self) {
        let old = self.connection.acknowledged.wrapping_sub(2);
        let out = self.data(old, 1, 0);
        self.queue.push_back(out);
    }

    fn patience(&self) -> u64 {
        2 * self.connection.round_trip.unwrap_or(0) + PATIENCE
    }

    fn ask_again(
        &mut self,
        now: u64,
        asked_at: u64,
        tries: u32,
        probe: Option<PendingProbe>,
    ) -> Option<OneprobeStep> {
        let again_at = asked_at + self.patience() * u64::from(tries);
        if now < again_at {
            return Some(OneprobeStep::Wait(again_at));
        }
        if tries >= TRIES {
            if let Some(probe) = probe {
                self.account(&probe, ProbeVerdict::Ambiguous(UselessReason::NoWord));
            }
            return self.reopen(now, false);
        }
        let tries = tries + 1;
        self.state = match probe {
            Some(probe) => OneprobeState::Asking { probe, asked_at: now, tries },
            None => OneprobeState::Settling { asked_at: now, tries },
        };
        self.ask();
        None
    }

    fn probe(&mut self, now: u64) -> Option<OneprobeStep> {
        let number = u32::try_from(self.report.probes).unwrap_or(u32::MAX);
        if number >= self.manner.count {
            self.reset();
            self.state = OneprobeState::Over;
            return None;
        }
        let first = *self.first_at.get_or_insert(now + 2 * LEAD);
        // The next instant of the schedule that can still be met; those that cannot are left out, the schedule does not move.
        let least = (now + LEAD / 2).max(self.next_at);
        let slot = least.saturating_sub(first).div_ceil(self.manner.every_ns.max(1));
        let at = first + slot * self.manner.every_ns;
        let length = u32::from(self.manner.payload);
        let room = self.connection.acknowledged.wrapping_add(self.connection.room.into());
        if room.wrapping_sub(self.connection.next) < 2 * length {
            // The server reads no more requests: a new connection has room again.
            return self.reopen(now, false);
        }
        if now + LEAD < at {
            return Some(OneprobeStep::Wait(at - LEAD));
        }
        self.next_at = at + 1;
        Some(self.pair(number, at))
    }

    fn pair(&mut self, number: u32, at: u64) -> OneprobeStep {
        let (length, size) = (u32::from(self.manner.payload), u32::from(self.manner.answer));
        let (c, s) = (self.connection.next, self.connection.expected);
        let sent = [c, c.wrapping_add(length), c.wrapping_add(2 * length)];
        let due = [s, s.wrapping_add(size), s.wrapping_add(2 * size)];
        let segments =
            [self.data(sent[0], length as usize, size), self.data(sent[1], length as usize, 2 * size)];
        let until = at + self.connection.round_trip.unwrap_or(0) + PATIENCE;
        let evidence = ProbeEvidence::new(sent, due);
        self.state =
            OneprobeState::Out(PendingProbe { number, evidence, left: None, until, is_asked_again: false });
        OneprobeStep::Pair { at, segments }
    }

    /// When the first segment of the probe left; `None` twice: it was not sent.
    pub fn left(&mut self, left: Option<u64>) {
        let OneprobeState::Out(probe) = &mut self.state else { return };
        probe.left = left;
        if left.is_none() {
            let probe = probe.clone();
            self.account(&probe, ProbeVerdict::Ambiguous(UselessReason::Unsent));
            self.state = OneprobeState::Ready;
        }
    }

    fn account(&mut self, probe: &PendingProbe, verdict: ProbeVerdict) {
        let is_plain = matches!(verdict, ProbeVerdict::Told { forward: ForwardOutcome::Both(ArrivalOrder::Kept), reverse }
            if reverse.order == ArrivalOrder::Kept);
        let round_trip_ns = probe
            .left
            .zip(probe.evidence.answers[0].filter(|_| is_plain))
            .map(|(left, answer)| answer.at.saturating_sub(left));
        if let Some(took) = round_trip_ns {
            self.connection.took(took);
        }
        self.report.take(OneprobeOutcome { number: probe.number, left: probe.left, verdict, round_trip_ns });
        if matches!(verdict, ProbeVerdict::Told { .. }) {
            (self.connection.is_used, self.futile) = (true, 0);
        }
    }

    /// After a verdict: on with this connection if its state is known, else with a new one.
    fn conclude(&mut self, probe: &PendingProbe, verdict: ProbeVerdict, now: u64) {
        self.account(probe, verdict);
        let ProbeVerdict::Told { forward, reverse } = verdict else {
            self.reopen(now, verdict == ProbeVerdict::Ambiguous(UselessReason::Ended));
            return;
        };
        let place = match forward {
            ForwardOutcome::Both(_) => 2,
            ForwardOutcome::SecondLost => 1,
            ForwardOutcome::BothLost => 0,
            ForwardOutcome::FirstLost => 3,
        };
        if place > 2 || reverse.lost() > 0 {
            self.reopen(now, false);
            return;
        }
        let connection = &mut self.connection;
        connection.next = probe.evidence.sent[place];
        connection.expected = probe.evidence.due[usize::try_from(reverse.sent).unwrap_or(0)];
        self.acknowledge(0);
        self.state = OneprobeState::Ready;
    }

    fn reset(&mut self) {
        let connection = &self.connection;
        self.queue.push_back(OutgoingSegment {
            sequence: connection.acknowledged,
            acknowledgement: connection.expected,
            flags: flags::RST | flags::ACK,
            ..OutgoingSegment::default()
        });
    }

    /// Ends this connection, and has the next one opened. `by_server`: the server ended it.
    fn reopen(&mut self, now: u64, by_server: bool) -> Option<OneprobeStep> {
        self.reset();
        self.futile += u32::from(!self.connection.is_used);
        self.state = OneprobeState::Closed { again_at: now + 20 * MS };
        let is_mute = !self.connection.has_data;
        if self.futile >= FUTILE && (by_server || is_mute) {
            self.fail(if is_mute { OneprobeFailure::Mute } else { OneprobeFailure::TooShort });
        } else if self.futile >= 4 * FUTILE {
            self.fail(OneprobeFailure::TooShort);
        }
        None
    }
}

fn number(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
