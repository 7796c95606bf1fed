//! The evidence of one probe: the segments received after it, and what they prove.
//!
//! Invariant: a verdict is `Told` only if exactly one sequence of events explains all received segments.

use serde::Serialize;

/// The order in which two segments arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ArrivalOrder {
    Kept,
    /// The second one arrived first.
    Changed,
    Unknown,
}

/// Outcome of the two segments on their way to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ForwardOutcome {
    Both(ArrivalOrder),
    FirstLost,
    SecondLost,
    BothLost,
}

impl ForwardOutcome {
    pub const fn lost_segments(self) -> u64 {
        match self {
            Self::Both(_) => 0,
            Self::FirstLost | Self::SecondLost => 1,
            Self::BothLost => 2,
        }
    }
}

/// Outcome of the answers on their way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ReverseOutcome {
    /// Data segments that the server sent.
    pub sent: u64,
    /// For each of the two answers: true if it was received.
    pub heard: [bool; 2],
    /// Order in which the answers arrived, if both arrived.
    pub order: ArrivalOrder,
}

impl ReverseOutcome {
    pub fn lost_segments(self) -> u64 {
        // An answer that was received was sent, so this does not underflow.
        self.sent - self.heard.iter().filter(|heard| **heard).count() as u64
    }
}

/// Reason why a probe is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AmbiguityReason {
    /// The server sent less than the window allowed, or divided its data into other segments than expected.
    ServerQuiet,
    /// The connection ended before the probe was finished.
    Ended,
    /// The server did not answer the request for its state.
    NoWord,
    /// An answer came so late that it may be a retransmission.
    Late,
    /// The received segments have no single explanation.
    Contradiction,
    /// The probe was not sent, because the limits did not allow it.
    Unsent,
}

impl AmbiguityReason {
    pub const ALL: [Self; 6] =
        [Self::ServerQuiet, Self::Ended, Self::NoWord, Self::Late, Self::Contradiction, Self::Unsent];

    pub const fn as_text(self) -> &'static str {
        match self {
            Self::ServerQuiet => {
                "the server sent less than the window allowed, or other segments than expected"
            }
            Self::Ended => "the connection ended",
            Self::NoWord => "the server did not report its state",
            Self::Late => "an answer came so late that it may be a retransmission",
            Self::Contradiction => "the answers have no single explanation",
            Self::Unsent => "not sent",
        }
    }
}

/// What happened to a probe in both directions (`Told`), or why this is not certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeVerdict {
    Told { forward: ForwardOutcome, reverse: ReverseOutcome },
    Ambiguous(AmbiguityReason),
}

/// A received data segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceivedDataSegment {
    pub(super) acknowledgement: u32,
    pub(super) at: u64,
    /// Its position among all data segments that arrived after the probe.
    pub(super) nth: u32,
}

/// The segments received after a probe. Sequence numbers are those of its connection.
#[derive(Clone, Debug)]
pub(super) struct ProbeEvidence {
    /// Our sequence numbers before the first, between the two, and after the second of our segments.
    pub(super) sent: [u32; 3],
    /// The server's sequence numbers before the first, between the two, and after the second of its answers.
    pub(super) due: [u32; 3],
    /// The first copy of each answer.
    pub(super) answers: [Option<ReceivedDataSegment>; 2],
    /// True if a segment without data acknowledged both of our segments.
    pub(super) has_full_ack: bool,
    /// True if an answer had other boundaries than expected.
    pub(super) is_odd: bool,
    /// True if an answer came so late that it may be the retransmission of a lost one.
    is_late: bool,
    heard: u32,
}

impl ProbeEvidence {
    pub(super) const fn new(sent: [u32; 3], due: [u32; 3]) -> Self {
        Self {
            sent,
            due,
            answers: [None, None],
            has_full_ack: false,
            is_odd: false,
            is_late: false,
            heard: 0,
        }
    }

    /// Adds a segment with data. `may_be_original`: it came too early to be a retransmission.
    pub(super) fn add_data_segment(
        &mut self,
        sequence: u32,
        length: u32,
        acknowledgement: u32,
        at: u64,
        may_be_original: bool,
    ) {
        self.heard += 1;
        let nth = self.heard;
        let Some(place) = self.due[..2].iter().position(|due| *due == sequence) else {
            // Data from before the probe is a retransmission of something older, so it proves nothing about this probe.
            // Data that begins at none of the planned numbers makes the probe unclear.
            self.is_odd |= is_sequence_after(sequence, self.due[0]);
            return;
        };
        // Receive offload (GRO, LRO) of a card or the kernel may have joined both answers into one segment: that counts as two in order.
        let end = sequence.wrapping_add(length);
        let Some(end) = self.due.iter().position(|due| *due == end).filter(|end| *end > place) else {
            self.is_odd = true;
            return;
        };
        for answer in &mut self.answers[place..end] {
            self.is_late |= answer.is_none() && !may_be_original;
            if may_be_original {
                answer.get_or_insert(ReceivedDataSegment { acknowledgement, at, nth });
            }
        }
    }

    /// Adds a segment without data, which may acknowledge both segments of the probe.
    pub(super) fn add_segment_without_data(&mut self, acknowledgement: u32) {
        // The server sends this answer only when both of our segments have arrived, in any order.
        self.has_full_ack |= acknowledgement == self.sent[2];
    }

    fn reverse_order(&self) -> ArrivalOrder {
        match self.answers {
            [Some(one), Some(other)] if one.nth <= other.nth => ArrivalOrder::Kept,
            [Some(_), Some(_)] => ArrivalOrder::Changed,
            _ => ArrivalOrder::Unknown,
        }
    }

    /// The order in which our segments reached the server, if both arrived.
    fn forward_order(&self) -> ArrivalOrder {
        let [before, between, behind] = self.sent;
        let [first, second] = self.answers.map(|answer| Some(answer?.acknowledgement));
        // The server answered the first segment alone before it had the second.
        if first == Some(between) {
            ArrivalOrder::Kept
        } else if first == Some(before) || second == Some(before) {
            ArrivalOrder::Changed
        } else if first.is_none() && second == Some(behind) {
            // Only the second answer was received. In changed order, our second segment opens the window for both answers at once, while
            // nothing is acknowledged yet: the answer would not acknowledge both segments.
            ArrivalOrder::Kept
        } else {
            ArrivalOrder::Unknown
        }
    }

    /// The server's next sequence number after it has sent this many answers.
    pub(super) const fn server_number_after(&self, answers: u64) -> u32 {
        let [before, between, behind] = self.due;
        match answers {
            0 => before,
            1 => between,
            _ => behind,
        }
    }

    /// Returns the verdict if the answers suffice for it without the server's state.
    pub(super) fn verdict_by_answers(&self) -> Option<ProbeVerdict> {
        let [before, between, behind] = self.sent;
        let [Some(one), Some(other)] = self.answers else { return None };
        // If both answers acknowledge only the data before our first segment, that segment may have been lost. An
        // acknowledgement of both segments rules that out.
        let said = (one.acknowledgement, other.acknowledgement);
        let is_plain = said == (between, behind);
        let is_changed = said == (before, before) && self.has_full_ack;
        (!self.is_odd && (is_plain || is_changed))
            .then(|| self.build_certain_verdict(ForwardOutcome::Both(self.forward_order()), 2))
    }

    /// Returns the verdict with the server's state: the number that it expects, and the number that it will send next.
    pub(super) fn verdict_with_state(&self, expects: u32, will_send: u32) -> ProbeVerdict {
        let [before, between, behind] = self.sent;
        // A number that is none of the three means that the server sent answers of another length.
        let Some(count) = self.due.iter().position(|due| *due == will_send) else {
            return ProbeVerdict::Ambiguous(AmbiguityReason::ServerQuiet);
        };
        if self.is_odd {
            return ProbeVerdict::Ambiguous(AmbiguityReason::ServerQuiet);
        }
        if self.is_late {
            return ProbeVerdict::Ambiguous(AmbiguityReason::Late);
        }
        // An answer arrived that the server, according to its own state, has not sent.
        if (count..2).any(|place| self.answers[place].is_some()) {
            return ProbeVerdict::Ambiguous(AmbiguityReason::Contradiction);
        }
        // `count` answers were sent. Our second segment opens the window for both answers, our first for one: so the
        // number of answers must agree with the number that the server expects.
        let forward = match (expects, count) {
            (expects, 2) if expects == behind => ForwardOutcome::Both(self.forward_order()),
            (expects, 1) if expects == between => ForwardOutcome::SecondLost,
            (expects, 2) if expects == before => ForwardOutcome::FirstLost,
            (expects, 0) if expects == before => ForwardOutcome::BothLost,
            (expects, _) if expects == behind || expects == between => {
                return ProbeVerdict::Ambiguous(AmbiguityReason::ServerQuiet);
            }
            _ => return ProbeVerdict::Ambiguous(AmbiguityReason::Contradiction),
        };
        self.build_certain_verdict(forward, count as u64)
    }

    fn build_certain_verdict(&self, forward: ForwardOutcome, sent: u64) -> ProbeVerdict {
        let heard = [self.answers[0].is_some(), self.answers[1].is_some()];
        ProbeVerdict::Told { forward, reverse: ReverseOutcome { sent, heard, order: self.reverse_order() } }
    }
}

/// Returns whether a sequence number comes after another, modulo 2^32 (RFC 9293, 3.4).
pub(super) const fn is_sequence_after(one: u32, other: u32) -> bool {
    // Sequence numbers wrap around: a number is after another if it is less than half of the range ahead.
    one != other && one.wrapping_sub(other) < 1 << 31
}
