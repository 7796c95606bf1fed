//! A run under way: its directory, until the run is complete.

use crate::catalogue::OPEN_RUN_FILE;
use crate::catalogue::{RunCatalogue, RunQuota, UnfinishedRun};
use crate::files::PageChoice;
use crate::gather::{AssembledPart, RunFolder, assemble_part_from_segments};
use crate::kept::{self, CAPTURES_DIRECTORY, DirectoryOwnership, UNFINISHED_RUN_EXTENSION, UnlistedRun};
use crate::room::{ReportSize, ReportSpaceReservation};
use crate::segments::SEGMENTS_DIRECTORY;
use crate::{Error, disk, files};
use packetrig_report::{NodeName, RunId, RunReport};
use packetrig_sys::private_files;
use std::fs;
use std::path::{Path, PathBuf};

/// The directory of a run under way. If it is dropped without [`RunDraft::commit_run`], the directory is removed unless it has captures,
/// or the run has a row from its beginning ([`RunCatalogue::begin_resumable_run`]).
#[derive(Debug)]
pub struct RunDraft {
    run: RunId,
    partial: PathBuf,
    directory: PathBuf,
    stays: bool,
    /// Bytes that are stored beside the report if more results may come after it.
    open: Option<Vec<u8>>,
    page: PageChoice,
    room: ReportSpaceReservation,
    quota: RunQuota,
    _owner: DirectoryOwnership,
}

impl RunDraft {
    pub(crate) fn new(catalogue: &RunCatalogue, run: RunId, size: ReportSize) -> Result<Self, Error> {
        check_run_id(&run.0)?;
        let directory = catalogue.run_directory(&run);
        if directory.exists() {
            return Err(Error::Taken(run.0));
        }
        // If two processes begin a run with the same id, only one of them can create the directory.
        let partial = directory.with_extension(UNFINISHED_RUN_EXTENSION);
        match private_files::create_directory(&partial) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(Error::Taken(run.0));
            }
            Err(error) => return Err(Error::file("create", partial)(error)),
        }
        let draft = Self::open_directory(run, partial.clone(), directory, size);
        if draft.is_err() {
            // A directory that cannot be removed is not reported, because the first error matters more.
            // `RunCatalogue::list_unlisted_runs` lists such directories.
            drop(kept::remove_if_empty(&partial));
        }
        draft
    }

    fn open_directory(
        run: RunId,
        partial: PathBuf,
        directory: PathBuf,
        size: ReportSize,
    ) -> Result<Self, Error> {
        let owner =
            DirectoryOwnership::try_take_ownership(&partial).map_err(Error::file("lock", &partial))?;
        let room = ReportSpaceReservation::reserve_space_in(&partial, size)?;
        Ok(Self {
            run,
            partial,
            directory,
            stays: false,
            open: None,
            page: PageChoice::Write,
            room,
            quota: RunQuota::default(),
            _owner: owner,
        })
    }

    /// Reopens the draft of a run that has a row, as another process left it.
    pub(crate) fn reopen_run(catalogue: &RunCatalogue, unfinished: &UnfinishedRun) -> Result<Self, Error> {
        let run = unfinished.run.clone();
        let partial = unfinished.directory.clone();
        let directory = catalogue.run_directory(&run);
        if !partial.exists() {
            // The other process was about to commit: it had renamed the directory, but not yet written the row. If
            // both directories are missing, the run continues with an empty one.
            let again = if directory.exists() {
                fs::rename(&directory, &partial)
            } else {
                private_files::create_directory(&partial)
            };
            again.map_err(Error::file("restore", &partial))?;
        }
        // The row does not have the number of streams and ports, so the minimum space is reserved.
        let size = ReportSize { document_bytes: unfinished.plan.len() as u64, ..ReportSize::default() };
        Self::open_directory(run, partial, directory, size).map(Self::keep_directory_on_drop)
    }

    /// Makes the draft keep its directory when it is dropped, because a row of the catalogue names the directory.
    pub(crate) fn keep_directory_on_drop(mut self) -> Self {
        self.stays = true;
        self
    }

    pub(crate) fn partial_directory(&self) -> &Path {
        &self.partial
    }

    /// Sets the limits on the data that each node may store of this run.
    pub const fn set_quota(&mut self, quota: RunQuota) {
        self.quota = quota;
    }

    /// Sets whether the run gets an HTML page; by default it does.
    pub const fn set_page_choice(&mut self, page: PageChoice) {
        self.page = page;
    }

    pub(crate) const fn quota(&self) -> RunQuota {
        self.quota
    }

    /// Assembles a node's part in the run, once all segments up to its End are stored; `None` before. Captures
    /// are written into `captures/` in the run's directory, with names that begin with the name of the node. The
    /// result refers to these files.
    pub fn assemble_part(
        &self,
        catalogue: &RunCatalogue,
        attempt: u32,
        node: &NodeName,
    ) -> Result<Option<AssembledPart>, Error> {
        if !catalogue.is_part_complete(&self.run, attempt, node)? {
            return Ok(None);
        }
        self.assemble_incomplete_part(catalogue, attempt, node).map(Some)
    }

    /// Assembles the part of a node as far as it is stored, for a node that will send no more.
    pub fn assemble_incomplete_part(
        &self,
        catalogue: &RunCatalogue,
        attempt: u32,
        node: &NodeName,
    ) -> Result<AssembledPart, Error> {
        assemble_part_from_segments(
            &self.run_folder(),
            catalogue,
            attempt,
            node,
            &catalogue.list_segment_rows(&self.run, attempt, node)?,
        )
    }

    fn run_folder(&self) -> RunFolder<'_> {
        RunFolder { run: &self.run, directory: &self.partial }
    }

    /// Sets the bytes that [`Self::commit_run`] stores, so that the report can be made again when
    /// more results arrive ([`RunCatalogue::complete_report`]).
    pub fn set_open_state(&mut self, what: Vec<u8>) {
        self.open = Some(what);
    }

    pub const fn run_id(&self) -> &RunId {
        &self.run
    }

    /// Ends a run that has no report. If there are captures or segments, the whole directory stays and is returned;
    /// otherwise it is removed.
    pub fn end_without_report(mut self) -> Option<UnlistedRun> {
        // Removes the placeholder files, which are not results.
        self.room = ReportSpaceReservation::default();
        // `None` if the directory cannot be read. Nothing is removed then, because dropping the draft cannot
        // read the directory either.
        let kept = UnlistedRun::read_directory(self.run.clone(), &self.partial).ok();
        kept.filter(|kept| !kept.captures.is_empty() || kept.segment_bytes > 0)
    }

    /// Like [`Self::end_without_report`], for a run that has a row; the row is deleted. Captures that nodes sent are
    /// assembled first. If there are none, the segments are removed.
    pub fn abandon_run(mut self, catalogue: &RunCatalogue) -> Result<Option<UnlistedRun>, Error> {
        if catalogue.count_capture_segments(&self.run)? == 0 {
            // The segments have only counters, which are useless without a report. A directory that cannot be removed stays.
            drop(fs::remove_dir_all(self.partial.join(SEGMENTS_DIRECTORY)));
        }
        for (attempt, node) in catalogue.list_stored_parts(&self.run)? {
            // A capture that cannot be assembled stays in its segments.
            drop(self.assemble_incomplete_part(catalogue, attempt, &node));
        }
        catalogue.delete_unfinished_run(&self.run)?;
        self.stays = false;
        Ok(self.end_without_report())
    }

    /// Directory of captures, which is created on demand ([`Self::create_capture_directory`]).
    pub(crate) fn captures_path(&self) -> PathBuf {
        self.partial.join(CAPTURES_DIRECTORY)
    }

    /// Creates the directory for captures, and returns its path.
    pub fn create_capture_directory(&self) -> Result<PathBuf, Error> {
        let captures = self.captures_path();
        private_files::create_directories(&captures).map_err(Error::file("create", &captures))?;
        Ok(captures)
    }

    /// Writes the run's files, renames the directory, then writes the row. `catalogue` must be the one in which
    /// the run was begun. Returns the directory; the report gets the new paths of capture files. After a failure
    /// all written files stay, and the error names their directory.
    pub fn commit_run(
        mut self,
        catalogue: &RunCatalogue,
        report: &mut RunReport,
        document: &str,
    ) -> Result<PathBuf, Error> {
        // From here on a failure must not remove measured data.
        self.stays = true;
        let Err(source) = self.store_run(catalogue, report, document) else {
            return Ok(self.directory.clone());
        };
        if self.directory.exists() {
            // Without its row, the directory must not keep its final name. If renaming it back fails, the
            // error names the final name.
            drop(disk::rename_synced(&self.directory, &self.partial));
        }
        let directory = if self.partial.exists() { &self.partial } else { &self.directory };
        update_capture_paths(report, &self.directory, directory);
        Err(Error::NotStored { directory: directory.clone(), source: Box::new(source) })
    }

    fn store_run(
        &mut self,
        catalogue: &RunCatalogue,
        report: &mut RunReport,
        document: &str,
    ) -> Result<(), Error> {
        // A row means that all captures and files exist, so they are synced before the row is written.
        for capture in &report.captures {
            let file = Path::new(&capture.file);
            // The path of a capture that stayed on its node begins with the node's name, so it is not
            // absolute.
            if file.is_absolute() && file.exists() {
                disk::sync_file(file).map_err(Error::file("sync", file))?;
            }
        }
        update_capture_paths(report, &self.partial, &self.directory);
        // The space is released as late as possible: other programs that fill the disk have the least time to
        // take it.
        self.room.release_file_space();
        self.store_open_run_state()?;
        files::write_run_files(&self.partial, report, document, self.page)?;
        // The final directory has only files of the run. The lock itself is held until this draft is dropped.
        DirectoryOwnership::remove_owner_file(&self.partial);
        disk::rename_synced(&self.partial, &self.directory)
            .map_err(Error::file("rename to", &self.directory))?;
        self.room.release_row_space(&self.directory);
        catalogue.insert_run(report, &self.directory)?;
        if self.open.is_none() {
            // The content of these files is in the report and in captures/ now. Rows stay, so that repeated
            // segments are recognised. Files that cannot be removed only take space.
            drop(fs::remove_dir_all(self.directory.join(SEGMENTS_DIRECTORY)));
        }
        Ok(())
    }
}

impl RunDraft {
    /// Stores the bytes of [`Self::set_open_state`]; if none were set, removes the file that an earlier controller may
    /// have left. The bytes are written before the report, into the space reserved for it: without them, later
    /// results could never be added to the report, although the nodes delete these results once they are stored.
    fn store_open_run_state(&self) -> Result<(), Error> {
        let path = self.partial.join(OPEN_RUN_FILE);
        match &self.open {
            Some(what) => {
                disk::write_whole_file(&self.partial, OPEN_RUN_FILE, what).map_err(Error::file("write", path))
            }
            // An earlier controller that had fewer results, and could not write the report, may have left
            // this file.
            None => match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(Error::file("remove", path)(error))
                }
                _ => Ok(()),
            },
        }
    }
}

impl Drop for RunDraft {
    fn drop(&mut self) {
        self.room = ReportSpaceReservation::default();
        if !self.stays {
            // A run without captures and without a report leaves no files. `RunCatalogue::list_unlisted_runs` lists
            // directories that could not be removed.
            drop(kept::remove_if_empty(&self.partial));
        }
    }
}

/// Updates the paths of capture files in the report after their directory was renamed.
fn update_capture_paths(report: &mut RunReport, from: &Path, to: &Path) {
    for capture in &mut report.captures {
        if let Ok(inside) = Path::new(&capture.file).strip_prefix(from) {
            capture.file = to.join(inside).to_string_lossy().into_owned();
        }
    }
}

/// Refuses ids of runs and methods that are unsafe as a directory's name.
pub(crate) fn check_run_id(id: &str) -> Result<(), Error> {
    let is_plain = id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if id.is_empty() || id.len() > 100 || !is_plain {
        return Err(Error::BadId(id.to_owned()));
    }
    Ok(())
}
