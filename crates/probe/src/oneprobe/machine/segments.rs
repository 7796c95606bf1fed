//! Handles received TCP segments: advances the connection and matches answers to probes.
//!
//! Invariant: a segment that does not acknowledge a number of this connection changes nothing. There are two
//! exceptions: the reset of a server that has forgotten the connection, and an acknowledgement for an older connection
//! during the handshake, which is answered with a reset.

use super::super::OutgoingSegment;
use super::{AmbiguityReason, ProbeVerdict};
use super::{
    MIN_RETRANSMISSION_DELAY_NS, OneprobeFailure, OneprobeMachine, OneprobeState, PendingProbe,
    is_sequence_after,
};
use crate::frame::flags;

/// A TCP segment that the server sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncomingSegment {
    pub sequence: u32,
    pub acknowledgement: u32,
    pub flags: u8,
    pub window: u16,
    pub length: u32,
}

impl IncomingSegment {
    const fn has_flag(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

impl OneprobeMachine {
    /// Handles a segment of the server that arrived at this time.
    pub fn on_segment(&mut self, segment: &IncomingSegment, at: u64) {
        if let OneprobeState::Connecting { at: called_at, tries } = self.state {
            return self.on_handshake_answer(segment, at, called_at, tries);
        }
        // In the closed state, the reset would belong to a connection that was already closed.
        let is_live = !matches!(self.state, OneprobeState::Closed { .. } | OneprobeState::Finished);
        // RFC 9293, 3.10.7.1: a host without this connection answers with RST and no ACK, at SEG.SEQ = our ACK.
        if is_live
            && segment.has_flag(flags::RST)
            && !segment.has_flag(flags::ACK)
            && segment.sequence == self.connection.expected
        {
            return self.on_connection_end(at);
        }
        let connection = &mut self.connection;
        // Valid numbers reach from our first one to the end of the pair in flight, which `next` does not include yet.
        let is_ours = !is_sequence_after(connection.first, segment.acknowledgement)
            && !is_sequence_after(
                segment.acknowledgement,
                connection.next.wrapping_add(u32::from(self.options.payload) * 2),
            );
        if !segment.has_flag(flags::ACK) || !is_ours {
            return;
        }
        // An old segment that comes late must not undo the acknowledgement or the window.
        if !is_sequence_after(connection.acknowledged, segment.acknowledgement) {
            connection.acknowledged = segment.acknowledgement;
            connection.peer_window = segment.window;
        }
        match self.state.clone() {
            OneprobeState::Closed { .. } | OneprobeState::Connecting { .. } | OneprobeState::Finished => {}
            _ if segment.has_flag(flags::RST) => self.on_connection_end(at),
            OneprobeState::FillingQueue { since, asked_at, .. } => {
                self.acknowledge_data(segment, at);
                if self.connection.has_data
                    && !matches!(self.state, OneprobeState::Closed { .. } | OneprobeState::Finished)
                {
                    // 30 ms after a round trip without data, the answers to our last acknowledgement have arrived.
                    let quiet_at = at + self.connection.round_trip.unwrap_or(0) + 30 * super::NANOS_PER_MS;
                    self.state = OneprobeState::FillingQueue { since, asked_at, quiet_at };
                }
            }
            OneprobeState::Synchronizing { asked_at, .. } => {
                self.on_synchronizing_segment(segment, at, asked_at);
            }
            OneprobeState::Ready => self.acknowledge_data(segment, at),
            OneprobeState::ProbeInFlight(probe) => self.on_probe_answer(probe, segment, at, None),
            OneprobeState::AskingForState { probe, asked_at, .. } => {
                self.on_probe_answer(probe, segment, at, Some(asked_at));
            }
        }
    }

    /// Handles an answer while connecting: the server accepts, refuses, or still has the last connection.
    fn on_handshake_answer(&mut self, segment: &IncomingSegment, at: u64, called_at: u64, tries: u32) {
        let first = self.connection.first;
        let is_for_us = segment.has_flag(flags::ACK) && segment.acknowledgement == first.wrapping_add(1);
        // RFC 9293, 3.10.7.3: a reset counts only if it acknowledges our SYN.
        if is_for_us && segment.has_flag(flags::RST) {
            self.fail_series(OneprobeFailure::Refused);
        } else if is_for_us && segment.has_flag(flags::SYN) {
            // Karn's rule (RFC 6298, 3): after a second SYN, the SYN that this answers is unknown.
            if tries == 1 {
                let took = at.saturating_sub(called_at);
                self.report.handshakes.push(took);
                self.connection.add_round_trip(took);
            }
            let expected = segment.sequence.wrapping_add(1);
            self.connection.expected = expected;
            self.connection.edge = expected.wrapping_add(2 * u32::from(self.options.answer));
            self.connection.acknowledged = segment.acknowledgement;
            self.connection.peer_window = segment.window;
            self.queue_first_request();
            self.state = OneprobeState::FillingQueue { since: at, asked_at: at, quiet_at: at };
        } else if segment.has_flag(flags::ACK) && !segment.has_flag(flags::SYN | flags::RST) {
            // RFC 9293, 3.10.7.3: an acknowledgement for another connection of this port is answered with a reset at its number, so that
            // the server forgets the old connection and accepts the next SYN.
            let sequence = segment.acknowledgement;
            self.queue.push_back(OutgoingSegment {
                sequence,
                flags: flags::RST,
                ..OutgoingSegment::default()
            });
        }
    }

    fn on_connection_end(&mut self, at: u64) {
        match self.state.clone() {
            OneprobeState::ProbeInFlight(probe) | OneprobeState::AskingForState { probe, .. } => {
                // The answers that arrived before the end may suffice for a verdict.
                let verdict = probe
                    .evidence
                    .verdict_by_answers()
                    .unwrap_or(ProbeVerdict::Ambiguous(AmbiguityReason::Ended));
                self.record_verdict(&probe, verdict);
            }
            _ => {}
        }
        self.close_and_reconnect_later(at, true);
    }

    /// Accepts and acknowledges data that does not belong to a probe.
    fn acknowledge_data(&mut self, segment: &IncomingSegment, at: u64) {
        let is_next = segment.sequence == self.connection.expected;
        if segment.has_flag(flags::FIN) {
            return self.on_connection_end(at);
        }
        if segment.length == 0 {
            return self.answer_window_probe(segment, at);
        }
        // Data out of order is dropped; the repeated acknowledgement makes the server send it again.
        if is_next {
            self.connection.expected = self.connection.expected.wrapping_add(segment.length);
            self.connection.has_data = true;
        }
        let is_filling = matches!(self.state, OneprobeState::FillingQueue { .. });
        // The window keeps its right edge while the queue fills. If the server sent past the edge, the difference wraps
        // around and is huge.
        let open = self.connection.edge.wrapping_sub(self.connection.expected);
        self.push_acknowledgement(if is_filling && open < 1 << 20 { open } else { 0 });
    }

    /// Answers the window probe of a server that may not send (RFC 9293, 3.8.6.1), at most once a second, because each
    /// answer counts against the limits of the target.
    fn answer_window_probe(&mut self, segment: &IncomingSegment, at: u64) {
        let asks = segment.sequence == self.connection.expected.wrapping_sub(1);
        if asks && at >= self.last_word + 1_000 * super::NANOS_PER_MS {
            self.last_word = at;
            self.push_acknowledgement(0);
        }
    }

    /// Returns whether a segment can be the server's answer to a request for its state that was sent at `asked_at`.
    fn is_state_answer(&self, segment: &IncomingSegment, at: u64, asked_at: u64) -> bool {
        // An acknowledgement with an older sequence number was sent before the request.
        segment.length == 0 && at > asked_at && !is_sequence_after(self.connection.expected, segment.sequence)
    }

    fn on_synchronizing_segment(&mut self, segment: &IncomingSegment, at: u64, asked_at: u64) {
        if segment.length > 0 || segment.has_flag(flags::FIN) {
            self.acknowledge_data(segment, at);
        } else if self.is_state_answer(segment, at, asked_at) && segment.sequence == self.connection.expected
        {
            // The next segment begins at the sequence number that the server expects, so lost requests leave no gap.
            self.connection.next = segment.acknowledgement;
            self.state = OneprobeState::Ready;
        }
    }

    fn on_probe_answer(
        &mut self,
        mut probe: PendingProbe,
        segment: &IncomingSegment,
        at: u64,
        asked_at: Option<u64>,
    ) {
        if segment.has_flag(flags::FIN) {
            return self.on_connection_end(at);
        }
        if segment.length > 0 {
            // A first transmission can arrive after this time, but a retransmission cannot arrive before it.
            let early = probe.left.unwrap_or(at)
                + self.connection.round_trip.unwrap_or(0)
                + MIN_RETRANSMISSION_DELAY_NS;
            let ours = segment.acknowledgement;
            probe.evidence.add_data_segment(segment.sequence, segment.length, ours, at, at < early);
        } else {
            probe.evidence.add_segment_without_data(segment.acknowledgement);
        }
        let word = asked_at.is_some_and(|asked_at| self.is_state_answer(segment, at, asked_at));
        let verdict = probe.evidence.verdict_by_answers().or_else(|| {
            word.then(|| probe.evidence.verdict_with_state(segment.acknowledgement, segment.sequence))
        });
        match (verdict, &mut self.state) {
            (Some(ProbeVerdict::Told { forward, reverse }), _)
                if word
                    && forward.lost_segments() > 0
                    && reverse.lost_segments() == 0
                    && !probe.is_asked_again =>
            {
                // The request for the state may have overtaken a delayed segment. In that case the segment
                // has arrived when we ask again.
                probe.is_asked_again = true;
                self.state = OneprobeState::AskingForState { probe, asked_at: at, tries: 1 };
                self.queue_state_request();
            }
            (Some(verdict), _) => self.record_verdict_and_continue(&probe, verdict, at),
            (None, OneprobeState::ProbeInFlight(out) | OneprobeState::AskingForState { probe: out, .. }) => {
                *out = probe;
            }
            _ => {}
        }
    }
}
