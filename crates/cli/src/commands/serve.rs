//! `packetrig serve`: the OTG API on this machine's ports. Each configuration is an ordinary run, whose result goes into the
//! catalogue when the next configuration replaces it.

mod access;

use super::execution::open_catalogue;
use super::fleet::FleetRigs;
use super::is_interrupted;
use super::kept::{name_kept, report_size};
use crate::args::ServeArgs;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::FleetPlace;
use crate::identity;
use crate::output::{CommandOutput, remark};
use crate::sandbox::{self, needs};
use packetrig_fleet::RunId;
use packetrig_fleet::outcome::NodeFault;
use packetrig_fleet::report::{AcceptanceCriteria, RunReport};
use packetrig_fleet_io::{EnginePlane, LocalGround, RunOptions, RunSession};
use packetrig_plan::{Plan, PlanChange, PlanDocument};
use packetrig_server::{
    BoundAddresses, ConsoleRun, EventSink, IdentityFiles, RejectionObserver, RunSource, ServerOptions,
    TestConsole, TesterRefusal,
};
use packetrig_stats::port::BackEnd;
use packetrig_stats::terms::RunTerms;
use packetrig_store::{RunCatalogue, RunDraft};
use packetrig_sys::owner::overflow_user;
use packetrig_sys::resident::ResidentThread;
use packetrig_sys::{clock, kernel, memory, netns, signal};
use packetrig_units::{MonoTime, Nanos};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time for late frames when a configuration is replaced. It is short because the client waits for it.
const DRAIN: Nanos = Nanos::from_millis(20);
/// How often signals are looked for.
const POLL: Duration = Duration::from_millis(50);

pub(crate) fn perform(arguments: &ServeArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    // Threads come and go with runs. One heap for all keeps the process from growing; frames never wait for its lock, since they
    // are sent and received without allocation.
    memory::one_heap();
    access::check_allowed(&arguments.allow_user, overflow_user())?;
    let options = options(arguments)?;
    let opening = sandbox::begin(&arguments.sandbox, needs::serve(arguments)?)?;
    signal::latch()?;
    let seed = arguments.seed.unwrap_or_else(identity::seed);
    let back_end = arguments.back_end.map(Into::into);
    // Before clients are served: a server that cannot store results must not run tests.
    let catalogue = open_catalogue(arguments.store.directory.as_deref())?;
    // A controller of a fleet opens no ports, so it gives up all rights; runs on this machine need a thread that keeps them.
    if arguments.on_fleet {
        let place = FleetPlace::of(&arguments.fleet)?.existing()?;
        opening.close()?;
        let rigs = FleetRigs::take(&place, catalogue, back_end, seed)?;
        return offer(arguments, options, rigs, output);
    }
    let keeping = Arc::new(ResultKeeping::new(open_catalogue(arguments.store.directory.as_deref())?));
    let rigs = MachineRigs {
        thread: opening.close_beside_rigs(&netns::names())?,
        catalogue: Mutex::new(catalogue),
        keeping: Arc::clone(&keeping),
        confirmed: arguments.confirm.iter().map(ToString::to_string).collect(),
        back_end,
        seed,
        wall_minus_monotonic: clock::wall_clock_ns().wrapping_sub(clock::monotonic_ns()),
    };
    let served = offer(arguments, options, rigs, output);
    keeping.finish();
    served
}

/// Serves until a signal comes.
fn offer<R: RunSource>(
    arguments: &ServeArgs,
    options: ServerOptions,
    rigs: R,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let aliases = arguments.ports.iter().map(|alias| (alias.location.clone(), alias.interface.to_string()));
    let console = Arc::new(TestConsole::new(rigs, aliases.collect()));
    let open_to = access::describe(arguments, options.local_users.as_ref());
    let served = packetrig_server::run(
        options,
        Arc::clone(&console) as _,
        |bound: BoundAddresses| {
            show_addresses(arguments, bound, output);
            output.line(open_to);
        },
        await_signal,
    );
    // Also after an error: the last run ends in good order, and its result is stored.
    console.close();
    served?;
    Ok(CommandExit::Ok)
}

fn await_signal() {
    while !is_interrupted() {
        std::thread::sleep(POLL);
    }
}

fn options(arguments: &ServeArgs) -> Result<ServerOptions, Error> {
    let usual = ServerOptions::default();
    let token = arguments.token_file.as_deref().map(access::token).transpose()?;
    let files = arguments.cert.clone().zip(arguments.key.clone());
    Ok(ServerOptions {
        http: (!arguments.no_http).then_some(arguments.http),
        grpc: (!arguments.no_grpc).then_some(arguments.grpc),
        http_tls: !arguments.plain_http,
        grpc_tls: arguments.grpc_tls,
        identity: files.map(|(certificate, key)| IdentityFiles { certificate, key }),
        client_ca: arguments.client_ca.clone(),
        local_users: access::local_users(arguments),
        token,
        let_anyone_in: arguments.let_anyone_in,
        host_names: arguments.host_names.clone(),
        on_rejections: Some(RejectionObserver(Arc::new(|counts: &_| {
            remark(format_args!("serve: refused so far: {counts}"));
        }))),
        ..usual
    })
}

fn show_addresses(arguments: &ServeArgs, bound: BoundAddresses, output: &mut CommandOutput) {
    if let Some(http) = bound.http {
        let scheme = if arguments.plain_http { "http" } else { "https" };
        output.line(format_args!("OTG over HTTP: {scheme}://{http}"));
    }
    if let Some(grpc) = bound.grpc {
        let note = if arguments.grpc_tls { " (TLS)" } else { "" };
        output.line(format_args!("OTG over gRPC: {grpc}{note}"));
    }
    for alias in &arguments.ports {
        output.line(format_args!("Location {} is {}", alias.location, alias.interface));
    }
}

/// Opens runs on this machine's interfaces.
struct MachineRigs {
    /// Starts the threads of runs. They need rights, which the threads that read requests do not have.
    thread: ResidentThread,
    /// Kept open, because opening and closing it waits for the disk.
    catalogue: Mutex<RunCatalogue>,
    keeping: Arc<ResultKeeping>,
    confirmed: Vec<String>,
    back_end: Option<BackEnd>,
    seed: u64,
    wall_minus_monotonic: u64,
}

impl RunSource for MachineRigs {
    fn open(&self, document: PlanDocument, sink: EventSink) -> Result<Box<dyn ConsoleRun>, TesterRefusal> {
        let opened = self.thread.run(|| self.open_run(document, sink));
        opened.unwrap_or_else(|error| Err(internal(&error.into())))
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn wall_clock(&self, at: MonoTime) -> u64 {
        at.as_nanos().wrapping_add(self.wall_minus_monotonic)
    }
}

impl MachineRigs {
    fn open_run(
        &self,
        document: PlanDocument,
        mut sink: EventSink,
    ) -> Result<Box<dyn ConsoleRun>, TesterRefusal> {
        let catalogue = lock(&self.catalogue);
        let started = clock::wall_clock_ns();
        let run = RunId(identity::run_id(started, identity::entropy()));
        let size = report_size(document.plan(), None, document.text());
        let draft = catalogue.begin(run.clone(), size).map_err(|error| internal(&error.into()))?;
        let options = RunOptions {
            run,
            name: "serve".to_owned(),
            started_wall_ns: started,
            terms: RunTerms {
                tag_key: identity::entropy(),
                seed: self.seed,
                capture_all: false,
                back_end: self.back_end,
                limits: catalogue.limits(&kernel::release()).map_err(|error| internal(&error.into()))?,
                steered: true,
            },
            confirmed: self.confirmed.clone(),
            capture_dir: Some(draft.capture_dir().map_err(|error| internal(&error.into()))?),
            drain: DRAIN,
            criteria: AcceptanceCriteria::default(),
        };
        // Opening the ports takes long, and other requests need the catalogue meanwhile.
        drop(catalogue);
        let opened = RunSession::open(
            LocalGround::<EnginePlane>::default(),
            document.clone(),
            options,
            move |event| {
                sink(event);
            },
        );
        let session = opened.map_err(|error| match error {
            // Problems that can be found only when the link speeds are known.
            packetrig_fleet_io::Error::Engine(packetrig_engine::Error::Plan(problems)) => {
                TesterRefusal::from(problems)
            }
            error => TesterRefusal::from(error.fault()),
        })?;
        Ok(Box::new(ServedRun {
            session,
            keeping: Arc::clone(&self.keeping),
            draft,
            document: document.text().to_owned(),
        }))
    }
}

/// Writes results to the disk one at a time, so that the next configuration need not wait for the disk.
///
/// Invariant: [`Self::finish`] returns when the last result is on the disk.
struct ResultKeeping {
    /// A connection of its own, so that requests do not wait for a commit.
    catalogue: Arc<Mutex<RunCatalogue>>,
    current: Mutex<Option<JoinHandle<()>>>,
}

impl ResultKeeping {
    fn new(catalogue: RunCatalogue) -> Self {
        Self { catalogue: Arc::new(Mutex::new(catalogue)), current: Mutex::default() }
    }

    fn begin(&self, draft: RunDraft, mut report: RunReport, document: String) {
        self.finish();
        let catalogue = Arc::clone(&self.catalogue);
        let thread = std::thread::Builder::new().name("keeping".to_owned());
        let started = thread.spawn(move || {
            if let Err(error) = draft.commit(&lock(&catalogue), &mut report, &document) {
                remark(format!("cannot save the result of a run: {error}"));
            }
        });
        match started {
            Ok(thread) => *lock(&self.current) = Some(thread),
            Err(error) => remark(format!("cannot save the result of a run: {error}")),
        }
    }

    fn finish(&self) {
        let current = lock(&self.current).take();
        if current.is_some_and(|thread| thread.join().is_err()) {
            remark("saving the result of a run panicked: this is a bug in packetrig");
        }
    }
}

/// A request that panicked must not end the service: the catalogue is a database, and is consistent at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A configuration that runs.
struct ServedRun {
    session: RunSession,
    keeping: Arc<ResultKeeping>,
    draft: RunDraft,
    document: String,
}

impl ConsoleRun for ServedRun {
    fn steer(&mut self, change: PlanChange<PlanDocument>) -> Result<(), NodeFault> {
        self.session.steer(change)
    }

    fn plan(&self) -> Arc<Plan> {
        Arc::clone(self.session.plan())
    }

    fn close(self: Box<Self>, keep: bool) {
        let Self { session, keeping, draft, document } = *self;
        match session.close() {
            Ok(report) if keep => keeping.begin(draft, report, document),
            Ok(_) => {}
            Err(error) => {
                remark(format!("a run failed: {error}"));
                name_kept(draft.leave().as_ref());
            }
        }
    }
}

fn internal(error: &Error) -> TesterRefusal {
    TesterRefusal::internal(error.chain())
}
