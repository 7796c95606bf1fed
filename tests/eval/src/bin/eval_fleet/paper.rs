//! Fleets larger than this machine: the pure parts of a controller, with nodes that answer at once. Processor time of one thread,
//! which other work on the machine does not change much.

use crate::frameless::{FRAMES, hello, receive_result, send_result};
use crate::growth::plan;
use crate::hosted;
use anyhow::Context;
use packetrig_eval::Effort;
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_fleet::controller::{ControllerAction, ControllerEvent, ControllerMachine, RunLimits};
use packetrig_fleet::members::FleetMembers;
use packetrig_fleet::message::{
    MessageBody, MessageEnvelope, MessageHead, NodeCommand, NodeReply, Nonce, RunPreparation, SentTotal,
    StopReason,
};
use packetrig_fleet::{packed, places};
use packetrig_plan::{Plan, PlanParseOptions, PlanPart, PlanPartCutter};
use packetrig_report::outcome::RunOutcome;
use packetrig_report::{AcceptanceCriteria, NodeName, PlanHash, PortPlace, RunFacts, RunId, assemble_report};
use packetrig_stats::result::{CountSample, NodeResult};
use packetrig_units::{MonoTime, Nanos};
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::sync::Arc;

const SIZES: [usize; 3] = [1000, 3000, 10_000];
const QUICK: [usize; 2] = [300, 1000];
/// Nodes whose letters are looked at.
const SOME: usize = 16;
/// Renewals of each node that are measured.
const RENEWALS: u64 = 8;

/// Processor time of this thread, in seconds.
fn spent() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Does it, and says what it took in milliseconds.
fn timed<T>(what: impl FnOnce() -> T) -> (T, f64) {
    let before = spent();
    let done = what();
    (done, 1e3 * (spent() - before))
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    output.say(
        "## Larger fleets, without a network\n\nThe parts of a controller that are pure, in one thread, with nodes that answer at once. \
         Processor time in milliseconds for the whole fleet, if nothing else is said. *A letter* is what one node gets to \
         prepare, in KiB as it travels.\n",
    )?;
    let mut rows: Vec<PaperRow> = Vec::new();
    for nodes in if effort.quick { QUICK.to_vec() } else { SIZES.to_vec() } {
        rows.push(PaperRow::measure(nodes)?);
    }
    let mut head = vec!["part".to_owned()];
    head.extend(rows.iter().map(|row| format!("{} nodes", row.nodes)));
    let mut table = Table { head, rows: Vec::new() };
    let parts = rows.first().map_or(0, |row| row.figures.len());
    for part in 0..parts {
        let mut cells = vec![rows[0].figures[part].0.to_owned()];
        cells.extend(rows.iter().map(|row| format!("{:.1}", row.figures[part].1)));
        table.rows.push(cells);
    }
    output.table("paper", &table)?;
    if let [first, .., last] = rows.as_slice() {
        let factor = last.nodes as f64 / first.nodes as f64;
        let growth = last.total() / first.total();
        output.goal(
            "paper_growth",
            &format!(
                "{growth:.1} times the work for {factor:.1} times the nodes ({} to {})",
                first.nodes, last.nodes
            ),
            &format!("<= {:.0} times", 2.0 * factor),
            &Goal::from(growth <= 2.0 * factor),
        );
    }
    Ok(())
}

struct PaperRow {
    nodes: usize,
    figures: Vec<(&'static str, f64)>,
}

impl PaperRow {
    /// Without what is said of one.
    fn total(&self) -> f64 {
        self.figures.iter().filter(|(name, _)| !name.contains("one")).map(|(_, ms)| ms).sum()
    }

    fn measure(nodes: usize) -> anyhow::Result<Self> {
        let mut figures = Vec::new();
        let document = plan(nodes);
        let reading = PlanParseOptions { seed: 1, fleet: true, ..PlanParseOptions::default() };
        let (read, ms) = timed(|| Plan::from_text_with(&document, reading));
        figures.push(("read the plan", ms));
        let plan = read?;
        let mut members = FleetMembers::default();
        let ((), ms) = timed(|| {
            for node in 0..nodes {
                members.on_hello(&hosted::name(node), hello(), MonoTime::default());
            }
        });
        figures.push(("hear the roll call", ms));
        let (settled, ms) = timed(|| places::assign_places(&plan, &members, None, MonoTime::default()));
        figures.push(("find the ports", ms));
        let places = settled?.places;
        let preparation = RunPreparation {
            document: document.as_str().into(),
            places: places.clone(),
            ..RunPreparation::default()
        };
        letters(&mut figures, nodes, &preparation)?;
        let mut trial = PaperRun::new(nodes, preparation);
        trial.perform(&mut figures)?;
        let results = trial.machine.into_results();
        let facts = facts(nodes, &places);
        let (report, ms) =
            timed(|| assemble_report(&facts, &plan, results, RunOutcome::Complete { stopped: false }));
        figures.push(("assemble the report", ms));
        let (text, ms) = timed(|| serde_json::to_vec(&report));
        figures.push(("write the report", ms));
        figures.push(("the one report, MiB", text?.len() as f64 / 1_048_576.0));
        Ok(Self { nodes, figures })
    }
}

fn facts(nodes: usize, places: &[PortPlace]) -> RunFacts {
    RunFacts {
        run: RunId("r".to_owned()),
        name: "paper".to_owned(),
        plan: PlanHash::from_document("paper"),
        started_wall_ns: 0,
        seed: 1,
        nodes: (0..nodes).map(hosted::name).collect(),
        places: places.to_vec(),
        criteria: AcceptanceCriteria::default(),
        limits: Vec::new(),
        steered: false,
    }
}

/// What a node gets to prepare.
fn letters(
    figures: &mut Vec<(&'static str, f64)>,
    nodes: usize,
    whole: &RunPreparation,
) -> anyhow::Result<()> {
    let (parts, ms) = timed(|| PlanPartCutter::from_document(whole.document.text()));
    figures.push(("take the plan apart", ms));
    let parts = parts.context("it has parts")?;
    let head = MessageHead {
        run: RunId("r".to_owned()),
        attempt: 1,
        epoch: 1,
        plan: PlanHash::from_document(whole.document.text()),
    };
    let mut bytes = 0;
    let (mut making, mut reading) = (0.0, 0.0);
    for node in (0..nodes).step_by(nodes.div_ceil(SOME)) {
        let (packed, ms) = timed(|| {
            let PlanPart { document, ports } = parts.cut_plan_part_for_ports(&[node]);
            let mut places = vec![PortPlace::elsewhere(); nodes];
            for port in ports {
                places[port] = whole.places[port].clone();
            }
            let preparation =
                RunPreparation { document: document.into(), places, ..RunPreparation::default() };
            let body = MessageBody::Command(head.clone(), NodeCommand::Prepare(Box::new(preparation)));
            packed::pack_value(&MessageEnvelope { from: NodeName::controller(), body })
        });
        making += ms;
        let packed = packed?;
        bytes += packed.len();
        let (plan, ms) = timed(|| -> anyhow::Result<Plan> {
            let letter: MessageEnvelope = packed::unpack_value(&packed)?;
            let MessageBody::Command(_, NodeCommand::Prepare(request)) = letter.body else {
                anyhow::bail!("another letter")
            };
            Ok(Plan::from_text_with(
                request.document.text(),
                PlanParseOptions { seed: 1, fleet: true, part: true },
            )?)
        });
        plan?;
        reading += ms;
    }
    let looked_at = (0..nodes).step_by(nodes.div_ceil(SOME)).count() as f64;
    figures.push(("make all letters to prepare", making / looked_at * nodes as f64));
    figures.push(("one letter to prepare, KiB", bytes as f64 / 1024.0 / looked_at));
    figures.push(("read one letter to prepare", reading / looked_at));
    Ok(())
}

/// A run with nodes that answer at once.
struct PaperRun {
    machine: ControllerMachine,
    nodes: usize,
    now: MonoTime,
}

impl PaperRun {
    fn new(nodes: usize, preparation: RunPreparation) -> Self {
        let head = MessageHead {
            run: RunId("r".to_owned()),
            attempt: 1,
            epoch: 1,
            plan: PlanHash::from_document("paper"),
        };
        let names: Vec<NodeName> = (0..nodes).map(hosted::name).collect();
        // Letters are measured apart: what the machine itself does is to be seen.
        let preparation = RunPreparation { document: "".into(), places: Vec::new(), ..preparation };
        let limits = RunLimits::for_fleet(Nanos::from_millis(2), Nanos::from_millis(200));
        let machine = ControllerMachine::new(head, preparation, &names, limits);
        Self { machine, nodes, now: MonoTime::from_nanos(1_000_000_000) }
    }

    fn perform(&mut self, figures: &mut Vec<(&'static str, f64)>) -> anyhow::Result<()> {
        let ((), ms) = timed(|| self.answer_all(ControllerEvent::Begin));
        figures.push(("the run to its start", ms));
        self.now = self.now + Nanos::from_secs(1);
        let ((), ms) = timed(|| self.answer_all(ControllerEvent::Tick));
        figures.push(("the start", ms));
        let head = self.machine.head().clone();
        let ((), ms) = timed(|| {
            for turn in 0..RENEWALS {
                for node in 0..self.nodes {
                    let event = ControllerEvent::Renewal(hosted::name(node), head.clone(), Nonce(turn));
                    self.machine.handle_event(event, self.now);
                }
            }
        });
        figures.push(("one renewal, us", 1e3 * ms / (RENEWALS * self.nodes as u64) as f64));
        let ((), ms) = timed(|| {
            for node in 0..self.nodes {
                let sample = Box::new(CountSample { at: self.now, ..CountSample::default() });
                self.machine.handle_event(
                    ControllerEvent::Telemetry(hosted::name(node), head.clone(), sample),
                    self.now,
                );
            }
        });
        figures.push(("one sample, us", 1e3 * ms / self.nodes as f64));
        let ((), ms) = timed(|| {
            for node in 0..self.nodes {
                let reply = NodeReply::SendersDone { sent: sent(node), why: StopReason::Done };
                self.answer_all(ControllerEvent::Reply(hosted::name(node), head.clone(), reply));
            }
        });
        figures.push(("the end of all senders", ms));
        self.now = self.now + Nanos::from_secs(1);
        let ((), ms) = timed(|| {
            self.answer_all(ControllerEvent::Tick);
        });
        figures.push(("results", ms));
        anyhow::ensure!(
            matches!(self.machine.outcome(), Some(RunOutcome::Complete { .. })),
            "the run is {:?}",
            self.machine.outcome()
        );
        Ok(())
    }

    /// Hands in the event, and the answers to all that is asked then.
    fn answer_all(&mut self, event: ControllerEvent) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.machine.handle_event(event, self.now) {
                if let ControllerAction::Send(to, head, command) = action
                    && let Some(event) = Self::answer(to, head, &command)
                {
                    events.push_back(event);
                }
            }
        }
    }

    fn answer(node: NodeName, head: MessageHead, command: &NodeCommand) -> Option<ControllerEvent> {
        let reply = match command {
            NodeCommand::Prepare(_) => NodeReply::Prepared { ports: Vec::new() },
            NodeCommand::Arm => NodeReply::Armed,
            NodeCommand::Commit { .. } => NodeReply::Committed,
            NodeCommand::Confirm { .. } => NodeReply::Confirmed,
            NodeCommand::Query => NodeReply::Started,
            NodeCommand::Finish { .. } => {
                let number = node.0.trim_start_matches('n').parse().unwrap_or(0);
                return Some(ControllerEvent::Collected(node, Arc::new(result(number))));
            }
            _ => return None,
        };
        Some(ControllerEvent::Reply(node, head, reply))
    }
}

/// Even nodes send to the next one.
fn sent(node: usize) -> Vec<SentTotal> {
    if node.is_multiple_of(2) { vec![SentTotal { stream: node / 2, frames: FRAMES }] } else { Vec::new() }
}

fn result(node: usize) -> NodeResult {
    let mut result = NodeResult { node: hosted::name(node).0, ..NodeResult::default() };
    if node.is_multiple_of(2) {
        result.send.push(send_result(node / 2, FRAMES));
    } else {
        result.receive.push(receive_result(node / 2, node, FRAMES));
    }
    result
}
