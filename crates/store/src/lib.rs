//! The run catalogue and the files of a run.
//!
//! ```text
//! <store>/catalogue.sqlite                      one row per run: the row is the commit
//! <store>/runs/<id>/plan.yaml report.json streams.csv ports.csv series.csv junit.xml captures/...
//! <store>/runs/<id>.partial/                    a run under way, or one that was cut short
//! ```
//! Files are written into the partial directory, synced and renamed; then the row is written. A crash in between leaves
//! a directory that no row names, never half a report that is listed.
//!
//! It measures nothing and judges nothing; it knows neither ports nor controllers.
#![forbid(unsafe_code)]

mod catalogue;
mod draft;
mod error;
pub mod files;
pub mod flows;
mod migrations;
mod place;
#[cfg(test)]
mod sample;
pub mod spool;
mod whole;

pub use catalogue::{Catalogue, Summary};
pub use draft::Draft;
pub use error::Error;
pub use place::default_place;
