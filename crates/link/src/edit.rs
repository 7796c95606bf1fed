//! Rewrites headers as switches and routers do, and corrects the IPv4 header checksum.

/// A change of a frame's headers. A frame that lacks the header concerned stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderEdit {
    DestinationMac([u8; 6]),
    SourceMac([u8; 6]),
    /// Decrements the IPv4 time to live or IPv6 hop limit by one; zero stays zero.
    DecrementTtl,
    /// Sets the DSCP in IPv4 or IPv6; ECN stays.
    Dscp(u8),
    /// Inserts a new outermost VLAN tag.
    PushVlan {
        /// Tag protocol identifier: 0x8100 or 0x88a8.
        tpid: u16,
        /// Priority, drop eligible indicator and VLAN number.
        tci: u16,
    },
    /// Removes the outermost VLAN tag.
    PopVlan,
}

impl HeaderEdit {
    /// Applies the change. Returns false if the frame is too short or lacks the header.
    pub fn apply_to_frame(self, frame: &mut Vec<u8>) -> bool {
        match self {
            Self::DestinationMac(mac) => replace_bytes(frame, 0, &mac),
            Self::SourceMac(mac) => replace_bytes(frame, 6, &mac),
            Self::DecrementTtl => decrement_ttl(frame),
            Self::Dscp(dscp) => set_dscp(frame, dscp),
            Self::PushVlan { tpid, tci } => push_vlan(frame, tpid, tci),
            Self::PopVlan => pop_vlan(frame),
        }
    }
}

fn replace_bytes(frame: &mut [u8], at: usize, bytes: &[u8]) -> bool {
    match frame.get_mut(at..at + bytes.len()) {
        Some(place) => {
            place.copy_from_slice(bytes);
            true
        }
        None => false,
    }
}

fn read_u16(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]))
}

fn is_vlan_tpid(ether_type: u16) -> bool {
    matches!(ether_type, 0x8100 | 0x88a8 | 0x9100)
}

/// Finds the IP header after all VLAN tags, and returns its version and offset; `None` if the frame is not
/// IP, or does not contain the whole header.
fn find_ip_header(frame: &[u8]) -> Option<(u8, usize)> {
    let mut at = 12;
    // A tag moves the EtherType by four bytes; the end of the frame ends the loop.
    while is_vlan_tpid(read_u16(frame, at)?) {
        at += 4;
    }
    // Minimum lengths: 20 bytes of IPv4 without options (RFC 791), 40 bytes of IPv6 (RFC 8200).
    match read_u16(frame, at)? {
        0x0800 if frame.len() >= at + 2 + 20 => Some((4, at + 2)),
        0x86dd if frame.len() >= at + 2 + 40 => Some((6, at + 2)),
        _ => None,
    }
}

fn decrement_ttl(frame: &mut [u8]) -> bool {
    match find_ip_header(frame) {
        Some((4, at)) => {
            frame[at + 8] = frame[at + 8].saturating_sub(1);
            recompute_ipv4_checksum(frame, at);
            true
        }
        Some((_, at)) => {
            frame[at + 7] = frame[at + 7].saturating_sub(1);
            true
        }
        None => false,
    }
}

fn set_dscp(frame: &mut [u8], dscp: u8) -> bool {
    match find_ip_header(frame) {
        Some((4, at)) => {
            // The upper six bits (RFC 2474); the lower two are ECN (RFC 3168).
            frame[at + 1] = dscp << 2 | frame[at + 1] & 3;
            recompute_ipv4_checksum(frame, at);
            true
        }
        Some((_, at)) => {
            // Traffic class lies across two bytes: 4 bits of version, then 8 of traffic class.
            let class = dscp << 2 | (frame[at + 1] >> 4) & 3;
            frame[at] = frame[at] & 0xf0 | class >> 4;
            frame[at + 1] = class << 4 | frame[at + 1] & 0x0f;
            true
        }
        None => false,
    }
}

fn recompute_ipv4_checksum(frame: &mut [u8], at: usize) {
    // The checksum is computed from all words instead of updated incrementally (RFC 1624). This is slower, but easier
    // to verify. With a header length beyond the end of the frame, nothing must be read past the end.
    let end = (at + usize::from(frame[at] & 0x0f) * 4).min(frame.len());
    frame[at + 10..at + 12].fill(0);
    let mut total: u32 = 0;
    for pair in frame[at..end].chunks_exact(2) {
        total += u32::from(pair[0]) << 8 | u32::from(pair[1]);
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    // After the loop the sum has 16 bits.
    let [.., high, low] = total.to_be_bytes();
    frame[at + 10..at + 12].copy_from_slice(&[!high, !low]);
}

fn push_vlan(frame: &mut Vec<u8>, tpid: u16, tci: u16) -> bool {
    if frame.len() < 14 {
        return false;
    }
    // The tag is inserted at byte 12: after both addresses, before the EtherType (IEEE 802.1Q).
    let [a, b] = tpid.to_be_bytes();
    let [c, d] = tci.to_be_bytes();
    frame.splice(12..12, [a, b, c, d]);
    true
}

fn pop_vlan(frame: &mut Vec<u8>) -> bool {
    // A tagged frame has at least 18 bytes: both addresses, the tag, and the EtherType after it.
    let tagged = read_u16(frame, 12).is_some_and(is_vlan_tpid) && frame.len() >= 18;
    if tagged {
        frame.drain(12..16);
    }
    tagged
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 header with a right checksum, as of the example in Wikipedia's article on it.
    const HEADER: [u8; 20] =
        [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];

    fn ipv4() -> Vec<u8> {
        let mut frame = vec![0u8; 12];
        frame.extend([8, 0]);
        frame.extend(HEADER);
        frame.extend([0xaa; 40]);
        frame
    }

    fn ipv6() -> Vec<u8> {
        let mut frame = vec![0u8; 12];
        frame.extend([0x86, 0xdd, 0x60, 0x10, 0, 0, 0, 0, 17, 64]);
        frame.resize(80, 0);
        frame
    }

    #[test]
    fn a_checksum_made_anew_is_the_known_one() {
        let mut frame = ipv4();
        frame[24..26].fill(0);
        recompute_ipv4_checksum(&mut frame, 14);
        assert_eq!(frame, ipv4());
    }

    #[test]
    fn ttl_and_dscp_edits_change_nothing_else() {
        let mut frame = ipv4();
        assert!(
            HeaderEdit::DecrementTtl.apply_to_frame(&mut frame)
                && HeaderEdit::Dscp(46).apply_to_frame(&mut frame)
        );
        assert_eq!((frame[22], frame[15]), (0x3f, 46 << 2));
        assert_eq!(packetrig_wire::checksum::ones_complement_sum(&frame[14..34]), 0xffff);
        let mut six = ipv6();
        assert!(
            HeaderEdit::DecrementTtl.apply_to_frame(&mut six)
                && HeaderEdit::Dscp(0x2e).apply_to_frame(&mut six)
        );
        assert_eq!((six[14], six[15], six[21]), (0x6b, 0x90, 63));
        assert_eq!(six[22..], ipv6()[22..]);
    }

    #[test]
    fn tags_pushed_are_popped() {
        let mut frame = ipv4();
        assert!(HeaderEdit::PushVlan { tpid: 0x88a8, tci: 0x6064 }.apply_to_frame(&mut frame));
        assert_eq!(frame[12..18], [0x88, 0xa8, 0x60, 0x64, 8, 0]);
        // The IP header is found behind the tag.
        assert!(HeaderEdit::DecrementTtl.apply_to_frame(&mut frame));
        assert!(HeaderEdit::PopVlan.apply_to_frame(&mut frame));
        assert!(!HeaderEdit::PopVlan.apply_to_frame(&mut frame));
        assert_eq!(frame.len(), ipv4().len());
    }

    #[test]
    fn edit_leaves_frame_without_header_unchanged() {
        for edit in [HeaderEdit::DecrementTtl, HeaderEdit::Dscp(1), HeaderEdit::PopVlan] {
            for len in [0, 5, 13, 14, 60] {
                let mut frame = vec![0; len];
                assert!(!edit.apply_to_frame(&mut frame));
                assert_eq!(frame, vec![0; len]);
            }
        }
    }
}
