//! The same traffic through the same faults gives the same numbers, whichever back end sends and receives.

use super::{assert_found, found, through_on};
use packetrig_testkit::device::{FaultRule, FrameFault, RulePositions};
use packetrig_tests::at_once::for_all;
use packetrig_tests::document::{Flow, ethernet, ipv4, ipv6, tcp, udp, vlan};
use serde_json::json;

const BACK_ENDS: [&str; 3] = ["packet", "xdp", "af-xdp"];
const FRAMES: u64 = 3000;

fn rules() -> Vec<FaultRule> {
    let random = |millionths| RulePositions::Random { millionths };
    vec![
        FaultRule::new(random(10_000), FrameFault::Drop),
        FaultRule::new(random(10_000), FrameFault::Duplicate { copies: 1 }),
        FaultRule::new(random(10_000), FrameFault::HoldBack { frames: 5 }),
        FaultRule::new(random(10_000), FrameFault::Corrupt { from_end: 20, mask: 0xff }),
    ]
}

fn flows() -> Vec<Flow> {
    let flow = |name: &str, key| Flow::new(name, key).pps(2000).packets(FRAMES);
    let imix = json!({"choice": "weight_pairs", "weight_pairs": {"choice": "custom", "custom": [
        {"size": 90, "weight": 7}, {"size": 570, "weight": 4}, {"size": 1518, "weight": 1}]}});
    let bursts = json!({"choice": "burst", "burst": {"bursts": 30, "packets": 100, "gap": 12,
        "inter_burst_gap": {"choice": "microseconds", "microseconds": 20_000}}});
    vec![
        flow("plain", 1).size(100),
        flow("mixed sizes", 2).with("size", imix),
        flow("in a VLAN", 3).size(200).packet([ethernet(3), vlan(7), ipv4(), udp()]),
        flow("IPv6", 4).size(900).packet([ethernet(4), ipv6(), udp()]),
        flow("large", 5).size(1518).packet([ethernet(5), ipv4(), tcp()]),
        flow("in bursts", 6).size(128).with("duration", bursts),
        flow("every size", 7)
            .with("size", json!({"choice": "increment", "increment": {"start": 90, "end": 1500}})),
    ]
}

#[test]
fn every_back_end_finds_the_same() {
    let accounts = for_all(&BACK_ENDS, |back_end| {
        let (report, truth) = through_on(back_end, rules(), flows())?;
        assert_eq!(report.0["ports"][0]["info"]["back_end"], *back_end);
        let names = flows();
        for (key, flow) in (1..).zip(&names) {
            let wanted = assert_found(&report, flow.name(), &truth, key);
            assert!(wanted.lost > 0 && wanted.duplicates > 0 && wanted.corrupt > 0);
        }
        Some(names.iter().map(|flow| found(&report, flow.name())).collect::<Vec<_>>())
    });
    let Some(accounts) = accounts.into_iter().collect::<Option<Vec<_>>>() else { return };
    assert_eq!(accounts[0], accounts[1]);
    assert_eq!(accounts[0], accounts[2]);
}
