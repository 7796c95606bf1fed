//! What a node asks of a data plane: from arming to the accounts of a run. [`TestRig`] is the one that sends frames.

use super::bench::PortBench;
use super::course::StreamCourse;
use super::watch::PortWatcher;
use super::{TestRig, account};
use crate::Error;
use crate::port::WorkerClock;
use crate::stream::{ClockShift, StreamControl};
use crate::tap_losses;
use packetrig_plan::{HeldStream, PlanChange, PlanGrowth};
use packetrig_stats::counts::DelaySummary;
use packetrig_stats::result::{CaptureState, CountSample, MachineInfo, NodeResult, SentTotal};
use packetrig_sys::{kernel, sched};
use packetrig_units::MonoTime;

/// Ports and workers prepared for one run. Dropping it stops everything and closes the ports.
pub trait DataPlane: SteeredPlane {
    /// Finds the neighbours that streams await (those of a steered run when they begin), starts the receivers, then the
    /// senders; returns when each receiver is receiving. No test traffic is sent yet.
    fn arm(&mut self) -> Result<(), Error>;
    /// Sends from `at` on.
    fn start_at(&mut self, at: MonoTime);
    /// Tells how the clocks of nodes that send streams to this one relate to its own: (stream, shift). Once the rig is armed,
    /// and again whenever it is known better; frames that arrived before keep the latency they were given. A stream sent
    /// elsewhere without a shift has no latency.
    fn shift(&mut self, shifts: &[(usize, ClockShift)]) -> Result<(), Error> {
        // For a plane that measures no latency.
        let _ = shifts;
        Ok(())
    }
    /// All counts as published at one instant, about 100 ms ago at most. Finds workers that panicked; one that met an error of
    /// its port has ended with what it had counted.
    fn sample(&mut self) -> Result<CountSample, Error>;
    /// Whether every sender is done. Notes when that was first seen. Those of a steered run are when they were stopped.
    fn senders_done(&mut self) -> bool;
    /// What each stream of this node's senders has sent that can be known again. Final once they are done.
    fn sent(&mut self) -> Result<Vec<SentTotal>, Error>;
    /// Whether a sender ended because its lease was over, however long the lease is by now. Final once they are done.
    fn lease_ended(&mut self) -> Result<bool, Error> {
        Ok(self.sample()?.tx.iter().any(|(_, counts)| counts.lease_ended))
    }
    /// Stops the senders; what is unsent stays unsent.
    fn stop_senders(&mut self);
    /// Stops senders, then receivers, gives the final accounts. `sent_elsewhere` is what streams of other nodes' senders
    /// sent. It is the last thing to be asked of a plane; dropping that closes its ports, which takes the kernel a while, and
    /// restores the interfaces.
    fn finish(&mut self, node: &str, sent_elsewhere: &[SentTotal]) -> Result<NodeResult, Error>;
}

/// Changes of a steered run. On one node [`SteeredPlane::steer`] makes a change; between nodes it is made in steps.
pub trait SteeredPlane {
    /// Does what the user asks for as soon as possible, where no other rig takes part in it. An error leaves the run as it was.
    fn steer(&mut self, steer: &PlanChange<PlanGrowth>) -> Result<(), Error>;
    /// First step: holds the streams concerned that are sent here, and says where. What cannot be done is an error now, and the
    /// run is as it was.
    fn hold(&mut self, steer: &PlanChange<PlanGrowth>) -> Result<Vec<HeldStream>, Error>;
    /// Second step: tells the receivers that are here of the takes that follow; takes on new streams, stops those that are gone.
    /// `held` is what all rigs reported, `at` the time that they have in common.
    fn announce(&mut self, held: &[HeldStream], at: Option<MonoTime>) -> Result<(), Error>;
    /// Third step: the streams that are sent here go on, at `at` if that is still to come.
    fn begin(&mut self, at: Option<MonoTime>) -> Result<(), Error>;
    /// Instead of the second step: what was being sent goes on as before. What was announced is decided, and begins.
    fn undo(&mut self) -> Result<(), Error>;
}

impl DataPlane for TestRig {
    fn arm(&mut self) -> Result<(), Error> {
        let steered = self.courses.is_some();
        self.let_hosts_ask()?;
        if !steered {
            self.resolve(&self.sent_here().collect())?;
        }
        let earlier_runs = crate::recent_runs::note(&self.run, self.key);
        for bench in &mut self.benches {
            bench.arm_receiver(self.key, &self.specs, steered, earlier_runs.clone())?;
        }
        for bench in &mut self.benches {
            let gate = self.gate.clone();
            bench.arm_sender(self.key, &self.specs, steered, gate)?;
        }
        self.watch()
    }

    fn start_at(&mut self, at: MonoTime) {
        self.started = Some(at);
        for bench in &self.benches {
            bench.control_receiver(StreamControl::StartAt(at));
        }
        for bench in &self.benches {
            bench.control_sender(StreamControl::StartAt(at));
        }
    }

    fn shift(&mut self, shifts: &[(usize, ClockShift)]) -> Result<(), Error> {
        let numbered =
            shifts.iter().filter_map(|(stream, shift)| Some((u16::try_from(*stream).ok()?, *shift)));
        let shifts: Vec<_> = numbered.collect();
        self.benches.iter_mut().try_for_each(|bench| bench.shift(&shifts))
    }

    fn sample(&mut self) -> Result<CountSample, Error> {
        let mut sample = CountSample { at: self.clock.now(), ..CountSample::default() };
        let mut sent_by: Option<MonoTime> = None;
        for bench in &mut self.benches {
            let at = bench.sample_sender(&mut sample)?;
            sent_by = sent_by.into_iter().chain(at).min();
        }
        // Receivers as of no later instant, so that nothing has arrived that is not counted as sent.
        let mut latency = DelaySummary::default();
        for bench in &mut self.benches {
            bench.sample_receiver(&mut sample, &mut latency, sent_by)?;
        }
        sample.latency = latency.mean().map(|mean| (latency.min, mean, latency.max));
        sample.captures.extend(self.captures().into_iter().map(|(port, capture)| CaptureState {
            port,
            is_running: capture.is_running(),
            file: capture.last().map(|captured| captured.file.to_string_lossy().into_owned()),
        }));
        sample.pings = self.look_at_pings()?;
        for (stream, counts) in &mut sample.tx {
            let course = self.courses.as_ref().and_then(|courses| courses.get(*stream));
            counts.is_paused = course.is_some_and(StreamCourse::is_paused);
        }
        sample.neighbours = self.neighbours();
        Ok(sample)
    }

    fn senders_done(&mut self) -> bool {
        if self.courses.is_some() && !self.interrupted {
            return false;
        }
        // A sender without streams, or without a worker, counts as done.
        let done = self.benches.iter().all(PortBench::sender_done);
        if done && self.started.is_some() && self.senders_done.is_none() {
            self.senders_done = Some(self.clock.now());
        }
        done && (self.started.is_some() || self.interrupted)
    }

    fn sent(&mut self) -> Result<Vec<SentTotal>, Error> {
        let sent = self.sample()?.tx.into_iter();
        Ok(sent.map(|(stream, counts)| SentTotal { stream, frames: counts.numbered() }).collect())
    }

    fn stop_senders(&mut self) {
        // A stop after the last frame changes nothing, so it is no interruption.
        self.interrupted |= !self.senders_done();
        for bench in &self.benches {
            bench.control_sender(StreamControl::Stop);
        }
    }

    fn finish(&mut self, node: &str, sent_elsewhere: &[SentTotal]) -> Result<NodeResult, Error> {
        self.stop_senders();
        let mut result = NodeResult { node: node.to_owned(), ..NodeResult::default() };
        result.started = self.started.unwrap_or_else(|| self.clock.now());
        // From here on the order matters: senders stop, then interfaces that answer for devices (their frames are not
        // the test's), and receivers last, so that everything sent had its chance to arrive.
        self.benches.iter_mut().try_for_each(PortBench::end_host)?;
        let sent = self.finish_senders(&mut result)?;
        let totals = self.totals(&result, sent_elsewhere);
        let ports = self.finish_receivers(sent, &totals, &mut result)?;
        result.ended = self.clock.now();
        let mut captured = Vec::new();
        for bench in &mut self.benches {
            captured.extend(bench.finish_captures());
        }
        // A steered run has no end of its own to be stopped before.
        let interrupted = self.interrupted && self.courses.is_none();
        let account =
            account::RigAccount { plan: &self.plan, specs: &self.specs, ports: &ports, interrupted };
        account.close(&mut result, captured);
        account.doubt_recordings(&mut result);
        tap_losses::doubt(&mut result, self.has_receivers_elsewhere());
        result.machine = Some(this_machine());
        Ok(result)
    }
}

/// The machine that this process runs on.
pub fn this_machine() -> MachineInfo {
    MachineInfo {
        kernel: kernel::release(),
        architecture: kernel::architecture(),
        processor: kernel::processor_model(),
        processors: sched::cpus().ok().and_then(|cpus| u32::try_from(cpus.len()).ok()),
    }
}

impl TestRig {
    /// Ends the receivers and notes what they received; the rest of what is known of each port.
    fn finish_receivers(
        &mut self,
        sent: Vec<account::SenderResult>,
        totals: &[u64],
        result: &mut NodeResult,
    ) -> Result<Vec<account::PortBook>, Error> {
        let mut events = self.watcher.as_mut().map(PortWatcher::finish).unwrap_or_default();
        let mut ports = Vec::with_capacity(self.benches.len());
        // All at once: each may be waiting for frames and looks at its orders only then.
        self.benches.iter().for_each(PortBench::begin_finish_receiver);
        for (bench, sent) in self.benches.iter_mut().zip(sent) {
            let received = bench.finish_receiver(&self.clock, totals)?;
            result.receive.extend(received.frames.streams);
            result.misdelivered.extend(received.frames.misdelivered);
            result.other_runs.extend(received.frames.other_runs);
            let mut events = events.remove(&bench.port()).unwrap_or_default();
            events.extend(sent.record.stalls);
            ports.push(account::PortBook {
                port: bench.port(),
                info: bench.info().clone(),
                tx: sent.counters,
                rx: received.counters,
                clock_bound: received.clock_bound,
                events,
                peaks: sent.record.peaks,
                sent_ahead: sent.record.ahead,
                untagged_contents: received.frames.untagged_contents,
                caveats: bench.caveats(),
                sender_fault: sent.record.fault,
                faults: bench.take_faults(),
            });
        }
        Ok(ports)
    }
}
