//! The command line as typed: what may be written, and nothing of what it means. Meaning starts in `request`.

mod capture;
mod collect;
mod criteria;
mod execution;
mod fleet;
mod flows;
mod impair;
mod log;
mod meter;
mod probe;
mod quantities;
mod replay;
mod run;
mod sandbox;
mod serve;
mod tap;
mod test;

pub(crate) use capture::{Capture, Direction, Receiver};
pub(crate) use collect::Collect;
pub(crate) use criteria::CriteriaFlags;
pub(crate) use execution::Execution;
pub(crate) use fleet::{
    Agent, CollectRuns, FetchCaptures, Fleet, FleetPlace, Invite, LabelNode, Remove, ShowHistory, StartWith,
    Status, Up,
};
pub(crate) use flows::{FlowStats, FlowTop, Flows, RecoverFlows, ShowFlows};
pub(crate) use impair::Impair;
pub(crate) use log::{BeginLog, CheckLog, Log, LogAction};
pub(crate) use meter::{Format as MeterFormat, KeyPart, Meter, Source};
pub(crate) use probe::{
    Allowed, Asking, Bounds, CalibrateProbes, ContentFlags, MannerFlags, OneWay, Ping, Probe, ProbeCaps,
    ProbeTarget, Reflect, ScheduleFlags, SendProbes, SessionFlags, Stamp, To, Wish,
};
pub(crate) use probe::{Available, AvailableMethod, Capacity, CapacityMethod, Estimating, Oneprobe, Outlet};
pub(crate) use quantities::Size;
pub(crate) use replay::{Pace, Replay};
pub(crate) use run::{FromFlags, PortText, Run};
pub(crate) use sandbox::{SandboxFlags, SandboxMode, UserFlags};
pub(crate) use serve::Serve;
pub(crate) use tap::{BeginTap, Forwarder, MirrorText, NamedTap, Tap, TapAction};
pub(crate) use test::{Calibrate, Test};

use clap::{Args, Parser, Subcommand, ValueEnum};
use packetrig_plan::PortLocation;
use packetrig_stats::port::BackEnd;
use packetrig_units::Nanos;
use std::path::PathBuf;

/// Turns Linux machines into a network test rig: sends, receives, and says exactly what was lost, when and where.
#[derive(Debug, Parser)]
#[command(name = "packetrig", version, max_term_width = 100, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 done or PASS, 1 FAIL, 2 usage, 3 plan, 4 kernel or disk, 5 rights, 6 port busy, \
                        7 INCONCLUSIVE, 8 interface or target not confirmed, 70 bug, 130 interrupted"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Execute a plan: send, receive, measure, report
    Run(Box<Run>),
    /// Send the frames of a capture file: at their own times, faster, slower or at a rate, and verify what arrives
    Replay(Box<Replay>),
    /// Check or explain a plan without running it
    #[command(subcommand)]
    Plan(Plan),
    /// Run a plan on an embedded lab: two ports and a device under test, no hardware and no root needed
    Demo(Demo),
    /// Capture what arrives at an interface, filtered, without losing count of a frame
    Capture(Box<Capture>),
    /// Capture as a service: numbered files with an index, retention, and what was lost against the tap's own counters
    Log(Box<Log>),
    /// Watch a link without touching it: forward between two interfaces, copy both directions to a mirror or a file
    Tap(Box<Tap>),
    /// Receive flow records (IPFIX, NetFlow, SIM), keep them, and say what was lost where
    Collect(Box<Collect>),
    /// Meter flows at interfaces or of capture files: every packet accounted for, records exported
    Meter(Box<Meter>),
    /// Probes sent when planned, and what they measure
    #[command(subcommand)]
    Probe(Box<Probe>),
    /// Ask about flow records that were kept in files
    #[command(subcommand)]
    Flows(Flows),
    /// Serve the Open Traffic Generator API (HTTP and gRPC) on this machine's ports
    Serve(Box<Serve>),
    /// Be a node of a fleet: offer this machine's ports to its controller, within its owner's limits
    Agent(Box<Agent>),
    /// Many machines as one rig: make a fleet, see who is there, let machines in
    #[command(subcommand)]
    Fleet(Fleet),
    /// Say what this machine and its interfaces can do, and what to change for more
    Doctor(Doctor),
    /// Test methods
    #[command(subcommand)]
    Test(Test),
    /// List and show past runs
    Report(Report),
}

/// Check or explain a plan without running it.
#[derive(Debug, Subcommand)]
pub(crate) enum Plan {
    /// Report every problem of a plan, each with its line, JSON path and a hint
    Check(PlanFile),
    /// Say what a plan would send: frames, rates, how long, which fields vary, what does not fit
    Explain(PlanFile),
}

#[derive(Args, Debug)]
pub(crate) struct PlanFile {
    /// OTG document (YAML or JSON); `-` reads standard input
    #[arg(value_name = "PLAN")]
    pub(crate) file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// How long to send
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub(crate) time: Nanos,
    /// Device under test between the two ports
    #[arg(long, value_enum, default_value = "bridge")]
    pub(crate) device: Device,
    /// Faults of the reference device, drawn from --seed: drop=10,duplicate=5,reorder=3,corrupt=2,delay=50us
    #[arg(long, value_name = "KIND=N,…")]
    pub(crate) faults: Option<crate::faults::Faults>,
    /// Seed of the faults' places
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Directory for the files of the run
    #[arg(long, visible_alias = "out", value_name = "DIR")]
    pub(crate) keep_files: Option<PathBuf>,
    /// Also capture what arrives, as pcapng
    #[arg(long)]
    pub(crate) capture: bool,
    /// Insist on a way to send and receive: packet, or xdp (needs root)
    #[arg(long, value_name = "NAME")]
    pub(crate) back_end: Option<BackEndName>,
    /// Print the report as JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

/// A back end the user can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackEndName {
    /// AF_PACKET rings: every kernel, every card
    Packet,
    /// XDP: live frames out, rings filled by a BPF program in
    Xdp,
    /// AF_XDP sockets out, rings filled by a BPF program in
    AfXdp,
    /// The kernel's packet generator, for the fields it can do; counts only what it sent
    Pktgen,
}

impl From<BackEndName> for BackEnd {
    fn from(name: BackEndName) -> Self {
        match name {
            BackEndName::Packet => Self::Packet,
            BackEndName::Xdp => Self::Xdp,
            BackEndName::AfXdp => Self::AfXdp,
            BackEndName::Pktgen => Self::Pktgen,
        }
    }
}

/// The demo's device under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// A bridge of the Linux kernel
    Bridge,
    /// packetrig's own forwarder, whose faults are known
    Reference,
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Interfaces to look at (`eth1`, or `ns/eth1`); all of this namespace if none is given
    #[arg(value_name = "IFACE")]
    pub(crate) interfaces: Vec<PortLocation>,
    /// Restore interfaces that a killed packetrig process left changed: those named, or all that are found
    #[arg(long)]
    pub(crate) restore: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Report {
    #[command(subcommand)]
    pub(crate) action: Option<ReportAction>,
    #[command(flatten)]
    pub(crate) store: Store,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ReportAction {
    /// List past runs, newest first
    List {
        #[command(flatten)]
        store: Store,
        /// Show at most this many
        #[arg(long, value_name = "N", default_value_t = 50)]
        most: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a run again
    Show {
        /// Run id or the beginning of one; `last` is the newest
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        form: Form,
        /// Show all columns, however narrow the terminal
        #[arg(long)]
        wide: bool,
        #[command(flatten)]
        store: Store,
    },
    /// List runs that have files and no report: under way, killed, or ended when the report could not be written
    Unfinished {
        #[command(flatten)]
        store: Store,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove the files of a run that has no report, captures and all; a run that is under way is refused
    Discard {
        /// Run id or the beginning of one
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        store: Store,
    },
    /// List results of nodes that came when no run waited for them, and how many were refused
    Late {
        #[command(flatten)]
        store: Store,
        /// Remove those of runs that are not known here, and make room for more
        #[arg(long)]
        discard: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the directory that holds the files of a run, also of one without a report
    Path {
        /// Run id or the beginning of one; `last` is the newest
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        store: Store,
    },
}

/// In which form; tables if none is named.
#[derive(Args, Debug)]
#[group(multiple = false)]
pub(crate) struct Form {
    /// The whole report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// One row per stream as CSV
    #[arg(long)]
    pub(crate) csv: bool,
    /// JUnit XML, one test case per stream
    #[arg(long)]
    pub(crate) junit: bool,
}

/// Where past runs are kept.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Store {
    /// Catalogue of runs [default: $XDG_DATA_HOME/packetrig, or ~/.local/share/packetrig]
    #[arg(long = "store", value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }
}
