//! What is known of one probe: when it was planned, handed over and released, when it left and when the answer came.
//!
//! Invariant: a [`ProbeStamp`] is an interval that holds the truth, on a clock that is named; stamps of different clocks are never
//! subtracted from each other here.

use crate::schedule::ProbeKind;
use packetrig_units::MonoTime;
use serde::{Deserialize, Serialize};

/// Which clock a stamp is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StampClock {
    /// `CLOCK_MONOTONIC` of this node. Stamps of the kernel's real-time clock are converted to it and as much wider.
    Monotonic,
    /// The clock of a network device, `/dev/ptpN`.
    Device(u32),
    /// The clock of whoever answered, as written in the answer.
    Far,
}

/// Who read the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StampSource {
    /// The sending or receiving program, before and after a call.
    Program,
    /// A program of packetrig's in the kernel.
    Bpf,
    /// The kernel's networking code.
    Kernel,
    Hardware,
    Far,
}

/// An instant as well as it is known: not before `lo`, not after `hi`, nanoseconds of `clock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeStamp {
    pub clock: StampClock,
    pub source: StampSource,
    pub lo: u64,
    pub hi: u64,
}

impl ProbeStamp {
    /// Between two readings of this node's monotonic clock.
    pub const fn between(source: StampSource, lo: MonoTime, hi: MonoTime) -> Self {
        Self { clock: StampClock::Monotonic, source, lo: lo.as_nanos(), hi: hi.as_nanos() }
    }

    /// `at`, at most `bound` nanoseconds off.
    pub const fn around(source: StampSource, at: MonoTime, bound: u64) -> Self {
        let at = at.as_nanos();
        Self {
            clock: StampClock::Monotonic,
            source,
            lo: at.saturating_sub(bound),
            hi: at.saturating_add(bound),
        }
    }

    /// The middle of the interval.
    pub const fn middle(self) -> u64 {
        self.lo + (self.hi - self.lo) / 2
    }

    /// Half the interval, rounded up: how far the middle may be off.
    pub const fn bound(self) -> u64 {
        (self.hi - self.lo).div_ceil(2)
    }
}

/// How far a probe had come on its way out when it was stamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DepartureStage {
    /// Into the queueing discipline.
    Queue,
    /// What a capture on the sending machine sees.
    Capture,
    Driver,
    /// Onto the wire, by the device.
    Wire,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DepartureStamp {
    pub stage: DepartureStage,
    pub stamp: ProbeStamp,
}

impl DepartureStamp {
    /// The stamp of a stage.
    pub fn of(all: &[Self], stage: DepartureStage) -> Option<ProbeStamp> {
        all.iter().find(|departure| departure.stage == stage).map(|departure| departure.stamp)
    }

    /// The stamp of the last stage on this node's own clock: a device's is of no use where nobody relates it.
    pub fn last_here(all: &[Self]) -> Option<ProbeStamp> {
        let own = all.iter().filter(|departure| departure.stamp.clock == StampClock::Monotonic);
        // Entering a queue that holds it back is not leaving.
        let left = own
            .filter(|departure| departure.stage > DepartureStage::Queue)
            .max_by_key(|departure| departure.stage);
        left.map(|departure| departure.stamp)
    }
}

/// A stated doubt on one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeFlag {
    /// Released after its instant by more than the tolerance.
    Late,
    /// Released before it by more than the tolerance.
    Early,
    /// The processor was taken away from the sender around its instant.
    Stolen,
    /// A departure stamp that was asked for never came.
    StampMissing,
    /// Stamps contradict each other.
    StampsDisagree,
    /// The kernel dropped it for its release time: too late, or too far ahead.
    Dropped,
    /// The first probe of a train or of all, which often finds the path asleep.
    First,
    /// Not sent: the limits did not allow it, or the run ended first.
    Unsent,
}

/// Everything known of one probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeRecord {
    /// Its number in the schedule.
    pub number: u32,
    /// Which train or pair it is of.
    pub train: u32,
    /// What it is for.
    pub kind: ProbeKind,
    /// Bytes of its frame, without FCS.
    pub length: u32,
    /// When it was to be released, `CLOCK_MONOTONIC` nanoseconds.
    pub planned: MonoTime,
    /// When it was given to the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handed_over: Option<ProbeStamp>,
    /// When whoever held it back let it go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released: Option<ProbeStamp>,
    /// When it left, as far as the system says.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub departures: Vec<DepartureStamp>,
    /// When the far end took it in, by the far end's word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far_arrival: Option<ProbeStamp>,
    /// When the far end answered, by the far end's word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far_departure: Option<ProbeStamp>,
    /// When the answer came in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<ProbeStamp>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub flags: Vec<ProbeFlag>,
}

impl ProbeRecord {
    /// Of a probe that has not been sent yet.
    pub const fn planned(planned: crate::PlannedProbe, at: MonoTime) -> Self {
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

    /// The departure stamp of a stage.
    pub fn departure(&self, stage: DepartureStage) -> Option<ProbeStamp> {
        DepartureStamp::of(&self.departures, stage)
    }

    /// The truest word on when it left by this node's clock: the last stage that was stamped, else the release, else the hand-over. A
    /// device's own clock is of no use where nobody relates it.
    pub fn left_here(&self) -> Option<ProbeStamp> {
        DepartureStamp::last_here(&self.departures).or(self.released).or(self.handed_over)
    }

    /// Notes a doubt, once.
    pub fn flag(&mut self, flag: ProbeFlag) {
        if !self.flags.contains(&flag) {
            self.flags.push(flag);
        }
    }
}
