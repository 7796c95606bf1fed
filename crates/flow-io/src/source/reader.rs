//! Reads capture files, one after the other, into blocks.
//!
//! Frames are not copied out of the block. For each frame, only its position is stored, for the worker that meters it.
//! A packet that is incomplete at the end of a block begins the next one.
//!
//! Invariant: packets of the files = positions + packets of other link types + packets after a damage or a stop, which
//! a remark reports.

use super::block::{BLOCK_READ_BYTES, PacketBlock, PacketPosition, UnreadLinkTypePackets};
use super::clock::CaptureClock;
use super::spread::worker_index_of_frame;
use crate::Error;
use packetrig_engine::recorded::RecordedBytes;
use packetrig_flow::parse::{LinkKind, describe_unread_link_type};
use packetrig_units::clamp_to_u32;
use packetrig_wire::pcap::{CaptureDamage, CaptureDecoder, CaptureRecord, DecodedElement};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Length of the longest Ethernet frame that is no jumbo frame: with two VLAN tags, without FCS.
const MAX_STANDARD_FRAME_BYTES: u32 = 1514 + 2 * 4;
const ETHERNET_HEADER: usize = 14;
const FCS: usize = 4;

/// Counts of the packets read so far, and remarks on how files ended.
#[derive(Debug, Default)]
pub struct ReadCounts {
    packets: AtomicU64,
    /// True if packets were left in the files because the meter was told to end.
    stopped: AtomicBool,
    remarks: Mutex<Vec<String>>,
    /// A message for each file whose damage hides packets.
    damages: Mutex<Vec<String>>,
    failure: Mutex<Option<Error>>,
}

impl ReadCounts {
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Acquire)
    }

    /// Returns remarks about the files, such as how they ended and which packets are not metered.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = self.remarks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if self.is_stopped() {
            remarks.push(
                "the meter was stopped before the end of the files: the remaining packets were not metered"
                    .into(),
            );
        }
        remarks
    }

    /// Returns a message for each file of which only a part could be read.
    pub fn damage_remarks(&self) -> Vec<String> {
        self.damages.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True if packets were left in the files because the meter was told to end.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(super) fn mark_stopped(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Returns the error that ended reading early, if there was one, and removes it: only the first caller gets it.
    pub(super) fn take_failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn set_failure(&self, error: Error) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    fn add_remark(&self, text: String) {
        self.remarks.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}

/// A file being read.
struct OpenFile {
    path: PathBuf,
    input: u16,
    bytes: RecordedBytes,
    decoder: CaptureDecoder,
    /// Bytes that were read but not decoded yet.
    carried: Vec<u8>,
    /// Number of bytes that the decoder needs for its next step.
    needed: usize,
    /// File offset of the next byte to read.
    position: u64,
    /// Packets decoded so far.
    packets: u64,
    /// Packets of link types that are not read, by link type.
    unread: BTreeMap<u16, u64>,
    /// Packets that are longer than an Ethernet without jumbo frames carries, and that are not marked as merged.
    long: u64,
}

pub(super) struct CaptureReader {
    files: VecDeque<(u16, PathBuf)>,
    open: Option<OpenFile>,
    /// Time of the last packet that had one.
    last_ns: u64,
    clock: CaptureClock,
    read: Arc<ReadCounts>,
}

/// State of a file after a block.
enum BlockReadState {
    More,
    Whole,
    Cut,
    Damaged(CaptureDamage),
}

impl CaptureReader {
    pub(super) fn new(files: &[PathBuf], read: Arc<ReadCounts>) -> Result<Self, Error> {
        let numbered = (0u16..).zip(files.iter().cloned()).collect();
        let mut reader =
            Self { files: numbered, open: None, last_ns: 0, clock: CaptureClock::default(), read };
        // Reports a missing first file at once.
        reader.open_next_capture_file()?;
        Ok(reader)
    }

    /// Fills a block with the next packets. Returns false if the files have no more packets.
    pub(super) fn fill_block(&mut self, block: &mut PacketBlock) -> Result<bool, Error> {
        while let Some(mut open) = self.open.take() {
            block.clear();
            block.input = open.input;
            let after = self.fill_block_from(&mut open, block)?;
            if !matches!(after, BlockReadState::More) {
                for (link_type, packets) in &open.unread {
                    let name = describe_unread_link_type(*link_type);
                    let file = open.path.display();
                    self.read.add_remark(format!(
                        "{file}: link type {name} is not supported; packets not metered: {packets}"
                    ));
                }
                open.long_packets_remark().into_iter().for_each(|remark| self.read.add_remark(remark));
            }
            match after {
                BlockReadState::More => self.open = Some(open),
                BlockReadState::Whole => self.open_next_capture_file()?,
                BlockReadState::Cut => {
                    self.read
                        .add_remark(format!("{}: the file ends within its last packet", open.path.display()));
                    self.open_next_capture_file()?;
                }
                BlockReadState::Damaged(damage) => {
                    let what = open.path.display();
                    let message = format!(
                        "{what} is damaged at packet {} ({damage}); only the packets before it are metered",
                        open.packets + 1
                    );
                    self.read.damages.lock().unwrap_or_else(PoisonError::into_inner).push(message);
                    self.open_next_capture_file()?;
                }
            }
            // While a file continues, a single wrong time must not move the clock. After the last file there is
            // nothing to wait for, so the latest time ends all earlier flows.
            block.until_ns =
                if self.open.is_some() { self.clock.capture_time_ns() } else { self.clock.latest_ns() };
            if block.foreign.packets > 0 || block.places.iter().any(|places| !places.is_empty()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reports whether the end of all files is reached.
    pub(super) const fn is_read_to_end(&self) -> bool {
        self.open.is_none()
    }

    fn open_next_capture_file(&mut self) -> Result<(), Error> {
        let Some((input, path)) = self.files.pop_front() else { return Ok(()) };
        let bytes =
            File::open(&path).and_then(RecordedBytes::new).map_err(|source| read_error(&path, source))?;
        self.open = Some(OpenFile {
            path,
            input,
            bytes,
            decoder: CaptureDecoder::new(),
            carried: Vec::new(),
            needed: 0,
            position: 0,
            packets: 0,
            unread: BTreeMap::new(),
            long: 0,
        });
        Ok(())
    }

    fn fill_block_from(
        &mut self,
        open: &mut OpenFile,
        block: &mut PacketBlock,
    ) -> Result<BlockReadState, Error> {
        let ReadBytes { end, is_last } = open.read_bytes(block)?;
        if is_last && open.position == 0 {
            return Err(Error::EmptyCapture { path: open.path.clone() });
        }
        let mut start = 0;
        let mut packets = 0u64;
        let after = loop {
            match open.decoder.next_step(&block.bytes[start..end]) {
                Ok(DecodedElement::Record { record, used }) => {
                    start += used;
                    packets += 1;
                    // Simple packet blocks of pcapng have no time: they get the time of the packet before them.
                    self.last_ns = record.at_ns.unwrap_or(self.last_ns);
                    let at_ns = self.last_ns;
                    self.clock.add_time(at_ns);
                    if let Some(link) = LinkKind::from_number(record.link_type) {
                        let place = locate_packet(&record, link, &block.bytes, at_ns);
                        let worker = worker_index_of_frame(
                            place.frame_in_block(&block.bytes),
                            link,
                            block.places.len(),
                        );
                        open.count_long_packet(place);
                        block.places[worker].push(place);
                    } else {
                        *open.unread.entry(record.link_type).or_default() += 1;
                        block
                            .foreign
                            .add_counts(UnreadLinkTypePackets { packets: 1, bytes: record.full_len.into() });
                    }
                }
                // A section that the decoder does not need, which may be larger than the block.
                Ok(DecodedElement::Skip(bytes)) => {
                    let left = bytes.saturating_sub((end - start) as u64);
                    start = usize::try_from(bytes).map_or(end, |bytes| end.min(start.saturating_add(bytes)));
                    if left > 0 {
                        let skipped = open.skip_bytes(left)?;
                        break if skipped < left { BlockReadState::Cut } else { BlockReadState::More };
                    }
                }
                Ok(DecodedElement::More(needed)) => {
                    open.carried.clear();
                    open.carried.extend_from_slice(&block.bytes[start..end]);
                    open.needed = needed;
                    break match (is_last, start == end) {
                        (false, _) => BlockReadState::More,
                        (true, true) => BlockReadState::Whole,
                        (true, false) => BlockReadState::Cut,
                    };
                }
                // No packet was decoded and this is the first block: the file is not a damaged capture, but
                // another kind of file.
                Err(damage) if open.position == end as u64 && start == 0 => {
                    return Err(Error::NoCapture { path: open.path.clone(), damage });
                }
                Err(damage) => break BlockReadState::Damaged(damage),
            }
        };
        open.packets += packets;
        self.read.packets.fetch_add(packets, Ordering::AcqRel);
        Ok(after)
    }
}

/// Bytes read into a block, and whether the file ends with them.
struct ReadBytes {
    end: usize,
    is_last: bool,
}

impl OpenFile {
    fn count_long_packet(&mut self, place: PacketPosition) {
        let is_long = place.full_len > MAX_STANDARD_FRAME_BYTES && place.link == LinkKind::Ethernet;
        self.long += u64::from(is_long && place.merged == 0);
    }

    /// Remark about long packets; `None` if there were none.
    fn long_packets_remark(&self) -> Option<String> {
        let Self { path, long, .. } = self;
        (*long > 0).then(|| {
            format!(
                "{}: packets longer than {MAX_STANDARD_FRAME_BYTES} B: {long}; if the link has no jumbo \
                frames, they were merged before the capture, and the wire had more packets and bytes than \
                the meter counts",
                path.display()
            )
        })
    }

    /// Reads bytes into a block, after the bytes carried over from the last block.
    fn read_bytes(&mut self, block: &mut PacketBlock) -> Result<ReadBytes, Error> {
        // A block grows if a record is longer than a block.
        let most = BLOCK_READ_BYTES.max(self.needed);
        if block.bytes.len() < most {
            block.bytes.resize(most, 0);
        }
        let mut end = self.carried.len();
        block.bytes[..end].copy_from_slice(&self.carried);
        self.carried.clear();
        while end < most {
            match self.bytes.read(&mut block.bytes[end..most]) {
                Ok(0) => return Ok(ReadBytes { end, is_last: true }),
                Ok(read) => {
                    end += read;
                    self.position += read as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A compressed file that was cut off: what could be decompressed is metered.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Ok(ReadBytes { end, is_last: true });
                }
                Err(source) => return Err(read_error(&self.path, source)),
            }
        }
        Ok(ReadBytes { end, is_last: false })
    }

    /// Skips bytes that are not read yet, and returns how many of them the file has.
    fn skip_bytes(&mut self, bytes: u64) -> Result<u64, Error> {
        let skipped =
            self.bytes.skip_bytes(self.position, bytes).map_err(|source| read_error(&self.path, source))?;
        self.position = self.position.saturating_add(bytes);
        Ok(skipped)
    }
}

fn read_error(path: &Path, source: std::io::Error) -> Error {
    Error::File { path: path.to_owned(), source }
}

/// Locates a record's frame in the bytes that it was decoded from.
fn locate_packet(record: &CaptureRecord<'_>, link: LinkKind, bytes: &[u8], at_ns: u64) -> PacketPosition {
    // The FCS is not part of the packet. The snap length may have cut it off, so it is subtracted from the full length.
    let mut full_len = (record.full_len as usize).max(record.bytes.len());
    if record.has_fcs == Some(true) && link == LinkKind::Ethernet && full_len >= ETHERNET_HEADER + FCS {
        full_len -= FCS;
    }
    let len = record.bytes.len().min(full_len);
    // `record.bytes` is a slice of `bytes`, so the difference of the addresses is its offset. A block is far below 4 GiB: the
    // decoder refuses records that are longer than a capture can have.
    let start = record.bytes.as_ptr().addr() - bytes.as_ptr().addr();
    PacketPosition {
        at_ns,
        start: clamp_to_u32(start as u64),
        len: clamp_to_u32(len as u64),
        full_len: clamp_to_u32(full_len as u64),
        merged: record.merged.unwrap_or(0),
        link,
    }
}
