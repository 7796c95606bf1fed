//! Shows a report page in the user's browser.

use crate::error::Error;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program that opens a file with the user's browser (freedesktop.org).
const BROWSER_OPENER_PROGRAM: &str = "xdg-open";

/// Path of the program that opens a page in the user's browser.
#[derive(Debug)]
pub(crate) struct PageOpener(PathBuf);

impl PageOpener {
    /// Finds the program in `$PATH`. Commands call this before a run, so that a missing program is reported early.
    pub(crate) fn find_program() -> Result<Self, Error> {
        let path = env::var_os("PATH").unwrap_or_default();
        // The program is only searched for, not started: the page does not exist yet.
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

    /// Opens a page and waits for the program, which normally starts the browser and ends.
    pub(crate) fn open_page(&self, page: &Path) -> Result<(), Error> {
        // Standard output has the results of the command; the program must not write to it.
        let status = Command::new(&self.0).arg(page).stdin(Stdio::null()).stdout(Stdio::null()).status();
        let why = match status {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        Err(Error::OpenPage { page: page.display().to_string(), program: BROWSER_OPENER_PROGRAM, why })
    }
}
