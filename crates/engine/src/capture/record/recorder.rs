//! A recording under way: frames in, files out, every frame in one account.

use super::super::encode::{self, CaptureHeader, CaptureTotals, FIXED, FrameEnvelope, FrameRecord};
use super::disk::{DiskOptions, DiskOutcome, DiskQueue, DiskTally, DiskThread, RecordTarget};
use super::feed::{BLOCK, DiskBlock, DiskFeed};
use super::kept::{KeptFrames, LostFrames};
use super::shelf::FileShelf;
use super::spec::{RecordSpec, target};
use crate::Error;
use crate::capture::numbers::TapNumbers;
use crate::port::RxFrame;
use crossbeam_channel::bounded;
use packetrig_sys::clock::RealtimeOffset;
use packetrig_units::{MonoTime, Nanos, clamp_to_u32};
use packetrig_wire::checksum;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// A block that is not full is written after this long, if nothing arrives in between.
const PATIENCE: Nanos = Nanos::from_secs(1);
/// The longest frame: more is cut.
const LONGEST: usize = BLOCK / 4;
/// Bytes of an FCS.
const FCS: usize = 4;
/// Texts in a file's header are cut to this.
const LONGEST_TEXT: usize = 8192;

#[derive(Debug)]
pub struct DirectionRecorder {
    spec: RecordSpec,
    offset: RealtimeOffset,
    feed: DiskFeed,
    tally: Arc<DiskTally>,
    thread: Option<JoinHandle<DiskOutcome>>,
    encoded: Vec<u8>,
    /// Bytes before the first record of a file.
    head: u64,
    files: u64,
    begun: MonoTime,
    /// Whether no frame is in the file yet.
    is_empty: bool,
    flushed: MonoTime,
    passed: u64,
    /// Whether a frame found the budget used up.
    is_spent: bool,
    beyond_budget: u64,
    queue_dropped: u64,
    kernel_dropped: Option<u64>,
    kept: Option<KeptFrames>,
}

/// Frames that a recorder could not write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedFrames {
    /// The queue to the disk was full.
    pub queue: u64,
    /// Writing failed.
    pub disk: u64,
}

/// What is kept of a frame: of its bytes, and of its FCS.
struct KeptBytes<'a> {
    bytes: &'a [u8],
    fcs: [u8; FCS],
    /// Bytes of the FCS that are kept.
    fcs_len: usize,
}

/// What became of a recording.
#[derive(Debug, Default)]
pub struct RecordingOutcome {
    /// Existing files, oldest first.
    pub files: Vec<PathBuf>,
    /// Older ones that were removed, as asked for.
    pub removed: u64,
    /// Frames that passed the filter.
    pub passed: u64,
    /// Frames written; those in removed files are among them.
    pub written: u64,
    /// Frames in removed files.
    pub removed_frames: u64,
    /// Frames that came when the budget was used up.
    pub beyond_budget: u64,
    /// Bytes before the first record of each file.
    pub head: u64,
    /// Frames dropped because the disk was behind and the queue full.
    pub queue_dropped: u64,
    /// Frames lost because writing failed.
    pub disk_lost: u64,
    /// Trailer numbers of a tap, if a shelf keeps the files.
    pub numbers: TapNumbers,
    /// Whether the disk was written to directly.
    pub direct: bool,
    /// Why writing failed, if it did.
    pub failure: Option<(PathBuf, std::io::Error)>,
}

impl DirectionRecorder {
    /// Makes the first file and starts the disk's thread. `offset` is that which the frames' times were made with.
    pub fn start(spec: RecordSpec, offset: RealtimeOffset, now: MonoTime) -> Result<Self, Error> {
        Self::open(spec, None, offset, now)
    }

    /// The same with files that `shelf` keeps: it hears of each. Trailers of a tap are read, going on from `known`.
    pub fn shelved(
        spec: RecordSpec,
        (shelf, known): (Box<dyn FileShelf>, TapNumbers),
        offset: RealtimeOffset,
        now: MonoTime,
    ) -> Result<Self, Error> {
        let mut recorder = Self::open(spec, Some(shelf), offset, now)?;
        recorder.kept = Some(KeptFrames::new(recorder.files, known, now));
        Ok(recorder)
    }

    fn open(
        spec: RecordSpec,
        shelf: Option<Box<dyn FileShelf>>,
        offset: RealtimeOffset,
        now: MonoTime,
    ) -> Result<Self, Error> {
        let blocks = (spec.queue / BLOCK).max(4);
        let (free_in, free) = bounded(blocks);
        // Never full: between orders to end a file and to open another come blocks with its end and its beginning.
        let (orders, orders_out) = bounded(3 * blocks + 4);
        for _ in 0..blocks {
            free_in.send(DiskBlock::new()).map_err(|_| Error::Bug("a new queue is full"))?;
        }
        let tally = Arc::new(DiskTally::default());
        let number = spec.rotation.before + 1;
        let first = target(&spec, number);
        let queue = DiskQueue { orders: orders_out, free: free_in };
        let options = DiskOptions { keep: spec.rotation.keep, zstd: spec.zstd };
        let disk = DiskThread::open(first, queue, options, Arc::clone(&tally), shelf)
            .map_err(|(path, source)| Error::File { path, source })?;
        let thread = std::thread::Builder::new()
            .name("capture-disk".into())
            .spawn(move || disk.run())
            .map_err(|source| Error::Thread { name: "capture-disk".into(), source })?;
        let mut recorder = Self {
            spec,
            offset,
            feed: DiskFeed::new(free, orders),
            tally,
            thread: Some(thread),
            encoded: Vec::with_capacity(FIXED),
            head: 0,
            files: number,
            begun: now,
            is_empty: true,
            flushed: now,
            passed: 0,
            is_spent: false,
            beyond_budget: 0,
            queue_dropped: 0,
            kernel_dropped: None,
            kept: None,
        };
        // The header of the first file is in the queue before any frame can be.
        recorder.begin();
        Ok(recorder)
    }

    /// Takes a frame. Does not wait: when the disk is behind and the queue full, the frame is counted as dropped.
    pub fn frame(&mut self, frame: &RxFrame<'_>) {
        self.frame_of(0, frame);
    }

    /// The same, of the interface with this number: 0 is the first, 1 the first of the further ones.
    pub fn frame_of(&mut self, interface: u32, frame: &RxFrame<'_>) {
        self.passed += 1;
        let kept = self.kept(frame);
        let extra = if self.spec.fcs { FCS } else { 0 };
        let record = FrameRecord {
            at_ns: self.wall(frame.at),
            kept: kept.bytes.len() + kept.fcs_len,
            full_len: clamp_to_u32(frame.full_len + extra),
            interface,
            merged: frame.merged.map(|merged| merged.segment_bytes),
        };
        let around = FrameEnvelope::around(self.spec.format, record);
        let length = around.head().len() + record.kept + around.tail().len();
        if self.is_beyond_budget(length) {
            self.beyond_budget += 1;
            return;
        }
        // `next_file` may refuse for want of blocks. Then the frame is dropped rather than written into a file that
        // is already full: a limit on the size of files is a promise.
        let is_room =
            (!self.is_full(length, frame.at) || self.next_file(frame.at)) && self.feed.reserve(length);
        // Behind the rotation: the numbers of a file are those up to its last frame.
        if let Some(shelved) = &mut self.kept {
            shelved.arrived(frame.bytes);
        }
        if !is_room {
            self.queue_dropped += 1;
            return;
        }
        // `reserve` has made sure of room for all four parts, so a record is either whole in the stream or not there.
        self.feed.put(around.head());
        self.feed.put(kept.bytes);
        self.feed.put(&kept.fcs[..kept.fcs_len]);
        self.feed.put(around.tail());
        self.feed.complete(1);
        self.is_empty = false;
        if let Some(shelved) = &mut self.kept {
            shelved.written(frame.full_len + FCS, record.at_ns);
        }
    }

    /// Begins another file, if there is anything in this one. Whether it did.
    pub fn rotate(&mut self, now: MonoTime) -> bool {
        !self.is_empty && self.next_file(now)
    }

    /// What the trailers of a tap said so far.
    pub fn numbers(&self) -> TapNumbers {
        self.kept.as_ref().map_or([None; 2], KeptFrames::numbers)
    }

    fn kept<'a>(&self, frame: &RxFrame<'a>) -> KeptBytes<'a> {
        let most = self.spec.snap_len.map_or(LONGEST, |snap| (snap as usize).min(LONGEST));
        let bytes = &frame.bytes[..frame.bytes.len().min(most)];
        // The FCS of a frame that was cut cannot be computed.
        let is_whole = bytes.len() == frame.full_len;
        // The snap length counts the FCS as part of the frame, so a cut may fall inside it.
        match (most - bytes.len()).min(FCS) {
            fcs_len @ 1.. if self.spec.fcs && is_whole => {
                KeptBytes { bytes, fcs: checksum::fcs(bytes), fcs_len }
            }
            _ => KeptBytes { bytes, fcs: [0; FCS], fcs_len: 0 },
        }
    }

    /// Whether a record of this length, or one before it, has no place in the budget.
    fn is_beyond_budget(&mut self, length: usize) -> bool {
        let end = self.feed.position() + (length + FIXED) as u64;
        self.is_spent |= self.spec.budget.is_some_and(|most| end > most);
        self.is_spent
    }

    /// To be called when nothing arrives: what waits for its block to become full goes to the disk before long, and to
    /// standard output at once.
    pub fn idle(&mut self, now: MonoTime) {
        let is_due = self.spec.target == RecordTarget::StandardOutput || now.since(self.flushed) >= PATIENCE;
        if is_due && self.feed.is_waiting() {
            self.feed.flush();
            self.flushed = now;
        }
    }

    /// To be called now and then: where files are kept, time ends them also when nothing arrives.
    pub fn mind_files(&mut self, now: MonoTime) {
        let Some(kept) = &mut self.kept else { return };
        if kept.is_look_due(now) {
            self.feed.look();
        }
        if self.spec.rotation.every.is_some_and(|every| now.since(self.begun) >= every) {
            self.rotate(now);
        }
    }

    /// Frames that the kernel lost so far, to be written into the files.
    pub fn lost_before(&mut self, frames: u64) {
        self.kernel_dropped = Some(frames);
    }

    /// Frames dropped so far.
    pub fn dropped(&self) -> DroppedFrames {
        DroppedFrames { queue: self.queue_dropped, disk: self.tally.lost.load(Ordering::Acquire) }
    }

    /// Whether writing has failed, so that going on makes no sense.
    pub fn has_failed(&self) -> bool {
        self.tally.failed.load(Ordering::Acquire)
    }

    /// Ends the last file and waits for the disk.
    pub fn finish(mut self, now: MonoTime) -> Result<RecordingOutcome, Error> {
        let numbers = self.numbers();
        let done = self.close(now)?.ok_or(Error::Bug("a recording ended twice"))?;
        Ok(RecordingOutcome {
            files: done.files.into(),
            removed: done.removed,
            passed: self.passed,
            written: self.tally.written.load(Ordering::Acquire),
            removed_frames: done.removed_frames,
            beyond_budget: self.beyond_budget,
            head: self.head,
            queue_dropped: self.queue_dropped,
            disk_lost: self.tally.lost.load(Ordering::Acquire),
            numbers,
            direct: done.direct,
            failure: done.failure,
        })
    }

    fn close(&mut self, now: MonoTime) -> Result<Option<DiskOutcome>, Error> {
        let Some(thread) = self.thread.take() else { return Ok(None) };
        self.end(now);
        self.feed.flush();
        self.report_file(now);
        // The disk's thread ends when there can be no more orders.
        // Replacing the feed drops the only sender of orders; that is what ends the disk thread's loop.
        self.feed = DiskFeed::new(crossbeam_channel::never(), bounded(0).0);
        thread.join().map(Some).map_err(|_| Error::Panicked("capture-disk".into()))
    }

    fn wall(&self, at: MonoTime) -> u64 {
        at.as_nanos().saturating_add_signed(self.offset.offset_ns)
    }

    /// Whether a record of this length at this time belongs into another file. A file has at least one.
    fn is_full(&self, length: usize, at: MonoTime) -> bool {
        let rotation = self.spec.rotation;
        let end = self.feed.position() + (length + FIXED) as u64;
        let elapsed = at.since(self.begun);
        !self.is_empty
            && (rotation.bytes.is_some_and(|most| end > most)
                || rotation.every.is_some_and(|every| elapsed >= every))
    }

    /// Goes on with the next file; `false` if the queue has no room for that now.
    fn next_file(&mut self, at: MonoTime) -> bool {
        // The end of this file may take one more block, the beginning of the next another.
        if !self.feed.hold(3) {
            return false;
        }
        self.end(at);
        self.report_file(at);
        self.files += 1;
        self.feed.next_file(target(&self.spec, self.files));
        self.begun = at;
        self.is_empty = true;
        self.begin();
        true
    }

    /// Says of the file at hand what it came to.
    fn report_file(&mut self, now: MonoTime) {
        let span_ns = (self.wall(self.begun), self.wall(now));
        let lost = LostFrames { kernel: self.kernel_dropped.unwrap_or(0), queue: self.queue_dropped };
        if let Some(kept) = &mut self.kept {
            self.feed.end_file(kept.end_file(span_ns, lost));
        }
    }

    fn begin(&mut self) {
        let system = format!("Linux {}", packetrig_sys::kernel::release());
        let header = CaptureHeader {
            interface: &self.spec.interface,
            further: &self.spec.further,
            comment: cut(&self.spec.comment),
            system: &system,
            filter: cut(&self.spec.filter),
            snap_len: self.spec.snap_len,
            fcs: self.spec.fcs,
        };
        encode::begin(self.spec.format, &header, &mut self.encoded);
        self.head = self.encoded.len() as u64;
        self.put_encoded();
    }

    fn end(&mut self, now: MonoTime) {
        let by_kernel = self.kernel_dropped.unwrap_or(0);
        let totals = CaptureTotals {
            from_ns: Some(self.wall(self.begun)),
            to_ns: self.wall(now),
            received: self.passed + by_kernel,
            dropped: by_kernel + self.queue_dropped + self.beyond_budget,
            by_kernel: self.kernel_dropped,
            of_all: !self.spec.further.is_empty(),
        };
        encode::end(self.spec.format, totals, &mut self.encoded);
        self.put_encoded();
    }

    fn put_encoded(&mut self) {
        // Without room the file lacks its statistics; the frames are counted all the same.
        if self.feed.reserve(self.encoded.len()) {
            self.feed.put(&self.encoded);
            self.feed.complete(0);
        }
        self.encoded.clear();
    }
}

impl Drop for DirectionRecorder {
    fn drop(&mut self) {
        // An error was of interest only to `finish`, which was not called.
        drop(self.close(self.begun));
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST_TEXT)]
}
