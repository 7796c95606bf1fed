//! The content of a packet that is the same in all captures of it: its bytes, without anything that a capture added.

use packetrig_units::clamp_to_usize;
use packetrig_wire::pcap::CaptureRecord;
use packetrig_wire::trailer;
use std::hash::{DefaultHasher, Hasher};

/// Length of a frame check sequence in bytes.
const FCS: usize = 4;

/// A hash of the content of a packet, with 64 bits. The chance that two of 10^9 different packets have the same hash is
/// 3 %. This matters only if the times of these two differ by less than the tolerance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketIdentity(pub(super) u64);

/// The packet without capture additions, as far as the capture recorded it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketContent<'a> {
    pub bytes: &'a [u8],
    /// Length on the link, without FCS.
    pub full_len: usize,
}

impl<'a> PacketContent<'a> {
    /// Extracts the packet from a record, without the FCS that some interfaces deliver, and without the trailer of a
    /// tap, which differs in each copy.
    pub fn from_record(record: &CaptureRecord<'a>) -> Self {
        // The trailer contains the length before the tap truncated the copy; the record contains the
        // length of the copy.
        if let Some((frame, trailer)) = trailer::split_trailer(record.bytes) {
            return Self { bytes: frame, full_len: trailer.full_len.into() };
        }
        // A damaged record may state a smaller length than the number of its bytes.
        let said = clamp_to_usize(record.full_len).max(record.bytes.len());
        let added = if record.has_fcs == Some(true) { FCS } else { 0 };
        let full_len = said.saturating_sub(added);
        Self { bytes: &record.bytes[..record.bytes.len().min(full_len)], full_len }
    }

    pub fn is_cut(&self) -> bool {
        self.bytes.len() < self.full_len
    }

    /// Computes the identity from the length of the packet and its first `compared` bytes; `None`: all its bytes.
    pub fn compute_identity(&self, compared: Option<usize>) -> PacketIdentity {
        let looked_at = compared.unwrap_or(usize::MAX).min(self.bytes.len());
        let mut hasher = DefaultHasher::new();
        // Packets of different lengths may have the same recorded bytes.
        hasher.write_usize(self.full_len);
        hasher.write(&self.bytes[..looked_at]);
        PacketIdentity(hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_wire::trailer::TapTrailer;

    fn record(bytes: &[u8], full_len: u32, has_fcs: Option<bool>) -> CaptureRecord<'_> {
        CaptureRecord { bytes, full_len, at_ns: Some(1), link_type: 1, has_fcs, merged: None }
    }

    #[test]
    fn packet_identity_ignores_capture_additions() {
        let frame = [7; 60];
        let plain = PacketContent::from_record(&record(&frame, 60, None)).compute_identity(None);
        let with_fcs = [&frame[..], &[1, 2, 3, 4]].concat();
        assert_eq!(
            PacketContent::from_record(&record(&with_fcs, 64, Some(true))).compute_identity(None),
            plain
        );
        assert_ne!(PacketContent::from_record(&record(&with_fcs, 64, None)).compute_identity(None), plain);
        for number in [1, 2] {
            let trailer = TapTrailer { direction: 0, full_len: 60, number, at_ns: 5 }.to_bytes();
            let copy = [&frame[..], &trailer].concat();
            assert_eq!(
                PacketContent::from_record(&record(&copy, 84, None)).compute_identity(None),
                plain,
                "{number}"
            );
        }
    }

    #[test]
    fn cut_packet_identity_uses_common_part_and_length() {
        let whole = [9; 200];
        let (long, short) = (record(&whole, 200, None), record(&whole[..96], 200, None));
        let (long, short) = (PacketContent::from_record(&long), PacketContent::from_record(&short));
        assert!(short.is_cut() && !long.is_cut());
        assert_ne!(long.compute_identity(None), short.compute_identity(None));
        assert_eq!(long.compute_identity(Some(96)), short.compute_identity(Some(96)));
        let other = PacketContent::from_record(&record(&whole[..96], 201, None)).compute_identity(Some(96));
        assert_ne!(other, short.compute_identity(Some(96)), "another length is another packet");
        assert!(
            !PacketContent::from_record(&record(&whole[..2], 3, Some(true))).is_cut(),
            "lengths that cannot be"
        );
    }
}
