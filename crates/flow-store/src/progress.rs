//! Progress of a collector: how many records and packets of each exporter are stored. If the collector is killed, the
//! next collector needs these counts.
//!
//! Records wait in memory until there are enough for a row group. A killed process loses them, and the next
//! process cannot know that they had arrived. So whenever all received records are stored, the collector writes its
//! counts to a progress file. Rows in newer files were stored afterwards. The sum is the stored amount of an exporter;
//! the exporter's own counts say how much it had sent.
//!
//! Invariant: the file is locked while its collector runs. Its last complete line counts.

mod killed;

pub use killed::KilledCollectorRecords;
pub(super) use killed::read_oldest_note_time;

use super::{Error, RecordExporter};
use packetrig_flow::CarriedRecords;
use packetrig_sys::private_files;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::time::SystemTime;

const PROGRESS_FILE_PREFIX: &str = ".collect-";
const PROGRESS_FILE_SUFFIX: &str = ".progress";
/// A progress file that is longer than this is replaced by a file with a single line.
const MAX_PROGRESS_FILE_BYTES: u64 = 1 << 20;

/// How many records and packets of one exporter are stored, and the exporter's own counts at that time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExporterProgress {
    pub records: u64,
    pub packets: u64,
    /// Total number of packets that the exporter had sent, according to its last ledger.
    pub sent_packets: Option<u64>,
    /// Packets of `sent_packets` that were sent before any collector of this directory listened.
    pub lacking_packets: u64,
    /// The exporter's position in its sequence numbers, if it exports over UDP.
    pub numbers: Option<ProgressNumber>,
    /// True if the exporter is a meter of a group: other meters report the same flows.
    pub is_of_group: bool,
}

/// The sequence number that is expected next from a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressNumber {
    pub port: u16,
    pub protocol: String,
    pub next: u32,
    /// Number of stored records when `next` was noted.
    pub records: u64,
}

impl ExporterProgress {
    const fn add_stored_parts(&mut self, records: u64, packets: u64) {
        self.records = self.records.saturating_add(records);
        self.packets = self.packets.saturating_add(packets);
    }
}

impl ProgressNumber {
    /// The same sequence number, with `more` stored records added.
    const fn with_records(mut self, more: u64) -> Self {
        self.records = self.records.saturating_add(more);
        self
    }
}

/// Progress of each exporter.
pub type StoredProgress = BTreeMap<RecordExporter, ExporterProgress>;

#[derive(Debug, Default, Serialize, Deserialize)]
struct ProgressLine {
    /// When all records that had arrived were stored, in nanoseconds since 1970. `None` if that was when this line was
    /// written: then the modification time of the file counts.
    at_ns: Option<u64>,
    /// Identifies the file; 0 if its collector was killed before it wrote a line.
    number: u64,
    /// Numbers of the progress files of killed collectors whose amounts this line includes. Such a file still exists if
    /// the next collector was killed at its start.
    includes: Vec<u64>,
    /// A list and not a map, because keys of maps in JSON must be texts.
    exporters: Vec<(RecordExporter, ExporterProgress)>,
    /// Records that could not be stored. The counts of their exporters include them.
    given_up: CarriedRecords,
}

#[derive(Debug)]
pub struct ProgressFile {
    file: File,
    path: PathBuf,
    last: Option<(StoredProgress, CarriedRecords)>,
    number: u64,
    includes: Vec<u64>,
    /// When all records that had arrived were stored, by the clock of the file system.
    at_ns: u64,
}

impl ProgressFile {
    /// Creates a progress file in a directory of records. It begins with the amounts that killed collectors stored.
    pub fn create_in(directory: &Path, killed: &KilledCollectorRecords) -> Result<Self, Error> {
        for number in 0.. {
            let path = directory.join(format!("{PROGRESS_FILE_PREFIX}{number:03}{PROGRESS_FILE_SUFFIX}"));
            let file = match private_files::create_new_private_file(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(Error::file("create", path)(error)),
            };
            // The lock ends with the process, so a file without a lock is that of a killed collector.
            file.lock().map_err(Error::file("lock", &path))?;
            let number = RandomState::new().hash_one(process::id()).max(1);
            let mut begun =
                Self { file, path, last: None, number, includes: killed.numbers.clone(), at_ns: 0 };
            begun.record_stored_progress(&killed.stored, killed.given_up)?;
            return Ok(begun);
        }
        Err(Error::Nothing { path: directory.to_owned() })
    }

    /// Writes the progress. Every record that arrived until now must be stored or given up.
    pub fn record_stored_progress(
        &mut self,
        progress: &StoredProgress,
        given_up: CarriedRecords,
    ) -> Result<(), Error> {
        let now = (progress.clone(), given_up);
        // No record came since the last note, so another line and sync are not needed.
        if self.last.as_ref() == Some(&now) {
            return Ok(());
        }
        let written = self.write_line(&now, None).and_then(|()| {
            self.file.sync_data()?;
            Ok(unix_nanos(self.file.metadata()?.modified()?))
        });
        self.at_ns = written.map_err(Error::file("write", &self.path))?;
        self.last = Some(now);
        Ok(())
    }

    /// Adds the starting points of exporters that appeared since the last note. Not all arrived records need be stored.
    pub fn record_starting_points(&mut self, begun: &StoredProgress) -> Result<(), Error> {
        let (mut amended, given_up) = self.last.clone().unwrap_or_default();
        for (maker, more) in begun {
            let has = amended.entry(*maker).or_default();
            has.numbers = has.numbers.take().or_else(|| more.numbers.clone());
            has.is_of_group |= more.is_of_group;
            if has.sent_packets.is_none() {
                (has.sent_packets, has.lacking_packets) = (more.sent_packets, more.lacking_packets);
            }
        }
        // Records given up since then are not in the counts of this line, so they are not added here.
        let amended = (amended, given_up);
        if self.last.as_ref() != Some(&amended) {
            self.write_line(&amended, Some(self.at_ns)).map_err(Error::file("write", &self.path))?;
            self.last = Some(amended);
        }
        Ok(())
    }

    fn write_line(
        &mut self,
        (progress, given_up): &(StoredProgress, CarriedRecords),
        at_ns: Option<u64>,
    ) -> io::Result<()> {
        let exporters = progress.iter().map(|(maker, has)| (*maker, has.clone())).collect();
        // A line that is cut short is not valid JSON: then the line before it counts.
        let Self { number, includes, .. } = self;
        let line = ProgressLine {
            at_ns,
            number: *number,
            includes: includes.clone(),
            exporters,
            given_up: *given_up,
        };
        let text = serde_json::to_string(&line)? + "\n";
        if self.file.metadata()?.len() > MAX_PROGRESS_FILE_BYTES {
            self.restart_progress_file(&text)
        } else {
            self.file.write_all(text.as_bytes())
        }
    }

    /// Replaces the file by one that has only this line. Until the new file gets its name, the old one counts.
    fn restart_progress_file(&mut self, line: &str) -> io::Result<()> {
        let draft = self.path.with_extension("new");
        let mut file = private_files::create_file(&draft)?;
        // The file is locked before it gets its name, so that no other collector ever finds it unlocked.
        file.lock()?;
        file.write_all(line.as_bytes())?;
        file.sync_data()?;
        fs::rename(&draft, &self.path)?;
        self.file = file;
        Ok(())
    }

    /// Removes the file. Called when the collector ends without being killed.
    pub fn remove_file(self) -> Result<(), Error> {
        fs::remove_file(&self.path).map_err(Error::file("remove", &self.path))
    }
}

/// Nanoseconds since 1970. An earlier time cannot be that of a file that was just written, and becomes 0.
fn unix_nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::records;
    use crate::{ParquetOptions, ParquetSink, RecordSink};
    use std::time::Duration;

    const MAKER: RecordExporter = RecordExporter { exporter: [7; 16], domain: 3 };

    fn store(directory: &Path, count: u16) {
        let mut sink = ParquetSink::new(ParquetOptions::new(directory)).unwrap();
        sink.write_records(&records(count), MAKER).unwrap();
        sink.close_sink().1.unwrap();
    }

    #[test]
    fn progress_note_counts_stored_records_once() {
        let directory = tempfile::tempdir().unwrap();
        store(directory.path(), 100);
        let progress = |records| {
            let sent_packets = Some(5000);
            StoredProgress::from([(
                MAKER,
                ExporterProgress { records, packets: 2 * records, sent_packets, ..Default::default() },
            )])
        };
        let mut file = ProgressFile::create_in(directory.path(), &KilledCollectorRecords::default()).unwrap();
        file.record_stored_progress(&progress(100), CarriedRecords::default()).unwrap();
        // The clock of a file system has steps of a few milliseconds.
        std::thread::sleep(Duration::from_millis(30));
        store(directory.path(), 20);
        assert!(
            !KilledCollectorRecords::find_in(directory.path()).unwrap().has_killed_collector(),
            "it is alive"
        );
        // Another exporter appears while not everything is stored.
        let other = RecordExporter { domain: 4, ..MAKER };
        let number = ProgressNumber { port: 9, protocol: "ipfix".into(), next: 5, records: 0 };
        let begun = ExporterProgress { numbers: Some(number.clone()), ..ExporterProgress::default() };
        file.record_starting_points(&StoredProgress::from([
            (other, begun),
            (MAKER, ExporterProgress::default()),
        ]))
        .unwrap();
        // Half a line, as a process that is killed may leave it.
        file.file.write_all(b"{\"at_ns\":7,\"exp").unwrap();
        drop(file);
        let killed = KilledCollectorRecords::find_in(directory.path()).unwrap();
        let has = &killed.stored[&MAKER];
        assert_eq!((has.records, has.sent_packets), (120, Some(5000)));
        assert_eq!(killed.stored[&other].numbers, Some(number));
        killed.remove_files().unwrap();
        assert!(KilledCollectorRecords::find_in(directory.path()).unwrap().stored.is_empty());
    }

    #[test]
    fn long_progress_file_counts_until_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let progress =
            |records| StoredProgress::from([(MAKER, ExporterProgress { records, ..Default::default() })]);
        let begin_long = || {
            let mut file = ProgressFile::create_in(
                directory.path(),
                &KilledCollectorRecords { stored: progress(1), ..Default::default() },
            )
            .unwrap();
            file.file.write_all(&vec![b'\n'; usize::try_from(MAX_PROGRESS_FILE_BYTES).unwrap()]).unwrap();
            file
        };
        let find = || KilledCollectorRecords::find_in(directory.path()).unwrap();
        let mut file = begin_long();
        let in_its_way = file.path.with_extension("new");
        fs::create_dir(&in_its_way).unwrap();
        assert!(file.record_stored_progress(&progress(2), CarriedRecords::default()).is_err());
        drop(file);
        assert_eq!(find().stored[&MAKER].records, 1);
        find().remove_files().unwrap();
        fs::remove_dir(&in_its_way).unwrap();
        let mut file = begin_long();
        file.record_stored_progress(&progress(3), CarriedRecords::default()).unwrap();
        assert!(!find().has_killed_collector(), "it is alive");
        drop(file);
        assert_eq!(find().stored[&MAKER].records, 3);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn amounts_of_two_collectors_add_up_once() {
        let directory = tempfile::tempdir().unwrap();
        let progress = |records, packets| {
            let has =
                ExporterProgress { records, packets, sent_packets: Some(packets), ..Default::default() };
            StoredProgress::from([(MAKER, has)])
        };
        const GIVEN_UP: CarriedRecords = CarriedRecords { records: 1, packets: 7, bytes: 0 };
        let begin = |records, packets| {
            let mut file =
                ProgressFile::create_in(directory.path(), &KilledCollectorRecords::default()).unwrap();
            file.record_stored_progress(&progress(records, packets), GIVEN_UP).unwrap();
            file
        };
        let find = || KilledCollectorRecords::find_in(directory.path()).unwrap();
        // Two collectors at the same time, of which each has received a part.
        let both = [begin(10, 100), begin(3, u64::MAX)];
        drop(both);
        let killed = find();
        assert_eq!((&killed.stored, killed.given_up.packets), (&progress(13, u64::MAX), 14));
        // The next one is killed before it has removed their files.
        drop(ProgressFile::create_in(directory.path(), &killed).unwrap());
        assert_eq!((find().stored, find().given_up.packets), (progress(13, u64::MAX), 14));
        assert_eq!(find().files.len(), 3);
    }

    #[test]
    fn a_collector_that_ended_in_order_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = ProgressFile::create_in(directory.path(), &KilledCollectorRecords::default()).unwrap();
        file.remove_file().unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
