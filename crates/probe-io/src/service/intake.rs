//! Takes a batch in: checks each packet, finds its path, and queues what may be sent.
//!
//! Invariant: a packet is queued only if its source is an address of the interface, its own port is not another user's, its next hop is
//! that of its target, and the permit allows the target.

use super::client::ClientConnection;
use super::shared::ServiceShared;
use super::{ServiceInterface, TargetPermission, report};
use crate::path::{self, ProbePath};
use crate::{now, small_count};
use packetrig_probe::PacketRefusal;
use packetrig_probe::frame::{ETHERNET, SHORTEST};
use packetrig_probe::service::{self, FrameMacs, PacketFlow, QueuedPacket, QueuedTrain};
use packetrig_release::message::{PacketKind, PacketReport, PacketToRelease, ReleaseClock, ServiceMessage};
use packetrig_sys::clock;
use packetrig_sys::ports::{self, PortProtocol};
use packetrig_units::{MonoTime, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long a path is used before it is looked up again: routes, neighbours and permissions change.
const PATH_HOLDS: Nanos = Nanos::from_secs(30);
/// A target without a path is looked up again sooner.
const FAILURE_HOLDS: Nanos = Nanos::from_secs(10);
/// How long the addresses of the interface are taken for known.
const ADDRESSES_HOLD: Nanos = Nanos::from_secs(2);
/// Paths that are kept.
const MOST_PATHS: usize = 4_096;
/// A target that does not want to be probed is left alone for this long.
const CLOSED_FOR: Nanos = Nanos::from_secs(600);
/// Closed targets at a time. With more, nothing new is probed.
const MOST_CLOSED: usize = 65_536;
/// How long the paths of one batch may take. What has none by then has no route.
const LOOKED_UP_WITHIN: Nanos = Nanos::from_secs(4);
/// How long the user of a port is taken for known.
const PORT_HOLDS: Nanos = Nanos::from_secs(1);
const MOST_PORTS: usize = 4_096;
/// Ports below are for programs of root.
const FIRST_ORDINARY_PORT: u16 = 1_024;
/// Most packets of a train, and the longest time from its first to its last one.
const MOST_IN_TRAIN: usize = 256;
const LONGEST_TRAIN: Nanos = Nanos::from_millis(100);

/// The paths to targets, as they were found last.
pub(super) struct TargetPaths {
    interface: ServiceInterface,
    permission: Box<TargetPermission>,
    known: Mutex<KnownPaths>,
}

#[derive(Debug, Default)]
struct KnownPaths {
    paths: BTreeMap<IpAddr, KnownPath>,
    /// Until when targets are left alone that do not want to be probed.
    closed: BTreeMap<IpAddr, MonoTime>,
    /// Whether a user may send from a port.
    ports: BTreeMap<UserPort, KnownPort>,
    sources: BTreeSet<IpAddr>,
    sources_until: MonoTime,
}

/// A port that a user wants to send from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UserPort {
    user: u32,
    is_tcp: bool,
    port: u16,
}

#[derive(Clone, Copy, Debug)]
struct KnownPort {
    is_allowed: bool,
    until: MonoTime,
}

#[derive(Clone, Debug)]
struct KnownPath {
    found: Result<ProbePath, PacketRefusal>,
    until: MonoTime,
}

impl TargetPaths {
    pub(super) fn new(interface: ServiceInterface, permission: Box<TargetPermission>) -> Self {
        Self { interface, permission, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, KnownPaths> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a target does not want to be probed; `false` if that was known.
    pub(super) fn close(&self, target: IpAddr) -> bool {
        let now = now();
        let mut known = self.known();
        known.closed.retain(|_, until| now < *until);
        if known.closed.len() >= MOST_CLOSED {
            return false;
        }
        known.closed.insert(target, now + CLOSED_FOR).is_none()
    }

    /// Whether a target may be probed now.
    pub(super) fn is_permitted(&self, target: IpAddr) -> bool {
        let now = now();
        let known = self.known();
        let is_closed = known.closed.get(&target).is_some_and(|until| now < *until);
        let is_full = known.closed.len() >= MOST_CLOSED;
        drop(known);
        !is_closed && !is_full && (self.permission)(target).is_ok()
    }

    /// The path to a target. It may take seconds until the next hop has told its hardware address; no lock is held meanwhile.
    fn find(&self, target: IpAddr, deadline: MonoTime) -> Result<ProbePath, PacketRefusal> {
        if !self.is_permitted(target) {
            return Err(PacketRefusal::NotPermitted);
        }
        let now = now();
        if let Some(path) = self.known().paths.get(&target).filter(|path| now < path.until) {
            return path.found.clone();
        }
        if now >= deadline {
            return Err(PacketRefusal::NoRoute);
        }
        let found = self.look_up(target);
        let holds = if found.is_ok() { PATH_HOLDS } else { FAILURE_HOLDS };
        let mut known = self.known();
        if known.paths.len() >= MOST_PATHS {
            known.paths.clear();
        }
        known.paths.insert(target, KnownPath { found: found.clone(), until: now + holds });
        found
    }

    /// Whether a user may send from the port of a flow: it is an ordinary port, and no socket of another user has it. Otherwise they could
    /// speak for a program of somebody else, and hear what it is answered.
    fn may_use_port(&self, user: u32, flow: PacketFlow) -> bool {
        let (protocol, port) = match flow {
            PacketFlow::Icmp { .. } => return true,
            PacketFlow::Tcp { own_port, .. } => (PortProtocol::Tcp, own_port),
            PacketFlow::Udp { own_port, .. } => (PortProtocol::Udp, own_port),
        };
        let now = now();
        let key = UserPort { user, is_tcp: protocol == PortProtocol::Tcp, port };
        if let Some(known) = self.known().ports.get(&key).filter(|known| now < known.until) {
            return known.is_allowed;
        }
        // Without an answer of the kernel the port could be anybody's.
        let users = ports::users_of_port(protocol, port);
        let is_allowed =
            port >= FIRST_ORDINARY_PORT && users.is_ok_and(|users| users.iter().all(|of| *of == user));
        let mut known = self.known();
        if known.ports.len() >= MOST_PORTS {
            known.ports.clear();
        }
        known.ports.insert(key, KnownPort { is_allowed, until: now + PORT_HOLDS });
        is_allowed
    }

    fn look_up(&self, target: IpAddr) -> Result<ProbePath, PacketRefusal> {
        let permitted = (self.permission)(target).map_err(|_| PacketRefusal::NotPermitted)?;
        // The thread is in the namespace of the interface.
        let way = path::find(None, permitted, Some(&self.interface.location.interface));
        let way = way.map_err(|_| PacketRefusal::NoRoute)?;
        if way.index == self.interface.index { Ok(way) } else { Err(PacketRefusal::NoRoute) }
    }

    /// Whether an address is one of the interface.
    fn is_own(&self, source: IpAddr) -> bool {
        let now = now();
        let mut known = self.known();
        if now >= known.sources_until {
            let inside = packetrig_plan::PortLocation { namespace: None, ..self.interface.location.clone() };
            known.sources = path::own_addresses(&inside).unwrap_or_default().into_iter().collect();
            known.sources_until = now + ADDRESSES_HOLD;
        }
        known.sources.contains(&source)
    }
}

/// Checks the packets of a batch and queues them. Refused ones are reported before this returns.
pub(super) fn take(
    client: &ClientConnection,
    shared: &ServiceShared,
    batch: u64,
    packets: Vec<PacketToRelease>,
) -> ServiceMessage {
    let intake = BatchIntake {
        client,
        shared,
        batch,
        clocks: ClockReadings::take(),
        deadline: now() + LOOKED_UP_WITHIN,
    };
    let mut accepted = 0;
    let mut reports = Vec::new();
    for train in trains(packets) {
        let checked = intake.check_train(&train);
        let queued = checked.and_then(|queued| {
            shared.push(queued).map_err(|why| TrainRefusal { packet: 0, why, is_of_all: true })
        });
        match queued {
            Ok(()) => accepted += small_count(train.len()),
            Err(refusal) => reports.extend(intake.refused(&refusal, &train)),
        }
    }
    client.report(&reports);
    let queued = shared.lock().queue.queued(client.id);
    ServiceMessage::Accepted { batch, accepted, refused: small_count(reports.len()), queued }
}

/// Divides a batch into trains and single packets.
fn trains(packets: Vec<PacketToRelease>) -> Vec<Vec<PacketToRelease>> {
    let mut trains: Vec<Vec<PacketToRelease>> = Vec::new();
    for packet in packets {
        match trains.last_mut() {
            Some(train)
                if packet.train != 0 && train.last().is_some_and(|last| last.train == packet.train) =>
            {
                train.push(packet);
            }
            _ => trains.push(vec![packet]),
        }
    }
    trains
}

/// Which packet of a train is refused, and why.
struct TrainRefusal {
    packet: usize,
    why: PacketRefusal,
    /// The reason holds for all packets of the train.
    is_of_all: bool,
}

/// A batch that is taken in.
struct BatchIntake<'a> {
    client: &'a ClientConnection,
    shared: &'a ServiceShared,
    batch: u64,
    clocks: ClockReadings,
    /// Until when paths are looked up.
    deadline: MonoTime,
}

/// A packet that may be sent.
struct CheckedPacket {
    packet: QueuedPacket,
    way: ProbePath,
}

impl BatchIntake<'_> {
    fn due(&self, packet: &PacketToRelease) -> MonoTime {
        self.clocks.to_monotonic(packet.clock, packet.release_at)
    }

    fn refused(&self, refusal: &TrainRefusal, train: &[PacketToRelease]) -> Vec<PacketReport> {
        let each = train.iter().enumerate().map(|(index, packet)| {
            let is_cause = refusal.is_of_all || index == refusal.packet;
            let why = if is_cause { refusal.why } else { PacketRefusal::TrainRefused };
            let planned = self.due(packet).as_nanos();
            PacketReport::unsent(self.batch, packet.cookie, packet.train, planned, report::outcome(why))
        });
        each.collect()
    }

    fn check_train(&self, train: &[PacketToRelease]) -> Result<QueuedTrain, TrainRefusal> {
        let mut queued: Option<QueuedTrain> = None;
        for (index, packet) in train.iter().enumerate() {
            let refused = |why| TrainRefusal { packet: index, why, is_of_all: false };
            let CheckedPacket { packet: checked, way } = self.check_packet(packet).map_err(refused)?;
            let latest = Some(Nanos::new(packet.latest)).filter(|latest| *latest > Nanos::ZERO);
            let queued = queued.get_or_insert_with(|| QueuedTrain {
                client: self.client.id,
                batch: self.batch,
                train: packet.train,
                target: way.permitted,
                latest,
                packets: Vec::new(),
            });
            // A train has one target and one limit of lateness, and its packets are in the order of time.
            let is_in_order = queued.packets.last().is_none_or(|last| last.due <= checked.due);
            let is_short = queued.packets.len() < MOST_IN_TRAIN
                && queued.packets.first().is_none_or(|first| checked.due.since(first.due) <= LONGEST_TRAIN);
            let is_one = queued.target.ip() == way.permitted.ip() && queued.latest == latest;
            if !is_in_order || !is_short || !is_one {
                return Err(refused(PacketRefusal::Malformed));
            }
            queued.packets.push(checked);
        }
        queued.ok_or(TrainRefusal { packet: 0, why: PacketRefusal::Malformed, is_of_all: true })
    }

    fn check_packet(&self, packet: &PacketToRelease) -> Result<CheckedPacket, PacketRefusal> {
        let now = now();
        let due = self.due(packet);
        if due > now + self.shared.options.horizon {
            return Err(PacketRefusal::TooFarAhead);
        }
        if packet.latest > 0 && now > due + Nanos::new(packet.latest) {
            return Err(PacketRefusal::Late);
        }
        let (macs, ends) = match packet.kind {
            PacketKind::Frame => {
                service::check_frame(&packet.bytes).map(|(macs, ends)| (Some(macs), ends))?
            }
            PacketKind::IpPacket => (None, service::check_packet(&packet.bytes)?),
        };
        let (paths, interface) = (&self.shared.paths, &self.shared.interface);
        if ends.length.max(packet.bytes.len().saturating_sub(ETHERNET)) > interface.mtu as usize {
            return Err(PacketRefusal::TooLong);
        }
        let is_own_port =
            self.client.rights.is_trusted || paths.may_use_port(self.client.peer.user, ends.flow);
        if !paths.is_own(ends.source) || !is_own_port {
            return Err(PacketRefusal::WrongSource);
        }
        let way = paths.find(ends.target, self.deadline)?;
        let frame = frame_of(packet, macs, &way)?;
        if frame.len() > interface.longest_frame {
            return Err(PacketRefusal::TooLong);
        }
        Ok(CheckedPacket { packet: QueuedPacket { cookie: packet.cookie, due, ends, frame }, way })
    }
}

/// The frame of a packet to the next hop of its target.
fn frame_of(
    packet: &PacketToRelease,
    macs: Option<FrameMacs>,
    way: &ProbePath,
) -> Result<Vec<u8>, PacketRefusal> {
    let mut frame = match macs {
        None => framed(&packet.bytes, way),
        Some(macs) if macs.to == way.ends.next_mac && macs.from == way.ends.own_mac => packet.bytes.clone(),
        Some(_) => return Err(PacketRefusal::WrongSource),
    };
    if frame.len() < SHORTEST {
        frame.resize(SHORTEST, 0);
    }
    Ok(frame)
}

/// The packet with an Ethernet header to the next hop.
fn framed(packet: &[u8], way: &ProbePath) -> Vec<u8> {
    let ether_type: u16 = if way.ends.target.is_ipv4() { 0x0800 } else { 0x86dd };
    let mut frame = Vec::with_capacity(ETHERNET + packet.len());
    frame.extend(way.ends.next_mac);
    frame.extend(way.ends.own_mac);
    frame.extend(ether_type.to_be_bytes());
    frame.extend(packet);
    frame
}

/// The clocks of release times, read together.
struct ClockReadings {
    monotonic: u64,
    realtime: u64,
    tai: u64,
}

impl ClockReadings {
    fn take() -> Self {
        let offset = clock::realtime_offset();
        let monotonic = clock::monotonic_ns();
        let realtime = monotonic.saturating_add_signed(offset.offset_ns);
        // Both clocks advance alike and differ by whole seconds, so a difference that is read late is rounded away.
        let seconds_ahead =
            (clock::tai_ns().saturating_sub(clock::wall_clock_ns()) + 500_000_000) / 1_000_000_000;
        Self { monotonic, realtime, tai: realtime + seconds_ahead * 1_000_000_000 }
    }

    fn to_monotonic(&self, clock: ReleaseClock, at: u64) -> MonoTime {
        let reading = match clock {
            ReleaseClock::Monotonic => return MonoTime::from_nanos(at),
            ReleaseClock::Realtime => self.realtime,
            ReleaseClock::Tai => self.tai,
        };
        let ahead = i128::from(at) - i128::from(reading);
        let at = i128::from(self.monotonic) + ahead;
        MonoTime::from_nanos(u64::try_from(at.max(0)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_other_clocks_become_monotonic_ones() {
        let clocks = ClockReadings { monotonic: 1_000, realtime: 50_000, tai: 87_000 };
        let at = |clock, at| clocks.to_monotonic(clock, at).as_nanos();
        assert_eq!(at(ReleaseClock::Monotonic, 5), 5);
        assert_eq!(at(ReleaseClock::Realtime, 50_500), 1_500);
        assert_eq!(at(ReleaseClock::Tai, 86_900), 900);
        assert_eq!(
            (at(ReleaseClock::Realtime, 0), at(ReleaseClock::Realtime, u64::MAX)),
            (0, u64::MAX - 49_000)
        );
    }

    #[test]
    fn consecutive_packets_of_one_number_are_a_train() {
        let packet = |train| PacketToRelease { train, ..PacketToRelease::ip(0, 0, Vec::new()) };
        let lengths = |numbers: &[u32]| {
            trains(numbers.iter().map(|number| packet(*number)).collect())
                .iter()
                .map(Vec::len)
                .collect::<Vec<_>>()
        };
        assert_eq!(lengths(&[0, 0, 5, 5, 5, 0, 5, 6]), [1, 1, 3, 1, 1, 1]);
    }
}
