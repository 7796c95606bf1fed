//! The clock of a group's export: it has the wall clock's time when this process starts, and runs evenly from then on.
//!
//! Setting a clock moves the times of packets and all values computed from them. It must not move a watermark past
//! records that no meter has exported, and must not stop the watermark. On the wire, times are those of the sender's
//! wall clock at the moment of sending. So two members still understand each other if both wall clocks were set while
//! one of them was running and before the other one started.

use packetrig_flow::group::{Advertisement, NO_WHOLE_RECORD};
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Maximum number of senders whose clocks are remembered.
const MAX_CLOCKS: usize = 64;

/// Reads the time of the group, on a clock that continues while a machine is suspended.
pub fn group_time_ns() -> u64 {
    epoch_ns().saturating_add(clock::boottime_ns())
}

/// Reads `CLOCK_BOOTTIME`, which also counts the time of a suspended machine.
pub(crate) fn boottime_now() -> MonoTime {
    MonoTime::from_nanos(clock::boottime_ns())
}

/// Converts a time of the group to `CLOCK_BOOTTIME`; the result is not later than now.
pub fn boottime_of_group_time(group_ns: u64) -> MonoTime {
    MonoTime::from_nanos(group_ns.saturating_sub(epoch_ns()).min(clock::boottime_ns()))
}

fn epoch_ns() -> u64 {
    // The clock is read once: a wall clock that is set later must not move any time of the group.
    static EPOCH_NS: OnceLock<u64> = OnceLock::new();
    *EPOCH_NS.get_or_init(|| clock::wall_clock_ns().saturating_sub(clock::boottime_ns()))
}

/// Offset between two clocks. Small changes, such as the delay of a message, do not change it,
/// because members compare times.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SteadyClockOffset(i64);

impl SteadyClockOffset {
    /// Updates and returns the offset to add to a time of the clock `from` to get a time of the clock `to`.
    /// The arguments are the current times of both clocks.
    pub(super) fn update_offset(&mut self, from_ns: u64, to_ns: u64, tolerance: Nanos) -> i64 {
        let offset = to_ns.wrapping_sub(from_ns).cast_signed();
        // Small changes are ignored, because otherwise the delay of each message would change
        // times that members compare.
        if offset.abs_diff(self.0) > tolerance.as_u64() {
            self.0 = offset;
        }
        self.0
    }
}

/// Clock offsets of the members from which an advertisement has arrived.
#[derive(Debug, Default)]
pub(super) struct PeerClockOffsets(BTreeMap<u32, SteadyClockOffset>);

impl PeerClockOffsets {
    /// Converts the times of an advertisement that was sent at `sent_ns` into times of this process's group clock.
    pub(super) fn convert_to_group_clock(
        &mut self,
        advertisement: &Advertisement,
        sent_ns: u64,
        now_ns: u64,
        tolerance: Nanos,
    ) -> Advertisement {
        // To bound the memory, times of further senders stay as they are. The election limits its number of peers, too.
        if self.0.len() >= MAX_CLOCKS && !self.0.contains_key(&advertisement.meter) {
            return *advertisement;
        }
        let held = self.0.entry(advertisement.meter).or_default();
        shift_times(advertisement, held.update_offset(sent_ns, now_ns, tolerance))
    }
}

/// Converts the times of an advertisement to another clock.
pub(super) fn shift_times(advertisement: &Advertisement, offset: i64) -> Advertisement {
    Advertisement {
        seen_since_ns: shift_time(advertisement.seen_since_ns, offset),
        whole_from_ns: shift_time(advertisement.whole_from_ns, offset),
        watermark_ns: shift_time(advertisement.watermark_ns, offset),
        ..*advertisement
    }
}

/// Converts a time to another clock. Zero and the greatest number are markers, not times.
pub(super) const fn shift_time(ns: u64, offset: i64) -> u64 {
    if ns == 0 || ns == NO_WHOLE_RECORD { ns } else { ns.saturating_add_signed(offset) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::wire::tests::example;

    const HOUR: u64 = 3_600_000_000_000;
    const TOLERANCE: Nanos = Nanos::from_secs(1);

    #[test]
    fn delays_and_small_steps_move_no_time() {
        let mut clocks = PeerClockOffsets::default();
        for (sent_ns, now_ns) in [(HOUR, HOUR + 5), (HOUR, HOUR - 900_000_000), (HOUR, HOUR + 900_000_000)] {
            assert_eq!(clocks.convert_to_group_clock(&example(), sent_ns, now_ns, TOLERANCE), example());
        }
    }

    /// The clock of both machines was set forward, and this process was started before.
    #[test]
    fn clock_step_leaves_advertised_times_unchanged() {
        let mut own = SteadyClockOffset::default();
        assert_eq!(own.update_offset(5 * HOUR, 5 * HOUR + 7, TOLERANCE), 0);
        let offset = own.update_offset(5 * HOUR, 6 * HOUR + 7, TOLERANCE);
        assert_eq!(
            own.update_offset(5 * HOUR + 10, 6 * HOUR + 900, TOLERANCE),
            offset,
            "it does not tremble"
        );
        let sent = shift_times(&example(), offset);
        assert_eq!(sent.watermark_ns, example().watermark_ns + HOUR + 7);
        let heard =
            PeerClockOffsets::default().convert_to_group_clock(&sent, 6 * HOUR + 7, 5 * HOUR, TOLERANCE);
        assert_eq!(heard, example());
    }

    #[test]
    fn unset_times_are_not_shifted() {
        let nothing = Advertisement { watermark_ns: 0, whole_from_ns: NO_WHOLE_RECORD, ..example() };
        let there = shift_times(&nothing, -5);
        assert_eq!((there.watermark_ns, there.whole_from_ns), (0, NO_WHOLE_RECORD));
    }

    #[test]
    fn the_time_of_the_group_goes_forward() {
        let before = group_time_ns();
        assert!(before > 1_500_000_000 * 1_000_000_000 && group_time_ns() >= before);
    }
}
