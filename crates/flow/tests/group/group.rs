//! The simulator: events in the order of their times.

use crate::checks::Outcome;
use crate::meter::{KeptRecord, LONGEST_FLOW, Meter};
use crate::world::{MS, Random, WatermarkFrom, World};
use packetrig_flow::group::{Advertisement, ElectionOptions, MeterCoverage, PacketCount, RoleChange};
use packetrig_units::{MonoTime, Nanos};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub(crate) const RECORD_EVERY_US: u64 = 4000;
/// A process that was stopped for longer has lost packets.
const CAPTURE_ROOM_MS: u64 = 150;
const DETECTION_NS: u64 = 30 * MS;

/// A part that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Breakage {
    None,
    /// A new active meter goes live without its kept records.
    NoReplay,
    /// Kept records are cut exactly at the watermark.
    NoMargin,
    /// A restarted meter says that it is ready.
    ReadyAtOnce,
    /// The export does not ask whether it still may.
    NoExportDeadline,
    /// Two meters have the same number.
    SameMeterNumber,
    /// Meters do not learn each other's terms.
    HiddenTerms,
    /// A meter does not notice that its copy of the link is cut.
    Unseeing,
    /// A count of packets holds for the moment at which it is read.
    StaleCounts,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Wake(usize),
    Record(usize, usize),
    Heard(usize, Advertisement),
    /// (meter, its boot, record): the collector gets it.
    Arrives(usize, u64, KeptRecord),
    Acknowledged(usize, u64, usize),
    Resend(usize, u64, usize),
    Kill(usize),
    Leave(usize),
    Start(usize),
    Pause(usize),
    Resume(usize, u64),
}

pub(crate) struct Group {
    pub(crate) world: World,
    breakage: Breakage,
    random: Random,
    pub(crate) now_ns: u64,
    queue: BinaryHeap<(Reverse<(u64, u64)>, usize)>,
    events: Vec<Option<Event>>,
    pub(crate) meters: Vec<Meter>,
    /// Number of whole copies of each record at the collector.
    pub(crate) collected: Vec<u32>,
    flow_lengths: Vec<u64>,
    held: Vec<(usize, Advertisement)>,
    pub(crate) was_unsettled: bool,
    pub(crate) outcome: Outcome,
}

impl Group {
    pub(crate) fn new(world: World, breakage: Breakage) -> Self {
        let mut random = Random(world.seed ^ 0xaaaa);
        let records = usize::try_from(world.end * 1000 / RECORD_EVERY_US).expect("small");
        let flow_lengths = (0..records).map(|_| random.below(LONGEST_FLOW)).collect();
        let mut group = Self {
            breakage,
            random,
            now_ns: 0,
            queue: BinaryHeap::new(),
            events: Vec::new(),
            meters: Vec::new(),
            collected: vec![0; records],
            flow_lengths,
            held: Vec::new(),
            was_unsettled: false,
            outcome: Outcome::default(),
            world,
        };
        for index in 0..group.world.meters {
            let (options, boot) = (group.options(index), group.boot(index));
            group.meters.push(Meter::start(options, boot, 0));
            group.at(0, Event::Wake(index));
            for number in 0..records {
                let skew = group.random.below(group.world.skew_us * 1000);
                group.at(Self::record_ns(number) + skew, Event::Record(index, number));
            }
        }
        group.spread_faults();
        group
    }

    pub(crate) fn record_ns(number: usize) -> u64 {
        u64::try_from(number).expect("small") * RECORD_EVERY_US * 1000
    }

    fn options(&self, index: usize) -> ElectionOptions {
        let meter = if self.breakage == Breakage::SameMeterNumber { 0 } else { index };
        ElectionOptions {
            priority: self.world.priorities[index],
            preempt: self.world.preempt,
            unready_wait: Nanos::from_millis(300),
            ..ElectionOptions::new(u32::try_from(meter).expect("small"))
        }
    }

    fn boot(&mut self, index: usize) -> u64 {
        self.random.below(1 << 40) * 8 + u64::try_from(index).expect("small")
    }

    fn at(&mut self, ns: u64, event: Event) {
        let number = self.events.len();
        self.events.push(Some(event));
        self.queue.push((Reverse((ns, u64::try_from(number).expect("small"))), number));
    }

    fn spread_faults(&mut self) {
        let world = self.world.clone();
        for (meter, at, restart) in world.kills {
            self.at(at * MS, Event::Kill(meter));
            if let Some(restart) = restart {
                self.at(restart * MS, Event::Start(meter));
            }
        }
        for (meter, at) in world.leaves {
            self.at(at * MS, Event::Leave(meter));
        }
        for (meter, span) in world.pauses {
            self.at(span.from * MS, Event::Pause(meter));
            self.at(span.to * MS, Event::Resume(meter, span.from * MS));
        }
    }

    pub(crate) fn run(mut self) -> Outcome {
        self.run_until(self.world.end);
        self.outcome()
    }

    /// The meter that is active then, if it is one.
    pub(crate) fn active_at(mut self, ms: u64) -> Option<usize> {
        self.run_until(ms);
        self.meters.iter().position(|meter| meter.role().is_active())
    }

    fn run_until(&mut self, ms: u64) {
        while let Some((Reverse((ns, _)), number)) = self.queue.pop() {
            if ns >= ms * MS {
                return;
            }
            self.now_ns = ns;
            if let Some(event) = self.events[number].take() {
                self.happen(event);
                self.check_now();
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Wake(index) if self.meters[index].wake_ns == self.now_ns => self.tick(index),
            Event::Record(index, number) => self.record(index, number),
            Event::Heard(index, advertisement) => self.heard(index, advertisement),
            Event::Arrives(index, boot, record) => self.arrives(index, boot, record),
            Event::Acknowledged(index, boot, number) => self.acknowledged(index, boot, number),
            Event::Resend(index, boot, number) => self.resend(index, boot, number),
            Event::Kill(index) => self.meters[index].is_up = false,
            Event::Leave(index) if self.meters[index].runs() => self.leave(index),
            Event::Start(index) => {
                let (options, boot) = (self.options(index), self.boot(index));
                self.meters[index] = Meter::start(options, boot, self.now_ns);
                self.tick(index);
            }
            Event::Pause(index) => self.meters[index].is_paused = true,
            Event::Resume(index, since) if self.meters[index].is_paused => self.resume(index, since),
            Event::Wake(_) | Event::Leave(_) | Event::Resume(..) => {}
        }
    }

    fn now(&self) -> MonoTime {
        MonoTime::from_nanos(self.now_ns)
    }

    fn tick(&mut self, index: usize) {
        let now = self.now();
        let table_ns = self.now_ns;
        let meter = &mut self.meters[index];
        if !meter.runs() {
            return;
        }
        if self.breakage != Breakage::Unseeing {
            let counted_ns = self.world.counted_to(index, table_ns);
            let counted_to = if self.breakage == Breakage::StaleCounts { table_ns } else { counted_ns };
            let packets = self.world.packets_seen(index, counted_ns);
            let [all_until, none_after] = [counted_to, counted_ns].map(MonoTime::from_nanos);
            meter.election.set_seen_packets(PacketCount { packets, all_until, none_after });
        }
        if meter.election.is_blind() {
            meter.sees_since_ns = table_ns;
        }
        if self.breakage == Breakage::ReadyAtOnce {
            meter.election.set_coverage(MeterCoverage { seen_since_ns: 0, complete_from_ns: Some(0) });
        } else {
            meter.update_coverage(table_ns);
        }
        meter.advance(table_ns);
        let step = meter.election.tick(now);
        if let Some(change) = step.change {
            meter.changes.push(table_ns);
            self.change(index, change);
        }
        let margin_ns = self.margin_ns();
        let meter = &mut self.meters[index];
        meter.trim(margin_ns);
        let wake_ns = meter.election.next_deadline(now).as_nanos().max(table_ns + 1000);
        if meter.wake_ns != wake_ns {
            meter.wake_ns = wake_ns;
            self.at(wake_ns, Event::Wake(index));
        }
        if let Some(advertisement) = step.advertisement {
            self.spread(index, advertisement);
        }
    }

    fn margin_ns(&self) -> u64 {
        if self.breakage == Breakage::NoMargin { 0 } else { self.world.margin_us * 1000 }
    }

    fn change(&mut self, index: usize, change: RoleChange) {
        match change {
            RoleChange::BecameActive { term, replay_from_ns } => {
                self.check_term(index, term);
                let margin_ns = self.margin_ns();
                let meter = &mut self.meters[index];
                let is_kept = |record: &KeptRecord| {
                    record.left_ns + margin_ns >= replay_from_ns && self.breakage != Breakage::NoReplay
                };
                meter.kept.retain(is_kept);
                self.send_kept(index);
            }
            RoleChange::BecameStandby { .. } => {
                let meter = &mut self.meters[index];
                meter.kept.retain(|record| !record.is_acknowledged);
                for record in &mut meter.kept {
                    record.is_sent = false;
                }
            }
        }
    }

    fn spread(&mut self, from: usize, advertisement: Advertisement) {
        let is_faulty = self.now_ns < self.world.healed_at * MS;
        for to in (0..self.meters.len()).filter(|to| *to != from) {
            let cuts = &self.world.cuts;
            let is_cut =
                cuts.iter().any(|cut| (cut.0, cut.1) == (from, to) && cut.2.contains_ns(self.now_ns));
            if is_cut || is_faulty && self.random.chance(self.world.lost_percent) {
                continue;
            }
            let longest = if is_faulty { self.world.delay_us } else { self.world.delay_us.min(3000) };
            let copies = 1 + u64::from(is_faulty && self.random.chance(self.world.repeated_percent));
            for _ in 0..copies {
                let late = self.random.below(longest * 1000) + 1;
                self.at(self.now_ns + late, Event::Heard(to, advertisement));
            }
        }
    }

    fn heard(&mut self, index: usize, mut advertisement: Advertisement) {
        let meter = &mut self.meters[index];
        if !meter.is_up {
            return;
        }
        if meter.is_paused {
            // It waits in the socket.
            self.held.push((index, advertisement));
            return;
        }
        meter.heard_term = meter.heard_term.max(advertisement.term);
        if self.breakage == Breakage::HiddenTerms {
            advertisement.term.count = 0;
        }
        let now = MonoTime::from_nanos(self.now_ns);
        meter.election.on_advertisement(&advertisement, now);
        self.tick(index);
    }

    fn record(&mut self, index: usize, number: usize) {
        let begun_ns = Self::record_ns(number).saturating_sub(self.flow_lengths[number]);
        let meter = &mut self.meters[index];
        if !meter.is_up {
            return;
        }
        if self.world.is_cut_off(index, Self::record_ns(number), self.now_ns) {
            return;
        }
        let is_whole = (meter.sees_since_ns == 0 || begun_ns >= meter.sees_since_ns)
            && !self.world.is_cut_off(index, begun_ns, self.now_ns);
        let left_ns = self.now_ns;
        let record = KeptRecord { number, left_ns, is_whole, is_sent: false, is_acknowledged: false };
        if meter.is_paused {
            meter.waiting.push(record);
        } else {
            meter.kept.push_back(record);
            self.send_kept(index);
        }
    }

    /// Sends the kept records that were not sent yet, if the member may export.
    fn send_kept(&mut self, index: usize) {
        let now = self.now();
        let meter = &mut self.meters[index];
        let may_export = now < meter.election.export_until() || self.breakage == Breakage::NoExportDeadline;
        if !meter.role().is_active() || !may_export {
            return;
        }
        let boot = meter.boot;
        let to_send: Vec<KeptRecord> = meter
            .kept
            .iter_mut()
            .filter(|record| !record.is_sent && !record.is_acknowledged)
            .map(|record| {
                record.is_sent = true;
                *record
            })
            .collect();
        for record in to_send {
            self.send(index, boot, record);
        }
    }

    fn send(&mut self, index: usize, boot: u64, record: KeptRecord) {
        if self.meters[index].stopped_since_ns.is_some_and(|since| self.now_ns >= since + DETECTION_NS) {
            self.outcome.sent_after_a_stop += 1;
        }
        if let Some(until) = self.export_cut_until(index) {
            self.at(until, Event::Resend(index, boot, record.number));
        } else {
            let late = 1 + self.random.below(self.world.export_delay_us * 1000);
            self.at(self.now_ns + late, Event::Arrives(index, boot, record));
        }
        if self.world.watermark == WatermarkFrom::Sending {
            self.acknowledged(index, boot, record.number);
        }
    }

    fn export_cut_until(&self, index: usize) -> Option<u64> {
        let cuts = self.world.export_cuts.iter();
        let now = cuts.filter(|(meter, span)| *meter == index && span.contains_ns(self.now_ns));
        now.map(|(_, span)| span.to * MS).max()
    }

    fn arrives(&mut self, index: usize, boot: u64, record: KeptRecord) {
        self.collected[record.number] += u32::from(record.is_whole);
        if let Some(until) = self.export_cut_until(index) {
            self.at(until, Event::Resend(index, boot, record.number));
        } else {
            let late = 1 + self.random.below(self.world.export_delay_us * 1000);
            self.at(self.now_ns + late, Event::Acknowledged(index, boot, record.number));
        }
    }

    fn acknowledged(&mut self, index: usize, boot: u64, number: usize) {
        let meter = &mut self.meters[index];
        if meter.is_up && meter.boot == boot {
            for record in meter.kept.iter_mut().filter(|record| record.number == number) {
                record.is_acknowledged = true;
            }
        }
    }

    /// The way to the collector works again: the transport repeats everything without an acknowledgement.
    fn resend(&mut self, index: usize, boot: u64, number: usize) {
        let is_acknowledging = self.world.watermark == WatermarkFrom::Acknowledgement;
        let meter = &self.meters[index];
        // The kernel repeats, so it does not matter whether the process runs.
        if !meter.is_up || meter.boot != boot || !meter.role().is_active() || !is_acknowledging {
            return;
        }
        let open = meter
            .kept
            .iter()
            .find(|record| record.number == number && record.is_sent && !record.is_acknowledged);
        if let Some(record) = open.copied() {
            self.send(index, boot, record);
        }
    }

    fn leave(&mut self, index: usize) {
        let farewell = self.meters[index].election.clone().into_last_advertisement(self.now());
        self.meters[index].is_up = false;
        self.spread(index, farewell);
    }

    /// The process goes on. Its export thread may run before the one of the group.
    fn resume(&mut self, index: usize, since_ns: u64) {
        let meter = &mut self.meters[index];
        meter.is_paused = false;
        meter.stopped_since_ns = Some(since_ns);
        let waiting = std::mem::take(&mut meter.waiting);
        if self.now_ns - since_ns > CAPTURE_ROOM_MS * MS {
            meter.sees_since_ns = self.now_ns;
        } else {
            meter.kept.extend(waiting);
        }
        if meter.is_up {
            self.send_kept(index);
        }
        let (own, others) = std::mem::take(&mut self.held).into_iter().partition(|(to, _)| *to == index);
        self.held = others;
        let own: Vec<(usize, Advertisement)> = own;
        for (_, mut advertisement) in own {
            // It may have waited since the beginning of the pause.
            advertisement.seen_all_ago += Nanos::new(self.now_ns - since_ns);
            self.heard(index, advertisement);
        }
        self.tick(index);
        self.meters[index].stopped_since_ns = None;
    }
}

impl World {
    pub(crate) fn calm_without_preemption(seed: u64) -> Self {
        Self { preempt: false, ..Self::calm(seed) }
    }
}
