//! Which frames suffer what.

use super::Edit;
use packetrig_units::Nanos;
use packetrig_wire::pattern::mix;
use std::collections::BTreeSet;
use std::ops::Range;

/// How frames are told apart, by bytes that the test's own plan has put there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Classifier {
    /// All frames that arrive on a port have key 0.
    #[default]
    Port,
    /// The last two bytes of the source address are the key.
    SourceMac,
}

impl Classifier {
    /// The key of a frame; frames too short to have one have key 0.
    pub fn key(self, frame: &[u8]) -> u32 {
        match (self, frame.get(10..12)) {
            (Self::SourceMac, Some(bytes)) => u32::from(bytes[0]) << 8 | u32::from(bytes[1]),
            _ => 0,
        }
    }
}

/// The positions a rule applies to, counted per key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    /// Every frame.
    All,
    /// These positions.
    At(BTreeSet<u64>),
    /// A run of positions.
    Within(Range<u64>),
    /// About this many in a million, drawn from the plan's seed.
    Random {
        /// Millionths of the frames.
        millionths: u32,
    },
}

impl Select {
    /// Exactly `count` positions out of `among`, drawn from `seed`; all of them if there are not that many.
    pub fn scattered(seed: u64, count: u64, among: Range<u64>) -> Self {
        let mut left = among.end.saturating_sub(among.start);
        let mut wanted = count.min(left);
        let mut chosen = BTreeSet::new();
        for position in among {
            // Each position is taken with the probability that makes the number come out exactly.
            if wanted > 0 && mix(seed, position) % left < wanted {
                chosen.insert(position);
                wanted -= 1;
            }
            left -= 1;
        }
        Self::At(chosen)
    }

    fn takes(&self, seed: u64, position: u64) -> bool {
        match self {
            Self::All => true,
            Self::At(positions) => positions.contains(&position),
            Self::Within(range) => range.contains(&position),
            Self::Random { millionths } => mix(seed, position) % 1_000_000 < u64::from(*millionths),
        }
    }
}

/// What happens to a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It goes no further.
    Drop,
    /// Copies of it follow at once.
    Duplicate {
        /// How many more.
        copies: u32,
    },
    /// It waits until this many later frames of its key have left.
    HoldBack {
        /// How many.
        frames: u32,
    },
    /// It leaves this long after it arrived.
    Delay(Nanos),
    /// Bits are flipped; checksums stay as they were.
    Corrupt {
        /// The byte, counted back from the end of the frame (FCS excluded): 1 is the last.
        from_end: usize,
        /// The bits.
        mask: u8,
    },
    /// Headers are rewritten, as a router or switch would do it.
    Rewrite(Edit),
}

/// A fault and the frames it befalls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Frames that arrive on this port; `None` for every port.
    pub port: Option<usize>,
    /// Frames with this key; `None` for every key.
    pub key: Option<u32>,
    /// Positions.
    pub select: Select,
    /// What befalls them.
    pub fault: Fault,
}

impl Rule {
    /// `fault` for the selected positions of every key on every port.
    pub fn new(select: Select, fault: Fault) -> Self {
        Self { port: None, key: None, select, fault }
    }

    /// The same for one key only.
    #[must_use]
    pub fn for_key(self, key: u32) -> Self {
        Self { key: Some(key), ..self }
    }

    /// The same for frames that arrive on one port only.
    #[must_use]
    pub fn on_port(self, port: usize) -> Self {
        Self { port: Some(port), ..self }
    }
}

/// All that a device does wrong. Rules add up, but a dropped frame suffers nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Same seed, same faults.
    pub seed: u64,
    /// How keys are read.
    pub classifier: Classifier,
    /// The rules.
    pub rules: Vec<Rule>,
}

impl FaultPlan {
    /// A faultless device.
    pub fn none() -> Self {
        Self::default()
    }

    /// Faults that befall the frame at `position` among those with `key` that arrived on `port`, in the order of the
    /// rules.
    pub fn faults(&self, port: usize, key: u32, position: u64) -> impl Iterator<Item = &Fault> {
        self.rules.iter().enumerate().filter_map(move |(index, rule)| {
            let seed = mix(self.seed, (index as u64) << 40 | (port as u64) << 32 | u64::from(key));
            let meant = rule.port.is_none_or(|p| p == port) && rule.key.is_none_or(|k| k == key);
            (meant && rule.select.takes(seed, position)).then_some(&rule.fault)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_come_from_the_last_bytes_of_the_source_address() {
        let mut frame = [0u8; 60];
        frame[10..12].copy_from_slice(&[0x12, 0x34]);
        assert_eq!(Classifier::SourceMac.key(&frame), 0x1234);
        assert_eq!(Classifier::Port.key(&frame), 0);
        assert_eq!(Classifier::SourceMac.key(&frame[..11]), 0);
    }

    #[test]
    fn rules_keep_to_their_port_and_key() {
        let drop = Rule::new(Select::Within(3..5), Fault::Drop).for_key(7).on_port(1);
        let plan = FaultPlan { rules: vec![drop], ..FaultPlan::none() };
        let dropped = |port, key| (0..10).filter(|n| plan.faults(port, key, *n).next().is_some()).count();
        assert_eq!((dropped(1, 7), dropped(0, 7), dropped(1, 8)), (2, 0, 0));
    }

    proptest! {
        #[test]
        fn scattered_positions_are_as_many_as_asked_and_inside(seed: u64, count in 0u64..50, start in 0u64..100, span in 0u64..200) {
            let Select::At(chosen) = Select::scattered(seed, count, start..start + span) else { unreachable!() };
            prop_assert_eq!(chosen.len() as u64, count.min(span));
            prop_assert!(chosen.iter().all(|p| (start..start + span).contains(p)));
        }

        #[test]
        fn the_same_seed_gives_the_same_faults(seed: u64, millionths in 0u32..=1_000_000) {
            let plan = || FaultPlan { seed, rules: vec![Rule::new(Select::Random { millionths }, Fault::Drop)], ..FaultPlan::none() };
            let picks = |plan: &FaultPlan| (0..200).map(|n| plan.faults(0, 0, n).count()).collect::<Vec<_>>();
            prop_assert_eq!(picks(&plan()), picks(&plan()));
        }
    }
}
