//! Uses sequence numbers to find which messages of an exporter are missing, late or duplicated, and
//! when the exporter restarted.
//!
//! Sequence numbers count units, which depend on the protocol: data records for IPFIX, packets for NetFlow v9, flows
//! for v5, datagrams for sFlow, events for SIM. Numbers wrap.
//!
//! A data set without a known template holds an unknown number of units. Units that are missing after its message may
//! be in this set and are counted as `untold`. When the template comes, these units are decoded or `lost`.
//!
//! A message with a number before the first received one is decoded like any other: it was overtaken on its way, and
//! `first` moves back to it. A restarted exporter sends such numbers, too, but later than the first message.
//!
//! Invariant: `lost` and `untold` together are the units between the first message and the last,
//! minus the decoded units.

use super::exporter::SequenceNumbers;
use super::memory::block_bytes;
use packetrig_units::clamp_to_u32;
use std::collections::VecDeque;

/// Maximum number of gaps that are remembered, so that a late message that fills one is recognised.
const MAX_REMEMBERED_GAPS: usize = 256;
/// Maximum number of messages that are remembered, so that their second copies are recognised.
const MAX_RECENT_MESSAGES: usize = 1024;
/// Longest time by which messages overtake each other. A message that was sent longer before the first one does not
/// move `first` back: one stray message must not make a gap of a day.
const MAX_REORDERING_S: u32 = 10;
/// This many old messages in a row mean that the exporter restarted and set its clock back.
const RESTART_AFTER_OLD_MESSAGES: u32 = 16;
/// Highest rate of an exporter, in units per second: a jump further ahead is a restart.
const MAX_UNITS_PER_SECOND: u64 = 20_000_000;

/// Position of a message relative to earlier messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SequencePosition {
    /// The message was expected next, or is the first of all.
    InOrder,
    /// The message is ahead of the expected one by this number of missing units.
    Ahead(u32),
    /// The message fills a gap, or is late and holds no units.
    Late,
    /// A second copy of a message that was decoded.
    Duplicate,
    /// The message was sent before the first one that was received.
    Early,
    /// The number is far back and in no gap that is remembered, and the message is no copy of one of
    /// the last [`MAX_RECENT_MESSAGES`] messages.
    Old,
    /// The exporter restarted, so its numbers begin again.
    Restart,
}

impl SequencePosition {
    /// Returns whether the message is to be decoded.
    pub(super) const fn is_wanted(self) -> bool {
        !matches!(self, Self::Duplicate)
    }

    /// Returns whether the message shows the exporter's current position.
    pub(super) const fn is_current(self) -> bool {
        matches!(self, Self::InOrder | Self::Ahead(_) | Self::Restart)
    }
}

/// Properties of a message that decide its position in the sequence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MessageSequenceFacts {
    pub(super) number: u32,
    /// Hash of the message, to distinguish a second copy from another message with the same number.
    pub(super) fingerprint: u64,
    /// Time at which the message was sent, in seconds.
    pub(super) sent_s: u32,
    /// True if the message holds no units.
    pub(super) empty: bool,
    /// True if the exporter's uptime shows that it restarted.
    pub(super) rebooted: bool,
}

/// Missing sequence numbers: from `from` until before `until`. Numbers wrap.
#[derive(Clone, Copy, Debug)]
struct NumberGap {
    from: u32,
    until: u32,
}

impl NumberGap {
    const fn len(self) -> u32 {
        self.until.wrapping_sub(self.from)
    }

    const fn contains(self, number: u32) -> bool {
        number.wrapping_sub(self.from) < self.len()
    }
}

/// Missing units after the number `from`: at most `amount` of them may be in sets that could not be read.
#[derive(Clone, Copy, Debug)]
struct UndecodedUnitRange {
    from: u32,
    amount: u32,
}

/// Number and hash of a decoded message, to recognise a second copy of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecentMessage {
    number: u32,
    fingerprint: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct MessageSequence {
    begun: bool,
    /// Number of the first message. `first_sent_s` is the time at which this message was sent.
    first: u32,
    first_sent_s: u32,
    next: u32,
    sent_s: u32,
    gaps: VecDeque<NumberGap>,
    recent: VecDeque<RecentMessage>,
    /// Maximum number of units after `next` that may have been in sets which could not be read.
    unread: u32,
    suspects: VecDeque<UndecodedUnitRange>,
    old_run: u32,
    missing: u64,
    /// Units of forgotten entries of `suspects`: they still count as untold.
    untold: u64,
    /// Missing units of gaps that are forgotten.
    forgotten: u64,
}

impl MessageSequence {
    /// Returns the memory of the lists of gaps and messages, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let pairs = self.gaps.capacity() + self.suspects.capacity();
        block_bytes(self.recent.capacity() * size_of::<RecentMessage>())
            + 2 * block_bytes(pairs * size_of::<NumberGap>())
    }

    /// Returns the number of the first message and the one that is expected next; `None` before the first message.
    pub(super) fn sequence_numbers(&self) -> Option<SequenceNumbers> {
        self.begun.then_some(SequenceNumbers { first: self.first, next: self.next })
    }

    /// Returns the number of missing units that cannot be in sets that could not be read.
    pub(super) fn certainly_lost_units(&self) -> u64 {
        self.missing.saturating_sub(self.possibly_undecoded_units())
    }

    /// Returns the number of missing units that may be in sets that could not be read.
    pub(super) fn possibly_undecoded_units(&self) -> u64 {
        self.untold + self.suspects.iter().map(|suspect| u64::from(suspect.amount)).sum::<u64>()
    }

    /// Finds the position of a message relative to earlier messages. If the message is to be decoded,
    /// [`Self::complete_message`] must follow.
    pub(super) fn classify_and_record_message(&mut self, claim: MessageSequenceFacts) -> SequencePosition {
        let place = self.classify_by_sequence_number(claim);
        self.old_run = if place == SequencePosition::Old { self.old_run + 1 } else { 0 };
        if !place.is_wanted() {
            return place;
        }
        if self.recent.len() >= MAX_RECENT_MESSAGES {
            self.recent.pop_front();
        }
        self.recent.push_back(RecentMessage { number: claim.number, fingerprint: claim.fingerprint });
        // A late message does not show the exporter's present position.
        if !place.is_current() {
            return place;
        }
        if !self.begun || place == SequencePosition::Restart {
            self.first = claim.number;
            self.first_sent_s = claim.sent_s;
        }
        self.begun = true;
        self.sent_s = claim.sent_s;
        // Units that could not be read come directly after the other units of their message, so only the gap opened
        // here can contain them.
        let unread = std::mem::take(&mut self.unread);
        let SequencePosition::Ahead(ahead) = place else {
            if place == SequencePosition::Restart {
                // Losses of the exporter's earlier run stay counted. Its gaps are removed: new numbers must
                // not fill them.
                self.gaps.clear();
                self.forgotten = 0;
                self.untold = self.possibly_undecoded_units();
                self.suspects.clear();
            }
            self.next = claim.number;
            return place;
        };
        self.skip_units(ahead, unread)
    }

    fn classify_by_sequence_number(&self, claim: MessageSequenceFacts) -> SequencePosition {
        let ahead = claim.number.wrapping_sub(self.next);
        // The uptime is stronger evidence than the numbers, which may fit by chance after a restart.
        if claim.rebooted {
            return SequencePosition::Restart;
        }
        // The next number alone does not prove a new message: after a message with unreadable sets, its
        // second copy has that number too.
        if !self.begun || ahead == 0 && self.unread == 0 {
            return SequencePosition::InOrder;
        }
        let copy = RecentMessage { number: claim.number, fingerprint: claim.fingerprint };
        if self.recent.contains(&copy) {
            return SequencePosition::Duplicate;
        }
        if ahead == 0 {
            return SequencePosition::InOrder;
        }
        // Half of all numbers are ahead, the other half behind (serial number arithmetic, RFC 1982). A jump
        // ahead is accepted only if an exporter could have sent that much since its last message; a restart
        // can jump to any number.
        if ahead < 1 << 31 {
            let seconds = u64::from(claim.sent_s.saturating_sub(self.sent_s)) + 1;
            let plausible = u64::from(ahead) <= seconds * MAX_UNITS_PER_SECOND;
            return if plausible { SequencePosition::Ahead(ahead) } else { SequencePosition::Restart };
        }
        if claim.empty || self.gap_index_containing(claim.number).is_some() {
            return SequencePosition::Late;
        }
        if self.may_precede_first_message(claim) {
            return SequencePosition::Early;
        }
        // The number is far back, but the message was sent later than the newest one: only a restart does this. A
        // message that was sent earlier was delayed. If many such messages come, the exporter also set its clock back.
        if claim.sent_s < self.sent_s && self.old_run < RESTART_AFTER_OLD_MESSAGES {
            SequencePosition::Old
        } else {
            SequencePosition::Restart
        }
    }

    /// Returns whether a message may have been sent before the first one that was received.
    const fn may_precede_first_message(&self, claim: MessageSequenceFacts) -> bool {
        let before = self.first.wrapping_sub(claim.number);
        let Some(seconds) = self.first_sent_s.checked_sub(claim.sent_s) else { return false };
        let is_plausible = before as u64 <= (seconds as u64 + 1) * MAX_UNITS_PER_SECOND;
        before > 0 && before < 1 << 31 && seconds <= MAX_REORDERING_S && is_plausible
    }

    /// Records that the next `ahead` units are missing; at most `unread` of them may be in sets that could not be read.
    /// Returns where the message is after these units.
    fn skip_units(&mut self, ahead: u32, unread: u32) -> SequencePosition {
        let untold = ahead.min(unread);
        let until = self.next.wrapping_add(ahead);
        self.open_gap(self.next, until, untold);
        self.next = until;
        if untold == ahead { SequencePosition::InOrder } else { SequencePosition::Ahead(ahead - untold) }
    }

    /// Records that the units from `from` until before `until` are missing; `untold` of them may be in sets that
    /// could not be read.
    fn open_gap(&mut self, from: u32, until: u32, untold: u32) {
        self.missing += u64::from(until.wrapping_sub(from));
        self.remember_gap(NumberGap { from, until });
        if untold > 0 {
            self.suspects.push_back(UndecodedUnitRange { from, amount: untold });
        }
        if self.suspects.len() > MAX_REMEMBERED_GAPS
            && let Some(oldest) = self.suspects.pop_front()
        {
            self.untold += u64::from(oldest.amount);
        }
    }

    /// Adds a gap. If there are too many, the one that was added first is forgotten.
    fn remember_gap(&mut self, gap: NumberGap) {
        self.gaps.push_back(gap);
        if self.gaps.len() > MAX_REMEMBERED_GAPS
            && let Some(oldest) = self.gaps.pop_front()
        {
            self.forgotten += u64::from(oldest.len());
        }
    }

    /// Moves `first` back to a message that was sent before the one that counted as the first.
    fn move_first_number(&mut self, number: u32, units: u32, unread: u32) {
        let missing = self.first.wrapping_sub(number).saturating_sub(units);
        if missing > 0 {
            self.open_gap(number.wrapping_add(units), self.first, missing.min(unread));
        }
        self.first = number;
    }

    /// Counts the units of a set that was read when its template came. The units of its message that could be read
    /// before ended at `number`. If `is_last` is true, no other set of the message waits, so units that are still
    /// missing after it were lost.
    pub(super) fn recover_units(&mut self, number: u32, units: u32, is_last: bool) {
        if number == self.next {
            // No later message has come yet.
            self.next = number.wrapping_add(units);
            self.unread = if is_last { 0 } else { self.unread };
            return;
        }
        let filled = self.fill_gap(number, units);
        self.missing -= u64::from(filled);
        let Some(at) = self.suspects.iter().position(|suspect| suspect.from == number) else { return };
        let suspect = &mut self.suspects[at];
        suspect.from = suspect.from.wrapping_add(units);
        suspect.amount = suspect.amount.saturating_sub(units);
        // All sets of that message are read now, so units that are still missing after it were lost.
        if is_last {
            self.suspects.remove(at);
        }
    }

    /// Completes a message that was decoded: it held `units` units, and sets that may hold up to `unread` more. Returns
    /// by how many units a gap shrank.
    pub(super) fn complete_message(
        &mut self,
        place: SequencePosition,
        number: u32,
        units: u32,
        unread: u32,
    ) -> u32 {
        match place {
            SequencePosition::Late => {}
            SequencePosition::Early => {
                self.move_first_number(number, units, unread);
                return 0;
            }
            SequencePosition::Old => {
                // The gap is no longer in the list; only the sum of the missing units of such gaps is
                // left to be reduced.
                let filled = clamp_to_u32(self.forgotten).min(units);
                self.forgotten -= u64::from(filled);
                self.missing -= u64::from(filled);
                return filled;
            }
            _ => {
                self.next = number.wrapping_add(units);
                self.unread = unread;
                return 0;
            }
        }
        let filled = self.fill_gap(number, units);
        self.missing -= u64::from(filled);
        // Units before this message may be in sets that could not be read; units after it cannot.
        for suspect in &mut self.suspects {
            suspect.amount = suspect.amount.min(number.wrapping_sub(suspect.from));
        }
        filled
    }

    fn gap_index_containing(&self, number: u32) -> Option<usize> {
        self.gaps.iter().position(|gap| gap.contains(number))
    }

    fn fill_gap(&mut self, number: u32, units: u32) -> u32 {
        let Some(at) = self.gap_index_containing(number) else { return 0 };
        let Some(gap) = self.gaps.remove(at) else { return 0 };
        let filled = units.min(gap.until.wrapping_sub(number));
        // The remaining gap: one piece before the message and one after it, if they are not empty.
        let before = NumberGap { from: gap.from, until: number };
        let behind = NumberGap { from: number.wrapping_add(filled), until: gap.until };
        for rest in [before, behind].into_iter().filter(|rest| rest.len() > 0) {
            self.remember_gap(rest);
        }
        filled
    }
}

/// Computes a hash that tells a second copy of a message from another message.
pub(super) fn message_fingerprint(message: &[u8]) -> u64 {
    // The hash is fast, and no protection against forgery: a sender that can forge the exporter's address is read
    // as that exporter anyway.
    let (words, rest) = message.as_chunks::<8>();
    let sum = words.iter().fold(message.len() as u64, |sum, word| mix_word(sum, u64::from_le_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| mix_word(sum, u64::from(*byte)))
}

const fn mix_word(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

#[cfg(test)]
mod tests;
