use super::*;
use packetrig_sys::caps::ThreadRights;
use packetrig_sys::ethtool::{LinkSpeed, Offload, StampAbilities};
use packetrig_sys::link::Link;
use packetrig_sys::netdev::XdpFeatures;
use packetrig_sys::sandbox::{MissingProtection, OfferedProtections};

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
        walls: OfferedProtections { landlock: Some(7), seccomp: true, missing: vec![] },
        hindering_settings: vec![],
    }
}

#[test]
fn sandbox_finding_names_missing_part() {
    let what = |machine: &MachineFacts| {
        let findings = judge_machine_and_interfaces(machine, &[], &BTreeMap::new())
            .into_iter()
            .filter(|finding| finding.what.contains("sandbox"));
        findings.map(|finding| (finding.level, finding.what)).collect::<Vec<_>>()
    };
    let all = "sandbox for long-running programs: Landlock ABI 7, seccomp".to_owned();
    assert_eq!(what(&machine()), [(FindingLevel::Good, all)]);
    let missing = MissingProtection { wall: "Landlock", found: "it was disabled at boot".into() };
    let walls = OfferedProtections { landlock: None, seccomp: true, missing: vec![missing] };
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
        in_service: true,
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
    let findings = judge_machine_and_interfaces(&machine(), &[interface()], &BTreeMap::new());
    assert!(worst(&findings) < FindingLevel::Problem);
    assert!(says(&findings, FindingLevel::Good, "back end packet works"));
}

#[test]
fn each_interface_says_which_back_ends_it_has() {
    let text = |machine: &MachineFacts, interface: &InterfaceFacts| describe_back_ends(machine, interface);
    let generic = InterfaceFacts { xdp: Some(XdpFeatures::default()), ..interface() };
    let native =
        InterfaceFacts { xdp: Some(XdpFeatures { native: true, ..XdpFeatures::default() }), ..interface() };
    let no_bpf = MachineFacts { bpf_obstacle: Some("no rights".into()), ..machine() };
    let generator = MachineFacts { pktgen_obstacle: None, ..no_bpf.clone() };
    assert_eq!(text(&no_bpf, &native), "back ends: packet; without a calibration, packetrig chooses packet");
    assert!(text(&generator, &native).starts_with("back ends: packet, pktgen (sends only);"));
    let generic = text(&machine(), &generic);
    assert!(generic.contains("xdp (generic") && generic.ends_with("packetrig chooses packet"), "{generic}");
    let native = text(&machine(), &native);
    assert!(
        native.contains("cannot send live frames at present") && native.contains("above 200000"),
        "{native}"
    );
    let findings = judge_machine_and_interfaces(&no_bpf, &[], &BTreeMap::new());
    assert!(says(&findings, FindingLevel::Note, "back end xdp does not work: no rights"));
    assert!(says(&findings, FindingLevel::Note, "back end af-xdp does not work: no rights"));
    assert!(says(&findings, FindingLevel::Note, "back end pktgen does not work: no module"));
}

#[test]
fn a_missing_engine_is_named_with_its_package() {
    let [trafgen, _] = &crate::process::ENGINE_ADAPTERS;
    let found = [judge_engine(trafgen, true), judge_engine(trafgen, false)];
    assert!(says(&found, FindingLevel::Good, "--engine trafgen"));
    assert!(says(&found, FindingLevel::Note, "engine trafgen is not installed"));
    assert!(found[1].remedy.as_ref().is_some_and(|remedy| remedy.contains("netsniff-ng")));
}

#[test]
fn missing_capability_finding_offers_remedy() {
    let mut machine = machine();
    machine.rights.capabilities = vec!["CAP_NET_ADMIN"];
    let findings = judge_machine_and_interfaces(&machine, &[], &BTreeMap::new());
    let problem = findings.iter().find(|finding| finding.level == FindingLevel::Problem).unwrap();
    assert!(
        problem.what.contains("lacks CAP_NET_RAW") && problem.remedy.as_ref().unwrap().contains("setcap")
    );
}

#[test]
fn old_kernel_single_cpu_forbidden_lab_are_noted() {
    let machine = MachineFacts {
        kernel: "4.19.0".into(),
        version: (4, 19),
        processors: 1,
        lab_obstacle: Some("forbidden".into()),
        ..machine()
    };
    let findings = judge_machine_and_interfaces(&machine, &[], &BTreeMap::new());
    for text in ["4.19.0", "only one CPU", "needs root: forbidden"] {
        assert!(says(&findings, FindingLevel::Note, text), "{text}");
    }
}

#[test]
fn guard_refusal_becomes_doctor_problem() {
    let reason = "br0, which is in the same stack of interfaces, carries the default route".to_owned();
    let refusal = GuardRefusal { port: "eth1".into(), reason };
    let findings = judge_machine_and_interfaces(&machine(), &[interface()], &BTreeMap::from([(2, refusal)]));
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
    let findings = judge_machine_and_interfaces(&machine(), &[fast], &BTreeMap::new());
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

#[test]
fn bridge_filter_is_a_note_with_a_fix() {
    let setting = MachineSetting::Kernel { switch: KernelSwitch::BridgeFilter };
    let hindering_settings = vec![SettingChange::new(setting, "0")];
    let findings = judge_machine_and_interfaces(
        &MachineFacts { hindering_settings, ..machine() },
        &[],
        &BTreeMap::new(),
    );
    let found = findings.iter().find(|finding| finding.what.contains("iptables")).unwrap();
    assert_eq!(found.level, FindingLevel::Note);
    let remedy = "`packetrig doctor --fix` sets net.bridge.bridge-nf-call-iptables to 0";
    assert_eq!(found.remedy.as_deref(), Some(remedy));
    let findings = judge_machine_and_interfaces(&machine(), &[], &BTreeMap::new());
    assert!(!findings.iter().any(|finding| finding.what.contains("iptables")), "{findings:?}");
}

#[test]
fn refused_interface_is_not_brought_up() {
    let mut down = interface();
    down.link.up = false;
    let refusal = GuardRefusal { port: "eth1".into(), reason: "it has the default route".into() };
    assert!(suggest_bringing_interface_up(None, &down, None).is_some());
    assert_eq!(suggest_bringing_interface_up(None, &down, Some(&refusal)), None);
    assert_eq!(suggest_bringing_interface_up(None, &interface(), None), None);
}
