//! Shows a report page in the user's browser.

use crate::error::Error;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program that opens a file with the user's browser (freedesktop.org).
const BROWSER_OPENER_PROGRAM: &str = "xdg-open";

/// A program that opens pages.
#[derive(Debug)]
pub(crate) struct PageOpener(PathBuf);

impl PageOpener {
    /// Finds the program. Called before a run, so that a missing program does not fail after it.
    pub(crate) fn find_program() -> Result<Self, Error> {
        let path = env::var_os("PATH").unwrap_or_default();
        // The program is searched in PATH now; starting it as a test is only possible after the run.
        let found = env::split_paths(&path)
            .map(|directory| directory.join(BROWSER_OPENER_PROGRAM))
            .find(|file| file.is_file());
        found.map(Self).ok_or_else(|| {
            Error::Usage(format!(
                "--open needs {BROWSER_OPENER_PROGRAM}, which is not in $PATH (Debian package xdg-utils); without --open, the report names \
                 the directory of its page"
            ))
        })
    }

    /// Opens a page. The program starts the browser and ends.
    pub(crate) fn open_page(&self, page: &Path) -> Result<(), Error> {
        // Standard output has the results of the command; the program must not write to it.
        let status = Command::new(&self.0).arg(page).stdin(Stdio::null()).stdout(Stdio::null()).status();
        let status = status.map_err(|source| Error::Write {
            what: format!("{} to a browser with {BROWSER_OPENER_PROGRAM}", page.display()),
            source,
        })?;
        if status.success() {
            return Ok(());
        }
        Err(Error::Usage(format!("{BROWSER_OPENER_PROGRAM} could not open {} ({status})", page.display())))
    }
}
