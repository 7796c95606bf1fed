//! Files that are written in large blocks, past the page cache where the file system allows it.
//!
//! [`BulkFile`] owns its descriptors, [`AlignedMemory`] its memory. If the address, position and length of a block are
//! multiples of [`DIRECT_WRITE_ALIGNMENT`], the block goes to the disk directly (O_DIRECT). All other blocks go
//! through the page cache, and so does every block on a file system without direct writes. Their pages are dropped
//! from the cache soon after, so that a long capture does not displace all other data from memory. Pipes and terminals
//! are written in order.
//!
//! Invariant: bytes are written at the offset that the caller gives, directly or through the page cache.

use crate::private_files;
use packetrig_units::clamp_to_i64;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;

/// Alignment of direct writes, in bytes.
pub const DIRECT_WRITE_ALIGNMENT: usize = 4096;

/// Memory that is suitable for direct writes; zeroed at first.
#[derive(Debug)]
pub struct AlignedMemory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory belongs only to this value, as with a `Vec`.
unsafe impl Send for AlignedMemory {}

impl AlignedMemory {
    /// Allocates `bytes` bytes; one byte if `bytes` is 0.
    pub fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes.max(1), DIRECT_WRITE_ALIGNMENT)
            .expect("far below the address space");
        // SAFETY: the layout has a size above zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, layout }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is initialised, of that size, ours, and borrowed through `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }

    /// Mutable view of the memory.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and no other borrow exists.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for AlignedMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout by `new`, freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[derive(Debug)]
pub struct BulkFile {
    file: File,
    direct: Option<File>,
    in_order: bool,
}

impl BulkFile {
    /// Creates the file, or empties an existing one. `direct` requests direct writes, if the file system supports them.
    pub fn create_at(path: &Path, direct: bool) -> io::Result<Self> {
        let file = private_files::create_file(path)?;
        let in_order = !file.metadata()?.is_file();
        // A second descriptor, because blocks that are not aligned must not go through O_DIRECT.
        let direct = if direct && !in_order {
            OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).ok()
        } else {
            None
        };
        Ok(Self { file, direct, in_order })
    }

    /// Writes to standard output, in the order of the calls; offsets are ignored.
    pub fn standard_output() -> io::Result<Self> {
        let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        Ok(Self { file, direct: None, in_order: true })
    }

    /// Returns true while direct writes are used.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Writes all of `bytes` at `offset`, which is ignored for pipes and terminals.
    pub fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.in_order {
            self.file.write_all(bytes)?;
            return self.file.flush();
        }
        // O_DIRECT requires aligned memory, too.
        let aligned = bytes.len().is_multiple_of(DIRECT_WRITE_ALIGNMENT)
            && bytes.as_ptr().addr().is_multiple_of(DIRECT_WRITE_ALIGNMENT);
        if let Some(direct) = &self.direct
            && aligned
            && offset.is_multiple_of(DIRECT_WRITE_ALIGNMENT as u64)
        {
            // A file system that opens with O_DIRECT may still refuse a direct write (EINVAL): then all writes from now
            // on go through the page cache.
            match direct.write_all_at(bytes, offset) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => self.direct = None,
                done => return done,
            }
        }
        self.file.write_all_at(bytes, offset)?;
        self.start_writeback(bytes.len(), offset);
        Ok(())
    }

    /// Cuts the file after `length` bytes, which removes what a failed write has left. Pipes and terminals
    /// stay as they are.
    pub fn truncate_to(&self, length: u64) -> io::Result<()> {
        if self.in_order { Ok(()) } else { self.file.set_len(length) }
    }

    /// Makes the kernel start to write this part of the file to the disk, and drop the part 8 MiB before it from the
    /// page cache. Failures are ignored, because they only cost memory.
    fn start_writeback(&self, length: usize, offset: u64) {
        let length = clamp_to_i64(length as u64);
        let start = clamp_to_i64(offset);
        // SAFETY: takes a live descriptor and numbers.
        unsafe { libc::sync_file_range(self.file.as_raw_fd(), start, length, libc::SYNC_FILE_RANGE_WRITE) };
        // The part that began to be written 8 MiB ago is usually on the disk by now. The kernel does not drop pages
        // that are still dirty.
        const WRITE_BACK_LAG_BYTES: u64 = 8 << 20;
        if offset >= WRITE_BACK_LAG_BYTES {
            let behind = clamp_to_i64(offset - WRITE_BACK_LAG_BYTES);
            // SAFETY: takes a live descriptor and numbers.
            unsafe { libc::posix_fadvise(self.file.as_raw_fd(), behind, length, libc::POSIX_FADV_DONTNEED) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_any_size_land_where_they_belong() {
        for direct in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("f");
            let mut file = BulkFile::create_at(&path, direct).unwrap();
            let mut block = AlignedMemory::new(2 * DIRECT_WRITE_ALIGNMENT);
            block.bytes_mut().fill(1);
            file.write_at(block.bytes(), 0).unwrap();
            file.write_at(&[2; 100], 8192).unwrap();
            file.write_at(&block.bytes()[..DIRECT_WRITE_ALIGNMENT - 100], 8292).unwrap();
            file.write_at(block.bytes(), 12_288).unwrap();
            let content = std::fs::read(&path).unwrap();
            assert_eq!(content.len(), 20_480);
            assert!(content[8192..8292].iter().all(|byte| *byte == 2));
            assert_eq!((content[8191], content[8192], content[8291], content[8292]), (1, 2, 2, 1));
            file.truncate_to(8192).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 8192);
        }
    }

    #[test]
    fn a_pipe_or_device_is_written_in_order() {
        let mut file = BulkFile::create_at(Path::new("/dev/null"), true).unwrap();
        assert!(!file.is_direct());
        file.write_at(&[1; 10], 77).unwrap();
        file.truncate_to(3).unwrap();
        let mut full = BulkFile::create_at(Path::new("/dev/full"), true).unwrap();
        assert_eq!(full.write_at(&[1], 0).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    }

    #[test]
    fn memory_is_aligned_and_zero() {
        let memory = AlignedMemory::new(10_000);
        assert!(memory.bytes().as_ptr().addr().is_multiple_of(DIRECT_WRITE_ALIGNMENT));
        assert!(memory.bytes().iter().all(|byte| *byte == 0));
    }
}
