//! `packetrig page`: past results, flows, logs, taps and the nodes of a fleet as a web page. It uses the server of
//! `packetrig serve` without the code that runs tests, so nobody can start a test from the page.

use super::serve::access;
use super::wait_for_interrupt;
use crate::archive::{CatalogueArchive, FleetNodes};
use crate::args::PageArgs;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::{self, FleetPlace};
use crate::measured::build_rig_from_files;
use crate::output::{CommandOutput, print_remark};
use crate::sandbox::{self, needs};
use packetrig_program::check_allowed_users;
use packetrig_server::{
    BoundAddresses, IdentityFiles, RejectionObserver, RigPartSource, ServedRig, ServerOptions,
};
use packetrig_sys::owner::read_overflow_user;
use packetrig_sys::signal;
use std::sync::Arc;

pub(crate) fn serve_page(arguments: &PageArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    check_allowed_users(&arguments.allow_user, read_overflow_user(), Some("--token-file"))?;
    let options = server_options(arguments)?;
    access::check_somebody_may_connect(&options)?;
    let nodes = fleet_nodes(arguments)?;
    let opening = sandbox::begin_sandbox(&arguments.sandbox, needs::page_program_needs(arguments)?)?;
    signal::record_end_signals()?;
    opening.drop_rights()?;
    let rig = ServedRig {
        results: Some(Arc::new(CatalogueArchive::new(arguments.store.directory.clone()))),
        nodes,
        ..build_rig_from_files(&arguments.measured, arguments.store.directory.as_deref())
    };
    let open_to = access::describe_admitted_clients(
        options.local_users.as_ref(),
        arguments.token_file.as_deref(),
        None,
    );
    let scheme = if options.http_tls { "https" } else { "http" };
    packetrig_server::run_server(
        options,
        rig,
        |bound: BoundAddresses| {
            if let Some(http) = bound.http {
                output.write_line(format_args!("Page: {scheme}://{http}/ui/"));
            }
            output.write_line(open_to);
        },
        wait_for_interrupt,
    )?;
    // `run_server` returns without an error only after a signal.
    Ok(CommandExit::Ok)
}

/// Source of the nodes of the named fleet, or of the default fleet. `None` if no fleet is named and no default exists.
fn fleet_nodes(arguments: &PageArgs) -> Result<Option<Arc<dyn RigPartSource>>, Error> {
    let place = FleetPlace::from_arguments(&arguments.fleet)?;
    if fleet_place::is_directory_given(&arguments.fleet) {
        return Ok(Some(Arc::new(FleetNodes(place.require_existing()?))));
    }
    Ok(place.exists().then(|| Arc::new(FleetNodes(place)) as Arc<dyn RigPartSource>))
}

fn server_options(arguments: &PageArgs) -> Result<ServerOptions, Error> {
    let token = arguments.token_file.as_deref().map(access::read_or_create_token).transpose()?;
    let files = arguments.cert.clone().zip(arguments.key.clone());
    // `::ffff:127.0.0.1` is the loopback interface, too.
    let is_local = arguments.listen.ip().to_canonical().is_loopback();
    Ok(ServerOptions {
        http: Some(arguments.listen),
        // gRPC has only the OTG API, which controls tests; this server runs none.
        grpc: None,
        // On the loopback interface TLS protects nothing, and browsers warn of a certificate that no authority signed.
        http_tls: !is_local || files.is_some(),
        identity: files.map(|(certificate, key)| IdentityFiles { certificate, key }),
        local_users: access::find_local_users(&arguments.allow_user),
        token,
        host_names: arguments.host_names.clone(),
        on_rejections: Some(RejectionObserver(Arc::new(|counts: &_| {
            print_remark(format_args!(
                "page: connections and requests closed or refused since the start: {counts}"
            ));
        }))),
        ..ServerOptions::default()
    })
}
