//! Many agents in one process: the machines of real agents with a connection each, over a data plane without frames whose
//! counters rise. It is a process of its own so that the kernel can say what the controller's side costs.

use anyhow::{Context, ensure};
use packetrig_fleet::agent::{AgentAction, AgentEvent, AgentMachine, PersistentAgentState};
use packetrig_fleet::fabric::{Endpoint, Fabric};
use packetrig_fleet::hello::{FLEET_PROTOCOL_VERSION, NodeHello};
use packetrig_fleet::lease::LeaseTerms;
use packetrig_fleet::message::{MessageBody, NodeCommand, Nonce};
use packetrig_nats::authority::{FleetAuthority, NodeAdmission, NodeKeys};
use packetrig_nats::{FleetCredentials, NatsEndpoint, NatsFabric, SealKeys, ServerAccess};
use packetrig_report::NodeName;
use packetrig_stats::counts::{StreamRxCounts, StreamTxCounts};
use packetrig_stats::port::{RxCounters, TxCounters};
use packetrig_stats::result::CountSample;
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use rcgen::KeyPair;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// First argument of the process.
pub(crate) const WORD: &str = "crowd";
/// Whoever asks how far it is with this run wants to know when the question came.
pub(crate) const ECHO: &str = "echo";
/// Counters ten times a second.
pub(crate) const EVERY: Nanos = Nanos::from_millis(100);
/// Connections that come up at the same time.
const AT_ONCE: usize = 40;
const STACK: usize = 256 * 1024;

/// Names of so many agents.
pub(crate) fn names(count: usize) -> Vec<NodeName> {
    (0..count).map(|number| NodeName(format!("n{number:04}"))).collect()
}

/// What all of them did.
#[derive(Debug, Default)]
struct Totals {
    joined: AtomicUsize,
    failed: AtomicUsize,
    sent: AtomicU64,
    /// Intervals that were over before their counters were sent.
    skipped: AtomicU64,
    /// Telemetry that found no room on its way out.
    dropped: AtomicU64,
}

/// `crowd DIRECTORY ADDRESS COUNT`: an authority's directory, or `-` for a server without security. Works until its input ends.
pub(crate) fn perform() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let [directory, address, count] = arguments.as_slice() else { anyhow::bail!("DIRECTORY ADDRESS COUNT") };
    let count: usize = count.parse()?;
    let authority =
        (directory != "-").then(|| FleetAuthority::open_or_create(Path::new(directory))).transpose()?;
    let fabric = NatsFabric::new(ServerAccess::for_server(address.clone(), None))?;
    let totals: Arc<Totals> = Arc::default();
    let admitted =
        names(count).into_iter().map(|name| Ok((access(authority.as_ref(), address, &name)?, name)));
    let admitted: Vec<(ServerAccess, NodeName)> = admitted.collect::<anyhow::Result<_>>()?;
    // The server has to be told of their certificates first.
    writeln!(std::io::stdout(), "admitted")?;
    std::io::stdin().lock().read_exact(&mut [0])?;
    for (started, (access, name)) in admitted.into_iter().enumerate() {
        let (fabric, shared) = (fabric.with_access(access), Arc::clone(&totals));
        std::thread::Builder::new().stack_size(STACK).spawn(move || member(&fabric, &name, &shared))?;
        while started.saturating_sub(come(&totals)) > AT_ONCE {
            clock::sleep_until_ns(clock::monotonic_ns() + 2_000_000);
        }
    }
    while come(&totals) < count {
        clock::sleep_until_ns(clock::monotonic_ns() + 2_000_000);
    }
    let failed = totals.failed.load(Ordering::Relaxed);
    ensure!(failed == 0, "{failed} of {count} agents could not join");
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    // The end of the input is the request to end.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let figure = |of: &AtomicU64| of.load(Ordering::Relaxed);
    writeln!(out, "{} {} {}", figure(&totals.sent), figure(&totals.skipped), figure(&totals.dropped))?;
    // The agents go with the process.
    Ok(())
}

fn come(totals: &Totals) -> usize {
    totals.joined.load(Ordering::Relaxed) + totals.failed.load(Ordering::Relaxed)
}

fn access(
    authority: Option<&FleetAuthority>,
    address: &str,
    name: &NodeName,
) -> anyhow::Result<ServerAccess> {
    let Some(authority) = authority else { return Ok(ServerAccess::for_server(address, None)) };
    let pair = KeyPair::generate()?;
    let secret = authority.create_secret("crowd", Some(1), None)?;
    let NodeAdmission { certificate, authority, controller, grants, user, .. } = authority.admit_node(
        name,
        &NodeKeys::from_private_key(&pair.serialize_pem())?,
        &secret.0,
        clock::wall_clock_ns() / 1_000_000_000,
    )?;
    let credentials = FleetCredentials {
        authority,
        certificate,
        key: pair.serialize_pem(),
        user: Some(user),
        renewed: Arc::default(),
    };
    let grants =
        parse_segment_hash(&grants)?.try_into().map_err(|_| anyhow::anyhow!("a key of another length"))?;
    let keys = SealKeys::Node { controller: parse_segment_hash(&controller)?, grants };
    Ok(ServerAccess { keys: Some(keys), ..ServerAccess::for_server(address, Some(credentials)) })
}

fn parse_segment_hash(text: &str) -> anyhow::Result<Vec<u8>> {
    let pair =
        |at: usize| u8::from_str_radix(text.get(at..at + 2).unwrap_or(""), 16).context("not hexadecimal");
    (0..text.len()).step_by(2).map(pair).collect()
}

fn now() -> MonoTime {
    MonoTime::from_nanos(clock::monotonic_ns())
}

fn member(fabric: &NatsFabric, name: &NodeName, totals: &Totals) {
    for _ in 0..5 {
        if let Ok(endpoint) = fabric.open_endpoint(name.clone()) {
            totals.joined.fetch_add(1, Ordering::Relaxed);
            return Member::new(endpoint).serve(totals);
        }
    }
    totals.failed.fetch_add(1, Ordering::Relaxed);
}

struct Member {
    endpoint: NatsEndpoint,
    agent: AgentMachine,
    sample: CountSample,
    sample_at: MonoTime,
    dropped: u64,
}

impl Member {
    fn new(endpoint: NatsEndpoint) -> Self {
        let past = PersistentAgentState { epoch: 0, nonce: Nonce(clock::wall_clock_ns()), longest: None };
        let sample = CountSample {
            tx: vec![(0, StreamTxCounts::default())],
            rx: vec![(1, 0, StreamRxCounts::default())],
            ports: vec![(0, TxCounters::default(), RxCounters::default())],
            ..CountSample::default()
        };
        // Not all at the same moment.
        let phase = endpoint.incarnation() % EVERY.as_u64();
        let agent = AgentMachine::new_leased(LeaseTerms::FLEET_TERMS, past);
        Self { endpoint, agent, sample, sample_at: now() + Nanos::new(phase), dropped: 0 }
    }

    fn serve(mut self, totals: &Totals) {
        loop {
            let idle = now() + Nanos::from_millis(250);
            let next = if self.agent.is_running() { self.sample_at } else { idle };
            let until = self.agent.next_deadline().map_or(next, |at| at.min(next)).min(idle);
            // A thousand that do not wait at all would leave nothing of the machine to anybody.
            let wait = until.since(now());
            let wait = if wait == Nanos::ZERO { Nanos::from_millis(20) } else { wait };
            if let Some(letter) = self.endpoint.receive_message(wait) {
                self.hear(letter.body);
            }
            self.feed(AgentEvent::Tick);
            self.count(totals);
        }
    }

    fn hear(&mut self, body: MessageBody) {
        let at = clock::monotonic_ns();
        match body {
            MessageBody::RollCall(call) => self.greet(at, Some(call)),
            MessageBody::Command(head, NodeCommand::Query) if head.run.0 == ECHO => self.greet(at, None),
            MessageBody::Command(head, command) => self.feed(AgentEvent::Command(head, command)),
            MessageBody::Granted(head, grant) => self.feed(AgentEvent::Granted(head, grant)),
            _ => {}
        }
    }

    /// Says that it is there, and in place of its incarnation when it was asked.
    fn greet(&mut self, at: u64, answers: Option<Nonce>) {
        let hello =
            NodeHello { incarnation: at, protocol: FLEET_PROTOCOL_VERSION, answers, ..NodeHello::default() };
        self.post(MessageBody::Hello(Box::new(hello)));
    }

    fn post(&mut self, body: MessageBody) {
        self.endpoint.post_message(&NodeName::controller(), body).unwrap_or(());
    }

    fn feed(&mut self, event: AgentEvent) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.agent.handle_event(event, now()) {
                events.extend(self.perform(action));
            }
        }
    }

    fn perform(&mut self, action: AgentAction) -> Option<AgentEvent> {
        match action {
            AgentAction::Reply(head, reply) => self.post(MessageBody::Reply(head, reply)),
            AgentAction::Renew(head, nonce) => self.post(MessageBody::Renew(head, nonce)),
            AgentAction::Prepare(_) => return Some(AgentEvent::Prepared(Vec::new())),
            AgentAction::Arm => return Some(AgentEvent::Armed),
            AgentAction::StopSenders => {
                return Some(AgentEvent::SendersDone { sent: Vec::new(), lease_ended: false });
            }
            // There are no frames, and the evaluation ends before results.
            _ => {}
        }
        None
    }

    fn count(&mut self, totals: &Totals) {
        if !self.agent.is_running() || now() < self.sample_at {
            return;
        }
        let Some(head) = self.agent.head().cloned() else { return };
        let late = now().since(self.sample_at).as_u64() / EVERY.as_u64();
        totals
            .skipped
            .fetch_add(if self.sample.at == MonoTime::default() { 0 } else { late }, Ordering::Relaxed);
        self.sample_at = self.sample_at + Nanos::new(EVERY.as_u64() * (late + 1));
        self.sample.at = now();
        let rise = 1000 * (late + 1);
        self.sample.tx[0].1.frames += rise;
        self.sample.tx[0].1.bytes += 128 * rise;
        self.sample.rx[0].2.frames += rise;
        self.sample.rx[0].2.bytes += 128 * rise;
        self.sample.ports[0].1.handed_over += rise;
        let sample = Box::new(self.sample.clone());
        self.post(MessageBody::Telemetry(head, sample));
        totals.sent.fetch_add(1, Ordering::Relaxed);
        let dropped = self.endpoint.dropped_telemetry();
        totals.dropped.fetch_add(dropped - std::mem::replace(&mut self.dropped, dropped), Ordering::Relaxed);
    }
}
