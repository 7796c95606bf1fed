//! The trailer that a tap can append to each copy of a frame. It states where and when the frame arrived, and
//! which number the copy has.
//!
//! ```text
//!  0            4   5   6       8               16              24
//!  | "prT1"     |dir|  0| length|    number     | ns since 1970 |   big-endian, the last bytes of the copy
//! ```
//! The copies of one direction are numbered from 1 without a gap, so a log of the copies shows which ones are
//! missing. The length is that of the frame as it arrived, without FCS, even if the copy was truncated.
//!
//! Invariant: [`split_trailer`] returns exactly the values that [`TapTrailer::to_bytes`] wrote.
//! `crates/sys/bpf/tap.bpf.c` writes trailers with the same layout.

/// Length of a trailer in bytes.
pub const TRAILER_BYTES: usize = 24;
/// The first four bytes of a trailer; the last of the four is the version.
pub const TRAILER_MAGIC: [u8; 4] = *b"prT1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapTrailer {
    /// Interface at which the frame arrived: 0 is the first interface of the tap, 1 the second.
    pub direction: u8,
    /// Length of the frame in bytes, without FCS.
    pub full_len: u16,
    /// Number of the copy among the copies of its direction, counted from 1.
    pub number: u64,
    /// Time at which the frame arrived, nanoseconds since 1970.
    pub at_ns: u64,
}

impl TapTrailer {
    pub fn to_bytes(&self) -> [u8; TRAILER_BYTES] {
        let mut bytes = [0; TRAILER_BYTES];
        bytes[..4].copy_from_slice(&TRAILER_MAGIC);
        bytes[4] = self.direction;
        bytes[6..8].copy_from_slice(&self.full_len.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_be_bytes());
        bytes[16..].copy_from_slice(&self.at_ns.to_be_bytes());
        bytes
    }
}

/// Splits a copy into the frame and its trailer; `None` for a frame without a trailer.
pub fn split_trailer(copy: &[u8]) -> Option<(&[u8], TapTrailer)> {
    let (frame, bytes) = copy.split_last_chunk::<TRAILER_BYTES>()?;
    let [m0, m1, m2, m3, direction, reserved, l0, l1, numbers @ ..] = *bytes;
    // Any frame may end with such bytes by chance. The magic number and two bytes that are nearly fixed make
    // that happen once in 2^47 frames.
    if [m0, m1, m2, m3] != TRAILER_MAGIC || direction > 1 || reserved != 0 {
        return None;
    }
    let full_len = u16::from_be_bytes([l0, l1]);
    let number = u64::from_be_bytes(*numbers.first_chunk()?);
    let at_ns = u64::from_be_bytes(*numbers.last_chunk()?);
    Some((frame, TapTrailer { direction, full_len, number, at_ns }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: TapTrailer =
        TapTrailer { direction: 1, full_len: 1514, number: 7, at_ns: 1_700_000_000_123_456_789 };

    #[test]
    fn appended_trailer_is_split_from_frame() {
        let copy = [&[0xab; 60][..], &ONE.to_bytes()].concat();
        assert_eq!(split_trailer(&copy), Some((&[0xab; 60][..], ONE)));
        assert_eq!(split_trailer(&ONE.to_bytes()), Some((&[][..], ONE)), "of a frame cut to nothing");
    }

    #[test]
    fn other_frames_have_none() {
        assert_eq!(split_trailer(&[0; 60]), None);
        assert_eq!(split_trailer(&ONE.to_bytes()[1..]), None);
        for (at, value) in [(0, b'q'), (3, b'2'), (4, 2), (5, 1)] {
            let mut bytes = ONE.to_bytes();
            bytes[at] = value;
            assert_eq!(split_trailer(&bytes), None, "{at}");
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let bytes = ONE.to_bytes();
        assert_eq!(bytes[..8], [b'p', b'r', b'T', b'1', 1, 0, 0x05, 0xea]);
        assert_eq!(bytes[8..16], [0, 0, 0, 0, 0, 0, 0, 7]);
    }
}
