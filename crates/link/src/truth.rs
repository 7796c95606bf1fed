//! Records the actions of an impairer frame by frame, and computes from them the counts that a
//! correct receiver must find.

use super::{FrameActions, FrameIdentity, FrameObserver};
use std::collections::{BTreeMap, BTreeSet};

/// What happened to the frames of one key that arrived on one port. Positions count from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyFrameTruth {
    pub received: u64,
    /// Positions of the frames in the order of departure, including copies; the same for each port on which they leave.
    pub departures: Vec<u64>,
    /// Positions that a rule dropped, or that found no room in the queue for any copy.
    pub dropped: BTreeSet<u64>,
    /// Positions of frames with damaged payload.
    pub corrupted: BTreeSet<u64>,
    /// Positions of frames with changed headers.
    pub rewritten: BTreeSet<u64>,
    /// Number of additional copies, by position.
    pub duplicated: BTreeMap<u64, u32>,
    pub held: BTreeSet<u64>,
    pub delayed: u64,
}

/// Counts that a receiver behind the device must find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedCounts {
    /// Frames sent into the device.
    pub sent: u64,
    /// Distinct frames that came out.
    pub unique: u64,
    /// Frames that did not come out.
    pub lost: u64,
    /// Number of runs of consecutive lost frames.
    pub loss_bursts: u64,
    /// Length of the longest burst.
    pub longest_burst: u64,
    /// Copies beyond the first.
    pub duplicates: u64,
    /// First copies that came out after a later frame (RFC 4737 section 3.3).
    pub reordered: u64,
    /// Largest reordering extent of these frames (RFC 4737 section 4.2.2).
    pub max_extent: u64,
    /// Departures, copies included, with a damaged payload.
    pub corrupt: u64,
    /// Departures, copies included, with changed headers and an intact payload.
    pub altered: u64,
}

/// What happened to the frames, by key. Everything is in memory, because tests have few frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyTruths(pub BTreeMap<u32, KeyFrameTruth>);

impl FrameObserver for KeyTruths {
    fn on_arrival(&mut self, place: FrameIdentity, deeds: &FrameActions, _: &[u8]) {
        let FrameIdentity { key, position } = place;
        let truth = self.0.entry(key).or_default();
        truth.received += 1;
        // A frame that was not dropped is lost only if neither it nor one of its copies fitted into the queue.
        if deeds.dropped || deeds.overflowed > deeds.copies {
            truth.dropped.insert(position);
        }
        if deeds.corrupted.is_some() {
            truth.corrupted.insert(position);
        }
        if deeds.rewritten {
            truth.rewritten.insert(position);
        }
        let copies = deeds.copies.saturating_sub(deeds.overflowed);
        if copies > 0 {
            truth.duplicated.insert(position, copies);
        }
        if deeds.held_for > 0 {
            truth.held.insert(position);
        }
        truth.delayed += u64::from(deeds.is_delayed);
    }

    fn on_departure(&mut self, place: FrameIdentity) {
        self.0.entry(place.key).or_default().departures.push(place.position);
    }
}

impl KeyFrameTruth {
    /// Computes the counts that a receiver must find. The code is deliberately simple, because faster code
    /// is checked against it.
    pub fn expected_counts(&self) -> ExpectedCounts {
        let unique: BTreeSet<u64> = self.departures.iter().copied().collect();
        let corrupt = self.departures.iter().filter(|p| self.corrupted.contains(p));
        let rewritten = self.departures.iter().filter(|p| self.rewritten.contains(p));
        let altered = rewritten.filter(|p| !self.corrupted.contains(p));
        let mut accounts = ExpectedCounts {
            sent: self.received,
            unique: unique.len() as u64,
            // A position departs only after it has arrived, so this does not underflow.
            lost: self.received - unique.len() as u64,
            duplicates: (self.departures.len() - unique.len()) as u64,
            corrupt: corrupt.count() as u64,
            altered: altered.count() as u64,
            ..ExpectedCounts::default()
        };
        self.add_expected_loss_bursts(&unique, &mut accounts);
        self.add_expected_reordering(&mut accounts);
        accounts
    }

    fn add_expected_loss_bursts(&self, unique: &BTreeSet<u64>, accounts: &mut ExpectedCounts) {
        let mut run = 0;
        for position in 0..self.received {
            if unique.contains(&position) {
                run = 0;
                continue;
            }
            run += 1;
            accounts.loss_bursts += u64::from(run == 1);
            accounts.longest_burst = accounts.longest_burst.max(run);
        }
    }

    fn add_expected_reordering(&self, accounts: &mut ExpectedCounts) {
        let mut first_copies: Vec<u64> = Vec::new();
        let mut seen = BTreeSet::new();
        // For each departure, the largest position so far. The list is sorted, so a binary search finds
        // the earliest larger position.
        let mut largest: Vec<u64> = Vec::new();
        for position in &self.departures {
            // A copy of an earlier frame is a duplicate, and does not count for the order.
            if !seen.insert(*position) {
                continue;
            }
            let earliest_later = largest.partition_point(|so_far| so_far < position);
            if earliest_later < largest.len() {
                let extent = (first_copies.len() - earliest_later) as u64;
                accounts.reordered += 1;
                accounts.max_extent = accounts.max_extent.max(extent);
            }
            first_copies.push(*position);
            largest.push(largest.last().map_or(*position, |so_far| *position.max(so_far)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth(received: u64, departures: &[u64]) -> ExpectedCounts {
        KeyFrameTruth { received, departures: departures.to_vec(), ..KeyFrameTruth::default() }
            .expected_counts()
    }

    #[test]
    fn loss_runs_and_copies_are_counted() {
        let accounts = truth(10, &[0, 1, 1, 4, 5, 5, 5, 7]);
        assert_eq!((accounts.unique, accounts.lost, accounts.duplicates), (5, 5, 3));
        assert_eq!((accounts.loss_bursts, accounts.longest_burst, accounts.reordered), (3, 2, 0));
    }

    #[test]
    fn extents_are_those_of_the_rfc_s_definition() {
        // Frame 3 arrives after 4 and 5: the earliest later one came two places before it.
        let accounts = truth(7, &[1, 2, 4, 5, 3, 0, 6]);
        assert_eq!((accounts.reordered, accounts.max_extent, accounts.lost), (2, 5, 0));
        assert_eq!(truth(3, &[0, 1, 2]).reordered, 0);
    }

    #[test]
    fn late_copy_is_duplicate_not_reordering() {
        let accounts = truth(3, &[0, 1, 2, 0]);
        assert_eq!((accounts.duplicates, accounts.reordered), (1, 0));
    }
}
