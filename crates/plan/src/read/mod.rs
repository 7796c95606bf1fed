//! From tree to plan: one file per part of an OTG configuration.
//!
//! Every part notes its problems and goes on, so that a user sees all of them at once; only a document without errors
//! becomes a plan.

mod capture;
mod criteria;
mod device;
#[cfg(test)]
mod device_tests;
mod dress;
mod ends;
mod flow;
mod metrics;
mod packet;
mod port;
mod replay;
mod site;
mod size;
#[cfg(test)]
mod tests;

use crate::document;
use crate::nearest::nearest;
use crate::reader::{Item, Notes, Object};
use crate::{Plan, Problems, ReadOptions, Severity};
use std::collections::HashMap;

const NOT_YET: &str = "packetrig does not do this yet";

pub(crate) fn plan(text: &str, options: ReadOptions) -> Result<Plan, Problems> {
    let root = document::parse(text).map_err(|problem| Problems(vec![problem.shortened()]))?;
    let notes = Notes::default();
    let mut plan = Plan { auto_start: true, ..Plan::default() };
    if let Some(config) = Item::root(&root, &notes).object() {
        read(&config, options, &mut plan);
        config.close();
    }
    let problems = notes.into_problems();
    if problems.iter().any(|problem| problem.severity == Severity::Error) {
        return Err(Problems(problems));
    }
    plan.warnings = problems;
    Ok(plan)
}

fn read(config: &Object<'_>, options: ReadOptions, plan: &mut Plan) {
    let mut names = Names::default();
    plan.ports = port::ports(config, options, &mut names);
    port::layer1(config, &mut plan.ports, &mut names);
    plan.criteria = criteria::criteria(config);
    plan.captures = capture::captures(config, &plan.ports, &mut names);
    let (interfaces, devices) = device::interfaces(config, &plan.ports, &mut names);
    plan.interfaces = interfaces;
    plan.streams = {
        let ends = ends::Known::new(&plan.ports, &plan.interfaces, &devices);
        flow::flows(config, options, &ends, &mut names)
    };
    if let Some(settings) = config.object("options") {
        let why = "packetrig has nothing to tune here";
        settings.ignore(&["per_port_options"], why);
        if let Some(port) = settings.object("port_options") {
            // A port is locked against other runs while we have it, and nobody can be pushed off it.
            port.flag("location_preemption", false);
            port.ignore(&["data_integrity", "frame_ordering_mode"], why);
            port.close();
        }
        if let Some(protocols) = settings.object("protocol_options") {
            plan.auto_start = protocols.flag("auto_start_all", true);
            protocols.close();
        }
        if let Some(flow) = settings.object("flow_options") {
            if flow.flag("packet_loss_duration", false) {
                flow.item.error(format!("not supported: {NOT_YET}"));
            }
            flow.close();
        }
        settings.close();
    }
    config.refuse(&["lags", "events", "lldp", "stateful_flows", "egress_only_tracking"], NOT_YET);
}

/// OTG names are unique over all kinds of objects.
#[derive(Debug, Default)]
struct Names(HashMap<String, String>);

impl Names {
    /// The name of an object, which no other object has.
    fn claim(&mut self, object: &Object<'_>) -> String {
        let Some(item) = object.require("name") else { return String::new() };
        let Some(name) = item.text() else { return String::new() };
        if name.is_empty() {
            item.error("a name must not be empty");
        }
        if let Some(other) = self.0.insert(name.to_owned(), item.path.clone()) {
            item.error(format!(
                "`{name}` is the name of {} already; names are unique",
                other.trim_end_matches(".name")
            ));
        }
        name.to_owned()
    }
}

/// The index of the port that an item names.
fn port_named(item: &Item<'_>, ports: &[crate::Port]) -> Option<usize> {
    let name = item.text()?;
    let found = ports.iter().position(|port| port.name == name);
    if found.is_none() {
        let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
        let mut problem = crate::Problem::error(&*item.path, format!("there is no port `{name}`"));
        if let Some(near) = nearest(name, &names) {
            problem = problem.with_hint(format!("did you mean `{near}`?"));
        } else if !names.is_empty() && names.len() <= 8 {
            problem = problem.with_hint(format!("ports of this plan: {}", names.join(", ")));
        }
        item.note(problem);
    }
    found
}
