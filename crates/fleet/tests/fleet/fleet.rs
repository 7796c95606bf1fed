//! Controllers, nodes and the network between them, in virtual time. What must hold at every moment is asserted where it
//! happens.

use crate::node::{Node, Sending};
use crate::world::{Clock, MS, Random, World};
use packetrig_fleet::NodeName;
use packetrig_fleet::agent::{Action as Order, Event as AgentEvent};
use packetrig_fleet::controller::{Action, Controller, Event, Limits, RunRecord};
use packetrig_fleet::event::RunEventKind;
use packetrig_fleet::message::{Body, Command, Head, PlanHash, Preparation, Reply, RunId, SentTotal};
use packetrig_fleet::outcome::{Outcome, RunState};
use packetrig_stats::result::NodeResult;
use packetrig_units::{MonoTime, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Happening {
    ToNode(usize, usize, Body),
    ToController(usize, Body),
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

struct Chief {
    machine: Controller,
    clock: Clock,
    alive: bool,
    frozen: bool,
    waiting: Vec<Event>,
    wake: Option<u64>,
    states: Vec<RunState>,
}

pub(crate) struct Fleet {
    pub(crate) world: World,
    random: Random,
    now: u64,
    order: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    held: Vec<(usize, Happening)>,
    pub(crate) nodes: Vec<Node>,
    chiefs: Vec<Chief>,
    record: Option<RunRecord>,
    store: BTreeMap<usize, Arc<NodeResult>>,
    /// True instants of every T that was given out.
    starts: BTreeSet<u64>,
    limits: Limits,
    pub(crate) refused: u64,
    pub(crate) redelivered: u64,
}

/// What came out of it.
pub(crate) struct Ended {
    pub(crate) fleet: Fleet,
    /// Of each controller that saw an end.
    pub(crate) outcomes: Vec<Outcome>,
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
        let head = Head { run: RunId("run".into()), attempt: 1, epoch: 3, plan: PlanHash::of("plan") };
        let preparation = Preparation { document: "plan".into(), ..Preparation::default() };
        let limits = Limits::fleet(Nanos::from_millis(2 * world.delay_ms), Nanos::from_millis(500));
        let machine = Controller::new(head, preparation, &names, limits).with_policies(world.policies);
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

    /// How many nodes' results are stored.
    pub(crate) fn results(&self) -> usize {
        self.store.len()
    }

    fn install(&mut self, machine: Controller) {
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

    fn spread_trouble(&mut self) {
        let world = self.world.clone();
        for (node, at, restart) in world.crashes {
            self.at(at * MS, Happening::Crash(node, restart.map(|ms| ms * MS)));
        }
        for (node, from, to) in world.freezes {
            self.at(from * MS, Happening::Freeze(node, (to - from) * MS));
        }
        for (node, from, to, deaf, mute) in world.cuts {
            self.at(from * MS, Happening::Cut(node, true, deaf, mute));
            self.at(to * MS, Happening::Cut(node, false, deaf, mute));
        }
        if let Some((at, next)) = world.controller_dies {
            self.at(at * MS, Happening::ControllerDies);
            self.at(next * MS, Happening::ControllerBegins);
        }
        if let Some((from, to)) = world.controller_frozen {
            self.at(from * MS, Happening::ControllerFreezes((to - from) * MS));
            self.at(from * MS + 15_000 * MS, Happening::ControllerBegins);
        }
        if let Some(at) = world.stop_at {
            self.at(at * MS, Happening::Stop);
        }
    }

    fn at(&mut self, when: u64, what: Happening) {
        self.order += 1;
        self.queue.insert((when.max(self.now), self.order), what);
    }

    /// Over the network, which loses, delays and repeats; `node` is the end that may be cut off.
    fn post(&mut self, node: usize, to_it: bool, what: Happening) {
        let cut = if to_it { self.nodes[node].deaf } else { self.nodes[node].mute } > 0;
        let copies = if self.random.chance(self.world.repeated_percent) { 2 } else { 1 };
        for _ in 0..copies {
            if !cut && !self.random.chance(self.world.lost_percent) {
                let delay = self.random.below(self.world.delay_ms * MS);
                self.at(self.now + delay, what.clone());
            }
        }
    }

    /// Until nothing happens any more.
    pub(crate) fn run(mut self) -> Ended {
        self.tell_chief(0, Event::Begin);
        while let Some(((at, _), what)) = self.queue.pop_first() {
            assert!(at < 3_600_000 * MS, "it does not end: {:?}", self.world);
            self.now = at;
            self.happen(what);
        }
        crate::checks::at_the_end(&mut self.nodes, self.now);
        let alive = self.chiefs.iter().filter(|chief| chief.alive);
        let outcomes: Vec<Outcome> =
            alive.map(|chief| chief.machine.outcome().expect("every run ends").clone()).collect();
        let states = self.chiefs[0].states.clone();
        for chief in self.chiefs.iter().filter(|chief| chief.alive) {
            let outcome = chief.machine.outcome().expect("every run ends").clone();
            crate::checks::results(&outcome, chief.machine.clone().into_results(), &self.nodes);
        }
        Ended { fleet: self, outcomes, states }
    }

    fn happen(&mut self, what: Happening) {
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
            Happening::ToNode(node, chief, body) => self.to_node(node, chief, body),
            Happening::NodeWakes(node) if self.nodes[node].wake == Some(self.now) => {
                self.nodes[node].wake = None;
                self.tell_node(node, AgentEvent::Tick);
            }
            Happening::ControllerWakes(chief) if self.chiefs[chief].wake == Some(self.now) => {
                self.chiefs[chief].wake = None;
                self.tell_chief(chief, Event::Tick);
            }
            Happening::NodeWakes(_) | Happening::ControllerWakes(_) => {}
            Happening::SendersLook(node, incarnation) => self.senders_look(node, incarnation),
            Happening::ToController(node, body) => self.to_chiefs(node, body),
            Happening::Upload(node, attempt, result) => self.uploaded(node, attempt, result),
            Happening::UploadDue(node) => self.upload(node),
            Happening::Stored(node, attempt) => drop(self.nodes[node].spool.remove(&attempt)),
            Happening::Restarted(node) => {
                let name = self.nodes[node].name.clone();
                self.tell_chiefs(&Event::Restarted(name));
            }
            Happening::Stop => self.tell_chief(0, Event::Stop),
            Happening::Deposed(chief) => self.tell_chief(chief, Event::Deposed),
            trouble => self.trouble(trouble),
        }
    }

    fn trouble(&mut self, what: Happening) {
        match what {
            Happening::Crash(node, restart) if self.nodes[node].alive => {
                self.nodes[node].crash(self.now);
                self.held.retain(|(held, _)| *held != node);
                if let Some(after) = restart {
                    self.at(self.now + after, Happening::Restart(node));
                }
            }
            Happening::Restart(node) => {
                self.nodes[node].restart();
                for second in 0..5 {
                    let copy = self.now + second * 1000 * MS;
                    if self.nodes[node].mute == 0 {
                        self.at(copy, Happening::Restarted(node));
                    }
                }
                self.at(self.now, Happening::UploadDue(node));
            }
            Happening::Freeze(node, length)
                if self.nodes[node].alive && self.nodes[node].frozen.is_none() =>
            {
                self.nodes[node].settle(self.now);
                self.nodes[node].frozen = Some(self.now);
                self.at(self.now + length, Happening::Thaw(node));
            }
            Happening::Thaw(node) => self.thaw(node),
            Happening::Cut(node, begins, deaf, mute) => {
                let node = &mut self.nodes[node];
                let change = |count: &mut u32| *count = if begins { *count + 1 } else { *count - 1 };
                if deaf {
                    change(&mut node.deaf);
                }
                if mute {
                    change(&mut node.mute);
                }
            }
            Happening::ControllerDies => self.chiefs[0].alive = false,
            Happening::ControllerBegins => self.take_over(),
            Happening::ControllerFreezes(length) => {
                self.chiefs[0].frozen = true;
                self.at(self.now + length, Happening::ControllerThaws);
            }
            Happening::ControllerThaws => {
                self.chiefs[0].frozen = false;
                for event in std::mem::take(&mut self.chiefs[0].waiting) {
                    self.tell_chief(0, event);
                }
                self.tell_chief(0, Event::Tick);
                if self.chiefs.len() > 1 {
                    // Its next refresh of the lock is refused.
                    let after = self.random.below(2000 * MS);
                    self.at(self.now + after, Happening::Deposed(0));
                }
            }
            _ => {}
        }
    }

    /// The gate is looked at before anything else, and nothing was sent in the meantime.
    fn thaw(&mut self, node: usize) {
        let Some(since) = self.nodes[node].frozen else { return };
        self.nodes[node].settle(since);
        self.nodes[node].frozen = None;
        let frozen = &mut self.nodes[node];
        let shut = frozen.gate.map_or(0, |gate| frozen.clock.truth(gate));
        if let Some(sending) = &mut frozen.sending
            && sending.ended.is_none()
            && shut <= self.now
        {
            // Neither a frame at the old end nor now.
            sending.ended = Some((since.max(sending.from), true));
            if sending.from < since {
                frozen.last_frame = Some(since);
            }
        }
        let (held, kept) = std::mem::take(&mut self.held).into_iter().partition(|(held, _)| *held == node);
        self.held = kept;
        let held: Vec<_> = held;
        self.nodes[node].wake = None;
        for (_, what) in held {
            self.happen(what);
        }
        let incarnation = self.nodes[node].incarnation;
        self.at(self.now, Happening::SendersLook(node, incarnation));
        self.tell_node(node, AgentEvent::Tick);
    }

    fn take_over(&mut self) {
        let Some(record) = self.record.clone().filter(RunRecord::is_unfinished) else { return };
        let epoch = record.head.epoch + 1;
        self.install(Controller::collecting(record, epoch, self.limits));
        let chief = self.chiefs.len() - 1;
        self.tell_chief(chief, Event::Begin);
        for (node, result) in self.store.clone() {
            let name = self.nodes[node].name.clone();
            self.tell_chief(chief, Event::Collected(name, result));
        }
    }

    fn to_chiefs(&mut self, node: usize, body: Body) {
        let name = self.nodes[node].name.clone();
        let event = match body {
            Body::Reply(head, reply) => Event::Reply(name, head, reply),
            Body::Renew(head, nonce) => Event::Renewal(name, head, nonce),
            _ => return,
        };
        self.tell_chiefs(&event);
    }

    fn tell_chiefs(&mut self, event: &Event) {
        for chief in 0..self.chiefs.len() {
            self.tell_chief(chief, event.clone());
        }
    }

    fn tell_chief(&mut self, chief: usize, event: Event) {
        let one = &mut self.chiefs[chief];
        if !one.alive {
            return;
        }
        if one.frozen {
            return one.waiting.push(event);
        }
        let now = one.clock.shows(self.now);
        let was_over = one.machine.outcome().is_some();
        let actions = one.machine.handle(event, now);
        for action in actions {
            assert!(!was_over || !matches!(action, Action::Emit(_)), "nothing follows the end");
            if !self.perform(chief, action) {
                // What follows the record is not sent.
                self.tell_chief(chief, Event::Deposed);
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

    /// `false`: somebody else has taken over.
    fn perform(&mut self, chief: usize, action: Action) -> bool {
        match action {
            Action::Record(record) => {
                if self.record.as_ref().is_some_and(|kept| kept.head.epoch > record.head.epoch) {
                    return false;
                }
                self.record = Some(record);
            }
            Action::Send(to, head, command) => {
                if matches!(command, Command::Finish { .. }) {
                    crate::checks::before_finish(&mut self.nodes, self.now, self.limits.drain.as_u64());
                }
                self.check_record(&head, &command);
                let node = self.node(&to);
                self.post(node, true, Happening::ToNode(node, chief, Body::Command(head, command)));
            }
            Action::Grant(to, head, grant) => {
                let node = self.node(&to);
                if grant.go_on {
                    let sent = self.nodes[node].asked[&grant.nonce];
                    let proven = self.nodes[node].proven.get_or_insert(sent);
                    *proven = (*proven).max(sent);
                }
                self.post(node, true, Happening::ToNode(node, chief, Body::Granted(head, grant)));
            }
            Action::Emit(RunEventKind::StateChanged(state)) => self.chiefs[chief].states.push(state),
            Action::Emit(RunEventKind::StartSet { at }) => {
                let truth = self.chiefs[chief].clock.truth(at);
                self.starts.insert(truth);
            }
            Action::Emit(_) => {}
        }
        true
    }

    /// Whoever reads the record must know of everything that was sent.
    fn check_record(&self, head: &Head, command: &Command) {
        let record = self.record.as_ref().expect("a record comes before the first command");
        if record.head.epoch != head.epoch {
            return;
        }
        assert!(record.head.attempt == head.attempt, "attempts are recorded first");
        let wanted = match command {
            Command::Commit { .. } => RunState::Committed,
            Command::Confirm { .. } => RunState::Confirmed,
            Command::Finish { .. } => RunState::Collecting,
            _ => RunState::Draft,
        };
        assert!(record.state >= wanted, "{command:?} was sent while the record said {}", record.state);
    }

    fn node(&self, name: &NodeName) -> usize {
        self.nodes.iter().position(|node| node.name == *name).expect("there is one")
    }

    fn to_node(&mut self, index: usize, chief: usize, body: Body) {
        match body {
            Body::Command(head, command) => {
                let epoch = head.epoch;
                let event = AgentEvent::Command(head, self.converted(index, chief, command));
                self.tell_on_epoch(index, event, epoch);
            }
            Body::Granted(head, grant) => {
                let epoch = head.epoch;
                self.tell_on_epoch(index, AgentEvent::Granted(head, grant), epoch);
            }
            _ => {}
        }
    }

    /// T on the node's clock, as well as the node knows it.
    fn converted(&mut self, index: usize, chief: usize, mut command: Command) -> Command {
        let bound = self.world.bound_us * 1000;
        if let Command::Commit { start, .. } | Command::Confirm { start } = &mut command {
            let error = self.random.below(2 * bound + 1);
            let truth = self.chiefs[chief].clock.truth(*start);
            *start = self.nodes[index].clock.shows(truth + error - bound.min(truth));
        }
        command
    }

    fn tell_on_epoch(&mut self, index: usize, event: AgentEvent, epoch: u64) {
        let node = &mut self.nodes[index];
        if !node.alive {
            return;
        }
        let is_old = epoch < node.told_epoch;
        if matches!(event, AgentEvent::Command(..)) {
            node.told_epoch = node.told_epoch.max(epoch);
        }
        if !is_old {
            return self.tell_node(index, event);
        }
        node.settle(self.now);
        let now = node.clock.shows(self.now);
        for order in node.agent.handle(event, now) {
            let Order::Reply(head, Reply::Refused(why)) = order else {
                panic!("{order:?} was done on the old epoch {epoch}")
            };
            self.refused += 1;
            self.post(index, false, Happening::ToController(index, Body::Reply(head, Reply::Refused(why))));
        }
    }

    fn tell_node(&mut self, index: usize, event: AgentEvent) {
        let node = &mut self.nodes[index];
        if !node.alive {
            return;
        }
        node.settle(self.now);
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let now = self.nodes[index].clock.shows(self.now);
            for order in self.nodes[index].agent.handle(event, now) {
                events.extend(self.obey(index, order));
            }
        }
        let node = &mut self.nodes[index];
        if let Some(at) = node.agent.next_deadline() {
            let at = node.clock.truth(at).max(self.now + MS / 2);
            if node.wake.is_none_or(|wake| at < wake || wake <= self.now) {
                node.wake = Some(at);
                self.at(at, Happening::NodeWakes(index));
            }
        }
    }

    fn obey(&mut self, index: usize, order: Order) -> Option<AgentEvent> {
        let now = self.now;
        match order {
            Order::Reply(head, reply) => {
                self.post(index, false, Happening::ToController(index, Body::Reply(head, reply)));
            }
            Order::Renew(head, nonce) => {
                assert!(self.nodes[index].asked.insert(nonce, now).is_none(), "a nonce is used once");
                self.post(index, false, Happening::ToController(index, Body::Renew(head, nonce)));
            }
            Order::Remember(epoch) => self.nodes[index].epoch = epoch,
            Order::Prepare(_) => return Some(AgentEvent::Prepared(vec![])),
            Order::Arm => {
                self.nodes[index].receiving = true;
                return Some(AgentEvent::Armed);
            }
            Order::Extend(until) => {
                self.nodes[index].gate = Some(until);
                let shut = self.nodes[index].clock.truth(until);
                let incarnation = self.nodes[index].incarnation;
                self.at(shut, Happening::SendersLook(index, incarnation));
            }
            Order::StartAt(start) => self.start(index, start),
            Order::Steer(order) => return Some(AgentEvent::Steered(order.number, None, Box::default())),
            Order::StopSenders => {
                let told = now + self.random.below(10 * MS);
                let node = &mut self.nodes[index];
                if let Some(sending) = &mut node.sending {
                    sending.told.get_or_insert(told);
                    // What has not begun does not begin.
                    sending.from = sending.from.min(told.max(now));
                }
                let incarnation = node.incarnation;
                self.at(told, Happening::SendersLook(index, incarnation));
            }
            Order::Finish(_) => {
                let node = &mut self.nodes[index];
                assert!(!node.is_sending(now), "receivers do not stop before their own senders");
                node.receiving = false;
                node.finished += 1;
                let result = NodeResult { node: node.name.to_string(), ..NodeResult::default() };
                return Some(AgentEvent::Finished(Arc::new(result)));
            }
            Order::Spool(result) => {
                let attempt = self.nodes[index].agent.head().map_or(0, |head| head.attempt);
                self.nodes[index].spool.insert(attempt, result);
                self.at(now, Happening::UploadDue(index));
                return Some(AgentEvent::Spooled { segments: 1 });
            }
            Order::Release => self.nodes[index].close(now),
        }
        None
    }

    fn start(&mut self, index: usize, start: MonoTime) {
        let from = self.nodes[index].clock.truth(start);
        let bound = self.world.bound_us * 1000 + 10;
        let is_given = self.starts.iter().any(|given| given.abs_diff(from) <= bound);
        assert!(is_given && from > self.now, "it starts at a T that was given out, within the bound");
        assert!(self.nodes[index].receiving);
        let until = from + self.world.length * MS;
        self.nodes[index].sending = Some(Sending { from, until, told: None, ended: None });
        let incarnation = self.nodes[index].incarnation;
        self.at(until, Happening::SendersLook(index, incarnation));
    }

    /// The shell looks whether the senders are done.
    fn senders_look(&mut self, index: usize, incarnation: u64) {
        let node = &mut self.nodes[index];
        if !node.alive || node.incarnation != incarnation {
            return;
        }
        node.settle(self.now);
        let Some((_, shut)) = node.sending.as_ref().and_then(|sending| sending.ended) else { return };
        if !node.agent.awaits_senders() {
            return self.at(self.now + 5 * MS, Happening::SendersLook(index, incarnation));
        }
        node.sending = None;
        let sent = vec![SentTotal { stream: index, frames: 100 }];
        self.tell_node(index, AgentEvent::SendersDone { sent, shut });
    }

    /// The node sends what waits on its disk, again and again until it is stored.
    fn upload(&mut self, index: usize) {
        let over = self.chiefs.iter().all(|chief| !chief.alive || chief.machine.outcome().is_some());
        if !self.nodes[index].alive || self.nodes[index].spool.is_empty() || (over && self.now > 200_000 * MS)
        {
            return;
        }
        for (attempt, result) in self.nodes[index].spool.clone() {
            self.post(index, false, Happening::Upload(index, attempt, result));
        }
        self.at(self.now + 700 * MS, Happening::UploadDue(index));
    }

    fn uploaded(&mut self, index: usize, attempt: u32, result: Arc<NodeResult>) {
        if !self.chiefs.iter().any(|chief| chief.alive && !chief.frozen) {
            return;
        }
        if self.store.insert(index, Arc::clone(&result)).is_some() {
            self.redelivered += 1;
        }
        let name = self.nodes[index].name.clone();
        self.tell_chiefs(&Event::Collected(name, result));
        self.post(index, true, Happening::Stored(index, attempt));
    }
}
