//! The record of one probe: when it was planned, handed over and released, when it left and when the answer came.
//!
//! Invariant: a [`ProbeStamp`] is an interval that contains the true time, on a named clock; stamps of different clocks are never
//! subtracted from each other here.

use crate::schedule::ProbeKind;
use packetrig_units::MonoTime;
use serde::{Deserialize, Serialize};

/// The clock of a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StampClock {
    /// `CLOCK_MONOTONIC` of this node. Stamps of the kernel's real-time clock are converted to it, which makes them wider.
    Monotonic,
    /// The clock of a network device, `/dev/ptpN`.
    Device(u32),
    /// The clock of the host that answered, as written in the answer.
    Far,
}

/// The program or device that read the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StampSource {
    /// The sending or receiving program, before and after a call.
    Program,
    /// packetrig's BPF program in the kernel.
    Bpf,
    /// The kernel's networking code.
    Kernel,
    Hardware,
    Far,
}

/// A time with its bounds: not before `lo`, not after `hi`, nanoseconds of `clock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeStamp {
    pub clock: StampClock,
    pub source: StampSource,
    pub lo: u64,
    pub hi: u64,
}

impl ProbeStamp {
    /// Makes a stamp between two readings of this node's monotonic clock.
    pub const fn between_readings(source: StampSource, lo: MonoTime, hi: MonoTime) -> Self {
        Self { clock: StampClock::Monotonic, source, lo: lo.as_nanos(), hi: hi.as_nanos() }
    }

    /// Makes a stamp at `at`, which is at most `bound` nanoseconds off.
    pub const fn with_bound(source: StampSource, at: MonoTime, bound: u64) -> Self {
        let at = at.as_nanos();
        Self {
            clock: StampClock::Monotonic,
            source,
            lo: at.saturating_sub(bound),
            hi: at.saturating_add(bound),
        }
    }

    pub const fn middle(self) -> u64 {
        // The sum (lo + hi) could overflow.
        self.lo + (self.hi - self.lo) / 2
    }

    /// Half the interval, rounded up: how far the middle may be off.
    pub const fn bound(self) -> u64 {
        (self.hi - self.lo).div_ceil(2)
    }
}

/// The point on a probe's way through the sender at which it was stamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DepartureStage {
    /// Entry into the queueing discipline.
    Queue,
    /// Capture of the outgoing frame on the sending machine.
    Capture,
    Driver,
    /// Transmission onto the wire, by the device.
    Wire,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DepartureStamp {
    pub stage: DepartureStage,
    pub stamp: ProbeStamp,
}

impl DepartureStamp {
    pub fn stamp_of_stage(all: &[Self], stage: DepartureStage) -> Option<ProbeStamp> {
        all.iter().find(|departure| departure.stage == stage).map(|departure| departure.stamp)
    }

    /// The stamp of the last stage after the queueing discipline, on this node's own clock. Stamps of a device's clock
    /// cannot be compared with it.
    pub fn last_local_departure(all: &[Self]) -> Option<ProbeStamp> {
        let own = all.iter().filter(|departure| departure.stamp.clock == StampClock::Monotonic);
        // A queueing discipline may hold the frame back, so its stamp is no departure.
        let left = own
            .filter(|departure| departure.stage > DepartureStage::Queue)
            .max_by_key(|departure| departure.stage);
        left.map(|departure| departure.stamp)
    }
}

/// A doubt about one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeFlag {
    /// Released after its departure time by more than the tolerance.
    Late,
    /// Released before its departure time by more than the tolerance.
    Early,
    /// The sending thread did not have its processor around the departure time.
    Stolen,
    /// A requested departure timestamp did not arrive.
    StampMissing,
    /// Stamps contradict each other.
    StampsDisagree,
    /// The kernel dropped the probe: there was no room, or its release time was too late or too far ahead.
    Dropped,
    /// The first probe of a series, which often has to wake up the path.
    First,
    /// The probe was not sent: the limits did not allow it, or the run ended first.
    Unsent,
}

/// Plan, measured times and doubts of one probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeRecord {
    /// Number of the probe in the schedule.
    pub number: u32,
    /// Number of the train or pair that the probe belongs to.
    pub train: u32,
    pub kind: ProbeKind,
    /// Bytes of its frame, without FCS.
    pub length: u32,
    /// Planned departure time, in nanoseconds of `CLOCK_MONOTONIC`.
    pub planned: MonoTime,
    /// Time of the hand-over to the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handed_over: Option<ProbeStamp>,
    /// Time of the release by the mechanism.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released: Option<ProbeStamp>,
    /// Departure stamps of the kernel and the devices, one for each stage that was stamped.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub departures: Vec<DepartureStamp>,
    /// Arrival at the far end, as that end reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far_arrival: Option<ProbeStamp>,
    /// Departure of the far end's answer, as that end reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far_departure: Option<ProbeStamp>,
    /// Arrival of the answer here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<ProbeStamp>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub flags: Vec<ProbeFlag>,
}

impl ProbeRecord {
    /// The record of a probe that has not been sent yet.
    pub const fn from_planned(planned: crate::PlannedProbe, at: MonoTime) -> Self {
        Self {
            number: planned.number,
            train: planned.train,
            kind: planned.kind,
            length: planned.length,
            planned: at,
            handed_over: None,
            released: None,
            departures: Vec::new(),
            far_arrival: None,
            far_departure: None,
            answered: None,
            flags: Vec::new(),
        }
    }

    pub fn departure_stamp(&self, stage: DepartureStage) -> Option<ProbeStamp> {
        DepartureStamp::stamp_of_stage(&self.departures, stage)
    }

    /// The best known departure time on this node's clock: the last stage after the queueing discipline that was
    /// stamped, else the release, else the hand-over.
    pub fn local_departure(&self) -> Option<ProbeStamp> {
        DepartureStamp::last_local_departure(&self.departures).or(self.released).or(self.handed_over)
    }

    /// Adds a doubt, unless the record has it already.
    pub fn add_flag(&mut self, flag: ProbeFlag) {
        if !self.flags.contains(&flag) {
            self.flags.push(flag);
        }
    }
}
