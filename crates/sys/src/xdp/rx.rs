//! Receiving: the program copies each frame with its arrival time into a ring per processor, which is mapped here.
//!
//! The frames of several processors are given in the order of their times. A processor may have taken a time and not
//! yet written its frame; so when more than one is at work, frames younger than [`SETTLED_NS`] wait for the next call.
//!
//! Invariant: bytes of a record are read only between the reader's and the writer's counter.

use super::{RECEIVE, SECTION};
use crate::area::Area;
use crate::bpf::{Attachment, Instruction, Map, MapKind, Program};
use crate::netns::NetNs;
use crate::{Error, clock, sched};
use std::sync::atomic::Ordering;

/// The longest frame that is kept whole.
pub const LONGEST: u32 = 9600;
/// How old a frame must be before it is given, when several processors receive.
pub const SETTLED_NS: u64 = 100_000;

// struct ring and struct record in bpf/receive.bpf.c
const WRITTEN: usize = 0;
const DROPPED: usize = 8;
const READ: usize = 64;
const DATA: usize = 4096;
const RING_BYTES: usize = 16 << 20;
const RING: u64 = RING_BYTES as u64;
const SLACK: usize = 16_384;
const VALUE: usize = DATA + RING_BYTES + SLACK;
const HEAD: usize = 16;
// enum xdp_action
const DROP: u32 = 1;
const PASS: u32 = 2;
const BY_KIND: u32 = 255;

/// How to receive.
#[derive(Clone, Copy, Debug)]
pub struct XdpRxOptions {
    /// Run the program in the driver; otherwise in the kernel's generic path, after it has made an skb.
    pub native: bool,
    /// Bytes of a frame to keep at most.
    pub snap: u32,
    /// What goes on to the kernel's stack afterwards; the rest ends here.
    pub pass: Pass,
}

/// Frames that go on to the kernel's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// None.
    Nothing,
    /// ARP, ICMP and ICMPv6, also behind VLAN tags.
    Neighbours,
    /// All.
    Everything,
}

/// Makes the program in front of the rings: instructions that go to the first slice of instructions for frames that are
/// wanted, and to the second for others. Both use R6 as the context.
pub type Filter<'a> = &'a dyn Fn(&[Instruction], &[Instruction]) -> Vec<Instruction>;

/// A frame in a ring.
#[derive(Clone, Copy, Debug)]
pub struct XdpFrame<'a> {
    /// Its bytes, without FCS.
    pub bytes: &'a [u8],
    /// Bytes it had when it came.
    pub full_len: usize,
    /// When, in ns of the monotonic clock.
    pub monotonic_ns: u64,
}

/// Rings of an interface.
#[derive(Debug)]
pub struct XdpRx {
    // Detached first.
    attachment: Attachment,
    /// Fills the rings.
    program: Program,
    /// Holds the program behind a filter: a table of programs empties when nobody holds it.
    behind: Option<Map>,
    rings: Rings,
}

impl XdpRx {
    /// Receives on an interface from now on. What is received does not reach the kernel's stack.
    pub fn open(
        netns: &NetNs,
        index: u32,
        object: &str,
        options: XdpRxOptions,
        filter: Option<Filter<'_>>,
    ) -> Result<Self, Error> {
        let processors = sched::possible_cpus();
        let (program, rings) = load(options, processors)?;
        let rings = Rings::new(rings.share()?, processors as usize);
        let in_front = filter.map(|filter| in_front(&program, filter)).transpose()?;
        let first = in_front.as_ref().map_or(&program, |(first, _)| first);
        let attachment = first.attach(netns, index, options.native, object)?;
        Ok(Self { attachment, program, behind: in_front.map(|(_, behind)| behind), rings })
    }

    /// Receives only what passes `filter` from now on; other frames go on to the kernel's stack.
    pub fn narrow(&mut self, filter: Filter<'_>) -> Result<(), Error> {
        let (first, behind) = in_front(&self.program, filter)?;
        self.attachment.replace(&first)?;
        self.behind = Some(behind);
        Ok(())
    }

    /// How long the program takes for a frame like this, in ns: the mean of as many as a ring holds, outside any interface.
    pub fn time_per_frame(frame: &[u8]) -> Result<u32, Error> {
        let options = XdpRxOptions { native: true, snap: LONGEST, pass: Pass::Nothing };
        let (program, _rings) = load(options, sched::possible_cpus())?;
        let fitting = RING / (HEAD + frame.len().next_multiple_of(8)) as u64;
        program.time(frame, u32::try_from(fitting).unwrap_or(1))
    }

    /// Gives every frame at hand to `sink`, at most `most`; returns how many. Does not wait.
    pub fn receive(&mut self, most: usize, sink: &mut dyn FnMut(XdpFrame<'_>)) -> usize {
        self.rings.receive(most, clock::monotonic_ns(), sink)
    }

    /// Frames that found their ring full, so far.
    pub fn dropped(&self) -> u64 {
        self.rings.dropped()
    }
}

/// A program that calls another for the frames it wants, and the table through which it does.
fn in_front(program: &Program, filter: Filter<'_>) -> Result<(Program, Map), Error> {
    let table = Map::create("behind", MapKind::Programs, 4, 1)?;
    table.set_program(0, program)?;
    // r1 = context; r2 = table (two instructions); r3 = 0; call bpf_tail_call; then, if that failed, pass.
    let [load, rest] = table.load_into(2);
    let pass = [0xb7 | 2 << 32, 0x95];
    let wanted = [0x61bf, load, rest, 0x3b7, 0x85 | 12 << 32, pass[0], pass[1]];
    Ok((Program::load("filter", &filter(&wanted, &pass), true)?, table))
}

fn load(options: XdpRxOptions, processors: u32) -> Result<(Program, Map), Error> {
    let rings = Map::create("rings", MapKind::SharedArray, VALUE, processors)?;
    let settings = Map::create("settings", MapKind::Array, 8, 1)?;
    let answer = match options.pass {
        Pass::Nothing => DROP,
        Pass::Neighbours => BY_KIND,
        Pass::Everything => PASS,
    };
    settings.set(0, &[options.snap.min(LONGEST).to_ne_bytes(), answer.to_ne_bytes()].concat())?;
    let code = RECEIVE.program(SECTION, &[&rings, &settings])?;
    Ok((Program::load("receive", &code, true)?, rings))
}

/// A ring as its reader sees it.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    read: u64,
    written: u64,
    /// Arrival of its next frame.
    next: u64,
}

#[derive(Debug)]
struct Rings {
    area: Area,
    cursors: Vec<Cursor>,
}

impl Rings {
    fn new(area: Area, processors: usize) -> Self {
        Self { area, cursors: vec![Cursor::default(); processors] }
    }

    fn receive(&mut self, most: usize, now: u64, sink: &mut dyn FnMut(XdpFrame<'_>)) -> usize {
        let used = self.look();
        let settled = if used > 1 { now.saturating_sub(SETTLED_NS) } else { u64::MAX };
        let mut given = 0;
        while given < most {
            let Some(ring) = self.oldest().filter(|ring| self.cursors[*ring].next <= settled) else { break };
            given += self.drain(ring, most - given, settled, sink);
        }
        for (ring, cursor) in self.cursors.iter().enumerate() {
            self.area.long(ring * VALUE + READ).store(cursor.read, Ordering::Release);
        }
        given
    }

    /// Looks at the writers' counters; returns how many rings were ever used.
    fn look(&mut self) -> usize {
        let mut used = 0;
        for ring in 0..self.cursors.len() {
            let written = self.area.long(ring * VALUE + WRITTEN).load(Ordering::Acquire);
            used += usize::from(written > 0);
            self.cursors[ring].written = written;
            self.note_next(ring);
        }
        used
    }

    fn note_next(&mut self, ring: usize) {
        let cursor = &mut self.cursors[ring];
        if cursor.read < cursor.written {
            let at = ring * VALUE + DATA + offset(cursor.read);
            cursor.next = self.area.long(at).load(Ordering::Relaxed);
        }
    }

    fn oldest(&self) -> Option<usize> {
        let filled = self.cursors.iter().enumerate().filter(|(_, c)| c.read < c.written);
        filled.min_by_key(|(_, c)| c.next).map(|(ring, _)| ring)
    }

    /// Gives frames of one ring as long as no other has an older one.
    fn drain(&mut self, ring: usize, most: usize, settled: u64, sink: &mut dyn FnMut(XdpFrame<'_>)) -> usize {
        let others = self.cursors.iter().enumerate().filter(|(i, c)| *i != ring && c.read < c.written);
        let until = others.map(|(_, c)| c.next).min().unwrap_or(u64::MAX).min(settled);
        let mut given = 0;
        while given < most {
            let cursor = self.cursors[ring];
            if cursor.read >= cursor.written || cursor.next > until {
                break;
            }
            let at = ring * VALUE + DATA + offset(cursor.read);
            let full_len = self.area.number(at + 8) as usize;
            let len = (self.area.number(at + 12) as usize).min(LONGEST as usize);
            sink(XdpFrame { bytes: self.area.bytes(at + HEAD, len), full_len, monotonic_ns: cursor.next });
            self.cursors[ring].read += (HEAD + len.next_multiple_of(8)) as u64;
            self.note_next(ring);
            given += 1;
        }
        given
    }

    fn dropped(&self) -> u64 {
        let dropped = |ring| self.area.long(ring * VALUE + DROPPED).load(Ordering::Relaxed);
        (0..self.cursors.len()).map(dropped).sum()
    }
}

fn offset(counter: u64) -> usize {
    usize::try_from(counter % RING).unwrap_or(0)
}

#[cfg(test)]
mod tests;
