//! A controller that holds the fleet's keys and means harm, against a real node with a real owner's file.
//!
//! It says everything a controller can say, signed as it should be. What leaves the node is counted at the far interface:
//! nothing may, until the same controller asks for something that the owner allows.

use crate::lab::{Fleet, FleetOptions, SENDERS};
use packetrig_fleet::fabric::{Endpoint, Fabric};
use packetrig_fleet::lease::LeaseTerms;
use packetrig_fleet::message::{
    ChangeOrder, ChangeStep, ClockKey, ClockServer, LeaseGrant, MessageBody, MessageHead, NodeCommand,
    NodeReply, RunPreparation,
};
use packetrig_nats::authority::FleetAuthority;
use packetrig_nats::{NatsFabric, ServerAccess};
use packetrig_plan::{PingRequest, PlanChange, StreamResumePoint};
use packetrig_report::{NodeName, PlanHash, PortPlace, RunId};
use packetrig_stats::port::BackEnd;
use packetrig_stats::terms::SharedRunOptions;
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Says in a child of this test where the fleet's keys are.
const KEYS: &str = "PACKETRIG_TEST_HOSTILE";
/// And what the node's namespace is called.
const NAMESPACE: &str = "PACKETRIG_TEST_NAMESPACE";
const VICTIM: &str = SENDERS[0];
const OWNER: &str = "max_duration = \"20s\"\nmax_capture = 0";
const PORT: &str = "max_frames_per_second = 1500\nmax_rate = \"10Mbit/s\"";
/// Frames that the owner allows, in the end.
const ALLOWED: u64 = 100;
const TRIES: usize = 5;
/// Within which a node has answered.
const PATIENCE: Nanos = Nanos::from_secs(20);

/// A flow of so many frames a second to an address.
fn flow(name: &str, to: &str, pps: u64, frames: u64) -> Value {
    let field = |value: &str| json!({"choice": "value", "value": value});
    json!({
        "name": name,
        "tx_rx": {"choice": "port", "port": {"tx_name": "a", "rx_names": ["b"]}},
        "packet": [
            {"choice": "ethernet", "ethernet": {"dst": field("02:00:00:00:99:02"), "src": field("02:00:00:00:99:01")}},
            {"choice": "ipv4", "ipv4": {"dst": field(to), "src": field("198.18.0.1")}},
        ],
        "size": {"choice": "fixed", "fixed": 128},
        "rate": {"choice": "pps", "pps": pps},
        "duration": {"choice": "fixed_packets", "fixed_packets": {"packets": frames}},
    })
}

fn document(flows: &[Value]) -> Value {
    let port = |name: &str, at: &str| json!({"name": name, "location": at});
    json!({"ports": [port("a", &format!("{VICTIM}/eth0")), port("b", "r1/eth0")], "flows": flows})
}

fn place(node: &str, interface: &str) -> PortPlace {
    PortPlace { node: NodeName(node.into()), interface: interface.into() }
}

/// What the owner allows.
fn honest() -> RunPreparation {
    RunPreparation {
        document: document(&[flow("s", "198.18.0.2", 1000, ALLOWED)]).to_string().into(),
        places: vec![place(VICTIM, "eth0"), place("r1", "eth0")],
        ..RunPreparation::default()
    }
}

fn asking(document: &Value) -> RunPreparation {
    RunPreparation { document: document.to_string().into(), ..honest() }
}

/// Something that is wrong from the first message on.
struct Attack {
    name: &'static str,
    run: String,
    preparation: RunPreparation,
}

impl Attack {
    fn new(name: &'static str, preparation: RunPreparation) -> Self {
        Self { name, run: format!("run-{name}"), preparation }
    }
}

fn attacks(namespace: &str, elsewhere: &Path) -> Vec<Attack> {
    let mut all = attacks_on_places(namespace);
    all.extend(attacks_on_limits());
    all.extend(attacks_by_documents());
    all.extend(attacks_on_files(elsewhere));
    all
}

/// A flow to an address that is not lent.
fn to_a_stranger() -> Value {
    flow("s", "10.0.0.9", 1000, ALLOWED)
}

/// What the owner allows, from other places.
fn placed(places: Vec<PortPlace>) -> RunPreparation {
    RunPreparation { places, ..honest() }
}

fn attacks_on_places(namespace: &str) -> Vec<Attack> {
    let own = || place(VICTIM, "eth0");
    let far = || place("r1", "eth0");
    let mut local = document(&[to_a_stranger()]);
    local["ports"] = json!([{"name": "a", "location": "eth0"}]);
    local["flows"][0]["tx_rx"]["port"] = json!({"tx_name": "a"});
    let confirmed = vec!["ctl0".into(), format!("{VICTIM}/ctl0")];
    vec![
        Attack::new("no-places", RunPreparation { document: local.to_string().into(), ..placed(vec![]) }),
        Attack::new("no-places-but-allowed", placed(vec![])),
        Attack::new("too-few-places", placed(vec![own()])),
        Attack::new("too-many-places", placed(vec![own(), far(), far()])),
        Attack::new("one-interface-twice", placed(vec![own(), own()])),
        Attack::new("a-namesake", placed(vec![place(&format!("{VICTIM} "), "eth0"), far()])),
        Attack::new("an-alias", placed(vec![place(VICTIM, &format!("{namespace}/eth0")), far()])),
        Attack::new("a-path", placed(vec![place(VICTIM, "../eth0"), far()])),
        Attack::new("not-lent", placed(vec![place(VICTIM, "ctl0"), far()])),
        Attack::new(
            "not-lent-but-confirmed",
            RunPreparation { confirmed, ..placed(vec![place(VICTIM, "ctl0"), far()]) },
        ),
    ]
}

fn attacks_on_limits() -> Vec<Attack> {
    let clock = ClockServer {
        at: vec!["224.0.0.1:5000".parse().expect("an address")],
        key: ClockKey([1; 32]),
        key_number: 0,
        identity: "stranger".into(),
    };
    let terms = SharedRunOptions { back_end: Some(BackEnd::Pktgen), ..SharedRunOptions::default() };
    let engine = SharedRunOptions { back_end: Some(BackEnd::Process), ..SharedRunOptions::default() };
    let together = ["s", "t"].map(|name| flow(name, "198.18.0.2", 1000, ALLOWED));
    vec![
        Attack::new("an-address", asking(&document(&[to_a_stranger()]))),
        Attack::new("too-fast", asking(&document(&[flow("s", "198.18.0.2", 2000, ALLOWED)]))),
        Attack::new("too-long", asking(&document(&[flow("s", "198.18.0.2", 1000, 30_000)]))),
        Attack::new("too-fast-together", asking(&document(&together))),
        Attack::new("a-clock", RunPreparation { clock: Some(clock), ..honest() }),
        Attack::new("pktgen", RunPreparation { terms, ..honest() }),
        Attack::new("an-engine", RunPreparation { terms: engine, ..honest() }),
    ]
}

fn attacks_by_documents() -> Vec<Attack> {
    let mut device = document(&[flow("s", "198.18.0.2", 1000, ALLOWED)]);
    device["devices"] = json!([{"name": "d", "ethernets": [{"name": "e", "mac": "02:00:00:00:99:07",
        "connection": {"choice": "port_name", "port_name": "a"},
        "ipv4_addresses": [{"name": "i", "address": "10.0.0.1", "gateway": "10.0.0.9", "prefix": 16}]}]}]);
    let mut captured = document(&[flow("s", "198.18.0.2", 1000, ALLOWED)]);
    captured["captures"] = json!([{"name": "c", "port_names": ["a"]}]);
    let mut replay = document(&[]);
    replay["flows"] = json!([{"name": "s", "tx_rx": {"choice": "port", "port": {"tx_name": "a", "rx_names": ["b"]}},
        "x_replay": {"file": "/etc/shadow", "timing": "fastest",
            "facts": {"file_size": 1000, "frames": 9, "bytes": 900, "span_ns": 5}}}]);
    vec![
        Attack::new("a-device", asking(&device)),
        Attack::new("a-replay", asking(&replay)),
        Attack::new("captures", asking(&captured)),
    ]
}

fn attacks_on_files(elsewhere: &Path) -> Vec<Attack> {
    let taken = RunPreparation {
        terms: SharedRunOptions { capture_all: true, ..SharedRunOptions::default() },
        capture_dir: Some(elsewhere.join("taken").display().to_string()),
        ..placed(vec![place("r1", "eth0"), place(VICTIM, "eth0")])
    };
    let empty = || asking(&document(&[]));
    let outside = elsewhere.join("outside").display().to_string();
    vec![
        Attack::new("captures-elsewhere", taken),
        Attack { name: "a-path-as-a-run", run: "../../../escape".into(), preparation: empty() },
        Attack { name: "an-absolute-run", run: outside, preparation: empty() },
    ]
}

/// The controller.
struct Hostile {
    endpoint: <NatsFabric as Fabric>::Endpoint,
    victim: NodeName,
}

impl Hostile {
    fn take(keys: &Path) -> Self {
        let text = std::fs::read_to_string(keys.join("fleet.json")).expect("the fleet has addresses");
        let addresses: Value = serde_json::from_str(&text).expect("in JSON");
        let authority = FleetAuthority::open_or_create(&keys.join("authority")).expect("the fleet has keys");
        let (credentials, own) =
            authority.load_controller_credentials().expect("the controller's among them");
        let mut access = ServerAccess::for_server(String::new(), Some(credentials));
        let servers = addresses["servers"].as_array().expect("a list");
        access.servers = servers.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        access.keys = Some(own);
        let fabric = NatsFabric::new(access).expect("the server is there");
        let endpoint = fabric.open_endpoint(NodeName::controller()).expect("nobody else is in charge");
        Self { endpoint, victim: NodeName(VICTIM.into()) }
    }

    fn post(&mut self, body: MessageBody) {
        self.endpoint.post_message(&self.victim, body).expect("the node is there");
    }

    /// Tells the node something and waits for the answer; renews every lease meanwhile.
    fn tell(&mut self, head: &MessageHead, command: NodeCommand) -> Option<NodeReply> {
        self.post(MessageBody::Command(head.clone(), command));
        self.listen(PATIENCE, |of, _| of == head)
    }

    fn listen(
        &mut self,
        within: Nanos,
        is_it: impl Fn(&MessageHead, &NodeReply) -> bool,
    ) -> Option<NodeReply> {
        let until = now() + within;
        while now() < until {
            let Some(letter) = self.endpoint.receive_message(until.since(now())) else { continue };
            match letter.body {
                MessageBody::Renew(head, nonce) => {
                    self.post(MessageBody::Granted(head, LeaseGrant { nonce, go_on: true }));
                }
                MessageBody::Reply(head, reply) if letter.from == self.victim && is_it(&head, &reply) => {
                    return Some(reply);
                }
                _ => {}
            }
        }
        None
    }

    /// Has it sent, if the node does it; says how far that came.
    fn run(&mut self, run: &str, preparation: RunPreparation) -> String {
        let head = head(run, &preparation);
        let how_far = self.go_through(&head, preparation);
        self.tell(&head, NodeCommand::Abort);
        how_far
    }

    fn go_through(&mut self, head: &MessageHead, preparation: RunPreparation) -> String {
        let prepared = self.tell(head, NodeCommand::Prepare(Box::new(preparation)));
        let Some(NodeReply::Prepared { ports }) = prepared else { return format!("{prepared:?}") };
        if ports.is_empty() {
            return "prepared no port".to_owned();
        }
        if let Some(stop) = self.start(head) {
            return stop;
        }
        // Longer than what is allowed takes.
        let done =
            self.listen(PATIENCE, |of, reply| of == head && matches!(reply, NodeReply::SendersDone { .. }));
        format!("it sent: {done:?}")
    }

    /// Arms and starts it; says why not.
    fn start(&mut self, head: &MessageHead) -> Option<String> {
        let armed = self.tell(head, NodeCommand::Arm);
        if !matches!(armed, Some(NodeReply::Armed)) {
            return Some(format!("not armed: {armed:?}"));
        }
        let start = now() + LeaseTerms::FLEET_TERMS.ttl;
        for command in [NodeCommand::Commit { start, guard: Nanos::ZERO }, NodeCommand::Confirm { start }] {
            let answer = self.tell(head, command);
            if !matches!(answer, Some(NodeReply::Committed | NodeReply::Confirmed)) {
                return Some(format!("not started: {answer:?}"));
            }
        }
        let is_news = |reply: &NodeReply| matches!(reply, NodeReply::Started | NodeReply::SendersDone { .. });
        match self.listen(PATIENCE, |of, reply| of == head && is_news(reply)) {
            Some(NodeReply::Started) => None,
            other => Some(format!("not started: {other:?}")),
        }
    }

    /// A run that is allowed and steered to what is not; what became of each change.
    fn steer(&mut self, run: &str) -> Vec<(String, String)> {
        let endless = |mut flow: Value| {
            flow["duration"] = json!({"choice": "continuous"});
            flow
        };
        let allowed = |name: &str| endless(flow(name, "198.18.0.2", 1000, 0));
        let preparation = RunPreparation {
            terms: SharedRunOptions { steered: true, ..SharedRunOptions::default() },
            ..asking(&document(&[allowed("s")]))
        };
        let head = head(run, &preparation);
        let prepared = self.tell(&head, NodeCommand::Prepare(Box::new(preparation)));
        assert!(matches!(prepared, Some(NodeReply::Prepared { .. })), "{prepared:?}");
        if let Some(stop) = self.start(&head) {
            return vec![("steered".to_owned(), stop)];
        }
        let mut moved = document(&[allowed("s")]);
        moved["ports"][0]["location"] = "s1/ctl0".into();
        let replan = |document: &Value| PlanChange::Replan(document.to_string().into());
        let ping = PingRequest { number: 1, source: "i".into(), to: "10.0.0.9".parse().expect("an address") };
        let stranger = endless(flow("t", "10.0.0.9", 100, 0));
        let changes = [
            ("steered-to-an-address", replan(&document(&[allowed("s"), stranger]))),
            ("steered-too-fast", replan(&document(&[allowed("s"), allowed("t")]))),
            ("steered-to-a-port", replan(&moved)),
            ("steered-to-ping", PlanChange::Ping(vec![ping])),
        ];
        let mut told = Vec::new();
        for (number, (name, steer)) in (1..).zip(changes) {
            let command = if steer.begins_new_segments() {
                NodeCommand::Step { number, step: Box::new(ChangeStep::Hold(steer)) }
            } else {
                NodeCommand::Steer(Box::new(ChangeOrder { number, steer }))
            };
            let answer = self.tell(&head, command);
            let undo = NodeCommand::Step { number, step: Box::new(ChangeStep::Undo) };
            told.push((name.to_owned(), format!("{answer:?}")));
            if matches!(&answer, Some(NodeReply::Held { fault: None, .. })) {
                self.tell(&head, undo);
            }
        }
        told.push(("steered-to-a-mac".to_owned(), self.announce_a_mac(&head)));
        self.tell(&head, NodeCommand::Abort);
        told
    }

    /// Says of a stream that the node sends that another node sends it, to another station.
    fn announce_a_mac(&mut self, head: &MessageHead) -> String {
        let number = 90;
        let hold = ChangeStep::Hold(PlanChange::Start(vec![]));
        self.tell(head, NodeCommand::Step { number, step: Box::new(hold) });
        let held = StreamResumePoint { stream: 0, number: 0, index: 0, mac: Some([2, 0, 0, 0, 0x66, 0x66]) };
        let announce = ChangeStep::Announce { held: vec![held], at: None };
        format!("{:?}", self.tell(head, NodeCommand::Step { number, step: Box::new(announce) }))
    }
}

fn head(run: &str, preparation: &RunPreparation) -> MessageHead {
    MessageHead {
        run: RunId(run.into()),
        attempt: 1,
        epoch: 1,
        plan: PlanHash::from_document(preparation.document.text()),
    }
}

fn now() -> MonoTime {
    MonoTime::from_nanos(clock::monotonic_ns())
}

/// The hostile controller itself, in the namespace of the fleet's server.
#[test]
#[ignore = "run by another test"]
fn controller() {
    let keys = PathBuf::from(std::env::var_os(KEYS).expect("a fleet"));
    let namespace = std::env::var(NAMESPACE).expect("a namespace");
    let mut hostile = Hostile::take(&keys);
    let elsewhere = keys.parent().expect("it lies below a directory").join("elsewhere");
    if std::env::var_os("PACKETRIG_TEST_HONEST").is_some() {
        let outcome = until_in_time(|number| hostile.run(&format!("run-honest-{number}"), honest()), is_late);
        println!("outcome\thonest\t{outcome}");
        return;
    }
    for Attack { name, run, preparation } in attacks(&namespace, &elsewhere) {
        println!("outcome\t{name}\t{}", hostile.run(&run, preparation));
    }
    let steered = until_in_time(
        |number| hostile.steer(&format!("run-steered-{number}")),
        |told| told.iter().any(|(_, outcome)| is_late(outcome)),
    );
    for (name, outcome) in steered {
        println!("outcome\t{name}\t{outcome}");
    }
}

/// Does it again where a busy machine let the lease of a run end before anything was sent: that proves nothing.
fn until_in_time<T>(mut tries: impl FnMut(usize) -> T, is_late: impl Fn(&T) -> bool) -> T {
    (0..TRIES).map(&mut tries).find(|outcome| !is_late(outcome)).expect("a run in its lease")
}

fn is_late(outcome: &String) -> bool {
    let ends = ["frames: 0 }], why: LeaseOver", "frames: 0 }], why: NoLease"];
    outcome == "None" || ends.iter().any(|end| outcome.contains(end))
}

/// Runs the controller to its end: what became of each thing it tried.
fn outcomes(fleet: &Fleet, is_honest: bool) -> Vec<(String, String)> {
    let mut command = fleet.beside_the_controller(&std::env::current_exe().expect("this test has a file"));
    command.args(["--exact", "hostile_controller::controller", "--nocapture", "--include-ignored"]);
    command.env(KEYS, fleet.place().join("fleet")).env(NAMESPACE, fleet.namespace_of(VICTIM));
    if is_honest {
        command.env("PACKETRIG_TEST_HONEST", "1");
    }
    let output = command.output().expect("the test runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{complaints}\n{}", fleet.said(VICTIM));
    let outcome = |line: &str| {
        let mut words = line.split('\t').skip_while(|word| !word.ends_with("outcome")).skip(1);
        Some((words.next()?.to_owned(), words.next()?.to_owned()))
    };
    text.lines().filter_map(outcome).collect()
}

#[test]
fn hostile_controller_cannot_exceed_owner_permit() {
    let Some(fleet) = Fleet::up(FleetOptions { owner: OWNER, port: PORT, ..FleetOptions::default() }) else {
        return;
    };
    let before = fleet.sent_by(VICTIM);
    let outcomes = outcomes(&fleet, false);
    let sent = fleet.sent_by(VICTIM) - before;
    println!("{} attacks, {sent} frames outside the permit", outcomes.len());
    assert_eq!(outcomes.len(), 28, "{outcomes:?}");
    for (name, outcome) in &outcomes {
        println!("{name}: {outcome}");
        let is_refused = outcome.contains("ailed") || outcome.contains("fault: Some");
        // These are somebody else's ports, and what a plan says of places is not looked at.
        let is_harmless = ["a-namesake", "steered-to-a-port"].contains(&name.as_str());
        assert!(is_refused || is_harmless, "{name}: {outcome}");
    }
    assert_eq!(sent, 0, "{outcomes:?}");
    let elsewhere = fleet.place().join("elsewhere");
    assert!(!elsewhere.exists(), "the node wrote where it was told to");
    // The same controller, asking for what is allowed.
    let honest = self::outcomes(&fleet, true);
    assert!(honest.iter().any(|(_, outcome)| outcome.starts_with("it sent: Some")), "{honest:?}");
    assert_eq!(fleet.sent_by(VICTIM) - before, ALLOWED, "{honest:?}");
}
