//! `packetrig fleet` and `packetrig agent` as typed.

use super::Store;
use super::quantities::Percent;
use clap::{Args, Subcommand};
use packetrig_fleet::controller::Start;
use packetrig_fleet::labels::LabelChange;
use packetrig_units::Nanos;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Many machines as one rig.
#[derive(Debug, Subcommand)]
pub(crate) enum Fleet {
    /// Make a fleet of which this machine is the middle: keys, a message server, and a line by which others join
    Up(Up),
    /// Show the nodes: labels, ports, clocks, disks, versions, and when each was heard last
    Status(Status),
    /// Show what happened to the nodes: when they joined, started, changed or were lost, and their runs
    History(ShowHistory),
    /// Set or remove labels of a node, or show them
    Label(LabelNode),
    /// Print a new line by which nodes join, or take earlier ones back
    Invite(Invite),
    /// Forget a node: it is not let in any more
    Remove(Remove),
    /// Fetch captures that stay on the nodes of a run, in ranges; broken off, it goes on where it was
    Fetch(FetchCaptures),
    /// End runs that a controller left unfinished, and collect what nodes still have of them
    Collect(CollectRuns),
}

/// Where the fleet's keys and addresses are.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct FleetPlace {
    /// Directory of the fleet [default: $PACKETRIG_FLEET, or fleet in the directory of the catalogue]
    #[arg(long = "fleet", value_name = "DIR")]
    pub(crate) fleet_directory: Option<PathBuf>,
}

/// With how many nodes a run is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartWith(pub(crate) Start);

impl FromStr for StartWith {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let start = if text.ends_with('%') {
            Start::AtLeast(text.parse::<Percent>().map_err(|error| error.to_string())?.0)
        } else {
            Start::Quorum(
                text.parse().map_err(|_| format!("`{text}` is no number of nodes; write `3` or `80%`"))?,
            )
        };
        Ok(Self(start))
    }
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig fleet up --address 192.0.2.1\n  \
    packetrig fleet up --cluster nats1.example:4222,nats2.example:4222")]
pub(crate) struct Up {
    #[command(flatten)]
    pub(crate) place: FleetPlace,
    /// Name or address by which nodes reach this machine [default: an address of this machine]
    #[arg(long, value_name = "HOST")]
    pub(crate) address: Option<String>,
    /// Where the message server listens
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:4222")]
    pub(crate) listen: SocketAddr,
    /// Where nodes are let in
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:4223")]
    pub(crate) enrol: SocketAddr,
    /// The nats-server program [default: looked for in PATH and ~/.local/share/packetrig/bin]
    #[arg(long, value_name = "FILE", conflicts_with = "cluster")]
    pub(crate) server: Option<PathBuf>,
    /// Use this NATS cluster instead of a server of our own
    #[arg(long, value_name = "HOST:PORT,…", value_delimiter = ',')]
    pub(crate) cluster: Vec<String>,
    /// Number of nodes that may join by the line that is printed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) uses: u32,
    /// How long the line is valid
    #[arg(long, value_name = "TIME", default_value = "1h")]
    pub(crate) valid: Nanos,
}

#[derive(Args, Debug)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) place: FleetPlace,
    /// Listen for a moment and show only the nodes that are heard, instead of what `fleet up` heard last
    #[arg(long)]
    pub(crate) wait: bool,
    /// Keep listening and showing, until Ctrl-C
    #[arg(long, short)]
    pub(crate) watch: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ShowHistory {
    /// Show all that is kept of this node [default: one line for each node]
    #[arg(value_name = "NODE")]
    pub(crate) node: Option<String>,
    #[command(flatten)]
    pub(crate) place: FleetPlace,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig fleet label left rack=2 spare\n  \
    packetrig fleet label left spare-\n  \
    packetrig run --tx any-rack=2 --rx right/eth1")]
pub(crate) struct LabelNode {
    /// The node
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    /// `key=value` or `word` sets a label, `key-` removes one [default: only show the labels]
    #[arg(value_name = "LABEL")]
    pub(crate) changes: Vec<LabelChange>,
    #[command(flatten)]
    pub(crate) place: FleetPlace,
}

#[derive(Args, Debug)]
pub(crate) struct Invite {
    #[command(flatten)]
    pub(crate) place: FleetPlace,
    /// Number of nodes that may join by the line
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) uses: u32,
    /// How long the line is valid
    #[arg(long, value_name = "TIME", default_value = "1h")]
    pub(crate) valid: Nanos,
    /// Instead: no line that was printed is good any more
    #[arg(long)]
    pub(crate) revoke: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Remove {
    /// The node
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    #[command(flatten)]
    pub(crate) place: FleetPlace,
}

#[derive(Args, Debug)]
pub(crate) struct CollectRuns {
    #[command(flatten)]
    pub(crate) place: FleetPlace,
    #[command(flatten)]
    pub(crate) store: Store,
    /// No progress on standard error
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig fleet fetch\n  \
    packetrig fleet fetch 20261123-093559-63ba21")]
pub(crate) struct FetchCaptures {
    /// The run: its id, or how that begins
    #[arg(value_name = "RUN", default_value = "last")]
    pub(crate) run: String,
    #[command(flatten)]
    pub(crate) place: FleetPlace,
    #[command(flatten)]
    pub(crate) store: Store,
    /// No progress on standard error
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// Be a node of a fleet.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig agent --join line.txt --name rack2\n  \
    packetrig agent --join - --name rack2 < line.txt\n  \
    packetrig agent --owner owner.toml")]
pub(crate) struct Agent {
    /// Join with the line in this file (`-`: standard input) that `packetrig fleet up` or `fleet invite` printed; needed once
    #[arg(long, value_name = "FILE")]
    pub(crate) join: Option<PathBuf>,
    /// Name of this node in plans [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Where keys and results are kept [default: agent in the directory of the catalogue]
    #[arg(long = "directory", value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    /// What this node lends, and how much of it (TOML) [default: owner.toml in that directory, if it is there]
    #[arg(long, value_name = "FILE")]
    pub(crate) owner: Option<PathBuf>,
    /// Label of this node, for `any-LABEL` in plans; may be given again
    #[arg(long = "label", value_name = "LABEL")]
    pub(crate) labels: Vec<String>,
    /// Disk that results may take until they are collected
    #[arg(long, value_name = "MB", default_value_t = 4096)]
    pub(crate) spool: u64,
    /// Compare clocks over the network even with a controller on this machine
    #[arg(long)]
    pub(crate) compare_clocks: bool,
    #[command(flatten)]
    pub(crate) store: Store,
    #[command(flatten)]
    pub(crate) sandbox: super::SandboxFlags,
    /// Set by the supervisor
    #[arg(long, hide = true)]
    pub(crate) supervised: bool,
}
