//! Assessment of a machine and its interfaces: usable back ends, problems and their remedies.
//!
//! Pure: it judges facts that `packetrig_sys::facts` gathered. It does not query the kernel and changes nothing.

use crate::packet::guard::GuardRefusal;
use crate::packet::quiet::FRAME_CHANGING_OFFLOADS;
use crate::packet::saved_settings::UnrestoredInterface;
use crate::process::EngineAdapter;
use crate::rig::choose::COMFORTABLE_FRAME_RATE;
use packetrig_sys::facts::{InterfaceFacts, MachineFacts};
use packetrig_sys::loopback::UnrestoredLoopback;
use packetrig_sys::machine_setting::{self, KernelSwitch, MachineSetting, SettingChange};
use serde::Serialize;
use std::collections::BTreeMap;

/// Oldest kernel on which packetrig is tested.
const MIN_TESTED_KERNEL: (u32, u32) = (5, 10);

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingLevel {
    Good,
    /// Runs are possible, but with a limit worth knowing.
    Note,
    /// A run cannot start.
    Problem,
}

/// Machine or interface that a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingSubject {
    /// The machine and this process.
    Machine,
    /// The interface with this name.
    Interface(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DoctorFinding {
    /// Machine or interface that the finding is about.
    pub subject: FindingSubject,
    /// Severity of the finding.
    pub level: FindingLevel,
    /// The fact that was found.
    pub what: String,
    /// Remedy that the user can apply, if there is one.
    pub remedy: Option<String>,
}

/// Judges the machine, then each interface. `refused` are the interfaces that the lab guard refuses, by their index.
pub fn judge_machine_and_interfaces(
    machine: &MachineFacts,
    interfaces: &[InterfaceFacts],
    refused: &BTreeMap<u32, GuardRefusal>,
) -> Vec<DoctorFinding> {
    let mut findings = judge_machine(machine);
    for interface in interfaces {
        findings.extend(judge_interface(machine, interface, refused.get(&interface.link.index)));
    }
    findings
}

/// Judges an interface that a packetrig process changed and did not restore before it died.
pub fn judge_unrestored_interface(interface: &UnrestoredInterface) -> DoctorFinding {
    let location = interface.location();
    let before: Vec<String> = interface.changes().iter().map(ToString::to_string).collect();
    DoctorFinding {
        subject: FindingSubject::Interface(location.clone()),
        level: FindingLevel::Note,
        what: format!(
            "{location} still has changed settings: process {} was killed before it could restore the former \
            values: {}",
            interface.process(),
            before.join(", ")
        ),
        remedy: Some(format!(
            "`packetrig doctor --restore {location}` restores the settings now; otherwise the next run on \
            this interface restores them"
        )),
    }
}

/// Judges loopback settings that a killed probe has left changed.
pub fn judge_unrestored_loopback(found: &UnrestoredLoopback) -> DoctorFinding {
    let location = found.location();
    DoctorFinding {
        subject: FindingSubject::Interface(location.clone()),
        level: FindingLevel::Note,
        what: format!(
            "{location} still accepts frames between addresses of this machine (accept_local, route_localnet): a probe \
            was killed before it could restore these settings"
        ),
        remedy: Some(format!(
            "`packetrig doctor --restore {location}` restores the settings now; otherwise the next probe on \
            this machine restores them when it ends"
        )),
    }
}

/// Reports whether an engine, a traffic generator of another project, is installed, and how to install it.
pub fn judge_engine(adapter: &EngineAdapter, is_installed: bool) -> DoctorFinding {
    let EngineAdapter { name, package, .. } = adapter;
    if is_installed {
        let what = format!("engine {name} is installed; `--engine {name}` uses it");
        return machine_finding(FindingLevel::Good, what, None);
    }
    let remedy = format!("install the Debian packages {package} and python3");
    machine_finding(FindingLevel::Note, format!("engine {name} is not installed"), Some(remedy))
}

fn machine_finding(level: FindingLevel, what: String, remedy: Option<String>) -> DoctorFinding {
    DoctorFinding { subject: FindingSubject::Machine, level, what, remedy }
}

fn interface_finding(
    interface: &InterfaceFacts,
    level: FindingLevel,
    what: String,
    remedy: Option<String>,
) -> DoctorFinding {
    DoctorFinding { subject: FindingSubject::Interface(interface.link.name.clone()), level, what, remedy }
}

fn judge_machine(machine: &MachineFacts) -> Vec<DoctorFinding> {
    let mut findings = vec![judge_packet_rights(machine)];
    let others = [
        ("xdp", machine.bpf_obstacle.as_ref()),
        ("af-xdp", af_xdp_obstacle(machine)),
        ("pktgen", machine.pktgen_obstacle.as_ref()),
    ];
    findings.extend(others.map(|(name, obstacle)| match obstacle {
        None => machine_finding(
            FindingLevel::Good,
            format!("back end {name} works: everything it needs is present"),
            None,
        ),
        Some(why) => {
            machine_finding(FindingLevel::Note, format!("back end {name} does not work: {why}"), None)
        }
    }));
    findings.extend(judge_sandbox(machine));
    findings.extend(judge_bridge_filters(machine));
    // This is a note and not a problem: older kernels may work, but packetrig was not tested with them.
    if machine.version < MIN_TESTED_KERNEL {
        let what =
            format!("kernel {} is older than every kernel that packetrig is tested on", machine.kernel);
        findings.push(machine_finding(FindingLevel::Note, what, Some("use Linux 5.10 or later".into())));
    }
    // The sender spins until a frame is due. On a single CPU the receiver cannot run meanwhile.
    if machine.processors < 2 {
        let what = "only one CPU: sender and receiver take turns, which lowers rates and adds latency".into();
        findings.push(machine_finding(
            FindingLevel::Note,
            what,
            Some("use a machine with at least two CPUs".into()),
        ));
    }
    findings.push(match &machine.lab_obstacle {
        None => machine_finding(
            FindingLevel::Good,
            "`packetrig demo` works without root, in a user namespace".into(),
            None,
        ),
        Some(why) => machine_finding(FindingLevel::Note, format!("`packetrig demo` needs root: {why}"), None),
    });
    findings
}

/// Judges the sandbox that the kernel offers to long-running programs.
fn judge_sandbox(machine: &MachineFacts) -> Vec<DoctorFinding> {
    let offer = &machine.walls;
    let landlock = offer.landlock.map(|version| format!("Landlock ABI {version}"));
    let there: Vec<String> =
        landlock.into_iter().chain(offer.seccomp.then(|| "seccomp".to_owned())).collect();
    let mut findings = Vec::new();
    if !there.is_empty() {
        let what = format!("sandbox for long-running programs: {}", there.join(", "));
        findings.push(machine_finding(FindingLevel::Good, what, None));
    }
    findings.extend(offer.missing.iter().map(|missing| {
        let what = format!("the sandbox for long-running programs is incomplete: {missing}");
        machine_finding(
            FindingLevel::Note,
            what,
            Some("`packetrig docs sandbox` describes the protection that remains".to_owned()),
        )
    }));
    findings
}

fn judge_bridge_filters(machine: &MachineFacts) -> Option<DoctorFinding> {
    let is_filter = |change: &&SettingChange| {
        matches!(
            change.setting,
            MachineSetting::Kernel { switch: KernelSwitch::BridgeFilter | KernelSwitch::BridgeFilterIpv6 }
        )
    };
    // The kernel has one switch for each version of IP.
    let filters: Vec<String> = machine
        .hindering_settings
        .iter()
        .filter(is_filter)
        .map(|change| change.setting.to_string())
        .collect();
    let what = "bridges of this network namespace pass frames through iptables, which drops those with a wrong IP checksum";
    let remedy = format!("`packetrig doctor --fix` sets {} to 0", filters.join(" and "));
    (!filters.is_empty()).then(|| machine_finding(FindingLevel::Note, what.to_owned(), Some(remedy)))
}

/// Returns the change that brings an interface up; `None` if it is up, or if the lab guard refuses it.
pub fn suggest_bringing_interface_up(
    namespace: Option<&str>,
    interface: &InterfaceFacts,
    refusal: Option<&GuardRefusal>,
) -> Option<SettingChange> {
    let (namespace, name) = (namespace.map(str::to_owned), interface.link.name.clone());
    let setting = MachineSetting::Interface { namespace, name };
    (!interface.link.up && refusal.is_none()).then(|| SettingChange::new(setting, machine_setting::STATE_UP))
}

fn judge_packet_rights(machine: &MachineFacts) -> DoctorFinding {
    // AF_PACKET rings need CAP_NET_RAW; switching the offloads of an interface off needs CAP_NET_ADMIN.
    let missing: Vec<&str> = ["CAP_NET_RAW", "CAP_NET_ADMIN"]
        .into_iter()
        .filter(|right| !machine.rights.has_capability(right))
        .collect();
    let subject = FindingSubject::Machine;
    if missing.is_empty() {
        let what = "back end packet works: this process may open and configure interfaces".into();
        return DoctorFinding { subject, level: FindingLevel::Good, what, remedy: None };
    }
    DoctorFinding {
        subject,
        level: FindingLevel::Problem,
        what: format!("back end packet cannot open interfaces: this process lacks {}", missing.join(" and ")),
        remedy: Some("run as root, or run `setcap cap_net_raw,cap_net_admin+ep` on the program file".into()),
    }
}

fn judge_interface(
    machine: &MachineFacts,
    interface: &InterfaceFacts,
    refusal: Option<&GuardRefusal>,
) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    if let Some(refusal) = refusal {
        let remedy = format!(
            "use an isolated interface; if {0} is isolated, add `--confirm {0}`",
            interface.link.name
        );
        findings.push(interface_finding(
            interface,
            FindingLevel::Problem,
            format!("the lab guard refuses this interface: {}", refusal.reason),
            Some(remedy),
        ));
    }
    if !interface.link.carrier {
        findings.push(judge_missing_carrier(interface));
    } else if interface.speed.is_none() {
        let remedy = "to use rates in percent, set the `layer1` speed in the plan";
        findings.push(interface_finding(
            interface,
            FindingLevel::Note,
            "the driver does not report the link speed".into(),
            Some(remedy.into()),
        ));
    }
    // The user learns before a run which offloads of the interface the run will switch off.
    let loud = format_active_offloads(interface);
    if !loud.is_empty() {
        findings.push(interface_finding(
            interface,
            FindingLevel::Note,
            format!("a run switches these offloads off: {loud}"),
            None,
        ));
    }
    findings.push(interface_finding(
        interface,
        FindingLevel::Note,
        describe_back_ends(machine, interface),
        None,
    ));
    findings.push(interface_finding(
        interface,
        FindingLevel::Good,
        describe_timestamps(interface).into(),
        None,
    ));
    findings
}

fn judge_missing_carrier(interface: &InterfaceFacts) -> DoctorFinding {
    if interface.link.up {
        let what = "no carrier: nothing can be sent".into();
        let remedy = "connect the other end and bring it up".into();
        return interface_finding(interface, FindingLevel::Note, what, Some(remedy));
    }
    let what = "the interface is down: a run brings it up and takes it down afterwards".into();
    let remedy = "`packetrig doctor --fix IF` brings it up, and shows whether it has a carrier".into();
    interface_finding(interface, FindingLevel::Note, what, Some(remedy))
}

fn format_active_offloads(interface: &InterfaceFacts) -> String {
    let loud = interface.offloads.iter().filter(|offload| FRAME_CHANGING_OFFLOADS.contains(offload));
    loud.map(|offload| offload.name()).collect::<Vec<_>>().join(" ")
}

/// Returns why AF_XDP cannot be used; `None` if it can. An obstacle to BPF counts too: reception needs BPF programs.
fn af_xdp_obstacle(machine: &MachineFacts) -> Option<&String> {
    machine.af_xdp_obstacle.as_ref().or(machine.bpf_obstacle.as_ref())
}

/// Lists the back ends that work on this interface, and the one that packetrig would choose.
fn describe_back_ends(machine: &MachineFacts, interface: &InterfaceFacts) -> String {
    let mut texts = vec!["back ends: packet".to_owned()];
    // Old kernels do not report XDP features; such a driver counts as having none.
    let xdp = interface.xdp.unwrap_or_default();
    if machine.bpf_obstacle.is_none() {
        texts.push(
            match (interface.xdp, xdp.native, xdp.transmit) {
                (None, ..) => "xdp (the kernel does not report driver support; receives in its generic path)",
                (_, false, _) => "xdp (generic: receives in the kernel's generic path, sends as af-xdp)",
                (_, true, true) => "xdp (native: receives in the driver, sends live frames)",
                (_, true, false) => {
                    "xdp (native: receives in the driver; cannot send live frames at present, so it sends \
                    as af-xdp)"
                }
            }
            .to_owned(),
        );
    }
    if af_xdp_obstacle(machine).is_none() {
        texts.push(if xdp.zero_copy { "af-xdp (zero-copy)" } else { "af-xdp (copy)" }.to_owned());
    }
    if machine.pktgen_obstacle.is_none() {
        texts.push("pktgen (sends only)".to_owned());
    }
    // The same conditions as in `rig::choose`, as far as they do not depend on a plan.
    let chosen = if machine.bpf_obstacle.is_none() && xdp.native && machine.processors > 1 {
        format!("; without a calibration, packetrig chooses xdp above {COMFORTABLE_FRAME_RATE} frames/s")
    } else {
        "; without a calibration, packetrig chooses packet".to_owned()
    };
    texts.join(", ") + &chosen
}

fn describe_timestamps(interface: &InterfaceFacts) -> &'static str {
    match interface.timestamping {
        Some(stamps) if stamps.rx_hardware => {
            "the kernel timestamps arrivals; the card could timestamp them, but packetrig does not use the card's \
            clock yet"
        }
        _ => "the kernel timestamps arrivals; the driver reports no hardware timestamping",
    }
}

#[cfg(test)]
mod tests;
