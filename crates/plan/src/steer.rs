//! What a user may change while a plan runs: single streams begin, pause and end, rates and sizes change, streams are added.
//!
//! Streams, ports and their order only grow: an index means the same stream from the first moment of a run to its last,
//! also when its flow is gone from the document.

use crate::device::Mac;
use crate::model::{BoundPlan, Plan, Stream};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::IpAddr;

/// A change to a run under way. Streams and ports are given by index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanChange {
    /// Send these from their first frame, and count what follows anew. Those that are sending go on undisturbed.
    Start(Vec<usize>),
    /// End these; the next start is from the first frame.
    Stop(Vec<usize>),
    /// Hold these where they are.
    Pause(Vec<usize>),
    /// Go on with what was paused; start what was not.
    Resume(Vec<usize>),
    /// From now on the plan is what this document says: rates and sizes of its flows, and flows it has more. Flows that it
    /// lacks are stopped. Ports stay as they are.
    Replan(String),
    /// Begin or end the captures of these ports. One that begins forgets what it captured before.
    Capture { ports: Vec<usize>, on: bool },
    /// Emulated interfaces answer and ask for their neighbours, or do neither.
    Protocols { on: bool },
    /// Have emulated interfaces send echo requests. What becomes of them is told by the counts that follow.
    Ping(Vec<PingRequest>),
    /// Switch the links of these ports up or down.
    Link { ports: Vec<usize>, up: bool },
}

/// An echo request to send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PingRequest {
    /// By which its outcome is known again; greater than those before.
    pub number: u64,
    /// Name of the interface or of its address.
    pub source: String,
    pub to: IpAddr,
}

impl PlanChange {
    /// Whether new takes come of it, which receivers have to know before the senders begin with them.
    pub const fn makes_takes(&self) -> bool {
        matches!(self, Self::Start(_) | Self::Resume(_) | Self::Replan(_))
    }

    /// Whether streams begin with it, which all do at one instant.
    pub const fn begins(&self) -> bool {
        matches!(self, Self::Start(_) | Self::Resume(_))
    }
}

/// Where a stream was held: what its receivers on other nodes have to know of the take that follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldStream {
    pub stream: usize,
    /// The number that its next frame carries.
    pub number: u64,
    /// Which frame of the template that is: 0 after a start, where it was left after a pause or a change.
    pub index: u64,
    /// Where its frames go, if that was found by asking.
    pub mac: Option<Mac>,
}

/// What tells streams apart across documents: flow, ports, and which of several alike.
type StreamKey<'a> = (&'a str, usize, &'a [usize], usize);

fn keys(streams: &[Stream]) -> Vec<StreamKey<'_>> {
    let mut alike: HashMap<(&str, usize, &[usize]), usize> = HashMap::new();
    let mut keys = Vec::with_capacity(streams.len());
    for Stream { name, tx, rx, .. } in streams {
        let count = alike.entry((name, *tx, rx)).or_default();
        *count += 1;
        keys.push((name.as_str(), *tx, rx.as_slice(), *count));
    }
    keys
}

impl Plan {
    /// Takes over the streams of `newer`, which has the same ports: those known here are replaced, the others added at the
    /// end. Streams that `newer` lacks stay. Gives the place of each stream of `newer`.
    pub fn grow(&mut self, newer: &Self) -> Vec<usize> {
        let known: HashMap<_, _> = keys(&self.streams).into_iter().zip(0..).collect();
        let mut next = self.streams.len();
        let place = |key: &StreamKey<'_>| {
            known.get(key).copied().unwrap_or_else(|| {
                next += 1;
                next - 1
            })
        };
        let places: Vec<usize> = keys(&newer.streams).iter().map(place).collect();
        for (place, stream) in places.iter().zip(&newer.streams) {
            match self.streams.get_mut(*place) {
                Some(own) => own.clone_from(stream),
                None => self.streams.push(stream.clone()),
            }
        }
        places
    }
}

impl BoundPlan {
    /// As [`Plan::grow`], with schedules.
    pub fn grow(&mut self, newer: &Self) -> Vec<usize> {
        let places = self.plan.grow(&newer.plan);
        for (place, stream) in places.iter().zip(&newer.streams) {
            match self.streams.get_mut(*place) {
                Some(own) => *own = *stream,
                None => self.streams.push(*stream),
            }
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(flows: &[(&str, &str, u64)]) -> Plan {
        let flow = |(name, tx, pps): &(&str, &str, u64)| {
            format!(
                "{{name: {name}, tx_rx: {{choice: port, port: {{tx_name: {tx}, rx_names: [b]}}}}, rate: {{choice: pps, pps: {pps}}}}}"
            )
        };
        let flows: Vec<String> = flows.iter().map(flow).collect();
        let ports = "[{name: a, location: a}, {name: b, location: b}]";
        Plan::read(&format!("{{ports: {ports}, flows: [{}]}}", flows.join(", "))).expect("reads")
    }

    #[test]
    fn a_stream_keeps_its_place_whatever_comes_and_goes() {
        let mut own = plan(&[("x", "a", 1), ("y", "a", 2)]);
        assert_eq!(own.grow(&plan(&[("y", "a", 5), ("z", "a", 7)])), [1, 2]);
        let rates = |plan: &Plan| plan.streams.iter().map(|s| format!("{:?}", s.rate)).collect::<Vec<_>>();
        assert_eq!(rates(&own), rates(&plan(&[("x", "a", 1), ("y", "a", 5), ("z", "a", 7)])));
        // Gone and back again, it is the same stream; from another port it is another one.
        assert_eq!(own.grow(&plan(&[("z", "b", 1), ("x", "a", 9)])), [3, 0]);
        assert_eq!(own.streams.len(), 4);
    }
}
