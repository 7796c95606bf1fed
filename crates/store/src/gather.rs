//! From a node's segments back to what it found out.
//!
//! Invariant: what is not there whole is not there; a value is never made of pieces of two.

use crate::Error;
use crate::catalogue::{RunCatalogue, SegmentRow};
use crate::packs::SegmentPlace;
use crate::segments::key;
use crate::spool::books::SegmentTally;
use crate::spool::segment::{SegmentHash, hex};
use crate::spool::value::unpack;
use crate::spool::{PartManifest, ResultSegment, SegmentCounts, SegmentKind};
use captures::NodeCaptures;
use packetrig_fleet::fabric::SegmentId;
use packetrig_fleet::{NodeName, RunId};
use packetrig_stats::result::{CountSample, NodeResult};
use std::path::{Path, PathBuf};

mod captures;

/// Most bytes of a value as it comes, packed.
const MOST_PACKED: usize = 64 << 20;

/// What a node's part in a run comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GatheredPart {
    /// The node's result, if it is there whole.
    pub result: Option<NodeResult>,
    /// The newest counts that are there whole.
    pub last_sample: Option<CountSample>,
    /// Capture files, in the order their first pieces came.
    pub captures: Vec<GatheredCapture>,
    /// What the node said at its end.
    pub end: Option<PartManifest>,
    /// Segments that are stored, by kind.
    pub counts: SegmentCounts,
    /// Numbers below the highest that are not stored, or not any more.
    pub missing: u64,
    /// What makes this less than everything; each names the node.
    pub doubts: Vec<String>,
    /// What did not come and is still at the node; each names it.
    pub elsewhere: Vec<String>,
}

/// A capture file of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatheredCapture {
    /// As the node called it.
    pub name: String,
    /// Where it is now.
    pub file: PathBuf,
    /// How many bytes of it came.
    pub bytes: u64,
    /// It is there whole.
    pub is_whole: bool,
}

/// Where the files of a run are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunFolder<'a> {
    pub(crate) run: &'a RunId,
    pub(crate) directory: &'a Path,
}

/// Reads what `rows` say is stored and writes the captures in it.
pub(crate) fn gather(
    folder: &RunFolder<'_>,
    catalogue: &RunCatalogue,
    attempt: u32,
    node: &NodeName,
    rows: &[SegmentRow],
) -> Result<GatheredPart, Error> {
    let mut captures = None;
    let (mut interval, mut result) = (PiecedValue::default(), PiecedValue::default());
    let mut tally = SegmentTally::default();
    let mut gathered = GatheredPart::default();
    for SegmentRow { number, place } in rows {
        let id = SegmentId { run: folder.run.clone(), attempt, node: node.clone(), number: *number };
        let (segment, hash) = match read(folder.directory, id, place) {
            Ok(read) => read,
            Err(error) => {
                // This disk lost what was on it; the rest is worth as much as before.
                gathered.doubts.push(format!("{node}: {error}"));
                gathered.missing += 1;
                continue;
            }
        };
        tally.add(segment.kind, &hash);
        match segment.kind {
            SegmentKind::Interval => interval.take(segment),
            SegmentKind::Result => result.take(segment),
            SegmentKind::Capture => {
                let captures = match &mut captures {
                    Some(captures) => captures,
                    none => none.insert(NodeCaptures::begin(folder, catalogue, attempt, node)?),
                };
                captures.take(&segment)?;
            }
            SegmentKind::End => gathered.end = serde_json::from_slice(&segment.payload).ok(),
            SegmentKind::Lost => {}
        }
    }
    gathered.counts = tally.counts;
    let highest = rows.last().map_or(0, |last| last.number.saturating_add(1));
    gathered.missing += highest.saturating_sub(u64::try_from(rows.len()).unwrap_or(highest));
    if let Some(captures) = captures {
        gathered.doubts.extend(captures.refused());
        gathered.captures = captures.finish()?;
    }
    gathered.last_sample = gathered.read(node, "counts", &interval);
    gathered.result = gathered.read(node, "result", &result);
    gathered.doubt(node, &hex(&tally.chain));
    gathered.name_captures(node);
    Ok(gathered)
}

fn read(run: &Path, id: SegmentId, place: &SegmentPlace) -> Result<(ResultSegment, SegmentHash), Error> {
    let bytes = place.read(run, &id).map_err(Error::file("read", place.file(run, &id)))?;
    let segment =
        ResultSegment::decode(&key(&id), &bytes).map_err(|source| Error::BadSegment { id, source })?;
    Ok((segment, ResultSegment::hash(&bytes)))
}

impl GatheredPart {
    fn read<T: serde::de::DeserializeOwned>(
        &mut self,
        node: &NodeName,
        what: &str,
        value: &PiecedValue,
    ) -> Option<T> {
        let read = unpack(value.whole.as_ref()?);
        read.map_err(|error| self.doubts.push(format!("{node}: its {what} cannot be read: {error}"))).ok()
    }

    /// Everything that makes this less than what the node wanted to say.
    fn doubt(&mut self, node: &NodeName, chain: &str) {
        let mut doubts = Vec::new();
        if self.missing > 0 {
            doubts.push(format!("{} segments are not there", self.missing));
        }
        if self.counts.lost > 0 {
            doubts.push(format!("disk: {} segments were lost", self.counts.lost));
        }
        match &self.end {
            None => doubts.push("it did not say that this is all".to_owned()),
            Some(end) => {
                if end.cut_short {
                    doubts.push(end.reason.clone().unwrap_or_else(|| "it was cut short".to_owned()));
                }
                if end.refused_captures > 0 {
                    doubts.push(format!("disk: {} captures did not fit", end.refused_captures));
                }
                if end.refused_intervals > 0 {
                    doubts.push(format!("disk: {} interval counts did not fit", end.refused_intervals));
                }
                if self.missing == 0 && (end.counts != self.counts || end.sha256 != chain) {
                    doubts.push("its segments are not those it counted".to_owned());
                }
            }
        }
        let torn = self.captures.iter().filter(|capture| !capture.is_whole);
        doubts.extend(torn.map(|capture| format!("capture {} is not whole", capture.name)));
        self.doubts.extend(doubts.into_iter().map(|doubt| format!("{node}: {doubt}")));
    }

    /// The result names captures where they are now; one that is not here, with its node.
    fn name_captures(&mut self, node: &NodeName) {
        for capture in self.result.iter_mut().flat_map(|result| &mut result.captures) {
            let name = capture.file.rsplit('/').next().unwrap_or_default();
            let here = self.captures.iter().find(|gathered| gathered.name == name);
            capture.file = if let Some(gathered) = here {
                gathered.file.to_string_lossy().into_owned()
            } else {
                self.elsewhere.push(format!("{node}: capture {name} did not come"));
                format!("{node}:{}", capture.file)
            };
        }
    }
}

/// A value from its pieces; the last that was whole.
#[derive(Debug, Default)]
struct PiecedValue {
    pieces: Vec<u8>,
    whole: Option<Vec<u8>>,
}

impl PiecedValue {
    fn take(&mut self, segment: ResultSegment) {
        if segment.offset == 0 {
            self.pieces.clear();
        }
        if self.pieces.len().saturating_add(segment.payload.len()) > MOST_PACKED {
            // Nobody's result: more than that is not held in memory for one node.
            self.pieces = Vec::new();
            return;
        }
        if u64::try_from(self.pieces.len()) != Ok(segment.offset) {
            // Pieces between are missing; the next value begins at 0.
            self.pieces.clear();
            return;
        }
        self.pieces.extend(segment.payload);
        if segment.last {
            self.whole = Some(std::mem::take(&mut self.pieces));
        }
    }
}
