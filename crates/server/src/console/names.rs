//! Resolves the names of a configuration to indices.

use crate::tester::{RefusalKind, TesterRefusal};
use packetrig_plan::{Plan, Port, Stream, WantedMetrics};
use serde::Deserialize;
use std::collections::{HashMap, HashSet};

/// A flow, and the values that its rows show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each flag is a separate option of the configuration")]
pub(super) struct NamedFlow {
    pub(super) name: String,
    pub(super) measured: bool,
    pub(super) loss: bool,
    pub(super) timestamps: bool,
    pub(super) latency: bool,
    pub(super) routes: Vec<FlowRoute>,
}

/// The streams of a flow that have the same sending port and the same receiving ports. Each route has one row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FlowRoute {
    pub(super) tx: usize,
    pub(super) rx: Vec<usize>,
    pub(super) streams: Vec<usize>,
}

/// Ports and flows of a configuration, in its order.
#[derive(Clone, Debug, Default)]
pub(super) struct ConfigurationNames {
    ports: Vec<String>,
    locations: Vec<String>,
    flows: Vec<NamedFlow>,
}

impl ConfigurationNames {
    /// Reads the names of a normalised configuration, before its routes are known.
    pub(super) fn without_routes(config: &str) -> Self {
        // The shape of the text was checked, so it can be parsed.
        let NamedMembers { ports, flows } = serde_json::from_str(config).unwrap_or_default();
        let (ports, locations) = ports.into_iter().map(|port| (port.name, port.location)).unzip();
        Self { ports, locations, flows: flows.into_iter().map(NamedFlow::without_routes).collect() }
    }

    /// Adds the routes of the flows. `plan` is the plan of the open run, which may still have streams of removed flows.
    pub(super) fn with_routes(mut self, plan: &Plan) -> Self {
        add_routes(&mut self.flows, plan);
        self
    }

    /// The names of a plan that was not made from the configuration of a client.
    pub(super) fn from_plan(plan: &Plan) -> Self {
        let ports = plan.ports.iter().map(|port| port.name.clone()).collect();
        let locations = plan.ports.iter().map(Port::full_location).collect();
        let mut known = HashSet::new();
        let first = plan.streams.iter().filter(|stream| known.insert(&stream.flow_name));
        let flows = first.map(NamedFlow::from_stream).collect();
        Self { ports, locations, flows }.with_routes(plan)
    }

    /// All flows, whether they have rows or not.
    pub(super) fn flows(&self) -> &[NamedFlow] {
        &self.flows
    }

    /// The location of a port, as it is written in the configuration.
    pub(super) fn port_location(&self, port: usize) -> String {
        self.locations.get(port).cloned().unwrap_or_default()
    }

    /// Indices of the named ports, or of all ports if none is named.
    pub(super) fn port_indices(&self, names: &[String]) -> Result<Vec<usize>, TesterRefusal> {
        let index: HashMap<&str, usize> = self.ports.iter().map(String::as_str).zip(0..).collect();
        let wanted: HashSet<usize> =
            names.iter().filter_map(|name| index.get(name.as_str()).copied()).collect();
        check_names(names, |name| index.contains_key(name))?;
        // The result has the order of the configuration, not of the request.
        Ok((0..self.ports.len()).filter(|port| names.is_empty() || wanted.contains(port)).collect())
    }

    /// Returns the named flows that have metrics; if no flow is named, all flows with metrics.
    pub(super) fn measured_flows(&self, names: &[String]) -> Result<Vec<&NamedFlow>, TesterRefusal> {
        let wanted = self.resolve_wanted_flows(names)?;
        // A flow without metrics has no row, even if the client names it.
        let flows = self.flows.iter().filter(|flow| flow.measured);
        Ok(flows.filter(|flow| names.is_empty() || wanted.contains(flow.name.as_str())).collect())
    }

    /// Indices of the streams of the named flows, or of all flows if none is named.
    pub(super) fn stream_indices(&self, names: &[String]) -> Result<Vec<usize>, TesterRefusal> {
        let wanted = self.resolve_wanted_flows(names)?;
        let flows = self.flows.iter().filter(|flow| names.is_empty() || wanted.contains(flow.name.as_str()));
        let routes = flows.flat_map(|flow| &flow.routes);
        Ok(routes.flat_map(|route| route.streams.iter().copied()).collect())
    }

    /// Indices of the streams whose flow is not in `others`.
    pub(super) fn streams_unknown_to(&self, others: &Self) -> Vec<usize> {
        let known: HashSet<&str> = others.flows.iter().map(|flow| flow.name.as_str()).collect();
        let new = self.flows.iter().filter(|flow| !known.contains(flow.name.as_str()));
        new.flat_map(|flow| &flow.routes).flat_map(|route| route.streams.iter().copied()).collect()
    }

    fn resolve_wanted_flows<'a>(&self, names: &'a [String]) -> Result<HashSet<&'a str>, TesterRefusal> {
        let known: HashSet<&str> = self.flows.iter().map(|flow| flow.name.as_str()).collect();
        // A misspelled name must not look like a flow without traffic.
        check_names(names, |name| known.contains(name))?;
        Ok(names.iter().map(String::as_str).collect())
    }
}

/// Refuses names that the configuration does not have, with one error for each name.
pub(super) fn unknown_names_refusal(names: &[String]) -> TesterRefusal {
    let errors = names.iter().map(|name| format!("the configuration has no object with the name `{name}`"));
    TesterRefusal { kind: RefusalKind::Validation, errors: errors.collect() }
}

fn check_names(names: &[String], is_known: impl Fn(&str) -> bool) -> Result<(), TesterRefusal> {
    let strange: Vec<String> = names.iter().filter(|name| !is_known(name)).cloned().collect();
    if strange.is_empty() { Ok(()) } else { Err(unknown_names_refusal(&strange)) }
}

fn add_routes(flows: &mut [NamedFlow], plan: &Plan) {
    // The map owns copies of the names, because the flows are changed while it is in use.
    let place: HashMap<String, usize> = flows.iter().map(|flow| flow.name.clone()).zip(0..).collect();
    // The plan keeps the streams of removed flows (decision 0009, 5), which the configuration does not name.
    for (index, stream) in plan.streams.iter().enumerate() {
        let Some(flow) = place.get(&stream.flow_name).and_then(|place| flows.get_mut(*place)) else {
            continue;
        };
        match flow.routes.iter_mut().find(|route| route.tx == stream.tx && route.rx == stream.rx) {
            Some(route) => route.streams.push(index),
            None => {
                flow.routes.push(FlowRoute { tx: stream.tx, rx: stream.rx.clone(), streams: vec![index] });
            }
        }
    }
}

/// The members of a configuration that are read here: ports and flows.
#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedMembers {
    ports: Vec<PortName>,
    flows: Vec<FlowName>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PortName {
    name: String,
    location: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FlowName {
    name: String,
    metrics: FlowMetrics,
}

/// Measurements that a user wants.
#[derive(Default, Deserialize)]
#[serde(default)]
struct FlowMetrics {
    enable: bool,
    loss: bool,
    timestamps: bool,
    latency: LatencyMetrics,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LatencyMetrics {
    enable: bool,
}

impl NamedFlow {
    /// The flow of a stream. If the stream has metrics, the flow shows all values that are measured.
    fn from_stream(stream: &Stream) -> Self {
        let WantedMetrics { enable, latency, .. } = stream.metrics;
        let name = stream.flow_name.clone();
        Self { name, measured: enable, loss: enable, timestamps: enable, latency, routes: Vec::new() }
    }

    fn without_routes(flow: FlowName) -> Self {
        let FlowMetrics { enable, loss, timestamps, latency } = flow.metrics;
        Self {
            name: flow.name,
            measured: enable,
            loss,
            timestamps,
            latency: latency.enable,
            routes: Vec::new(),
        }
    }
}
