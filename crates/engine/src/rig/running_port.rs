//! One port of the rig: its transmit and receive halves with their workers, its captures, and the value
//! that keeps it open.

mod captures;
mod results;
mod streams;

use super::account::{PortComponent, PortWorkerFault};
use super::{HeldPort, OpenPort, OwnerPermit, RigOptions};
use crate::Error;
use crate::capture::{CaptureTap, PortCapture};
use crate::clock::RealClock;
use crate::device::host::{DeviceHost, PublishedHostCounters};
use crate::device::{DeviceMachine, PortInterfaceHandle};
use crate::gate::SendGate;
use crate::port::WorkerClock;
use crate::segment::StreamSegment;
use crate::stream::{ClockShift, EarlierRun, RxJob, StreamControl, StreamRx, StreamSpec, StreamTx, TxJob};
use crate::worker::{
    FinishedWorker, PortWorker, PublishedRxCounts, PublishedTxCounts, ReceivingHalf, SendingHalf, WorkerFault,
};
use packetrig_plan::Plan;
use packetrig_plan::device::DeviceInterface;
use packetrig_stats::port::PortInfo;
use packetrig_units::MonoTime;
use packetrig_wire::tag::TagKey;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::Builder;
use streams::{
    segments_of_streams, select_specs, stream_numbers, streams_expected_elsewhere, streams_received_by,
    streams_sent_by,
};

/// State of the transmit or receive half of a port: `T` is the half, `W` the worker that owns it.
enum PortHalfState<T, W> {
    Unused(T),
    Working(W),
    Ended(T),
    /// Moved out during a transition, or lost together with its worker.
    Lost,
}

impl<T, W> PortHalfState<T, W> {
    fn take_unused_half(&mut self) -> Result<T, Error> {
        match std::mem::replace(self, Self::Lost) {
            Self::Unused(half) => Ok(half),
            _ => Err(Error::Bug("a sender or receiver of a port was armed twice")),
        }
    }

    fn worker_mut(&mut self) -> Option<&mut W> {
        match self {
            Self::Working(worker) => Some(worker),
            _ => None,
        }
    }
}

/// A port of a run. Fields drop in this order: workers, files, then the interface is restored.
pub(super) struct RunningPort {
    pub(super) host: Option<PortWorker<DeviceHost, PublishedHostCounters>>,
    port: usize,
    info: PortInfo,
    tx: PortHalfState<Box<dyn StreamTx>, PortWorker<SendingHalf, PublishedTxCounts>>,
    rx: PortHalfState<Box<dyn StreamRx>, PortWorker<ReceivingHalf, PublishedRxCounts>>,
    /// Streams that this port sends and receives, by index in the plan.
    sends: Vec<usize>,
    receives: Vec<usize>,
    /// Streams that the plan expects only at other ports, by index in the plan.
    elsewhere: Vec<usize>,
    captures: Vec<PortCapture>,
    taps: Vec<CaptureTap>,
    /// Failures of the port's components so far.
    faults: Vec<PortWorkerFault>,
    hold: Box<dyn HeldPort>,
}

fn closing_thread_builder() -> Builder {
    Builder::new().name("closing".to_owned())
}

/// Ends the workers and closes the rings of all ports in parallel: the kernel releases a ring only after a grace
/// period, and waiting for one ring after another would take a multiple of it. The interfaces stay locked. Captures
/// that are still running are completed.
pub(super) fn close_ports(running_ports: &mut [RunningPort]) {
    std::thread::scope(|scope| {
        for running in &mut *running_ports {
            // The halves are taken out, so that each thread owns one half and drops it there.
            let tx = std::mem::replace(&mut running.tx, PortHalfState::Lost);
            let rx = std::mem::replace(&mut running.rx, PortHalfState::Lost);
            // If no thread can be started, the half is closed right here.
            drop(closing_thread_builder().spawn_scoped(scope, move || drop(tx)));
            drop(closing_thread_builder().spawn_scoped(scope, move || drop(rx)));
        }
    });
    for running in running_ports {
        // The captures of a completed run have ended already. A recorder ends once its tap and its receiver are gone.
        running.taps.clear();
        running.captures.iter().for_each(PortCapture::stop_capture_of_failed_run);
    }
}

impl RunningPort {
    pub(super) fn new(port: usize, open: OpenPort, plan: &Plan) -> Self {
        Self {
            host: None,
            port,
            info: open.info,
            tx: PortHalfState::Unused(open.tx),
            rx: PortHalfState::Unused(open.rx),
            sends: streams_sent_by(plan, port, 0),
            receives: streams_received_by(plan, port, 0),
            elsewhere: streams_expected_elsewhere(plan, port, 0),
            captures: Vec::new(),
            taps: Vec::new(),
            faults: Vec::new(),
            hold: open.hold,
        }
    }

    /// Returns the index of the port in the plan.
    pub(super) const fn port_index(&self) -> usize {
        self.port
    }

    pub(super) const fn info(&self) -> &PortInfo {
        &self.info
    }

    pub(super) fn caveats(&self) -> Vec<String> {
        self.hold.caveats()
    }

    /// Starts the worker of the port's emulated interfaces, if it has any. They are switched off at first.
    pub(super) fn start_device_host(
        &mut self,
        plan: &Plan,
        options: &RigOptions,
        permit: Option<Arc<dyn OwnerPermit>>,
    ) -> Result<(), Error> {
        let here = plan.interfaces.iter().enumerate().filter(|(_, of)| of.port == self.port);
        let here: BTreeMap<usize, DeviceInterface> = here.map(|(index, of)| (index, of.clone())).collect();
        // Sockets are opened only for ports with interfaces: each costs a ring in the kernel.
        if here.is_empty() {
            return Ok(());
        }
        let Some(site) = self.hold.device_site()? else {
            return Err(Error::NoDevices { port: self.info.name.clone() });
        };
        let machine = DeviceMachine::new(options.tag_key(), here).with_permit(permit);
        let host = DeviceHost::open_sockets(site, machine, options.gate.clone())?;
        let name = format!("host-{}", self.port);
        self.host = Some(PortWorker::start(name, host, Box::new(RealClock::new()))?);
        Ok(())
    }

    /// Ends the emulated interfaces. After this they neither answer nor send requests.
    pub(super) fn stop_device_host(&mut self) -> Result<(), Error> {
        let Some(mut host) = self.host.take() else { return Ok(()) };
        // The worker ends first. Then `stop_and_drain` sends the pending frames of the emulated
        // interfaces on this thread.
        let FinishedWorker { work, fault } = host.quit_and_join()?;
        self.record_fault(PortComponent::Interfaces, fault);
        let now = RealClock::new().now();
        self.record_final_error(PortComponent::Interfaces, work.stop_and_drain(), now);
        Ok(())
    }

    /// Records the fault that ended one component of the port before the end of the run.
    fn record_fault(&mut self, part: PortComponent, fault: Option<WorkerFault>) {
        self.faults.extend(fault.map(|fault| PortWorkerFault { part, fault }));
    }

    /// Adds a fault for an error at the end of the run, after the workers have ended.
    fn record_final_error(&mut self, part: PortComponent, ended: Result<(), Error>, now: MonoTime) {
        // Ending a worker's half may return the error that ended the worker; the error is listed once.
        let is_known = self.faults.iter().any(|known| known.part == part);
        if let Err(error) = ended
            && !is_known
        {
            self.faults.push(PortWorkerFault { part, fault: WorkerFault { error, since: now } });
        }
    }

    /// Returns the faults of the port's components and clears the list.
    pub(super) fn take_faults(&mut self) -> Vec<PortWorkerFault> {
        std::mem::take(&mut self.faults)
    }

    /// Returns the interface of the port for sockets of emulated interfaces; `None` if the port cannot have any.
    pub(super) fn device_site(&self) -> Result<Option<PortInterfaceHandle>, Error> {
        self.hold.device_site()
    }

    /// Arms the receiver and starts its worker, even if the port receives no stream. A steered run needs a back end to
    /// which streams can be added later.
    pub(super) fn arm_receiver(
        &mut self,
        key: TagKey,
        specs: &[Arc<StreamSpec>],
        steered: bool,
        earlier_runs: Vec<EarlierRun>,
    ) -> Result<(), Error> {
        let mut rx = self.rx.take_unused_half()?;
        // The back end is refused while arming, when nothing has been sent yet.
        if steered && rx.steered_receiver().is_none() {
            return Err(self.build_steering_error());
        }
        // A frame of any stream may be misdelivered to this port, so the kernel may drop unwanted frames only where no
        // port of the plan expects a stream.
        if self.receives.is_empty() && self.elsewhere.is_empty() && !steered {
            self.taps.iter_mut().for_each(CaptureTap::mark_as_only_reader);
        }
        let streams = select_specs(specs, &self.receives);
        let elsewhere = select_specs(specs, &self.elsewhere);
        rx.arm_receiver(RxJob {
            elsewhere,
            earlier_runs,
            port: self.port,
            key,
            streams,
            taps: std::mem::take(&mut self.taps),
            has_devices: self.host.is_some(),
        })?;
        let name = format!("rx-{}", self.port);
        // `start` returns when the receiver has read its ring once, so nothing that is sent later is missed.
        self.rx = PortHalfState::Working(PortWorker::start(
            name,
            ReceivingHalf::new(rx),
            Box::new(RealClock::new()),
        )?);
        Ok(())
    }

    pub(super) fn arm_sender(
        &mut self,
        key: TagKey,
        specs: &[Arc<StreamSpec>],
        steered: bool,
        gate: SendGate,
    ) -> Result<(), Error> {
        // A port that sends nothing needs no thread. In a steered run, streams may be added later.
        if self.sends.is_empty() && !steered {
            return Ok(());
        }
        let mut tx = self.tx.take_unused_half()?;
        if steered && tx.steered_sender().is_none() {
            return Err(self.build_steering_error());
        }
        let streams = select_specs(specs, &self.sends);
        tx.arm_sender(TxJob { key, streams, steered, gate })?;
        let name = format!("tx-{}", self.port);
        self.tx = PortHalfState::Working(PortWorker::start(
            name,
            SendingHalf::new(tx),
            Box::new(RealClock::new()),
        )?);
        Ok(())
    }

    fn build_steering_error(&self) -> Error {
        Error::CannotSteer { port: self.info.name.clone(), back_end: self.info.back_end.name() }
    }

    pub(super) fn switch_link(&mut self, up: bool) -> Result<(), Error> {
        self.hold.switch_link(up)
    }

    /// Stops those of `streams` that this port sends, until they get a new segment. Returns the number of the
    /// next frame of each.
    pub(super) fn hold_streams(&mut self, streams: &BTreeSet<usize>) -> Result<Vec<(u16, u64)>, Error> {
        // A worker is not interrupted for streams of other ports.
        let mine = stream_numbers(self.sends.iter().filter(|stream| streams.contains(stream)));
        match self.tx.worker_mut() {
            Some(worker) if !mine.is_empty() => {
                worker.run_on_worker(move |sending| Ok(sending.steered_sender()?.hold_streams(&mine)))?
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Returns those of `streams` that this port is sending now.
    pub(super) fn sending_streams(&mut self, streams: &BTreeSet<usize>) -> Result<Vec<usize>, Error> {
        if !self.sends.iter().any(|stream| streams.contains(stream)) {
            return Ok(Vec::new());
        }
        let Some(worker) = self.tx.worker_mut() else { return Ok(Vec::new()) };
        let counts = worker.run_on_worker(|sending| sending.stream_counts())?;
        // Counts are in the order of `sends`, which is the order of the job.
        let at_work = self.sends.iter().zip(counts).filter(|(_, counts)| counts.is_sending);
        Ok(at_work.map(|(stream, _)| *stream).filter(|stream| streams.contains(stream)).collect())
    }

    /// Sets, by stream number, how the clock of the sending node relates to the clock of this node.
    pub(super) fn set_clock_shifts(&mut self, shifts: &[(u16, ClockShift)]) -> Result<(), Error> {
        match self.rx.worker_mut() {
            Some(worker) => {
                let shifts = shifts.to_vec();
                worker.run_on_worker(move |receiving| receiving.set_clock_shifts(&shifts))
            }
            None => Ok(()),
        }
    }

    /// Announces to the receiver the segments of the streams that this port receives.
    pub(super) fn announce_segments(&mut self, segments: &[(u16, StreamSegment)]) -> Result<(), Error> {
        let mine = segments_of_streams(segments, &self.receives);
        match self.rx.worker_mut() {
            Some(worker) if !mine.is_empty() => worker.run_on_worker(move |receiving| {
                receiving.steered_receiver()?.announce_segments(&mine);
                Ok(())
            })?,
            _ => Ok(()),
        }
    }

    /// Makes the sender continue the streams that this port sends, with their new segments.
    pub(super) fn begin_segments(&mut self, segments: &[(u16, StreamSegment)]) -> Result<(), Error> {
        let mine = segments_of_streams(segments, &self.sends);
        match self.tx.worker_mut() {
            Some(worker) if !mine.is_empty() => worker.run_on_worker(move |sending| {
                sending.steered_sender()?.begin_segments(&mine);
                Ok(())
            })?,
            _ => Ok(()),
        }
    }

    /// Adds the streams with index `first` and higher that this port sends or receives, or that are expected elsewhere.
    pub(super) fn add_streams(
        &mut self,
        plan: &Plan,
        specs: &[Arc<StreamSpec>],
        first: usize,
    ) -> Result<(), Error> {
        let sends = streams_sent_by(plan, self.port, first);
        let receives = streams_received_by(plan, self.port, first);
        let others = streams_expected_elsewhere(plan, self.port, first);
        let to_send = select_specs(specs, &sends);
        let to_receive = select_specs(specs, &receives);
        let elsewhere = select_specs(specs, &others);
        self.sends.extend(sends);
        self.receives.extend(receives);
        self.elsewhere.extend(others);
        // Receivers before senders, as when arming: a receiver must expect a stream before its first frame arrives.
        if let Some(worker) = self.rx.worker_mut() {
            worker.run_on_worker(move |receiving| {
                receiving.steered_receiver().map(|half| half.add_streams(to_receive, elsewhere))
            })??;
        }
        match self.tx.worker_mut().filter(|_| !to_send.is_empty()) {
            Some(worker) => {
                worker.run_on_worker(move |sending| sending.steered_sender()?.add_streams(to_send))?
            }
            None => Ok(()),
        }
    }

    pub(super) fn send_control_to_sender(&self, control: StreamControl) {
        if let PortHalfState::Working(worker) = &self.tx {
            worker.send_control(control);
        }
    }

    pub(super) fn send_control_to_receiver(&self, control: StreamControl) {
        if let PortHalfState::Working(worker) = &self.rx {
            worker.send_control(control);
        }
    }

    pub(super) fn is_sender_done(&self) -> bool {
        !matches!(&self.tx, PortHalfState::Working(worker) if !worker.is_done())
    }
}
