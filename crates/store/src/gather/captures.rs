//! Capture files of a node, written from their pieces.

use super::GatheredCapture;
use crate::spool::Segment;
use crate::{Error, disk};
use packetrig_fleet::NodeName;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

/// The captures of one node.
pub(super) struct Captures {
    directory: PathBuf,
    /// What their files begin with.
    prefix: String,
    open: Vec<Capture>,
}

struct Capture {
    name: String,
    /// What the file is going to be called.
    file_name: String,
    file: File,
    bytes: u64,
    /// Known from its last piece.
    size: Option<u64>,
}

impl Captures {
    /// Into `directory`, as `<node>-<file>`. Where that could be read as another node's, as `<node>=<file>`.
    pub(super) fn new(directory: PathBuf, node: &NodeName, nodes: &[NodeName]) -> Self {
        let begins = |long: &NodeName, short: &NodeName| long.0.starts_with(&format!("{short}-"));
        let is_doubtful = nodes.iter().any(|other| begins(other, node) || begins(node, other));
        let prefix = format!("{node}{}", if is_doubtful { '=' } else { '-' });
        Self { directory, prefix, open: Vec::new() }
    }

    /// Writes a piece where it belongs.
    pub(super) fn take(&mut self, segment: &Segment) -> Result<(), Error> {
        let at = match self.open.iter().position(|capture| capture.name == segment.name) {
            Some(at) => at,
            None => self.begin(&segment.name)?,
        };
        let path = self.temporary(&self.open[at].file_name);
        let capture = &mut self.open[at];
        let written = capture.file.write_all_at(&segment.payload, segment.offset);
        written.map_err(Error::file("write", path))?;
        let length = u64::try_from(segment.payload.len()).unwrap_or(u64::MAX);
        capture.bytes += length;
        if segment.last {
            capture.size = Some(segment.offset.saturating_add(length));
        }
        Ok(())
    }

    fn begin(&mut self, name: &str) -> Result<usize, Error> {
        let fits = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' };
        let plain: String = name.chars().map(fits).collect();
        let mut file_name = format!("{}{plain}", self.prefix);
        while self.open.iter().any(|capture| capture.file_name == file_name) {
            // Two names that differ only in what was replaced.
            file_name.insert(self.prefix.len(), '_');
        }
        fs::create_dir_all(&self.directory).map_err(Error::file("create", &self.directory))?;
        let path = self.temporary(&file_name);
        let file = File::create(&path).map_err(Error::file("create", &path))?;
        self.open.push(Capture { name: name.to_owned(), file_name, file, bytes: 0, size: None });
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
