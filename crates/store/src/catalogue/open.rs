//! Runs whose report lacks results of nodes: results that arrive later are added to the report.
//!
//! ```text
//! <directory of the run>/open.bin    the data from which the caller makes the report again, in the caller's own format
//! <directory of the run>/segments/…  the results of the nodes, kept until the report has all of them
//! ```

use super::RunCatalogue;
use crate::files::PageChoice;
use crate::gather::{AssembledPart, RunFolder, assemble_part_from_segments};
use crate::segments::SEGMENTS_DIRECTORY;
use crate::{Error, disk, files};
use packetrig_report::{NodeName, RunId, RunReport};
use packetrig_units::clamp_to_i64;
use rusqlite::params;
use std::fs;
use std::io;

pub(crate) const OPEN_RUN_FILE: &str = "open.bin";

impl RunCatalogue {
    /// Reads the bytes that [`RunDraft::set_open_state`](crate::RunDraft::set_open_state) stored; `None` for
    /// a run that has a complete report or no report.
    pub fn read_open_state(&self, run: &RunId) -> Result<Option<Vec<u8>>, Error> {
        let path = self.run_directory(run).join(OPEN_RUN_FILE);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::file("read", path)(error)),
        }
    }

    /// Lists the runs whose report lacks results of nodes.
    pub fn list_runs_with_missing_results(&self) -> Result<Vec<RunId>, Error> {
        let runs = self.list_runs(usize::MAX)?.into_iter().map(|summary| summary.run);
        Ok(runs.filter(|run| self.run_directory(run).join(OPEN_RUN_FILE).exists()).collect())
    }

    /// Puts together a node's part in a run whose report is incomplete; `None` until the whole part is stored.
    pub fn assemble_late_part(
        &self,
        run: &RunId,
        attempt: u32,
        node: &NodeName,
    ) -> Result<Option<AssembledPart>, Error> {
        if !self.is_part_complete(run, attempt, node)? {
            return Ok(None);
        }
        let directory = self.run_directory(run);
        let folder = RunFolder { run, directory: &directory };
        assemble_part_from_segments(
            &folder,
            self,
            attempt,
            node,
            &self.list_segment_rows(run, attempt, node)?,
        )
        .map(Some)
    }

    /// Replaces the report of a run by one with more results. `open` is the state for adding further results
    /// later; `None` means that the report is complete, and removes the stored state and segments.
    pub fn complete_report(&self, report: &RunReport, open: Option<&[u8]>) -> Result<(), Error> {
        let directory = self.run_directory(&report.run);
        // The files are written before the row, as at the first commit: after a crash in between, the row is
        // older than the report, never newer.
        files::write_run_files(
            &directory,
            report,
            &self.read_plan(&report.run)?,
            PageChoice::from_existing_files(&directory),
        )?;
        let sql = "UPDATE runs SET verdict = ?2, outcome = ?3, sent = ?4, lost = ?5 WHERE id = ?1";
        let sent = report.streams.iter().filter_map(|stream| stream.sent.as_ref());
        let row = params![
            report.run.0,
            report.verdict.as_str(),
            report.outcome.state().to_string(),
            clamp_to_i64(sent.map(|sent| sent.frames).sum::<u64>()),
            clamp_to_i64(report.lost.total),
        ];
        self.connection.execute(sql, row).map_err(|source| self.catalogue_error(source))?;
        if let Some(open) = open {
            return disk::write_whole_file(&directory, OPEN_RUN_FILE, open)
                .map_err(Error::file("write", directory.join(OPEN_RUN_FILE)));
        }
        // The report now has all results. A file that cannot be removed only takes space and does not affect
        // the report.
        drop(fs::remove_dir_all(directory.join(SEGMENTS_DIRECTORY)));
        drop(fs::remove_file(directory.join(OPEN_RUN_FILE)));
        Ok(())
    }

    /// Changes the path of a capture in the report of a run from `before` to `now`. The file itself is not moved.
    pub fn rename_capture(&self, run: &RunId, before: &str, now: &str) -> Result<(), Error> {
        let (summary, mut report) = self.load_report(&run.0)?;
        for capture in report.captures.iter_mut().filter(|capture| capture.file == before) {
            now.clone_into(&mut capture.file);
        }
        // A run that has no HTML page must not get one here.
        let choice = PageChoice::from_existing_files(&summary.directory);
        files::write_run_files(&summary.directory, &report, &self.read_plan(run)?, choice)
    }

    /// Reads the text of the plan of a run that has a report.
    pub fn read_plan(&self, run: &RunId) -> Result<String, Error> {
        let plan = self.run_directory(run).join("plan.yaml");
        fs::read_to_string(&plan).map_err(Error::file("read", plan))
    }
}
