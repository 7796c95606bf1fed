//! A run under way: its directory, until it is complete.

use crate::catalogue::OPEN;
use crate::catalogue::{RunCatalogue, RunQuota, UnfinishedRun};
use crate::gather::{GatheredPart, RunFolder, gather};
use crate::kept::{self, CAPTURES, DirectoryOwner, KeptRun, PARTIAL};
use crate::room::{ReportRoom, ReportSize};
use crate::segments::SEGMENTS;
use crate::{Error, disk, files};
use packetrig_fleet::report::RunReport;
use packetrig_fleet::{NodeName, RunId};
use packetrig_sys::private_files;
use std::fs;
use std::path::{Path, PathBuf};

/// A run's directory in the making. Dropped without [`RunDraft::commit`] it is removed if nothing was captured; one that holds
/// captures stays, and so does that of a run that has a row from its beginning ([`RunCatalogue::begin_unfinished`]).
#[derive(Debug)]
pub struct RunDraft {
    run: RunId,
    partial: PathBuf,
    directory: PathBuf,
    stays: bool,
    /// More results may come after its report.
    is_open: bool,
    room: ReportRoom,
    quota: RunQuota,
    _owner: DirectoryOwner,
}

impl RunDraft {
    pub(crate) fn new(catalogue: &RunCatalogue, run: RunId, size: ReportSize) -> Result<Self, Error> {
        check_id(&run)?;
        let directory = catalogue.directory(&run);
        if directory.exists() {
            return Err(Error::Taken(run.0));
        }
        let partial = directory.with_extension(PARTIAL);
        match private_files::create_directory(&partial) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(Error::Taken(run.0));
            }
            Err(error) => return Err(Error::file("create", partial)(error)),
        }
        let draft = Self::open(run, partial.clone(), directory, size);
        if draft.is_err() {
            // Nothing is in it but what could not be made.
            kept::remove_if_empty(&partial).unwrap_or(());
        }
        draft
    }

    fn open(run: RunId, partial: PathBuf, directory: PathBuf, size: ReportSize) -> Result<Self, Error> {
        let owner = DirectoryOwner::take(&partial).map_err(Error::file("lock", &partial))?;
        let room = ReportRoom::set_aside(&partial, size)?;
        Ok(Self {
            run,
            partial,
            directory,
            stays: false,
            is_open: false,
            room,
            quota: RunQuota::default(),
            _owner: owner,
        })
    }

    /// The draft of a run that has a row, as another process left it.
    pub(crate) fn reopen(catalogue: &RunCatalogue, unfinished: &UnfinishedRun) -> Result<Self, Error> {
        let (run, partial) = (unfinished.run.clone(), unfinished.directory.clone());
        let directory = catalogue.directory(&run);
        if !partial.exists() {
            // It was about to be committed: the directory had its name already, the row was not written.
            let again = if directory.exists() {
                fs::rename(&directory, &partial)
            } else {
                private_files::create_directory(&partial)
            };
            again.map_err(Error::file("restore", &partial))?;
        }
        let size = ReportSize { document_bytes: unfinished.plan.len() as u64, ..ReportSize::default() };
        Self::open(run, partial, directory, size).map(Self::stay)
    }

    /// Stays when it is dropped: the catalogue knows of it.
    pub(crate) fn stay(mut self) -> Self {
        self.stays = true;
        self
    }

    pub(crate) fn partial_directory(&self) -> &Path {
        &self.partial
    }

    /// Lets each node store so much of the run, instead of the usual.
    pub const fn set_quota(&mut self, quota: RunQuota) {
        self.quota = quota;
    }

    pub(crate) const fn quota(&self) -> RunQuota {
        self.quota
    }

    /// What a node's part in the run comes to, once everything up to its End is stored; `None` before. Captures are
    /// written into the run's directory as `<node>-<file>`, and so named in the result.
    pub fn assemble(
        &self,
        catalogue: &RunCatalogue,
        attempt: u32,
        node: &NodeName,
    ) -> Result<Option<GatheredPart>, Error> {
        if !catalogue.is_part_whole(&self.run, attempt, node)? {
            return Ok(None);
        }
        self.partial(catalogue, attempt, node).map(Some)
    }

    /// The same of a node that will never finish: what there is.
    pub fn partial(
        &self,
        catalogue: &RunCatalogue,
        attempt: u32,
        node: &NodeName,
    ) -> Result<GatheredPart, Error> {
        gather(&self.folder(), catalogue, attempt, node, &catalogue.segments(&self.run, attempt, node)?)
    }

    fn folder(&self) -> RunFolder<'_> {
        RunFolder { run: &self.run, directory: &self.partial }
    }

    /// Keeps what it takes to make the report again once more results have come ([`RunCatalogue::complete`]).
    pub fn keep_open(&mut self, what: &[u8]) -> Result<(), Error> {
        disk::write_whole(&self.partial, OPEN, what)
            .map_err(Error::file("write", self.partial.join(OPEN)))?;
        self.is_open = true;
        Ok(())
    }

    pub const fn run(&self) -> &RunId {
        &self.run
    }

    /// Ends a run that has no report. What was captured stays and is named, with all else there is of the run; without
    /// captures nothing stays.
    pub fn leave(mut self) -> Option<KeptRun> {
        self.room = ReportRoom::default();
        // What cannot be read cannot be known to be worth nothing: it stays, too.
        let kept = KeptRun::read(self.run.clone(), &self.partial).ok();
        kept.filter(|kept| !kept.captures.is_empty() || kept.segment_bytes > 0)
    }

    /// The same for a run that has a row, which is removed. Captures that nodes sent are put together.
    pub fn give_up(mut self, catalogue: &RunCatalogue) -> Result<Option<KeptRun>, Error> {
        if catalogue.captured_segments(&self.run)? == 0 {
            // They say what a node counted, and of a run without a report nobody asks.
            fs::remove_dir_all(self.partial.join(SEGMENTS)).unwrap_or(());
        }
        for (attempt, node) in catalogue.parts(&self.run)? {
            // What cannot be put together stays in its segments.
            drop(self.partial(catalogue, attempt, &node));
        }
        catalogue.forget_unfinished(&self.run)?;
        self.stays = false;
        Ok(self.leave())
    }

    /// Where they are, once there is one.
    pub(crate) fn captures(&self) -> PathBuf {
        self.partial.join(CAPTURES)
    }

    /// Where captures are written while the run goes on; made when asked for.
    pub fn capture_dir(&self) -> Result<PathBuf, Error> {
        let captures = self.captures();
        private_files::create_directories(&captures).map_err(Error::file("create", &captures))?;
        Ok(captures)
    }

    /// Writes the run's files, gives the directory its name, then writes the row in the catalogue it was begun in. Returns
    /// the directory; capture files are named in the report as they now are. When it fails everything stays as far as it
    /// was written, and the error says where.
    pub fn commit(
        mut self,
        catalogue: &RunCatalogue,
        report: &mut RunReport,
        document: &str,
    ) -> Result<PathBuf, Error> {
        self.stays = true;
        let Err(source) = self.store(catalogue, report, document) else { return Ok(self.directory.clone()) };
        if self.directory.exists() {
            // A directory of that name is one that has its row.
            disk::rename(&self.directory, &self.partial).unwrap_or(());
        }
        let directory = if self.partial.exists() { &self.partial } else { &self.directory };
        name_captures(report, &self.directory, directory);
        Err(Error::NotStored { directory: directory.clone(), source: Box::new(source) })
    }

    fn store(
        &mut self,
        catalogue: &RunCatalogue,
        report: &mut RunReport,
        document: &str,
    ) -> Result<(), Error> {
        // What the row promises is on the disk before it.
        for capture in &report.captures {
            let file = Path::new(&capture.file);
            if file.is_absolute() && file.exists() {
                disk::sync_file(file).map_err(Error::file("sync", file))?;
            }
        }
        name_captures(report, &self.partial, &self.directory);
        self.room.release_files();
        files::write_run(&self.partial, report, document)?;
        DirectoryOwner::remove_trace(&self.partial);
        disk::rename(&self.partial, &self.directory).map_err(Error::file("rename to", &self.directory))?;
        self.room.release_row(&self.directory);
        catalogue.insert(report, &self.directory)?;
        if !self.is_open {
            // They are in the report and in captures/ now. Rows stay, so that what comes again is known.
            fs::remove_dir_all(self.directory.join(SEGMENTS)).unwrap_or(());
        }
        Ok(())
    }
}

impl Drop for RunDraft {
    fn drop(&mut self) {
        self.room = ReportRoom::default();
        if !self.stays {
            // A run that captured nothing and gave no report leaves nothing; what cannot be removed is shown by `kept`.
            kept::remove_if_empty(&self.partial).unwrap_or(());
        }
    }
}

/// Capture files have moved with their directory.
fn name_captures(report: &mut RunReport, from: &Path, to: &Path) {
    for capture in &mut report.captures {
        if let Ok(inside) = Path::new(&capture.file).strip_prefix(from) {
            capture.file = to.join(inside).to_string_lossy().into_owned();
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
