//! `packetrig probe capacity` and `available` as typed.

use super::{Bounds, Outlet, ProbeTarget};
use clap::{Args, ValueEnum};
use packetrig_units::{BitRate, FrameSize, Nanos};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct Capacity {
    /// Address or name of the target
    #[arg(value_name = "TARGET")]
    pub(crate) target: ProbeTarget,
    /// How to find the probes that other traffic left alone
    #[arg(long, value_enum, default_value_t = CapacityMethod::Pair)]
    pub(crate) method: CapacityMethod,
    /// Pairs or trains to measure, at most
    #[arg(short, long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    pub(crate) count: u32,
    /// Ask the UDP echo service at this port, in place of echo requests
    #[arg(long, value_name = "PORT", conflicts_with = "reflector")]
    pub(crate) udp: Option<u16>,
    /// Ask `packetrig probe reflect` (or another STAMP reflector) at this port: what is measured is then the way there alone
    #[arg(long, value_name = "PORT")]
    pub(crate) reflector: Option<u16>,
    #[command(flatten)]
    pub(crate) common: Estimating,
}

#[derive(Args, Debug)]
pub(crate) struct Available {
    /// Address or name of a target that runs `packetrig probe reflect`
    #[arg(value_name = "TARGET")]
    pub(crate) target: ProbeTarget,
    /// Port of its reflector; without it nothing can be said, because answers may have waited on their way back
    #[arg(long, value_name = "PORT")]
    pub(crate) reflector: Option<u16>,
    /// How to find out
    #[arg(long, value_enum, default_value_t = AvailableMethod::Pathload)]
    pub(crate) method: AvailableMethod,
    /// Capacity of the path, for spruce, in bits of frames [default: measured first]
    #[arg(long, value_name = "RATE")]
    pub(crate) capacity: Option<BitRate>,
    /// Pairs or chirps; of pathload: streams of each rate [default: 100, 30, 12]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(5..=10_000))]
    pub(crate) count: Option<u32>,
    #[command(flatten)]
    pub(crate) common: Estimating,
}

/// What both have in common.
#[derive(Args, Clone, Debug)]
pub(crate) struct Estimating {
    #[command(flatten)]
    pub(crate) trains: TrainFlags,
    /// Write what is known of each probe to FILE, whose name ends in .jsonl or .parquet
    #[arg(short, long, value_name = "FILE", help_heading = "Results")]
    pub(crate) write: Vec<PathBuf>,
    /// Print JSON
    #[arg(long, help_heading = "Results")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) outlet: Outlet,
    #[command(flatten)]
    pub(crate) bounds: Bounds,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Trains")]
pub(crate) struct TrainFlags {
    /// Frame size, FCS included; no longer than the interface takes
    #[arg(long, value_name = "SIZE", default_value = "1518")]
    pub(crate) size: FrameSize,
    /// Longest train; never more than the limits let out at once [default: 50; of available 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..=1_000))]
    pub(crate) longest: Option<u32>,
    /// Leave the path alone between trains, at least so long
    #[arg(long, value_name = "TIME", default_value = "100ms")]
    pub(crate) pause: Nanos,
}

/// How capacity is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CapacityMethod {
    /// Packet pairs: the rate that many agree on
    Pair,
    /// Packet pairs: the one with the least delay
    Capprobe,
    /// Trains: the one with the least delay; for fast links
    Train,
}

/// How what is free is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AvailableMethod {
    /// Pairs at the distance of the narrow link
    Spruce,
    /// Streams, faster and slower, until they just do not queue up
    Pathload,
    /// Trains that get faster and faster
    Pathchirp,
}
