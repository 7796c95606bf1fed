//! Merges captures of one link into one file. Each packet that occurs in at least one capture is in the file once, with
//! the names of the captures that have it.
//!
//! ```text
//!  each capture: survey (times, cuts, sample) -> relation of its clock to that of the first capture
//!  all captures, by time: PacketMerger -> MergedFile: an interface for each set of captures that has a packet
//! ```
//! No capture is held in memory, so the files may be of any size. Instead, each capture is read twice, or three times
//! if packets were cut; the last reading merges, the others find out how to compare the captures. A directory is a
//! [log], and its files are one capture.
//!
//! Invariant: packets of a capture = merged packets that it has; missing = merged packets that it lacks between its
//! first and its last packet.

mod input;
mod output;
mod survey;

use crate::log;
use input::CaptureReader;
use output::MergedFile;
use packetrig_link::merge::{
    CaptureSet, CapturedPacket, ClockDrift, ClockRelation, ClockStep, MAX_CAPTURES, MergedPacket,
    PacketContent, PacketMerger,
};
use packetrig_units::{Nanos, clamp_to_u32};
use packetrig_wire::pcap::CaptureRecord;
use std::io;
use std::path::{Path, PathBuf};
use survey::CaptureSurvey;

/// Largest time by which packets of a capture may be out of order. Captures from several queues are out of
/// order by the time between two visits to a ring.
const MAX_CAPTURE_DISORDER_NS: u64 = 200_000_000;
/// Minimum tolerance. Only equal packets whose times differ by at most the tolerance can count as one packet.
const MIN_TOLERANCE: Nanos = Nanos::from_millis(1);

/// Errors of a merge.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("a merge needs 2 to {MAX_CAPTURES} captures, not {0}")]
    Count(usize),
    /// A capture file or the output file cannot be read or written.
    #[error("cannot {what} {}: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{}: {why}", path.display())]
    NoCapture { path: PathBuf, why: String },
    #[error(
        "{} is not a regular file, and a merge reads each capture more than once; save it as a file first",
        .0.display()
    )]
    NotAFile(PathBuf),
    /// The directory contains no files of a log.
    #[error("directory {} contains no files of a log (log-00001.pcapng, ...)", .0.display())]
    NoLog(PathBuf),
    #[error(transparent)]
    Log(#[from] log::Error),
    /// The output file is one of the captures.
    #[error("{} is one of the captures to merge; write to another file", .0.display())]
    IntoItself(PathBuf),
    #[error(
        "{one} and {other} have no packet in common: they are from different links or times, or no packet \
        has unique content"
    )]
    NothingInCommon { one: String, other: String },
}

/// Makes the error of a file that could not be read or written; `what` is the verb for the message.
fn file_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { what, path, source }
}

#[derive(Clone, Debug)]
pub struct MergeOptions {
    /// Capture files, and directories of logs. The result uses the clock of the first capture.
    pub captures: Vec<PathBuf>,
    /// The file to write.
    pub into: PathBuf,
    /// Largest difference between the time stamps of one packet; by default, four times the largest
    /// difference in the samples, but at least 1 ms.
    pub tolerance: Option<Nanos>,
    /// Limit for the bytes of packets that wait for their copies in other captures.
    pub memory: usize,
}

/// Result of a merge.
#[derive(Clone, Debug)]
pub struct MergeReport {
    /// Number of packets in the merged file.
    pub packets: u64,
    /// Packets that every capture has.
    pub in_all: u64,
    pub tolerance: Nanos,
    /// Packets that had to be written before all captures were read up to their time, because memory was
    /// short. They may be in the result twice.
    pub early: u64,
    pub captures: Vec<CaptureReport>,
}

/// Counts and clock of one capture.
#[derive(Clone, Debug)]
pub struct CaptureReport {
    /// The capture's name in the result.
    pub name: String,
    pub packets: u64,
    /// Packets that no other capture has.
    pub only_here: u64,
    /// Packets of other captures that this capture lacks, between its first and its last packet.
    pub missing: u64,
    /// Packets of other captures that came before this capture's first packet or after its last packet.
    pub outside: u64,
    /// The capture's clock against that of the first capture; absent for the first.
    pub clock: Option<CaptureClock>,
    /// Damage, cut ends and other reasons why packets may be hidden.
    pub damages: Vec<String>,
    pub remarks: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct CaptureClock {
    /// The first capture's clock minus this capture's clock, at the first common packet.
    pub ahead_ns: i64,
    /// Absent if the captures are too short to determine the drift.
    pub drift: Option<ClockDrift>,
    /// Greatest distance between the time stamps of one packet after the clocks have been aligned.
    pub jitter: Nanos,
    /// Number of packet pairs from which the clock was computed.
    pub pairs: usize,
    pub steps: Vec<ClockStep>,
}

/// A capture with the data that the merge needs in advance.
struct SurveyedCapture {
    name: String,
    files: Vec<PathBuf>,
    survey: CaptureSurvey,
    relation: Option<ClockRelation>,
}

/// Merges captures into one file.
pub fn merge_captures(options: &MergeOptions) -> Result<MergeReport, Error> {
    let count = options.captures.len();
    if !(2..=MAX_CAPTURES).contains(&count) {
        return Err(Error::Count(count));
    }
    let (captures, compared) = survey_captures(options)?;
    let jitters = captures.iter().filter_map(|capture| capture.relation.as_ref().map(ClockRelation::jitter));
    // Four times the largest difference in the samples, because the samples contain only a part of the
    // packets.
    let usual = jitters.max().map_or(MIN_TOLERANCE, |jitter| Nanos::new(4 * jitter.as_u64()));
    let usual = usual.max(MIN_TOLERANCE);
    let tolerance = options.tolerance.unwrap_or(usual);
    let mut report = MergeReport { packets: 0, in_all: 0, tolerance, early: 0, captures: Vec::new() };
    report.captures = captures.iter().map(SurveyedCapture::to_report).collect();
    // The output is created only after all captures have turned out to be comparable.
    let mut file = MergedFile::create_partial_file(&options.into, &report)?;
    let mut merging = MergeRun {
        inlets: captures.iter().map(CaptureCursor::open_capture).collect::<Result<_, _>>()?,
        merger: PacketMerger::new(tolerance),
        compared,
        memory: options.memory,
        early: 0,
    };
    while let Some(packet) = merging.next_packet()? {
        count_packet(&mut report, &captures, &packet);
        file.write_packet(&packet)?;
    }
    report.early = merging.early;
    file.finish_file()?;
    Ok(report)
}

/// Reads every capture. Also returns how many bytes of packets are comparable: all (`None`) unless packets were cut.
fn survey_captures(options: &MergeOptions) -> Result<(Vec<SurveyedCapture>, Option<usize>), Error> {
    let sources = input::find_capture_files(&options.captures, &options.into)?;
    let surveys =
        |compared| sources.iter().map(move |source| survey::survey_capture(&source.files, compared));
    let mut surveyed = surveys(None).collect::<Result<Vec<_>, _>>()?;
    // All captures use the same length, so that a packet has the same identity in each of them.
    let compared = surveyed.iter().filter_map(|survey| survey.shortest_cut).min();
    // Truncated packets can be compared only by the bytes that all captures kept, so the samples are taken
    // again with that length.
    if compared.is_some() {
        surveyed = surveys(compared).collect::<Result<Vec<_>, _>>()?;
    }
    let relations = relate_clocks(&sources, &surveyed)?;
    let all = sources.into_iter().zip(surveyed).zip(relations);
    let captures = all.map(|((source, survey), relation)| SurveyedCapture {
        name: source.name,
        files: source.files,
        survey,
        relation,
    });
    Ok((captures.collect(), compared))
}

/// Computes the relation of each capture's clock to the clock of the first capture. The first capture itself and
/// empty captures have none.
fn relate_clocks(
    sources: &[input::CaptureSource],
    surveyed: &[CaptureSurvey],
) -> Result<Vec<Option<ClockRelation>>, Error> {
    let mut relations = vec![None];
    for (source, survey) in sources.iter().zip(surveyed).skip(1) {
        let relation = ClockRelation::between_samples(&surveyed[0].sample, &survey.sample);
        // An empty capture has no clock, and needs none.
        if relation.is_none() && survey.packets > 0 {
            return Err(Error::NothingInCommon { one: sources[0].name.clone(), other: source.name.clone() });
        }
        relations.push(relation);
    }
    Ok(relations)
}

fn count_packet(report: &mut MergeReport, captures: &[SurveyedCapture], packet: &MergedPacket) {
    report.packets += 1;
    report.in_all += u64::from(packet.captures == CaptureSet::first_captures(captures.len()));
    for (index, capture) in captures.iter().enumerate() {
        let counts = &mut report.captures[index];
        if packet.captures.has_capture(index) {
            counts.packets += 1;
            counts.only_here += u64::from(packet.captures.count() == 1);
        } else if capture.covers_time(packet.at_ns) {
            counts.missing += 1;
        } else {
            counts.outside += 1;
        }
    }
}

impl SurveyedCapture {
    fn to_reference(&self, number: u64, at_ns: u64) -> u64 {
        self.relation.as_ref().map_or(at_ns, |relation| relation.to_reference(number, at_ns))
    }

    /// True if a time, in the clock of the first capture, lies between the capture's first and last packet.
    fn covers_time(&self, at_ns: u64) -> bool {
        let Some((first, last)) = self.survey.times_ns else { return false };
        // These packet numbers select the first and the last section of the clock relation, which changes at
        // clock steps.
        (self.to_reference(0, first)..=self.to_reference(self.survey.packets, last)).contains(&at_ns)
    }

    fn to_report(&self) -> CaptureReport {
        let clock = self.relation.as_ref().map(|relation| CaptureClock {
            ahead_ns: relation.initial_clock_difference_ns(),
            drift: relation.drift(),
            jitter: relation.jitter(),
            pairs: relation.pair_count(),
            steps: relation.clock_steps(),
        });
        CaptureReport {
            name: self.name.clone(),
            packets: 0,
            only_here: 0,
            missing: 0,
            outside: 0,
            clock,
            damages: self.survey.damages.clone(),
            remarks: self.survey.remarks.clone(),
        }
    }
}

/// A capture during the merge, and its next packet.
struct CaptureCursor<'a> {
    capture: &'a SurveyedCapture,
    reader: CaptureReader,
    number: u64,
    /// Time of the next packet in the clock of the first capture; `None` at the end.
    next_ns: Option<u64>,
}

impl<'a> CaptureCursor<'a> {
    fn open_capture(capture: &'a SurveyedCapture) -> Result<Self, Error> {
        let reader = CaptureReader::new(&capture.files)?;
        let mut inlet = Self { capture, reader, number: 0, next_ns: None };
        inlet.advance_to_next_packet()?;
        Ok(inlet)
    }

    fn advance_to_next_packet(&mut self) -> Result<(), Error> {
        let at_ns = self.reader.advance_to_next_packet()?;
        self.next_ns = at_ns.map(|at_ns| self.capture.to_reference(self.number, at_ns));
        // Packets are counted as in the survey, because `to_reference` finds the section of a clock by this number.
        self.number += 1;
        Ok(())
    }
}

struct MergeRun<'a> {
    inlets: Vec<CaptureCursor<'a>>,
    merger: PacketMerger,
    compared: Option<usize>,
    /// Limit for waiting bytes: [`MergeOptions::memory`].
    memory: usize,
    /// Number of early packets: [`MergeReport::early`].
    early: u64,
}

impl MergeRun<'_> {
    /// Returns the next packet of the result.
    fn next_packet(&mut self) -> Result<Option<MergedPacket>, Error> {
        while let Some((next_ns, capture)) = self.find_earliest_capture() {
            // A capture may still contain an unread packet that is this much older.
            let settled_ns = next_ns.saturating_sub(self.merger.tolerance_ns() + MAX_CAPTURE_DISORDER_NS);
            if let Some(packet) = self.merger.take_earliest_before(settled_ns) {
                return Ok(Some(packet));
            }
            // Memory is limited: the earliest packet leaves, although another capture may still have it.
            if self.merger.waiting_bytes() > self.memory {
                self.early += 1;
                return Ok(self.merger.take_earliest_packet());
            }
            self.offer_packet(capture, next_ns)?;
        }
        Ok(self.merger.take_earliest_packet())
    }

    /// Finds the earliest packet that is still to be read. Returns its time and the index of its capture.
    fn find_earliest_capture(&self) -> Option<(u64, usize)> {
        // The time decides first; at equal times the capture with the lower number goes first.
        self.inlets.iter().enumerate().filter_map(|(capture, inlet)| Some((inlet.next_ns?, capture))).min()
    }

    fn offer_packet(&mut self, capture: usize, at_ns: u64) -> Result<(), Error> {
        let inlet = &mut self.inlets[capture];
        let record = inlet.reader.current_packet();
        let identity = PacketContent::from_record(&record).compute_identity(self.compared);
        self.merger.offer_packet(capture, at_ns, identity, to_packet_without_fcs(&record));
        inlet.advance_to_next_packet()
    }
}

/// Converts a packet for the result, without FCS: a packet may have its FCS in some captures, and
/// not in other captures.
fn to_packet_without_fcs(record: &CaptureRecord<'_>) -> CapturedPacket {
    let content = PacketContent::from_record(record);
    let has_fcs = record.has_fcs == Some(true);
    // Without an FCS the record stays whole, with the trailer of a tap if it has one.
    let bytes = if has_fcs { content.bytes } else { record.bytes };
    let full_len = if has_fcs { clamp_to_u32(content.full_len) } else { record.full_len };
    CapturedPacket { bytes: bytes.to_vec(), full_len, link_type: record.link_type, merged: record.merged }
}
