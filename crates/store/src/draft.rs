//! A run under way: its directory, until it is complete.

use crate::catalogue::{Catalogue, Unfinished};
use crate::gather::{Gathered, gather};
use crate::segments::{Parcel, SEGMENTS, Stored};
use crate::{Error, disk, files};
use packetrig_fleet::fabric::SegmentId;
use packetrig_fleet::report::RunReport;
use packetrig_fleet::{NodeName, RunId};
use std::fs;
use std::path::{Path, PathBuf};

/// A run's directory in the making. Dropped without [`Draft::commit`] it is removed, unless it is of a run that has a row
/// from its beginning ([`Catalogue::begin_unfinished`]): that one stays until it is committed or given up.
#[derive(Debug)]
pub struct Draft {
    run: RunId,
    partial: PathBuf,
    directory: PathBuf,
    stays: bool,
}

impl Draft {
    pub(crate) fn new(catalogue: &Catalogue, run: RunId) -> Result<Self, Error> {
        check_id(&run)?;
        let directory = catalogue.directory(&run);
        if directory.exists() {
            return Err(Error::Taken(run.0));
        }
        let partial = directory.with_extension("partial");
        match fs::create_dir(&partial) {
            Ok(()) => Ok(Self { run, partial, directory, stays: false }),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Err(Error::Taken(run.0)),
            Err(error) => Err(Error::file("create", partial)(error)),
        }
    }

    /// The draft of a run that has a row, as another process left it.
    pub(crate) fn reopen(catalogue: &Catalogue, unfinished: &Unfinished) -> Result<Self, Error> {
        let (run, partial) = (unfinished.run.clone(), unfinished.directory.clone());
        let directory = catalogue.directory(&run);
        if !partial.exists() {
            // It was about to be committed: the directory had its name already, the row was not written.
            let again =
                if directory.exists() { fs::rename(&directory, &partial) } else { fs::create_dir(&partial) };
            again.map_err(Error::file("restore", &partial))?;
        }
        Ok(Self { run, partial, directory, stays: true })
    }

    /// Stays when it is dropped: the catalogue knows of it.
    pub(crate) fn stay(mut self) -> Self {
        self.stays = true;
        self
    }

    pub(crate) fn partial_directory(&self) -> &Path {
        &self.partial
    }

    /// Stores what a node of the fleet sent: the file, synced, then the row, which is the commit. The same again is
    /// answered the same way; what was stored first is never changed. `at`: nanoseconds since 1970 (UTC).
    pub fn store_segment(
        &self,
        catalogue: &Catalogue,
        id: &SegmentId,
        bytes: &[u8],
        at: u64,
    ) -> Result<Stored, Error> {
        if id.run != self.run {
            return Err(Error::Foreign(id.clone()));
        }
        Parcel { id, bytes, at }.store(catalogue, &self.partial)
    }

    /// What a node's part in the run comes to, once everything up to its End is stored; `None` before. Captures are
    /// written into the run's directory as `<node>-<file>`, and so named in the result.
    pub fn assemble(
        &self,
        catalogue: &Catalogue,
        attempt: u32,
        node: &NodeName,
    ) -> Result<Option<Gathered>, Error> {
        let rows = catalogue.segments(&self.run, attempt, node)?;
        let is_whole = rows.iter().zip(0..).all(|(row, number)| row.number == number);
        if is_whole && rows.last().is_some_and(|last| last.is_end) {
            return gather(self, catalogue, attempt, node, &rows).map(Some);
        }
        Ok(None)
    }

    /// The same of a node that will never finish: what there is.
    pub fn partial(&self, catalogue: &Catalogue, attempt: u32, node: &NodeName) -> Result<Gathered, Error> {
        gather(self, catalogue, attempt, node, &catalogue.segments(&self.run, attempt, node)?)
    }

    /// The run.
    pub const fn run(&self) -> &RunId {
        &self.run
    }

    /// Removes what there is of the run; it will have no report.
    pub fn give_up(mut self, catalogue: &Catalogue) -> Result<(), Error> {
        // The directory goes with the draft.
        self.stays = false;
        catalogue.forget_unfinished(&self.run)
    }

    /// Where they are, once there is one.
    pub(crate) fn captures(&self) -> PathBuf {
        self.partial.join("captures")
    }

    /// Where captures are written while the run goes on; made when asked for.
    pub fn capture_dir(&self) -> Result<PathBuf, Error> {
        let captures = self.captures();
        fs::create_dir_all(&captures).map_err(Error::file("create", &captures))?;
        Ok(captures)
    }

    /// Writes the run's files, gives the directory its name, then writes the row in the catalogue it was begun in. Returns the directory and the
    /// report as stored: its capture files are named as they now are.
    pub fn commit(
        mut self,
        catalogue: &Catalogue,
        mut report: RunReport,
        document: &str,
    ) -> Result<(PathBuf, RunReport), Error> {
        let directory = self.directory.clone();
        for capture in &mut report.captures {
            if let Ok(inside) = Path::new(&capture.file).strip_prefix(&self.partial) {
                capture.file = directory.join(inside).to_string_lossy().into_owned();
            }
        }
        files::write_run(&self.partial, &report, document)?;
        disk::rename(&self.partial, &directory).map_err(Error::file("rename to", &directory))?;
        self.stays = true;
        catalogue.insert(&report, &directory)?;
        // They are in the report and in captures/ now. Rows stay, so that what comes again is known.
        fs::remove_dir_all(directory.join(SEGMENTS)).unwrap_or(());
        Ok((directory, report))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.stays {
            // A run that gave no report leaves nothing; what cannot be removed is never listed.
            fs::remove_dir_all(&self.partial).unwrap_or(());
        }
    }
}

/// A run's id becomes a directory's name.
pub(crate) fn check_id(run: &RunId) -> Result<(), Error> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if run.0.is_empty() || run.0.len() > 100 || !run.0.chars().all(fits) {
        return Err(Error::BadId(run.0.clone()));
    }
    Ok(())
}
