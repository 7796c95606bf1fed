//! Detects that this member's copy of the link is cut: no packets arrive here while packets arrive at another member.
//!
//! Members count their packets at slightly different moments. So counts of others are compared only from a while after the last
//! packet here. A count is valid only for the time up to which packets have been taken: a thread that had no processor for a
//! while must not look like a cut cable.

use super::Advertisement;
use packetrig_units::{MonoTime, Nanos};
use std::collections::BTreeMap;

/// Settling time, longer than it takes until a count is in an advertisement.
const SETTLE: Nanos = Nanos::from_millis(100);
/// Confirmation time, longer than the delay between copies of a packet. Only a count taken this long after others counted more
/// is believed.
const CONFIRM: Nanos = Nanos::from_millis(20);
/// A few packets may be of one copy only, such as those of the machine at its end.
const PACKETS: u64 = 8;

#[derive(Clone, Debug, Default)]
pub(super) struct CopyWatch {
    own: u64,
    changed_at: MonoTime,
    /// Time up to which the own packets are counted.
    counted_to: MonoTime,
    /// Counts of other members, with their boot, from a while after the last packet here.
    others: BTreeMap<u32, (u64, u64)>,
    /// Time since which others have counted more.
    suspected_at: Option<MonoTime>,
    is_blind: bool,
}

impl CopyWatch {
    pub(super) const fn own_packets(&self) -> u64 {
        self.own
    }

    /// Returns whether the copy was cut at the last advertisement of the others.
    pub(super) const fn is_blind(&self) -> bool {
        self.is_blind
    }

    /// Records the packets that the member had seen up to `counted_to`.
    pub(super) fn count_packets(&mut self, packets: u64, counted_to: MonoTime) {
        if packets != self.own {
            // A new packet here ends every suspicion and makes the counts of the others old.
            *self = Self { own: packets, changed_at: counted_to, ..Self::default() };
        }
        self.counted_to = self.counted_to.max(counted_to);
        // Only the next packet here takes the verdict back, see above.
        self.is_blind |= self.suspected_at.is_some_and(|at| self.counted_to >= at + CONFIRM);
    }

    pub(super) fn on_advertisement(&mut self, other: &Advertisement, now: MonoTime) {
        // Packets that the other member counted until now may have arrived here too and not be counted yet.
        if self.counted_to < self.changed_at + SETTLE {
            return;
        }
        let (boot, before) = *self.others.entry(other.meter).or_insert((other.boot, other.seen_packets));
        // A meter that was started again counts from zero.
        // Its next advertisement sets the new base.
        if boot != other.boot {
            self.others.remove(&other.meter);
        } else if other.seen_packets.saturating_sub(before) >= PACKETS {
            self.suspected_at.get_or_insert(now);
        }
    }
}
