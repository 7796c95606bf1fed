//! Impairments as typed, for `packetrig tap`.

use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Impairments")]
pub(crate) struct Impair {
    /// Impair both directions: delay=10ms,jitter=1ms,loss=1%,duplicate=,reorder=,corrupt=,rate=,queue=; or a YAML file
    #[arg(long = "impair", value_name = "SPEC|FILE")]
    pub(crate) both: Option<String>,
    /// Impair frames from A to B (instead of what --impair says for them)
    #[arg(long = "impair-ab", value_name = "SPEC")]
    pub(crate) there: Option<String>,
    /// Impair frames from B to A
    #[arg(long = "impair-ba", value_name = "SPEC")]
    pub(crate) back: Option<String>,
    /// Same seed, same impairments [default: 1, or what the file says]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Say in this file what was done to which frame, one line of JSON each
    #[arg(long, value_name = "FILE")]
    pub(crate) truth: Option<PathBuf>,
}

impl Impair {
    /// Whether anything is to be impaired.
    pub(crate) fn is_any(&self) -> bool {
        self.both.is_some() || self.there.is_some() || self.back.is_some()
    }
}
