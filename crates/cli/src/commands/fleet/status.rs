//! `packetrig fleet status`: shows the nodes, from the last hellos that `fleet up` received or from the hellos that
//! arrive now. It sends nothing to nodes, so it disturbs no run.

use super::lead_reader::LeadReader;
use crate::args::StatusArgs;
use crate::commands::agent::RESERVED_DISK_BYTES;
use crate::commands::is_interrupted;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::{FleetPlace, FleetPresence};
use crate::numbers;
use crate::output::{CommandOutput, print_remark};
use crate::table::format_fitted_table;
use packetrig_fleet::hello::{ClockFacts, OfferedPort};
use packetrig_fleet::members::{FleetMembers, MemberRow, NodePresence};
use packetrig_nats::FleetObserver;
use packetrig_nats::broker::BrokerHealth;
use packetrig_report::NodeName;
use packetrig_sys::{clock, signal};
use packetrig_units::{MonoTime, Nanos};
use serde_json::{Value, json};

/// Time to listen: a little more than the second between two hellos of a node.
const HELLO_LISTEN_TIME: Nanos = Nanos::from_millis(1200);

/// If the health file is older than this, `fleet up` has stopped checking the server. It checks once a second, or more
/// slowly if the server does not answer.
const SERVER_SILENCE_SECONDS: u64 = 30;

/// If the presence file is older than this, `fleet up` has stopped listening to nodes.
const MAX_PRESENCE_FILE_AGE: Nanos = Nanos::from_secs(30);

pub(crate) fn show_status(arguments: &StatusArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let place = FleetPlace::from_arguments(&arguments.place)?.require_existing()?;
    // The file of `fleet up` gives the state at once and also lists nodes that are silent now; listening
    // takes a second.
    let heard = place.read_presence().filter(|_| !arguments.wait && !arguments.watch);
    let Some(presence) = heard else { return listen_and_print_nodes(&place, arguments, output) };
    let age = presence.age();
    if age > MAX_PRESENCE_FILE_AGE {
        print_remark(format_args!(
            "`fleet up` has not updated this list for {} s, so it is old; use `fleet status --wait` to listen to the nodes now",
            age.as_u64() / 1_000_000_000
        ));
    }
    print_member_rows(&place, &select_enrolled_rows(&place, presence)?, arguments, output)?;
    Ok(CommandExit::Ok)
}

/// Rows of the nodes in the file of `fleet up` that still belong to the fleet.
fn select_enrolled_rows(place: &FleetPlace, presence: FleetPresence) -> Result<Vec<MemberRow>, Error> {
    // The file may still have nodes that were removed, and it has no labels of the operator.
    let enrolled = place.open_authority()?.read_enrolled_nodes()?;
    let mut rows = presence.with_current_ages();
    rows.retain(|row| enrolled.contains_key(&row.node));
    for row in &mut rows {
        row.set_operator_labels(enrolled.get(&row.node).map(|node| &node.labels));
    }
    Ok(rows)
}

/// Returns the nodes as JSON for the live page, including nodes that never sent a hello, and the state of the
/// message server. Sends nothing.
pub(crate) fn build_nodes_json(place: &FleetPlace) -> Result<Value, Error> {
    let presence = place.read_presence();
    let age_ms = presence.as_ref().map(|presence| presence.age().as_u64() / 1_000_000);
    let rows = presence.map_or_else(|| Ok(Vec::new()), |presence| select_enrolled_rows(place, presence))?;
    let known = place.open_authority()?.list_node_names()?;
    // A node that joined and never reported is in no hello, and must not be missing from the list.
    let silent: Vec<&NodeName> =
        known.iter().filter(|node| rows.iter().all(|row| row.node != **node)).collect();
    let server = place.read_broker_health().map(|health| {
        json!({
            "failure": health.failure,
            "disk_free_bytes": health.disk_free,
            "checked_ms": health.checked_wall_ns / 1_000_000,
        })
    });
    Ok(json!({ "heard_ms_ago": age_ms, "nodes": rows, "never_heard": silent, "server": server }))
}

fn listen_and_print_nodes(
    place: &FleetPlace,
    arguments: &StatusArgs,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let observer =
        place.make_controller_fabric()?.open_hello_observer().map_err(packetrig_fleet_io::Error::from)?;
    signal::record_end_signals()?;
    let mut members = FleetMembers::default();
    members.replace_labels(place.read_roster()?.labels);
    let mut leads = LeadReader::open_reader(place)?;
    loop {
        receive_hellos(&observer, &mut members);
        members.replace_leads(leads.read_leads(members.iter().map(|(node, _)| node))?);
        print_member_rows(place, &members.member_rows(monotonic_now()), arguments, output)?;
        // In `fleet status --watch | head`, the reader closes the pipe: the command ends here.
        if !arguments.watch || is_interrupted() || output.is_closed() {
            return Ok(CommandExit::Ok);
        }
    }
}

fn print_member_rows(
    place: &FleetPlace,
    rows: &[MemberRow],
    arguments: &StatusArgs,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    if arguments.json {
        return Ok(output.write_json(&rows)?);
    }
    let server = place.read_broker_health().map(|health| describe_server_state(&health)).unwrap_or_default();
    let known = place.open_authority()?.list_node_names()?;
    let nodes = format_nodes_table(rows, &known, output.style().width());
    // ECMA-48: clears the screen and puts the cursor at its top left, so that the display changes in place.
    let clear = if output.style().is_coloured() && arguments.watch { "\x1b[2J\x1b[H" } else { "" };
    output.write_text(format_args!("{clear}{server}{nodes}"));
    Ok(())
}

/// Reads the members: nodes that send a hello within 1.2 s, and nodes of the roster that still belong to the fleet.
pub(crate) fn read_fleet_members(place: &FleetPlace) -> Result<FleetMembers, Error> {
    let observer =
        place.make_controller_fabric()?.open_hello_observer().map_err(packetrig_fleet_io::Error::from)?;
    let mut members = FleetMembers::default();
    receive_hellos(&observer, &mut members);
    place.read_roster()?.restore_nodes(&mut members);
    Ok(members)
}

fn monotonic_now() -> MonoTime {
    MonoTime::from_nanos(clock::monotonic_ns())
}

fn receive_hellos(observer: &FleetObserver, members: &mut FleetMembers) {
    // A node sends a hello every second, so each present node sends at least one during this time.
    let until = monotonic_now() + HELLO_LISTEN_TIME;
    while monotonic_now() < until && !is_interrupted() {
        if let Some(heard) = observer.next_hello(until.since(monotonic_now())) {
            members.on_hello(&heard.node, heard.hello, heard.at);
        }
    }
    members.update_presence(monotonic_now());
}

/// The state of the message server at the last check of `fleet up`.
fn describe_server_state(health: &BrokerHealth) -> String {
    let free = health
        .disk_free
        .map_or_else(String::new, |free| format!(", {} free", numbers::format_scaled(free as f64, "B")));
    // The age comes before the state: an old file says nothing about the server now.
    let age = clock::wall_clock_ns().saturating_sub(health.checked_wall_ns) / 1_000_000_000;
    if age > SERVER_SILENCE_SECONDS {
        return format!("Message server: `fleet up` has not checked it for {age} s\n");
    }
    match &health.failure {
        None => format!("Message server: works{free}\n"),
        Some(why) => format!("Message server: cannot store messages ({why}){free}\n"),
    }
}

fn format_nodes_table(rows: &[MemberRow], known: &[NodeName], width: Option<usize>) -> String {
    // Nodes that joined and never sent a hello have a row too.
    let silent = known.iter().filter(|node| rows.iter().all(|row| row.node != **node));
    let cells: Vec<_> =
        rows.iter().map(build_node_cells).chain(silent.map(build_never_heard_cells)).collect();
    let header = ["node", "seen", "version", "state", "clock", "free disk", "results", "labels", "ports"];
    let troubles = rows
        .iter()
        .flat_map(|row| row.hello.troubles.iter().map(move |text| format!("  {}: {text}\n", row.node)));
    let short = rows.iter().filter_map(disk_warning);
    let least_important = ["labels", "free disk", "results", "version"];
    let table = format_fitted_table(width, &header, &cells, &least_important, "`--json`");
    table + &troubles.chain(short).collect::<String>()
}

/// Warns about a node whose next run would start, but without captures.
fn disk_warning(row: &MemberRow) -> Option<String> {
    let free = row.hello.disk_free;
    (free < RESERVED_DISK_BYTES).then(|| {
        format!(
            "  {}: only {} of its disk is free; below {}, the node records no captures and no per-second values\n",
            row.node,
            numbers::format_scaled(free as f64, "B"),
            numbers::format_scaled(RESERVED_DISK_BYTES as f64, "B"),
        )
    })
}

fn build_node_cells(row: &MemberRow) -> Vec<String> {
    let hello = &row.hello;
    // A silence of a second is normal, so only lost nodes are marked.
    let seen = match row.presence {
        NodePresence::Lost => format!("lost, {} ago", row.silent),
        _ => format!("{:.1} s ago", row.silent.as_u64() as f64 / 1e9),
    };
    let version =
        row.skew.as_ref().map_or_else(|| hello.version.clone(), |_| format!("{} (!)", hello.version));
    // The hello names only the run; the lead names its user, too.
    let state = match (&row.lead, &hello.busy) {
        (Some(lead), _) => {
            format!("run {} of {}@{} since {}", lead.run, lead.user, lead.host, lead.start_time_text())
        }
        (None, Some(head)) => format!("run {}", head.run),
        (None, None) => "idle".to_owned(),
    };
    let waiting: u64 = hello.spooled.iter().map(|(.., segments)| segments).sum();
    vec![
        row.node.to_string(),
        seen,
        version,
        state,
        describe_clock(&hello.clock),
        numbers::format_scaled(hello.disk_free as f64, "B"),
        if waiting == 0 { "-".to_owned() } else { format!("{waiting} waiting") },
        format_labels(row),
        hello.ports.iter().map(format_port).collect::<Vec<_>>().join(" "),
    ]
}

/// Labels of the owner, then those of the operator. A label of the operator without effect is shown with the reason.
fn format_labels(row: &MemberRow) -> String {
    let overruled = row.overruled_labels.iter().map(|label| format!("({label}: owner's key)"));
    let all: Vec<String> = row.labels().cloned().chain(overruled).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(" ") }
}

fn build_never_heard_cells(node: &NodeName) -> Vec<String> {
    let mut cells = vec![node.to_string(), "silent".to_owned()];
    // The header has nine columns, and a row must fill them.
    cells.resize(9, "-".to_owned());
    cells
}

fn describe_clock(clock: &ClockFacts) -> String {
    let source = format!("{:?}", clock.source).to_lowercase();
    match clock.max_error {
        Some(error) if clock.synchronised => format!("{source} ±{error}"),
        _ => "unsynchronised".to_owned(),
    }
}

fn format_port(port: &OfferedPort) -> String {
    let labels = if port.labels.is_empty() { String::new() } else { format!(":{}", port.labels.join(":")) };
    let speed = port.speed.map(|speed| format!("@{speed}")).unwrap_or_default();
    let down = if port.up { "" } else { "(down)" };
    let xdp = if port.back_ends.contains(&packetrig_stats::port::BackEnd::Xdp) { "+xdp" } else { "" };
    format!("{}{labels}{speed}{xdp}{down}", port.interface)
}
