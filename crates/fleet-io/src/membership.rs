//! Duties of a fleet's agent besides its part in a run: it sends hellos, stores its lease for its senders,
//! compares clocks, and keeps results until they are collected.
//!
//! The agent's state machine decides about the run. The rig, which opens the ports, checks plans
//! against the owner's limits.
//!
//! Invariant: the time until which senders may send always comes from a lease that the controller renewed.

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
use packetrig_stats::terms::SharedRunOptions;
use packetrig_units::{MonoTime, Nanos};
use std::path::PathBuf;

/// Interval between two hellos.
const HELLO_INTERVAL: Nanos = Nanos::from_secs(1);
/// Interval between two samples that are stored in the spool.
const SAMPLE_INTERVAL: Nanos = Nanos::from_secs(1);
/// Maximum time for which arming waits for the first comparison of clocks.
const CLOCK_COMPARISON_TIMEOUT: Nanos = Nanos::from_millis(500);

/// Configuration of a node.
pub struct NodeSite {
    pub node: NodeName,
    /// Returns the description of the node for its hellos. The agent adds the facts that only it knows,
    /// such as its epoch.
    pub describe: Box<dyn FnMut() -> NodeHello + Send>,
    /// True if clocks are compared over the network even with a controller on the same machine.
    pub always_compare: bool,
    /// File with the highest epoch that the node has seen.
    pub epoch_file: PathBuf,
    /// File with the senders' deadline, which the supervisor reads; `None` without a supervisor.
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
    comparing: ClockComparisonMode,
    remote: RemoteStreams,
    /// Start time on the controller's clock, and the converted time that was passed to the agent machine.
    start: Option<(MonoTime, MonoTime)>,
    /// True once a sample of the current run was queued for the spool.
    is_kept: bool,
    described: Option<NodeHello>,
    /// True while senders may be sending, so that the supervisor watches them.
    is_sending: bool,
    /// Total time for which the machine had been suspended when the run was prepared. A later suspension does not
    /// prolong the lease of its senders.
    slept: Nanos,
    starvation: StarvationMeter,
}

/// Comparison of this node's clock with the controller's.
#[derive(Debug)]
enum ClockComparisonMode {
    /// The preparation names no clock to compare with.
    Not,
    /// Node and controller use the same clock.
    Same,
    With(ClockProber, Option<ClockFit>),
}

impl NodeMembership {
    /// Creates the membership of a node. Its results are stored in `uplink`; its senders send only
    /// while `gate` is open.
    pub fn new(site: NodeSite, gate: SendGate, uplink: ResultUplink) -> Self {
        Self {
            site,
            gate,
            uplink,
            hello_at: MonoTime::default(),
            interval_at: MonoTime::default(),
            comparing: ClockComparisonMode::Not,
            remote: RemoteStreams::default(),
            start: None,
            is_kept: false,
            described: None,
            is_sending: false,
            slept: Nanos::ZERO,
            starvation: StarvationMeter::new(now()),
        }
    }

    /// Builds the node's hello from its description and the facts that only the agent knows.
    pub(crate) fn build_hello(
        &mut self,
        epoch: u64,
        busy: Option<MessageHead>,
        answers: Option<Nonce>,
    ) -> Box<NodeHello> {
        let spooled = self.uplink.runs_with_waiting_segments();
        let troubles = self.uplink.take_problems();
        let described = self.described.get_or_insert_with(|| (self.site.describe)()).clone();
        let starved = self.starvation.recent_starvation(now());
        Box::new(
            NodeHello { epoch, busy, spooled, troubles, answers, starved, ..described }.truncated_to_limits(),
        )
    }

    /// Records a wait for a message: `asked` is its planned length, `took` its real length.
    pub(crate) fn record_wait(&mut self, asked: Nanos, took: Nanos) {
        self.starvation.record_wait(asked, took, now());
    }

    /// Returns whether the next hello is due. If it is due, also renews the node's description.
    pub(crate) fn refresh_hello_if_due(&mut self) -> bool {
        let due = now() >= self.hello_at;
        if due {
            self.hello_at = now() + HELLO_INTERVAL;
            self.described = Some((self.site.describe)());
        }
        due
    }

    /// Shuts the senders' gate before a run is prepared. Returns the preparation without the capture directory, limits
    /// and confirmed interfaces, because on a lent machine only its owner decides about them. Refuses a preparation
    /// without places, or with forbidden addresses of the clock server.
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
        // The gate is shut before any port is opened: senders of this run may send only once the controller has renewed
        // a lease for this run.
        self.gate.shut_now();
        self.slept = suspended_time();
        self.start = None;
        self.is_kept = false;
        // The deadline of the previous run must not make the supervisor kill this process.
        self.stop_watching()?;
        Ok(RunPreparation {
            run: head.run.0.clone(),
            capture_dir: None,
            terms: SharedRunOptions { limits: Vec::new(), ..preparation.terms.clone() },
            confirmed: Vec::new(),
            ..preparation.clone()
        })
    }

    /// Begins to store results and to compare clocks, after the run was checked against the owner's permit and
    /// the ports are open.
    pub(crate) fn begin_run(
        &mut self,
        head: &MessageHead,
        preparation: &RunPreparation,
        plan: &Plan,
    ) -> Result<(), Error> {
        self.uplink.begin_run(head)?;
        self.remote = RemoteStreams::from_plan(plan, preparation.places.clone(), self.site.node.clone());
        self.comparing = match &preparation.clock {
            None => ClockComparisonMode::Not,
            Some(server) if self.shares_clock_with(server) => ClockComparisonMode::Same,
            Some(server) => ClockComparisonMode::With(ClockProber::start_probing(server.clone())?, None),
        };
        Ok(())
    }

    /// Begins the journal of an attempt, unless it has one already. A further attempt uses the same ports, but its
    /// results are stored separately.
    pub(crate) fn begin_attempt(&mut self, head: &MessageHead) -> Result<(), Error> {
        if self.uplink.has_journal_of_attempt(head) {
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

    /// Returns the comparison of the clocks for the controller; `None` if the clocks are not compared, or if too few
    /// probes were answered. Waits for the first series of probes, up to [`CLOCK_COMPARISON_TIMEOUT`].
    pub(crate) fn compare_clocks(&mut self) -> Option<ClockRecord> {
        match &mut self.comparing {
            ClockComparisonMode::Not => None,
            ClockComparisonMode::Same => Some(ClockRecord::same_clock()),
            ClockComparisonMode::With(prober, before) => {
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

    /// Returns the clock fit that was reported to the controller. Start times and latencies are converted only with
    /// this fit, because the reported bounds belong to it.
    fn reported_fit(&self) -> Option<ClockFit> {
        match &self.comparing {
            ClockComparisonMode::Not => None,
            ClockComparisonMode::Same => Some(ClockFit::same_clock()),
            ClockComparisonMode::With(_, before) => *before,
        }
    }

    /// Stores the clock fits of the nodes that send to this node, and returns the clock shifts of their streams.
    pub(crate) fn update_clock_shifts(
        &mut self,
        fits: Vec<(NodeName, ClockFit)>,
    ) -> Vec<(usize, ClockShift)> {
        self.remote.update_clock_fits(fits);
        self.reported_fit().map(|own| self.remote.clock_shifts(&own, now())).unwrap_or_default()
    }

    /// Applies a plan that has grown, and returns the clock shifts of the streams that other nodes send.
    pub(crate) fn apply_grown_plan(&mut self, plan: &Plan) -> Vec<(usize, ClockShift)> {
        self.remote.apply_grown_plan(plan);
        self.reported_fit().map(|own| self.remote.clock_shifts(&own, now())).unwrap_or_default()
    }

    /// Converts the times of a command to this node's clock.
    pub(crate) fn convert_command_times(&mut self, command: NodeCommand) -> NodeCommand {
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
                ChangeStep::Announce { held, at: at.map(|at| self.to_local_time(at)) }
            }
            ChangeStep::Begin { at } => ChangeStep::Begin { at: at.map(|at| self.to_local_time(at)) },
            ChangeStep::Hold(_) | ChangeStep::Undo => step,
        }
    }

    /// Converts a start time to this node's clock. A repeated start time gives the same result, even if the fit has
    /// improved, because the agent's state machine would treat a different time as another start.
    fn convert_start_time(&mut self, start: MonoTime) -> MonoTime {
        match self.start {
            Some((said, local)) if said == start => local,
            _ => {
                let local = self.to_local_time(start);
                self.start = Some((start, local));
                local
            }
        }
    }

    /// Converts the start time again, with the clock fit that is known now; `given` is the time that the agent's state
    /// machine got before. The result is the time at which the senders start.
    pub(crate) fn fix_local_start(&mut self, given: MonoTime) -> MonoTime {
        match self.start {
            Some((said, local)) if local == given => self.to_local_time(said),
            _ => given,
        }
    }

    fn to_local_time(&self, at: MonoTime) -> MonoTime {
        self.reported_fit().map_or(at, |fit| fit.to_node_time(at))
    }

    /// Extends the lease: senders may send and emulated interfaces may answer until this time.
    pub(crate) fn extend_lease(&self, until: MonoTime) -> Result<(), Error> {
        self.gate.extend_until(until, self.slept);
        // Before the senders start, there is nothing for the supervisor to watch.
        if self.is_sending { self.write_deadline(self.gate.deadline()) } else { Ok(()) }
    }

    /// Makes the supervisor watch the senders: from here on they may send while the lease is valid. Before the start no
    /// sender needs to be watched.
    pub(crate) fn begin_sending(&mut self) -> Result<(), Error> {
        self.is_sending = true;
        self.write_deadline(self.gate.deadline())
    }

    fn write_deadline(&self, deadline: Option<u64>) -> Result<(), Error> {
        let watch = self.site.watch.as_ref();
        watch.map_or(Ok(()), |watch| watch.write_deadline(deadline.unwrap_or(0))).map_err(Error::Watch)
    }

    /// Ends the watch of the supervisor, after all senders have stopped.
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

    /// Adds a final clock comparison to the result, and stores it until it is collected. Returns the
    /// number of its segments.
    pub(crate) fn spool_result(&mut self, result: &NodeResult) -> Result<u64, Error> {
        let clock = self.measure_clock_record();
        self.comparing = ClockComparisonMode::Not;
        self.uplink.finish_run(&NodeResult { clock, ..result.clone() })
    }

    fn measure_clock_record(&mut self) -> Option<ClockRecord> {
        match &mut self.comparing {
            ClockComparisonMode::Not => None,
            ClockComparisonMode::Same => Some(ClockRecord::same_clock()),
            ClockComparisonMode::With(prober, before) => {
                let after = prober.measure_final_fit(CLOCK_COMPARISON_TIMEOUT);
                // If no probe was answered while arming, only the last series can give a fit.
                let before = before.or(after)?;
                Some(ClockRecord { source: FitSource::InBand, before, after, unused: None })
            }
        }
    }

    /// Gives up the run. Samples that were stored stay in the spool.
    pub(crate) fn leave_run(&mut self) -> Result<(), Error> {
        // Ends the prober's thread.
        self.comparing = ClockComparisonMode::Not;
        // A journal without a sample or result has no information, so it is discarded.
        self.uplink.leave_run(self.is_kept)?;
        self.stop_watching()
    }

    /// Deletes segments that the controller has stored.
    pub(crate) fn delete_stored_segments(&self, mark: &StoredWatermark) {
        self.uplink.delete_stored_segments(mark);
    }

    /// Stores the highest epoch in a file, so that the agent knows it after a restart.
    pub(crate) fn remember_epoch(&self, epoch: u64) -> Result<(), Error> {
        crate::epoch::write_epoch(&self.site.epoch_file, epoch).map_err(Error::Epoch)
    }
}
