//! Defines the command line: the commands, their options and the accepted values. The module `commands` executes them.

mod alerts;
mod capture;
mod collect;
mod criteria;
mod docs;
mod execution;
mod fleet;
mod fleet_probe;
mod flows;
mod hosts;
mod impair;
mod keep;
mod log;
#[cfg(test)]
mod manual;
mod mcp;
mod measured;
mod merge;
mod meter;
mod meter_group;
mod method;
mod moments;
mod page;
mod quantities;
mod record_stores;
mod replay;
mod report;
mod run;
mod serve;
mod server_access;
mod tap;
mod test;
mod watch;

pub(crate) use alerts::AlertArgs;
pub(crate) use capture::{CaptureArgs, CaptureBackEndArg, DirectionArg};
pub(crate) use collect::CollectArgs;
pub(crate) use criteria::CriteriaFlags;
pub(crate) use docs::DocsArgs;
pub(crate) use execution::{ExecutionArgs, PageFlags, RunRecordArgs};
pub(crate) use fleet::{
    AgentArgs, CollectRuns, FetchCaptures, FleetCommand, FleetPlace, FleetUpArgs, InviteArgs, LabelNode,
    RemoveNodeArgs, ShowHistory, StartQuorum, StatusArgs,
};
pub(crate) use fleet_probe::{
    CapacityProbes, FleetProbeCommand, ProbedHost, ProbingNodes, ProbingOptions, ProbingRun, ProbingSchedule,
    TargetProbes,
};
pub(crate) use flows::{
    CompactFlows, CompareFlows, FlowOrderArg, FlowStats, FlowTop, FlowsCommand, PruneFlows, RecoverFlows,
    ReplayFlows, ShowFlows, ShownColumn,
};
pub(crate) use hosts::{HostAddressArgs, HostArgs};
pub(crate) use impair::ImpairArgs;
pub(crate) use keep::FileRetentionArgs;
pub(crate) use log::{BeginLog, CheckLog, LogAction, LogArgs};
pub(crate) use mcp::McpArgs;
pub(crate) use measured::RecordDirectoryArgs;
pub(crate) use merge::MergeArgs;
pub(crate) use meter::{FlowIdKey, FlowKeyPart, MeterArgs, MeterFormatArg as MeterFormat, MeterSourceArg};
pub(crate) use meter_group::MeterGroupArgs;
pub(crate) use method::{
    BisectArgs, CompareArgs, ConvergenceArgs, LossShareArgs, MethodRunOptions, MethodTraffic, MlrsearchArgs,
    ResumeArgs, Rfc2544Args, Rfc2544TestName, ThroughputBound,
};
pub(crate) use moments::SinceArgs;
pub(crate) use packetrig_probe_cli::args::{MechanismArg, ProbeCommand};
pub(crate) use packetrig_program::sandbox::{SandboxFlags, UserFlags};
pub(crate) use page::PageArgs;
pub(crate) use quantities::{ListenArg, PercentArg, SizeArg};
pub(crate) use record_stores::RecordStoreArgs;
pub(crate) use replay::{MacArg, PaceArg, ReplayArgs};
pub(crate) use report::{
    DiffArgs, FigureLimitFlags, ListResults, ListUnfinishedArgs, OutputFormat, PruneArgs, ReportAction,
    ReportArgs, TrendArgs,
};
pub(crate) use run::{PatternArg, PortText, QuickPlanFlags, RunArgs};
pub(crate) use serve::ServeArgs;
pub(crate) use server_access::ServerAccessArgs;
pub(crate) use tap::{BeginTap, MirrorArg, NamedTap, TapAction, TapArgs, TapBackEndArg};
pub(crate) use test::{CalibrateArgs, TestCommand};
pub(crate) use watch::WatchArgs;

use clap::{Args, Parser, Subcommand, ValueEnum};
use packetrig_plan::PortLocation;
use packetrig_program::event_log::EventLogArgs;
use packetrig_stats::port::BackEnd;
use packetrig_units::Nanos;
use std::path::PathBuf;

/// Turn Linux machines into a network test rig: send, receive, and account for every lost frame.
// Lines of more than 100 columns are hard to read, however wide the terminal is.
#[derive(Debug, Parser)]
#[command(name = "packetrig", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Examples:\n  \
    packetrig demo\n  \
    packetrig doctor eth1\n\n\
Exit codes:\n  \
    0    done, or verdict PASS\n  \
    1    verdict FAIL\n  \
    2    wrong usage\n  \
    3    errors in the plan\n  \
    4    the kernel, an interface or the disk refused a request\n  \
    5    missing rights\n  \
    6    in use by another process\n  \
    7    verdict INCONCLUSIVE\n  \
    8    interface or target not confirmed\n  \
    70   a bug in packetrig\n  \
    130  interrupted")]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    pub(crate) command: RigCommand,
    #[command(flatten)]
    pub(crate) event_log: EventLogArgs,
}

// The variants are boxed, because the arguments of some commands are much larger than those of others.
#[derive(Debug, Subcommand)]
pub(crate) enum RigCommand {
    /// Run a plan: send, receive, measure and report
    Run(Box<RunArgs>),
    /// Send the frames of a capture file and verify what arrives
    Replay(Box<ReplayArgs>),
    /// Check or explain a plan without running it
    #[command(subcommand)]
    Plan(PlanCommand),
    /// Run a demonstration in a private lab; needs no hardware and no root
    Demo(DemoArgs),
    /// Capture frames at an interface and count every frame that was dropped
    Capture(Box<CaptureArgs>),
    /// Capture continuously to numbered files with an index and a size limit
    Log(Box<LogArgs>),
    /// Merge captures of one link into one file: every packet once, with the captures that have it
    Merge(MergeArgs),
    /// Forward between two interfaces and copy both directions to a mirror or a file
    Tap(Box<TapArgs>),
    /// Receive flow records (IPFIX, NetFlow, SIM) and sFlow samples, store them and count losses
    Collect(Box<CollectArgs>),
    /// Meter flows at interfaces or from capture files and export flow records
    Meter(Box<MeterArgs>),
    /// Measure a path with probes that leave at planned times
    #[command(subcommand)]
    Probe(Box<ProbeCommand>),
    /// Query stored flow records
    #[command(subcommand)]
    Flows(FlowsCommand),
    /// Serve the Open Traffic Generator API (HTTP and gRPC) for this machine's ports
    Serve(Box<ServeArgs>),
    /// Show past results and the nodes of a fleet as a web page, for reading only
    Page(Box<PageArgs>),
    /// Show the run in progress in the terminal; keys control a run of `packetrig serve`
    Watch(Box<WatchArgs>),
    /// Run this machine as a node of a fleet, within the limits that its owner sets
    Agent(Box<AgentArgs>),
    /// Manage a fleet: many machines that work as one test rig
    #[command(subcommand)]
    Fleet(FleetCommand),
    /// Show what this machine and its interfaces can do, and how to enable more
    Doctor(DoctorArgs),
    /// Run a test method, such as the calibration of the rig
    #[command(subcommand)]
    Test(TestCommand),
    /// List, show, compare and remove past runs and test methods
    #[command(after_help = "Examples:\n  \
        packetrig report\n  \
        packetrig report show last\n  \
        packetrig report diff baseline.json last --max-worse 5%")]
    Report(Box<ReportArgs>),
    /// Let an AI assistant use a server, with the Model Context Protocol on standard input and output
    Mcp(McpArgs),
    /// Print pages of the book of this version
    Docs(DocsArgs),
}

/// Check or explain a plan without running it.
#[derive(Debug, Subcommand)]
pub(crate) enum PlanCommand {
    /// Report every problem of a plan with its line, its JSON path and a hint
    #[command(after_help = "Example:\n  packetrig plan check examples/first-run.yaml")]
    Check(PlanFile),
    /// Show what a plan would send: frames, rates, duration, varying fields, and what does not fit
    #[command(after_help = "Example:\n  packetrig plan explain examples/first-run.yaml")]
    Explain(PlanFile),
}

#[derive(Args, Debug)]
pub(crate) struct PlanFile {
    /// OTG document (YAML or JSON); `-` reads standard input
    #[arg(value_name = "PLAN")]
    pub(crate) file: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig demo --time 3s\n  \
    packetrig demo --device reference --faults drop=10,delay=50us")]
pub(crate) struct DemoArgs {
    /// Send for this long; a number alone is seconds
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = quantities::parse_positive_time)]
    pub(crate) time: Nanos,
    /// Device under test between the two ports
    #[arg(long, value_enum, default_value = "bridge")]
    pub(crate) device: DemoDevice,
    /// Faults of the reference device, as frame counts and a delay: drop=10,duplicate=5,reorder=3,corrupt=2,delay=50us
    #[arg(long, value_name = "KIND=N,…")]
    pub(crate) faults: Option<crate::faults::FaultCounts>,
    /// Seed that chooses the frames that the faults hit
    // The default is fixed, so that two demonstrations affect the same frames and can be compared.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Also write the files of the run to this directory
    #[arg(long, visible_alias = "out", value_name = "DIR")]
    pub(crate) keep_files: Option<PathBuf>,
    /// Also capture the frames that arrive, as pcapng
    #[arg(long)]
    pub(crate) capture: bool,
    /// Back end to use; xdp and af-xdp need root [default: packet]
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) back_end: Option<DemoBackEnd>,
    /// Print the report as JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

/// The back ends that `--back-end` accepts.
// Engines are not a choice here: `--engine` selects an engine and names its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackEndName {
    /// AF_PACKET rings; works on every kernel and every card
    Packet,
    /// XDP: a BPF program sends and fills the receive rings; fast, needs root
    Xdp,
    /// AF_XDP sockets send, a BPF program fills the receive rings; needs root
    AfXdp,
    /// The kernel's packet generator; sends only, and only the fields that it supports
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

/// The back ends that work on the virtual cables of the demo; pktgen does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DemoBackEnd {
    /// AF_PACKET rings
    Packet,
    /// XDP: a BPF program sends and fills the receive rings
    Xdp,
    /// AF_XDP sockets send, a BPF program fills the receive rings
    AfXdp,
}

impl From<DemoBackEnd> for BackEnd {
    fn from(name: DemoBackEnd) -> Self {
        match name {
            DemoBackEnd::Packet => Self::Packet,
            DemoBackEnd::Xdp => Self::Xdp,
            DemoBackEnd::AfXdp => Self::AfXdp,
        }
    }
}

/// The demo's device under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DemoDevice {
    /// A bridge of the Linux kernel
    Bridge,
    /// packetrig's own forwarder, which makes the faults that --faults names
    Reference,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig doctor eth1 eth2\n  \
    packetrig doctor --fix eth1\n  \
    packetrig doctor --restore")]
#[expect(clippy::struct_excessive_bools, reason = "flags as typed, independent of each other")]
pub(crate) struct DoctorArgs {
    /// Interfaces to examine (`eth1` or `NAMESPACE/eth1`) [default: all of this network namespace]
    #[arg(value_name = "IF")]
    pub(crate) interfaces: Vec<PortLocation>,
    /// Restore interfaces that a killed packetrig process left changed [default: all that are found]
    #[arg(long)]
    pub(crate) restore: bool,
    /// Change settings that hinder packetrig, if the change can be undone: kernel settings, and named interfaces that
    /// are down. Also restores interfaces, like --restore
    #[arg(long, conflicts_with = "undo")]
    pub(crate) fix: bool,
    /// Undo the changes that --fix made
    #[arg(long)]
    pub(crate) undo: bool,
    /// Write a file for bug reports: facts, findings and the outcomes of recent runs, without addresses and payloads
    #[arg(long, value_name = "FILE")]
    pub(crate) bundle: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Option for the directory of past runs.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct StoreArgs {
    /// Directory of the run catalogue [default: $XDG_DATA_HOME/packetrig, or ~/.local/share/packetrig]
    #[arg(long = "store", value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
}

#[cfg(test)]
mod help_tests;
