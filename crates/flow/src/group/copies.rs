//! Detects that packets which arrived at another member did not arrive at this one: its copy of the link is or was cut.
//!
//! Two members that see the same packets have counts with a constant difference. Each member reads its count at its own
//! times, perhaps late, so a count comes with two times ([`PacketCount`]). They bound the difference:
//!
//! ```text
//!  own count taken before the other's    other - own: at most as large as it looks     the difference is `most` at most
//!  own count taken after the other's     other - own: at least as large as it looks    the difference is `least` at least
//! ```
//! Without a loss, `least <= most` for any two pairs of counts, however late they were taken. So `least > most`
//! proves a loss. A short cut is noticed, too, when packets arrive again. A thread that does not run for a while
//! never looks like a cut.
//!
//! The later one of the two counts is read, the less `least` shows. So only counts read soon after each other tell that
//! nothing was lost.

use super::Advertisement;
use packetrig_units::{MonoTime, Nanos};
use std::collections::{BTreeMap, VecDeque};

/// Largest difference between the times at which two members receive the copies of one packet.
const MAX_COPY_DELAY: Nanos = Nanos::from_millis(20);
/// Longest delay in the network that is assumed for an advertisement. The caller adds any
/// longer delay to [`Advertisement::seen_all_ago`].
const MAX_NETWORK_DELAY: Nanos = Nanos::from_millis(50);
/// Some packets may be in one copy only, such as packets of the machine at the end of that link. A difference of fewer
/// than `PACKET_TOLERANCE` packets, plus one in `TOLERATED_SHARE_DIVISOR`, is no loss.
const PACKET_TOLERANCE: i64 = 8;
const TOLERATED_SHARE_DIVISOR: u64 = 512;
/// Maximum number of counts of a member that are remembered. Two of them are at least `MIN_COUNT_INTERVAL` apart.
const MAX_REMEMBERED_COUNTS: usize = 128;
const MIN_COUNT_INTERVAL: Nanos = Nanos::from_millis(10);
/// Time after which a bound of the difference is replaced: packets that are in one copy only add up over time.
const BOUND_LIFETIME: Nanos = Nanos::from_secs(5);
/// If two counts were read within this time and two intervals of advertisements, they show a loss of packets, unless the cut
/// was shorter than that.
const MAX_READING_GAP: Nanos = Nanos::from_millis(150);
/// Age of its count from which a member is not waited for. The interval of its advertisements comes in addition.
const MAX_COUNT_AGE: Nanos = Nanos::from_secs(3);

/// Number of packets of a copy of the link since the meter started, and when the number was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCount {
    pub packets: u64,
    /// All packets that had arrived by this time are counted. 0: the copy may not have been open.
    pub all_until: MonoTime,
    /// No packet that arrived after this time is counted.
    pub none_after: MonoTime,
}

/// What the counts of other members show of this member's copy of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyComparison {
    /// Number of losses that were shown, and of their ends. It grows, so that nobody misses a loss.
    pub losses: u64,
    /// A loss between these two times is in `losses`, if it was long enough.
    pub bounded_since: MonoTime,
    pub compared_until: MonoTime,
}

#[derive(Clone, Debug, Default)]
pub(super) struct CopyLossDetector {
    own: PacketCount,
    /// Own counts, oldest first.
    earlier: VecDeque<PacketCount>,
    peers: BTreeMap<u32, PeerCopy>,
    loss: Option<CopyLoss>,
    losses: u64,
}

/// A loss: packets that other members have seen and this member has not.
#[derive(Clone, Copy, Debug)]
struct CopyLoss {
    own_packets: u64,
    /// True once the other parts of the meter know of the loss.
    is_noted: bool,
}

/// Comparison with the copy of another member.
#[derive(Clone, Debug)]
struct PeerCopy {
    boot: u64,
    interval: Nanos,
    is_leaving: bool,
    /// Time of the latest count.
    counted_at: MonoTime,
    /// Time since which there is an upper bound: an earlier loss is part of it.
    bounded_since: Option<MonoTime>,
    /// A loss before this time and after `bounded_since` has been shown.
    compared_until: MonoTime,
    /// Counts of the other member that wait for a later own count, oldest first.
    waiting: VecDeque<PacketCount>,
    /// Upper bounds of the difference, of the present window and the one before it.
    most: [Option<CopyDifferenceBound>; 2],
}

/// Upper bound of the difference to another member's count.
#[derive(Clone, Copy, Debug)]
struct CopyDifferenceBound {
    since: MonoTime,
    /// Number of own packets when the bound was first known.
    own_packets: u64,
    packets: i64,
}

impl CopyLossDetector {
    pub(super) const fn own_packet_count(&self) -> PacketCount {
        self.own
    }

    /// Returns whether packets were lost, and either the coverage does not show the loss yet or no
    /// packets have arrived since.
    pub(super) const fn is_blind(&self) -> bool {
        self.loss.is_some()
    }

    /// Returns what all other members that count have shown.
    pub(super) fn comparison(&self, now: MonoTime) -> CopyComparison {
        let counting = self.peers.values().filter(|peer| peer.may_show_loss(now));
        let nobody =
            CopyComparison { losses: self.losses, bounded_since: MonoTime::default(), compared_until: now };
        counting.fold(nobody, |all, peer| CopyComparison {
            bounded_since: all.bounded_since.max(peer.bounded_since.unwrap_or(now)),
            compared_until: all.compared_until.min(peer.compared_until),
            ..all
        })
    }

    /// Stores this member's packet count and compares it with the counts of its peers: a shortfall is a loss.
    pub(super) fn on_own_packet_count(&mut self, count: PacketCount) {
        if count == self.own {
            return;
        }
        self.own = count;
        self.end_loss_interval();
        // A copy that was not open yet has missed packets without having lost any.
        if count.all_until == MonoTime::default() {
            return;
        }
        remember_packet_count(&mut self.earlier, count);
        let is_lost = self.peers.values_mut().fold(false, |is_lost, peer| is_lost | peer.shows_loss(&count));
        if is_lost && self.loss.is_none() {
            self.loss = Some(CopyLoss { own_packets: count.packets, is_noted: false });
            self.losses += 1;
        }
    }

    /// Records that the other parts of the meter know of the loss: the meter follows all flows anew.
    pub(super) fn mark_loss_as_known(&mut self) {
        if let Some(loss) = &mut self.loss {
            loss.is_noted = true;
        }
        self.end_loss_interval();
    }

    fn end_loss_interval(&mut self) {
        // While nothing arrives, the copy is still cut. Counts from before the end of the cut say nothing about the
        // time after.
        if self.loss.take_if(|loss| loss.is_noted && loss.own_packets != self.own.packets).is_some() {
            self.peers.values_mut().for_each(PeerCopy::forget_counts);
            self.earlier.clear();
            // What came until now was lost, too.
            self.losses += 1;
        }
    }

    pub(super) fn on_advertisement(&mut self, other: &Advertisement, now: MonoTime) {
        let count = PacketCount {
            packets: other.seen_packets,
            all_until: now - (other.seen_all_ago + MAX_NETWORK_DELAY),
            none_after: now - other.seen_none_ago,
        };
        let peer = self.peers.entry(other.meter).or_insert_with(|| PeerCopy::new(other));
        // A meter that was started again counts from zero.
        if peer.boot != other.boot {
            *peer = PeerCopy::new(other);
        }
        peer.counted_at = count.none_after;
        peer.is_leaving = other.role.is_leaving();
        let before = self.earlier.partition_point(|own| own.none_after + MAX_COPY_DELAY <= count.all_until);
        if let Some(own) = before.checked_sub(1).and_then(|latest| self.earlier.get(latest)) {
            peer.update_copy_bound(packet_difference(&count, own), self.own.packets, now);
        }
        remember_packet_count(&mut peer.waiting, count);
    }
}

/// Adds a count, unless it is less than `MIN_COUNT_INTERVAL` later than the last one.
fn remember_packet_count(counts: &mut VecDeque<PacketCount>, count: PacketCount) {
    if counts.back().is_some_and(|last| count.none_after < last.none_after + MIN_COUNT_INTERVAL) {
        return;
    }
    if counts.len() == MAX_REMEMBERED_COUNTS {
        counts.pop_front();
    }
    counts.push_back(count);
}

/// Returns how many packets more another member has counted than this one.
const fn packet_difference(other: &PacketCount, own: &PacketCount) -> i64 {
    other.packets.wrapping_sub(own.packets).cast_signed()
}

impl PeerCopy {
    fn new(advertisement: &Advertisement) -> Self {
        Self {
            boot: advertisement.boot,
            interval: advertisement.interval,
            is_leaving: false,
            counted_at: MonoTime::default(),
            bounded_since: None,
            compared_until: MonoTime::default(),
            waiting: VecDeque::new(),
            most: [None; 2],
        }
    }

    /// Returns whether a later own count may show a loss by counts of this member.
    fn may_show_loss(&self, now: MonoTime) -> bool {
        // Of a member that leaves, only the counts are compared that it has sent.
        let has_counts = !self.is_leaving || !self.waiting.is_empty();
        has_counts && now < self.counted_at + MAX_COUNT_AGE + self.interval
    }

    fn forget_counts(&mut self) {
        self.waiting.clear();
        self.most = [None; 2];
        self.bounded_since = None;
    }

    /// Returns whether the own count lacks packets that the other member had counted before.
    fn shows_loss(&mut self, own: &PacketCount) -> bool {
        let before = self.waiting.partition_point(|count| count.none_after + MAX_COPY_DELAY <= own.all_until);
        // The latest of these counts has the most packets. Earlier ones would show less.
        let Some(latest) = self.waiting.drain(..before).next_back() else { return false };
        let least = packet_difference(&latest, own);
        let is_telling =
            own.none_after.since(latest.all_until) <= MAX_READING_GAP + self.interval + self.interval;
        if is_telling && self.bounded_since.is_some() {
            self.compared_until = latest.all_until - MAX_COPY_DELAY;
        }
        self.most.iter().flatten().any(|most| most.is_exceeded(least, own))
    }

    fn update_copy_bound(&mut self, packets: i64, own_packets: u64, now: MonoTime) {
        self.bounded_since = self.bounded_since.or(Some(now));
        let begun = CopyDifferenceBound { since: now, own_packets, packets };
        let [present, _] = &mut self.most;
        // While nothing arrives here, the bound is not replaced, so that it shows the cut.
        let is_over =
            present.is_some_and(|most| now >= most.since + BOUND_LIFETIME && most.own_packets != own_packets);
        if is_over {
            self.most = [Some(begun), *present];
        } else {
            let most = present.get_or_insert(begun);
            most.packets = most.packets.min(packets);
        }
    }
}

impl CopyDifferenceBound {
    fn is_exceeded(&self, least: i64, own: &PacketCount) -> bool {
        let share = own.packets.saturating_sub(self.own_packets) / TOLERATED_SHARE_DIVISOR;
        least.saturating_sub(self.packets) >= PACKET_TOLERANCE.saturating_add_unsigned(share)
    }
}
