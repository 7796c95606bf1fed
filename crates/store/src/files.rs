//! A report as files: JSON, CSV, JUnit. Pure encoders, and one function that writes them all.

mod csv;
mod junit;
mod tables;

pub use junit::junit;
pub use tables::{ports_csv, series_csv, streams_csv};

use crate::{Error, whole};
use packetrig_fleet::report::RunReport;
use std::fs;
use std::io::Write as _;
use std::path::Path;

/// Name of the report's file.
pub const REPORT: &str = "report.json";

/// The report as JSON, for people and machines; `schema_version` says which form.
pub fn json(report: &RunReport) -> String {
    let mut text = serde_json::to_string_pretty(report).expect("a report has string keys only");
    text.push('\n');
    text
}

/// Writes all files of a run into `directory`, which exists. Each is synced, and so are their names; none is there by half.
pub fn write_run(directory: &Path, report: &RunReport, document: &str) -> Result<(), Error> {
    let files = [
        ("plan.yaml", document.to_owned()),
        ("streams.csv", streams_csv(report)),
        ("ports.csv", ports_csv(report)),
        ("series.csv", series_csv(report)),
        ("junit.xml", junit(report)),
        // Last: a directory with a report has everything.
        (REPORT, json(report)),
    ];
    files.iter().try_for_each(|(name, text)| write_whole(directory, name, text))?;
    // Once for all names: each time costs a write of its own.
    whole::sync_directory(directory).map_err(Error::file("sync", directory))
}

fn write_whole(directory: &Path, name: &str, text: &str) -> Result<(), Error> {
    let (path, temporary) = (directory.join(name), directory.join(format!(".{name}.tmp")));
    let write = || {
        let mut file = fs::File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, &path)
    };
    write().map_err(Error::file("write", &path))
}

#[cfg(test)]
mod tests;
