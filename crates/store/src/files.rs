//! Reports, comparisons and trends as JSON, CSV, JUnit, Markdown and HTML. The encoders are pure; one function writes all files of a run.

mod compact;
mod comparison;
mod csv;
mod junit;
mod markdown;
mod method;
mod trend;

pub use comparison::{comparison_csv, comparison_junit, comparison_markdown};
pub use csv::{csv_field, csv_metadata, table_csv};
pub use junit::report_junit;
pub use markdown::report_markdown;
pub use method::{method_csv, method_junit, method_markdown};
/// Name of the file with the HTML page of a run.
pub use packetrig_page::report::REPORT_PAGE_FILE as PAGE;
pub use trend::{trend_csv, trend_markdown};

use crate::{Error, disk};
use compact::CompactArrayFormatter;
use packetrig_page::report::{RunPage, render_run};
use packetrig_report::RunReport;
use packetrig_report::columns::{
    NodeTable, OutageTable, PortTable, ProbeTable, QualityTable, ReceiverTable, ReportTable, SeriesTable,
    StreamTable,
};
use serde::Serialize;
use std::path::Path;

/// Name of the file with the report of a run as JSON.
pub const REPORT_FILE_NAME: &str = "report.json";

/// The report as JSON, for people and programs; `schema_version` is the version of the format.
pub fn report_json(report: &RunReport) -> String {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, CompactArrayFormatter::default());
    report.serialize(&mut serializer).expect("a report has string keys only");
    bytes.push(b'\n');
    String::from_utf8(bytes).expect("JSON is UTF-8")
}

/// The report as an HTML page. `document` is the text of the plan.
pub fn report_page(report: &RunReport, document: &str) -> String {
    render_run(RunPage { report, document })
}

/// Decides whether a run has an HTML page ([`report_page`]) beside its other files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageChoice {
    #[default]
    Write,
    LeaveOut,
}

impl PageChoice {
    /// The choice that was used to write the files in `directory`.
    pub(crate) fn from_existing_files(directory: &Path) -> Self {
        if directory.join(PAGE).exists() { Self::Write } else { Self::LeaveOut }
    }
}

/// Writes all files of a run into `directory`, which exists. Each file and its name is synced; none is ever incomplete.
pub fn write_run_files(
    directory: &Path,
    report: &RunReport,
    document: &str,
    choice: PageChoice,
) -> Result<(), Error> {
    let mut files = vec![
        csv_file_of_table::<StreamTable>(report),
        csv_file_of_table::<PortTable>(report),
        csv_file_of_table::<SeriesTable>(report),
        csv_file_of_table::<QualityTable>(report),
        csv_file_of_table::<ReceiverTable>(report),
        csv_file_of_table::<OutageTable>(report),
    ];
    // A local run has one node, about which the table would say nothing new.
    if report.nodes.len() > 1 {
        files.push(csv_file_of_table::<NodeTable>(report));
    }
    if report.probes.is_some() {
        files.push(csv_file_of_table::<ProbeTable>(report));
    }
    // The metadata describes only tables that this run has.
    let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    let metadata = csv_metadata(&names);
    files.extend([
        ("plan.yaml", document.to_owned()),
        ("csv-metadata.json", metadata),
        ("junit.xml", report_junit(report)),
    ]);
    if choice == PageChoice::Write {
        files.push((PAGE, report_page(report, document)));
    }
    // The report is written last, so that a directory with a report has all other files, too.
    files.push((REPORT_FILE_NAME, report_json(report)));
    files.iter().try_for_each(|(name, text)| write_whole_file(directory, name, text))
}

fn csv_file_of_table<T: ReportTable>(report: &RunReport) -> (&'static str, String) {
    (T::FILE, table_csv::<T>(report))
}

fn write_whole_file(directory: &Path, name: &str, text: &str) -> Result<(), Error> {
    disk::write_whole_file(directory, name, text.as_bytes())
        .map_err(Error::file("write", directory.join(name)))
}

#[cfg(test)]
mod tests;
