//! Events of one run.

use super::collector::{Collector, Side};
use super::meter::{IDLE, Meter};
use super::traffic::{FlowContent, FlowPlan, MILLI, Random, SECOND};
use packetrig_flow::{FlowRecord, PacketInfo, TableOptions, table::FlowTable};
use std::collections::HashMap;

const BEGIN: u64 = 1_790_000_000 * SECOND;
const STEP: u64 = 50 * MILLI;
/// Time after which another meter takes over.
const DETECTION: u64 = 300 * MILLI;
/// A standby sends the records that left its table this long before the time up to which the active meter is
/// known to have sent.
const MARGIN: u64 = 4 * SECOND;
/// Longest time of a run with few faults. With more, it may take twice as long.
const MOST: u64 = 120 * SECOND;

/// Which faults and which flows are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultMix {
    /// Up to three faults of any kind.
    Any,
    /// Up to six faults, half of which are a collector that is started again. The packets of half of the flows are alike,
    /// and the clocks are near each other.
    Collectors,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill {
        for_ns: u64,
    },
    /// The meter stops in order, and is started again.
    Stop {
        for_ns: u64,
    },
    /// The meter stands still; its ring keeps the packets or loses them.
    Freeze {
        for_ns: u64,
        is_lost: bool,
    },
    /// Its copy of the link carries no packets.
    Cut {
        for_ns: u64,
    },
    Collector {
        for_ns: u64,
        unsaved_ns: u64,
    },
    /// The clocks of all meters are set.
    Step {
        by_ns: i64,
    },
}

const COLLECTOR_KIND: u64 = 8;
/// Differences by which clocks are set.
const STEPS: [i64; 4] = [-3600, -2, 2, 3600];

#[derive(Debug)]
pub(crate) struct World {
    random: Random,
    flows: Vec<FlowPlan>,
    ahead_ns: Vec<i64>,
    has_election: bool,
    /// Packets come up to so late.
    jitter_ns: u64,
    /// Faults that follow each other, each after all meters have been ready again for a while.
    faults: Vec<(u64, usize, Fault)>,
    last_fault_ends_all: bool,
    ends_by_ns: u64,
    /// Flows go on when the meters are started.
    is_early: bool,
    /// Faults with their times, in ms.
    happened: Vec<(u64, usize, Fault)>,
}

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) summary: String,
    /// Directions whose packets differ: number of the flow, sent, stored.
    missing: Vec<(u8, u64, u64)>,
    /// The same, with whether packets differ.
    twice: Vec<(u8, bool, u64, u64)>,
    /// Packets that are alike, missing and not reported as unplaced.
    pub(crate) unstated: u64,
    bytes_wrong: u64,
}

impl Outcome {
    /// Returns the fault of the run.
    pub(crate) fn fault(&self) -> Option<String> {
        let is_exact =
            self.missing.is_empty() && self.twice.is_empty() && self.unstated == 0 && self.bytes_wrong == 0;
        let Self { summary, missing, twice, unstated, bytes_wrong } = self;
        (!is_exact).then(|| {
            format!("{summary}: missing {missing:?}, twice {twice:?}, unstated {unstated}, wrong bytes {bytes_wrong}")
        })
    }
}

struct Running {
    meters: Vec<Option<Meter>>,
    /// Time up to which a meter stands still, and the packets of that time; `None`: its ring is lost.
    frozen: Vec<Option<(u64, Option<Vec<PacketInfo>>)>>,
    cut_until: Vec<u64>,
    /// Time at which it is started again.
    returns: Vec<Option<u64>>,
    sent: Vec<Vec<FlowRecord>>,
    active: Option<usize>,
    active_gone_ns: Option<u64>,
    collector: Collector,
    collector_down_until: u64,
}

impl World {
    pub(crate) fn drawn(seed: u64, mix: FaultMix) -> Self {
        let mut random = Random(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
        let meters = if random.is_one_in(3) { 3 } else { 2 };
        let is_any = mix == FaultMix::Any;
        let farthest = if is_any { 900 * MILLI } else { 10 * MILLI };
        let apart = [0, 10 * MILLI, farthest][random.between(0, 3) as usize];
        let ahead_ns = (0..meters).map(|_| (random.between(0, apart + 1)).cast_signed()).collect();
        let faults = if is_any { random.between(1, 4) } else { random.between(2, 7) };
        let fault = |random: &mut Random| {
            let for_ns = random.between(1, 30) * 100 * MILLI;
            let kind = if is_any {
                random.between(0, 10)
            } else {
                random.between(0, 9).max(random.between(0, 2) * COLLECTOR_KIND)
            };
            match kind {
                0..3 => Fault::Kill { for_ns },
                3 => Fault::Stop { for_ns },
                4..6 => Fault::Freeze { for_ns, is_lost: random.is_one_in(2) },
                6..8 => Fault::Cut { for_ns },
                COLLECTOR_KIND => Fault::Collector { for_ns, unsaved_ns: random.between(0, 2000) * MILLI },
                _ => Fault::Step { by_ns: STEPS[random.between(0, 4) as usize] * SECOND.cast_signed() },
            }
        };
        let has_election = random.is_one_in(2);
        let faults = (0..faults)
            .map(|_| {
                (random.between(0, 25) * 100 * MILLI, random.between(0, meters) as usize, fault(&mut random))
            })
            // A meter without peers does not know that its copy of the link carries nothing.
            .filter(|(.., fault)| has_election || !matches!(fault, Fault::Cut { .. }))
            .collect();
        // One in so many flows has one content only, and one has a few.
        let contents = if is_any { 8 } else { 2 };
        let flows = (0..random.between(2, 7))
            .map(|number| FlowPlan::drawn(number as u8, contents, &mut random))
            .collect();
        Self {
            flows,
            ahead_ns,
            has_election,
            jitter_ns: random.between(1, 400) * 1000,
            faults,
            last_fault_ends_all: random.is_one_in(2),
            ends_by_ns: BEGIN + if is_any { MOST } else { 2 * MOST },
            random,
            is_early: false,
            happened: Vec::new(),
        }
    }

    pub(crate) fn run(mut self) -> Outcome {
        let mut packets = Vec::new();
        // The flows exist when the meters start, or begin once the meters know each other. In the first case no meter has seen
        // their start, which may cost some packets of the first parts, and clocks that are far apart may cost more.
        self.is_early = self.random.is_one_in(3) && self.has_near_clocks();
        let first_ns = BEGIN + if self.is_early { STEP } else { 3 * SECOND };
        for flow in &self.flows {
            flow.packets(first_ns, self.ends_by_ns, &mut self.random, &mut packets);
        }
        packets.sort_by_key(|packet| packet.at_ns);
        let count = self.ahead_ns.len();
        let mut running = Running {
            meters: (0..count).map(|at| Some(Meter::new(at as u32 + 1, self.ahead_ns[at], BEGIN))).collect(),
            frozen: vec![None; count],
            cut_until: vec![0; count],
            returns: vec![None; count],
            sent: vec![Vec::new(); count],
            active: Some(0),
            active_gone_ns: None,
            collector: Collector::new(BEGIN - 10 * SECOND),
            collector_down_until: 0,
        };
        let mut sent = HashMap::new();
        let mut faults = std::mem::take(&mut self.faults).into_iter();
        let mut next = faults.next();
        let mut ready_since: Option<u64> = None;
        let mut ends_at: Option<u64> = None;
        let ids: FlowTable<()> = FlowTable::new(&TableOptions { capacity: 1, ..TableOptions::default() });
        let mut now_ns = BEGIN;
        let mut rest = &packets[..];
        loop {
            now_ns += STEP;
            let count = rest.partition_point(|packet| packet.at_ns < now_ns);
            let (come, later) = rest.split_at(count);
            rest = later;
            for packet in come {
                let side: Side = (ids.flow_id(packet), packet.source);
                let sum: &mut (u64, u64) = sent.entry(side).or_default();
                (sum.0, sum.1) = (sum.0 + 1, sum.1 + u64::from(packet.bytes));
                for at in 0..running.meters.len() {
                    running.see(at, packet, self.random.between(0, self.jitter_ns));
                }
            }
            running.go_on(now_ns, &mut self);
            let is_ready = running.is_all_ready(now_ns);
            ready_since = is_ready.then(|| ready_since.unwrap_or(now_ns));
            if let (Some((wait_ns, at, fault)), Some(since_ns)) = (next, ready_since)
                && now_ns >= since_ns + wait_ns
            {
                self.happened.push(((now_ns - BEGIN) / MILLI, at, fault));
                running.fail(at, fault, now_ns, &mut self);
                next = faults.next();
                ready_since = None;
            }
            if next.is_none() && ends_at.is_none() {
                // All are ready again, or only the one that stood in is there.
                let wait_ns = self.random.between(5, 60) * 100 * MILLI;
                ends_at = Some(now_ns + if self.last_fault_ends_all { wait_ns } else { 2 * IDLE + wait_ns });
            }
            if ends_at.is_some_and(|at_ns| now_ns >= at_ns) || now_ns >= self.ends_by_ns - SECOND {
                break;
            }
        }
        running.end(now_ns, &mut self);
        self.judge(running, &sent, &ids, now_ns)
    }

    fn has_near_clocks(&self) -> bool {
        let [first, last] = [self.ahead_ns.iter().min(), self.ahead_ns.iter().max()];
        first.zip(last).is_none_or(|(first, last)| first.abs_diff(*last) <= 10 * MILLI)
    }

    fn judge(
        self,
        mut running: Running,
        sent: &HashMap<Side, (u64, u64)>,
        ids: &FlowTable<()>,
        now_ns: u64,
    ) -> Outcome {
        let stored = running.collector.sums();
        let mut outcome = Outcome {
            summary: format!("{:?} ", self.happened)
                + &format!(
                    "{} meters, ahead {:?}, election {}, {} ms, jitter {} ns, unplaced {}",
                    self.ahead_ns.len(),
                    self.ahead_ns,
                    self.has_election,
                    (now_ns - BEGIN) / MILLI,
                    self.jitter_ns,
                    running.collector.unplaced,
                ),
            ..Outcome::default()
        };
        for flow in &self.flows {
            let mut sample = Vec::new();
            flow.packets(0, 2 * SECOND, &mut Random(1), &mut sample);
            for packet in [sample.first(), sample.last()].into_iter().flatten() {
                let side = (ids.flow_id(packet), packet.source);
                let [was, is] = [sent, &stored].map(|sums| sums.get(&side).copied().unwrap_or_default());
                let is_distinct = flow.content == FlowContent::Distinct;
                // Packets that are alike are distinguished by their times, which are not exact if the clocks are not.
                let spare = if is_distinct || self.has_near_clocks() { 0 } else { 2 + was.0 / 10 };
                if is.0 > was.0 + spare {
                    outcome.twice.push((flow.number, is_distinct, was.0, is.0));
                }
                // Clocks that are far apart for the length of parts choose other landmarks.
                let is_sure = is_distinct && self.has_near_clocks() && !self.is_early;
                if is.0 < was.0 && is_sure {
                    outcome.missing.push((flow.number, was.0, is.0));
                } else if is.0 < was.0 && running.collector.unplaced < was.0 - is.0 {
                    outcome.unstated += was.0 - is.0;
                }
                outcome.bytes_wrong += u64::from(is_distinct && is.0 == was.0 && is.1 != was.1);
            }
        }
        outcome
    }
}

impl Running {
    fn see(&mut self, at: usize, packet: &PacketInfo, late_ns: u64) {
        if packet.at_ns < self.cut_until[at] {
            return;
        }
        match (&mut self.frozen[at], &mut self.meters[at]) {
            (Some((_, Some(ring))), Some(_)) => ring.push(*packet),
            (Some((_, None)), _) | (_, None) => {}
            (None, Some(meter)) => meter.meter(packet, late_ns),
        }
    }

    fn is_all_ready(&self, now_ns: u64) -> bool {
        now_ns >= self.collector_down_until + 5 * SECOND
            && (0..self.meters.len()).all(|at| {
                self.frozen[at].is_none()
                    && self.cut_until[at] == 0
                    && self.meters[at].as_ref().is_some_and(|meter| meter.is_ready(now_ns))
            })
    }

    fn fail(&mut self, at: usize, fault: Fault, now_ns: u64, world: &mut World) {
        match fault {
            Fault::Kill { for_ns } => {
                self.meters[at] = None;
                self.active.take_if(|active| *active == at);
                self.returns[at] = Some(now_ns + for_ns);
            }
            Fault::Stop { for_ns } => {
                self.stop(at, now_ns, world);
                self.returns[at] = Some(now_ns + for_ns);
            }
            Fault::Freeze { for_ns, is_lost } => {
                self.frozen[at] = Some((now_ns + for_ns, (!is_lost).then(Vec::new)));
            }
            Fault::Cut { for_ns } => self.cut_until[at] = now_ns + for_ns,
            Fault::Collector { for_ns, unsaved_ns } => {
                self.collector_down_until = now_ns + for_ns;
                self.collector.restart(unsaved_ns, now_ns);
            }
            Fault::Step { by_ns } => {
                world.ahead_ns.iter_mut().for_each(|ahead_ns| *ahead_ns += by_ns);
                self.meters.iter_mut().flatten().for_each(|meter| meter.set_clock(by_ns));
            }
        }
    }

    /// A meter ends as it should.
    fn stop(&mut self, at: usize, now_ns: u64, world: &World) {
        let Some(mut meter) = self.meters[at].take() else { return };
        meter.finish(now_ns);
        if !world.has_election || self.active == Some(at) {
            let records = meter.kept.drain(..).map(|(_, record)| record).collect();
            self.send(at, records, now_ns);
        }
        self.active.take_if(|active| *active == at);
    }

    fn send(&mut self, at: usize, records: Vec<FlowRecord>, now_ns: u64) {
        if now_ns >= self.collector_down_until {
            for record in &records {
                self.collector.take(record, now_ns);
            }
        }
        self.sent[at].extend(records);
    }

    fn go_on(&mut self, now_ns: u64, world: &mut World) {
        if self.collector_down_until > 0 && now_ns >= self.collector_down_until {
            self.collector_down_until = 0;
            // A meter that connects sends again.
            for at in 0..self.meters.len() {
                if self.meters[at].is_some() {
                    let again = std::mem::take(&mut self.sent[at]);
                    self.send(at, again, now_ns);
                }
            }
        }
        for at in 0..self.meters.len() {
            self.wake(at, now_ns, world);
        }
        self.elect(now_ns, world);
        for at in 0..self.meters.len() {
            let (is_frozen, sends) =
                (self.frozen[at].is_some(), !world.has_election || self.active == Some(at));
            let Some(meter) = self.meters[at].as_mut().filter(|_| !is_frozen) else { continue };
            meter.look(now_ns);
            if sends {
                let records = meter.kept.drain(..).map(|(_, record)| record).collect();
                self.send(at, records, now_ns);
            } else if self.active_gone_ns.is_none() {
                while meter.kept.front().is_some_and(|(left_ns, _)| left_ns + MARGIN < now_ns) {
                    meter.kept.pop_front();
                }
            }
        }
    }

    /// Handles the end of a meter's fault.
    fn wake(&mut self, at: usize, now_ns: u64, world: &mut World) {
        if self.returns[at].is_some_and(|returns_ns| now_ns >= returns_ns) {
            self.returns[at] = None;
            self.sent[at].clear();
            self.meters[at] = Some(Meter::new(at as u32 + 1, world.ahead_ns[at], now_ns));
        }
        let Some(meter) = &mut self.meters[at] else { return };
        if let Some((until_ns, ring)) = self.frozen[at].take_if(|(until_ns, _)| now_ns >= *until_ns) {
            match ring {
                Some(ring) => ring.iter().for_each(|packet| meter.meter(packet, 0)),
                None => meter.lose(until_ns),
            }
        }
        if self.cut_until[at] > 0 && now_ns >= self.cut_until[at] {
            self.cut_until[at] = 0;
            // The meter knows from its peers that packets arrived elsewhere.
            meter.lose(now_ns);
        }
    }

    fn elect(&mut self, now_ns: u64, world: &World) {
        let is_there =
            |at: usize| self.meters[at].is_some() && self.frozen[at].is_none() && self.cut_until[at] == 0;
        let is_ready = |at: &usize| {
            is_there(*at) && self.meters[*at].as_ref().is_some_and(|meter| meter.is_ready(now_ns))
        };
        let others = (0..self.meters.len()).filter(is_ready).count();
        let is_fit = |at: usize| is_there(at) && (is_ready(&at) || others == 0);
        if !world.has_election || self.active.is_some_and(is_fit) {
            self.active_gone_ns = None;
            return;
        }
        let gone_ns = *self.active_gone_ns.get_or_insert(now_ns);
        if now_ns < gone_ns + DETECTION {
            return;
        }
        let there: Vec<usize> = (0..self.meters.len()).filter(|at| is_there(*at)).collect();
        self.active = there.iter().copied().find(is_ready).or_else(|| there.first().copied());
    }

    /// All meters end at the same time.
    fn end(&mut self, now_ns: u64, world: &mut World) {
        if self.collector_down_until > 0 {
            self.collector_down_until = now_ns;
            self.go_on(now_ns, world);
        }
        let first = world.random.between(0, self.meters.len() as u64) as usize;
        for at in 0..self.meters.len() {
            let at = (first + at) % self.meters.len();
            self.frozen[at] = None;
            // Another one takes over from one that ends first.
            self.stop(at, now_ns, world);
            if world.has_election && self.active.is_none() {
                self.active = (0..self.meters.len()).find(|other| self.meters[*other].is_some());
            }
        }
    }
}
