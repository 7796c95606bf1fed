//! Sending live frames: the kernel runs `bpf/send.bpf.c` over and over on a thread of ours, and the program makes the
//! frames that are due.
//!
//! ```text
//!  caller -> tables (shapes, fields, fills), once -> runs ("200 frames of shape 3 from now on") -> program -> interface
//!  caller <- counters per lane, histograms <- program
//! ```
//! The thread spins while it lives. [`LiveTx::stop`] ends sending at once, dropping ends the thread.

mod runs;

pub use runs::{FrameRun, RunProgress};

use super::buckets::BUCKETS;
use super::{SECTION, SEND};
use crate::area::SharedArea;
use crate::bpf::{BpfMap, BpfProgram, MapKind};
use crate::layout::send::{self as layout, check, control, lane, op, shape};
use crate::netns::NetNs;
use crate::{Error, sched, signal};
use runs::RunQueue;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of a shape's image at most.
pub const IMAGE: usize = layout::IMAGE;
/// Checksums of a shape at most.
pub const CHECKS: usize = layout::CHECKS;
/// Varying fields of a shape at most.
pub const OPS: usize = layout::OPS;
/// Bytes of a fill at most.
pub const FILL: usize = layout::LONGEST_FILL;
/// Runs that can wait.
pub const RUNS: u64 = layout::RUNS as u64;
/// Frames that fit the kernel's pages with headroom and tail room, without FCS.
pub const LONGEST: usize = 3_300;
/// Frames between two hand-overs at most.
pub const MOST_BATCH: u32 = 64;

/// Kinds of varying field, as numbers of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum OpKind {
    /// From the table of values.
    Values = 0,
    StepUp = 1,
    StepDown = 2,
    /// Start plus one of `step` numbers by chance.
    Random = 3,
    /// All bits by chance.
    RandomWhole = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldChange {
    /// How its value is found.
    pub kind: OpKind,
    pub start: u128,
    /// Distance of values; for [`OpKind::Random`] how many there are to draw from.
    pub step: u128,
    /// Values before they repeat; 0 = never.
    pub count: u64,
    pub seed: u64,
    /// The field's bits, from the right.
    pub mask: u128,
    /// Even offset in the frame of the window of 8 bytes (16 if `wide`) that holds the field.
    pub at: u32,
    /// Bits of the window behind the field; 0 if wide.
    pub shift: u32,
    /// A window of 16 bytes.
    pub wide: bool,
    /// Checksums that cover it, as bits.
    pub checks: u32,
    /// Of [`OpKind::Values`]: index of the first.
    pub values_from: u32,
}

/// A checksum of a shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShapeChecksum {
    /// One's-complement sum of everything it covers that does not vary.
    pub base: u32,
    pub at: u16,
    /// It is to be wrong.
    pub bad: bool,
    /// Zero is written as all ones.
    pub never_zero: bool,
    /// Words of the tag it covers, as bits: mark, (stream or upper half of the short word), upper and lower half of the number (or lower half
    /// of the short word), three of the time.
    pub tag_words: u8,
    /// The tag is at an odd distance from where the checksum starts.
    pub tag_swapped: bool,
    /// Later checksums that cover this one, as bits.
    pub into: u8,
}

/// The frames of one lane and one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameShape {
    /// Where its frames are counted.
    pub lane: u32,
    /// Frame length without FCS.
    pub len: u32,
    /// The beginning of the frame, with all varying bits zero; at most [`IMAGE`] bytes.
    pub image: Vec<u8>,
    /// The fill, and how much of it goes where.
    pub fill: u32,
    /// Where the fill goes.
    pub fill_at: u32,
    /// Bytes of it; 0 if the image holds everything.
    pub fill_len: u32,
    /// Where the tag goes.
    pub tag_at: u32,
    /// 16, 6 or, without a tag, 0.
    pub tag_len: u32,
    /// The number in the tag.
    pub stream: u16,
    /// The tag with everything that varies zero.
    pub tail: [u8; 16],
    /// First of its varying fields, and how many.
    pub ops: (u32, u32),
    /// Its checksums, inner before outer.
    pub checks: Vec<ShapeChecksum>,
}

/// All that frames are made of.
#[derive(Clone, Debug, Default)]
pub struct FrameTables {
    pub shapes: Vec<FrameShape>,
    /// Varying fields, by index.
    pub ops: Vec<FieldChange>,
    /// Listed values, by index.
    pub values: Vec<u128>,
    /// Fills, by index; at most [`FILL`] bytes each.
    pub fills: Vec<Vec<u8>>,
    /// How many lanes there are.
    pub lanes: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct LiveOptions {
    /// Key of the tags.
    pub key: u64,
    /// A frame this much after its instant counts as late.
    pub late_after_ns: u64,
    /// Frames between two hand-overs at most: a power of two up to [`MOST_BATCH`].
    pub batch: u32,
}

/// What the program counted in a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounts {
    pub frames: u64,
    /// Their bytes, FCS included.
    pub bytes: u64,
    /// When the first and the last were made; 0 if none was.
    pub first_ns: u64,
    pub last_ns: u64,
    pub late: u64,
    /// The longest time after its instant that one was made.
    pub error_max_ns: u64,
}

/// The part both the caller and the thread use.
#[derive(Debug)]
struct SharedSender {
    program: BpfProgram,
    quit: AtomicBool,
    frame: Vec<u8>,
    batch: u32,
}

/// A sender of live frames.
#[derive(Debug)]
pub struct LiveTx {
    shared: Arc<SharedSender>,
    runs: RunQueue,
    lanes: SharedArea,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl LiveTx {
    /// Loads the program with its tables. Frames will leave through the interface with this number.
    pub fn open(index: u32, tables: &FrameTables, options: LiveOptions) -> Result<Self, Error> {
        assert!(options.batch.is_power_of_two() && options.batch <= MOST_BATCH, "batch {}", options.batch);
        let control_map = BpfMap::create("control", MapKind::SharedArray, control::SIZE, 1)?;
        let lanes = BpfMap::create("lanes", MapKind::SharedArray, lane::SIZE, tables.lanes)?;
        let shapes = table("shapes", shape::SIZE, &tables.shapes, shape_bytes)?;
        let ops = table("ops", op::SIZE, &tables.ops, op_bytes)?;
        let values =
            table("values", layout::value::SIZE, &tables.values, |value| wide_bytes(*value).to_vec())?;
        let fills = table("fills", FILL, &tables.fills, |fill| {
            let mut bytes = fill.clone();
            bytes.resize(FILL, 0);
            bytes
        })?;
        let scratch = BpfMap::create("scratch", MapKind::Array, layout::scratch::SIZE, 1)?;
        let maps = [&control_map, &lanes, &shapes, &ops, &values, &fills, &scratch];
        let program = BpfProgram::load("send", &SEND.program(SECTION, &maps)?, false)?;
        let mut shared = control_map.share()?;
        shared.bytes_mut(control::KEY, 8).copy_from_slice(&options.key.to_ne_bytes());
        shared.bytes_mut(control::LATE_AFTER, 8).copy_from_slice(&options.late_after_ns.to_ne_bytes());
        shared.bytes_mut(control::IFINDEX, 4).copy_from_slice(&index.to_ne_bytes());
        shared.bytes_mut(control::BATCH, 4).copy_from_slice(&options.batch.to_ne_bytes());
        let runs = RunQueue::new(shared);
        let longest = tables.shapes.iter().map(|shape| shape.len as usize).max().unwrap_or(60);
        let frame = vec![0; longest.min(LONGEST)];
        let shared = SharedSender { program, quit: AtomicBool::new(false), frame, batch: options.batch };
        Ok(Self { shared: Arc::new(shared), runs, lanes: lanes.share()?, thread: None })
    }

    /// Starts the thread that turns the program, in the interface's namespace. From now on frames leave when they are due.
    pub fn start(&mut self, netns: &NetNs, name: String) -> Result<(), Error> {
        signal::allow_nudges()?;
        let shared = Arc::clone(&self.shared);
        self.thread = Some(netns.spawn_in(name, move || {
            sched::request_precedence().unwrap_or(());
            while !shared.quit.load(Ordering::Acquire) {
                shared.program.run_live(&shared.frame, shared.batch, u32::MAX)?;
            }
            Ok(())
        })?);
        Ok(())
    }

    /// Hands a run over; `false` if too many wait.
    pub fn push(&mut self, run: &FrameRun) -> bool {
        self.runs.push(run)
    }

    /// Nothing leaves any more, whatever was pushed; a frame in the making still does.
    pub fn stop(&self) {
        self.runs.stop();
    }

    /// How far the program is.
    pub fn progress(&self) -> RunProgress {
        self.runs.progress()
    }

    /// Whether everything that was pushed has been made. It may still wait for the end of its batch.
    pub fn is_drained(&self) -> bool {
        self.runs.is_drained()
    }

    /// Runs pushed and not begun.
    pub fn waiting(&self) -> u64 {
        self.runs.waiting()
    }

    /// An error if the thread has ended by itself.
    pub fn check(&mut self) -> Result<(), Error> {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            return self.end();
        }
        Ok(())
    }

    /// Ends the thread. What was made is handed over by then.
    pub fn end(&mut self) -> Result<(), Error> {
        self.stop();
        self.shared.quit.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        while !thread.is_finished() {
            // A nudge that comes while the thread is between two calls is lost: repeated until the thread has seen `quit`.
            signal::nudge(&thread);
            std::thread::sleep(Duration::from_micros(200));
        }
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Counts of a lane.
    pub fn lane(&self, lane: u32) -> LaneCounts {
        let read = |field: usize| self.lanes.long(lane as usize * lane::SIZE + field).load(Ordering::Relaxed);
        LaneCounts {
            frames: read(lane::FRAMES),
            bytes: read(lane::BYTES),
            first_ns: read(lane::FIRST),
            last_ns: read(lane::LAST),
            late: read(lane::LATE),
            error_max_ns: read(lane::ERROR_MAX),
        }
    }

    /// Frames of a lane by how long after their instant they were made, in the buckets of [`super::buckets`].
    pub fn errors(&self, lane: u32) -> Vec<u64> {
        let start = lane as usize * lane::SIZE + lane::ERRORS;
        (0..BUCKETS).map(|bucket| self.lanes.long(start + 8 * bucket).load(Ordering::Relaxed)).collect()
    }

    /// Frames by how long after they were made their batch had been handed over for certain, and the longest such time.
    pub fn bounds(&self) -> (Vec<u64>, u64) {
        let read = |at| self.runs.area().long(at).load(Ordering::Relaxed);
        ((0..BUCKETS).map(|bucket| read(control::BOUNDS + 8 * bucket)).collect(), read(control::BOUNDS_MAX))
    }

    /// How long the program takes for one frame of a shape, in ns: the mean of many, made outside any interface.
    pub fn time_per_frame(&mut self, shape: u32) -> Result<u32, Error> {
        const FRAMES: u32 = 1 << 20;
        let run = FrameRun {
            due_ns: 0,
            step: 0,
            number: 0,
            cutoff_ns: u64::MAX,
            count: FRAMES,
            shape,
            behind_ns: 0,
        };
        assert!(self.thread.is_none() && self.push(&run), "only before the start");
        self.shared.program.time(&self.shared.frame, FRAMES)
    }

    /// Makes one frame outside any interface, as it would be sent when it was due at zero: the bytes, for tests.
    pub fn make_once(&mut self, shape: u32, number: u64, len: usize) -> Result<Option<Vec<u8>>, Error> {
        let run = FrameRun { due_ns: 0, step: 0, number, cutoff_ns: u64::MAX, count: 1, shape, behind_ns: 0 };
        assert!(self.thread.is_none() && self.push(&run), "only before the start");
        let longest = self.shared.frame.len();
        let (answer, frame) = self.shared.program.run_once(&vec![0xa5; longest])?;
        Ok((answer == REDIRECT && frame.len() == len).then_some(frame))
    }
}

/// `XDP_REDIRECT`.
const REDIRECT: u32 = 4;

impl Drop for LiveTx {
    fn drop(&mut self) {
        // A sender is dropped without `end` only while another error is handled.
        drop(self.end());
    }
}

/// A map with a value for each row, in the form of the program's structure.
fn table<T>(
    name: &'static str,
    value: usize,
    rows: &[T],
    bytes: impl Fn(&T) -> Vec<u8>,
) -> Result<BpfMap, Error> {
    let map = BpfMap::create(name, MapKind::Array, value, u32::try_from(rows.len()).unwrap_or(u32::MAX))?;
    for (index, row) in (0..).zip(rows) {
        map.set(index, &bytes(row))?;
    }
    Ok(map)
}

fn wide_bytes(value: u128) -> [u8; 16] {
    let halves = [value >> 64, value & u128::from(u64::MAX)];
    let mut bytes = [0; 16];
    for (to, half) in bytes.chunks_exact_mut(8).zip(halves) {
        to.copy_from_slice(&u64::try_from(half).unwrap_or(0).to_ne_bytes());
    }
    bytes
}

/// A structure of the program: all zeros but for what is put at its fields.
struct Encoded(Vec<u8>);

impl Encoded {
    fn new(size: usize) -> Self {
        Self(vec![0; size])
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_words<const N: usize>(&mut self, words: [(usize, u32); N]) {
        for (at, word) in words {
            self.put(at, &word.to_ne_bytes());
        }
    }
}

fn shape_bytes(shape: &FrameShape) -> Vec<u8> {
    assert!(shape.image.len() <= IMAGE && shape.checks.len() <= CHECKS && shape.ops.1 as usize <= OPS);
    let mut encoded = Encoded::new(shape::SIZE);
    encoded.put_words([
        (shape::LANE, shape.lane),
        (shape::LEN, shape.len),
        (shape::IMAGE_LEN, number(shape.image.len())),
        (shape::FILL, shape.fill),
        (shape::FILL_AT, shape.fill_at),
        (shape::FILL_LEN, shape.fill_len),
        (shape::TAG_AT, shape.tag_at),
        (shape::TAG_LEN, shape.tag_len),
        (shape::OPS_FROM, shape.ops.0),
        (shape::OPS, shape.ops.1),
        (shape::CHECKS_USED, number(shape.checks.len())),
        (shape::STREAM, shape.stream.into()),
    ]);
    encoded.put(shape::TAIL, &shape.tail);
    for (index, check) in shape.checks.iter().enumerate() {
        encoded.put(shape::CHECKS + index * check::SIZE, &check_bytes(check));
    }
    encoded.put(shape::IMAGE, &shape.image);
    encoded.0
}

fn check_bytes(check: &ShapeChecksum) -> Vec<u8> {
    let mut encoded = Encoded::new(check::SIZE);
    encoded.put(check::BASE, &check.base.to_ne_bytes());
    encoded.put(check::AT, &check.at.to_ne_bytes());
    encoded.put(check::BAD, &[check.bad.into()]);
    encoded.put(check::NEVER_ZERO, &[check.never_zero.into()]);
    encoded.put(check::TAG_WORDS, &[check.tag_words]);
    encoded.put(check::TAG_SWAPPED, &[check.tag_swapped.into()]);
    encoded.put(check::INTO, &[check.into]);
    encoded.0
}

fn op_bytes(op: &FieldChange) -> Vec<u8> {
    let mut encoded = Encoded::new(op::SIZE);
    encoded.put(op::START_HI, &wide_bytes(op.start));
    encoded.put(op::STEP_HI, &wide_bytes(op.step));
    encoded.put(op::COUNT, &op.count.to_ne_bytes());
    encoded.put(op::SEED, &op.seed.to_ne_bytes());
    encoded.put(op::MASK_HI, &wide_bytes(op.mask));
    encoded.put_words([
        (op::KIND, op.kind as u32),
        (op::AT, op.at),
        (op::SHIFT, op.shift),
        (op::WIDE, op.wide.into()),
        (op::CHECKS, op.checks),
        (op::VALUES_FROM, op.values_from),
    ]);
    encoded.0
}

fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
