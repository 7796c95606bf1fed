//! Remembers send times of a stream's frames, to tell late copies from frames of another run.
//!
//! By chance, one in 65 536 frames of another run has a mark that is valid for this run. If that run has the same plan,
//! the frame looks like a copy of an old frame of this run. Its send time tells the difference: a sender sends frames
//! in the order of their numbers, but this frame was sent after the frames that followed the old one.

use packetrig_wire::tag::{FrameTag, TagForm};

/// Number of frames in a block. One send time is remembered for each block.
const FRAMES_PER_SEND_TIME_BLOCK: u64 = 1024;
/// Number of remembered blocks: together they have as many frames as the window in which copies are recognised.
const REMEMBERED_SEND_TIME_BLOCKS: usize = 64;
/// Upper bound of how far stamps of one sender are out of order.
const MAX_STAMP_DISORDER_NS: i64 = 100_000_000;
/// Bits of a 64-bit word that the times in tags leave unused.
const UNUSED_TIME_BITS: u32 = 16;

/// Send times of the first frame in each of the latest blocks, as in their tags.
#[derive(Clone, Debug)]
pub(super) struct SendTimeHistory {
    begins: Box<[u64; REMEMBERED_SEND_TIME_BLOCKS]>,
    newest: u64,
}

impl SendTimeHistory {
    pub(super) fn new() -> Self {
        Self { begins: Box::new([0; REMEMBERED_SEND_TIME_BLOCKS]), newest: 0 }
    }

    /// Records the send time of an intact frame whose sequence number is the highest so far.
    pub(super) fn record_send_time(&mut self, number: u64, tag: FrameTag) {
        let block = number / FRAMES_PER_SEND_TIME_BLOCK;
        if block > self.newest && tag.form == TagForm::Full {
            let first = (self.newest + 1).max(block.saturating_sub(REMEMBERED_SEND_TIME_BLOCKS as u64 - 1));
            // Blocks without a frame get the time of the next one, so that no stale time stays in their slots.
            for passed in first..=block {
                self.begins[Self::block_slot(passed)] = tag.time;
            }
            self.newest = block;
        }
    }

    /// Returns whether a frame with this tag cannot be a copy of frame `number`: it was sent later than the frames that
    /// followed frame `number`. Compares only times of the sender's clock.
    pub(super) fn rules_out_copy(&self, number: u64, tag: FrameTag) -> bool {
        let oldest = self.newest.saturating_sub(REMEMBERED_SEND_TIME_BLOCKS as u64 - 1);
        let next = (number / FRAMES_PER_SEND_TIME_BLOCK + 1).max(oldest);
        if next > self.newest || tag.form != TagForm::Full {
            return false;
        }
        // Times in tags wrap: shifted to the top of the word, their difference has the right sign.
        let ahead = tag.time.wrapping_sub(self.begins[Self::block_slot(next)]) << UNUSED_TIME_BITS;
        ahead.cast_signed() >> UNUSED_TIME_BITS > MAX_STAMP_DISORDER_NS
    }

    #[expect(clippy::cast_possible_truncation, reason = "the remainder is less than 64")]
    const fn block_slot(block: u64) -> usize {
        (block % REMEMBERED_SEND_TIME_BLOCKS as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn sent(time: u64) -> FrameTag {
        FrameTag { form: TagForm::Full, stream: 0, sequence: 0, time: time % (1 << 48) }
    }

    /// A frame each millisecond from a time on, up to this number.
    fn times(from_ns: u64, numbers: u64) -> SendTimeHistory {
        let mut times = SendTimeHistory::new();
        (0..numbers).for_each(|number| times.record_send_time(number, sent(from_ns + number * 1_000_000)));
        times
    }

    #[test]
    fn stale_number_after_next_block_is_other_run() {
        // Also where the times wrap.
        for from_ns in [0, SECOND, (1 << 48) - 2 * SECOND] {
            let times = times(from_ns, 6000);
            let forbid = |number, after_ns| times.rules_out_copy(number, sent(from_ns + after_ns));
            assert!(!forbid(3, 3_000_000) && !forbid(3, SECOND), "it may be the frame itself");
            assert!(forbid(3, 5 * SECOND) && forbid(1023, 2 * SECOND));
            assert!(!forbid(5900, 9 * SECOND), "nothing after it tells by when it was sent");
        }
    }

    #[test]
    fn skipped_or_forgotten_blocks_use_later_send_times() {
        let mut times = times(0, 100 * FRAMES_PER_SEND_TIME_BLOCK);
        let seconds_of = |number: u64| number * 1_000_000;
        assert!(!times.rules_out_copy(3, sent(seconds_of(30 * FRAMES_PER_SEND_TIME_BLOCK))), "forgotten");
        assert!(times.rules_out_copy(3, sent(seconds_of(99 * FRAMES_PER_SEND_TIME_BLOCK))));
        times.record_send_time(103 * FRAMES_PER_SEND_TIME_BLOCK, sent(200 * SECOND));
        assert!(!times.rules_out_copy(101 * FRAMES_PER_SEND_TIME_BLOCK, sent(200 * SECOND)));
        assert!(times.rules_out_copy(101 * FRAMES_PER_SEND_TIME_BLOCK, sent(201 * SECOND)));
        let short = FrameTag { form: TagForm::Short, ..sent(0) };
        assert!(!times.rules_out_copy(3, short), "it says no time");
    }
}
