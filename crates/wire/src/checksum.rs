//! The Internet checksum (RFC 1071) and the frame check sequence (CRC-32 of IEEE 802.3).

/// One's-complement sum of `bytes` as big-endian 16-bit words, odd end padded with zero, not inverted, folded.
pub fn sum(bytes: &[u8]) -> u16 {
    let _ = bytes;
    todo!()
}

/// Adds two folded sums.
pub fn add(a: u16, b: u16) -> u16 {
    let _ = (a, b);
    todo!()
}

/// The FCS of a frame, as the four bytes that follow it on the wire.
pub fn fcs(frame: &[u8]) -> [u8; 4] {
    let _ = frame;
    todo!()
}
