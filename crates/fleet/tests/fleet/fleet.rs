//! Controllers, nodes and the network between them, in virtual time. Invariants are asserted at the
//! place of each event.

use crate::node::Node;
use crate::world::{Clock, MS, Random, World};
use packetrig_fleet::agent::AgentEvent;
use packetrig_fleet::controller::{
    ControllerAction, ControllerEvent, ControllerMachine, RunLimits, RunRecord,
};
use packetrig_fleet::message::{MessageBody, MessageHead, NodeCommand, RunPreparation};
use packetrig_report::event::RunEventKind;
use packetrig_report::outcome::{RunOutcome, RunState};
use packetrig_report::{NodeName, PlanHash, RunId};
use packetrig_stats::result::NodeResult;
use packetrig_units::Nanos;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) enum Happening {
    ToNode(usize, usize, MessageBody),
    ToController(usize, MessageBody),
    Upload(usize, u32, Arc<NodeResult>),
    Restarted(usize),
    Stored(usize, u32),
    NodeWakes(usize),
    SendersLook(usize, u64),
    UploadDue(usize),
    ControllerWakes(usize),
    Crash(usize, Option<u64>),
    Restart(usize),
    Freeze(usize, u64),
    Thaw(usize),
    Cut(usize, bool, bool, bool),
    ControllerDies,
    ControllerBegins,
    ControllerFreezes(u64),
    ControllerThaws,
    Deposed(usize),
    Stop,
}

pub(crate) struct Chief {
    pub(crate) machine: ControllerMachine,
    pub(crate) clock: Clock,
    pub(crate) alive: bool,
    pub(crate) frozen: bool,
    pub(crate) waiting: Vec<ControllerEvent>,
    pub(crate) wake: Option<u64>,
    pub(crate) states: Vec<RunState>,
}

pub(crate) struct Fleet {
    pub(crate) world: World,
    pub(crate) random: Random,
    pub(crate) now: u64,
    pub(crate) order: u64,
    pub(crate) queue: BTreeMap<(u64, u64), Happening>,
    pub(crate) held: Vec<(usize, Happening)>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) chiefs: Vec<Chief>,
    pub(crate) record: Option<RunRecord>,
    pub(crate) store: BTreeMap<usize, Arc<NodeResult>>,
    /// True times of every T that was given out.
    pub(crate) starts: BTreeSet<u64>,
    pub(crate) limits: RunLimits,
    pub(crate) refused: u64,
    pub(crate) redelivered: u64,
}

/// Outcome of the simulated run.
pub(crate) struct Ended {
    pub(crate) fleet: Fleet,
    /// Outcome of each controller that saw an end.
    pub(crate) outcomes: Vec<RunOutcome>,
    pub(crate) states: Vec<RunState>,
}

impl Fleet {
    pub(crate) fn new(world: World) -> Self {
        let mut random = Random(world.seed ^ 0x5eed);
        let name = |index| NodeName(format!("node{index:03}"));
        let drift = world.drift_ppm;
        let nodes: Vec<Node> = (0..world.nodes)
            .map(|index| {
                let ppm = i64::try_from(random.below(2 * drift + 1)).expect("small");
                let clock = Clock {
                    offset: random.below(1_000_000) * MS,
                    ppm: ppm - i64::try_from(drift).expect("small"),
                };
                Node::new(name(index), clock)
            })
            .collect();
        let names: Vec<NodeName> = nodes.iter().map(|node| node.name.clone()).collect();
        let head = MessageHead {
            run: RunId("run".into()),
            attempt: 1,
            epoch: 3,
            plan: PlanHash::from_document("plan"),
        };
        let preparation = RunPreparation { document: "plan".into(), ..RunPreparation::default() };
        let limits = RunLimits::for_fleet(Nanos::from_millis(2 * world.delay_ms), Nanos::from_millis(500));
        let machine = ControllerMachine::new(head, preparation, &names, limits).with_policies(world.policies);
        let mut fleet = Self {
            random,
            now: 0,
            order: 0,
            queue: BTreeMap::new(),
            held: vec![],
            nodes,
            chiefs: vec![],
            record: None,
            store: BTreeMap::new(),
            starts: BTreeSet::new(),
            limits,
            refused: 0,
            redelivered: 0,
            world,
        };
        fleet.install(machine);
        fleet.spread_trouble();
        fleet
    }

    /// Number of nodes whose results are stored.
    pub(crate) fn results(&self) -> usize {
        self.store.len()
    }

    pub(crate) fn install(&mut self, machine: ControllerMachine) {
        let clock = Clock { offset: self.random.below(1_000_000) * MS, ppm: 0 };
        self.chiefs.push(Chief {
            machine,
            clock,
            alive: true,
            frozen: false,
            waiting: vec![],
            wake: None,
            states: vec![],
        });
    }

    pub(crate) fn at(&mut self, when: u64, what: Happening) {
        self.order += 1;
        self.queue.insert((when.max(self.now), self.order), what);
    }

    /// Sends over the network, which loses, delays and repeats; `node` is the end that may be cut off.
    pub(crate) fn post(&mut self, node: usize, to_it: bool, what: Happening) {
        let cut = if to_it { self.nodes[node].deaf } else { self.nodes[node].mute } > 0;
        let copies = if self.random.chance(self.world.repeated_percent) { 2 } else { 1 };
        for _ in 0..copies {
            if !cut && !self.random.chance(self.world.lost_percent) {
                let delay = self.random.below(self.world.delay_ms * MS);
                self.at(self.now + delay, what.clone());
            }
        }
    }

    /// Runs until no event is left.
    pub(crate) fn run(mut self) -> Ended {
        self.tell_chief(0, ControllerEvent::Begin);
        while let Some(((at, _), what)) = self.queue.pop_first() {
            assert!(at < 3_600_000 * MS, "it does not end: {:?}", self.world);
            self.now = at;
            self.happen(what);
        }
        crate::checks::at_the_end(&mut self.nodes, self.now);
        let alive = self.chiefs.iter().filter(|chief| chief.alive);
        let outcomes: Vec<RunOutcome> =
            alive.map(|chief| chief.machine.outcome().expect("every run ends").clone()).collect();
        let states = self.chiefs[0].states.clone();
        for chief in self.chiefs.iter().filter(|chief| chief.alive) {
            let outcome = chief.machine.outcome().expect("every run ends").clone();
            crate::checks::results(&outcome, chief.machine.clone().into_results(), &self.nodes);
        }
        Ended { fleet: self, outcomes, states }
    }

    pub(crate) fn happen(&mut self, what: Happening) {
        let about = match &what {
            Happening::ToNode(node, ..)
            | Happening::Stored(node, _)
            | Happening::NodeWakes(node)
            | Happening::SendersLook(node, _)
            | Happening::UploadDue(node) => Some(*node),
            _ => None,
        };
        if let Some(node) = about.filter(|node| self.nodes[*node].frozen.is_some()) {
            return self.held.push((node, what));
        }
        match what {
            Happening::ToNode(node, chief, body) => self.letter_to_node(node, chief, body),
            Happening::NodeWakes(node) if self.nodes[node].wake == Some(self.now) => {
                self.nodes[node].wake = None;
                self.tell_node(node, AgentEvent::Tick);
            }
            Happening::ControllerWakes(chief) if self.chiefs[chief].wake == Some(self.now) => {
                self.chiefs[chief].wake = None;
                self.tell_chief(chief, ControllerEvent::Tick);
            }
            Happening::NodeWakes(_) | Happening::ControllerWakes(_) => {}
            Happening::SendersLook(node, incarnation) => self.senders_look(node, incarnation),
            Happening::ToController(node, body) => self.letter_to_chiefs(node, body),
            Happening::Upload(node, attempt, result) => self.uploaded(node, attempt, result),
            Happening::UploadDue(node) => self.upload(node),
            Happening::Stored(node, attempt) => drop(self.nodes[node].spool.remove(&attempt)),
            Happening::Restarted(node) => {
                let name = self.nodes[node].name.clone();
                self.tell_chiefs(&ControllerEvent::Restarted(name));
            }
            Happening::Stop => self.tell_chief(0, ControllerEvent::Stop),
            Happening::Deposed(chief) => self.tell_chief(chief, ControllerEvent::Deposed),
            trouble => self.trouble(trouble),
        }
    }

    pub(crate) fn letter_to_chiefs(&mut self, node: usize, body: MessageBody) {
        let name = self.nodes[node].name.clone();
        let event = match body {
            MessageBody::Reply(head, reply) => ControllerEvent::Reply(name, head, reply),
            MessageBody::Renew(head, nonce) => ControllerEvent::Renewal(name, head, nonce),
            _ => return,
        };
        self.tell_chiefs(&event);
    }

    pub(crate) fn tell_chiefs(&mut self, event: &ControllerEvent) {
        for chief in 0..self.chiefs.len() {
            self.tell_chief(chief, event.clone());
        }
    }

    pub(crate) fn tell_chief(&mut self, chief: usize, event: ControllerEvent) {
        let one = &mut self.chiefs[chief];
        if !one.alive {
            return;
        }
        if one.frozen {
            return one.waiting.push(event);
        }
        let now = one.clock.shows(self.now);
        let was_over = one.machine.outcome().is_some();
        let actions = one.machine.handle_event(event, now);
        for action in actions {
            assert!(!was_over || !matches!(action, ControllerAction::Emit(_)), "nothing follows the end");
            if !self.perform(chief, action) {
                // Messages after the record are not sent.
                self.tell_chief(chief, ControllerEvent::Deposed);
                break;
            }
        }
        let one = &mut self.chiefs[chief];
        if let Some(at) = one.machine.next_deadline() {
            let at = one.clock.truth(at).max(self.now + MS / 2);
            if one.wake.is_none_or(|wake| at < wake || wake <= self.now) {
                one.wake = Some(at);
                self.at(at, Happening::ControllerWakes(chief));
            }
        }
    }

    /// Returns `false` if another controller has taken over.
    pub(crate) fn perform(&mut self, chief: usize, action: ControllerAction) -> bool {
        match action {
            ControllerAction::Record(record) => {
                if self.record.as_ref().is_some_and(|kept| kept.head.epoch > record.head.epoch) {
                    return false;
                }
                self.record = Some(record);
            }
            ControllerAction::Send(to, head, command) => {
                if matches!(command, NodeCommand::Finish { .. }) {
                    crate::checks::before_finish(&mut self.nodes, self.now, self.limits.drain.as_u64());
                }
                self.check_record(&head, &command);
                let node = self.node(&to);
                self.post(node, true, Happening::ToNode(node, chief, MessageBody::Command(head, command)));
            }
            ControllerAction::Grant(to, head, grant) => {
                let node = self.node(&to);
                if grant.go_on {
                    let sent = self.nodes[node].asked[&grant.nonce];
                    let proven = self.nodes[node].proven.get_or_insert(sent);
                    *proven = (*proven).max(sent);
                }
                self.post(node, true, Happening::ToNode(node, chief, MessageBody::Granted(head, grant)));
            }
            ControllerAction::Emit(RunEventKind::StateChanged(state)) => {
                self.chiefs[chief].states.push(state);
            }
            ControllerAction::Emit(RunEventKind::StartSet { at }) => {
                let truth = self.chiefs[chief].clock.truth(at);
                self.starts.insert(truth);
            }
            ControllerAction::Emit(_) => {}
        }
        true
    }

    /// A reader of the record must find everything that was sent.
    pub(crate) fn check_record(&self, head: &MessageHead, command: &NodeCommand) {
        let record = self.record.as_ref().expect("a record comes before the first command");
        if record.head.epoch != head.epoch {
            return;
        }
        assert!(record.head.attempt == head.attempt, "attempts are recorded first");
        let wanted = match command {
            NodeCommand::Commit { .. } => RunState::Committed,
            NodeCommand::Confirm { .. } => RunState::Confirmed,
            NodeCommand::Finish { .. } => RunState::Collecting,
            _ => RunState::Draft,
        };
        assert!(record.state >= wanted, "{command:?} was sent while the record said {}", record.state);
    }

    pub(crate) fn node(&self, name: &NodeName) -> usize {
        self.nodes.iter().position(|node| node.name == *name).expect("there is one")
    }
}
