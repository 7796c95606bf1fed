//! Totals of the groups of a rule in each time window. Does no I/O and reads no clock.
//!
//! A record counts in every window that it overlaps: its packets and bytes are divided among the windows in proportion
//! to the time. The flow counts only in the window in which the record begins.
//!
//! Invariant: the shares of a record add up to the totals of the record. The share of a window that is already closed
//! does not count, and the record counts as late.

use crate::top::{GroupSum, GroupTotals};
use packetrig_units::{Nanos, clamp_to_u64};
use std::collections::{BTreeMap, HashMap};

/// Maximum number of windows in which one record counts. A longer record counts only in the latest of its windows,
/// and counts as late.
const MAX_WINDOWS_OF_RECORD: u64 = 10_000;

/// The totals of the groups of a window, by the group's key.
pub(super) type WindowGroups = HashMap<Box<[u8]>, GroupTotals>;

/// A window that gets no more records and can be judged.
#[derive(Debug, Default)]
pub(super) struct ClosedWindow {
    /// Number of whole windows from 1970 to the start of this window.
    pub(super) number: u64,
    pub(super) groups: WindowGroups,
}

#[derive(Debug)]
pub(super) struct AlertWindows {
    length_ns: u64,
    open: BTreeMap<u64, WindowGroups>,
    /// Groups in all open windows.
    open_groups: usize,
    /// Number of the first window. Earlier windows are ignored, because they began before the sink was opened.
    first: u64,
    /// Number of the next window to close. All earlier windows are closed.
    next: u64,
    /// Number of the last window in which a record may end. A record that ends later was made with a wrong clock.
    last: u64,
    /// Records with a share that did not count, see [`Self::add_record`].
    pub(super) late_records: u64,
    /// Records that end after the window `last`, and are not counted.
    pub(super) future_records: u64,
}

impl AlertWindows {
    /// The first window is the earliest one that begins at `from_ns` or later.
    pub(super) fn new(length: Nanos, from_ns: u64) -> Self {
        let length_ns = length.as_u64();
        let first = from_ns.div_ceil(length_ns);
        Self {
            length_ns,
            open: BTreeMap::new(),
            open_groups: 0,
            first,
            next: first,
            last: u64::MAX,
            late_records: 0,
            future_records: 0,
        }
    }

    pub(super) const fn open_groups(&self) -> usize {
        self.open_groups
    }

    /// The number of the window that contains a time.
    const fn number_at(&self, at_ns: u64) -> u64 {
        at_ns / self.length_ns
    }

    /// Adds a record, or one direction of a record, to its group: each open window gets its share. The shares of closed
    /// windows do not count.
    pub(super) fn add_record(&mut self, key: &[u8], has: &GroupSum) {
        let first_ns = has.first_ns;
        let last_ns = has.last_ns.max(first_ns);
        let (begins, ends) = (self.number_at(first_ns), self.number_at(last_ns));
        if ends > self.last {
            self.future_records += 1;
            return;
        }
        let from = begins.max(ends.saturating_sub(MAX_WINDOWS_OF_RECORD - 1)).max(self.next);
        if begins.max(self.first) < from && ends >= self.first {
            self.late_records += 1;
        }
        for number in from..=ends {
            let span = (number.saturating_mul(self.length_ns), (number + 1).saturating_mul(self.length_ns));
            // Shares are rounded down. The last window gets the remainder, so that the shares add up.
            let span = (span.0, if number == ends { u64::MAX } else { span.1 });
            let GroupTotals { flows, packets, bytes } = has.sum;
            let sum = GroupTotals {
                flows: if number == begins { flows } else { 0 },
                packets: share_in_span(packets, (first_ns, last_ns), span),
                bytes: share_in_span(bytes, (first_ns, last_ns), span),
            };
            self.add_to_group(number, key, sum);
        }
    }

    fn add_to_group(&mut self, number: u64, key: &[u8], sum: GroupTotals) {
        let groups = self.open.entry(number).or_default();
        // A key is only copied for a new group.
        if let Some(group) = groups.get_mut(key) {
            group.add_totals(sum);
        } else {
            groups.insert(key.into(), sum);
            self.open_groups += 1;
        }
    }

    /// From now on, a record does not count if it ends in a later window than the one at `at_ns`.
    pub(super) fn set_latest_record_time(&mut self, at_ns: u64) {
        self.last = self.number_at(at_ns);
    }

    /// Closes windows that end at `at_ns` or before, and returns them in order. Of a series of windows without records,
    /// only the first is returned.
    pub(super) fn close_until(&mut self, at_ns: u64) -> Vec<ClosedWindow> {
        self.close_before(self.number_at(at_ns))
    }

    /// Closes the earliest window that has a record, and those before it.
    pub(super) fn close_earliest(&mut self) -> Vec<ClosedWindow> {
        let earliest = self.open.keys().next().copied();
        earliest.map_or_else(Vec::new, |number| self.close_before(number + 1))
    }

    /// Closes all windows that have records.
    pub(super) fn close_all(&mut self) -> Vec<ClosedWindow> {
        let latest = self.open.keys().next_back().copied();
        latest.map_or_else(Vec::new, |number| self.close_before(number + 1))
    }

    fn close_before(&mut self, end: u64) -> Vec<ClosedWindow> {
        let mut closed = Vec::new();
        while self.next < end {
            let found = self.open.keys().next().copied().filter(|&number| number < end);
            // The windows of records from files begin with the first record, so no empty window precedes it.
            let begins_with_records = self.next == 0 && self.first == 0;
            if found != Some(self.next) && !begins_with_records {
                closed.push(ClosedWindow { number: self.next, groups: WindowGroups::new() });
            }
            self.next = end;
            if let Some(number) = found {
                let groups = self.open.remove(&number).unwrap_or_default();
                self.open_groups -= groups.len();
                closed.push(ClosedWindow { number, groups });
                self.next = number + 1;
            }
        }
        closed
    }
}

/// Returns the share of a record's total in a time span, as if the rate was constant from the first to the last packet.
/// A span that ends at `u64::MAX` gets the whole remainder, even of a record without a duration.
fn share_in_span(total: u64, lasted: (u64, u64), span: (u64, u64)) -> u64 {
    let until_end = if span.1 == u64::MAX { total } else { share_until(total, lasted, span.1) };
    until_end - share_until(total, lasted, span.0)
}

fn share_until(total: u64, (first_ns, last_ns): (u64, u64), at_ns: u64) -> u64 {
    let passed = at_ns.clamp(first_ns, last_ns) - first_ns;
    let duration = u128::from((last_ns - first_ns).max(1));
    clamp_to_u64(u128::from(total) * u128::from(passed) / duration)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn record(first_s: u64, last_s: u64, bytes: u64) -> GroupSum {
        let sum = GroupTotals { flows: 1, packets: bytes / 10, bytes };
        GroupSum { sum, first_ns: first_s * SECOND, last_ns: last_s * SECOND, sampled_records: 0 }
    }

    fn bytes_by_window(closed: &[ClosedWindow]) -> Vec<(u64, u64)> {
        let sum = |window: &ClosedWindow| window.groups.values().map(|sum| sum.bytes).sum();
        closed.iter().map(|window| (window.number, sum(window))).collect()
    }

    #[test]
    fn record_counts_in_each_window_by_its_share() {
        let mut windows = AlertWindows::new(Nanos::from_secs(10), 0);
        windows.add_record(b"a", &record(105, 125, 4000));
        windows.add_record(b"b", &record(112, 112, 7));
        let closed = windows.close_all();
        assert_eq!(bytes_by_window(&closed), [(10, 1000), (11, 2007), (12, 1000)]);
        let flows = |window: &ClosedWindow| window.groups.values().map(|sum| sum.flows).sum::<u64>();
        assert_eq!(closed.iter().map(flows).collect::<Vec<_>>(), [1, 1, 0], "a flow counts where it began");
        assert_eq!(windows.open_groups(), 0);
    }

    #[test]
    fn part_of_a_record_after_its_window_is_late() {
        let mut windows = AlertWindows::new(Nanos::from_secs(10), 100 * SECOND);
        windows.add_record(b"a", &record(95, 115, 2000));
        assert_eq!(windows.late_records, 0, "nobody watched before");
        assert_eq!(bytes_by_window(&windows.close_until(112 * SECOND)), [(10, 1000)]);
        windows.add_record(b"a", &record(100, 120, 2000));
        assert_eq!(windows.late_records, 1);
        windows.add_record(b"a", &record(100, 109, 2000));
        windows.add_record(b"a", &record(90, 91, 2000));
        assert_eq!(windows.late_records, 2);
        assert_eq!(bytes_by_window(&windows.close_until(130 * SECOND)), [(11, 1500), (12, 0)]);
    }

    #[test]
    fn one_empty_window_stands_for_many() {
        let mut windows = AlertWindows::new(Nanos::from_secs(10), 100 * SECOND);
        windows.add_record(b"a", &record(1000, 1000, 5));
        let closed = bytes_by_window(&windows.close_until(5000 * SECOND));
        assert_eq!(closed, [(10, 0), (100, 5), (101, 0)]);
        assert!(windows.close_until(5000 * SECOND).is_empty());
        windows.set_latest_record_time(6000 * SECOND);
        windows.add_record(b"a", &record(7000, 7000, 5));
        assert_eq!((windows.future_records, windows.open_groups()), (1, 0));
    }

    proptest! {
        #[test]
        fn shares_add_up(first in 0..3000_u64, lasts in 0..100_000_u64, bytes: u64, length in 1..60_u64) {
            let has = GroupSum {
                sum: GroupTotals { flows: 1, packets: 9, bytes },
                first_ns: first * 77_777_777,
                last_ns: first * 77_777_777 + lasts * 999_999,
                sampled_records: 0,
            };
            let mut windows = AlertWindows::new(Nanos::from_secs(length), 0);
            windows.add_record(b"", &has);
            let mut sum = GroupTotals::default();
            for window in windows.close_all() {
                window.groups.values().for_each(|part| sum.add_totals(*part));
            }
            prop_assert_eq!(sum, has.sum);
        }
    }
}
