//! Arguments of `packetrig tap` for impairments.

use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Impairments")]
pub(crate) struct ImpairArgs {
    /// Impair both directions: a YAML file, or delay=10ms,jitter=1ms,overtake,loss=1%,
    /// duplicate=1%,reorder=1%,reorder-by=5,corrupt=0.1%,corrupt-at=17,rate=10Mbit/s,queue=64KiB
    #[arg(long = "impair", value_name = "SPEC|FILE")]
    pub(crate) both: Option<String>,
    /// Impair frames from A to B; overrides --impair for this direction
    #[arg(long = "impair-ab", value_name = "SPEC")]
    pub(crate) there: Option<String>,
    /// Impair frames from B to A; overrides --impair for this direction
    #[arg(long = "impair-ba", value_name = "SPEC")]
    pub(crate) back: Option<String>,
    /// Seed of the impairments: the same seed impairs the same frames [default: 1, or the seed in the file]
    // The flag has no default, because a default would override the seed in the file of impairments.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Write one line of JSON to this file for each impaired frame
    #[arg(long, value_name = "FILE")]
    pub(crate) truth: Option<PathBuf>,
}

impl ImpairArgs {
    /// Returns true if the flags impair at least one direction.
    pub(crate) fn impairs_anything(&self) -> bool {
        self.both.is_some() || self.there.is_some() || self.back.is_some()
    }
}
