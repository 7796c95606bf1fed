//! `packetrig fleet status`: who is there, as `fleet up` has heard it, or as is heard now. It asks no node, so it can stand
//! beside a controller at work.

use super::lead_reader::LeadReader;
use crate::args::StatusArgs;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::FleetPlace;
use crate::numbers;
use crate::output::{CommandOutput, remark};
use crate::table::table;
use packetrig_fleet::NodeName;
use packetrig_fleet::hello::{ClockFacts, OfferedPort};
use packetrig_fleet::members::{FleetMembers, MemberRow, NodePresence};
use packetrig_nats::FleetObserver;
use packetrig_nats::broker::BrokerHealth;
use packetrig_sys::{clock, signal};
use packetrig_units::{MonoTime, Nanos};

/// Nodes say that they are there once a second.
const A_BEAT: Nanos = Nanos::from_millis(1200);

/// `fleet up` looks once a second, and waits longer for a server that does not answer.
const SILENT_SECONDS: u64 = 30;

/// Later than this, `fleet up` does not listen.
const LISTENED: Nanos = Nanos::from_secs(30);

pub(crate) fn perform(arguments: &StatusArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let place = FleetPlace::of(&arguments.place)?.existing()?;
    let heard = place.presence().filter(|_| !arguments.wait && !arguments.watch);
    let Some(presence) = heard else { return listen_and_show(&place, arguments, output) };
    let age = presence.age();
    if age > LISTENED {
        remark(format_args!(
            "`fleet up` has not listened for {} s, so this is old; `fleet status --wait` listens to the nodes now",
            age.as_u64() / 1_000_000_000
        ));
    }
    let enrolled = place.authority()?.enrolled()?;
    let mut rows = presence.aged_rows();
    rows.retain(|row| enrolled.contains_key(&row.node));
    for row in &mut rows {
        row.label_with(enrolled.get(&row.node).map(|node| &node.labels));
    }
    show(&place, &rows, arguments, output)?;
    Ok(CommandExit::Ok)
}

fn listen_and_show(
    place: &FleetPlace,
    arguments: &StatusArgs,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let observer = place.fabric()?.observe().map_err(packetrig_node::Error::from)?;
    signal::latch()?;
    let mut members = FleetMembers::default();
    members.assign_labels(place.roster()?.labels);
    let mut leads = LeadReader::open(place)?;
    loop {
        listen(&observer, &mut members);
        members.assign_leads(leads.read(members.iter().map(|(node, _)| node))?);
        show(place, &members.rows(now()), arguments, output)?;
        if !arguments.watch || signal::received().is_some() || output.is_closed() {
            return Ok(CommandExit::Ok);
        }
    }
}

fn show(
    place: &FleetPlace,
    rows: &[MemberRow],
    arguments: &StatusArgs,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    if arguments.json {
        return output.json(&rows);
    }
    let server = place.health().map(|health| server_line(&health)).unwrap_or_default();
    let nodes = shown(rows, &place.authority()?.nodes()?);
    let clear = if output.style().is_coloured() && arguments.watch { "\x1b[2J\x1b[H" } else { "" };
    output.text(format_args!("{clear}{server}{nodes}"));
    Ok(())
}

/// Everybody who is heard within a beat, and everybody who was heard before and still belongs to the fleet.
pub(crate) fn who_belongs(place: &FleetPlace) -> Result<FleetMembers, Error> {
    let observer = place.fabric()?.observe().map_err(packetrig_node::Error::from)?;
    let mut members = FleetMembers::default();
    listen(&observer, &mut members);
    place.roster()?.recall(&mut members);
    Ok(members)
}

fn now() -> MonoTime {
    MonoTime::from_nanos(clock::monotonic_ns())
}

fn listen(observer: &FleetObserver, members: &mut FleetMembers) {
    let until = now() + A_BEAT;
    while now() < until && signal::received().is_none() {
        if let Some(heard) = observer.next(until.since(now())) {
            members.hear(&heard.node, heard.hello, heard.at);
        }
    }
    members.tick(now());
}

/// How the message server is, as `fleet up` found it last.
fn server_line(health: &BrokerHealth) -> String {
    let free = health
        .disk_free
        .map_or_else(String::new, |free| format!(", {} free", numbers::scaled(free as f64, "B")));
    let age = clock::wall_clock_ns().saturating_sub(health.checked_wall_ns) / 1_000_000_000;
    if age > SILENT_SECONDS {
        return format!("Message server: `fleet up` has not checked it for {age} s\n");
    }
    match &health.failure {
        None => format!("Message server: works{free}\n"),
        Some(why) => format!("Message server: cannot store messages ({why}){free}\n"),
    }
}

fn shown(rows: &[MemberRow], known: &[NodeName]) -> String {
    let silent = known.iter().filter(|node| rows.iter().all(|row| row.node != **node));
    let cells = rows.iter().map(cells).chain(silent.map(silent_cells));
    let header = ["node", "seen", "version", "state", "clock", "free disk", "results", "labels", "ports"];
    let troubles = rows.iter().flat_map(|row| {
        let of = |text: &String| format!("  {}: {text}\n", row.node);
        row.hello.troubles.iter().map(of).collect::<Vec<_>>()
    });
    format!("{}{}", table(&header, cells), troubles.collect::<String>())
}

fn cells(row: &MemberRow) -> Vec<String> {
    let hello = &row.hello;
    let seen = match row.presence {
        NodePresence::Lost => format!("lost, {} ago", row.silent),
        _ => format!("{:.1} s ago", row.silent.as_u64() as f64 / 1e9),
    };
    let version =
        row.skew.as_ref().map_or_else(|| hello.version.clone(), |_| format!("{} (!)", hello.version));
    let busy = || hello.busy.as_ref().map_or_else(|| "idle".to_owned(), |head| format!("run {}", head.run));
    let state = row.lead.as_ref().map_or_else(busy, |lead| {
        format!("run {} of {}@{} since {}", lead.run, lead.user, lead.host, lead.since())
    });
    let waiting: u64 = hello.spooled.iter().map(|(.., segments)| segments).sum();
    vec![
        row.node.to_string(),
        seen,
        version,
        state,
        of_clock(&hello.clock),
        numbers::scaled(hello.disk_free as f64, "B"),
        if waiting == 0 { "-".to_owned() } else { format!("{waiting} waiting") },
        labels(row),
        hello.ports.iter().map(of_port).collect::<Vec<_>>().join(" "),
    ]
}

/// Those of the owner, then those of the operator; one that does not count says why.
fn labels(row: &MemberRow) -> String {
    let overruled = row.overruled_labels.iter().map(|label| format!("({label}: owner's key)"));
    let all: Vec<String> = row.labels().cloned().chain(overruled).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(" ") }
}

fn silent_cells(node: &NodeName) -> Vec<String> {
    let mut cells = vec![node.to_string(), "silent".to_owned()];
    cells.resize(9, "-".to_owned());
    cells
}

fn of_clock(clock: &ClockFacts) -> String {
    let source = format!("{:?}", clock.source).to_lowercase();
    match clock.max_error {
        Some(error) if clock.synchronised => format!("{source} ±{error}"),
        _ => "unsynchronised".to_owned(),
    }
}

fn of_port(port: &OfferedPort) -> String {
    let labels = if port.labels.is_empty() { String::new() } else { format!(":{}", port.labels.join(":")) };
    let speed = port.speed.map(|speed| format!("@{speed}")).unwrap_or_default();
    let down = if port.up { "" } else { "(down)" };
    let xdp = if port.back_ends.contains(&packetrig_stats::port::BackEnd::Xdp) { "+xdp" } else { "" };
    format!("{}{labels}{speed}{xdp}{down}", port.interface)
}
