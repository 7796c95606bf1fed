//! Files of flow records, of any origin.

use super::cost;
use packetrig_flow_store::filter::FlowFilter;
use packetrig_flow_store::scan::{TimeSpan, list_flow_files, scan_records};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// One column of each kind that files have.
const WANTED: [&str; 5] =
    ["sourceIPv6Address", "octetDeltaCount", "flowStartNanoseconds", "protocolIdentifier", "otherFields"];

/// Rows of the chunks and rows that the filter selects; `None` if the file is refused.
fn count_rows(files: &[PathBuf], filter: &FlowFilter) -> Option<(usize, usize)> {
    let (mut all, mut selected) = (0, 0);
    let scanned = scan_records(files, filter, &WANTED, &mut |chunk, rows| {
        assert!(rows.is_sorted_by(|a, b| a < b) && rows.last().is_none_or(|&last| last < chunk.rows));
        all += chunk.rows;
        selected += rows.len();
        // A file may promise more rows than any reader can count.
        if all < 1 << 20 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    scanned.ok().map(|()| (all, selected))
}

fn judge_file(path: &Path) {
    let Ok(files) = list_flow_files(&[path.to_owned()]) else { return };
    let Some((rows, all)) = count_rows(&files, &FlowFilter::default()) else { return };
    assert_eq!(rows, all, "a filter that selects everything left rows out");
    let large: FlowFilter = "bytes > 100 and not src net 198.18.0.0/15".parse().unwrap_or_default();
    let early = FlowFilter::started_in(TimeSpan { from_ns: None, to_ns: Some(1_795_266_000_500_000_000) });
    for filter in [large, early] {
        if let Some((_, selected)) = count_rows(&files, &filter) {
            assert!(selected <= rows, "{selected} of {rows} rows");
        }
    }
}

/// A file is read or refused with a reason, at a cost in proportion to its length.
pub fn flow_file(data: &[u8]) {
    let Ok(directory) = tempfile::tempdir() else { return };
    let path = directory.path().join("records.parquet");
    if std::fs::write(&path, data).is_err() {
        return;
    }
    cost::assert_linear(data.len(), || judge_file(&path));
}
