//! Which worker a frame of a file goes to.
//!
//! By the two outermost IP addresses, and by nothing else: both directions of a flow meet, and so do its fragments and what
//! is in its tunnels, so that the flows are the same for any number of workers. Anything that is not IP goes to the first.

use packetrig_flow::MAPPED;
use packetrig_flow::parse::LinkKind;

const VLAN: [u16; 4] = [0x8100, 0x88a8, 0x9100, 0x9200];

/// Number of the worker among `workers`.
pub(crate) fn worker_of(frame: &[u8], link: LinkKind, workers: usize) -> usize {
    if workers < 2 {
        return 0;
    }
    let hash = number_of_frame(frame, link).unwrap_or(0);
    // The high half of a product is even over any number of workers.
    usize::try_from((u128::from(hash) * workers as u128) >> 64).unwrap_or(0)
}

/// A number that both directions have in common; `None` if that is not IP.
pub(crate) fn number_of_frame(frame: &[u8], link: LinkKind) -> Option<u64> {
    let word = |at: usize| frame.get(at..at + 4)?.first_chunk().map(|b| u64::from(u32::from_be_bytes(*b)));
    let long = |at: usize| frame.get(at..at + 8)?.first_chunk().map(|b| u64::from_be_bytes(*b));
    let (a, b) = match network(frame, link)? {
        (4, at) => (word(at + 12)?, word(at + 16)?),
        (6, at) => {
            (long(at + 8)?.rotate_left(7) ^ long(at + 16)?, long(at + 24)?.rotate_left(7) ^ long(at + 32)?)
        }
        _ => return None,
    };
    Some(mix(a, b))
}

/// The same of addresses, those of IPv4 mapped.
pub(crate) fn number_of_addresses(source: [u8; 16], destination: [u8; 16]) -> u64 {
    let half = |address: [u8; 16]| {
        if address[..12] == MAPPED {
            return u64::from(u32::from_be_bytes([address[12], address[13], address[14], address[15]]));
        }
        let whole = u128::from_be_bytes(address);
        #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
        let [high, low] = [(whole >> 64) as u64, whole as u64];
        high.rotate_left(7) ^ low
    };
    mix(half(source), half(destination))
}

/// The order of the two is lost.
fn mix(a: u64, b: u64) -> u64 {
    let mixed = a.wrapping_add(b).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (a ^ b);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed ^ (mixed >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Version and place of the outermost IP header, behind VLAN tags, MPLS labels and PPPoE.
fn network(frame: &[u8], link: LinkKind) -> Option<(u8, usize)> {
    let short = |at: usize| frame.get(at..at + 2)?.first_chunk().map(|b| u16::from_be_bytes(*b));
    let (mut at, mut kind) = match link {
        LinkKind::Ethernet => (12, short(12)?),
        LinkKind::Cooked => (14, short(14)?),
        // The data begin twenty bytes behind the type.
        LinkKind::Cooked2 => (18, short(0)?),
        LinkKind::Ip => return Some((frame.first()? >> 4, 0)),
        LinkKind::Loopback => return Some((frame.get(4)? >> 4, 4)),
        LinkKind::Ppp
        | LinkKind::Hdlc
        | LinkKind::Wireless
        | LinkKind::Radiotap
        | LinkKind::Ppi
        | LinkKind::Nflog => {
            let payload = link.payload(frame)?;
            match payload.kind {
                0x0800 | 0x86dd => return Some((frame.get(payload.at)? >> 4, payload.at)),
                kind => (payload.at.checked_sub(2)?, kind),
            }
        }
    };
    while VLAN.contains(&kind) {
        at += 4;
        kind = short(at)?;
    }
    at += 2;
    match kind {
        0x8847 | 0x8848 => {
            // Until the bottom of the stack.
            while frame.get(at + 2)? & 1 == 0 {
                at += 4;
            }
            at += 4;
        }
        0x8864 => at += 8,
        0x0800 | 0x86dd => {}
        _ => return None,
    }
    Some((frame.get(at)? >> 4, at))
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
                assert_eq!(worker_of(&there, LinkKind::Ethernet, 7), worker_of(&back, LinkKind::Ethernet, 7));
                assert_eq!(
                    worker_of(&there, LinkKind::Ethernet, 7),
                    worker_of(&frame(&[8, 0], n, 250), LinkKind::Ethernet, 7)
                );
            }
        }
    }

    #[test]
    fn what_a_frame_begins_with_does_not_matter() {
        let ethernet = frame(&[8, 0], 7, 250);
        let ip = &ethernet[14..];
        let cooked = [&[0; 14][..], &[8, 0], ip].concat();
        let cooked2 = [&[8, 0][..], &[0; 18], ip].concat();
        let loopback = [&[2, 0, 0, 0][..], ip].concat();
        let same = worker_of(&ethernet, LinkKind::Ethernet, 97);
        for (frame, link) in [
            (ip, LinkKind::Ip),
            (&cooked, LinkKind::Cooked),
            (&cooked2, LinkKind::Cooked2),
            (&loopback, LinkKind::Loopback),
        ] {
            assert_eq!(worker_of(frame, link, 97), same, "{link:?}");
        }
    }

    #[test]
    fn workers_get_about_as_much_each() {
        let mut counts = [0u32; 4];
        for from in 0..250 {
            for to in 0..40 {
                counts[worker_of(&frame(&[8, 0], from, to), LinkKind::Ethernet, 4)] += 1;
            }
        }
        assert!(counts.iter().all(|count| (2_000..3_000).contains(count)), "{counts:?}");
    }

    #[test]
    fn any_bytes_are_fine() {
        let whole = frame(&[0x88, 0x47, 0, 1, 0x20, 64], 1, 2);
        for len in 0..whole.len() {
            assert!(worker_of(&whole[..len], LinkKind::Ethernet, 3) < 3);
        }
        assert_eq!(worker_of(&[0x88; 64], LinkKind::Ethernet, 3), 0);
    }
}
