//! The run catalogue and the files of a run.
//!
//! ```text
//! <store>/catalogue.sqlite                      one row per run: the row is the commit
//! <store>/runs/<id>/plan.yaml report.json streams.csv ports.csv … csv-metadata.json junit.xml captures/...
//! <store>/runs/<id>.partial/                    a run under way, or one that was cut short
//! <store>/runs/<id>.partial/segments/<hash>.pack     segments from nodes of a fleet, as they arrived; a row for each segment
//! <store>/methods/<id>/journal.jsonl result.json ...      a test method: its trials, and its result once it has ended ([`methods`])
//! <store>/stray/<id>/segments/...               segments of runs that this store does not know
//! ```
//! Files are written into the partial directory, synced and renamed; then the row is written. A crash in between leaves
//! a directory without a row, never a listed run with half a report. Disk space for the report is reserved when the run
//! begins. Only the user removes results and captures ([`RunCatalogue::prune_results`], [`RunCatalogue::discard_run`]).
//! A run of a fleet has a row from its beginning, so that a controller finds it after a crash ([`UnfinishedRun`]). The
//! segments of such a run are synced to the disk before they get their rows.
//!
//! A node has its own directory, the [`spool`]. Histories of nodes are in the directory of their fleet ([`NodeHistory`]).
//!
//! This crate only stores: it neither measures nor judges, and uses no ports and no network.
#![forbid(unsafe_code)]

mod batch;
mod blame;
mod catalogue;
mod disk;
mod draft;
mod error;
pub mod files;
mod gather;
mod kept;
pub mod methods;
mod migrations;
mod node_history;
mod packs;
mod place;
pub mod results;
mod room;
#[cfg(test)]
mod sample;
mod segments;
mod set_aside;
pub mod spool;

pub use batch::SegmentBatch;
pub use catalogue::{
    CatalogueEntry, CataloguePage, CatalogueQuery, LateResults, MAX_LATE, MAX_LATE_BYTES_OF_NODE,
    MethodState, MethodSummary, PruneCriteria, PruneOutcome, PrunedResult, RunCatalogue, RunQuota,
    RunSummary, StoredRunShare, StoredSummary, UnfinishedMethod, UnfinishedRun,
};
pub use draft::RunDraft;
pub use error::Error;
pub use gather::{AssembledCapture, AssembledPart};
pub use kept::{UnlistedCapture, UnlistedRun};
pub use methods::{MethodDraft, MethodOutcome, NewMethod};
pub use node_history::NodeHistory;
pub use place::default_store_directory;
pub use room::ReportSize;
pub use segments::StoreOutcome;
