//! Reads a capture file once to learn its contents.

use super::input::{ReplayInput, ReplayPacket};
use super::{FileEnding, SkippedPackets, recording_error};
use crate::Error;
use packetrig_plan::recording::{RecordingFacts, VLAN_TAG_BYTES};
use packetrig_units::{FrameSize, Nanos};
use packetrig_wire::checksum;
use packetrig_wire::foreign::{FrameRewrite, PayloadTagPosition};
use std::fs::File;
use std::path::Path;

/// Longest frame that a port can send, bytes: the largest MTU of a plan (14 000), plus header, VLAN tag and FCS. A longer packet in a
/// file was merged by a card or by the kernel.
const MAX_SENT_FRAME_BYTES: u32 = 14_000 + 18 + 4;
/// EtherType of an 802.1Q tag.
const VLAN: [u8; 2] = [0x81, 0];

/// Summary of a capture file for a replay: what a plan needs to know, and what cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplaySurvey {
    /// Facts that a plan needs.
    pub facts: RecordingFacts,
    /// Frames that have no room for a tag.
    pub untaggable: u64,
    /// Packets that cannot be replayed.
    pub skipped: SkippedPackets,
    pub ending: FileEnding,
}

/// Reads the whole file in constant memory. Fails if `path` is not a regular file, if no frame can be replayed, or if
/// packets of the file were merged from several packets on the wire.
pub fn survey_file(path: &Path, rewrite: &FrameRewrite) -> Result<ReplaySurvey, Error> {
    let file = File::open(path).map_err(|error| recording_error(path, error))?;
    // A pipe could be surveyed, but not read again for the replay.
    if !file.metadata().is_ok_and(|about| about.is_file()) {
        return Err(recording_error(
            path,
            "it is not a regular file, and replay reads the file more than once",
        ));
    }
    let mut input = ReplayInput::new(file).map_err(|error| recording_error(path, error))?;
    let mut sums = ReplaySurveySums::default();
    let ending = loop {
        let step = input.next_packet_or_ending(&mut |picked| sums.count_packet(&picked, rewrite));
        if let Some(ending) = step.map_err(|error| recording_error(path, error))? {
            break ending;
        }
    };
    if sums.frames == 0 {
        return Err(recording_error(path, explain_no_replayable_frames(&input.skipped, &ending)));
    }
    // No link carries merged frames, so packetrig cannot replay them.
    if sums.merged > 0 {
        return Err(recording_error(path, sums.explain_merged_packets()));
    }
    Ok(ReplaySurvey {
        facts: sums.build_recording_facts(input.size()),
        untaggable: sums.untaggable,
        skipped: input.skipped,
        ending,
    })
}

fn explain_no_replayable_frames(skipped: &SkippedPackets, ending: &FileEnding) -> String {
    let reasons = skipped.describe_reasons();
    match ending {
        FileEnding::Damaged(why) if reasons.is_empty() => why.clone(),
        _ if reasons.is_empty() => "it contains no packets".to_owned(),
        _ => reasons.join("; "),
    }
}

#[derive(Debug, Default)]
struct ReplaySurveySums {
    frames: u64,
    bytes: u64,
    largest: u32,
    largest_untagged: u32,
    untaggable: u64,
    /// Frames that were merged from several packets on the wire.
    merged: u64,
    longest_merged: u32,
    /// Capture time of the first frame, and the latest capture time of all frames.
    times: Option<(u64, u64)>,
    has_fcs: bool,
    scratch: Vec<u8>,
}

impl ReplaySurveySums {
    fn count_packet(&mut self, picked: &ReplayPacket<'_>, rewrite: &FrameRewrite) {
        if self.frames == 0 {
            // Most files do not say whether their frames end with an FCS. The first frame decides for all: captures
            // are made with one setting.
            self.has_fcs = picked.has_fcs.unwrap_or_else(|| ends_with_fcs(picked.bytes));
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(picked.without_fcs(self.has_fcs));
        rewrite.rewrite_frame(&mut self.scratch);
        let size = FrameSize::from_kernel_len(self.scratch.len()).bytes();
        self.frames += 1;
        self.bytes += u64::from(size);
        self.largest = self.largest.max(size);
        let tag = if self.scratch.get(12..14) == Some(&VLAN) { VLAN_TAG_BYTES } else { 0 };
        self.largest_untagged = self.largest_untagged.max(size - tag);
        if picked.is_merged || size > MAX_SENT_FRAME_BYTES {
            self.merged += 1;
            self.longest_merged = self.longest_merged.max(size);
        }
        self.untaggable += u64::from(PayloadTagPosition::from_frame(&self.scratch).is_none());
        if let Some(at) = picked.at_ns {
            self.times = Some(self.times.map_or((at, at), |(first, latest)| (first, latest.max(at))));
        }
    }

    /// Explains why a file with merged frames is not replayed, and what the user can do.
    fn explain_merged_packets(&self) -> String {
        let Self { merged, longest_merged, .. } = self;
        format!(
            "it contains packets that a card or the kernel merged from several packets on the wire during \
            the capture (merged packets: {merged}, the longest has {longest_merged} B), and no port can send \
            such packets; capture again with merging \
            off (`ethtool -K IF gro off lro off tso off gso off`), or on another machine that the traffic passes"
        )
    }

    fn build_recording_facts(&self, file_size: u64) -> RecordingFacts {
        RecordingFacts {
            file_size,
            frames: self.frames,
            bytes: self.bytes,
            largest: FrameSize::new(self.largest),
            largest_untagged: FrameSize::new(self.largest_untagged),
            span: Nanos::new(self.times.map_or(0, |(first, latest)| latest - first)),
            has_fcs: self.has_fcs,
        }
    }
}

/// Returns whether the last four bytes are the FCS of the bytes before them; true by chance for 1 in 2^32 other frames.
fn ends_with_fcs(bytes: &[u8]) -> bool {
    bytes
        .split_last_chunk()
        .is_some_and(|(frame, fcs): (_, &[u8; 4])| frame.len() >= 14 && checksum::compute_fcs(frame) == *fcs)
}
