//! Puts a node's segments together again: result, counters, captures and manifest.
//!
//! Invariant: an incomplete value is absent, and a value is never made of pieces of two.

use crate::Error;
use crate::catalogue::{RunCatalogue, SegmentRow};
use crate::packs::SegmentPlace;
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

/// Maximum number of bytes of a packed value.
const MAX_PACKED: usize = 64 << 20;

/// A node's part in a run, put together from its segments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GatheredPart {
    /// The node's result, if it is complete.
    pub result: Option<NodeResult>,
    /// The newest complete counters.
    pub last_sample: Option<CountSample>,
    /// Capture files, in the order of their first pieces.
    pub captures: Vec<GatheredCapture>,
    /// The manifest in the node's End segment.
    pub end: Option<PartManifest>,
    /// Segments that are stored, by kind.
    pub counts: SegmentCounts,
    /// Segments below the highest number that were never stored, or were lost.
    pub missing: u64,
    /// Reasons why this is not complete. Each names the node.
    pub doubts: Vec<String>,
    /// Files that are still on the node. Each entry names it.
    pub elsewhere: Vec<String>,
}

/// A capture file of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatheredCapture {
    /// Name of the file on the node.
    pub name: String,
    /// Path of the file on this machine.
    pub file: PathBuf,
    /// Number of bytes that arrived.
    pub bytes: u64,
    /// All bytes of the file have arrived.
    pub is_whole: bool,
}

/// A run and the directory of its files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunFolder<'a> {
    pub(crate) run: &'a RunId,
    pub(crate) directory: &'a Path,
}

/// Reads the segments in `rows`, and writes the captures in them to files.
pub(crate) fn gather_part(
    folder: &RunFolder<'_>,
    catalogue: &RunCatalogue,
    attempt: u32,
    node: &NodeName,
    rows: &[SegmentRow],
) -> Result<GatheredPart, Error> {
    // The map is made with the first piece of a capture: a node without captures needs no look-up of similar names.
    let mut captures = None;
    let mut interval = PiecedValue::default();
    let mut result = PiecedValue::default();
    let mut tally = SegmentTally::default();
    let mut gathered = GatheredPart::default();
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
        // The same chain as the node's: in order, over all segments except the End.
        tally.add_segment(segment.kind, &hash);
        match segment.kind {
            SegmentKind::Interval => interval.add_segment_of_value(segment),
            SegmentKind::Result => result.add_segment_of_value(segment),
            SegmentKind::Capture => {
                let captures = match &mut captures {
                    Some(captures) => captures,
                    none => none.insert(NodeCaptures::for_node(folder, catalogue, attempt, node)?),
                };
                captures.write_capture_piece(&segment)?;
            }
            // An End that cannot be read counts as missing, and `collect_part_doubts` says that.
            SegmentKind::End => gathered.end = serde_json::from_slice(&segment.payload).ok(),
            // Already in the tally: the number is used, and its content is lost.
            SegmentKind::Lost => {}
        }
    }
    gathered.counts = tally.counts;
    // Rows are sorted by number, and numbers begin at 0 without gaps.
    let highest = rows.last().map_or(0, |last| last.number.saturating_add(1));
    gathered.missing += highest.saturating_sub(rows.len() as u64);
    if let Some(captures) = captures {
        gathered.doubts.extend(captures.refusal_doubt());
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

fn read_stored_segment(run: &Path, id: SegmentId, place: &SegmentPlace) -> Result<StoredSegment, Error> {
    let bytes = place.read_bytes(run, &id).map_err(Error::file("read", place.file_path(run, &id)))?;
    let segment = ResultSegment::from_bytes(&segment_key(&id), &bytes)
        .map_err(|source| Error::BadSegment { id, source })?;
    Ok(StoredSegment { segment, hash: ResultSegment::read_checksum(&bytes) })
}

impl GatheredPart {
    fn read_value<T: serde::de::DeserializeOwned>(
        &mut self,
        node: &NodeName,
        what: &str,
        value: &PiecedValue,
    ) -> Option<T> {
        let read = unpack_value(value.whole.as_ref()?);
        read.map_err(|error| self.doubts.push(format!("{node}: its {what} cannot be read: {error}"))).ok()
    }

    /// Collects the reasons why this data is less than the node recorded.
    fn collect_part_doubts(&mut self, node: &NodeName, chain: &str) {
        let mut doubts = Vec::new();
        if self.missing > 0 {
            doubts.push(format!("{} segments are missing", self.missing));
        }
        if self.counts.lost > 0 {
            doubts.push(format!("disk: {} segments were lost", self.counts.lost));
        }
        match &self.end {
            None => doubts.push("its final manifest is missing, so more results may exist".to_owned()),
            Some(end) => {
                if end.cut_short {
                    doubts.push(end.reason.clone().unwrap_or_else(|| "it was cut short".to_owned()));
                }
                if end.refused_captures > 0 {
                    doubts.push(format!(
                        "disk: {} captures did not fit into its spool, and were not stored",
                        end.refused_captures
                    ));
                }
                if end.refused_intervals > 0 {
                    doubts.push(format!(
                        "disk: {} of its interim counts did not fit into its spool, and were not stored",
                        end.refused_intervals
                    ));
                }
                // If segments are missing, the chain of checksums is wrong anyway, and would only repeat that.
                if self.missing == 0 && (end.counts != self.counts || end.sha256 != chain) {
                    doubts.push("its segments are not those in its manifest".to_owned());
                }
            }
        }
        let torn = self.captures.iter().filter(|capture| !capture.is_whole);
        doubts.extend(torn.map(|capture| format!("capture {} is incomplete", capture.name)));
        self.doubts.extend(doubts.into_iter().map(|doubt| format!("{node}: {doubt}")));
    }

    /// Gives captures in the result their paths on this machine. A capture that is not here gets its node's name before its path.
    fn update_capture_paths(&mut self, node: &NodeName) {
        for capture in self.result.iter_mut().flat_map(|result| &mut result.captures) {
            // The path is one of the node. Pieces carry only the file's name.
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

/// A value that arrives in pieces, and the last complete one.
#[derive(Debug, Default)]
struct PiecedValue {
    pieces: Vec<u8>,
    whole: Option<Vec<u8>>,
}

impl PiecedValue {
    fn add_segment_of_value(&mut self, segment: ResultSegment) {
        // Intervals follow one another; each starts again at offset 0. A value that never got its last piece is dropped here.
        if segment.offset == 0 {
            self.pieces.clear();
        }
        if self.pieces.len().saturating_add(segment.payload.len()) > MAX_PACKED {
            // Far larger than any result: a node must not fill the controller's memory.
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
