//! Captures of what a port receives, written off the receiving thread.
//!
//! ```text
//!  receiver -> Tap: filter, copy into a free buffer -> ring -> writer thread: FCS, encode, file
//!                   no free buffer: counted as dropped       -> buffers go back
//! ```
//! The receiving thread never waits for the disk: when the writer is behind, frames are dropped from the capture and
//! counted. Captured frames carry a computed FCS, so that their length is the frame size of the plan.
//!
//! This is the capture of a run. [`record`] is the capture that a user asks for, with or without a run.
//!
//! Invariant: frames that passed the filter = written + dropped.

mod encode;
pub mod record;

use crate::Error;
use crate::port::RxFrame;
use encode::{Header, Record, Totals};
use packetrig_plan::CaptureFormat;
use packetrig_sys::clock::{self, Offset};
use packetrig_units::Nanos;
use packetrig_wire::{checksum, filter::Filter};
use rtrb::{Consumer, Producer, RingBuffer};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Frames between receiver and writer at most.
const BUFFERS: usize = 8192;
/// The longest frame kept whole.
const LONGEST: usize = 16_384;
/// Room a buffer starts with; jumbo frames make theirs grow once.
const USUAL: usize = 2048;
/// How long the writer sleeps when there is nothing to write.
const PAUSE: Nanos = Nanos::from_millis(2);

/// What to capture, and where to.
#[derive(Clone, Debug)]
pub struct CaptureSpec {
    /// The file; made anew.
    pub file: PathBuf,
    /// Its format.
    pub format: CaptureFormat,
    /// Interface name to write into it.
    pub interface: String,
    /// A comment to write into it.
    pub comment: String,
    /// Bytes kept of a frame, FCS included.
    pub snap_len: Option<u32>,
    /// Frames to keep.
    pub filter: Filter,
    /// Stop writing after this many bytes, when set; frames after that count as dropped.
    pub budget: Option<u64>,
}

#[derive(Debug, Default)]
struct Buffer {
    at_ns: u64,
    full_len: usize,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    passed: AtomicU64,
    dropped: AtomicU64,
}

/// The receiving thread's end.
#[derive(Debug)]
pub struct Tap {
    filter: Filter,
    keep: usize,
    offset: Offset,
    free: Consumer<Buffer>,
    full: Producer<Buffer>,
    shared: Arc<Shared>,
}

impl Tap {
    /// Takes a copy, if the frame passes and there is room. Does not wait.
    pub fn offer(&mut self, frame: &RxFrame<'_>) {
        if !self.filter.accepts(frame.bytes) {
            return;
        }
        self.shared.passed.fetch_add(1, Ordering::Relaxed);
        let Ok(mut buffer) = self.free.pop() else {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        buffer.at_ns = frame.at.as_nanos().saturating_add_signed(self.offset.offset_ns);
        buffer.full_len = frame.full_len;
        buffer.bytes.clear();
        // All of it even when only a part is kept: the FCS is over the whole frame.
        buffer.bytes.extend_from_slice(&frame.bytes[..frame.bytes.len().min(self.keep)]);
        if self.full.push(buffer).is_err() {
            // Cannot be: there are as many places as buffers.
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A capture under way.
#[derive(Debug)]
pub struct Capture {
    file: PathBuf,
    shared: Arc<Shared>,
    writer: Option<JoinHandle<std::io::Result<u64>>>,
}

/// What became of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// The file.
    pub file: PathBuf,
    /// Frames in it.
    pub written: u64,
    /// Frames that passed the filter and are not in it.
    pub dropped: u64,
}

impl Capture {
    /// Makes the file and starts the writer.
    pub fn start(spec: CaptureSpec) -> Result<(Tap, Self), Error> {
        let file = spec.file.clone();
        let output = File::create(&file).map_err(|source| Error::File { path: file.clone(), source })?;
        let (mut free_in, free) = RingBuffer::new(BUFFERS);
        let (full, full_out) = RingBuffer::new(BUFFERS);
        for _ in 0..BUFFERS {
            let buffer = Buffer { bytes: Vec::with_capacity(USUAL), ..Buffer::default() };
            free_in.push(buffer).map_err(|_| Error::Bug("a new ring is full"))?;
        }
        let shared = Arc::new(Shared::default());
        let filter = spec.filter.clone();
        let mut writer = Writer::new(spec, output, full_out, free_in, Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("capture".into())
            .spawn(move || writer.run())
            .map_err(|source| Error::File { path: file.clone(), source })?;
        let tap = Tap {
            filter,
            keep: LONGEST,
            offset: clock::realtime_offset(),
            free,
            full,
            shared: Arc::clone(&shared),
        };
        Ok((tap, Self { file, shared, writer: Some(thread) }))
    }

    /// Writes what is left, ends the file. Call after the tap's thread has ended.
    pub fn finish(mut self) -> Result<Captured, Error> {
        self.shared.stop.store(true, Ordering::Release);
        let Some(thread) = self.writer.take() else { return Err(Error::Bug("a capture ended twice")) };
        let written = thread
            .join()
            .map_err(|_| Error::Bug("the capture writer panicked"))?
            .map_err(|source| Error::File { path: self.file.clone(), source })?;
        let passed = self.shared.passed.load(Ordering::Acquire);
        Ok(Captured { file: self.file.clone(), written, dropped: passed - written })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.writer.take() {
            // An error was of interest only to `finish`, which was not called.
            drop(thread.join());
        }
    }
}

struct Writer {
    spec: CaptureSpec,
    output: BufWriter<File>,
    full: Consumer<Buffer>,
    free: Producer<Buffer>,
    shared: Arc<Shared>,
    encoded: Vec<u8>,
    size: u64,
    written: u64,
}

impl Writer {
    fn new(
        spec: CaptureSpec,
        output: File,
        full: Consumer<Buffer>,
        free: Producer<Buffer>,
        shared: Arc<Shared>,
    ) -> Self {
        let output = BufWriter::with_capacity(1 << 20, output);
        Self { spec, output, full, free, shared, encoded: Vec::new(), size: 0, written: 0 }
    }

    fn run(&mut self) -> std::io::Result<u64> {
        let Self { spec, encoded, .. } = self;
        let header = Header {
            interface: &spec.interface,
            comment: &spec.comment,
            snap_len: spec.snap_len,
            ..Header::default()
        };
        encode::begin(spec.format, &header, encoded);
        self.put()?;
        loop {
            // Read before the ring: what came before the stop is still written.
            let stop = self.shared.stop.load(Ordering::Acquire);
            while let Ok(buffer) = self.full.pop() {
                self.write(buffer)?;
            }
            if stop {
                break;
            }
            clock::sleep_until_ns(clock::monotonic_ns() + PAUSE.as_u64());
        }
        let passed = self.shared.passed.load(Ordering::Acquire);
        let totals = Totals {
            to_ns: clock::wall_clock_ns(),
            received: passed,
            dropped: passed - self.written,
            ..Totals::default()
        };
        encode::end(self.spec.format, totals, &mut self.encoded);
        self.put()?;
        self.output.flush()?;
        Ok(self.written)
    }

    fn write(&mut self, mut buffer: Buffer) -> std::io::Result<()> {
        if self.spec.budget.is_none_or(|budget| self.size + buffer.bytes.len() as u64 + 64 <= budget) {
            let full_len = u32::try_from(buffer.full_len + 4).unwrap_or(u32::MAX);
            if buffer.bytes.len() == buffer.full_len {
                let fcs = checksum::fcs(&buffer.bytes);
                buffer.bytes.extend_from_slice(&fcs);
            }
            let keep =
                self.spec.snap_len.map_or(buffer.bytes.len(), |snap| snap as usize).min(buffer.bytes.len());
            let record = Record { at_ns: buffer.at_ns, bytes: &buffer.bytes[..keep], full_len };
            encode::record(self.spec.format, record, &mut self.encoded);
            self.put()?;
            self.written += 1;
        }
        // As many places as buffers: never full.
        self.free.push(buffer).map_err(|_| std::io::Error::other("the ring of free buffers is full"))
    }

    fn put(&mut self) -> std::io::Result<()> {
        self.output.write_all(&self.encoded)?;
        self.size += self.encoded.len() as u64;
        self.encoded.clear();
        Ok(())
    }
}

/// A file name for a port's capture that no port name can turn into a path. `again` counts further ones of that name.
pub(crate) fn file_name(port: &str, format: CaptureFormat, again: usize) -> PathBuf {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let extension = match format {
        CaptureFormat::Pcap => "pcap",
        CaptureFormat::Pcapng => "pcapng",
    };
    let number = if again > 0 { format!("-{}", again + 1) } else { String::new() };
    format!("{}{number}.{extension}", port.chars().map(safe).collect::<String>()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_stats::port::StampKind;
    use packetrig_units::MonoTime;
    use packetrig_wire::filter::{Base, Condition};
    use std::path::Path;

    fn spec(dir: &Path) -> CaptureSpec {
        CaptureSpec {
            file: dir.join("a.pcap"),
            format: CaptureFormat::Pcap,
            interface: "eth0".into(),
            comment: String::new(),
            snap_len: None,
            filter: Filter::default(),
            budget: None,
        }
    }

    fn offer(tap: &mut Tap, first: u8, frames: usize) {
        for _ in 0..frames {
            let bytes = [first; 60];
            tap.offer(&RxFrame {
                bytes: &bytes,
                full_len: 60,
                at: MonoTime::default(),
                stamp: StampKind::User,
            });
        }
    }

    #[test]
    fn frames_get_an_fcs_and_every_one_is_accounted() {
        let dir = tempfile::tempdir().unwrap();
        let filter =
            Condition { base: Base::Frame, bit_offset: 0, bits: 8, value: 7, mask: 0, negate: false };
        let (mut tap, capture) =
            Capture::start(CaptureSpec { filter: Filter { conditions: vec![filter] }, ..spec(dir.path()) })
                .unwrap();
        offer(&mut tap, 7, 10);
        offer(&mut tap, 8, 5);
        drop(tap);
        let captured = capture.finish().unwrap();
        assert_eq!((captured.written, captured.dropped), (10, 0));
        let bytes = std::fs::read(&captured.file).unwrap();
        assert_eq!(bytes.len(), 24 + 10 * (16 + 64));
        assert_eq!(bytes[24 + 16 + 60..24 + 16 + 64], checksum::fcs(&[7; 60]));
    }

    #[test]
    fn over_budget_frames_are_counted_as_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let (mut tap, capture) =
            Capture::start(CaptureSpec { budget: Some(400), ..spec(dir.path()) }).unwrap();
        offer(&mut tap, 1, 20);
        drop(tap);
        let captured = capture.finish().unwrap();
        assert_eq!(captured.written + captured.dropped, 20);
        assert!(captured.written > 0 && std::fs::metadata(&captured.file).unwrap().len() <= 400);
    }

    #[test]
    fn port_names_never_leave_the_directory() {
        assert_eq!(file_name("../a b/c", CaptureFormat::Pcapng, 0), Path::new(".._a_b_c.pcapng"));
        assert_eq!(file_name("a", CaptureFormat::Pcap, 1), Path::new("a-2.pcap"));
    }
}
