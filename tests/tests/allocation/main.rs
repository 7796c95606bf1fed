//! The hot loops allocate nothing: sender and receiver in front of rings of fixed slots, with an allocator that counts.
//!
//! Many streams that vary in header, size and rhythm are sent, then received with losses, copies, late frames, damaged
//! payloads, damaged tags and frames of strangers, so that every way through the loops is taken.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(unsafe_code, reason = "an allocator is unsafe by its nature; this one only counts and passes on")]

mod collect;
mod export;
mod impair;
mod meter;
mod replay;
mod tap;

use packetrig_engine::Error;
use packetrig_engine::capture::record::{self, CaptureFileFormat, FileRotation, RecordSpec, RecordTarget};
use packetrig_engine::port::{FrameRx, FrameTx, RxFrame, WorkerClock};
use packetrig_engine::receiver::TestReceiver;
use packetrig_engine::sender::TestSender;
use packetrig_engine::sim::VirtualClock;
use packetrig_engine::stream::{
    FrameSource, NextStep, RxJob, StreamControl, StreamRx, StreamSpec, StreamTx, TxJob,
};
use packetrig_plan::timeline::{SendPattern, StreamTimeline};
use packetrig_stats::port::{RxCounters, StampKind, TxCounters};
use packetrig_units::{FrameRate, FrameSize, MonoTime, Nanos};
use packetrig_wire::header::{HeaderKind, PacketHeader};
use packetrig_wire::pattern::FieldPattern;
use packetrig_wire::payload::PayloadPattern;
use packetrig_wire::size::{SizeMix, SizePattern};
use packetrig_wire::tag::TagKey;
use packetrig_wire::{FrameSpec, FrameTemplate};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Arc, Mutex};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

/// Counts what the calling thread asks for.
struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract; counting touches only a
// thread-local number that needs neither initialisation nor destruction.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        LIVE.set(LIVE.get() + block(layout.size()));
        // SAFETY: the caller's layout, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get() - block(layout.size()));
        // SAFETY: pointer and layout are those of a block that `alloc` got from the same allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        LIVE.set(LIVE.get() + block(size) - block(layout.size()));
        // SAFETY: as for `dealloc`; the new size is the caller's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// What a block takes from glibc's heap: eight bytes in front, sixteen at a time, thirty-two at least.
const fn block(size: usize) -> i64 {
    let rounded = (size + 8).next_multiple_of(16);
    (if rounded < 32 { 32 } else { rounded }).cast_signed() as i64
}

/// Bytes that this thread has asked for and not given back, with what the heap adds.
fn live() -> i64 {
    LIVE.get()
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` asks the allocator for, in calls.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

const KEY: TagKey = TagKey(7);
const START: MonoTime = MonoTime::from_nanos(1_000_000_000);
const STREAMS: u16 = 64;
const FRAMES: u64 = 200;
const LONGEST: usize = 1514;

fn spec(number: u16) -> Arc<StreamSpec> {
    let port = FieldPattern::Random { min: 1, max: 65_535, seed: 3, count: 1000 };
    let address = FieldPattern::Step { start: 0xc612_0000, step: 1, count: 5000, down: false };
    let mut headers = vec![
        PacketHeader::new(HeaderKind::Ethernet).with_field("src", 0x0200_0000_0000 + u128::from(number)),
    ];
    if number.is_multiple_of(3) {
        headers
            .push(PacketHeader::new(HeaderKind::Vlan).with_field("id", FieldPattern::Values(vec![1, 2, 3])));
    }
    headers
        .push(PacketHeader::new(HeaderKind::Ipv4).with_field("src", address).with_field("dst", 0xc613_0001));
    headers.push(PacketHeader::new(HeaderKind::Udp).with_field("src_port", port).with_field("dst_port", 9));
    let mix = SizeMix::new(&[(FrameSize::new(80), 7), (FrameSize::new(570), 4), (FrameSize::new(1518), 1)])
        .unwrap();
    let size = match number % 3 {
        0 => SizePattern::Weighted(mix),
        1 => SizePattern::Random { min: FrameSize::new(80), max: FrameSize::new(1518), seed: 5 },
        _ => SizePattern::Fixed(FrameSize::new(100)),
    };
    let frame =
        FrameSpec { headers, size, payload: PayloadPattern::IncrementByte, tagged: true, routed: false };
    let shape = if number.is_multiple_of(2) {
        SendPattern::Frames(FRAMES)
    } else {
        SendPattern::Bursts { bursts: FRAMES / 10, frames: 10, pause: Nanos::from_micros(50) }
    };
    let rate = FrameRate::per_second(1000 + u64::from(number)).unwrap();
    Arc::new(StreamSpec {
        number,
        source: FrameSource::Made(Arc::new(FrameTemplate::new(frame).unwrap())),
        timeline: StreamTimeline { rate, delay: Nanos::ZERO, shape },
        latency: true,
        sent_elsewhere: false,
        untimed: false,
    })
}

fn streams() -> Vec<Arc<StreamSpec>> {
    (0..STREAMS).map(spec).collect()
}

/// Frames one after another in memory that is there from the start.
#[derive(Debug)]
struct Tape {
    bytes: Vec<u8>,
    ends: Vec<(usize, MonoTime)>,
}

impl Tape {
    fn new(frames: usize) -> Self {
        Self { bytes: Vec::with_capacity(frames * LONGEST), ends: Vec::with_capacity(frames) }
    }

    fn push(&mut self, frame: &[u8], at: MonoTime) {
        self.bytes.extend_from_slice(frame);
        self.ends.push((self.bytes.len(), at));
    }

    fn frame(&self, n: usize) -> (&[u8], MonoTime) {
        let start = n.checked_sub(1).map_or(0, |before| self.ends[before].0);
        let (end, at) = self.ends[n];
        (&self.bytes[start..end], at)
    }
}

/// Records what is sent; full every now and then, as a ring is.
struct Recorder {
    tape: Arc<Mutex<Tape>>,
    slot: Vec<u8>,
    clock: VirtualClock,
    calls: u64,
    taken: u64,
}

impl FrameTx for Recorder {
    fn fill_slots(&mut self, want: usize, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> usize {
        self.calls += 1;
        let room = if self.calls.is_multiple_of(5) { 0 } else { want };
        for filled in 0..room {
            let Some(length) = fill(&mut self.slot) else { return filled };
            self.tape.lock().unwrap().push(&self.slot[..length], self.clock.now());
            self.taken += 1;
        }
        room
    }

    fn flush_frames(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn pending_frames(&self) -> usize {
        0
    }

    fn read_tx_counters(&mut self) -> Result<TxCounters, Error> {
        Ok(TxCounters {
            handed_over: self.taken,
            on_wire: Some(self.taken),
            dropped: Some(0),
            ..TxCounters::default()
        })
    }
}

/// Plays a tape.
struct Player {
    tape: Tape,
    next: usize,
}

impl FrameRx for Player {
    fn receive_frames(&mut self, most: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> Result<usize, Error> {
        let end = (self.next + most).min(self.tape.ends.len());
        for n in self.next..end {
            let (bytes, at) = self.tape.frame(n);
            sink(RxFrame::single_packet(bytes, bytes.len(), at, StampKind::Software));
        }
        let given = end - self.next;
        self.next = end;
        Ok(given)
    }

    fn wait_for_frames(&mut self, _within: Nanos) -> Result<(), Error> {
        Ok(())
    }

    fn read_rx_counters(&mut self) -> Result<RxCounters, Error> {
        let seen = self.next as u64;
        Ok(RxCounters { arrived: Some(seen), seen, ..RxCounters::default() })
    }

    fn clock_bound(&self) -> Nanos {
        Nanos::ZERO
    }
}

/// Sends everything; returns the tape and what the loop allocated.
fn send() -> (Tape, u64) {
    send_these(streams(), u64::from(STREAMS) * FRAMES)
}

/// The same for other streams, which have so many frames.
fn send_these(streams: Vec<Arc<StreamSpec>>, total: u64) -> (Tape, u64) {
    let clock = VirtualClock::new(START);
    let tape = Arc::new(Mutex::new(Tape::new(usize::try_from(total).unwrap())));
    let recorder = Recorder {
        tape: Arc::clone(&tape),
        slot: vec![0; LONGEST],
        clock: clock.clone(),
        calls: 0,
        taken: 0,
    };
    let mut sender = TestSender::new(recorder, clock.clone());
    sender
        .arm_sender(TxJob {
            key: KEY,
            streams,
            steered: false,
            gate: packetrig_engine::gate::SendGate::without_lease(),
        })
        .unwrap();
    sender.apply_control(StreamControl::StartAt(START));
    let allocated = allocations(|| {
        loop {
            match sender.send_due(clock.now()).unwrap() {
                NextStep::Busy => {}
                NextStep::IdleUntil(until) => clock.advance_to(until),
                NextStep::Done => break,
            }
        }
    });
    let sent: u64 = sender.finish_sending().iter().map(|sent| sent.counts.frames).sum();
    assert_eq!(sent, total);
    drop(sender);
    (Arc::into_inner(tape).unwrap().into_inner().unwrap(), allocated)
}

/// The same frames after a bad journey.
fn spoil(tape: &Tape) -> Tape {
    let mut spoilt = Tape::new(tape.ends.len() * 2);
    let mut late: Vec<Vec<u8>> = Vec::new();
    for n in 0..tape.ends.len() {
        let (bytes, at) = tape.frame(n);
        let mut bytes = bytes.to_vec();
        let arrival = at + Nanos::from_micros(30 + n as u64 % 100);
        let end = bytes.len();
        match n % 37 {
            1 => continue,
            2 => late.push(bytes.clone()),
            3 => spoilt.push(&bytes, arrival),
            4 => bytes[end - 17] ^= 1,
            5 => bytes[end - 10] ^= 1,
            6 => bytes[0] ^= 2,
            7 => bytes.iter_mut().for_each(|byte| *byte ^= 0x5a),
            _ => {}
        }
        if n % 37 != 2 {
            spoilt.push(&bytes, arrival);
        }
        if n % 500 == 499 {
            late.drain(..).for_each(|frame| spoilt.push(&frame, arrival));
        }
    }
    spoilt
}

#[test]
fn sending_allocates_nothing() {
    let (tape, allocated) = send();
    assert_eq!((tape.ends.len() as u64, allocated), (u64::from(STREAMS) * FRAMES, 0));
}

#[test]
fn receiving_allocates_nothing() {
    let (sent, _) = send();
    let tape = spoil(&sent);
    let frames = tape.ends.len();
    let mut receiver = TestReceiver::new(Player { tape, next: 0 });
    receiver
        .arm_receiver(RxJob {
            elsewhere: Vec::new(),
            earlier_runs: Vec::new(),
            port: 0,
            key: KEY,
            streams: streams(),
            taps: Vec::new(),
            has_devices: false,
        })
        .unwrap();
    receiver.apply_control(StreamControl::StartAt(START));
    let allocated = allocations(|| {
        // A bounded bite per step: more steps than frames is more than enough.
        for _ in 0..=frames {
            receiver.receive_arrivals(START).unwrap();
        }
    });
    let counters = receiver.port_counters().unwrap();
    let results = receiver.finish_receiving(&vec![FRAMES; usize::from(STREAMS)]);
    let sum = |of: fn(&packetrig_stats::counts::StreamRxCounts) -> u64| {
        results.streams.iter().map(|r| of(&r.counts)).sum::<u64>()
    };
    // Every way through the loop was taken.
    assert!(
        sum(|c| c.sequence.duplicates) > 0
            && sum(|c| c.sequence.lost) > 0
            && sum(|c| c.sequence.reordered) > 0
    );
    assert!(
        sum(|c| c.corrupt) > 0 && sum(|c| c.altered) > 0 && sum(|c| c.unnumbered) > 0 && counters.foreign > 0
    );
    assert_eq!((counters.seen, allocated), (frames as u64, 0));
}

#[test]
fn capturing_allocates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let spec = RecordSpec {
        target: RecordTarget::File(directory.path().join("a.pcapng")),
        format: CaptureFileFormat::Pcapng,
        interface: "eth0".into(),
        further: Vec::new(),
        comment: String::new(),
        filter: String::new(),
        snap_len: None,
        fcs: true,
        budget: None,
        rotation: FileRotation::default(),
        zstd: None,
        queue: 4 << 20,
    };
    let start = MonoTime::default();
    let mut recorder =
        record::CaptureRecorder::start(spec, packetrig_sys::clock::measure_realtime_offset(), start).unwrap();
    let bytes = [7; 1000];
    let frame = RxFrame::single_packet(&bytes, 1000, start, StampKind::Software);
    let made = allocations(|| (0..100_000).for_each(|_| recorder.record_frame(&frame)));
    assert_eq!(made, 0);
    recorder.finish_recording(start).unwrap();
}

#[test]
fn the_counter_counts() {
    // Not even an optimiser may leave this one out.
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(std::hint::black_box(5u64))))), 1);
}
