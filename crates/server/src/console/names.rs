//! What names of a configuration stand for.

use crate::tester::{RefusalKind, TesterRefusal};
use packetrig_plan::Plan;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// A flow, and what its row is to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "what a user asks for, each by itself")]
pub(super) struct NamedFlow {
    pub(super) name: String,
    pub(super) measured: bool,
    pub(super) loss: bool,
    pub(super) timestamps: bool,
    pub(super) latency: bool,
    pub(super) ways: Vec<FlowWay>,
}

/// A way of a flow: the streams that it sends from one port to the same ports. It has one row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FlowWay {
    pub(super) tx: usize,
    pub(super) rx: Vec<usize>,
    pub(super) streams: Vec<usize>,
}

/// See the module. In the order of the configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct ConfigurationNames {
    ports: Vec<String>,
    locations: Vec<String>,
    flows: Vec<NamedFlow>,
}

impl ConfigurationNames {
    /// `plan` is what runs; it may have streams of flows that are gone.
    pub(super) fn new(config: &Value, plan: &Plan) -> Self {
        let list = |of: &str| config[of].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            ports: list("ports").iter().map(|port| text(&port["name"])).collect(),
            locations: list("ports").iter().map(|port| text(&port["location"])).collect(),
            flows: flows_of(config, plan),
        }
    }

    /// The location of a port as the configuration has it.
    pub(super) fn location(&self, port: usize) -> String {
        self.locations.get(port).cloned().unwrap_or_default()
    }

    /// Ports by index; all if none is named.
    pub(super) fn ports(&self, names: &[String]) -> Result<Vec<usize>, TesterRefusal> {
        let index: HashMap<&str, usize> = self.ports.iter().map(String::as_str).zip(0..).collect();
        let wanted: HashSet<usize> =
            names.iter().filter_map(|name| index.get(name.as_str()).copied()).collect();
        check(names, |name| index.contains_key(name))?;
        Ok((0..self.ports.len()).filter(|port| names.is_empty() || wanted.contains(port)).collect())
    }

    /// Flows with a row; of all if none is named.
    pub(super) fn measured_flows(&self, names: &[String]) -> Result<Vec<&NamedFlow>, TesterRefusal> {
        let wanted = self.wanted(names)?;
        let is_wanted =
            |flow: &&NamedFlow| flow.measured && (names.is_empty() || wanted.contains(flow.name.as_str()));
        Ok(self.flows.iter().filter(is_wanted).collect())
    }

    /// Streams of these flows, by index; of all if none is named.
    pub(super) fn streams(&self, names: &[String]) -> Result<Vec<usize>, TesterRefusal> {
        let wanted = self.wanted(names)?;
        let is_wanted = |flow: &&NamedFlow| names.is_empty() || wanted.contains(flow.name.as_str());
        let ways = self.flows.iter().filter(is_wanted).flat_map(|flow| &flow.ways);
        Ok(ways.flat_map(|way| way.streams.iter().copied()).collect())
    }

    /// Streams of flows that `others` do not have, by index.
    pub(super) fn streams_unknown_to(&self, others: &Self) -> Vec<usize> {
        let known: HashSet<&str> = others.flows.iter().map(|flow| flow.name.as_str()).collect();
        let new = self.flows.iter().filter(|flow| !known.contains(flow.name.as_str()));
        new.flat_map(|flow| &flow.ways).flat_map(|way| way.streams.iter().copied()).collect()
    }

    fn wanted<'a>(&self, names: &'a [String]) -> Result<HashSet<&'a str>, TesterRefusal> {
        let known: HashSet<&str> = self.flows.iter().map(|flow| flow.name.as_str()).collect();
        check(names, |name| known.contains(name))?;
        Ok(names.iter().map(String::as_str).collect())
    }
}

/// Nothing is called that.
pub(super) fn unknown(names: &[String]) -> TesterRefusal {
    let errors = names.iter().map(|name| format!("there is nothing called `{name}` in the configuration"));
    TesterRefusal { kind: RefusalKind::Validation, errors: errors.collect() }
}

fn check(names: &[String], is_known: impl Fn(&str) -> bool) -> Result<(), TesterRefusal> {
    let strange: Vec<String> = names.iter().filter(|name| !is_known(name)).cloned().collect();
    if strange.is_empty() { Ok(()) } else { Err(unknown(&strange)) }
}

fn flows_of(config: &Value, plan: &Plan) -> Vec<NamedFlow> {
    let mut flows: Vec<NamedFlow> =
        config["flows"].as_array().into_iter().flatten().map(NamedFlow::without_ways).collect();
    let place: HashMap<String, usize> = flows.iter().map(|flow| flow.name.clone()).zip(0..).collect();
    for (index, stream) in plan.streams.iter().enumerate() {
        let Some(flow) = place.get(&stream.flow_name).and_then(|place| flows.get_mut(*place)) else {
            continue;
        };
        match flow.ways.iter_mut().find(|way| way.tx == stream.tx && way.rx == stream.rx) {
            Some(way) => way.streams.push(index),
            None => flow.ways.push(FlowWay { tx: stream.tx, rx: stream.rx.clone(), streams: vec![index] }),
        }
    }
    flows
}

impl NamedFlow {
    fn without_ways(flow: &Value) -> Self {
        let metrics = &flow["metrics"];
        let flag = |value: &Value| value.as_bool().unwrap_or(false);
        Self {
            name: flow["name"].as_str().unwrap_or_default().to_owned(),
            measured: flag(&metrics["enable"]),
            loss: flag(&metrics["loss"]),
            timestamps: flag(&metrics["timestamps"]),
            latency: flag(&metrics["latency"]["enable"]),
            ways: Vec::new(),
        }
    }
}
