//! Arguments of `packetrig merge`.

use super::quantities::{BytesArg, parse_positive_time};
use clap::Args;
use packetrig_units::Nanos;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(
    after_help = "In the written file, the interface of a packet shows which captures have this packet; \
    the name of the interface lists these captures.\n\n\
Examples:\n  \
    packetrig merge left.pcapng right.pcapng --write both.pcapng\n  \
    packetrig merge /var/log/link-a /var/log/link-b --write both.pcapng --json"
)]
pub(crate) struct MergeArgs {
    /// Capture files (pcap or pcapng), and directories of `packetrig log`; times follow the clock of the first one
    // At least two captures are needed, because packetrig looks for each packet of a capture in the others.
    #[arg(value_name = "FILE|DIR", required = true, num_args = 2..)]
    pub(crate) captures: Vec<PathBuf>,
    /// File to write (pcapng), replaced if it exists
    #[arg(short = 'w', long, value_name = "FILE")]
    pub(crate) write: PathBuf,
    /// Largest difference between the times of one packet after the clocks were aligned [default: 1ms, or four times
    /// the differences that are found]
    #[arg(long, value_name = "TIME", value_parser = parse_positive_time)]
    pub(crate) tolerance: Option<Nanos>,
    /// Largest memory for packets that wait to be found in the other captures
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub(crate) memory: BytesArg,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
