//! Options that `packetrig run` and `packetrig replay` share: everything about a run except its plan.

use super::{BackEndName, CriteriaFlags, FleetPlace, StartQuorum, StoreArgs};
use clap::Args;
use packetrig_engine::process::EngineCommand;
use packetrig_plan::PortLocation;
use packetrig_store::files::PageChoice;
use packetrig_units::Nanos;
use std::path::PathBuf;

/// Name of a run, the directories for its files, and the options of its web page.
#[derive(Args, Debug)]
pub(crate) struct RunRecordArgs {
    /// Name of the run in the catalogue
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Also write the files of the run to this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) page: PageFlags,
}

/// Options of `report.html`, the result as a web page.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct PageFlags {
    /// Do not write report.html, the result as a web page
    #[arg(long)]
    pub(crate) no_html: bool,
    /// Open report.html in a browser when the result is ready
    #[arg(long, conflicts_with = "no_html")]
    pub(crate) open: bool,
}

impl PageFlags {
    pub(crate) const fn page_choice(self) -> PageChoice {
        if self.no_html { PageChoice::LeaveOut } else { PageChoice::Write }
    }
}

#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch the user may set, not a state")]
pub(crate) struct ExecutionArgs {
    #[command(flatten)]
    pub(crate) record: RunRecordArgs,
    /// Capture the frames at every receiving port, as pcapng
    #[arg(long)]
    pub(crate) capture: bool,
    /// Confirm that this interface may carry test traffic although it looks like part of a real network
    #[arg(long, value_name = "IF,…", value_delimiter = ',')]
    pub(crate) confirm: Vec<PortLocation>,
    /// Wait this long for late frames after the last frame was sent; a number alone is seconds. While late frames
    /// still arrive, the wait goes on, up to ten times as long
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    pub(crate) drain: Nanos,
    /// Use this back end instead of choosing one: packet, xdp (fast, needs root), af-xdp (needs root) or pktgen
    /// (the kernel's generator; sends only, cannot replay capture files) [default: chosen by calibration, load
    /// and rights; the result says why]
    #[arg(long, value_name = "NAME")]
    pub(crate) back_end: Option<BackEndName>,
    /// Send with another program, the engine: trafgen, tcpreplay, or the path of a program that speaks packetrig's
    /// engine protocol. Losses are measured, latency is not
    // An engine is a back end of its own, so the two options would contradict each other.
    #[arg(long, value_name = "NAME|PATH", conflicts_with = "back_end")]
    pub(crate) engine: Option<EngineCommand>,
    #[command(flatten)]
    pub(crate) fleet: FleetPlace,
    /// On a fleet: start with this many nodes (`3`) or this share of them (`80%`) if the others are
    /// not ready [default: all]
    #[arg(long, value_name = "N|PERCENT")]
    pub(crate) start_with: Option<StartQuorum>,
    /// On a fleet: finish the plan with the other nodes when a node is lost [default: stop]
    #[arg(long)]
    pub(crate) go_on: bool,
    /// On a fleet: wait until other runs have released the nodes of the plan [default: refuse the plan]
    #[arg(long)]
    pub(crate) wait_for_nodes: bool,
    /// Check the plan, print it as YAML and stop
    #[arg(long)]
    pub(crate) print_plan: bool,
    /// Print the report as JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Show all columns of the results, even if they do not fit the terminal
    #[arg(long, conflicts_with = "json")]
    pub(crate) wide: bool,
    /// Do not show progress on standard error
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Show the run as `packetrig watch` does, until it ends or `q` is pressed
    #[arg(long, conflicts_with_all = ["quiet", "json"])]
    pub(crate) watch: bool,
    // These options come last: their heading applies to every option after it.
    #[command(flatten)]
    pub(crate) criteria: CriteriaFlags,
}
