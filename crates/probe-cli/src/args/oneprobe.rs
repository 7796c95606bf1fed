//! The arguments of `packetrig probe oneprobe`.

use super::{PermittedTargetArgs, ProbeTarget, SendingInterfaceArgs};
use clap::Args;
use packetrig_program::quantities::{parse_port, parse_positive_number};
use packetrig_units::Nanos;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  \
    packetrig probe oneprobe 192.0.2.1 --allow 192.0.2.0/24 --path /large.iso --count 200")]
pub struct OneprobeArgs {
    /// Address or name of a web server that speaks plain HTTP; it needs no special software
    #[arg(value_name = "TARGET")]
    pub target: ProbeTarget,
    /// TCP port of the server
    #[arg(long, value_name = "PORT", default_value_t = 80, value_parser = parse_port)]
    pub port: u16,
    /// Path to request; choose a document above 20 kB, so that one connection serves many probes
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub path: String,
    /// Server name for the Host header [default: the target as typed]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// Number of probes, each a pair of data segments
    #[arg(short, long, value_name = "N", default_value_t = 100, value_parser = parse_positive_number::<u32>)]
    pub count: u32,
    /// Time between two probes
    #[arg(short, long, value_name = "TIME", default_value = "500ms")]
    pub interval: Nanos,
    /// Payload bytes of each segment that this machine sends
    #[arg(long, value_name = "BYTES", default_value_t = 300, value_parser = clap::value_parser!(u16).range(16..=1400))]
    pub payload: u16,
    /// Payload bytes of each segment that the server sends
    // RFC 9293 section 3.7.1: for IPv4, every host accepts segments of 536 bytes, even if it has sent no
    // option for the maximum segment size.
    #[arg(long, value_name = "BYTES", default_value_t = 536, value_parser = clap::value_parser!(u16).range(64..=1400))]
    pub answer: u16,
    #[command(flatten)]
    pub outlet: SendingInterfaceArgs,
    #[command(flatten)]
    pub bounds: PermittedTargetArgs,
    /// Print only the summary, no line per probe
    #[arg(short, long, help_heading = "Results")]
    pub quiet: bool,
    /// Write one line of JSON per probe to this file
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub write: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long, help_heading = "Results")]
    pub json: bool,
}
