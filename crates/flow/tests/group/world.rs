//! Events of a group of meters: everything is drawn from one seed. Times are milliseconds unless a name says otherwise.

pub(crate) const MS: u64 = 1_000_000;

/// Random numbers by splitmix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }
    pub(crate) fn index(&mut self, of: usize) -> usize {
        usize::try_from(self.below(u64::try_from(of).expect("small"))).expect("small")
    }
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
    fn span(&mut self, until: u64, longest: u64) -> Span {
        let from = self.below(until);
        Span { from, to: from + 1 + self.below(longest) }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Span {
    pub(crate) const fn contains_ns(self, ns: u64) -> bool {
        self.from * MS <= ns && ns < self.to * MS
    }
}

/// Event at which a sender advances its watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatermarkFrom {
    /// The collector has acknowledged the records.
    Acknowledgement,
    /// The records were handed to the network.
    Sending,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) meters: usize,
    pub(crate) priorities: Vec<u8>,
    pub(crate) preempt: bool,
    pub(crate) watermark: WatermarkFrom,
    pub(crate) lost_percent: u64,
    pub(crate) repeated_percent: u64,
    /// Longest delay of an advertisement and of an exported record, in microseconds.
    pub(crate) delay_us: u64,
    pub(crate) export_delay_us: u64,
    /// Largest difference of two meters' times of the same record, in microseconds.
    pub(crate) skew_us: u64,
    /// Time before the watermark for which records are kept, in microseconds.
    pub(crate) margin_us: u64,
    /// Interval at which meter 0 counts its packets, in microseconds; 0: always. The others always count.
    pub(crate) count_every_us: u64,
    /// (meter, when, when it is started again).
    pub(crate) kills: Vec<(usize, u64, Option<u64>)>,
    /// (meter, when): stops in an orderly way.
    pub(crate) leaves: Vec<(usize, u64)>,
    pub(crate) pauses: Vec<(usize, Span)>,
    /// (from, to, when): advertisements in this direction are lost.
    pub(crate) cuts: Vec<(usize, usize, Span)>,
    /// (meter, when): no packets come at it.
    pub(crate) copy_cuts: Vec<(usize, Span)>,
    /// (meter, when): its records do not reach the collector.
    pub(crate) export_cuts: Vec<(usize, Span)>,
    /// Faults have ended by then.
    pub(crate) healed_at: u64,
    pub(crate) end: u64,
}

impl World {
    /// Returns a world without faults.
    pub(crate) fn calm(seed: u64) -> Self {
        let mut draw = Random(seed);
        let meters = 2 + draw.index(3);
        Self {
            seed,
            meters,
            priorities: (0..meters).map(|_| 100 + u8::try_from(draw.below(3)).expect("small")).collect(),
            preempt: draw.chance(40),
            watermark: WatermarkFrom::Acknowledgement,
            lost_percent: 0,
            repeated_percent: 0,
            delay_us: 1 + draw.below(3000),
            export_delay_us: 1 + draw.below(20_000),
            skew_us: 2000,
            margin_us: 2000,
            count_every_us: 0,
            kills: vec![],
            leaves: vec![],
            pauses: vec![],
            cuts: vec![],
            copy_cuts: vec![],
            export_cuts: vec![],
            healed_at: 0,
            end: 700,
        }
    }

    /// Anything may happen, but meter 0 is neither killed nor stopped nor paused.
    pub(crate) fn wild(seed: u64) -> Self {
        let mut world = Self::calm(seed);
        let mut draw = Random(seed ^ 0x5555);
        world.healed_at = 700;
        world.end = 1300;
        world.lost_percent = if draw.chance(50) { draw.below(40) } else { 0 };
        world.repeated_percent = draw.below(30);
        world.delay_us = 1 + if draw.chance(30) { draw.below(40_000) } else { draw.below(3000) };
        let others = world.meters - 1;
        for _ in 0..draw.below(3) {
            let killed = draw.below(600);
            let restart = draw.chance(60).then(|| killed + 5 + draw.below(690 - killed));
            world.kills.push((1 + draw.index(others), killed, restart));
        }
        if draw.chance(30) {
            world.leaves.push((1 + draw.index(others), draw.below(600)));
        }
        for _ in 0..draw.below(3) {
            world.pauses.push((1 + draw.index(others), draw.span(500, 200)));
        }
        for _ in 0..draw.below(4) {
            let from = draw.index(world.meters);
            let to = (from + 1 + draw.index(others)) % world.meters;
            world.cuts.push((from, to, draw.span(400, 300)));
        }
        for _ in 0..draw.below(3) {
            world.export_cuts.push((draw.index(world.meters), draw.span(400, 300)));
        }
        world
    }

    /// Returns whether a meter missed packets in this time.
    pub(crate) fn is_cut_off(&self, meter: usize, from_ns: u64, to_ns: u64) -> bool {
        let mut cuts = self.copy_cuts.iter().filter(|(cut, _)| *cut == meter);
        cuts.any(|(_, span)| span.from * MS <= to_ns && from_ns < span.to * MS)
    }

    /// Returns the time up to which a meter has counted its packets: the counting thread may wait for a processor.
    pub(crate) const fn counted_to(&self, meter: usize, now_ns: u64) -> u64 {
        if meter != 0 || self.count_every_us == 0 {
            now_ns
        } else {
            now_ns - now_ns % (self.count_every_us * 1000)
        }
    }

    /// Packets that have come at a meter; ten each millisecond.
    pub(crate) fn packets_seen(&self, meter: usize, now_ns: u64) -> u64 {
        let cuts = self.copy_cuts.iter().filter(|(cut, _)| *cut == meter);
        let missed: u64 = cuts.map(|(_, span)| (now_ns / MS).clamp(span.from, span.to) - span.from).sum();
        (now_ns / MS - missed) * 10
    }
}
