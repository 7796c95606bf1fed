//! Flows whose packets are alike or not, that pause or never do.

use packetrig_flow::PacketInfo;

pub(crate) const MILLI: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Numbers that follow from a seed (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Returns a number from `from` up to below `to`.
    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from).max(1)
    }

    pub(crate) fn is_one_in(&mut self, many: u64) -> bool {
        self.next().is_multiple_of(many)
    }
}

/// Content of the packets of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowContent {
    Distinct,
    /// All packets carry the same content.
    Constant,
    /// Each packet carries one of a few contents.
    Few(u32),
}

#[derive(Clone, Debug)]
pub(crate) struct FlowPlan {
    pub(crate) number: u8,
    pub(crate) content: FlowContent,
    tcp: bool,
    /// Mean time between two packets of a direction, in ns.
    mean_ns: [u64; 2],
    is_regular: bool,
    /// Times of sending and of pausing; 0: never.
    on_ns: u64,
    off_ns: u64,
}

impl FlowPlan {
    /// One in `contents` flows has packets that are all alike, and one has packets of a few kinds.
    pub(crate) fn drawn(number: u8, contents: u64, random: &mut Random) -> Self {
        let mut mean = || SECOND / (1 << random.between(0, 7)).min(100);
        let mean_ns = [mean(), mean()];
        let content = match random.between(0, contents) {
            0 => FlowContent::Constant,
            1 => FlowContent::Few(2 + (random.next() % 3) as u32),
            _ => FlowContent::Distinct,
        };
        let pauses = random.is_one_in(2);
        Self {
            number,
            content,
            tcp: random.is_one_in(2),
            mean_ns,
            is_regular: random.is_one_in(3),
            on_ns: random.between(1, 60) * 100 * MILLI,
            // Around the idle timeout of two seconds, too.
            off_ns: if pauses { random.between(1, 60) * 100 * MILLI } else { 0 },
        }
    }

    /// Returns its packets between two times, in order of each direction.
    pub(crate) fn packets(&self, from_ns: u64, to_ns: u64, random: &mut Random, out: &mut Vec<PacketInfo>) {
        for direction in 0..2 {
            let mut at_ns = from_ns + random.between(0, self.mean_ns[direction]);
            let mut sequence = 0;
            while at_ns < to_ns {
                let cycle = (at_ns - from_ns) % (self.on_ns + self.off_ns);
                if self.off_ns > 0 && cycle >= self.on_ns {
                    at_ns += self.on_ns + self.off_ns - cycle;
                    continue;
                }
                sequence += 1;
                out.push(self.packet(direction == 1, sequence, at_ns));
                let mean_ns = self.mean_ns[direction];
                at_ns +=
                    if self.is_regular { mean_ns } else { random.between(mean_ns / 100, 2 * mean_ns) }.max(1);
            }
        }
    }

    fn packet(&self, is_back: bool, sequence: u64, at_ns: u64) -> PacketInfo {
        let ends = ([self.number + 1; 16], [250 - self.number; 16]);
        let (source, destination) = if is_back { (ends.1, ends.0) } else { ends };
        let number = match self.content {
            FlowContent::Distinct => sequence,
            FlowContent::Constant => 0,
            FlowContent::Few(few) => sequence % u64::from(few),
        };
        let mixed = Random(number << 16 | u64::from(self.number) << 1 | u64::from(is_back)).next();
        PacketInfo {
            source,
            destination,
            protocol: if self.tcp { 6 } else { 17 },
            tcp_flags: if self.tcp { 16 } else { 0 },
            content: (mixed >> 32) as u32,
            bytes: 100 + (sequence % 700) as u32,
            frame_bytes: 114 + (sequence % 700) as u32,
            at_ns,
            ..PacketInfo::default()
        }
    }
}
