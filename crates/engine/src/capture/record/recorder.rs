//! A running recording: encodes frames, starts new files, and counts every frame exactly once.

use super::super::encode::{
    self, CaptureHeader, CaptureTotals, FrameEnvelope, FrameRecord, MAX_FILE_OVERHEAD_BYTES,
};
use super::disk::{DiskCounters, DiskOptions, DiskOutcome, DiskQueue, DiskThread, RecordTarget};
use super::feed::{CAPTURE_BLOCK_BYTES, DiskBlock, DiskBlockQueue};
use super::file_keeper::RecordedFileKeeper;
use super::kept::{CurrentFileFacts, LostFrames};
use super::spec::{RecordSpec, numbered_target};
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

/// Shortest time between two writes of partly filled blocks to a file. Such a write happens only when no frame arrives.
const BLOCK_FLUSH_TIMEOUT: Nanos = Nanos::from_secs(1);
/// Longest frame that is recorded; longer ones are cut.
const MAX_RECORDED_FRAME_BYTES: usize = CAPTURE_BLOCK_BYTES / 4;
/// Bytes of an FCS.
const FCS_BYTES: usize = 4;
/// Texts in a file header are cut to this length.
const MAX_HEADER_TEXT_BYTES: usize = 8192;

#[derive(Debug)]
pub struct CaptureRecorder {
    spec: RecordSpec,
    offset: RealtimeOffset,
    feed: DiskBlockQueue,
    tally: Arc<DiskCounters>,
    thread: Option<JoinHandle<DiskOutcome>>,
    encoded: Vec<u8>,
    /// Number of bytes before the first record of a file.
    head: u64,
    files: u64,
    begun: MonoTime,
    /// Whether no frame is in the file yet.
    is_empty: bool,
    flushed: MonoTime,
    passed: u64,
    /// Whether a frame was refused because the file has reached its size limit.
    is_spent: bool,
    beyond_budget: u64,
    queue_dropped: u64,
    kernel_dropped: Option<u64>,
    kept: Option<CurrentFileFacts>,
}

/// Frames that a recorder could not write, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedFrames {
    /// The queue to the disk was full.
    pub queue: u64,
    /// Writing to the disk had failed.
    pub disk: u64,
}

/// The part of a frame that is recorded.
struct RecordedFramePart<'a> {
    bytes: &'a [u8],
    fcs: [u8; FCS_BYTES],
    /// Number of bytes of the FCS that are recorded.
    fcs_len: usize,
}

/// Result of a recording.
#[derive(Debug, Default)]
pub struct RecordingOutcome {
    /// Existing files, oldest first.
    pub files: Vec<PathBuf>,
    /// Number of older files that were removed, as requested.
    pub removed: u64,
    /// Frames that passed the filter.
    pub passed: u64,
    /// Frames written, including frames in removed files.
    pub written: u64,
    /// Frames in removed files.
    pub removed_frames: u64,
    /// Frames that arrived after the size limit was reached.
    pub beyond_budget: u64,
    /// Number of bytes before the first record of each file.
    pub head: u64,
    /// Frames dropped because the disk was behind and the queue full.
    pub queue_dropped: u64,
    /// Frames lost because writing failed.
    pub disk_lost: u64,
    /// Trailer numbers of a tap, if a keeper stores the files.
    pub numbers: TapNumbers,
    /// Whether writes bypassed the page cache.
    pub direct: bool,
    /// Reason why writing failed, if it did.
    pub failure: Option<(PathBuf, std::io::Error)>,
}

impl CaptureRecorder {
    /// Creates the first file and starts the disk's thread. `offset` is the clock offset that the frames'
    /// times were computed with.
    pub fn start(spec: RecordSpec, offset: RealtimeOffset, now: MonoTime) -> Result<Self, Error> {
        Self::open_first_file(spec, None, offset, now)
    }

    /// Works like [`Self::start`] with a keeper, which receives the facts of each complete file. Also counts the
    /// numbers in a tap's trailers, continuing from the counters `known`.
    pub fn start_with_keeper(
        spec: RecordSpec,
        (shelf, known): (Box<dyn RecordedFileKeeper>, TapNumbers),
        offset: RealtimeOffset,
        now: MonoTime,
    ) -> Result<Self, Error> {
        let mut recorder = Self::open_first_file(spec, Some(shelf), offset, now)?;
        recorder.kept = Some(CurrentFileFacts::new(recorder.files, known, now));
        Ok(recorder)
    }

    fn open_first_file(
        spec: RecordSpec,
        keeper: Option<Box<dyn RecordedFileKeeper>>,
        offset: RealtimeOffset,
        now: MonoTime,
    ) -> Result<Self, Error> {
        // A rotation reserves three blocks while a fourth is being filled.
        let blocks = (spec.queue / CAPTURE_BLOCK_BYTES).max(4);
        let (free_in, free) = bounded(blocks);
        // The queue has room for every block, and for the two commands that end a file and open the next one: each
        // file has at least one block.
        let (orders, orders_out) = bounded(3 * blocks + 4);
        for _ in 0..blocks {
            free_in.send(DiskBlock::new()).map_err(|_| Error::Bug("a new queue is full"))?;
        }
        let tally = Arc::new(DiskCounters::default());
        let number = spec.rotation.before + 1;
        let first = numbered_target(&spec, number);
        let queue = DiskQueue { orders: orders_out, free: free_in };
        let options = DiskOptions { keep: spec.rotation.keep, zstd: spec.zstd };
        let disk = DiskThread::open_first_file(first, queue, options, Arc::clone(&tally), keeper)
            .map_err(|(path, source)| Error::File { path, source })?;
        let thread = std::thread::Builder::new()
            .name("capture-disk".into())
            .spawn(move || disk.execute_disk_commands())
            .map_err(|source| Error::Thread { name: "capture-disk".into(), source })?;
        let mut recorder = Self {
            spec,
            offset,
            feed: DiskBlockQueue::new(free, orders),
            tally,
            thread: Some(thread),
            encoded: Vec::with_capacity(MAX_FILE_OVERHEAD_BYTES),
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
        // The header of the first file is queued before any frame.
        recorder.queue_file_header();
        Ok(recorder)
    }

    /// Records a frame without waiting: when the disk is behind and the queue full, it counts the frame as dropped.
    pub fn record_frame(&mut self, frame: &RxFrame<'_>) {
        self.record_interface_frame(0, frame);
    }

    /// Records a frame of the interface with this number: 0 is the first, 1 the first of the further ones.
    pub fn record_interface_frame(&mut self, interface: u32, frame: &RxFrame<'_>) {
        self.passed += 1;
        let kept = self.cut_to_snap_length(frame);
        // The kernel strips the FCS, but the length on the wire includes it.
        let extra = if self.spec.fcs { FCS_BYTES } else { 0 };
        let record = FrameRecord {
            at_ns: frame.realtime_ns.unwrap_or_else(|| self.wall_time_ns(frame.at)),
            kept: kept.bytes.len() + kept.fcs_len,
            full_len: clamp_to_u32(frame.full_len + extra),
            interface,
            merged: frame.merged.map(|merged| merged.segment_bytes),
        };
        let around = FrameEnvelope::for_frame(self.spec.format, record);
        let length = around.head_bytes().len() + record.kept + around.tail_bytes().len();
        if self.exceeds_size_limit(length) {
            self.beyond_budget += 1;
            return;
        }
        // `start_next_file` fails when too few blocks are free. Then the frame is dropped, because a file must not
        // exceed its size limit.
        let is_room = (!self.is_file_full(length, frame.at) || self.start_next_file(frame.at))
            && self.feed.reserve_bytes(length);
        // This comes after the rotation, so that the trailer number counts for the file that contains the frame.
        if let Some(shelved) = &mut self.kept {
            shelved.on_arrival(frame.bytes);
        }
        if !is_room {
            self.queue_dropped += 1;
            return;
        }
        // `reserve_bytes` has made room for all four parts, so a record is either complete in the stream or absent.
        self.feed.put_bytes(around.head_bytes());
        self.feed.put_bytes(kept.bytes);
        self.feed.put_bytes(&kept.fcs[..kept.fcs_len]);
        self.feed.put_bytes(around.tail_bytes());
        self.feed.mark_record_end(1);
        self.is_empty = false;
        if let Some(shelved) = &mut self.kept {
            shelved.on_frame_written(frame.full_len + FCS_BYTES, record.at_ns);
        }
    }

    /// Begins another file. Returns false if the current file is empty or too few blocks are free; then it continues.
    pub fn rotate_file(&mut self, now: MonoTime) -> bool {
        !self.is_empty && self.start_next_file(now)
    }

    /// Returns the trailer counters of a tap so far.
    pub fn tap_numbers(&self) -> TapNumbers {
        self.kept.as_ref().map_or([None; 2], CurrentFileFacts::tap_numbers)
    }

    fn cut_to_snap_length<'a>(&self, frame: &RxFrame<'a>) -> RecordedFramePart<'a> {
        // There is a limit even without a snap length: `reserve_bytes` needs records shorter than a block.
        let most = self
            .spec
            .snap_len
            .map_or(MAX_RECORDED_FRAME_BYTES, |snap| (snap as usize).min(MAX_RECORDED_FRAME_BYTES));
        let bytes = &frame.bytes[..frame.bytes.len().min(most)];
        // The FCS of a frame that was cut cannot be computed.
        let is_whole = bytes.len() == frame.full_len;
        // The snap length counts the FCS as part of the frame, so a cut may fall inside it.
        match (most - bytes.len()).min(FCS_BYTES) {
            fcs_len @ 1.. if self.spec.fcs && is_whole => {
                RecordedFramePart { bytes, fcs: checksum::compute_fcs(bytes), fcs_len }
            }
            _ => RecordedFramePart { bytes, fcs: [0; FCS_BYTES], fcs_len: 0 },
        }
    }

    /// Returns whether a record of this length, or an earlier record, exceeds the size limit.
    fn exceeds_size_limit(&mut self, length: usize) -> bool {
        // The statistics that end the file count too; `MAX_FILE_OVERHEAD_BYTES` is a bound for them.
        let end = self.feed.position() + (length + MAX_FILE_OVERHEAD_BYTES) as u64;
        // A used-up limit stays used up: a shorter frame must not follow a longer frame that was refused.
        self.is_spent |= self.spec.budget.is_some_and(|most| end > most);
        self.is_spent
    }

    /// Writes a partly filled block when no frames arrive: to standard output at once, to a file at most once a second.
    pub fn flush_when_idle(&mut self, now: MonoTime) {
        let is_due = self.spec.target == RecordTarget::StandardOutput
            || now.since(self.flushed) >= BLOCK_FLUSH_TIMEOUT;
        if is_due && self.feed.has_waiting_frames() {
            self.feed.flush_block();
            self.flushed = now;
        }
    }

    /// Asks the disk's thread to check the files, and starts another file when the time span of the current one is
    /// over, even if no frame arrives; an empty file continues. Does nothing without a file keeper. To be called
    /// regularly, for example twice a second.
    pub fn rotate_due_files(&mut self, now: MonoTime) {
        let Some(kept) = &mut self.kept else { return };
        if kept.restart_check_interval_if_due(now) {
            self.feed.request_file_check();
        }
        if self.spec.rotation.every.is_some_and(|every| now.since(self.begun) >= every) {
            self.rotate_file(now);
        }
    }

    /// Sets the number of frames that the kernel lost so far, for the file statistics.
    pub fn set_kernel_dropped(&mut self, frames: u64) {
        self.kernel_dropped = Some(frames);
    }

    /// Returns the frames dropped so far.
    pub fn dropped_frames(&self) -> DroppedFrames {
        DroppedFrames { queue: self.queue_dropped, disk: self.tally.lost.load(Ordering::Acquire) }
    }

    /// Returns whether writing has failed, so that the recording cannot continue.
    pub fn has_failed(&self) -> bool {
        self.tally.failed.load(Ordering::Acquire)
    }

    /// Ends the last file and waits for the disk's thread.
    pub fn finish_recording(mut self, now: MonoTime) -> Result<RecordingOutcome, Error> {
        let numbers = self.tap_numbers();
        let done = self.close_files(now)?.ok_or(Error::Bug("a recording was finished twice"))?;
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

    fn close_files(&mut self, now: MonoTime) -> Result<Option<DiskOutcome>, Error> {
        let Some(thread) = self.thread.take() else { return Ok(None) };
        self.queue_file_statistics(now);
        self.feed.flush_block();
        self.report_finished_file(now);
        // Replacing the feed drops the only sender of commands, which ends the loop of the disk's thread.
        self.feed = DiskBlockQueue::new(crossbeam_channel::never(), bounded(0).0);
        thread.join().map(Some).map_err(|_| Error::Panicked("capture-disk".into()))
    }

    fn wall_time_ns(&self, at: MonoTime) -> u64 {
        at.as_nanos().saturating_add_signed(self.offset.offset_ns)
    }

    /// Returns whether a record of this length and time belongs in the next file; false while the file has no record.
    fn is_file_full(&self, length: usize, at: MonoTime) -> bool {
        let rotation = self.spec.rotation;
        let end = self.feed.position() + (length + MAX_FILE_OVERHEAD_BYTES) as u64;
        let elapsed = at.since(self.begun);
        !self.is_empty
            && (rotation.bytes.is_some_and(|most| end > most)
                || rotation.every.is_some_and(|every| elapsed >= every))
    }

    /// Continues with the next file. Returns `false` if too few blocks are free now; then the current file continues.
    fn start_next_file(&mut self, at: MonoTime) -> bool {
        // The end of this file may need two blocks, because the first may be a short one; the header of the next file
        // needs another.
        if !self.feed.reserve_blocks(3) {
            return false;
        }
        self.queue_file_statistics(at);
        self.report_finished_file(at);
        self.files += 1;
        self.feed.start_next_file(numbered_target(&self.spec, self.files));
        self.begun = at;
        self.is_empty = true;
        self.queue_file_header();
        true
    }

    /// Reports the finished file to the keeper.
    fn report_finished_file(&mut self, now: MonoTime) {
        let span_ns = (self.wall_time_ns(self.begun), self.wall_time_ns(now));
        let lost = LostFrames { kernel: self.kernel_dropped.unwrap_or(0), queue: self.queue_dropped };
        if let Some(kept) = &mut self.kept {
            self.feed.end_file(kept.end_file(span_ns, lost));
        }
    }

    fn queue_file_header(&mut self) {
        let system = format!("Linux {}", packetrig_sys::kernel::kernel_release_name());
        let header = CaptureHeader {
            interface: &self.spec.interface,
            further: &self.spec.further,
            comment: cut_header_text(&self.spec.comment),
            system: &system,
            filter: cut_header_text(&self.spec.filter),
            snap_len: self.spec.snap_len,
            fcs: self.spec.fcs,
        };
        encode::write_file_header(self.spec.format, &header, &mut self.encoded);
        self.head = self.encoded.len() as u64;
        self.queue_encoded_bytes();
    }

    fn queue_file_statistics(&mut self, now: MonoTime) {
        let by_kernel = self.kernel_dropped.unwrap_or(0);
        let totals = CaptureTotals {
            from_ns: Some(self.wall_time_ns(self.begun)),
            to_ns: self.wall_time_ns(now),
            // The kernel's losses are not among `passed`, but the interface did receive them.
            received: self.passed + by_kernel,
            dropped: by_kernel + self.queue_dropped + self.beyond_budget,
            by_kernel: self.kernel_dropped,
            of_all: !self.spec.further.is_empty(),
        };
        encode::write_statistics(self.spec.format, totals, &mut self.encoded);
        self.queue_encoded_bytes();
    }

    fn queue_encoded_bytes(&mut self) {
        // Without room the file lacks its statistics; the frames are counted anyway.
        if self.feed.reserve_bytes(self.encoded.len()) {
            self.feed.put_bytes(&self.encoded);
            self.feed.mark_record_end(0);
        }
        self.encoded.clear();
    }
}

impl Drop for CaptureRecorder {
    fn drop(&mut self) {
        // The recorder was dropped without `finish_recording`, so no caller can receive an error. There is no clock
        // here, so the last file's time span is empty.
        drop(self.close_files(self.begun));
    }
}

fn cut_header_text(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_HEADER_TEXT_BYTES)]
}
