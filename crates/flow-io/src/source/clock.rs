//! The time of a capture file, derived from the times of its packets.
//!
//! Every 32 packets form a group. The time is the later of the minimum times of the last two groups. A single
//! packet with a wrong time, too early or too late, does not move this time; if the whole capture goes back in
//! time, the clock follows.

/// Number of packets in a group.
const PACKETS_PER_GROUP: u32 = 32;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CaptureClock {
    /// Minimum times of the last two groups.
    least_ns: [u64; 2],
    /// Minimum time of the current group so far.
    group_least_ns: u64,
    packets: u32,
    latest_ns: u64,
}

impl CaptureClock {
    /// Adds a packet's time.
    #[inline]
    pub(super) fn add_time(&mut self, at_ns: u64) {
        self.group_least_ns = if self.packets == 0 { at_ns } else { self.group_least_ns.min(at_ns) };
        self.latest_ns = self.latest_ns.max(at_ns);
        self.packets += 1;
        if self.packets == PACKETS_PER_GROUP {
            self.least_ns = [self.least_ns[1], self.group_least_ns];
            self.packets = 0;
        }
    }

    /// Sets the time to one that another clock has derived from all packets so far.
    pub(super) const fn set_time(&mut self, now_ns: u64) {
        self.least_ns = [now_ns; 2];
        self.packets = 0;
    }

    /// Returns the latest time of all packets. It may be wrong, so it is used only at the end, when no packets follow.
    pub(super) const fn latest_ns(&self) -> u64 {
        self.latest_ns
    }

    /// Returns the time. During the first group, this is the earliest time seen.
    pub(super) fn capture_time_ns(&self) -> u64 {
        match self.least_ns {
            [0, 0] => self.group_least_ns,
            // A time that is too late is never the minimum of 32 packets. A time that is too early affects one group
            // only, and the other group's minimum is later.
            [one, other] => one.max(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(times: impl IntoIterator<Item = u64>) -> u64 {
        let mut clock = CaptureClock::default();
        for at_ns in times {
            clock.add_time(at_ns);
        }
        clock.capture_time_ns()
    }

    #[test]
    fn one_wrong_time_moves_nothing() {
        for wrong in [0, u64::MAX] {
            for at in 300..400 {
                let now_ns = after((0..500).map(|n| if n == at { wrong } else { 1000 + n }));
                assert!((1400..1500).contains(&now_ns), "{wrong} at {at}: {now_ns}");
            }
        }
    }

    #[test]
    fn it_goes_with_the_capture_forwards_and_back() {
        assert_eq!(after([7, 5, 9]), 5);
        assert_eq!(after((0..64).chain(1000..1064)), 1032);
        assert_eq!(after((1000..2000).chain(0..96)), 56);
    }
}
