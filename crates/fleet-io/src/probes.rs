//! The data plane of a run with probes. Instead of receivers it has reflectors, and its senders send probes. A line is
//! the probes from one port to one destination.
//!
//! ```text
//!  prepare   the owner's permits are checked for every line, before a socket is opened
//!  arm       reflectors answer; paths, mechanisms and listeners are ready; senders wait
//!  start_at  every sender counts its departure times from the start time
//!  finish    senders, then reflectors end; the results of both become the node's result
//! ```
//! This plane goes through the same states as the rig that sends streams, so leases, barriers and the collection
//! of results work in the same way.
//!
//! Invariant: a probe goes only to addresses that both the permit for probes and the owner's file allow.
//! Senders and reflectors check the gate of the lease themselves.

mod findings;
mod prepare;
mod ready;
mod reflecting;
mod sending;

use crate::plane::LentMachine;
use packetrig_engine::Error;
use packetrig_engine::gate::SendGate;
use packetrig_engine::rig::{DataPlane, SteeredPlane};
use packetrig_fleet::message::RunPreparation;
use packetrig_plan::probes::ProbePlan;
use packetrig_plan::{Plan, PlanChange, PlanGrowth, StreamResumePoint};
use packetrig_probe::ProbePermit;
use packetrig_probe::choice::CalibrationResult;
use packetrig_stats::caveat::{Caveat, CaveatKind};
use packetrig_stats::probe::{ProbeLineResult, ProbeNodeResult, WallClockOffset};
use packetrig_stats::result::{CountSample, NodeResult, ProbeProgress, SentTotal};
use packetrig_sys::clock::{self, RealtimeOffset};
use packetrig_units::{MonoTime, Nanos};
use prepare::OwnProbePort;
use reflecting::RunningReflector;
use sending::{RunningSender, SentProbeLines};

/// Limits that the owner of a machine sets for probes.
#[derive(Clone, Debug, Default)]
pub struct ProbePolicy {
    /// Targets that the owner allows to probe, with their limits.
    pub permit: ProbePermit,
    /// Measured precision of release mechanisms on this machine.
    pub calibration: Option<CalibrationResult>,
    /// Reads today's date, as `2027-01-31`, because permissions can have a last day.
    pub today: DateReader,
}

/// Reads today's date, in the form `2027-01-31`, as permits have it.
#[derive(Clone, Copy, Debug)]
pub struct DateReader(pub fn() -> String);

impl Default for DateReader {
    /// Returns a date after any last day, so that every permission with a last day has ended.
    fn default() -> Self {
        Self(|| "9999-99-99".to_owned())
    }
}

/// The data plane of a run with probes, on one node.
#[derive(Debug)]
pub(crate) struct ProbeDataPlane {
    probes: ProbePlan,
    ports: Vec<OwnProbePort>,
    policy: ProbePolicy,
    gate: SendGate,
    seed: u64,
    clock: RealtimeOffset,
    reflectors: Vec<RunningReflector>,
    senders: Vec<RunningSender>,
    /// Results of lines that could not be prepared.
    failed: Vec<ProbeLineResult>,
    started: Option<MonoTime>,
    senders_done: Option<MonoTime>,
    is_interrupted: bool,
}

impl ProbeDataPlane {
    /// Checks all probes and answers of this node against the owner's permits. Opens no socket.
    pub(crate) fn prepare_probes(
        preparation: &RunPreparation,
        plan: &Plan,
        probes: ProbePlan,
        lent: &LentMachine,
    ) -> Result<Self, Error> {
        let ports = prepare::select_permitted_probe_ports(preparation, plan, &probes, lent)?;
        Ok(Self {
            probes,
            ports,
            policy: lent.probes.clone(),
            gate: lent.gate.clone(),
            seed: preparation.terms.seed,
            clock: clock::measure_realtime_offset(),
            reflectors: Vec::new(),
            senders: Vec::new(),
            failed: Vec::new(),
            started: None,
            senders_done: None,
            is_interrupted: false,
        })
    }

    /// Stops and joins all sender threads, and returns their results.
    fn end_senders(&mut self) -> SentProbeLines {
        let mut sent = SentProbeLines::default();
        for sender in self.senders.drain(..) {
            sent.append_lines(sender.stop_and_join());
        }
        sent
    }

    /// Returns the offset of the wall clock from the monotonic clock, with a bound that holds from arming until now.
    fn wall_clock_offset(&self) -> WallClockOffset {
        let now = clock::measure_realtime_offset();
        // If the wall clock was set in between, it is unknown which timestamps are before and which after that.
        let stepped = now.offset_ns.abs_diff(self.clock.offset_ns);
        let bound = Nanos::new(now.bound_ns.max(self.clock.bound_ns).saturating_add(stepped));
        WallClockOffset { offset_ns: now.offset_ns, bound }
    }
}

fn now() -> MonoTime {
    MonoTime::from_nanos(clock::monotonic_ns())
}

impl DataPlane for ProbeDataPlane {
    fn arm_ports(&mut self) -> Result<(), Error> {
        self.clock = clock::measure_realtime_offset();
        // Reflectors start first: they are the receivers, and other nodes begin to send at the start time.
        for port in &self.ports {
            self.reflectors.extend(RunningReflector::start_reflecting(&self.probes, port, &self.gate)?);
        }
        for port in &self.ports {
            let ready = ready::prepare_lines(&self.probes, port, &self.policy, &self.gate, self.seed)?;
            self.failed.extend(ready.failed);
            self.senders.extend(RunningSender::start_senders(&self.probes, ready.senders, &self.gate)?);
        }
        Ok(())
    }

    fn start_at(&mut self, at: MonoTime) {
        self.started = Some(at);
        self.senders.iter().for_each(|sender| sender.start_at(at));
    }

    fn sample_counts(&mut self) -> Result<CountSample, Error> {
        let progress = self.senders.iter().map(RunningSender::probe_progress);
        let probes = Some(progress.fold(ProbeProgress::default(), ProbeProgress::plus));
        Ok(CountSample { at: now(), probes, ..CountSample::default() })
    }

    fn senders_done(&mut self) -> bool {
        let is_done = self.senders.iter().all(RunningSender::is_done);
        // A node without senders is done at once, but its part of the run must not end before the start.
        let is_over = is_done && (self.started.is_some_and(|at| now() >= at) || self.is_interrupted);
        if is_over && self.started.is_some() {
            self.senders_done.get_or_insert_with(now);
        }
        is_over
    }

    fn sent_totals(&mut self) -> Result<Vec<SentTotal>, Error> {
        // Probes have no receiver that compares a total with its arrivals.
        Ok(Vec::new())
    }

    fn lease_ended(&mut self) -> Result<bool, Error> {
        Ok(self.senders.iter().any(RunningSender::has_lost_lease))
    }

    fn stop_senders(&mut self) {
        // `senders_done` is called before the senders are stopped: a stop after their end interrupts nothing.
        self.is_interrupted |= !self.senders_done();
        self.senders.iter().for_each(RunningSender::stop_sending);
    }

    fn finish_run(&mut self, node: &str, _: &[SentTotal]) -> Result<NodeResult, Error> {
        self.stop_senders();
        // If the run was stopped before the start, its result is empty and begins now.
        let started = self.started.unwrap_or_else(now);
        let mut sent = self.end_senders();
        sent.lines.append(&mut self.failed);
        // Lines end in the order of their senders, and failed lines come last; the report has the order of the plan.
        sent.lines.sort_by_key(|row| row.line);
        let mut reflected = Vec::new();
        // Reflectors stop last: probes of other nodes may arrive while this node's senders end.
        for reflector in self.reflectors.drain(..) {
            reflected.extend(reflector.stop_and_join()?);
        }
        let interrupted = self.is_interrupted.then(|| Caveat {
            doubt: CaveatKind::Interrupted,
            subject: node.to_owned(),
            text: "stopped before all its probes were sent".to_owned(),
            matters: true,
        });
        Ok(NodeResult {
            node: node.to_owned(),
            started,
            senders_done: self.senders_done.unwrap_or_else(now),
            ended: now(),
            probes: Some(ProbeNodeResult {
                lines: sent.lines,
                reflected,
                wall_clock: self.wall_clock_offset(),
                first: sent.first,
            }),
            caveats: interrupted.into_iter().collect(),
            machine: Some(packetrig_engine::rig::describe_this_machine()),
            ..NodeResult::default()
        })
    }
}

const NOT_STEERED_ERROR: Error = Error::Bug("a run with probes cannot change its streams");

impl SteeredPlane for ProbeDataPlane {
    fn apply_change(&mut self, _: &PlanChange<PlanGrowth>) -> Result<(), Error> {
        Err(NOT_STEERED_ERROR)
    }

    fn hold_for_change(&mut self, _: &PlanChange<PlanGrowth>) -> Result<Vec<StreamResumePoint>, Error> {
        Err(NOT_STEERED_ERROR)
    }

    fn announce_change(&mut self, _: &[StreamResumePoint], _: Option<MonoTime>) -> Result<(), Error> {
        Err(NOT_STEERED_ERROR)
    }

    fn begin_change(&mut self, _: Option<MonoTime>) -> Result<(), Error> {
        Err(NOT_STEERED_ERROR)
    }

    fn undo_change(&mut self) -> Result<(), Error> {
        Err(NOT_STEERED_ERROR)
    }
}

#[cfg(test)]
mod tests;
