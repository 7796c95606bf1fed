//! How much of the captures of each run has left the node.
//!
//! ```text
//! <spool>/captures-sent   JSON: the run and how many bytes, oldest first
//! ```
//! The owner allows so many bytes of a run, and a run may have several attempts, be interrupted by another and outlive a
//! restart of this node. So the bytes are kept by the run's id, beside the spool that they go through.
//!
//! Invariant: bytes are on the disk in the count before they are in the spool.

use super::error::Error;
use crate::disk;
use packetrig_fleet::RunId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const FILE: &str = "captures-sent";
/// Runs that are remembered. The first of them are forgotten first.
const RUNS: usize = 4096;
/// Names that are remembered of a run; what is beyond counts each time.
const FILES: usize = 256;

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

/// Why a capture stays on the node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllowanceError {
    /// User: the owner of the node allows no more.
    #[error(
        "with its {bytes} B the captures of the run would be more than the {per_run} B that are sent; {sent} B are"
    )]
    UsedUp {
        bytes: u64,
        /// What the owner allows.
        per_run: u64,
        /// What was sent of the run before.
        sent: u64,
    },
    /// World: it could not be written down.
    #[error(transparent)]
    Spool(#[from] Error),
}

impl CaptureAllowance {
    /// That of the spool in `spool`: of each run `per_run` bytes. A count that cannot be read allows nothing for the runs that
    /// were in it, so it is an error.
    pub fn open(spool: &Path, per_run: u64) -> Result<Self, Error> {
        let path = spool.join(FILE);
        let sent = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|error| Error::Value(format!("{}: {error}", path.display())))?,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(Error::file("read", path)(error)),
        };
        Ok(Self { spool: spool.to_owned(), per_run, sent })
    }

    /// Takes `bytes` of what is allowed of the run, or says why they stay. What the spool refuses afterwards counts all the
    /// same: part of it may have left.
    pub fn take(&mut self, run: &RunId, bytes: u64) -> Result<(), AllowanceError> {
        self.count(run, None, bytes)
    }

    /// The same for a file of `bytes`, which counts once however often and in however many pieces it leaves.
    pub fn take_file(&mut self, run: &RunId, file: &str, bytes: u64) -> Result<(), AllowanceError> {
        let known = self.sent.iter().find(|it| it.run == *run);
        if known.is_some_and(|sent| sent.files.contains(file)) {
            return Ok(());
        }
        self.count(run, Some(file), bytes)
    }

    fn count(&mut self, run: &RunId, file: Option<&str>, bytes: u64) -> Result<(), AllowanceError> {
        let known = self.sent.iter().find(|it| it.run == *run);
        let sent = known.map_or(0, |it| it.bytes);
        let mut files = known.map(|it| it.files.clone()).unwrap_or_default();
        files.extend(file.map(str::to_owned).filter(|_| files.len() < FILES));
        let after = sent.saturating_add(bytes);
        if after > self.per_run {
            return Err(AllowanceError::UsedUp { bytes, per_run: self.per_run, sent });
        }
        let mut changed = self.sent.clone();
        changed.retain(|it| it.run != *run);
        changed.push(SentCaptures { run: run.clone(), bytes: after, files });
        let forgotten = changed.len().saturating_sub(RUNS);
        changed.drain(..forgotten);
        let text = serde_json::to_vec(&changed).map_err(|error| Error::Value(error.to_string()))?;
        disk::write_whole(&self.spool, FILE, &text).map_err(Error::file("write", self.spool.join(FILE)))?;
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
    fn a_run_has_one_allowance_whatever_comes_between_and_over_restarts() {
        let place = tempfile::tempdir().unwrap();
        let open = || CaptureAllowance::open(place.path(), 100).unwrap();
        let mut allowance = open();
        allowance.take(&run("a"), 60).unwrap();
        allowance.take(&run("b"), 100).unwrap();
        for mut allowance in [allowance, open()] {
            let refused = allowance.take(&run("a"), 41).unwrap_err();
            assert!(matches!(refused, AllowanceError::UsedUp { sent: 60, .. }), "{refused}");
        }
        open().take(&run("a"), 40).unwrap();
        assert!(open().take(&run("a"), 1).is_err());
        open().take(&run("c"), 100).unwrap();
    }

    #[test]
    fn what_cannot_be_written_down_does_not_leave_and_a_damaged_count_is_no_empty_one() {
        let place = tempfile::tempdir().unwrap();
        let spool = place.path().join("spool");
        fs::create_dir(&spool).unwrap();
        let mut allowance = CaptureAllowance::open(&spool, 100).unwrap();
        fs::remove_dir(&spool).unwrap();
        assert!(matches!(allowance.take(&run("a"), 1), Err(AllowanceError::Spool(_))));
        fs::write(place.path().join(FILE), "{").unwrap();
        assert!(CaptureAllowance::open(place.path(), 100).is_err());
    }
}
