//! Measures how exactly each release mechanism keeps departure times, and whether the stamps of a frame are in
//! the order of its path.
//!
//! Frames with an experimental EtherType are sent from one interface of this machine to another. The kernel
//! stamps each frame when it arrives there. A capture on the sending interface stamps it, too. Interfaces that
//! look like part of a real network are refused, unless the user has confirmed them.
//!
//! Invariant: an error is the difference of two times on this machine's clock, for example of the planned
//! departure and the arrival.

use crate::circumstances;
use crate::release::{self, DepartedFrame, DueFrame, ReleaseDispatcher, ReleaseOptions};
use crate::{Error, now, small_count};
use packetrig_guard::lab;
use packetrig_plan::PortLocation;
use packetrig_probe::choice::{CalibrationResult, ReleaseExactness};
use packetrig_probe::{
    DepartureStage, DepartureStamp, ErrorSpread, PlannedProbe, ProbeBudget, ProbeFlag, ProbeStamp,
    ReleaseMechanism, TargetLimits,
};
use packetrig_sys::clock::{self, RealtimeOffset};
use packetrig_sys::kernel;
use packetrig_sys::link::{Link, NamespaceLinks};
use packetrig_sys::netns::NetNs;
use packetrig_sys::packet::{RxOptions, RxRing};
use packetrig_units::{MonoTime, Nanos};
use serde::Serialize;

/// Local experimental EtherType 1 (IEEE Std 802).
const CALIBRATION_ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const CALIBRATION_MAGIC: [u8; 4] = *b"prPc";
const NUMBER_OFFSET: usize = 18;
const CALIBRATION_FRAME_BYTES: usize = 124;
/// Number of waits without a new frame after which the missing frames count as lost.
const MAX_EMPTY_WAITS: usize = 20;

#[derive(Clone, Copy, Debug)]
pub struct CalibrationOptions {
    /// Number of probes for each mechanism, rounded up to whole trains.
    pub count: u32,
    /// Time between two probes of a train.
    pub gap: Nanos,
    /// Number of probes in a train.
    pub train: u32,
}

/// The calibration of one mechanism.
#[derive(Clone, Debug, Serialize)]
pub struct CalibratedMechanism {
    pub mechanism: ReleaseMechanism,
    /// Reason why the mechanism could not be used; the other fields are empty then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
    /// Requested options that could not be applied, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// Probes that the kernel accepted.
    pub sent: u64,
    pub arrived: u64,
    /// Probes that were flagged late or early.
    pub flagged: u64,
    /// Probes with stamps in the wrong order; more than a few mean that the set-up is wrong.
    pub out_of_order: u64,
    /// Time from the planned departure to the arrival.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_ns: Option<ErrorSpread>,
    /// Deviation of the distance between two probes of a train at arrival from the planned distance, without sign.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spacing_error_ns: Option<ErrorSpread>,
    /// Time from the planned departure to the release, as the mechanism reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_error_ns: Option<ErrorSpread>,
    /// Time from the release to the arrival: the error of a release stamp that is used as a departure stamp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_to_arrival_ns: Option<ErrorSpread>,
    /// Time from the stamp of the capture on the sending interface to the driver's stamp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture_to_driver_ns: Option<ErrorSpread>,
    /// Time from the driver's stamp to the arrival.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_to_arrival_ns: Option<ErrorSpread>,
}

/// The probes of a mechanism, with the times at which they were seen.
struct CalibrationProbes {
    planned: Vec<MonoTime>,
    trains: Vec<u32>,
    gone: Vec<DepartedFrame>,
    captured: Vec<Option<ProbeStamp>>,
    arrived: Vec<Option<ProbeStamp>>,
}

/// Receive rings on the sending (`tap`) and the receiving interface (`far`), and the frame to send, without its number.
struct CalibrationRings {
    tap: RxRing,
    far: RxRing,
    frame: Vec<u8>,
}

/// Returns the part of a calibration that is stored, for later choices of a mechanism: kernel, driver, and the
/// errors of the mechanisms that worked.
pub fn build_stored_calibration(near: &PortLocation, found: &[CalibratedMechanism]) -> CalibrationResult {
    let mechanisms = found
        .iter()
        .filter_map(|found| Some(ReleaseExactness::from_spread(found.mechanism, found.error_ns?)))
        .collect();
    let driver = circumstances::find_driver_name(near).unwrap_or_default();
    CalibrationResult { kernel: kernel::kernel_release_name(), driver, mechanisms }
}

/// Calibrates the given mechanisms with frames from `near` to `far`. Interfaces that look like part of a real
/// network are refused unless they are in `confirmed`.
pub fn calibrate_mechanisms(
    (near, far): (&PortLocation, &PortLocation),
    confirmed: &[PortLocation],
    mechanisms: &[ReleaseMechanism],
    extent: CalibrationOptions,
    stop: &dyn Fn() -> bool,
) -> Result<Vec<CalibratedMechanism>, Error> {
    let mut rings = CalibrationRings::open_at(near, far, confirmed)?;
    let mut all = Vec::new();
    for mechanism in mechanisms.iter().take_while(|_| !stop()) {
        all.push(match release::open_release(near, *mechanism, ReleaseOptions::default_for(*mechanism)) {
            Ok(release) => {
                // The frames reach no target, so no limits of one apply.
                let dispatcher = ReleaseDispatcher::new(release, ProbeBudget::new(TargetLimits::NONE));
                rings.calibrate_mechanism(*mechanism, dispatcher, extent, stop)?
            }
            // A mechanism that does not work here is a result. Other errors end the whole calibration.
            Err(error @ (Error::Mechanism { .. } | Error::Kernel(_))) => CalibratedMechanism {
                obstacle: Some(error.to_string()),
                ..CalibratedMechanism::empty_for(*mechanism)
            },
            Err(error) => return Err(error),
        });
    }
    Ok(all)
}

impl CalibrationRings {
    fn open_at(near: &PortLocation, far: &PortLocation, confirmed: &[PortLocation]) -> Result<Self, Error> {
        let near_end = LabInterface::open_permitted(near, confirmed)?;
        let far_end = LabInterface::open_permitted(far, confirmed)?;
        let options = RxOptions { blocks: 256, retire_ms: 1, ..RxOptions::default() };
        let outgoing = RxOptions { outgoing: true, ..options };
        let mut frame = vec![0; CALIBRATION_FRAME_BYTES];
        // If the receiving interface has no hardware address, a broadcast frame reaches it as well.
        frame[..6].copy_from_slice(&far_end.link.mac.unwrap_or([0xff; 6]));
        frame[6..12].copy_from_slice(&near_end.link.mac.unwrap_or([2, 0, 0, 0, 0, 1]));
        frame[12..14].copy_from_slice(&CALIBRATION_ETHERTYPE);
        frame[14..NUMBER_OFFSET].copy_from_slice(&CALIBRATION_MAGIC);
        Ok(Self {
            tap: RxRing::open_on_interface(
                &near_end.netns,
                near_end.link.index,
                &near.to_string(),
                outgoing,
            )?,
            far: RxRing::open_on_interface(&far_end.netns, far_end.link.index, &far.to_string(), options)?,
            frame,
        })
    }

    fn calibrate_mechanism(
        &mut self,
        mechanism: ReleaseMechanism,
        mut dispatcher: ReleaseDispatcher,
        extent: CalibrationOptions,
        stop: &dyn Fn() -> bool,
    ) -> Result<CalibratedMechanism, Error> {
        // A transmit ring sends a train back to back, so planned gaps would only look like spacing errors.
        let gap = if mechanism == ReleaseMechanism::Ring { Nanos::ZERO } else { extent.gap };
        let extent = CalibrationOptions { gap, ..extent };
        let trains = extent.count.div_ceil(extent.train.max(1)).max(1);
        // A train is sent as soon as the one before has arrived; `send_train` sets its departure times.
        let probes: Vec<PlannedProbe> =
            (0..trains).flat_map(|train| plan_train_probes(train, extent)).collect();
        let mut seen = CalibrationProbes::new(probes.len());
        self.warm_up(&mut dispatcher)?;
        for train in probes.chunk_by(|one, other| one.train == other.train).take_while(|_| !stop()) {
            self.send_train(train, &mut dispatcher, &mut seen)?;
        }
        Ok(seen.summarize_calibration(mechanism, dispatcher.remarks().to_vec()))
    }

    /// Sends one frame that does not count, because the kernel enables arrival stamps with a delay and
    /// the caches are cold.
    fn warm_up(&mut self, dispatcher: &mut ReleaseDispatcher) -> Result<(), Error> {
        let at = now() + dispatcher.lead_time();
        let frame = self.frame.clone();
        dispatcher.send_train(&[DueFrame { at, frame: &frame }], &mut Vec::new())?;
        self.receive_frames(&mut CalibrationProbes::new(0), 1);
        Ok(())
    }

    fn send_train(
        &mut self,
        train: &[PlannedProbe],
        dispatcher: &mut ReleaseDispatcher,
        seen: &mut CalibrationProbes,
    ) -> Result<(), Error> {
        // A ring sends its train before the last departure time, but the budget needs times in ascending
        // order.
        let last = seen.planned.last().copied().unwrap_or(MonoTime::from_nanos(0));
        let start = now().max(last) + dispatcher.lead_time();
        let frames: Vec<Vec<u8>> =
            (seen.planned.len()..).take(train.len()).map(|n| self.numbered_frame(n)).collect();
        let first = train[0].at.as_u64();
        let dues: Vec<DueFrame<'_>> = train
            .iter()
            .zip(&frames)
            .map(|(probe, frame)| DueFrame { at: start + Nanos::new(probe.at.as_u64() - first), frame })
            .collect();
        dispatcher.send_train(&dues, &mut seen.gone)?;
        seen.planned.extend(dues.iter().map(|due| due.at));
        seen.trains.extend(train.iter().map(|probe| probe.train));
        self.receive_frames(seen, train.len());
        Ok(())
    }

    fn numbered_frame(&self, number: usize) -> Vec<u8> {
        let mut frame = self.frame.clone();
        frame[NUMBER_OFFSET..NUMBER_OFFSET + 4].copy_from_slice(&small_count(number).to_be_bytes());
        frame
    }

    /// Reads both rings until `count` frames have arrived, or until no more arrive.
    fn receive_frames(&mut self, seen: &mut CalibrationProbes, count: usize) {
        // One clock comparison serves the whole train: NTP slews both clocks alike, and only a step of the
        // real-time clock would change their offset.
        let offset = clock::measure_realtime_offset();
        let mut arrived = 0;
        let mut in_vain = 0;
        while arrived < count && in_vain < MAX_EMPTY_WAITS {
            // If waiting fails, the loop ends after some attempts, and the frames count as missing.
            drop(self.far.wait_for_frames(2_000_000));
            let before = arrived;
            self.far.receive_frames(usize::MAX, &mut |frame| {
                arrived += usize::from(record_stamp_by_number(
                    &mut seen.arrived,
                    frame.bytes,
                    frame.realtime_ns,
                    offset,
                ));
            });
            in_vain = if arrived == before { in_vain + 1 } else { 0 };
        }
        // The tap is read without waiting: frames of a block that the kernel has not closed yet are read after the next train.
        self.tap.receive_frames(usize::MAX, &mut |frame| {
            record_stamp_by_number(&mut seen.captured, frame.bytes, frame.realtime_ns, offset);
        });
    }
}

/// Returns the planned probes of a train, with departure times counted from its first probe.
fn plan_train_probes(train: u32, extent: CalibrationOptions) -> impl Iterator<Item = PlannedProbe> {
    let kind = packetrig_probe::ProbeKind::Train;
    (0..extent.train).map(move |nth| PlannedProbe {
        number: 0,
        train,
        kind,
        at: Nanos::new(extent.gap.as_u64().saturating_mul(nth.into())),
        length: 0,
    })
}

/// Records when a calibration frame was seen. Returns `false` if the frame is no calibration frame.
fn record_stamp_by_number(
    seen: &mut [Option<ProbeStamp>],
    frame: &[u8],
    realtime_ns: u64,
    offset: RealtimeOffset,
) -> bool {
    if frame.len() != CALIBRATION_FRAME_BYTES
        || frame[12..14] != CALIBRATION_ETHERTYPE
        || frame[14..NUMBER_OFFSET] != CALIBRATION_MAGIC
    {
        return false;
    }
    let number = frame[NUMBER_OFFSET..].first_chunk().map_or(u32::MAX, |bytes| u32::from_be_bytes(*bytes));
    let at = MonoTime::from_nanos(offset.to_monotonic(realtime_ns));
    if let Some(place) = seen.get_mut(number as usize) {
        *place = Some(ProbeStamp::with_bound(packetrig_probe::StampSource::Kernel, at, offset.bound_ns));
    }
    true
}

/// An interface through which no real network can be reached, or which the user confirmed.
struct LabInterface {
    netns: NetNs,
    link: Link,
}

impl LabInterface {
    fn open_permitted(location: &PortLocation, confirmed: &[PortLocation]) -> Result<Self, Error> {
        let netns = NetNs::open_named_or_current_namespace(location.namespace.as_deref())?;
        let link = NamespaceLinks::open_in(&netns)?.find_link_by_name(&location.interface)?;
        lab::permit_port(&netns, link.index, &location.to_string(), confirmed.contains(location))?;
        Ok(Self { netns, link })
    }
}

impl CalibrationProbes {
    fn new(count: usize) -> Self {
        Self {
            planned: Vec::with_capacity(count),
            trains: Vec::with_capacity(count),
            gone: Vec::with_capacity(count),
            captured: vec![None; count],
            arrived: vec![None; count],
        }
    }

    fn summarize_calibration(
        &self,
        mechanism: ReleaseMechanism,
        remarks: Vec<String>,
    ) -> CalibratedMechanism {
        let probes = 0..self.planned.len();
        CalibratedMechanism {
            remarks,
            sent: self.gone.iter().filter(|gone| gone.handed_over.is_some()).count() as u64,
            arrived: self.arrived.iter().flatten().count() as u64,
            flagged: self.gone.iter().filter(|gone| is_late_or_early(gone)).count() as u64,
            out_of_order: probes.filter(|index| self.is_out_of_order(*index)).count() as u64,
            error_ns: self.compute_spread(|index| self.departure_error(self.arrived[index], index)),
            spacing_error_ns: self.compute_spread(|index| self.spacing_error(index)),
            release_error_ns: self
                .compute_spread(|index| self.departure_error(self.gone[index].released, index)),
            release_to_arrival_ns: self
                .compute_spread(|index| stamp_difference(self.arrived[index], self.gone[index].released)),
            capture_to_driver_ns: self
                .compute_spread(|index| stamp_difference(self.driver_stamp(index), self.captured[index])),
            driver_to_arrival_ns: self
                .compute_spread(|index| stamp_difference(self.arrived[index], self.driver_stamp(index))),
            ..CalibratedMechanism::empty_for(mechanism)
        }
    }

    /// Computes the spread of a value over all probes that have the necessary stamps, so spreads may have
    /// different numbers of samples.
    fn compute_spread(&self, value: impl FnMut(usize) -> Option<i64>) -> Option<ErrorSpread> {
        ErrorSpread::from_values((0..self.planned.len()).filter_map(value).collect())
    }

    /// Deviation of a stamp from the planned departure time of a probe, in nanoseconds.
    fn departure_error(&self, stamp: Option<ProbeStamp>, index: usize) -> Option<i64> {
        Some(stamp_middle(stamp?) - self.planned[index].as_nanos().cast_signed())
    }

    fn driver_stamp(&self, index: usize) -> Option<ProbeStamp> {
        DepartureStamp::stamp_of_stage(&self.gone[index].departures, DepartureStage::Driver)
    }

    /// Returns the deviation of the distance between a probe and the one before it in its train, in nanoseconds
    /// without sign. `None` for the first probe of a train, or if one of the two did not arrive.
    fn spacing_error(&self, index: usize) -> Option<i64> {
        let before = index.checked_sub(1).filter(|before| self.trains[*before] == self.trains[index])?;
        let error = self.departure_error(self.arrived[index], index)?
            - self.departure_error(self.arrived[before], before)?;
        Some(error.saturating_abs())
    }

    /// Returns whether the stamps contradict the path of a frame: handed over, queued, captured, given
    /// to the driver, arrived.
    fn is_out_of_order(&self, index: usize) -> bool {
        // Stamps are intervals and may overlap. Only a stage that surely ended before the earlier stage began is a contradiction.
        let gone = &self.gone[index];
        let order = [
            gone.handed_over,
            DepartureStamp::stamp_of_stage(&gone.departures, DepartureStage::Queue),
            self.captured[index],
            DepartureStamp::stamp_of_stage(&gone.departures, DepartureStage::Driver),
            self.arrived[index],
        ];
        let known: Vec<ProbeStamp> = order.into_iter().flatten().collect();
        known.windows(2).any(|two| two[0].lo > two[1].hi)
    }
}

fn stamp_middle(stamp: ProbeStamp) -> i64 {
    stamp.middle().cast_signed()
}

fn stamp_difference(to: Option<ProbeStamp>, from: Option<ProbeStamp>) -> Option<i64> {
    Some(stamp_middle(to?) - stamp_middle(from?))
}

fn is_late_or_early(gone: &DepartedFrame) -> bool {
    gone.flags.iter().any(|flag| matches!(flag, ProbeFlag::Late | ProbeFlag::Early))
}

impl CalibratedMechanism {
    const fn empty_for(mechanism: ReleaseMechanism) -> Self {
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
