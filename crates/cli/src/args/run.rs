//! Arguments of `packetrig run`.

use super::{Execution, Size};
use clap::Args;
use packetrig_plan::Location;
use packetrig_units::{Nanos, Rate};
use std::path::PathBuf;

/// Execute a plan.
#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("source").args(["plan", "tx"]).required(true)))]
#[command(
    override_usage = "packetrig run [OPTIONS] <PLAN>\n       packetrig run [OPTIONS] --tx <IF> [--rx <IF,…>]"
)]
pub(crate) struct Run {
    /// OTG document (YAML or JSON); `-` reads standard input
    #[arg(value_name = "PLAN")]
    pub(crate) plan: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) execution: Execution,
    /// Seed of what the plan leaves to chance [default: drawn, and named in the report]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
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
