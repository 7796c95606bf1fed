//! `packetrig probe serve`: other programs hand over packets, and the service sends them on time.

use super::mechanism::{self, ChosenMechanism};
use super::{bounds, send::format_micros};
use crate::args::ServeProbes as Arguments;
use crate::error::Error;
use crate::needs;
use packetrig_probe::service::ClientQuota;
use packetrig_probe::{PermitRefusal, TargetLimits};
use packetrig_probe_io::release;
use packetrig_probe_io::service::{
    AllowedUser, PastClient, ReleaseService, ServiceObserver, ServiceOptions, ServiceStatus,
};
use packetrig_program::exit::CommandExit;
use packetrig_program::identity;
use packetrig_program::is_interrupted;
use packetrig_program::metrics::MetricsResponder;
use packetrig_program::numbers::format_count;
use packetrig_program::output::{CommandOutput, print_remark};
use packetrig_program::sandbox::{self, ThreadConfinement};
use packetrig_program::table::format_table;
use packetrig_program::{check_allowed_users, escape_unsafe_text};
use packetrig_release::release_socket_path;
use packetrig_sys::owner::read_overflow_user;
use packetrig_sys::{clock, private_files, signal};
use packetrig_units::Nanos;
use packetrig_units::exposition::MetricsText;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Number of bytes that a client may have in the queue for each packet of its quota: one full
/// Ethernet frame without FCS.
const QUEUE_BYTES_PER_PACKET: u64 = 1_514;

pub(super) fn run_serve_command(
    arguments: &Arguments,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let users: Vec<u32> = arguments.allow_user.iter().map(|grant| grant.user).collect();
    // No access token is needed: the kernel attaches the user's number to the connection.
    check_allowed_users(&users, read_overflow_user(), None)?;
    // The directory of the socket is created before the sandbox is entered: Landlock rules are possible only
    // for existing directories.
    let socket = prepare_socket(arguments)?;
    let opening = sandbox::begin_sandbox(&arguments.sandbox, needs::serve_program_needs(arguments, &socket))?;
    let permit = bounds::read_permit(&arguments.bounds)?;
    let chosen = mechanism::choose_mechanism(&arguments.release, &arguments.interface);
    let release = release::open_pipeline(&arguments.interface, chosen.mechanism, chosen.options)?;
    for line in release.remarks() {
        print_remark(format_args!("probe serve: {line}"));
    }
    let least_limits = permit.least_limits();
    // The date is read for each check, because a permission can end while the service runs.
    let permission = Box::new(move |target| -> Result<_, PermitRefusal> {
        permit.permit_target(target, &identity::format_utc_today())
    });
    signal::record_end_signals()?;
    let service = ReleaseService::listen_at(
        &socket,
        &arguments.interface,
        release,
        service_options(arguments, &chosen, least_limits),
        permission,
    )?;
    print_start_message(arguments, &socket, &chosen, &service);
    let namespaces: Vec<String> = arguments.interface.namespace.iter().cloned().collect();
    // The socket and the release mechanism are open now. Only listeners are opened later; `needs` keeps the
    // rights for them.
    let confinement = opening.drop_rights_except_confined(&namespaces)?;
    let _metrics = serve_metrics_if_requested(arguments, &chosen, &confinement, service.observer())?;
    let end = arguments.time.map(|time| clock::monotonic_ns().saturating_add(time.as_u64()));
    let counts =
        service.serve_until(&|| is_interrupted() || end.is_some_and(|end| clock::monotonic_ns() >= end))?;
    if arguments.json {
        output.write_json(&json!({ "clients": counts }))?;
    } else {
        output.write_text(clients_table(&counts));
    }
    Ok(CommandExit::Ok)
}

/// Starts to serve the counters of the service to Prometheus if `--metrics` is given.
fn serve_metrics_if_requested(
    arguments: &Arguments,
    chosen: &ChosenMechanism,
    confinement: &ThreadConfinement,
    observer: ServiceObserver,
) -> Result<Option<MetricsResponder>, Error> {
    let Some(listen) = arguments.metrics else { return Ok(None) };
    let labels = [arguments.interface.to_string(), chosen.mechanism.to_string()];
    let start_ns = clock::monotonic_ns();
    // The thread of the metrics server reads requests from the network, and needs none of the rights of the
    // service.
    let responder = confinement.run_confined_listener(listen.0.port(), || {
        MetricsResponder::start_serving(listen.0, move || {
            let elapsed = Nanos::new(clock::monotonic_ns() - start_ns);
            metrics_text(&labels, elapsed, &observer.read_status())
        })
    })??;
    print_remark(format_args!("probe serve: metrics at http://{}/metrics", responder.address()));
    Ok(Some(responder))
}

fn metrics_text([interface, mechanism]: &[String; 2], elapsed: Nanos, status: &ServiceStatus) -> String {
    let mut text = MetricsText::with_prefix("packetrig_probe_serve_");
    text.write_metric("info", "The interface and the mechanism that releases packets on time.", |samples| {
        samples.add_sample(&[("interface", interface), ("mechanism", mechanism)], 1_u64);
    });
    text.write_value("elapsed_seconds", "Time since the service started.", elapsed.as_secs_f64());
    text.write_value("clients", "Number of connected programs.", status.clients);
    text.write_value("sent_packets_total", "Packets that were sent.", status.sent);
    text.write_value(
        "late_packets_total",
        "Sent packets that left later than the tolerance allows.",
        status.late,
    );
    text.write_value(
        "shifted_packets_total",
        "Sent packets that were delayed because another packet was due at almost the same time.",
        status.shifted,
    );
    text.write_metric("refused_packets_total", "Packets that were not sent, by cause.", |samples| {
        for (cause, packets) in &status.refused {
            samples.add_sample(&[("cause", cause)], *packets);
        }
    });
    text.write_value("answers_total", "Answers that were delivered to programs.", status.answers);
    text.write_value(
        "lost_answers_total",
        "Answers that were dropped because their program did not read them in time.",
        status.lost_answers,
    );
    text.into_text()
}

fn service_options(
    arguments: &Arguments,
    chosen: &ChosenMechanism,
    least_limits: TargetLimits,
) -> ServiceOptions {
    let quota =
        ClientQuota { packets: arguments.quota, bytes: u64::from(arguments.quota) * QUEUE_BYTES_PER_PACKET };
    let allowed = arguments
        .allow_user
        .iter()
        .map(|grant| AllowedUser { user: grant.user, priority: grant.priority })
        .collect();
    let tolerance = chosen.options.tolerance;
    ServiceOptions { allowed, quota, horizon: arguments.horizon, tolerance, least_limits }
}

/// Returns the path of the socket, after creating its directory if that does not exist.
fn prepare_socket(arguments: &Arguments) -> Result<PathBuf, Error> {
    let path = arguments.socket.clone().unwrap_or_else(release_socket_path);
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    if let Some(directory) = directory.filter(|directory| !directory.exists()) {
        let made = private_files::create_directories(directory);
        made.map_err(|source| Error::Write { what: directory.display().to_string(), source })?;
    }
    Ok(path)
}

fn print_start_message(
    arguments: &Arguments,
    socket: &Path,
    chosen: &ChosenMechanism,
    service: &ReleaseService,
) {
    print_remark(format_args!(
        "probe serve: listening on {} for packets to send through {} by mechanism {} ({}); hand over packets at \
            least {} before they are due",
        socket.display(),
        arguments.interface,
        chosen.mechanism,
        chosen.why,
        service.lead_time()
    ));
}

fn clients_table(all: &[PastClient]) -> String {
    if all.is_empty() {
        return "no program has handed over packets\n".to_owned();
    }
    let header =
        ["program", "user", "sent", "late", "shifted", "refused", "answers", "release error p50/p99 us"];
    format_table(&header, all.iter().map(client_row))
}

fn client_row(client: &PastClient) -> Vec<String> {
    let counts = &client.counts;
    let refused: Vec<_> =
        counts.refused.iter().map(|(why, number)| format!("{} {why}", format_count(*number))).collect();
    let error = client.release_error_ns.map_or_else(
        || "-".to_owned(),
        |error| {
            let p99 = error.p99.map_or_else(|| super::UNKNOWN_FIGURE.to_owned(), format_micros);
            format!("{} / {p99}", format_micros(error.p50))
        },
    );
    vec![
        // The client program chooses this name, so it may contain unsafe characters.
        format!("{} ({})", escape_unsafe_text(&client.name), client.process),
        client.user.to_string(),
        format_count(counts.sent),
        format_count(counts.late),
        format_count(counts.shifted),
        if refused.is_empty() { "0".to_owned() } else { refused.join(", ") },
        format_count(counts.answers),
        error,
    ]
}
