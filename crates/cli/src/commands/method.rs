//! `packetrig test METHOD`: runs a test method.
//!
//! The method requests trials; this module runs them, writes each to the journal, and stores the result. An interrupted
//! test resumes from its journal, which holds everything that its trials need.

mod hook;
mod rig_doubt;
mod served;
mod show;
mod start;
mod traffic;
mod trial_runner;
mod watch;

use super::execution::{FleetUnderControl, TrialFleet, open_catalogue};
use super::watch::ScreenThread;
use crate::args::{FleetPlace as FleetArgs, PageFlags, ResumeArgs};
use crate::commands::run_viewer::RunViewer;
use crate::document::PlanText;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::FleetPlace;
use crate::identity;
use crate::output::{CommandOutput, print_error_and_continue};
use crate::page_opener::PageOpener;
use hook::ShellCommands;
use packetrig_fleet::controller::RunPolicies;
use packetrig_fleet_io::{EnginePlaneSource, LocalExecutor};
use packetrig_method::journal::{self, MethodJournalEntry};
use packetrig_method::{MethodOptions, MethodSession, StartedMethod};
use packetrig_stats::port::BackEnd;
use packetrig_store::RunCatalogue;
use packetrig_store::files::{PAGE, PageChoice};
use packetrig_store::methods::{JOURNAL_FILE_NAME, MethodDraft, MethodOutcome, NewMethod, RESULT_FILE_NAME};
use packetrig_sys::{clock, kernel, private_files, signal};
use packetrig_units::BitRate;
use rig_doubt::RigDoubtCounter;
use serde::{Deserialize, Serialize};
pub(crate) use served::{MethodRunner, ServedTestTerms};
use show::{MethodResultFormat, StoredTest};
pub(crate) use start::{MethodRequest, run_method};
use std::fs;
use std::path::{Path, PathBuf};
use traffic::DeviceTraffic;
use trial_runner::{TrialExecutor, TrialRunner};
use watch::{TerminalWatcher, TestWatcher, TrialToBegin};

/// Version of the journal's first line and of `result.json`.
const SCHEMA_VERSION: u32 = 1;

/// Everything that a test needs to begin or to resume: the first line of its journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct MethodHead {
    schema_version: u32,
    packetrig_version: String,
    id: String,
    name: String,
    /// Time of the start, in nanoseconds since 1970 (UTC).
    started_wall_ns: u64,
    options: MethodOptions,
    setup: TestSetup,
}

impl MethodHead {
    /// Makes the head of a test that starts now, with a new id.
    fn new(name: String, options: MethodOptions, setup: TestSetup) -> Self {
        let started_wall_ns = clock::wall_clock_ns();
        Self {
            schema_version: SCHEMA_VERSION,
            packetrig_version: env!("CARGO_PKG_VERSION").to_owned(),
            id: identity::run_id(started_wall_ns, identity::random_number()),
            name,
            started_wall_ns,
            options,
            setup,
        }
    }
}

/// Plans, interfaces, fleet and shell commands of a test's trials.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct TestSetup {
    /// OTG plans as text: one for each compared device, otherwise one. A plan gives the ports, the addresses and the
    /// rates of the flows relative to each other.
    documents: Vec<String>,
    /// Speed of the links, as the user gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    link: Option<BitRate>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    confirmed: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    back_end: Option<BackEnd>,
    /// Directory of the fleet, if the user named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fleet: Option<PathBuf>,
    #[serde(default)]
    waits_for_nodes: bool,
    #[serde(default)]
    commands: ShellCommands,
}

/// Options of the output: the printed result, copies of its files, the screen and the page.
struct ResultOutputOptions<'a> {
    form: MethodResultFormat,
    out: Option<&'a Path>,
    quiet: bool,
    /// Show the trials on the screen of `packetrig watch`.
    watch: bool,
    page: PageFlags,
    /// The program that opens the page, if the user asked for it.
    opener: Option<PageOpener>,
}

/// Files that are written beside the usual files of a result.
#[derive(Clone, Copy)]
struct ResultFileOptions<'a> {
    /// A directory for copies of all files.
    out: Option<&'a Path>,
    page: PageChoice,
}

/// Enters a new test in the catalogue, and makes it ready to run its first trial.
fn begin_test(head: MethodHead, store: Option<&Path>) -> Result<RunningTest, Error> {
    let catalogue = open_catalogue(store)?;
    let line = serde_json::to_value(&head).map_err(|error| Error::Usage(error.to_string()))?;
    let draft = catalogue.begin_method(&NewMethod {
        id: &head.id,
        started_wall_ns: head.started_wall_ns,
        name: &head.name,
        method: head.options.name(),
        head: &line,
    })?;
    Ok(RunningTest { session: MethodSession::new(head.options.start_method()?), head, draft, catalogue })
}

/// Runs `packetrig test resume`: continues a test that has no result yet, from its journal.
pub(crate) fn resume_test(arguments: &ResumeArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    if arguments.watch {
        ScreenThread::check_terminal()?;
    }
    let store = arguments.store.directory.as_deref();
    let catalogue = open_catalogue(store)?;
    let (draft, _) = catalogue.resume_method(&arguments.id)?;
    let journal = draft.read_journal::<MethodHead>()?;
    let head = journal.head;
    // Only newer journals are refused. An older journal can only lack fields, and these fields have defaults.
    if head.schema_version > SCHEMA_VERSION {
        return Err(Error::Usage(format!(
            "test {} was started by packetrig {}; resume it with that version",
            head.id, head.packetrig_version
        )));
    }
    let mut session = MethodSession::new(head.options.start_method()?);
    for entry in &journal.trials {
        // The method receives the journal's trials as if they were run now. It checks that each one is the
        // trial that it would request.
        session.replay_trial(&entry.order, &entry.result).map_err(|error| Error::Usage(error.to_string()))?;
    }
    let usage = ResultOutputOptions {
        form: if arguments.json { MethodResultFormat::Json } else { MethodResultFormat::Tables },
        out: arguments.out.as_deref(),
        quiet: arguments.quiet,
        watch: arguments.watch,
        page: arguments.page,
        // A missing program for pages is reported before the first trial, not after hours of trials.
        opener: arguments.page.open.then(PageOpener::find_program).transpose()?,
    };
    run_test_and_print_result(RunningTest { session, head, draft, catalogue }, store, &usage, output)
}

/// Runs a test to its end and prints its result. The first Ctrl-C stops it properly; a second one kills the process.
fn run_test_and_print_result(
    test: RunningTest,
    store: Option<&Path>,
    usage: &ResultOutputOptions<'_>,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    signal::record_end_signals()?;
    let viewer = RunViewer::start_serving(&test.head.name, store);
    let screen = usage.watch.then(|| ScreenThread::open(viewer.address(), "test")).transpose()?;
    // The screen shows the progress; printed lines would damage the screen.
    let quiet = usage.quiet || screen.is_some();
    let mut watcher = TerminalWatcher {
        quiet,
        viewer,
        doubt: RigDoubtCounter::default(),
        late_remarks: Vec::new(),
        has_screen: screen.is_some(),
    };
    let kept = ResultFileOptions { out: usage.out, page: usage.page.page_choice() };
    let ended = test.run_test_to_end(store, kept, &mut watcher);
    if let Some(Err(error)) = screen.map(ScreenThread::close) {
        print_error_and_continue("test", error.full_message());
    }
    watcher.print_late_remarks();
    match ended? {
        TestEnd::Complete { test, directory } => {
            // The result is printed before the page opens: a browser that fails must not hide the result.
            test.print_result(usage.form, &directory, output);
            if let Some(opener) = &usage.opener {
                opener.open_page(&directory.join(PAGE))?;
            }
            Ok(test.verdict_exit())
        }
        TestEnd::Stopped => Ok(CommandExit::Interrupted),
    }
}

/// The end of a test: it is complete, or it was stopped and can be resumed.
enum TestEnd {
    Complete {
        test: Box<StoredTest>,
        directory: PathBuf,
    },
    /// The test was stopped. Its trials are in its journal.
    Stopped,
}

/// A test in progress.
struct RunningTest {
    session: MethodSession<StartedMethod>,
    head: MethodHead,
    draft: MethodDraft,
    catalogue: RunCatalogue,
}

impl RunningTest {
    /// Runs the remaining trials and stores the result. A stop or an error leaves the test so that it can be resumed.
    fn run_test_to_end(
        mut self,
        store: Option<&Path>,
        kept: ResultFileOptions<'_>,
        watcher: &mut dyn TestWatcher,
    ) -> Result<TestEnd, Error> {
        let mut runner = self.open_trial_runner(store)?;
        if let Err(error) = self.run_all_trials(&mut runner, watcher) {
            self.report_unfinished(watcher);
            // If the trials failed, their error is returned: an error from closing the draft would hide the cause.
            drop(self.draft.end_without_result(&self.catalogue));
            return Err(error);
        }
        if self.session.next_trial_request().is_some() {
            self.report_unfinished(watcher);
            self.draft.end_without_result(&self.catalogue)?;
            return Ok(TestEnd::Stopped);
        }
        self.finish_test(&runner, kept)
    }

    /// Tells the watcher that the test can be resumed, if a trial has been run.
    fn report_unfinished(&self, watcher: &mut dyn TestWatcher) {
        // Without a finished trial there is nothing to resume: a new test takes as long.
        if self.draft.trials() > 0 {
            watcher.report_unfinished_test(&self.head.id);
        }
    }

    fn open_trial_runner(&self, store: Option<&Path>) -> Result<TrialRunner, Error> {
        let setup = &self.head.setup;
        let fleet = FleetArgs { fleet_directory: setup.fleet.clone() };
        let mut traffic = Vec::with_capacity(setup.documents.len());
        for text in &setup.documents {
            let name = "the plan of the test".to_owned();
            let document = PlanText { name, text: text.clone(), is_from_options: false };
            traffic.push(DeviceTraffic::from_document(document, &fleet, setup.link)?);
        }
        let place = traffic.first().map(|first| first.find_fleet(&fleet)).transpose()?.flatten();
        let (executor, limits) = match place {
            Some(place) => self.open_fleet_executor(&place, store)?,
            None => (
                // Ports stay open between the trials, because many trials send for less time
                // than opening takes (docs/decisions/0033-ports-between-runs.md).
                TrialExecutor::Here(Box::new(LocalExecutor(
                    EnginePlaneSource::default().with_ports_kept_open(),
                ))),
                self.catalogue.read_rig_limits_of_kernel(&kernel::kernel_release_name())?,
            ),
        };
        Ok(TrialRunner {
            executor,
            traffic: traffic.into_iter().map(|device| device.traffic).collect(),
            confirmed: setup.confirmed.clone(),
            back_end: setup.back_end,
            limits,
            commands: setup.commands.clone(),
            ports: Vec::new(),
        })
    }

    fn open_fleet_executor(
        &self,
        place: &FleetPlace,
        store: Option<&Path>,
    ) -> Result<(TrialExecutor, Vec<packetrig_stats::limit::RigLimit>), Error> {
        let taken = FleetUnderControl::become_fleet_controller(place, store, RunPolicies::default())?;
        let fleet = TrialFleet::from_controlled_fleet(taken, self.head.setup.waits_for_nodes);
        let limits = fleet.limits().to_vec();
        Ok((TrialExecutor::Fleet(Box::new(fleet)), limits))
    }

    /// Runs trials until the method needs no more or the test is stopped.
    fn run_all_trials(
        &mut self,
        runner: &mut TrialRunner,
        watcher: &mut dyn TestWatcher,
    ) -> Result<(), Error> {
        while let Some(order) = self.session.next_trial_request() {
            let number = self.session.trial_count() + 1;
            let method = self.session.method();
            watcher.begin_trial(&TrialToBegin { number, order: &order, options: &self.head.options, method });
            let started_wall_ns = clock::wall_clock_ns();
            let waits = self.head.options.trial_waits(&order);
            let performed = runner.run_requested_trial(&order, &waits, watcher)?;
            let Some(result) = performed else { return Ok(()) };
            watcher.end_trial(&result);
            // The trial is appended before the method receives its result: the journal has every result
            // that the method has.
            self.draft.append_trial(&MethodJournalEntry {
                number,
                started_wall_ns,
                order,
                result: result.clone(),
            })?;
            self.session.on_result(&result);
        }
        Ok(())
    }

    fn finish_test(self, runner: &TrialRunner, kept: ResultFileOptions<'_>) -> Result<TestEnd, Error> {
        // The trials are read from the disk and not from memory: after a resume, this process has run
        // only some of them.
        let journal = self.draft.read_journal::<MethodHead>()?;
        let test = Box::new(StoredTest::new(&self.head, &self.session, runner, &journal.trials));
        let mut files = test.result_files();
        if kept.page == PageChoice::Write {
            files.push((PAGE, test.render_page(&journal.trials, &self.head.setup.documents)));
        }
        let named: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        // Copies come first: if they cannot be written, the test is not complete yet and can be resumed.
        if let Some(out) = kept.out {
            copy_files_to(out, &named)?;
        }
        let outcome = MethodOutcome {
            state: packetrig_store::MethodState::Complete,
            verdict: test.verdict_word(),
            files: &named,
        };
        let directory = self.draft.finish_method(&self.catalogue, &outcome)?;
        Ok(TestEnd::Complete { test, directory })
    }
}

/// Renders the web page of a finished test again, from its result and its journal.
pub(super) fn rebuild_stored_page(directory: &Path) -> Result<String, Error> {
    let result: StoredTest =
        read_method_file(&directory.join(RESULT_FILE_NAME), |text| serde_json::from_str(text))?;
    let journal = read_method_file(&directory.join(JOURNAL_FILE_NAME), journal::parse_journal::<MethodHead>)?;
    Ok(result.render_page(&journal.trials, &journal.head.setup.documents))
}

fn read_method_file<T, E: std::fmt::Display>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, Error> {
    let text = fs::read_to_string(path).map_err(|error| Error::unreadable_file(path, error))?;
    // A user can edit these files, so the error names the file and does not speak of a bug.
    parse(&text).map_err(|error| Error::Usage(format!("{} is damaged: {error}", path.display())))
}

fn copy_files_to(out: &Path, files: &[(&str, &str)]) -> Result<(), Error> {
    let failed = |source| Error::Write { what: format!("to {}", out.display()), source };
    private_files::create_directories(out).map_err(failed)?;
    for (name, text) in files {
        private_files::write_file(&out.join(name), text.as_bytes()).map_err(failed)?;
    }
    Ok(())
}
