//! Arguments of `packetrig run`.

use super::{BackEndName, Size, Store};
use clap::Args;
use packetrig_plan::Location;
use packetrig_units::{Nanos, Rate};
use std::path::PathBuf;

/// Execute a plan.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch the user may set, not a state")]
#[command(group(clap::ArgGroup::new("source").args(["plan", "tx"]).required(true)))]
#[command(
    override_usage = "packetrig run [OPTIONS] <PLAN>\n       packetrig run [OPTIONS] --tx <IF> [--rx <IF,…>]"
)]
pub(crate) struct Run {
    /// OTG document (YAML or JSON); `-` reads standard input
    #[arg(value_name = "PLAN")]
    pub(crate) plan: Option<PathBuf>,
    /// Name of the run in the catalogue
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Also write the files of the run to this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) store: Store,
    /// Capture what every receiving port sees, as pcapng
    #[arg(long)]
    pub(crate) capture: bool,
    /// Yes, this interface may carry test traffic although it looks like part of a real network
    #[arg(long, value_name = "IF", value_delimiter = ',')]
    pub(crate) confirm: Vec<Location>,
    /// Largest loss of a stream that still passes
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    pub(crate) max_loss: super::quantities::Percent,
    /// How long to wait for stragglers after the last frame was sent
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    pub(crate) drain: Nanos,
    /// Insist on a way to send and receive: packet, xdp (fast, needs root), af-xdp (needs root) or pktgen (the kernel's
    /// own, sends only) [default: chosen by calibration, load and rights; the result says why]
    #[arg(long, value_name = "NAME")]
    pub(crate) back_end: Option<BackEndName>,
    /// Seed of what the plan leaves to chance [default: drawn, and named in the report]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Print the plan as YAML and stop
    #[arg(long)]
    pub(crate) print_plan: bool,
    /// Print the report as JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress on standard error
    #[arg(long, short)]
    pub(crate) quiet: bool,
    // Last, because its heading holds for everything after it.
    #[command(flatten)]
    pub(crate) flags: FromFlags,
}

/// What makes a plan without a document.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "A plan from flags")]
pub(crate) struct FromFlags {
    /// Interface that sends (`eth1`, or `ns/eth1` in a named network namespace)
    #[arg(long, value_name = "IF", conflicts_with = "plan")]
    pub(crate) tx: Option<Location>,
    /// Interfaces that receive
    #[arg(long, value_name = "IF,…", value_delimiter = ',', requires = "tx")]
    pub(crate) rx: Vec<Location>,
    /// Frame size with FCS: 64, a range 64..1518, or imix [default: 128]
    #[arg(long, value_name = "SIZE", requires = "tx")]
    pub(crate) size: Option<Size>,
    /// Load of all streams together: 1Gbit/s (layer 2), 200kpps, or 50% (of the link, layer 1) [default: 1kpps]
    #[arg(long, value_name = "RATE", requires = "tx")]
    pub(crate) rate: Option<Rate>,
    /// Send for this long [default: 10s]
    #[arg(long, value_name = "TIME", requires = "tx", group = "length")]
    pub(crate) time: Option<Nanos>,
    /// Send this many frames per stream
    #[arg(long, value_name = "N", requires = "tx", group = "length")]
    pub(crate) packets: Option<u64>,
    /// Send until Ctrl-C
    #[arg(long, requires = "tx", group = "length")]
    pub(crate) continuous: bool,
    /// Number of streams that share the load [default: 1]
    #[arg(long, value_name = "N", requires = "tx", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) streams: Option<u32>,
    /// Put frames into this VLAN
    #[arg(long, value_name = "ID", requires = "tx", value_parser = clap::value_parser!(u16).range(0..4096))]
    pub(crate) vlan: Option<u16>,
    /// IPv6 instead of IPv4
    #[arg(long, requires = "tx")]
    pub(crate) ipv6: bool,
}
