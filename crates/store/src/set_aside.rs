//! Unreadable segments, kept so that people can inspect the data that a node sent.
//!
//! ```text
//! <store>/set-aside/<node>/<sha256>.seg
//! ```
//! Invariant: at most [`MAX_FILES_PER_NODE`] files with [`MAX_BYTES_PER_NODE`] bytes together are kept per node.
//! Further segments are not written.

use crate::catalogue::RunCatalogue;
use crate::segments::check_node_directory_name;
use crate::spool::segment::hash_in_hex;
use crate::{Error, disk};
use packetrig_fleet::fabric::SegmentId;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;

/// Maximum number of files kept of one node.
const MAX_FILES_PER_NODE: usize = 64;
/// Maximum number of bytes kept of one node.
const MAX_BYTES_PER_NODE: u64 = 4 << 20;

impl RunCatalogue {
    /// Stores a segment that cannot be read, unless the limit of its node is reached. Returns whether it is stored.
    pub fn store_unreadable_segment(&self, id: &SegmentId, bytes: &[u8]) -> Result<bool, Error> {
        // The node's name becomes a directory's name. A segment of a node with an unsafe name is dropped.
        if check_node_directory_name(&id.node).is_err() {
            return Ok(false);
        }
        let directory = self.place().join("set-aside").join(&id.node.0);
        disk::create_directories_below(self.place(), &directory)
            .map_err(Error::file("create", &directory))?;
        // The file is named by its content, so a node that repeats the same bad segment takes no more space.
        let name = format!("{}.seg", hash_in_hex(&Sha256::digest(bytes).into()));
        let kept = measure_unreadable_files(&directory).map_err(Error::file("read", &directory))?;
        // The name is the hash of the contents, so a file with this name has these bytes.
        let is_known = directory.join(&name).exists();
        if is_known
            || kept.files >= MAX_FILES_PER_NODE
            || kept.bytes + bytes.len() as u64 > MAX_BYTES_PER_NODE
        {
            return Ok(is_known);
        }
        disk::write_whole_file(&directory, &name, bytes)
            .map_err(Error::file("write", directory.join(&name)))?;
        Ok(true)
    }
}

#[derive(Debug, Default)]
struct SetAsideAmounts {
    files: usize,
    bytes: u64,
}

fn measure_unreadable_files(directory: &Path) -> std::io::Result<SetAsideAmounts> {
    let mut kept = SetAsideAmounts::default();
    for entry in fs::read_dir(directory)? {
        kept.files += 1;
        kept.bytes += entry?.metadata()?.len();
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_report::{NodeName, RunId};

    #[test]
    fn node_set_aside_room_is_bounded_and_deduplicated() {
        let place = tempfile::tempdir().unwrap();
        let catalogue = RunCatalogue::open_or_create(place.path()).unwrap();
        let id = |node: &str| SegmentId {
            run: RunId("r".into()),
            attempt: 1,
            node: NodeName(node.into()),
            number: 0,
        };
        let bytes = |number: usize| format!("nonsense {number}").into_bytes();
        for _ in 0..2 {
            let kept = (0..MAX_FILES_PER_NODE + 9)
                .filter(|number| catalogue.store_unreadable_segment(&id("a"), &bytes(*number)).unwrap());
            assert_eq!(kept.count(), MAX_FILES_PER_NODE);
        }
        let keep = |node: &str, bytes: &[u8]| catalogue.store_unreadable_segment(&id(node), bytes).unwrap();
        assert!(keep("b", &bytes(0)), "another node has its own room");
        assert!(!keep("c", &vec![7; 5 << 20]), "more than its room");
        assert!(!keep("../d", &bytes(0)), "no name for a directory");
    }
}
