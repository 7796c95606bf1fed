//! Packs: files with several segments that were stored together, so that one sync is enough for all of them.
//!
//! ```text
//! <directory of the run>/segments/<hash>.pack    for each segment: `<node>.<attempt>/<number>.seg <length>`, a newline, its bytes
//! ```
//! The hash covers the checksums of the segments in the pack, in order. So packs with the same name
//! have the same bytes.
//!
//! Invariant: a pack exists whole or not at all, and is never changed.

use crate::segments::{SEGMENTS_DIRECTORY, file_name, node_directory};
use crate::spool::segment::{SegmentHash, hash_in_hex};
use crate::{Error, disk};
use packetrig_fleet::fabric::SegmentId;
use packetrig_units::clamp_to_usize;
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Location of a stored segment: its file below the directory of its run, and the position in this file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentLocation {
    /// Name of the pack; `None` for a segment that an earlier version stored in a separate file.
    pub(crate) pack: Option<String>,
    /// Offset of the segment's bytes in the pack.
    pub(crate) position: u64,
    pub(crate) length: u64,
}

/// A segment that goes into a pack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedSegment<'a> {
    pub(crate) id: &'a SegmentId,
    pub(crate) hash: SegmentHash,
    pub(crate) bytes: &'a [u8],
}

/// Writes a pack below `run`, which is in the store at `store`. Returns the location of each segment.
pub(crate) fn write_pack(
    store: &Path,
    run: &Path,
    segments: &[PackedSegment<'_>],
) -> Result<Vec<SegmentLocation>, Error> {
    let mut digest = Sha256::new();
    for segment in segments {
        digest.update(segment.hash);
    }
    let name = format!("{}.pack", hash_in_hex(&digest.finalize().into()));
    let headers: Vec<String> =
        segments.iter().map(|segment| segment_header(segment.id, segment.bytes)).collect();
    let mut parts = Vec::with_capacity(2 * segments.len());
    let mut places = Vec::with_capacity(segments.len());
    let mut position = 0;
    for (segment, header) in segments.iter().zip(&headers) {
        // Only rows have positions. The headers let people find segments in a pack if the catalogue is lost.
        parts.extend([header.as_bytes(), segment.bytes]);
        // The position is that of the segment's bytes, after their header.
        position += header.len() as u64;
        let length = segment.bytes.len() as u64;
        places.push(SegmentLocation { pack: Some(name.clone()), position, length });
        position += length;
    }
    let directory = run.join(SEGMENTS_DIRECTORY);
    disk::create_directories_below(store, &directory).map_err(Error::file("create", &directory))?;
    disk::write_file_from_parts(&directory, &name, &parts)
        .map_err(Error::file("write", directory.join(&name)))?;
    Ok(places)
}

fn segment_header(id: &SegmentId, bytes: &[u8]) -> String {
    format!("{}.{}/{} {}\n", id.node, id.attempt, file_name(id.number), bytes.len())
}

impl SegmentLocation {
    /// Path of the file that contains the segment.
    pub(crate) fn file_path(&self, run: &Path, id: &SegmentId) -> PathBuf {
        match &self.pack {
            Some(pack) => run.join(SEGMENTS_DIRECTORY).join(pack),
            None => node_directory(run, id.attempt, &id.node).join(file_name(id.number)),
        }
    }

    /// Returns whether the file of the segment exists and, if it is a pack, is long enough.
    pub(crate) fn is_on_disk(&self, run: &Path, id: &SegmentId) -> bool {
        let end = self.position.saturating_add(self.length);
        fs::metadata(self.file_path(run, id)).is_ok_and(|facts| self.pack.is_none() || facts.len() >= end)
    }

    pub(crate) fn read_bytes(&self, run: &Path, id: &SegmentId) -> io::Result<Vec<u8>> {
        let file = self.file_path(run, id);
        // An earlier version stored each segment in a separate file.
        if self.pack.is_none() {
            return fs::read(file);
        }
        let mut bytes = vec![0; clamp_to_usize(self.length)];
        File::open(file)?.read_exact_at(&mut bytes, self.position)?;
        Ok(bytes)
    }
}
