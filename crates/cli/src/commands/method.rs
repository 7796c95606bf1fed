//! `packetrig test METHOD`: the shell around a test method.
//!
//! The method orders trials; this makes them, keeps each in the journal, and stores the result. A method that is interrupted
//! is resumed from its journal, which holds everything that its trials need.

mod bench;
mod hook;
mod show;
mod start;
mod traffic;

use super::execution::{TakenFleet, TrialFleet, open_catalogue};
use super::is_interrupted;
use crate::args::{FleetPlace as FleetArgs, PageFlags, ResumeArgs};
use crate::document::PlanText;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::FleetPlace;
use crate::output::{CommandOutput, remark};
use crate::page_opener::PageOpener;
use bench::{TrialBench, TrialGround};
use hook::ShellCommands;
use packetrig_fleet::controller::RunPolicies;
use packetrig_fleet_io::{EnginePlane, LocalGround};
use packetrig_method::journal::{self, JournalEntry};
use packetrig_method::{MethodOptions, MethodSession, StartedMethod};
use packetrig_stats::port::BackEnd;
use packetrig_store::RunCatalogue;
use packetrig_store::files::{PAGE, PageChoice};
use packetrig_store::methods::{JOURNAL, MethodDraft, MethodOutcome, NewMethod, RESULT};
use packetrig_sys::{clock, kernel, private_files, signal};
use packetrig_units::BitRate;
use serde::{Deserialize, Serialize};
use show::{MethodForm, StoredTest};
pub(crate) use start::{MethodRequest, perform};
use std::fs;
use std::path::{Path, PathBuf};
use traffic::DeviceTraffic;

/// Version of the journal's first line and of `result.json`.
const SCHEMA_VERSION: u32 = 1;

/// Everything that a test needs to begin or to resume: the first line of its journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct MethodHead {
    schema_version: u32,
    packetrig_version: String,
    id: String,
    name: String,
    /// Nanoseconds since 1970 (UTC).
    started_wall_ns: u64,
    options: MethodOptions,
    setup: TestSetup,
}

/// Where the trials of a test take place.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct TestSetup {
    /// One document for each device: ports, addresses, and the proportion of the flows.
    documents: Vec<String>,
    /// Speed of the links as the user said it.
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

/// What becomes of the result.
struct ResultUse<'a> {
    form: MethodForm,
    out: Option<&'a Path>,
    quiet: bool,
    page: PageFlags,
    /// What opens the page, if the user asked for that.
    opener: Option<PageOpener>,
}

/// Begins a test and carries it to its end.
fn begin(
    head: MethodHead,
    store: Option<&Path>,
    usage: &ResultUse<'_>,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let catalogue = open_catalogue(store)?;
    let line = serde_json::to_value(&head).map_err(|error| Error::Usage(error.to_string()))?;
    let draft = catalogue.begin_method(&NewMethod {
        id: &head.id,
        started_wall_ns: head.started_wall_ns,
        name: &head.name,
        method: head.options.name(),
        head: &line,
    })?;
    let test = RunningTest { session: MethodSession::new(head.options.start()?), head, draft, catalogue };
    test.carry_on(store, usage, output)
}

/// `packetrig test resume`.
pub(crate) fn resume(arguments: &ResumeArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let store = arguments.store.directory.as_deref();
    let catalogue = open_catalogue(store)?;
    let (draft, _) = catalogue.resume_method(&arguments.id)?;
    let journal = draft.journal::<MethodHead>()?;
    let head = journal.head;
    if head.schema_version > SCHEMA_VERSION {
        return Err(Error::Usage(format!(
            "test {} was begun by packetrig {}; resume it with that version",
            head.id, head.packetrig_version
        )));
    }
    let mut session = MethodSession::new(head.options.start()?);
    for entry in &journal.trials {
        session.replay(&entry.order, &entry.result).map_err(|error| Error::Usage(error.to_string()))?;
    }
    let usage = ResultUse {
        form: if arguments.json { MethodForm::Json } else { MethodForm::Tables },
        out: arguments.out.as_deref(),
        quiet: arguments.quiet,
        page: arguments.page,
        opener: arguments.page.open.then(PageOpener::find).transpose()?,
    };
    RunningTest { session, head, draft, catalogue }.carry_on(store, &usage, output)
}

/// A test at work.
struct RunningTest {
    session: MethodSession<StartedMethod>,
    head: MethodHead,
    draft: MethodDraft,
    catalogue: RunCatalogue,
}

impl RunningTest {
    fn carry_on(
        mut self,
        store: Option<&Path>,
        usage: &ResultUse<'_>,
        output: &mut CommandOutput,
    ) -> Result<CommandExit, Error> {
        // From here on the first Ctrl-C ends the test in good order; a second one kills the process.
        signal::latch()?;
        let mut bench = self.bench(store)?;
        match self.make_trials(&mut bench, usage.quiet) {
            Ok(()) => {}
            Err(error) => {
                self.say_how_to_resume();
                drop(self.draft.leave(&self.catalogue));
                return Err(error);
            }
        }
        if is_interrupted() {
            self.say_how_to_resume();
            self.draft.leave(&self.catalogue)?;
            return Ok(CommandExit::Interrupted);
        }
        self.finish(&bench, usage, output)
    }

    fn say_how_to_resume(&self) {
        if self.draft.trials() > 0 {
            remark(format_args!(
                "test {0} is unfinished; `packetrig test resume {0}` goes on with it",
                self.head.id
            ));
        }
    }

    fn bench(&self, store: Option<&Path>) -> Result<TrialBench, Error> {
        let setup = &self.head.setup;
        let fleet = FleetArgs { fleet_directory: setup.fleet.clone() };
        let mut traffic = Vec::with_capacity(setup.documents.len());
        for text in &setup.documents {
            let name = "the plan of the test".to_owned();
            let document = PlanText { name, text: text.clone(), is_from_options: false };
            traffic.push(DeviceTraffic::of_document(document, &fleet, setup.link)?);
        }
        let place = traffic.first().map(|first| first.fleet(&fleet)).transpose()?.flatten();
        let (ground, limits) = match place {
            Some(place) => self.fleet_ground(&place, store)?,
            None => (
                TrialGround::Here(Box::new(LocalGround(EnginePlane::default().keeping_ports()))),
                self.catalogue.limits(&kernel::release())?,
            ),
        };
        Ok(TrialBench {
            ground,
            traffic: traffic.into_iter().map(|device| device.traffic).collect(),
            confirmed: setup.confirmed.clone(),
            back_end: setup.back_end,
            limits,
            commands: setup.commands.clone(),
            ports: Vec::new(),
        })
    }

    fn fleet_ground(
        &self,
        place: &FleetPlace,
        store: Option<&Path>,
    ) -> Result<(TrialGround, Vec<packetrig_stats::limit::RigLimit>), Error> {
        let taken = TakenFleet::take(place, store, RunPolicies::default())?;
        let fleet = TrialFleet::of(taken, self.head.setup.waits_for_nodes);
        let limits = fleet.limits().to_vec();
        Ok((TrialGround::Fleet(Box::new(fleet)), limits))
    }

    /// Makes trials until the method is over or the user interrupts.
    fn make_trials(&mut self, bench: &mut TrialBench, quiet: bool) -> Result<(), Error> {
        while let Some(order) = self.session.next_order() {
            let number = self.session.trials() + 1;
            if !quiet {
                show::announce(number, &order, &self.head.options, self.session.method());
            }
            let started_wall_ns = clock::wall_clock_ns();
            let waits = self.head.options.waits(&order);
            let Some(result) = bench.perform(&order, &waits)? else { return Ok(()) };
            if !quiet {
                show::tell(&result);
            }
            // Kept before the method hears of it: what the method knows is in the journal.
            self.draft.append(&JournalEntry { number, started_wall_ns, order, result: result.clone() })?;
            self.session.tell(&result);
        }
        Ok(())
    }

    fn finish(
        self,
        bench: &TrialBench,
        usage: &ResultUse<'_>,
        output: &mut CommandOutput,
    ) -> Result<CommandExit, Error> {
        let report = StoredTest::new(&self.head, &self.session, bench);
        let mut files = report.files();
        if usage.page.choice() == PageChoice::Write {
            let journal = self.draft.journal::<MethodHead>()?;
            files.push((PAGE, report.page(&journal.trials, &self.head.setup.documents)));
        }
        let named: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        if let Some(out) = usage.out {
            copy_to(out, &named)?;
        }
        let outcome = MethodOutcome {
            state: packetrig_store::MethodState::Complete,
            verdict: report.verdict_word(),
            files: &named,
        };
        let directory = self.draft.finish(&self.catalogue, &outcome)?;
        report.print(usage.form, &directory, output);
        if let Some(opener) = &usage.opener {
            opener.open(&directory.join(PAGE))?;
        }
        Ok(report.exit())
    }
}

/// The page of a finished test for people, made again from its result and its journal.
pub(super) fn stored_page(directory: &Path) -> Result<String, Error> {
    let read = |name: &str| {
        let path = directory.join(name);
        fs::read_to_string(&path).map_err(|error| Error::unreadable(&path, error))
    };
    let damaged = |name: &str, error: &dyn std::fmt::Display| {
        Error::Usage(format!("{} is damaged: {error}", directory.join(name).display()))
    };
    let result: StoredTest = serde_json::from_str(&read(RESULT)?).map_err(|error| damaged(RESULT, &error))?;
    let journal = journal::read::<MethodHead>(&read(JOURNAL)?).map_err(|error| damaged(JOURNAL, &error))?;
    Ok(result.page(&journal.trials, &journal.head.setup.documents))
}

fn copy_to(out: &Path, files: &[(&str, &str)]) -> Result<(), Error> {
    let failed = |source| Error::Write { what: format!("to {}", out.display()), source };
    private_files::create_directories(out).map_err(failed)?;
    for (name, text) in files {
        private_files::write(&out.join(name), text.as_bytes()).map_err(failed)?;
    }
    Ok(())
}
