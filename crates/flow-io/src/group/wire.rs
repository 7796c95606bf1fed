//! The wire format of an advertisement.
//!
//! ```text
//!  0        4        8                16        20       24               32               40
//! +--------+--+--+--+--+----------------+---------+--------+----------------+----------------+
//! | 'PRGM' |v |f |p |0 |     group      |  meter  |term of |      boot      |    sequence    |
//! +--------+--+--+--+--+----------------+---------+--------+----------------+----------------+
//! |   term's count     |    interval    |    seen since    |   whole from   |   watermark    |
//! +--------------------+----------------+------------------+----------------+----------------+
//! |    seen packets    |seen all| none  |    sent at     |   first half of the HMAC-SHA256   |  120 bytes
//! +--------------------+----------------+----------------+-----------------------------------+
//! ```
//! Everything is big-endian. `v` is the version, `p` the priority. `f` has the role in its two low bits (standby,
//! active, leaving standby, leaving active), then whether the member is ready (4) and whether it preempts (8). `group`
//! is the beginning of the SHA-256 of the group's name. Times are nanoseconds since 1970, the interval is in
//! nanoseconds. `seen all` and `none` are microseconds before `sent at`: all packets that came before the first of
//! these times are counted, and none that came after the second.
//!
//! `sent at` limits how long a recorded advertisement can be used, and shows clocks that are too far apart. All times
//! are those of the sender's wall clock when it sends.

use super::GroupKey;
use hmac::Mac;
use packetrig_flow::group::{AdvertisedRole, Advertisement, GroupTerm};
use packetrig_units::{Nanos, clamp_to_u32};
use sha2::{Digest, Sha256};

const ADVERTISEMENT_MAGIC: [u8; 4] = *b"PRGM";
const VERSION: u8 = 2;
const ADVERTISEMENT_BODY_BYTES: usize = 104;
/// HMAC cut to its first half, which RFC 2104 (section 5) allows.
const ADVERTISEMENT_MAC_BYTES: usize = 16;
/// Length of an advertisement.
pub const ADVERTISEMENT_BYTES: usize = ADVERTISEMENT_BODY_BYTES + ADVERTISEMENT_MAC_BYTES;
const READY_FLAG: u8 = 4;
const PREEMPTS_FLAG: u8 = 8;

/// Reasons why a datagram is no advertisement for this member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The datagram is not an advertisement, or is cut, or its fields contradict each other.
    Malformed,
    /// The datagram has another version of the protocol.
    OtherVersion,
    OtherGroup,
    /// The datagram is not authenticated with the group's key.
    WrongKey,
    /// The advertisement was sent too long ago, or in the future: it was delayed or replayed, or the clocks differ.
    Stale,
}

/// Writes and reads the advertisements of one group.
#[derive(Clone, Debug)]
pub struct AdvertisementCodec {
    key: GroupKey,
    group: u64,
    tolerance: Nanos,
}

impl AdvertisementCodec {
    /// Makes a codec for the group of this name. `tolerance` limits the difference of two members' clocks,
    /// including the network's delay.
    pub fn new(name: &str, key: GroupKey, tolerance: Nanos) -> Self {
        // A hash instead of the name, because the field has a fixed length.
        let group =
            Sha256::digest(name.as_bytes()).iter().take(8).fold(0, |n, byte| n << 8 | u64::from(*byte));
        Self { key, group, tolerance }
    }

    pub fn encode_advertisement(
        &self,
        advertisement: &Advertisement,
        wall_ns: u64,
    ) -> [u8; ADVERTISEMENT_BYTES] {
        let mut bytes = [0; ADVERTISEMENT_BYTES];
        let flags = encode_flags(advertisement);
        bytes[..8].copy_from_slice(&[
            ADVERTISEMENT_MAGIC[0],
            ADVERTISEMENT_MAGIC[1],
            ADVERTISEMENT_MAGIC[2],
            ADVERTISEMENT_MAGIC[3],
            VERSION,
            flags,
            advertisement.priority,
            0,
        ]);
        let numbers = u64::from(advertisement.meter) << 32 | u64::from(advertisement.term.meter);
        let words = [
            self.group,
            numbers,
            advertisement.boot,
            advertisement.sequence,
            advertisement.term.count,
            advertisement.interval.as_u64(),
            advertisement.seen_since_ns,
            advertisement.whole_from_ns,
            advertisement.watermark_ns,
            advertisement.seen_packets,
            encode_ages(advertisement),
            wall_ns,
        ];
        for (place, word) in bytes[8..ADVERTISEMENT_BODY_BYTES].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        // The MAC covers every byte before it, including the time of sending.
        let mac = self.key.compute_mac(&bytes[..ADVERTISEMENT_BODY_BYTES]).finalize().into_bytes();
        bytes[ADVERTISEMENT_BODY_BYTES..].copy_from_slice(&mac[..ADVERTISEMENT_MAC_BYTES]);
        bytes
    }

    /// Decodes an advertisement and the time at which it was sent.
    pub fn decode_advertisement(
        &self,
        bytes: &[u8],
        wall_ns: u64,
    ) -> Result<(Advertisement, u64), DropReason> {
        let bytes = check_version_and_length(bytes)?;
        let [
            _,
            group,
            numbers,
            boot,
            sequence,
            count,
            interval,
            seen_since_ns,
            whole_from_ns,
            watermark_ns,
            seen_packets,
            ages,
            sent_ns,
        ] = body_words(bytes);
        // This check comes before the MAC: groups have different keys, so another group's datagram would
        // count as a wrong key.
        if group != self.group {
            return Err(DropReason::OtherGroup);
        }
        // The comparison takes constant time.
        let mac = self.key.compute_mac(&bytes[..ADVERTISEMENT_BODY_BYTES]);
        mac.verify_truncated_left(&bytes[ADVERTISEMENT_BODY_BYTES..]).map_err(|_| DropReason::WrongKey)?;
        let (meter, term_meter) = split_halves(numbers);
        let (seen_all_ago, seen_none_ago) = decode_ages(ages);
        // Fields are interpreted only now: no unauthenticated value reaches the election.
        let advertisement = Advertisement {
            meter,
            boot,
            sequence,
            role: decode_role(bytes[5]).ok_or(DropReason::Malformed)?,
            term: GroupTerm { count, meter: term_meter },
            priority: bytes[6],
            preempts: bytes[5] & PREEMPTS_FLAG != 0,
            is_ready: bytes[5] & READY_FLAG != 0,
            seen_packets,
            seen_all_ago,
            seen_none_ago,
            seen_since_ns,
            whole_from_ns,
            interval: Nanos::new(interval),
            watermark_ns,
        };
        // The byte is reserved. A later version may give it a meaning that this version would ignore.
        if bytes[7] != 0 || !advertisement.is_valid() {
            return Err(DropReason::Malformed);
        }
        // The authenticated time limits how long a recorded advertisement can be replayed.
        if wall_ns.abs_diff(sent_ns) > self.tolerance.as_u64() {
            return Err(DropReason::Stale);
        }
        Ok((advertisement, sent_ns))
    }
}

/// Checks magic, version and length, and returns the bytes of an advertisement of this version.
fn check_version_and_length(bytes: &[u8]) -> Result<&[u8; ADVERTISEMENT_BYTES], DropReason> {
    if bytes.get(..4) != Some(&ADVERTISEMENT_MAGIC) {
        return Err(DropReason::Malformed);
    }
    // The version comes before the length, because another version may have another length.
    if bytes.get(4).is_some_and(|version| *version != VERSION) {
        return Err(DropReason::OtherVersion);
    }
    bytes.try_into().map_err(|_| DropReason::Malformed)
}

fn body_words(bytes: &[u8; ADVERTISEMENT_BYTES]) -> [u64; ADVERTISEMENT_BODY_BYTES / 8] {
    let mut words = [0; ADVERTISEMENT_BODY_BYTES / 8];
    for (word, place) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_be_bytes(*place);
    }
    words
}

/// The ages of the packet count, in microseconds. The first is rounded up and the second down, so that both stay true.
fn encode_ages(advertisement: &Advertisement) -> u64 {
    let all_us = advertisement.seen_all_ago.as_u64().div_ceil(1000);
    let none_us = advertisement.seen_none_ago.as_u64() / 1000;
    u64::from(clamp_to_u32(all_us)) << 32 | u64::from(clamp_to_u32(none_us))
}

fn decode_ages(word: u64) -> (Nanos, Nanos) {
    let (all_us, none_us) = split_halves(word);
    (Nanos::from_micros(all_us.into()), Nanos::from_micros(none_us.into()))
}

fn split_halves(word: u64) -> (u32, u32) {
    let low = u32::try_from(word & u64::from(u32::MAX)).unwrap_or_default();
    (u32::try_from(word >> 32).unwrap_or_default(), low)
}

fn encode_flags(advertisement: &Advertisement) -> u8 {
    let role = match advertisement.role {
        AdvertisedRole::Standby => 0,
        AdvertisedRole::Active => 1,
        AdvertisedRole::LeavingStandby => 2,
        AdvertisedRole::LeavingActive => 3,
    };
    let ready = if advertisement.is_ready { READY_FLAG } else { 0 };
    let preempts = if advertisement.preempts { PREEMPTS_FLAG } else { 0 };
    role | ready | preempts
}

/// Returns the role in the flags; `None` if a flag is set that this version does not define.
const fn decode_role(flags: u8) -> Option<AdvertisedRole> {
    // An unknown flag may change what the advertisement says, so the whole of it is refused.
    if flags & !(READY_FLAG | PREEMPTS_FLAG | 3) != 0 {
        return None;
    }
    Some(match flags & 3 {
        0 => AdvertisedRole::Standby,
        1 => AdvertisedRole::Active,
        2 => AdvertisedRole::LeavingStandby,
        _ => AdvertisedRole::LeavingActive,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_700_000_000_000_000_000;

    fn codec(name: &str, key: u8) -> AdvertisementCodec {
        AdvertisementCodec::new(name, GroupKey::new(&[key; 32]).unwrap(), Nanos::from_secs(1))
    }

    fn any_advertisement() -> impl Strategy<Value = Advertisement> {
        let role = prop_oneof![
            Just(AdvertisedRole::Standby),
            Just(AdvertisedRole::Active),
            Just(AdvertisedRole::LeavingStandby),
            Just(AdvertisedRole::LeavingActive)
        ];
        let numbers = (any::<u32>(), any::<u64>(), any::<u64>(), 0..=GroupTerm::MAX_VALID_COUNT, any::<u8>());
        let times = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), 10_000_000_u64..=10_000_000_000);
        (numbers, times, role, any::<bool>(), any::<bool>()).prop_map(
            |(numbers, times, role, ready, preempts)| {
                let (meter, boot, sequence, count, priority) = numbers;
                let (seen_since_ns, whole_from_ns, watermark_ns, seen_packets, interval) = times;
                Advertisement {
                    meter,
                    boot,
                    sequence,
                    role,
                    term: GroupTerm { count, meter },
                    priority,
                    preempts,
                    is_ready: ready,
                    seen_packets,
                    seen_all_ago: decode_ages(seen_since_ns).0,
                    seen_none_ago: decode_ages(seen_since_ns).1,
                    seen_since_ns,
                    whole_from_ns,
                    interval: Nanos::new(interval),
                    watermark_ns,
                }
            },
        )
    }

    pub(in crate::group) fn example() -> Advertisement {
        Advertisement {
            meter: 7,
            boot: 0x0102,
            sequence: 9,
            role: AdvertisedRole::Active,
            term: GroupTerm { count: 3, meter: 7 },
            priority: 100,
            preempts: true,
            is_ready: true,
            seen_packets: 4,
            seen_all_ago: Nanos::from_micros(3),
            seen_none_ago: Nanos::from_micros(2),
            seen_since_ns: 5,
            whole_from_ns: 6,
            interval: Nanos::from_millis(10),
            watermark_ns: NOW,
        }
    }

    #[test]
    fn the_layout_is_fixed() {
        let bytes = codec("g", 1).encode_advertisement(&example(), NOW);
        assert_eq!(bytes[..8], *b"PRGM\x02\x0d\x64\x00");
        assert_eq!(bytes[16..24], [0, 0, 0, 7, 0, 0, 0, 7]);
        assert_eq!(bytes[24..40], [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(bytes[72..80], NOW.to_be_bytes());
        assert_eq!(bytes[88..96], [0, 0, 0, 3, 0, 0, 0, 2]);
        assert_eq!(bytes.len(), 120);
    }

    #[test]
    fn invalid_advertisement_is_dropped_with_reason() {
        let own = codec("g", 1);
        let bytes = own.encode_advertisement(&example(), NOW);
        assert_eq!(own.decode_advertisement(&bytes, NOW), Ok((example(), NOW)));
        let reason =
            |codec: &AdvertisementCodec, bytes: &[u8]| codec.decode_advertisement(bytes, NOW).unwrap_err();
        assert_eq!(reason(&codec("g", 2), &bytes), DropReason::WrongKey);
        assert_eq!(reason(&codec("h", 1), &bytes), DropReason::OtherGroup);
        assert_eq!(reason(&own, &bytes[..119]), DropReason::Malformed);
        assert_eq!(reason(&own, &[bytes.as_slice(), &[0]].concat()), DropReason::Malformed);
        assert_eq!(reason(&own, b""), DropReason::Malformed);
        let mut newer = bytes;
        newer[4] = 3;
        assert_eq!(reason(&own, &newer), DropReason::OtherVersion);
        for at in [5, 6, 7, 20, 60, 80, 90, 111] {
            let mut bent = bytes;
            bent[at] ^= 1;
            assert_eq!(reason(&own, &bent), DropReason::WrongKey, "byte {at}");
        }
        // The holder of the key can still send nonsense.
        let nonsense = Advertisement { interval: Nanos::ZERO, ..example() };
        assert_eq!(reason(&own, &own.encode_advertisement(&nonsense, NOW)), DropReason::Malformed);
        for sent in [NOW - 1_000_000_001, NOW + 1_000_000_001] {
            assert_eq!(reason(&own, &own.encode_advertisement(&example(), sent)), DropReason::Stale);
        }
        assert!(
            own.decode_advertisement(&own.encode_advertisement(&example(), NOW - 1_000_000_000), NOW).is_ok()
        );
    }

    proptest! {
        #[test]
        fn any_advertisement_survives(advertisement in any_advertisement(), sent in any::<u64>()) {
            let codec = codec("group", 9);
            prop_assert_eq!(codec.decode_advertisement(&codec.encode_advertisement(&advertisement, sent), sent), Ok((advertisement, sent)));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..128), begins in 0_usize..6) {
            for (byte, right) in bytes.iter_mut().zip(b"PRGM\x02".iter().take(begins)) {
                *byte = *right;
            }
            prop_assert!(codec("group", 9).decode_advertisement(&bytes, NOW).is_err());
        }
    }
}
