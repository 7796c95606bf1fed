//! Where files of records are, and how one gets there: whole or not at all.
//!
//! ```text
//! DIR/flows/date=2026-11-21/hour=13/flows-000000.parquet
//! DIR/meter_stats/date=2026-11-21/hour=13/meter_stats-000000.parquet
//! ```
//! A file is written under a hidden name, synced and renamed. The hidden name is also its claim on the number, so that
//! several meters may write into one directory.

use super::Error;
use super::encode::Table;
use crate::disk;
use packetrig_sys::private_files;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

const HOUR_NS: u64 = 3_600_000_000_000;
/// Hive's name for a value that is not known.
const NOWHERE: &str = "__HIVE_DEFAULT_PARTITION__";

/// The hour in which flows began, counted from 1970; `None` where the hours of flows were too many to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Partition(pub(super) Option<u64>);

impl Partition {
    pub(super) const fn of(at_ns: u64) -> Self {
        Self(Some(at_ns / HOUR_NS))
    }

    /// `date=…/hour=…`, in UTC.
    fn path(self) -> PathBuf {
        let start =
            self.0.and_then(|hour| jiff::Timestamp::from_second(i64::try_from(hour * 3600).ok()?).ok());
        let Some(start) = start else {
            return PathBuf::from(format!("date={NOWHERE}/hour={NOWHERE}"));
        };
        let start = start.to_zoned(jiff::tz::TimeZone::UTC);
        PathBuf::from(format!("date={}/hour={:02}", start.date(), start.hour()))
    }
}

/// Writes a file of a table into its partition; returns where it is.
pub(super) fn place(
    directory: &Path,
    table: Table,
    partition: Partition,
    bytes: &[u8],
) -> Result<PathBuf, Error> {
    let base = directory;
    let directory = base.join(table.name()).join(partition.path());
    disk::make_below(base, &directory).map_err(Error::file("create", &directory))?;
    let (mut file, hidden, path) = claim(&directory, table)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(Error::file("write", &hidden))
        .and_then(|()| disk::rename(&hidden, &path).map_err(Error::file("rename", &hidden)));
    if written.is_err() {
        // Half a file is of no use, and a full disk needs the room. One whose name may not last is written again, too.
        drop(fs::remove_file(&hidden));
        drop(fs::remove_file(&path));
    }
    written.map(|()| path)
}

/// The first number that is free: its hidden file is made by us, and no file of that name was finished before.
fn claim(directory: &Path, table: Table) -> Result<(File, PathBuf, PathBuf), Error> {
    let mut number = next_number(directory)?;
    loop {
        let name = format!("{}-{number:06}.parquet", table.name());
        let (hidden, path) = (directory.join(format!(".{name}.partial")), directory.join(&name));
        number += 1;
        match private_files::create_new(&hidden) {
            // Whoever finished it before renamed it before we made ours: now it is seen.
            Ok(_) if path.exists() => drop(fs::remove_file(&hidden)),
            Ok(file) => return Ok((file, hidden, path)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::file("create", hidden)(error)),
        }
    }
}

/// One more than the highest number in use.
fn next_number(directory: &Path) -> Result<u64, Error> {
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
        let at = |ns| Partition::of(ns).path().display().to_string();
        assert_eq!(at(0), "date=1970-01-01/hour=00");
        assert_eq!(at(1_700_000_000_000_000_000), "date=2023-11-14/hour=22");
        assert_eq!(at(u64::MAX), "date=2554-07-21/hour=23");
    }

    #[test]
    fn a_number_in_use_or_claimed_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let place = |bytes| place(directory.path(), Table::Flows, Partition::of(0), bytes).unwrap();
        let first = place(b"one");
        assert!(first.ends_with("flows/date=1970-01-01/hour=00/flows-000000.parquet"), "{first:?}");
        fs::write(first.with_file_name(".flows-000001.parquet.partial"), "another meter's").unwrap();
        let third = place(b"three");
        assert!(third.ends_with("flows-000002.parquet"), "{third:?}");
        assert_eq!(fs::read(first).unwrap(), b"one");
        assert_eq!(fs::read(third).unwrap(), b"three");
    }
}
