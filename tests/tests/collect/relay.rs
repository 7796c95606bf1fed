//! Datagrams that one collector sends on to others.

use super::{Collector, known, recorded};
use packetrig_tests::program::Running;
use packetrig_tests::recording;

#[test]
fn relayed_datagrams_give_the_same_records() {
    let behind = [Collector::start("udp", &[]), Collector::start("udp", &[])];
    let targets: Vec<&str> =
        behind.iter().flat_map(|collector| ["--relay", collector.place.as_str()]).collect();
    let front = Collector::start("udp", &targets);
    let (_directory, file) = recording::stored(&recorded());
    let meter =
        Running::start(&["meter", file.to_str().unwrap(), "--quiet", "--export", &front.place], "").finish();
    assert_eq!(meter.code, Some(0), "{}", meter.stderr);
    let front = front.finish();
    let wanted = known(|_| true);
    assert_eq!(front.kept(), wanted);
    let relays = front.report["relays"].as_array().unwrap().clone();
    assert_eq!(relays.len(), 2);
    let messages = front.report["intake"][0]["messages"].clone();
    for (relay, collector) in relays.iter().zip(behind) {
        assert_eq!((&relay["sent"], &relay["dropped"], &relay["refused"]), (&messages, &0.into(), &0.into()));
        let collected = collector.finish();
        assert_eq!(collected.report["intake"][0]["messages"], messages);
        assert_eq!(collected.report["intake"][0]["bytes"], front.report["intake"][0]["bytes"]);
        assert_eq!(collected.kept(), wanted);
        collected.assert_in_order();
    }
}
