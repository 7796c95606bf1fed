//! Limits on stored files, and which limit the oldest file exceeds. All commands that store files share this code, so
//! that `--keep`, `--keep-for` and `--keep-free` mean the same everywhere.

use crate::Nanos;
use serde::{Deserialize, Serialize};

/// Limits on stored files. The oldest files are removed while a limit is exceeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionLimits {
    /// Limit for the size of all files together, bytes.
    pub bytes: Option<u64>,
    /// Limit for the age of a file.
    pub age: Option<Nanos>,
    /// Bytes of the disk that must stay free.
    pub free: Option<u64>,
}

/// The limit because of which a file is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceededLimit {
    Size,
    Age,
    Free,
}

impl ExceededLimit {
    /// Returns the name of the limit in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Age => "age",
            Self::Free => "free",
        }
    }
}

/// Counts of files that were removed because a limit was exceeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedFiles {
    pub files: u64,
    pub bytes: u64,
    /// Flow records in these files; ledgers are not counted.
    pub records: u64,
    /// Files that were removed because all files together were too large.
    pub for_size: u64,
    /// Files that were removed because they were too old.
    pub for_age: u64,
    /// Files that were removed because the disk had too little free space.
    pub for_free: u64,
}

impl RemovedFiles {
    /// Counts a file that was removed because `limit` was exceeded.
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

    /// Returns the counts, each with its metric name and its help text.
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

/// State of the stored files, which is compared with the limits.
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

    /// Returns the limit because of which the oldest file must be removed; `None` if no limit is exceeded. `free_bytes`
    /// is called only if free space is limited. If it returns `None`, nothing is removed for this limit, because a
    /// removal cannot be undone.
    pub fn find_exceeded_limit(
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
        let exceeded = |limits: RetentionLimits| limits.find_exceeded_limit(&stored, || Some(10));
        let none = RetentionLimits::default();
        assert!(!none.has_any_limit() && exceeded(none).is_none());
        let of_size = |bytes| RetentionLimits { bytes: Some(bytes), ..none };
        assert_eq!([exceeded(of_size(100)), exceeded(of_size(99))], [None, Some(ExceededLimit::Size)]);
        let of_age = |age| RetentionLimits { age: Some(Nanos::new(age)), ..none };
        assert_eq!([exceeded(of_age(30)), exceeded(of_age(29))], [None, Some(ExceededLimit::Age)]);
        let of_free = |free| RetentionLimits { free: Some(free), ..none };
        assert_eq!([exceeded(of_free(10)), exceeded(of_free(11))], [None, Some(ExceededLimit::Free)]);
        assert_eq!(of_free(11).find_exceeded_limit(&stored, || None), None, "no answer, no removal");
        let empty = StoredAmounts { oldest_ns: None, ..stored };
        assert_eq!(of_age(1).find_exceeded_limit(&empty, || None), None);
    }
}
