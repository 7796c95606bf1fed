//! Duties of a fleet's agent besides its part in a run: it sends hellos, stores its lease for its senders,
//! compares clocks, and keeps results until they are collected.
//!
//! The agent machine decides about the run. The rig, which opens the ports, checks plans against the owner's limits.
//!
//! Invariant: the time until which senders may send only ever comes from a lease that the controller renewed.

use crate::agent::now;
use crate::clock::{ClockProber, check_clock_addresses};
use crate::error::Error;
use crate::remote_streams::RemoteStreams;
use crate::starvation::StarvationMeter;
use crate::supervisor::SendDeadlineFile;
use crate::uplink::ResultUplink;
use packetrig_engine::gate::{SendGate, suspended_time};
use packetrig_engine::stream::ClockShift;
use packetrig_fleet::hello::NodeHello;
use packetrig_fleet::message::{
    ChangeStep, ClockServer, MessageHead, NodeCommand, Nonce, RunPreparation, StoredWatermark,
};
use packetrig_plan::Plan;
use packetrig_report::NodeName;
use packetrig_stats::clock::{ClockFit, ClockRecord, FitSource};
use packetrig_stats::result::{CountSample, NodeResult};
use packetrig_stats::terms::RunTerms;
use packetrig_units::{MonoTime, Nanos};
use std::path::PathBuf;

/// Interval between two hellos.
const HELLO_INTERVAL: Nanos = Nanos::from_secs(1);
/// Interval between two samples that are kept.
const SAMPLE_INTERVAL: Nanos = Nanos::from_secs(1);
/// Maximum time for which arming waits for the first comparison of clocks.
const CLOCK_COMPARISON_TIMEOUT: Nanos = Nanos::from_millis(500);

/// Configuration of a node.
pub struct NodeSite {
    pub node: NodeName,
    /// Describes the node for its hellos; the agent adds the parts that change.
    pub describe: Box<dyn FnMut() -> NodeHello + Send>,
    /// Compare clocks over the network even with a controller on the same machine.
    pub always_compare: bool,
    /// File that keeps the highest epoch.
    pub epoch_file: PathBuf,
    /// File with the senders' deadline, which the supervisor reads.
    pub watch: Option<SendDeadlineFile>,
}

impl std::fmt::Debug for NodeSite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeSite").field("epoch_file", &self.epoch_file).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub struct NodeMembership {
    site: NodeSite,
    gate: SendGate,
    uplink: ResultUplink,
    hello_at: MonoTime,
    interval_at: MonoTime,
    comparing: ClockComparing,
    remote: RemoteStreams,
    /// T on the controller's clock, and the converted T that the agent machine received.
    start: Option<(MonoTime, MonoTime)>,
    /// True once the spool has a sample or a result of the current run.
    is_kept: bool,
    described: Option<NodeHello>,
    /// Senders may be at work: the supervisor watches them.
    is_sending: bool,
    /// Time that the machine had slept when the run was prepared: time that it sleeps later is not given to its senders.
    slept: Nanos,
    starvation: StarvationMeter,
}

/// Comparison of this node's clock with the controller's.
#[derive(Debug)]
enum ClockComparing {
    /// There is no clock to compare with.
    Not,
    /// It is the same clock.
    Same,
    With(ClockProber, Option<ClockFit>),
}

impl NodeMembership {
    /// Makes a member that keeps its results in `uplink`. Its senders check `gate`.
    pub fn new(site: NodeSite, gate: SendGate, uplink: ResultUplink) -> Self {
        Self {
            site,
            gate,
            uplink,
            hello_at: MonoTime::default(),
            interval_at: MonoTime::default(),
            comparing: ClockComparing::Not,
            remote: RemoteStreams::default(),
            start: None,
            is_kept: false,
            described: None,
            is_sending: false,
            slept: Nanos::ZERO,
            starvation: StarvationMeter::new(now()),
        }
    }

    /// The node's hello: its description, and the facts that only the agent knows.
    pub(crate) fn build_hello(
        &mut self,
        epoch: u64,
        busy: Option<MessageHead>,
        answers: Option<Nonce>,
    ) -> Box<NodeHello> {
        let spooled = self.uplink.waiting_runs();
        let troubles = self.uplink.take_problems();
        let described = self.described.get_or_insert_with(|| (self.site.describe)()).clone();
        let starved = self.starvation.recent_starvation(now());
        Box::new(
            NodeHello { epoch, busy, spooled, troubles, answers, starved, ..described }.limited_to_bounds(),
        )
    }

    /// Records a wait for a message that should have taken `asked` and took `took`.
    pub(crate) fn record_wait(&mut self, asked: Nanos, took: Nanos) {
        self.starvation.record_wait(asked, took, now());
    }

    /// Returns whether the next hello is due. If so, the node describes itself again.
    pub(crate) fn take_due_hello(&mut self) -> bool {
        let due = now() >= self.hello_at;
        if due {
            self.hello_at = now() + HELLO_INTERVAL;
            self.described = Some((self.site.describe)());
        }
        due
    }

    /// Shuts the gate for the run that is to be prepared. Returns the preparation without the members that name files, limits and
    /// confirmed interfaces: on a lent machine those are its owner's.
    pub(crate) fn prepare_run(
        &mut self,
        head: &MessageHead,
        preparation: &RunPreparation,
    ) -> Result<RunPreparation, Error> {
        let clock = preparation.clock.as_ref().map_or(Ok(()), check_clock_addresses);
        let no_places = preparation.places.is_empty();
        let no_places = no_places.then(|| "the plan does not say on which node its ports are; write NODE/INTERFACE as the location of each port".to_owned());
        let refusals: Vec<String> = no_places.into_iter().chain(clock.err()).collect();
        if !refusals.is_empty() {
            return Err(Error::NotPermitted(refusals));
        }
        // This comes before any port is opened: senders of this run may send only once the controller has
        // renewed a lease for this run.
        self.gate.shut_now();
        self.slept = suspended_time();
        self.start = None;
        self.is_kept = false;
        // The deadline of the run before must not make the supervisor kill this process.
        self.stop_watching()?;
        Ok(RunPreparation {
            run: head.run.0.clone(),
            capture_dir: None,
            terms: RunTerms { limits: Vec::new(), ..preparation.terms.clone() },
            confirmed: Vec::new(),
            ..preparation.clone()
        })
    }

    /// Begins to keep results and to compare clocks, after the owner has allowed the run and the ports are open.
    pub(crate) fn begin_run(
        &mut self,
        head: &MessageHead,
        preparation: &RunPreparation,
        plan: &Plan,
    ) -> Result<(), Error> {
        self.uplink.begin_run(head)?;
        self.remote = RemoteStreams::from_plan(plan, preparation.places.clone(), self.site.node.clone());
        self.comparing = match &preparation.clock {
            None => ClockComparing::Not,
            Some(server) if self.shares_clock_with(server) => ClockComparing::Same,
            Some(server) => ClockComparing::With(ClockProber::start_probing(server.clone())?, None),
        };
        Ok(())
    }

    /// Starts a further attempt on the same ports: from now on, results are kept for that attempt.
    pub(crate) fn begin_attempt(&mut self, head: &MessageHead) -> Result<(), Error> {
        if self.uplink.keeps_attempt(head) {
            return Ok(());
        }
        self.is_kept = false;
        self.uplink.begin_run(head)
    }

    fn shares_clock_with(&mut self, server: &ClockServer) -> bool {
        let described = self.described.get_or_insert_with(|| (self.site.describe)());
        // All processes of a machine read the same clock, so there is nothing to measure.
        !self.site.always_compare && described.clock.identity == server.identity
    }

    /// Compares the clocks, for the controller; waits a moment for the first series of probes.
    pub(crate) fn compare_clocks(&mut self) -> Option<ClockRecord> {
        match &mut self.comparing {
            ClockComparing::Not => None,
            ClockComparing::Same => Some(ClockRecord::same_clock()),
            ClockComparing::With(prober, before) => {
                *before = prober.wait_for_fit(CLOCK_COMPARISON_TIMEOUT);
                before.map(|before| ClockRecord {
                    source: FitSource::InBand,
                    before,
                    after: None,
                    unused: None,
                })
            }
        }
    }

    /// The fit that was reported to the controller: T and latency are converted with it and with no other, or the
    /// reported bounds would be wrong.
    fn reported_fit(&self) -> Option<ClockFit> {
        match &self.comparing {
            ClockComparing::Not => None,
            ClockComparing::Same => Some(ClockFit::same_clock()),
            ClockComparing::With(_, before) => *before,
        }
    }

    /// Takes in the clocks of the nodes that send to this one, and returns the shifts of their streams.
    pub(crate) fn clock_shifts(&mut self, fits: Vec<(NodeName, ClockFit)>) -> Vec<(usize, ClockShift)> {
        self.remote.update_clock_fits(fits);
        self.reported_fit().map(|own| self.remote.clock_shifts(&own, now())).unwrap_or_default()
    }

    /// Takes in a plan that has grown, and returns the shifts of streams of other nodes.
    pub(crate) fn apply_grown_plan(&mut self, plan: &Plan) -> Vec<(usize, ClockShift)> {
        self.remote.apply_grown_plan(plan);
        self.reported_fit().map(|own| self.remote.clock_shifts(&own, now())).unwrap_or_default()
    }

    /// Converts the times of a command to this node's clock.
    pub(crate) fn with_local_times(&mut self, command: NodeCommand) -> NodeCommand {
        match command {
            NodeCommand::Commit { start, guard } => {
                NodeCommand::Commit { start: self.convert_start_time(start), guard }
            }
            NodeCommand::Confirm { start } => NodeCommand::Confirm { start: self.convert_start_time(start) },
            NodeCommand::Step { number, step } => {
                NodeCommand::Step { number, step: Box::new(self.convert_step_times(*step)) }
            }
            other => other,
        }
    }

    fn convert_step_times(&self, step: ChangeStep) -> ChangeStep {
        match step {
            ChangeStep::Announce { held, at } => {
                ChangeStep::Announce { held, at: at.map(|at| self.to_local(at)) }
            }
            ChangeStep::Begin { at } => ChangeStep::Begin { at: at.map(|at| self.to_local(at)) },
            ChangeStep::Hold(_) | ChangeStep::Undo => step,
        }
    }

    /// Converts T. A repeated T gives the same time: the machine takes another time for another start, and the fit may have improved.
    fn convert_start_time(&mut self, start: MonoTime) -> MonoTime {
        match self.start {
            Some((said, local)) if said == start => local,
            _ => {
                let local = self.to_local(start);
                self.start = Some((start, local));
                local
            }
        }
    }

    /// Converts T with the best clock fit known now; `given` is the T that the agent machine received before. From
    /// here on it is fixed.
    pub(crate) fn fix_local_start(&mut self, given: MonoTime) -> MonoTime {
        match self.start {
            Some((said, local)) if local == given => self.to_local(said),
            _ => given,
        }
    }

    fn to_local(&self, at: MonoTime) -> MonoTime {
        self.reported_fit().map_or(at, |fit| fit.to_local(at))
    }

    /// Extends the lease: until then senders may send and emulated interfaces may answer.
    pub(crate) fn extend_lease(&self, until: MonoTime) -> Result<(), Error> {
        self.gate.extend_until(until, self.slept);
        // Before senders start, the supervisor has nothing to watch.
        if self.is_sending { self.write_deadline(self.gate.deadline()) } else { Ok(()) }
    }

    /// Starts the supervisor's watch: from here on, senders may be active while the lease is valid. A node
    /// that waits for its start needs no watch.
    pub(crate) fn begin_sending(&mut self) -> Result<(), Error> {
        self.is_sending = true;
        self.write_deadline(self.gate.deadline())
    }

    fn write_deadline(&self, deadline: Option<u64>) -> Result<(), Error> {
        let watch = self.site.watch.as_ref();
        watch.map_or(Ok(()), |watch| watch.write_deadline(deadline.unwrap_or(0))).map_err(Error::Watch)
    }

    /// Ends the supervisor's watch, after all senders have stopped.
    pub(crate) fn stop_watching(&mut self) -> Result<(), Error> {
        self.is_sending = false;
        self.write_deadline(None)
    }

    /// Stores a sample, at most once a second, so that the counts survive a crash.
    pub(crate) fn store_sample(&mut self, sample: &CountSample) -> Result<(), Error> {
        if now() < self.interval_at {
            return Ok(());
        }
        self.interval_at = now() + SAMPLE_INTERVAL;
        self.is_kept = true;
        self.uplink.store_sample(sample.clone())
    }

    /// Stores the result until it is collected. Returns the number of its segments.
    pub(crate) fn spool_result(&mut self, result: &NodeResult) -> Result<u64, Error> {
        let clock = self.clock_record();
        self.comparing = ClockComparing::Not;
        self.uplink.finish_run(&NodeResult { clock, ..result.clone() })
    }

    fn clock_record(&mut self) -> Option<ClockRecord> {
        match &mut self.comparing {
            ClockComparing::Not => None,
            ClockComparing::Same => Some(ClockRecord::same_clock()),
            ClockComparing::With(prober, before) => {
                let after = prober.measure_final_fit(CLOCK_COMPARISON_TIMEOUT);
                // If no probe was answered while arming, the last series is all there is.
                let before = before.or(after)?;
                Some(ClockRecord { source: FitSource::InBand, before, after, unused: None })
            }
        }
    }

    /// Gives the run up. Samples that were stored stay in the spool.
    pub(crate) fn leave_run(&mut self) -> Result<(), Error> {
        // Ends the prober's thread.
        self.comparing = ClockComparing::Not;
        // A journal without a sample has no information, so it is discarded.
        self.uplink.leave_run(self.is_kept)?;
        self.stop_watching()
    }

    /// Deletes segments that the controller has.
    pub(crate) fn delete_stored(&self, mark: &StoredWatermark) {
        self.uplink.delete_stored(mark);
    }

    /// Stores the highest epoch, so that it survives a restart.
    pub(crate) fn remember_epoch(&self, epoch: u64) -> Result<(), Error> {
        crate::epoch::write_epoch(&self.site.epoch_file, epoch).map_err(Error::Epoch)
    }
}
