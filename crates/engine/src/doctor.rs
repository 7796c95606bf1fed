//! What a machine and its interfaces are good for, and what to change for more.
//!
//! A pure judgement of facts that `packetrig_sys::facts` gathered; it asks the kernel nothing and changes nothing.

use crate::packet::guard::GuardRefusal;
use crate::packet::saved_settings::UnrestoredInterface;
use crate::rig::choose::COMFORTABLE;
use packetrig_sys::ethtool::Offload;
use packetrig_sys::facts::{InterfaceFacts, MachineFacts};
use serde::Serialize;
use std::collections::BTreeMap;

/// Oldest kernel the rings are tested on.
const OLDEST_KERNEL: (u32, u32) = (5, 10);

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingLevel {
    Good,
    /// It works, and something about it is worth knowing.
    Note,
    /// It keeps a run from starting.
    Problem,
}

/// What a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingSubject {
    /// The machine and this process.
    Machine,
    /// The interface of that name.
    Interface(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DoctorFinding {
    /// What it is about.
    pub subject: FindingSubject,
    /// How much it matters.
    pub level: FindingLevel,
    /// What is the case.
    pub what: String,
    /// What to do about it, where something can be done.
    pub remedy: Option<String>,
}

/// Judges the machine, then each interface. `refused` are those that the lab guard refuses, by their number.
pub fn judge(
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

/// What there is to know about an interface that a packetrig process changed and did not restore before it died.
pub fn judge_unrestored(interface: &UnrestoredInterface) -> DoctorFinding {
    let location = interface.location();
    let before: Vec<String> = interface.changes().iter().map(ToString::to_string).collect();
    DoctorFinding {
        subject: FindingSubject::Interface(location.clone()),
        level: FindingLevel::Note,
        what: format!(
            "{location} still has changed settings: process {} was killed before it could restore: {}",
            interface.process(),
            before.join(", ")
        ),
        remedy: Some(format!(
            "`packetrig doctor --restore {location}` restores it now, and the next run on it does so first"
        )),
    }
}

fn judge_machine(machine: &MachineFacts) -> Vec<DoctorFinding> {
    let finding = |level, what: String, remedy: Option<&str>| DoctorFinding {
        subject: FindingSubject::Machine,
        level,
        what,
        remedy: remedy.map(str::to_owned),
    };
    let mut findings = vec![packet_rights(machine)];
    let others = [
        ("xdp", machine.bpf_obstacle.as_ref()),
        ("af-xdp", af_xdp_obstacle(machine)),
        ("pktgen", machine.pktgen_obstacle.as_ref()),
    ];
    findings.extend(others.map(|(name, obstacle)| match obstacle {
        None => finding(
            FindingLevel::Good,
            format!("back end {name} works: everything it needs is present"),
            None,
        ),
        Some(why) => finding(FindingLevel::Note, format!("back end {name} does not work: {why}"), None),
    }));
    findings.extend(walls(machine));
    if machine.version < OLDEST_KERNEL {
        let what =
            format!("kernel {} is older than every kernel that packetrig is tested on", machine.kernel);
        findings.push(finding(FindingLevel::Note, what, Some("use Linux 5.10 or later")));
    }
    if machine.processors < 2 {
        let what = "only one CPU: sender and receiver take turns, which lowers rates and adds latency".into();
        findings.push(finding(FindingLevel::Note, what, Some("use a machine with at least two CPUs")));
    }
    findings.push(match &machine.lab_obstacle {
        None => finding(
            FindingLevel::Good,
            "`packetrig demo` works without root, in a user namespace".into(),
            None,
        ),
        Some(why) => finding(FindingLevel::Note, format!("`packetrig demo` needs root: {why}"), None),
    });
    findings
}

/// What programs that run long can be confined with.
fn walls(machine: &MachineFacts) -> Vec<DoctorFinding> {
    let finding =
        |level, what, remedy| DoctorFinding { subject: FindingSubject::Machine, level, what, remedy };
    let offer = &machine.walls;
    let landlock = offer.landlock.map(|version| format!("Landlock ABI {version}"));
    let there: Vec<String> =
        landlock.into_iter().chain(offer.seccomp.then(|| "seccomp".to_owned())).collect();
    let mut findings = Vec::new();
    if !there.is_empty() {
        let what = format!("sandbox for long-running programs: {}", there.join(", "));
        findings.push(finding(FindingLevel::Good, what, None));
    }
    findings.extend(offer.missing.iter().map(|missing| {
        let what = format!("the sandbox for long-running programs is incomplete: {missing}");
        finding(
            FindingLevel::Note,
            what,
            Some("see docs/book/walls.md for the protection that remains".to_owned()),
        )
    }));
    findings
}

fn packet_rights(machine: &MachineFacts) -> DoctorFinding {
    let missing: Vec<&str> =
        ["CAP_NET_RAW", "CAP_NET_ADMIN"].into_iter().filter(|right| !machine.rights.has(right)).collect();
    let subject = FindingSubject::Machine;
    if missing.is_empty() {
        let what = "back end packet works: this process may open and configure interfaces".into();
        return DoctorFinding { subject, level: FindingLevel::Good, what, remedy: None };
    }
    DoctorFinding {
        subject,
        level: FindingLevel::Problem,
        what: format!("back end packet cannot open interfaces: {} missing", missing.join(" and ")),
        remedy: Some("run as root, or `setcap cap_net_raw,cap_net_admin+ep` on the binary".into()),
    }
}

fn judge_interface(
    machine: &MachineFacts,
    interface: &InterfaceFacts,
    refusal: Option<&GuardRefusal>,
) -> Vec<DoctorFinding> {
    let finding = |level, what: String, remedy: Option<String>| DoctorFinding {
        subject: FindingSubject::Interface(interface.link.name.clone()),
        level,
        what,
        remedy,
    };
    let mut findings = Vec::new();
    if let Some(refusal) = refusal {
        let remedy =
            format!("use an isolated interface, or `--confirm {}` if it is one", interface.link.name);
        findings.push(finding(
            FindingLevel::Problem,
            format!("the lab guard refuses it: {}", refusal.reason),
            Some(remedy),
        ));
    }
    if !interface.link.carrier {
        let (what, remedy) = if interface.link.up {
            ("no carrier: nothing can be sent", "connect the other end and bring it up")
        } else {
            (
                "down: a run brings it up and takes it down again",
                "bring it up to see whether it has a carrier",
            )
        };
        findings.push(finding(FindingLevel::Note, what.into(), Some(remedy.into())));
    } else if interface.speed.is_none() {
        let remedy = "set the `layer1` speed in the plan to use rates in percent";
        findings.push(finding(
            FindingLevel::Note,
            "its driver does not report the link speed".into(),
            Some(remedy.into()),
        ));
    }
    let loud = loud_offloads(interface);
    if !loud.is_empty() {
        findings.push(finding(
            FindingLevel::Note,
            format!("a run switches these offloads off: {loud}"),
            None,
        ));
    }
    findings.push(finding(FindingLevel::Note, back_ends(machine, interface), None));
    findings.push(finding(FindingLevel::Good, stamp_text(interface).into(), None));
    findings
}

fn loud_offloads(interface: &InterfaceFacts) -> String {
    let loud = |offload: &&Offload| crate::packet::quiet::LOUD.contains(offload);
    interface.offloads.iter().filter(loud).map(|offload| offload.name()).collect::<Vec<_>>().join(" ")
}

/// It sends through sockets and receives through BPF programs.
fn af_xdp_obstacle(machine: &MachineFacts) -> Option<&String> {
    machine.af_xdp_obstacle.as_ref().or(machine.bpf_obstacle.as_ref())
}

/// What each back end can do here, and which would be chosen.
fn back_ends(machine: &MachineFacts, interface: &InterfaceFacts) -> String {
    let mut texts = vec!["back ends: packet".to_owned()];
    let xdp = interface.xdp.unwrap_or_default();
    if machine.bpf_obstacle.is_none() {
        texts.push(
            match (interface.xdp, xdp.native, xdp.transmit) {
                (None, ..) => "xdp (the kernel does not report driver support; receives in its generic path)",
                (_, false, _) => "xdp (generic: receives in the kernel's path, sends as af-xdp)",
                (_, true, true) => "xdp (native: receives in the driver, sends live frames)",
                (_, true, false) => {
                    "xdp (native: receives in the driver; cannot send live frames at present, so sends as af-xdp)"
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
    let chosen = if machine.bpf_obstacle.is_none() && xdp.native && machine.processors > 1 {
        format!("; without a calibration xdp is chosen above {COMFORTABLE} frames/s")
    } else {
        "; without a calibration packet is chosen".to_owned()
    };
    texts.join(", ") + &chosen
}

fn stamp_text(interface: &InterfaceFacts) -> &'static str {
    match interface.timestamping {
        Some(stamps) if stamps.rx_hardware => {
            "the kernel timestamps arrivals; the card could do it, but packetrig does not use that yet"
        }
        _ => "the kernel timestamps arrivals; the card cannot",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_sys::caps::ThreadRights;
    use packetrig_sys::ethtool::{LinkSpeed, StampAbilities};
    use packetrig_sys::link::Link;
    use packetrig_sys::netdev::XdpFeatures;
    use packetrig_sys::sandbox::{MissingWall, OfferedWalls};

    fn machine() -> MachineFacts {
        let capabilities = vec!["CAP_NET_RAW", "CAP_NET_ADMIN"];
        MachineFacts {
            kernel: "6.1.0".into(),
            version: (6, 1),
            rights: ThreadRights { user: 0, capabilities, in_user_namespace: false },
            processors: 4,
            lab_obstacle: None,
            bpf_obstacle: None,
            af_xdp_obstacle: None,
            pktgen_obstacle: Some("no module".into()),
            walls: OfferedWalls { landlock: Some(7), seccomp: true, missing: vec![] },
        }
    }

    #[test]
    fn the_sandbox_is_described_and_a_missing_part_is_named() {
        let what = |machine: &MachineFacts| {
            let findings = judge(machine, &[], &BTreeMap::new())
                .into_iter()
                .filter(|finding| finding.what.contains("sandbox"));
            findings.map(|finding| (finding.level, finding.what)).collect::<Vec<_>>()
        };
        let all = "sandbox for long-running programs: Landlock ABI 7, seccomp".to_owned();
        assert_eq!(what(&machine()), [(FindingLevel::Good, all)]);
        let missing = MissingWall { wall: "Landlock", found: "it was disabled at boot".into() };
        let walls = OfferedWalls { landlock: None, seccomp: true, missing: vec![missing] };
        let found = what(&MachineFacts { walls, ..machine() });
        assert_eq!(found[0], (FindingLevel::Good, "sandbox for long-running programs: seccomp".to_owned()));
        assert_eq!(found[1].0, FindingLevel::Note);
        assert!(found[1].1.contains("Landlock: it was disabled at boot"), "{found:?}");
    }

    fn interface() -> InterfaceFacts {
        let link = Link {
            index: 2,
            name: "eth1".into(),
            kind: None,
            mac: Some([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            mtu_limit: None,
            up: true,
            carrier: true,
            loopback: false,
            promiscuous: false,
            master: None,
            peer: None,
            peer_netns: None,
            qdisc: None,
        };
        InterfaceFacts {
            link,
            driver: None,
            speed: Some(LinkSpeed { mbits: 1_000, full_duplex: Some(true) }),
            channels: None,
            offloads: vec![Offload::RxCsum],
            timestamping: None,
            xdp: None,
            addresses: Vec::new(),
            default_route: false,
        }
    }

    fn worst(findings: &[DoctorFinding]) -> FindingLevel {
        findings.iter().map(|finding| finding.level).max().unwrap()
    }

    fn says(findings: &[DoctorFinding], level: FindingLevel, text: &str) -> bool {
        findings.iter().any(|finding| finding.level == level && finding.what.contains(text))
    }

    #[test]
    fn a_fit_machine_has_no_problem() {
        let findings = judge(&machine(), &[interface()], &BTreeMap::new());
        assert!(worst(&findings) < FindingLevel::Problem);
        assert!(says(&findings, FindingLevel::Good, "back end packet works"));
    }

    #[test]
    fn each_interface_says_which_back_ends_it_has() {
        let text = |machine: &MachineFacts, interface: &InterfaceFacts| back_ends(machine, interface);
        let generic = InterfaceFacts { xdp: Some(XdpFeatures::default()), ..interface() };
        let native = InterfaceFacts {
            xdp: Some(XdpFeatures { native: true, ..XdpFeatures::default() }),
            ..interface()
        };
        let no_bpf = MachineFacts { bpf_obstacle: Some("no rights".into()), ..machine() };
        let generator = MachineFacts { pktgen_obstacle: None, ..no_bpf.clone() };
        assert_eq!(text(&no_bpf, &native), "back ends: packet; without a calibration packet is chosen");
        assert!(text(&generator, &native).starts_with("back ends: packet, pktgen (sends only);"));
        let generic = text(&machine(), &generic);
        assert!(generic.contains("xdp (generic") && generic.ends_with("packet is chosen"), "{generic}");
        let native = text(&machine(), &native);
        assert!(
            native.contains("cannot send live frames at present") && native.contains("above 200000"),
            "{native}"
        );
        let findings = judge(&no_bpf, &[], &BTreeMap::new());
        assert!(says(&findings, FindingLevel::Note, "back end xdp does not work: no rights"));
        assert!(says(&findings, FindingLevel::Note, "back end af-xdp does not work: no rights"));
        assert!(says(&findings, FindingLevel::Note, "back end pktgen does not work: no module"));
    }

    #[test]
    fn missing_rights_are_named_with_the_way_to_get_them() {
        let mut machine = machine();
        machine.rights.capabilities = vec!["CAP_NET_ADMIN"];
        let findings = judge(&machine, &[], &BTreeMap::new());
        let problem = findings.iter().find(|finding| finding.level == FindingLevel::Problem).unwrap();
        assert!(
            problem.what.contains("CAP_NET_RAW missing")
                && problem.remedy.as_ref().unwrap().contains("setcap")
        );
    }

    #[test]
    fn an_old_kernel_a_lone_processor_and_a_forbidden_lab_are_noted() {
        let machine = MachineFacts {
            kernel: "4.19.0".into(),
            version: (4, 19),
            processors: 1,
            lab_obstacle: Some("forbidden".into()),
            ..machine()
        };
        let findings = judge(&machine, &[], &BTreeMap::new());
        for text in ["4.19.0", "only one CPU", "needs root: forbidden"] {
            assert!(says(&findings, FindingLevel::Note, text), "{text}");
        }
    }

    #[test]
    fn what_the_guard_refuses_is_told_beforehand() {
        let reason = "br0, which is in the same stack of interfaces, carries the default route".to_owned();
        let refusal = GuardRefusal { port: "eth1".into(), reason };
        let findings = judge(&machine(), &[interface()], &BTreeMap::from([(2, refusal)]));
        assert!(
            says(&findings, FindingLevel::Problem, "br0, which is in the same stack of interfaces"),
            "{findings:?}"
        );
    }

    #[test]
    fn state_offloads_xdp_and_stamps_are_told() {
        let mut fast = interface();
        fast.link.carrier = false;
        fast.offloads.push(Offload::Gro);
        fast.xdp = Some(XdpFeatures { native: true, zero_copy: true, ..XdpFeatures::default() });
        fast.timestamping = Some(StampAbilities { rx_hardware: true, ..StampAbilities::default() });
        let findings = judge(&machine(), &[fast], &BTreeMap::new());
        assert!(says(&findings, FindingLevel::Note, "no carrier"));
        assert!(
            says(&findings, FindingLevel::Note, "offloads off: gro")
                && !says(&findings, FindingLevel::Note, "rx ")
        );
        assert!(
            says(&findings, FindingLevel::Note, "xdp (native")
                && says(&findings, FindingLevel::Note, "af-xdp (zero-copy)")
        );
        assert!(says(&findings, FindingLevel::Good, "the card could"));
    }
}
