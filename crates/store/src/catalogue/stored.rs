//! Results of both kinds: runs and test methods, found by one id.

use super::{MethodState, MethodSummary, RunCatalogue, RunSummary, only_match};
use crate::methods::RESULT;
use crate::{Error, results};
use packetrig_fleet::report::run_figures;
use packetrig_stats::figure::ReportFigure;
use std::path::Path;

/// Kind of results that are runs.
pub(crate) const RUN: &str = "run";

/// A run or a method of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredSummary {
    Run(RunSummary),
    Method(MethodSummary),
}

impl StoredSummary {
    pub fn id(&self) -> &str {
        match self {
            Self::Run(run) => &run.run.0,
            Self::Method(method) => &method.id,
        }
    }

    /// The user's name for it.
    pub fn name(&self) -> &str {
        match self {
            Self::Run(run) => &run.name,
            Self::Method(method) => &method.name,
        }
    }

    /// `run`, or the name of the method.
    pub fn kind(&self) -> &str {
        match self {
            Self::Run(_) => RUN,
            Self::Method(method) => &method.method,
        }
    }

    /// When the user started it, nanoseconds since 1970 (UTC).
    pub const fn started_wall_ns(&self) -> u64 {
        match self {
            Self::Run(run) => run.started_wall_ns,
            Self::Method(method) => method.started_wall_ns,
        }
    }

    pub fn verdict(&self) -> &str {
        match self {
            Self::Run(run) => &run.verdict,
            Self::Method(method) => &method.verdict,
        }
    }

    pub fn directory(&self) -> &Path {
        match self {
            Self::Run(run) => &run.directory,
            Self::Method(method) => &method.directory,
        }
    }
}

impl RunCatalogue {
    /// The run or method whose id begins with `prefix`. A full id is found even if other ids begin with it.
    pub fn find_stored(&self, prefix: &str) -> Result<StoredSummary, Error> {
        let runs = self.runs_with_prefix(prefix)?.into_iter().map(StoredSummary::Run);
        let methods = self.methods_with_prefix(prefix)?.into_iter().map(StoredSummary::Method);
        only_match(prefix, runs.chain(methods).collect(), StoredSummary::id)
    }

    /// The newest run or method; `None` if there is none.
    pub fn newest_stored(&self) -> Result<Option<StoredSummary>, Error> {
        let run = self.list(1)?.pop().map(StoredSummary::Run);
        let method = self.methods(1)?.pop().map(StoredSummary::Method);
        Ok(run.into_iter().chain(method).max_by_key(StoredSummary::started_wall_ns))
    }

    /// All runs and complete methods, the newest first.
    pub fn all_stored(&self) -> Result<Vec<StoredSummary>, Error> {
        let runs = self.list(usize::MAX)?.into_iter().map(StoredSummary::Run);
        let methods = self.methods(usize::MAX)?.into_iter();
        let methods =
            methods.filter(|method| method.state == MethodState::Complete).map(StoredSummary::Method);
        let mut all: Vec<_> = runs.chain(methods).collect();
        all.sort_by(|a, b| (b.started_wall_ns(), b.id()).cmp(&(a.started_wall_ns(), a.id())));
        Ok(all)
    }

    /// The figures of a run or method that is stored.
    pub fn figures(&self, stored: &StoredSummary) -> Result<Vec<ReportFigure>, Error> {
        Ok(self.comparable(stored)?.figures)
    }

    /// What a run or method is compared by.
    pub fn comparable(&self, stored: &StoredSummary) -> Result<results::ComparableResult, Error> {
        match stored {
            StoredSummary::Run(run) => {
                let (_, report) = self.show(&run.run.0)?;
                Ok(results::ComparableResult::of_run(&report, run_figures(&report)))
            }
            StoredSummary::Method(method) => {
                let path = method.directory.join(RESULT);
                if !path.try_exists().map_err(Error::file("find", &path))? {
                    return Err(Error::NoResult(method.id.clone()));
                }
                Ok(results::ComparableResult {
                    id: Some(method.id.clone()),
                    name: method.name.clone(),
                    kind: method.method.clone(),
                    verdict: method.verdict.clone(),
                    ..results::read_result_file(&path)?
                })
            }
        }
    }
}
