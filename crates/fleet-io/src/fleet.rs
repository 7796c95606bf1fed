//! Makes this process one of a fleet's controllers. It executes runs on many nodes, with the same controller state
//! machine as for a run on a single machine.
//!
//! The controller renews leases, answers clock probes, collects results and executes runs, until the [`FleetExecutor`]
//! is dropped. It leads the nodes of its run until the run has ended; other controllers may lead other nodes meanwhile.
//!
//! Invariant: once this controller knows that another controller has ended its term, it sends no command any more.

mod collector;
mod commit_times;
mod controlled;
mod ending;
mod fetch;
mod findings;
mod gathering;
mod leadership;
mod leading;
mod leftovers;
mod others;
mod presence;
mod record_writer;
mod result_store;
mod roll_call;
mod roster;
mod run_services;
mod shares;
#[cfg(test)]
mod tests;

pub use collector::{
    KnownFrameCounts, PartContents, ReceivedSegment, ResultStore, ResultStoreError, StoredBatch, StoredPart,
    UnfinishedPart,
};
pub use controlled::{ControlledFleet, begin_run};
pub(crate) use ending::RunEnding;
pub use fetch::{FetchError, FetchProgress, FetchUser, fetch_capture};
pub use gathering::RemainingResultsOutcome;
pub use leading::{BlockedNodesPolicy, HeldNodes, HeldNodesDecision};
pub use leftovers::{LeftoverRun, UnfinishedRunLeading};
pub use presence::{ControllerPresence, PresenceDirectory};
pub use result_store::{CompletedReports, RunResultStore};
pub use roster::{FleetRoster, KnownNodes};

use crate::agent::now;
use crate::clock::ClockResponder;
use crate::control::{ControlledRun, RunUser};
use crate::error::{Error, ignore_failure};
use crate::local::{EndedRun, RunExecutor, RunOptions, build_run_facts, build_run_preparation};
use collector::{OtherRuns, SegmentCollector};
use commit_times::CommitTimes;
use leadership::FleetLeadership;
use packetrig_fleet::controller::{ControllerMachine, RunLimits, RunPolicies, RunRecord};
use packetrig_fleet::fabric::{Endpoint as _, Fabric, RecordStore, StoredRecord};
use packetrig_fleet::members::{FleetMembers, MemberRow, UncollectedResult};
use packetrig_fleet::message::{ClockKey, MessageBody, MessageHead, RunPreparation, StoredWatermark};
use packetrig_fleet::places::{self, PortPlaceAssignment};
use packetrig_fleet::term::{ControllerIdentity, ControllerTermTimes, ControllerTermWatch};
use packetrig_plan::{PlanDocument, PlanParseOptions};
use packetrig_report::outcome::RunOutcome;
use packetrig_report::{NodeName, RunFacts, RunId};
use packetrig_units::Nanos;
use roll_call::RoundTrips;
use shares::{NodeRunParts, StreamSenders};
use std::collections::BTreeSet;

/// Interval at which a controller checks whether a node is free.
const FREE_NODE_CHECK_INTERVAL: Nanos = Nanos::from_millis(200);

/// Maximum number of samples per second that a controller requests from all nodes together; exceeded only if the
/// drain time is short.
const MAX_SAMPLES_PER_SECOND: u64 = 5000;

/// Configuration of a controller.
pub struct ControllerConfig {
    pub identity: ControllerIdentity,
    /// Shows other controllers on this machine that this controller is running. With `None` they must watch its record.
    pub presence: Option<ControllerPresence>,
    /// How often the controller refreshes its record, and when other controllers may treat it as dead.
    pub times: ControllerTermTimes,
    /// Name of this machine's clock, in the form in which nodes name their clocks.
    pub clock: String,
    /// Key that authenticates clock probes.
    pub key: ClockKey,
    /// Store of the results of all runs.
    pub store: Box<dyn ResultStore>,
    /// Saves the state of a run before the messages of that state are sent.
    pub note: RunRecordCallback,
    /// Policies for missing nodes: how many nodes a start needs, and what the others do after a loss.
    pub policies: RunPolicies,
    /// The nodes that belong to the fleet.
    pub roster: FleetRoster,
    /// True if results are also collected for ended runs that are not in the store and that
    /// no running controller reads.
    pub reads_all_runs: bool,
}

/// Saves the record of a run in the controller's own catalogue, in addition to the message server.
pub type RunRecordCallback = Box<dyn FnMut(&RunRecord) -> Result<(), String> + Send>;

impl std::fmt::Debug for ControllerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControllerConfig").field("identity", &self.identity).finish_non_exhaustive()
    }
}

pub struct FleetExecutor<F: Fabric> {
    me: ControllerIdentity,
    endpoint: F::Endpoint,
    records: F::Records,
    members: FleetMembers,
    /// Earlier observations of other controllers' records, from which this controller decides whether they are running.
    watch: ControllerTermWatch,
    /// The run for which this controller leads nodes now.
    led: Option<LedRun>,
    // The fields are dropped in this order: when the nodes are given back, no clock probe is answered and no result
    // is stored any more.
    responder: ClockResponder,
    collector: SegmentCollector,
    leadership: FleetLeadership,
    /// Dropped after the leadership, so that this controller counts as running until its term has ended.
    presence: Option<ControllerPresence>,
    note: RunRecordCallback,
    policies: RunPolicies,
    roster: FleetRoster,
    round_trips: RoundTrips,
    retention: NodeRetention,
    /// Times that the nodes of the latest runs needed to acknowledge a commit.
    commits: CommitTimes,
}

/// A run that an earlier controller left unfinished, with the facts for ending it.
#[derive(Debug)]
pub struct InheritedRun {
    pub record: RunRecord,
    /// Nodes that other controllers lead, or on which they have ended the run. These nodes get no message.
    pub elsewhere: BTreeSet<NodeName>,
    /// Results of nodes that are stored already.
    pub on_hand: Vec<StoredPart>,
}

/// What happens to a run's nodes when the run ends: whether this controller goes on leading them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRetention {
    /// The nodes are given back: other controllers may lead them.
    GiveBack,
    /// The nodes stay led if the start came too late for some of them, because the same plan starts again.
    /// Otherwise another controller could take the nodes in between.
    KeepAfterLateStart,
    /// They stay led for the next run, and may keep their ports open this long.
    Keep { ports: Nanos },
}

impl NodeRetention {
    /// Time for which nodes may keep their ports open after a run.
    const fn port_retention_time(self) -> Nanos {
        if let Self::Keep { ports } = self { ports } else { Nanos::ZERO }
    }

    /// True if the nodes stay led after a run with this outcome.
    fn must_keep_nodes_after(self, outcome: Option<&RunOutcome>, steered: bool) -> bool {
        match (self, outcome) {
            (Self::GiveBack, _) | (Self::KeepAfterLateStart, None) => false,
            // A steered run that has started is not begun again, whatever is missing in its result.
            (Self::KeepAfterLateStart, Some(RunOutcome::Partial { .. })) if steered => false,
            (Self::KeepAfterLateStart, Some(outcome)) => outcome.is_late_start(),
            (Self::Keep { .. }, _) => true,
        }
    }
}

/// A run with the nodes that this controller leads for it.
#[derive(Debug)]
struct LedRun {
    run: RunId,
    epoch: u64,
    settlement: PortPlaceAssignment,
}

impl<F: Fabric> std::fmt::Debug for FleetExecutor<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FleetExecutor").field("members", &self.members).finish_non_exhaustive()
    }
}

impl<F: Fabric> FleetExecutor<F>
where
    F::Records: 'static,
    F::Incoming: 'static,
{
    /// Becomes one of the fleet's controllers. It leads no node yet.
    pub fn become_controller(fabric: &F, config: ControllerConfig) -> Result<Self, Error> {
        let me = config.identity;
        let watch = ControllerTermWatch::new(config.times);
        let records = fabric.open_records()?;
        let leadership = FleetLeadership::begin_term(fabric.open_records()?, me.clone(), config.times)?;
        let mut endpoint = fabric.open_endpoint(NodeName::controller_of(&me.controller))?;
        let mut members = FleetMembers::default();
        let mut roster = config.roster;
        let mut round_trips = RoundTrips::default();
        // The roll call comes before the roster is read: nodes that answer describe themselves, and only the other
        // nodes are restored from the roster.
        round_trips.ask_all_nodes(&mut endpoint, &mut members, &roster.enrolled)?;
        roster.save_members(&members);
        roster.restore_nodes(&mut members);
        let others = OtherRuns {
            records: fabric.open_records()?,
            watch: watch.clone(),
            presences: config.presence.as_ref().map(|presence| presence.directory().clone()),
            reads_all: config.reads_all_runs,
        };
        let incoming = fabric.open_result_inlet(&me.controller)?;
        Ok(Self {
            me,
            endpoint,
            records,
            members,
            watch,
            led: None,
            responder: ClockResponder::start_responding(config.key, config.clock)?,
            collector: SegmentCollector::start_collecting(incoming, config.store, others)?,
            leadership,
            presence: config.presence,
            note: config.note,
            policies: config.policies,
            roster,
            round_trips,
            retention: NodeRetention::GiveBack,
            commits: CommitTimes::default(),
        })
    }

    /// Sets what happens to the nodes of later runs when these end. Nodes that stay led are given back when a run
    /// needs other nodes, or when this value is dropped.
    pub const fn set_retention(&mut self, retention: NodeRetention) {
        self.retention = retention;
    }

    /// Asks all nodes for a hello, and returns the members of the fleet.
    pub fn refresh_member_rows(&mut self) -> Result<Vec<MemberRow>, Error> {
        self.ask_all_nodes()?;
        Ok(self.members.member_rows(now()))
    }

    /// Counts the ports of the fleet with a label, including ports of absent nodes.
    pub fn count_labelled_ports(&self, label: &str) -> usize {
        places::count_labelled_ports_in_fleet(label, &self.members)
    }

    /// Enrolled nodes that never sent a hello to any controller.
    pub fn enrolled_nodes_without_hello(&self) -> Vec<NodeName> {
        let enrolled = self.roster.enrolled.iter();
        enrolled.filter(|node| self.members.get(node).is_none()).cloned().collect()
    }

    /// Reads the records of all runs in the fleet that have not ended, whichever controller began them.
    pub fn read_unfinished_records(&mut self) -> Result<Vec<RunRecord>, Error> {
        let keys = self.records.list_keys("run.")?;
        let found = self.records.get_records(&keys)?.into_iter().flatten();
        let records = found.filter_map(|found| found.decode_value());
        Ok(records.filter(RunRecord::is_unfinished).collect())
    }

    /// Reads the record of a run; `None` if the run has ended or has no record.
    pub fn read_unfinished_record(&mut self, run: &RunId) -> Result<Option<RunRecord>, Error> {
        let found = self.records.get_record(&RunRecord::record_key(run))?;
        let record = found.as_ref().and_then(StoredRecord::decode_value);
        Ok(record.filter(RunRecord::is_unfinished))
    }

    /// Ends a run that an earlier controller left: stops its senders and collects its results.
    pub fn end_inherited_run(
        &mut self,
        inherited: InheritedRun,
        document: &str,
        options: &RunOptions,
        user: RunUser<'_>,
    ) -> Result<EndedRun, Error> {
        let InheritedRun { record, elsewhere, on_hand } = inherited;
        self.ask_all_nodes()?;
        let facts = build_run_facts(document, options, record.all_nodes());
        let limits = RunLimits::for_fleet(self.round_trips.longest_round_trip(&record.nodes), options.drain);
        let machine = ControllerMachine::from_record(record, self.led_epoch_or_zero(), limits)
            .without_commands_to(elsewhere);
        let has = RunStartingState { on_hand, reads_results: true, ..RunStartingState::default() };
        let ControlledRun { controller, times } = self.control_fleet_run(machine, has, user)?;
        Ok(EndedRun { controller, times, failure: None, facts })
    }

    /// Tells the nodes which segments of their results are stored, so that they delete these. The controller that
    /// stored the segments may have died before it did this. `below` returns the first segment number that is not
    /// stored, for a node in an attempt of a run.
    pub fn tell_nodes_stored_segments(&mut self, below: &dyn Fn(&NodeName, &RunId, u32) -> u64) {
        for UncollectedResult { node, run, attempt, .. } in self.members.iter_uncollected_results() {
            let below = below(&node, &run, attempt);
            // At 0 nothing is stored, so there is nothing that the node could delete.
            if below > 0 {
                let mark = StoredWatermark { run, attempt, below };
                // If this message is lost, the next controller sends it again.
                ignore_failure(self.endpoint.post_message(&node, MessageBody::Stored(mark)));
            }
        }
    }

    fn ask_all_nodes(&mut self) -> Result<(), Error> {
        // `become_controller` has waited for absent enrolled nodes, so this call does not wait for them again.
        self.round_trips.ask_all_nodes(&mut self.endpoint, &mut self.members, &BTreeSet::new())?;
        self.roster.save_members(&self.members);
        Ok(())
    }
}

impl<F: Fabric> RunExecutor for FleetExecutor<F>
where
    F: Send,
    F::Endpoint: Send,
    F::Records: 'static,
    F::Incoming: 'static,
{
    fn plan_parse_options(&self, seed: u64) -> PlanParseOptions {
        PlanParseOptions { seed, fleet: true, ..PlanParseOptions::default() }
    }

    fn execute_run(
        &mut self,
        document: &PlanDocument,
        options: RunOptions,
        user: RunUser<'_>,
    ) -> Result<EndedRun, Error> {
        let led = self.led.as_ref().filter(|led| led.run == options.run);
        let led = led.ok_or_else(|| Error::NotLed(options.run.clone()))?;
        let epoch = led.epoch;
        let PortPlaceAssignment { places, unavailable } = led.settlement.clone();
        let nodes = places::nodes_of_places(&places);
        let facts =
            RunFacts { places: places.clone(), ..build_run_facts(document.text(), &options, nodes.clone()) };
        let limits = RunLimits::for_fleet(self.round_trips.longest_round_trip(&nodes), options.drain);
        let limits = self.commits.limits_with_measured_lead(limits);
        let head = MessageHead { run: options.run.clone(), attempt: 1, epoch, plan: facts.plan.clone() };
        // This command has the controller's own key. Each node gets its own key when the command is sent.
        let clock = Some(self.responder.server().clone());
        let say_every = telemetry_interval(nodes.len(), options.drain);
        // One controller answers all requests for leases, so in a large fleet each node asks less often.
        let renew_every = limits.lease.map(|terms| terms.renewal_interval(nodes.len()));
        let steered = options.terms.steered;
        let keep_ports_ns = self.retention.port_retention_time();
        let mut preparation = RunPreparation {
            places,
            say_every,
            renew_every,
            keep_ports_ns,
            clock,
            ..build_run_preparation(document, options)
        };
        let senders = StreamSenders::from_plan(document.plan(), &preparation.places);
        // A change of a steered run refers to the whole plan, so every node needs the whole plan.
        let shares = (!steered).then(|| NodeRunParts::from_plan(document.plan(), &mut preparation));
        let machine = ControllerMachine::new(head, preparation, &nodes, limits)
            .with_policies(self.policies)
            .without_nodes(unavailable);
        let has = RunStartingState { shares, senders, reads_results: true, ..RunStartingState::default() };
        let conducted = self.control_fleet_run(machine, has, user);
        let outcome = conducted.as_ref().ok().and_then(|run| run.controller.outcome());
        // The nodes become free for other runs, even if the run has failed.
        if !self.retention.must_keep_nodes_after(outcome, steered) {
            self.release_all_node_leads();
        }
        let ControlledRun { controller, times } = conducted?;
        match controller.outcome() {
            // Only a run that started on every node shows that its lead time was long enough.
            Some(RunOutcome::Complete { .. }) => self.commits.add_run(&times),
            _ => self.commits.forget_all_commit_times(),
        }
        Ok(EndedRun { controller, times, failure: None, facts })
    }
}

/// Returns the time between two samples of a node. All nodes together send at most [`MAX_SAMPLES_PER_SECOND`], so that
/// one processor can handle samples and leases. But each node sends at least twice within the drain time, because
/// frames that still arrive prolong the drain.
fn telemetry_interval(nodes: usize, drain: Nanos) -> Nanos {
    let wanted = Nanos::new((nodes as u64).saturating_mul(1_000_000_000 / MAX_SAMPLES_PER_SECOND));
    wanted.min(Nanos::new(drain.as_u64() / 2))
}

/// Starting conditions of a run that begins, or that this controller takes over.
#[derive(Debug, Default)]
struct RunStartingState {
    /// Results of the run that are stored already.
    on_hand: Vec<StoredPart>,
    shares: Option<NodeRunParts>,
    senders: StreamSenders,
    /// True if the controller collects the results of the run. If it only makes the nodes release the
    /// run, they keep the results for the controller that began it.
    reads_results: bool,
    /// True if this controller must not change the run's record.
    writes_no_record: bool,
}
