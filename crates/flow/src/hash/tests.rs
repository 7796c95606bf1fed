use super::*;
use std::collections::{BTreeMap, BTreeSet};

/// The nth of a fixed series of numbers that look random.
fn random(n: u64) -> u64 {
    spread_bits(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The least and greatest share of samples in which a bit of the output turned when one of the input did.
fn avalanche(bits: u32, hash: impl Fn(u64, Option<u32>) -> u64) -> (f64, f64) {
    const SAMPLES: u64 = 3000;
    let mut shares = Vec::new();
    for bit in 0..bits {
        let mut turned = [0_u32; 64];
        for sample in 0..SAMPLES {
            let changed = hash(sample, None) ^ hash(sample, Some(bit));
            for (n, count) in turned.iter_mut().enumerate() {
                *count += u32::from(changed >> n & 1 == 1);
            }
        }
        shares.extend(turned.map(|count| f64::from(count) / SAMPLES as f64));
    }
    let least = shares.iter().copied().fold(1.0, f64::min);
    (least, shares.into_iter().fold(0.0, f64::max))
}

#[test]
fn two_word_hash_flips_half_its_bits() {
    let hasher = WordHasher::new([1, 2]);
    let (least, most) = avalanche(128, |sample, bit| {
        let mut words = [random(sample), random(!sample)];
        if let Some(bit) = bit {
            words[bit as usize / 64] ^= 1 << (bit % 64);
        }
        hasher.hash_two_words(words)
    });
    assert!(least > 0.45 && most < 0.55, "{least} {most}");
}

#[test]
fn six_word_hash_flips_half_its_bits() {
    let hasher = WordHasher::new([3, 4]);
    for half in 0..2 {
        let (least, most) = avalanche(384, |sample, bit| {
            let mut words = [0, 1, 2, 3, 4, 5].map(|word| random(sample * 8 + word));
            if let Some(bit) = bit {
                words[bit as usize / 64] ^= 1 << (bit % 64);
            }
            hasher.hash_six_words(&words)[half]
        });
        assert!(least > 0.45 && most < 0.55, "{least} {most}");
    }
}

/// Addresses that count up, as real ones do, are spread as chance would: chi-square over 1024 bins.
#[test]
fn sequential_keys_hash_uniformly() {
    const BINS: usize = 1024;
    const KEYS: u64 = 1 << 18;
    let hasher = WordHasher::new([5, 6]);
    for shift in [0, 10, 54] {
        let mut bins = vec![0_u64; BINS];
        for n in 0..KEYS {
            let hash = hasher.hash_two_words([0xc612_0000_c613_0000 + n, 0x1234_0050_1100_0100]);
            bins[usize::try_from(hash >> shift & 1023).unwrap()] += 1;
        }
        let expected = KEYS as f64 / BINS as f64;
        let chi: f64 = bins.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum();
        // 1023 degrees of freedom: mean 1023, deviation 45.
        assert!((800.0..1250.0).contains(&chi), "{shift}: {chi}");
    }
}

/// Keys that meet in one bucket under one process's key do not meet in another process.
#[test]
fn keys_chosen_against_another_secret_do_not_meet() {
    let (known, ours) = (WordHasher::new([7, 8]), WordHasher::new([9, 10]));
    let bucket = |hasher: &WordHasher, words| hasher.hash_two_words(words) >> 52;
    let chosen: Vec<[u64; 2]> =
        (0..1 << 22).map(|n| [random(n), 17]).filter(|&words| bucket(&known, words) == 0).collect();
    assert!(chosen.len() > 800, "{}", chosen.len());
    let mut loads = BTreeMap::new();
    for words in &chosen {
        *loads.entry(bucket(&ours, *words)).or_insert(0) += 1;
    }
    // A thousand keys over 4096 buckets: more than eight in one happen once in 10^7.
    assert!(loads.values().all(|&load| load <= 8), "{:?}", loads.values().max());
}

#[test]
fn flow_id_ignores_direction_but_depends_on_key() {
    let key = FlowKey {
        source: [1; 16],
        destination: [2; 16],
        source_port: 5,
        destination_port: 6,
        protocol: 17,
        ..FlowKey::default()
    };
    assert_eq!(flow_id(&key, [0, 0]), flow_id(&key.opposite_direction(), [0, 0]));
    assert_ne!(flow_id(&key, [0, 0]), flow_id(&key, [0, 1]));
    assert_ne!(flow_id(&key, [0, 0]), flow_id(&FlowKey { vlan: 1, ..key }, [0, 0]));
}

/// Numbers are compared between machines and kept in files: they must not change.
#[test]
fn numbers_of_flows_are_stable() {
    let key = FlowKey {
        source: [1; 16],
        destination: [2; 16],
        source_port: 5,
        destination_port: 6,
        protocol: 17,
        ..FlowKey::default()
    };
    assert_eq!(flow_id(&key, [0, 0]), GOLDEN);
}

const GOLDEN: u64 = 7_684_408_872_256_565_788;

#[test]
fn numbers_of_a_million_flows_are_distinct() {
    let ids = FlowIds::new([11, 12]);
    let numbers: BTreeSet<u64> = (0..1_u32 << 20)
        .map(|n| {
            let mut key = FlowKey { protocol: 17, ..FlowKey::default() };
            key.source[12..].copy_from_slice(&n.to_be_bytes());
            ids.flow_id(&key)
        })
        .collect();
    assert_eq!(numbers.len(), 1 << 20);
}

/// Worked by hand from the description: lengths 1 to 4 take each of its branches.
#[test]
fn super_fast_hash_takes_every_branch() {
    let tail = |mut hash: u32| {
        hash ^= hash << 3;
        hash = hash.wrapping_add(hash >> 5);
        hash ^= hash << 4;
        hash = hash.wrapping_add(hash >> 17);
        hash ^= hash << 25;
        hash.wrapping_add(hash >> 6)
    };
    assert_eq!(super_fast_hash(&[]), 0);
    // 1 + 1 = 2; 2 ^ 0x800 = 0x802; + 0x401 = 0xc03
    assert_eq!(super_fast_hash(&[1]), tail(0xc03));
    // 2 + 1 = 3; 3 ^ 0x1800 = 0x1803; + 0
    assert_eq!(super_fast_hash(&[1, 0]), tail(0x1803));
    // 3 + 1 = 4; 4 ^ 0x40000 = 0x40004; ^ 1 << 18 = 4; + 0
    assert_eq!(super_fast_hash(&[1, 0, 1]), tail(4));
    // 4 + 1 = 5; 0x50000 ^ 0x800 ^ 5 = 0x50805; + 0xa1 = 0x508a6... >> 11 = 0xa1
    assert_eq!(super_fast_hash(&[1, 0, 1, 0]), tail(0x508a6));
}
