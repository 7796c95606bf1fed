//! Options of all commands that send probes and wait for answers.

use super::{PermittedTargetArgs, ReleaseFlags};
use clap::Args;
use packetrig_plan::PortLocation;
use packetrig_program::quantities::parse_positive_number;
use packetrig_units::{FrameSize, Nanos};
use std::path::PathBuf;

#[derive(Args, Clone, Debug)]
pub struct ProbeSeriesArgs {
    /// Send probes through this interface: IF or NAMESPACE/IF [default: by the routing table]
    #[arg(long, value_name = "IF")]
    pub through: Option<PortLocation>,
    /// Number of probes to each target [default: until interrupted or a limit is reached]
    #[arg(short, long, value_name = "N", value_parser = parse_positive_number::<u32>)]
    pub count: Option<u32>,
    /// Time between two probes to the same target
    #[arg(short, long, value_name = "TIME", default_value = "1s")]
    pub interval: Nanos,
    /// Draw the intervals at random, with --interval as their mean (Poisson)
    #[arg(long)]
    pub poisson: bool,
    /// Seed of random intervals, to send the same series again [default: random, written to the results]
    #[arg(long, value_name = "N", requires = "poisson")]
    pub seed: Option<u64>,
    /// Frame size in bytes, FCS included
    // An echo request with 56 bytes of payload, the default of other ping programs: 14 (Ethernet) + 20 (IPv4)
    // + 8 (ICMP) + 56, and 4 bytes of FCS.
    #[arg(short, long, value_name = "SIZE", default_value = "102")]
    pub size: FrameSize,
    /// Time to wait for the answer to a probe
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub wait: Nanos,
    /// Print only the summary, no line per answer
    #[arg(short, long, help_heading = "Results")]
    pub quiet: bool,
    /// Write one record per probe to FILE (.jsonl or .parquet). With several targets, each has its own file with
    /// its address in the name; repeat for more files
    #[arg(short, long, value_name = "FILE", help_heading = "Results")]
    pub write: Vec<PathBuf>,
    /// Print the result as JSON
    #[arg(long, help_heading = "Results")]
    pub json: bool,
    #[command(flatten)]
    pub release: ReleaseFlags,
    #[command(flatten)]
    pub bounds: PermittedTargetArgs,
}
