//! Sums of records: in total, by protocol, and over time.

use super::Error;
use super::filter::FlowFilter;
use super::scan::{RowChunk, ScanTerms, count_records, read_flow_start_range};
use super::top::GroupTotals;
use packetrig_units::{Nanos, clamp_to_u8};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Maximum number of buckets of a timeline; records of further buckets are left out of it, and counted.
pub const MAX_BUCKETS: usize = 10_000;
/// Number of buckets to aim at if no length is given.
const DEFAULT_BUCKET_COUNT: u64 = 24;
const SECOND: u64 = 1_000_000_000;
/// Usual lengths of a bucket, in seconds.
const BUCKET_LENGTHS_S: [u64; 14] =
    [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 24 * 3600, 7 * 24 * 3600];

/// Sums of records, over both directions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FlowTotals {
    pub records: u64,
    /// Flows (each counted with its first record), packets, and bytes of IP packets.
    #[serde(flatten)]
    pub sum: GroupTotals,
    /// Bytes of whole frames, without FCS.
    pub frame_bytes: u64,
    /// Records of flows that may have lost packets before the meter.
    pub records_with_loss: u64,
    /// Records with too few packets and bytes, because packets were merged before the meter and counted as one.
    pub records_with_merges: u64,
    /// Records of sampled packets. All sums count the packets that were metered: they are not multiplied by the interval.
    pub sampled_records: u64,
    /// Time of the first packet, nanoseconds since 1970; absent if there are no records.
    pub first_ns: Option<u64>,
    pub last_ns: Option<u64>,
    pub protocols: BTreeMap<u8, TotalsRow>,
    pub bucket_ns: u64,
    /// Sums by the start of flows (nanoseconds since 1970). Empty buckets are left out.
    pub timeline: BTreeMap<u64, TotalsRow>,
    /// Records that are not in the timeline, because it had too many buckets: the earliest buckets are kept.
    pub beside_timeline: u64,
}

/// Sums of a protocol or a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TotalsRow {
    pub records: u64,
    #[serde(flatten)]
    pub sum: GroupTotals,
}

const TOTAL_COLUMNS: [&str; 13] = [
    "flowStartNanoseconds",
    "flowEndNanoseconds",
    "protocolIdentifier",
    "packetDeltaCount",
    "octetDeltaCount",
    "layer2OctetDeltaCount",
    "reversePacketDeltaCount",
    "reverseOctetDeltaCount",
    "reverseLayer2OctetDeltaCount",
    "flowPart",
    "observedLoss",
    "observedMerge",
    "samplingInterval",
];

/// Sums up the records that a filter selects. The timeline has buckets of the given length; without one, at most about
/// 24 buckets of a usual length.
pub fn flow_totals(
    files: &[PathBuf],
    filter: &FlowFilter,
    bucket: Option<Nanos>,
) -> Result<FlowTotals, Error> {
    sum_flow_totals_with_limits(&ScanTerms::default(), files, filter, bucket)
}

/// Like [`flow_totals`], with limits for the scan.
pub fn sum_flow_totals_with_limits(
    terms: &ScanTerms<'_>,
    files: &[PathBuf],
    filter: &FlowFilter,
    bucket: Option<Nanos>,
) -> Result<FlowTotals, Error> {
    let bucket_ns = match bucket {
        // A length of zero would be a division by zero.
        Some(bucket) => bucket.as_u64().max(1),
        None => default_bucket_length(read_flow_start_range(files)?, filter),
    };
    let counted = count_records(
        terms,
        files,
        filter,
        &TOTAL_COLUMNS,
        || TotalsCounter::new(bucket_ns),
        TotalsCounter::count_chunk,
    )?;
    let merged = counted.into_iter().reduce(TotalsCounter::merge_with);
    Ok(merged.unwrap_or_else(|| TotalsCounter::new(bucket_ns)).into_totals())
}

fn default_bucket_length(range: Option<(u64, u64)>, filter: &FlowFilter) -> u64 {
    let (first, last) = range.unwrap_or_default();
    let first = filter.span.from_ns.map_or(first, |from| from.max(first));
    let last = filter.span.to_ns.map_or(last, |to| to.min(last));
    // The smallest usual length that makes at most about [`DEFAULT_BUCKET_COUNT`] buckets; for long spans, whole
    // weeks.
    let aim = last.saturating_sub(first) / DEFAULT_BUCKET_COUNT;
    let fits = BUCKET_LENGTHS_S.iter().map(|seconds| seconds * SECOND).find(|&length| length >= aim);
    fits.unwrap_or_else(|| aim.next_multiple_of(BUCKET_LENGTHS_S[13] * SECOND))
}

/// Sums of the records of one thread.
struct TotalsCounter {
    totals: FlowTotals,
    protocols: [TotalsRow; 256],
    /// Buckets from this start on are left out of the timeline.
    timeline_end: u64,
}

impl TotalsCounter {
    fn new(bucket_ns: u64) -> Self {
        Self {
            totals: FlowTotals { bucket_ns, ..FlowTotals::default() },
            protocols: [TotalsRow::default(); 256],
            timeline_end: u64::MAX,
        }
    }

    fn count_chunk(&mut self, chunk: &RowChunk, rows: &[usize]) {
        // The columns are looked up once for the chunk and not for each row.
        let columns = TOTAL_COLUMNS.map(|name| chunk.column(name).numbers_of_first_rows(chunk.rows));
        let columns = columns.each_ref().map(|numbers| &numbers[..]);
        // Records are sorted by their start, so a bucket is looked up once for many of them.
        let mut current = (0, TotalsRow::default());
        for &row in rows {
            let values = columns.map(|numbers| numbers.get(row).copied().unwrap_or(0));
            let [start, _, protocol, ..] = values;
            let sum = self.totals.count_record(values);
            // A column of another program's file may have greater numbers than a protocol can have.
            self.protocols[usize::from(clamp_to_u8(protocol))].add_record(sum);
            let bucket = start - start % self.totals.bucket_ns;
            if bucket != current.0 {
                self.add_to_timeline(current.0, current.1);
                current = (bucket, TotalsRow::default());
            }
            current.1.add_record(sum);
        }
        self.add_to_timeline(current.0, current.1);
    }

    /// Adds the records of a bucket. Only the earliest buckets are kept, because flows with random times must not fill
    /// the memory with buckets.
    fn add_to_timeline(&mut self, bucket: u64, row: TotalsRow) {
        let FlowTotals { timeline, beside_timeline, .. } = &mut self.totals;
        if row.records == 0 {
            return;
        }
        if bucket >= self.timeline_end {
            *beside_timeline += row.records;
            return;
        }
        timeline.entry(bucket).or_default().add_row(row);
        if timeline.len() > MAX_BUCKETS
            && let Some((last, row)) = timeline.pop_last()
        {
            *beside_timeline += row.records;
            self.timeline_end = last;
        }
    }

    fn merge_with(mut self, other: Self) -> Self {
        self.totals.add_totals(&other.totals);
        for (row, more) in self.protocols.iter_mut().zip(other.protocols) {
            row.add_row(more);
        }
        // A bucket is complete only if neither timeline has left it out.
        self.timeline_end = self.timeline_end.min(other.timeline_end);
        let timeline = std::mem::take(&mut self.totals.timeline);
        for (bucket, row) in timeline.into_iter().chain(other.totals.timeline) {
            self.add_to_timeline(bucket, row);
        }
        self
    }

    fn into_totals(self) -> FlowTotals {
        let protocols = (0..=u8::MAX).zip(self.protocols).filter(|(_, row)| row.records > 0);
        FlowTotals { protocols: protocols.collect(), ..self.totals }
    }
}

impl FlowTotals {
    /// Counts a record, from its values in the order of [`TOTAL_COLUMNS`], except for its protocol and the
    /// timeline. Returns its sum.
    fn count_record(&mut self, values: [u64; TOTAL_COLUMNS.len()]) -> GroupTotals {
        let [
            start,
            end,
            _,
            packets,
            bytes,
            frame_bytes,
            packets_back,
            bytes_back,
            frame_bytes_back,
            part,
            loss,
            merged,
            sampling,
        ] = values;
        let sum = GroupTotals {
            flows: u64::from(part == 0),
            packets: packets.saturating_add(packets_back),
            bytes: bytes.saturating_add(bytes_back),
        };
        self.records += 1;
        self.sum.add_totals(sum);
        // The sums saturate, because files of other programs may have any numbers.
        self.frame_bytes = self.frame_bytes.saturating_add(frame_bytes).saturating_add(frame_bytes_back);
        self.records_with_loss = self.records_with_loss.saturating_add(loss);
        self.records_with_merges = self.records_with_merges.saturating_add(merged);
        self.sampled_records += u64::from(sampling > 1);
        self.first_ns = Some(self.first_ns.map_or(start, |first| first.min(start)));
        self.last_ns = Some(self.last_ns.map_or(end, |last| last.max(end)));
        sum
    }

    /// Adds other totals, except for protocols and the timeline.
    fn add_totals(&mut self, other: &Self) {
        self.records += other.records;
        self.sum.add_totals(other.sum);
        self.frame_bytes = self.frame_bytes.saturating_add(other.frame_bytes);
        self.records_with_loss = self.records_with_loss.saturating_add(other.records_with_loss);
        self.records_with_merges = self.records_with_merges.saturating_add(other.records_with_merges);
        self.sampled_records += other.sampled_records;
        self.first_ns = [self.first_ns, other.first_ns].into_iter().flatten().min();
        self.last_ns = self.last_ns.max(other.last_ns);
        self.beside_timeline += other.beside_timeline;
    }
}

impl TotalsRow {
    fn add_record(&mut self, sum: GroupTotals) {
        self.add_row(Self { records: 1, sum });
    }

    fn add_row(&mut self, other: Self) {
        self.records += other.records;
        self.sum.add_totals(other.sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whichever thread reads what, the earliest buckets are kept, whole.
    #[test]
    fn earliest_buckets_are_kept_in_any_order() {
        let row = TotalsRow { records: 1, sum: GroupTotals::default() };
        let count = |buckets: &mut dyn Iterator<Item = u64>| {
            let mut counter = TotalsCounter::new(1);
            buckets.for_each(|bucket| counter.add_to_timeline(bucket, row));
            counter
        };
        let all = MAX_BUCKETS as u64 + 100;
        let whole = count(&mut (0..all)).into_totals();
        let halves = count(&mut (0..all).rev().step_by(2)).merge_with(count(&mut (0..all).step_by(2)));
        assert_eq!((whole.timeline.len(), whole.beside_timeline), (MAX_BUCKETS, 100));
        assert_eq!(halves.into_totals().timeline, whole.timeline);
        let twice = count(&mut (0..all).chain(0..all)).into_totals();
        assert_eq!(
            (twice.timeline[&7].records, twice.timeline.len(), twice.beside_timeline),
            (2, MAX_BUCKETS, 200)
        );
    }
    use crate::sample::{SECOND, THIRTEEN, records};
    use crate::scan::list_flow_files;
    use crate::{ParquetOptions, ParquetSink, RecordExporter, RecordSink};
    use packetrig_flow::FlowRecord;

    #[test]
    fn sums_are_those_of_the_records() {
        let directory = tempfile::tempdir().unwrap();
        let mut sink = ParquetSink::new(ParquetOptions::new(directory.path())).unwrap();
        let given = records(5000);
        sink.write_records(&given, RecordExporter::default()).unwrap();
        sink.close_sink().1.unwrap();
        let files = list_flow_files(&[directory.path().to_owned()]).unwrap();
        let totals = flow_totals(&files, &FlowFilter::default(), None).unwrap();
        let packets = given.iter().map(FlowRecord::packets).sum();
        let bytes = given.iter().map(FlowRecord::bytes).sum();
        assert_eq!((totals.records, totals.sum), (5000, GroupTotals { flows: 1667, packets, bytes }));
        assert_eq!((totals.frame_bytes, totals.records_with_loss), (packets * 114, 2500));
        assert_eq!(totals.records_with_merges, 1667);
        assert_eq!(totals.first_ns, Some(THIRTEEN));
        assert_eq!(totals.last_ns, Some(THIRTEEN + 4999 * SECOND + 1500));
        let protocols: Vec<_> = totals.protocols.iter().map(|(number, row)| (*number, row.records)).collect();
        assert_eq!(protocols, [(6, 3750), (17, 1250)]);
        // 4999 s in about two dozen buckets: of five minutes.
        assert_eq!((totals.bucket_ns, totals.timeline.len()), (300 * SECOND, 17));
        assert!(totals.timeline.values().take(16).all(|row| row.records == 300));
        let sum: u64 = totals.timeline.values().map(|row| row.sum.packets).sum();
        assert_eq!((sum, totals.beside_timeline), (packets, 0));
    }
}
