//! `packetrig doctor`: shows the facts that `sys` finds and the findings that `engine` derives from them. It judges nothing itself.

mod bundle;
mod fix;

use crate::args::DoctorArgs as Arguments;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::{CommandOutput, TextStyle, print_deciding_error};
use packetrig_engine::doctor::{
    DoctorFinding, FindingLevel, FindingSubject, judge_engine, judge_machine_and_interfaces,
    judge_unrestored_interface, judge_unrestored_loopback, suggest_bringing_interface_up,
};
use packetrig_engine::packet::guard::{self, GuardRefusal};
use packetrig_engine::packet::saved_settings::find_unrestored_interfaces;
use packetrig_engine::process::ENGINE_ADAPTERS;
use packetrig_plan::PortLocation;
use packetrig_sys::facts::{self, InterfaceFacts, MachineFacts};
use packetrig_sys::loopback;
use packetrig_sys::machine_setting::SettingChange;
use packetrig_sys::netns::NetNs;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The whole result, as `--json` prints it.
#[derive(Serialize)]
struct MachineExamination {
    schema_version: u32,
    machine: MachineFacts,
    findings: Vec<DoctorFinding>,
    interfaces: Vec<ExaminedInterface>,
}

#[derive(Serialize)]
struct ExaminedInterface {
    /// Name of the interface as in a plan.
    location: String,
    facts: InterfaceFacts,
    findings: Vec<DoctorFinding>,
}

pub(crate) fn run_doctor(arguments: &Arguments, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    // Interfaces are restored first, so that the examination shows the restored settings.
    if arguments.restore || arguments.fix {
        restore_interfaces(&arguments.interfaces, arguments.json || arguments.fix, output)?;
    }
    let wanted = group_by_namespace(&arguments.interfaces);
    if arguments.undo {
        fix::revert_recorded_changes(arguments.json, output)?;
    }
    if arguments.fix {
        fix::make_changes(&list_advised_setting_changes(&wanted)?, arguments.json, output)?;
    }
    let examination = examine_machine(&wanted)?;
    if let Some(path) = &arguments.bundle {
        bundle::write_bundle(path, &examination)?;
    }
    if arguments.json {
        output.write_json(&examination)?;
    } else {
        output.write_text(render_examination(&examination, output.style()));
    }
    // Problems are only findings, not a failure of the command: a machine without XDP can still send.
    Ok(CommandExit::Ok)
}

/// Restores interfaces whose settings a killed process left changed: the named ones, or all if none is named. Goes on
/// after a failure. Returns the first failure and prints the others.
fn restore_interfaces(
    interfaces: &[PortLocation],
    quiet: bool,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    let names: Vec<String> = interfaces.iter().map(ToString::to_string).collect();
    let unrestored = find_unrestored_interfaces();
    let chosen = unrestored.iter().filter(|found| names.is_empty() || names.contains(&found.location()));
    let chosen: Vec<_> = chosen.collect();
    // Probes to the machine's own addresses change settings of the loopback interface. These settings are
    // recorded separately from settings of cards.
    let loopbacks = loopback::find_unrestored_loopbacks();
    let loopbacks = loopbacks.iter().filter(|found| names.is_empty() || names.contains(&found.location()));
    let loopbacks: Vec<_> = loopbacks.collect();
    let mut tell_restored = |location: String| {
        if !quiet {
            output.write_line(format_args!("{location} is restored"));
        }
    };
    // Failures are collected: one interface that cannot be restored must not prevent the others from being restored.
    let mut failures = Vec::new();
    for interface in &chosen {
        match interface.restore_interface() {
            Ok(()) => tell_restored(interface.location()),
            Err(error) => failures.push(Error::from(error)),
        }
    }
    for found in &loopbacks {
        match found.restore_settings() {
            Ok(()) => tell_restored(found.location()),
            Err(error) => failures.push(Error::from(error)),
        }
    }
    if chosen.is_empty() && loopbacks.is_empty() && !quiet {
        output.write_line("there is no interface to restore");
    }
    // The first failure is the error of the command; the others are printed here.
    let mut failures = failures.into_iter();
    let first = failures.next();
    for failure in failures {
        print_deciding_error(failure.full_message());
    }
    first.map_or(Ok(()), Err)
}

/// Interfaces to examine, by namespace, so that each namespace is entered once. No names means all interfaces.
type WantedInterfaces = BTreeMap<Option<String>, Vec<String>>;

fn group_by_namespace(interfaces: &[PortLocation]) -> WantedInterfaces {
    if interfaces.is_empty() {
        // An empty list of names means all interfaces of the namespace in which the user is.
        return WantedInterfaces::from([(None, Vec::new())]);
    }
    let mut wanted = WantedInterfaces::new();
    for PortLocation { namespace, interface } in interfaces.iter().cloned() {
        wanted.entry(namespace).or_default().push(interface);
    }
    wanted
}

/// Returns the changes to make: settings of the machine that hinder tests, and named interfaces that are down.
fn list_advised_setting_changes(wanted: &WantedInterfaces) -> Result<Vec<SettingChange>, Error> {
    // The settings are read here, before they are changed. The examination comes later and shows the changed values.
    let machine = facts::read_machine_facts();
    let mut changes = machine.hindering_settings.clone();
    // Without names, all interfaces are examined, and none is changed: a user may have taken one down on purpose.
    for (namespace, names) in wanted.iter().filter(|(_, names)| !names.is_empty()) {
        let refused =
            find_refused_interfaces(&NetNs::open_named_or_current_namespace(namespace.as_deref())?)?;
        let examined = examine_namespace(namespace.as_deref(), names, &machine)?;
        changes.extend(examined.iter().filter_map(|examined| {
            let refusal = refused.get(&examined.facts.link.index);
            suggest_bringing_interface_up(namespace.as_deref(), &examined.facts, refusal)
        }));
    }
    Ok(changes)
}

fn find_refused_interfaces(netns: &NetNs) -> Result<BTreeMap<u32, GuardRefusal>, Error> {
    Ok(guard::find_refusals(netns).map_err(packetrig_engine::Error::from)?)
}

fn examine_machine(wanted: &WantedInterfaces) -> Result<MachineExamination, Error> {
    let machine = facts::read_machine_facts();
    // The list of interfaces is empty, so that only findings about the machine itself are left.
    let mut findings = judge_machine_and_interfaces(&machine, &[], &BTreeMap::new());
    // Engines belong to the machine and to no interface.
    findings.extend(ENGINE_ADAPTERS.iter().map(|adapter| judge_engine(adapter, adapter.is_installed())));
    let mut interfaces: Vec<ExaminedInterface> = Vec::new();
    for (namespace, names) in wanted {
        interfaces.extend(examine_namespace(namespace.as_deref(), names, &machine)?);
    }
    for unrestored in find_unrestored_interfaces() {
        let location = unrestored.location();
        let examined = interfaces.iter_mut().find(|examined| examined.location == location);
        // An interface that is not examined, for example one in another namespace, has no section of its own, so its
        // finding is listed with those of the machine.
        let target = examined.map_or(&mut findings, |examined| &mut examined.findings);
        target.push(judge_unrestored_interface(&unrestored));
    }
    findings.extend(loopback::find_unrestored_loopbacks().iter().map(judge_unrestored_loopback));
    Ok(MachineExamination { schema_version: 1, machine, findings, interfaces })
}

fn examine_namespace(
    namespace: Option<&str>,
    names: &[String],
    machine: &MachineFacts,
) -> Result<Vec<ExaminedInterface>, Error> {
    let netns = NetNs::open_named_or_current_namespace(namespace)?;
    let interfaces = facts::read_interface_facts(&netns)?;
    let present: BTreeSet<&str> = interfaces.iter().map(|interface| interface.link.name.as_str()).collect();
    if let Some(name) = names.iter().find(|name| !present.contains(name.as_str())) {
        let remedy = "`packetrig doctor` without a name lists the interfaces";
        let name = namespace.map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}"));
        return Err(packetrig_sys::Error::Missing { what: "interface", name, remedy }.into());
    }
    let findings = judge_machine_and_interfaces(machine, &interfaces, &find_refused_interfaces(&netns)?);
    let chosen = interfaces.into_iter().filter(|interface| {
        // The loopback interface is of no use to a rig, so it is shown only if it is named.
        if names.is_empty() { !interface.link.loopback } else { names.contains(&interface.link.name) }
    });
    let examined = chosen.map(|facts| {
        let subject = FindingSubject::Interface(facts.link.name.clone());
        let findings = findings.iter().filter(|finding| finding.subject == subject).cloned().collect();
        let name = &facts.link.name;
        let location = namespace.map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}"));
        ExaminedInterface { location, facts, findings }
    });
    Ok(examined.collect())
}

fn render_examination(examination: &MachineExamination, style: TextStyle) -> String {
    let machine = &examination.machine;
    let mut text = format!("{}\n", style.bold("this machine"));
    text.push_str(&format_fact_line("kernel", &machine.kernel));
    text.push_str(&format_fact_line("processors", &machine.processors.to_string()));
    text.push_str(&format_fact_line("rights", &describe_rights(machine)));
    text.extend(examination.findings.iter().map(|finding| format_finding_line(finding, style)));
    for interface in &examination.interfaces {
        text.extend(["\n", &style.bold(&interface.location), "\n"]);
        text.extend(
            interface_fact_lines(&interface.facts).iter().map(|(name, value)| format_fact_line(name, value)),
        );
        text.extend(interface.findings.iter().map(|finding| format_finding_line(finding, style)));
    }
    if examination.interfaces.is_empty() {
        text.push_str(
            "\nthe loopback interface is the only one here; `packetrig demo` makes its own interfaces\n",
        );
    }
    text
}

fn describe_rights(machine: &MachineFacts) -> String {
    let who = match machine.rights.user {
        0 if machine.rights.in_user_namespace => "root of a user namespace".to_owned(),
        0 => "root".to_owned(),
        user => format!("user {user}"),
    };
    match machine.rights.capabilities.join(" ") {
        // Capabilities that no command needs are not in the list.
        none if none.is_empty() => format!("{who}, without capabilities that packetrig uses"),
        capabilities => format!("{who}, {capabilities}"),
    }
}

/// Lists the facts of an interface, the most important first. Unknown facts are left out.
fn interface_fact_lines(interface: &InterfaceFacts) -> Vec<(&'static str, String)> {
    let link = &interface.link;
    let state = match (link.up, link.carrier) {
        (true, true) => "up",
        (true, false) => "up, no carrier",
        (false, _) => "down",
    };
    let mut facts = vec![("state", format!("{state}, MTU {}", link.mtu))];
    if let Some(driver) = &interface.driver {
        facts.push(("driver", [driver.name.as_str(), &driver.version, &driver.bus].join(" ").trim().into()));
    }
    if let Some(speed) = interface.speed {
        let duplex = match speed.full_duplex {
            Some(true) => ", full duplex",
            Some(false) => ", half duplex",
            None => "",
        };
        facts.push(("speed", format!("{} Mbit/s{duplex}", speed.mbits)));
    }
    if let Some(queues) = interface.channels {
        facts.push(("queues", format!("{} to send, {} to receive", queues.tx, queues.rx)));
    }
    facts.push((
        "offloads on",
        join_names_or_none(interface.offloads.iter().map(|offload| offload.name().to_owned())),
    ));
    if let Some(xdp) = interface.xdp {
        let abilities = [
            (xdp.native, "native"),
            (xdp.redirect, "redirect"),
            (xdp.transmit, "transmit"),
            (xdp.zero_copy, "zero copy"),
            (xdp.fragments, "fragments"),
        ];
        facts.push(("XDP", describe_abilities(&abilities, "generic only")));
    }
    if let Some(stamps) = interface.timestamping {
        let abilities = [
            (stamps.rx_hardware, "receive (card)"),
            (stamps.tx_hardware, "transmit (card)"),
            (stamps.rx_software, "receive (kernel)"),
            (stamps.tx_software, "transmit (kernel)"),
        ];
        facts.push(("time stamps", describe_abilities(&abilities, "none")));
    }
    if !interface.addresses.is_empty() {
        facts.push(("addresses", join_names_or_none(interface.addresses.iter().map(ToString::to_string))));
    }
    if interface.default_route {
        facts.push(("routing", "the default route uses this interface".into()));
    }
    facts
}

fn describe_abilities(abilities: &[(bool, &str)], none: &str) -> String {
    let present: Vec<&str> =
        abilities.iter().filter(|(present, _)| *present).map(|(_, name)| *name).collect();
    if present.is_empty() { none.to_owned() } else { present.join(", ") }
}

fn join_names_or_none(names: impl Iterator<Item = String>) -> String {
    match names.collect::<Vec<_>>().join(" ") {
        none if none.is_empty() => "none".into(),
        names => names,
    }
}

fn format_fact_line(name: &str, value: &str) -> String {
    format!("  {name:<12} {value}\n")
}

fn format_finding_line(finding: &DoctorFinding, style: TextStyle) -> String {
    let mark = match finding.level {
        FindingLevel::Good => style.good("ok     "),
        FindingLevel::Note => style.doubtful("note   "),
        FindingLevel::Problem => style.bad("problem"),
    };
    let remedy =
        finding.remedy.as_ref().map_or_else(String::new, |remedy| format!("\n          -> {remedy}"));
    format!("  {mark} {}{remedy}\n", finding.what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_grouped_by_namespace() {
        let wanted = group_by_namespace(&["eth1", "lab/eth0", "lab/eth2"].map(|name| name.parse().unwrap()));
        assert_eq!(wanted[&None], ["eth1"]);
        assert_eq!(wanted[&Some("lab".to_owned())], ["eth0", "eth2"]);
    }

    #[test]
    fn loopback_interface_is_listed_only_on_request() {
        let here = |names: &[&str]| {
            let names: Vec<PortLocation> = names.iter().map(|name| name.parse().unwrap()).collect();
            examine_machine(&group_by_namespace(&names)).unwrap().interfaces
        };
        assert!(here(&[]).iter().all(|interface| interface.location != "lo"));
        assert_eq!(here(&["lo"]).len(), 1);
    }

    #[test]
    fn an_interface_that_is_not_there_is_named() {
        let Err(error) = examine_machine(&group_by_namespace(&["nosuch0".parse().unwrap()])) else {
            panic!("found")
        };
        assert!(error.to_string().contains("nosuch0"));
        assert_eq!(packetrig_program::CommandError::command_exit(&error), CommandExit::World);
    }

    #[test]
    fn the_text_names_kernel_facts_and_remedies() {
        let examination = examine_machine(&group_by_namespace(&["lo".parse().unwrap()])).unwrap();
        let text = render_examination(&examination, TextStyle::PLAIN);
        assert!(text.contains(&examination.machine.kernel) && text.contains("\nlo\n"), "{text}");
        assert!(text.contains("state") && text.contains("offloads on"), "{text}");
    }
}
