//! Limits on stored files, and which limit the oldest file exceeds. Commands that keep files share them, so that
//! `--keep`, `--keep-for` and `--keep-free` mean the same everywhere.

use crate::Nanos;
use serde::{Deserialize, Serialize};

/// Limits on stored files: beyond them the oldest files are removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionLimits {
    /// Limit for the size of all files together, bytes.
    pub bytes: Option<u64>,
    /// Limit for the age of a file.
    pub age: Option<Nanos>,
    /// Bytes of the disk that stay free.
    pub free: Option<u64>,
}

/// The limit that removes a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceededLimit {
    Size,
    Age,
    Free,
}

impl ExceededLimit {
    /// Its name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Age => "age",
            Self::Free => "free",
        }
    }
}

/// Files that were removed to keep within limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedFiles {
    pub files: u64,
    pub bytes: u64,
    /// Flow records in these files; ledgers are not counted.
    pub records: u64,
    /// Files that were removed because all files together were too large.
    pub for_size: u64,
    /// Files that were too old.
    pub for_age: u64,
    /// Files that were removed because the disk had too little free space.
    pub for_free: u64,
}

impl RemovedFiles {
    /// Counts a file that was removed for a limit.
    pub const fn count_file(&mut self, bytes: u64, records: u64, limit: ExceededLimit) {
        self.files += 1;
        self.bytes += bytes;
        self.records += records;
        match limit {
            ExceededLimit::Size => self.for_size += 1,
            ExceededLimit::Age => self.for_age += 1,
            ExceededLimit::Free => self.for_free += 1,
        }
    }

    /// The numbers with their names in metrics and their meaning.
    pub const fn named_counts(&self) -> [(&'static str, &'static str, u64); 6] {
        [
            ("removed_files_total", "old files removed", self.files),
            ("removed_file_bytes_total", "bytes of the old files that were removed", self.bytes),
            ("removed_records_total", "records in the old files that were removed", self.records),
            ("removed_for_size_total", "old files removed by --keep", self.for_size),
            ("removed_for_age_total", "old files removed by --keep-for", self.for_age),
            ("removed_for_free_total", "old files removed by --keep-free", self.for_free),
        ]
    }
}

/// State of the files that limits are compared with.
#[derive(Clone, Copy, Debug)]
pub struct StoredAmounts {
    /// Bytes of all files, and of the data that is about to be written.
    pub bytes: u64,
    /// Time of the oldest file, nanoseconds since 1970.
    pub oldest_ns: Option<u64>,
    /// Now, nanoseconds since 1970.
    pub now_ns: u64,
}

impl RetentionLimits {
    /// Returns whether any limit is set.
    pub fn has_any_limit(&self) -> bool {
        *self != Self::default()
    }

    /// The limit that removes the oldest file, if any. `free_bytes` is called only with a limit on free space;
    /// without an answer nothing is removed, because a removal cannot be undone.
    pub fn limit_exceeded_by(
        &self,
        stored: &StoredAmounts,
        free_bytes: impl FnOnce() -> Option<u64>,
    ) -> Option<ExceededLimit> {
        if self.bytes.is_some_and(|most| stored.bytes > most) {
            return Some(ExceededLimit::Size);
        }
        let expires_ns =
            self.age.zip(stored.oldest_ns).map(|(age, oldest_ns)| oldest_ns.saturating_add(age.as_u64()));
        if expires_ns.is_some_and(|expires_ns| expires_ns < stored.now_ns) {
            return Some(ExceededLimit::Age);
        }
        let is_short = self.free.is_some_and(|least| free_bytes().is_some_and(|free| free < least));
        is_short.then_some(ExceededLimit::Free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_exceeded_only_beyond_their_values() {
        let stored = StoredAmounts { bytes: 100, oldest_ns: Some(50), now_ns: 80 };
        let exceeded = |limits: RetentionLimits| limits.limit_exceeded_by(&stored, || Some(10));
        let none = RetentionLimits::default();
        assert!(!none.has_any_limit() && exceeded(none).is_none());
        let of_size = |bytes| RetentionLimits { bytes: Some(bytes), ..none };
        assert_eq!([exceeded(of_size(100)), exceeded(of_size(99))], [None, Some(ExceededLimit::Size)]);
        let of_age = |age| RetentionLimits { age: Some(Nanos::new(age)), ..none };
        assert_eq!([exceeded(of_age(30)), exceeded(of_age(29))], [None, Some(ExceededLimit::Age)]);
        let of_free = |free| RetentionLimits { free: Some(free), ..none };
        assert_eq!([exceeded(of_free(10)), exceeded(of_free(11))], [None, Some(ExceededLimit::Free)]);
        assert_eq!(of_free(11).limit_exceeded_by(&stored, || None), None, "no answer, no removal");
        let empty = StoredAmounts { oldest_ns: None, ..stored };
        assert_eq!(of_age(1).limit_exceeded_by(&empty, || None), None);
    }
}
