//! The run catalogue and the files of a run.
//!
//! ```text
//! <store>/catalogue.sqlite                      one row per run: the row is the commit
//! <store>/runs/<id>/plan.yaml report.json streams.csv ports.csv … csv-metadata.json junit.xml captures/...
//! <store>/runs/<id>.partial/                    a run under way, or one that was cut short
//! <store>/runs/<id>.partial/segments/<hash>.pack     what nodes of a fleet sent, as it came together; a row for each segment
//! <store>/stray/<id>/segments/...               the same, of runs that are not known here
//! ```
//! Files are written into the partial directory, synced and renamed; then the row is written. A crash in between leaves
//! a directory that no row names, never half a report that is listed. Room for the report is set aside when the run begins;
//! captures are removed by nobody but the user ([`RunCatalogue::kept`], [`RunCatalogue::discard`]). A run of a fleet has a row from its beginning, so
//! that who comes after a crash finds it ([`UnfinishedRun`]), and its segments are on the disk first and get their rows then.
//!
//! A node has a directory of its own, the [`spool`]. Histories of nodes are in the directory of their fleet ([`NodeHistory`]).
//!
//! It measures nothing and judges nothing; it knows neither ports nor controllers.
#![forbid(unsafe_code)]

mod batch;
mod catalogue;
mod disk;
mod draft;
mod error;
pub mod files;
pub mod flows;
mod gather;
mod kept;
mod migrations;
mod node_history;
mod packs;
mod place;
pub mod probes;
mod room;
#[cfg(test)]
mod sample;
mod segments;
mod set_aside;
pub mod spool;

pub use batch::SegmentBatch;
pub use catalogue::{
    LateResults, MOST_LATE, MOST_LATE_OF_NODE, RunCatalogue, RunQuota, RunShare, RunSummary, UnfinishedRun,
};
pub use draft::RunDraft;
pub use error::Error;
pub use gather::{GatheredCapture, GatheredPart};
pub use kept::{KeptCapture, KeptRun};
pub use node_history::NodeHistory;
pub use place::default_place;
pub use room::ReportSize;
pub use segments::StoreOutcome;
