//! Interface between a node and a data plane, from arming the ports to the results of a run. [`TestRig`] is the data
//! plane that sends test frames.

use super::running_port::RunningPort;
use super::steering::SteeredStreamState;
use super::watch::PortWatcher;
use super::{TestRig, account};
use crate::Error;
use crate::port::WorkerClock;
use crate::stream::{ClockShift, StreamControl};
use crate::tap_losses;
use packetrig_plan::{PlanChange, PlanGrowth, StreamResumePoint};
use packetrig_stats::counts::DelaySummary;
use packetrig_stats::result::{CaptureState, CountSample, MachineInfo, NodeResult, SentTotal};
use packetrig_sys::{kernel, sched};
use packetrig_units::MonoTime;

/// Ports and workers prepared for one run. Dropping the value stops everything and closes the ports.
pub trait DataPlane: SteeredPlane {
    /// Finds the MAC addresses of next hops (in a steered run only when a stream begins), starts the receivers, then
    /// the senders. Returns when each receiver is receiving. Sends no test traffic.
    fn arm_ports(&mut self) -> Result<(), Error>;
    /// Sets the start time: all schedules begin at `at`.
    fn start_at(&mut self, at: MonoTime);
    /// Sets how the clocks of other sending nodes relate to the clock of this node, by stream index. Called once the
    /// rig is armed, and again whenever a shift is measured better; frames that arrived before keep their latency.
    /// Without a shift, a stream from another node has no latency.
    fn set_clock_shifts(&mut self, shifts: &[(usize, ClockShift)]) -> Result<(), Error> {
        // The default is for implementations that measure no latency.
        let _ = shifts;
        Ok(())
    }
    /// Returns all counts as published at one instant, at most about 100 ms ago. Fails if a worker panicked. The counts
    /// of a worker that met an error of its port stay as they were at the error.
    fn sample_counts(&mut self) -> Result<CountSample, Error>;
    /// Returns whether every sender is done, and records when that was first the case. In a steered run, senders are
    /// done only after they are stopped.
    fn senders_done(&mut self) -> bool;
    /// Returns how many tagged frames this node has sent of each stream. Final once the senders are done.
    fn sent_totals(&mut self) -> Result<Vec<SentTotal>, Error>;
    /// Returns whether a sender ended because its lease expired, even if the lease was renewed since. Final once
    /// the senders are done.
    fn lease_ended(&mut self) -> Result<bool, Error> {
        Ok(self.sample_counts()?.tx.iter().any(|(_, counts)| counts.lease_ended))
    }
    /// Stops the senders; unsent frames stay unsent.
    fn stop_senders(&mut self);
    /// Stops senders, then receivers, and returns the results of the run. `sent_elsewhere` has the numbers of frames
    /// that other nodes have sent. Must be the last call. Dropping the data plane closes its ports, which takes the
    /// kernel a while, and restores the interfaces.
    fn finish_run(&mut self, node: &str, sent_elsewhere: &[SentTotal]) -> Result<NodeResult, Error>;
}

/// Changes of a steered run. For a run on one node, [`SteeredPlane::apply_change`] makes the whole change. For a run on
/// several nodes, the controller calls the steps one by one.
pub trait SteeredPlane {
    /// Makes a change as soon as possible, for a run on this node only. If a change of streams is impossible, the run
    /// stays as it was.
    fn apply_change(&mut self, steer: &PlanChange<PlanGrowth>) -> Result<(), Error>;
    /// First step: stops the streams concerned that this node sends, and returns where they stopped. A change that the
    /// plan or the ports do not allow fails in this step, and the run stays as it was.
    fn hold_for_change(&mut self, steer: &PlanChange<PlanGrowth>) -> Result<Vec<StreamResumePoint>, Error>;
    /// Second step: announces the segments that follow to the local receivers, adds new streams and stops removed ones.
    /// `held` lists the held streams of all nodes; `at` is the time of the change, which is the same for all nodes.
    fn announce_change(&mut self, held: &[StreamResumePoint], at: Option<MonoTime>) -> Result<(), Error>;
    /// Third step: continues the streams that this node sends, at `at` if that is in the future, otherwise now.
    fn begin_change(&mut self, at: Option<MonoTime>) -> Result<(), Error>;
    /// Undoes the first step: the held streams continue as before. A change that was announced is
    /// not undone; it begins.
    fn undo_change(&mut self) -> Result<(), Error>;
}

impl DataPlane for TestRig {
    fn arm_ports(&mut self) -> Result<(), Error> {
        let steered = self.steered_streams.is_some();
        self.permit_neighbour_requests()?;
        if !steered {
            self.resolve_neighbours(&self.locally_sent_streams().collect())?;
        }
        // The list of earlier runs is read before the receivers start, so that they recognise frames of those
        // runs from the first one on.
        let earlier_runs = crate::recent_runs::list_earlier_runs_and_store_this_one(&self.run, self.key);
        for running in &mut self.running_ports {
            running.arm_receiver(self.key, &self.specs, steered, earlier_runs.clone())?;
        }
        for running in &mut self.running_ports {
            // All senders of a node share one lease.
            let gate = self.gate.clone();
            running.arm_sender(self.key, &self.specs, steered, gate)?;
        }
        self.start_watcher()
    }

    fn start_at(&mut self, at: MonoTime) {
        self.started = Some(at);
        // Receivers first: no frame may arrive before its receiver has the start.
        for running in &self.running_ports {
            running.send_control_to_receiver(StreamControl::StartAt(at));
        }
        for running in &self.running_ports {
            running.send_control_to_sender(StreamControl::StartAt(at));
        }
    }

    fn set_clock_shifts(&mut self, shifts: &[(usize, ClockShift)]) -> Result<(), Error> {
        let numbered =
            shifts.iter().filter_map(|(stream, shift)| Some((u16::try_from(*stream).ok()?, *shift)));
        let shifts: Vec<_> = numbered.collect();
        self.running_ports.iter_mut().try_for_each(|running| running.set_clock_shifts(&shifts))
    }

    fn sample_counts(&mut self) -> Result<CountSample, Error> {
        let mut sample = CountSample { at: self.clock.now(), ..CountSample::default() };
        let mut sent_by: Option<MonoTime> = None;
        for running in &mut self.running_ports {
            let at = running.add_sender_counts_to_sample(&mut sample)?;
            sent_by = sent_by.into_iter().chain(at).min();
        }
        // Receivers are sampled at no later time than senders, so that no frame is counted as received but not as sent.
        let mut latency = DelaySummary::default();
        for running in &mut self.running_ports {
            running.add_receiver_counts_to_sample(&mut sample, &mut latency, sent_by)?;
        }
        sample.latency = latency.mean().map(|mean| (latency.min, mean, latency.max));
        sample.captures.extend(self.captures().into_iter().map(|(port, capture)| CaptureState {
            port,
            is_running: capture.is_running(),
            file: capture.last_outcome().map(|captured| captured.file.to_string_lossy().into_owned()),
        }));
        sample.pings = self.poll_pings()?;
        for (stream, counts) in &mut sample.tx {
            let state = self.steered_streams.as_ref().and_then(|courses| courses.get(*stream));
            counts.is_paused = state.is_some_and(SteeredStreamState::is_paused);
        }
        sample.neighbours = self.neighbour_states();
        Ok(sample)
    }

    fn senders_done(&mut self) -> bool {
        if self.steered_streams.is_some() && !self.interrupted {
            return false;
        }
        // A sender without streams or without a worker counts as done.
        let done = self.running_ports.iter().all(RunningPort::is_sender_done);
        if done && self.started.is_some() && self.senders_done.is_none() {
            self.senders_done = Some(self.clock.now());
        }
        done && (self.started.is_some() || self.interrupted)
    }

    fn sent_totals(&mut self) -> Result<Vec<SentTotal>, Error> {
        let sent = self.sample_counts()?.tx.into_iter();
        Ok(sent.map(|(stream, counts)| SentTotal { stream, frames: counts.numbered_frames() }).collect())
    }

    fn stop_senders(&mut self) {
        // A stop after the last frame changes nothing, so it is no interruption.
        self.interrupted |= !self.senders_done();
        for running in &self.running_ports {
            running.send_control_to_sender(StreamControl::Stop);
        }
    }

    fn finish_run(&mut self, node: &str, sent_elsewhere: &[SentTotal]) -> Result<NodeResult, Error> {
        self.stop_senders();
        let mut result = NodeResult { node: node.to_owned(), ..NodeResult::default() };
        result.started = self.started.unwrap_or_else(|| self.clock.now());
        // From here on the order matters. Senders stop first. Then interfaces that answer for devices stop, because
        // their frames are not part of the test. Receivers stop last, so that every sent frame can still arrive.
        self.running_ports.iter_mut().try_for_each(RunningPort::stop_device_host)?;
        let sent = self.finish_senders(&mut result)?;
        let totals = self.totals_by_stream(&result, sent_elsewhere);
        let ports = self.finish_receivers(sent, &totals, &mut result)?;
        result.ended = self.clock.now();
        let mut captured = Vec::new();
        for running in &mut self.running_ports {
            captured.extend(running.finish_captures());
        }
        // A steered run has no planned end before which it could be interrupted.
        let interrupted = self.interrupted && self.steered_streams.is_none();
        let account =
            account::RigResultBuilder { plan: &self.plan, specs: &self.specs, ports: &ports, interrupted };
        account.fill_node_result(&mut result, captured);
        account.add_recording_caveats(&mut result);
        tap_losses::add_tap_loss_doubts(&mut result, self.has_receivers_elsewhere());
        result.machine = Some(describe_this_machine());
        Ok(result)
    }
}

/// Describes the machine that this process runs on.
pub fn describe_this_machine() -> MachineInfo {
    MachineInfo {
        kernel: kernel::kernel_release_name(),
        architecture: kernel::architecture(),
        processor: kernel::read_processor_model(),
        processors: sched::read_allowed_cpus().ok().and_then(|cpus| u32::try_from(cpus.len()).ok()),
    }
}

impl TestRig {
    /// Ends the receivers and adds their results to `result`; returns the outcome of each port.
    fn finish_receivers(
        &mut self,
        sent: Vec<account::SenderResult>,
        totals: &[u64],
        result: &mut NodeResult,
    ) -> Result<Vec<account::PortOutcome>, Error> {
        let mut events = self.watcher.as_mut().map(PortWatcher::finish_watch).unwrap_or_default();
        let mut ports = Vec::with_capacity(self.running_ports.len());
        // All receivers get the request to end first: each may be waiting for frames, and reads
        // the request only afterwards.
        self.running_ports.iter().for_each(RunningPort::request_receiver_end);
        for (running, sent) in self.running_ports.iter_mut().zip(sent) {
            let received = running.finish_receiver(&self.clock, totals)?;
            result.receive.extend(received.frames.streams);
            result.misdelivered.extend(received.frames.misdelivered);
            result.other_runs.extend(received.frames.other_runs);
            let mut events = events.remove(&running.port_index()).unwrap_or_default();
            events.extend(sent.record.stalls);
            ports.push(account::PortOutcome {
                port: running.port_index(),
                info: running.info().clone(),
                tx: sent.counters,
                rx: received.counters,
                clock_bound: received.clock_bound,
                events,
                peaks: sent.record.peaks,
                sent_ahead: sent.record.ahead,
                untagged_contents: received.frames.untagged_contents,
                caveats: running.caveats(),
                sender_fault: sent.record.fault,
                faults: running.take_faults(),
            });
        }
        Ok(ports)
    }
}
