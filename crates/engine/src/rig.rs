//! The ports and workers of one node for one run: prepare, arm, start, sample, stop, finish.
//!
//! A [`TestRig`] owns every worker thread and every changed interface setting; dropping it at any point stops the
//! workers and restores the interfaces. The [`PortOpener`] chooses the back end of each port. The rig uses all back
//! ends in the same way, through `StreamTx` and `StreamRx`.
//!
//! Invariant: receivers are receiving before any sender can send, and stop after all senders.

mod account;
mod change;
pub mod choose;
mod neighbours;
mod open;
mod places;
mod plane;
mod prepare;
mod running_port;
mod site;
mod steering;
mod watch;

pub use neighbours::PingId;
pub use open::{HeldPort, MachinePorts, OpenPort, PortOpener};
pub use plane::{DataPlane, SteeredPlane, describe_this_machine};
pub use site::{OwnerPermit, PermitPort, PermitQuestion, PlanPortLocations};

use crate::Error;
use crate::capture::PortCapture;
use crate::clock::RealClock;
use crate::gate::SendGate;
use crate::port::WorkerClock;
use crate::process::EngineCommand;
use crate::stream::StreamSpec;
use change::RigChange;
use neighbours::RequestedPing;
use packetrig_plan::device::Mac;
use packetrig_plan::{BoundPlan, Plan, PortLocation};
use packetrig_stats::port::PortInfo;
use packetrig_stats::result::{NodeResult, SendResult, SentTotal};
use packetrig_stats::terms::SharedRunOptions;
use packetrig_units::MonoTime;
use packetrig_wire::tag::TagKey;
use places::PortAssignment;
use prepare::{bind_plan, build_stream_spec, check_frame_sizes, open_local_ports};
use running_port::RunningPort;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use steering::SteeredStreamState;
use watch::PortWatcher;

/// Settings of a run that are not part of its plan.
#[derive(Clone, Debug)]
pub struct RigOptions {
    pub terms: SharedRunOptions,
    /// Interfaces confirmed although they look like they belong to a real network (RFC 6815 guard).
    pub confirmed: BTreeSet<PortLocation>,
    /// Directory for capture files. Without it, a run that captures frames is refused.
    pub capture_dir: Option<PathBuf>,
    /// Where the plan's ports are, and the permit of the node's owner if a fleet's controller sent the plan.
    pub site: PlanPortLocations,
    /// Stops the local ports from sending when the controller's lease expires. Without a lease the gate is always open.
    pub gate: SendGate,
    /// Id of the run; empty if it has none.
    pub run: String,
    /// Program that sends with back end `process`. Only the user of this machine can name it.
    pub engine: Option<EngineCommand>,
}

impl RigOptions {
    pub(super) const fn tag_key(&self) -> TagKey {
        TagKey(self.terms.tag_key)
    }
}

pub struct TestRig {
    plan: BoundPlan,
    key: TagKey,
    specs: Vec<Arc<StreamSpec>>,
    /// MAC address of the next hop by stream index, for streams whose next hop was found during this run.
    resolved: BTreeMap<usize, Mac>,
    places: PortAssignment,
    gate: SendGate,
    /// The local ports, in plan order.
    running_ports: Vec<RunningPort>,
    /// Pings that the user requested, the oldest first. The list is bounded.
    pings: VecDeque<RequestedPing>,
    /// State of each stream in a steered run, in which users start, stop and change streams. `None` in other runs.
    steered_streams: Option<Vec<SteeredStreamState>>,
    /// Streams that a change removed from the plan: they are not started again.
    gone: BTreeSet<usize>,
    /// The change in progress. The streams that it restarts send nothing until it begins or is undone.
    change: Option<RigChange>,
    started: Option<MonoTime>,
    senders_done: Option<MonoTime>,
    interrupted: bool,
    run: String,
    /// Watches the interfaces once the ports are armed.
    watcher: Option<PortWatcher>,
    clock: RealClock,
}

impl std::fmt::Debug for TestRig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestRig")
            .field("ports", &self.ports())
            .field("started", &self.started)
            .finish_non_exhaustive()
    }
}

impl TestRig {
    /// Opens the local ports of the plan, each on the back end that the user named or that packetrig chooses.
    /// Opening a port checks that its interface may be used, locks it, switches off what would disturb a test,
    /// and creates the rings.
    pub fn prepare(plan: Plan, options: &RigOptions) -> Result<Self, Error> {
        let ports = MachinePorts::new(&plan, options);
        Self::prepare_with(plan, options, &ports)
    }

    /// Works like [`Self::prepare`], with ports from `opener`.
    pub fn prepare_with(plan: Plan, options: &RigOptions, opener: &dyn PortOpener) -> Result<Self, Error> {
        let mut plan = plan;
        let places = PortAssignment::from_options(&plan, options)?;
        places.write_local_locations_into_plan(&mut plan);
        places.check_permit_before_open(&plan)?;
        if options.terms.steered {
            // This check comes before ports are opened: a plan that cannot be steered must not touch an interface.
            steering::check_steerable(&plan)?;
        }
        let mut open = open_local_ports(&plan, &places, opener)?;
        // This comes after all ports are open: two ports may be the ends of one cable, which has a carrier only when
        // both ends are up.
        for (_, port) in &mut open {
            port.hold.await_ready()?;
            port.hold.correct_port_info(&mut port.info);
        }
        let infos: Vec<(usize, PortInfo)> =
            open.iter().map(|(index, port)| (*index, port.info.clone())).collect();
        check_frame_sizes(&plan, &infos)?;
        let plan = bind_plan(plan, &places, &infos)?;
        // The permit is checked a second time, because a rate in percent of the link speed becomes frames per second
        // only when the port is open.
        places.check_permit_of_open_ports(&plan, &infos)?;
        let specs: Vec<_> = (0..plan.streams.len())
            .map(|stream| build_stream_spec(&plan, &places, stream, None))
            .collect::<Result<_, _>>()?;
        let running_ports = set_up_ports(open, &plan.plan, options, &places)?;
        let steered_streams = options.terms.steered.then(|| vec![SteeredStreamState::default(); specs.len()]);
        // Without steering, packetrig cannot switch the emulated interfaces on later.
        let on = plan.plan.auto_start || !options.terms.steered;
        let mut rig = Self {
            plan,
            resolved: BTreeMap::new(),
            pings: VecDeque::new(),
            key: options.tag_key(),
            specs,
            places,
            gate: options.gate.clone(),
            running_ports,
            steered_streams,
            gone: BTreeSet::new(),
            change: None,
            started: None,
            senders_done: None,
            interrupted: false,
            run: options.run.clone(),
            watcher: None,
            clock: RealClock::new(),
        };
        rig.set_protocols_enabled(on)?;
        Ok(rig)
    }

    /// Returns the local ports in plan order, with their indices in the plan and their descriptions.
    pub fn ports(&self) -> Vec<(usize, PortInfo)> {
        self.running_ports.iter().map(|running| (running.port_index(), running.info().clone())).collect()
    }

    fn running_port_mut(&mut self, port: usize) -> Option<&mut RunningPort> {
        self.running_ports.iter_mut().find(|running| running.port_index() == port)
    }

    /// Returns the plan with its schedules.
    pub fn plan(&self) -> &BoundPlan {
        &self.plan
    }

    /// Returns the captures of the plan, with the indices of their ports. Any thread may start, stop and fetch them
    /// while the receivers work. Captures that are still running stop at the end of the run.
    pub fn captures(&self) -> Vec<(usize, PortCapture)> {
        self.running_ports.iter().flat_map(RunningPort::captures).collect()
    }

    /// Starts the thread that watches the interfaces of the local ports. Simulated ports have no interface.
    fn start_watcher(&mut self) -> Result<(), Error> {
        let mut ports = Vec::with_capacity(self.running_ports.len());
        for running in &self.running_ports {
            ports.extend(running.device_site()?.map(|site| (running.port_index(), site)));
        }
        self.watcher = Some(PortWatcher::start(ports)?);
        Ok(())
    }

    /// Returns whether another node receives a stream that this node sends: only that node knows the losses.
    fn has_receivers_elsewhere(&self) -> bool {
        self.locally_sent_streams()
            .any(|stream| !self.plan.plan.streams[stream].rx.iter().all(|port| self.has_running_port(*port)))
    }

    fn has_running_port(&self, port: usize) -> bool {
        self.running_ports.iter().any(|running| running.port_index() == port)
    }

    /// Returns the streams that local ports send.
    fn locally_sent_streams(&self) -> impl Iterator<Item = usize> {
        (0..self.specs.len()).filter(|stream| !self.specs[*stream].sent_elsewhere)
    }

    /// Ends the senders and moves the results of their streams into `result`. Returns the other results of each sender,
    /// in the order of the ports.
    fn finish_senders(&mut self, result: &mut NodeResult) -> Result<Vec<account::SenderResult>, Error> {
        let mut all = Vec::with_capacity(self.running_ports.len());
        for running in &mut self.running_ports {
            let mut sent = running.finish_sender(&self.clock)?;
            if sent.has_failed && self.steered_streams.is_none() && !self.interrupted {
                // Nobody stopped the run, so the failed sender should have sent all its frames.
                sent.streams.iter_mut().for_each(|sent| count_whole_stream_as_planned(sent, &self.specs));
            }
            result.send.append(&mut sent.streams);
            all.push(sent);
        }
        // If it was not recorded when the senders were done, they count as done now.
        result.senders_done = self.senders_done.unwrap_or_else(|| self.clock.now());
        Ok(all)
    }

    /// Returns how many tagged frames of each stream were sent, by stream index; 0 for a stream without a count.
    fn totals_by_stream(&self, result: &NodeResult, sent_elsewhere: &[SentTotal]) -> Vec<u64> {
        let mut totals = vec![0; self.specs.len()];
        let sent_here = result
            .send
            .iter()
            .map(|sent| SentTotal { stream: sent.stream, frames: sent.counts.numbered_frames() });
        // Counts of this node are added last, so that no message from another node overwrites them.
        for SentTotal { stream, frames } in sent_elsewhere.iter().copied().chain(sent_here) {
            if let Some(total) = totals.get_mut(stream) {
                *total = frames;
            }
        }
        totals
    }
}

/// Counts all frames of a stream as planned, so that the frames that a failed sender did not send count as unsent. An
/// endless stream is not changed.
fn count_whole_stream_as_planned(sent: &mut SendResult, specs: &[Arc<StreamSpec>]) {
    if let Some(total) = specs.get(sent.stream).and_then(|spec| spec.timeline.total_frames()) {
        sent.planned = sent.planned.max(total);
    }
}

fn set_up_ports(
    open: Vec<(usize, OpenPort)>,
    plan: &Plan,
    options: &RigOptions,
    places: &PortAssignment,
) -> Result<Vec<RunningPort>, Error> {
    let running = open.into_iter().map(|(port, open)| RunningPort::new(port, open, plan));
    let mut ports: Vec<RunningPort> = running.collect();
    // All ports share this set of names: two ports may want the same file name.
    let mut files = Vec::new();
    for running in &mut ports {
        running.set_up_captures(plan, options, &mut files)?;
    }
    for running in &mut ports {
        running.start_device_host(plan, options, places.permit())?;
    }
    Ok(ports)
}

impl Drop for TestRig {
    fn drop(&mut self) {
        running_port::close_ports(&mut self.running_ports);
    }
}
