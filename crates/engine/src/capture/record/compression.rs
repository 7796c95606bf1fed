//! Compresses blocks on the disk's thread.
//!
//! Each block becomes a separate zstd frame with a checksum. Readers treat a file of many frames as their
//! joined contents; a killed capture is readable up to its last complete block.

use std::io;
use zstd::bulk::Compressor;
use zstd::zstd_safe::{self, CParameter};

pub(super) struct FileCompression {
    compressor: Compressor<'static>,
    compressed: Vec<u8>,
}

impl FileCompression {
    /// Prepares the compression of blocks of at most `most` bytes. Fails if zstd does not know the level.
    pub(super) fn new(level: i32, most: usize) -> io::Result<Self> {
        let mut compressor = Compressor::new(level)?;
        // Readers then detect a damaged block instead of misreading it.
        compressor.set_parameter(CParameter::ChecksumFlag(true))?;
        Ok(Self { compressor, compressed: Vec::with_capacity(zstd_safe::compress_bound(most)) })
    }

    /// Compresses the bytes into one zstd frame.
    pub(super) fn compress_block(&mut self, bytes: &[u8]) -> io::Result<&[u8]> {
        self.compressed.clear();
        self.compressor.compress_to_buffer(bytes, &mut self.compressed)?;
        Ok(&self.compressed)
    }
}
