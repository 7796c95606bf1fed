//! Spreads the frames of a file over workers.
//!
//! Only the two outermost IP addresses decide. So one worker gets both directions of a flow, its fragments and its tunnelled
//! packets, and the flows are the same for any number of workers. Frames that are not IP go to the first worker.

use packetrig_flow::IPV4_MAPPED_PREFIX;
use packetrig_flow::parse::LinkKind;

const VLAN: [u16; 4] = [0x8100, 0x88a8, 0x9100, 0x9200];

/// Returns the index of the worker that meters a frame, less than `workers`.
pub(crate) fn worker_index_of_frame(frame: &[u8], link: LinkKind, workers: usize) -> usize {
    if workers < 2 {
        return 0;
    }
    let hash = hash_frame_addresses(frame, link).unwrap_or(0);
    // The high half of the product is below `workers` and spreads evenly over any number of them.
    #[expect(clippy::cast_possible_truncation, reason = "it is less than `workers`")]
    let worker = ((u128::from(hash) * workers as u128) >> 64) as usize;
    worker
}

/// Hashes the addresses to a number that both directions of a flow have in common; `None` if the frame is not IP.
pub(crate) fn hash_frame_addresses(frame: &[u8], link: LinkKind) -> Option<u64> {
    let NetworkHeader { version, at } = find_ip_header(frame, link)?;
    match version {
        4 => Some(mix_symmetric(read_be32(frame, at + 12)?.into(), read_be32(frame, at + 16)?.into())),
        6 => {
            let source = read_be64(frame, at + 8)?.rotate_left(7) ^ read_be64(frame, at + 16)?;
            let destination = read_be64(frame, at + 24)?.rotate_left(7) ^ read_be64(frame, at + 32)?;
            Some(mix_symmetric(source, destination))
        }
        _ => None,
    }
}

fn read_be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn read_be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

fn read_be64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

/// Hashes addresses to the number of [`hash_frame_addresses`]; IPv4 addresses are mapped into IPv6.
pub(crate) fn hash_addresses(source: [u8; 16], destination: [u8; 16]) -> u64 {
    mix_symmetric(fold_address(source), fold_address(destination))
}

// This function must give the same numbers as `hash_frame_addresses`: meters of frames and of headers may have shares
// of the same traffic.
fn fold_address(address: [u8; 16]) -> u64 {
    if address[..12] == IPV4_MAPPED_PREFIX {
        return u64::from(u32::from_be_bytes([address[12], address[13], address[14], address[15]]));
    }
    let whole = u128::from_be_bytes(address);
    #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
    let [high, low] = [(whole >> 64) as u64, whole as u64];
    high.rotate_left(7) ^ low
}

/// Mixes two numbers. Exchanging them gives the same result.
fn mix_symmetric(a: u64, b: u64) -> u64 {
    // Sum and exclusive or are both symmetric; together they distinguish pairs that have the same sum.
    let mixed = a.wrapping_add(b).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (a ^ b);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed ^ (mixed >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Version and offset of the outermost IP header.
struct NetworkHeader {
    version: u8,
    at: usize,
}

impl NetworkHeader {
    fn read_at(frame: &[u8], at: usize) -> Option<Self> {
        Some(Self { version: frame.get(at)? >> 4, at })
    }
}

/// An Ethernet type, and the offset of the two bytes before the data that it describes.
struct PayloadType {
    at: usize,
    kind: u16,
}

/// Finds the outermost IP header, after VLAN tags, MPLS labels and PPPoE.
fn find_ip_header(frame: &[u8], link: LinkKind) -> Option<NetworkHeader> {
    let PayloadType { mut at, mut kind } = match link {
        LinkKind::Ethernet => PayloadType { at: 12, kind: read_be16(frame, 12)? },
        LinkKind::Cooked => PayloadType { at: 14, kind: read_be16(frame, 14)? },
        // The type comes first and the data begin at byte 20, so the offset below is that of the last two header bytes.
        LinkKind::Cooked2 => PayloadType { at: 18, kind: read_be16(frame, 0)? },
        LinkKind::Ip => return NetworkHeader::read_at(frame, 0),
        LinkKind::Loopback => return NetworkHeader::read_at(frame, 4),
        LinkKind::Ppp
        | LinkKind::Hdlc
        | LinkKind::Wireless
        | LinkKind::Radiotap
        | LinkKind::Ppi
        | LinkKind::Nflog => {
            let payload = link.find_payload(frame)?;
            match payload.kind {
                0x0800 | 0x86dd => return NetworkHeader::read_at(frame, payload.at),
                kind => PayloadType { at: payload.at.checked_sub(2)?, kind },
            }
        }
    };
    while VLAN.contains(&kind) {
        at += 4;
        kind = read_be16(frame, at)?;
    }
    at += 2;
    match kind {
        0x8847 | 0x8848 => {
            // RFC 3032, section 2.1: 4 bytes per label; bit 0 of the third one marks the bottom of the stack.
            while frame.get(at + 2)? & 1 == 0 {
                at += 4;
            }
            at += 4;
        }
        // RFC 2516, section 4: 6 bytes of PPPoE header, then 2 bytes of PPP protocol.
        0x8864 => at += 8,
        0x0800 | 0x86dd => {}
        _ => return None,
    }
    NetworkHeader::read_at(frame, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(tags: &[u8], from: u8, to: u8) -> Vec<u8> {
        let ip = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, from, 198, 18, 0, to];
        [&[2; 12], tags, &ip].concat()
    }

    #[test]
    fn both_directions_meet_whatever_is_below_ip() {
        let stacks: [&[u8]; 4] = [
            &[8, 0],
            &[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 8, 0],
            &[0x88, 0x47, 0, 1, 0x20, 64, 0, 1, 0x31, 64],
            &[0x88, 0x64, 0x11, 0, 0, 1, 0, 22, 0, 0x21],
        ];
        for stack in stacks {
            for n in 0..200 {
                let (there, back) = (frame(stack, n, 250), frame(stack, 250, n));
                assert_eq!(
                    worker_index_of_frame(&there, LinkKind::Ethernet, 7),
                    worker_index_of_frame(&back, LinkKind::Ethernet, 7)
                );
                assert_eq!(
                    worker_index_of_frame(&there, LinkKind::Ethernet, 7),
                    worker_index_of_frame(&frame(&[8, 0], n, 250), LinkKind::Ethernet, 7)
                );
            }
        }
    }

    #[test]
    fn frame_spreading_ignores_link_header() {
        let ethernet = frame(&[8, 0], 7, 250);
        let ip = &ethernet[14..];
        let cooked = [&[0; 14][..], &[8, 0], ip].concat();
        let cooked2 = [&[8, 0][..], &[0; 18], ip].concat();
        let loopback = [&[2, 0, 0, 0][..], ip].concat();
        let same = worker_index_of_frame(&ethernet, LinkKind::Ethernet, 97);
        for (frame, link) in [
            (ip, LinkKind::Ip),
            (&cooked, LinkKind::Cooked),
            (&cooked2, LinkKind::Cooked2),
            (&loopback, LinkKind::Loopback),
        ] {
            assert_eq!(worker_index_of_frame(frame, link, 97), same, "{link:?}");
        }
    }

    #[test]
    fn workers_get_about_as_much_each() {
        let mut counts = [0u32; 4];
        for from in 0..250 {
            for to in 0..40 {
                counts[worker_index_of_frame(&frame(&[8, 0], from, to), LinkKind::Ethernet, 4)] += 1;
            }
        }
        assert!(counts.iter().all(|count| (2_000..3_000).contains(count)), "{counts:?}");
    }

    #[test]
    fn any_bytes_are_fine() {
        let whole = frame(&[0x88, 0x47, 0, 1, 0x20, 64], 1, 2);
        for len in 0..whole.len() {
            assert!(worker_index_of_frame(&whole[..len], LinkKind::Ethernet, 3) < 3);
        }
        assert_eq!(worker_index_of_frame(&[0x88; 64], LinkKind::Ethernet, 3), 0);
    }
}
