//! Groups by their keys, with their sums.

use super::GroupSum;
use crate::key_hash::KeyHasherBuilder;
use hashbrown::HashTable;
use std::hash::BuildHasher as _;

/// Groups by their keys. The keys follow one another in one buffer, so that a new group needs no allocation of its own.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupTable {
    hashes: KeyHasherBuilder,
    places: HashTable<GroupPlace>,
    groups: Vec<KeyedSum>,
    keys: Vec<u8>,
}

/// Where a group lies.
#[derive(Clone, Copy, Debug)]
struct GroupPlace {
    /// Part of the hash. With it, a search rarely reads the groups themselves.
    tag: u32,
    /// Index in `groups`.
    index: u32,
}

impl GroupPlace {
    const fn tag_of_hash(hash: u64) -> u32 {
        // The table itself uses the lowest and the highest bits.
        let [_, _, _, a, b, c, d, _] = hash.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

/// Number of rows that are added together.
pub(super) const ROWS_PER_BATCH: usize = 128;

/// Rows that wait to be added to their groups: keys, hashes and sums.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingRows {
    keys: Vec<u8>,
    /// Where the key of each row ends in `keys`.
    ends: Vec<usize>,
    rows: Vec<(u64, GroupSum)>,
}

impl PendingRows {
    pub(super) const fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn add_row(&mut self, hash: u64, key: &[u8], has: GroupSum) {
        self.keys.extend_from_slice(key);
        self.ends.push(self.keys.len());
        self.rows.push((hash, has));
    }

    /// The hashes and sums of the rows.
    pub(super) fn rows(&self) -> &[(u64, GroupSum)] {
        &self.rows
    }

    fn key(&self, row: usize) -> &[u8] {
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.keys[start..self.ends[row]]
    }

    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.ends.clear();
        self.rows.clear();
    }
}

#[derive(Clone, Debug)]
struct KeyedSum {
    hash: u64,
    /// Where the key begins in the buffer, and its length. With 32 bits, a group fits into one cache line.
    key_start: u32,
    key_length: u32,
    has: GroupSum,
}

impl KeyedSum {
    /// Different keys rarely have the same hash, so usually only one key is compared.
    fn is_group_of(&self, hash: u64, key: &[u8], keys: &[u8]) -> bool {
        self.hash == hash && self.key(keys) == key
    }

    fn key<'a>(&self, keys: &'a [u8]) -> &'a [u8] {
        let start = self.key_start as usize;
        &keys[start..start + self.key_length as usize]
    }
}

impl GroupTable {
    pub(super) const fn len(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn hash_key(&self, key: &[u8]) -> u64 {
        self.hashes.hash_one(key)
    }

    /// Adds a sum to the group of a key. A new group is created.
    pub(super) fn add_to_group(&mut self, hash: u64, key: &[u8], has: GroupSum) {
        let Self { places, groups, keys, .. } = self;
        let tag = GroupPlace::tag_of_hash(hash);
        let is_same = |place: &GroupPlace| {
            place.tag == tag && groups[place.index as usize].is_group_of(hash, key, keys)
        };
        if let Some(place) = places.find(hash, is_same) {
            groups[place.index as usize].has.add_sum(has);
            return;
        }
        // The maximum number of groups and the maximum length of a key keep the buffer below 2^32 bytes.
        let to_place = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let place = GroupPlace { tag, index: to_place(groups.len()) };
        groups.push(KeyedSum { hash, key_start: to_place(keys.len()), key_length: to_place(key.len()), has });
        keys.extend_from_slice(key);
        places.insert_unique(hash, place, |place| groups[place.index as usize].hash);
    }

    /// Adds rows to their groups, but only those for which `is_counted` is true.
    ///
    /// Each group is somewhere else in memory. In steps over many rows, the processor waits for several of them at a time;
    /// row by row, it would wait for one after the other.
    pub(super) fn add_rows_to_groups(&mut self, rows: &PendingRows, is_counted: &[bool]) {
        let count = rows.len().min(ROWS_PER_BATCH);
        let mut indexes = [u32::MAX; ROWS_PER_BATCH];
        for (index, (hash, _)) in indexes.iter_mut().zip(rows.rows()) {
            let tag = GroupPlace::tag_of_hash(*hash);
            *index = self.places.find(*hash, |place| place.tag == tag).map_or(u32::MAX, |place| place.index);
        }
        let mut key_starts = [None; ROWS_PER_BATCH];
        for ((start, index), (hash, _)) in key_starts.iter_mut().zip(indexes).zip(rows.rows()) {
            let group = self.groups.get(index as usize).filter(|group| group.hash == *hash);
            *start = group.map(|group| group.key_start as usize);
        }
        // Reads the first byte of each key, so that the whole key is there when it is compared.
        let mut is_similar = [false; ROWS_PER_BATCH];
        for (row, start) in key_starts.into_iter().enumerate().take(count) {
            let first = rows.key(row).first();
            is_similar[row] = start.is_some_and(|start| first.is_none() || self.keys.get(start) == first);
        }
        for (row, (hash, has)) in rows.rows().iter().enumerate().filter(|(row, _)| is_counted[*row]) {
            let key = rows.key(row);
            match self.groups.get_mut(indexes[row] as usize) {
                Some(group) if is_similar[row] && group.is_group_of(*hash, key, &self.keys) => {
                    group.has.add_sum(*has);
                }
                _ => self.add_to_group(*hash, key, *has),
            }
        }
    }

    /// All groups: hash, key and sum.
    pub(super) fn groups(&self) -> impl Iterator<Item = (u64, &[u8], GroupSum)> {
        self.groups.iter().map(|group| (group.hash, group.key(&self.keys), group.has))
    }

    /// Removes the groups for whose hashes `is_kept` returns false.
    pub(super) fn retain_groups(&mut self, is_kept: impl Fn(u64) -> bool) {
        if self.groups.iter().all(|group| is_kept(group.hash)) {
            return;
        }
        let all = std::mem::replace(self, Self { hashes: self.hashes, ..Self::default() });
        for (hash, key, has) in all.groups().filter(|(hash, ..)| is_kept(*hash)) {
            self.add_to_group(hash, key, has);
        }
    }
}
