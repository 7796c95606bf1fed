//! Progress files of collectors that were killed.

use super::{
    ExporterProgress, PROGRESS_FILE_PREFIX, PROGRESS_FILE_SUFFIX, ProgressLine, StoredProgress, unix_nanos,
};
use crate::filter::FlowFilter;
use crate::scan::{list_flow_files, scan_records};
use crate::{Error, RecordExporter};
use packetrig_flow::CarriedRecords;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Progress files that killed collectors have left in a directory.
#[derive(Clone, Debug, Default)]
pub struct KilledCollectorRecords {
    /// How much of each exporter the killed collectors stored; empty if no collector was killed.
    pub stored: StoredProgress,
    /// Records that a killed collector could not store; they are counted in `stored` of their exporters.
    pub given_up: CarriedRecords,
    pub(super) files: Vec<PathBuf>,
    pub(super) numbers: Vec<u64>,
}

/// A progress file that no process has locked.
#[derive(Debug)]
struct UnlockedProgressFile {
    path: PathBuf,
    line: ProgressLine,
    /// When all records that had arrived were stored, nanoseconds since 1970.
    at_ns: u64,
}

impl KilledCollectorRecords {
    /// Reads the progress files of killed collectors. Their files of records have to be recovered before.
    pub fn find_in(directory: &Path) -> Result<Self, Error> {
        let left = find_unlocked_files(directory)?;
        let mut found = Self::default();
        let includes: BTreeSet<u64> = left.iter().flat_map(|file| file.line.includes.clone()).collect();
        for file in left.iter().filter(|file| !includes.contains(&file.line.number)) {
            found.add_exporter_amounts(&file.line.exporters);
            found.given_up.add_records(file.line.given_up);
        }
        // Several collectors may have used the directory at the same time. Rows that are older than the latest of
        // the times may be counted in one of the progress files already, so only newer rows are added.
        if let Some(at_ns) = left.iter().map(|file| file.at_ns).max() {
            for (maker, more) in count_records_stored_since(directory, at_ns)? {
                found.stored.entry(maker).or_default().add_stored_parts(more.records, more.packets);
            }
        }
        for UnlockedProgressFile { path, line, .. } in left {
            found.files.push(path);
            found.numbers.push(line.number);
        }
        Ok(found)
    }

    /// Adds the amounts that one collector stored. Two collectors may have received records of the same exporter.
    fn add_exporter_amounts(&mut self, exporters: &[(RecordExporter, ExporterProgress)]) {
        for (maker, more) in exporters {
            let has = self.stored.entry(*maker).or_default();
            has.numbers = match (has.numbers.take(), more.numbers.clone()) {
                // The numbers of two collectors are not one sequence: the first number stays, and the records
                // of the other collector are added.
                (Some(number), _) => Some(number.with_records(more.records)),
                (None, number) => number.map(|number| number.with_records(has.records)),
            };
            has.add_stored_parts(more.records, more.packets);
            has.lacking_packets = has.lacking_packets.saturating_add(more.lacking_packets);
            has.sent_packets = has.sent_packets.max(more.sent_packets);
            has.is_of_group |= more.is_of_group;
        }
    }

    /// Returns whether a collector was killed.
    pub fn has_killed_collector(&self) -> bool {
        !self.files.is_empty()
    }

    /// Removes the progress files of the killed collectors. Call this only after another progress
    /// file has their content.
    pub fn remove_files(&self) -> Result<(), Error> {
        for path in &self.files {
            fs::remove_file(path).map_err(Error::file("remove", path))?;
        }
        Ok(())
    }
}

fn find_unlocked_files(directory: &Path) -> Result<Vec<UnlockedProgressFile>, Error> {
    let mut left = Vec::new();
    for path in list_progress_files(directory)? {
        if let Some((line, at_ns)) = read_progress_unless_locked(&path).map_err(Error::file("read", &path))? {
            left.push(UnlockedProgressFile { path, line, at_ns });
        }
    }
    Ok(left)
}

/// Each collector of a directory, running or killed, has noted when all received records were stored. Returns the
/// earliest of these times, by the clock of the file system; `None` if there is no note.
pub(in super::super) fn read_oldest_note_time(directory: &Path) -> Result<Option<u64>, Error> {
    let mut oldest = None;
    for path in list_progress_files(directory)? {
        let opened = File::open(&path);
        // The collector has ended in the meantime and has removed its progress file.
        if opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            continue;
        }
        let noted = opened.and_then(|file| read_last_line(&file)).map_err(Error::file("read", &path))?;
        oldest = Some(oldest.map_or(noted.1, |oldest: u64| oldest.min(noted.1)));
    }
    Ok(oldest)
}

fn list_progress_files(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(Error::file("read", directory))? {
        let path = entry.map_err(Error::file("read", directory))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(PROGRESS_FILE_PREFIX) && name.ends_with(PROGRESS_FILE_SUFFIX) {
            files.push(path);
        }
    }
    Ok(files)
}

/// Reads the last complete line of a progress file and the time of this note; `None` if a process has locked the file.
fn read_progress_unless_locked(path: &Path) -> io::Result<Option<(ProgressLine, u64)>> {
    let file = File::open(path)?;
    // A locked file belongs to a running collector.
    if file.try_lock().is_err() {
        return Ok(None);
    }
    read_last_line(&file).map(Some)
}

fn read_last_line(file: &File) -> io::Result<(ProgressLine, u64)> {
    let written = unix_nanos(file.metadata()?.modified()?);
    let text = io::read_to_string(file)?;
    let last = text.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    let line: ProgressLine = last.unwrap_or_default();
    let at_ns = line.at_ns.unwrap_or(written);
    Ok((line, at_ns))
}

/// Counts the records in files that are newer than `at_ns`.
fn count_records_stored_since(directory: &Path, at_ns: u64) -> Result<StoredProgress, Error> {
    const WANTED_COLUMNS: [&str; 4] =
        ["exporterIPv6Address", "observationDomainId", "packetDeltaCount", "reversePacketDeltaCount"];
    let mut stored = StoredProgress::new();
    let mut files = match list_flow_files(&[directory.to_owned()]) {
        // A directory without files is new: no record is stored.
        Err(Error::Nothing { .. }) => return Ok(stored),
        files => files?,
    };
    // Both times come from the file system's clock, so its offset from the system's clock does not matter.
    files.retain(|path| {
        let written = path.metadata().and_then(|facts| facts.modified());
        written.is_ok_and(|written| unix_nanos(written) > at_ns)
    });
    scan_records(&files, &FlowFilter::default(), &WANTED_COLUMNS, &mut |chunk, rows| {
        let [exporters, domains, packets, back] = WANTED_COLUMNS.map(|name| chunk.column(name));
        for &row in rows {
            let domain = u32::try_from(domains.number_at(row)).unwrap_or_default();
            let has =
                stored.entry(RecordExporter { exporter: exporters.address_at(row), domain }).or_default();
            // Files may contain any number, even one that an exporter invented.
            has.add_stored_parts(1, packets.number_at(row).saturating_add(back.number_at(row)));
        }
        ControlFlow::Continue(())
    })?;
    Ok(stored)
}
