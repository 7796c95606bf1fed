//! Capture files as a source: a single worker reads by itself; several workers share blocks that a reader thread fills.
//!
//! Times are those of the packets, and a single wrong time does not move the clock ([`CaptureClock`]). Without a
//! [`ReplayPace`] the files are read as fast as they are metered.

use super::block::{PacketBlock, PacketPosition, UnreadLinkTypePackets};
use super::clock::CaptureClock;
use super::reader::{CaptureReader, ReadCounts};
use super::{PacketSource, ReplayPace, TakeOutcome};
use crate::Error;
use crate::intake::PacketIntake;
use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, TryRecvError, bounded};
use packetrig_flow::IgnoredReason;
use packetrig_flow::parse::LinkKind;
use packetrig_flow::parse::merged::MergeMetadata;
use packetrig_sys::clock;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A jumbo frame of 9216 bytes with two VLAN tags: whatever is longer in a file was merged before it was captured.
const MAX_WIRE_FRAME_BYTES: usize = 9216 + 14 + 2 * 4;
/// Maximum number of blocks that wait for a worker.
const MAX_BLOCKS_AHEAD: usize = 4;
/// Interval at which a waiting reader thread checks whether it is to end.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Capture files, which are read one after the other.
    pub files: Vec<PathBuf>,
    /// Number of workers that share the packets of the files.
    pub workers: usize,
    /// Speed of a replay at the recorded times; `None` means as fast as possible.
    pub pace: Option<ReplayPace>,
}

/// The opened files, with a source for each worker.
#[derive(Debug)]
pub struct FileSources {
    pub sources: Vec<FileSource>,
    pub read: Arc<ReadCounts>,
    /// The reader thread, if there are several workers. It ends when all files are read or all workers have ended.
    pub reader: Option<JoinHandle<()>>,
}

/// Opens the first of the files, and starts the reader thread if there are several workers. The other files are opened
/// when their turn comes.
pub fn open_files(options: &FileOptions) -> Result<FileSources, Error> {
    let count = options.files.len();
    let most = usize::from(u16::MAX);
    if count > most {
        return Err(Error::TooManyInputs { count, most });
    }
    let read = Arc::<ReadCounts>::default();
    let reader = CaptureReader::new(&options.files, Arc::clone(&read))?;
    let shared = SharedFileReading {
        pace: options.pace.clone(),
        // Packets of a pipe may be watched live, and replayed packets must appear at their times: neither may wait.
        may_be_held: options.pace.is_none() && options.files.iter().all(|path| is_regular_file(path)),
        stop: Arc::default(),
        read: Arc::clone(&read),
    };
    if options.workers < 2 {
        let sources = vec![FileSource::new(0, FileBlockSource::Own(Box::new(reader)), shared)];
        return Ok(FileSources { sources, read, reader: None });
    }
    // Used blocks come back on this channel.
    let (free_in, free) = bounded(MAX_BLOCKS_AHEAD * options.workers + 2);
    let mut blocks = Vec::new();
    let mut sources = Vec::new();
    for worker in 0..options.workers {
        let (block_in, own_blocks) = bounded(MAX_BLOCKS_AHEAD);
        blocks.push(block_in);
        let feed = FileBlockSource::Shared { blocks: own_blocks, free: free_in.clone() };
        sources.push(FileSource::new(worker, feed, shared.clone()));
    }
    let distributor =
        CaptureFileDistributor { reader, blocks, free, stop: shared.stop, read: Arc::clone(&read) };
    let thread = std::thread::Builder::new().name("meter-reader".into());
    let reader = thread.spawn(move || distributor.distribute_blocks()).map_err(Error::Thread)?;
    Ok(FileSources { sources, read, reader: Some(reader) })
}

fn is_regular_file(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.is_file())
}

/// State that the sources of all workers share.
#[derive(Clone)]
struct SharedFileReading {
    pace: Option<ReplayPace>,
    may_be_held: bool,
    stop: Arc<AtomicBool>,
    read: Arc<ReadCounts>,
}

/// The reader thread: fills blocks for several workers.
struct CaptureFileDistributor {
    reader: CaptureReader,
    blocks: Vec<Sender<Arc<PacketBlock>>>,
    free: Receiver<PacketBlock>,
    stop: Arc<AtomicBool>,
    read: Arc<ReadCounts>,
}

impl CaptureFileDistributor {
    fn distribute_blocks(mut self) {
        let mut made = 0;
        loop {
            if self.stop.load(Ordering::Acquire) {
                return self.record_early_stop();
            }
            // While few blocks exist, this thread makes a new block rather than wait. After that it waits for a free
            // block, and makes another one only if a slow worker keeps all of them.
            let at_hand = if made < 2 * self.blocks.len() {
                self.free.try_recv().ok()
            } else {
                self.free.recv_timeout(END_CHECK_INTERVAL).ok()
            };
            let mut block = at_hand.unwrap_or_else(|| {
                made += 1;
                PacketBlock::new(self.blocks.len())
            });
            match self.reader.fill_block(&mut block) {
                // All workers have ended.
                Ok(true) if !self.send_block(&Arc::new(block)) => return,
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.read.set_failure(error),
            }
        }
    }

    /// Marks the reading as stopped early, if packets were left in the files.
    fn record_early_stop(&self) {
        if !self.reader.is_read_to_end() {
            self.read.mark_stopped();
        }
    }

    /// Sends a block to every worker: also a worker without packets in the block needs the block's time. Returns false
    /// if no worker is left.
    fn send_block(&self, block: &Arc<PacketBlock>) -> bool {
        let mut is_taken = false;
        for blocks in &self.blocks {
            let mut block = Arc::clone(block);
            loop {
                match blocks.send_timeout(block, END_CHECK_INTERVAL) {
                    Ok(()) => is_taken = true,
                    Err(SendTimeoutError::Timeout(back)) => {
                        block = back;
                        continue;
                    }
                    // A failed worker is no reason to stop the other workers.
                    Err(SendTimeoutError::Disconnected(_)) => {}
                }
                break;
            }
        }
        is_taken
    }
}

/// Where a worker gets its blocks from: its own reader, or the reader thread.
enum FileBlockSource {
    Own(Box<CaptureReader>),
    Shared { blocks: Receiver<Arc<PacketBlock>>, free: Sender<PacketBlock> },
}

pub struct FileSource {
    feed: FileBlockSource,
    block: Option<Arc<PacketBlock>>,
    /// Index of the next packet in the block.
    next: usize,
    /// Packets of other link types that are not counted yet.
    foreign: UnreadLinkTypePackets,
    worker: usize,
    shared: SharedFileReading,
    clock: CaptureClock,
    delivered: u64,
    left: u64,
}

impl std::fmt::Debug for FileSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSource").field("worker", &self.worker).finish_non_exhaustive()
    }
}

impl FileSource {
    fn new(worker: usize, feed: FileBlockSource, shared: SharedFileReading) -> Self {
        Self {
            feed,
            block: None,
            next: 0,
            foreign: UnreadLinkTypePackets::default(),
            worker,
            shared,
            clock: CaptureClock::default(),
            delivered: 0,
            left: 0,
        }
    }

    /// Begins the next block. Waits for it up to `within`, if given.
    fn begin_next_block(&mut self, within: Option<Duration>) -> Result<TakeOutcome, Error> {
        debug_assert!(self.is_read_to_end(), "packets of the block before were not given");
        let done = self.block.take();
        self.next = 0;
        match &mut self.feed {
            FileBlockSource::Own(reader) => {
                let mut block = done.unwrap_or_else(|| Arc::new(PacketBlock::new(1)));
                // A block that this worker reads itself is never shared, so its memory is always reused.
                let Some(room) = Arc::get_mut(&mut block) else { return Ok(TakeOutcome::Ended) };
                if self.shared.stop.load(Ordering::Acquire) {
                    if !reader.is_read_to_end() {
                        self.shared.read.mark_stopped();
                    }
                    return Ok(TakeOutcome::Ended);
                }
                if !reader.fill_block(room)? {
                    return Ok(TakeOutcome::Ended);
                }
                self.block = Some(block);
            }
            FileBlockSource::Shared { blocks, free } => {
                // The worker that drops the last reference sends the block back.
                if let Some(block) = done.and_then(Arc::into_inner) {
                    // The block is freed if the channel is full, or if the reader thread has ended.
                    drop(free.try_send(block));
                }
                let next = match within {
                    None => blocks.try_recv().map_err(|error| error == TryRecvError::Disconnected),
                    Some(within) => {
                        blocks.recv_timeout(within).map_err(|error| error == RecvTimeoutError::Disconnected)
                    }
                };
                match next {
                    Ok(block) => self.block = Some(block),
                    Err(true) => return self.shared.read.take_failure().map_or(Ok(TakeOutcome::Ended), Err),
                    Err(false) => return Ok(TakeOutcome::Nothing),
                }
            }
        }
        // All workers get the block, but only one may count its packets that belong to no worker.
        if let Some(block) = self.block.as_ref().filter(|_| self.worker == 0) {
            self.foreign.add_counts(block.foreign);
        }
        Ok(TakeOutcome::Some)
    }

    /// Passes packets of the current block to `intake`, until it is full or the next packet is not due yet.
    fn deliver_due_packets(&mut self, intake: &mut PacketIntake) -> TakeOutcome {
        let Some(block) = &self.block else { return TakeOutcome::Nothing };
        let places = &block.places[self.worker];
        let end = places.len().min(self.next + intake.free_slots());
        for place in &places[self.next..end] {
            if self.shared.pace.as_ref().is_some_and(|pace| pace.due_ns(place.at_ns) > clock::monotonic_ns())
            {
                return TakeOutcome::Nothing;
            }
            deliver_packet(*place, place.frame_in_block(&block.bytes), block.input, intake);
            let PacketPosition { at_ns, .. } = *place;
            self.clock.add_time(at_ns);
            self.next += 1;
            self.delivered += 1;
        }
        TakeOutcome::Some
    }

    fn is_read_to_end(&self) -> bool {
        self.block.as_ref().is_none_or(|block| self.next == block.places[self.worker].len())
    }

    /// Skips the rest of the block, and counts its packets as not delivered.
    fn skip_rest_of_block(&mut self) {
        let Some(block) = &self.block else { return };
        let places = block.places[self.worker].len();
        // The report must say that packets were not metered, even if the reader has reached the end of the files.
        if places > self.next {
            self.shared.read.mark_stopped();
        }
        self.left += (places - self.next) as u64;
        self.next = places;
    }
}

/// Passes a packet to the parser: as one frame, or as the frames of which it consisted on the wire.
#[inline]
fn deliver_packet(place: PacketPosition, bytes: &[u8], input: u16, intake: &mut PacketIntake) {
    let PacketPosition { at_ns, full_len, link, merged, .. } = place;
    let full_len = full_len as usize;
    if merged > 0 && link == LinkKind::Ethernet {
        let note = MergeMetadata { segment_bytes: merged, transport_at: None };
        intake.add_merged_frame(bytes, full_len, note, at_ns, input);
    } else if merged > 0 || full_len > MAX_WIRE_FRAME_BYTES && !may_have_any_length(bytes, link) {
        intake.add_unsplit_frame(link, bytes, full_len, at_ns, input);
    } else {
        intake.add_frame_as(link, bytes, full_len, at_ns, input);
    }
}

/// Reports whether a frame of any length may have been on its link: the loopback interface of Linux has packets of 64
/// KiB and no addresses, and links other than Ethernet may have longer packets, too.
fn may_have_any_length(bytes: &[u8], link: LinkKind) -> bool {
    link != LinkKind::Ethernet || bytes.starts_with(&[0; 12])
}

impl PacketSource for FileSource {
    fn take_packets(&mut self, intake: &mut PacketIntake) -> Result<TakeOutcome, Error> {
        if self.shared.stop.load(Ordering::Acquire) {
            self.skip_rest_of_block();
        }
        let foreign = std::mem::take(&mut self.foreign);
        intake.count_ignored(IgnoredReason::NotIp, foreign.packets, foreign.bytes);
        self.delivered += foreign.packets;
        if self.is_read_to_end() {
            // The block's time comes from the packets of all workers, so that a worker with few packets times
            // out its flows, too.
            if let Some(block) = self.block.as_ref().filter(|_| self.shared.pace.is_none()) {
                self.clock.set_time(block.until_ns);
            }
            let next = self.begin_next_block(None)?;
            if next != TakeOutcome::Some {
                return Ok(next);
            }
        }
        Ok(self.deliver_due_packets(intake))
    }

    fn delivered_until_ns(&mut self, _is_idle: bool) -> u64 {
        self.shared.pace.as_ref().map_or_else(|| self.clock.capture_time_ns(), ReplayPace::replay_time_ns)
    }

    fn can_hold_back_packets(&self) -> bool {
        self.shared.may_be_held
    }

    fn wait_for_packets(&mut self, within_ns: u64) -> Result<(), Error> {
        let within = Duration::from_nanos(within_ns);
        if self.is_read_to_end() {
            self.begin_next_block(Some(within))?;
        } else if let Some((pace, block)) = self.shared.pace.as_ref().zip(self.block.as_ref()) {
            let due = pace.due_ns(block.places[self.worker][self.next].at_ns);
            clock::sleep_until_ns(due.min(clock::monotonic_ns().saturating_add(within_ns)));
        }
        Ok(())
    }

    fn ring_dropped(&mut self) -> Result<u64, Error> {
        Ok(0)
    }

    fn stop_receiving(&mut self) -> Result<(), Error> {
        self.shared.stop.store(true, Ordering::Release);
        Ok(())
    }

    fn delivered_frames(&self) -> u64 {
        self.delivered
    }

    fn skipped_packets(&self) -> u64 {
        self.left
    }
}
