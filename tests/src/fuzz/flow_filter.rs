//! Filters of flow records.

use packetrig_flow::{FlowHalf, FlowKey, FlowRecord, ForeignFields};
use packetrig_flow_store::columns::flow_columns;
use packetrig_flow_store::filter::FlowFilter;
use packetrig_flow_store::scan::{RowChunk, list_flow_files, scan_records};
use packetrig_flow_store::{ParquetOptions, ParquetSink, RecordExporter, RecordSink};
use std::ops::ControlFlow;
use std::sync::{Arc, LazyLock};

/// Records of many kinds, half of them with fields that have no column.
fn record(n: u8) -> FlowRecord {
    let mut foreign = ForeignFields::default();
    foreign.others.add_field(0, 234, &u32::from(n).to_be_bytes());
    foreign.others.add_field(0, 96, b"DNS query");
    foreign.others.add_field(9, 8232, &[0, n]);
    foreign.others.add_field(0, 320, &f64::from(n).to_be_bytes());
    let half = |packets, first_ns| FlowHalf {
        packets,
        bytes: packets * 100,
        first_ns,
        last_ns: first_ns + u64::from(n) * 1_000_000,
        tcp_flags: u16::from(n) << 1,
        ..FlowHalf::default()
    };
    FlowRecord {
        key: FlowKey {
            source: [n; 16],
            destination: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 18, 0, n],
            source_port: u16::from(n) * 200,
            destination_port: 443,
            protocol: [1, 6, 17, 58][usize::from(n % 4)],
            ..FlowKey::default()
        },
        forward: half(u64::from(n) + 1, 1_795_266_000_000_000_000),
        reverse: half(u64::from(n % 3), 1_795_266_000_000_000_000),
        foreign: n.is_multiple_of(2).then(|| Arc::new(foreign)),
        ..FlowRecord::default()
    }
}

/// The records as they are read from a file.
static CHUNKS: LazyLock<Vec<RowChunk>> = LazyLock::new(|| {
    let read = || {
        let directory = tempfile::tempdir().ok()?;
        let mut sink = ParquetSink::new(ParquetOptions::new(directory.path())).ok()?;
        sink.write_records(&(0..64).map(record).collect::<Vec<_>>(), RecordExporter::default()).ok()?;
        sink.close_sink().1.ok()?;
        let files = list_flow_files(&[directory.path().to_owned()]).ok()?;
        let names: Vec<_> = flow_columns().iter().map(|column| column.name).collect();
        let mut chunks = Vec::new();
        scan_records(&files, &FlowFilter::default(), &names, &mut |chunk, _| {
            chunks.push(chunk.clone());
            ControlFlow::Continue(())
        })
        .ok()?;
        Some(chunks)
    };
    read().unwrap_or_default()
});

fn rows(filter: &FlowFilter) -> Vec<Vec<usize>> {
    CHUNKS.iter().map(|chunk| filter.select_rows(chunk)).collect()
}

/// A text is a filter or is refused at a place. What it keeps are rows that there are, in order, and the same in parentheses and when
/// it is negated twice.
pub fn flow_filter(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let filter = match text.parse::<FlowFilter>() {
        Ok(filter) => filter,
        Err(error) => {
            let said = error.to_string();
            assert!(said.lines().count() == 4 && said.contains('^'), "{said}");
            return;
        }
    };
    assert!(!CHUNKS.is_empty(), "the records cannot be read");
    let kept = rows(&filter);
    for (rows, chunk) in kept.iter().zip(CHUNKS.iter()) {
        assert!(rows.is_sorted_by(|a, b| a < b) && rows.last().is_none_or(|&last| last < chunk.rows));
    }
    // The text may end in a comment, and may be nested as deeply as it can be.
    if let Ok(twice) = format!("not not ({text}\n)").parse::<FlowFilter>() {
        assert_eq!(rows(&twice), kept, "{text}");
    }
    // Each record is kept by a filter or by its negation, unless flags are asked for.
    if let (Ok(others), false) =
        (format!("not ({text}\n)").parse::<FlowFilter>(), text.to_ascii_lowercase().contains("flags"))
    {
        let others: usize = rows(&others).iter().map(Vec::len).sum();
        let all: usize = CHUNKS.iter().map(|chunk| chunk.rows).sum();
        assert_eq!(others + kept.iter().map(Vec::len).sum::<usize>(), all, "{text}");
    }
}
