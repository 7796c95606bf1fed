//! Files of records: their directories and names, and which process owns them while they are written.
//!
//! ```text
//! DIR/flows/date=2026-11-21/hour=13/flows-000000.parquet
//! DIR/meter_stats/date=2026-11-21/hour=13/meter_stats-000000.parquet
//! ```
//! A file is written under a hidden name, synced and renamed. The hidden name also reserves the number, so that several meters may
//! write into one directory. The file is locked while it is written.

use super::Error;
use super::encode::WritableTable;
use packetrig_sys::{disk, private_files};
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const HOUR_NS: u64 = 3_600_000_000_000;
/// Hive's name for an unknown value of a partition.
const UNKNOWN_PARTITION_NAME: &str = "__HIVE_DEFAULT_PARTITION__";
/// Extension of the hidden names of unfinished files.
pub(super) const UNFINISHED_FILE_EXTENSION: &str = ".partial";

/// The hour in which flows began, as a number of hours since 1970; `None` for flows of all hours that have no
/// partition of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HourPartition(pub(super) Option<u64>);

impl HourPartition {
    pub(super) const fn from_time(at_ns: u64) -> Self {
        Self(Some(at_ns / HOUR_NS))
    }

    const fn from_hour(hour: u64) -> Self {
        Self(Some(hour))
    }

    /// `date=…/hour=…`, in UTC.
    fn path(self) -> PathBuf {
        let start =
            self.0.and_then(|hour| jiff::Timestamp::from_second(i64::try_from(hour * 3600).ok()?).ok());
        let Some(start) = start else {
            return PathBuf::from(format!("date={UNKNOWN_PARTITION_NAME}/hour={UNKNOWN_PARTITION_NAME}"));
        };
        let start = start.to_zoned(jiff::tz::TimeZone::UTC);
        PathBuf::from(format!("date={}/hour={:02}", start.date(), start.hour()))
    }
}

/// The hours that have partitions of their own: all hours, or only those around now. Exporters choose the times of
/// their records: if each hour had a partition, a single exporter could make an unlimited number of files.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartitionedHours {
    first: HourPartition,
    last: HourPartition,
}

impl PartitionedHours {
    pub(super) const ALL: Self =
        Self { first: HourPartition::from_hour(0), last: HourPartition::from_hour(u64::MAX) };
    /// Greatest age of a flow's start, in hours: exporters report a long flow in parts, at the latest after some hours.
    const MAX_FLOW_AGE_HOURS: usize = 6;
    /// Number of hours by which an exporter's clock may be ahead.
    const MAX_CLOCK_LEAD_HOURS: usize = 1;
    /// Number of hours that [`Self::around_now`] contains.
    pub(super) const NEAR_HOURS: usize = Self::MAX_FLOW_AGE_HOURS + 1 + Self::MAX_CLOCK_LEAD_HOURS;

    pub(super) const fn around_now(now_ns: u64) -> Self {
        let now = now_ns / HOUR_NS;
        Self {
            first: HourPartition::from_hour(now.saturating_sub(Self::MAX_FLOW_AGE_HOURS as u64)),
            last: HourPartition::from_hour(now + Self::MAX_CLOCK_LEAD_HOURS as u64),
        }
    }

    /// The partition of a record that began at `at_ns`; the unknown partition if its hour has none of its own.
    pub(super) fn partition_or_unknown(self, at_ns: u64) -> HourPartition {
        let hour = HourPartition::from_time(at_ns);
        if (self.first..=self.last).contains(&hour) { hour } else { HourPartition(None) }
    }
}

/// A file under its hidden name, locked by this process as long as it is open.
#[derive(Debug)]
pub(super) struct ClaimedFile {
    pub(super) file: File,
    pub(super) hidden: PathBuf,
    /// Name of the file once it is finished.
    pub(super) path: PathBuf,
}

impl ClaimedFile {
    /// Claims the file at `hidden` for this process. Returns `None` if another process has locked the file, if it was
    /// renamed since, if a finished file of the same number exists, or if `hidden` is not a hidden name.
    pub(super) fn claim_existing_file(file: File, hidden: PathBuf) -> io::Result<Option<Self>> {
        // A file under the final name is complete, so the hidden one is not needed.
        let locked = Self::lock_hidden_file(file, hidden)?;
        Ok(locked.filter(|locked| !locked.path.exists()))
    }

    /// Claims a file that this process has just created. Returns `None` if a recovery in another process has locked or
    /// removed it. If a finished file of the same number exists, removes the new file and returns `None`.
    fn claim_new_file(file: File, hidden: PathBuf) -> io::Result<Option<Self>> {
        let Some(locked) = Self::lock_hidden_file(file, hidden)? else { return Ok(None) };
        // Another meter has finished a file of this number since the directory was read.
        if locked.path.exists() {
            locked.remove_hidden_file()?;
            return Ok(None);
        }
        Ok(Some(locked))
    }

    /// Locks the file. Returns `None` if another process has locked it, or if `hidden` is not its hidden name.
    fn lock_hidden_file(file: File, hidden: PathBuf) -> io::Result<Option<Self>> {
        let Some(path) = finished_path_of(&hidden) else { return Ok(None) };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Between opening and locking, another process may have finished the file: then it has another name.
        let locked = Self { file, hidden, path };
        Ok((locked.name_on_disk()? == NameOnDisk::Hidden).then_some(locked))
    }

    /// Finds out which name the file has now.
    pub(super) fn name_on_disk(&self) -> io::Result<NameOnDisk> {
        Ok(if is_file_at(&self.file, &self.hidden)? {
            NameOnDisk::Hidden
        } else if is_file_at(&self.file, &self.path)? {
            NameOnDisk::Finished
        } else {
            NameOnDisk::None
        })
    }

    /// Removes the file, unless its hidden name belongs to another file by now.
    pub(super) fn remove_hidden_file(&self) -> io::Result<()> {
        if is_file_at(&self.file, &self.hidden)? { fs::remove_file(&self.hidden) } else { Ok(()) }
    }
}

/// The name that a file has in its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameOnDisk {
    Hidden,
    Finished,
    /// The file was removed, or another process has renamed it.
    None,
}

/// Returns whether `path` is a name of this very file. Device and inode decide, because another file may have
/// the name by now.
fn is_file_at(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    // A symbolic link is not the file itself, even if it points to it.
    match fs::symlink_metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The name that a hidden file will have once it is finished; `None` if it is not the hidden name of a table's file.
pub(super) fn finished_path_of(hidden: &Path) -> Option<PathBuf> {
    // Only names that packetrig gives: a hidden file of another program must never be renamed or removed.
    let name = hidden.file_name()?.to_str()?.strip_prefix('.')?.strip_suffix(UNFINISHED_FILE_EXTENSION)?;
    let path = hidden.with_file_name(name);
    WritableTable::ALL.into_iter().any(|table| is_finished_name(&path, table)).then_some(path)
}

/// Returns whether packetrig gives this name to finished files of a table.
pub(super) fn is_finished_name(path: &Path, table: WritableTable) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let number =
        name.and_then(|name| name.strip_prefix(table.name())?.strip_prefix('-')?.strip_suffix(".parquet"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Creates the next file of a table in its partition, under its hidden name.
pub(super) fn claim_next_file(
    base: &Path,
    table: WritableTable,
    partition: HourPartition,
) -> Result<ClaimedFile, Error> {
    let directory = base.join(table.name()).join(partition.path());
    disk::create_directories_below(base, &directory, disk::sync_directory)
        .map_err(Error::file("create", &directory))?;
    claim_file_in(&directory, table)
}

/// Creates the next file of a table in the directory of a partition, under its hidden name.
pub(super) fn claim_file_in(directory: &Path, table: WritableTable) -> Result<ClaimedFile, Error> {
    let mut number = next_file_number(directory)?;
    loop {
        let hidden =
            directory.join(format!(".{}-{number:06}.parquet{UNFINISHED_FILE_EXTENSION}", table.name()));
        // The number rises before the attempt, so that each new attempt has another number.
        number += 1;
        let file = match private_files::create_new_private_file(&hidden) {
            Ok(file) => file,
            // Another meter writes a file with this number.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(Error::file("create", hidden)(error)),
        };
        // A recovery in another process may find the file before it is locked, and remove it as an empty leftover. Then the next
        // number is tried.
        let taken = ClaimedFile::claim_new_file(file, hidden.clone()).map_err(Error::file("lock", hidden))?;
        if let Some(claimed) = taken {
            return Ok(claimed);
        }
    }
}

/// Returns one more than the highest file number in the directory; 0 if there is no file.
fn next_file_number(directory: &Path) -> Result<u64, Error> {
    // Hidden and finished files alike: their names have the number between the last `-` and the next `.`.
    let mut next = 0;
    for entry in fs::read_dir(directory).map_err(Error::file("read", directory))? {
        let name = entry.map_err(Error::file("read", directory))?.file_name();
        let number = name.to_str().and_then(|name| name.rsplit_once('-')?.1.split('.').next()?.parse().ok());
        next = next.max(number.map_or(0, |number: u64| number.saturating_add(1)));
    }
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_hours_of_utc() {
        let at = |ns| HourPartition::from_time(ns).path().display().to_string();
        assert_eq!(at(0), "date=1970-01-01/hour=00");
        assert_eq!(at(1_700_000_000_000_000_000), "date=2023-11-14/hour=22");
        assert_eq!(at(u64::MAX), "date=2554-07-21/hour=23");
    }

    #[test]
    fn file_claim_skips_used_and_claimed_numbers() {
        let directory = tempfile::tempdir().unwrap();
        let claim =
            || claim_next_file(directory.path(), WritableTable::Flows, HourPartition::from_time(0)).unwrap();
        let first = claim();
        assert!(first.path.ends_with("flows/date=1970-01-01/hour=00/flows-000000.parquet"), "{first:?}");
        fs::rename(&first.hidden, &first.path).unwrap();
        fs::write(first.path.with_file_name(".flows-000001.parquet.partial"), "another meter's").unwrap();
        let third = claim();
        assert!(third.path.ends_with("flows-000002.parquet"), "{third:?}");
    }

    /// Two processes make files, and a recovery removes what the first has made before it is locked.
    #[test]
    fn file_claim_yields_to_another_process() {
        let directory = tempfile::tempdir().unwrap();
        let hidden = directory.path().join(".flows-000000.parquet.partial");
        let made = || private_files::create_new_private_file(&hidden).unwrap();
        let lost = made();
        let recovery = File::open(&hidden).unwrap();
        recovery.try_lock().unwrap();
        fs::remove_file(&hidden).unwrap();
        let other = ClaimedFile::claim_new_file(made(), hidden.clone()).unwrap().unwrap();
        let again = lost.try_clone().unwrap();
        assert!(ClaimedFile::claim_new_file(lost, hidden.clone()).unwrap().is_none(), "the recovery has it");
        recovery.unlock().unwrap();
        assert!(ClaimedFile::claim_new_file(again, hidden.clone()).unwrap().is_none(), "it has no name");
        assert_eq!(other.name_on_disk().unwrap(), NameOnDisk::Hidden);
        drop(other);
        fs::remove_file(&hidden).unwrap();
        fs::write(finished_path_of(&hidden).unwrap(), "finished before").unwrap();
        assert!(ClaimedFile::claim_new_file(made(), hidden.clone()).unwrap().is_none());
        assert!(!hidden.exists());
    }

    #[test]
    fn existing_file_is_claimed_once_by_current_name() {
        let directory = tempfile::tempdir().unwrap();
        let claimed =
            claim_next_file(directory.path(), WritableTable::Flows, HourPartition::from_time(0)).unwrap();
        let take = || {
            let file = File::open(&claimed.hidden).or_else(|_| File::open(&claimed.path)).unwrap();
            ClaimedFile::claim_existing_file(file, claimed.hidden.clone()).unwrap()
        };
        assert!(take().is_none(), "it is locked");
        claimed.file.unlock().unwrap();
        drop(take().unwrap());
        fs::rename(&claimed.hidden, &claimed.path).unwrap();
        assert!(take().is_none(), "it is finished");
        for strange in [
            "flows-1.parquet.partial",
            ".flows-.parquet.partial",
            ".notes-1.parquet.partial",
            ".flows-1.parquet",
        ] {
            assert_eq!(finished_path_of(Path::new(strange)), None);
        }
    }
}
