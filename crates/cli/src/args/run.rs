//! Arguments of `packetrig run`.

use super::quantities::{parse_load_rate, parse_positive_number, parse_positive_time, parse_vlan_id};
use super::{ExecutionArgs, HostArgs, SizeArg};
use clap::{Args, ValueEnum};
use packetrig_plan::PortLocation;
use packetrig_plan::quick::QuickPattern;
use packetrig_units::{Nanos, Rate};
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("source").args(["plan", "tx"]).required(true)))]
#[command(
    override_usage = "packetrig run [OPTIONS] <PLAN>\n       packetrig run [OPTIONS] --tx <IF,…> [--rx <IF,…>]"
)]
#[command(after_help = "Examples:\n  \
    packetrig run examples/first-run.yaml\n  \
    packetrig run --tx eth1 --rx eth2 --rate 50% --size imix --time 30s\n  \
    packetrig run --tx left/eth1 --rx right/eth1 --rate 200kpps --max-loss 0.1%\n  \
    packetrig run --tx eth1 --rx eth2 --gateway 10.0.0.1 --src-ip 10.0.0.2 --dst-ip 10.0.1.2")]
pub(crate) struct RunArgs {
    /// OTG document (YAML or JSON); `-` reads standard input
    #[arg(value_name = "PLAN", conflicts_with_all = ["HostAddressArgs", "dst_mac", "both_ways"])]
    pub(crate) plan: Option<PathBuf>,
    /// Seed for the values that the plan leaves random [default: a random seed, shown in the report]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) execution: ExecutionArgs,
    // These options come last: their heading applies to every option after it.
    #[command(flatten)]
    pub(crate) flags: QuickPlanFlags,
}

/// Flags that make a plan without a document.
// Each flag names `plan` as a conflict: clap waives `requires = "tx"` where `tx` conflicts with an
// argument that is present.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "A plan from flags")]
pub(crate) struct QuickPlanFlags {
    /// Interfaces that send: `eth1`, or `NAMESPACE/eth1` in a named network namespace. On a fleet: `NODE/eth1`,
    /// `any-LABEL`, `any-LABEL*3` or `any-LABEL*all`
    #[arg(long, value_name = "IF,…", value_delimiter = ',', conflicts_with = "plan")]
    pub(crate) tx: Vec<PortText>,
    /// Interfaces that receive, written like those of --tx
    #[arg(long, value_name = "IF,…", value_delimiter = ',', requires = "tx", conflicts_with = "plan")]
    pub(crate) rx: Vec<PortText>,
    /// Which senders send to which receivers [default: each sender to all receivers]
    #[arg(long, value_name = "PATTERN", requires = "tx", conflicts_with = "plan")]
    pub(crate) pattern: Option<PatternArg>,
    /// Frame size in bytes, FCS included: 64, a range 64..1518, or imix [default: 128]
    #[arg(long, value_name = "SIZE", requires = "tx", conflicts_with = "plan")]
    pub(crate) size: Option<SizeArg>,
    /// Load of each sender, over all its streams: 1Gbit/s (layer 2), 200kpps, or 50% (of the link, layer 1); a
    /// number alone is frames/s [default: 1kpps]
    #[arg(long, value_name = "RATE", requires = "tx", conflicts_with = "plan", value_parser = parse_load_rate)]
    pub(crate) rate: Option<Rate>,
    /// Send for this long, such as 30s or 72h; a number alone is seconds [default: 10s]
    #[arg(long, value_name = "TIME", requires = "tx", conflicts_with = "plan", group = "length",
        value_parser = parse_positive_time)]
    pub(crate) time: Option<Nanos>,
    /// Send this many frames per stream
    // `--time`, `--packets` and `--continuous` exclude each other, because a run has one end.
    #[arg(long, value_name = "N", requires = "tx", conflicts_with = "plan", group = "length",
        value_parser = parse_positive_number::<u64>)]
    pub(crate) packets: Option<u64>,
    /// Send until Ctrl-C
    #[arg(long, requires = "tx", conflicts_with = "plan", group = "length")]
    pub(crate) continuous: bool,
    /// Number of streams that share the load of each sender [default: 1]
    #[arg(long, value_name = "N", requires = "tx", conflicts_with = "plan",
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) streams: Option<u32>,
    /// Tag frames with this VLAN ID, 1 to 4094
    #[arg(long, value_name = "ID", requires = "tx", conflicts_with = "plan",
        value_parser = parse_vlan_id)]
    pub(crate) vlan: Option<u16>,
    /// Send IPv6 instead of IPv4
    #[arg(long, requires = "tx", conflicts_with = "plan")]
    pub(crate) ipv6: bool,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
}

impl QuickPlanFlags {
    pub(crate) fn sends_ipv6(&self) -> bool {
        self.ipv6 || self.hosts.has_ipv6()
    }
}

/// A port as typed: an interface of this machine, or a location on a fleet. `commands::quick` decides which one it
/// is when it makes the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortText(pub(crate) String);

impl FromStr for PortText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // `any-LABEL*3` and `any-LABEL*all` are no locations: a controller chooses the ports for them later.
        let many = text.strip_prefix("any-").is_some_and(|label| label.contains('*'));
        // In `node/ns/eth1`, the location follows the name of a node.
        let behind = text.split_once('/').map_or(text, |(_, behind)| behind);
        if many || text.parse::<PortLocation>().is_ok() || behind.parse::<PortLocation>().is_ok() {
            return Ok(Self(text.to_owned()));
        }
        Err(text.parse::<PortLocation>().err().unwrap_or_default())
    }
}

/// Mapping of senders to receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PatternArg {
    /// The first sender to the first receiver, the second to the second, and so on
    NToN,
    /// All senders to one receiver
    NToOne,
    /// Each sender to each receiver, each pair with its own streams
    Mesh,
}

impl From<PatternArg> for QuickPattern {
    fn from(pattern: PatternArg) -> Self {
        match pattern {
            PatternArg::NToN => Self::NToN,
            PatternArg::NToOne => Self::NToOne,
            PatternArg::Mesh => Self::Mesh,
        }
    }
}
