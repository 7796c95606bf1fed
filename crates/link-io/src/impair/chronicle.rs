//! Observes the frames of an impairer: counts the impairer's actions, and writes a line into a file for each frame
//! that an action affects.
//!
//! A separate thread writes the file, so that forwarding never waits for a disk. If the queue to that thread is full,
//! frames are left out of the file and counted, so the user learns how many frames an incomplete file lacks.
//!
//! Invariant: arrived + copies = left + dropped + overflowed + inside (still in the impairer), at any
//! moment between two frames.

use crate::Error;
use crossbeam_channel::{Receiver, Sender, bounded};
use packetrig_link::{DIRECTION_NAMES, FrameActions, FrameIdentity, FrameObserver};
use packetrig_sys::clock::RealtimeOffset;
use packetrig_sys::private_files;
use packetrig_wire::checksum;
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// Maximum number of entries in the queue to the thread that writes the file.
const TRUTH_QUEUE_SLOTS: usize = 1 << 16;

/// Counts of the impairer's actions so far, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ImpairCounts {
    pub arrived: u64,
    /// Bytes of the frames that arrived, without FCS.
    pub arrived_bytes: u64,
    pub copies: u64,
    /// Frames that the plan dropped.
    pub dropped: u64,
    /// Frames and copies that did not fit into the queue of a limited rate.
    pub overflowed: u64,
    /// Frames that were held back until later frames had passed.
    pub held: u64,
    /// Frames that the impairment plan delays.
    pub delayed: u64,
    /// Frames with bits flipped.
    pub corrupted: u64,
    /// Frames and copies that departed.
    pub left: u64,
    /// The greatest lateness of a departure, ns: from the due time until the call that sent the frame had returned.
    pub late_most_ns: u64,
    /// The sum of the lateness of all departures, ns.
    pub late_sum_ns: u64,
}

#[derive(Debug)]
pub struct ImpairmentObserver {
    direction: usize,
    counts: ImpairCounts,
    file: Option<Sender<TruthLogEntry>>,
    untold: u64,
}

impl ImpairmentObserver {
    /// Creates the observer for frames of one of the [`DIRECTION_NAMES`].
    pub fn new(direction: usize, file: Option<&ImpairmentTruthLog>) -> Self {
        let file = file.and_then(|file| file.entries.clone());
        Self { direction, counts: ImpairCounts::default(), file, untold: 0 }
    }

    /// Returns the counts of this direction so far.
    pub fn counts(&self) -> ImpairCounts {
        self.counts
    }

    /// Returns how many frames are missing from the file because the writing thread was behind or had failed.
    pub fn unlogged_frames(&self) -> u64 {
        self.untold
    }
}

impl FrameObserver for ImpairmentObserver {
    fn on_arrival(&mut self, place: FrameIdentity, deeds: &FrameActions, bytes: &[u8]) {
        let counts = &mut self.counts;
        counts.arrived += 1;
        counts.arrived_bytes += bytes.len() as u64;
        counts.copies += u64::from(deeds.copies);
        counts.dropped += u64::from(deeds.dropped);
        counts.overflowed += u64::from(deeds.overflowed);
        counts.held += u64::from(deeds.held_for > 0);
        counts.delayed += u64::from(deeds.is_delayed);
        counts.corrupted += u64::from(deeds.corrupted.is_some());
        // Most frames pass unchanged. With a line for each of them, the file would grow as fast as the
        // traffic.
        let is_untouched =
            *deeds == FrameActions { at_ns: deeds.at_ns, due_ns: deeds.at_ns, ..FrameActions::default() };
        if let Some(file) = self.file.as_ref().filter(|_| !is_untouched) {
            // The FCS is computed only for frames that get a line, because this reads every byte.
            let fcs = u32::from_le_bytes(checksum::compute_fcs(bytes));
            let entry =
                TruthLogEntry { direction: self.direction, place, deeds: *deeds, len: bytes.len(), fcs };
            // This never waits, because waiting would add a delay that the plan did not order.
            self.untold += u64::from(file.try_send(entry).is_err());
        }
    }

    fn on_departure(&mut self, _: FrameIdentity) {
        self.counts.left += 1;
    }
}

/// A frame that the impairer changed, dropped, copied or delayed.
#[derive(Debug)]
struct TruthLogEntry {
    direction: usize,
    place: FrameIdentity,
    deeds: FrameActions,
    len: usize,
    fcs: u32,
}

/// An entry as one JSON line of the truth log.
#[derive(Serialize)]
struct TruthLogLine {
    direction: &'static str,
    /// Number of frames of this direction that arrived before this frame.
    frame: u64,
    /// Arrival time, ns since 1970.
    at_ns: u64,
    /// Length of the frame in bytes, without FCS.
    bytes: usize,
    /// The FCS with which the frame arrived, as a capture shows it.
    fcs: String,
    #[serde(skip_serializing_if = "is_false")]
    dropped: bool,
    #[serde(skip_serializing_if = "is_zero")]
    overflowed: u32,
    #[serde(skip_serializing_if = "is_zero")]
    copies: u32,
    #[serde(skip_serializing_if = "is_zero")]
    held_for: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    corrupted: Option<FrameDamage>,
}

#[derive(Serialize)]
struct FrameDamage {
    byte: u32,
    mask: u8,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde wants")]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde wants")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl TruthLogEntry {
    fn to_line(&self, offset: RealtimeOffset) -> TruthLogLine {
        let deeds = &self.deeds;
        let delay = deeds.due_ns.saturating_sub(deeds.at_ns);
        TruthLogLine {
            direction: DIRECTION_NAMES[self.direction],
            frame: self.place.position,
            // Captures have times of the wall clock, and users compare the lines of this file with captures.
            at_ns: deeds.at_ns.saturating_add_signed(offset.offset_ns),
            bytes: self.len,
            fcs: format!("{:#010x}", self.fcs),
            dropped: deeds.dropped,
            overflowed: deeds.overflowed,
            copies: deeds.copies,
            held_for: deeds.held_for,
            delay_ns: (delay > 0).then_some(delay),
            corrupted: deeds.corrupted.map(|(byte, mask)| FrameDamage { byte, mask }),
        }
    }
}

/// The truth log: a file with one line of JSON for each frame that an impairment affected.
#[derive(Debug)]
pub struct ImpairmentTruthLog {
    path: PathBuf,
    entries: Option<Sender<TruthLogEntry>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl ImpairmentTruthLog {
    /// Creates the file with `header` as its first line. `offset` is the difference between the wall clock
    /// and the monotonic clock.
    pub fn create_with_header(path: &Path, header: &str, offset: RealtimeOffset) -> Result<Self, Error> {
        let mut file =
            create_log_file(path, header).map_err(|source| Error::File { path: path.to_owned(), source })?;
        // The queue is bounded: a slow disk loses lines of the file, but does not fill the memory.
        let (entries, taken) = bounded(TRUTH_QUEUE_SLOTS);
        let thread = std::thread::Builder::new()
            .name("truth-log".into())
            .spawn(move || write_entries(&mut file, &taken, offset))
            .map_err(|source| Error::Thread { name: "truth-log".into(), source })?;
        Ok(Self { path: path.to_owned(), entries: Some(entries), thread: Some(thread) })
    }

    /// Waits until all entries are written. Call it after the last [`ImpairmentObserver`] of this file has been dropped.
    pub fn finish_file(mut self) -> Result<(), Error> {
        // Closes the queue: the thread ends when it has written the entries that are still in it.
        self.entries = None;
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let written = thread.join().map_err(|_| Error::Panicked("truth-log".into()))?;
        written.map_err(|source| Error::File { path: self.path.clone(), source })
    }
}

/// Creates the file and writes its first line.
fn create_log_file(path: &Path, header: &str) -> io::Result<BufWriter<File>> {
    let mut file = BufWriter::with_capacity(1 << 18, private_files::create_file(path)?);
    writeln!(file, "{header}")?;
    Ok(file)
}

fn write_entries(
    file: &mut impl Write,
    entries: &Receiver<TruthLogEntry>,
    offset: RealtimeOffset,
) -> io::Result<()> {
    loop {
        let entry = match entries.try_recv() {
            Ok(entry) => entry,
            // The queue is empty, so the file is flushed: a user who follows the file sees every entry.
            Err(_) => match file.flush().map(|()| entries.recv())? {
                Ok(entry) => entry,
                Err(_) => return Ok(()),
            },
        };
        serde_json::to_writer(&mut *file, &entry.to_line(offset))?;
        file.write_all(b"\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_link::{DirectionSpec, FaultPlan, FrameImpairer, ImpairSpecs};

    /// Returns the lines of the log and the counts for 2000 frames that are a microsecond apart.
    fn told(spec: &str, seed: u64) -> (Vec<serde_json::Value>, ImpairCounts) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("truth.jsonl");
        let file = ImpairmentTruthLog::create_with_header(
            &path,
            "{\"log\":\"of a test\"}",
            RealtimeOffset { offset_ns: 1_000_000, bound_ns: 1 },
        )
        .unwrap();
        let plan: FaultPlan = ImpairSpecs::same_both_ways(&spec.parse::<DirectionSpec>().unwrap())
            .to_fault_plans(seed)[0]
            .clone();
        let mut impairer = FrameImpairer::new(plan, 0, ImpairmentObserver::new(0, Some(&file)));
        for n in 0..2000u64 {
            impairer.release_due_frames(n * 1000, &mut |_, _| {});
            impairer.accept_frame(n * 1000, &n.to_be_bytes().repeat(10), &mut |_, _| {});
        }
        let chronicle = impairer.into_observer(2_000_000, &mut |_, _| {});
        let counts = chronicle.counts();
        assert_eq!(chronicle.unlogged_frames(), 0);
        drop(chronicle);
        file.finish_file().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let mut lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.remove(0)["log"], "of a test");
        (lines, counts)
    }

    #[test]
    fn impairment_log_agrees_with_counts() {
        let (lines, counts) = told("loss=2%,duplicate=3%,reorder=1%,corrupt=2%,delay=5us", 4);
        let count = |key: &str| lines.iter().filter(|line| !line[key].is_null()).count() as u64;
        assert_eq!(lines.len(), 2000, "every frame is delayed or dropped");
        assert_eq!(
            (count("dropped"), count("copies"), count("held_for")),
            (counts.dropped, counts.copies, counts.held)
        );
        assert_eq!((count("corrupted"), count("delay_ns")), (counts.corrupted, counts.delayed));
        assert_eq!(counts.arrived + counts.copies, counts.left + counts.dropped);
        assert!(
            counts.dropped > 20 && counts.copies > 30 && counts.held > 8 && counts.corrupted > 20,
            "{counts:?}"
        );
        let line = &lines[7];
        assert_eq!(
            (&line["direction"], &line["frame"], &line["at_ns"]),
            (&"a->b".into(), &7.into(), &1_007_000.into())
        );
        let fcs = u32::from_le_bytes(checksum::compute_fcs(&7u64.to_be_bytes().repeat(10)));
        assert_eq!(line["fcs"], format!("{fcs:#010x}"));
    }

    #[test]
    fn impairment_log_is_determined_by_seed() {
        let spec = "loss=gilbert:1%/30%,duplicate=burst:0.5%x3,corrupt=1%,delay=20us,jitter=10us:normal";
        assert_eq!(told(spec, 1), told(spec, 1));
        assert_ne!(told(spec, 1).0, told(spec, 2).0);
    }

    #[test]
    fn untouched_frames_are_absent_from_impairment_log() {
        let (lines, counts) = told("loss=every:100", 1);
        assert_eq!((lines.len(), counts.dropped, counts.left), (20, 20, 1980));
        assert!(
            lines.iter().all(|line| line["dropped"] == true && line["frame"].as_u64().unwrap() % 100 == 99)
        );
    }
}
