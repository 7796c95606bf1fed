//! How exact each mechanism is between two interfaces of this machine, by the far end's stamps; and whether stamps come in the order in which
//! things happen.
//!
//! Frames of a link type of their own go from one interface to the other and nowhere else. A frame counts where its number arrives; what a
//! capture on the sending interface saw of it is compared, too. Interfaces that look like part of a real network are refused.
//!
//! Invariant: an error is the difference of two times of this node, the instant and the arrival, each with its bound.

use crate::circumstances;
use crate::release::{self, Dispatcher, Due, Gone, Manner};
use crate::{Error, now};
use packetrig_engine::packet::guard;
use packetrig_plan::PortLocation;
use packetrig_probe::choice::{Calibration, Exactness};
use packetrig_probe::{Budget, Departure, Limits, Mechanism, Planned, Spread, Stage, Stamp};
use packetrig_sys::clock::{self, RealtimeOffset};
use packetrig_sys::kernel;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::packet::{RxOptions, RxRing};
use packetrig_units::{MonoTime, Nanos};
use serde::Serialize;

/// EtherType for experiments of one's own (IEEE 802).
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];
const MARK: [u8; 4] = *b"prPc";
const NUMBER: usize = 18;
const LENGTH: usize = 124;
/// Looks in vain until what is missing counts as lost.
const LOOKS: usize = 20;

/// How to calibrate.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Probes with each mechanism.
    pub count: u32,
    /// Between two of them.
    pub gap: Nanos,
    /// In one train.
    pub train: u32,
}

/// What was found of a mechanism.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// Which.
    pub mechanism: Mechanism,
    /// Why it could not be used; the rest is empty then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
    /// What it could not do as it was asked to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// Probes given to it, and those that arrived.
    pub sent: u64,
    /// Those that arrived.
    pub arrived: u64,
    /// Those it flagged late or early.
    pub flagged: u64,
    /// Probes whose stamps were not in order; more than a few mean that something here is not what it seems.
    pub out_of_order: u64,
    /// From the instant to the arrival.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_ns: Option<Spread>,
    /// By how much distances within trains were off at arrival, either way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spacing_error_ns: Option<Spread>,
    /// From the instant to the release, as the mechanism says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_error_ns: Option<Spread>,
    /// From the release to the arrival: what a release stamp is off as a stamp of departure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_to_arrival_ns: Option<Spread>,
    /// From a capture's stamp to the driver's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture_to_driver_ns: Option<Spread>,
    /// From the driver's stamp to the arrival.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_to_arrival_ns: Option<Spread>,
}

/// A mechanism's probes, as far as anybody saw them.
struct Seen {
    planned: Vec<MonoTime>,
    trains: Vec<u32>,
    gone: Vec<Gone>,
    captured: Vec<Option<Stamp>>,
    arrived: Vec<Option<Stamp>>,
}

/// Two interfaces with an ear on each.
struct Bench {
    tap: RxRing,
    far: RxRing,
    frame: Vec<u8>,
}

/// What is to be kept for the choice of a mechanism.
pub fn kept(near: &PortLocation, found: &[Found]) -> Calibration {
    let exact = |found: &Found| found.error_ns.map(|errors| Exactness::of(found.mechanism, errors));
    let mechanisms = found.iter().filter_map(exact).collect();
    let driver = circumstances::driver(near).unwrap_or_default();
    Calibration { kernel: kernel::release(), driver, mechanisms }
}

/// Calibrates these mechanisms from `near` to `far`, which are refused if they look like part of a real network and are not `confirmed`.
pub fn perform(
    (near, far): (&PortLocation, &PortLocation),
    confirmed: &[PortLocation],
    mechanisms: &[Mechanism],
    extent: Extent,
    stop: &dyn Fn() -> bool,
) -> Result<Vec<Found>, Error> {
    let mut bench = Bench::open(near, far, confirmed)?;
    let mut all = Vec::new();
    for mechanism in mechanisms.iter().take_while(|_| !stop()) {
        all.push(match release::open(near, *mechanism, Manner::usual_for(*mechanism)) {
            Ok(release) => {
                let dispatcher = Dispatcher::new(release, Budget::new(Limits::NONE));
                bench.calibrate(*mechanism, dispatcher, extent, stop)?
            }
            Err(error @ (Error::Mechanism { .. } | Error::Kernel(_))) => {
                Found { obstacle: Some(error.to_string()), ..Found::none(*mechanism) }
            }
            Err(error) => return Err(error),
        });
    }
    Ok(all)
}

impl Bench {
    fn open(near: &PortLocation, far: &PortLocation, confirmed: &[PortLocation]) -> Result<Self, Error> {
        let (near_netns, near_link) = lab_only(near, confirmed)?;
        let (far_netns, far_link) = lab_only(far, confirmed)?;
        let options = RxOptions { blocks: 256, retire_ms: 1, ..RxOptions::default() };
        let outgoing = RxOptions { outgoing: true, ..options };
        let mut frame = vec![0; LENGTH];
        frame[..6].copy_from_slice(&far_link.mac.unwrap_or([0xff; 6]));
        frame[6..12].copy_from_slice(&near_link.mac.unwrap_or([2, 0, 0, 0, 0, 1]));
        frame[12..14].copy_from_slice(&ETHER_TYPE);
        frame[14..NUMBER].copy_from_slice(&MARK);
        Ok(Self {
            tap: RxRing::open(&near_netns, near_link.index, &near.to_string(), outgoing)?,
            far: RxRing::open(&far_netns, far_link.index, &far.to_string(), options)?,
            frame,
        })
    }

    fn calibrate(
        &mut self,
        mechanism: Mechanism,
        mut dispatcher: Dispatcher,
        extent: Extent,
        stop: &dyn Fn() -> bool,
    ) -> Result<Found, Error> {
        // A ring knows no distances.
        let gap = if mechanism == Mechanism::Ring { Nanos::ZERO } else { extent.gap };
        let extent = Extent { gap, ..extent };
        let trains = extent.count.div_ceil(extent.train.max(1)).max(1);
        // Trains follow each other when they can; instants are given as each begins.
        let probes: Vec<Planned> = (0..trains).flat_map(|train| of_train(train, extent)).collect();
        let mut seen = Seen::new(probes.len());
        self.warm_up(&mut dispatcher)?;
        for train in probes.chunk_by(|one, other| one.train == other.train).take_while(|_| !stop()) {
            self.send(train, &mut dispatcher, &mut seen)?;
        }
        Ok(seen.found(mechanism, dispatcher.remarks().to_vec()))
    }

    /// The first frames find stamping switched off and caches cold.
    fn warm_up(&mut self, dispatcher: &mut Dispatcher) -> Result<(), Error> {
        let at = now() + dispatcher.lead();
        let frame = self.frame.clone();
        dispatcher.send(&[Due { at, frame: &frame }], &mut Vec::new())?;
        self.listen(&mut Seen::new(0), 1);
        Ok(())
    }

    fn send(&mut self, train: &[Planned], dispatcher: &mut Dispatcher, seen: &mut Seen) -> Result<(), Error> {
        // A ring may be done before its last instant; a budget wants times in order.
        let last = seen.planned.last().copied().unwrap_or(MonoTime::from_nanos(0));
        let start = now().max(last) + dispatcher.lead();
        let frames: Vec<Vec<u8>> =
            (seen.planned.len()..).take(train.len()).map(|n| self.numbered(n)).collect();
        let first = train[0].at;
        let at = |probe: &Planned| start + Nanos::new(probe.at.as_u64() - first.as_u64());
        let due = |(probe, frame)| Due { at: at(probe), frame };
        let dues: Vec<Due<'_>> = train.iter().zip(frames.iter().map(Vec::as_slice)).map(due).collect();
        dispatcher.send(&dues, &mut seen.gone)?;
        seen.planned.extend(dues.iter().map(|due| due.at));
        seen.trains.extend(train.iter().map(|probe| probe.train));
        self.listen(seen, train.len());
        Ok(())
    }

    fn numbered(&self, number: usize) -> Vec<u8> {
        let mut frame = self.frame.clone();
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        frame[NUMBER..NUMBER + 4].copy_from_slice(&number.to_be_bytes());
        frame
    }

    /// Reads both ears until so many have arrived, or nothing more comes.
    fn listen(&mut self, seen: &mut Seen, count: usize) {
        let offset = clock::realtime_offset();
        let (mut arrived, mut in_vain) = (0, 0);
        while arrived < count && in_vain < LOOKS {
            // What cannot be waited for is seen as missing.
            self.far.wait(2_000_000).unwrap_or(());
            let before = arrived;
            self.far.receive(usize::MAX, &mut |frame| {
                arrived += usize::from(enter(&mut seen.arrived, frame.bytes, frame.realtime_ns, offset));
            });
            in_vain = if arrived == before { in_vain + 1 } else { 0 };
        }
        self.tap.receive(usize::MAX, &mut |frame| {
            enter(&mut seen.captured, frame.bytes, frame.realtime_ns, offset);
        });
    }
}

/// The probes of a train, from its first.
fn of_train(train: u32, extent: Extent) -> impl Iterator<Item = Planned> {
    let kind = packetrig_probe::Kind::Train;
    let at = move |nth: u32| Nanos::new(extent.gap.as_u64().saturating_mul(nth.into()));
    (0..extent.train).map(move |nth| Planned { number: 0, train, kind, at: at(nth), length: 0 })
}

/// Notes when a frame of ours was seen; whether it was one.
fn enter(seen: &mut [Option<Stamp>], frame: &[u8], realtime_ns: u64, offset: RealtimeOffset) -> bool {
    if frame.len() != LENGTH || frame[12..14] != ETHER_TYPE || frame[14..NUMBER] != MARK {
        return false;
    }
    let number = frame[NUMBER..].first_chunk().map_or(u32::MAX, |bytes| u32::from_be_bytes(*bytes));
    let at = MonoTime::from_nanos(offset.to_monotonic(realtime_ns));
    if let Some(place) = seen.get_mut(number as usize) {
        *place = Some(Stamp::around(packetrig_probe::Source::Kernel, at, offset.bound_ns));
    }
    true
}

/// The interface, if nobody else can be reached through it, or it is confirmed.
fn lab_only(
    location: &PortLocation,
    confirmed: &[PortLocation],
) -> Result<(NetNs, packetrig_sys::link::Link), Error> {
    let netns = NetNs::open_or_current(location.namespace.as_deref())?;
    let link = NamespaceLinks::open(&netns)?.by_name(&location.interface)?;
    guard::permit_port(&netns, link.index, &location.to_string(), confirmed.contains(location))?;
    Ok((netns, link))
}

impl Seen {
    fn new(count: usize) -> Self {
        Self {
            planned: Vec::with_capacity(count),
            trains: Vec::with_capacity(count),
            gone: Vec::with_capacity(count),
            captured: vec![None; count],
            arrived: vec![None; count],
        }
    }

    fn found(&self, mechanism: Mechanism, remarks: Vec<String>) -> Found {
        let probes = 0..self.planned.len();
        let difference = |to: Option<Stamp>, from: Option<Stamp>| Some(middle(to?) - middle(from?));
        let spread = |of: &dyn Fn(usize) -> Option<i64>| Spread::of(probes.clone().filter_map(of).collect());
        let error = |stamp: Option<Stamp>, index: usize| {
            Some(middle(stamp?) - self.planned[index].as_nanos().cast_signed())
        };
        let driver = |index: usize| Departure::of(&self.gone[index].departures, Stage::Driver);
        let spacing = |index: usize| {
            let before = index.checked_sub(1).filter(|before| self.trains[*before] == self.trains[index])?;
            let off = error(self.arrived[index], index)? - error(self.arrived[before], before)?;
            Some(off.saturating_abs())
        };
        let flags = [packetrig_probe::Flag::Late, packetrig_probe::Flag::Early];
        let is_flagged = |gone: &&Gone| gone.flags.iter().any(|flag| flags.contains(flag));
        Found {
            remarks,
            sent: self.gone.iter().filter(|gone| gone.handed_over.is_some()).count() as u64,
            arrived: self.arrived.iter().flatten().count() as u64,
            flagged: self.gone.iter().filter(is_flagged).count() as u64,
            out_of_order: probes.clone().filter(|index| self.is_out_of_order(*index)).count() as u64,
            error_ns: spread(&|index| error(self.arrived[index], index)),
            spacing_error_ns: spread(&spacing),
            release_error_ns: spread(&|index| error(self.gone[index].released, index)),
            release_to_arrival_ns: spread(&|index| {
                difference(self.arrived[index], self.gone[index].released)
            }),
            capture_to_driver_ns: spread(&|index| difference(driver(index), self.captured[index])),
            driver_to_arrival_ns: spread(&|index| difference(self.arrived[index], driver(index))),
            ..Found::none(mechanism)
        }
    }

    /// Handed over, into the queue, captured, to the driver, arrived: nothing may have ended before what comes before it began.
    fn is_out_of_order(&self, index: usize) -> bool {
        let gone = &self.gone[index];
        let order = [
            gone.handed_over,
            Departure::of(&gone.departures, Stage::Queue),
            self.captured[index],
            Departure::of(&gone.departures, Stage::Driver),
            self.arrived[index],
        ];
        let known: Vec<Stamp> = order.into_iter().flatten().collect();
        known.windows(2).any(|two| two[0].lo > two[1].hi)
    }
}

fn middle(stamp: Stamp) -> i64 {
    stamp.middle().cast_signed()
}

impl Found {
    const fn none(mechanism: Mechanism) -> Self {
        Self {
            mechanism,
            obstacle: None,
            remarks: Vec::new(),
            sent: 0,
            arrived: 0,
            flagged: 0,
            out_of_order: 0,
            error_ns: None,
            spacing_error_ns: None,
            release_error_ns: None,
            release_to_arrival_ns: None,
            capture_to_driver_ns: None,
            driver_to_arrival_ns: None,
        }
    }
}

#[cfg(test)]
mod tests;
