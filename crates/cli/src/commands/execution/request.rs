//! A request to execute a plan, from the options of a command.

use crate::args::{CriteriaFlags, ExecutionArgs, FleetPlace, PageFlags};
use crate::document::PlanText;
use packetrig_engine::process::EngineCommand;
use packetrig_fleet::controller::{LostNodePolicy, RunPolicies};
use packetrig_plan::PortLocation;
use packetrig_stats::port::BackEnd;
use packetrig_units::Nanos;
use std::path::PathBuf;

/// Default time that receivers wait for late frames.
pub(crate) const DEFAULT_DRAIN_TIME: Nanos = Nanos::from_millis(200);

/// Format of printed results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultFormat {
    Json,
    /// Tables with the columns that fit the terminal.
    Tables,
    /// Tables with all columns.
    WideTables,
}

impl ResultFormat {
    pub(crate) const fn from_flags(json: bool, wide: bool) -> Self {
        match (json, wide) {
            // JSON has all columns anyway.
            (true, _) => Self::Json,
            (false, true) => Self::WideTables,
            (false, false) => Self::Tables,
        }
    }
}

/// Display on this terminal while the run is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgressDisplay {
    Nothing,
    Line,
    /// The screen of `packetrig watch`.
    Screen,
}

impl ProgressDisplay {
    pub(crate) const fn from_flags(quiet: bool, watch: bool) -> Self {
        match (quiet, watch) {
            (true, _) => Self::Nothing,
            (false, true) => Self::Screen,
            (false, false) => Self::Line,
        }
    }

    pub(crate) fn is_quiet(self) -> bool {
        self == Self::Nothing
    }
}

/// A plan and the options of its execution.
#[derive(Debug)]
pub(crate) struct ExecutionRequest {
    pub(crate) document: PlanText,
    pub(crate) name: Option<String>,
    /// A directory that also gets the files of the run.
    pub(crate) out: Option<PathBuf>,
    /// The directory of the catalogue, if not the default one.
    pub(crate) store: Option<PathBuf>,
    /// Whether to write the HTML page of the run, and whether to open it.
    pub(crate) page: PageFlags,
    pub(crate) capture: bool,
    /// Interfaces that the user confirmed although the lab guard refuses them.
    pub(crate) confirmed: Vec<PortLocation>,
    /// The back end, if the user named one.
    pub(crate) back_end: Option<BackEnd>,
    /// The external traffic generator (`--engine`), if the user named one.
    pub(crate) engine: Option<EngineCommand>,
    /// Criteria from flags, which override those of the plan.
    pub(crate) criteria: CriteriaFlags,
    pub(crate) drain: Nanos,
    /// Seed of the values that the plan leaves random; a random seed if not given.
    pub(crate) seed: Option<u64>,
    pub(crate) format: ResultFormat,
    pub(crate) progress: ProgressDisplay,
    /// The directory of the fleet, if not the default one.
    pub(crate) fleet: FleetPlace,
    /// Number of fleet nodes that must be ready, and the reaction to a lost node.
    pub(crate) policies: RunPolicies,
    /// True to wait for nodes that other runs use, instead of failing.
    pub(crate) waits_for_nodes: bool,
}

impl ExecutionRequest {
    /// A request with the default of every option.
    pub(crate) fn new(document: PlanText) -> Self {
        Self {
            document,
            name: None,
            out: None,
            store: None,
            page: PageFlags::default(),
            capture: false,
            confirmed: Vec::new(),
            back_end: None,
            engine: None,
            criteria: CriteriaFlags::default(),
            drain: DEFAULT_DRAIN_TIME,
            seed: None,
            format: ResultFormat::Tables,
            progress: ProgressDisplay::Line,
            fleet: FleetPlace::default(),
            policies: RunPolicies::default(),
            waits_for_nodes: false,
        }
    }

    /// Title of the run for viewers: the name of the run, or else the name of the plan.
    pub(crate) fn title(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.document.name)
    }

    /// A request with the options of the command line.
    pub(crate) fn from_arguments(document: PlanText, arguments: ExecutionArgs) -> Self {
        Self {
            // These fields come first, because they borrow the arguments that the fields below consume.
            policies: fleet_policies(&arguments),
            back_end: requested_back_end(&arguments),
            waits_for_nodes: arguments.wait_for_nodes,
            name: arguments.record.name,
            out: arguments.record.out,
            store: arguments.record.store.directory,
            page: arguments.record.page,
            capture: arguments.capture,
            confirmed: arguments.confirm,
            engine: arguments.engine,
            criteria: arguments.criteria,
            drain: arguments.drain,
            format: ResultFormat::from_flags(arguments.json, arguments.wide),
            progress: ProgressDisplay::from_flags(arguments.quiet, arguments.watch),
            fleet: arguments.fleet,
            ..Self::new(document)
        }
    }
}

/// The back end that `--engine` or `--back-end` names; `None` if packetrig may choose.
fn requested_back_end(arguments: &ExecutionArgs) -> Option<BackEnd> {
    // An engine is itself a back end, so clap refuses both options together.
    let engine = arguments.engine.as_ref().map(|_| BackEnd::Process);
    engine.or_else(|| arguments.back_end.map(Into::into))
}

/// Reactions to missing nodes of a fleet, as the user chose them.
pub(crate) fn fleet_policies(arguments: &ExecutionArgs) -> RunPolicies {
    RunPolicies {
        start: arguments.start_with.as_ref().map(|start| start.0).unwrap_or_default(),
        // The default is to abort: a plan without one of its nodes is a different test.
        on_loss: if arguments.go_on { LostNodePolicy::Continue } else { LostNodePolicy::Abort },
    }
}
