//! Arguments of `packetrig capture`.

use super::quantities::{BytesArg, parse_positive_number, parse_positive_time};
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
pub(crate) struct CaptureArgs {
    /// Interface (`eth1` or `NAMESPACE/eth1`)
    #[arg(value_name = "IF")]
    pub(crate) port: PortLocation,
    /// Frames to capture, as a tcpdump expression (pcap-filter(7)) [default: all]
    #[arg(value_name = "EXPRESSION")]
    pub(crate) expression: Vec<String>,
    /// File to write, replaced if it exists; `-` writes to standard output. Required, unless --count-only is given
    #[arg(short, long, value_name = "FILE", required_unless_present = "count_only")]
    pub(crate) write: Option<PathBuf>,
    /// Write no file; print the frames and bytes of every second and their sums
    #[arg(long, conflicts_with = "write")]
    pub(crate) count_only: bool,
    /// File format; both formats store times in nanoseconds [default: chosen by the file's name, otherwise pcapng]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<CaptureFormatArg>,
    /// Keep only the first N bytes of each frame [default: all]
    // The minimum is the Ethernet header: readers of the file need the type.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(14..))]
    pub(crate) snap: Option<u32>,
    /// Start a new file before this one exceeds SIZE, such as 100MB or 1GiB. Files are numbered
    #[arg(long, value_name = "SIZE", requires = "write", conflicts_with = "count_only")]
    pub(crate) ring_size: Option<BytesArg>,
    /// Keep the newest N files and delete older ones [default: all]
    #[arg(long, value_name = "N", requires = "write", conflicts_with = "count_only",
        value_parser = parse_positive_number::<u32>)]
    pub(crate) ring_files: Option<u32>,
    /// Start a new file after this time
    #[arg(long, value_name = "TIME", requires = "write", conflicts_with = "count_only",
        value_parser = parse_positive_time)]
    pub(crate) rotate_every: Option<Nanos>,
    /// Compress with zstd at this level, 1 to 19 (3 if none is given). A file name ending in `.zst` does the
    /// same; size limits apply before compression
    // `require_equals`: in `--zstd port 53` the next word belongs to the filter, not to the level.
    #[arg(long, value_name = "LEVEL", requires = "write", conflicts_with = "count_only", num_args = 0..=1,
        require_equals = true, default_missing_value = "3", value_parser = clap::value_parser!(i32).range(1..=19))]
    pub(crate) zstd: Option<i32>,
    /// Stop after N frames
    #[arg(short, long, value_name = "N", value_parser = parse_positive_number::<u64>)]
    pub(crate) count: Option<u64>,
    /// Stop after this time; a number alone is seconds [default: when interrupted]
    #[arg(long, value_name = "TIME", value_parser = parse_positive_time)]
    pub(crate) time: Option<Nanos>,
    /// Frames to capture: only arriving ones (in), or also those that this machine sends through its network
    /// stack (both; not with --back-end xdp) [default: both; in with xdp]
    #[arg(long, value_enum, value_name = "WHICH", hide_possible_values = true)]
    pub(crate) direction: Option<DirectionArg>,
    /// Do not put the interface into promiscuous mode
    #[arg(short = 'p', long)]
    pub(crate) no_promiscuous: bool,
    /// Back end: packet, or xdp (faster, needs root; captured frames do not reach the kernel's network stack)
    #[arg(long, value_enum, value_name = "NAME", default_value = "packet")]
    pub(crate) back_end: CaptureBackEndArg,
    /// With --back-end xdp: pass captured frames on to the kernel's network stack
    #[arg(long)]
    pub(crate) pass: bool,
    /// Memory for frames that wait for the disk
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "64MiB",
        requires = "write",
        conflicts_with = "count_only"
    )]
    pub(crate) queue: BytesArg,
    /// Serve the counters to Prometheus at /metrics on ADDRESS:PORT; a PORT alone listens on 127.0.0.1
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<super::quantities::ListenArg>,
    /// Print the result as JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Do not show progress on standard error
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CaptureFormatArg {
    Pcapng,
    Pcap,
}

impl From<CaptureFormatArg> for record::CaptureFileFormat {
    fn from(format: CaptureFormatArg) -> Self {
        match format {
            CaptureFormatArg::Pcapng => Self::Pcapng,
            CaptureFormatArg::Pcap => Self::PcapNanos,
        }
    }
}

/// The back ends that can receive frames for `capture` and `log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CaptureBackEndArg {
    Packet,
    Xdp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DirectionArg {
    In,
    Both,
}
