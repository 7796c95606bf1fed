//! A run under way: its directory, until it is complete.

use crate::Error;
use crate::catalogue::Catalogue;
use crate::{files, whole};
use packetrig_fleet::RunId;
use packetrig_fleet::report::RunReport;
use std::fs;
use std::path::{Path, PathBuf};

/// A run's directory in the making. Dropped without [`Draft::commit`] it is removed.
#[derive(Debug)]
pub struct Draft {
    partial: PathBuf,
    directory: PathBuf,
    committed: bool,
}

impl Draft {
    pub(crate) fn new(catalogue: &Catalogue, run: RunId) -> Result<Self, Error> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if run.0.is_empty() || run.0.len() > 100 || !run.0.chars().all(fits) {
            return Err(Error::BadId(run.0));
        }
        let directory = catalogue.directory(&run);
        if directory.exists() {
            return Err(Error::Taken(run.0));
        }
        let partial = directory.with_extension("partial");
        match fs::create_dir(&partial) {
            Ok(()) => Ok(Self { partial, directory, committed: false }),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Err(Error::Taken(run.0)),
            Err(error) => Err(Error::file("create", partial)(error)),
        }
    }

    /// Where captures are written while the run goes on; made when asked for.
    pub fn capture_dir(&self) -> Result<PathBuf, Error> {
        let captures = self.partial.join("captures");
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
        whole::rename(&self.partial, &directory).map_err(Error::file("rename to", &directory))?;
        self.committed = true;
        catalogue.insert(&report, &directory)?;
        Ok((directory, report))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.committed {
            // A run that gave no report leaves nothing; what cannot be removed is never listed.
            fs::remove_dir_all(&self.partial).unwrap_or(());
        }
    }
}
