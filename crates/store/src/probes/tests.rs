use super::*;
use ::parquet::file::reader::FileReader;
use ::parquet::file::serialized_reader::SerializedFileReader;
use ::parquet::record::RowAccessor;
use packetrig_probe::header::{ClockOffset, FORMAT};
use packetrig_probe::{
    DepartureStage, DepartureStamp, PlannedProbe, ProbeFlag, ProbeKind, ProbeStamp, ReleaseMechanism,
    StampSource,
};
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

fn written(name: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    write(&path, &header(), &records(), &mut |record, out| {
        out.clear();
        out.resize(61, u8::try_from(record.number).unwrap());
    })
    .unwrap();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left over");
    std::fs::read(path).unwrap()
}

#[test]
fn json_lines_read_back() {
    let text = String::from_utf8(written("a.jsonl")).unwrap();
    let mut lines = text.lines();
    let first: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!(serde_json::from_value::<ProbeHeader>(first["header"].clone()).unwrap(), header());
    let read: Vec<ProbeRecord> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read, records());
}

#[test]
fn parquet_reads_back_with_its_header() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("b");
    std::fs::write(&path, written("a.parquet")).unwrap();
    let reader = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let metadata = reader.metadata().file_metadata().key_value_metadata().unwrap();
    let kept = metadata.iter().find(|pair| pair.key == parquet::HEADER_KEY).unwrap();
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

#[test]
fn pcapng_has_frames_at_their_departures_and_records_beside_them() {
    let bytes = written("a.pcapng");
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut at, mut frames) = (0, Vec::new());
    while at < bytes.len() {
        let total = word(at + 4) as usize;
        assert_eq!(word(at + total - 4) as usize, total);
        if word(at) == 6 {
            let time = u64::from(word(at + 12)) << 32 | u64::from(word(at + 16));
            let comment = at + 28 + 64;
            let length = (word(comment) >> 16) as usize;
            assert_eq!(word(comment) & 0xffff, 1);
            let record: ProbeRecord =
                serde_json::from_slice(&bytes[comment + 4..comment + 4 + length]).unwrap();
            frames.push((time, word(at + 20), bytes[at + 28], record));
        }
        at += total;
    }
    let [first, second] = records().try_into().unwrap();
    assert_eq!(frames, [(1_005_110, 61, 0, first), (1_005_001, 61, 1, second)]);
}

#[test]
fn a_name_that_says_no_form_is_refused() {
    assert!(matches!(ProbeForm::of(Path::new("probes.txt")), Err(Error::Form(_))));
}
