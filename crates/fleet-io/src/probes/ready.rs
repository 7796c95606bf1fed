//! Prepares the lines of a port for sending: path, release mechanism, schedule, own UDP port, listener.
//!
//! A line that cannot be prepared fails alone, with the reason in its result: one silent target must not end
//! the probes to the other targets.

use super::ProbePolicy;
use super::prepare::{OwnProbePort, PermittedProbeLine};
use packetrig_engine::Error;
use packetrig_engine::gate::SendGate;
use packetrig_plan::PortLocation;
use packetrig_plan::probes::{PlannedProbeMethod, ProbePlan};
use packetrig_probe::estimate::TrainShape;
use packetrig_probe::schedule::ScheduledTrain;
use packetrig_probe::{ProbeBudget, ProbeSchedule, ReleaseMechanism, choice};
use packetrig_probe_io::circumstances;
use packetrig_probe_io::listener::{PacketListener, SilencedPort, WantedPackets};
use packetrig_probe_io::path::{self, ProbePath};
use packetrig_probe_io::release::{self, ReleaseDispatcher, ReleaseOptions};
use packetrig_stats::probe::{ProbeLineEndReason, ProbeLineResult};
use packetrig_sys::kernel;
use packetrig_units::Nanos;
use std::net::IpAddr;
use std::thread;

/// Maximum number of paths that are resolved at the same time. Each may wait seconds for a neighbour
/// that does not answer.
const AT_ONCE: usize = 32;

/// The lines of a port that are ready to be sent, and the results of the lines that could not be prepared.
pub(super) struct ReadyProbeLines {
    pub(super) senders: Vec<ReadyProbeSender>,
    pub(super) failed: Vec<ProbeLineResult>,
}

/// Lines that one thread sends.
pub(super) struct ReadyProbeSender {
    pub(super) lines: Vec<ReadyProbeLine>,
    /// Receives answers; absent for a method without answers.
    pub(super) listener: Option<PacketListener>,
    /// Own UDP port; prevents the kernel from answering the packets that come back to it.
    pub(super) own_port: SilencedPort,
    pub(super) about: Option<String>,
    /// Seed for identifiers that must differ from run to run.
    pub(super) number: u64,
}

/// A line that can be sent.
pub(super) struct ReadyProbeLine {
    pub(super) number: usize,
    pub(super) target_port: u16,
    pub(super) way: ProbePath,
    pub(super) dispatcher: ReleaseDispatcher,
    pub(super) departures: ProbeLineDepartures,
    /// Time from the start of the run to the beginning of the line.
    pub(super) shift: Nanos,
    pub(super) mechanism: ChosenMechanism,
}

/// Departures of the probes of a line.
pub(super) enum ProbeLineDepartures {
    Scheduled(ProbeSchedule),
    /// An estimator requests trains of this shape, depending on the answers to the previous train.
    Asked(TrainShape),
}

impl ProbeLineDepartures {
    /// Returns the number of probes to send; 0 if an estimator decides it later.
    pub(super) fn planned_probes(&self) -> u64 {
        match self {
            Self::Scheduled(schedule) => schedule.probes().len() as u64,
            Self::Asked(_) => 0,
        }
    }
}

/// A release mechanism and the reason for it.
#[derive(Clone, Debug)]
pub(super) struct ChosenMechanism {
    pub(super) mechanism: ReleaseMechanism,
    pub(super) why: String,
}

pub(super) fn prepare_lines(
    probes: &ProbePlan,
    port: &OwnProbePort,
    policy: &ProbePolicy,
    gate: &SendGate,
    seed: u64,
) -> Result<ReadyProbeLines, Error> {
    let mut ready = ReadyProbeLines { senders: Vec::new(), failed: Vec::new() };
    if port.lines.is_empty() {
        return Ok(ready);
    }
    let mechanism = choose_mechanism(probes, port, policy);
    let mut lines = Vec::with_capacity(port.lines.len());
    for (line, found) in port.lines.iter().zip(find_paths(port)) {
        let made = found.and_then(|way| {
            check_probe_path(port, probes, &way)?;
            prepare_line(probes, line, way, &mechanism, gate, seed)
        });
        match made {
            Ok(line) => lines.push(line),
            Err(why) => {
                let planned = u64::from(probes.count).saturating_mul(probes.train.into());
                // An estimator decides from the answers how many probes it sends.
                let planned = if probes.method.needs_exclusive_turn() { 0 } else { planned };
                ready.failed.push(ProbeLineResult::without_probes(
                    line.number,
                    planned,
                    ProbeLineEndReason::Failed(why),
                ));
            }
        }
    }
    if !lines.is_empty() {
        ready.senders = prepare_senders(probes, port, lines, policy, seed)?;
    }
    Ok(ready)
}

/// Finds the path of each line, in the order of the lines.
fn find_paths(port: &OwnProbePort) -> Vec<Result<ProbePath, String>> {
    let mut found = Vec::with_capacity(port.lines.len());
    let (namespace, interface) = (port.location.namespace.as_deref(), port.location.interface.as_str());
    let find = |line: &PermittedProbeLine| {
        path::find_path(namespace, line.permitted, Some(interface)).map_err(|error| error.to_string())
    };
    for some in port.lines.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let running: Vec<_> = some.iter().map(|line| scope.spawn(|| find(line))).collect();
            let ended = running.into_iter().map(thread::ScopedJoinHandle::join);
            found.extend(ended.map(|path| {
                path.unwrap_or_else(|_| {
                    Err("the search for the path to the target panicked: this is a bug in packetrig"
                        .to_owned())
                })
            }));
        });
    }
    found
}

/// Refuses a path on which the probes would differ from the plan.
fn check_probe_path(port: &OwnProbePort, probes: &ProbePlan, way: &ProbePath) -> Result<(), String> {
    if way.is_loopback {
        return Err(format!(
            "{} is an address of this machine, so probes to it would not leave the machine",
            way.ends.target
        ));
    }
    if let Some(own) = port.address.filter(|own| *own != way.ends.source) {
        return Err(format!(
            "the route to {} uses the source address {}, but the port's address in the plan is {own}",
            way.ends.target, way.ends.source
        ));
    }
    if probes.size.kernel_len() > way.longest_frame() {
        return Err(format!(
            "a probe of {} B does not fit: the MTU of {} is {}",
            probes.size.bytes(),
            way.location,
            way.mtu
        ));
    }
    Ok(())
}

fn prepare_line(
    probes: &ProbePlan,
    line: &PermittedProbeLine,
    way: ProbePath,
    chosen: &ChosenMechanism,
    gate: &SendGate,
    seed: u64,
) -> Result<ReadyProbeLine, String> {
    let options = ReleaseOptions::default_for(chosen.mechanism);
    let release =
        release::open_release(&way.location, chosen.mechanism, options).map_err(|error| error.to_string())?;
    let dispatcher = ReleaseDispatcher::new(release, ProbeBudget::new(way.permitted.limits()))
        .with_lease_gate(gate.clone());
    // Lines of a port take turns within an interval. Each line also has its own seed: with one seed for all, lines of
    // different ports in the same turn would send at the same time.
    let turns = u64::from(probes.count_lines_sent_by(line.line.from)).max(1);
    let (departures, turn) = if probes.method.needs_exclusive_turn() {
        (ProbeLineDepartures::Asked(train_shape(probes, &way)), probes.slot)
    } else {
        let schedule = probe_schedule(probes, derive_seed(seed, line.number));
        let schedule = schedule.map_err(|refused| refused.to_string())?;
        (ProbeLineDepartures::Scheduled(schedule), Nanos::new(probes.interval.as_u64() / turns))
    };
    Ok(ReadyProbeLine {
        number: line.number,
        target_port: line.target.port(),
        departures,
        way,
        dispatcher,
        shift: Nanos::new(turn.as_u64().saturating_mul(line.line.turn.into())),
        mechanism: chosen.clone(),
    })
}

/// Returns the shape of an estimator's trains. Their length is limited to the permitted burst, because a train
/// counts as one burst.
fn train_shape(probes: &ProbePlan, way: &ProbePath) -> TrainShape {
    let length = u32::try_from(probes.size.kernel_len()).unwrap_or(u32::MAX);
    TrainShape { length, longest: probes.train.min(way.permitted.limits().burst), pause: probes.interval }
}

fn probe_schedule(
    probes: &ProbePlan,
    seed: u64,
) -> Result<ProbeSchedule, packetrig_probe::schedule::ScheduleRefusal> {
    let length = u32::try_from(probes.size.kernel_len()).unwrap_or(u32::MAX);
    let (count, every) = (probes.count, probes.interval);
    match (probes.poisson, probes.train) {
        (true, 1) => ProbeSchedule::poisson(count, every, length, seed),
        (_, of) => {
            ProbeSchedule::periodic_trains(count, every, ScheduledTrain { of, gap: probes.gap, length })
        }
    }
}

/// Derives a seed that differs for each line or port.
fn derive_seed(seed: u64, number: usize) -> u64 {
    // This is the increment of SplitMix64: consecutive numbers give values that are far apart.
    seed ^ (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Prepares one sender for all lines if probes are answered, because one listener serves all lines. Otherwise prepares
/// one sender for each line, because each sender then waits only for its own departures.
fn prepare_senders(
    probes: &ProbePlan,
    port: &OwnProbePort,
    lines: Vec<ReadyProbeLine>,
    policy: &ProbePolicy,
    seed: u64,
) -> Result<Vec<ReadyProbeSender>, Error> {
    let groups: Vec<Vec<ReadyProbeLine>> = match probes.method {
        PlannedProbeMethod::Send => lines.into_iter().map(|line| vec![line]).collect(),
        _ => vec![lines],
    };
    groups.into_iter().map(|lines| prepare_sender(probes, port, lines, policy, seed)).collect()
}

fn prepare_sender(
    probes: &ProbePlan,
    port: &OwnProbePort,
    lines: Vec<ReadyProbeLine>,
    policy: &ProbePolicy,
    seed: u64,
) -> Result<ReadyProbeSender, Error> {
    let mut addresses: Vec<IpAddr> = lines.iter().map(|line| line.way.ends.source).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let namespace = port.location.namespace.as_deref();
    let (first, others) = addresses.split_first().ok_or(Error::Bug("a sender without lines"))?;
    let mut own_port = SilencedPort::reserve_any_udp_port(namespace, *first).map_err(to_data_plane_error)?;
    // Lines may have different source addresses. The same UDP port must be reserved at each of them.
    for other in others {
        own_port.reserve_same_udp_port_at(namespace, *other).map_err(to_data_plane_error)?;
    }
    // All lines of a port use the same interface, so its index is taken from the first line.
    let index = lines.first().map_or(0, |line| line.way.index);
    let is_answered = probes.method != PlannedProbeMethod::Send;
    let wanted = WantedPackets { addresses, port: Some(own_port.port()) };
    // The answers to a whole train can arrive before any of them is read: the thread that reads them is busy
    // sending the train.
    let at_once = if probes.method.needs_exclusive_turn() { probes.train } else { 0 };
    let listener = is_answered.then(|| open_listener(&port.location, index, &wanted, at_once)).transpose()?;
    let number = derive_seed(seed, port.port);
    Ok(ReadyProbeSender { lines, listener, own_port, about: policy.permit.about.clone(), number })
}

fn open_listener(
    location: &PortLocation,
    index: u32,
    wanted: &WantedPackets,
    at_once: u32,
) -> Result<PacketListener, Error> {
    let opened = match at_once {
        0 => PacketListener::open_at_interface(location, index, wanted),
        frames => PacketListener::open_with_room_for(location, index, wanted, frames),
    };
    opened.map_err(to_data_plane_error)
}

/// Converts an error of the probe crate to an error of the data plane.
pub(super) fn to_data_plane_error(error: packetrig_probe_io::Error) -> Error {
    use packetrig_probe_io::Error as ProbeError;
    match error {
        ProbeError::Kernel(error) => Error::Kernel(error),
        ProbeError::Guard(error) => error.into(),
        ProbeError::Mechanism { source, .. } => Error::Kernel((*source).into()),
        ProbeError::Gone => Error::Panicked("probe".to_owned()),
        other => Error::NotPermitted(vec![other.to_string()]),
    }
}

/// Chooses the mechanism that the plan names; otherwise spinning for an estimator's trains, and for other probes the
/// best one that works here, according to a calibration of this kernel and driver if there is one.
fn choose_mechanism(probes: &ProbePlan, port: &OwnProbePort, policy: &ProbePolicy) -> ChosenMechanism {
    if let Some(mechanism) = probes.mechanism.as_ref().and_then(|name| name.parse().ok()) {
        return ChosenMechanism { mechanism, why: "asked for".to_owned() };
    }
    if probes.method.needs_exclusive_turn() {
        // A mechanism that holds frames in the kernel blocks other kernel work on that processor, for example the
        // timer of a shaper on this machine.
        return ChosenMechanism {
            mechanism: ReleaseMechanism::Spin,
            why: "departures are measured".to_owned(),
        };
    }
    // A calibration of another kernel or driver says nothing about this interface.
    let driver = circumstances::find_driver_name(&port.location);
    let calibration = policy.calibration.as_ref();
    let calibration = calibration
        .filter(|one| one.kernel == kernel::kernel_release_name() && driver.as_ref() == Some(&one.driver));
    let can = |wanted| release::open_release(&port.location, wanted, ReleaseOptions::common()).is_ok();
    let (mechanism, why) = choice::choose_mechanism(can, calibration);
    ChosenMechanism { mechanism, why }
}
