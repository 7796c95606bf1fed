//! A meter's share of traffic that several meters see. The two outermost addresses of a packet decide to which share it belongs.
//!
//! So one meter meters both directions of a flow, its fragments, and its tunnelled packets. The meters need no
//! contact with each other. Packets that are not IP belong to the first share.
//!
//! Invariant: for any number of shares, a packet is in exactly one of them.

use crate::source::spread;
use packetrig_flow::PacketInfo;
use packetrig_flow::parse::LinkKind;

/// Selects the packets of one share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowShareFilter {
    /// Index of this share, from 0.
    index: u32,
    /// Number of shares in all.
    of: u32,
}

impl FlowShareFilter {
    /// Makes the filter for share `number` (counted from 1) of `of` shares; `None` if there is no such share.
    pub fn new(number: u32, of: u32) -> Option<Self> {
        let index = number.checked_sub(1)?;
        (index < of).then_some(Self { index, of })
    }

    /// Reports whether this is the share of packets without addresses and of packets that were not parsed.
    pub(crate) const fn is_first(self) -> bool {
        self.index == 0
    }

    pub(crate) fn selects_frame(self, frame: &[u8], link: LinkKind) -> bool {
        self.selects_hash(spread::hash_frame_addresses(frame, link).unwrap_or(0))
    }

    /// Does the same as [`Self::selects_frame`] for a packet that was parsed in the driver,
    /// which does not look into tunnels.
    pub(crate) fn selects_packet(self, packet: &PacketInfo) -> bool {
        self.selects_hash(spread::hash_addresses(packet.source, packet.destination))
    }

    fn selects_hash(self, number: u64) -> bool {
        // Workers are chosen by the upper bits of the same number (`spread::worker_index_of_frame`). Without
        // mixing that number again, only some of the workers would get packets of a share.
        let mixed = number.rotate_left(32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let mixed = mixed ^ mixed >> 32;
        // The high half of a product spreads evenly over any number of shares; a remainder would need a division.
        (u128::from(mixed) * u128::from(self.of)) >> 64 == u128::from(self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(of: u32) -> Vec<FlowShareFilter> {
        (1..=of).filter_map(|number| FlowShareFilter::new(number, of)).collect()
    }

    #[test]
    fn a_share_is_one_of_those_there_are() {
        assert_eq!(shares(3).len(), 3);
        assert!(
            FlowShareFilter::new(0, 3).is_none()
                && FlowShareFilter::new(4, 3).is_none()
                && FlowShareFilter::new(1, 0).is_none()
        );
    }

    #[test]
    fn shares_are_disjoint_complete_and_even() {
        let mut counts = [0_u32; 3];
        for n in 0..30_000_u32 {
            let source = (0xffff_c612_0000_u128 + u128::from(n)).to_be_bytes();
            let packet = PacketInfo { source, destination: [7; 16], ..PacketInfo::default() };
            let back = PacketInfo { source: [7; 16], destination: source, ..PacketInfo::default() };
            let has: Vec<bool> = shares(3).iter().map(|share| share.selects_packet(&packet)).collect();
            assert_eq!(has.iter().filter(|has| **has).count(), 1);
            assert_eq!(has, shares(3).iter().map(|share| share.selects_packet(&back)).collect::<Vec<_>>());
            for (count, has) in counts.iter_mut().zip(has) {
                *count += u32::from(has);
            }
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn frame_and_driver_packet_have_same_share() {
        for n in 0..200_u8 {
            let ip = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, n, 198, 19, 0, 1];
            let frame = [&[2; 12][..], &[8, 0], &ip].concat();
            let packet = PacketInfo {
                source: (0xffff_c612_0000_u128 + u128::from(n)).to_be_bytes(),
                destination: 0xffff_c613_0001_u128.to_be_bytes(),
                ..PacketInfo::default()
            };
            for share in shares(5) {
                assert_eq!(share.selects_frame(&frame, LinkKind::Ethernet), share.selects_packet(&packet));
            }
        }
    }

    #[test]
    fn a_share_has_work_for_all_its_workers() {
        let mut counts = [0_u32; 2];
        for n in 0..250_u8 {
            for m in 0..40_u8 {
                let ip = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, m, n, 198, 19, 0, 1];
                let frame = [&[2; 12][..], &[8, 0], &ip].concat();
                if shares(2)[1].selects_frame(&frame, LinkKind::Ethernet) {
                    counts[spread::worker_index_of_frame(&frame, LinkKind::Ethernet, 2)] += 1;
                }
            }
        }
        assert!(counts.iter().all(|count| (2_000..3_000).contains(count)), "{counts:?}");
    }
}
