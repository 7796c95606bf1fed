//! Compression of what goes to the disk, on the disk's thread.
//!
//! Each block becomes a frame of zstd of its own, with a checksum. Readers take a file of many frames as one of their
//! contents joined; a capture that ends by force is whole up to its last block.

use std::io;
use zstd::bulk::Compressor;
use zstd::zstd_safe::{self, CParameter};

pub(super) struct FileCompression {
    compressor: Compressor<'static>,
    compressed: Vec<u8>,
}

impl FileCompression {
    /// `most`: bytes of a block.
    pub(super) fn new(level: i32, most: usize) -> io::Result<Self> {
        let mut compressor = Compressor::new(level)?;
        compressor.set_parameter(CParameter::ChecksumFlag(true))?;
        Ok(Self { compressor, compressed: Vec::with_capacity(zstd_safe::compress_bound(most)) })
    }

    /// The bytes as a frame.
    pub(super) fn compress(&mut self, bytes: &[u8]) -> io::Result<&[u8]> {
        self.compressed.clear();
        self.compressor.compress_to_buffer(bytes, &mut self.compressed)?;
        Ok(&self.compressed)
    }
}
