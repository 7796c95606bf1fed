//! What commands that ask have in common, as typed.

use super::{Bounds, MannerFlags};
use clap::Args;
use packetrig_plan::PortLocation;
use packetrig_units::{FrameSize, Nanos};
use std::path::PathBuf;

#[derive(Args, Clone, Debug)]
pub(crate) struct Asking {
    /// Ask through this interface: IF or NAMESPACE/IF [default: the one the kernel would take]
    #[arg(long, value_name = "IF")]
    pub(crate) through: Option<PortLocation>,
    /// Probes to each target; without it, until interrupted or the limits are reached
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: Option<u32>,
    /// From one probe to a target to the next
    #[arg(short, long, value_name = "TIME", default_value = "1s")]
    pub(crate) interval: Nanos,
    /// Draw the distances by chance, with the interval as mean; the seed makes them again
    #[arg(long, value_name = "SEED")]
    pub(crate) poisson: Option<u64>,
    /// Bytes of a probe's frame, FCS included
    #[arg(short, long, value_name = "SIZE", default_value = "102")]
    pub(crate) size: FrameSize,
    /// How long an answer may take
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) wait: Nanos,
    /// Show no line for each answer
    #[arg(short, long, help_heading = "Results")]
    pub(crate) quiet: bool,
    /// Write what is known of each probe to FILE, whose name ends in .jsonl or .parquet. Of several targets each has a file, with its
    /// address in the name
    #[arg(short, long, value_name = "FILE", help_heading = "Results")]
    pub(crate) write: Vec<PathBuf>,
    /// Print JSON
    #[arg(long, help_heading = "Results")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) manner: MannerFlags,
    #[command(flatten)]
    pub(crate) bounds: Bounds,
}
