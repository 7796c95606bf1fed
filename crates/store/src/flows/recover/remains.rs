//! What is whole in a file that was not finished.
//!
//! Blocks follow one another. Where one cannot be read, the next that can is searched for: its head must fit the file, and the checksum
//! and the end of its footer must be right.

use super::super::checksum::{continue_crc32c, crc32c};
use super::super::row_group::{BlockHead, FileFooter, MAGIC, place_of};
use parquet::file::metadata::{ParquetMetaDataReader, RowGroupMetaData};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that the footer of one row group has at most; ours have about ten thousand.
const FOOTER_MOST: u64 = 1 << 20;
/// Length and magic, which end a footer.
const FOOTER_END: usize = 8;
/// Bytes that are read at a time.
const WINDOW: usize = 1 << 18;

#[derive(Debug, Default)]
pub(super) struct FileRemains {
    /// What is kept of the file: the last whole row group's block ends there, or damage that is left in place.
    pub(super) end: u64,
    /// Of the whole row groups, if there are any.
    pub(super) footer: Option<FileFooter>,
    pub(super) damaged_groups: u64,
    /// Bytes behind the last block that are no footer of the file.
    pub(super) cut_bytes: u64,
}

impl FileRemains {
    pub(super) fn read(file: &File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let mut remains = Self::default();
        let mut at = MAGIC.len() as u64;
        loop {
            if let Some(block) = BlockOnDisk::read(file, at, length)? {
                at = block.end;
                remains.add(block);
            } else if let Some(next) = next_block(file, at, length)? {
                remains.damaged_groups += 1;
                at = next;
            } else {
                remains.end_at(file, at, length)?;
                return Ok(remains);
            }
        }
    }

    fn add(&mut self, block: BlockOnDisk) {
        if !block.has_whole_pages {
            self.damaged_groups += 1;
            return;
        }
        self.end = block.end;
        match &mut self.footer {
            Some(footer) => footer.add(block.footer),
            none => *none = Some(block.footer),
        }
    }

    /// Behind `at` there is no block that can be read.
    fn end_at(&mut self, file: &File, at: u64, length: u64) -> io::Result<()> {
        let rest = length.saturating_sub(at);
        if rest == 0 || ends_with_footer(file, at, length)? {
            return Ok(());
        }
        if is_cut_block(file, at, length)? {
            self.cut_bytes = rest;
        } else {
            self.damaged_groups += 1;
            self.end = length;
        }
        Ok(())
    }

    pub(super) fn rows(&self) -> u64 {
        let groups = self.footer.iter().flat_map(FileFooter::groups);
        groups.map(|group: &RowGroupMetaData| u64::try_from(group.num_rows()).unwrap_or(0)).sum()
    }
}

/// A block whose footer is whole.
struct BlockOnDisk {
    footer: FileFooter,
    has_whole_pages: bool,
    end: u64,
}

/// Where the parts of a block are.
#[derive(Clone, Copy)]
struct BlockPlace {
    head: BlockHead,
    pages_at: u64,
    footer_at: u64,
    end: u64,
}

impl BlockPlace {
    /// As the head says; `None` where no block can be of that size.
    fn of(head: BlockHead, at: u64) -> Option<Self> {
        let pages_at = at + BlockHead::BYTES as u64;
        let footer_at = pages_at.checked_add(head.pages)?;
        let end = footer_at.checked_add(head.footer)?;
        let is_possible = (FOOTER_END as u64..=FOOTER_MOST).contains(&head.footer);
        is_possible.then_some(Self { head, pages_at, footer_at, end })
    }

    /// The same of the block behind so many bytes of a file that has as many as that takes.
    fn read(file: &File, at: u64, length: u64) -> io::Result<Option<Self>> {
        if at + BlockHead::BYTES as u64 > length {
            return Ok(None);
        }
        let mut head = [0; BlockHead::BYTES];
        file.read_exact_at(&mut head, at)?;
        Ok(Self::of(BlockHead::decode(head), at))
    }

    /// The footer, if it is whole.
    fn footer(&self, file: &File) -> io::Result<Option<Vec<u8>>> {
        // Its last bytes first: most of what looks like a head is none.
        let mut end = [0; FOOTER_END];
        file.read_exact_at(&mut end, self.end - FOOTER_END as u64)?;
        if !is_footer_end(end, self.head.footer - FOOTER_END as u64) {
            return Ok(None);
        }
        let mut footer = vec![0; usize::try_from(self.head.footer).unwrap_or(0)];
        file.read_exact_at(&mut footer, self.footer_at)?;
        Ok((crc32c(&footer) == self.head.footer_checksum).then_some(footer))
    }
}

impl BlockOnDisk {
    /// The block behind so many bytes, if its footer is there and is right.
    fn read(file: &File, at: u64, length: u64) -> io::Result<Option<Self>> {
        let place = BlockPlace::read(file, at, length)?.filter(|place| place.end <= length);
        let Some(place) = place else { return Ok(None) };
        let Some(footer) = place.footer(file)? else { return Ok(None) };
        let metadata = ParquetMetaDataReader::decode_metadata(&footer[..footer.len() - FOOTER_END]);
        let Ok(metadata) = metadata else { return Ok(None) };
        let is_here = |group: &RowGroupMetaData| {
            let pages = place_of(group);
            pages.start >= place.pages_at && pages.end <= place.footer_at
        };
        if !metadata.row_groups().iter().all(is_here) {
            return Ok(None);
        }
        let has_whole_pages = checksum(file, place.pages_at, place.head.pages)? == place.head.pages_checksum;
        Ok(Some(Self { footer: FileFooter::of(&metadata), has_whole_pages, end: place.end }))
    }
}

/// The first block behind `at` that can be read.
fn next_block(file: &File, at: u64, length: u64) -> io::Result<Option<u64>> {
    let mut window = vec![0; WINDOW];
    let mut start = at + 1;
    while start + BlockHead::BYTES as u64 <= length {
        let wanted = usize::try_from(length - start).unwrap_or(WINDOW).min(WINDOW);
        file.read_exact_at(&mut window[..wanted], start)?;
        for (offset, head) in (start..).zip(window[..wanted].windows(BlockHead::BYTES)) {
            let head = BlockHead::decode(std::array::from_fn(|byte| head[byte]));
            let fits = BlockPlace::of(head, offset).is_some_and(|place| place.end <= length);
            if fits && BlockOnDisk::read(file, offset, length)?.is_some() {
                return Ok(Some(offset));
            }
        }
        start += (wanted - BlockHead::BYTES + 1) as u64;
    }
    Ok(None)
}

/// Whether what is behind `at` is the beginning of a block, or nothing: the process was killed, or the power went, while it was written.
fn is_cut_block(file: &File, at: u64, length: u64) -> io::Result<bool> {
    if at + BlockHead::BYTES as u64 > length {
        return Ok(true);
    }
    let is_longer = BlockPlace::read(file, at, length)?.is_some_and(|place| place.end > length);
    Ok(is_longer || is_empty(file, at, length)?)
}

/// Whether there are only zeros.
fn is_empty(file: &File, mut at: u64, end: u64) -> io::Result<bool> {
    let mut window = vec![0; WINDOW];
    while at < end {
        let wanted = usize::try_from(end - at).unwrap_or(WINDOW).min(WINDOW);
        file.read_exact_at(&mut window[..wanted], at)?;
        if window[..wanted].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += wanted as u64;
    }
    Ok(true)
}

/// The checksum of so many bytes of a file.
fn checksum(file: &File, mut at: u64, bytes: u64) -> io::Result<u32> {
    let mut window = vec![0; WINDOW];
    let end = at + bytes;
    let mut checksum = 0;
    while at < end {
        let wanted = usize::try_from(end - at).unwrap_or(WINDOW).min(WINDOW);
        file.read_exact_at(&mut window[..wanted], at)?;
        checksum = continue_crc32c(checksum, &window[..wanted]);
        at += wanted as u64;
    }
    Ok(checksum)
}

/// Whether what lies between is the footer of the whole file: its process was killed before it could give the file its name.
fn ends_with_footer(file: &File, from: u64, length: u64) -> io::Result<bool> {
    let Some(footer) = (length - from).checked_sub(FOOTER_END as u64) else { return Ok(false) };
    let mut end = [0; FOOTER_END];
    file.read_exact_at(&mut end, length - FOOTER_END as u64)?;
    Ok(is_footer_end(end, footer))
}

/// Whether a footer of so many bytes ends so.
fn is_footer_end(end: [u8; FOOTER_END], footer: u64) -> bool {
    let (said, magic) = end.split_at(FOOTER_END - MAGIC.len());
    magic == MAGIC && u32::try_from(footer).is_ok_and(|footer| said == footer.to_le_bytes())
}
