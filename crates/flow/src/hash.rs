//! Two hashes of flows: the hash of the flow table, under a secret key, and the flow number in records.
//!
//! The two hashes have separate keys. Every process draws a new key for the table, so that an attacker cannot choose
//! packets whose flows share one bucket. The table's hashes never leave the process, because they would reveal the key.
//! The user may set the key of the flow numbers, so that several meters and readers agree on them. A flow's number is
//! the same for both directions.
//!
//! The hash multiplies two words to 128 bits and folds the halves. It is no message authentication code, and the table
//! does not need one: it compares whole keys and looks in at most two buckets.

use crate::canonical::CanonicalKey;
use crate::key::FlowKey;
use std::fmt;

/// Hashes words under a key.
#[derive(Clone, Copy)]
pub struct WordHasher {
    seeds: [u64; 8],
}

/// Shows no seeds, because they reveal the key.
impl fmt::Debug for WordHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hasher").finish_non_exhaustive()
    }
}

impl WordHasher {
    /// Creates a hasher with a key of 128 bits.
    pub const fn new(key: [u64; 2]) -> Self {
        let mut seeds = [0; 8];
        let mut n = 0;
        while n < seeds.len() {
            let word = key[n % 2].wrapping_add((n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            // Every seed is odd: a seed of zero would make a product zero.
            seeds[n] = spread_bits(spread_bits(word) ^ key[(n + 1) % 2]) | 1;
            n += 1;
        }
        Self { seeds }
    }

    #[inline]
    pub const fn hash_two_words(&self, words: [u64; 2]) -> u64 {
        // Each word is combined with a secret before the multiplication, so that an attacker cannot choose a factor of
        // zero. A second product spreads the result over all bits: bucket and tag use different bits.
        let [s0, s1, s2, s3, ..] = self.seeds;
        fold_product(fold_product(words[0] ^ s0, words[1] ^ s1) ^ s2, s3)
    }

    /// Hashes six words to 128 bits.
    #[inline]
    pub const fn hash_six_words(&self, words: &[u64; 6]) -> [u64; 2] {
        let [s0, s1, s2, s3, s4, s5, s6, s7] = self.seeds;
        let a = fold_product(words[0] ^ s0, words[1] ^ s1);
        let b = fold_product(words[2] ^ s2, words[3] ^ s3);
        let c = fold_product(words[4] ^ s4, words[5] ^ s5);
        let all = fold_product(a ^ s6, b ^ s7);
        // 128 bits: two products of the same parts under different seeds. For a key that is too long for its slot, the
        // table stores this hash, and compares the key itself only if the hashes agree.
        [fold_product(all ^ s1, c ^ s2), fold_product(all ^ s3, c ^ s0)]
    }
}

/// Computes the numbers of flows under a key.
#[derive(Clone, Copy, Debug)]
pub struct FlowIds(WordHasher);

impl FlowIds {
    pub const fn new(id_key: [u64; 2]) -> Self {
        Self(WordHasher::new(id_key))
    }

    /// Computes the number of a flow, the same for both directions.
    #[inline]
    pub fn flow_id(&self, key: &FlowKey) -> u64 {
        self.0.hash_six_words(&CanonicalKey::from_key(key).words)[0]
    }
}

/// Computes the number of a flow under a key; for many flows, keep a [`FlowIds`].
pub fn flow_id(key: &FlowKey, id_key: [u64; 2]) -> u64 {
    FlowIds::new(id_key).flow_id(key)
}

/// 32 bits of SuperFastHash (Paul Hsieh, 2004), which the first flow meters used; for comparison only. It has no key.
pub fn super_fast_hash(bytes: &[u8]) -> u32 {
    let Ok(length) = u32::try_from(bytes.len()) else { return 0 };
    if length == 0 {
        return 0;
    }
    let fours = bytes.chunks_exact(4);
    let rest = fours.remainder();
    let mut hash = fours.fold(length, |hash, four| {
        let sum = hash.wrapping_add(little_endian_16(four[0], four[1]));
        let hash = (sum << 16) ^ (little_endian_16(four[2], four[3]) << 11) ^ sum;
        hash.wrapping_add(hash >> 11)
    });
    match *rest {
        [a, b, c] => {
            hash = hash.wrapping_add(little_endian_16(a, b));
            hash ^= hash << 16;
            hash ^= sign_extended(c) << 18;
            hash = hash.wrapping_add(hash >> 11);
        }
        [a, b] => {
            hash = hash.wrapping_add(little_endian_16(a, b));
            hash ^= hash << 11;
            hash = hash.wrapping_add(hash >> 17);
        }
        [a] => {
            hash = hash.wrapping_add(sign_extended(a));
            hash ^= hash << 10;
            hash = hash.wrapping_add(hash >> 1);
        }
        _ => {}
    }
    for (left, right) in [(3, 5), (4, 17), (25, 6)] {
        hash ^= hash << left;
        hash = hash.wrapping_add(hash >> right);
    }
    hash
}

fn little_endian_16(low: u8, high: u8) -> u32 {
    u32::from(low) | u32::from(high) << 8
}

/// The reference code reads the last byte as a `signed char`, so bytes from 0x80 on bring their sign bits along.
fn sign_extended(byte: u8) -> u32 {
    i32::from(byte.cast_signed()).cast_unsigned()
}

/// Multiplies two words and folds both halves of the product.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the halves of a product")]
pub const fn fold_product(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

/// A one-to-one mapping of a word; all bits of the result depend on all bits of the word.
const fn spread_bits(word: u64) -> u64 {
    // The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests;
