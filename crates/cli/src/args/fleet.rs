//! Arguments of `packetrig fleet` and `packetrig agent`.

use super::quantities::{
    ListenArg, PercentArg, parse_host_and_port, parse_positive_number, parse_positive_time,
    parse_socket_address,
};
use super::{FleetProbeCommand, SinceArgs, StoreArgs};
use clap::{Args, Subcommand};
use packetrig_fleet::controller::StartPolicy;
use packetrig_fleet::labels::LabelChange;
use packetrig_units::Nanos;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Manage a fleet: many machines that work as one test rig.
#[derive(Debug, Subcommand)]
pub(crate) enum FleetCommand {
    /// Create a fleet on this machine: keys, a message server and an invitation for nodes
    Up(FleetUpArgs),
    /// Show the nodes: labels, ports, clocks, disks, versions, and when each last reported
    Status(StatusArgs),
    /// Show what happened to the nodes: joins, starts, changes, losses and runs
    History(ShowHistory),
    /// Set, remove or show the labels of a node
    Label(LabelNode),
    /// Print a new join line for nodes, or revoke earlier ones
    Invite(InviteArgs),
    /// Remove a node, and do not admit it again
    Remove(RemoveNodeArgs),
    /// Probe from the nodes to each other or to other hosts: one-way delays, losses, round trips
    #[command(subcommand)]
    Probe(FleetProbeCommand),
    /// Fetch captures that are still on the nodes of a run; an interrupted fetch resumes
    Fetch(FetchCaptures),
    /// End runs that a controller left unfinished, and collect their results from the nodes
    Collect(CollectRuns),
}

/// The directory with the keys and addresses of a fleet.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct FleetPlace {
    /// Directory of the fleet [default: $PACKETRIG_FLEET, or fleet in the directory of the catalogue]
    #[arg(long = "fleet", value_name = "DIR")]
    pub(crate) fleet_directory: Option<PathBuf>,
}

/// Number or share of the nodes that must be ready before a run starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartQuorum(pub(crate) StartPolicy);

impl FromStr for StartQuorum {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Zero is refused here in every spelling, because the parsers below accept `0`, `0.0%` and `0%`.
        let start = if text.trim_end_matches('%').parse::<f64>() == Ok(0.0) {
            return Err("a run needs at least one node; write `3` or `80%`".into());
        } else if text.ends_with('%') {
            StartPolicy::AtLeast(text.parse::<PercentArg>().map_err(|error| error.to_string())?.0)
        } else {
            StartPolicy::Quorum(
                text.parse().map_err(|_| format!("`{text}` is not a number of nodes; write `3` or `80%`"))?,
            )
        };
        Ok(Self(start))
    }
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig fleet up --address 192.0.2.1\n  \
    packetrig fleet up --cluster nats1.example:4222,nats2.example:4222")]
pub(crate) struct FleetUpArgs {
    #[command(flatten)]
    pub(crate) place: FleetPlace,
    /// Name or address by which nodes reach this machine [default: the first global IPv4 address
    /// of this machine, otherwise IPv6; needed if there is none]
    #[arg(long, value_name = "HOST")]
    pub(crate) address: Option<String>,
    /// Address that the message server listens on
    // 4222 is the usual port of NATS. All addresses, because the nodes are on other machines.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:4222", value_parser = parse_socket_address)]
    pub(crate) listen: SocketAddr,
    /// Address on which this machine admits new nodes
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:4223", value_parser = parse_socket_address)]
    pub(crate) enrol: SocketAddr,
    /// Path of the nats-server program [default: that of the package, or searched
    /// in PATH and ~/.local/share/packetrig/bin]
    #[arg(long, value_name = "FILE", conflicts_with = "cluster")]
    pub(crate) server: Option<PathBuf>,
    /// Use this NATS cluster instead of starting a server
    // These addresses have no scheme and no path, because nodes connect to the message servers with them unchanged.
    #[arg(long, value_name = "HOST:PORT,…", value_delimiter = ',', value_parser = parse_host_and_port)]
    pub(crate) cluster: Vec<String>,
    /// Number of nodes that may join with the printed join line
    // A line that leaks admits this many strangers, so the default is 1.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_positive_number::<u32>)]
    pub(crate) uses: u32,
    /// How long the join line is valid
    // The line is short-lived: a stranger may find it later in a chat or in a shell history, and the line
    // must not admit the stranger.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_positive_time)]
    pub(crate) valid: Nanos,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  packetrig fleet status --watch")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) place: FleetPlace,
    /// Listen for a moment and show only nodes that answer, instead of what `fleet up` last recorded
    #[arg(long)]
    pub(crate) wait: bool,
    /// Update the display every second until interrupted
    #[arg(long, short)]
    pub(crate) watch: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  packetrig fleet history left")]
pub(crate) struct ShowHistory {
    /// Show the full history of this node [default: one line for each node]
    #[arg(value_name = "NODE")]
    pub(crate) node: Option<String>,
    #[command(flatten)]
    pub(crate) place: FleetPlace,
    #[command(flatten)]
    pub(crate) since: SinceArgs,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig fleet label left rack=2 spare\n  \
    packetrig fleet label left spare-\n  \
    packetrig run --tx any-rack=2 --rx right/eth1")]
pub(crate) struct LabelNode {
    /// Name of the node
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    /// Set a label (`key=value` or `word`) or remove one (`key-`) [default: show the labels]
    #[arg(value_name = "LABEL")]
    pub(crate) changes: Vec<LabelChange>,
    #[command(flatten)]
    pub(crate) place: FleetPlace,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  packetrig fleet invite --uses 3 --valid 10m")]
pub(crate) struct InviteArgs {
    #[command(flatten)]
    pub(crate) place: FleetPlace,
    /// Number of nodes that may join with the printed join line
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_positive_number::<u32>)]
    pub(crate) uses: u32,
    /// How long the join line is valid
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_positive_time)]
    pub(crate) valid: Nanos,
    /// Revoke all earlier join lines, and print none
    #[arg(long)]
    pub(crate) revoke: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  packetrig fleet remove left")]
pub(crate) struct RemoveNodeArgs {
    /// Name of the node
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    #[command(flatten)]
    pub(crate) place: FleetPlace,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  packetrig fleet collect")]
pub(crate) struct CollectRuns {
    #[command(flatten)]
    pub(crate) place: FleetPlace,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Do not show progress on standard error
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig fleet fetch\n  \
    packetrig fleet fetch 20261123-093559-63ba21")]
pub(crate) struct FetchCaptures {
    /// Run id, or the beginning of one; `last` is the newest run
    #[arg(value_name = "RUN", default_value = "last")]
    pub(crate) run: String,
    #[command(flatten)]
    pub(crate) place: FleetPlace,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Do not show progress on standard error
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// Run this machine as a node of a fleet.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig agent --join line.txt --name rack2\n  \
    packetrig agent --join - --name rack2 < line.txt\n  \
    packetrig agent --owner owner.toml")]
pub(crate) struct AgentArgs {
    /// Join with the line that `packetrig fleet up` or `fleet invite` printed, from this file or standard
    /// input (`-`); needed once
    #[arg(long, value_name = "FILE")]
    pub(crate) join: Option<PathBuf>,
    /// Name of this node in plans: 1 to 32 characters of a-z, 0-9 and - [default: the host name up to its first dot]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Directory for keys and results [default: agent in the directory of the catalogue]
    #[arg(long = "directory", value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    /// Permit file: what this node lends, and how much of it (TOML) [default: owner.toml in --directory, if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) owner: Option<PathBuf>,
    /// Label of this node, for `any-LABEL` in plans; repeat for more labels
    #[arg(long = "label", value_name = "LABEL")]
    pub(crate) labels: Vec<String>,
    /// Disk space in MB that results may use until the controller collects them
    // The size is limited: while a controller is away for days, the results must not fill the disk of a lent machine.
    #[arg(long, value_name = "MB", default_value_t = 4096)]
    pub(crate) spool: u64,
    /// Serve the state of this node to Prometheus at /metrics on ADDRESS:PORT; a PORT alone listens on 127.0.0.1
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<ListenArg>,
    /// Compare clocks over the network even if the controller is on this machine
    #[arg(long)]
    pub(crate) compare_clocks: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) sandbox: super::SandboxFlags,
    /// Set by the supervisor for the worker that it starts
    // The worker gets the arguments of its supervisor and this one: see `commands::agent`.
    #[arg(long, hide = true)]
    pub(crate) supervised: bool,
}
