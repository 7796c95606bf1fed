//! Puts a node's segments together again: result, counters, captures and manifest.
//!
//! Invariant: an incomplete value is absent, and a value never contains pieces of two different values.

use crate::Error;
use crate::catalogue::{RunCatalogue, SegmentRow};
use crate::packs::SegmentLocation;
use crate::segments::segment_key;
use crate::spool::manifest::SegmentTally;
use crate::spool::segment::{SegmentHash, hash_in_hex};
use crate::spool::value::unpack_value;
use crate::spool::{PartManifest, ResultSegment, SegmentCounts, SegmentKind};
use captures::NodeCaptures;
use packetrig_fleet::fabric::SegmentId;
use packetrig_report::{NodeName, RunId};
use packetrig_stats::result::{CountSample, NodeResult};
use std::path::{Path, PathBuf};

mod captures;

/// Longest compressed value that is put together from segments, in bytes: a node must not fill the controller's memory.
const MAX_ASSEMBLED_VALUE_BYTES: usize = 64 << 20;

/// A node's part in a run, put together from its segments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AssembledPart {
    /// The node's result, if it is complete.
    pub result: Option<NodeResult>,
    /// The newest interim counters that are complete.
    pub last_sample: Option<CountSample>,
    /// Capture files, in the order of their first pieces.
    pub captures: Vec<AssembledCapture>,
    /// The manifest in the node's End segment.
    pub end: Option<PartManifest>,
    /// Number of segments that could be read, by kind.
    pub counts: SegmentCounts,
    /// Segments below the highest number that were never stored, or that this machine's disk has lost or damaged.
    pub missing: u64,
    /// Reasons why this part is incomplete. Each text begins with the node's name.
    pub doubts: Vec<String>,
    /// Capture files that did not arrive. Each text begins with the node's name.
    pub elsewhere: Vec<String>,
}

/// A capture file of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssembledCapture {
    /// Name of the file on the node.
    pub name: String,
    /// Path of the file on this machine.
    pub file: PathBuf,
    /// Number of bytes that arrived.
    pub bytes: u64,
    /// True if all bytes of the file have arrived.
    pub is_whole: bool,
}

/// A run and the directory of its files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunFolder<'a> {
    pub(crate) run: &'a RunId,
    pub(crate) directory: &'a Path,
}

/// Reads the segments in `rows`, and writes the captures in them to files.
pub(crate) fn assemble_part_from_segments(
    folder: &RunFolder<'_>,
    catalogue: &RunCatalogue,
    attempt: u32,
    node: &NodeName,
    rows: &[SegmentRow],
) -> Result<AssembledPart, Error> {
    // The captures are prepared at the first piece of a capture, so that a node without captures needs no
    // look-up of similar names.
    let mut captures = None;
    let mut interval = ValueAssembler::default();
    let mut result = ValueAssembler::default();
    let mut tally = SegmentTally::default();
    let mut gathered = AssembledPart::default();
    for SegmentRow { number, place } in rows {
        let id = SegmentId { run: folder.run.clone(), attempt, node: node.clone(), number: *number };
        let StoredSegment { segment, hash } = match read_stored_segment(folder.directory, id, place) {
            Ok(read) => read,
            Err(error) => {
                // This machine's disk has lost or damaged the segment. The other segments are still good.
                gathered.doubts.push(format!("{node}: {error}"));
                gathered.missing += 1;
                continue;
            }
        };
        // The node computes the same chain: in order, over all segments except the End.
        tally.add_segment(segment.kind, &hash);
        match segment.kind {
            SegmentKind::Interval => interval.add_piece(segment),
            SegmentKind::Result => result.add_piece(segment),
            SegmentKind::Capture => {
                let captures = match &mut captures {
                    Some(captures) => captures,
                    none => none.insert(NodeCaptures::for_node(folder, catalogue, attempt, node)?),
                };
                captures.write_capture_piece(&segment)?;
            }
            // An End that cannot be read counts as missing, and `collect_part_doubts` says that.
            SegmentKind::End => gathered.end = serde_json::from_slice(&segment.payload).ok(),
            // The tally counts this segment already. Its number is used, and its content is lost.
            SegmentKind::Lost => {}
        }
    }
    gathered.counts = tally.counts;
    // Rows are sorted by number. The node numbers its segments from 0 without gaps.
    let highest = rows.last().map_or(0, |last| last.number.saturating_add(1));
    gathered.missing += highest.saturating_sub(rows.len() as u64);
    if let Some(captures) = captures {
        gathered.doubts.extend(captures.describe_refused_capture_pieces());
        gathered.captures = captures.finish_files()?;
    }
    gathered.last_sample = gathered.read_value(node, "counts", &interval);
    gathered.result = gathered.read_value(node, "result", &result);
    gathered.collect_part_doubts(node, &hash_in_hex(&tally.chain));
    gathered.update_capture_paths(node);
    Ok(gathered)
}

struct StoredSegment {
    segment: ResultSegment,
    hash: SegmentHash,
}

fn read_stored_segment(run: &Path, id: SegmentId, place: &SegmentLocation) -> Result<StoredSegment, Error> {
    let bytes = place.read_bytes(run, &id).map_err(Error::file("read", place.file_path(run, &id)))?;
    let segment = ResultSegment::from_bytes(&segment_key(&id), &bytes)
        .map_err(|source| Error::BadSegment { id, source })?;
    Ok(StoredSegment { segment, hash: ResultSegment::read_checksum(&bytes) })
}

impl AssembledPart {
    fn read_value<T: serde::de::DeserializeOwned>(
        &mut self,
        node: &NodeName,
        what: &str,
        value: &ValueAssembler,
    ) -> Option<T> {
        let read = unpack_value(value.whole.as_ref()?);
        read.map_err(|error| self.doubts.push(format!("{node}: its {what} cannot be read: {error}"))).ok()
    }

    /// Collects the reasons why this part may have less data than the node recorded.
    fn collect_part_doubts(&mut self, node: &NodeName, chain: &str) {
        let mut doubts = Vec::new();
        if self.missing > 0 {
            doubts.push(format!("segments missing: {}", self.missing));
        }
        if self.counts.lost > 0 {
            doubts.push(format!("disk: segments lost: {}", self.counts.lost));
        }
        match &self.end {
            None => doubts.push("its final manifest is missing, so more results may exist".to_owned()),
            Some(end) => {
                if end.cut_short {
                    doubts.push(
                        end.reason.clone().unwrap_or_else(|| "its part of the run ended early".to_owned()),
                    );
                }
                if end.refused_captures > 0 {
                    doubts.push(format!(
                        "disk: captures that did not fit into its spool, and were not stored: {}",
                        end.refused_captures
                    ));
                }
                if end.refused_intervals > 0 {
                    doubts.push(format!(
                        "disk: interim counts that did not fit into its spool, and were not stored: {}",
                        end.refused_intervals
                    ));
                }
                // If segments are missing, the chain of checksums differs anyway, and a second message would
                // say nothing new.
                if self.missing == 0 && (end.counts != self.counts || end.sha256 != chain) {
                    doubts.push("its segments do not match its manifest".to_owned());
                }
            }
        }
        let torn = self.captures.iter().filter(|capture| !capture.is_whole);
        doubts.extend(torn.map(|capture| format!("capture {} is incomplete", capture.name)));
        self.doubts.extend(doubts.into_iter().map(|doubt| format!("{node}: {doubt}")));
    }

    /// Replaces the paths of captures in the result by their paths on this machine. If a capture did not
    /// arrive, the node's name is put before its path.
    fn update_capture_paths(&mut self, node: &NodeName) {
        for capture in self.result.iter_mut().flat_map(|result| &mut result.captures) {
            // The path is valid on the node. Segments contain only the file's name.
            let name = capture.file.rsplit('/').next().unwrap_or_default();
            let here = self.captures.iter().find(|gathered| gathered.name == name);
            capture.file = if let Some(gathered) = here {
                gathered.file.to_string_lossy().into_owned()
            } else {
                self.elsewhere.push(format!("{node}: capture {name} did not arrive"));
                format!("{node}:{}", capture.file)
            };
        }
    }
}

/// Puts the pieces of a value together, and keeps the last complete value.
#[derive(Debug, Default)]
struct ValueAssembler {
    pieces: Vec<u8>,
    whole: Option<Vec<u8>>,
}

impl ValueAssembler {
    fn add_piece(&mut self, segment: ResultSegment) {
        // Intervals follow one another, and each starts at offset 0. A value whose last piece never arrived
        // is dropped here.
        if segment.offset == 0 {
            self.pieces.clear();
        }
        if self.pieces.len().saturating_add(segment.payload.len()) > MAX_ASSEMBLED_VALUE_BYTES {
            // This is far larger than any result. The limit keeps a node from filling the controller's
            // memory.
            self.pieces = Vec::new();
            return;
        }
        if u64::try_from(self.pieces.len()) != Ok(segment.offset) {
            // A piece before this one is missing. The next value begins at offset 0.
            self.pieces.clear();
            return;
        }
        self.pieces.extend(segment.payload);
        if segment.last {
            self.whole = Some(std::mem::take(&mut self.pieces));
        }
    }
}
