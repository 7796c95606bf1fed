//! Writes the capture files of a node from their pieces.

use super::{AssembledCapture, RunFolder};
use crate::catalogue::RunCatalogue;
use crate::kept::CAPTURES_DIRECTORY;
use crate::spool::ResultSegment;
use crate::{Error, disk};
use packetrig_report::NodeName;
use packetrig_sys::private_files;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

/// The captures of one node.
pub(super) struct NodeCaptures {
    directory: PathBuf,
    /// First part of the files' names: the name of the node and a separator.
    prefix: String,
    open: Vec<CapturePieces>,
    node: NodeName,
    /// Number of pieces that were refused.
    refused: u64,
}

/// Maximum number of capture files of one node, all open at the same time. A run has a few for each port.
const MAX_FILES: usize = 256;
/// Largest capture file in bytes, far more than an engine writes. Without a limit, a piece with a huge offset
/// would create a huge sparse file.
const MAX_BYTES: u64 = 1 << 40;

struct CapturePieces {
    name: String,
    /// Final name of the file, which it gets when all stored pieces are written.
    file_name: String,
    file: File,
    bytes: u64,
    /// Size of the file, known from its last piece.
    size: Option<u64>,
}

impl NodeCaptures {
    /// Files get the name `<node>-<file>` in `captures/` of the run's directory, or `<node>=<file>` if
    /// `<node>-<file>` could also be the name of another node's file.
    pub(super) fn for_node(
        folder: &RunFolder<'_>,
        catalogue: &RunCatalogue,
        attempt: u32,
        node: &NodeName,
    ) -> Result<Self, Error> {
        // The file `b-c` of node `a` and the file `c` of node `a-b` would both become `a-b-c`.
        let is_doubtful = catalogue.has_similar_node_name(folder.run, attempt, node)?;
        let prefix = format!("{node}{}", if is_doubtful { '=' } else { '-' });
        let directory = folder.directory.join(CAPTURES_DIRECTORY);
        Ok(Self { directory, prefix, open: Vec::new(), node: node.clone(), refused: 0 })
    }

    /// A message about refused pieces, if there are any.
    pub(super) fn describe_refused_capture_pieces(&self) -> Option<String> {
        let pieces = self.refused;
        (pieces > 0).then(|| {
            let limit = MAX_BYTES >> 40;
            format!(
                "{}: its captures are incomplete: it sent more than {MAX_FILES} captures, or a capture of more than \
                 {limit} TiB (pieces that were refused: {pieces})",
                self.node
            )
        })
    }

    /// Writes a piece at its offset. A piece beyond the limits is counted and refused: this is the fault of its
    /// node and must not affect the results of other nodes.
    pub(super) fn write_capture_piece(&mut self, segment: &ResultSegment) -> Result<(), Error> {
        let length = segment.payload.len() as u64;
        let is_known = self.open.iter().any(|capture| capture.name == segment.name);
        let is_new_one_too_many = !is_known && self.open.len() >= MAX_FILES;
        if is_new_one_too_many || segment.offset.saturating_add(length) > MAX_BYTES {
            self.refused += 1;
            return Ok(());
        }
        let at = match self.open.iter().position(|capture| capture.name == segment.name) {
            Some(at) => at,
            None => self.open_file(&segment.name)?,
        };
        let path = self.temporary_path(&self.open[at].file_name);
        let capture = &mut self.open[at];
        let written = capture.file.write_all_at(&segment.payload, segment.offset);
        written.map_err(Error::file("write", path))?;
        capture.bytes += length;
        // The last piece may come before earlier ones, so the size is noted and compared with the bytes at the end.
        if segment.last {
            capture.size = Some(segment.offset.saturating_add(length));
        }
        Ok(())
    }

    fn open_file(&mut self, name: &str) -> Result<usize, Error> {
        // The name comes from another machine and becomes part of a path.
        let plain: String = name.chars().map(to_plain_character).collect();
        let mut file_name = format!("{}{plain}", self.prefix);
        while self.open.iter().any(|capture| capture.file_name == file_name) {
            // Two names may differ only in characters that are replaced.
            file_name.insert(self.prefix.len(), '_');
        }
        private_files::create_directories(&self.directory).map_err(Error::file("create", &self.directory))?;
        let path = self.temporary_path(&file_name);
        let file = private_files::create_file(&path).map_err(Error::file("create", &path))?;
        self.open.push(CapturePieces { name: name.to_owned(), file_name, file, bytes: 0, size: None });
        Ok(self.open.len() - 1)
    }

    /// Syncs the files and gives them their final names.
    pub(super) fn finish_files(self) -> Result<Vec<AssembledCapture>, Error> {
        let mut done = Vec::with_capacity(self.open.len());
        for capture in &self.open {
            let file = self.directory.join(&capture.file_name);
            capture
                .file
                .sync_all()
                .and_then(|()| fs::rename(self.temporary_path(&capture.file_name), &file))
                .map_err(Error::file("write", &file))?;
            // Pieces are never sent twice under different numbers, so if none is missing, the sum of their
            // bytes is that of the file.
            let is_whole = capture.size == Some(capture.bytes);
            done.push(AssembledCapture { name: capture.name.clone(), file, bytes: capture.bytes, is_whole });
        }
        if done.is_empty() {
            return Ok(done);
        }
        disk::sync_directory(&self.directory).map_err(Error::file("sync", &self.directory))?;
        Ok(done)
    }

    fn temporary_path(&self, file_name: &str) -> PathBuf {
        self.directory.join(format!(".{file_name}.{}", disk::UNFINISHED_FILE_EXTENSION))
    }
}

const fn to_plain_character(c: char) -> char {
    if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' }
}
