//! Store of messages that were written to a connection, until the collector has certainly stored their records.
//!
//! ```text
//!  written -> waiting -> acknowledged by the collector's machine -> done -> forgotten
//!                `-----------------------------------------------------`--> again, if the connection breaks
//! ```
//! Only meters with a history in their records, or in a group, need this. In a group, another meter must keep records
//! that the collector may not have. If the collector recognises repeated records, a new connection also gets the
//! messages that were acknowledged in the last [`ACKNOWLEDGED_KEEP_TIME`].

use packetrig_flow::CarriedRecords;
use packetrig_flow::export::ExportMessage;
use packetrig_units::Nanos;
use std::collections::VecDeque;

/// Time for which acknowledged messages are kept. A restarted collector lacks at most the records of its last minute,
/// because it finishes its files every minute.
pub(super) const ACKNOWLEDGED_KEEP_TIME: Nanos = Nanos::from_secs(90);

/// A copy of an encoded message, which is kept until the collector has certainly stored its records.
#[derive(Clone, Debug)]
pub(super) struct ResendableMessage {
    pub(super) bytes: Vec<u8>,
    pub(super) carried: CarriedRecords,
    pub(super) own_records: u64,
    pub(super) step: u32,
    /// True if the records of the message have already been counted as sent.
    pub(super) is_repeated: bool,
}

impl ResendableMessage {
    pub(super) fn from_message(message: ExportMessage<'_>) -> Self {
        let ExportMessage { bytes, carried, own_records, step } = message;
        Self { bytes: bytes.to_vec(), carried, own_records, step, is_repeated: false }
    }

    /// Returns the records to count as sent; none for a repeated message.
    pub(super) fn uncounted_records(&self) -> (CarriedRecords, u64) {
        if self.is_repeated { Default::default() } else { (self.carried, self.own_records) }
    }
}

#[derive(Debug)]
pub(super) struct UnconfirmedMessageStore {
    /// Messages without an acknowledgement, each with the stream offset of its end.
    waiting: VecDeque<(u64, ResendableMessage)>,
    /// Acknowledged messages, each with the time of its acknowledgement.
    done: VecDeque<(u64, ResendableMessage)>,
    done_bytes: usize,
    most_bytes: usize,
    /// Age up to which acknowledged messages are sent again on a new connection; zero if they are not.
    again: Nanos,
}

impl UnconfirmedMessageStore {
    pub(super) const fn new(most_bytes: usize, again: Nanos) -> Self {
        Self { waiting: VecDeque::new(), done: VecDeque::new(), done_bytes: 0, most_bytes, again }
    }

    /// Maximum number of bytes of acknowledged messages. Messages that wait for a connection have the same limit.
    pub(super) const fn most_bytes(&self) -> usize {
        self.most_bytes
    }

    pub(super) fn push_message(&mut self, end: u64, message: ResendableMessage) {
        self.waiting.push_back((end, message));
    }

    /// Reports whether all messages have been acknowledged.
    pub(super) fn is_confirmed(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Calls `each` for every waiting message that ends within the first `acknowledged` bytes of the connection. Keeps
    /// the messages that may have to be sent again.
    pub(super) fn confirm_acknowledged_messages(
        &mut self,
        acknowledged: u64,
        now_ns: u64,
        mut each: impl FnMut(&ResendableMessage),
    ) {
        // TCP acknowledges in order, so the first message that is not covered ends the search.
        while let Some((_, message)) = self.waiting.pop_front_if(|(end, _)| *end <= acknowledged) {
            each(&message);
            // Messages without records (templates, options) are encoded again for each connection.
            if message.carried != CarriedRecords::default() && self.again > Nanos::ZERO {
                self.done_bytes += message.bytes.len();
                self.done.push_back((now_ns, message));
            }
        }
        self.forget_old_messages(now_ns);
    }

    fn forget_old_messages(&mut self, now_ns: u64) {
        let before_ns = now_ns.saturating_sub(self.again.as_u64());
        // The oldest messages are removed first: the collector has most likely stored them.
        while let Some((at_ns, message)) = self.done.front()
            && (*at_ns < before_ns || self.done_bytes > self.most_bytes)
        {
            self.done_bytes -= message.bytes.len();
            self.done.pop_front();
        }
    }

    /// Removes all messages and returns them in order, to be sent on the next connection because this one has ended.
    pub(super) fn take_lost_messages(&mut self) -> impl Iterator<Item = ResendableMessage> {
        // Done messages come before the waiting ones: a collector would have received them in this order.
        self.done_bytes = 0;
        let done = std::mem::take(&mut self.done).into_iter();
        let done = done.map(|(_, message)| ResendableMessage { is_repeated: true, ..message });
        done.chain(std::mem::take(&mut self.waiting).into_iter().map(|(_, message)| message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(records: u64) -> ResendableMessage {
        let carried = CarriedRecords { records, packets: 2 * records, bytes: 90 * records };
        ResendableMessage { bytes: vec![7; 100], carried, own_records: 1, step: 1, is_repeated: false }
    }

    fn numbers(written: &mut UnconfirmedMessageStore) -> Vec<(u64, bool)> {
        written.take_lost_messages().map(|message| (message.carried.records, message.is_repeated)).collect()
    }

    #[test]
    fn broken_connection_returns_possibly_missing_messages() {
        let mut written = UnconfirmedMessageStore::new(1 << 20, ACKNOWLEDGED_KEEP_TIME);
        for (end, records) in [(100, 1), (200, 0), (300, 2), (400, 3)] {
            written.push_message(end, message(records));
        }
        let mut counted = Vec::new();
        written.confirm_acknowledged_messages(300, 5, |message| {
            counted.push(message.uncounted_records().0.records);
        });
        assert_eq!((counted, written.is_confirmed()), (vec![1, 0, 2], false));
        let again: Vec<ResendableMessage> = written.take_lost_messages().collect();
        let records: Vec<_> =
            again.iter().map(|message| (message.carried.records, message.is_repeated)).collect();
        assert_eq!(records, [(1, true), (2, true), (3, false)]);
        assert_eq!(again[0].uncounted_records(), Default::default());
        assert_eq!(numbers(&mut written), []);
    }

    #[test]
    fn acknowledged_messages_expire_or_are_evicted() {
        let mut written = UnconfirmedMessageStore::new(250, ACKNOWLEDGED_KEEP_TIME);
        for (end, records) in [(100, 1), (200, 2), (300, 3)] {
            written.push_message(end, message(records));
        }
        written.confirm_acknowledged_messages(300, 10, |_| {});
        written.push_message(400, message(4));
        written.confirm_acknowledged_messages(400, 10 + ACKNOWLEDGED_KEEP_TIME.as_u64(), |_| {});
        assert_eq!(numbers(&mut written), [(3, true), (4, true)]);
        written.push_message(100, message(5));
        written.confirm_acknowledged_messages(100, 20, |_| {});
        written.confirm_acknowledged_messages(100, 21 + ACKNOWLEDGED_KEEP_TIME.as_u64(), |_| {});
        assert_eq!(numbers(&mut written), []);
    }

    /// Packets of SIM, for example: their collector cannot recognise repeated ones.
    #[test]
    fn unrepeatable_message_is_resent_only_if_unacknowledged() {
        let mut written = UnconfirmedMessageStore::new(1 << 20, Nanos::ZERO);
        for (end, records) in [(100, 1), (200, 2)] {
            written.push_message(end, message(records));
        }
        written.confirm_acknowledged_messages(100, 5, |_| {});
        assert_eq!(numbers(&mut written), [(2, false)]);
    }
}
