//! Progress of a collector: how much is stored of each exporter, for the next collector if this one is killed.
//!
//! Records wait in memory until there are enough for a row group; a process that is killed loses them, and with them the
//! knowledge that they came. So whenever everything that came is stored, the collector writes its counts to a progress file. Rows
//! in files that are newer than that were stored afterwards. The sum is the stored amount of an exporter; the exporter's own
//! counts say how much it had sent.
//!
//! Invariant: the file is locked while its collector runs. Its last whole line counts.

use super::filter::FlowFilter;
use super::scan::{flow_files, scan_records};
use super::{Error, RecordMaker};
use packetrig_sys::private_files;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const BEGIN: &str = ".collect-";
const END: &str = ".progress";
/// A file that is longer than this begins anew.
const FILE_BYTES: u64 = 1 << 20;

/// Stored amount of one exporter, and its own counts at that time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExporterProgress {
    pub records: u64,
    pub packets: u64,
    /// Packets in all that it had sent, by its last ledger.
    pub sent_packets: Option<u64>,
    /// Packets of these that were sent before any collector of this directory listened.
    pub lacking_packets: u64,
    /// Its position in the sequence, if it exports over UDP.
    pub numbers: Option<ProgressNumber>,
    /// It is a meter of a group: other meters report the same flows.
    pub is_of_group: bool,
}

/// The sequence number that is expected next from a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressNumber {
    pub port: u16,
    pub protocol: String,
    pub next: u32,
    /// Number of records that were stored then.
    pub records: u64,
}

/// Progress of each exporter.
pub type StoredProgress = BTreeMap<RecordMaker, ExporterProgress>;

#[derive(Debug, Default, Serialize, Deserialize)]
struct ProgressLine {
    /// When everything was stored, in nanoseconds since 1970; the time of the file if this line was written then.
    at_ns: Option<u64>,
    /// JSON has no maps with keys like these.
    exporters: Vec<(RecordMaker, ExporterProgress)>,
}

#[derive(Debug)]
pub struct ProgressFile {
    file: File,
    path: PathBuf,
    last: Option<StoredProgress>,
    /// When everything was stored, by the clock of the file system.
    at_ns: u64,
}

impl ProgressFile {
    /// Begins a file in a directory of records.
    pub fn create_in(directory: &Path, progress: &StoredProgress) -> Result<Self, Error> {
        for number in 0.. {
            let path = directory.join(format!("{BEGIN}{number:03}{END}"));
            let file = match private_files::create_new(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(Error::file("create", path)(error)),
            };
            // The lock ends with the process, so a file without a lock is that of a killed collector.
            file.lock().map_err(Error::file("lock", &path))?;
            let mut begun = Self { file, path, last: None, at_ns: 0 };
            begun.note_stored(progress)?;
            return Ok(begun);
        }
        Err(Error::Nothing { path: directory.to_owned() })
    }

    /// Writes the progress at a moment when everything that came until now is stored.
    pub fn note_stored(&mut self, progress: &StoredProgress) -> Result<(), Error> {
        // Nothing came since the last note: another line and sync would add nothing.
        if self.last.as_ref() == Some(progress) {
            return Ok(());
        }
        let written = self.write_line(progress, None).and_then(|()| {
            self.file.sync_data()?;
            Ok(unix_nanos(self.file.metadata()?.modified()?))
        });
        self.at_ns = written.map_err(Error::file("write", &self.path))?;
        self.last = Some(progress.clone());
        Ok(())
    }

    /// Adds the starting points of exporters that appeared since the last note, although not everything is stored.
    pub fn amend_begun(&mut self, begun: &StoredProgress) -> Result<(), Error> {
        let mut amended = self.last.clone().unwrap_or_default();
        for (maker, more) in begun {
            let has = amended.entry(*maker).or_default();
            has.numbers = has.numbers.take().or_else(|| more.numbers.clone());
            has.is_of_group |= more.is_of_group;
            if has.sent_packets.is_none() {
                (has.sent_packets, has.lacking_packets) = (more.sent_packets, more.lacking_packets);
            }
        }
        if self.last.as_ref() != Some(&amended) {
            self.write_line(&amended, Some(self.at_ns)).map_err(Error::file("write", &self.path))?;
            self.last = Some(amended);
        }
        Ok(())
    }

    fn write_line(&mut self, progress: &StoredProgress, at_ns: Option<u64>) -> io::Result<()> {
        let exporters = progress.iter().map(|(maker, has)| (*maker, has.clone())).collect();
        // A line that is cut short is not valid JSON: then the one before it counts.
        let text = serde_json::to_string(&ProgressLine { at_ns, exporters })? + "\n";
        if self.file.metadata()?.len() > FILE_BYTES {
            self.begin_anew(&text)
        } else {
            self.file.write_all(text.as_bytes())
        }
    }

    /// Replaces the file by one that has only this line. Until then the old one counts.
    fn begin_anew(&mut self, line: &str) -> io::Result<()> {
        let draft = self.path.with_extension("new");
        let mut file = private_files::create_file(&draft)?;
        // Locked before it has the name, so that no other collector ever finds it unlocked.
        file.lock()?;
        file.write_all(line.as_bytes())?;
        file.sync_data()?;
        fs::rename(&draft, &self.path)?;
        self.file = file;
        Ok(())
    }

    /// Removes the file: the collector has ended in order.
    pub fn remove_file(self) -> Result<(), Error> {
        fs::remove_file(&self.path).map_err(Error::file("remove", &self.path))
    }
}

/// Progress files that killed collectors have left in a directory.
#[derive(Debug, Default)]
pub struct KilledCollectors {
    /// Stored amount of each exporter; empty if no collector was killed.
    pub stored: StoredProgress,
    files: Vec<PathBuf>,
}

impl KilledCollectors {
    /// Reads the progress files of killed collectors. Their files of records have to be recovered before.
    pub fn find_in(directory: &Path) -> Result<Self, Error> {
        let mut found = Self::default();
        for entry in fs::read_dir(directory).map_err(Error::file("read", directory))? {
            let path = entry.map_err(Error::file("read", directory))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !(name.starts_with(BEGIN) && name.ends_with(END)) {
                continue;
            }
            let Some((line, at_ns)) = read_if_left(&path).map_err(Error::file("read", &path))? else {
                continue;
            };
            found.stored.extend(line.exporters);
            for (maker, more) in stored_since(directory, at_ns)? {
                let has = found.stored.entry(maker).or_default();
                has.records += more.records;
                has.packets += more.packets;
            }
            found.files.push(path);
        }
        Ok(found)
    }

    /// Returns whether a collector was killed.
    pub fn is_any(&self) -> bool {
        !self.files.is_empty()
    }

    /// Removes their progress files, once another file has their content.
    pub fn remove_files(&self) -> Result<(), Error> {
        for path in &self.files {
            fs::remove_file(path).map_err(Error::file("remove", path))?;
        }
        Ok(())
    }
}

/// The last whole line of a file that no process has locked, and when everything was stored.
fn read_if_left(path: &Path) -> io::Result<Option<(ProgressLine, u64)>> {
    let file = File::open(path)?;
    // Its collector is running.
    if file.try_lock().is_err() {
        return Ok(None);
    }
    let written = unix_nanos(file.metadata()?.modified()?);
    let text = io::read_to_string(&file)?;
    let last = text.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    let line: ProgressLine = last.unwrap_or_default();
    let at_ns = line.at_ns.unwrap_or(written);
    Ok(Some((line, at_ns)))
}

/// Nanoseconds since 1970. An earlier time cannot be that of a file that was just written, and becomes 0.
fn unix_nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Counts the records in files that are newer than `at_ns`.
fn stored_since(directory: &Path, at_ns: u64) -> Result<StoredProgress, Error> {
    const WANTED: [&str; 4] =
        ["exporterIPv6Address", "observationDomainId", "packetDeltaCount", "reversePacketDeltaCount"];
    let mut stored = StoredProgress::new();
    let mut files = match flow_files(&[directory.to_owned()]) {
        // A directory without files is a new one: nothing is stored.
        Err(Error::Nothing { .. }) => return Ok(stored),
        files => files?,
    };
    let written = |path: &PathBuf| path.metadata().and_then(|facts| facts.modified());
    // Both times are of the file system's clock, so its offset from the system's clock does not matter.
    files.retain(|path| written(path).is_ok_and(|written| unix_nanos(written) > at_ns));
    scan_records(&files, &FlowFilter::default(), &WANTED, &mut |chunk, rows| {
        let [exporters, domains, packets, back] = WANTED.map(|name| chunk.column(name));
        for &row in rows {
            let domain = u32::try_from(domains.number_at(row)).unwrap_or_default();
            let has = stored.entry(RecordMaker { exporter: exporters.address_at(row), domain }).or_default();
            has.records += 1;
            has.packets += packets.number_at(row) + back.number_at(row);
        }
        ControlFlow::Continue(())
    })?;
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::records;
    use crate::{ParquetOptions, ParquetSink, RecordSink};
    use std::time::Duration;

    const MAKER: RecordMaker = RecordMaker { exporter: [7; 16], domain: 3 };

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
        let mut file = ProgressFile::create_in(directory.path(), &StoredProgress::new()).unwrap();
        file.note_stored(&progress(100)).unwrap();
        // The clock of a file system has steps of a few milliseconds.
        std::thread::sleep(Duration::from_millis(30));
        store(directory.path(), 20);
        assert!(!KilledCollectors::find_in(directory.path()).unwrap().is_any(), "it is alive");
        // Another exporter appears while not everything is stored.
        let other = RecordMaker { domain: 4, ..MAKER };
        let number = ProgressNumber { port: 9, protocol: "ipfix".into(), next: 5, records: 0 };
        let begun = ExporterProgress { numbers: Some(number.clone()), ..ExporterProgress::default() };
        file.amend_begun(&StoredProgress::from([(other, begun), (MAKER, ExporterProgress::default())]))
            .unwrap();
        // Half a line, as a process that is killed may leave it.
        file.file.write_all(b"{\"at_ns\":7,\"exp").unwrap();
        drop(file);
        let killed = KilledCollectors::find_in(directory.path()).unwrap();
        let has = &killed.stored[&MAKER];
        assert_eq!((has.records, has.sent_packets), (120, Some(5000)));
        assert_eq!(killed.stored[&other].numbers, Some(number));
        killed.remove_files().unwrap();
        assert!(KilledCollectors::find_in(directory.path()).unwrap().stored.is_empty());
    }

    #[test]
    fn long_progress_file_counts_until_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let progress =
            |records| StoredProgress::from([(MAKER, ExporterProgress { records, ..Default::default() })]);
        let begin_long = || {
            let mut file = ProgressFile::create_in(directory.path(), &progress(1)).unwrap();
            file.file.write_all(&vec![b'\n'; usize::try_from(FILE_BYTES).unwrap()]).unwrap();
            file
        };
        let find = || KilledCollectors::find_in(directory.path()).unwrap();
        let mut file = begin_long();
        let in_its_way = file.path.with_extension("new");
        fs::create_dir(&in_its_way).unwrap();
        assert!(file.note_stored(&progress(2)).is_err());
        drop(file);
        assert_eq!(find().stored[&MAKER].records, 1);
        find().remove_files().unwrap();
        fs::remove_dir(&in_its_way).unwrap();
        let mut file = begin_long();
        file.note_stored(&progress(3)).unwrap();
        assert!(!find().is_any(), "it is alive");
        drop(file);
        assert_eq!(find().stored[&MAKER].records, 3);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_collector_that_ended_in_order_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = ProgressFile::create_in(directory.path(), &StoredProgress::new()).unwrap();
        file.remove_file().unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
