//! Capture files as a source: one worker reads for itself; several share blocks that a thread of their own reads.
//!
//! Times are those of the packets; what one packet says alone moves no clock ([`CaptureClock`]). Unless a [`ReplayPace`] is given, everything is given as fast as it is taken.

use super::block::{PacketBlock, PacketPlace};
use super::clock::CaptureClock;
use super::reader::{CaptureReader, ReadCounts};
use super::{PacketSource, ReplayPace, TakeOutcome};
use crate::Error;
use crate::intake::PacketIntake;
use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, TryRecvError, bounded};
use packetrig_flow::IgnoredReason;
use packetrig_sys::clock;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Blocks that wait for a worker at most.
const AHEAD: usize = 4;
/// How often a reader that cannot go on looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
pub struct FileOptions {
    /// The files, in order.
    pub files: Vec<PathBuf>,
    /// How many workers share their packets.
    pub workers: usize,
    /// At the recorded times; without, as fast as possible.
    pub pace: Option<ReplayPace>,
}

/// What the workers of files get.
#[derive(Debug)]
pub struct FileSources {
    /// A source for each worker.
    pub sources: Vec<FileSource>,
    /// What has been read.
    pub read: Arc<ReadCounts>,
    /// Reads for several workers; joins when all was read or nobody listens any more.
    pub reader: Option<JoinHandle<()>>,
}

/// Opens the first of the files.
pub fn open_files(options: &FileOptions) -> Result<FileSources, Error> {
    let (count, most) = (options.files.len(), usize::from(u16::MAX));
    if count > most {
        return Err(Error::TooManyInputs { count, most });
    }
    let (read, stop) = (Arc::<ReadCounts>::default(), Arc::<AtomicBool>::default());
    let reader = CaptureReader::new(&options.files, Arc::clone(&read))?;
    let is_regular = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|file| file.is_file());
    // A pipe may be somebody's live view; what comes at recorded times is to be seen at these times.
    let may_be_held = options.pace.is_none() && options.files.iter().all(is_regular);
    let source = |worker, feed| FileSource {
        feed,
        block: None,
        next: 0,
        foreign: (0, 0),
        worker,
        pace: options.pace.clone(),
        clock: CaptureClock::default(),
        may_be_held,
        stop: Arc::clone(&stop),
        delivered: 0,
        left: 0,
        read: Arc::clone(&read),
    };
    if options.workers < 2 {
        let sources = vec![source(0, BlockFeed::Own(Box::new(reader)))];
        return Ok(FileSources { sources, read, reader: None });
    }
    let (free_in, free) = bounded(AHEAD * options.workers + 2);
    let (blocks, sources): (Vec<_>, Vec<_>) = (0..options.workers)
        .map(|worker| {
            let (blocks, mine) = bounded(AHEAD);
            (blocks, source(worker, BlockFeed::Shared { blocks: mine, free: free_in.clone() }))
        })
        .unzip();
    let distributor =
        FileDistributor { reader, blocks, free, stop: Arc::clone(&stop), read: Arc::clone(&read) };
    let thread = std::thread::Builder::new().name("meter-reader".into());
    let reader = thread.spawn(move || distributor.run()).map_err(Error::Thread)?;
    Ok(FileSources { sources, read, reader: Some(reader) })
}

/// Reads for several workers.
struct FileDistributor {
    reader: CaptureReader,
    blocks: Vec<Sender<Arc<PacketBlock>>>,
    free: Receiver<PacketBlock>,
    stop: Arc<AtomicBool>,
    read: Arc<ReadCounts>,
}

impl FileDistributor {
    fn run(mut self) {
        let mut made = 0;
        loop {
            if self.stop.load(Ordering::Acquire) {
                return self.leave();
            }
            let at_hand = if made < 2 * self.blocks.len() {
                self.free.try_recv().ok()
            } else {
                self.free.recv_timeout(LOOK).ok()
            };
            let mut block = at_hand.unwrap_or_else(|| {
                made += 1;
                PacketBlock::new(self.blocks.len())
            });
            match self.reader.fill(&mut block) {
                // Nobody is left to read for.
                Ok(true) if !self.send(&Arc::new(block)) => return,
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.read.fail(error),
            }
        }
    }

    /// Reads no more, and says so if there was more.
    fn leave(&self) {
        if !self.reader.is_through() {
            self.read.note_stop();
        }
    }

    /// Every worker gets it: those for whom nothing is in it learn what time it is. Whether anybody took it.
    fn send(&self, block: &Arc<PacketBlock>) -> bool {
        let mut is_taken = false;
        for blocks in &self.blocks {
            let mut block = Arc::clone(block);
            loop {
                match blocks.send_timeout(block, LOOK) {
                    Ok(()) => is_taken = true,
                    Err(SendTimeoutError::Timeout(back)) => {
                        block = back;
                        continue;
                    }
                    // A worker that has gone is no reason to stop the others.
                    Err(SendTimeoutError::Disconnected(_)) => {}
                }
                break;
            }
        }
        is_taken
    }
}

/// Where a worker's blocks come from.
enum BlockFeed {
    Own(Box<CaptureReader>),
    Shared { blocks: Receiver<Arc<PacketBlock>>, free: Sender<PacketBlock> },
}

pub struct FileSource {
    feed: BlockFeed,
    block: Option<Arc<PacketBlock>>,
    /// The next of its places.
    next: usize,
    /// Packets that begin with what nobody reads, and their bytes, not told yet.
    foreign: (u64, u64),
    worker: usize,
    pace: Option<ReplayPace>,
    clock: CaptureClock,
    may_be_held: bool,
    stop: Arc<AtomicBool>,
    delivered: u64,
    left: u64,
    read: Arc<ReadCounts>,
}

impl std::fmt::Debug for FileSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSource").field("worker", &self.worker).finish_non_exhaustive()
    }
}

impl FileSource {
    /// Begins the next block; what is said if there is none.
    fn advance(&mut self, within: Option<Duration>) -> Result<TakeOutcome, Error> {
        let (done, place) = (self.block.take(), self.next);
        debug_assert!(done.as_ref().is_none_or(|block| place == block.places[self.worker].len()));
        self.next = 0;
        match &mut self.feed {
            BlockFeed::Own(reader) => {
                let mut block = done.unwrap_or_else(|| Arc::new(PacketBlock::new(1)));
                // It is nobody else's, so its memory serves again.
                let Some(room) = Arc::get_mut(&mut block) else { return Ok(TakeOutcome::Ended) };
                if self.stop.load(Ordering::Acquire) {
                    if !reader.is_through() {
                        self.read.note_stop();
                    }
                    return Ok(TakeOutcome::Ended);
                }
                if !reader.fill(room)? {
                    return Ok(TakeOutcome::Ended);
                }
                self.block = Some(block);
            }
            BlockFeed::Shared { blocks, free } => {
                if let Some(block) = done.and_then(Arc::into_inner) {
                    // More blocks than there is room for are not kept.
                    free.try_send(block).unwrap_or(());
                }
                let next = match within {
                    None => blocks.try_recv().map_err(|error| error == TryRecvError::Disconnected),
                    Some(within) => {
                        blocks.recv_timeout(within).map_err(|error| error == RecvTimeoutError::Disconnected)
                    }
                };
                match next {
                    Ok(block) => self.block = Some(block),
                    Err(true) => return self.read.failure().map_or(Ok(TakeOutcome::Ended), Err),
                    Err(false) => return Ok(TakeOutcome::Nothing),
                }
            }
        }
        if let Some(block) = self.block.as_ref().filter(|_| self.worker == 0) {
            self.foreign.0 += block.foreign.0;
            self.foreign.1 += block.foreign.1;
        }
        Ok(TakeOutcome::Some)
    }

    /// Gives places from the block at hand while they are due.
    fn give(&mut self, intake: &mut PacketIntake) -> TakeOutcome {
        let Some(block) = &self.block else { return TakeOutcome::Nothing };
        let places = &block.places[self.worker];
        let end = places.len().min(self.next + intake.room());
        for place in &places[self.next..end] {
            if self.pace.as_ref().is_some_and(|pace| pace.due_ns(place.at_ns) > clock::monotonic_ns()) {
                return TakeOutcome::Nothing;
            }
            let PacketPlace { at_ns, full_len, input, link, .. } = *place;
            intake.frame_as(link, place.of(&block.bytes), full_len as usize, at_ns, input);
            self.clock.note(at_ns);
            self.next += 1;
            self.delivered += 1;
        }
        TakeOutcome::Some
    }

    fn is_through(&self) -> bool {
        self.block.as_ref().is_none_or(|block| self.next == block.places[self.worker].len())
    }

    /// Leaves what is left of the block.
    fn leave(&mut self) {
        let Some(block) = &self.block else { return };
        let places = block.places[self.worker].len();
        if places > self.next {
            self.read.note_stop();
        }
        self.left += (places - self.next) as u64;
        self.next = places;
    }
}

impl PacketSource for FileSource {
    fn take(&mut self, intake: &mut PacketIntake) -> Result<TakeOutcome, Error> {
        if self.stop.load(Ordering::Acquire) {
            self.leave();
        }
        let (packets, bytes) = std::mem::take(&mut self.foreign);
        intake.ignored(IgnoredReason::NotIp, packets, bytes);
        self.delivered += packets;
        if self.is_through() {
            if let Some(block) = self.block.as_ref().filter(|_| self.pace.is_none()) {
                self.clock.set(block.until_ns);
            }
            let next = self.advance(None)?;
            if next != TakeOutcome::Some {
                return Ok(next);
            }
        }
        Ok(self.give(intake))
    }

    fn now_ns(&mut self, _is_idle: bool) -> u64 {
        self.pace.as_ref().map_or_else(|| self.clock.now_ns(), ReplayPace::now_ns)
    }

    fn may_be_held(&self) -> bool {
        self.may_be_held
    }

    fn wait(&mut self, within_ns: u64) -> Result<(), Error> {
        let within = Duration::from_nanos(within_ns);
        if self.is_through() {
            self.advance(Some(within))?;
        } else if let Some((pace, block)) = self.pace.as_ref().zip(self.block.as_ref()) {
            let due = pace.due_ns(block.places[self.worker][self.next].at_ns);
            clock::sleep_until_ns(due.min(clock::monotonic_ns().saturating_add(within_ns)));
        }
        Ok(())
    }

    fn ring_dropped(&mut self) -> Result<u64, Error> {
        Ok(0)
    }

    fn stop(&mut self) -> Result<(), Error> {
        self.stop.store(true, Ordering::Release);
        Ok(())
    }

    fn delivered(&self) -> u64 {
        self.delivered
    }

    fn left(&self) -> u64 {
        self.left
    }
}
