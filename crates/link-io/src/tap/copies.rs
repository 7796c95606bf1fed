//! Makes a copy for a mirror in user space: truncated, with a trailer, with a new destination. The copies
//! equal the copies of `bpf/tap.bpf.c`; a test of the whole program compares both.

use packetrig_sys::link::Mac;
use packetrig_wire::trailer::{self, TapTrailer};

/// Properties of the copies for a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MirrorCopyProperties {
    /// Maximum number of bytes of a frame that a copy contains.
    pub(super) snap: usize,
    pub(super) to: Option<Mac>,
    /// Length of the longest copy that the mirror accepts.
    pub(super) longest: usize,
}

impl MirrorCopyProperties {
    /// Writes the copy of a frame into `slot`. Returns its length, or `None` if it is too long for the mirror or the slot.
    pub(super) fn write_mirror_copy(
        &self,
        frame: &[u8],
        trailer: Option<TapTrailer>,
        slot: &mut [u8],
    ) -> Option<usize> {
        let kept = frame.len().min(self.snap);
        let len = kept + trailer.map_or(0, |_| trailer::TRAILER_BYTES);
        if len > self.longest || len > slot.len() {
            return None;
        }
        slot[..kept].copy_from_slice(&frame[..kept]);
        // A frame that was cut below six bytes has no complete address to replace.
        if let (Some(to), true) = (self.to, kept >= 6) {
            slot[..6].copy_from_slice(&to);
        }
        if let Some(trailer) = trailer {
            slot[kept..len].copy_from_slice(&trailer.to_bytes());
        }
        Some(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAILER: TapTrailer = TapTrailer { direction: 0, full_len: 200, number: 3, at_ns: 4 };

    #[test]
    fn frame_copy_is_cut_readdressed_and_gets_trailer() {
        let shape = MirrorCopyProperties { snap: 100, to: Some([2; 6]), longest: 1514 };
        let mut slot = [0; 300];
        let len = shape.write_mirror_copy(&[7; 200], Some(TRAILER), &mut slot).unwrap();
        let (frame, found) = trailer::split_trailer(&slot[..len]).unwrap();
        assert_eq!((frame, found), (&[[2; 6].as_slice(), &[7; 94]].concat()[..], TRAILER));
    }

    #[test]
    fn a_copy_that_does_not_fit_is_none() {
        let shape = MirrorCopyProperties { snap: 9600, to: None, longest: 223 };
        assert_eq!(shape.write_mirror_copy(&[7; 200], None, &mut [0; 300]), Some(200));
        assert_eq!(shape.write_mirror_copy(&[7; 200], Some(TRAILER), &mut [0; 300]), None);
        assert_eq!(shape.write_mirror_copy(&[7; 200], None, &mut [0; 100]), None);
    }
}
