//! Frames of a stream are sent in the order of their numbers: what a copy of an old one cannot look like.
//!
//! The mark of a tag fits another run's key once in 65 536 times. If that run has the same plan, nothing else of the frame tells it from
//! an old frame of this run, except that it was sent later than the newest one.

use super::lane::EARLY;
use packetrig_wire::tag::{FrameTag, TagForm};

/// A whole turn of the times in tags.
const FAR_FROM_ZERO_NS: u64 = 1 << 48;

/// The newest frame of a stream that has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SendOrder {
    newest: Option<(u64, FrameTag)>,
}

impl SendOrder {
    /// An intact frame has come.
    pub(super) fn note(&mut self, number: u64, tag: FrameTag) {
        if tag.form == TagForm::Full && self.newest.is_none_or(|(newest, _)| number > newest) {
            self.newest = Some((number, tag));
        }
    }

    /// Whether a frame that has come before cannot come again with this tag. The clock is the sender's, whatever it says.
    pub(super) fn forbids_copy(&self, number: u64, tag: FrameTag) -> bool {
        self.newest.is_some_and(|(newest, newest_tag)| {
            // Times in tags wrap; so far from zero, none of them is before it.
            let newest_ns = newest_tag.time + FAR_FROM_ZERO_NS;
            let is_later = tag.sent_at(newest_ns).is_some_and(|sent_ns| sent_ns > newest_ns + EARLY.as_u64());
            number <= newest && is_later
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_number_that_was_sent_after_the_newest_is_of_another_run() {
        let sent = |sequence: u32, time| FrameTag { form: TagForm::Full, stream: 0, sequence, time };
        let seconds = 1_000_000_000;
        let mut order = SendOrder::default();
        assert!(!order.forbids_copy(3, sent(3, 9 * seconds)), "nothing is known");
        order.note(5000, sent(5000, 5 * seconds));
        order.note(4000, sent(4000, 4 * seconds));
        assert!(!order.forbids_copy(3, sent(3, seconds)), "it took its time");
        assert!(!order.forbids_copy(5000, sent(5000, 5 * seconds)));
        assert!(!order.forbids_copy(4999, sent(4999, 5 * seconds + 1)), "stamped by another thread");
        assert!(order.forbids_copy(3, sent(3, 6 * seconds)));
        assert!(!order.forbids_copy(6000, sent(6000, 6 * seconds)), "a newer one");
        let short = FrameTag { form: TagForm::Short, ..sent(3, 0) };
        assert!(!order.forbids_copy(3, short), "it says no time");
    }

    #[test]
    fn times_wrap_after_48_bits() {
        let sent = |time| FrameTag { form: TagForm::Full, stream: 0, sequence: 1, time };
        let mut order = SendOrder::default();
        order.note(9, sent((1 << 48) - 10));
        assert!(order.forbids_copy(1, sent(2 * EARLY.as_u64())), "after the wrap is later");
        assert!(!order.forbids_copy(1, sent(5)));
        order.note(10, sent(5));
        assert!(!order.forbids_copy(1, sent((1 << 48) - 10)), "before it is earlier");
    }
}
