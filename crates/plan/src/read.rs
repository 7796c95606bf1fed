//! Turns the tree into a plan: one file for each part of an OTG configuration.
//!
//! Every part records its problems and continues, so that a user sees all of them at once. Only a document without
//! errors becomes a plan.

mod capture;
mod criteria;
mod device;
#[cfg(test)]
mod device_tests;
mod ends;
mod flow;
mod metrics;
mod packet;
mod pair_headers;
mod port;
mod probes;
mod replay;
mod site;
mod size;
#[cfg(test)]
mod tests;
mod timing;

pub use site::{LABEL_FORMAT, is_port_label};

use crate::document;
use crate::nearest::nearest_name;
use crate::reader::{DocumentItem, DocumentObject, ProblemCollector};
use crate::{Plan, PlanParseOptions, PlanProblems, ProblemSeverity};
use std::collections::HashMap;

const UNSUPPORTED_TEXT: &str = "packetrig does not do this yet";

pub(crate) fn read_plan(text: &str, options: PlanParseOptions) -> Result<Plan, PlanProblems> {
    let root = document::parse_document(text).map_err(|problem| PlanProblems(vec![problem.shorten()]))?;
    let notes = ProblemCollector::default();
    // OTG's default of `auto_start_all`, which also applies to a document without `options`.
    let mut plan = Plan { auto_start: true, ..Plan::default() };
    if let Some(config) = DocumentItem::from_root(&root, &notes).as_object() {
        read_config(&config, options, &mut plan);
        config.refuse_unread_members();
    }
    let problems = notes.into_problems();
    if problems.iter().any(|problem| problem.severity == ProblemSeverity::Error) {
        return Err(PlanProblems(problems));
    }
    plan.warnings = problems;
    Ok(plan)
}

fn read_config(config: &DocumentObject<'_>, options: PlanParseOptions, plan: &mut Plan) {
    let mut names = NamedObjectPaths::default();
    // Ports are read first: all later sections refer to them by name.
    plan.ports = port::read_ports(config, options, &mut names);
    let port_names = PortNames::from_ports(&plan.ports);
    port::read_layer1(config, &mut plan.ports, &port_names, &mut names);
    plan.criteria = criteria::read_criteria(config);
    plan.captures = capture::read_captures(config, &port_names, &mut names);
    let devices = device::read_devices(config, &port_names, &mut names);
    plan.interfaces = devices.interfaces;
    plan.streams = {
        let ends = ends::NamedEndpoints::new(&port_names, &plan.interfaces, &devices.names);
        flow::read_flows(config, options, &ends, &mut names)
    };
    plan.probes = probes::read_probes(config, options, &port_names);
    if let Some(settings) = config.read_object("options") {
        let why = "packetrig has no such setting";
        settings.ignore_members(&["per_port_options"], why);
        if let Some(port) = settings.read_object("port_options") {
            // In OTG, this flag takes a port away from another user. packetrig locks ports, so the flag is read
            // but has no effect.
            port.read_flag("location_preemption", false);
            port.ignore_members(&["data_integrity", "frame_ordering_mode"], why);
            port.refuse_unread_members();
        }
        if let Some(protocols) = settings.read_object("protocol_options") {
            plan.auto_start = protocols.read_flag("auto_start_all", true);
            protocols.refuse_unread_members();
        }
        if let Some(flow) = settings.read_object("flow_options") {
            if flow.read_flag("packet_loss_duration", false) {
                flow.item.add_item_error(format!("not supported: {UNSUPPORTED_TEXT}"));
            }
            flow.refuse_unread_members();
        }
        settings.refuse_unread_members();
    }
    config.refuse_members(
        &["lags", "events", "lldp", "stateful_flows", "egress_only_tracking"],
        UNSUPPORTED_TEXT,
    );
}

/// Maximum number of names that are collected for a hint: one more than [`nearest_name`] accepts.
const MAX_HINT_CANDIDATES: usize = 101;

/// Names found so far, each with the path of its object. In OTG, names are unique across all kinds of objects.
#[derive(Debug, Default)]
struct NamedObjectPaths<'a>(HashMap<&'a str, Box<str>>);

impl<'a> NamedObjectPaths<'a> {
    /// Reads the name of an object, and refuses one that another object has.
    fn read_unique_name(&mut self, object: &DocumentObject<'a>) -> String {
        let Some(item) = object.require_member("name") else { return String::new() };
        let Some(name) = item.as_text() else { return String::new() };
        if name.is_empty() {
            item.add_item_error("a name must not be empty");
        }
        // The path is stored beside the name, so that the message can say which object has it.
        if let Some(other) = self.0.insert(name, object.item.path.as_str().into()) {
            item.add_item_error(format!("`{name}` is already the name of {other}; names must be unique"));
        }
        name.to_owned()
    }
}

/// The names of the ports, with their indices in a map, because a document may refer to ports any number of times.
#[derive(Debug)]
struct PortNames {
    names: Vec<String>,
    indexes: HashMap<String, usize>,
}

impl PortNames {
    fn from_ports(ports: &[crate::Port]) -> Self {
        let names: Vec<String> = ports.iter().map(|port| port.name.clone()).collect();
        let mut indexes = HashMap::new();
        for (index, name) in names.iter().enumerate() {
            // Two ports with one name are already an error; the first one counts.
            indexes.entry(name.clone()).or_insert(index);
        }
        Self { names, indexes }
    }
}

/// Returns the index of the port that an item names. `None` if there is no such port, which is recorded as an error.
fn resolve_port_name(item: &DocumentItem<'_>, ports: &PortNames) -> Option<usize> {
    let name = item.as_text()?;
    let found = ports.indexes.get(name).copied();
    if found.is_none() {
        let names: Vec<&str> = ports.names.iter().map(String::as_str).take(MAX_HINT_CANDIDATES).collect();
        let mut problem = crate::PlanProblem::error(&*item.path, format!("there is no port `{name}`"));
        // No hint is made if `names` does not have all names: the intended name may be missing.
        if let Some(near) = nearest_name(name, &names).filter(|_| names.len() == ports.names.len()) {
            problem = problem.with_hint(format!("did you mean `{near}`?"));
        } else if !names.is_empty() && names.len() <= 8 {
            problem = problem.with_hint(format!("ports of this plan: {}", names.join(", ")));
        }
        item.add_problem(problem);
    }
    found
}
