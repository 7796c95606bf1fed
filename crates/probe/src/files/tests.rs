use super::*;
use crate::header::{ClockOffset, FORMAT, ProbeHeader};
use crate::{
    DepartureStage, DepartureStamp, PlannedProbe, ProbeFlag, ProbeKind, ProbeRecord, ProbeStamp,
    ReleaseMechanism, StampSource,
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

#[test]
fn json_lines_read_back() {
    let text = String::from_utf8(json_lines(&header(), &records()).unwrap()).unwrap();
    let mut lines = text.lines();
    let first: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!(serde_json::from_value::<ProbeHeader>(first["header"].clone()).unwrap(), header());
    let read: Vec<ProbeRecord> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read, records());
}

#[test]
fn pcapng_has_frames_at_their_departures_and_records_beside_them() {
    let bytes = pcapng(&header(), &records(), &mut |record, out| {
        out.clear();
        out.resize(61, u8::try_from(record.number).unwrap());
    })
    .unwrap();
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
fn the_extension_names_the_form() {
    assert_eq!(ProbeForm::of(Path::new("a.b.jsonl")), Some(ProbeForm::JsonLines));
    assert_eq!(ProbeForm::of(Path::new("a.parquet")), Some(ProbeForm::Parquet));
    assert_eq!(ProbeForm::of(Path::new("a.pcapng")), Some(ProbeForm::Pcapng));
    assert_eq!(ProbeForm::of(Path::new("probes.txt")), None);
}
