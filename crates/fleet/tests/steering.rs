//! A steered run in virtual time, over a network that delays, loses and repeats, with nodes that cannot hold and nodes
//! that die: no node begins a change before all have it, none is half undone, and each is reported once.

use packetrig_fleet::agent::{AgentAction as Order, AgentEvent, AgentMachine};
use packetrig_fleet::controller::{
    ControllerAction, ControllerEvent, ControllerMachine, LostNodePolicy, RunLimits, RunPolicies,
};
use packetrig_fleet::message::{ChangeStep, MessageHead, NodeCommand, NodeReply, RunPreparation};
use packetrig_plan::{PlanChange, StreamResumePoint};
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

/// Changes of a run; every third is no business of takes.
const CHANGES: u64 = 8;
const MS: u64 = 1_000_000;

#[derive(Clone, Debug)]
struct World {
    seed: u64,
    agents: usize,
    lost_percent: u64,
    repeated_percent: u64,
    delay_ms: u64,
    cannot_percent: u64,
    dies_ms: Option<u64>,
    stop_ms: u64,
}

impl World {
    const fn calm(agents: usize) -> Self {
        Self {
            seed: 1,
            agents,
            lost_percent: 0,
            repeated_percent: 0,
            delay_ms: 10,
            cannot_percent: 0,
            dies_ms: None,
            stop_ms: 60_000,
        }
    }
}

#[derive(Clone, Debug)]
enum What {
    ToAgent(usize, MessageHead, NodeCommand),
    ToController(usize, MessageHead, NodeReply),
    SendersDone(usize),
    Steer(u64),
    Stop,
}

struct Simulation {
    world: World,
    random: u64,
    now: MonoTime,
    order: u64,
    queue: BTreeMap<(MonoTime, u64), What>,
    controller: ControllerMachine,
    agents: Vec<AgentMachine>,
    /// Steps each node has taken: (change, node).
    held: BTreeSet<(u64, usize)>,
    refused: BTreeSet<u64>,
    announced: BTreeSet<(u64, usize)>,
    begun: BTreeSet<(u64, usize)>,
    undone: BTreeSet<(u64, usize)>,
    whole: BTreeSet<(u64, usize)>,
    /// Nodes that a step was taken without.
    without: BTreeSet<usize>,
    outcomes: Vec<(u64, bool)>,
}

fn name(index: usize) -> NodeName {
    NodeName(format!("node{index:02}"))
}

impl Simulation {
    fn new(world: World) -> Self {
        let head = MessageHead {
            run: RunId("run".into()),
            attempt: 1,
            epoch: 3,
            plan: PlanHash::from_document("plan"),
        };
        let preparation = RunPreparation {
            document: "plan".into(),
            terms: SharedRunOptions { steered: true, ..SharedRunOptions::default() },
            ..RunPreparation::default()
        };
        let names: Vec<NodeName> = (0..world.agents).map(name).collect();
        let limits = RunLimits {
            silence: Nanos::from_secs(5),
            repeat: Nanos::from_millis(200),
            insist: Nanos::from_millis(200),
            // Limits as short as in a fleet.
            confirm: Nanos::from_millis(2),
            ..RunLimits::for_local(Nanos::from_millis(500))
        };
        let policies = RunPolicies { on_loss: LostNodePolicy::Continue, ..RunPolicies::default() };
        Self {
            random: world.seed,
            now: MonoTime::from_nanos(1_000 * MS),
            order: 0,
            queue: BTreeMap::new(),
            controller: ControllerMachine::new(head, preparation, &names, limits).with_policies(policies),
            agents: names.iter().map(|_| AgentMachine::new(Nanos::from_secs(20))).collect(),
            held: BTreeSet::new(),
            refused: BTreeSet::new(),
            announced: BTreeSet::new(),
            begun: BTreeSet::new(),
            undone: BTreeSet::new(),
            whole: BTreeSet::new(),
            without: BTreeSet::new(),
            outcomes: vec![],
            world,
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

    fn at(&mut self, when: MonoTime, what: What) {
        self.order += 1;
        self.queue.insert((when, self.order), what);
    }

    fn post(&mut self, what: &What) {
        let copies = if self.below(100) < self.world.repeated_percent { 2 } else { 1 };
        for _ in 0..copies {
            if self.below(100) >= self.world.lost_percent {
                let delay = Nanos::from_micros(self.below(self.world.delay_ms * 1000));
                self.at(self.now + delay, what.clone());
            }
        }
    }

    fn is_dead(&self, index: usize) -> bool {
        let dies = self.world.dies_ms.map(|ms| MonoTime::from_nanos((1_000 + ms) * MS));
        index == 0 && dies.is_some_and(|dies| self.now >= dies)
    }

    fn run(mut self) -> Self {
        self.tell_controller(ControllerEvent::Begin);
        for _ in 0..100_000 {
            let agents: Vec<usize> = (0..self.agents.len()).filter(|index| !self.is_dead(*index)).collect();
            let ticks = agents.iter().filter_map(|index| self.agents[*index].next_deadline());
            let tick = ticks.chain(self.controller.next_deadline()).min();
            let letter = self.queue.first_key_value().map(|((at, _), _)| *at);
            match (letter, tick) {
                (Some(letter), tick) if tick.is_none_or(|tick| letter <= tick.max(self.now)) => {
                    self.now = letter.max(self.now);
                    let what = self.queue.pop_first().expect("there is one").1;
                    self.happen(what);
                }
                (_, Some(tick)) => {
                    self.now = tick.max(self.now + Nanos::from_micros(100));
                    self.tell_controller(ControllerEvent::Tick);
                    for index in agents {
                        self.tell_agent(index, AgentEvent::Tick);
                    }
                }
                (_, None) => return self,
            }
        }
        panic!("the run does not end: {:?} {:?} {:?}", self.world, self.controller, self.agents)
    }

    fn happen(&mut self, what: What) {
        match what {
            What::ToAgent(to, head, command) => self.tell_agent(to, AgentEvent::Command(head, command)),
            What::ToController(from, head, reply) => {
                self.tell_controller(ControllerEvent::Reply(name(from), head, reply));
            }
            What::SendersDone(index) => {
                if self.agents[index].awaits_senders() {
                    self.tell_agent(index, AgentEvent::SendersDone { sent: vec![], lease_ended: false });
                }
            }
            What::Steer(number) if number % 3 == 0 => {
                self.tell_controller(ControllerEvent::Steer(PlanChange::Protocols { on: true }));
            }
            What::Steer(_) => self.tell_controller(ControllerEvent::Steer(PlanChange::Start(vec![0]))),
            What::Stop => self.tell_controller(ControllerEvent::Stop),
        }
    }

    fn tell_controller(&mut self, event: ControllerEvent) {
        for action in self.controller.handle_event(event, self.now) {
            match action {
                ControllerAction::Send(to, head, command) => {
                    let index = (0..self.agents.len()).find(|index| name(*index) == to);
                    self.post(&What::ToAgent(index.expect("there is one"), head, command));
                }
                ControllerAction::Emit(RunEventKind::StateChanged(RunState::Running)) => self.plan_changes(),
                ControllerAction::Emit(RunEventKind::Steered { number, outcome }) => {
                    self.outcomes.push((number, outcome.is_ok()));
                }
                _ => {}
            }
        }
    }

    fn plan_changes(&mut self) {
        for number in 1..=CHANGES {
            let wait = Nanos::from_millis(self.below(6_000));
            self.at(self.now + wait, What::Steer(number));
        }
        self.at(self.now + Nanos::from_millis(self.world.stop_ms), What::Stop);
    }

    fn tell_agent(&mut self, index: usize, event: AgentEvent) {
        if self.is_dead(index) {
            return;
        }
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for order in self.agents[index].handle_event(event, self.now) {
                events.extend(self.perform(index, order));
            }
        }
    }

    fn perform(&mut self, index: usize, order: Order) -> Option<AgentEvent> {
        match order {
            Order::Reply(head, reply) => {
                self.post(&What::ToController(index, head, reply));
                None
            }
            Order::Prepare(_) => Some(AgentEvent::Prepared(vec![])),
            Order::Arm => Some(AgentEvent::Armed),
            Order::Steer(order) => {
                assert!(self.whole.insert((order.number, index)), "made twice");
                Some(AgentEvent::Steered(order.number, None, Box::default()))
            }
            Order::Step(number, step) => Some(self.step(index, number, &step)),
            Order::StopSenders => {
                self.at(self.now + Nanos::from_millis(2), What::SendersDone(index));
                None
            }
            Order::Finish(_) => {
                let result = NodeResult { node: name(index).to_string(), ..NodeResult::default() };
                Some(AgentEvent::Finished(Arc::new(result)))
            }
            _ => None,
        }
    }

    /// The data plane, and what must hold whenever it is asked.
    fn step(&mut self, index: usize, number: u64, step: &ChangeStep) -> AgentEvent {
        let key = (number, index);
        match step {
            ChangeStep::Hold(_) => {
                assert!(self.held.insert(key), "held twice");
                if self.below(100) < self.world.cannot_percent {
                    self.refused.insert(number);
                    let fault = NodeFault { blame: Blame::Plan, text: "cannot".into() };
                    return AgentEvent::Held(number, vec![], Some(fault));
                }
                let held = StreamResumePoint { stream: index, number: 5, index: 0, mac: None };
                AgentEvent::Held(number, vec![held], None)
            }
            ChangeStep::Announce { held, .. } => {
                assert!(self.held.contains(&key) && self.announced.insert(key), "announced once, when held");
                assert!(!self.refused.contains(&number), "what one cannot hold is announced by none");
                let streams: BTreeSet<usize> = held.iter().map(|held| held.stream).collect();
                assert_eq!(streams.len(), held.len(), "each stream is held by one");
                self.note_missing(|index| streams.contains(&index));
                AgentEvent::Announced(number, None)
            }
            ChangeStep::Begin { .. } => {
                assert!(
                    self.announced.contains(&key) && self.begun.insert(key),
                    "begun once, when announced"
                );
                let announced = self.announced.clone();
                self.note_missing(|index| announced.contains(&(number, index)));
                AgentEvent::Steered(number, None, Box::default())
            }
            ChangeStep::Undo => {
                assert!(self.held.contains(&key) && self.undone.insert(key), "undone once, when held");
                AgentEvent::Steered(number, None, Box::default())
            }
        }
    }

    fn note_missing(&mut self, is_there: impl Fn(usize) -> bool) {
        self.without.extend((0..self.agents.len()).filter(|index| !is_there(*index)));
    }

    fn check(self) -> (RunOutcome, Vec<(u64, bool)>) {
        let outcome = self.controller.outcome().expect("every run ends").clone();
        let given_up = |index: usize| match &outcome {
            RunOutcome::Partial { reasons, .. } => {
                reasons.iter().any(|reason| reason.contains(&name(index).to_string()))
            }
            _ => false,
        };
        for index in &self.without {
            assert!(given_up(*index), "{} was not waited for: {outcome:?} {:?}", name(*index), self.world);
        }
        let numbers: Vec<u64> = self.outcomes.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, (1..).take(numbers.len()).collect::<Vec<_>>(), "each is told of once, in order");
        for (number, is_done) in &self.outcomes {
            let began = self.begun.iter().any(|(of, _)| of == number);
            let undone = self.undone.iter().any(|(of, _)| of == number);
            assert!(!(began && undone), "change {number} is done or undone");
            let mut known = self.announced.iter().chain(&self.whole);
            assert!(!*is_done || known.any(|(of, _)| of == number), "change {number} was made by somebody");
        }
        (outcome, self.outcomes)
    }
}

fn run(world: World) -> (RunOutcome, Vec<(u64, bool)>) {
    Simulation::new(world).run().check()
}

#[test]
fn in_a_calm_world_every_change_is_made() {
    let (outcome, changes) = run(World::calm(4));
    assert_eq!(outcome, RunOutcome::Complete { stopped: false });
    assert_eq!(changes, (1..=CHANGES).map(|number| (number, true)).collect::<Vec<_>>());
}

#[test]
fn node_death_between_steps_does_not_block_changes() {
    for dies_ms in (0..8_000).step_by(37) {
        let world = World { dies_ms: Some(dies_ms), delay_ms: 300, ..World::calm(3) };
        let (outcome, changes) = run(world);
        // It may die before there is a run.
        if matches!(outcome, RunOutcome::Partial { .. }) {
            assert_eq!(changes.len(), usize::try_from(CHANGES).expect("a handful"), "at {dies_ms}");
        }
    }
}

fn worlds() -> impl Strategy<Value = World> {
    let network = (any::<u64>(), 1usize..=8, 0u64..35, 0u64..50, 1u64..600);
    let trouble = (0u64..20, proptest::option::of(0u64..9000), 100u64..60_000);
    (network, trouble).prop_map(
        |((seed, agents, lost_percent, repeated_percent, delay_ms), (cannot_percent, dies_ms, stop_ms))| {
            World { seed, agents, lost_percent, repeated_percent, delay_ms, cannot_percent, dies_ms, stop_ms }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn change_begins_only_when_known_everywhere(world in worlds()) {
        run(world);
    }

    #[test]
    fn repeats_losses_and_delays_alone_cost_no_change(seed in any::<u64>(), agents in 2usize..=6, lost in 0u64..20) {
        let world = World { seed, lost_percent: lost, repeated_percent: 40, delay_ms: 100, ..World::calm(agents) };
        let (outcome, changes) = run(world);
        prop_assert_eq!(outcome, RunOutcome::Complete { stopped: false });
        prop_assert!(changes.iter().all(|(_, done)| *done) && changes.len() == 8);
    }
}
