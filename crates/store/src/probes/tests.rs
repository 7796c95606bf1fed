use super::*;
use ::parquet::file::reader::FileReader;
use ::parquet::file::serialized_reader::SerializedFileReader;
use ::parquet::record::RowAccessor;
use packetrig_probe::header::{ClockOffset, FORMAT};
use packetrig_probe::{DepartureStamp, PlannedProbe, ProbeFlag, ProbeKind, ReleaseMechanism, StampSource};
use packetrig_units::{MonoTime, Nanos};

fn header() -> ProbeHeader {
    ProbeHeader {
        format: FORMAT.into(),
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

fn records() -> Vec<ProbeRecord> {
    let of = |number| {
        let probe = PlannedProbe { number, train: 3, kind: ProbeKind::Pair, at: Nanos::ZERO, length: 61 };
        ProbeRecord::planned(probe, MonoTime::from_nanos(5_000 + u64::from(number)))
    };
    let (mut first, mut second) = (of(0), of(1));
    let stamp =
        ProbeStamp::between(StampSource::Kernel, MonoTime::from_nanos(5_100), MonoTime::from_nanos(5_120));
    first.released = Some(stamp);
    first.departures = vec![DepartureStamp { stage: DepartureStage::Driver, stamp }];
    first.flags = vec![ProbeFlag::First, ProbeFlag::Stolen];
    second.flags = vec![ProbeFlag::Unsent];
    vec![first, second]
}

#[test]
fn parquet_reads_back_with_its_header() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("b");
    std::fs::write(&path, parquet(&header(), &records()).unwrap()).unwrap();
    let reader = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let metadata = reader.metadata().file_metadata().key_value_metadata().unwrap();
    let kept = metadata.iter().find(|pair| pair.key == HEADER_KEY).unwrap();
    let kept: ProbeHeader = serde_json::from_str(kept.value.as_ref().unwrap()).unwrap();
    assert_eq!(kept, header());
    let schema = reader.metadata().file_metadata().schema_descr_ptr();
    let column = |name: &str| schema.columns().iter().position(|c| c.name() == name).unwrap();
    let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].get_ulong(column("driver_lo_ns")).unwrap(), 5_100);
    assert_eq!(rows[0].get_ulong(column("released_hi_ns")).unwrap(), 5_120);
    assert_eq!(rows[0].get_string(column("flags")).unwrap(), "first,stolen");
    assert_eq!(rows[1].get_string(column("kind")).unwrap(), "pair");
    assert!(rows[1].get_ulong(column("driver_lo_ns")).is_err(), "what is not known is absent");
}
