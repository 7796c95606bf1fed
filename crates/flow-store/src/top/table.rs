//! Groups by their keys, with their sums.

use super::GroupSum;
use crate::key_hash::KeyHasherBuilder;
use hashbrown::HashTable;
use std::hash::BuildHasher as _;

/// Groups by their keys. The keys follow one another in one buffer, so that a new group needs no allocation of its own.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupTable {
    hashes: KeyHasherBuilder,
    /// Indexes in `groups`, by hash.
    places: HashTable<u32>,
    groups: Vec<KeyedSum>,
    keys: Vec<u8>,
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
        let is_same = |place: &u32| {
            let group = &groups[*place as usize];
            // Different keys rarely have the same hash, so usually only one key is compared.
            group.hash == hash && group.key(keys) == key
        };
        if let Some(place) = places.find(hash, is_same) {
            groups[*place as usize].has.add_sum(has);
            return;
        }
        // The maximum number of groups and the maximum length of a key keep the buffer below 2^32 bytes.
        let to_place = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let place = to_place(groups.len());
        groups.push(KeyedSum { hash, key_start: to_place(keys.len()), key_length: to_place(key.len()), has });
        keys.extend_from_slice(key);
        places.insert_unique(hash, place, |place| groups[*place as usize].hash);
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
