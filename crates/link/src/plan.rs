//! The plan of faults: which frames each fault applies to.

use super::draw::{draw_normal_number, draw_uniform_number, happens_at};
use super::{HeaderEdit, RateQueue};
use packetrig_units::Nanos;
use packetrig_wire::pattern::keyed_mix;
use std::collections::BTreeSet;
use std::ops::Range;

/// How the key of a frame is read from its bytes. A test chooses these bytes in the frames that it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrameClassifier {
    /// Key 0 for all frames that arrive on a port.
    #[default]
    Port,
    /// The last two bytes of the source address are the key.
    SourceMac,
}

impl FrameClassifier {
    /// Reads the key of a frame; a frame that is too short for it has key 0.
    pub fn read_key(self, frame: &[u8]) -> u32 {
        match (self, frame.get(10..12)) {
            (Self::SourceMac, Some(bytes)) => u32::from(bytes[0]) << 8 | u32::from(bytes[1]),
            _ => 0,
        }
    }
}

/// Model of losses in groups (Gilbert 1960, Elliott 1963): the link is in a good or a bad state, and each state has its
/// own probability of loss. All probabilities are in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GilbertElliott {
    /// Probability, at each frame, of a change from good to bad.
    pub into_bad: u32,
    /// Probability, at each frame, of a change from bad to good.
    pub out_of_bad: u32,
    /// Share of frames selected in the bad state; all frames in the simple Gilbert model.
    pub in_bad: u32,
    /// Share of frames selected in the good state; none in Gilbert's model.
    pub in_good: u32,
}

/// The frames that a rule applies to, by their number within a key (see [`FrameClassifier`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RulePositions {
    All,
    At(BTreeSet<u64>),
    /// Consecutive positions.
    Within(Range<u64>),
    /// A random selection of about this many in a million, drawn from the plan's seed.
    Random {
        /// Proportion of the frames, in millionths.
        millionths: u32,
    },
    /// Every nth frame: the last one of each group of `nth`.
    Every {
        /// Distance between two selected positions; at least 1.
        nth: u64,
    },
    /// Runs of `frames` consecutive positions. Outside a run, each position begins one with the given probability.
    Bursts {
        /// Probability that a position outside a run begins one, in millionths.
        millionths: u32,
        /// Length of a run in frames; at least 1.
        frames: u64,
    },
    /// Positions chosen by a two-state model that changes from frame to frame.
    GilbertElliott(GilbertElliott),
}

impl RulePositions {
    /// Draws exactly `count` of the positions in `among`, at random from `seed`; all of them if there are not more.
    pub fn draw_positions(seed: u64, count: u64, among: Range<u64>) -> Self {
        // Selection sampling (Knuth, TAOCP 2, 3.4.2, algorithm S): one pass in ascending order,
        // without a list of candidates.
        let mut left = among.end.saturating_sub(among.start);
        let mut wanted = count.min(left);
        let mut chosen = BTreeSet::new();
        for position in among {
            // The probability of each position depends on how many are still wanted, so exactly `count` are chosen.
            if wanted > 0 && keyed_mix(seed, position) % left < wanted {
                chosen.insert(position);
                wanted -= 1;
            }
            left -= 1;
        }
        Self::At(chosen)
    }

    /// Returns true if the rule applies to this position. Must be called for each position in order. `memory` is the
    /// state of the rule; it is zero before the first position.
    fn selects_position(&self, seed: u64, position: u64, memory: &mut u64) -> bool {
        match self {
            Self::All => true,
            Self::At(positions) => positions.contains(&position),
            Self::Within(range) => range.contains(&position),
            Self::Random { millionths } => happens_at(seed, position, *millionths),
            // With `nth` above 1 the first frame is never selected.
            Self::Every { nth } => position % nth == nth - 1,
            Self::Bursts { millionths, frames } => {
                if *memory == 0 && happens_at(seed, position, *millionths) {
                    *memory = *frames;
                }
                let takes = *memory > 0;
                *memory -= u64::from(takes);
                takes
            }
            Self::GilbertElliott(model) => {
                let takes = if *memory == 0 { model.in_good } else { model.in_bad };
                let turns = if *memory == 0 { model.into_bad } else { model.out_of_bad };
                // The state before the frame decides about the frame, then the state may change. The second
                // draw uses the complement of the seed: with the same random numbers, a loss and a change of
                // state would always coincide.
                let taken = happens_at(seed, position, takes);
                *memory ^= u64::from(happens_at(!seed, position, turns));
                taken
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DelayDistribution {
    /// All values from the smallest to the largest are equally likely.
    #[default]
    Uniform,
    Normal,
}

/// Random variation of a delay, which is added or subtracted. A delay never becomes negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayJitter {
    /// Maximum variation (uniform), or standard deviation (normal).
    pub spread: Nanos,
    pub shape: DelayDistribution,
}

impl DelayJitter {
    fn draw_offset(self, seed: u64, position: u64) -> i64 {
        match self.shape {
            DelayDistribution::Uniform => draw_uniform_number(seed, position, self.spread.as_u64()),
            DelayDistribution::Normal => draw_normal_number(seed, position, self.spread.as_u64()),
        }
    }
}

/// Fault that a rule applies to a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameFault {
    /// The frame is dropped.
    Drop,
    /// This many copies of the frame leave directly after it.
    Duplicate { copies: u32 },
    /// The frame is held back until this many later frames of its key have left.
    HoldBack { frames: u32 },
    /// The frame is delayed by this time.
    Delay(Nanos),
    /// The delay is varied at random.
    Jitter(DelayJitter),
    /// Bits of one byte are flipped; checksums are not corrected.
    Corrupt {
        /// Position of the byte, counted back from the end of the frame without FCS; 1 is the last byte.
        from_end: usize,
        mask: u8,
    },
    /// One random bit after the Ethernet header is flipped.
    CorruptAnywhere,
    /// Headers are rewritten, as a router or switch would do it.
    Rewrite(HeaderEdit),
}

/// A fault and the frames that it applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// Frames that arrive on this port; `None` for every port.
    pub port: Option<usize>,
    /// Frames with this key; `None` for every key.
    pub key: Option<u32>,
    pub select: RulePositions,
    pub fault: FrameFault,
}

impl FaultRule {
    /// Creates a rule that applies `fault` to the selected positions of every key on every port.
    pub fn new(select: RulePositions, fault: FrameFault) -> Self {
        Self { port: None, key: None, select, fault }
    }

    fn applies_to(&self, port: usize, key: u32) -> bool {
        self.port.is_none_or(|of_rule| of_rule == port) && self.key.is_none_or(|of_rule| of_rule == key)
    }

    /// Limits the rule to one key.
    #[must_use]
    pub fn for_key(self, key: u32) -> Self {
        Self { key: Some(key), ..self }
    }

    /// Limits the rule to frames that arrive on one port.
    #[must_use]
    pub fn for_port(self, port: usize) -> Self {
        Self { port: Some(port), ..self }
    }
}

/// All faults of a device or a direction. All rules that select a frame apply to it, except that a dropped frame
/// gets no other fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Seed of all random decisions: the same seed gives the same faults.
    pub seed: u64,
    /// Rule for reading the key of a frame.
    pub classifier: FrameClassifier,
    pub rules: Vec<FaultRule>,
    /// A limited rate with its queue, if the rate is limited.
    pub queue: Option<RateQueue>,
    /// True if frames leave in the order of arrival even if their delays differ.
    pub in_order: bool,
    /// Longest time for which a frame is held back for later ones; `None`: until the end.
    pub held_at_most: Option<Nanos>,
}

impl FaultPlan {
    pub fn without_faults() -> Self {
        Self::default()
    }

    /// Returns true if the plan changes, delays or drops no frame.
    pub(super) fn is_faultless(&self) -> bool {
        self.rules.is_empty() && self.queue.is_none()
    }

    /// Returns the state that decides which rules apply to each frame with this key on `port`, beginning
    /// with the first frame.
    pub fn start_key_rules(&self, port: usize, key: u32) -> KeyFrameRules {
        let rules = self.rules.iter().enumerate().filter(|(_, rule)| rule.applies_to(port, key));
        let rules = rules.map(|(index, _)| {
            // Rule, port and key have their own bits in the position, so each combination has its own random
            // numbers, and an additional key changes nothing for other keys.
            let seed = keyed_mix(self.seed, (index as u64) << 40 | (port as u64) << 32 | u64::from(key));
            RuleState { index, seed, memory: 0, takes: false }
        });
        KeyFrameRules { rules: rules.collect(), position: 0 }
    }
}

#[derive(Clone, Debug)]
struct RuleState {
    index: usize,
    seed: u64,
    memory: u64,
    /// True if the rule applies to the current frame.
    takes: bool,
}

/// Decides, frame by frame, which rules apply to the frames of one key on one port.
#[derive(Clone, Debug)]
pub struct KeyFrameRules {
    rules: Vec<RuleState>,
    position: u64,
}

impl KeyFrameRules {
    /// Advances to the next frame and returns its faults, in the order of the rules. `plan` must be the plan from
    /// which this state was made.
    pub fn next_faults<'a>(&'a mut self, plan: &'a FaultPlan) -> impl Iterator<Item = &'a FrameFault> {
        self.advance_to_next_frame(plan);
        self.current_faults(plan).map(|(fault, _)| fault)
    }

    /// Advances to the next frame.
    pub(super) fn advance_to_next_frame(&mut self, plan: &FaultPlan) {
        for turn in &mut self.rules {
            let select = &plan.rules[turn.index].select;
            turn.takes = select.selects_position(turn.seed, self.position, &mut turn.memory);
        }
        self.position += 1;
    }

    /// Returns the faults of the current frame, each with the seed for its random values.
    pub(super) fn current_faults<'a>(
        &'a self,
        plan: &'a FaultPlan,
    ) -> impl Iterator<Item = (&'a FrameFault, u64)> {
        self.rules.iter().filter(|turn| turn.takes).map(|turn| {
            // The fault uses another seed than the selection: otherwise the two would be correlated.
            (&plan.rules[turn.index].fault, turn.seed.rotate_left(32) ^ 0x5bd1_e995)
        })
    }
}

impl FrameFault {
    /// Applies a jitter to a delay in ns, for the frame at this position.
    pub(super) fn apply_jitter(delay_ns: u64, jitter: DelayJitter, seed: u64, position: u64) -> u64 {
        delay_ns.saturating_add_signed(jitter.draw_offset(seed, position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The positions that a selection takes among the first `count`.
    fn taken(select: RulePositions, count: u64) -> Vec<u64> {
        let plan = FaultPlan {
            seed: 3,
            rules: vec![FaultRule::new(select, FrameFault::Drop)],
            ..FaultPlan::without_faults()
        };
        let mut course = plan.start_key_rules(0, 0);
        (0..count).filter(|_| course.next_faults(&plan).count() > 0).collect()
    }

    /// Lengths of the runs of neighbours.
    fn runs(positions: &[u64]) -> Vec<u64> {
        let mut runs: Vec<u64> = Vec::new();
        for (index, position) in positions.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if positions[index - 1] + 1 == *position => *run += 1,
                _ => runs.push(1),
            }
        }
        runs
    }

    #[test]
    fn classifier_key_is_end_of_source_mac() {
        let mut frame = [0u8; 60];
        frame[10..12].copy_from_slice(&[0x12, 0x34]);
        assert_eq!(FrameClassifier::SourceMac.read_key(&frame), 0x1234);
        assert_eq!(FrameClassifier::Port.read_key(&frame), 0);
        assert_eq!(FrameClassifier::SourceMac.read_key(&frame[..11]), 0);
    }

    #[test]
    fn rules_keep_to_their_port_and_key() {
        let drop = FaultRule::new(RulePositions::Within(3..5), FrameFault::Drop).for_key(7).for_port(1);
        let plan = FaultPlan { rules: vec![drop], ..FaultPlan::without_faults() };
        let dropped = |port, key| {
            let mut course = plan.start_key_rules(port, key);
            (0..10).filter(|_| course.next_faults(&plan).next().is_some()).count()
        };
        assert_eq!((dropped(1, 7), dropped(0, 7), dropped(1, 8)), (2, 0, 0));
    }

    #[test]
    fn every_nth_is_the_last_of_each_n() {
        assert_eq!(taken(RulePositions::Every { nth: 4 }, 12), [3, 7, 11]);
        assert_eq!(taken(RulePositions::Every { nth: 1 }, 3), [0, 1, 2]);
    }

    #[test]
    fn fault_bursts_have_requested_length_and_frequency() {
        let positions = taken(RulePositions::Bursts { millionths: 2_000, frames: 5 }, 200_000);
        let runs = runs(&positions);
        // Two may follow each other at once.
        assert!(runs.iter().all(|run| run % 5 == 0), "{runs:?}");
        // 0.2 % of the positions outside of bursts: 396 of them, deviation 20.
        let bursts = positions.len() / 5;
        assert!((320..480).contains(&bursts), "{bursts}");
    }

    #[test]
    fn gilbert_elliott_losses_match_model_mean_and_runs() {
        let model = GilbertElliott { into_bad: 10_000, out_of_bad: 250_000, in_bad: 1_000_000, in_good: 0 };
        let positions = taken(RulePositions::GilbertElliott(model), 400_000);
        // p / (p + r) = 3.85 %, runs of 1 / r = 4 frames.
        let share = positions.len() as f64 / 400_000.0;
        let mean = positions.len() as f64 / runs(&positions).len() as f64;
        assert!((share - 0.03846).abs() < 0.003, "{share}");
        assert!((mean - 4.0).abs() < 0.25, "{mean}");
    }

    #[test]
    fn elliott_s_good_state_loses_as_said() {
        let model = GilbertElliott { into_bad: 0, out_of_bad: 0, in_bad: 1_000_000, in_good: 20_000 };
        let lost = taken(RulePositions::GilbertElliott(model), 100_000).len();
        assert!((1_800..2_200).contains(&lost), "{lost}");
    }

    proptest! {
        #[test]
        fn random_positions_have_requested_count_and_range(seed: u64, count in 0u64..50, start in 0u64..100, span in 0u64..200) {
            let RulePositions::At(chosen) = RulePositions::draw_positions(seed, count, start..start + span) else { unreachable!() };
            prop_assert_eq!(chosen.len() as u64, count.min(span));
            prop_assert!(chosen.iter().all(|p| (start..start + span).contains(p)));
        }

        #[test]
        fn the_same_seed_gives_the_same_faults(seed: u64, millionths in 0u32..=1_000_000) {
            let model = GilbertElliott { into_bad: millionths, out_of_bad: 300_000, in_bad: 900_000, in_good: 1_000 };
            let selects = [RulePositions::Random { millionths }, RulePositions::Bursts { millionths, frames: 3 }, RulePositions::GilbertElliott(model)];
            let rules = selects.into_iter().map(|select| FaultRule::new(select, FrameFault::Drop)).collect::<Vec<_>>();
            let plan = || FaultPlan { seed, rules: rules.clone(), ..FaultPlan::without_faults() };
            let picks = |plan: &FaultPlan| {
                let mut course = plan.start_key_rules(0, 0);
                (0..200).map(|_| course.next_faults(plan).count()).collect::<Vec<_>>()
            };
            prop_assert_eq!(picks(&plan()), picks(&plan()));
        }
    }
}
