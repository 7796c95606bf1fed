//! Runs that have a report of which results are missing: what comes later is put into it.
//!
//! ```text
//! <directory of the run>/open.bin    what the report was made from, as whoever made it has written it
//! <directory of the run>/segments/…  results that are not in the report
//! ```

use super::RunCatalogue;
use crate::gather::{GatheredPart, RunFolder, gather};
use crate::segments::SEGMENTS;
use crate::{Error, disk, files};
use packetrig_fleet::report::RunReport;
use packetrig_fleet::{NodeName, RunId};
use rusqlite::params;
use std::fs;
use std::io;

pub(crate) const OPEN: &str = "open.bin";

impl RunCatalogue {
    /// What was kept with [`RunDraft::keep_open`](crate::RunDraft::keep_open); `None` for a run whose report is whole, or that has none.
    pub fn open_run(&self, run: &RunId) -> Result<Option<Vec<u8>>, Error> {
        let path = self.directory(run).join(OPEN);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::file("read", path)(error)),
        }
    }

    /// Runs with a report that results are missing of.
    pub fn open_runs(&self) -> Result<Vec<RunId>, Error> {
        let runs = self.list(usize::MAX)?.into_iter().map(|summary| summary.run);
        Ok(runs.filter(|run| self.directory(run).join(OPEN).exists()).collect())
    }

    /// What a node's part in such a run comes to, once all of it is stored.
    pub fn gather_late(
        &self,
        run: &RunId,
        attempt: u32,
        node: &NodeName,
    ) -> Result<Option<GatheredPart>, Error> {
        if !self.is_part_whole(run, attempt, node)? {
            return Ok(None);
        }
        let directory = self.directory(run);
        let folder = RunFolder { run, directory: &directory };
        gather(&folder, self, attempt, node, &self.segments(run, attempt, node)?).map(Some)
    }

    /// Replaces the report of a run by one with more results. `open` is kept if more may come.
    pub fn complete(&self, report: &RunReport, open: Option<&[u8]>) -> Result<(), Error> {
        let directory = self.directory(&report.run);
        files::write_run(&directory, report, &self.document(&report.run)?)?;
        let sql = "UPDATE runs SET verdict = ?2, outcome = ?3, sent = ?4, lost = ?5 WHERE id = ?1";
        let integer = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let sent = report.streams.iter().filter_map(|stream| stream.sent.as_ref());
        let row = params![
            report.run.0,
            report.verdict.word(),
            report.outcome.state().to_string(),
            integer(sent.map(|sent| sent.frames).sum()),
            integer(report.lost.total),
        ];
        self.connection.execute(sql, row).map_err(|source| self.error(source))?;
        if let Some(open) = open {
            return disk::write_whole(&directory, OPEN, open)
                .map_err(Error::file("write", directory.join(OPEN)));
        }
        // Everything is in the report now.
        fs::remove_dir_all(directory.join(SEGMENTS)).unwrap_or(());
        fs::remove_file(directory.join(OPEN)).unwrap_or(());
        Ok(())
    }

    /// Names a capture of a run by where it is now. Everything else in its report stays as it is by now.
    pub fn name_capture(&self, run: &RunId, before: &str, now: &str) -> Result<(), Error> {
        let (summary, mut report) = self.show(&run.0)?;
        for capture in report.captures.iter_mut().filter(|capture| capture.file == before) {
            now.clone_into(&mut capture.file);
        }
        files::write_run(&summary.directory, &report, &self.document(run)?)
    }

    /// The plan of a run that has a report.
    pub fn document(&self, run: &RunId) -> Result<String, Error> {
        let plan = self.directory(run).join("plan.yaml");
        fs::read_to_string(&plan).map_err(Error::file("read", plan))
    }
}
