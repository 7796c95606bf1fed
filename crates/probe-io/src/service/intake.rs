//! Takes a batch in: checks each packet, finds its path, and queues what may be sent.
//!
//! Invariant: a packet is queued only if its source is an address of the interface, its next hop is that of its target, and the permit
//! allows the target.

use super::client::ClientConnection;
use super::shared::ServiceShared;
use super::{ServiceInterface, TargetPermission, report};
use crate::path::{self, ProbePath};
use crate::{now, small_count};
use packetrig_probe::PacketRefusal;
use packetrig_probe::frame::{ETHERNET, SHORTEST};
use packetrig_probe::service::{self, PacketEnds, QueuedPacket, QueuedTrain};
use packetrig_release::message::{PacketKind, PacketReport, PacketToRelease, ReleaseClock, ServiceMessage};
use packetrig_sys::clock;
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
/// Targets that were closed, for as long as the service runs.
const MOST_CLOSED: usize = 65_536;

/// The paths to targets, as they were found last.
pub(super) struct TargetPaths {
    interface: ServiceInterface,
    permission: Box<TargetPermission>,
    known: Mutex<KnownPaths>,
}

#[derive(Debug, Default)]
struct KnownPaths {
    paths: BTreeMap<IpAddr, KnownPath>,
    /// Targets that do not want to be probed.
    closed: BTreeSet<IpAddr>,
    sources: BTreeSet<IpAddr>,
    sources_until: MonoTime,
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
        let mut known = self.known();
        known.closed.len() < MOST_CLOSED && known.closed.insert(target)
    }

    /// The path to a target. It may take seconds until the next hop has told its hardware address; no lock is held meanwhile.
    fn find(&self, target: IpAddr) -> Result<ProbePath, PacketRefusal> {
        let now = now();
        {
            let known = self.known();
            if known.closed.contains(&target) {
                return Err(PacketRefusal::NotPermitted);
            }
            if let Some(path) = known.paths.get(&target).filter(|path| now < path.until) {
                return path.found.clone();
            }
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
    let clocks = ClockReadings::take();
    let now = now();
    let mut accepted = 0;
    let mut reports = Vec::new();
    for train in trains(packets) {
        let checked = check_train(client, shared, batch, &train, &clocks, now);
        let queued = checked.and_then(|queued| {
            let pushed = shared.lock().queue.push(queued);
            pushed.map_err(|_| TrainRefusal { packet: 0, why: PacketRefusal::QueueFull, is_of_all: true })
        });
        match queued {
            Ok(()) => accepted += small_count(train.len()),
            Err(refusal) => reports.extend(refusal.reports(batch, &train, &clocks)),
        }
    }
    shared.wake_outlet();
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

impl TrainRefusal {
    fn reports(&self, batch: u64, train: &[PacketToRelease], clocks: &ClockReadings) -> Vec<PacketReport> {
        let each = train.iter().enumerate().map(|(index, packet)| {
            let is_cause = self.is_of_all || index == self.packet;
            let why = if is_cause { self.why } else { PacketRefusal::TrainRefused };
            let planned = clocks.to_monotonic(packet.clock, packet.release_at).as_nanos();
            PacketReport::unsent(batch, packet.cookie, packet.train, planned, report::outcome(why))
        });
        each.collect()
    }
}

fn check_train(
    client: &ClientConnection,
    shared: &ServiceShared,
    batch: u64,
    train: &[PacketToRelease],
    clocks: &ClockReadings,
    now: MonoTime,
) -> Result<QueuedTrain, TrainRefusal> {
    let mut queued: Option<QueuedTrain> = None;
    let mut flows = Vec::new();
    for (index, packet) in train.iter().enumerate() {
        let refused = |why| TrainRefusal { packet: index, why, is_of_all: false };
        let due = clocks.to_monotonic(packet.clock, packet.release_at);
        if due > now + shared.options.horizon {
            return Err(refused(PacketRefusal::TooFarAhead));
        }
        let latest = Some(Nanos::new(packet.latest)).filter(|latest| *latest > Nanos::ZERO);
        if latest.is_some_and(|latest| now > due + latest) {
            return Err(refused(PacketRefusal::Late));
        }
        let checked = check_packet(&shared.paths, packet).map_err(refused)?;
        flows.push(checked.ends);
        let target = checked.way.permitted;
        let train = queued.get_or_insert_with(|| QueuedTrain {
            client: client.id,
            batch,
            train: packet.train,
            target,
            latest,
            packets: Vec::new(),
        });
        // The whole train has one target and one limit of lateness, and its packets are in the order of time.
        let is_in_order = train.packets.last().is_none_or(|last: &QueuedPacket| last.due <= due);
        if train.target.ip() != target.ip() || train.latest != latest || !is_in_order {
            return Err(refused(PacketRefusal::Malformed));
        }
        train.packets.push(QueuedPacket { cookie: packet.cookie, due, frame: checked.frame });
    }
    flows.iter().for_each(|ends| client.note_flow(ends));
    queued.ok_or(TrainRefusal { packet: 0, why: PacketRefusal::Malformed, is_of_all: true })
}

/// A packet that may be sent.
struct CheckedPacket {
    frame: Vec<u8>,
    ends: PacketEnds,
    way: ProbePath,
}

fn check_packet(paths: &TargetPaths, packet: &PacketToRelease) -> Result<CheckedPacket, PacketRefusal> {
    let (macs, ends) = match packet.kind {
        PacketKind::Frame => service::check_frame(&packet.bytes).map(|(macs, ends)| (Some(macs), ends))?,
        PacketKind::IpPacket => (None, service::check_packet(&packet.bytes)?),
    };
    if ends.length > paths.interface.mtu as usize
        || packet.bytes.len() > ETHERNET + paths.interface.mtu as usize
    {
        return Err(PacketRefusal::TooLong);
    }
    if !paths.is_own(ends.source) {
        return Err(PacketRefusal::WrongSource);
    }
    let way = paths.find(ends.target)?;
    let mut frame = match macs {
        None => framed(&packet.bytes, &way),
        Some(macs) if macs.to == way.ends.next_mac && macs.from == way.ends.own_mac => packet.bytes.clone(),
        Some(_) => return Err(PacketRefusal::WrongSource),
    };
    if frame.len() < SHORTEST {
        frame.resize(SHORTEST, 0);
    }
    Ok(CheckedPacket { frame, ends, way })
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
