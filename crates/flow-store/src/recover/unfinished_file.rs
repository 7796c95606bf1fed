//! Finds the whole row groups of a file that was not finished.
//!
//! Blocks follow one another. If a block cannot be read, the next readable block is searched for. In a readable block,
//! the sizes in its head fit into the file, and the checksum and the end of its footer are right.

use crate::checksum::{continue_crc32c, crc32c};
use crate::row_group::{FileFooter, PARQUET_MAGIC, RowGroupBlockHead, pages_range};
use packetrig_units::clamp_to_usize;
use parquet::file::metadata::{ParquetMetaDataReader, RowGroupMetaData};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Maximum number of bytes of a row group's footer; a real one has about ten thousand.
const MAX_ROW_GROUP_FOOTER_LENGTH: u64 = 1 << 20;
/// Number of bytes of the length and the magic at the end of a footer.
const FOOTER_END_BYTES: usize = 8;
/// Maximum number of bytes that are read at a time.
const READ_WINDOW_BYTES: usize = 1 << 18;

#[derive(Debug, Default)]
pub(super) struct UnfinishedFile {
    /// Length of the part that is kept: up to the end of the last whole row group, or of damage that is left in place.
    pub(super) end: u64,
    /// Footer of the whole row groups, if there are any.
    pub(super) footer: Option<FileFooter>,
    pub(super) damaged_groups: u64,
    /// Bytes of an incomplete block after the last whole one.
    pub(super) cut_bytes: u64,
}

impl UnfinishedFile {
    pub(super) fn from_file(file: &File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let mut unfinished = Self::default();
        let mut at = PARQUET_MAGIC.len() as u64;
        loop {
            if let Some(block) = BlockOnDisk::read_block(file, at, length)? {
                at = block.end;
                unfinished.add_block(block);
            } else if let Some(next) = find_next_block(file, at, length)? {
                unfinished.damaged_groups += 1;
                at = next;
            } else {
                unfinished.handle_file_end(file, at, length)?;
                return Ok(unfinished);
            }
        }
    }

    fn add_block(&mut self, block: BlockOnDisk) {
        // The footer was right, so the end of the block is known, and the search continues after it.
        if !block.has_whole_pages {
            self.damaged_groups += 1;
            return;
        }
        self.end = block.end;
        match &mut self.footer {
            Some(footer) => footer.append_groups(block.footer),
            none => *none = Some(block.footer),
        }
    }

    /// Handles the end of the file: after `at` there is no readable block.
    fn handle_file_end(&mut self, file: &File, at: u64, length: u64) -> io::Result<()> {
        let rest = length.saturating_sub(at);
        if rest == 0 || ends_with_footer(file, at, length)? {
            return Ok(());
        }
        if is_cut_block(file, at, length)? {
            self.cut_bytes = rest;
        } else {
            self.damaged_groups += 1;
            // The damaged bytes stay in place; readers never look at them.
            self.end = length;
        }
        Ok(())
    }

    pub(super) fn count_rows(&self) -> u64 {
        let groups = self.footer.iter().flat_map(FileFooter::groups);
        groups.map(|group: &RowGroupMetaData| group.num_rows().max(0).unsigned_abs()).sum()
    }
}

/// A block with a complete footer.
struct BlockOnDisk {
    footer: FileFooter,
    has_whole_pages: bool,
    end: u64,
}

/// The offsets of a block's parts.
#[derive(Clone, Copy)]
struct BlockOffsets {
    head: RowGroupBlockHead,
    pages_at: u64,
    footer_at: u64,
    end: u64,
}

impl BlockOffsets {
    /// The block at `at` with this head; `None` if no block can have these sizes.
    fn from_head(head: RowGroupBlockHead, at: u64) -> Option<Self> {
        // The head may be any bytes of the file, so the sums must not overflow.
        let pages_at = at + RowGroupBlockHead::ENCODED_BYTES as u64;
        let footer_at = pages_at.checked_add(head.pages)?;
        let end = footer_at.checked_add(head.footer)?;
        let is_possible = (FOOTER_END_BYTES as u64..=MAX_ROW_GROUP_FOOTER_LENGTH).contains(&head.footer);
        is_possible.then_some(Self { head, pages_at, footer_at, end })
    }

    /// Reads the head at `at` of a file with `length` bytes.
    fn read_head(file: &File, at: u64, length: u64) -> io::Result<Option<Self>> {
        if at + RowGroupBlockHead::ENCODED_BYTES as u64 > length {
            return Ok(None);
        }
        let mut head = [0; RowGroupBlockHead::ENCODED_BYTES];
        file.read_exact_at(&mut head, at)?;
        Ok(Self::from_head(RowGroupBlockHead::from_bytes(head), at))
    }

    /// Reads the footer; `None` if it is not whole.
    fn read_footer(&self, file: &File) -> io::Result<Option<Vec<u8>>> {
        // The last bytes are read first: most bytes that look like a head are not one, and this check rejects them
        // without reading a whole footer.
        let mut end = [0; FOOTER_END_BYTES];
        file.read_exact_at(&mut end, self.end - FOOTER_END_BYTES as u64)?;
        if !is_footer_end(end, self.head.footer - FOOTER_END_BYTES as u64) {
            return Ok(None);
        }
        let mut footer = vec![0; clamp_to_usize(self.head.footer)];
        file.read_exact_at(&mut footer, self.footer_at)?;
        Ok((crc32c(&footer) == self.head.footer_checksum).then_some(footer))
    }

    fn has_pages_of(&self, group: &RowGroupMetaData) -> bool {
        let pages = pages_range(group);
        pages.start >= self.pages_at && pages.end <= self.footer_at
    }
}

impl BlockOnDisk {
    /// Reads the block at `at`; `None` if its footer is not complete and right.
    fn read_block(file: &File, at: u64, length: u64) -> io::Result<Option<Self>> {
        let place = BlockOffsets::read_head(file, at, length)?.filter(|place| place.end <= length);
        let Some(place) = place else { return Ok(None) };
        let Some(footer) = place.read_footer(file)? else { return Ok(None) };
        let metadata = ParquetMetaDataReader::decode_metadata(&footer[..footer.len() - FOOTER_END_BYTES]);
        let Ok(metadata) = metadata else { return Ok(None) };
        // A footer with right checksums can still be a copy from elsewhere: its offsets must lie in this block.
        if !metadata.row_groups().iter().all(|group| place.has_pages_of(group)) {
            return Ok(None);
        }
        let has_whole_pages =
            compute_range_checksum(file, place.pages_at, place.head.pages)? == place.head.pages_checksum;
        Ok(Some(Self { footer: FileFooter::from_metadata(&metadata), has_whole_pages, end: place.end }))
    }
}

/// Returns the offset of the first readable block after `at`; `None` if there is none.
fn find_next_block(file: &File, at: u64, length: u64) -> io::Result<Option<u64>> {
    let mut window = vec![0; READ_WINDOW_BYTES];
    // Blocks are not aligned, so each byte may be the beginning of one.
    let mut start = at + 1;
    while start + RowGroupBlockHead::ENCODED_BYTES as u64 <= length {
        let wanted = next_read_length(start, length);
        file.read_exact_at(&mut window[..wanted], start)?;
        for (offset, head) in (start..).zip(window[..wanted].windows(RowGroupBlockHead::ENCODED_BYTES)) {
            let head = RowGroupBlockHead::from_bytes(std::array::from_fn(|byte| head[byte]));
            let fits = BlockOffsets::from_head(head, offset).is_some_and(|place| place.end <= length);
            if fits && BlockOnDisk::read_block(file, offset, length)?.is_some() {
                return Ok(Some(offset));
            }
        }
        // Windows overlap by one byte less than a head, so that no head is missed between them.
        start += (wanted - RowGroupBlockHead::ENCODED_BYTES + 1) as u64;
    }
    Ok(None)
}

/// Returns whether the process was killed, or the power failed, while the block at `at` was written. The rest of the
/// file is then shorter than a head, the beginning of a longer block, or only zeros.
fn is_cut_block(file: &File, at: u64, length: u64) -> io::Result<bool> {
    if at + RowGroupBlockHead::ENCODED_BYTES as u64 > length {
        return Ok(true);
    }
    // Zeros come from reserved space, or from a file system that extended the file before it wrote the data.
    let is_longer = BlockOffsets::read_head(file, at, length)?.is_some_and(|place| place.end > length);
    Ok(is_longer || is_zeroed(file, at, length)?)
}

/// Returns whether a part of the file has only zeros.
fn is_zeroed(file: &File, mut at: u64, end: u64) -> io::Result<bool> {
    let mut window = vec![0; READ_WINDOW_BYTES];
    while at < end {
        let wanted = next_read_length(at, end);
        file.read_exact_at(&mut window[..wanted], at)?;
        if window[..wanted].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += wanted as u64;
    }
    Ok(true)
}

/// The checksum of `bytes` bytes of a file from `at` on.
fn compute_range_checksum(file: &File, mut at: u64, bytes: u64) -> io::Result<u32> {
    let mut window = vec![0; READ_WINDOW_BYTES];
    let end = at + bytes;
    let mut checksum = 0;
    while at < end {
        let wanted = next_read_length(at, end);
        file.read_exact_at(&mut window[..wanted], at)?;
        checksum = continue_crc32c(checksum, &window[..wanted]);
        at += wanted as u64;
    }
    Ok(checksum)
}

fn next_read_length(from: u64, to: u64) -> usize {
    clamp_to_usize((to - from).min(READ_WINDOW_BYTES as u64))
}

/// Returns whether the bytes from `from` are the footer of the whole file: then its process was killed before
/// it could rename the file.
fn ends_with_footer(file: &File, from: u64, length: u64) -> io::Result<bool> {
    let Some(footer) = (length - from).checked_sub(FOOTER_END_BYTES as u64) else { return Ok(false) };
    let mut end = [0; FOOTER_END_BYTES];
    file.read_exact_at(&mut end, length - FOOTER_END_BYTES as u64)?;
    Ok(is_footer_end(end, footer))
}

/// Returns whether `end` is the right end of a footer that has `footer` bytes of metadata.
fn is_footer_end(end: [u8; FOOTER_END_BYTES], footer: u64) -> bool {
    let (length, magic) = end.split_at(FOOTER_END_BYTES - PARQUET_MAGIC.len());
    magic == PARQUET_MAGIC && u32::try_from(footer).is_ok_and(|footer| length == footer.to_le_bytes())
}
