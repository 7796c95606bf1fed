//! The course of a series: connect, have the server fill its queue, probe, ask what remained open, connect again where a connection
//! cannot be told from any other any more.
//!
//! After a lost answer or a lost first segment the connection is given up: what the server repeats, and when, is its own business and would
//! be mistaken for answers.
//!
//! Invariant: while a probe is out, nothing else of ours is.

use super::evidence::{Evidence, after};
use super::report::{Outcome, Report};
use super::{Failure, Forward, Manner, Order, Out, Request, Verdict, Why};
use crate::frame::flags;
use packetrig_wire::pattern::mix;
use std::collections::VecDeque;

mod hear;
pub use hear::In;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send it now.
    Send(Out),
    /// Release both together at this instant, and say by [`Machine::left`] when they left.
    #[expect(missing_docs, reason = "the names say it")]
    Pair { at: u64, segments: [Out; 2] },
    /// Nothing before this instant, unless something is heard.
    Wait(u64),
    /// The series is over.
    Over,
}

/// Numbers of the connection that is open.
#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    /// Our first number.
    first: u32,
    /// Our next one.
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

impl Connection {
    /// Takes in a round trip.
    fn took(&mut self, took: u64) {
        self.round_trip = Some(self.round_trip.map_or(took, |smoothed| smoothed - smoothed / 8 + took / 8));
    }
}

#[derive(Clone, Debug)]
enum State {
    Closed { again_at: u64 },
    Calling { at: u64, tries: u32 },
    Warming { since: u64, asked_at: u64, quiet_at: u64 },
    Settling { asked_at: u64, tries: u32 },
    Ready,
    Out(Probe),
    Asking { probe: Probe, asked_at: u64, tries: u32 },
    Over,
}

/// A probe on its way.
#[derive(Clone, Debug)]
struct Probe {
    number: u32,
    evidence: Evidence,
    left: Option<u64>,
    until: u64,
    /// A loss on the way there was said once, and is asked for again.
    is_asked_again: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Machine {
    manner: Manner,
    request: Request,
    state: State,
    connection: Connection,
    queue: VecDeque<Out>,
    report: Report,
    failure: Option<Failure>,
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

impl Machine {
    /// A series that has not begun.
    pub fn new(manner: Manner, request: Request) -> Self {
        Self {
            manner,
            request,
            state: State::Closed { again_at: 0 },
            connection: Connection::default(),
            queue: VecDeque::new(),
            report: Report::default(),
            failure: None,
            first_at: None,
            next_at: 0,
            futile: 0,
            last_word: 0,
        }
    }

    /// What was found so far, and why it ended early, if it did.
    pub const fn report(&self) -> (&Report, Option<Failure>) {
        (&self.report, self.failure)
    }

    /// Ends the series now: what is out is not waited for.
    pub fn stop(&mut self) {
        if !matches!(self.state, State::Closed { .. } | State::Calling { .. } | State::Over) {
            self.reset();
        }
        self.state = State::Over;
    }

    /// What to do now.
    pub fn step(&mut self, now: u64) -> Step {
        loop {
            if let Some(out) = self.queue.pop_front() {
                return Step::Send(out);
            }
            if let Some(step) = self.advance(now) {
                return step;
            }
        }
    }

    /// `None`: something changed, look again.
    fn advance(&mut self, now: u64) -> Option<Step> {
        match self.state.clone() {
            State::Over => Some(Step::Over),
            State::Closed { again_at } if now < again_at => Some(Step::Wait(again_at)),
            State::Closed { .. } => self.call(now, 0),
            State::Calling { at, tries } => self.call_again(now, at, tries),
            State::Warming { since, asked_at, quiet_at } => self.warm(now, since, asked_at, quiet_at),
            State::Settling { asked_at, tries } => self.ask_again(now, asked_at, tries, None),
            State::Ready => self.probe(now),
            State::Out(probe) if now < probe.until => Some(Step::Wait(probe.until)),
            State::Out(probe) => {
                self.state = State::Asking { probe, asked_at: now, tries: 1 };
                self.ask();
                None
            }
            State::Asking { probe, asked_at, tries } => self.ask_again(now, asked_at, tries, Some(probe)),
        }
    }

    fn call(&mut self, now: u64, tries: u32) -> Option<Step> {
        if tries == 0 {
            if self.report.probes >= u64::from(self.manner.count) {
                self.state = State::Over;
                return None;
            }
            self.report.connections += 1;
            let first = u32::try_from(mix(self.manner.seed, self.report.connections) >> 32).unwrap_or(0);
            self.connection = Connection {
                first,
                next: first,
                acknowledged: first,
                // What connections have in common is the path.
                round_trip: self.connection.round_trip,
                ..Connection::default()
            };
        }
        let size = self.manner.answer.to_be_bytes();
        self.queue.push_back(Out {
            sequence: self.connection.first,
            flags: flags::SYN,
            window: self.manner.answer,
            options: vec![2, 4, size[0], size[1]],
            ..Out::default()
        });
        self.state = State::Calling { at: now, tries: tries + 1 };
        None
    }

    fn call_again(&mut self, now: u64, at: u64, tries: u32) -> Option<Step> {
        let again_at = at + ((1_000 * MS) << tries.saturating_sub(1).min(3));
        if now < again_at {
            return Some(Step::Wait(again_at));
        }
        if tries < TRIES {
            return self.call(now, tries);
        }
        self.fail(Failure::Silent)
    }

    fn fail(&mut self, failure: Failure) -> Option<Step> {
        (self.failure, self.state) = (Some(failure), State::Over);
        None
    }

    /// The server fills its queue: whole requests, and room for two answers.
    fn warm(&mut self, now: u64, since: u64, asked_at: u64, quiet_at: u64) -> Option<Step> {
        if self.connection.has_data {
            if now < quiet_at {
                return Some(Step::Wait(quiet_at));
            }
            self.state = State::Settling { asked_at: now, tries: 1 };
            self.ask();
            return None;
        }
        if now >= since + MUTE {
            return self.reopen(now, false);
        }
        let again_at = asked_at + 1_000 * MS;
        if now < again_at {
            return Some(Step::Wait(again_at));
        }
        self.request_first();
        self.state = State::Warming { since, asked_at: now, quiet_at };
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
    fn data(&self, sequence: u32, length: usize, window: u32) -> Out {
        let from = sequence.wrapping_sub(self.connection.first.wrapping_add(1));
        Out {
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
        self.queue.push_back(Out {
            sequence: self.connection.next,
            acknowledgement: self.connection.expected,
            flags: flags::ACK,
            window: u16::try_from(window).unwrap_or(u16::MAX),
            ..Out::default()
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

    fn ask_again(&mut self, now: u64, asked_at: u64, tries: u32, probe: Option<Probe>) -> Option<Step> {
        let again_at = asked_at + self.patience() * u64::from(tries);
        if now < again_at {
            return Some(Step::Wait(again_at));
        }
        if tries >= TRIES {
            if let Some(probe) = probe {
                self.account(&probe, Verdict::Ambiguous(Why::NoWord));
            }
            return self.reopen(now, false);
        }
        let tries = tries + 1;
        self.state = match probe {
            Some(probe) => State::Asking { probe, asked_at: now, tries },
            None => State::Settling { asked_at: now, tries },
        };
        self.ask();
        None
    }

    fn probe(&mut self, now: u64) -> Option<Step> {
        let number = u32::try_from(self.report.probes).unwrap_or(u32::MAX);
        if number >= self.manner.count {
            self.reset();
            self.state = State::Over;
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
            return Some(Step::Wait(at - LEAD));
        }
        self.next_at = at + 1;
        Some(self.pair(number, at))
    }

    fn pair(&mut self, number: u32, at: u64) -> Step {
        let (length, size) = (u32::from(self.manner.payload), u32::from(self.manner.answer));
        let (c, s) = (self.connection.next, self.connection.expected);
        let sent = [c, c.wrapping_add(length), c.wrapping_add(2 * length)];
        let due = [s, s.wrapping_add(size), s.wrapping_add(2 * size)];
        let segments =
            [self.data(sent[0], length as usize, size), self.data(sent[1], length as usize, 2 * size)];
        let until = at + self.connection.round_trip.unwrap_or(0) + PATIENCE;
        let evidence = Evidence::new(sent, due);
        self.state = State::Out(Probe { number, evidence, left: None, until, is_asked_again: false });
        Step::Pair { at, segments }
    }

    /// When the first segment of the probe left; `None` twice: it was not sent.
    pub fn left(&mut self, left: Option<u64>) {
        let State::Out(probe) = &mut self.state else { return };
        probe.left = left;
        if left.is_none() {
            let probe = probe.clone();
            self.account(&probe, Verdict::Ambiguous(Why::Unsent));
            self.state = State::Ready;
        }
    }

    fn account(&mut self, probe: &Probe, verdict: Verdict) {
        let is_plain = matches!(verdict, Verdict::Told { forward: Forward::Both(Order::Kept), reverse }
            if reverse.order == Order::Kept);
        let round_trip_ns = probe
            .left
            .zip(probe.evidence.answers[0].filter(|_| is_plain))
            .map(|(left, answer)| answer.at.saturating_sub(left));
        if let Some(took) = round_trip_ns {
            self.connection.took(took);
        }
        self.report.take(Outcome { number: probe.number, left: probe.left, verdict, round_trip_ns });
        if matches!(verdict, Verdict::Told { .. }) {
            (self.connection.is_used, self.futile) = (true, 0);
        }
    }

    /// After a verdict: on with this connection if its state is known, else with a new one.
    fn conclude(&mut self, probe: &Probe, verdict: Verdict, now: u64) {
        self.account(probe, verdict);
        let Verdict::Told { forward, reverse } = verdict else {
            self.reopen(now, verdict == Verdict::Ambiguous(Why::Ended));
            return;
        };
        let place = match forward {
            Forward::Both(_) => 2,
            Forward::SecondLost => 1,
            Forward::BothLost => 0,
            Forward::FirstLost => 3,
        };
        if place > 2 || reverse.lost() > 0 {
            self.reopen(now, false);
            return;
        }
        let connection = &mut self.connection;
        connection.next = probe.evidence.sent[place];
        connection.expected = probe.evidence.due[usize::try_from(reverse.sent).unwrap_or(0)];
        self.acknowledge(0);
        self.state = State::Ready;
    }

    fn reset(&mut self) {
        let connection = &self.connection;
        self.queue.push_back(Out {
            sequence: connection.acknowledged,
            acknowledgement: connection.expected,
            flags: flags::RST | flags::ACK,
            ..Out::default()
        });
    }

    /// Ends this connection, and has the next one opened. `by_server`: the server ended it.
    fn reopen(&mut self, now: u64, by_server: bool) -> Option<Step> {
        self.reset();
        self.futile += u32::from(!self.connection.is_used);
        self.state = State::Closed { again_at: now + 20 * MS };
        let is_mute = !self.connection.has_data;
        if self.futile >= FUTILE && (by_server || is_mute) {
            self.fail(if is_mute { Failure::Mute } else { Failure::TooShort });
        } else if self.futile >= 4 * FUTILE {
            self.fail(Failure::TooShort);
        }
        None
    }
}

fn number(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
