//! What may be said of a run, however its plan was come by: by `packetrig run` and `packetrig replay`.

use super::{BackEndName, CriteriaFlags, FleetPlace, StartWith, Store};
use clap::Args;
use packetrig_plan::PortLocation;
use packetrig_units::Nanos;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch the user may set, not a state")]
pub(crate) struct Execution {
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
    pub(crate) confirm: Vec<PortLocation>,
    /// How long to wait for late frames after the last one was sent; while such come it goes on, up to ten times as long
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    pub(crate) drain: Nanos,
    /// Insist on a way to send and receive: packet, xdp (fast, needs root), af-xdp (needs root) or pktgen (the kernel's
    /// own, sends only, and no files) [default: chosen by calibration, load and rights; the result says why]
    #[arg(long, value_name = "NAME")]
    pub(crate) back_end: Option<BackEndName>,
    #[command(flatten)]
    pub(crate) fleet: FleetPlace,
    /// On a fleet: start with so many nodes (`3`), or that part of them (`80%`), if others are not ready [default: all]
    #[arg(long, value_name = "N|PERCENT")]
    pub(crate) start_with: Option<StartWith>,
    /// On a fleet: when a node is lost, the others go on to the end of the plan instead of stopping
    #[arg(long)]
    pub(crate) go_on: bool,
    /// On a fleet: wait until the nodes of the plan are free, instead of refusing a plan of which another run has some
    #[arg(long)]
    pub(crate) wait_for_nodes: bool,
    /// Check the plan, print it as YAML and stop
    #[arg(long)]
    pub(crate) print_plan: bool,
    /// Print the report as JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Show all columns of the results, however narrow the terminal
    #[arg(long, conflicts_with = "json")]
    pub(crate) wide: bool,
    /// No progress on standard error
    #[arg(long, short)]
    pub(crate) quiet: bool,
    // Last, because its heading holds for everything after it.
    #[command(flatten)]
    pub(crate) criteria: CriteriaFlags,
}
