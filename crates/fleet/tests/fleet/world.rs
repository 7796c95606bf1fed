//! Faults of a world: all of them are drawn from one seed.

use packetrig_fleet::controller::{LostNodePolicy, RunPolicies, StartPolicy};
use packetrig_units::{MonoTime, Share};

/// Converts milliseconds to nanoseconds.
pub(crate) const MS: u64 = 1_000_000;

/// The generator splitmix64, for reproducible seeds.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub u64);

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
}

/// A world; times in milliseconds from its beginning.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    pub(crate) lost_percent: u64,
    pub(crate) repeated_percent: u64,
    pub(crate) delay_ms: u64,
    /// Nodes' clocks run wrong by up to so many millionths.
    pub(crate) drift_ppm: u64,
    /// Error of a node's fit of the controller's clock, in microseconds.
    pub(crate) bound_us: u64,
    /// (node, at, until it is started again).
    pub(crate) crashes: Vec<(usize, u64, Option<u64>)>,
    /// (node, from, to): it does nothing in between.
    pub(crate) freezes: Vec<(usize, u64, u64)>,
    /// (node, from, to, messages to it are lost, messages from it are lost).
    pub(crate) cuts: Vec<(usize, u64, u64, bool, bool)>,
    /// (at, when the next one begins).
    pub(crate) controller_dies: Option<(u64, u64)>,
    /// (from, to): the controller does nothing; another one takes over 15 s after the beginning.
    pub(crate) controller_frozen: Option<(u64, u64)>,
    pub(crate) stop_at: Option<u64>,
    /// Length of the senders' plan.
    pub(crate) length: u64,
    pub(crate) policies: RunPolicies,
}

impl World {
    pub(crate) fn calm(seed: u64, nodes: usize) -> Self {
        Self {
            seed,
            nodes,
            lost_percent: 0,
            repeated_percent: 0,
            delay_ms: 2,
            drift_ppm: 50,
            bound_us: 300,
            crashes: vec![],
            freezes: vec![],
            cuts: vec![],
            controller_dies: None,
            controller_frozen: None,
            stop_at: None,
            length: 3000,
            policies: RunPolicies::default(),
        }
    }

    /// A world with anything in it.
    pub(crate) fn wild(seed: u64) -> Self {
        let mut draw = Random(seed);
        let nodes = 1 + draw.index(7);
        Self::wild_with(draw, seed, nodes)
    }

    pub(crate) fn wild_with(mut draw: Random, seed: u64, nodes: usize) -> Self {
        let mut world = Self::calm(seed, nodes);
        world.policies.start = match draw.below(3) {
            0 => StartPolicy::Quorum(1 + draw.index(nodes)),
            1 => StartPolicy::AtLeast(Share::from_billionths(draw.below(1_000_000_001))),
            _ => StartPolicy::All,
        };
        if draw.chance(30) {
            world.policies.on_loss = LostNodePolicy::Continue;
        }
        world.lost_percent = if draw.chance(50) { draw.below(25) } else { 0 };
        world.repeated_percent = draw.below(40);
        world.delay_ms = 1 + if draw.chance(30) { draw.below(400) } else { draw.below(8) };
        world.drift_ppm = draw.below(200);
        world.length = 200 + draw.below(6000);
        for _ in 0..draw.below(3) {
            let restart = draw.chance(70).then(|| 50 + draw.below(5000));
            world.crashes.push((draw.index(nodes), draw.below(9000), restart));
        }
        for _ in 0..draw.below(3) {
            let from = draw.below(8000);
            world.freezes.push((draw.index(nodes), from, from + 10 + draw.below(14_000)));
        }
        for _ in 0..draw.below(3) {
            let from = draw.below(8000);
            let (to_it, from_it) = [(true, true), (true, false), (false, true)][draw.index(3)];
            world.cuts.push((draw.index(nodes), from, from + 10 + draw.below(60_000), to_it, from_it));
        }
        match draw.below(4) {
            0 => {
                let at = draw.below(9000);
                world.controller_dies = Some((at, at + 20 + draw.below(50_000)));
            }
            1 => {
                let from = draw.below(9000);
                world.controller_frozen = Some((from, from + 15_100 + draw.below(10_000)));
            }
            _ => {}
        }
        world.stop_at = draw.chance(30).then(|| draw.below(8000));
        world
    }
}

/// A clock that began at another time and runs wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) offset: u64,
    pub(crate) ppm: i64,
}

impl Clock {
    /// Reading of the clock at a true time.
    pub(crate) fn shows(self, truth: u64) -> MonoTime {
        let wrong = i128::from(truth) * i128::from(self.ppm) / 1_000_000;
        let shown = i128::from(truth) + i128::from(self.offset) + wrong;
        MonoTime::from_nanos(u64::try_from(shown).expect("clocks do not begin before zero"))
    }
    /// The first true time at which it shows that or later.
    pub(crate) fn truth(self, shown: MonoTime) -> u64 {
        let since = i128::from(shown.as_nanos()) - i128::from(self.offset);
        let guess = (since * 1_000_000 / (1_000_000 + i128::from(self.ppm))).max(0);
        let mut truth = u64::try_from(guess).expect("not negative").saturating_sub(2);
        while self.shows(truth) < shown {
            truth += 1;
        }
        truth
    }
}
