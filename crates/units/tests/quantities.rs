//! Quantities read as people write them, and schedules do not drift.

use packetrig_units::{BitRate, FrameRate, FrameSize, Nanos, Rate, Share};
use proptest::prelude::*;

#[test]
fn quantities_read_as_people_write_them() {
    assert_eq!("10s".parse(), Ok(Nanos::from_secs(10)));
    assert_eq!("1.5ms".parse(), Ok(Nanos::from_micros(1500)));
    assert_eq!("64".parse(), Ok(FrameSize::MIN));
    assert_eq!("1518B".parse(), Ok(FrameSize::new(1518)));
    assert_eq!("2.5Gbit/s".parse(), Ok(BitRate::new(2_500_000_000)));
    assert_eq!("0.1pps".parse(), Ok(Rate::Frames(FrameRate::new(1, 10).unwrap())));
    assert_eq!("200kpps".parse(), Ok(Rate::Frames(FrameRate::per_second(200_000).unwrap())));
    assert_eq!("12.5%".parse(), Ok(Rate::Share(Share::from_billionths(125_000_000))));
}

#[test]
fn nonsense_is_refused_with_an_example() {
    for text in ["", "s", "-1s", "1..2s", "1 fortnight", "0.0000000001s", "99999999999999999999s"] {
        let error = text.parse::<Nanos>().unwrap_err();
        assert!(error.to_string().contains("write it like"), "{error}");
    }
    for text in ["0pps", "0bit/s", "fast", "10GB/s", "1e9pps"] {
        assert!(text.parse::<Rate>().is_err(), "{text}");
    }
}

#[test]
fn gigabit_line_rate_is_1488095_minimal_frames() {
    let link = BitRate::new(1_000_000_000);
    let rate =
        FrameRate::from_share(link, Share::WHOLE_LINK, u64::from(FrameSize::MIN.l1_bytes()), 1).unwrap();
    assert_eq!(rate.frames_within(Nanos::from_secs(1)), 1_488_096); // 1 488 095.2: one more has begun
    assert_eq!(rate.due_time(1_488_095 * 21).as_u64() / 1_000_000_000, 20);
    assert_eq!(rate.l1_bit_rate(FrameSize::MIN), link);
}

#[test]
fn times_print_in_the_unit_that_suits() {
    let printed = [0, 999, 1_500, 20_000_000, 3_000_000_000].map(|ns| Nanos::new(ns).to_string());
    assert_eq!(printed, ["0ns", "999ns", "1.5us", "20ms", "3s"]);
}

proptest! {
    #[test]
    fn printed_times_read_back_to_three_digits(ns in 0u64..1 << 60) {
        let read: Nanos = Nanos::new(ns).to_string().parse().unwrap();
        prop_assert!(read.as_u64().abs_diff(ns) <= ns / 1000 + 1);
    }

    #[test]
    fn a_schedule_never_drifts(frames in 1u64..10_000_000, seconds in 1u64..100, n in 0u64..1 << 40) {
        let rate = FrameRate::new(frames, seconds).unwrap();
        let exact = u128::from(n) * u128::from(seconds) * 1_000_000_000 / u128::from(frames);
        prop_assume!(exact < u128::from(u64::MAX));
        prop_assert_eq!(u128::from(rate.due_time(n).as_u64()), exact);
    }

    #[test]
    fn frames_within_counts_those_due_before(frames in 1u64..1_000_000, seconds in 1u64..100, ns in 1u64..10_000_000_000) {
        let rate = FrameRate::new(frames, seconds).unwrap();
        let within = rate.frames_within(Nanos::new(ns));
        prop_assert!(rate.due_time(within - 1).as_u64() < ns);
        prop_assert!(rate.due_time(within).as_u64() + 1 >= ns);
    }
}
