//! The arguments of `packetrig probe capacity` and `packetrig probe available`.

use super::{PermittedTargetArgs, ProbeTarget, SendingInterfaceArgs};
use clap::{Args, ValueEnum};
use packetrig_program::quantities::parse_port;
use packetrig_units::{BitRate, FrameSize, Nanos};
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig probe capacity 192.0.2.1 --allow 192.0.2.0/24\n  \
    packetrig probe capacity 192.0.2.1 --reflector 862 --method train --permit permit.toml")]
pub struct CapacityArgs {
    /// Address or name of the target
    #[arg(value_name = "TARGET")]
    pub target: ProbeTarget,
    /// Method that selects the probes which other traffic did not disturb
    #[arg(long, value_enum, default_value_t = CapacityMethod::Pair)]
    pub method: CapacityMethod,
    /// Largest number of pairs or trains to measure
    #[arg(short, long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    pub count: u32,
    /// Probe the UDP echo service at this port instead of sending echo requests
    #[arg(long, value_name = "PORT", conflicts_with = "reflector", value_parser = parse_port)]
    pub udp: Option<u16>,
    /// Probe the STAMP reflector at this UDP port (`packetrig probe reflect`); this
    /// measures the forward direction alone
    #[arg(long, value_name = "PORT", value_parser = parse_port)]
    pub reflector: Option<u16>,
    #[command(flatten)]
    pub common: EstimatingArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  \
    packetrig probe available 192.0.2.1 --reflector 862 --permit permit.toml")]
pub struct AvailableArgs {
    /// Address or name of a target that runs `packetrig probe reflect`
    #[arg(value_name = "TARGET")]
    pub target: ProbeTarget,
    /// UDP port of the target's reflector. Without it there is no estimate, because answers may have
    /// waited on their way back
    #[arg(long, value_name = "PORT", value_parser = parse_port)]
    pub reflector: Option<u16>,
    /// Method that estimates the available bandwidth
    #[arg(long, value_enum, default_value_t = AvailableMethod::Pathload)]
    pub method: AvailableMethod,
    /// Capacity of the path for spruce, in bits of frames per second [default: measured first]
    #[arg(long, value_name = "RATE")]
    pub capacity: Option<BitRate>,
    /// Number of pairs (spruce), of streams per rate (pathload), or of chirps (pathchirp) [default: 100, 12, 30]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(5..=10_000))]
    pub count: Option<u32>,
    #[command(flatten)]
    pub common: EstimatingArgs,
}

/// The arguments that `capacity` and `available` share.
#[derive(Args, Clone, Debug)]
pub struct EstimatingArgs {
    #[command(flatten)]
    pub trains: TrainFlags,
    /// Write one record per probe to FILE (.jsonl or .parquet); repeat for more files
    #[arg(short, long, value_name = "FILE", help_heading = "Results")]
    pub write: Vec<PathBuf>,
    /// Print the result as JSON
    #[arg(long, help_heading = "Results")]
    pub json: bool,
    #[command(flatten)]
    pub outlet: SendingInterfaceArgs,
    #[command(flatten)]
    pub bounds: PermittedTargetArgs,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Trains")]
pub struct TrainFlags {
    /// Frame size in bytes, FCS included; at most what the interface can send
    #[arg(long, value_name = "SIZE", default_value = "1518")]
    pub size: FrameSize,
    /// Longest train in probes; the limits may shorten it [default: 50 for the capacity,
    /// 100 for the available bandwidth]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..=1_000))]
    pub longest: Option<u32>,
    /// Shortest pause between two trains
    #[arg(long, value_name = "TIME", default_value = "100ms")]
    pub pause: Nanos,
}

/// The method that measures the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CapacityMethod {
    /// Packet pairs: the rate that most pairs agree on
    Pair,
    /// Packet pairs: the pair with the least delay
    Capprobe,
    /// Trains: the train with the least delay; for fast links
    Train,
}

/// The method that measures the available bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AvailableMethod {
    /// Pairs of probes with the spacing that the narrowest link gives to frames
    Spruce,
    /// Streams at faster and slower rates, to find the highest rate that builds no queue
    Pathload,
    /// Trains whose probes follow each other faster and faster
    Pathchirp,
}
