//! The index of the flow table: hash -> slot, in buckets of one cache line.
//!
//! A flow is in its first bucket or, if that was full, in its second. The first bucket counts the flows that it sent
//! to their second one, so that a search usually ends after one cache line. If both buckets are full, one of their
//! sixteen flows moves to its own other bucket. Buckets hold tags of the hash, never keys, so a match must be
//! compared with the key.
//!
//! Invariant: a slot is in the index exactly once, in one of the two buckets of its flow's hash.

use super::hints::MemoryHints;
use super::memory;

pub(super) const NONE: u32 = u32::MAX;
/// Number of places for flows in a bucket.
const PLACES_PER_BUCKET: usize = 8;
/// Maximum load of the buckets: two thirds of their places.
const MAX_BUCKET_LOAD: (u64, u64) = (2, 3);
/// Limit of the counter of flows sent away; at the limit it no longer counts.
const SATURATED_COUNT: u16 = u16::MAX;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct FlowIndexBucket {
    /// Eight tags of 16 bits, four in each word; 0 means that the place is free.
    tags: [u64; 2],
    /// Number of flows for which this is the first bucket, and that are in their second one.
    sent_away: u16,
    slots: [u32; PLACES_PER_BUCKET],
}

const _: () = assert!(size_of::<FlowIndexBucket>() == 64, "one line of cache");

#[derive(Debug)]
pub(super) struct FlowIndex {
    buckets: Vec<FlowIndexBucket>,
    count: u64,
}

/// A place in the index: a bucket, and one of its lanes.
#[derive(Clone, Copy, Debug)]
struct FlowIndexPosition {
    bucket: usize,
    lane: usize,
}

impl FlowIndex {
    /// Creates an index for this many flows.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "there are fewer buckets than slots, whose numbers have 32 bits"
    )]
    pub(super) fn new<H: MemoryHints>(capacity: u32) -> Self {
        let count = (u64::from(capacity) * MAX_BUCKET_LOAD.1)
            .div_ceil(PLACES_PER_BUCKET as u64 * MAX_BUCKET_LOAD.0)
            .max(2);
        let empty = FlowIndexBucket { tags: [0; 2], sent_away: 0, slots: [NONE; PLACES_PER_BUCKET] };
        Self { buckets: memory::allocate_values::<H, _>(count as usize, empty), count }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(self.buckets.as_slice())
    }

    #[inline]
    pub(super) fn prefetch_first<H: MemoryHints>(&self, hash: u64) {
        if let Some(bucket) = self.buckets.get(self.first_bucket(hash)) {
            H::prefetch(bucket);
        }
    }

    /// Returns whether some flows of the first bucket are in their second one. If so, prefetches the second bucket of
    /// this hash.
    #[inline]
    pub(super) fn prefetch_second_if_used<H: MemoryHints>(&self, hash: u64) -> bool {
        let elsewhere = self.buckets[self.first_bucket(hash)].sent_away > 0;
        if elsewhere {
            H::prefetch(&self.buckets[self.second_bucket(hash)]);
        }
        elsewhere
    }

    /// Returns the first slot with a matching tag in the first bucket; [`NONE`] if no tag matches.
    #[inline]
    pub(super) fn first_slot_in_first_bucket(&self, hash: u64) -> u32 {
        self.buckets[self.first_bucket(hash)].first_candidate(hash_tag(hash))
    }

    /// Returns the first slot with a matching tag in the second bucket; [`NONE`] if no tag matches.
    #[inline]
    pub(super) fn first_slot_in_second_bucket(&self, hash: u64) -> u32 {
        self.buckets[self.second_bucket(hash)].first_candidate(hash_tag(hash))
    }

    /// Returns the slot with a matching tag for which `is_it` returns true; `None` if there is no such slot.
    pub(super) fn find_slot(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let first = &self.buckets[self.first_bucket(hash)];
        let found = first.find_slot(hash_tag(hash), &is_it);
        if found.is_some() || first.sent_away == 0 {
            return found;
        }
        self.buckets[self.second_bucket(hash)].find_slot(hash_tag(hash), &is_it)
    }

    /// Inserts a slot, unless both its buckets are full and no other flow can move. Returns whether it was inserted.
    pub(super) fn insert_slot(&mut self, hash: u64, slot: u32, hash_of: impl Fn(u32) -> u64) -> bool {
        let place = self.find_free_index_position(hash).or_else(|| self.make_bucket_room(hash, hash_of));
        if let Some(place) = place {
            self.put_slot(place, hash, slot);
        }
        place.is_some()
    }

    /// Removes a slot. Does nothing if the slot is not in the index.
    pub(super) fn remove_slot(&mut self, hash: u64, slot: u32) {
        if let Some(place) = self.find_index_position(hash, slot) {
            self.clear_index_position(place, hash);
        }
    }

    /// Returns the slots in both buckets of a hash.
    pub(super) fn neighbour_slots(&self, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let both = [self.first_bucket(hash), self.second_bucket(hash)];
        both.into_iter().flat_map(|bucket| self.buckets[bucket].slots).filter(|&slot| slot != NONE)
    }

    fn find_index_position(&self, hash: u64, slot: u32) -> Option<FlowIndexPosition> {
        [self.first_bucket(hash), self.second_bucket(hash)].into_iter().find_map(|bucket| {
            let lane = self.buckets[bucket].slots.iter().position(|&there| there == slot)?;
            Some(FlowIndexPosition { bucket, lane })
        })
    }

    fn find_free_index_position(&self, hash: u64) -> Option<FlowIndexPosition> {
        [self.first_bucket(hash), self.second_bucket(hash)].into_iter().find_map(|bucket| {
            let lane = lowest_lane(self.buckets[bucket].matching_lanes(0))?;
            Some(FlowIndexPosition { bucket, lane })
        })
    }

    /// Moves one flow of the two full buckets to its other bucket. Returns the place that is then free.
    #[cold]
    fn make_bucket_room(&mut self, hash: u64, hash_of: impl Fn(u32) -> u64) -> Option<FlowIndexPosition> {
        // One step is enough at the load of two thirds: in simulations with random keys, the first flow without a place
        // came at 92 %. The tags do not hold the whole hash, so the hash of the moved flow is computed from its key.
        for bucket in [self.first_bucket(hash), self.second_bucket(hash)] {
            for lane in 0..PLACES_PER_BUCKET {
                let slot = self.buckets[bucket].slots[lane];
                let theirs = hash_of(slot);
                if let Some(free) = self.find_free_index_position(theirs) {
                    let place = FlowIndexPosition { bucket, lane };
                    self.clear_index_position(place, theirs);
                    self.put_slot(free, theirs, slot);
                    return Some(place);
                }
            }
        }
        None
    }

    fn put_slot(&mut self, place: FlowIndexPosition, hash: u64, slot: u32) {
        let first = self.first_bucket(hash);
        if place.bucket != first {
            let sent_away = &mut self.buckets[first].sent_away;
            *sent_away = sent_away.saturating_add(1);
        }
        let bucket = &mut self.buckets[place.bucket];
        bucket.slots[place.lane] = slot;
        bucket.set_tag(place.lane, hash_tag(hash));
    }

    fn clear_index_position(&mut self, place: FlowIndexPosition, hash: u64) {
        let first = self.first_bucket(hash);
        if place.bucket != first {
            let sent_away = &mut self.buckets[first].sent_away;
            // A counter at its maximum no longer knows the number of flows. It stays there, and searches
            // continue in the second bucket.
            *sent_away -= u16::from(*sent_away != SATURATED_COUNT);
        }
        let bucket = &mut self.buckets[place.bucket];
        bucket.slots[place.lane] = NONE;
        bucket.set_tag(place.lane, 0);
    }

    #[inline]
    fn first_bucket(&self, hash: u64) -> usize {
        self.scale_to_bucket(hash >> 32)
    }

    #[inline]
    fn second_bucket(&self, hash: u64) -> usize {
        self.scale_to_bucket(hash & 0xffff_ffff)
    }

    /// Maps 32 bits to a bucket, without a division: the number of buckets is no power of two.
    #[inline]
    const fn scale_to_bucket(&self, bits: u64) -> usize {
        ((bits * self.count) >> 32) as usize
    }
}

impl FlowIndexBucket {
    #[inline]
    fn first_candidate(&self, tag: u16) -> u32 {
        lowest_lane(self.matching_lanes(tag)).map_or(NONE, |lane| self.slots[lane])
    }

    fn find_slot(&self, tag: u16, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let mut lanes = self.matching_lanes(tag);
        while let Some(lane) = lowest_lane(lanes) {
            if is_it(self.slots[lane]) {
                return Some(self.slots[lane]);
            }
            // Clears the lowest bit that is set: the lane just looked at.
            let lanes_word = &mut lanes[lane / 4];
            *lanes_word &= *lanes_word - 1;
        }
        None
    }

    /// Returns the lanes with this tag, each as the highest bit of its 16 bits.
    #[inline]
    fn matching_lanes(&self, tag: u16) -> [u64; 2] {
        const ONE_IN_EACH_LANE: u64 = 0x0001_0001_0001_0001;
        const LOW_LANE_BITS: u64 = 0x7fff_7fff_7fff_7fff;
        // Eight tags are compared at once, four in each word. A lane that equals the tag becomes zero. Adding 0x7fff to
        // the low bits of a lane sets its highest bit unless they are zero, and carries into no other lane.
        let wanted = u64::from(tag) * ONE_IN_EACH_LANE;
        self.tags.map(|tags| {
            let different = tags ^ wanted;
            !((different & LOW_LANE_BITS).wrapping_add(LOW_LANE_BITS) | different | LOW_LANE_BITS)
        })
    }

    const fn set_tag(&mut self, lane: usize, tag: u16) {
        let shift = lane % 4 * 16;
        let word = &mut self.tags[lane / 4];
        *word = *word & !(0xffff << shift) | (tag as u64) << shift;
    }
}

/// Returns the lowest of these lanes; `None` if there are none.
#[inline]
const fn lowest_lane(lanes: [u64; 2]) -> Option<usize> {
    match lanes {
        [0, 0] => None,
        [0, high] => Some(4 + high.trailing_zeros() as usize / 16),
        [low, _] => Some(low.trailing_zeros() as usize / 16),
    }
}

/// Returns bits of the hash that choose neither bucket, as long as there are less than 2^24 buckets; never 0.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "sixteen bits are picked")]
const fn hash_tag(hash: u64) -> u16 {
    let tag = (hash >> 24 & 0xff00 | hash & 0xff) as u16;
    // Zero marks a free lane, see `FlowIndexBucket::tags`.
    if tag == 0 { 1 } else { tag }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::WordHasher;

    /// Flows are found as long as they are in, at the load that the options promise, and nothing is
    /// ever without a place.
    #[test]
    fn a_full_index_has_every_flow() {
        const FLOWS: u32 = 100_000;
        let hasher = WordHasher::new([1, 2]);
        let hash = |slot: u32| hasher.hash_two_words([u64::from(slot), 0]);
        let mut index = FlowIndex::new::<()>(FLOWS);
        for slot in 0..FLOWS {
            assert!(index.insert_slot(hash(slot), slot, hash), "{slot}");
        }
        for slot in (0..FLOWS).step_by(2) {
            index.remove_slot(hash(slot), slot);
        }
        for slot in 0..FLOWS {
            let found = index.find_slot(hash(slot), |there| there == slot);
            assert_eq!(found, (slot % 2 == 1).then_some(slot));
        }
        for slot in (1..FLOWS).step_by(2) {
            index.remove_slot(hash(slot), slot);
        }
        assert!(index.buckets.iter().all(|bucket| bucket.sent_away == 0 && bucket.tags == [0; 2]));
    }

    /// Flows that all want the same two buckets: sixteen find a place, the next does not, and takes none.
    #[test]
    fn a_flood_of_one_hash_fills_two_buckets() {
        let mut index = FlowIndex::new::<()>(1000);
        let hash = 0x1234_5678_9abc_def0;
        let inserted = (0..20).filter(|&slot| index.insert_slot(hash, slot, |_| hash)).count();
        assert_eq!(inserted, 16);
        assert_eq!(index.neighbour_slots(hash).count(), 16);
        assert_eq!(index.find_slot(hash, |slot| slot == 15), Some(15));
        assert_eq!(index.find_slot(hash, |slot| slot == 16), None);
    }
}
