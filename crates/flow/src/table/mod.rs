//! The flow table: packets in, records out.
//!
//! ```text
//!  32 packets -> look (key, hash) -> index (bucket, tag) -> slot (64 bytes) -> +1
//!                prefetch bucket     prefetch slot
//! ```
//! It belongs to one worker, has a fixed size and allocates nothing after the start; slots are touched first when flows need
//! them. Time is an argument: packets bring theirs,
//! and `now_ns` drives the timers, so flows end when nothing arrives too. What a packet of a known flow touches is one
//! bucket of the index and one `Hot` record; keys are always compared in full.
//!
//! Invariant: every packet given to [`meter`](FlowTable::meter) is in [`PacketCounts::metered`] or in [`PacketCounts::untracked`], and every
//! metered one in a live flow or in exactly one record.

mod ending;
mod hints;
mod index;
mod look;
mod memory;
mod opening;
mod options;
mod slot;
mod wheel;

pub use hints::{FlowOutlet, MemoryHints};
pub use options::{TableOptions, WhenFull};

use crate::counts::PacketCounts;
use crate::hash::FlowIds;
use crate::key::FlowKey;
use crate::packet::PacketInfo;
use crate::record::EndReason;
use index::{FlowIndex, NONE};
use look::{KeyLookup, KeyMaker};
use slot::{CLOSING, ColdSlot, ENDED, HotSlot, RareCounts};
use std::marker::PhantomData;
use wheel::{TimerReason, TimerWheel};

/// Packets whose memory is asked for together.
const BATCH: usize = 32;
/// Slots that are made together: a few pages, at hand in the cache for the flows that open next.
const MADE: usize = 64;
/// Timers looked at per batch, beyond two for each packet.
const RINGS: usize = 64;

#[derive(Debug)]
pub struct FlowTable<H> {
    lens: KeyMaker,
    limits: TableLimits,
    ids: FlowIds,
    index: FlowIndex,
    /// Slots at most; those that there are were needed by now.
    capacity: usize,
    hot: Vec<HotSlot>,
    cold: Vec<ColdSlot>,
    rare: Vec<RareCounts>,
    wheel: TimerWheel,
    /// Slots without a flow.
    free: Vec<u32>,
    counts: PacketCounts,
    /// Losses of the meter so far; what began before the last one is marked.
    losses: u32,
    /// Time until which everything is done; nothing before the first packet.
    now_ns: Option<u64>,
    hints: PhantomData<H>,
}

/// When flows end, and what all records have in common.
#[derive(Clone, Copy, Debug)]
struct TableLimits {
    active: u64,
    idle: u64,
    grace: u64,
    biflow: bool,
    sampling: u32,
    when_full: WhenFull,
}

impl TableLimits {
    /// When something is due for a flow, and what.
    fn deadline(&self, hot: &HotSlot) -> (u64, EndReason) {
        let (silence, reason) =
            if hot.is(ENDED) { (self.grace, EndReason::EndOfFlow) } else { (self.idle, EndReason::Idle) };
        let end = hot.last().saturating_add(silence);
        let part = hot.start.saturating_add(self.active);
        if !hot.is_empty() && part < end { (part, EndReason::Active) } else { (end, reason) }
    }

    /// Why a flow ends that is reported because nothing more comes.
    fn last_reason(&self, hot: &HotSlot, now_ns: u64) -> EndReason {
        match self.deadline(hot) {
            (deadline, reason) if deadline <= now_ns && reason != EndReason::Active => reason,
            _ if hot.is(ENDED) => EndReason::EndOfFlow,
            _ => EndReason::Forced,
        }
    }

    /// When its timer shall ring, and for what.
    fn ring(&self, hot: &HotSlot) -> (u64, TimerReason) {
        let (deadline, reason) = self.deadline(hot);
        let wait = if reason == EndReason::Active { TimerReason::Part } else { TimerReason::Silence };
        (wheel::tick_after(deadline), wait)
    }
}

impl<H: MemoryHints> FlowTable<H> {
    /// An empty table; all its memory is reserved here.
    pub fn new(options: &TableOptions) -> Self {
        let capacity = options.capacity.clamp(1, NONE - 1);
        let slots = capacity as usize;
        let limits = TableLimits {
            active: options.active.as_u64(),
            idle: options.idle.as_u64(),
            grace: options.grace.as_u64(),
            biflow: options.biflow,
            sampling: options.sampling,
            when_full: options.when_full,
        };
        Self {
            lens: KeyMaker::new(options),
            limits,
            ids: FlowIds::new(options.flow_id_key),
            index: FlowIndex::new::<H>(capacity),
            capacity: slots,
            hot: memory::reserved::<H, _>(slots),
            cold: memory::reserved::<H, _>(slots),
            // Zeros from the kernel take no memory until they are written.
            rare: vec![RareCounts::default(); slots],
            wheel: TimerWheel::new::<H>(slots, limits.idle),
            free: Vec::with_capacity(slots),
            counts: PacketCounts::default(),
            losses: 0,
            now_ns: None,
            hints: PhantomData,
        }
    }

    /// Meters packets in the order of their arrival, and does part of what is due by `now_ns`: as much as keeps up with
    /// any stream of packets, and little enough to hold none up. Of a batch, nothing is due before its last packet's time.
    pub fn meter(&mut self, packets: &[PacketInfo], now_ns: u64, outlet: &mut impl FlowOutlet) {
        if self.now_ns.is_none()
            && let Some(first) = packets.first()
        {
            // Flows of one batch may all end within it.
            self.go_on(first.at_ns.min(now_ns));
        }
        for batch in packets.chunks(BATCH) {
            self.batch(batch, outlet);
            let done_ns = batch.last().map_or(now_ns, |packet| packet.at_ns.min(now_ns));
            self.go_on(done_ns);
            self.ring(done_ns, 2 * batch.len() + RINGS, outlet);
        }
    }

    /// Does all that is due by `now_ns`. Flows end up to one tick, 67 ms, after their time, packets or not.
    pub fn advance(&mut self, now_ns: u64, outlet: &mut impl FlowOutlet) {
        self.advance_some(now_ns, usize::MAX, outlet);
    }

    /// Does what is due by `now_ns` for about `most` flows at most, for a caller who has other things to do; whether that
    /// was all.
    pub fn advance_some(&mut self, now_ns: u64, most: usize, outlet: &mut impl FlowOutlet) -> bool {
        self.go_on(now_ns);
        self.ring(now_ns, most, outlet)
    }

    /// Reports every flow there is. Those that have ended by themselves say so.
    pub fn finish(&mut self, outlet: &mut impl FlowOutlet) {
        let now_ns = self.now_ns.unwrap_or(0);
        for slot in 0..self.hot.len() {
            if !self.hot[slot].is_free() {
                let reason = self.limits.last_reason(&self.hot[slot], now_ns);
                self.report(slot, reason, outlet);
                self.remove(slot);
            }
        }
    }

    /// Packets were lost before the table: every flow alive now will say so.
    pub const fn mark_loss(&mut self) {
        self.losses = self.losses.wrapping_add(1);
    }

    /// Where packets went; `seen` and `ignored` are the caller's.
    pub const fn counts(&self) -> &PacketCounts {
        &self.counts
    }

    /// Flows in the table.
    pub fn flows(&self) -> usize {
        self.hot.len() - self.free.len()
    }

    /// The memory that it holds when it is full, in bytes, but that of what most flows have not.
    pub fn bytes(&self) -> usize {
        let slots = size_of::<HotSlot>() + size_of::<ColdSlot>() + size_of::<u32>();
        self.index.bytes() + self.wheel.bytes(self.capacity) + self.capacity * slots
    }

    /// The key by which a packet is metered: without what shall not tell flows apart.
    pub fn key(&self, packet: &PacketInfo) -> FlowKey {
        self.lens.key(packet)
    }

    /// The number of a packet's flow.
    pub fn flow_id(&self, packet: &PacketInfo) -> u64 {
        self.ids.of(&self.lens.key(packet))
    }

    /// The time is now this one.
    #[inline]
    fn go_on(&mut self, now_ns: u64) {
        match self.now_ns {
            None => self.wheel.begin(wheel::tick(now_ns)),
            Some(before_ns) if now_ns.saturating_add(self.limits.idle) < before_ns => self.set_back(now_ns),
            // A little late: what was due then is done.
            Some(before_ns) if now_ns < before_ns => return,
            Some(_) => {}
        }
        self.now_ns = Some(now_ns);
    }

    /// The clock was set back, or what it showed before was wrong: timers that are set by it would never ring.
    #[cold]
    fn set_back(&mut self, now_ns: u64) {
        let held: Vec<usize> = (0..self.hot.len()).filter(|&slot| !self.hot[slot].is_free()).collect();
        for &slot in &held {
            self.wheel.clear(number(slot));
        }
        self.wheel.begin(wheel::tick(now_ns));
        for slot in held {
            let (tick, wait) = self.limits.ring(&self.hot[slot]);
            self.wheel.set(number(slot), tick, wait);
        }
    }

    fn batch(&mut self, packets: &[PacketInfo], outlet: &mut impl FlowOutlet) {
        let mut looks = [KeyLookup::NOTHING; BATCH];
        let looks = &mut looks[..packets.len()];
        for (look, packet) in looks.iter_mut().zip(packets) {
            *look = self.lens.look(packet);
            self.index.prefetch_first::<H>(look.hash);
        }
        self.locate(looks);
        for (look, packet) in looks.iter().zip(packets) {
            self.one(look, packet, outlet);
        }
    }

    /// Finds where flows seem to be, and asks for that memory.
    fn locate(&self, looks: &mut [KeyLookup]) {
        let (mut elsewhere, mut unknown) = (false, 0);
        for look in &mut *looks {
            look.slot = self.index.in_first(look.hash);
            if let Some(hot) = self.hot.get(look.slot as usize) {
                H::prefetch(hot);
            } else {
                elsewhere |= self.index.prefetch_second::<H>(look.hash);
                self.prefetch_free(unknown);
                unknown += 1;
            }
        }
        if elsewhere {
            // Few flows are there; those that open are nowhere.
            for look in looks.iter_mut().filter(|look| look.slot == NONE) {
                look.slot = self.index.in_second(look.hash);
                if let Some(hot) = self.hot.get(look.slot as usize) {
                    H::prefetch(hot);
                }
            }
        }
    }

    #[inline]
    fn one(&mut self, look: &KeyLookup, packet: &PacketInfo, outlet: &mut impl FlowOutlet) {
        // What seemed to be may have been changed by the packets before this one.
        let there = (look.slot as usize) < self.hot.len() && self.is(look.slot, look, packet);
        let slot = if there { Some(look.slot as usize) } else { self.find(look, packet) };
        match slot {
            Some(slot) => self.add(slot, look, packet, outlet),
            None => self.open(look, packet, outlet),
        }
    }

    /// Whether a slot holds that very flow.
    #[inline]
    fn is(&self, slot: u32, look: &KeyLookup, packet: &PacketInfo) -> bool {
        let slot = slot as usize;
        self.hot[slot].has(look.words)
            && (!look.is_long() || self.cold[slot].words == self.lens.canonical(packet).words)
    }

    #[cold]
    #[inline(never)]
    fn find(&self, look: &KeyLookup, packet: &PacketInfo) -> Option<usize> {
        self.index.find(look.hash, |slot| self.is(slot, look, packet)).map(|slot| slot as usize)
    }

    /// Adds a packet to its flow.
    #[inline]
    fn add(&mut self, slot: usize, look: &KeyLookup, packet: &PacketInfo, outlet: &mut impl FlowOutlet) {
        let (hot, at_ns) = (&self.hot[slot], packet.at_ns);
        let due = at_ns >= hot.last().saturating_add(self.limits.idle)
            || at_ns.saturating_sub(hot.start) >= self.limits.active;
        if due || hot.is_empty() || hot.is(ENDED) || packet.tcp_flags & CLOSING != 0 {
            self.turn(slot, look, packet, outlet);
        } else {
            self.count(slot, look.flipped, packet);
        }
    }

    /// Adds a packet by which its flow may end, go on in another part, or begin anew.
    #[cold]
    #[inline(never)]
    fn turn(&mut self, slot: usize, look: &KeyLookup, packet: &PacketInfo, outlet: &mut impl FlowOutlet) {
        let mut goes_on = self.settle(slot, packet.at_ns, outlet);
        if goes_on && self.hot[slot].is(ENDED) && slot::opens(packet) {
            self.report(slot, EndReason::EndOfFlow, outlet);
            goes_on = false;
        }
        if !goes_on {
            self.begin_flow(slot, look, packet, outlet);
        } else if self.hot[slot].is_empty() {
            self.hot[slot].start = packet.at_ns;
        }
        self.count(slot, look.flipped, packet);
        let hot = &mut self.hot[slot];
        hot.hears_end(hot.direction(look.flipped), packet, self.limits.biflow);
        let (tick, wait) = self.limits.ring(hot);
        self.wheel.bring_forward(number(slot), tick, wait);
    }

    #[inline]
    fn count(&mut self, slot: usize, flipped: bool, packet: &PacketInfo) {
        let hot = &mut self.hot[slot];
        let direction = hot.direction(flipped);
        if hot.begins(direction) {
            self.cold[slot].begins(direction, packet.at_ns);
        }
        if packet.at_ns < hot.last() {
            self.counts.backwards += 1;
            // Only such a packet may lie before the first one of its direction or of the flow.
            hot.start = hot.start.min(packet.at_ns);
            self.cold[slot].begins_by(direction, packet.at_ns);
        }
        if !hot.add(direction, packet) {
            hot.move_over(direction, &mut self.rare[slot]);
            let fits = hot.add(direction, packet);
            debug_assert!(fits, "the counters were just emptied");
        }
        self.counts.metered += 1;
        self.counts.live += 1;
    }
}

/// Slots are counted in 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "a table has less than 2^32 slots")]
const fn number(slot: usize) -> u32 {
    slot as u32
}

#[cfg(test)]
mod tests;
