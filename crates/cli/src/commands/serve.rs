//! `packetrig serve`: the OTG API for the ports of this machine or of a fleet. Each configuration is an ordinary run.
//! Its result is stored in the catalogue when the next configuration replaces it, or when the server ends.

pub(super) mod access;

use super::execution::open_catalogue;
use super::kept::RunEventReporter;
use super::method::{MethodRunner, ServedTestTerms};
use super::{fleet, wait_for_interrupt};
use crate::archive::{CatalogueArchive, FleetNodes};
use crate::args::ServeArgs;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::FleetPlace;
use crate::identity;
use crate::measured::build_rig_from_files;
use crate::output::{CommandOutput, print_remark};
use crate::sandbox::{self, needs};
use packetrig_fleet::served::RunSource;
use packetrig_fleet_io::RunOptions;
use packetrig_fleet_io::served::{MachineRuns, ServedTerms};
use packetrig_program::check_allowed_users;
use packetrig_report::{AcceptanceCriteria, RunId};
use packetrig_server::{
    BoundAddresses, IdentityFiles, RejectionObserver, RigPartSource, ServedRig, ServerOptions, TestConsole,
};
use packetrig_stats::terms::SharedRunOptions;
use packetrig_sys::owner::read_overflow_user;
use packetrig_sys::resident::ResidentThread;
use packetrig_sys::{clock, memory, netns, signal};
use packetrig_units::Nanos;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Time for late frames when a configuration is replaced. It is short because the client waits for it.
const CONFIGURATION_DRAIN_TIME: Nanos = Nanos::from_millis(20);
/// Time for late frames on a fleet, where frames and messages take longer.
const FLEET_DRAIN_TIME: Nanos = Nanos::from_millis(100);

pub(crate) fn run_server(arguments: &ServeArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    // Each run starts and ends threads. One heap for all threads keeps the process from growing. Frames never wait for
    // its lock, because they are sent and received without allocation.
    memory::limit_to_one_malloc_arena();
    check_allowed_users(&arguments.allow_user, read_overflow_user(), Some("--token-file"))?;
    check_arguments(arguments)?;
    let options = server_options(arguments)?;
    access::check_somebody_may_connect(&options)?;
    if arguments.on_fleet {
        fleet::request_sender_priority();
    }
    let opening = sandbox::begin_sandbox(&arguments.sandbox, needs::serve_program_needs(arguments)?)?;
    signal::record_end_signals()?;
    // The catalogue is opened before the server accepts clients: a server that cannot store results must run no test.
    let catalogue = open_catalogue(arguments.store.directory.as_deref())?;
    // A controller of a fleet opens no ports, so it gives up all rights. Runs on this machine need a thread
    // that keeps its rights.
    if arguments.on_fleet {
        let place = FleetPlace::from_arguments(&arguments.fleet)?.require_existing()?;
        // The rights are given up before the first message of a node is read.
        opening.drop_rights()?;
        // This thread starts the threads of tests: the API's threads would pass their fewer rights on to them.
        let thread = Arc::new(ResidentThread::start_thread_here("methods")?);
        let runs =
            fleet::open_served_runs(&place, catalogue, build_served_terms(arguments, FLEET_DRAIN_TIME))?;
        let methods = build_method_runner(arguments, Some(&place), thread);
        return serve_until_signal(arguments, options, (runs, methods), output);
    }
    // Results are stored through a second connection, so that storing one run and beginning the next do not
    // wait for each other.
    let keeping = open_catalogue(arguments.store.directory.as_deref())?;
    let thread = Arc::new(opening.drop_rights_outside_rig_namespaces(&netns::list_named_namespaces())?);
    let terms = build_served_terms(arguments, CONFIGURATION_DRAIN_TIME);
    let methods = build_method_runner(arguments, None, Arc::clone(&thread));
    let runs = MachineRuns::new(thread, [catalogue, keeping], terms, Arc::new(RunEventReporter::default()));
    serve_until_signal(arguments, options, (runs, methods), output)
}

/// Makes the runner of the test methods that clients start.
fn build_method_runner(
    arguments: &ServeArgs,
    fleet: Option<&FleetPlace>,
    thread: Arc<ResidentThread>,
) -> Arc<MethodRunner> {
    let terms = ServedTestTerms {
        store: arguments.store.directory.clone(),
        fleet: fleet.map(|place| place.directory().to_owned()),
        confirmed: arguments.confirm.iter().map(ToString::to_string).collect(),
        back_end: arguments.back_end.map(Into::into),
        aliases: location_aliases(arguments),
    };
    Arc::new(MethodRunner::new(terms, thread))
}

/// Makes the function that returns the options of a new run of this server, with a new id and a new tag key.
fn build_served_terms(arguments: &ServeArgs, drain: Nanos) -> ServedTerms {
    let seed = arguments.seed.unwrap_or_else(identity::random_seed);
    let back_end = arguments.back_end.map(Into::into);
    // On a fleet `confirmed` has no effect: the owner of each node confirms its interfaces.
    let confirmed: Vec<String> = arguments.confirm.iter().map(ToString::to_string).collect();
    let options = move || {
        let started = clock::wall_clock_ns();
        RunOptions {
            run: RunId(identity::run_id(started, identity::random_number())),
            name: "serve".to_owned(),
            started_wall_ns: started,
            terms: SharedRunOptions {
                tag_key: identity::random_number(),
                seed,
                back_end,
                steered: true,
                ..SharedRunOptions::default()
            },
            confirmed: confirmed.clone(),
            capture_dir: None,
            drain,
            criteria: AcceptanceCriteria::default(),
        }
    };
    ServedTerms { options: Box::new(options), seed }
}

/// Returns the interface for each location name of `--port`; documents use these names.
fn location_aliases(arguments: &ServeArgs) -> BTreeMap<String, String> {
    let ports = arguments.ports.iter();
    ports.map(|alias| (alias.location.clone(), alias.interface.to_string())).collect()
}

/// Serves until a signal comes, then ends the test and the run in progress properly.
fn serve_until_signal<R: RunSource>(
    arguments: &ServeArgs,
    options: ServerOptions,
    (runs, methods): (R, Arc<MethodRunner>),
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let console = Arc::new(TestConsole::new(runs, location_aliases(arguments)));
    let rig = ServedRig {
        tester: Some(Arc::clone(&console) as _),
        live: Some(Arc::clone(&console) as _),
        results: Some(Arc::new(CatalogueArchive::new(arguments.store.directory.clone()))),
        nodes: fleet_nodes(arguments)?,
        methods: Some(Arc::clone(&methods) as _),
        ..build_rig_from_files(&arguments.measured, arguments.store.directory.as_deref())
    };
    let open_to = access::describe_access(arguments, options.local_users.as_ref());
    let served = packetrig_server::run_server(
        options,
        rig,
        |bound: BoundAddresses| {
            show_addresses(arguments, bound, output);
            output.write_line(open_to);
        },
        wait_for_interrupt,
    );
    // Also after an error of the server, the last run ends properly and its result is stored.
    methods.stop_test_and_wait();
    console.shut_down();
    served?;
    Ok(CommandExit::Ok)
}

/// Nodes of the fleet whose ports are served; `None` without a fleet.
fn fleet_nodes(arguments: &ServeArgs) -> Result<Option<Arc<dyn RigPartSource>>, Error> {
    if !arguments.on_fleet {
        return Ok(None);
    }
    Ok(Some(Arc::new(FleetNodes(FleetPlace::from_arguments(&arguments.fleet)?.require_existing()?))))
}

/// Refuses options that contradict each other or have no effect.
fn check_arguments(arguments: &ServeArgs) -> Result<(), Error> {
    let mut locations = BTreeSet::new();
    if let Some(twice) = arguments.ports.iter().find(|alias| !locations.insert(&alias.location)) {
        return Err(Error::Usage(format!("--port: the location {} is given twice", twice.location)));
    }
    let has_tls = (!arguments.no_http && !arguments.plain_http) || (!arguments.no_grpc && arguments.grpc_tls);
    if arguments.cert.is_some() && !has_tls {
        return Err(Error::Usage(
            "--cert and --key have no effect without TLS: drop --plain-http or --no-http, or add --grpc-tls"
                .into(),
        ));
    }
    Ok(())
}

fn server_options(arguments: &ServeArgs) -> Result<ServerOptions, Error> {
    let usual = ServerOptions::default();
    let token = arguments.token_file.as_deref().map(access::read_or_create_token).transpose()?;
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
        view_token: arguments.view_token_file.as_deref().map(access::read_or_create_token).transpose()?,
        let_anyone_in: arguments.let_anyone_in,
        host_names: arguments.host_names.clone(),
        on_rejections: Some(RejectionObserver(Arc::new(|counts: &_| {
            print_remark(format_args!(
                "serve: connections and requests closed or refused since the start: {counts}"
            ));
        }))),
        ..usual
    })
}

fn show_addresses(arguments: &ServeArgs, bound: BoundAddresses, output: &mut CommandOutput) {
    if let Some(http) = bound.http {
        let scheme = if arguments.plain_http { "http" } else { "https" };
        output.write_line(format_args!("OTG over HTTP: {scheme}://{http}"));
        output.write_line(format_args!("Live page: {scheme}://{http}/ui/"));
    }
    if let Some(grpc) = bound.grpc {
        let note = if arguments.grpc_tls { " (TLS)" } else { "" };
        output.write_line(format_args!("OTG over gRPC: {grpc}{note}"));
    }
    for alias in &arguments.ports {
        output.write_line(format_args!("Location {} is {}", alias.location, alias.interface));
    }
}
