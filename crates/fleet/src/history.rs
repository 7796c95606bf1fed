//! History of nodes: the changes of each node, and the runs that it took part in.
//!
//! [`NodeWatcher`] compares the hellos of a node with earlier ones. It reads no clock and writes no file.

use crate::hello::{ClockFacts, NodeHello, OfferedPort};
use crate::members::LOST_AFTER;
use crate::message::{NodeName, RunId};
use packetrig_report::{NodeReport, RunReport};
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum length of a text in an entry (list of ports, reason), in characters.
const MAX_ENTRY_TEXT_CHARACTERS: usize = 400;

/// An event in the history of a node, with its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEntry {
    /// Time at which the event was noticed, nanoseconds since 1970 (UTC).
    pub at: u64,
    #[serde(flatten)]
    pub event: NodeEvent,
}

/// Kind of a [`NodeEntry`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum NodeEvent {
    /// The operator enrolled the node.
    Joined,
    /// The operator removed the node from the fleet.
    Removed,
    /// The node's agent was started.
    Started {
        /// Version of packetrig on the node.
        version: String,
    },
    /// The node's agent has another version than before.
    VersionChanged { from: String, to: String },
    /// The node offers other ports than before, or other labels or speeds of ports.
    PortsChanged {
        /// Interfaces with labels and speed, before the change.
        from: String,
        to: String,
    },
    /// The node's clock is synchronised by another source than before.
    ClockChanged {
        /// Source before the change.
        from: String,
        /// Source after the change.
        to: String,
    },
    /// The node sent no hello for [`LOST_AFTER`].
    Lost,
    /// The node sent a hello again after it was lost.
    Back {
        /// Length of the silence.
        silent: Nanos,
    },
    /// The node took part in a run.
    Run(NodeRun),
}

/// A run in the history of one of its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRun {
    pub run: RunId,
    /// Final state of the whole run, for example `complete` or `partial`.
    pub ended: String,
    pub verdict: String,
    /// True if the report has the result of this node.
    pub reported: bool,
    /// Those reasons for the partial result of the run that are about this node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

impl NodeRun {
    /// Builds the entries for all nodes of a report.
    pub fn runs_from_report(report: &RunReport) -> Vec<(NodeName, Self)> {
        report
            .nodes
            .iter()
            .map(|node| (NodeName(node.node.clone()), Self::from_node_report(report, node)))
            .collect()
    }

    fn from_node_report(report: &RunReport, node: &NodeReport) -> Self {
        let reasons =
            report.outcome.reasons().iter().filter(|reason| is_reason_about_node(reason, &node.node));
        Self {
            run: report.run.clone(),
            ended: report.outcome.state().to_string(),
            verdict: report.verdict.as_str().to_owned(),
            reported: node.reported,
            reasons: reasons.map(|reason| shorten_text(reason)).collect(),
        }
    }
}

/// True if a reason is about this node. The name must match as a whole: `node ab: …` is not about node `a`.
fn is_reason_about_node(reason: &str, node: &str) -> bool {
    // Reasons are sentences for people. A reason about a node begins with `node` and its name.
    let rest = reason.strip_prefix(&format!("node {node}"));
    rest.is_some_and(|rest| rest.starts_with([':', ' ']))
}

/// The last hello of a node: its arrival, and the facts that are compared with the next hello.
#[derive(Clone, Debug)]
struct LastReceivedHello {
    incarnation: u64,
    version: String,
    ports: String,
    clock: String,
    heard: MonoTime,
    is_lost: bool,
}

impl LastReceivedHello {
    fn from_hello(hello: &NodeHello, heard: MonoTime) -> Self {
        Self {
            incarnation: hello.incarnation,
            version: hello.version.clone(),
            ports: describe_offered_ports(&hello.ports),
            clock: describe_clock_source(&hello.clock),
            heard,
            is_lost: false,
        }
    }
}

/// Compares each hello of a node with the previous one, and reports the changes.
#[derive(Clone, Debug, Default)]
pub struct NodeWatcher(BTreeMap<NodeName, LastReceivedHello>);

impl NodeWatcher {
    /// Restores the last hello that an earlier watcher received, `silent` ago.
    pub fn restore_node(&mut self, node: &NodeName, hello: &NodeHello, silent: Nanos, now: MonoTime) {
        // A node that was lost before is not reported as lost again.
        let known = LastReceivedHello {
            is_lost: silent >= LOST_AFTER,
            ..LastReceivedHello::from_hello(hello, now - silent)
        };
        self.0.insert(node.clone(), known);
    }

    /// Handles a hello and returns the changes.
    pub fn on_hello(&mut self, node: &NodeName, hello: &NodeHello, now: MonoTime) -> Vec<NodeEvent> {
        let heard = LastReceivedHello::from_hello(hello, now);
        let started = NodeEvent::Started { version: heard.version.clone() };
        // There is no earlier hello to compare with, so the first hello counts as a start.
        let Some(before) = self.0.insert(node.clone(), heard.clone()) else { return vec![started] };
        let mut events = Vec::new();
        if before.is_lost {
            events.push(NodeEvent::Back { silent: now.since(before.heard) });
        }
        if before.incarnation != heard.incarnation {
            events.push(started);
        }
        if before.version != heard.version {
            events.push(NodeEvent::VersionChanged { from: before.version, to: heard.version });
        }
        if before.ports != heard.ports {
            events.push(NodeEvent::PortsChanged { from: before.ports, to: heard.ports });
        }
        if before.clock != heard.clock {
            events.push(NodeEvent::ClockChanged { from: before.clock, to: heard.clock });
        }
        events
    }

    /// Returns the nodes that became lost since the last call.
    pub fn take_newly_lost_nodes(&mut self, now: MonoTime) -> Vec<NodeName> {
        let mut lost = Vec::new();
        for (node, last) in &mut self.0 {
            let was_lost = last.is_lost;
            // `is_lost` remembers that the node was reported: a node that stays silent is reported once.
            last.is_lost = now.since(last.heard) >= LOST_AFTER;
            if last.is_lost && !was_lost {
                lost.push(node.clone());
            }
        }
        lost
    }
}

fn describe_offered_ports(ports: &[OfferedPort]) -> String {
    shorten_text(&ports.iter().map(describe_offered_port).collect::<Vec<_>>().join(" "))
}

/// Describes a port by interface, labels and speed, without the link state, which changes with every plugged cable.
fn describe_offered_port(port: &OfferedPort) -> String {
    let labels: String = port.labels.iter().flat_map(|label| [":", label]).collect();
    let speed = port.speed.map(|speed| format!("@{speed}")).unwrap_or_default();
    format!("{}{labels}{speed}", port.interface)
}

fn describe_clock_source(clock: &ClockFacts) -> String {
    let source = format!("{:?}", clock.source).to_lowercase();
    if clock.synchronised { source } else { "unsynchronised".to_owned() }
}

fn shorten_text(text: &str) -> String {
    text.chars().take(MAX_ENTRY_TEXT_CHARACTERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello::ClockSource;

    fn at(seconds: u64) -> MonoTime {
        MonoTime::from_nanos((1000 + seconds) * 1_000_000_000)
    }

    fn hello(incarnation: u64, version: &str) -> NodeHello {
        NodeHello { incarnation, version: version.into(), ..NodeHello::default() }
    }

    #[test]
    fn node_watcher_emits_one_event_per_change() {
        let (mut watcher, a) = (NodeWatcher::default(), NodeName("a".into()));
        let first = watcher.on_hello(&a, &hello(1, "0.1"), at(0));
        assert_eq!(first, [NodeEvent::Started { version: "0.1".into() }]);
        assert_eq!(watcher.on_hello(&a, &hello(1, "0.1"), at(1)), []);
        let clock = ClockFacts { source: ClockSource::Ntp, synchronised: true, ..ClockFacts::default() };
        let upgraded = NodeHello { clock, ..hello(2, "0.2") };
        let changes = [
            NodeEvent::Started { version: "0.2".into() },
            NodeEvent::VersionChanged { from: "0.1".into(), to: "0.2".into() },
            NodeEvent::ClockChanged { from: "unsynchronised".into(), to: "ntp".into() },
        ];
        assert_eq!(watcher.on_hello(&a, &upgraded, at(2)), changes);
        assert_eq!(watcher.take_newly_lost_nodes(at(11)), []);
        assert_eq!(watcher.take_newly_lost_nodes(at(12)), std::slice::from_ref(&a));
        assert_eq!(watcher.take_newly_lost_nodes(at(13)), []);
        let back = watcher.on_hello(&a, &upgraded, at(32));
        assert_eq!(back, [NodeEvent::Back { silent: Nanos::from_secs(30) }]);
    }

    #[test]
    fn restarted_watcher_continues_recalled_state() {
        let (mut watcher, a) = (NodeWatcher::default(), NodeName("a".into()));
        watcher.restore_node(&a, &hello(1, "0.1"), Nanos::from_secs(5), at(0));
        assert_eq!(watcher.on_hello(&a, &hello(1, "0.1"), at(1)), []);
        watcher.restore_node(&a, &hello(1, "0.1"), Nanos::from_secs(50), at(0));
        assert_eq!(watcher.take_newly_lost_nodes(at(1)), [], "that was noted before");
        assert_eq!(
            watcher.on_hello(&a, &hello(1, "0.1"), at(1)),
            [NodeEvent::Back { silent: Nanos::from_secs(51) }]
        );
    }

    #[test]
    fn history_entry_is_one_json_line() {
        let event = NodeEvent::PortsChanged { from: "eth0".into(), to: "eth0\n\"".into() };
        let entry = NodeEntry { at: 7, event };
        let line = serde_json::to_string(&entry).unwrap();
        assert!(!line.contains('\n') && line.contains("ports_changed"), "{line}");
        assert_eq!(serde_json::from_str::<NodeEntry>(&line).unwrap(), entry);
    }
}
