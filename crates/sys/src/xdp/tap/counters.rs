//! Counters of the programs: one map with a value for each direction, for each mirror of a direction, and for each pair
//! of interfaces between which frames are redirected.
//!
//! The layout is that of `bpf/tap.bpf.c`; numbers only grow.

use super::{MAX_MIRRORS, TapForwardingRules};
use crate::Error;
use crate::bpf::{BpfMap, MapKind};
use crate::layout::tap::{failures, handed_book, inbound, outbound};
use packetrig_units::clamp_to_u32;
use std::path::Path;

/// Bytes of a value; all structures are of one size.
const VALUE_BYTES: usize = inbound::SIZE;
const _: () = assert!(
    VALUE_BYTES == outbound::SIZE && VALUE_BYTES == handed_book::SIZE && VALUE_BYTES == failures::SIZE
);
const DIRECTION_COUNT: u32 = 2;
const EXIT_COUNT: u32 = 10;
/// Index of the counts of frames that are redirected from the first side to its first exit.
pub(super) const FIRST_HANDED_INDEX: u32 = DIRECTION_COUNT + 16;
/// Index of the counts of failed redirects from the first side.
pub(super) const FIRST_FAILURE_INDEX: u32 = FIRST_HANDED_INDEX + DIRECTION_COUNT * EXIT_COUNT;
const COUNTER_COUNT: u32 = FIRST_FAILURE_INDEX + DIRECTION_COUNT;

/// Index of the counters for copies of a direction to a mirror.
pub(super) fn outbound_index(direction: usize, mirror: usize) -> u32 {
    DIRECTION_COUNT.saturating_add(clamp_to_u32(direction * MAX_MIRRORS + mirror))
}

/// Frames that arrived at a side (one of the two interfaces of the tap).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InboundCounts {
    pub received: u64,
    /// Bytes of the received frames, without FCS.
    pub bytes: u64,
    /// Frames that could not be forwarded because the other interface no longer exists.
    pub gone: u64,
    /// Frames to the destination address of a mirror's copies: forwarded and not copied, so that copies do not loop.
    pub own: u64,
    /// Frames that are too long to be copied: forwarded only.
    pub too_long: u64,
    /// Frames that are not to be copied: forwarded only.
    pub other: u64,
    /// Frames to be copied and forwarded.
    pub wanted: u64,
    /// Frames to be copied that had no space for the metadata that the trailer needs.
    pub unnoted: u64,
}

/// Copies for one mirror, of frames that arrived at one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutboundCounts {
    /// Copies that were passed on to the mirror's driver.
    pub passed: u64,
    pub bytes: u64,
    /// Copies that are too long for the mirror.
    pub too_long: u64,
    /// Copies without space for a trailer.
    pub no_room: u64,
}

/// What a driver did with the frames that were redirected to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverSendCounts {
    pub sent: u64,
    /// Frames that the driver refused, and frames that the program at the exit dropped.
    pub dropped: u64,
}

/// Redirects that failed before a driver got the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailedCounts {
    /// The peer was down.
    pub down: u64,
    /// The frame was longer than the peer accepts.
    pub too_long: u64,
    /// No memory for a clone.
    pub memory: u64,
    /// The peer accepts no redirected frames, or none in several buffers.
    pub deaf: u64,
    pub other: u64,
}

#[derive(Debug)]
pub struct TapCounts(BpfMap);

impl TapCounts {
    pub(super) fn create_map() -> Result<Self, Error> {
        Ok(Self(BpfMap::create_zeroed("books", MapKind::Counters, VALUE_BYTES, COUNTER_COUNT)?))
    }

    pub(super) fn open_pinned(path: &Path) -> Result<Self, Error> {
        Ok(Self(BpfMap::open_pinned(path, "books", VALUE_BYTES, COUNTER_COUNT)?))
    }

    pub(super) fn pin_at(&self, path: &Path) -> Result<(), Error> {
        self.0.pin_at(path)
    }

    pub(super) fn map(&self) -> &BpfMap {
        &self.0
    }

    fn read_counter_sums<const N: usize>(&self, index: u32) -> Result<[u64; N], Error> {
        let sums = self.0.sum_over_cpus(index)?;
        Ok(std::array::from_fn(|at| sums.get(at).copied().unwrap_or(0)))
    }

    /// Reads the counts of frames that arrived at a side.
    pub fn read_inbound_counts(&self, side: usize) -> Result<InboundCounts, Error> {
        let [received, bytes, gone, own, too_long, other, wanted, unnoted] =
            self.read_counter_sums(u32::from(side == 1))?;
        Ok(InboundCounts { received, bytes, gone, own, too_long, other, wanted, unnoted })
    }

    /// Reads the counts of copies that came to a mirror, made of frames that arrived at a side.
    pub fn read_outbound_counts(&self, side: usize, mirror: usize) -> Result<OutboundCounts, Error> {
        let [passed, bytes, too_long, no_room] = self.read_counter_sums(outbound_index(side, mirror))?;
        Ok(OutboundCounts { passed, bytes, too_long, no_room })
    }

    /// Reads the counts of frames that arrived at a side and were passed to the other.
    pub fn read_forwarded_counts(&self, side: usize) -> Result<DriverSendCounts, Error> {
        self.read_handover_counts(side, 1 - side.min(1))
    }

    /// Reads the counts of frames that arrived at a side and were handed to a mirror.
    pub fn read_mirrored_counts(&self, side: usize, mirror: usize) -> Result<DriverSendCounts, Error> {
        self.read_handover_counts(side, 2 + mirror)
    }

    fn read_handover_counts(&self, side: usize, exit: usize) -> Result<DriverSendCounts, Error> {
        let exit = clamp_to_u32(exit).min(EXIT_COUNT - 1);
        let [sent, dropped] =
            self.read_counter_sums(FIRST_HANDED_INDEX + u32::from(side == 1) * EXIT_COUNT + exit)?;
        Ok(DriverSendCounts { sent, dropped })
    }

    /// Reads the counts of redirects from a side that failed.
    pub fn read_failed_redirects(&self, side: usize) -> Result<FailedCounts, Error> {
        let [down, too_long, memory, other, deaf] =
            self.read_counter_sums(FIRST_FAILURE_INDEX + u32::from(side == 1))?;
        Ok(FailedCounts { down, too_long, memory, deaf, other })
    }
}

/// Numbers of all interfaces of the tap, first those of the two sides; unused entries are zero.
pub(super) fn list_tap_interfaces(orders: &TapForwardingRules) -> [u32; EXIT_COUNT as usize] {
    let mut places = [0; EXIT_COUNT as usize];
    let all = orders.sides.into_iter().chain(orders.mirrors.iter().map(|mirror| mirror.index));
    for (place, index) in places.iter_mut().zip(all) {
        *place = index;
    }
    places
}
