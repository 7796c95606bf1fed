//! Arguments of `packetrig log`.

use super::capture::{CaptureBackEndArg, DirectionArg};
use super::keep::FileRetentionArgs;
use super::quantities::{BytesArg, parse_positive_time};
use clap::{Args, Subcommand, ValueEnum};
use packetrig_link_io::log;
use packetrig_plan::PortLocation;
use packetrig_units::Nanos;
use std::path::PathBuf;

// `log IFACE --into DIR` and `log check DIR` are forms of one command: with the subcommand, the arguments of the first
// form are not required.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Signals: INT and TERM end the log, HUP starts a new file.\n\nExamples:\n  \
    packetrig log eth1 --into /var/log/link --keep 100GB --keep-for 72h\n  \
    packetrig log eth1 --into link --rotate-every 10m --when-full stop udp\n  \
    packetrig log check link --tap status.json")]
pub(crate) struct LogArgs {
    #[command(subcommand)]
    pub(crate) action: Option<LogAction>,
    #[command(flatten)]
    pub(crate) begin: BeginLog,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LogAction {
    /// Check a log against its index, and against the counters of the tap that sent it copies
    Check(CheckLog),
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  packetrig log check /var/log/link --tap tap.json")]
pub(crate) struct CheckLog {
    /// Directory of the log
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// JSON output of `packetrig tap --json` or `packetrig tap status --json`, of one tap with one mirror
    #[arg(long, value_name = "FILE")]
    pub(crate) tap: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

// The parser requires `interface` and `into`. They are `Option`s, because `log check` has neither.
#[derive(Args, Debug)]
pub(crate) struct BeginLog {
    /// Interface (`eth1` or `NAMESPACE/eth1`)
    #[arg(value_name = "IF", required = true)]
    pub(crate) interface: Option<PortLocation>,
    /// Frames to log, as a tcpdump expression (pcap-filter(7)) [default: all]
    #[arg(value_name = "EXPRESSION")]
    pub(crate) expression: Vec<String>,
    /// Directory for the files and their index; created if missing
    #[arg(long, value_name = "DIR", required = true)]
    pub(crate) into: Option<PathBuf>,
    /// Start a new file before this one exceeds SIZE
    #[arg(long, value_name = "SIZE", default_value = "100MB")]
    pub(crate) rotate_size: BytesArg,
    /// Start a new file after this time [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_positive_time)]
    pub(crate) rotate_every: Option<Nanos>,
    #[command(flatten)]
    pub(crate) keep: FileRetentionArgs,
    /// When the disk is full: delete the oldest files (drop-oldest), count frames without writing (stop), or
    /// end the log (refuse)
    // By default, a full disk does not end the log: the log deletes its oldest files and keeps the newest ones.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "drop-oldest")]
    pub(crate) when_full: WhenFullArg,
    /// Keep only the first N bytes of each frame [default: all]
    // The minimum is the Ethernet header: readers of the file need the type.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(14..))]
    pub(crate) snap: Option<u32>,
    /// Compress with zstd at this level, 1 to 19 (3 if none is given)
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "3",
        value_parser = clap::value_parser!(i32).range(1..=19))]
    pub(crate) zstd: Option<i32>,
    /// Stop after this time; a number alone is seconds [default: when interrupted]
    #[arg(long, value_name = "TIME", value_parser = parse_positive_time)]
    pub(crate) time: Option<Nanos>,
    /// Frames to log: only arriving ones, such as the copies of a tap (in), or also those that this machine sends
    /// through its network stack (both; not with --back-end xdp)
    #[arg(long, value_enum, value_name = "WHICH", hide_possible_values = true, default_value = "in")]
    pub(crate) direction: DirectionArg,
    /// Do not put the interface into promiscuous mode
    #[arg(short = 'p', long)]
    pub(crate) no_promiscuous: bool,
    /// Back end: packet, or xdp (faster, needs root; logged frames do not reach the kernel's network stack)
    #[arg(long, value_enum, value_name = "NAME", default_value = "packet")]
    pub(crate) back_end: CaptureBackEndArg,
    /// Memory for frames that wait for the disk
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
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

/// Reaction to a full disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhenFullArg {
    DropOldest,
    Stop,
    Refuse,
}

impl From<WhenFullArg> for log::FullDiskReaction {
    fn from(when: WhenFullArg) -> Self {
        match when {
            WhenFullArg::DropOldest => Self::DropOldest,
            WhenFullArg::Stop => Self::Stop,
            WhenFullArg::Refuse => Self::Refuse,
        }
    }
}
