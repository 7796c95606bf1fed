//! `packetrig capture` as typed.

use super::quantities::Bytes;
use clap::{Args, ValueEnum};
use packetrig_engine::capture::record;
use packetrig_plan::PortLocation;
use packetrig_units::Nanos;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags as typed, independent of each other")]
#[command(after_help = "Examples:\n  \
    packetrig capture eth1 -w a.pcapng udp port 53\n  \
    packetrig capture eth1 -w ring.pcapng --ring-size 100MB --ring-files 5 --snap 96\n  \
    packetrig capture eth1 --count-only --time 10s 'vlan 100 and ip'\n  \
    packetrig capture eth1 -w - | tshark -r -")]
pub(crate) struct Capture {
    /// Interface (`eth1`, or `ns/eth1`)
    #[arg(value_name = "PORT")]
    pub(crate) port: PortLocation,
    /// Frames to capture, in the language of tcpdump (pcap-filter(7)); all if none is given
    #[arg(value_name = "EXPRESSION")]
    pub(crate) expression: Vec<String>,
    /// File to write, made anew; `-` writes to standard output
    #[arg(short, long, value_name = "FILE", required_unless_present = "count_only")]
    pub(crate) write: Option<PathBuf>,
    /// Write nothing: print the frames and bytes of every second, and their sums
    #[arg(long, conflicts_with = "write")]
    pub(crate) count_only: bool,
    /// Format of the file, both with nanoseconds [default: by the file's name, else pcapng]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,
    /// Keep the first N bytes of a frame
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(14..))]
    pub(crate) snap: Option<u32>,
    /// Begin another file before this size is exceeded: 100MB, 1GiB; files are numbered
    #[arg(long, value_name = "SIZE", requires = "write")]
    pub(crate) ring_size: Option<Bytes>,
    /// Keep the newest N files, remove older ones
    #[arg(long, value_name = "N", requires = "write", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ring_files: Option<u32>,
    /// Begin another file after this time
    #[arg(long, value_name = "TIME", requires = "write")]
    pub(crate) rotate_every: Option<Nanos>,
    /// Compress with zstd, level 1 to 19 [default: 3]; also if the file's name ends in `.zst`. Sizes are those before it
    #[arg(long, value_name = "LEVEL", requires = "write", num_args = 0..=1, require_equals = true,
        default_missing_value = "3", value_parser = clap::value_parser!(i32).range(1..=19))]
    pub(crate) zstd: Option<i32>,
    /// End after N frames
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// End after this time
    #[arg(long, value_name = "TIME")]
    pub(crate) time: Option<Nanos>,
    /// Which frames: those that arrive, or also those that this machine sends through its network stack
    #[arg(long, value_enum, value_name = "WHICH", default_value = "both")]
    pub(crate) direction: Direction,
    /// Do not ask the card for frames to other stations
    #[arg(short = 'p', long)]
    pub(crate) no_promiscuous: bool,
    /// Way to receive: packet, or xdp (faster, needs root; what is captured does not reach the kernel's stack)
    #[arg(long, value_enum, value_name = "NAME", default_value = "packet")]
    pub(crate) back_end: Receiver,
    /// With back end xdp: what is captured goes on to the kernel's stack
    #[arg(long)]
    pub(crate) pass: bool,
    /// Memory between capturing and disk
    #[arg(long, value_name = "SIZE", default_value = "64MiB", requires = "write")]
    pub(crate) queue: Bytes,
    /// Print the result as JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Show no progress
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Pcapng,
    Pcap,
}

impl From<Format> for record::CaptureFileFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Pcapng => Self::Pcapng,
            Format::Pcap => Self::PcapNanos,
        }
    }
}

/// Back ends that can listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Receiver {
    Packet,
    Xdp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Direction {
    In,
    Both,
}
