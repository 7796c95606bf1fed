//! Segments of nodes are foreign input: memory for reading one is in proportion to its bytes, however it is made, and work for
//! storing many is in proportion to their number.

use packetrig_fleet::fabric::SegmentId;
use packetrig_report::{NodeName, RunId};
use packetrig_stats::content::ContentCounts;
use packetrig_stats::counts::StreamTxCounts;
use packetrig_stats::latency::Latency;
use packetrig_stats::result::{CountSample, NodeResult, SendResult};
use packetrig_stats::series::RateSeries;
use packetrig_store::spool::{ResultSegment, SegmentKey, SegmentKind, value};
use packetrig_store::{ReportSize, RunCatalogue};
use packetrig_sys::memory::MeteredAllocator;
use packetrig_tests::fuzz;
use packetrig_units::Nanos;
use std::path::Path;

#[global_allocator]
static ALLOCATOR: MeteredAllocator = MeteredAllocator;

fn peak(bytes: &[u8]) -> u64 {
    let peak = MeteredAllocator::measure_peak(|| drop(value::unpack_value::<NodeResult>(bytes)));
    peak.expect("this program has the allocator that measures")
}

/// The result of a node that claims to have sent so many streams, each with the shortest distributions there are.
fn result(streams: usize) -> NodeResult {
    let mut late = Latency::with_digits(3);
    late.record_time(Nanos::from_secs(99));
    let sent = SendResult {
        stream: 0,
        counts: StreamTxCounts::default(),
        planned: 0,
        send_error: late.clone(),
        stamp_bound: late,
        series: RateSeries::default(),
        untagged_contents: ContentCounts::default(),
    };
    NodeResult { send: vec![sent; streams], ..NodeResult::default() }
}

#[test]
fn segment_corpus_stays_within_cost_bounds() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/segment");
    let seeds: Vec<_> = std::fs::read_dir(&corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(seeds.len() >= 5, "the corpus is gone");
    for seed in &seeds {
        let bytes = std::fs::read(seed).unwrap();
        fuzz::segment(&bytes);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] = damaged[at].wrapping_mul(31).wrapping_add(7);
            fuzz::segment(&damaged);
        }
    }
    for n in 0..300 {
        fuzz::segment(&fuzz::seeded(1, n));
    }
}

#[test]
fn packed_distribution_memory_grows_linearly() {
    let few = value::pack_value(&result(1000)).unwrap();
    let many = value::pack_value(&result(4000)).unwrap();
    fuzz::segment(&few);
    fuzz::segment(&many);
    let (of_few, of_many) = (peak(&few), peak(&many));
    assert!(of_few < 8 << 20, "1000 streams with 2000 distributions took {of_few} bytes");
    assert!(of_many < 5 * of_few, "{of_few} {of_many}");
    assert_eq!(value::unpack_value::<NodeResult>(&many).unwrap().send.len(), 4000);
}

#[test]
fn decompression_bomb_uses_little_memory() {
    let text = serde_json::to_string(&result(1)).unwrap();
    // A gigabyte of spaces, and a gigabyte of rows.
    let row = serde_json::to_string(&result(1).send[0]).unwrap() + ",";
    let (before, behind) = text.split_at(text.find("\"send\":[").unwrap() + 8);
    let rows = [before, &row.repeat((64 << 20) / row.len()), behind].concat();
    for (what, text) in [("spaces", " ".repeat(64 << 20) + &text), ("rows", rows)] {
        let bytes = packed(text.as_bytes());
        assert!(bytes.len() < 64 << 10, "{what}: {} bytes", bytes.len());
        let taken = peak(&bytes);
        assert!(taken < 40 << 20, "{what}: {} bytes took {taken}", bytes.len());
        value::unpack_value::<NodeResult>(&bytes).unwrap_err();
        value::unpack_value::<CountSample>(&bytes).unwrap_err();
        fuzz::segment(&bytes);
    }
}

/// Processor time for storing so many segments of a node one by one, as the controller does, until its part is whole.
fn cost_of_storing(segments: u64) -> u64 {
    // In memory: what the disk takes for each is the same at any number.
    let place = tempfile::tempdir_in("/dev/shm").expect("memory for files");
    let catalogue = RunCatalogue::open_or_create(place.path()).expect("there is room");
    let run = RunId("r".to_owned());
    let draft = catalogue.begin_run(run.clone(), ReportSize::default()).expect("there is room");
    let node = NodeName("a".to_owned());
    let store = |number: u64| {
        let kind = if number + 1 == segments { SegmentKind::End } else { SegmentKind::Interval };
        let segment =
            ResultSegment { kind, name: String::new(), offset: 0, last: true, payload: vec![b'x'; 64] };
        let bytes =
            segment.to_bytes(&SegmentKey { run: run.clone(), attempt: 1, number }).expect("there is room");
        let id = SegmentId { run: run.clone(), attempt: 1, node: node.clone(), number };
        draft.store_segment(&catalogue, &id, &bytes, 1).expect("there is room");
        catalogue.watermark(&run, 1, &node).expect("there is room");
        draft.assemble_part(&catalogue, 1, &node).expect("there is room")
    };
    let cost = fuzz::cost::processor_ns(|| {
        let whole = (0..segments).filter_map(store).count();
        assert_eq!(whole, 1, "the part is put together once, at its End");
    });
    assert_eq!(catalogue.watermark(&run, 1, &node).expect("there is room"), segments);
    cost
}

#[test]
fn segment_storage_cost_grows_linearly() {
    const FEW: u64 = 400;
    // An interrupt is charged to the thread that it stops, so the best of three counts.
    let ratios = [(); 3].map(|()| cost_of_storing(4 * FEW) as f64 / cost_of_storing(FEW) as f64);
    assert!(ratios.iter().any(|ratio| *ratio < 6.0), "{ratios:?}");
}

/// As a hostile node packs: without the padding by which honest ones keep the ratio.
fn packed(text: &[u8]) -> Vec<u8> {
    zstd::encode_all(text, 3).expect("memory takes what is written")
}
