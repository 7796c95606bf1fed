//! The arguments of `packetrig probe send`.

use super::{PermittedTargetArgs, ProbeTarget, ReleaseFlags};
use clap::Args;
use packetrig_plan::PortLocation;
use packetrig_program::quantities::{parse_port, parse_positive_number};
use packetrig_units::{FrameSize, Nanos};
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  \
    packetrig probe send eth1 --to 192.0.2.1 --allow 192.0.2.0/24 --train 2 --every 500ms --write pairs.jsonl")]
pub struct SendProbes {
    /// Interface that sends the probes: IF or NAMESPACE/IF
    #[arg(value_name = "IF")]
    pub interface: PortLocation,
    /// Address or name of a target; several targets take turns, train by train
    #[arg(long, value_name = "TARGET", required = true, num_args = 1..=16)]
    pub to: Vec<ProbeTarget>,
    #[command(flatten)]
    pub schedule: ScheduleFlags,
    #[command(flatten)]
    pub content: ContentFlags,
    #[command(flatten)]
    pub release: ReleaseFlags,
    #[command(flatten)]
    pub bounds: PermittedTargetArgs,
    /// Write one record per probe to FILE (.jsonl, .parquet or .pcapng); repeat for more files
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub write: Vec<PathBuf>,
    /// Print the result as JSON
    #[arg(long, help_heading = "Results")]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Schedule")]
pub struct ScheduleFlags {
    /// Number of trains, or of single probes without --train
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = parse_positive_number::<u32>)]
    pub count: u32,
    /// Time from the start of one train to the start of the next
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub every: Nanos,
    /// Number of probes in a train; 2 makes a pair
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub train: u32,
    /// Time between the probes of a train; 0ns sends them back to back
    #[arg(long, value_name = "TIME", default_value = "0ns")]
    pub gap: Nanos,
    /// Divide each gap of a train by FACTOR to get the next one, starting with --gap
    #[arg(long, value_name = "FACTOR", requires = "train", requires = "gap")]
    pub chirp: Option<f64>,
    /// Send single probes at random intervals with this mean, instead of --every
    // The random intervals are intervals between single probes: without trains there is also no gap.
    #[arg(long, value_name = "MEAN", conflicts_with_all = ["every", "train", "gap", "chirp"])]
    pub poisson: Option<Nanos>,
    /// Read the schedule from a file: CSV or JSON lines with offset_ns, length and, optionally, train and kind
    #[arg(long, value_name = "FILE", conflicts_with_all = ["count", "every", "train", "gap", "chirp", "poisson", "size"])]
    pub schedule: Option<PathBuf>,
    /// Read times and lengths from a capture file (pcap or pcapng)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["schedule", "count", "every", "train", "gap", "chirp", "poisson", "size"])]
    pub from_capture: Option<PathBuf>,
    /// Seed of random intervals, to send the same series again [default: random, written to the results]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Probes")]
pub struct ContentFlags {
    /// Frame size in bytes, FCS included
    #[arg(long, value_name = "SIZE", default_value = "128")]
    pub size: FrameSize,
    /// UDP port of the target
    // RFC 863: port 9 is the discard service, which sends no answer.
    #[arg(long, value_name = "PORT", default_value_t = 9, value_parser = parse_port)]
    pub port: u16,
    /// UDP source port of the probes
    #[arg(long, value_name = "PORT", default_value_t = 40_009, value_parser = parse_port)]
    pub source_port: u16,
    /// URI of the contact for these probes, written into their payload (RFC 9511) [default: from the permit file]
    #[arg(long, value_name = "URI")]
    pub about: Option<String>,
    /// Send this frame instead of UDP datagrams: hexadecimal, from the Ethernet header on. Its addresses must be
    /// those of this interface and the target
    // A complete frame already determines its size, ports and payload.
    #[arg(long, value_name = "HEX", conflicts_with_all = ["size", "port", "source_port", "about"])]
    pub frame: Option<String>,
}
