//! The writing end: what one run and attempt of this node comes to.

use super::ResultSpool;
use super::error::Error;
use super::part::SpoolPart;
use super::segment::{NAME_ROOM, PAYLOAD_ROOM, ResultSegment, SegmentKind};
use super::value::pack;
use packetrig_fleet::RunId;
use packetrig_stats::result::{CountSample, NodeResult};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// What is appended. The End is [`NodeJournal::end`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalEntry<'a> {
    Interval,
    Result,
    /// A part of a capture file.
    Capture {
        name: &'a str,
        /// Where in the file the bytes belong.
        offset: u64,
        /// The file ends with them.
        last: bool,
    },
}

impl JournalEntry<'_> {
    const fn kind(&self) -> SegmentKind {
        match self {
            Self::Interval => SegmentKind::Interval,
            Self::Result => SegmentKind::Result,
            Self::Capture { .. } => SegmentKind::Capture,
        }
    }
}

/// Takes what a node has to say, in order. Dropped without [`NodeJournal::end`] it ends as one that was cut short.
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

    /// Keeps `bytes`, cut into segments. When this returns they are on the disk. Gives the number of the last.
    pub fn append(&mut self, entry: JournalEntry<'_>, bytes: &[u8]) -> Result<u64, Error> {
        let kind = entry.kind();
        let (name, from, ends) = match entry {
            JournalEntry::Capture { name, offset, last } => (name, offset, last),
            JournalEntry::Interval | JournalEntry::Result => ("", 0, true),
        };
        if name.len() > NAME_ROOM {
            return Err(Error::Value(format!("the name {name} is longer than {NAME_ROOM} B")));
        }
        let mut state = self.spool.state();
        state.admit(&self.run, self.attempt, kind, bytes.len())?;
        if kind == SegmentKind::Result {
            let write = |part: &mut SpoolPart| append_cut(part, kind, (name, from, ends), bytes);
            return state.write_last((&self.run, self.attempt), write);
        }
        let part = state.part(&self.run, self.attempt)?;
        let written = append_cut(part, kind, (name, from, ends), bytes);
        state.as_full(written)
    }

    /// Keeps the counts so far.
    pub fn interval(&mut self, sample: &CountSample) -> Result<u64, Error> {
        let bytes = pack(sample).map_err(|error| Error::Value(error.to_string()))?;
        self.append(JournalEntry::Interval, &bytes)
    }

    pub fn result(&mut self, result: &NodeResult) -> Result<u64, Error> {
        let bytes = pack(result).map_err(|error| Error::Value(error.to_string()))?;
        self.append(JournalEntry::Result, &bytes)
    }

    /// Keeps a capture file that is complete.
    pub fn capture(&mut self, name: &str, path: &Path) -> Result<u64, Error> {
        let read = |error| Error::file("read", path)(error);
        let mut file = File::open(path).map_err(read)?;
        let size = file.metadata().map_err(read)?.len();
        // All of it or nothing, as far as can be told before.
        let mut state = self.spool.state();
        state.admit(
            &self.run,
            self.attempt,
            SegmentKind::Capture,
            usize::try_from(size).unwrap_or(usize::MAX),
        )?;
        drop(state);
        let (mut piece, mut offset) = (Vec::new(), 0);
        loop {
            piece.clear();
            let room = u64::try_from(PAYLOAD_ROOM).unwrap_or(u64::MAX);
            let took = file.by_ref().take(room).read_to_end(&mut piece).map_err(read)?;
            let end = offset + u64::try_from(took).unwrap_or(u64::MAX);
            let last = end >= size || took < PAYLOAD_ROOM;
            let number = self.append(JournalEntry::Capture { name, offset, last }, &piece)?;
            if last {
                return Ok(number);
            }
            offset = end;
        }
    }

    /// Nothing more comes. Gives the number of the End.
    pub fn end(mut self, reason: Option<String>) -> Result<u64, Error> {
        self.done = true;
        self.spool.end(&self.run, self.attempt, false, reason)
    }

    /// The run was given up and nobody wants to hear of it.
    pub fn discard(mut self) -> Result<(), Error> {
        self.done = true;
        self.spool.state().part(&self.run, self.attempt)?.discard()
    }
}

impl Drop for NodeJournal {
    fn drop(&mut self) {
        if !self.done {
            let reason = Some("the agent gave the run up".to_owned());
            // What fails here is done when the spool is opened again.
            drop(self.spool.end(&self.run, self.attempt, true, reason));
        }
    }
}

fn append_cut(
    part: &mut SpoolPart,
    kind: SegmentKind,
    (name, mut offset, ends): (&str, u64, bool),
    bytes: &[u8],
) -> Result<u64, Error> {
    let mut rest = bytes;
    loop {
        let (piece, behind) = rest.split_at(rest.len().min(PAYLOAD_ROOM));
        let last = ends && behind.is_empty();
        let segment = ResultSegment { kind, name: name.to_owned(), offset, last, payload: piece.to_vec() };
        let number = part.append(&segment)?;
        if behind.is_empty() {
            return Ok(number);
        }
        offset += u64::try_from(piece.len()).unwrap_or(u64::MAX);
        rest = behind;
    }
}
