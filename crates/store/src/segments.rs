//! Segments of nodes, stored by the controller.
//!
//! ```text
//! <directory of the run>/segments/<node>.<attempt>/<number>.seg
//! ```
//! Invariant: a row means that the file is on the disk for good; the same name never means other bytes. Whoever was
//! told [`Stored`] may tell the node to delete it.

use crate::catalogue::Catalogue;
use crate::draft::check_id;
use crate::spool::segment::hex;
use crate::spool::{Key, Segment};
use crate::{Error, disk};
use packetrig_fleet::NodeName;
use packetrig_fleet::fabric::SegmentId;
use std::path::{Path, PathBuf};

/// Where they are in a run's directory.
pub(crate) const SEGMENTS: &str = "segments";

/// Where those of runs are that nobody knows here.
pub(crate) const STRAY: &str = "stray";

/// How a segment came to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// By this.
    New,
    /// Before: this was a repeat.
    Again,
}

/// A segment that came in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parcel<'a> {
    pub(crate) id: &'a SegmentId,
    pub(crate) bytes: &'a [u8],
    pub(crate) at: u64,
}

impl Parcel<'_> {
    /// Stores it below `run`, which exists.
    pub(crate) fn store(self, catalogue: &Catalogue, run: &Path) -> Result<Stored, Error> {
        let Self { id, bytes, .. } = self;
        let bad = |source| Error::BadSegment { id: id.clone(), source };
        let segment = Segment::decode(&key(id), bytes).map_err(bad)?;
        check_node(&id.node)?;
        let sha256 = hex(&Segment::hash(bytes));
        let known = catalogue.segment_hash(id)?;
        if known.as_ref().is_some_and(|known| *known != sha256) {
            return Err(Error::Differs(id.clone()));
        }
        let directory = node_directory(run, id.attempt, &id.node);
        let name = file_name(id.number);
        if known.is_none() || !directory.join(&name).exists() {
            let write = || {
                disk::make_below(run, &directory)?;
                disk::write_whole(&directory, &name, bytes)
            };
            write().map_err(Error::file("write", directory.join(&name)))?;
        }
        if known.is_some() {
            return Ok(Stored::Again);
        }
        catalogue.insert_segment(self, segment.kind, &sha256)?;
        Ok(Stored::New)
    }
}

impl Catalogue {
    /// Stores a segment for which the caller has no draft: what came too late for the report is kept beside it, and what
    /// belongs to a run nobody knows here is kept apart. Then the node need not keep it for ever. Of each node, and in all, no
    /// more is kept than [`MOST_LATE_OF_NODE`](crate::MOST_LATE_OF_NODE) and [`MOST_LATE`](crate::MOST_LATE).
    pub fn store_late(&self, id: &SegmentId, bytes: &[u8], at: u64) -> Result<Stored, Error> {
        check_id(&id.run)?;
        check_node(&id.node)?;
        Segment::decode(&key(id), bytes).map_err(|source| Error::BadSegment { id: id.clone(), source })?;
        if self.segment_hash(id)?.is_some_and(|known| known == hex(&Segment::hash(bytes))) {
            // Of a run that was committed, the files are gone.
            return Ok(Stored::Again);
        }
        let under_way = self.unfinished()?.into_iter().find(|unfinished| unfinished.run == id.run);
        let listed = self.directory(&id.run);
        let run = match under_way {
            Some(unfinished) if unfinished.directory.exists() => unfinished.directory,
            _ if listed.exists() => listed,
            _ => self.place().join(STRAY).join(&id.run.0),
        };
        let free = packetrig_sys::disk::free(self.place()).unwrap_or(u64::MAX);
        self.charge_late(id, bytes.len(), free)?;
        disk::make_below(self.place(), &run).map_err(Error::file("create", &run))?;
        Parcel { id, bytes, at }.store(self, &run)
    }
}

pub(crate) fn key(id: &SegmentId) -> Key {
    Key { run: id.run.clone(), attempt: id.attempt, number: id.number }
}

pub(crate) fn node_directory(run: &Path, attempt: u32, node: &NodeName) -> PathBuf {
    run.join(SEGMENTS).join(format!("{node}.{attempt}"))
}

pub(crate) fn file_name(number: u64) -> String {
    format!("{number:020}.seg")
}

pub(crate) fn check_node(node: &NodeName) -> Result<(), Error> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if node.0.is_empty() || node.0.len() > 100 || node.0.starts_with('.') || !node.0.chars().all(fits) {
        return Err(Error::BadNode(node.clone()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
