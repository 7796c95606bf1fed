//! Reads recent records of groups of meters, for a collector that is started again.

use super::Error;
use super::filter::FlowFilter;
use super::scan::{ListedFiles, RowChunk, list_flow_files, map_records, scan_records};
use packetrig_flow::{FlowHalf, FlowHistory, FlowRecord};
use packetrig_sys::{disk, private_files};
use packetrig_units::Nanos;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, process};

const RECALLED_COLUMNS: [&str; 10] = [
    "flowId",
    "flowStartNanoseconds",
    FLOW_END_COLUMN,
    "packetDeltaCount",
    "octetDeltaCount",
    "layer2OctetDeltaCount",
    "reversePacketDeltaCount",
    "reverseOctetDeltaCount",
    "reverseLayer2OctetDeltaCount",
    OTHER_FIELDS_COLUMN,
];
const FLOW_END_COLUMN: &str = "flowEndNanoseconds";
const OTHER_FIELDS_COLUMN: &str = "otherFields";

/// Hidden file with the time at which a collector first used the directory, nanoseconds since 1970.
const FIRST_USE_FILE_NAME: &str = ".first-use";

/// The most recent records of a directory.
#[derive(Debug)]
pub struct RecentRecords {
    files: ListedFiles,
    since_ns: u64,
}

impl RecentRecords {
    /// Finds the files that were written within `last` before the newest file. If the directory has no note of its
    /// first use, writes one with the earliest end of a flow in these files, or with `now_ns` if there are no files.
    ///
    /// A collector that was killed may have stored nothing yet. Without the note, the next one could not tell packets that
    /// nobody stored from packets that another collector had stored in another directory before.
    pub fn find_in(directory: &Path, last: Nanos, now_ns: u64) -> Result<Self, Error> {
        let all = match list_flow_files(&[directory.to_owned()]) {
            Err(Error::Nothing { .. }) => ListedFiles::default(),
            all => all?,
        };
        let files = retain_recently_written_files(all, last);
        let ends = read_flow_end_range(&files)?;
        let first_use_ns = read_or_write_first_use(directory, ends.map_or(now_ns, |(first_ns, _)| first_ns))?;
        let newest_ns = ends.map_or(now_ns, |(_, last_ns)| last_ns);
        // Older files are not read, or may have been removed.
        let since_ns = first_use_ns.max(newest_ns.saturating_sub(last.as_u64()));
        Ok(Self { files, since_ns })
    }

    /// Time from which the records are complete, nanoseconds since 1970.
    pub const fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// Calls `each` with the records that come from groups of meters.
    pub fn for_each_group_record(&self, each: &mut dyn FnMut(FlowRecord)) -> Result<(), Error> {
        // The reader threads build the records: parsing the histories takes longer than reading the rows.
        let make = |chunk: &RowChunk, rows: &[usize]| -> Vec<FlowRecord> {
            rows.iter().filter_map(|row| record_with_history(chunk, *row)).collect()
        };
        map_records(&self.files, &FlowFilter::default(), &RECALLED_COLUMNS, make, &mut |records| {
            records.into_iter().for_each(&mut *each);
            ControlFlow::Continue(())
        })
    }
}

/// Reads the note of the directory's first use. If there is no readable note, writes one with
/// `otherwise_ns` and returns `otherwise_ns`.
fn read_or_write_first_use(directory: &Path, otherwise_ns: u64) -> Result<u64, Error> {
    let path = directory.join(FIRST_USE_FILE_NAME);
    let noted = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
    if let Some(noted_ns) = noted {
        return Ok(noted_ns);
    }
    // Two collectors that start at the same time must not write the same draft.
    let draft = directory.join(format!("{FIRST_USE_FILE_NAME}.{}", process::id()));
    private_files::create_file(&draft)
        .and_then(|mut file| {
            file.write_all(format!("{otherwise_ns}\n").as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&draft, &path))
        .and_then(|()| disk::sync_directory(directory))
        .map_err(Error::file("write", path))?;
    Ok(otherwise_ns)
}

fn retain_recently_written_files(mut files: ListedFiles, last: Nanos) -> ListedFiles {
    let written =
        |path: &PathBuf| path.metadata().and_then(|facts| facts.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let times: Vec<SystemTime> = files.iter().map(written).collect();
    // The time counts back from the newest file and not from now: the collector may have been stopped for days.
    let newest = times.iter().copied().max().unwrap_or(SystemTime::UNIX_EPOCH);
    let since = newest.checked_sub(Duration::from_nanos(last.as_u64())).unwrap_or(SystemTime::UNIX_EPOCH);
    files.retain(|path| written(path) >= since);
    files
}

/// The earliest and the latest end of a flow in some files.
fn read_flow_end_range(files: &[PathBuf]) -> Result<Option<(u64, u64)>, Error> {
    let mut all: Option<(u64, u64)> = None;
    scan_records(files, &FlowFilter::default(), &[FLOW_END_COLUMN], &mut |chunk, rows| {
        for end_ns in rows.iter().map(|row| chunk.column(FLOW_END_COLUMN).number_at(*row)) {
            all = Some(all.map_or((end_ns, end_ns), |(first, last)| (first.min(end_ns), last.max(end_ns))));
        }
        ControlFlow::Continue(())
    })?;
    Ok(all)
}

fn record_with_history(chunk: &RowChunk, row: usize) -> Option<FlowRecord> {
    let fields: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(chunk.column(OTHER_FIELDS_COLUMN).word_at(row)).ok()?;
    // Only records of meters of a group have a history; other records are left out.
    let history =
        FlowHistory::from_fields(|name| fields.get(name)?.as_u64(), |name| fields.get(name)?.as_str())?;
    let number = |name: &str| chunk.column(name).number_at(row);
    // A file has one start and one end for both directions of a flow, so both halves get the same times.
    let (first_ns, last_ns) = (number("flowStartNanoseconds"), number(FLOW_END_COLUMN));
    let half = |[packets, bytes, frame_bytes]: [&str; 3]| FlowHalf {
        packets: number(packets),
        bytes: number(bytes),
        frame_bytes: number(frame_bytes),
        first_ns,
        last_ns,
        ..FlowHalf::default()
    };
    Some(FlowRecord {
        flow_id: number("flowId"),
        forward: half(["packetDeltaCount", "octetDeltaCount", "layer2OctetDeltaCount"]),
        reverse: half(["reversePacketDeltaCount", "reverseOctetDeltaCount", "reverseLayer2OctetDeltaCount"]),
        history: Some(Box::new(history)),
        ..FlowRecord::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{SECOND, THIRTEEN, record, records};
    use crate::{ParquetOptions, ParquetSink, RecordExporter, RecordSink};
    use packetrig_flow::collect::{GroupOptions, GroupRecordJoiner};
    use packetrig_flow::{CountTotals, DirectionHistory, Landmark, LandmarkKind, RecordOriginMark};

    /// Record `number` as a meter of a group reports it, with so many packets since its flow began.
    fn of_group(number: u16, meter: u32, packets: u64) -> FlowRecord {
        let totals = |packets| CountTotals { packets, bytes: 100 * packets, frame_bytes: 114 * packets };
        let mut record = record(number);
        let mut forward = DirectionHistory { followed: totals(packets), ..DirectionHistory::default() };
        forward.landmarks[0] = Landmark {
            content: number.into(),
            kind: LandmarkKind::First,
            at_ns: record.first_ns(),
            alone_us: u32::MAX,
            since: totals(packets - 1),
        };
        (record.forward.packets, record.reverse) = (packets, FlowHalf::default());
        let mark = RecordOriginMark { group: u64::MAX - 3, meter, lane: 0 };
        let history = FlowHistory { mark, since_ns: record.first_ns(), forward, ..FlowHistory::default() };
        FlowRecord { history: Some(Box::new(history)), ..record }
    }

    fn store(directory: &Path, records: &[FlowRecord]) {
        let mut sink = ParquetSink::new(ParquetOptions::new(directory)).unwrap();
        sink.write_records(records, RecordExporter::default()).unwrap();
        sink.close_sink().1.unwrap();
    }

    #[test]
    fn restarted_collector_stores_only_new_records() {
        let directory = tempfile::tempdir().unwrap();
        let mut before = GroupRecordJoiner::new(GroupOptions::default(), THIRTEEN - SECOND);
        let stored: Vec<_> =
            (0..50).filter_map(|n| before.reduce_to_unstored_packets(of_group(n, 1, 10), 1).next()).collect();
        assert_eq!(stored.len(), 50);
        store(directory.path(), &[stored, records(20)].concat());
        let recent = recent_records(directory.path(), THIRTEEN);
        let mut again = GroupRecordJoiner::new(GroupOptions::default(), recent.since_ns());
        let mut recalled = 0;
        recent
            .for_each_group_record(&mut |record| {
                recalled += 1;
                again.restore_stored_record(record, 1);
            })
            .unwrap();
        assert_eq!(recalled, 50);
        for n in 0..50 {
            assert!(
                again.reduce_to_unstored_packets(of_group(n, 2, 10), 2).next().is_none(),
                "{n} comes again"
            );
            assert_eq!(
                again.reduce_to_unstored_packets(of_group(n, 2, 13), 2).next().map(|new| new.packets()),
                Some(3)
            );
        }
        assert_eq!(
            again.reduce_to_unstored_packets(of_group(60, 2, 7), 2).next().map(|new| new.packets()),
            Some(7)
        );
    }

    fn recent_records(directory: &Path, now_ns: u64) -> RecentRecords {
        RecentRecords::find_in(directory, Nanos::from_secs(900), now_ns).unwrap()
    }

    #[test]
    fn recent_records_skip_old_files() {
        let directory = tempfile::tempdir().unwrap();
        store(directory.path(), &records(10));
        for path in list_flow_files(&[directory.path().to_owned()]).unwrap().iter() {
            fs::File::options().write(true).open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
        store(directory.path(), &[record(3000)]);
        fs::write(directory.path().join(FIRST_USE_FILE_NAME), "7\n").unwrap();
        let recent = recent_records(directory.path(), u64::MAX);
        assert_eq!((recent.files.len(), recent.since_ns), (1, record(3000).last_ns() - 900 * SECOND));
    }

    #[test]
    fn killed_collector_remembers_its_first_start() {
        let directory = tempfile::tempdir().unwrap();
        let first = recent_records(directory.path(), THIRTEEN);
        assert_eq!((first.files.len(), first.since_ns), (0, THIRTEEN));
        let again = recent_records(directory.path(), THIRTEEN + 30 * SECOND);
        assert_eq!(again.since_ns, THIRTEEN, "packets since then are nowhere else");
        store(directory.path(), &[record(30)]);
        assert_eq!(recent_records(directory.path(), u64::MAX).since_ns, THIRTEEN);
        let later = recent_records(tempfile::tempdir().unwrap().path(), THIRTEEN + 2000 * SECOND);
        assert_eq!(later.since_ns, THIRTEEN + 2000 * SECOND, "another directory has the packets of before");
    }

    #[test]
    fn directory_without_note_is_complete_from_first_record() {
        let directory = tempfile::tempdir().unwrap();
        store(directory.path(), &[record(3000), record(3010)]);
        assert_eq!(recent_records(directory.path(), u64::MAX).since_ns, record(3000).last_ns());
    }
}
