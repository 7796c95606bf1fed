//! One port of the rig: its two halves with their workers, its captures, and what keeps the port ours.

use super::account::{ReceiverResult, SenderResult};
use super::{HeldPort, OpenPort, OwnerPermit, RigOptions};
use crate::Error;
use crate::capture::{CaptureOutcome, CaptureSpec, CaptureTap, PortCapture, file_name};
use crate::clock::RealClock;
use crate::device::host::{DeviceHost, HostLatest};
use crate::device::{DeviceMachine, PortSite};
use crate::gate::SendGate;
use crate::port::WorkerClock;
use crate::stream::{
    ClockShift, EarlierRun, NextStep, ReceivedFrames, RxJob, SendingRecord, StreamControl, StreamRx,
    StreamSpec, StreamTx, TxJob,
};
use crate::take::Take;
use crate::worker::{PortWorker, ReceivingHalf, RxLatest, SendingHalf, TxLatest};
use packetrig_plan::device::DeviceInterface;
use packetrig_plan::{CaptureFormat, Plan};
use packetrig_stats::port::{PortInfo, RxCounters, TxCounters};
use packetrig_stats::result::CountSample;
use packetrig_sys::private_files;
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::filter::FrameFilter;
use packetrig_wire::tag::TagKey;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of a capture at most.
const CAPTURE_BUDGET: u64 = 1 << 30;
/// How long a stopped sender may take to get rid of what is in its ring; longer than a back end's patience with it.
const EMPTYING: Nanos = Nanos::from_millis(3_000);
/// How long emptying a receive ring may take when frames keep coming.
const LAST_LOOK: Nanos = Nanos::from_millis(200);

/// A half of a port: not needed or not armed yet, at work, or done.
enum HalfState<T, W> {
    Unused(T),
    Working(W),
    Ended(T),
    /// Between two of these, or gone with its worker.
    Lost,
}

impl<T, W> HalfState<T, W> {
    fn take_unused(&mut self) -> Result<T, Error> {
        match std::mem::replace(self, Self::Lost) {
            Self::Unused(half) => Ok(half),
            _ => Err(Error::Bug("half of a port was armed twice")),
        }
    }

    fn working(&mut self) -> Option<&mut W> {
        match self {
            Self::Working(worker) => Some(worker),
            _ => None,
        }
    }
}

/// Fields drop in this order: workers, files, then the interface is restored.
pub(super) struct PortBench {
    pub(super) host: Option<PortWorker<DeviceHost, HostLatest>>,
    port: usize,
    info: PortInfo,
    tx: HalfState<Box<dyn StreamTx>, PortWorker<SendingHalf, TxLatest>>,
    rx: HalfState<Box<dyn StreamRx>, PortWorker<ReceivingHalf, RxLatest>>,
    /// Streams this port sends and receives, by index in the plan.
    sends: Vec<usize>,
    receives: Vec<usize>,
    /// Streams that the plan expects at some port, and not here.
    elsewhere: Vec<usize>,
    captures: Vec<PortCapture>,
    taps: Vec<CaptureTap>,
    hold: Box<dyn HeldPort>,
}

/// Ends the workers and closes the rings of ports that are given back, all at once: the kernel lets a ring go only when no
/// processor can be looking at it any more, and waiting for that ring by ring takes as many times as long. The interfaces
/// stay held. Captures that are still under way get their names.
pub(super) fn close(benches: &mut [PortBench]) {
    std::thread::scope(|scope| {
        for bench in &mut *benches {
            let tx = std::mem::replace(&mut bench.tx, HalfState::Lost);
            let rx = std::mem::replace(&mut bench.rx, HalfState::Lost);
            // Without a thread it is closed here and now.
            let name = || std::thread::Builder::new().name("closing".to_owned());
            drop(name().spawn_scoped(scope, move || drop(tx)));
            drop(name().spawn_scoped(scope, move || drop(rx)));
        }
    });
    for bench in benches {
        // Those of a run that came to its result have ended. Recorders come back when taps and receivers are gone.
        bench.taps.clear();
        bench.captures.iter().for_each(PortCapture::abandon);
    }
}

impl PortBench {
    pub(super) fn new(port: usize, open: OpenPort, plan: &Plan) -> Self {
        let streams = || plan.streams.iter().enumerate();
        Self {
            host: None,
            port,
            info: open.info,
            tx: HalfState::Unused(open.tx),
            rx: HalfState::Unused(open.rx),
            sends: streams().filter(|(_, s)| s.tx == port).map(|(i, _)| i).collect(),
            receives: streams().filter(|(_, s)| s.rx.contains(&port)).map(|(i, _)| i).collect(),
            elsewhere: elsewhere(plan, port, 0),
            captures: Vec::new(),
            taps: Vec::new(),
            hold: open.hold,
        }
    }

    /// Its index in the plan.
    pub(super) const fn port(&self) -> usize {
        self.port
    }

    pub(super) const fn info(&self) -> &PortInfo {
        &self.info
    }

    pub(super) fn caveats(&self) -> Vec<String> {
        self.hold.caveats()
    }

    /// Starts the port's emulated interfaces, switched off, if it has any.
    pub(super) fn set_up_host(
        &mut self,
        plan: &Plan,
        options: &RigOptions,
        permit: Option<Arc<dyn OwnerPermit>>,
    ) -> Result<(), Error> {
        let here = plan.interfaces.iter().enumerate().filter(|(_, of)| of.port == self.port);
        let here: BTreeMap<usize, DeviceInterface> = here.map(|(index, of)| (index, of.clone())).collect();
        if here.is_empty() {
            return Ok(());
        }
        let Some(site) = self.hold.site()? else {
            return Err(Error::NoDevices { port: self.info.name.clone() });
        };
        let machine = DeviceMachine::new(options.key, here).permitted_by(permit);
        let host = DeviceHost::open(site, machine, options.gate.clone())?;
        let name = format!("host-{}", self.port);
        self.host = Some(PortWorker::start(name, host, Box::new(RealClock::new()))?);
        Ok(())
    }

    /// Ends the emulated interfaces: what is counted from here on is the test's alone.
    pub(super) fn end_host(&mut self) -> Result<(), Error> {
        self.host.take().map_or(Ok(()), |mut host| host.quit()?.end())
    }

    /// Where its interface is, if it has one.
    pub(super) fn site(&self) -> Result<Option<PortSite>, Error> {
        self.hold.site()
    }

    /// The captures of this port.
    pub(super) fn captures(&self) -> impl Iterator<Item = (usize, PortCapture)> {
        self.captures.iter().map(|capture| (self.port, capture.clone()))
    }

    /// Begins this port's captures, unless they wait for an order. `used` are the file names taken so far.
    pub(super) fn set_up_captures(
        &mut self,
        plan: &Plan,
        options: &RigOptions,
        used: &mut Vec<PathBuf>,
    ) -> Result<(), Error> {
        let planned = plan.captures.iter().filter(|capture| capture.ports.contains(&self.port));
        let mut wanted: Vec<_> =
            planned.map(|c| (c.format, c.snap_len, c.filter.clone(), c.overwrite)).collect();
        if options.capture_all && wanted.is_empty() && !self.receives.is_empty() {
            wanted.push((CaptureFormat::Pcapng, None, FrameFilter::default(), false));
        }
        for (format, snap_len, filter, overwrite) in wanted {
            let port = &plan.ports[self.port];
            let dir = options.capture_dir.as_ref().ok_or(Error::NoCaptureDirectory)?;
            private_files::create_directories(dir)
                .map_err(|source| Error::File { path: dir.clone(), source })?;
            let mut again = 0;
            // Several captures of one port, or port names that differ only in characters which a file name cannot
            // have.
            while used.contains(&file_name(&port.name, format, again)) {
                again += 1;
            }
            let name = file_name(&port.name, format, again);
            let file = dir.join(&name);
            used.push(name);
            let interface = port.location.to_string();
            let comment = format!("received on port {}", port.name);
            let (format, budget) = (format.into(), CAPTURE_BUDGET);
            let spec = CaptureSpec { file, format, interface, comment, snap_len, filter, budget, overwrite };
            let (capture, tap) = PortCapture::new(spec)?;
            if !options.captures_wait {
                capture.start()?;
            }
            self.taps.push(tap);
            self.captures.push(capture);
        }
        Ok(())
    }

    /// A half that may be given streams later works from the beginning.
    pub(super) fn arm_receiver(
        &mut self,
        key: TagKey,
        specs: &[Arc<StreamSpec>],
        steered: bool,
        earlier_runs: Vec<EarlierRun>,
    ) -> Result<(), Error> {
        let mut rx = self.rx.take_unused()?;
        if steered && rx.steering().is_none() {
            return Err(self.cannot_steer());
        }
        // Where no stream could arrive, the kernel may keep back what the capture does not want.
        // A frame of any stream may be misdelivered to this port, so the kernel may keep frames back only where no
        // port of the plan expects a stream.
        if self.receives.is_empty() && self.elsewhere.is_empty() && !steered {
            self.taps.iter_mut().for_each(CaptureTap::alone);
        }
        let streams = self.receives.iter().map(|stream| Arc::clone(&specs[*stream])).collect();
        let elsewhere = self.elsewhere.iter().map(|stream| Arc::clone(&specs[*stream])).collect();
        rx.arm(RxJob {
            elsewhere,
            earlier_runs,
            port: self.port,
            key,
            streams,
            taps: std::mem::take(&mut self.taps),
            has_devices: self.host.is_some(),
        })?;
        let name = format!("rx-{}", self.port);
        self.rx =
            HalfState::Working(PortWorker::start(name, ReceivingHalf::new(rx), Box::new(RealClock::new()))?);
        Ok(())
    }

    pub(super) fn arm_sender(
        &mut self,
        key: TagKey,
        specs: &[Arc<StreamSpec>],
        steered: bool,
        gate: SendGate,
    ) -> Result<(), Error> {
        if self.sends.is_empty() && !steered {
            return Ok(());
        }
        let mut tx = self.tx.take_unused()?;
        if steered && tx.steering().is_none() {
            return Err(self.cannot_steer());
        }
        let streams = self.sends.iter().map(|stream| Arc::clone(&specs[*stream])).collect();
        tx.arm(TxJob { key, streams, steered, gate })?;
        let name = format!("tx-{}", self.port);
        self.tx =
            HalfState::Working(PortWorker::start(name, SendingHalf::new(tx), Box::new(RealClock::new()))?);
        Ok(())
    }

    fn cannot_steer(&self) -> Error {
        Error::CannotSteer { port: self.info.name.clone(), back_end: self.info.back_end.name() }
    }

    pub(super) fn switch_link(&mut self, up: bool) -> Result<(), Error> {
        self.hold.switch_link(up)
    }

    /// Holds those of these streams that this port sends; says of each which number comes next.
    pub(super) fn hold(&mut self, streams: &BTreeSet<usize>) -> Result<Vec<(u16, u64)>, Error> {
        let mine = numbers(self.sends.iter().filter(|stream| streams.contains(stream)));
        match self.tx.working() {
            Some(worker) if !mine.is_empty() => {
                worker.ask(move |sending| Ok(sending.steering()?.hold(&mine)))?
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Those of these streams that this port is sending.
    pub(super) fn sending(&mut self, streams: &BTreeSet<usize>) -> Result<Vec<usize>, Error> {
        if !self.sends.iter().any(|stream| streams.contains(stream)) {
            return Ok(Vec::new());
        }
        let Some(worker) = self.tx.working() else { return Ok(Vec::new()) };
        let counts = worker.ask(|sending| sending.stream_counts())?;
        let at_work = self.sends.iter().zip(counts).filter(|(_, counts)| counts.is_sending);
        Ok(at_work.map(|(stream, _)| *stream).filter(|stream| streams.contains(stream)).collect())
    }

    /// Tells the receiver how the clocks of these streams' senders relate to this node's.
    pub(super) fn shift(&mut self, shifts: &[(u16, ClockShift)]) -> Result<(), Error> {
        match self.rx.working() {
            Some(worker) => {
                let shifts = shifts.to_vec();
                worker.ask(move |receiving| receiving.shift(&shifts))
            }
            None => Ok(()),
        }
    }

    /// Tells the receiver of the takes that concern it.
    pub(super) fn announce(&mut self, takes: &[(u16, Take)]) -> Result<(), Error> {
        let mine = of_streams(takes, &self.receives);
        match self.rx.working() {
            Some(worker) if !mine.is_empty() => worker.ask(move |receiving| {
                receiving.steering()?.announce(&mine);
                Ok(())
            })?,
            _ => Ok(()),
        }
    }

    /// Has the sender go on with the takes that are its own.
    pub(super) fn begin(&mut self, takes: &[(u16, Take)]) -> Result<(), Error> {
        let mine = of_streams(takes, &self.sends);
        match self.tx.working() {
            Some(worker) if !mine.is_empty() => worker.ask(move |sending| {
                sending.steering()?.begin(&mine);
                Ok(())
            })?,
            _ => Ok(()),
        }
    }

    /// Takes on what this port has to do with streams from `first` on.
    pub(super) fn add(&mut self, plan: &Plan, specs: &[Arc<StreamSpec>], first: usize) -> Result<(), Error> {
        let new = || plan.streams.iter().enumerate().skip(first);
        let sends: Vec<usize> = new().filter(|(_, s)| s.tx == self.port).map(|(i, _)| i).collect();
        let receives: Vec<usize> = new().filter(|(_, s)| s.rx.contains(&self.port)).map(|(i, _)| i).collect();
        let specs_of = |streams: &[usize]| streams.iter().map(|i| Arc::clone(&specs[*i])).collect();
        let others = elsewhere(plan, self.port, first);
        let (to_send, to_receive): (Vec<_>, Vec<_>) = (specs_of(&sends), specs_of(&receives));
        let elsewhere: Vec<_> = specs_of(&others);
        self.sends.extend(sends);
        self.receives.extend(receives);
        self.elsewhere.extend(others);
        if let Some(worker) = self.rx.working() {
            worker
                .ask(move |receiving| receiving.steering().map(|half| half.add(to_receive, elsewhere)))??;
        }
        match self.tx.working().filter(|_| !to_send.is_empty()) {
            Some(worker) => worker.ask(move |sending| sending.steering()?.add(to_send))?,
            None => Ok(()),
        }
    }

    pub(super) fn control_sender(&self, control: StreamControl) {
        if let HalfState::Working(worker) = &self.tx {
            worker.control(control);
        }
    }

    pub(super) fn control_receiver(&self, control: StreamControl) {
        if let HalfState::Working(worker) = &self.rx {
            worker.control(control);
        }
    }

    pub(super) fn sender_done(&self) -> bool {
        !matches!(&self.tx, HalfState::Working(worker) if !worker.is_done())
    }

    /// Adds what this port's sender counted last; finds a worker that failed. Says as of when that is, unless it is final.
    pub(super) fn sample_sender(&mut self, sample: &mut CountSample) -> Result<Option<MonoTime>, Error> {
        let mut counters = TxCounters::default();
        let mut at = None;
        if let Some(worker) = self.tx.working() {
            worker.check()?;
            let is_final = worker.is_done();
            if let Some(latest) = worker.published().pop_back() {
                sample.tx.extend(self.sends.iter().copied().zip(latest.counts.streams));
                counters = latest.counts.port;
                at = Some(latest.at).filter(|_| !is_final);
            }
        }
        sample.ports.push((self.port, counters, RxCounters::default()));
        Ok(at)
    }

    /// Adds what this port's receiver had counted by `by`, or last; finds a worker that failed.
    pub(super) fn sample_receiver(
        &mut self,
        sample: &mut CountSample,
        by: Option<MonoTime>,
    ) -> Result<(), Error> {
        self.host.as_mut().map_or(Ok(()), PortWorker::check)?;
        let Some(worker) = self.rx.working() else { return Ok(()) };
        worker.check()?;
        // A copy, so that the worker never waits for this thread.
        let mut published = worker.published();
        // What is older than all that is kept cannot be told any more.
        // A worker keeps its last few publications, so that one of them is old enough: what a receiver has counted
        // must not be newer than what the senders have.
        while published.len() > 1 && published.back().is_some_and(|last| by.is_some_and(|by| last.at > by)) {
            published.pop_back();
        }
        let Some(latest) = published.pop_back() else { return Ok(()) };
        let streams = self.receives.iter().zip(latest.counts.streams);
        sample.rx.extend(streams.map(|(stream, counts)| (*stream, self.port, counts)));
        if let Some((.., counters)) = sample.ports.iter_mut().find(|(port, ..)| *port == self.port) {
            *counters = latest.counts.port;
        }
        sample.latency = merge_latency(sample.latency, latest.counts.latency);
        Ok(())
    }

    /// Ends the sender. What is in its ring still leaves; what is unsent stays unsent.
    pub(super) fn finish_sender(&mut self, clock: &dyn WorkerClock) -> Result<SenderResult, Error> {
        if let Some(worker) = self.tx.working() {
            let mut tx = worker.quit()?.into_inner();
            tx.control(StreamControl::Stop);
            let give_up = clock.now() + EMPTYING;
            // On this thread: the worker has ended, and frames that are in the ring must leave or be counted as
            // refused before the counters are read.
            while tx.step(clock.now())? != NextStep::Done && clock.now() < give_up {}
            self.tx = HalfState::Ended(tx);
        }
        match &mut self.tx {
            HalfState::Ended(tx) => {
                let counters = tx.port_counters()?;
                let record = tx.record();
                Ok(SenderResult { streams: tx.finish(), counters, record })
            }
            HalfState::Unused(tx) => Ok(SenderResult {
                streams: Vec::new(),
                counters: tx.port_counters()?,
                record: SendingRecord::default(),
            }),
            HalfState::Working(_) | HalfState::Lost => Err(Error::Bug("a sender was finished twice")),
        }
    }

    /// Ends the receiver, once what has arrived is taken in. `totals`: frames sent, by stream of the plan.
    pub(super) fn finish_receiver(
        &mut self,
        clock: &dyn WorkerClock,
        totals: &[u64],
    ) -> Result<ReceiverResult, Error> {
        if let Some(worker) = self.rx.working() {
            let mut rx = worker.quit()?.into_inner();
            let give_up = clock.now() + LAST_LOOK;
            // Empties the ring for good. The bound is for a device that keeps sending, which would never let it run
            // dry.
            while rx.step(clock.now())? == NextStep::Busy && clock.now() < give_up {}
            self.rx = HalfState::Ended(rx);
        }
        match &mut self.rx {
            HalfState::Ended(rx) => {
                let counters = rx.port_counters()?;
                let bound = rx.clock_bound();
                let sent: Vec<u64> = self.receives.iter().map(|stream| totals[*stream]).collect();
                Ok(ReceiverResult { frames: rx.finish(&sent), counters: Some(counters), clock_bound: bound })
            }
            HalfState::Unused(rx) => {
                let frames = ReceivedFrames::default();
                Ok(ReceiverResult { frames, counters: None, clock_bound: rx.clock_bound() })
            }
            HalfState::Working(_) | HalfState::Lost => Err(Error::Bug("a receiver was finished twice")),
        }
    }

    pub(super) fn finish_captures(&mut self) -> Result<Vec<(usize, CaptureOutcome)>, Error> {
        // The taps may still be here if the port was never armed; what they were lent comes back when they are gone.
        self.taps.clear();
        self.captures().map(|(port, capture)| Ok((port, capture.stop()?))).collect()
    }
}

/// The streams from `first` on that the plan expects at some port, but not at this one.
fn elsewhere(plan: &Plan, port: usize, first: usize) -> Vec<usize> {
    let streams = plan.streams.iter().enumerate().skip(first);
    streams
        .filter(|(_, stream)| !stream.rx.is_empty() && !stream.rx.contains(&port))
        .map(|(i, _)| i)
        .collect()
}

fn numbers<'a>(streams: impl Iterator<Item = &'a usize>) -> Vec<u16> {
    streams.filter_map(|stream| u16::try_from(*stream).ok()).collect()
}

/// The takes of these streams, which are in order.
fn of_streams(takes: &[(u16, Take)], streams: &[usize]) -> Vec<(u16, Take)> {
    let is_mine = |number: u16| streams.binary_search(&usize::from(number)).is_ok();
    takes.iter().filter(|(number, _)| is_mine(*number)).cloned().collect()
}

type LatencySoFar = Option<(Nanos, Nanos, Nanos)>;

/// Puts two live figures together. The mean is that of the receivers, not of the frames: good enough to watch.
fn merge_latency(a: LatencySoFar, b: LatencySoFar) -> LatencySoFar {
    match (a, b) {
        (Some(a), Some(b)) => {
            let mean = Nanos::new(u64::midpoint(a.1.as_u64(), b.1.as_u64()));
            Some((a.0.min(b.0), mean, a.2.max(b.2)))
        }
        (a, b) => a.or(b),
    }
}
