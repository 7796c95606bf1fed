//! The report file: a run or a test method as one HTML page that opens from disk, without a network.
//!
//! Order of the page: verdict, where frames were lost, streams, caveats, and the facts that are needed
//! to repeat the test.

mod caveat_words;
mod caveats;
mod elements;
mod figures;
mod method;
mod method_charts;
mod probe_columns;
mod probe_grid;
mod probe_ranges;
mod probes;
mod run;
mod setup;
mod shell;
mod stream_charts;
mod stream_columns;
mod streams;
mod verdict;

pub use method::{MethodPage, render_method};
pub use run::{RunPage, render_run};

/// Name of the file.
pub const REPORT_PAGE_FILE: &str = "report.html";
