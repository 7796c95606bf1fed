//! Capture files of a node, written from their pieces.

use super::{GatheredCapture, RunFolder};
use crate::catalogue::RunCatalogue;
use crate::kept::CAPTURES;
use crate::spool::ResultSegment;
use crate::{Error, disk};
use packetrig_fleet::NodeName;
use packetrig_sys::private_files;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

/// The captures of one node.
pub(super) struct NodeCaptures {
    directory: PathBuf,
    /// What their files begin with.
    prefix: String,
    open: Vec<CapturePieces>,
    node: NodeName,
    /// Pieces that were left out.
    refused: u64,
}

/// Open files of one node: a run has a few for each port.
const MOST_FILES: usize = 256;
/// Far beyond what an engine writes into one; a piece far behind makes a file that looks endless.
const MOST_BYTES: u64 = 1 << 40;

struct CapturePieces {
    name: String,
    /// What the file is going to be called.
    file_name: String,
    file: File,
    bytes: u64,
    /// Known from its last piece.
    size: Option<u64>,
}

impl NodeCaptures {
    /// Into the run's directory, as `<node>-<file>`. Where that could be read as another node's, as `<node>=<file>`.
    pub(super) fn begin(
        folder: &RunFolder<'_>,
        catalogue: &RunCatalogue,
        attempt: u32,
        node: &NodeName,
    ) -> Result<Self, Error> {
        let is_doubtful = catalogue.has_similar_sender(folder.run, attempt, node)?;
        let prefix = format!("{node}{}", if is_doubtful { '=' } else { '-' });
        let directory = folder.directory.join(CAPTURES);
        Ok(Self { directory, prefix, open: Vec::new(), node: node.clone(), refused: 0 })
    }

    /// What of the node's captures was not taken, in words.
    pub(super) fn refused(&self) -> Option<String> {
        let pieces = self.refused;
        let why = format!("more than {MOST_FILES} captures, or beyond {MOST_BYTES} B of one");
        (pieces > 0).then(|| format!("{}: {pieces} pieces of captures were not taken: {why}", self.node))
    }

    /// Writes a piece where it belongs. What no capture can be is counted and left out: it is the node's fault, and others'
    /// results must not want for it.
    pub(super) fn take(&mut self, segment: &ResultSegment) -> Result<(), Error> {
        let length = u64::try_from(segment.payload.len()).unwrap_or(u64::MAX);
        let is_known = self.open.iter().any(|capture| capture.name == segment.name);
        let is_new_one_too_many = !is_known && self.open.len() >= MOST_FILES;
        if is_new_one_too_many || segment.offset.saturating_add(length) > MOST_BYTES {
            self.refused += 1;
            return Ok(());
        }
        let at = match self.open.iter().position(|capture| capture.name == segment.name) {
            Some(at) => at,
            None => self.open_file(&segment.name)?,
        };
        let path = self.temporary(&self.open[at].file_name);
        let capture = &mut self.open[at];
        let written = capture.file.write_all_at(&segment.payload, segment.offset);
        written.map_err(Error::file("write", path))?;
        capture.bytes += length;
        if segment.last {
            capture.size = Some(segment.offset.saturating_add(length));
        }
        Ok(())
    }

    fn open_file(&mut self, name: &str) -> Result<usize, Error> {
        let fits = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' };
        let plain: String = name.chars().map(fits).collect();
        let mut file_name = format!("{}{plain}", self.prefix);
        while self.open.iter().any(|capture| capture.file_name == file_name) {
            // Two names that differ only in what was replaced.
            file_name.insert(self.prefix.len(), '_');
        }
        private_files::create_directories(&self.directory).map_err(Error::file("create", &self.directory))?;
        let path = self.temporary(&file_name);
        let file = private_files::create(&path).map_err(Error::file("create", &path))?;
        self.open.push(CapturePieces { name: name.to_owned(), file_name, file, bytes: 0, size: None });
        Ok(self.open.len() - 1)
    }

    /// Gives the files their names.
    pub(super) fn finish(self) -> Result<Vec<GatheredCapture>, Error> {
        let mut done = Vec::with_capacity(self.open.len());
        for capture in &self.open {
            let file = self.directory.join(&capture.file_name);
            let named = || {
                capture.file.sync_all()?;
                fs::rename(self.temporary(&capture.file_name), &file)
            };
            named().map_err(Error::file("write", &file))?;
            let is_whole = capture.size == Some(capture.bytes);
            done.push(GatheredCapture { name: capture.name.clone(), file, bytes: capture.bytes, is_whole });
        }
        if done.is_empty() {
            return Ok(done);
        }
        disk::sync(&self.directory).map_err(Error::file("sync", &self.directory))?;
        Ok(done)
    }

    fn temporary(&self, file_name: &str) -> PathBuf {
        self.directory.join(format!(".{file_name}.{}", disk::UNFINISHED))
    }
}
