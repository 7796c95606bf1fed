//! Counts the captured bytes of each run that have left the node.
//!
//! ```text
//! <spool>/captures-sent   JSON: for each run the number of bytes and the names of the files, in the order of last use
//! ```
//! The owner of the node limits the bytes per run. A run may have several attempts, be interrupted by another run, and survive a
//! restart of the node, so the count is stored by the id of the run, in the directory of the spool.
//!
//! Invariant: bytes are counted on the disk before they are in the spool.

use super::error::Error;
use crate::disk;
use packetrig_report::RunId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const CAPTURES_SENT_FILE: &str = "captures-sent";
/// Maximum number of runs that are remembered. The oldest are forgotten first.
const MAX_REMEMBERED_RUNS: usize = 4096;
/// Maximum number of file names that are remembered of a run. Further files count each time they are sent.
const MAX_REMEMBERED_FILES_PER_RUN: usize = 256;

#[derive(Debug)]
pub struct CaptureAllowance {
    spool: PathBuf,
    per_run: u64,
    sent: Vec<SentCaptures>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SentCaptures {
    run: RunId,
    bytes: u64,
    /// Names of the files that are in the count.
    #[serde(default)]
    files: BTreeSet<String>,
}

/// Reason why a capture stays on the node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllowanceError {
    /// The captures of the run have reached the limit that the node's owner set.
    #[error(
        "its {bytes} B would make the captures of the run exceed the limit of {per_run} B that the node's owner set; {sent} B \
         were sent before"
    )]
    UsedUp { bytes: u64, per_run: u64, sent: u64 },
    /// The count could not be written.
    #[error(transparent)]
    Spool(#[from] Error),
}

impl CaptureAllowance {
    /// Opens the count of the spool in `spool`, with `per_run` bytes allowed for each run. A count that cannot be read is an
    /// error: otherwise the limit could be exceeded.
    pub fn open_in(spool: &Path, per_run: u64) -> Result<Self, Error> {
        let path = spool.join(CAPTURES_SENT_FILE);
        let sent = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|error| Error::Value(format!("{}: {error}", path.display())))?,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(Error::file("read", path)(error)),
        };
        Ok(Self { spool: spool.to_owned(), per_run, sent })
    }

    /// Counts `bytes` of the run, or returns the reason why these bytes must stay on the node. They also count if the
    /// spool refuses them later, because a part of them may have left already.
    pub fn count_sent_bytes(&mut self, run: &RunId, bytes: u64) -> Result<(), AllowanceError> {
        self.count_sent(run, None, bytes)
    }

    /// Counts a file of `bytes`. A file counts only once, however often and in however many pieces it is sent.
    pub fn count_sent_file(&mut self, run: &RunId, file: &str, bytes: u64) -> Result<(), AllowanceError> {
        let known = self.sent.iter().find(|it| it.run == *run);
        // An interrupted upload starts again from the beginning of its file, and must not use up the allowance twice.
        if known.is_some_and(|sent| sent.files.contains(file)) {
            return Ok(());
        }
        self.count_sent(run, Some(file), bytes)
    }

    fn count_sent(&mut self, run: &RunId, file: Option<&str>, bytes: u64) -> Result<(), AllowanceError> {
        let known = self.sent.iter().find(|it| it.run == *run);
        let sent = known.map_or(0, |it| it.bytes);
        let mut files = known.map(|it| it.files.clone()).unwrap_or_default();
        // Run ids and names come from elsewhere, so both lists are bounded.
        files.extend(file.map(str::to_owned).filter(|_| files.len() < MAX_REMEMBERED_FILES_PER_RUN));
        let after = sent.saturating_add(bytes);
        if after > self.per_run {
            return Err(AllowanceError::UsedUp { bytes, per_run: self.per_run, sent });
        }
        let mut changed = self.sent.clone();
        // The run moves to the end: the list is in the order of last use, and the oldest are forgotten first.
        changed.retain(|it| it.run != *run);
        changed.push(SentCaptures { run: run.clone(), bytes: after, files });
        let forgotten = changed.len().saturating_sub(MAX_REMEMBERED_RUNS);
        changed.drain(..forgotten);
        let text = serde_json::to_vec(&changed).map_err(|error| Error::Value(error.to_string()))?;
        // The file is written before the caller sends anything. A crash in between costs allowance,
        // but never exceeds it.
        disk::write_whole_file(&self.spool, CAPTURES_SENT_FILE, &text)
            .map_err(Error::file("write", self.spool.join(CAPTURES_SENT_FILE)))?;
        self.sent = changed;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str) -> RunId {
        RunId(name.to_owned())
    }

    #[test]
    fn run_capture_allowance_survives_interleaving_and_restarts() {
        let place = tempfile::tempdir().unwrap();
        let open = || CaptureAllowance::open_in(place.path(), 100).unwrap();
        let mut allowance = open();
        allowance.count_sent_bytes(&run("a"), 60).unwrap();
        allowance.count_sent_bytes(&run("b"), 100).unwrap();
        for mut allowance in [allowance, open()] {
            let refused = allowance.count_sent_bytes(&run("a"), 41).unwrap_err();
            assert!(matches!(refused, AllowanceError::UsedUp { sent: 60, .. }), "{refused}");
        }
        open().count_sent_bytes(&run("a"), 40).unwrap();
        assert!(open().count_sent_bytes(&run("a"), 1).is_err());
        open().count_sent_bytes(&run("c"), 100).unwrap();
    }

    #[test]
    fn allowance_refuses_unrecorded_bytes_and_damaged_file() {
        let place = tempfile::tempdir().unwrap();
        let spool = place.path().join("spool");
        fs::create_dir(&spool).unwrap();
        let mut allowance = CaptureAllowance::open_in(&spool, 100).unwrap();
        fs::remove_dir(&spool).unwrap();
        assert!(matches!(allowance.count_sent_bytes(&run("a"), 1), Err(AllowanceError::Spool(_))));
        fs::write(place.path().join(CAPTURES_SENT_FILE), "{").unwrap();
        assert!(CaptureAllowance::open_in(place.path(), 100).is_err());
    }
}
