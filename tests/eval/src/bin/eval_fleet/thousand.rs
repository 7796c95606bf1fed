//! A thousand agents with a connection each to a real server: what their counters cost, and how soon a command is with all.

use crate::crowd::{self, ECHO, names};
use anyhow::{Context, ensure};
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_eval::process::{processor_time, resident_mib, wait};
use packetrig_eval::{Effort, median, plot};
use packetrig_fleet::controller::{ControllerAction, ControllerEvent, ControllerMachine, RunLimits};
use packetrig_fleet::fabric::{Endpoint, Fabric};
use packetrig_fleet::message::{
    MessageBody, MessageEnvelope, MessageHead, NodeCommand, Nonce, RunPreparation,
};
use packetrig_nats::authority::FleetAuthority;
use packetrig_nats::broker::{BrokerSetup, MessageServer};
use packetrig_nats::{NatsEndpoint, NatsFabric, ServerAccess};
use packetrig_report::event::RunEventKind;
use packetrig_report::outcome::RunState;
use packetrig_report::{NodeName, PlanHash, RunId};
use packetrig_stats::result::CountSample;
use packetrig_stats::terms::SharedRunOptions;
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::process::{Child, ChildStdout, Stdio};
use tempfile::TempDir;

const AGENTS: usize = 1000;
/// Of a processor, in percent.
const WANTED: f64 = 25.0;
/// What the prototype's slowest receiver took, in milliseconds.
const WANTED_FAN_OUT: f64 = 50.0;
const TURN: Nanos = Nanos::from_millis(20);
/// For all agents to answer or to get somewhere.
const PATIENCE: Nanos = Nanos::from_secs(30);

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let (seconds, tries) = if effort.quick { (5, 5) } else { (30, 20) };
    let mut hall = Hall::open()?;
    output.say(&format!(
        "## {AGENTS} agents\n\nAll in one process, each with the machine of a real agent (leases included), a connection of its \
         own with TLS in both directions to a real nats-server, and counters at 10 Hz of a data plane without frames. The \
         controller is a process of its own: the real machine and endpoint in a run as `serve` makes it, letters sealed. \
         Processor time by `/proc/PID/stat` over {seconds} s.\n"
    ))?;
    let round_trip = fan_out(&mut hall, tries, output)?;
    counters(&mut hall, (seconds, round_trip), output)
}

/// The server, the crowd, and the controller's place. Fields drop in order.
struct Hall {
    endpoint: NatsEndpoint,
    crowd: Child,
    said: BufReader<ChildStdout>,
    broker: MessageServer,
    _directory: TempDir,
}

impl Hall {
    fn open() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let keys = directory.path().join("authority");
        let authority = FleetAuthority::open_or_create(&keys)?;
        let setup = BrokerSetup {
            program: None,
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            directory: directory.path().join("broker"),
            store_room: 1 << 30,
            security: Some(authority.issue_server_certificate(&["127.0.0.1".to_owned()])?),
            nodes: Vec::new(),
        };
        let broker = MessageServer::start_server_and_wait(setup)?;
        let address = broker.address().to_string();
        let mut crowd = std::process::Command::new(std::env::current_exe()?)
            .arg(crowd::WORD)
            .arg(&keys)
            .args([address.as_str(), &AGENTS.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = BufReader::new(crowd.stdout.take().context("its output")?);
        let mut line = String::new();
        said.read_line(&mut line)?;
        ensure!(line.trim() == "admitted", "the agents were not let in: {:?}", crowd.wait());
        let nodes = authority.list_admitted_nodes()?;
        broker.set_allowed_nodes(&nodes, authority.load_system_user_credentials()?)?;
        crowd.stdin.as_mut().context("its input")?.write_all(b".")?;
        line.clear();
        said.read_line(&mut line)?;
        ensure!(line.trim() == "ready", "the agents did not come: {:?}", crowd.wait());
        let (credentials, keys) = authority.load_controller_credentials()?;
        let access =
            ServerAccess { keys: Some(keys), ..ServerAccess::for_server(address, Some(credentials)) };
        let endpoint = NatsFabric::new(access)?.open_endpoint(NodeName::controller())?;
        Ok(Self { endpoint, crowd, said, broker, _directory: directory })
    }

    /// Ends the crowd: counters sent, intervals skipped, counters dropped.
    fn close(&mut self) -> anyhow::Result<Vec<u64>> {
        drop(self.crowd.stdin.take());
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        wait(&mut self.crowd, 10)?;
        Ok(line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
    }
}

impl Drop for Hall {
    fn drop(&mut self) {
        self.crowd.kill().unwrap_or(());
        drop(self.crowd.wait());
    }
}

fn now() -> MonoTime {
    MonoTime::from_nanos(clock::monotonic_ns())
}

fn head(run: &str) -> MessageHead {
    MessageHead { run: RunId(run.to_owned()), attempt: 1, epoch: 1, plan: PlanHash::from_document(run) }
}

/// By one publication to all, and by a sealed letter to each.
/// Gives the longest that was seen.
fn fan_out(hall: &mut Hall, tries: usize, output: &mut Output) -> anyhow::Result<Nanos> {
    let mut table = Table::new(&["a command", "slowest receiver, median ms", "worst ms", "tries"]);
    let (mut groups, mut longest) = (Vec::new(), Nanos::ZERO);
    let all = names(AGENTS);
    // The first time each node is asked which life of it speaks.
    slowest(hall, &all, false)?;
    for (name, goal, at_once) in
        [("to all (roll call)", "fan_out_to_all", true), ("a letter to each", "fan_out_to_each", false)]
    {
        let mut figures = Vec::new();
        for _ in 0..tries {
            let took = slowest(hall, &all, at_once)?;
            longest = longest.max(took);
            figures.push(took.as_u64() as f64 / 1e6);
        }
        let (middle, worst) =
            (median(&figures).unwrap_or_default(), figures.iter().copied().fold(0.0, f64::max));
        table.rows.push(vec![
            name.to_owned(),
            format!("{middle:.1}"),
            format!("{worst:.1}"),
            tries.to_string(),
        ]);
        groups.push((name.to_owned(), vec![middle, worst]));
        output.goal(
            goal,
            &format!("{middle:.1} ms to the slowest of {AGENTS} (worst of {tries}: {worst:.1} ms)"),
            &format!("< {WANTED_FAN_OUT} ms"),
            &(middle < WANTED_FAN_OUT).into(),
        );
    }
    output.say(
        "From the beginning of sending until the last of all agents has it in its hands, its seal checked; the agents share \
         the controller's clock.\n",
    )?;
    let titles = plot::Titles { plot: "One command to 1000 agents", x: "", y: "ms to the slowest" };
    output.plot("fan_out", titles.plot, &plot::bars(titles, &["median", "worst"], &groups))?;
    output.table("fan_out", &table)?;
    Ok(longest)
}

/// How long until the slowest had it.
fn slowest(hall: &mut Hall, all: &[NodeName], at_once: bool) -> anyhow::Result<Nanos> {
    // Nothing of an earlier question is under way.
    while hall.endpoint.receive_message(Nanos::from_millis(50)).is_some() {}
    let asked = clock::monotonic_ns();
    if at_once {
        hall.endpoint.post_to_all_nodes(MessageBody::RollCall(Nonce(asked)))?;
    } else {
        for node in all {
            hall.endpoint.post_message(node, MessageBody::Command(head(ECHO), NodeCommand::Query))?;
        }
    }
    let (mut heard, mut last, until) = (BTreeSet::new(), asked, now() + PATIENCE);
    while heard.len() < all.len() {
        ensure!(now() < until, "only {} of {} agents answered", heard.len(), all.len());
        if let Some(MessageEnvelope { from, body: MessageBody::Hello(hello) }) =
            hall.endpoint.receive_message(TURN)
        {
            last = last.max(hello.incarnation);
            heard.insert(from);
        }
    }
    Ok(Nanos::new(last - asked))
}

/// What the controller's side saw of counters.
#[derive(Debug, Default)]
struct Seen {
    came: u64,
    replies: u64,
    renewals: u64,
    /// Letters that were sealed and sent, and how long that took.
    sent: u64,
    sending_ns: u64,
    told: u64,
    /// Counters that were lower than those told before.
    regressions: u64,
    last: BTreeMap<NodeName, (u64, u64)>,
    late_ms: Vec<f64>,
    state: Option<RunState>,
    findings: Vec<String>,
}

impl Seen {
    fn hear(&mut self, node: NodeName, sample: &CountSample) {
        self.told += 1;
        let sent: u64 = sample.tx.iter().map(|(_, counts)| counts.frames).sum();
        let received: u64 = sample.rx.iter().map(|(.., counts)| counts.frames).sum();
        self.late_ms.push(now().since(sample.at).as_u64() as f64 / 1e6);
        let before = self.last.insert(node, (sent, received));
        if before.is_some_and(|before| sent < before.0 || received < before.1) {
            self.regressions += 1;
        }
    }
}

/// The loop around the controller's machine, as a node runs it.
struct Conductor<'a> {
    endpoint: &'a mut NatsEndpoint,
    machine: ControllerMachine,
    seen: Seen,
}

impl Conductor<'_> {
    fn feed(&mut self, event: ControllerEvent) {
        for action in self.machine.handle_event(event, now()) {
            match action {
                ControllerAction::Send(to, head, command) => {
                    self.post(&to, MessageBody::Command(head, command));
                }
                ControllerAction::Grant(to, head, grant) => self.post(&to, MessageBody::Granted(head, grant)),
                ControllerAction::Emit(RunEventKind::Counters { node, sample }) => {
                    self.seen.hear(node, &sample);
                }
                ControllerAction::Emit(RunEventKind::StateChanged(state)) => self.seen.state = Some(state),
                ControllerAction::Emit(RunEventKind::Finding(text)) => self.seen.findings.push(text),
                ControllerAction::Emit(_) | ControllerAction::Record(_) => {}
            }
        }
    }

    fn post(&mut self, to: &NodeName, body: MessageBody) {
        let begun = clock::monotonic_ns();
        self.endpoint.post_message(to, body).unwrap_or(());
        self.seen.sent += 1;
        self.seen.sending_ns += clock::monotonic_ns() - begun;
    }

    fn turn(&mut self) {
        let wait = self.machine.next_deadline().map_or(TURN, |at| at.since(now()).min(TURN));
        let event = match self.endpoint.receive_message(wait) {
            Some(MessageEnvelope { from, body: MessageBody::Reply(head, reply) }) => {
                self.seen.replies += 1;
                ControllerEvent::Reply(from, head, reply)
            }
            Some(MessageEnvelope { from, body: MessageBody::Renew(head, nonce) }) => {
                self.seen.renewals += 1;
                ControllerEvent::Renewal(from, head, nonce)
            }
            Some(MessageEnvelope { from, body: MessageBody::Telemetry(head, sample) }) => {
                self.seen.came += 1;
                ControllerEvent::Telemetry(from, head, sample)
            }
            _ => ControllerEvent::Tick,
        };
        self.feed(event);
    }

    fn turn_until(&mut self, until: MonoTime, done: impl Fn(&Seen) -> bool) {
        while now() < until && !done(&self.seen) {
            self.turn();
        }
    }
}

fn counters(hall: &mut Hall, (seconds, round_trip): (u64, Nanos), output: &mut Output) -> anyhow::Result<()> {
    let head = MessageHead { plan: PlanHash::from_document("crowd"), ..head("crowd") };
    let preparation = RunPreparation {
        document: "crowd".into(),
        terms: SharedRunOptions { steered: true, ..SharedRunOptions::default() },
        ..RunPreparation::default()
    };
    let limits = RunLimits::for_fleet(round_trip, Nanos::ZERO);
    let machine = ControllerMachine::new(head, preparation, &names(AGENTS), limits);
    let processes = [hall.broker.process_id(), std::process::id(), hall.crowd.id()];
    let mut conductor = Conductor { endpoint: &mut hall.endpoint, machine, seen: Seen::default() };
    conductor.feed(ControllerEvent::Begin);
    conductor.turn_until(now() + PATIENCE, |seen| seen.state == Some(RunState::Running));
    let why = || {
        let Seen { state, replies, renewals, sent, sending_ns, findings, .. } = &conductor.seen;
        let each = *sending_ns as f64 / 1e3 / (*sent).max(1) as f64;
        format!(
            "{state:?} after {PATIENCE}, in which {sent} letters went out ({each:.0} us each), {replies} replies and {renewals} \
             renewals came in; {findings:?}"
        )
    };
    ensure!(conductor.seen.state == Some(RunState::Running), "the run does not run: {}", why());
    // The first second has its own peaks.
    conductor.turn_until(now() + Nanos::from_secs(1), |_| false);
    let lost_before = conductor.endpoint.dropped_telemetry();
    let before = processes.map(processor_time);
    (conductor.seen.came, conductor.seen.late_ms) = (0, Vec::new());
    let begun = now();
    conductor.turn_until(begun + Nanos::from_secs(seconds), |_| false);
    let took = now().since(begun).as_u64() as f64 / 1e9;
    let mut loads = Vec::new();
    for (pid, before) in processes.into_iter().zip(before) {
        loads.push((100.0 * (processor_time(pid)? - before?) / took, resident_mib(pid)?));
    }
    let dropped = conductor.endpoint.dropped_telemetry() - lost_before;
    let seen = conductor.seen;
    let totals = hall.close()?;
    show(output, &loads, &seen, (took, dropped, &totals))
}

fn show(
    output: &mut Output,
    loads: &[(f64, f64)],
    seen: &Seen,
    (took, dropped, totals): (f64, u64, &[u64]),
) -> anyhow::Result<()> {
    let rate = seen.came as f64 / took;
    let mut late = seen.late_ms.clone();
    late.sort_by(f64::total_cmp);
    let at = |share: usize| late.get(late.len().saturating_sub(1) * share / 100).copied().unwrap_or_default();
    let mut table = Table::new(&["process", "processor time, % of one", "resident, MiB"]);
    let mut groups = Vec::new();
    for (name, (load, memory)) in ["nats-server", "controller", "1000 agents"].into_iter().zip(loads) {
        table.rows.push(vec![name.to_owned(), format!("{load:.1}"), format!("{memory:.0}")]);
        groups.push((name.to_owned(), vec![*load]));
    }
    output.table("counters", &table)?;
    let (skipped, left) = (totals.get(1).copied().unwrap_or(0), totals.get(2).copied().unwrap_or(0));
    output.say(&format!(
        "{rate:.0} counters a second came ({} wanted), {:.2} ms old in the middle and {:.2} ms at the 99th percentile when they \
         were taken in. Overruns: {dropped} dropped at the controller, {left} dropped by agents, {skipped} intervals that an \
         agent was too late for. {} findings.\n",
        AGENTS * 10,
        at(50),
        at(99),
        seen.findings.len()
    ))?;
    let titles = plot::Titles { plot: "1000 agents, counters at 10 Hz", x: "", y: "% of a processor" };
    output.plot("counters", titles.plot, &plot::bars(titles, &["load"], &groups))?;
    // What did not come costs nothing: a figure counts only if nearly all came.
    let whole = rate >= 0.95 * (AGENTS * 10) as f64;
    for (goal, (load, _)) in ["counters_server", "counters_controller"].into_iter().zip(loads) {
        let measured = format!("{load:.1} % of a core for {rate:.0} counters/s");
        output.goal(
            goal,
            &measured,
            &format!("< {WANTED} % for {} /s", AGENTS * 10),
            &(whole && *load < WANTED).into(),
        );
    }
    output.goal(
        "counters_regressions",
        &format!("{} of {} told, {} overruns", seen.regressions, seen.told, dropped + left + skipped),
        "0, overruns counted",
        &Goal::from(whole && seen.regressions == 0),
    );
    Ok(())
}
