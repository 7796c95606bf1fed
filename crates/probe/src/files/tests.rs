use super::*;
use crate::ProbeRecord;
use crate::fixture::{sample_header, sample_records};
use crate::header::ProbeHeader;

#[test]
fn json_lines_read_back() {
    let text = String::from_utf8(encode_json_lines(&sample_header(), &sample_records()).unwrap()).unwrap();
    let mut lines = text.lines();
    let first: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!(serde_json::from_value::<ProbeHeader>(first["header"].clone()).unwrap(), sample_header());
    let read: Vec<ProbeRecord> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read, sample_records());
}

#[test]
fn pcapng_holds_departed_frames_with_record_comments() {
    let bytes = encode_pcapng(&sample_header(), &sample_records(), &mut |record, out| {
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
    let [first, second] = sample_records().try_into().unwrap();
    assert_eq!(frames, [(1_005_110, 61, 0, first), (1_005_001, 61, 1, second)]);
}

#[test]
fn the_extension_names_the_form() {
    assert_eq!(ProbeFileFormat::from_path(Path::new("a.b.jsonl")), Some(ProbeFileFormat::JsonLines));
    assert_eq!(ProbeFileFormat::from_path(Path::new("a.parquet")), Some(ProbeFileFormat::Parquet));
    assert_eq!(ProbeFileFormat::from_path(Path::new("a.pcapng")), Some(ProbeFileFormat::Pcapng));
    assert_eq!(ProbeFileFormat::from_path(Path::new("probes.txt")), None);
}
