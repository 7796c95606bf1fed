//! The guest's first file system: an archive in cpio's "newc" form, as the kernel unpacks it into memory.
//!
//! It holds files and directories only, owned by root. Layout: `Documentation/driver-api/early-userspace/
//! buffer-format.rst` of the kernel. Invariant: every header and every content begins at a multiple of four.

use std::io::{self, Write};

const DIRECTORY_MODE: u32 = 0o040_755;
const PROGRAM_MODE: u32 = 0o100_755;
const ARCHIVE_END_NAME: &str = "TRAILER!!!";

/// An archive being written.
#[derive(Debug)]
pub(crate) struct GuestImage<W> {
    out: W,
    number: u32,
}

impl<W: Write> GuestImage<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, number: 0 }
    }

    pub(crate) fn directory(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, DIRECTORY_MODE, &[])
    }

    /// A file that may be run.
    pub(crate) fn file(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.entry(name, PROGRAM_MODE, content)
    }

    /// Ends the archive.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.entry(ARCHIVE_END_NAME, 0, &[])?;
        self.out.flush()
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.number += 1;
        let size = u32::try_from(content.len()).map_err(io::Error::other)?;
        let name_size = u32::try_from(name.len() + 1).map_err(io::Error::other)?;
        // Inode, mode, user, group, links, time, size, device and node twice, length of the name, checksum.
        let fields = [self.number, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.out.write_all(b"070701")?;
        for field in fields {
            write!(self.out, "{field:08x}")?;
        }
        self.out.write_all(name.as_bytes())?;
        self.out.write_all(&[0])?;
        self.pad(6 + 13 * 8 + name.len() + 1)?;
        self.out.write_all(content)?;
        self.pad(content.len())
    }

    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.out.write_all(&[0; 3][..written.next_multiple_of(4) - written])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_entries_are_aligned_and_end_with_trailer() {
        let mut bytes = Vec::new();
        let mut image = GuestImage::new(&mut bytes);
        image.directory("dev").expect("memory takes it");
        image.file("init", b"#!/bin/sh").expect("memory takes it");
        image.finish().expect("memory takes it");
        let starts: Vec<usize> =
            bytes.windows(6).enumerate().filter(|(_, w)| *w == b"070701").map(|(at, _)| at).collect();
        assert_eq!(starts.len(), 3);
        assert!(starts.iter().all(|at| at % 4 == 0), "{starts:?}");
        assert_eq!(&bytes[starts[1] + 110..starts[1] + 115], b"init\0");
        assert_eq!(&bytes[starts[2] + 110..starts[2] + 120], ARCHIVE_END_NAME.as_bytes());
    }
}
