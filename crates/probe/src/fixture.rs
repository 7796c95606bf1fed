//! A header and records for tests of file formats, here and in other crates.

use crate::header::{ClockOffset, PROBE_RECORD_FORMAT, ProbeHeader};
use crate::{
    DepartureStage, DepartureStamp, PlannedProbe, ProbeFlag, ProbeKind, ProbeRecord, ProbeStamp,
    ReleaseMechanism, StampSource,
};
use packetrig_units::{MonoTime, Nanos};

/// A header for a series of two probes.
pub fn sample_header() -> ProbeHeader {
    ProbeHeader {
        format: PROBE_RECORD_FORMAT.into(),
        argv: vec!["packetrig".into()],
        seed: 7,
        schedule: "0".into(),
        probes: 2,
        targets: vec!["192.0.2.1".into()],
        about: None,
        interface: "eth7".into(),
        mechanism: ReleaseMechanism::Gate,
        why: "asked for".into(),
        remarks: vec![],
        ahead_ns: 1,
        slack_ns: 1,
        priority: Some(50),
        cpu: None,
        tolerance_ns: 1,
        kernel: "6.18".into(),
        driver: "veth".into(),
        qdiscs: vec!["noqueue".into()],
        offloads: vec![],
        real_time_share_us: None,
        clock_before: ClockOffset { offset_ns: 1_000_000, bound_ns: 5 },
        clock_after: ClockOffset { offset_ns: 1_000_000, bound_ns: 5 },
    }
}

/// One probe that left and was stamped, and one that was not sent.
pub fn sample_records() -> Vec<ProbeRecord> {
    let of = |number| {
        let probe = PlannedProbe { number, train: 3, kind: ProbeKind::Pair, at: Nanos::ZERO, length: 61 };
        ProbeRecord::from_planned(probe, MonoTime::from_nanos(5_000 + u64::from(number)))
    };
    let (mut first, mut second) = (of(0), of(1));
    let stamp = ProbeStamp::between_readings(
        StampSource::Kernel,
        MonoTime::from_nanos(5_100),
        MonoTime::from_nanos(5_120),
    );
    first.released = Some(stamp);
    first.departures = vec![DepartureStamp { stage: DepartureStage::Driver, stamp }];
    first.flags = vec![ProbeFlag::First, ProbeFlag::Stolen];
    second.flags = vec![ProbeFlag::Unsent];
    vec![first, second]
}
