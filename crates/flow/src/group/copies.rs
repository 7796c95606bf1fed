//! Whether this member's copy of the link is cut: nothing comes here while packets come at another member.
//!
//! Members count their packets at slightly different moments. So counts of others are compared only from a while after the last packet
//! here. And a count holds only for the time up to which packets have been taken: a thread that had no processor for a while must not
//! look like a cable that was cut.

use super::Advertisement;
use packetrig_units::{MonoTime, Nanos};
use std::collections::BTreeMap;

/// Longer than it takes until a count is in an advertisement.
const SETTLE: Nanos = Nanos::from_millis(100);
/// Longer than copies of a packet are apart. Only a count of so long after others counted more is believed.
const CONFIRM: Nanos = Nanos::from_millis(20);
/// A few packets may be of one copy only, such as those of the machine at its end.
const PACKETS: u64 = 8;

#[derive(Clone, Debug, Default)]
pub(super) struct CopyWatch {
    own: u64,
    changed_at: MonoTime,
    /// Up to when the own packets are counted.
    counted_to: MonoTime,
    /// What others had counted a while after the last packet here.
    others: BTreeMap<u32, (u64, u64)>,
    /// Since when others have counted more.
    suspected_at: Option<MonoTime>,
    is_blind: bool,
}

impl CopyWatch {
    pub(super) const fn packets(&self) -> u64 {
        self.own
    }

    /// Whether the copy was cut when the others were last heard.
    pub(super) const fn is_blind(&self) -> bool {
        self.is_blind
    }

    /// The member had seen so many packets up to `counted_to`.
    pub(super) fn count(&mut self, packets: u64, counted_to: MonoTime) {
        if packets != self.own {
            *self = Self { own: packets, changed_at: counted_to, ..Self::default() };
        }
        self.counted_to = self.counted_to.max(counted_to);
        self.is_blind |= self.suspected_at.is_some_and(|at| self.counted_to >= at + CONFIRM);
    }

    pub(super) fn hear(&mut self, other: &Advertisement, now: MonoTime) {
        // What the other one counted until now may have come here, too, and is only not counted yet.
        if self.counted_to < self.changed_at + SETTLE {
            return;
        }
        let (boot, before) = *self.others.entry(other.meter).or_insert((other.boot, other.seen_packets));
        // A meter that was started again counts from zero.
        if boot != other.boot {
            self.others.remove(&other.meter);
        } else if other.seen_packets.saturating_sub(before) >= PACKETS {
            self.suspected_at.get_or_insert(now);
        }
    }
}
