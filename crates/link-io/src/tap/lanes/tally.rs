//! Counts of a lane and their published form. The lane publishes its counts once per batch, without a lock.

use super::super::account::{MirrorAccount, TapDirection, TapLossCause, UncopiedReason, nonzero_counts};
use super::super::place::TapState;
use packetrig_engine::packet::frames_lost_on_transmit;
use packetrig_sys::link::LinkCounters;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of the copies for a mirror.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MirrorCopies {
    /// Copies that the kernel accepted. The other copies were refused, found the ring full, were too long, or
    /// were for an interface that was down.
    pub(super) taken: u64,
    pub(super) bytes: u64,
    pub(super) refused: u64,
    pub(super) full: u64,
    pub(super) too_long: u64,
    pub(super) down: u64,
}

/// A lane's own counts.
#[derive(Clone, Debug, Default)]
pub(super) struct LaneTally {
    pub(super) received: u64,
    pub(super) bytes: u64,
    pub(super) ring: u64,
    pub(super) taken: u64,
    pub(super) refused: u64,
    pub(super) full: u64,
    pub(super) down: u64,
    pub(super) too_long: u64,
    pub(super) impaired: u64,
    pub(super) made: u64,
    pub(super) wanted: u64,
    pub(super) other: u64,
    pub(super) own: u64,
    pub(super) copies: Vec<MirrorCopies>,
}

/// Number of published values before the mirrors' values, and for each mirror.
const FIXED_VALUES: usize = 13;
const VALUES_PER_MIRROR: usize = 6;

impl LaneTally {
    pub(super) fn new(mirrors: usize) -> Self {
        Self { copies: vec![MirrorCopies::default(); mirrors], ..Self::default() }
    }

    fn fixed_numbers(&self) -> [u64; FIXED_VALUES] {
        [
            self.received,
            self.bytes,
            self.ring,
            self.taken,
            self.refused,
            self.full,
            self.down,
            self.too_long,
            self.impaired,
            self.made,
            self.wanted,
            self.other,
            self.own,
        ]
    }
}

#[derive(Debug)]
pub(super) struct PublishedTally {
    numbers: Vec<AtomicU64>,
    /// Frames that the lane has lost in its own rings up to `looked_ns`.
    lost: AtomicU64,
    looked_ns: AtomicU64,
}

impl PublishedTally {
    pub(super) fn new(mirrors: usize) -> Self {
        let numbers = (0..FIXED_VALUES + VALUES_PER_MIRROR * mirrors).map(|_| AtomicU64::new(0)).collect();
        Self { numbers, lost: AtomicU64::new(0), looked_ns: AtomicU64::new(0) }
    }

    /// Publishes the losses in the lane's own rings up to a time.
    pub(super) fn publish_losses(&self, looked_ns: u64, lost: u64) {
        self.lost.store(lost, Ordering::Relaxed);
        // The time is stored after the number: a reader that sees the time sees all losses up to it.
        self.looked_ns.store(looked_ns, Ordering::Release);
    }

    /// Returns a time, and the losses in the lane's own rings up to that time or a little later.
    pub(super) fn read_losses(&self) -> (u64, u64) {
        let looked_ns = self.looked_ns.load(Ordering::Acquire);
        (looked_ns, self.lost.load(Ordering::Relaxed))
    }

    pub(super) fn publish_tally(&self, tally: &LaneTally) {
        let copies =
            tally.copies.iter().flat_map(|c| [c.taken, c.bytes, c.refused, c.full, c.too_long, c.down]);
        for (place, value) in self.numbers.iter().zip(tally.fixed_numbers().into_iter().chain(copies)) {
            // The numbers are stored separately, so a reader may see counts of two batches. Rules between
            // them are checked only at the end.
            place.store(value, Ordering::Relaxed);
        }
    }

    fn number_at(&self, index: usize) -> u64 {
        self.numbers.get(index).map_or(0, |place| place.load(Ordering::Relaxed))
    }

    /// Computes the direction's account, with the transmit counters of the other side's driver.
    pub(super) fn direction_account(
        &self,
        state: &TapState,
        side: usize,
        transmitted: Option<LinkCounters>,
    ) -> TapDirection {
        let [received, bytes, ring, taken, refused, full, down, too_long, impaired, made, wanted, other, own] =
            std::array::from_fn(|index| self.number_at(index));
        // The driver may have dropped some of the accepted frames: its own counters show this, if it has any.
        let driver = transmitted.map_or(0, |c| frames_lost_on_transmit(taken, c.tx_frames, c.tx_dropped));
        let mirrors = state
            .mirrors
            .iter()
            .enumerate()
            .map(|(number, part)| self.mirror_account(number, &part.location));
        TapDirection {
            from: state.sides[side].location.clone(),
            to: state.sides[1 - side].location.clone(),
            // Frames that the ring lost had arrived, too.
            received: received + ring,
            received_bytes: bytes,
            made,
            forwarded: Some(taken - driver),
            dropped: nonzero_counts([
                (TapLossCause::Ring, ring),
                (TapLossCause::Driver, driver),
                (TapLossCause::TooLong, refused),
                (TapLossCause::Full, full),
                (TapLossCause::Down, down),
                (TapLossCause::TooLong, too_long),
                (TapLossCause::Impaired, impaired),
            ]),
            wanted,
            uncopied: nonzero_counts([
                (UncopiedReason::Unseen, ring),
                (UncopiedReason::Filter, other),
                (UncopiedReason::Own, own),
            ]),
            mirrors: mirrors.collect(),
        }
    }

    fn mirror_account(&self, number: usize, location: &str) -> MirrorAccount {
        let [taken, bytes, refused, full, too_long, down] =
            std::array::from_fn(|index| self.number_at(FIXED_VALUES + number * VALUES_PER_MIRROR + index));
        MirrorAccount {
            to: location.to_owned(),
            mirrored: Some(taken),
            bytes,
            dropped: nonzero_counts([
                (TapLossCause::TooLong, refused),
                (TapLossCause::Full, full),
                (TapLossCause::TooLong, too_long),
                (TapLossCause::Down, down),
            ]),
        }
    }
}
