//! Results of both kinds: runs and test methods, found by one id.

use super::{MethodState, MethodSummary, RunCatalogue, RunSummary, read_report, require_single_match};
use crate::Error;
use crate::files::REPORT_FILE_NAME;
use crate::methods::RESULT_FILE_NAME;
use crate::results::{self, ComparableResult};
use packetrig_report::{RunReport, run_figures};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Kind of a result that is a run. The kind of another result is the name of its test method.
pub(crate) const RUN_KIND: &str = "run";

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

    /// Name that the user gave the run or method.
    pub fn name(&self) -> &str {
        match self {
            Self::Run(run) => &run.name,
            Self::Method(method) => &method.name,
        }
    }

    /// `run`, or the name of the method.
    pub fn kind(&self) -> &str {
        match self {
            Self::Run(_) => RUN_KIND,
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

    /// The file with the whole result. It exists once the run or method has ended.
    pub fn result_file(&self) -> PathBuf {
        self.directory().join(if matches!(self, Self::Run(_)) { REPORT_FILE_NAME } else { RESULT_FILE_NAME })
    }

    /// Reads the report of a run. For a method, returns the error [`Error::NoResult`].
    pub fn read_report(&self) -> Result<RunReport, Error> {
        match self {
            Self::Run(_) => read_report(&self.result_file()),
            Self::Method(method) => Err(Error::NoResult(method.id.clone())),
        }
    }

    /// Reads the figures and the test subject of the result from its file.
    pub fn read_comparable_result(&self) -> Result<ComparableResult, Error> {
        if let Self::Run(_) = self {
            let report = self.read_report()?;
            return Ok(ComparableResult::from_report(&report, run_figures(&report)));
        }
        let read = results::read_result_file(&self.result_file()).map_err(|error| match error {
            Error::File { source, .. } if source.kind() == ErrorKind::NotFound => {
                Error::NoResult(self.id().to_owned())
            }
            error => error,
        });
        Ok(ComparableResult {
            id: Some(self.id().to_owned()),
            // The row always has these values; a result file may lack them.
            name: self.name().to_owned(),
            kind: self.kind().to_owned(),
            verdict: self.verdict().to_owned(),
            ..read?
        })
    }
}

impl RunCatalogue {
    /// Finds the run or method with an id that begins with `prefix`, or otherwise the newest one with this
    /// name. A full id is found even if other ids begin with it.
    pub fn find_stored_result(&self, prefix: &str) -> Result<StoredSummary, Error> {
        let runs = self.find_runs_with_prefix(prefix)?.into_iter().map(StoredSummary::Run);
        let methods = self.find_methods_with_prefix(prefix)?.into_iter().map(StoredSummary::Method);
        // Both kinds are searched together, because a prefix that matches one run and one method is ambiguous.
        let found: Vec<_> = runs.chain(methods).collect();
        if found.is_empty() {
            return self.find_newest_named(prefix)?.ok_or_else(|| Error::Unknown(prefix.to_owned()));
        }
        require_single_match(prefix, found, StoredSummary::id)
    }

    fn find_newest_named(&self, name: &str) -> Result<Option<StoredSummary>, Error> {
        let runs = self.find_newest_run_named(name)?.into_iter().map(StoredSummary::Run);
        let methods = self.find_newest_method_named(name)?.into_iter().map(StoredSummary::Method);
        Ok(runs.chain(methods).max_by_key(StoredSummary::started_wall_ns))
    }

    /// Finds the run or method that was started last; `None` if there is none.
    pub fn find_newest_stored_result(&self) -> Result<Option<StoredSummary>, Error> {
        let run = self.list_runs(1)?.pop().map(StoredSummary::Run);
        let method = self.list_methods(1)?.pop().map(StoredSummary::Method);
        Ok(run.into_iter().chain(method).max_by_key(StoredSummary::started_wall_ns))
    }

    /// Lists all runs and all complete methods, the newest first.
    pub fn list_all_stored_results(&self) -> Result<Vec<StoredSummary>, Error> {
        let runs = self.list_runs(usize::MAX)?.into_iter().map(StoredSummary::Run);
        // A method that was stopped has a result, too, but it may be resumed and then change.
        let methods = self.list_methods(usize::MAX)?.into_iter();
        let methods =
            methods.filter(|method| method.state == MethodState::Complete).map(StoredSummary::Method);
        let mut all: Vec<_> = runs.chain(methods).collect();
        all.sort_by(|a, b| (b.started_wall_ns(), b.id()).cmp(&(a.started_wall_ns(), a.id())));
        Ok(all)
    }
}
