//! Executes a plan. `run`, `replay` and `demo` all use this code.

mod on_fleet;
mod request;

pub(crate) use on_fleet::{FleetUnderControl, TrialFleet};
pub(crate) use request::{
    DEFAULT_DRAIN_TIME, ExecutionRequest, ProgressDisplay, ResultFormat, fleet_policies,
};

use super::kept::{print_run_without_report, print_uncounted_captures};
use super::watch::ScreenThread;
use super::{is_interrupted, plan};
use crate::args::FleetPlace;
use crate::commands::run_viewer::RunViewer;
use crate::document::PlanText;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::identity;
use crate::output::{CommandOutput, TextStyle, print_error_and_continue, print_remark};
use crate::page_opener::PageOpener;
use crate::progress::RunProgressLine;
use crate::{fleet_place, results, speeds};
use packetrig_fleet_io::served::report_size;
use packetrig_fleet_io::{EnginePlaneSource, LocalExecutor, OpenRun, RunExecutor, RunOptions};
use packetrig_plan::{Plan, PlanParseOptions, PortHost};
use packetrig_report::event::{RunEvent, RunEventKind};
use packetrig_report::outcome::RunState;
use packetrig_report::{NodeName, RunId, RunReport, RunVerdict};
use packetrig_stats::caveat::CaveatKind;
use packetrig_stats::limit::RigLimit;
use packetrig_stats::terms::SharedRunOptions;
use packetrig_store::{RunCatalogue, RunDraft, files};
use packetrig_sys::{clock, kernel, netns, private_files, signal};
use packetrig_units::Blame;
use std::path::{Path, PathBuf};

/// Runs the plan, stores the result and shows it. The verdict decides the exit code.
pub(crate) fn execute_request(
    request: &ExecutionRequest,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    if let Some(place) = find_fleet(&request.fleet, &request.document.text)? {
        if !request.progress.is_quiet() && !fleet_place::is_directory_given(&request.fleet) {
            let directory = place.directory().display();
            print_remark(format_args!(
                "run: a port of the plan is not on this machine, so this is a run of the fleet in {directory}"
            ));
        }
        refuse_engine_request(request)?;
        return on_fleet::execute_on_fleet(request, &place, output);
    }
    let plan = plan::read_plan(&request.document)?;
    refuse_unknown_namespaces(&request.fleet, &plan)?;
    warn_if_nothing_is_measured(request, &plan);
    // The store is opened before the run, because a run whose result cannot be stored is useless.
    let catalogue = open_catalogue(request.store.as_deref())?;
    let limits = catalogue.read_rig_limits_of_kernel(&kernel::kernel_release_name())?;
    let mut options = run_options(request, &plan, limits);
    let sending = speeds::sending_time(&plan);
    let opener = find_page_opener(request)?;
    // From here on the first Ctrl-C ends the run properly, with a report. A second one kills the process.
    signal::record_end_signals()?;
    let shown = RunDisplay::begin(request, &plan)?;
    // The draft reserves space for the report, so that a disk that fills up during the run cannot cost the result.
    let mut draft =
        catalogue.begin_run(options.run.clone(), report_size(&plan, sending, &request.document.text))?;
    draft.set_page_choice(request.page.page_choice());
    options.capture_dir = Some(create_capture_dir(request, &draft, &plan)?);
    let captures = options.capture_dir.clone().unwrap_or_default();
    let plane = EnginePlaneSource::default().with_engine(request.engine.clone());
    match run_with_progress(&mut LocalExecutor(plane), request, options, shown) {
        Ok(FinishedRun { mut report, .. }) => {
            let stored = draft.commit_run(&catalogue, &mut report, &request.document.text);
            show_result(request, &report, stored, opener.as_ref(), output)
        }
        // Captures may be the only result of the measurement: the user must learn where they are.
        Err(error) => {
            match draft.end_without_report() {
                Some(kept) => print_run_without_report(Some(&kept)),
                None => print_uncounted_captures(&captures, &[]),
            }
            Err(error)
        }
    }
}

/// Refuses `--engine` on a fleet. Nodes start no program that a message names, and an engine would go on sending after
/// the lease of its node has expired.
fn refuse_engine_request(request: &ExecutionRequest) -> Result<(), Error> {
    let Some(engine) = &request.engine else { return Ok(()) };
    Err(Error::Usage(format!(
        "--engine {} cannot be used on a fleet: engines keep sending when their node loses the controller; run the plan on \
            the machine itself",
        engine.name()
    )))
}

/// Warns before the run if its plan measures nothing: the verdict can then only be INCONCLUSIVE.
fn warn_if_nothing_is_measured(request: &ExecutionRequest, plan: &Plan) {
    if !request.progress.is_quiet() && plan::has_only_unmeasured_flows(plan) {
        let warning = TextStyle::for_remarks().doubtful("warning:");
        print_remark(format_args!("{warning} {}", plan::NOTHING_MEASURED_WARNING));
    }
}

/// Prints the document if it is a valid plan; otherwise fails with the problems of the plan.
pub(crate) fn print_plan(
    document: &PlanText,
    fleet: &FleetPlace,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let fleet = find_fleet(fleet, &document.text)?.is_some();
    plan::read_plan_with(document, PlanParseOptions { fleet, ..PlanParseOptions::default() })?;
    output.write_text(&document.text);
    Ok(CommandExit::Ok)
}

/// Finds the fleet on which a plan runs: the one that the user named; otherwise the default fleet, if it exists and a
/// port of the plan is not on this machine. `None` if the plan runs on this machine.
pub(crate) fn find_fleet(
    arguments: &FleetPlace,
    document: &str,
) -> Result<Option<fleet_place::FleetPlace>, Error> {
    let place = fleet_place::FleetPlace::from_arguments(arguments)?;
    if fleet_place::is_directory_given(arguments) {
        return place.require_existing().map(Some);
    }
    if !place.exists() {
        return Ok(None);
    }
    // A plan that cannot be read counts as one for this machine: its problems are shown when it is read for the run.
    let read =
        Plan::from_text_with(document, PlanParseOptions { fleet: true, ..PlanParseOptions::default() });
    let namespaces = netns::list_named_namespaces();
    // The run belongs to the fleet only if this machine lacks one of its locations: an existing fleet must
    // not take over a local plan.
    let needs_fleet =
        read.is_ok_and(|plan| plan.ports.iter().any(|port| is_on_other_machine(&port.site, &namespaces)));
    Ok(needs_fleet.then_some(place))
}

/// Refuses a port such as `left/eth1` if this machine has no namespace `left`. The error also names the directory of
/// the fleet, for users that meant a node of a fleet.
fn refuse_unknown_namespaces(arguments: &FleetPlace, plan: &Plan) -> Result<(), Error> {
    let known = netns::list_named_namespaces();
    let mut namespaces = plan.ports.iter().filter_map(|port| port.location.namespace.as_ref());
    let Some(unknown) = namespaces.find(|namespace| !known.contains(namespace)) else { return Ok(()) };
    let fleet = fleet_place::FleetPlace::from_arguments(arguments)?;
    Err(Error::NoSuchPlace { namespace: unknown.clone(), fleet: fleet.directory().display().to_string() })
}

/// True if the port is on a node of a fleet. `left/eth1` can mean the node `left` or a network namespace of this
/// machine; an existing namespace takes precedence.
fn is_on_other_machine(site: &PortHost, namespaces: &[String]) -> bool {
    match site {
        PortHost::Any(_) => true,
        PortHost::Node(node) => !namespaces.contains(node),
        PortHost::Here => false,
    }
}

fn run_options(request: &ExecutionRequest, plan: &Plan, limits: Vec<RigLimit>) -> RunOptions {
    let started = clock::wall_clock_ns();
    RunOptions {
        run: RunId(identity::run_id(started, identity::random_number())),
        name: request.name.clone().unwrap_or_default(),
        started_wall_ns: started,
        terms: SharedRunOptions {
            // A new key for each run: frames of an earlier run that arrive late must not count for this one.
            tag_key: identity::random_number(),
            seed: request.seed.unwrap_or_else(identity::random_seed),
            capture_all: request.capture,
            back_end: request.back_end,
            limits,
            steered: false,
        },
        confirmed: request.confirmed.iter().map(ToString::to_string).collect(),
        capture_dir: None,
        drain: request.drain,
        criteria: request.criteria.with_plan_defaults(&plan.criteria),
    }
}

fn show_result(
    request: &ExecutionRequest,
    report: &RunReport,
    stored: Result<PathBuf, packetrig_store::Error>,
    opener: Option<&PageOpener>,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    // A full disk must not hide the result: it is shown first, and the error comes after it.
    let copied = request.out.as_deref().map_or(Ok(()), |out| copy_files_to(out, request, report));
    if request.format == ResultFormat::Json {
        output.write_text(files::report_json(report));
    } else {
        output.write_text(results::render_report(
            report,
            output.style_for_tables(request.format == ResultFormat::WideTables),
        ));
        let directory = request.out.as_deref().filter(|_| copied.is_ok()).or_else(|| stored.as_deref().ok());
        if let Some(directory) = directory {
            output.write_line(format_args!("Files: {}", directory.display()));
        }
    }
    for directory in stored.iter().chain(&request.out) {
        print_uncounted_captures(&directory.join("captures"), &report.captures);
    }
    let opened = match (opener, &stored) {
        (Some(opener), Ok(directory)) => opener.open_page(&directory.join(files::PAGE)),
        _ => Ok(()),
    };
    let failures = [stored.map(drop).map_err(unusable_store_error), copied, opened];
    let exit = verdict_exit(report);
    // If the exit code would be 0, the last error becomes the error of the command. All other errors are only printed.
    let mut failures = failures.into_iter().filter_map(Result::err).peekable();
    while let Some(error) = failures.next() {
        if exit == CommandExit::Ok && failures.peek().is_none() {
            return Err(error);
        }
        print_error_and_continue("run", error.full_message());
    }
    Ok(exit)
}

/// Finds the program that opens the page of the run; `None` if the user did not ask to open it.
fn find_page_opener(request: &ExecutionRequest) -> Result<Option<PageOpener>, Error> {
    request.page.open.then(PageOpener::find_program).transpose()
}

/// Writes the files of the run to the directory that the user named.
fn copy_files_to(out: &Path, request: &ExecutionRequest, report: &RunReport) -> Result<(), Error> {
    private_files::create_directories(out)
        .map_err(|source| Error::Write { what: format!("to {}", out.display()), source })?;
    Ok(files::write_run_files(out, report, &request.document.text, request.page.page_choice())?)
}

/// Opens the catalogue in this directory, or in the default directory. Creates it if it does not exist.
pub(crate) fn open_catalogue(directory: Option<&Path>) -> Result<RunCatalogue, Error> {
    let place = directory
        .map_or_else(packetrig_store::default_store_directory, |directory| Ok(directory.to_owned()))?;
    RunCatalogue::open_or_create(&place).map_err(unusable_store_error)
}

/// Opens the catalogue for reading past runs. Creates nothing; returns `None` if there is no catalogue yet.
pub(crate) fn open_catalogue_to_read(directory: Option<&Path>) -> Result<Option<RunCatalogue>, Error> {
    let place = directory
        .map_or_else(packetrig_store::default_store_directory, |directory| Ok(directory.to_owned()))?;
    Ok(RunCatalogue::open_to_read(&place)?)
}

fn unusable_store_error(error: packetrig_store::Error) -> Error {
    use packetrig_store::Error as Store;
    match error {
        Store::File { .. } | Store::Catalogue { .. } => Error::UnusableStore(error),
        error => error.into(),
    }
}

/// Creates the directory for the captures of the run. Captures are written directly to their final directory, because
/// they may be too large to copy.
fn create_capture_dir(request: &ExecutionRequest, draft: &RunDraft, plan: &Plan) -> Result<PathBuf, Error> {
    // A directory is made only for a plan that captures: an empty one would look like lost files.
    let wanted = request.capture || !plan.captures.is_empty();
    let Some(out) = &request.out else {
        return Ok(if wanted { draft.create_capture_directory()? } else { PathBuf::new() });
    };
    // The directory is made before the run in any case, so that an unwritable directory is reported before the run.
    let captures = if wanted { out.join("captures") } else { out.clone() };
    let made = private_files::create_directories(&captures).and_then(|()| captures.canonicalize());
    made.map_err(|source| Error::Write { what: format!("to {}", captures.display()), source })
}

/// Display of a run in progress: the progress line or the screen of this terminal, and the server for other viewers.
struct RunDisplay {
    progress: RunProgressLine,
    viewer: RunViewer,
    screen: Option<ScreenThread>,
}

impl RunDisplay {
    fn begin(request: &ExecutionRequest, plan: &Plan) -> Result<Self, Error> {
        let has_screen = request.progress == ProgressDisplay::Screen;
        if has_screen {
            ScreenThread::check_terminal()?;
        }
        let viewer = RunViewer::start_serving(request.title(), request.store.as_deref());
        viewer.switch_to_plan(plan);
        let screen = has_screen.then(|| ScreenThread::open(viewer.address(), "run")).transpose()?;
        let progress =
            RunProgressLine::new(request.progress != ProgressDisplay::Line, speeds::sending_time(plan));
        Ok(Self { progress, viewer, screen })
    }

    fn show_event(&mut self, event: &RunEvent) {
        self.viewer.add_event(event);
        show_event(&mut self.progress, event);
    }

    /// Clears the terminal for the results.
    fn end_display(self) {
        if let Some(Err(error)) = self.screen.map(ScreenThread::close) {
            print_error_and_continue("run", error.full_message());
        }
        self.progress.clear_line();
    }
}

/// A run that has ended, with a report.
struct FinishedRun {
    report: RunReport,
    /// Data to complete the report when missing nodes send their results later; `None` if the report is complete.
    open: Option<OpenRun>,
}

fn run_with_progress(
    executor: &mut dyn RunExecutor,
    request: &ExecutionRequest,
    options: RunOptions,
    mut shown: RunDisplay,
) -> Result<FinishedRun, Error> {
    let ran = packetrig_fleet_io::run_document_to_end(
        executor,
        &request.document.text,
        options,
        (&is_interrupted, &mut |event: &RunEvent| shown.show_event(event)),
    );
    // The progress line ends before `?` returns: an error must not be printed on that line.
    shown.end_display();
    let (report, open) = ran.map_err(|error| explain_run_error(request, error))?;
    Ok(FinishedRun { report, open })
}

fn explain_run_error(request: &ExecutionRequest, error: packetrig_fleet_io::Error) -> Error {
    match error {
        // These problems can be found only with the link speeds. They are shown like the problems found while
        // reading the plan.
        packetrig_fleet_io::Error::Plan(problems)
        | packetrig_fleet_io::Error::Engine(packetrig_engine::Error::Plan(problems)) => {
            plan::plan_error(&request.document, &problems.0, Blame::Plan)
        }
        packetrig_fleet_io::Error::NotPlaced(problems) => {
            plan::plan_error(&request.document, &problems.0, Blame::World)
        }
        error @ packetrig_fleet_io::Error::NodesTaken(_) if !request.waits_for_nodes => {
            print_remark("`--wait-for-nodes` waits until other runs have released the nodes");
            error.into()
        }
        error => error.into(),
    }
}

/// Returns the exit code for the verdict. A run that was stopped before its plan ended counts as interrupted, whatever
/// its verdict says.
fn verdict_exit(report: &RunReport) -> CommandExit {
    let cut_short = report.caveats.iter().any(|caveat| caveat.doubt == CaveatKind::Interrupted);
    match &report.verdict {
        // This check comes first: a run that ended early may pass, but a script must not treat it as a complete run.
        _ if cut_short => CommandExit::Interrupted,
        RunVerdict::Pass => CommandExit::Ok,
        RunVerdict::Fail(_) => CommandExit::Fail,
        RunVerdict::Inconclusive(_) => CommandExit::Inconclusive,
    }
}

/// Returns true if a line is printed for the state. `Armed` and `Committed` only wait for the start time, which has its
/// own line. The final state is in the result.
fn is_state_printed(state: RunState) -> bool {
    !state.is_final() && !matches!(state, RunState::Armed | RunState::Committed)
}

fn show_event(progress: &mut RunProgressLine, event: &RunEvent) {
    match &event.kind {
        RunEventKind::StateChanged(state) if !is_state_printed(*state) => {}
        RunEventKind::StateChanged(state) => progress.show_run_state(state.activity()),
        RunEventKind::StartSet { at } => progress.set_start_time(*at),
        RunEventKind::Counters { node, sample } => progress.show_counters(&node.0, event.at, sample),
        RunEventKind::Finding(text) => progress.print_line(text),
        RunEventKind::Ports { node, ports } => {
            let on_node = if *node == NodeName::local() { String::new() } else { format!("{node}/") };
            for port in ports {
                let back_end = port.back_end.name();
                let location = format!("{on_node}{}", port.location);
                let name = &port.name;
                progress.print_line(&format!("port {name} ({location}): back end {back_end}: {}", port.why));
            }
        }
        RunEventKind::Steered { .. } | RunEventKind::Ended(_) => {}
    }
}
