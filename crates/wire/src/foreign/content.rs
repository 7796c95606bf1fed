//! A hash of the parts of a frame that a device does not change. It identifies frames without a tag after they
//! have passed the device.

use super::word_at;
use crate::pattern::keyed_mix;

const MAX_VLAN_TAGS: usize = 4;

/// Returns the hash of a frame without FCS. It leaves out MAC addresses, VLAN tags, padding with zeros, and the fields
/// that routers may change: traffic class, hop limit, flow label, and the header checksum of IPv4.
pub fn content_hash(frame: &[u8]) -> u64 {
    let mut at = 12;
    for _ in 0..MAX_VLAN_TAGS {
        match word_at(frame, at) {
            Some(0x8100 | 0x88a8 | 0x9100) => at += 4,
            _ => break,
        }
    }
    let content = frame.get(at..).unwrap_or_default();
    // Short frames are padded with zeros on the wire, and some devices add or remove the padding. Zeros at
    // the end of the payload are left out, too: two frames that differ only there have the same hash.
    let used = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    // Offsets from the EtherType. IPv4: type of service, TTL and header checksum. IPv6: traffic class, flow
    // label and hop limit.
    let changing: &[usize] = match word_at(content, 0) {
        Some(0x0800) => &[3, 10, 12, 13],
        Some(0x86dd) => &[2, 3, 4, 5, 9],
        _ => &[],
    };
    let mut hash = 0;
    for (block, bytes) in content[..used].chunks(8).enumerate() {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        for place in
            changing.iter().filter_map(|place| place.checked_sub(8 * block)).filter(|place| *place < 8)
        {
            // The upper half of the first byte of IPv6 is the version, which stays.
            padded[place] &= if block == 0 && place == 2 { 0xf0 } else { 0 };
        }
        hash = keyed_mix(hash, u64::from_be_bytes(padded));
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arp() -> Vec<u8> {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 1, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
        frame.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
        frame
    }

    #[test]
    fn content_hash_ignores_padding_addresses_and_vlan_tags() {
        let plain = content_hash(&arp());
        let mut padded = arp();
        padded.resize(60, 0);
        assert_eq!(content_hash(&padded), plain);
        let mut tagged = arp();
        tagged.splice(12..12, [0x81, 0x00, 0, 7]);
        tagged[0..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        assert_eq!(content_hash(&tagged), plain);
        let mut other = arp();
        other[41] = 3;
        assert_ne!(content_hash(&other), plain);
    }

    #[test]
    fn content_hash_ignores_fields_changed_by_routers() {
        let mut frame = vec![2; 12];
        frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 1, 0, 0, 64, 89, 0xab, 0xcd, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(7..27);
        let before = content_hash(&frame);
        (frame[15], frame[22], frame[24], frame[25]) = (0x20, 63, 0xac, 0xcd);
        assert_eq!(content_hash(&frame), before);
        frame[30] ^= 1;
        assert_ne!(content_hash(&frame), before);
        let mut six = vec![2; 12];
        six.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 58, 64]);
        six.extend(1..41);
        let before = content_hash(&six);
        (six[14], six[17], six[21]) = (0x62, 9, 63);
        assert_eq!(content_hash(&six), before);
        six[20] = 59;
        assert_ne!(content_hash(&six), before);
    }
}
