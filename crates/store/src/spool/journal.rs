//! The journal of one run and attempt: the writing end of the spool.

use super::ResultSpool;
use super::error::Error;
use super::part::SpoolPart;
use super::segment::{MAX_CAPTURE_NAME_BYTES, MAX_PAYLOAD_BYTES, ResultSegment, SegmentKind};
use super::value::pack_value;
use packetrig_report::RunId;
use packetrig_stats::result::{CountSample, NodeResult};
use packetrig_units::clamp_to_usize;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Kind of an appended entry. [`NodeJournal::end_journal`] writes the End.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeJournalEntry<'a> {
    Interval,
    Result,
    /// A part of a capture file.
    Capture {
        name: &'a str,
        /// Offset of the bytes in the file.
        offset: u64,
        /// True if the file ends with these bytes.
        last: bool,
    },
}

impl NodeJournalEntry<'_> {
    const fn kind(&self) -> SegmentKind {
        match self {
            Self::Interval => SegmentKind::Interval,
            Self::Result => SegmentKind::Result,
            Self::Capture { .. } => SegmentKind::Capture,
        }
    }
}

/// Records the results of a node in one attempt of a run, in order. A journal that is dropped before it was ended or
/// discarded ends as cut short.
#[derive(Debug)]
pub struct NodeJournal {
    spool: ResultSpool,
    run: RunId,
    attempt: u32,
    done: bool,
}

impl NodeJournal {
    pub(super) const fn new(spool: ResultSpool, run: RunId, attempt: u32) -> Self {
        Self { spool, run, attempt, done: false }
    }

    /// Stores `bytes`, split into segments, and syncs them to the disk. Returns the number of the last segment.
    pub fn append_entry(&mut self, entry: NodeJournalEntry<'_>, bytes: &[u8]) -> Result<u64, Error> {
        let kind = entry.kind();
        let value = match entry {
            NodeJournalEntry::Capture { name, offset, last } => {
                JournalValue { kind, name, offset, ends: last }
            }
            NodeJournalEntry::Interval | NodeJournalEntry::Result => {
                JournalValue { kind, name: "", offset: 0, ends: true }
            }
        };
        if value.name.len() > MAX_CAPTURE_NAME_BYTES {
            return Err(Error::Value(format!(
                "the capture name {} is longer than {MAX_CAPTURE_NAME_BYTES} bytes",
                value.name
            )));
        }
        let mut state = self.spool.lock_state();
        state.check_admission(&self.run, self.attempt, kind, bytes.len())?;
        // Only results and the End may use the reserved space.
        if kind == SegmentKind::Result {
            return state
                .write_with_reserve(&self.run, self.attempt, |part| append_split_value(part, value, bytes));
        }
        let part = state.find_part(&self.run, self.attempt)?;
        let written = append_split_value(part, value, bytes);
        state.report_full_disk_as_full_spool(written)
    }

    /// Stores the counters so far as an interval.
    pub fn append_interval(&mut self, sample: &CountSample) -> Result<u64, Error> {
        let bytes = pack_value(sample).map_err(|error| Error::Value(error.to_string()))?;
        self.append_entry(NodeJournalEntry::Interval, &bytes)
    }

    pub fn append_result(&mut self, result: &NodeResult) -> Result<u64, Error> {
        let bytes = pack_value(result).map_err(|error| Error::Value(error.to_string()))?;
        self.append_entry(NodeJournalEntry::Result, &bytes)
    }

    /// Stores a complete capture file.
    pub fn append_capture(&mut self, name: &str, path: &Path) -> Result<u64, Error> {
        let mut file = File::open(path).map_err(Error::file("read", path))?;
        let size = file.metadata().map_err(Error::file("read", path))?.len();
        // The whole file is admitted or refused before its first piece. Each piece is admitted again below, because other
        // segments may come in between.
        let mut state = self.spool.lock_state();
        state.check_admission(&self.run, self.attempt, SegmentKind::Capture, clamp_to_usize(size))?;
        // `append_entry` below locks the state again.
        drop(state);
        let mut piece = Vec::new();
        let mut offset = 0;
        loop {
            piece.clear();
            let mut rest = file.by_ref().take(MAX_PAYLOAD_BYTES as u64);
            let took = rest.read_to_end(&mut piece).map_err(Error::file("read", path))?;
            let end = offset + took as u64;
            // The file may have become shorter meanwhile; then a short piece is the last one.
            let last = end >= size || took < MAX_PAYLOAD_BYTES;
            let number = self.append_entry(NodeJournalEntry::Capture { name, offset, last }, &piece)?;
            if last {
                return Ok(number);
            }
            offset = end;
        }
    }

    /// Ends the journal with a manifest. Returns the number of the End segment.
    pub fn end_journal(mut self, reason: Option<String>) -> Result<u64, Error> {
        // The journal counts as done even if the End cannot be written: the spool then writes the End later,
        // and it must not be written twice.
        self.done = true;
        self.spool.end_part(&self.run, self.attempt, false, reason)
    }

    /// Discards the journal of an abandoned run.
    pub fn discard_journal(mut self) -> Result<(), Error> {
        self.done = true;
        self.spool.lock_state().find_part(&self.run, self.attempt)?.discard_segments()
    }
}

impl Drop for NodeJournal {
    fn drop(&mut self) {
        if !self.done {
            let reason = Some("the agent abandoned the run".to_owned());
            // If this fails, the End is written when segments are released, or when the spool is opened again.
            drop(self.spool.end_part(&self.run, self.attempt, true, reason));
        }
    }
}

/// Metadata of bytes that are split into segments.
#[derive(Clone, Copy)]
struct JournalValue<'a> {
    kind: SegmentKind,
    name: &'a str,
    /// Offset of the first byte in the value.
    offset: u64,
    /// True if the value ends with the last of these bytes.
    ends: bool,
}

fn append_split_value(part: &mut SpoolPart, value: JournalValue<'_>, bytes: &[u8]) -> Result<u64, Error> {
    let JournalValue { kind, name, mut offset, ends } = value;
    let mut rest = bytes;
    // An empty value has one segment, too.
    loop {
        let (piece, remaining) = rest.split_at(rest.len().min(MAX_PAYLOAD_BYTES));
        let last = ends && remaining.is_empty();
        let segment = ResultSegment { kind, name: name.to_owned(), offset, last, payload: piece.to_vec() };
        let number = part.append_segment(&segment)?;
        if remaining.is_empty() {
            return Ok(number);
        }
        offset += piece.len() as u64;
        rest = remaining;
    }
}
