//! Segments of a node's results: bytes of a stranger, compressed by him.

use packetrig_report::RunId;
use packetrig_stats::result::{CountSample, NodeResult};
use packetrig_store::spool::segment::MAX_PAYLOAD_BYTES;
use packetrig_store::spool::{PartManifest, ResultSegment, SegmentKey, SegmentKind, value};
use packetrig_sys::memory::MeteredAllocator;

/// Memory that the smallest input may take: JSON that is free, as values, and the buffers.
const BASE: u64 = 48 << 20;
/// Memory for each byte of input: [`value::MAX_COMPRESSION_RATIO`] bytes of JSON, each of which becomes at most this many of values.
const PER_BYTE: u64 = value::MAX_COMPRESSION_RATIO * 40;

/// Any bytes are a segment or refused; any payload is a value or refused. Either takes memory in proportion to its bytes.
pub fn segment(data: &[u8]) {
    let peak = MeteredAllocator::measure_peak(|| read(data));
    let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
    let limit = BASE + PER_BYTE * length;
    if let Some(peak) = peak {
        assert!(peak <= limit, "{length} bytes took {peak} bytes of memory, more than {limit}");
    }
}

fn read(data: &[u8]) {
    let key = SegmentKey { run: RunId("fuzz".to_owned()), attempt: 1, number: 7 };
    // As it came: nobody guesses a checksum.
    assert!(ResultSegment::from_bytes(&key, data).is_err() || data.len() >= 64);
    let (name, payload) = data.split_at(data.len().min(usize::from(data.first().copied().unwrap_or(0))));
    let kinds = [
        SegmentKind::Interval,
        SegmentKind::Result,
        SegmentKind::Capture,
        SegmentKind::End,
        SegmentKind::Lost,
    ];
    let made = ResultSegment {
        kind: kinds[name.len() % kinds.len()],
        name: String::from_utf8_lossy(name).chars().filter(char::is_ascii).collect(),
        offset: u64::from(data.last().copied().unwrap_or(0)) << 56,
        last: data.len().is_multiple_of(2),
        payload: payload[..payload.len().min(MAX_PAYLOAD_BYTES)].to_vec(),
    };
    if let Ok(bytes) = made.to_bytes(&key) {
        assert_eq!(
            ResultSegment::from_bytes(&key, &bytes).as_ref(),
            Ok(&made),
            "one that was made is read as it was"
        );
    }
    drop(value::unpack_value::<CountSample>(data));
    if let Ok(result) = value::unpack_value::<NodeResult>(data) {
        let again = value::pack_value(&result).expect("what was read can be written");
        assert_eq!(value::unpack_value::<NodeResult>(&again).expect("what was written can be read"), result);
    }
    drop(serde_json::from_slice::<PartManifest>(data));
}
