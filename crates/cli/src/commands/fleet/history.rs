//! `packetrig fleet history`: what happened to nodes.

use crate::args::ShowHistory;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::{FleetPlace, FleetPresence};
use crate::identity;
use crate::output::CommandOutput;
use crate::table::table;
use packetrig_fleet::NodeName;
use packetrig_fleet::history::{NodeEntry, NodeEvent, NodeRun};
use packetrig_nats::authority::EnrolledNode;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// All records about a node since it joined.
#[derive(Serialize)]
struct NodeLife {
    node: NodeName,
    /// True if the node is in the fleet now.
    is_member: bool,
    /// Nanoseconds since 1970 (UTC), like all times here.
    joined_at: Option<u64>,
    seen_at: Option<u64>,
    version: Option<String>,
    entries: Vec<NodeEntry>,
}

pub(crate) fn perform(arguments: &ShowHistory, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let place = FleetPlace::of(&arguments.place)?.existing()?;
    let lives = lives(&place, arguments.node.as_deref())?;
    if let Some(node) = arguments.node.as_ref().filter(|_| lives.is_empty()) {
        return Err(Error::Usage(format!("the fleet has never had a node called {node}")));
    }
    if arguments.json {
        output.json(&lives)?;
    } else if arguments.node.is_some() {
        for life in &lives {
            output.text(whole(life));
        }
    } else {
        let header = ["node", "joined (UTC)", "seen (UTC)", "version", "starts", "lost", "runs", "last run"];
        output.text(table(&header, lives.iter().map(summary)));
    }
    Ok(CommandExit::Ok)
}

fn lives(place: &FleetPlace, only: Option<&str>) -> Result<Vec<NodeLife>, Error> {
    let enrolled = place.authority()?.enrolled()?;
    let history = place.history();
    let presence = place.presence();
    let seen = presence.as_ref().map(seen).unwrap_or_default();
    // Removed nodes have a history and no enrolment; nodes that joined before `fleet up` kept one have no history.
    let mut names: BTreeSet<NodeName> = history.nodes()?.into_iter().collect();
    names.extend(enrolled.keys().chain(seen.keys()).cloned());
    let wanted = names.into_iter().filter(|name| only.is_none_or(|only| name.0 == only));
    wanted.map(|node| Ok(life(enrolled.get(&node), seen.get(&node), history.read(&node)?, node))).collect()
}

/// Time and version of each node's last hello.
fn seen(presence: &FleetPresence) -> BTreeMap<NodeName, LastSeen> {
    let rows = presence.nodes.iter();
    let seen = rows.map(|row| {
        let at = presence.heard_until.saturating_sub(row.silent.as_u64());
        (row.node.clone(), LastSeen { at, version: row.hello.version.clone() })
    });
    seen.collect()
}

struct LastSeen {
    at: u64,
    version: String,
}

fn life(
    enrolled: Option<&EnrolledNode>,
    seen: Option<&LastSeen>,
    entries: Vec<NodeEntry>,
    node: NodeName,
) -> NodeLife {
    let joined_at = enrolled.and_then(|node| node.joined_at);
    NodeLife {
        node,
        is_member: enrolled.is_some(),
        joined_at: joined_at.map(|seconds| seconds.saturating_mul(1_000_000_000)),
        seen_at: seen.map(|seen| seen.at),
        version: seen.map(|seen| seen.version.clone()),
        entries,
    }
}

fn date(at: Option<u64>) -> String {
    at.map_or_else(|| "–".to_owned(), identity::date)
}

fn summary(life: &NodeLife) -> Vec<String> {
    // Entries are in the order of time.
    let last_run = life.entries.iter().rev().find_map(|entry| match &entry.event {
        NodeEvent::Run(run) => Some(run_in_words(run)),
        _ => None,
    });
    let name = if life.is_member { life.node.to_string() } else { format!("{} (removed)", life.node) };
    vec![
        name,
        date(life.joined_at),
        date(life.seen_at),
        life.version.clone().unwrap_or_else(|| "–".to_owned()),
        count(life, |event| matches!(event, NodeEvent::Started { .. })),
        count(life, |event| matches!(event, NodeEvent::Lost)),
        count(life, |event| matches!(event, NodeEvent::Run(_))),
        last_run.unwrap_or_else(|| "–".to_owned()),
    ]
}

fn count(life: &NodeLife, is_it: fn(&NodeEvent) -> bool) -> String {
    life.entries.iter().filter(|entry| is_it(&entry.event)).count().to_string()
}

fn whole(life: &NodeLife) -> String {
    let mut text =
        format!("{}: joined {} UTC, seen {} UTC\n", life.node, date(life.joined_at), date(life.seen_at));
    for NodeEntry { at, event } in &life.entries {
        text.extend([format!("  {}  {}\n", identity::date(*at), in_words(event))]);
    }
    text
}

fn in_words(event: &NodeEvent) -> String {
    match event {
        NodeEvent::Joined => "joined the fleet".to_owned(),
        NodeEvent::Removed => "was removed from the fleet".to_owned(),
        NodeEvent::Started { version } => format!("agent started, packetrig {version}"),
        NodeEvent::VersionChanged { from, to } => format!("packetrig {from} became {to}"),
        NodeEvent::PortsChanged { from, to } => format!("ports `{from}` became `{to}`"),
        NodeEvent::ClockChanged { from, to } => format!("clock {from} became {to}"),
        NodeEvent::Lost => "lost: silent for 10 s".to_owned(),
        NodeEvent::Back { silent } => format!("reported again after {:.0} s", silent.as_u64() as f64 / 1e9),
        NodeEvent::Run(run) => run_in_words(run),
    }
}

fn run_in_words(run: &NodeRun) -> String {
    let reported = if run.reported { "" } else { ", did not report" };
    let reasons: String = run.reasons.iter().flat_map(|reason| ["; ", reason]).collect();
    format!("run {}: {}, {}{reported}{reasons}", run.run, run.ended, run.verdict)
}
