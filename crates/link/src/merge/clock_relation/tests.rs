use super::*;
use crate::merge::PacketIdentity;
use packetrig_wire::pattern::keyed_mix;

const SECOND: u64 = 1_000_000_000;
const BEGIN: u64 = 1_790_000_000 * SECOND;

/// Samples of 20,000 packets, one each 5 ms, by the reference and by a clock that shows what `other` says.
fn samples(other: impl Fn(u64, u64) -> u64) -> (PacketSample, PacketSample) {
    let (mut ours, mut theirs) = (PacketSample::new(4096), PacketSample::new(4096));
    for number in 0..20_000 {
        let at_ns = BEGIN + 5_000_000 * number;
        let identity = PacketIdentity(keyed_mix(7, number));
        ours.add_packet(identity, number, at_ns + keyed_mix(8, number) % 3000);
        theirs.add_packet(identity, number, other(number, at_ns) + keyed_mix(9, number) % 3000);
    }
    (ours, theirs)
}

#[test]
fn a_clock_that_drifts_is_followed() {
    // It began 3 s late, and loses 40 parts in a million.
    let slow = |at_ns: u64| at_ns - 3 * SECOND - (at_ns - BEGIN) * 40 / 1_000_000;
    let (ours, theirs) = samples(|_, at_ns| slow(at_ns));
    let relation = ClockRelation::between_samples(&ours, &theirs).unwrap();
    assert!((relation.drift().unwrap().ppm - 40.0).abs() < 0.5, "{relation:?}");
    assert!(relation.jitter().as_u64() < 6000, "{:?}", relation.jitter());
    assert_eq!((relation.clock_steps(), relation.pair_count() > 4000), (vec![], true));
    for number in [0, 1, 777, 10_000, 19_999] {
        let at_ns = BEGIN + 5_000_000 * number;
        let found = relation.to_reference(number, slow(at_ns));
        assert!(found.abs_diff(at_ns) < 4000, "{number}: {}", found.abs_diff(at_ns));
    }
}

#[test]
fn a_clock_that_was_set_begins_another_line() {
    for by in [-2_000_000_000_i64, 700_000_000] {
        let (ours, theirs) =
            samples(|number, at| if number < 12_000 { at } else { at.saturating_add_signed(by) });
        let relation = ClockRelation::between_samples(&ours, &theirs).unwrap();
        let [step] = relation.clock_steps()[..] else { panic!("{:?}", relation.clock_steps()) };
        assert!((step.by_ns + by).abs() < 10_000, "{step:?}");
        assert!(step.at_ns.abs_diff(BEGIN + 60 * SECOND) < SECOND, "{step:?}");
        let after = (BEGIN + 15_000 * 5_000_000).saturating_add_signed(by);
        let found = relation.to_reference(15_000, after);
        assert!(found.abs_diff(BEGIN + 75 * SECOND) < 4000);
    }
}

#[test]
fn coincidental_matches_do_not_distort_clock_relation() {
    let (ours, theirs) = samples(|number, at| if number % 50 == 0 { at + 30 * SECOND } else { at });
    let relation = ClockRelation::between_samples(&ours, &theirs).unwrap();
    assert!(
        relation.initial_clock_difference_ns().abs() < 4000 && relation.clock_steps().is_empty(),
        "{relation:?}"
    );
    assert!(relation.jitter().as_u64() < 6000);
}

#[test]
fn captures_of_different_links_have_no_relation() {
    let (ours, _) = samples(|_, at| at);
    assert_eq!(ClockRelation::between_samples(&ours, &PacketSample::new(9)), None);
    assert_eq!(ClockRelation::default().to_reference(5, 77), 77);
}

/// Delay of packets from the place of the reference to that of the other capture, ns; negative against that direction.
#[derive(Clone, Copy, Debug)]
enum PathDelay {
    Uniform,
    Exponential,
    /// Exponential, in either direction.
    BothWays,
}

const DELAYS: [PathDelay; 3] = [PathDelay::Uniform, PathDelay::Exponential, PathDelay::BothWays];
const MILLISECOND: f64 = 1e6;
const SEEDS: u64 = 8;

impl PathDelay {
    /// Delay with a base of 100 us and 1 ms that varies.
    fn of(self, seed: u64, number: u64) -> i64 {
        let share = (keyed_mix(seed, number) >> 11) as f64 / (1_u64 << 53) as f64;
        let exponential = -MILLISECOND * (1.0 - share).ln();
        let varied = if matches!(self, Self::Uniform) { MILLISECOND * share } else { exponential };
        #[expect(clippy::cast_possible_truncation, reason = "some milliseconds")]
        let delay = 100_000 + varied as i64;
        let is_back = matches!(self, Self::BothWays) && keyed_mix(seed + 1000, number).is_multiple_of(2);
        if is_back { -delay } else { delay }
    }
}

/// The relation found from 6000 packets, one each 10 ms; `other` gives what the other capture shows for a packet that
/// passed there at a time.
fn relation(seed: u64, delay: impl Fn(u64) -> i64, other: impl Fn(u64, u64) -> u64) -> ClockRelation {
    let (mut ours, mut theirs) = (PacketSample::new(4096), PacketSample::new(4096));
    for number in 0..6_000 {
        let at_ns = BEGIN + 10_000_000 * number;
        let identity = PacketIdentity(keyed_mix(seed, number));
        ours.add_packet(identity, number, at_ns);
        theirs.add_packet(identity, number, other(number, at_ns.saturating_add_signed(delay(number))));
    }
    ClockRelation::between_samples(&ours, &theirs).unwrap()
}

/// Calls `check` with each kind of delay and several seeds.
fn for_all_delays(check: impl Fn(u64, PathDelay)) {
    for delay in DELAYS {
        (0..SEEDS).for_each(|seed| check(10 * seed, delay));
    }
}

#[test]
fn delays_that_vary_are_neither_steps_nor_drift() {
    for_all_delays(|seed, delay| {
        let found = relation(seed, |number| delay.of(seed, number), |_, at| at);
        assert_eq!(found.clock_steps(), [], "{delay:?} {seed}");
        let drift = found.drift().unwrap();
        assert!(
            !drift.is_certainly_nonzero() && drift.most_ppm - drift.least_ppm < 30.0,
            "{delay:?} {seed}: {drift:?}"
        );
    });
}

#[test]
fn a_step_is_found_among_delays_that_vary() {
    for by in [700_000_000_i64, 5_000_000, -5_000_000] {
        for_all_delays(|seed, delay| {
            let set = |number, at: u64| if number < 3500 { at } else { at.saturating_add_signed(by) };
            let found = relation(seed, |number| delay.of(seed, number), set);
            let [step] = found.clock_steps()[..] else {
                panic!("{delay:?} {seed} {by}: {:?}", found.clock_steps())
            };
            assert!((step.by_ns + by).abs() < 1_500_000, "{delay:?} {seed}: {step:?}");
            assert!(step.at_ns.abs_diff(BEGIN + 35 * SECOND) < SECOND, "{delay:?} {seed}: {step:?}");
        });
    }
}

#[test]
fn two_opposite_clock_steps_are_both_found() {
    let set = |number, at: u64| match number {
        0..2000 => at,
        2000..3000 => at + 700_000_000,
        _ => at - 2_000_000_000,
    };
    for_all_delays(|seed, delay| {
        let found = relation(seed, |number| delay.of(seed, number), set);
        let by: Vec<i64> = found
            .clock_steps()
            .iter()
            .map(|step| (step.by_ns + 50_000_000).div_euclid(100_000_000))
            .collect();
        assert_eq!(by, [-7, 27], "{delay:?} {seed}: {:?}", found.clock_steps());
    });
}

#[test]
fn clock_drift_lies_within_reported_interval() {
    for_all_delays(|seed, delay| {
        let slow = |_, at: u64| at - (at + SECOND - BEGIN) * 20 / 1_000_000;
        let found = relation(seed, |number| delay.of(seed, number), slow);
        let drift = found.drift().unwrap();
        assert!(drift.is_certainly_nonzero(), "{delay:?} {seed}: {drift:?}");
        assert!((drift.least_ppm..=drift.most_ppm).contains(&20.0), "{delay:?} {seed}: {drift:?}");
        assert_eq!(found.clock_steps(), [], "{delay:?} {seed}");
    });
}

#[test]
fn delays_that_come_and_go_are_no_steps() {
    // A queue of 20 ms for 3 s, and a device that holds all packets for 0.6 s and then lets them go at once.
    let queue = |number: u64| if (2000..2300).contains(&number) { 20_000_000 } else { 0 };
    let hold = |number: u64| if (2000..2060).contains(&number) { 10_000_000 * (2060 - number) } else { 0 };
    let all: [&dyn Fn(u64) -> u64; 2] = [&queue, &hold];
    for extra in all {
        for_all_delays(|seed, delay| {
            let delay_of = |number| delay.of(seed, number) + i64::try_from(extra(number)).unwrap();
            let found = relation(seed, delay_of, |_, at| at);
            assert_eq!(found.clock_steps(), [], "{delay:?} {seed}");
        });
    }
}

#[test]
fn few_packets_give_no_drift() {
    let (mut ours, mut theirs) = (PacketSample::new(99), PacketSample::new(99));
    for number in 0..9 {
        let identity = PacketIdentity(keyed_mix(7, number));
        ours.add_packet(identity, number, BEGIN + 1000 * number);
        theirs.add_packet(identity, number, BEGIN + 1000 * number + keyed_mix(8, number) % 1000);
    }
    let found = ClockRelation::between_samples(&ours, &theirs).unwrap();
    assert_eq!((found.drift(), found.clock_steps()), (None, vec![]));
}
