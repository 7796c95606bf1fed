//! Controller and agents in virtual time, over a network that delays, loses and repeats, with agents that fail and die.

use packetrig_fleet::agent::{AgentAction as Order, AgentEvent, AgentMachine, CONFIRM_MARGIN};
use packetrig_fleet::controller::{ControllerAction, ControllerEvent, ControllerMachine, RunLimits};
use packetrig_fleet::message::{MessageHead, NodeCommand, NodeReply, RunPreparation, SentTotal};
use packetrig_report::event::RunEventKind;
use packetrig_report::outcome::{NodeFault, RunOutcome, RunState};
use packetrig_report::{NodeName, PlanHash, RunId};
use packetrig_stats::result::NodeResult;
use packetrig_stats::terms::SharedRunOptions;
use packetrig_units::Blame;
use packetrig_units::{MonoTime, Nanos};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const LIMITS: RunLimits = RunLimits {
    lead: Nanos::from_secs(2),
    guard: Nanos::from_millis(300),
    margin: CONFIRM_MARGIN,
    arming_rounds: 3,
    attempts: 3,
    prepare: Nanos::from_secs(30),
    start: Nanos::from_secs(5),
    silence: Nanos::from_secs(5),
    stop: Nanos::from_secs(5),
    drain: Nanos::from_secs(1),
    collect: Nanos::from_secs(10),
    repeat: Nanos::from_millis(200),
    confirm: Nanos::from_secs(5),
    late: Nanos::ZERO,
    query: Nanos::from_millis(800),
    insist: Nanos::from_millis(200),
    lease: None,
};
const PATIENCE: Nanos = Nanos::from_secs(20);

/// Faults of a world for one run.
#[derive(Clone, Debug)]
struct World {
    seed: u64,
    agents: usize,
    lost_percent: u64,
    repeated_percent: u64,
    least_ms: u64,
    delay_ms: u64,
    crashes: usize,
    failures: usize,
    stop_at_ms: Option<u64>,
    endless: bool,
    /// True if controller and node are in one process, with the limits for that.
    one_process: bool,
}

impl World {
    fn calm(agents: usize) -> Self {
        Self {
            seed: 1,
            agents,
            lost_percent: 0,
            repeated_percent: 0,
            least_ms: 0,
            delay_ms: 10,
            crashes: 0,
            failures: 0,
            stop_at_ms: None,
            endless: false,
            one_process: false,
        }
    }
}

#[derive(Clone, Debug)]
enum Happening {
    ToAgent(usize, MessageHead, NodeCommand),
    ToController(usize, MessageHead, NodeReply),
    AgentTick(usize),
    SenderEnds(usize),
    ControllerTick,
    Stop,
}

/// A node with its data plane.
struct Node {
    agent: AgentMachine,
    name: NodeName,
    dies: Option<MonoTime>,
    fails_at: Option<&'static str>,
    receiving: bool,
    sending_from: Option<MonoTime>,
    sender_ended: Option<MonoTime>,
    finished: Vec<(MonoTime, Vec<SentTotal>)>,
}

struct Simulation {
    world: World,
    random: u64,
    now: MonoTime,
    order: u64,
    queue: BTreeMap<(MonoTime, u64), Happening>,
    controller: ControllerMachine,
    nodes: Vec<Node>,
    states: Vec<RunState>,
    starts: BTreeSet<MonoTime>,
}

fn name(index: usize) -> NodeName {
    NodeName(format!("node{index:02}"))
}

impl Simulation {
    fn new(world: World) -> Self {
        let plan = PlanHash::from_document("plan");
        let head = MessageHead { run: RunId("run".into()), attempt: 1, epoch: 3, plan };
        let preparation = RunPreparation {
            document: "plan".into(),
            terms: SharedRunOptions { tag_key: 1, seed: 2, ..SharedRunOptions::default() },
            ..RunPreparation::default()
        };
        let names: Vec<NodeName> = (0..world.agents).map(name).collect();
        let limits = if world.one_process { RunLimits::for_local(LIMITS.drain) } else { LIMITS };
        let nodes = names.iter().map(|name| Node {
            agent: if world.one_process {
                AgentMachine::new_local(PATIENCE)
            } else {
                AgentMachine::new(PATIENCE)
            },
            name: name.clone(),
            dies: None,
            fails_at: None,
            receiving: false,
            sending_from: None,
            sender_ended: None,
            finished: vec![],
        });
        let mut simulation = Self {
            random: world.seed,
            now: MonoTime::from_nanos(1_000_000_000),
            order: 0,
            queue: BTreeMap::new(),
            controller: ControllerMachine::new(head, preparation, &names, limits),
            nodes: nodes.collect(),
            states: vec![],
            starts: BTreeSet::new(),
            world,
        };
        simulation.spread_trouble();
        simulation
    }

    fn spread_trouble(&mut self) {
        for _ in 0..self.world.crashes {
            let (victim, at) = (self.pick(self.world.agents), self.below(12_000));
            self.nodes[victim].dies = Some(self.now + Nanos::from_millis(at));
        }
        for _ in 0..self.world.failures {
            let victim = self.pick(self.world.agents);
            let step = ["prepare", "arm", "send", "finish"][self.pick(4)];
            self.nodes[victim].fails_at = Some(step);
        }
        if let Some(at) = self.world.stop_at_ms {
            self.at(self.now + Nanos::from_millis(at), Happening::Stop);
        }
    }

    /// The generator splitmix64, for reproducible seeds.
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }

    fn pick(&mut self, of: usize) -> usize {
        let drawn = self.below(u64::try_from(of).expect("a handful"));
        usize::try_from(drawn).expect("below a usize")
    }

    fn at(&mut self, when: MonoTime, what: Happening) {
        self.order += 1;
        self.queue.insert((when.max(self.now), self.order), what);
    }

    /// The network between controller and agents.
    fn post(&mut self, what: Happening) {
        let copies = if self.below(100) < self.world.repeated_percent { 2 } else { 1 };
        for _ in 0..copies {
            if self.below(100) >= self.world.lost_percent {
                let delay =
                    Nanos::from_micros(self.world.least_ms * 1000 + self.below(self.world.delay_ms * 1000));
                self.at(self.now + delay, what.clone());
            }
        }
    }

    /// Runs until the controller is done and every agent had time to notice.
    fn run(mut self) -> Self {
        self.tell_controller(ControllerEvent::Begin);
        let hour = self.now + Nanos::from_secs(3600);
        while let Some(((at, _), what)) = self.queue.pop_first() {
            assert!(at < hour, "the run does not end: {:?}", self.world);
            self.now = at;
            self.happen(what);
        }
        self
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::ToAgent(to, head, command) => self.tell_agent(to, AgentEvent::Command(head, command)),
            Happening::AgentTick(index) => self.tell_agent(index, AgentEvent::Tick),
            Happening::SenderEnds(index) => self.sender_ends(index),
            Happening::ToController(from, head, reply) => {
                self.tell_controller(ControllerEvent::Reply(name(from), head, reply));
            }
            Happening::ControllerTick => self.tell_controller(ControllerEvent::Tick),
            Happening::Stop => self.tell_controller(ControllerEvent::Stop),
        }
    }

    fn tell_controller(&mut self, event: ControllerEvent) {
        let ended = self.controller.outcome().is_some();
        let tick = event == ControllerEvent::Tick;
        for action in self.controller.handle_event(event, self.now) {
            match action {
                ControllerAction::Send(to, head, command) => {
                    let index =
                        (0..self.world.agents).find(|index| name(*index) == to).expect("there is one");
                    self.post(Happening::ToAgent(index, head, command));
                }
                ControllerAction::Emit(RunEventKind::StateChanged(state)) => {
                    assert!(!ended, "nothing follows the end");
                    self.states.push(state);
                }
                ControllerAction::Emit(RunEventKind::StartSet { at }) => drop(self.starts.insert(at)),
                _ => {}
            }
        }
        // One chain of ticks: each tick asks for the next.
        if (tick || self.order == 0 || !self.queue.values().any(|w| matches!(w, Happening::ControllerTick)))
            && let Some(at) = self.controller.next_deadline()
        {
            let soonest = self.now + Nanos::from_millis(1);
            self.at(at.max(soonest), Happening::ControllerTick);
        }
    }

    fn tell_agent(&mut self, index: usize, event: AgentEvent) {
        if self.nodes[index].dies.is_some_and(|dies| self.now >= dies) {
            self.nodes[index].sending_from = None;
            return;
        }
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for order in self.nodes[index].agent.handle_event(event, self.now) {
                events.extend(self.perform(index, order));
            }
        }
        let ticking = self.queue.values().any(|what| matches!(what, Happening::AgentTick(i) if *i == index));
        if let Some(at) =
            self.nodes[index].agent.next_deadline().filter(|at| !ticking || *at < self.next_tick(index))
        {
            self.at(at, Happening::AgentTick(index));
        }
    }

    fn next_tick(&self, index: usize) -> MonoTime {
        let of = |what: &Happening| matches!(what, Happening::AgentTick(i) if *i == index);
        self.queue.iter().find(|(_, what)| of(what)).map(|((at, _), _)| *at).expect("it is ticking")
    }

    fn perform(&mut self, index: usize, order: Order) -> Option<AgentEvent> {
        let fails =
            |step| (self.nodes[index].fails_at == Some(step)).then(|| AgentEvent::Failed(fault(step)));
        match order {
            Order::Reply(head, reply) => {
                self.post(Happening::ToController(index, head, reply));
                None
            }
            Order::Prepare(_) => Some(fails("prepare").unwrap_or_else(|| AgentEvent::Prepared(vec![]))),
            Order::Arm => Some(fails("arm").unwrap_or_else(|| {
                self.nodes[index].receiving = true;
                AgentEvent::Armed
            })),
            Order::StartAt(start) => {
                assert!(self.starts.contains(&start) && start > self.now);
                assert!(
                    self.nodes.iter().all(|node| node.receiving),
                    "nothing is started before all are armed"
                );
                self.nodes[index].sending_from = Some(start);
                if !self.world.endless {
                    let length = Nanos::from_millis(500 + self.below(3000));
                    self.at(start + length, Happening::SenderEnds(index));
                }
                None
            }
            Order::Steer(_) | Order::Step(..) => unreachable!("the run is not steered"),
            Order::StopSenders => {
                self.at(self.now + Nanos::from_millis(2), Happening::SenderEnds(index));
                None
            }
            Order::Finish(sent) => {
                let node = &mut self.nodes[index];
                assert!(node.sending_from.is_none(), "receivers do not stop before their own senders");
                node.finished.push((self.now, sent));
                let result = NodeResult { node: node.name.to_string(), ..NodeResult::default() };
                let failed = (node.fails_at == Some("finish")).then(|| AgentEvent::Failed(fault("finish")));
                Some(failed.unwrap_or_else(|| AgentEvent::Finished(Arc::new(result))))
            }
            Order::Remember(_) | Order::Renew(..) | Order::Extend(_) | Order::Spool(_) => None,
            Order::Release => {
                self.nodes[index].sending_from = None;
                None
            }
        }
    }

    fn sender_ends(&mut self, index: usize) {
        if self.nodes[index].sending_from.is_none() || !self.nodes[index].agent.awaits_senders() {
            return;
        }
        if self.nodes[index].fails_at == Some("send") {
            return self.tell_agent(index, AgentEvent::Failed(fault("send")));
        }
        self.nodes[index].sending_from = None;
        self.nodes[index].sender_ended = Some(self.now);
        self.tell_agent(
            index,
            AgentEvent::SendersDone {
                sent: vec![SentTotal { stream: index, frames: 100 }],
                lease_ended: false,
            },
        );
    }

    /// Invariants that hold in every world.
    fn check(self) -> RunOutcome {
        let outcome = self.controller.outcome().expect("every run ends").clone();
        assert_eq!(self.states.last(), Some(&outcome.state()));
        let dead = |node: &Node| node.dies.is_some_and(|dies| self.now >= dies);
        for node in self.nodes.iter().filter(|node| !dead(node)) {
            assert!(node.sending_from.is_none(), "{} still sends", node.name);
            assert!(node.agent.is_idle(), "{} still takes part", node.name);
            assert!(node.finished.len() <= 1, "accounts are closed once");
        }
        let results = self.controller.into_results();
        let names: BTreeSet<&str> = results.iter().map(|result| result.node.as_str()).collect();
        assert_eq!(names.len(), results.len(), "a result is counted once");
        if let RunOutcome::Complete { .. } = outcome {
            assert_eq!(results.len(), self.nodes.len(), "no COMPLETE with missing data");
            let last_sender =
                self.nodes.iter().filter_map(|node| node.sender_ended).max().expect("there is one");
            let first_receiver =
                self.nodes.iter().map(|node| node.finished[0].0).min().expect("there is one");
            assert!(first_receiver >= last_sender + LIMITS.drain, "receivers outlive senders by the drain");
            for node in &self.nodes {
                assert_eq!(
                    node.finished[0].1.len(),
                    self.nodes.len(),
                    "receivers know what every stream sent"
                );
            }
        }
        if matches!(outcome, RunOutcome::Failed { .. } | RunOutcome::Aborted) {
            assert!(results.is_empty());
        }
        outcome
    }
}

fn fault(step: &str) -> NodeFault {
    NodeFault { blame: Blame::World, text: format!("{step} failed") }
}

fn outcome_of(world: World) -> RunOutcome {
    Simulation::new(world).run().check()
}

#[test]
fn calm_run_passes_every_state() {
    let simulation = Simulation::new(World::calm(5)).run();
    let wanted = [
        RunState::Preparing,
        RunState::Armed,
        RunState::Committed,
        RunState::Confirmed,
        RunState::Running,
        RunState::Draining,
        RunState::Collecting,
        RunState::Complete,
    ];
    assert_eq!(simulation.states, wanted);
    assert_eq!(simulation.check(), RunOutcome::Complete { stopped: false });
}

#[test]
fn stop_before_start_aborts_after_start_completes() {
    let stopped = |at| outcome_of(World { stop_at_ms: Some(at), endless: true, ..World::calm(3) });
    assert_eq!(stopped(1), RunOutcome::Aborted);
    assert_eq!(stopped(1000), RunOutcome::Aborted);
    assert_eq!(stopped(4000), RunOutcome::Complete { stopped: true });
}

#[test]
fn node_death_while_sending_makes_run_partial() {
    let mut simulation = Simulation::new(World { endless: true, ..World::calm(4) });
    simulation.nodes[2].dies = Some(simulation.now + Nanos::from_secs(4));
    let RunOutcome::Partial { reasons, stopped: false } = simulation.run().check() else {
        panic!("must be partial")
    };
    assert_eq!(reasons, ["node node02: silent for 5s"]);
}

#[test]
fn failed_preparation_fails_run_before_sending() {
    for step in ["prepare", "arm"] {
        let mut simulation = Simulation::new(World::calm(4));
        simulation.nodes[1].fails_at = Some(step);
        let fault = NodeFault { blame: Blame::World, text: format!("node node01: {step} failed") };
        assert_eq!(simulation.run().check(), RunOutcome::Failed { fault });
    }
}

#[test]
fn slow_network_gets_later_start() {
    let slow = World { least_ms: 1000, ..World::calm(6) };
    let simulation = Simulation::new(slow).run();
    assert_eq!(simulation.starts.len(), 1, "arming showed how slow it is");
    assert_eq!(simulation.controller.head().attempt, 1);
    assert_eq!(simulation.check(), RunOutcome::Complete { stopped: false });
}

fn worlds() -> impl Strategy<Value = World> {
    let network = (any::<u64>(), 1usize..=20, 0u64..35, 0u64..40, 1u64..800);
    let trouble = (0usize..3, 0usize..2, proptest::option::of(0u64..9000), any::<bool>());
    (network, trouble).prop_map(
        |((seed, agents, lost, repeated, delay_ms), (crashes, failures, stop, endless))| World {
            seed,
            agents,
            least_ms: 0,
            lost_percent: lost,
            repeated_percent: repeated,
            delay_ms,
            crashes,
            failures,
            // A run without an end of its own needs a user.
            stop_at_ms: if endless { stop.or(Some(8000)) } else { stop },
            endless,
            one_process: false,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn run_always_ends_with_true_outcome(world in worlds()) {
        outcome_of(world);
    }

    #[test]
    fn busy_machine_starts_despite_short_lead(seed in any::<u64>(), delay_ms in 1u64..200) {
        let world = World { seed, delay_ms, one_process: true, ..World::calm(1) };
        prop_assert_eq!(outcome_of(world), RunOutcome::Complete { stopped: false });
    }

    #[test]
    fn repeats_and_delays_alone_cost_nothing(seed in any::<u64>(), agents in 1usize..=20, repeated in 0u64..60) {
        let world = World { seed, repeated_percent: repeated, delay_ms: 100, ..World::calm(agents) };
        prop_assert_eq!(outcome_of(world), RunOutcome::Complete { stopped: false });
    }
}
