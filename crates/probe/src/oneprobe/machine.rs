//! The state machine of a series: connect, make the server fill its send queue, probe, ask for the server's
//! state if the answers are not enough, and connect again if the state of the connection is uncertain.
//!
//! After a lost answer or a lost first segment, the connection is closed: the server would retransmit, and
//! its retransmissions could be mistaken for answers.
//!
//! Invariant: while a probe is in flight, no other new data of ours is in flight.

use super::evidence::{ProbeEvidence, is_sequence_after};
use super::report::{OneprobeOutcome, OneprobeReport};
use super::{
    AmbiguityReason, ArrivalOrder, ForwardOutcome, HttpRequest, OneprobeFailure, OneprobeOptions,
    OutgoingSegment, ProbeVerdict,
};
use crate::frame::flags;
use crate::method::initial_sequence;
use crate::small_count;
use packetrig_units::clamp_to_u16;
use std::collections::VecDeque;

mod connecting;
mod segments;
pub use segments::IncomingSegment;

/// What became of a pair that the caller was asked to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairDeparture {
    /// Both segments left, the first one at this time.
    Both(u64),
    /// Only one segment left. Without the other one, it cannot be used as a probe.
    OnlyOne,
    Neither,
}

/// The next action of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OneprobeStep {
    Send(OutgoingSegment),
    /// Release both segments together at this time, then report with [`OneprobeMachine::on_pair_sent`] when they left.
    Pair {
        at: u64,
        segments: [OutgoingSegment; 2],
    },
    /// Wait until this time, or until a segment arrives.
    Wait(u64),
    /// The series is over.
    Over,
}

/// Sequence numbers and round trip of the open connection.
#[derive(Clone, Copy, Debug, Default)]
struct OpenConnection {
    first: u32,
    next: u32,
    /// The next sequence number that we expect from the server.
    expected: u32,
    /// Sequence number up to which the server may send while it fills its queue.
    edge: u32,
    /// The number up to which the server has acknowledged our data. `peer_window` is its receive window from there on.
    acknowledged: u32,
    peer_window: u16,
    /// The smoothed round trip, as in RFC 6298.
    round_trip: Option<u64>,
    has_data: bool,
    is_used: bool,
}

impl OpenConnection {
    fn add_round_trip(&mut self, took: u64) {
        // RFC 6298, 2.3, with alpha = 1/8: the server smooths its own estimate in the same way, and its retransmission timeout follows it.
        self.round_trip = Some(self.round_trip.map_or(took, |smoothed| smoothed - smoothed / 8 + took / 8));
    }
}

#[derive(Clone, Debug)]
enum OneprobeState {
    Closed { again_at: u64 },
    Connecting { at: u64, tries: u32 },
    FillingQueue { since: u64, asked_at: u64, quiet_at: u64 },
    Synchronizing { asked_at: u64, tries: u32 },
    Ready,
    ProbeInFlight(PendingProbe),
    AskingForState { probe: PendingProbe, asked_at: u64, tries: u32 },
    Finished,
}

/// A probe that the caller was asked to send and that has no verdict yet.
#[derive(Clone, Debug)]
struct PendingProbe {
    number: u32,
    evidence: ProbeEvidence,
    left: Option<u64>,
    until: u64,
    /// True if the server's state showed a loss on the way there once, and we have asked a second time.
    is_asked_again: bool,
}

#[derive(Debug)]
pub struct OneprobeMachine {
    options: OneprobeOptions,
    request: HttpRequest,
    state: OneprobeState,
    connection: OpenConnection,
    queue: VecDeque<OutgoingSegment>,
    report: OneprobeReport,
    failure: Option<OneprobeFailure>,
    /// Departure time of the first probe.
    first_at: Option<u64>,
    next_at: u64,
    /// Connections in a row without a usable probe.
    futile: u32,
    /// Time at which the server's last window probe was answered.
    last_word: u64,
}

const NANOS_PER_MS: u64 = 1_000_000;
/// Time between the call of `next_step` that returns a probe and the probe's departure time.
const DEPARTURE_LEAD_NS: u64 = 3 * NANOS_PER_MS;
/// Time to wait for an answer after one round trip before asking for the server's state.
const ANSWER_TIMEOUT: u64 = 100 * NANOS_PER_MS;
/// A segment that arrives more than one round trip plus this time after the probe may be a retransmission.
/// Linux retransmits after 200 ms at the earliest (TCP_RTO_MIN), other systems after 1 s (RFC 6298, 2.4).
const MIN_RETRANSMISSION_DELAY_NS: u64 = 190 * NANOS_PER_MS;
/// Maximum number of attempts to connect or to query the server's state.
const MAX_CONNECT_ATTEMPTS: u32 = 5;
/// Number of consecutive connections without a usable probe after which the series fails.
const MAX_FUTILE_CONNECTIONS: u32 = 3;
/// Time limit for the first data of a server.
const FIRST_DATA_TIMEOUT_NS: u64 = 5_000 * NANOS_PER_MS;
/// Bytes of our longest segment.
const MAX_SEGMENT_BYTES: usize = 1_400;

impl OneprobeMachine {
    pub fn new(options: OneprobeOptions, request: HttpRequest) -> Self {
        Self {
            options,
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

    /// Returns the results so far, and the reason for the failure if the series has failed.
    pub const fn report(&self) -> (&OneprobeReport, Option<OneprobeFailure>) {
        (&self.report, self.failure)
    }

    /// Ends the series now. It does not wait for a probe in flight, which is not counted then.
    pub fn stop_series(&mut self) {
        // In all other states the server has an open connection, which it would otherwise keep.
        if !matches!(
            self.state,
            OneprobeState::Closed { .. } | OneprobeState::Connecting { .. } | OneprobeState::Finished
        ) {
            self.push_reset();
        }
        self.state = OneprobeState::Finished;
    }

    /// Returns the action that is due now.
    pub fn next_step(&mut self, now: u64) -> OneprobeStep {
        loop {
            // Queued segments are sent first, because the state already assumes that they were sent.
            if let Some(out) = self.queue.pop_front() {
                return OneprobeStep::Send(out);
            }
            if let Some(step) = self.advance_state(now) {
                return step;
            }
        }
    }

    /// Advances the state. `None`: the state or the queue has changed, so the caller must look again.
    fn advance_state(&mut self, now: u64) -> Option<OneprobeStep> {
        // The state is copied, because the match arms change it while they still read it.
        match self.state.clone() {
            OneprobeState::Finished => Some(OneprobeStep::Over),
            OneprobeState::Closed { again_at } if now < again_at => Some(OneprobeStep::Wait(again_at)),
            OneprobeState::Closed { .. } => self.begin_or_retry_connection(now, 0),
            OneprobeState::Connecting { at, tries } => self.retry_connect(now, at, tries),
            OneprobeState::FillingQueue { since, asked_at, quiet_at } => {
                self.fill_server_queue(now, since, asked_at, quiet_at)
            }
            OneprobeState::Synchronizing { asked_at, tries } => {
                self.retry_state_request(now, asked_at, tries, None)
            }
            OneprobeState::Ready => self.begin_probe(now),
            OneprobeState::ProbeInFlight(probe) if now < probe.until => Some(OneprobeStep::Wait(probe.until)),
            OneprobeState::ProbeInFlight(probe) => {
                self.state = OneprobeState::AskingForState { probe, asked_at: now, tries: 1 };
                self.queue_state_request();
                None
            }
            OneprobeState::AskingForState { probe, asked_at, tries } => {
                self.retry_state_request(now, asked_at, tries, Some(probe))
            }
        }
    }

    /// Builds a segment with `length` bytes of the request stream, from `sequence` on, and a window of this many bytes.
    fn data_segment(&self, sequence: u32, length: usize, window: u32) -> OutgoingSegment {
        // The SYN takes one sequence number, so the stream begins one number after the first.
        let from = sequence.wrapping_sub(self.connection.first.wrapping_add(1));
        OutgoingSegment {
            sequence,
            acknowledgement: self.connection.expected,
            flags: flags::ACK | flags::PSH,
            window: clamp_to_u16(window as usize),
            options: Vec::new(),
            payload: self.request.request_bytes_from(from, length),
        }
    }

    /// Queues an acknowledgement of all received data, with a window of this many bytes.
    fn push_acknowledgement(&mut self, window: u32) {
        self.queue.push_back(OutgoingSegment {
            sequence: self.connection.next,
            acknowledgement: self.connection.expected,
            flags: flags::ACK,
            window: clamp_to_u16(window as usize),
            ..OutgoingSegment::default()
        });
    }

    /// Queues a segment with a byte that the server received long ago. The server answers an unacceptable
    /// segment with an acknowledgement that contains SND.NXT and RCV.NXT (RFC 9293, 3.10.7.4): its state.
    fn queue_state_request(&mut self) {
        // This byte lies before RCV.NXT, because it lies before the acknowledged number. So the server cannot accept it.
        let old = self.connection.acknowledged.wrapping_sub(2);
        let out = self.data_segment(old, 1, 0);
        self.queue.push_back(out);
    }

    fn state_timeout(&self) -> u64 {
        2 * self.connection.round_trip.unwrap_or(0) + ANSWER_TIMEOUT
    }

    fn retry_state_request(
        &mut self,
        now: u64,
        asked_at: u64,
        tries: u32,
        probe: Option<PendingProbe>,
    ) -> Option<OneprobeStep> {
        // Each attempt waits longer than the one before: the server may be slow, not silent.
        let again_at = asked_at + self.state_timeout() * u64::from(tries);
        if now < again_at {
            return Some(OneprobeStep::Wait(again_at));
        }
        if tries >= MAX_CONNECT_ATTEMPTS {
            if let Some(probe) = probe {
                self.record_verdict(&probe, ProbeVerdict::Ambiguous(AmbiguityReason::NoWord));
            }
            // If the server's state is unknown, no later segment on this connection can be interpreted.
            return self.close_and_reconnect_later(now, false);
        }
        let tries = tries + 1;
        self.state = match probe {
            Some(probe) => OneprobeState::AskingForState { probe, asked_at: now, tries },
            None => OneprobeState::Synchronizing { asked_at: now, tries },
        };
        self.queue_state_request();
        None
    }

    fn begin_probe(&mut self, now: u64) -> Option<OneprobeStep> {
        let number = u32::try_from(self.report.probes).ok();
        let Some(number) = number.filter(|number| *number < self.options.count) else {
            self.push_reset();
            self.state = OneprobeState::Finished;
            return None;
        };
        // The first departure is far enough ahead that the pair can be handed over in time.
        let first = *self.first_at.get_or_insert(now + 2 * DEPARTURE_LEAD_NS);
        // The next departure time of the schedule that can still be met. Missed times are skipped; the
        // schedule does not shift.
        let least = (now + DEPARTURE_LEAD_NS / 2).max(self.next_at);
        let slot = least.saturating_sub(first).div_ceil(self.options.every_ns.max(1));
        let at = first + slot * self.options.every_ns;
        let length = u32::from(self.options.payload);
        let room = self.connection.acknowledged.wrapping_add(self.connection.peer_window.into());
        // Both segments must fit the server's window, or it would drop the second one and that would look like loss.
        if room.wrapping_sub(self.connection.next) < 2 * length {
            // The server does not read requests fast enough, so its window is too small. A new connection has
            // a new window.
            return self.close_and_reconnect_later(now, false);
        }
        if now + DEPARTURE_LEAD_NS < at {
            return Some(OneprobeStep::Wait(at - DEPARTURE_LEAD_NS));
        }
        // The next probe needs a later slot than this one.
        self.next_at = at + 1;
        Some(self.begin_probe_pair(number, at))
    }

    fn begin_probe_pair(&mut self, number: u32, at: u64) -> OneprobeStep {
        // The windows are the core of the method: the first segment allows one answer, the second allows both. So a server that received
        // only the second segment sends two answers, and one that received only the first sends one.
        let length = u32::from(self.options.payload);
        let size = u32::from(self.options.answer);
        let sent = [0, 1, 2].map(|segments| self.connection.next.wrapping_add(segments * length));
        let due = [0, 1, 2].map(|answers| self.connection.expected.wrapping_add(answers * size));
        let segments = [
            self.data_segment(sent[0], length as usize, size),
            self.data_segment(sent[1], length as usize, 2 * size),
        ];
        let until = at + self.connection.round_trip.unwrap_or(0) + ANSWER_TIMEOUT;
        let evidence = ProbeEvidence::new(sent, due);
        self.state = OneprobeState::ProbeInFlight(PendingProbe {
            number,
            evidence,
            left: None,
            until,
            is_asked_again: false,
        });
        OneprobeStep::Pair { at, segments }
    }

    /// Records what became of the pair.
    pub fn on_pair_sent(&mut self, departure: PairDeparture, now: u64) {
        let OneprobeState::ProbeInFlight(probe) = &mut self.state else { return };
        if let PairDeparture::Both(left) = departure {
            probe.left = Some(left);
            return;
        }
        let probe = probe.clone();
        self.record_verdict(&probe, ProbeVerdict::Ambiguous(AmbiguityReason::Unsent));
        if departure == PairDeparture::Neither {
            // Nothing was sent, so the numbers of the connection are still right.
            self.state = OneprobeState::Ready;
        } else {
            // The server may have taken the segment, or not. The next pair must not use its numbers again.
            self.close_and_reconnect_later(now, false);
        }
    }

    fn record_verdict(&mut self, probe: &PendingProbe, verdict: ProbeVerdict) {
        let is_plain = matches!(verdict, ProbeVerdict::Told { forward: ForwardOutcome::Both(ArrivalOrder::Kept), reverse }
            if reverse.order == ArrivalOrder::Kept);
        // After loss or reordering, the first answer does not belong to the first segment alone.
        let round_trip_ns = probe
            .left
            .zip(probe.evidence.answers[0].filter(|_| is_plain))
            .map(|(left, answer)| answer.at.saturating_sub(left));
        if let Some(took) = round_trip_ns {
            self.connection.add_round_trip(took);
        }
        // Every finished probe passes this point exactly once, so it is counted exactly once.
        self.report.add_outcome(OneprobeOutcome {
            number: probe.number,
            left: probe.left,
            verdict,
            round_trip_ns,
        });
        if matches!(verdict, ProbeVerdict::Told { .. }) {
            self.connection.is_used = true;
            self.futile = 0;
        }
    }

    /// Continues after a verdict: with this connection if its state is known, otherwise with a new one.
    fn record_verdict_and_continue(&mut self, probe: &PendingProbe, verdict: ProbeVerdict, now: u64) {
        self.record_verdict(probe, verdict);
        let ProbeVerdict::Told { forward, reverse } = verdict else {
            // An ambiguous probe leaves the server's state unknown.
            self.close_and_reconnect_later(now, verdict == ProbeVerdict::Ambiguous(AmbiguityReason::Ended));
            return;
        };
        // The index of the number that the server expects now. After a lost first segment, the server keeps
        // the second one and repeats its acknowledgement, so this connection is not used any more.
        let place = match forward {
            ForwardOutcome::Both(_) => 2,
            ForwardOutcome::SecondLost => 1,
            ForwardOutcome::BothLost => 0,
            ForwardOutcome::FirstLost => 3,
        };
        if place > 2 || reverse.lost_segments() > 0 {
            self.close_and_reconnect_later(now, false);
            return;
        }
        let connection = &mut self.connection;
        // The next pair sends lost bytes again, so the stream of requests has no gap.
        connection.next = probe.evidence.sent[place];
        connection.expected = probe.evidence.server_number_after(reverse.sent);
        // The acknowledgement closes the window again, so that the server waits for the next pair.
        self.push_acknowledgement(0);
        self.state = OneprobeState::Ready;
    }

    fn push_reset(&mut self) {
        // A reset counts only with exactly the number that the server expects; otherwise it sends a challenge ACK (RFC 9293, 3.10.7.4).
        let connection = &self.connection;
        self.queue.push_back(OutgoingSegment {
            sequence: connection.acknowledged,
            acknowledgement: connection.expected,
            flags: flags::RST | flags::ACK,
            ..OutgoingSegment::default()
        });
    }

    /// Ends this connection; the next one is opened after a pause. After too many connections without a usable probe,
    /// the series fails. `by_server`: the server ended the connection.
    fn close_and_reconnect_later(&mut self, now: u64, by_server: bool) -> Option<OneprobeStep> {
        self.push_reset();
        // Only connections without a usable probe count as futile.
        self.futile += u32::from(!self.connection.is_used);
        // 20 ms, so that the reset reaches the server before the next SYN from the same port.
        self.state = OneprobeState::Closed { again_at: now + 20 * NANOS_PER_MS };
        let is_mute = !self.connection.has_data;
        // Loss on the path may make some consecutive connections unusable. So if nothing shows that the
        // server is the cause, four times as many connections are tried.
        if self.futile >= MAX_FUTILE_CONNECTIONS && (by_server || is_mute) {
            self.fail_series(if is_mute { OneprobeFailure::Mute } else { OneprobeFailure::TooShort });
        } else if self.futile >= 4 * MAX_FUTILE_CONNECTIONS {
            self.fail_series(OneprobeFailure::TooShort);
        }
        None
    }
}
