//! Executing a plan, however it was come by: the one path of `run` and `demo`.

use super::kept::{name_kept, name_uncounted, report_size};
use super::{fleet, plan};
use crate::args::{CriteriaFlags, ExecutionArgs, FleetPlace};
use crate::document::PlanText;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::identity;
use crate::output::{CommandOutput, TextStyle, remark};
use crate::progress::RunProgressLine;
use crate::{fleet_place, results, speeds};
use packetrig_fleet::controller::{OnLoss, RunPolicies};
use packetrig_fleet::event::{RunEvent, RunEventKind};
use packetrig_fleet::report::{RunReport, RunVerdict};
use packetrig_fleet::{NodeName, RunId};
use packetrig_nats::NatsFabric;
use packetrig_node::fleet::FleetGround;
use packetrig_node::{EnginePlane, LocalGround, OpenRun, RunGround, RunOptions};
use packetrig_plan::{Plan, PortHost, PortLocation, ReadOptions, Stream};
use packetrig_stats::caveat::CaveatKind;
use packetrig_stats::limit::RigLimit;
use packetrig_stats::port::BackEnd;
use packetrig_store::{RunCatalogue, RunDraft, files};
use packetrig_sys::{clock, kernel, netns, private_files, signal};
use packetrig_units::Nanos;
use std::path::{Path, PathBuf};

/// How long receivers wait for stragglers, unless told otherwise.
pub(crate) const DRAIN: Nanos = Nanos::from_millis(200);

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultFormat {
    Json,
    /// Tables with the columns that the terminal has room for.
    Tables,
    /// Tables with all columns.
    WideTables,
}

impl ResultFormat {
    pub(crate) const fn of_flags(json: bool, wide: bool) -> Self {
        match (json, wide) {
            (true, _) => Self::Json,
            (false, true) => Self::WideTables,
            (false, false) => Self::Tables,
        }
    }
}

/// What shall be executed, and how.
#[derive(Debug)]
pub(crate) struct ExecutionRequest {
    pub(crate) document: PlanText,
    pub(crate) name: Option<String>,
    /// Where files go beside the catalogue.
    pub(crate) out: Option<PathBuf>,
    /// The catalogue, if not the default.
    pub(crate) store: Option<PathBuf>,
    pub(crate) capture: bool,
    /// Locations the user confirmed for the lab guard.
    pub(crate) confirmed: Vec<PortLocation>,
    /// The back end the user insists on.
    pub(crate) back_end: Option<BackEnd>,
    /// What the flags say beside the plan.
    pub(crate) criteria: CriteriaFlags,
    pub(crate) drain: Nanos,
    /// What the plan leaves to chance is drawn from this; drawn itself, if not given.
    pub(crate) seed: Option<u64>,
    pub(crate) format: ResultFormat,
    pub(crate) quiet: bool,
    /// The fleet, if not the usual one.
    pub(crate) fleet: FleetPlace,
    /// With how many nodes of a fleet it starts and goes on.
    pub(crate) policies: RunPolicies,
    /// Waits for nodes that other runs have.
    pub(crate) waits_for_nodes: bool,
}

impl ExecutionRequest {
    /// The plan with everything as usual.
    pub(crate) fn new(document: PlanText) -> Self {
        Self {
            document,
            name: None,
            out: None,
            store: None,
            capture: false,
            confirmed: Vec::new(),
            back_end: None,
            criteria: CriteriaFlags::default(),
            drain: DRAIN,
            seed: None,
            format: ResultFormat::Tables,
            quiet: false,
            fleet: FleetPlace::default(),
            policies: RunPolicies::default(),
            waits_for_nodes: false,
        }
    }

    /// The plan as the user says.
    pub(crate) fn told(document: PlanText, arguments: ExecutionArgs) -> Self {
        Self {
            policies: policies(&arguments),
            waits_for_nodes: arguments.wait_for_nodes,
            name: arguments.name,
            out: arguments.out,
            store: arguments.store.directory,
            capture: arguments.capture,
            confirmed: arguments.confirm,
            back_end: arguments.back_end.map(Into::into),
            criteria: arguments.criteria,
            drain: arguments.drain,
            format: ResultFormat::of_flags(arguments.json, arguments.wide),
            quiet: arguments.quiet,
            fleet: arguments.fleet,
            ..Self::new(document)
        }
    }
}

/// What the user accepts of a fleet.
pub(crate) fn policies(arguments: &ExecutionArgs) -> RunPolicies {
    RunPolicies {
        start: arguments.start_with.as_ref().map(|start| start.0).unwrap_or_default(),
        on_loss: if arguments.go_on { OnLoss::Continue } else { OnLoss::Abort },
    }
}

/// Runs the plan, keeps what came out, shows it. The exit code is the verdict's.
pub(crate) fn execute(request: &ExecutionRequest, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    if let Some(place) = fleet_of(&request.fleet, &request.document.text)? {
        return on_fleet(request, &place, output);
    }
    let plan = plan::read(&request.document)?;
    warn_if_nothing_is_measured(request, &plan);
    // Where results go is settled first: a run whose result cannot be kept is not worth its time.
    let catalogue = open_catalogue(request.store.as_deref())?;
    let limits = catalogue.limits(&kernel::release())?;
    let mut options = options(request, &plan, limits);
    let sending = speeds::sending_time(&plan);
    let draft = catalogue.begin(options.run.clone(), report_size(&plan, sending, &request.document.text))?;
    options.capture_dir = Some(capture_dir(request, &draft, &plan)?);
    // From here on Ctrl-C is a wish to end the run in good order, and a second one ends the process.
    signal::latch()?;
    let progress = RunProgressLine::new(request.quiet, sending);
    let captures = options.capture_dir.clone().unwrap_or_default();
    match run(&mut LocalGround(EnginePlane::default()), request, options, progress) {
        Ok((mut report, _)) => {
            let stored = draft.commit(&catalogue, &mut report, &request.document.text);
            show_result(request, &report, stored, output)
        }
        Err(error) => {
            match draft.leave() {
                Some(kept) => name_kept(Some(&kept)),
                None => name_uncounted(&captures, &[]),
            }
            Err(error)
        }
    }
}

/// The same on a fleet, of which this process leads some nodes for so long.
fn on_fleet(
    request: &ExecutionRequest,
    place: &fleet_place::FleetPlace,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let plan = read_for_fleet(request)?;
    let taken = TakenFleet::take(place, request.store.as_deref(), request.policies)?;
    taken.execute(request, &plan, output)
}

/// The plan, if it can run on a fleet.
fn read_for_fleet(request: &ExecutionRequest) -> Result<Plan, Error> {
    let reading = ReadOptions { fleet: true, ..ReadOptions::default() };
    let plan = plan::read_with(&request.document, reading)?;
    warn_if_nothing_is_measured(request, &plan);
    Ok(plan)
}

/// A fleet of which this process is a controller.
pub(crate) struct TakenFleet {
    charged: fleet::ChargedFleet,
    /// What this rig can do, as measured before.
    limits: Vec<RigLimit>,
}

impl TakenFleet {
    /// Becomes a controller, which leads no node yet.
    pub(crate) fn take(
        place: &fleet_place::FleetPlace,
        store: Option<&Path>,
        policies: RunPolicies,
    ) -> Result<Self, Error> {
        let catalogue = open_catalogue(store)?;
        let limits = catalogue.limits(&kernel::release())?;
        signal::latch()?;
        let charged = fleet::take(place, catalogue, policies, fleet::LateResults::OfKnownRuns)?;
        Ok(Self { charged, limits })
    }

    pub(crate) const fn fleet(&self) -> &FleetGround<NatsFabric> {
        &self.charged.fleet
    }

    /// Runs a plan on it that was made when it was known.
    pub(crate) fn execute_new(
        self,
        request: &ExecutionRequest,
        output: &mut CommandOutput,
    ) -> Result<CommandExit, Error> {
        let plan = read_for_fleet(request)?;
        self.execute(request, &plan, output)
    }

    fn execute(
        self,
        request: &ExecutionRequest,
        plan: &Plan,
        output: &mut CommandOutput,
    ) -> Result<CommandExit, Error> {
        let Self { mut charged, limits } = self;
        let options = options(request, plan, limits);
        let sending = speeds::sending_time(plan);
        let mut ending = RunProgressLine::new(request.quiet, None);
        let tell = &mut |event: &RunEvent| show(&mut ending, event);
        let led = charged.lead((plan, &options.run), request.waits_for_nodes, tell);
        ending.finish();
        led.map_err(|error| match error {
            Error::Run(error) => refused(request, error),
            error => error,
        })?;
        let progress = RunProgressLine::new(request.quiet, sending);
        charged.begin(
            &options,
            &request.document.text,
            report_size(plan, sending, &request.document.text),
        )?;
        let id = options.run.clone();
        match run(&mut charged.fleet, request, options, progress) {
            Ok((mut report, open)) => {
                let stored = charged.shelf.commit(&mut report, &request.document.text, open.as_ref());
                charged.place.note_run(&report);
                show_result(request, &report, stored, output)
            }
            // Nodes may have something of it: it is not forgotten.
            Err(error @ Error::Run(packetrig_node::Error::Fabric(_))) => {
                remark(format_args!("run {id} is unfinished; `packetrig fleet collect` ends it"));
                Err(error)
            }
            Err(error) => {
                name_kept(charged.shelf.give_up()?.as_ref());
                Err(error)
            }
        }
    }
}

/// Such a run is allowed, and its verdict can only be INCONCLUSIVE: the user is told before it starts.
fn warn_if_nothing_is_measured(request: &ExecutionRequest, plan: &Plan) {
    let is_measured = |stream: &Stream| stream.metrics.enable && !stream.rx.is_empty();
    if !request.quiet && !plan.streams.is_empty() && !plan.streams.iter().any(is_measured) {
        let warning = TextStyle::of_remarks().doubtful("warning:");
        remark(format_args!(
            "{warning} no port receives and measures these frames (`--rx`): the verdict will be INCONCLUSIVE (exit code 7)"
        ));
    }
}

/// Prints the document if it is a plan that can run; otherwise its problems are the error.
pub(crate) fn print_plan(
    document: &PlanText,
    fleet: &FleetPlace,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let fleet = fleet_of(fleet, &document.text)?.is_some();
    plan::read_with(document, ReadOptions { fleet, ..ReadOptions::default() })?;
    output.text(&document.text);
    Ok(CommandExit::Ok)
}

/// The fleet a plan is for: the one that is named; or the usual one, if there is one and the plan's ports are not here.
pub(crate) fn fleet_of(
    arguments: &FleetPlace,
    document: &str,
) -> Result<Option<fleet_place::FleetPlace>, Error> {
    let place = fleet_place::FleetPlace::of(arguments)?;
    if fleet_place::is_named(arguments) {
        return place.existing().map(Some);
    }
    if !place.exists() {
        return Ok(None);
    }
    let read = Plan::read_with(document, ReadOptions { fleet: true, ..ReadOptions::default() });
    let here = netns::names();
    let elsewhere = |site: &PortHost| match site {
        PortHost::Any(_) => true,
        PortHost::Node(node) => !here.contains(node),
        PortHost::Here => false,
    };
    Ok(read.is_ok_and(|plan| plan.ports.iter().any(|port| elsewhere(&port.site))).then_some(place))
}

fn options(request: &ExecutionRequest, plan: &Plan, limits: Vec<RigLimit>) -> RunOptions {
    let started = clock::wall_clock_ns();
    RunOptions {
        run: RunId(identity::run_id(started, identity::entropy())),
        name: request.name.clone().unwrap_or_default(),
        started_wall_ns: started,
        tag_key: identity::entropy(),
        seed: request.seed.unwrap_or_else(identity::seed),
        confirmed: request.confirmed.iter().map(ToString::to_string).collect(),
        capture_dir: None,
        capture_all: request.capture,
        steered: false,
        back_end: request.back_end,
        limits,
        drain: request.drain,
        criteria: request.criteria.over(&plan.criteria),
    }
}

fn show_result(
    request: &ExecutionRequest,
    report: &RunReport,
    stored: Result<PathBuf, packetrig_store::Error>,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    // A full disk must not hide what was found.
    let copied = request.out.as_deref().map_or(Ok(()), |out| copy_to(out, request, report));
    if request.format == ResultFormat::Json {
        output.text(files::json(report));
    } else {
        output.text(results::render(
            report,
            output.style_for_tables(request.format == ResultFormat::WideTables),
        ));
        let directory = request.out.as_deref().filter(|_| copied.is_ok()).or_else(|| stored.as_deref().ok());
        if let Some(directory) = directory {
            output.line(format_args!("Files: {}", directory.display()));
        }
    }
    for directory in stored.iter().chain(&request.out) {
        name_uncounted(&directory.join("captures"), &report.captures);
    }
    let failures = [stored.map(drop).map_err(unusable_store), copied];
    let exit = exit(report);
    let mut failures = failures.into_iter().filter_map(Result::err).peekable();
    while let Some(error) = failures.next() {
        if exit == CommandExit::Ok && failures.peek().is_none() {
            return Err(error);
        }
        remark(format_args!("{}", error.chain()));
    }
    Ok(exit)
}

/// Writes the files of the run to the directory that the user named, too.
fn copy_to(out: &Path, request: &ExecutionRequest, report: &RunReport) -> Result<(), Error> {
    private_files::create_directories(out)
        .map_err(|source| Error::Write { what: format!("to {}", out.display()), source })?;
    Ok(files::write_run(out, report, &request.document.text)?)
}

/// The catalogue the user names, or the usual one.
pub(crate) fn open_catalogue(directory: Option<&Path>) -> Result<RunCatalogue, Error> {
    let place =
        directory.map_or_else(packetrig_store::default_place, |directory| Ok(directory.to_owned()))?;
    RunCatalogue::open(&place).map_err(unusable_store)
}

/// The same for reading past runs: nothing is created, and `None` says that there are none yet.
pub(crate) fn open_catalogue_to_read(directory: Option<&Path>) -> Result<Option<RunCatalogue>, Error> {
    let place =
        directory.map_or_else(packetrig_store::default_place, |directory| Ok(directory.to_owned()))?;
    Ok(RunCatalogue::open_to_read(&place)?)
}

fn unusable_store(error: packetrig_store::Error) -> Error {
    use packetrig_store::Error as Store;
    match error {
        Store::File { .. } | Store::Catalogue { .. } => Error::UnusableStore(error),
        error => error.into(),
    }
}

/// Captures are written where they shall stay: they may be too large to copy.
fn capture_dir(request: &ExecutionRequest, draft: &RunDraft, plan: &Plan) -> Result<PathBuf, Error> {
    let wanted = request.capture || !plan.captures.is_empty();
    let Some(out) = &request.out else {
        return Ok(if wanted { draft.capture_dir()? } else { PathBuf::new() });
    };
    let captures = if wanted { out.join("captures") } else { out.clone() };
    let what = || format!("to {}", captures.display());
    private_files::create_directories(&captures).map_err(|source| Error::Write { what: what(), source })?;
    captures.canonicalize().map_err(|source| Error::Write { what: what(), source })
}

fn run(
    ground: &mut dyn RunGround,
    request: &ExecutionRequest,
    options: RunOptions,
    mut progress: RunProgressLine,
) -> Result<(RunReport, Option<OpenRun>), Error> {
    let stop = || signal::received().is_some();
    let mut tell = |event: &RunEvent| show(&mut progress, event);
    let ran = packetrig_node::run_to_end(ground, &request.document.text, options, (&stop, &mut tell));
    progress.finish();
    ran.map_err(|error| refused(request, error))
}

fn refused(request: &ExecutionRequest, error: packetrig_node::Error) -> Error {
    match error {
        // Found when the links were known; shown as if found when the plan was read.
        packetrig_node::Error::Plan(problems)
        | packetrig_node::Error::Engine(packetrig_engine::Error::Plan(problems)) => {
            plan::refused(&request.document, &problems.0)
        }
        error @ packetrig_node::Error::NodesTaken(_) if !request.waits_for_nodes => {
            remark("`--wait-for-nodes` waits until they are free");
            error.into()
        }
        error => error.into(),
    }
}

/// By the verdict; a run that was stopped before its plan ended is interrupted, whatever was found until then.
fn exit(report: &RunReport) -> CommandExit {
    let cut_short = report.caveats.iter().any(|caveat| caveat.doubt == CaveatKind::Interrupted);
    match &report.verdict {
        _ if cut_short => CommandExit::Interrupted,
        RunVerdict::Pass => CommandExit::Ok,
        RunVerdict::Fail(_) => CommandExit::Fail,
        RunVerdict::Inconclusive(_) => CommandExit::Inconclusive,
    }
}

fn show(progress: &mut RunProgressLine, event: &RunEvent) {
    match &event.kind {
        RunEventKind::StateChanged(state) if state.is_final() => {}
        RunEventKind::StateChanged(state) => progress.state(&state.to_string()),
        RunEventKind::StartSet { at } => progress.started(*at),
        RunEventKind::Counters { node, sample } => progress.counters(&node.0, event.at, sample),
        RunEventKind::Finding(text) => progress.say(text),
        RunEventKind::Ports { node, ports } => {
            let on_node = if *node == NodeName::local() { String::new() } else { format!("{node}/") };
            for port in ports {
                let back_end = port.back_end.name();
                let location = format!("{on_node}{}", port.location);
                let name = &port.name;
                progress.say(&format!("port {name} ({location}): back end {back_end}: {}", port.why));
            }
        }
        RunEventKind::Steered { .. } | RunEventKind::Ended(_) => {}
    }
}
