//! Accepts a batch: checks each packet, finds its path, and queues packets that may be sent.
//!
//! Invariant: a packet is queued only if its source is an address of the interface, its own port is reserved
//! for the client or belongs to a socket of its user ([`super::ports`]), its next hop is that of its target,
//! and the permit allows the target.

use super::connection::ClientConnection;
use super::report;
use super::shared::ServiceShared;
use crate::path::ProbePath;
use crate::{now, small_count};
use packetrig_probe::frame::{ETHERNET, IPV4, IPV6, MIN_FRAME_BYTES};
use packetrig_probe::service::{
    self, FrameMacs, PacketEndpoints, PacketRefusal, QueuedPacket, QueuedTrain, work,
};
use packetrig_release::message::{
    PacketFault, PacketKind, PacketReport, PacketToRelease, ReleaseClock, ServiceMessage,
};
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use std::net::IpAddr;

/// Time limit for finding the paths of one batch. Packets whose path is not known by then are refused with
/// the reason "no route".
const PATH_LOOKUP_TIMEOUT: Nanos = Nanos::from_secs(4);
/// Maximum number of packets of a train, and the longest time from its first to its last packet.
pub(super) const MAX_TRAIN_PACKETS: u32 = 256;
pub(super) const MAX_TRAIN_TIME: Nanos = Nanos::from_millis(100);

/// Checks the packets of a batch and queues them. Refused packets are reported before the function returns.
pub(super) fn queue_client_batch(
    client: &ClientConnection,
    shared: &ServiceShared,
    batch: u64,
    packets: Vec<PacketToRelease>,
) -> ServiceMessage {
    let intake = BatchChecker {
        client,
        shared,
        batch,
        clocks: ClockReadings::read_clocks(),
        deadline: now() + PATH_LOOKUP_TIMEOUT,
    };
    let mut accepted = 0;
    let mut reports = Vec::new();
    let mut first = 0;
    for train in split_into_trains(packets) {
        let checked = intake.check_train(&train);
        let queued = checked.and_then(|queued| {
            shared.queue_train(queued).map_err(|why| TrainRefusal { packet: None, why: why.into() })
        });
        match queued {
            Ok(()) => accepted += small_count(train.len()),
            Err(refusal) => reports.extend(intake.refusal_reports(&refusal, first, &train)),
        }
        first += train.len();
    }
    client.report_packets(&reports);
    // The number of queued packets is read last, so that the client gets the latest number.
    let queued = shared.lock_state().queue.queued_packets(client.id);
    ServiceMessage::Accepted { batch, accepted, refused: small_count(reports.len()), queued }
}

/// Divides a batch into trains and single packets. Consecutive packets with the same train number are one train.
fn split_into_trains(packets: Vec<PacketToRelease>) -> Vec<Vec<PacketToRelease>> {
    let mut trains: Vec<Vec<PacketToRelease>> = Vec::new();
    for packet in packets {
        // Number 0 means a single packet, so two of them are no train.
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

/// The reason of a refusal, and the byte of the packet in SUBMIT at which the wrong field begins, if a field is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RefusedPacket {
    why: PacketRefusal,
    byte: Option<usize>,
}

impl RefusedPacket {
    const fn at_byte(why: PacketRefusal, byte: usize) -> Self {
        Self { why, byte: Some(byte) }
    }
}

impl From<PacketRefusal> for RefusedPacket {
    fn from(why: PacketRefusal) -> Self {
        Self { why, byte: None }
    }
}

/// The refused packet of a train, and the reason. Without `packet`, the reason applies to all packets of the train.
struct TrainRefusal {
    packet: Option<usize>,
    why: RefusedPacket,
}

// Offsets of the fields of a packet in SUBMIT.
const RELEASE_AT_OFFSET: usize = 8;
const LATEST_OFFSET: usize = 16;
const TRAIN_OFFSET: usize = 24;
const SIZE_OFFSET: usize = 28;
const FRAME_OFFSET: usize = 32;

/// Offsets of the addresses in an IP header, and the length of the header.
struct IpFields {
    source: usize,
    target: usize,
    length: usize,
}

impl IpFields {
    const fn for_address(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self { source: 12, target: 16, length: IPV4 },
            IpAddr::V6(_) => Self { source: 8, target: 24, length: IPV6 },
        }
    }
}

/// Result of the check of a packet's bytes: the fields that later checks need.
struct CheckedBytes {
    macs: Option<FrameMacs>,
    ends: PacketEndpoints,
    /// Offset of the IP header in the packet as SUBMIT contains it.
    ip_byte: usize,
}

/// Checks the packets of one batch.
struct BatchChecker<'a> {
    client: &'a ClientConnection,
    shared: &'a ServiceShared,
    batch: u64,
    clocks: ClockReadings,
    /// Time until which paths are looked up.
    deadline: MonoTime,
}

/// A packet that may be sent, and its path.
struct CheckedPacket {
    packet: QueuedPacket,
    way: ProbePath,
}

impl BatchChecker<'_> {
    fn due_time(&self, packet: &PacketToRelease) -> MonoTime {
        self.clocks.to_monotonic(packet.clock, packet.release_at)
    }

    /// Builds the reports of a refused train; `first` is the index in the batch of the train's first packet.
    fn refusal_reports(
        &self,
        refusal: &TrainRefusal,
        first: usize,
        train: &[PacketToRelease],
    ) -> Vec<PacketReport> {
        let each = train.iter().enumerate().map(|(index, packet)| {
            let is_cause = refusal.packet.is_none_or(|cause| cause == index);
            let RefusedPacket { why, byte } =
                if is_cause { refusal.why } else { PacketRefusal::TrainRefused.into() };
            let planned = self.due_time(packet).as_nanos();
            let outcome = report::refusal_outcome(why);
            PacketReport {
                fault: u16::try_from(first + index).ok().map(|packet| PacketFault {
                    packet,
                    byte: byte.and_then(|byte| u16::try_from(byte).ok()),
                }),
                ..PacketReport::new_unsent(self.batch, packet.cookie, packet.train, planned, outcome)
            }
        });
        each.collect()
    }

    fn check_train(&self, train: &[PacketToRelease]) -> Result<QueuedTrain, TrainRefusal> {
        let mut queued: Option<QueuedTrain> = None;
        for (index, packet) in train.iter().enumerate() {
            let refused = |why| TrainRefusal { packet: Some(index), why };
            let CheckedPacket { packet: checked, way } = self.check_packet(packet).map_err(refused)?;
            let latest = Some(Nanos::new(packet.latest)).filter(|latest| *latest > Nanos::ZERO);
            let queued = queued.get_or_insert_with(|| QueuedTrain {
                client: self.client.id,
                user: self.client.peer.user,
                batch: self.batch,
                train: packet.train,
                target: way.permitted,
                latest,
                packets: Vec::new(),
            });
            if let Some(byte) = find_conflicting_field(queued, &checked, way.permitted.ip(), latest) {
                return Err(refused(RefusedPacket::at_byte(PacketRefusal::Malformed, byte)));
            }
            queued.packets.push(checked);
        }
        queued.ok_or_else(|| TrainRefusal { packet: None, why: PacketRefusal::Malformed.into() })
    }

    fn check_packet(&self, packet: &PacketToRelease) -> Result<CheckedPacket, RefusedPacket> {
        let now = now();
        let due = self.check_release_time(packet, now)?;
        let CheckedBytes { macs, ends, ip_byte } = self.check_bytes(packet)?;
        let ServiceShared { paths, interface, ports, .. } = self.shared;
        let ip = IpFields::for_address(ends.source);
        // The source is checked before the path, because a forged source must not cost a look-up.
        if !paths.is_own_address(ends.source) {
            return Err(RefusedPacket::at_byte(PacketRefusal::WrongSource, ip_byte + ip.source));
        }
        let way =
            self.find_path(ends.target).map_err(|why| RefusedPacket::at_byte(why, ip_byte + ip.target))?;
        let frame = build_frame(packet, macs, &way)?;
        if frame.len() > interface.longest_frame {
            return Err(RefusedPacket::at_byte(PacketRefusal::TooLong, SIZE_OFFSET));
        }
        // Ports are checked last, so that a packet that is refused for another reason reserves none.
        if !ports.reserve_port(self.client, &ends, due, now) {
            return Err(RefusedPacket::at_byte(PacketRefusal::WrongSource, ip_byte + ip.length));
        }
        Ok(CheckedPacket { packet: QueuedPacket { cookie: packet.cookie, due, ends, frame }, way })
    }

    /// Returns when a packet is due; fails if that time is already over by more than `latest`, or too far ahead.
    fn check_release_time(&self, packet: &PacketToRelease, now: MonoTime) -> Result<MonoTime, RefusedPacket> {
        let due = self.due_time(packet);
        if due > now + self.shared.options.horizon {
            return Err(RefusedPacket::at_byte(PacketRefusal::TooFarAhead, RELEASE_AT_OFFSET));
        }
        // A `latest` of 0 sets no limit.
        if packet.latest > 0 && now > due + Nanos::new(packet.latest) {
            return Err(RefusedPacket::at_byte(PacketRefusal::Late, RELEASE_AT_OFFSET));
        }
        Ok(due)
    }

    fn check_bytes(&self, packet: &PacketToRelease) -> Result<CheckedBytes, RefusedPacket> {
        let checked = match packet.kind {
            PacketKind::Frame => service::check_frame(&packet.bytes).map(|(macs, ends)| CheckedBytes {
                macs: Some(macs),
                ends,
                ip_byte: FRAME_OFFSET + ETHERNET,
            }),
            PacketKind::IpPacket => service::check_packet(&packet.bytes).map(|ends| CheckedBytes {
                macs: None,
                ends,
                ip_byte: FRAME_OFFSET,
            }),
        };
        let checked = checked
            .map_err(|wrong| RefusedPacket::at_byte(PacketRefusal::Malformed, FRAME_OFFSET + wrong.byte))?;
        // A frame may be padded beyond its packet, so both lengths count.
        let longest = checked.ends.length.max(packet.bytes.len().saturating_sub(ETHERNET));
        if longest > self.shared.interface.mtu as usize {
            return Err(RefusedPacket::at_byte(PacketRefusal::TooLong, SIZE_OFFSET));
        }
        Ok(checked)
    }

    fn find_path(&self, target: IpAddr) -> Result<ProbePath, PacketRefusal> {
        let paths = &self.shared.paths;
        if let Some(known) = paths.find_cached_path(target, self.client.peer.user) {
            return known;
        }
        self.client.spend_units(work::LOOK_UP_COST);
        paths.find_path(target, self.client.peer.user, self.deadline)
    }
}

/// Returns the offset of the field because of which a packet cannot join its train; `None` if it can. All
/// packets of a train have one target and one lateness limit. They are in the order of time, and both their
/// number and their total time are limited.
fn find_conflicting_field(
    train: &QueuedTrain,
    packet: &QueuedPacket,
    target: IpAddr,
    latest: Option<Nanos>,
) -> Option<usize> {
    // The first packet sets the target and the lateness limit of its train, so it can always join.
    let (Some(first), Some(last)) = (train.packets.first(), train.packets.last()) else { return None };
    if packet.due < last.due || packet.due.since(first.due) > MAX_TRAIN_TIME {
        return Some(RELEASE_AT_OFFSET);
    }
    if train.latest != latest {
        return Some(LATEST_OFFSET);
    }
    let is_one = train.target.ip() == target && train.packets.len() < MAX_TRAIN_PACKETS as usize;
    (!is_one).then_some(TRAIN_OFFSET)
}

/// Builds the frame of a packet to the next hop of its target, padded to the Ethernet minimum. Fails if the
/// client set other hardware addresses than those of the path.
fn build_frame(
    packet: &PacketToRelease,
    macs: Option<FrameMacs>,
    way: &ProbePath,
) -> Result<Vec<u8>, RefusedPacket> {
    let mut frame = match macs {
        None => add_ethernet_header(&packet.bytes, way),
        // A frame to another host of the network would bypass the permit, which was checked for the target
        // only.
        Some(macs) if macs.to != way.ends.next_mac => {
            return Err(RefusedPacket::at_byte(PacketRefusal::WrongSource, FRAME_OFFSET));
        }
        Some(macs) if macs.from != way.ends.own_mac => {
            return Err(RefusedPacket::at_byte(PacketRefusal::WrongSource, FRAME_OFFSET + macs.to.len()));
        }
        Some(_) => packet.bytes.clone(),
    };
    // The shortest Ethernet frame has 60 bytes without FCS. A driver that does not pad frames would send a
    // shorter one (a runt).
    if frame.len() < MIN_FRAME_BYTES {
        frame.resize(MIN_FRAME_BYTES, 0);
    }
    Ok(frame)
}

/// Returns the packet with an Ethernet header to the next hop.
fn add_ethernet_header(packet: &[u8], way: &ProbePath) -> Vec<u8> {
    let ether_type: u16 = if way.ends.target.is_ipv4() { 0x0800 } else { 0x86dd };
    let mut frame = Vec::with_capacity(ETHERNET + packet.len());
    frame.extend(way.ends.next_mac);
    frame.extend(way.ends.own_mac);
    frame.extend(ether_type.to_be_bytes());
    frame.extend(packet);
    frame
}

/// Readings, at the same moment, of the clocks in which clients may state release times.
struct ClockReadings {
    monotonic: u64,
    realtime: u64,
    tai: u64,
}

impl ClockReadings {
    fn read_clocks() -> Self {
        let offset = clock::measure_realtime_offset();
        let monotonic = clock::monotonic_ns();
        let realtime = monotonic.saturating_add_signed(offset.offset_ns);
        // CLOCK_TAI and CLOCK_REALTIME run at the same rate and differ by whole seconds, so the difference
        // is rounded to seconds.
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
        // A client may state any 64-bit time, so the difference needs more bits.
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
        let packet = |train| PacketToRelease { train, ..PacketToRelease::ip_packet(0, 0, Vec::new()) };
        let lengths = |numbers: &[u32]| {
            split_into_trains(numbers.iter().map(|number| packet(*number)).collect())
                .iter()
                .map(Vec::len)
                .collect::<Vec<_>>()
        };
        assert_eq!(lengths(&[0, 0, 5, 5, 5, 0, 5, 6]), [1, 1, 3, 1, 1, 1]);
    }
}
