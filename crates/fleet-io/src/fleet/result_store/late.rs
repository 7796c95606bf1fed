//! Completes reports with results that arrive after the report of their run was written.
//!
//! If several results arrive together, the report is written only once.

use super::{PartKey, ResultStoreState};
use crate::open_run::OpenRun;
use packetrig_report::RunId;
use packetrig_store::{AssembledPart, Error};
use std::collections::BTreeMap;
use std::sync::Arc;

impl ResultStoreState {
    /// Completes earlier reports that lacked some of these parts. Returns a sentence for each part that was
    /// added, or the error.
    pub(super) fn complete_late_reports<'a>(
        &self,
        parts: impl Iterator<Item = &'a PartKey>,
    ) -> BTreeMap<PartKey, Result<String, Error>> {
        let mut of_runs: BTreeMap<&RunId, Vec<&PartKey>> = BTreeMap::new();
        for key in parts.filter(|key| self.current_draft_for(&key.run, &key.node).is_none()) {
            of_runs.entry(&key.run).or_default().push(key);
        }
        let mut completed = BTreeMap::new();
        for (run, keys) in of_runs {
            match self.complete_report(run, &keys) {
                Ok(told) => completed.extend(told.into_iter().map(|(key, told)| (key, Ok(told)))),
                Err(error) => {
                    // One report is written for all parts together, so each part gets the same error.
                    let error = Arc::new(error);
                    let failed =
                        keys.into_iter().map(|key| (key.clone(), Err(Error::OfBatch(error.clone()))));
                    completed.extend(failed);
                }
            }
        }
        completed
    }

    /// Adds to the report of a run the results that were missing and have arrived since. Returns a sentence for
    /// each of these results.
    pub(super) fn complete_report_of_run(&self, run: &RunId) -> Result<Vec<String>, Error> {
        let written = self.catalogue.read_open_state(run)?;
        // If the state is unreadable, another version of packetrig wrote it.
        let Some(open) = written.and_then(|written| OpenRun::from_bytes(&written).ok()) else {
            return Ok(Vec::new());
        };
        let attempt = open.attempt();
        let missing = open.missing_nodes().into_iter();
        let keys: Vec<PartKey> = missing.map(|node| PartKey { run: run.clone(), attempt, node }).collect();
        let completed = self.complete_report(run, &keys.iter().collect::<Vec<_>>())?;
        Ok(completed.into_iter().map(|(_, told)| told).collect())
    }

    /// Writes the report of an earlier run again if some of `parts` were missing in it and are complete now. Returns a
    /// sentence for each part that was added.
    fn complete_report(&self, run: &RunId, parts: &[&PartKey]) -> Result<Vec<(PartKey, String)>, Error> {
        let mut whole = Vec::new();
        for key in parts {
            if self.catalogue.is_part_complete(run, key.attempt, &key.node)? {
                whole.push(*key);
            }
        }
        if whole.is_empty() {
            return Ok(Vec::new());
        }
        let Some(written) = self.catalogue.read_open_state(run)? else { return Ok(Vec::new()) };
        let Ok(mut open) = OpenRun::from_bytes(&written) else { return Ok(Vec::new()) };
        let mut taken_in = Vec::new();
        for key in whole {
            if !open.lacks_result_of(key.attempt, &key.node) {
                continue;
            }
            let gathered = self.catalogue.assemble_late_part(run, key.attempt, &key.node)?;
            if let Some(AssembledPart { result: Some(result), doubts, .. }) = gathered {
                open.add_late_result(&key.node, result, doubts);
                taken_in.push(key);
            }
        }
        if taken_in.is_empty() {
            return Ok(Vec::new());
        }
        // If the plan cannot be read any more, its file was changed, and the old report stays.
        let Ok(report) = open.build_report(&self.catalogue.read_plan(run)?) else { return Ok(Vec::new()) };
        // A complete report needs no state for later results. Without that state the run is not open any more.
        let written = open.to_bytes().ok().filter(|_| !open.is_whole());
        self.catalogue.complete_report(&report, written.as_deref())?;
        Ok(taken_in.into_iter().map(|key| (key.clone(), open.describe_late_result(&key.node))).collect())
    }
}
