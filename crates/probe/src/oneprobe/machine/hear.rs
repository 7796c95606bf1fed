//! What a series makes of the segments it hears.
//!
//! Invariant: a segment whose acknowledgement is not of this connection changes nothing.

use super::super::OutgoingSegment;
use super::{OneprobeFailure, OneprobeMachine, OneprobeState, PendingProbe, REPEATS, after};
use super::{ProbeVerdict, UselessReason};
use crate::frame::flags;

/// A segment of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncomingSegment {
    pub sequence: u32,
    pub acknowledgement: u32,
    pub flags: u8,
    pub window: u16,
    pub length: u32,
}

impl IncomingSegment {
    const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

impl OneprobeMachine {
    /// Takes a segment of the server that was heard at this instant.
    pub fn heard(&mut self, segment: &IncomingSegment, at: u64) {
        if let OneprobeState::Calling { at: called_at, tries } = self.state {
            return self.called(segment, at, called_at, tries);
        }
        let is_live = !matches!(self.state, OneprobeState::Closed { .. } | OneprobeState::Over);
        // Who has forgotten a connection resets it without an acknowledgement, at the number it was told to be expected.
        if is_live
            && segment.has(flags::RST)
            && !segment.has(flags::ACK)
            && segment.sequence == self.connection.expected
        {
            return self.ended(at);
        }
        let connection = &mut self.connection;
        let is_ours = !after(connection.first, segment.acknowledgement)
            && !after(
                segment.acknowledgement,
                connection.next.wrapping_add(u32::from(self.manner.payload) * 2),
            );
        if !segment.has(flags::ACK) || !is_ours {
            return;
        }
        if !after(connection.acknowledged, segment.acknowledgement) {
            (connection.acknowledged, connection.room) = (segment.acknowledgement, segment.window);
        }
        match self.state.clone() {
            OneprobeState::Closed { .. } | OneprobeState::Calling { .. } | OneprobeState::Over => {}
            _ if segment.has(flags::RST) => self.ended(at),
            OneprobeState::Warming { since, asked_at, .. } => {
                self.collect(segment, at);
                if self.connection.has_data
                    && !matches!(self.state, OneprobeState::Closed { .. } | OneprobeState::Over)
                {
                    let quiet_at = at + self.connection.round_trip.unwrap_or(0) + 30 * super::MS;
                    self.state = OneprobeState::Warming { since, asked_at, quiet_at };
                }
            }
            OneprobeState::Settling { asked_at, .. } => self.settle(segment, at, asked_at),
            OneprobeState::Ready => self.collect(segment, at),
            OneprobeState::Out(probe) => self.answered(probe, segment, at, None),
            OneprobeState::Asking { probe, asked_at, .. } => {
                self.answered(probe, segment, at, Some(asked_at));
            }
        }
    }

    /// While calling: accepted, refused, or somebody who still has the last connection.
    fn called(&mut self, segment: &IncomingSegment, at: u64, called_at: u64, tries: u32) {
        let first = self.connection.first;
        let is_for_us = segment.has(flags::ACK) && segment.acknowledgement == first.wrapping_add(1);
        if is_for_us && segment.has(flags::RST) {
            self.fail(OneprobeFailure::Refused);
        } else if is_for_us && segment.has(flags::SYN) {
            if tries == 1 {
                let took = at.saturating_sub(called_at);
                self.report.handshakes.push(took);
                self.connection.took(took);
            }
            let expected = segment.sequence.wrapping_add(1);
            self.connection.expected = expected;
            self.connection.edge = expected.wrapping_add(2 * u32::from(self.manner.answer));
            (self.connection.acknowledged, self.connection.room) = (segment.acknowledgement, segment.window);
            self.request_first();
            self.state = OneprobeState::Warming { since: at, asked_at: at, quiet_at: at };
        } else if segment.has(flags::ACK) && !segment.has(flags::SYN | flags::RST) {
            let sequence = segment.acknowledgement;
            self.queue.push_back(OutgoingSegment {
                sequence,
                flags: flags::RST,
                ..OutgoingSegment::default()
            });
        }
    }

    fn ended(&mut self, at: u64) {
        match self.state.clone() {
            OneprobeState::Out(probe) | OneprobeState::Asking { probe, .. } => {
                let verdict =
                    probe.evidence.at_once().unwrap_or(ProbeVerdict::Ambiguous(UselessReason::Ended));
                self.account(&probe, verdict);
            }
            _ => {}
        }
        self.reopen(at, true);
    }

    /// Data outside of probes: taken and acknowledged.
    fn collect(&mut self, segment: &IncomingSegment, at: u64) {
        let is_next = segment.sequence == self.connection.expected;
        if segment.has(flags::FIN) {
            return self.ended(at);
        }
        if segment.length == 0 {
            return self.word_for_a_word(segment, at);
        }
        if is_next {
            self.connection.expected = self.connection.expected.wrapping_add(segment.length);
            self.connection.has_data = true;
        }
        let is_filling = matches!(self.state, OneprobeState::Warming { .. });
        let open = self.connection.edge.wrapping_sub(self.connection.expected);
        self.acknowledge(if is_filling && open < 1 << 20 { open } else { 0 });
    }

    /// A server that may not send asks whether it may: answered, but not more than once a second.
    fn word_for_a_word(&mut self, segment: &IncomingSegment, at: u64) {
        let asks = segment.sequence == self.connection.expected.wrapping_sub(1);
        if asks && at >= self.last_word + 1_000 * super::MS {
            self.last_word = at;
            self.acknowledge(0);
        }
    }

    /// Whether a segment can be the answer to a question of that time.
    fn is_word(&self, segment: &IncomingSegment, at: u64, asked_at: u64) -> bool {
        segment.length == 0 && at > asked_at && !after(self.connection.expected, segment.sequence)
    }

    fn settle(&mut self, segment: &IncomingSegment, at: u64, asked_at: u64) {
        if segment.length > 0 || segment.has(flags::FIN) {
            self.collect(segment, at);
        } else if self.is_word(segment, at, asked_at) && segment.sequence == self.connection.expected {
            self.connection.next = segment.acknowledgement;
            self.state = OneprobeState::Ready;
        }
    }

    fn answered(
        &mut self,
        mut probe: PendingProbe,
        segment: &IncomingSegment,
        at: u64,
        asked_at: Option<u64>,
    ) {
        if segment.has(flags::FIN) {
            return self.ended(at);
        }
        if segment.length > 0 {
            let early = probe.left.unwrap_or(at) + self.connection.round_trip.unwrap_or(0) + REPEATS;
            let ours = segment.acknowledgement;
            probe.evidence.data(segment.sequence, segment.length, ours, at, at < early);
        } else {
            probe.evidence.bare(segment.acknowledgement);
        }
        let word = asked_at.is_some_and(|asked_at| self.is_word(segment, at, asked_at));
        let verdict = probe
            .evidence
            .at_once()
            .or_else(|| word.then(|| probe.evidence.with_word(segment.acknowledgement, segment.sequence)));
        match (verdict, &mut self.state) {
            (Some(ProbeVerdict::Told { forward, reverse }), _)
                if word && forward.lost() > 0 && reverse.lost() == 0 && !probe.is_asked_again =>
            {
                // What was held up so long that the question overtook it is not lost: it is there when asked again.
                probe.is_asked_again = true;
                self.state = OneprobeState::Asking { probe, asked_at: at, tries: 1 };
                self.ask();
            }
            (Some(verdict), _) => self.conclude(&probe, verdict, at),
            (None, OneprobeState::Out(out) | OneprobeState::Asking { probe: out, .. }) => *out = probe,
            _ => {}
        }
    }
}
