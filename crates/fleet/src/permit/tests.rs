use super::*;
use packetrig_plan::Plan;
use packetrig_units::{BitRate, Network};

const ETHERNET: &str = "{choice: ethernet, ethernet: {dst: {choice: value, value: '02:00:00:00:00:02'}}}";

/// Port a sends; `more` are further members of the document.
fn bound(packet: &str, flow: &str, more: &str) -> BoundPlan {
    let text = format!(
        "{{ports: [{{name: a, location: eth1}}, {{name: b, location: eth2}}], {more} flows: [{{name: s, \
         tx_rx: {{choice: port, port: {{tx_name: a, rx_names: [b]}}}}, packet: [{packet}], size: {{fixed: 230}}, {flow}}}]}}"
    );
    let plan = Plan::from_text(&text).unwrap_or_else(|problems| panic!("{problems}\n{text}"));
    plan.bind_to_links(&[Some(BitRate::new(10_000_000_000)); 2]).unwrap()
}

fn to(dst: &str) -> String {
    format!("{ETHERNET}, {{choice: ipv4, ipv4: {{dst: {dst}}}}}")
}

const TEN_GIGABITS: BitRate = BitRate::new(10_000_000_000);

/// Both ports are here.
fn mine(link_speed: Option<BitRate>) -> [OwnPlanPort; 2] {
    let own = |port: usize, interface: &str| OwnPlanPort {
        port,
        interface: interface.into(),
        link_speed,
        back_end: None,
    };
    [own(0, "eth1"), own(1, "eth2")]
}

/// Nothing is asked for beside the plan.
const PLAIN: PermitRequest<'_> = PermitRequest {
    terms: &SharedRunOptions {
        tag_key: 0,
        seed: 0,
        capture_all: false,
        back_end: None,
        limits: Vec::new(),
        steered: false,
    },
    replays: &[],
};

const SLOW: &str = "rate: {choice: pps, pps: 1000}";

fn refusals(permit: &LendingPermit, bound: &BoundPlan) -> Vec<String> {
    permit.check_plan(bound, &mine(Some(TEN_GIGABITS)), PLAIN)
}

fn addressed(permit: &LendingPermit, dst: &str) -> Vec<String> {
    refusals(permit, &bound(&to(dst), SLOW, ""))
}

#[test]
fn default_permit_allows_only_test_networks() {
    let permit = LendingPermit::default();
    assert_eq!(addressed(&permit, "{choice: value, value: 198.19.255.254}"), Vec::<String>::new());
    let plain = bound(ETHERNET, SLOW, "");
    assert_eq!(refusals(&permit, &plain), Vec::<String>::new(), "no IP at all");
    let said = addressed(&permit, "{choice: values, values: [198.18.0.1, 192.0.2.9]}");
    assert_eq!(said, ["stream s: its `ipv4.dst` can be 192.0.2.9, which is not allowed"]);
    let climbing = "{choice: increment, increment: {start: 198.19.255.250, step: 0.0.0.1, count: 7}}";
    assert_eq!(
        addressed(&permit, climbing),
        ["stream s: its `ipv4.dst` can be 198.20.0.0, which is not allowed"]
    );
    let drawn = "{choice: random, random: {min: 198.18.0.0, max: 198.20.0.0}}";
    assert!(addressed(&permit, drawn)[0].contains("can be anything from 198.18.0.0 to 198.20.0.0"));
    let inside = "{choice: random, random: {min: 198.18.0.0, max: 198.18.0.255}}";
    assert_eq!(addressed(&permit, inside), Vec::<String>::new());
    let v6 = |ip: &str| {
        let packet = format!("{ETHERNET}, {{choice: ipv6, ipv6: {{dst: {{choice: value, value: '{ip}'}}}}}}");
        refusals(&permit, &bound(&packet, SLOW, "")).len()
    };
    assert_eq!((v6("2001:2::1"), v6("2001:2:1::1"), v6("fe80::1"), v6("fd00::1")), (0, 1, 1, 1));
}

#[test]
fn unbounded_destination_needs_unrestricted_permit() {
    let bytes = format!("{ETHERNET}, {{choice: custom, custom: {{bytes: '4500'}}}}");
    let plan = bound(&bytes, SLOW, "");
    let said = refusals(&LendingPermit::default(), &plan);
    assert_eq!(
        said,
        ["stream s: its destination is not known in advance: a header of its frames is given as bytes"]
    );
    let all = LendingPermit::from_toml("[destinations]\nip = ['0.0.0.0/0', '::/0']\nmac = 'any'").unwrap();
    assert_eq!(refusals(&all, &plan), Vec::<String>::new());
    let some =
        LendingPermit::from_toml("[destinations]\nip = ['0.0.0.0/0', '::/0']\nmac = ['02:00:00:00:00:02']")
            .unwrap();
    assert_eq!(refusals(&some, &plan).len(), 1);
}

#[test]
fn only_listed_mac_addresses_are_sent_to() {
    let permit = |mac: &str| LendingPermit::from_toml(&format!("[destinations]\nmac = ['{mac}']")).unwrap();
    let plan = bound(ETHERNET, SLOW, "");
    assert_eq!(refusals(&permit("02:00:00:00:00:02"), &plan), Vec::<String>::new());
    let said = refusals(&permit("02:00:00:00:00:03"), &plan);
    assert_eq!(said, ["stream s: its `ethernet.dst` can be 02:00:00:00:00:02, which is not allowed"]);
}

#[test]
fn port_permit_enforces_limits_and_listed_ports() {
    let permit = LendingPermit::from_toml(
        "[[port]]\ninterface = 'eth1'\nlabels = ['tx']\nmax_rate = '1Mbit/s'\nmax_frames_per_second = 400\nmax_mtu = 1500",
    )
    .unwrap();
    let jumbo = "layer1: [{name: l, port_names: [a], mtu: 9000}],";
    let said = refusals(&permit, &bound(ETHERNET, "rate: {choice: pps, pps: 500}", jumbo));
    let wanted = [
        "port eth1: the plan sends 500 frames/s; at most 400 are allowed",
        "port eth1: the plan wants an MTU of 9000; at most 1500 is allowed",
        "the permit file of this node does not name port eth2; choose another port, or ask the owner to add it",
    ];
    assert_eq!(said, wanted);
    // 250 B on the line, 500 times a second, are the whole megabit.
    let fast = refusals(&permit, &bound(ETHERNET, "rate: {choice: pps, pps: 501}", ""));
    assert!(
        fast[0].starts_with("port eth1: the plan sends 1.002 Mbit/s; at most 1.000 Mbit/s is allowed"),
        "{fast:?}"
    );
    assert_eq!(
        refusals(&permit, &bound(ETHERNET, "rate: {choice: pps, pps: 400}", "")),
        [
            "the permit file of this node does not name port eth2; choose another port, or ask the owner to add it"
        ]
    );
    assert_eq!(permit.find_permitted_port("eth1", true).unwrap().labels, ["tx"]);
    assert_eq!(permit.find_permitted_port("eth9", false), None);
}

#[test]
fn duration_limit_refuses_long_but_not_endless_stream() {
    let permit = LendingPermit::from_toml("max_duration = '10s'").unwrap();
    let seconds = |seconds: u64| {
        let duration = format!("choice: fixed_seconds, fixed_seconds: {{seconds: {seconds}}}");
        refusals(&permit, &bound(ETHERNET, &format!("{SLOW}, duration: {{{duration}}}"), ""))
    };
    assert_eq!(seconds(10), Vec::<String>::new());
    assert_eq!(seconds(11), ["stream s: it lasts 10.999s; at most 10s is allowed"]);
    assert_eq!(refusals(&permit, &bound(ETHERNET, SLOW, "")), Vec::<String>::new());
}

#[test]
fn emulated_interfaces_claim_only_allowed_addresses() {
    let device = |ip: &str, gateway: &str| {
        format!(
            "devices: [{{name: d, ethernets: [{{name: e, connection: {{choice: port_name, port_name: a}}, \
             mac: '02:00:00:00:00:01', ipv4_addresses: [{{name: i, address: {ip}, gateway: {gateway}, prefix: 16}}]}}]}}],"
        )
    };
    let said =
        |ip, gateway| refusals(&LendingPermit::default(), &bound(ETHERNET, SLOW, &device(ip, gateway)));
    assert_eq!(said("198.18.0.1", "198.18.0.2"), Vec::<String>::new());
    assert_eq!(said("192.168.1.9", "192.168.1.1").len(), 2);
}

#[test]
fn captures_and_back_ends_can_be_forbidden() {
    let permit = LendingPermit::from_toml("max_capture = 0\nback_ends = ['packet', 'af-xdp']").unwrap();
    let plan = bound(ETHERNET, SLOW, "captures: [{name: c, port_names: [b]}],");
    assert_eq!(refusals(&permit, &plan), ["port eth2: captures are not allowed"]);
    let terms = SharedRunOptions { back_end: Some(BackEnd::Pktgen), ..SharedRunOptions::default() };
    assert_eq!(
        permit.check_plan(&plan, &[], PermitRequest { terms: &terms, ..PLAIN }),
        ["the owner does not allow back end `pktgen`"]
    );
    let opened = mine(None).map(|own| OwnPlanPort { back_end: Some(BackEnd::Xdp), ..own });
    let said = permit.check_plan(&bound(ETHERNET, SLOW, ""), &opened, PLAIN);
    assert_eq!(said, ["port eth1: it would send with back end `xdp`, which is not allowed"]);
    assert!(permit.allows_back_end(BackEnd::AfXdp) && !permit.allows_back_end(BackEnd::Xdp));
}

#[test]
fn controller_captures_can_be_forbidden() {
    let permit = LendingPermit::from_toml("max_capture = 0").unwrap();
    let terms = SharedRunOptions { capture_all: true, ..SharedRunOptions::default() };
    let request = PermitRequest { terms: &terms, ..PLAIN };
    let said = permit.check_plan(&bound(ETHERNET, SLOW, ""), &mine(None), request);
    assert_eq!(said, ["port eth2: captures are not allowed"]);
}

/// Frames as fast as the link takes them, 100 Mbit/s by the controller's claim.
const UNPACED: &str = "ports: [{name: a, location: eth1}, {name: b, location: eth2}]
layer1: [{name: l, port_names: [a], speed: speed_100_fd_mbps}]
flows:
- {name: s, tx_rx: {choice: port, port: {tx_name: a, rx_names: [b]}},
   x_replay: {file: /captures/a.pcap, timing: fastest, facts: {file_size: 1000, frames: 3, bytes: 300, largest: 100,
     largest_untagged: 100, span_ns: 5, has_fcs: false}}}
";

#[test]
fn rate_limit_uses_reported_link_speed() {
    let everything = "[destinations]\nip = ['0.0.0.0/0', '::/0']\n[[port]]\ninterface = 'eth2'\n[[port]]\ninterface = 'eth1'";
    let permit =
        LendingPermit::from_toml(&format!("replays = '/captures'\n{everything}\nmax_rate = '1Gbit/s'"))
            .unwrap();
    let plan = Plan::from_text(UNPACED).unwrap_or_else(|problems| panic!("{problems}"));
    let bound = plan.bind_to_links(&[None; 2]).unwrap();
    let lent = PermitRequest { replays: &[Some("/captures/a.pcap".into())], ..PLAIN };
    for (speed, refused) in [(None, 1), (Some(TEN_GIGABITS), 1), (Some(BitRate::new(1_000_000_000)), 0)] {
        assert_eq!(permit.check_plan(&bound, &mine(speed), lent).len(), refused, "{speed:?}");
    }
}

#[test]
fn only_files_of_the_owners_directory_are_replayed() {
    let plan = bound(ETHERNET, SLOW, "");
    let check = |permit: &LendingPermit, file: Option<&str>| {
        let replays = [file.map(PathBuf::from)];
        permit.check_plan(&plan, &mine(None), PermitRequest { replays: &replays, ..PLAIN })
    };
    let none = check(&LendingPermit::default(), Some("/etc/shadow"));
    assert_eq!(none, ["the owner of this node allows no replay of files"]);
    let some = LendingPermit::from_toml("replays = '/captures'").unwrap();
    assert_eq!(check(&some, Some("/captures/a/b.pcap")), Vec::<String>::new());
    for other in [Some("/etc/shadow"), Some("/captures-of-others/a.pcap"), None] {
        assert_eq!(check(&some, other), ["only existing files below /captures may be replayed"]);
    }
}

#[test]
fn emulated_interfaces_need_every_mac_address() {
    let device = "devices: [{name: d, ethernets: [{name: e, connection: {choice: port_name, port_name: a}, \
        mac: '02:00:00:00:00:01', ipv4_addresses: [{name: i, address: 198.18.0.1, gateway: 198.18.0.2, prefix: 16}]}]}],";
    let permit = LendingPermit::from_toml("[destinations]\nmac = ['02:00:00:00:00:02']").unwrap();
    let said = refusals(&permit, &bound(ETHERNET, SLOW, device));
    assert!(said.iter().any(|said| said.contains("MAC addresses that are not known in advance")), "{said:?}");
}

#[test]
fn without_a_file_no_other_namespace_is_lent() {
    assert_eq!(LendingPermit::default().find_permitted_port("ns/eth1", false), None);
}

#[test]
fn default_route_port_is_not_lent_by_default() {
    let permit = LendingPermit::default();
    assert_eq!(
        (permit.find_permitted_port("eth0", true), permit.find_permitted_port("eth1", false).is_some()),
        (None, true)
    );
    assert_eq!(LendingPermit::from_toml("").unwrap(), permit, "an empty file says nothing else");
}

#[test]
fn a_whole_file_is_read() {
    let permit = LendingPermit::from_toml(
        "labels = ['rack-2']\nmax_duration = '2h'\nmax_capture = '500MB'\n\
         [destinations]\nip = ['198.18.0.0/15', '10.7.0.0/16']\nmac = 'any'\n\
         [[port]]\ninterface = 'lab/eth1'\nconfirmed = true\n[[port]]\ninterface = 'eth2'",
    )
    .unwrap();
    assert_eq!((permit.labels, permit.max_capture), (vec!["rack-2".to_owned()], Some(500_000_000)));
    assert_eq!(permit.max_duration, Nanos::from_secs(7200));
    assert!(permit.networks.contains("10.7.255.255".parse().unwrap()));
    assert!(!permit.networks.contains("10.8.0.0".parse().unwrap()));
    let again = LendingPermit::from_toml(
        "[[port]]\ninterface = 'lab/eth1'\nconfirmed = true\n[[port]]\ninterface = 'eth2'",
    );
    assert_eq!(again.unwrap().list_confirmed_interfaces(), ["lab/eth1"]);
}

#[test]
fn malformed_permit_is_refused_with_reason() {
    for (text, says) in [
        ("max_durations = '1h'", "unknown field"),
        ("max_duration = '1 fortnight'", "is not a time"),
        ("[destinations]\nip = ['10.7.0.1/16']", "bits set after its prefix"),
        ("[destinations]\nip = ['10.7.0.0/33']", "is not a network"),
        ("[destinations]\nmac = 'some'", "a list of addresses or \"any\""),
        ("[destinations]\nmac = ['02:00']", "is not a MAC address"),
        ("[[port]]\nlabels = ['tx']", "missing field `interface`"),
        ("[[port]]\ninterface = 'e'\n[[port]]\ninterface = 'e'", "port e is listed twice"),
        ("[[port]]\ninterface = 'e'\nlabels = ['a.b']", "is not a valid label"),
        ("replays = 'captures'", "must be an absolute path"),
        ("max_capture = '5 apples'", "is not a size"),
        ("back_ends = ['magic']", "unknown variant"),
    ] {
        let error = LendingPermit::from_toml(text).unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn adjacent_networks_are_one() {
    let networks: Vec<Network> =
        ["10.0.0.0/9", "10.128.0.0/9"].iter().map(|text| text.parse().unwrap()).collect();
    let both = NetworkSet::new(&networks);
    assert_eq!(both.find_forbidden_value(&FieldValues::Range(0x0a00_0000, 0x0aff_ffff), false), None);
    assert!(both.find_forbidden_value(&FieldValues::Range(0x0a00_0000, 0x0b00_0000), false).is_some());
    assert!(NetworkSet::new(&["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()]).is_everything());
}
