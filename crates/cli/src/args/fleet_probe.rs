//! Arguments of `packetrig fleet probe`.

use super::quantities::{parse_port, parse_positive_number};
use super::{FleetPlace, MechanismArg, RunRecordArgs, StartQuorum};
use clap::{Args, Subcommand};
use packetrig_units::{FrameSize, Nanos};
use std::net::SocketAddr;

// Fleet probes are a command of `fleet` and not of `probe`: the command controls nodes, its run is in the catalogue,
// and the permit of each node decides what the node may probe. The permit of this machine does not count.
/// Probe from the nodes of a fleet to each other or to other hosts. All nodes begin at the same time; the permit
/// of each node's owner decides what it may probe.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "A fleet probe is a normal run of the fleet: it needs leases, it is in the catalogue, and one \
    report has the results of all nodes. On one machine, use `packetrig probe`."
)]
pub(crate) enum FleetProbeCommand {
    /// Measure one-way delay and loss between all pairs of nodes
    Oneway(Box<MeshProbes>),
    /// Measure times and loss of each direction with the STAMP reflectors of nodes or of other hosts
    Stamp(Box<TargetProbes>),
    /// Ping nodes or other hosts; targets need no special software
    Ping(Box<TargetProbes>),
    /// Send trains of probes that nobody answers, and report when they left
    Send(Box<TrainProbes>),
    /// Measure the rate of the narrowest link between all pairs of nodes
    Capacity(Box<CapacityProbes>),
    /// Not possible on a fleet yet
    // The parser knows this subcommand, so that the user reads what to do instead of a list of similar subcommands.
    #[command(hide = true, aliases = ["oneprobe"])]
    Available(ProbesOfOneMachine),
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig fleet probe oneway\n  \
    packetrig fleet probe oneway --from left,right --count 100 --interval 20ms --json")]
pub(crate) struct MeshProbes {
    #[command(flatten)]
    pub(crate) probing: ProbingOptions,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig fleet probe ping 192.0.2.1 192.0.2.2 --from left,right --count 10\n  \
    packetrig fleet probe stamp --from left --to any-rack=2")]
pub(crate) struct TargetProbes {
    /// Addresses of hosts that are not nodes, with a port if a STAMP reflector does not use port 862 [default:
    /// the nodes in --to]
    #[arg(value_name = "ADDRESS[:PORT]", value_parser = parse_probed_host)]
    pub(crate) targets: Vec<ProbedHost>,
    #[command(flatten)]
    pub(crate) probing: ProbingOptions,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  \
    packetrig fleet probe send 192.0.2.1 --from left,right --train 2 --interval 500ms")]
pub(crate) struct TrainProbes {
    /// Addresses of hosts that are not nodes, with a UDP port if it is not 9 [default: the nodes in --to]
    #[arg(value_name = "ADDRESS[:PORT]", value_parser = parse_probed_host)]
    pub(crate) targets: Vec<ProbedHost>,
    /// Number of probes in a train; 2 makes a pair
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) train: u32,
    /// Time between the probes of a train; the whole train may last 10ms
    #[arg(long, value_name = "TIME", default_value = "0ns")]
    pub(crate) gap: Nanos,
    #[command(flatten)]
    pub(crate) probing: ProbingOptions,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig fleet probe capacity\n  \
    packetrig fleet probe capacity --from left --to right --count 100 --interval 20ms --json")]
pub(crate) struct CapacityProbes {
    /// Addresses of STAMP reflectors that are not nodes, with a port if it is not 862 [default: the nodes in --to]
    #[arg(value_name = "ADDRESS[:PORT]", value_parser = parse_probed_host)]
    pub(crate) targets: Vec<ProbedHost>,
    /// Largest number of probes in a train; the limits of a node's owner may reduce it
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(8..=1_000))]
    pub(crate) longest: u32,
    /// Time for each pair of nodes; pairs without a common node are measured at the same time [default: (--count + 60)
    /// x --interval + --wait]
    #[arg(long, value_name = "TIME", help_heading = "Schedule")]
    pub(crate) slot: Option<Nanos>,
    /// Largest number of packet pairs for each pair of nodes
    #[arg(short, long, value_name = "N", default_value_t = 50, help_heading = "Schedule", value_parser = clap::value_parser!(u32).range(10..=10_000))]
    pub(crate) count: u32,
    /// Shortest pause between two trains
    #[arg(short, long, value_name = "TIME", default_value = "100ms", help_heading = "Schedule")]
    pub(crate) interval: Nanos,
    /// Frame size in bytes, FCS included
    #[arg(short, long, value_name = "SIZE", default_value = "1518", help_heading = "Schedule")]
    pub(crate) size: FrameSize,
    #[command(flatten)]
    pub(crate) exchange: ProbeExchange,
    #[command(flatten)]
    pub(crate) nodes: ProbingNodes,
    #[command(flatten)]
    pub(crate) run: ProbingRun,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Example, on the node itself:\n  packetrig probe available 192.0.2.1 --reflector 862 --allow 192.0.2.0/24"
)]
pub(crate) struct ProbesOfOneMachine {
    /// All further arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
    pub(crate) rest: Vec<String>,
}

/// IP address, with or without a port, of a host that is not a node of the fleet.
#[derive(Clone, Debug)]
pub(crate) struct ProbedHost(pub(crate) String);

fn parse_probed_host(text: &str) -> Result<ProbedHost, String> {
    // Names are refused: each node would resolve a name itself, so nodes could probe different hosts.
    let is_address = text.parse::<std::net::IpAddr>().is_ok() || text.parse::<SocketAddr>().is_ok();
    let error =
        || format!("`{text}` is not an IP address; write 192.0.2.1, 192.0.2.1:862 or [2001:db8::1]:862");
    is_address.then(|| ProbedHost(text.to_owned())).ok_or_else(error)
}

/// Nodes, schedule and run of fleet probes.
#[derive(Args, Debug)]
pub(crate) struct ProbingOptions {
    #[command(flatten)]
    pub(crate) nodes: ProbingNodes,
    #[command(flatten)]
    pub(crate) schedule: ProbingSchedule,
    #[command(flatten)]
    pub(crate) run: ProbingRun,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Nodes")]
pub(crate) struct ProbingNodes {
    /// Nodes that send probes: names, or any-LABEL [default: all]
    #[arg(long, value_name = "NODE,…", value_delimiter = ',')]
    pub(crate) from: Vec<String>,
    /// Nodes that are probed: names, or any-LABEL [default: those of --from, unless hosts are named]
    #[arg(long, value_name = "NODE,…", value_delimiter = ',')]
    pub(crate) to: Vec<String>,
    /// Interface or label of the port at each node [default: its only port with an IP address]
    #[arg(long, value_name = "IF|LABEL")]
    pub(crate) through: Option<String>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Schedule")]
pub(crate) struct ProbingSchedule {
    /// Number of probes, or of trains, of each pair
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = parse_positive_number::<u32>)]
    pub(crate) count: u32,
    /// Time between two probes of the same pair
    // The default is 10 probes/s, half of the default limit for a target.
    #[arg(short, long, value_name = "TIME", default_value = "100ms")]
    pub(crate) interval: Nanos,
    /// Draw the intervals at random, with --interval as their mean (Poisson)
    #[arg(long)]
    pub(crate) poisson: bool,
    /// Seed of random intervals, to send the same series again [default: random, written to the results]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Frame size in bytes, FCS included
    // Other ping programs send 56 bytes of payload, too: 14 + 20 + 8 + 56 bytes, and 4 bytes of FCS.
    #[arg(short, long, value_name = "SIZE", default_value = "102")]
    pub(crate) size: FrameSize,
    #[command(flatten)]
    pub(crate) exchange: ProbeExchange,
}

/// Release mechanism of the probes, UDP port of the reflectors, and time to wait for answers.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Schedule")]
pub(crate) struct ProbeExchange {
    /// Time to wait for the answer to a probe
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) wait: Nanos,
    /// UDP port of the reflectors that the nodes run for each other, and of hosts without a port of their own
    /// [default: 18620 for nodes]
    #[arg(long, value_name = "PORT", value_parser = parse_port)]
    pub(crate) port: Option<u16>,
    /// How probes are released on time; see `packetrig probe send --help`
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) mechanism: MechanismArg,
}

#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch the user may set, not a state")]
#[command(next_help_heading = "Run")]
pub(crate) struct ProbingRun {
    #[command(flatten)]
    pub(crate) record: RunRecordArgs,
    #[command(flatten)]
    pub(crate) fleet: FleetPlace,
    /// Start with this many nodes (`3`) or this share of them (`80%`) if the others are not ready or do not permit
    /// the probes [default: all]. A node that is lost later never ends the probes of the others
    #[arg(long, value_name = "N|PERCENT")]
    pub(crate) start_with: Option<StartQuorum>,
    /// Wait until other runs have released the nodes [default: refuse]
    #[arg(long)]
    pub(crate) wait_for_nodes: bool,
    /// Print the plan and stop. `packetrig run` can run it
    #[arg(long)]
    pub(crate) print_plan: bool,
    /// Print the report as JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Do not show progress on standard error
    #[arg(long, short)]
    pub(crate) quiet: bool,
}
