//! Converts the departure of a frame to the report for its client, and counts it.

use crate::release::DepartedFrame;
use packetrig_probe::{
    DepartureStage, DepartureStamp, ErrorSpread, PacketRefusal, ProbeFlag, ProbeStamp, ReleaseMechanism,
    StampClock, StampSource,
};
use packetrig_release::message::{
    PacketOutcome, PacketReport, PacketStamp, ReportFlags, StampClockName, StampReader,
};
use packetrig_units::{MonoTime, Nanos};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of departure errors that are kept for the result: the latest ones.
const MAX_STORED_DEPARTURE_ERRORS: usize = 100_000;

/// Outcome of the packets of a client that has disconnected.
#[derive(Clone, Debug, Serialize)]
pub struct PastClient {
    pub name: String,
    pub user: u32,
    pub process: i32,
    pub priority: u8,
    #[serde(flatten)]
    pub counts: PacketCounts,
    /// Deviation of the departures of the latest packets from their requested times, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_error_ns: Option<ErrorSpread>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct PacketCounts {
    pub sent: u64,
    /// Sent packets that certainly left later than requested by more than the tolerance.
    pub late: u64,
    /// Sent packets that were delayed because other packets had their departure times.
    pub shifted: u64,
    /// Packets that were not sent, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Number of answers that were delivered to the client.
    pub answers: u64,
}

/// Outcome of the packets of a client so far.
#[derive(Debug, Default)]
pub(super) struct ClientCounts {
    pub(super) packets: PacketCounts,
    errors_ns: VecDeque<i64>,
}

impl ClientCounts {
    pub(super) fn add_report(&mut self, report: &PacketReport) {
        let packets = &mut self.packets;
        if report.outcome != PacketOutcome::Sent {
            *packets.refused.entry(report.outcome.name()).or_default() += 1;
            return;
        }
        packets.sent += 1;
        packets.late += u64::from(report.flags.has_flag(ReportFlags::LATE));
        packets.shifted += u64::from(report.flags.has_flag(ReportFlags::SHIFTED));
        if let Some(left) = report.departed_at() {
            let middle = left.lo + (left.hi - left.lo) / 2;
            // Wrapping: a client may request any 64-bit time, and an overflow must not end the service.
            self.errors_ns.push_back(middle.cast_signed().wrapping_sub(report.planned.cast_signed()));
            if self.errors_ns.len() > MAX_STORED_DEPARTURE_ERRORS {
                self.errors_ns.pop_front();
            }
        }
    }

    pub(super) fn release_error_ns(&self) -> Option<ErrorSpread> {
        ErrorSpread::from_values(self.errors_ns.iter().copied().collect())
    }
}

/// The packet that a report is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReportedPacket {
    pub(super) batch: u64,
    pub(super) cookie: u64,
    pub(super) train: u32,
    /// Departure time that the client requested.
    pub(super) planned: MonoTime,
    /// Delay because other packets had the requested departure time.
    pub(super) shifted: Nanos,
}

impl ReportedPacket {
    /// Returns the report of this packet with an outcome other than sent.
    pub(super) const fn unsent_report(&self, outcome: PacketOutcome) -> PacketReport {
        PacketReport::new_unsent(self.batch, self.cookie, self.train, self.planned.as_nanos(), outcome)
    }
}

/// Builds the report of a packet that was given to the release mechanism.
pub(super) fn departure_report(
    packet: ReportedPacket,
    gone: &DepartedFrame,
    tolerance: Nanos,
) -> PacketReport {
    let outcome = if gone.flags.contains(&ProbeFlag::Dropped) {
        PacketOutcome::Dropped
    } else if gone.handed_over.is_none() {
        // The mechanism stopped before this frame.
        PacketOutcome::Failed
    } else {
        PacketOutcome::Sent
    };
    let mut flags = ReportFlags::default();
    for flag in &gone.flags {
        match flag {
            ProbeFlag::Late => flags.set_flag(ReportFlags::LATE),
            ProbeFlag::Early => flags.set_flag(ReportFlags::EARLY),
            ProbeFlag::Stolen => flags.set_flag(ReportFlags::STOLEN),
            ProbeFlag::StampMissing => flags.set_flag(ReportFlags::STAMP_MISSING),
            ProbeFlag::StampsDisagree => flags.set_flag(ReportFlags::STAMPS_DISAGREE),
            ProbeFlag::Dropped | ProbeFlag::First | ProbeFlag::Unsent => {}
        }
    }
    if packet.shifted > Nanos::ZERO {
        flags.set_flag(ReportFlags::SHIFTED);
    }
    // The mechanism judges lateness by the departure time that it got, which may be later than the requested
    // one. So lateness against the requested time is checked here.
    let left = gone.local_departure().map(|stamp| stamp.lo);
    if left.is_some_and(|left| left > (packet.planned + tolerance).as_nanos()) {
        flags.set_flag(ReportFlags::LATE);
    }
    let stage = |stage| DepartureStamp::stamp_of_stage(&gone.departures, stage).and_then(packet_stamp);
    PacketReport {
        flags,
        shifted: packet.shifted.as_u64(),
        handed_over: gone.handed_over.and_then(packet_stamp),
        released: gone.released.and_then(packet_stamp),
        queue: stage(DepartureStage::Queue),
        driver: stage(DepartureStage::Driver),
        wire: stage(DepartureStage::Wire),
        ..packet.unsent_report(outcome)
    }
}

/// Converts a stamp to the form of the protocol. `None` for the clock of another host, which a departure never has, and
/// for a clock device whose number has more than 16 bits.
pub(super) fn packet_stamp(stamp: ProbeStamp) -> Option<PacketStamp> {
    let clock = match stamp.clock {
        StampClock::Monotonic => StampClockName::Monotonic,
        // The protocol has 16 bits for the number of a clock device.
        StampClock::Device(number) => StampClockName::Device(u16::try_from(number).ok()?),
        StampClock::Far => return None,
    };
    let reader = match stamp.source {
        StampSource::Program => StampReader::Program,
        StampSource::Bpf => StampReader::Bpf,
        StampSource::Kernel => StampReader::Kernel,
        StampSource::Hardware => StampReader::Hardware,
        StampSource::Far => return None,
    };
    Some(PacketStamp { clock, reader, lo: stamp.lo, hi: stamp.hi })
}

pub(super) const fn refusal_outcome(refusal: PacketRefusal) -> PacketOutcome {
    match refusal {
        PacketRefusal::Late => PacketOutcome::Late,
        PacketRefusal::QueueFull => PacketOutcome::QueueFull,
        PacketRefusal::NotPermitted => PacketOutcome::NotPermitted,
        PacketRefusal::OverLimit => PacketOutcome::OverLimit,
        PacketRefusal::Malformed => PacketOutcome::Malformed,
        PacketRefusal::WrongSource => PacketOutcome::WrongSource,
        PacketRefusal::TooLong => PacketOutcome::TooLong,
        PacketRefusal::Clash => PacketOutcome::Clash,
        PacketRefusal::Cancelled => PacketOutcome::Cancelled,
        PacketRefusal::NoRoute => PacketOutcome::NoRoute,
        PacketRefusal::TooFarAhead => PacketOutcome::TooFarAhead,
        PacketRefusal::Ended => PacketOutcome::Ended,
        PacketRefusal::TrainRefused => PacketOutcome::TrainRefused,
    }
}

/// The number of a mechanism in the protocol.
pub(super) const fn mechanism_number(mechanism: ReleaseMechanism) -> u16 {
    match mechanism {
        ReleaseMechanism::Sleep => 0,
        ReleaseMechanism::Spin => 1,
        ReleaseMechanism::Ring => 2,
        ReleaseMechanism::Gate => 3,
        ReleaseMechanism::Live => 4,
        ReleaseMechanism::Fq => 5,
        ReleaseMechanism::Etf => 6,
        ReleaseMechanism::Launch => 7,
    }
}
