use super::*;

fn spec(text: &str) -> DirectionSpec {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn every_key_lands_in_its_place() {
    let all = spec(
        "delay=10ms, jitter=1ms:normal, overtake, loss=1%, duplicate=every:100, reorder=0.5%, reorder-by=5, \
         corrupt=burst:0.1%x5, corrupt-at=17, rate=10Mbit/s, queue=64KiB",
    );
    assert_eq!(all.delay, Some(Nanos::from_millis(10)));
    assert_eq!(
        all.jitter,
        Some(DelayJitter { spread: Nanos::from_millis(1), shape: DelayDistribution::Normal })
    );
    assert_eq!(all.loss, Some(RulePositions::Random { millionths: 10_000 }));
    assert_eq!(all.duplicate, Some(RulePositions::Every { nth: 100 }));
    assert_eq!(
        (all.reorder, all.reorder_by),
        (Some(RulePositions::Random { millionths: 5_000 }), NonZeroU32::new(5))
    );
    assert_eq!(all.corrupt, Some(RulePositions::Bursts { millionths: 1_000, frames: 5 }));
    assert_eq!((all.corrupt_at, all.overtake), (NonZeroUsize::new(17), true));
    assert_eq!((all.rate, all.queue), (Some(BitRate::new(10_000_000)), Some(QueueLimit::Bytes(65_536))));
    let model = GilbertElliott { into_bad: 10_000, out_of_bad: 200_000, in_bad: 900_000, in_good: 1_000 };
    assert_eq!(spec("loss=gilbert:1%/20%/90%/0.1%").loss, Some(RulePositions::GilbertElliott(model)));
    assert_eq!(spec("rate=1Mbit/s,queue=7").queue, Some(QueueLimit::Frames(7)));
    assert!(spec("").has_no_effect());
}

#[test]
fn displayed_impair_spec_parses_back_equal() {
    for text in [
        "delay=10ms,jitter=1ms:normal,overtake,loss=1%,duplicate=every:100,reorder=0.5%,reorder-by=5",
        "corrupt=burst:0.1%x5,corrupt-at=17,rate=10Mbit/s,queue=64KiB",
        "loss=gilbert:1%/20%/90%/0.1%,delay=1us,jitter=300ns,rate=1kbit/s,queue=3",
        "",
    ] {
        assert_eq!(spec(&spec(text).to_string()), spec(text), "{text}");
    }
}

#[test]
fn invalid_impair_spec_error_shows_right_syntax() {
    for (text, hint) in [
        ("delay", "delay=10ms"),
        ("burn=1%", "use one of delay, jitter"),
        ("delay=soon", "250us"),
        ("loss=1", "%"),
        ("loss=0.00001%", "0.0001%"),
        ("loss=every:0", "every:1 or more"),
        ("loss=burst:1%", "burst:0.1%x5"),
        ("loss=now:1%", "every:100"),
        ("loss=gilbert:1%", "INTO_BAD"),
        ("jitter=1ms", "without `delay`"),
        ("delay=1ms,jitter=1ms:square", "uniform or normal"),
        ("queue=10", "without `rate`"),
        ("rate=0bit/s", "at least 1 bit/s"),
        ("rate=1Mbit/s,queue=3furlongs", "64KiB"),
        ("corrupt-at=17", "without `corrupt`"),
        ("overtake", "without `jitter`"),
        ("corrupt=1%,corrupt-at=0", "`0`"),
        ("reorder=1%,reorder-by=0", "`0`"),
    ] {
        let error = text.parse::<DirectionSpec>().unwrap_err().to_string();
        assert!(error.contains(hint), "{text}: {error}");
    }
}

#[test]
fn a_document_has_directions_and_a_seed() {
    let (both, there) = ("both: delay=1ms\n", "a->b:\n  loss: 1%\n  rate: 10Mbit/s\n");
    for text in [format!("seed: 7\n{both}{there}"), format!("seed: 7\n{there}{both}")] {
        let specs = ImpairSpecs::parse_document(&text).unwrap();
        assert_eq!(
            (specs.seed, &specs.ways[0], &specs.ways[1]),
            (Some(7), &spec("loss=1%,rate=10Mbit/s"), &spec("delay=1ms")),
            "{text}"
        );
    }
    for (text, hint) in
        [("c->d: {}", "`c->d`"), ("- 1", "mapping"), ("both: {loss: 2}", "both"), ("both: [1]", "list")]
    {
        let error = ImpairSpecs::parse_document(text).unwrap_err().to_string();
        assert!(error.contains(hint), "{text}: {error}");
    }
}

#[test]
fn another_impairment_does_not_move_those_there_are() {
    let lost = |text: &str| {
        let plan = spec(text).to_plan(5);
        let mut course = plan.start_key_rules(0, 0);
        (0..2_000).filter(|_| course.next_faults(&plan).any(|fault| *fault == FrameFault::Drop)).count()
    };
    assert_eq!(lost("loss=3%"), lost("duplicate=1%,delay=1ms,loss=3%,corrupt=1%"));
    assert!(lost("loss=3%") > 30);
}
