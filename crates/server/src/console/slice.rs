//! Cuts a part out of a capture file: its headers and the requested frames. Reads classic pcap and pcapng as
//! packetrig writes them, little-endian.

use std::io::{self, Read};

/// First four bytes of a section header block.
const PCAPNG_MAGIC: u32 = 0x0a0d_0d0a;
/// Type of an enhanced packet block.
const ENHANCED_PACKET_BLOCK: u32 = 6;
/// Maximum size of a block or record. packetrig writes only smaller ones.
const MAX_BLOCK_BYTES: usize = 1 << 24;

/// Maximum size of a slice. It is built in memory, and several clients may request one at the same time.
const MAX_SLICE_BYTES: usize = 64 << 20;

/// Returns the headers of `file` and up to `count` frames, beginning with number `start`. The first frame has number 1.
/// Fails if the result would be longer than [`MAX_SLICE_BYTES`].
pub(super) fn slice_capture(mut file: impl Read, start: u64, count: u64) -> io::Result<Vec<u8>> {
    let mut out = read_bytes(&mut file, 8)?;
    // A client may request any 64-bit number of frames.
    let end = start.saturating_add(count);
    let wanted = start..end;
    let mut frame = 0;
    // A block of pcapng begins with its type and total length: the 8 bytes that were read. All blocks that are not
    // frames are kept, because some of them describe the interfaces to which frames refer.
    if read_u32_at(&out, 0) == PCAPNG_MAGIC {
        // The section header is a block like any other: its length is at the same offset.
        let rest = read_rest_of_block(&mut file, &out)?;
        out.extend(rest);
        while let Some(head) = read_head(&mut file, 8)? {
            let rest = read_rest_of_block(&mut file, &head)?;
            let is_frame = read_u32_at(&head, 0) == ENHANCED_PACKET_BLOCK;
            frame += u64::from(is_frame);
            if !is_frame || wanted.contains(&frame) {
                out.extend(head);
                out.extend(rest);
                check_slice_length(&out)?;
            }
        }
    } else {
        // A classic pcap file has a header of 24 bytes, and a header of 16 bytes before each frame; the third 32-bit
        // word of the latter is the captured length.
        out.extend(read_bytes(&mut file, 16)?);
        // After the last wanted frame, a classic file has only frames, so the remaining bytes need not be read.
        while frame + 1 < end
            && let Some(head) = read_head(&mut file, 16)?
        {
            frame += 1;
            // Frames that are not wanted are read, too, because the source of the bytes cannot seek.
            let bytes = read_bytes(&mut file, check_block_size(read_u32_at(&head, 8))?)?;
            if wanted.contains(&frame) {
                out.extend(head);
                out.extend(bytes);
                check_slice_length(&out)?;
            }
        }
    }
    Ok(out)
}

fn check_slice_length(part: &[u8]) -> io::Result<()> {
    if part.len() <= MAX_SLICE_BYTES {
        return Ok(());
    }
    let text = format!(
        "the requested frames are larger than {} MiB; request fewer frames, or the whole file",
        MAX_SLICE_BYTES >> 20
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

fn read_rest_of_block(file: &mut impl Read, head: &[u8]) -> io::Result<Vec<u8>> {
    // If the length is smaller than the bytes already read, the file is damaged, and the subtraction would underflow.
    let length =
        check_block_size(read_u32_at(head, 4))?.checked_sub(head.len()).ok_or_else(unknown_format_error)?;
    read_bytes(file, length)
}

fn read_u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

fn check_block_size(length: u32) -> io::Result<usize> {
    // A damaged length must not cause an allocation of gigabytes.
    usize::try_from(length).ok().filter(|length| *length <= MAX_BLOCK_BYTES).ok_or_else(unknown_format_error)
}

fn unknown_format_error() -> io::Error {
    io::Error::other("the capture file is damaged or has an unknown format")
}

fn read_bytes(file: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The head of the next block or record; `None` at the end of the file.
fn read_head(file: &mut impl Read, length: usize) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::with_capacity(length);
    // `read_exact` cannot be used: no byte at all is the end of the file, but an incomplete head is damage.
    file.take(length as u64).read_to_end(&mut bytes)?;
    match bytes.len() {
        0 => Ok(None),
        got if got == length => Ok(Some(bytes)),
        _ => Err(unknown_format_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pcap(frames: u8) -> Vec<u8> {
        let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1];
        file.resize(24, 0);
        for n in 0..frames {
            let mut record = [0; 16];
            (record[8], record[12]) = (3, 3);
            file.extend(record);
            file.extend([n; 3]);
        }
        file
    }

    #[test]
    fn slice_numbers_frames_from_one() {
        let of = |start, count| slice_capture(&pcap(5)[..], start, count).expect("is one");
        assert_eq!(of(1, 5), pcap(5));
        let two = of(2, 2);
        assert_eq!((two.len(), two[24 + 16], two[24 + 19 + 16]), (24 + 2 * 19, 1, 2));
        assert_eq!(of(5, u64::MAX).len(), 24 + 19);
        assert_eq!((of(9, 3).len(), of(1, 0).len()), (24, 24));
        assert!(slice_capture(&pcap(1)[..30], 1, 9).is_err(), "cut off");
    }

    #[test]
    fn slice_keeps_blocks_without_frames() {
        let block = |kind: u32, body: &[u8]| {
            let length = u32::try_from(12 + body.len()).expect("small").to_le_bytes();
            [&kind.to_le_bytes()[..], &length, body, &length].concat()
        };
        let (section, interface, last) =
            (block(PCAPNG_MAGIC, &[1; 16]), block(1, &[2; 8]), block(5, &[3; 4]));
        let frames: Vec<Vec<u8>> = (0..3).map(|n| block(ENHANCED_PACKET_BLOCK, &[n; 4])).collect();
        let file = [section.clone(), interface.clone(), frames.concat(), last.clone()].concat();
        let part = slice_capture(&file[..], 2, 1).expect("is one");
        assert_eq!(part, [section, interface, frames[1].clone(), last].concat());
    }
}
