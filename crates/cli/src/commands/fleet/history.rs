//! `packetrig fleet history`: shows the events of nodes.

use crate::args::ShowHistory;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::{FleetPlace, FleetPresence};
use crate::identity;
use crate::output::CommandOutput;
use crate::table::format_table;
use packetrig_fleet::history::{NodeEntry, NodeEvent, NodeRun};
use packetrig_nats::authority::EnrolledNode;
use packetrig_report::NodeName;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The history of a node since it joined, with its present state.
#[derive(Serialize)]
struct NodeHistoryReport {
    node: NodeName,
    /// True if the node is in the fleet now.
    is_member: bool,
    /// Nanoseconds since 1970 (UTC), like all times here.
    joined_at: Option<u64>,
    seen_at: Option<u64>,
    version: Option<String>,
    entries: Vec<NodeEntry>,
}

pub(crate) fn show_history(
    arguments: &ShowHistory,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let place = FleetPlace::from_arguments(&arguments.place)?.require_existing()?;
    let mut lives = read_node_history_reports(&place, arguments.node.as_deref())?;
    let since_ns = arguments.since.since_ns();
    for life in &mut lives {
        life.entries.retain(|entry| entry.at >= since_ns);
    }
    // A node without events in this period is still shown. Only a name that the fleet has never had is an error.
    if let Some(node) = arguments.node.as_ref().filter(|_| lives.is_empty()) {
        return Err(Error::Usage(format!("the fleet has never had a node called {node}")));
    }
    if arguments.json {
        output.write_json(&lives)?;
    } else if arguments.node.is_some() {
        for life in &lives {
            output.write_text(format_history(life));
        }
    } else {
        let header = ["node", "joined (UTC)", "seen (UTC)", "version", "starts", "lost", "runs", "last run"];
        output.write_text(format_table(&header, lives.iter().map(build_summary_row)));
    }
    Ok(CommandExit::Ok)
}

fn read_node_history_reports(
    place: &FleetPlace,
    only: Option<&str>,
) -> Result<Vec<NodeHistoryReport>, Error> {
    let enrolled = place.open_authority()?.read_enrolled_nodes()?;
    let history = place.node_history();
    let presence = place.read_presence();
    let seen = presence.as_ref().map(last_recorded_hellos).unwrap_or_default();
    // Removed nodes have a history and no enrolment. Nodes that joined before `fleet up` kept a history have none.
    let mut names: BTreeSet<NodeName> = history.list_nodes()?.into_iter().collect();
    names.extend(enrolled.keys().chain(seen.keys()).cloned());
    let wanted = names.into_iter().filter(|name| only.is_none_or(|only| name.0 == only));
    wanted
        .map(|node| {
            Ok(build_node_history_report(
                enrolled.get(&node),
                seen.get(&node),
                history.read_node_entries(&node)?,
                node,
            ))
        })
        .collect()
}

/// Time and version of each node's last hello.
fn last_recorded_hellos(presence: &FleetPresence) -> BTreeMap<NodeName, LastRecordedHello> {
    let rows = presence.nodes.iter();
    let seen = rows.map(|row| {
        // The file has the age of each hello, and the time to which all ages refer.
        let at = presence.heard_until.saturating_sub(row.silent.as_u64());
        (row.node.clone(), LastRecordedHello { at, version: row.hello.version.clone() })
    });
    seen.collect()
}

struct LastRecordedHello {
    at: u64,
    version: String,
}

fn build_node_history_report(
    enrolled: Option<&EnrolledNode>,
    seen: Option<&LastRecordedHello>,
    entries: Vec<NodeEntry>,
    node: NodeName,
) -> NodeHistoryReport {
    // The authority counts whole seconds, as certificates do.
    let joined_at = enrolled.and_then(|node| node.joined_at);
    NodeHistoryReport {
        node,
        is_member: enrolled.is_some(),
        joined_at: joined_at.map(|seconds| seconds.saturating_mul(1_000_000_000)),
        seen_at: seen.map(|seen| seen.at),
        version: seen.map(|seen| seen.version.clone()),
        entries,
    }
}

fn date_or_dash(at: Option<u64>) -> String {
    at.map_or_else(|| "–".to_owned(), identity::format_utc_date_time)
}

fn build_summary_row(life: &NodeHistoryReport) -> Vec<String> {
    // The events are in chronological order.
    let last_run = life.entries.iter().rev().find_map(|entry| match &entry.event {
        NodeEvent::Run(run) => Some(describe_node_run(run)),
        _ => None,
    });
    let name = if life.is_member { life.node.to_string() } else { format!("{} (removed)", life.node) };
    vec![
        name,
        date_or_dash(life.joined_at),
        date_or_dash(life.seen_at),
        life.version.clone().unwrap_or_else(|| "–".to_owned()),
        format_event_count(life, |event| matches!(event, NodeEvent::Started { .. })),
        format_event_count(life, |event| matches!(event, NodeEvent::Lost)),
        format_event_count(life, |event| matches!(event, NodeEvent::Run(_))),
        last_run.unwrap_or_else(|| "–".to_owned()),
    ]
}

fn format_event_count(life: &NodeHistoryReport, is_it: fn(&NodeEvent) -> bool) -> String {
    life.entries.iter().filter(|entry| is_it(&entry.event)).count().to_string()
}

fn format_history(life: &NodeHistoryReport) -> String {
    let mut text = format!(
        "{}: joined {} UTC, seen {} UTC\n",
        life.node,
        date_or_dash(life.joined_at),
        date_or_dash(life.seen_at)
    );
    for NodeEntry { at, event } in &life.entries {
        text.extend([format!("  {}  {}\n", identity::format_utc_date_time(*at), describe_event(event))]);
    }
    text
}

fn describe_event(event: &NodeEvent) -> String {
    match event {
        NodeEvent::Joined => "joined the fleet".to_owned(),
        NodeEvent::Removed => "was removed from the fleet".to_owned(),
        NodeEvent::Started { version } => format!("agent started, packetrig {version}"),
        NodeEvent::VersionChanged { from, to } => format!("packetrig version changed from {from} to {to}"),
        NodeEvent::PortsChanged { from, to } => format!("ports changed from `{from}` to `{to}`"),
        NodeEvent::ClockChanged { from, to } => format!("clock changed from {from} to {to}"),
        NodeEvent::Lost => "lost: silent for 10 s".to_owned(),
        NodeEvent::Back { silent } => format!("reported again after {:.0} s", silent.as_u64() as f64 / 1e9),
        NodeEvent::Run(run) => describe_node_run(run),
    }
}

fn describe_node_run(run: &NodeRun) -> String {
    let reported = if run.reported { "" } else { ", did not report" };
    let reasons: String = run.reasons.iter().flat_map(|reason| ["; ", reason]).collect();
    format!("run {}: {}, {}{reported}{reasons}", run.run, run.ended, run.verdict)
}
