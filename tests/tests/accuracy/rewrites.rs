//! A device that rewrites headers: frames are known all the same, and counted as altered.

use super::{assert_found, through};
use packetrig_testkit::device::{FaultRule, FrameFault, HeaderEdit, RulePositions};
use packetrig_tests::document::{Flow, ethernet, ipv4, ipv6, udp, vlan};

const FRAMES: u64 = 500;

#[test]
fn header_rewrites_are_detected_without_frame_loss() {
    let edits = [
        ("destination address", HeaderEdit::DestinationMac([2, 9, 9, 9, 9, 9])),
        ("source address", HeaderEdit::SourceMac([2, 8, 8, 8, 8, 8])),
        ("time to live", HeaderEdit::DecrementTtl),
        ("DSCP", HeaderEdit::Dscp(46)),
        ("VLAN tag pushed", HeaderEdit::PushVlan { tpid: 0x8100, tci: 0x6064 }),
        ("service tag pushed", HeaderEdit::PushVlan { tpid: 0x88a8, tci: 7 }),
        ("VLAN tag popped", HeaderEdit::PopVlan),
    ];
    let (mut rules, mut flows) = (Vec::new(), Vec::new());
    for (key, (name, edit)) in (1u16..).zip(edits) {
        rules.push(FaultRule::new(RulePositions::All, FrameFault::Rewrite(edit)).for_key(key.into()));
        let four = Flow::new(name, key).packets(FRAMES);
        let packet = if edit == HeaderEdit::PopVlan {
            vec![ethernet(key), vlan(100), ipv4(), udp()]
        } else {
            vec![ethernet(key), ipv4(), udp()]
        };
        flows.push(four.packet(packet));
        // The same over IPv6, with keys of their own.
        rules.push(
            FaultRule::new(RulePositions::All, FrameFault::Rewrite(edit)).for_key(u32::from(key) + 100),
        );
        let packet = if edit == HeaderEdit::PopVlan {
            vec![ethernet(key + 100), vlan(100), ipv6(), udp()]
        } else {
            vec![ethernet(key + 100), ipv6(), udp()]
        };
        flows.push(Flow::new(format!("{name} (IPv6)"), key + 100).packets(FRAMES).packet(packet));
    }
    let Some((report, truth)) = through(rules, flows) else { return };
    for (key, (name, _)) in (1u32..).zip(edits) {
        for (name, key) in [(name.to_owned(), key), (format!("{name} (IPv6)"), key + 100)] {
            let accounts = assert_found(&report, &name, &truth, key);
            assert_eq!((accounts.altered, accounts.unique, accounts.corrupt), (FRAMES, FRAMES, 0), "{name}");
        }
    }
    // Routers and switches do this by design: it is reported, not judged.
    assert_eq!(report.verdict(), "PASS", "{}", report.0["verdict"]);
}

#[test]
fn smallest_frames_survive_vlan_push_and_pop() {
    let rules = vec![
        FaultRule::new(
            RulePositions::All,
            FrameFault::Rewrite(HeaderEdit::PushVlan { tpid: 0x8100, tci: 1 }),
        )
        .for_key(1),
        FaultRule::new(RulePositions::All, FrameFault::Rewrite(HeaderEdit::PopVlan)).for_key(2),
    ];
    let pushed = Flow::new("pushed", 1).size(64);
    let popped = Flow::new("popped", 2).size(68).packet([ethernet(2), vlan(5), ipv4(), udp()]);
    let Some((report, truth)) = through(rules, vec![pushed, popped]) else { return };
    for (name, key) in [("pushed", 1), ("popped", 2)] {
        let accounts = assert_found(&report, name, &truth, key);
        assert_eq!((accounts.altered, accounts.lost), (100, 0), "{name}");
    }
}
