//! `packetrig probe send` as typed.

use super::{Bounds, MannerFlags, ProbeTarget};
use clap::Args;
use packetrig_plan::PortLocation;
use packetrig_units::{FrameSize, Nanos};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct SendProbes {
    /// Interface that probes leave through: IF or NAMESPACE/IF
    #[arg(value_name = "IF")]
    pub(crate) interface: PortLocation,
    /// Address or name of a target; several take turns, train by train
    #[arg(long, value_name = "TARGET", required = true, num_args = 1..=16)]
    pub(crate) to: Vec<ProbeTarget>,
    #[command(flatten)]
    pub(crate) schedule: ScheduleFlags,
    #[command(flatten)]
    pub(crate) content: ContentFlags,
    #[command(flatten)]
    pub(crate) manner: MannerFlags,
    #[command(flatten)]
    pub(crate) bounds: Bounds,
    /// Write what is known of each probe: FILE.jsonl, FILE.parquet or FILE.pcapng. May be given several times
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub(crate) write: Vec<PathBuf>,
    /// Print JSON
    #[arg(long, help_heading = "Results")]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Schedule")]
pub(crate) struct ScheduleFlags {
    /// Trains, or single probes without --train
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// From the start of one train to the next
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) every: Nanos,
    /// Probes in a train; 2 is a pair
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) train: u32,
    /// Between probes of a train; 0: as near to each other as it can be done
    #[arg(long, value_name = "TIME", default_value = "0ns")]
    pub(crate) gap: Nanos,
    /// Trains that get faster: each distance is the one before divided by this, from --gap on
    #[arg(long, value_name = "FACTOR", requires = "train", requires = "gap")]
    pub(crate) chirp: Option<f64>,
    /// Single probes at distances of chance with this mean, in place of --every
    #[arg(long, value_name = "MEAN", conflicts_with_all = ["every", "train", "gap", "chirp"])]
    pub(crate) poisson: Option<Nanos>,
    /// Take it from a file: rows of offset_ns,length and, if wanted, train and kind as CSV, or JSON lines with these names
    #[arg(long, value_name = "FILE", conflicts_with_all = ["count", "every", "train", "gap", "chirp", "poisson", "size"])]
    pub(crate) schedule: Option<PathBuf>,
    /// Take times and lengths from a capture file (pcap, pcapng)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["schedule", "count", "every", "train", "gap", "chirp", "poisson", "size"])]
    pub(crate) capture: Option<PathBuf>,
    /// Where chance begins, so that a series can be sent again; in the header of JSON and files
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Probes")]
pub(crate) struct ContentFlags {
    /// Frame size, FCS included
    #[arg(long, value_name = "SIZE", default_value = "128")]
    pub(crate) size: FrameSize,
    /// UDP port of the target
    #[arg(long, value_name = "PORT", default_value_t = 9)]
    pub(crate) port: u16,
    /// UDP port the probes come from
    #[arg(long, value_name = "PORT", default_value_t = 40_009)]
    pub(crate) source_port: u16,
    /// Who answers for the probes, a URI for their payload (RFC 9511) [default: the permit's]
    #[arg(long, value_name = "URI")]
    pub(crate) about: Option<String>,
    /// Send this frame, in hexadecimal from the Ethernet header on, in place of datagrams; its addresses must be the target's and this
    /// interface's
    #[arg(long, value_name = "HEX", conflicts_with_all = ["size", "port", "source_port", "about"])]
    pub(crate) frame: Option<String>,
}
