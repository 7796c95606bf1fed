use super::*;
use crate::clock::ClockRecord;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const SECOND: u64 = 1_000_000_000;

/// Random numbers that are the same for the same seed.
struct ExchangeDice(u64);

impl ExchangeDice {
    fn roll(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit.max(1)
    }
    /// Exponentially distributed around `mean`.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most 37 times the mean, never negative"
    )]
    fn exponential(&mut self, mean: u64) -> u64 {
        let uniform = (self.below(1 << 53) + 1) as f64 / (1u64 << 53) as f64;
        (-uniform.ln() * mean as f64) as u64
    }
}

/// A way: always `least`, and on top an exponential wait of mean `wait`.
#[derive(Clone, Copy, Debug)]
struct WayDelay {
    least: u64,
    wait: u64,
}

/// A node's clock whose rate changes at whole seconds, against a controller's that is the truth.
struct DriftingClock {
    offset: i64,
    /// The rate in each second, ppb.
    rates: Vec<i64>,
}

impl DriftingClock {
    fn offset_at(&self, at: u64) -> i64 {
        let (seconds, part) = (usize::try_from(at / SECOND).unwrap(), at % SECOND);
        let full: i64 = self.rates[..seconds].iter().sum();
        let rest = i128::from(self.rates[seconds]) * i128::from(part) / i128::from(SECOND);
        self.offset + full + i64::try_from(rest).unwrap()
    }
    fn read(&self, at: u64) -> MonoTime {
        MonoTime::from_nanos(at.checked_add_signed(self.offset_at(at)).unwrap())
    }
    fn exchange(&self, at: u64, there: WayDelay, back: WayDelay, dice: &mut ExchangeDice) -> ClockExchange {
        let heard = at + there.least + dice.exponential(there.wait);
        let answered = heard + dice.below(50_000);
        let home = answered + back.least + dice.exponential(back.wait);
        ClockExchange {
            sent: self.read(at),
            heard: MonoTime::from_nanos(heard),
            answered: MonoTime::from_nanos(answered),
            back: self.read(home),
        }
    }
}

fn way() -> impl Strategy<Value = WayDelay> {
    (0u64..3_000_000, 0u64..3_000_000).prop_map(|(least, wait)| WayDelay { least, wait })
}

#[test]
fn the_true_offset_is_always_inside_the_bound() {
    let inputs = (
        any::<u64>(),
        -(1i64 << 50)..1 << 50,
        -150_000i64..150_000,
        0i64..5_000,
        way(),
        way(),
        1usize..400,
        1u64..500,
    );
    let mut runner = TestRunner::new(Config::with_cases(300));
    runner
        .run(&inputs, |(seed, offset, rate, wander, there, back, count, period_ms)| {
            let mut dice = ExchangeDice(seed);
            let around = |dice: &mut ExchangeDice| {
                i64::try_from(dice.below(2 * wander.unsigned_abs() + 1)).unwrap() - wander
            };
            let rates = (0..400).map(|_| rate + around(&mut dice)).collect();
            let clock = DriftingClock { offset: offset.max(0), rates };
            let mut probes = ClockComparison::default();
            let mut at = SECOND;
            for _ in 0..count {
                prop_assert!(probes.add_exchange(&clock.exchange(at, there, back, &mut dice)));
                at += period_ms * 1_000_000;
            }
            let fit = probes.fit_clock().unwrap();
            for when in [at, at + SECOND, at + 60 * SECOND, SECOND, fit.at.as_nanos()] {
                let instant = MonoTime::from_nanos(when);
                let error = fit.offset_at(instant).abs_diff(clock.offset_at(when));
                prop_assert!(
                    error <= fit.bound_at(instant).as_u64() + 1,
                    "{error} ns off at {when}: {fit:?}"
                );
                // The instant of a start: the node turns T into its own time and begins there.
                let started = clock.offset_at(when).abs_diff(fit.to_node_time(instant).signed_since(instant));
                prop_assert!(started <= fit.bound_at(instant).as_u64() + 1);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn interpolated_fit_bound_covers_true_offset() {
    let inputs = (any::<u64>(), -150_000i64..150_000, 0i64..5_000, way(), way());
    let mut runner = TestRunner::new(Config::with_cases(200));
    runner
        .run(&inputs, |(seed, rate, wander, there, back)| {
            let mut dice = ExchangeDice(seed);
            let around = |dice: &mut ExchangeDice| {
                i64::try_from(dice.below(2 * wander.unsigned_abs() + 1)).unwrap() - wander
            };
            let rates = (0..200).map(|_| rate + around(&mut dice)).collect();
            let clock = DriftingClock { offset: 5_000_000_000, rates };
            let mut fit_from = |begin: u64| {
                let mut probes = ClockComparison::default();
                for n in 0..64 {
                    probes.add_exchange(&clock.exchange(begin + n * SECOND / 20, there, back, &mut dice));
                }
                probes.fit_clock()
            };
            let before = fit_from(SECOND).unwrap();
            let record = ClockRecord { before, after: fit_from(100 * SECOND), ..ClockRecord::same_clock() };
            prop_assert!(record.is_consistent());
            for when in (5..100).step_by(5).map(|second| second * SECOND) {
                let near = record.best_fit_near(MonoTime::from_nanos(when)).unwrap();
                let error = near.offset_ns.abs_diff(clock.offset_at(when));
                prop_assert!(
                    error <= near.bound.as_u64() + 1,
                    "{error} ns off at {when}: {near:?} of {record:?}"
                );
                prop_assert!(near.bound <= before.bound_at(MonoTime::from_nanos(when)));
            }
            Ok(())
        })
        .unwrap();
}

/// Errors of 60 windows of 64 exchanges 4 ms apart, sorted, with a clock that is the controller's own:
/// (quickest exchange, mean of all, bound).
fn errors(there: WayDelay, back: WayDelay) -> [Vec<u64>; 3] {
    let mut dice = ExchangeDice(7);
    let clock = DriftingClock { offset: 0, rates: vec![0; 30] };
    let mut found = [Vec::new(), Vec::new(), Vec::new()];
    for window in 0..60 {
        let mut probes = ClockComparison::default();
        let mut sum = 0;
        for n in 0..64 {
            let exchange = clock.exchange(SECOND + (window * 64 + n) * 4_000_000, there, back, &mut dice);
            sum += exchange.estimate_offset().unwrap().offset_ns;
            probes.add_exchange(&exchange);
        }
        let fit = probes.fit_clock().unwrap();
        for (list, value) in found.iter_mut().zip([
            fit.offset_ns.unsigned_abs(),
            (sum / 64).unsigned_abs(),
            fit.bound.as_u64(),
        ]) {
            list.push(value);
        }
    }
    found.each_mut().map(|list| {
        list.sort_unstable();
        std::mem::take(list)
    })
}

#[test]
fn quickest_exchange_beats_mean_under_one_way_load() {
    let us = |least: u64, wait: u64| WayDelay { least: least * 1_000, wait: wait * 1_000 };
    let [quickest, mean, bound] = errors(us(0, 1500), us(0, 20));
    assert!(quickest[30] * 20 < mean[30], "{} {}", quickest[30], mean[30]);
    assert!(quickest.last() < bound.last());
    let [quickest, _, bound] = errors(us(500, 1000), us(500, 1000));
    assert!(
        quickest[30] < 150_000 && (500_000..800_000).contains(&bound[30]),
        "{} {}",
        quickest[30],
        bound[30]
    );
}

#[test]
fn clock_bound_covers_undetectable_fixed_asymmetry() {
    let way = |least| WayDelay { least, wait: 0 };
    let [quickest, _, bound] = errors(way(2_000_000), way(500_000));
    assert_eq!(quickest[0], 750_000);
    assert!(quickest.iter().zip(&bound).all(|(error, bound)| error <= bound));
}

#[test]
fn a_rate_is_found_and_narrows_the_future() {
    let quick = WayDelay { least: 20_000, wait: 5_000 };
    let clock = DriftingClock { offset: 0, rates: vec![30_000; 100] };
    let mut dice = ExchangeDice(3);
    let mut probes = ClockComparison::default();
    probes.add_exchange(&clock.exchange(SECOND, quick, quick, &mut dice));
    assert_eq!(
        probes.fit_clock().unwrap().drift_ppb,
        MAX_CLOCK_DRIFT_PPB,
        "one exchange says nothing of the rate"
    );
    for n in 1..200 {
        probes.add_exchange(&clock.exchange(SECOND + n * SECOND / 4, quick, quick, &mut dice));
    }
    let fit = probes.fit_clock().unwrap();
    assert!(fit.rate_ppb.abs_diff(30_000) < 1_500, "{fit:?}");
    assert!(fit.drift_ppb < 12_000, "{fit:?}");
}

#[test]
fn impossible_exchanges_are_left_out() {
    let at = MonoTime::from_nanos;
    let mut probes = ClockComparison::default();
    for (sent, heard, answered, back) in [(10, 5, 6, 9), (10, 6, 5, 20), (10, 5, 50, 20)] {
        let exchange =
            ClockExchange { sent: at(sent), heard: at(heard), answered: at(answered), back: at(back) };
        assert!(!probes.add_exchange(&exchange), "{exchange:?}");
    }
    assert_eq!((probes.count(), probes.fit_clock()), (0, None));
}
