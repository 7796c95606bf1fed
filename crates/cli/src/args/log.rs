//! `packetrig log` as typed.

use super::capture::Receiver;
use super::quantities::Bytes;
use clap::{Args, Subcommand, ValueEnum};
use packetrig_engine::capture::log;
use packetrig_plan::PortLocation;
use packetrig_units::Nanos;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Signals: INT and TERM end it, HUP begins another file.\n\nExamples:\n  \
    packetrig log eth1 --into /var/log/link --keep 100GB --keep-for 72h\n  \
    packetrig log eth1 --into link --rotate-every 10m --when-full stop udp\n  \
    packetrig log check link --tap status.json")]
pub(crate) struct Log {
    #[command(subcommand)]
    pub(crate) action: Option<LogAction>,
    #[command(flatten)]
    pub(crate) begin: BeginLog,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LogAction {
    /// Hold a log against its index, and both against the counters of the tap whose copies it keeps
    Check(CheckLog),
}

#[derive(Args, Debug)]
pub(crate) struct CheckLog {
    /// Directory of the log
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// What `packetrig tap` or `packetrig tap status` printed with --json; of one tap with one mirror
    #[arg(long, value_name = "FILE")]
    pub(crate) tap: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct BeginLog {
    /// Interface (`eth1`, or `ns/eth1`)
    #[arg(value_name = "IFACE", required = true)]
    pub(crate) interface: Option<PortLocation>,
    /// Frames to log, in the language of tcpdump (pcap-filter(7)); all if none is given
    #[arg(value_name = "EXPRESSION")]
    pub(crate) expression: Vec<String>,
    /// Directory for the files and their index; made if it is not there
    #[arg(long, value_name = "DIR", required = true)]
    pub(crate) into: Option<PathBuf>,
    /// Begin another file before this size is exceeded
    #[arg(long, value_name = "SIZE", default_value = "100MB")]
    pub(crate) rotate_size: Bytes,
    /// Begin another file after this time
    #[arg(long, value_name = "TIME")]
    pub(crate) rotate_every: Option<Nanos>,
    /// All files together take no more than this: the oldest are removed
    #[arg(long, value_name = "SIZE")]
    pub(crate) keep: Option<Bytes>,
    /// Remove files that are older than this
    #[arg(long, value_name = "TIME")]
    pub(crate) keep_for: Option<Nanos>,
    /// Leave so much of the disk free: the oldest files are removed
    #[arg(long, value_name = "SIZE")]
    pub(crate) keep_free: Option<Bytes>,
    /// When the disk is full: remove the oldest files, write nothing and count, or end (and do not begin without room)
    #[arg(long, value_enum, value_name = "WHAT", default_value = "drop-oldest")]
    pub(crate) when_full: WhenFull,
    /// Keep the first N bytes of a frame
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(14..))]
    pub(crate) snap: Option<u32>,
    /// Compress with zstd, level 1 to 19 [default: 3]
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "3",
        value_parser = clap::value_parser!(i32).range(1..=19))]
    pub(crate) zstd: Option<i32>,
    /// End after this time
    #[arg(long, value_name = "TIME")]
    pub(crate) time: Option<Nanos>,
    /// Do not ask the card for frames to other stations
    #[arg(short = 'p', long)]
    pub(crate) no_promiscuous: bool,
    /// Way to receive: packet, or xdp (faster, needs root; what is logged does not reach the kernel's stack)
    #[arg(long, value_enum, value_name = "NAME", default_value = "packet")]
    pub(crate) back_end: Receiver,
    /// Memory between receiving and disk
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub(crate) queue: Bytes,
    /// Print the result as JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Show no progress
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// What to do when the disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhenFull {
    DropOldest,
    Stop,
    Refuse,
}

impl From<WhenFull> for log::WhenFull {
    fn from(when: WhenFull) -> Self {
        match when {
            WhenFull::DropOldest => Self::DropOldest,
            WhenFull::Stop => Self::Stop,
            WhenFull::Refuse => Self::Refuse,
        }
    }
}
