//! Flags become documents, and those become plans with the meaning of the flags.

use super::*;
use crate::Plan;
use packetrig_units::{BitRate, Share};
use proptest::prelude::*;

fn any_quick() -> impl Strategy<Value = QuickPlan> {
    let size = prop_oneof![
        // IPv6 in a VLAN, the short tag and the FCS take 76 bytes.
        (76u32..1518).prop_map(|size| QuickSize::Fixed(FrameSize::new(size))),
        Just(QuickSize::Range(FrameSize::new(80), FrameSize::new(1518))),
        Just(QuickSize::Imix),
    ];
    let rate = prop_oneof![
        (1u64..1_000_000, 1u64..100)
            .prop_map(|(frames, seconds)| Rate::Frames(FrameRate::new(frames, seconds).unwrap())),
        (1u64..1_000_000).prop_map(|bps| Rate::Bits(BitRate::new(bps))),
        (1u64..100).prop_map(|percent| Rate::Share(Share::from_billionths(percent * 10_000_000))),
    ];
    let length = prop_oneof![
        (1u64..1_000_000).prop_map(|ms| QuickLength::Time(Nanos::from_millis(ms))),
        (1u64..1_000_000).prop_map(QuickLength::Packets),
        Just(QuickLength::Continuous),
    ];
    (size, rate, length, 1u32..5, prop::option::of(1u16..4095), 1usize..4, any::<bool>()).prop_map(
        |(size, rate, length, streams, vlan, receivers, ipv6)| QuickPlan {
            tx: vec!["tx/eth0".into()],
            pattern: QuickPattern::ToAll,
            rx: (0..receivers).map(|n| format!("rx/eth{n}")).collect(),
            size,
            rate,
            length,
            streams,
            vlan,
            ipv6,
            hosts: None,
        },
    )
}

#[test]
fn imix_smallest_frame_fits_headers_and_tag() {
    for (vlan, ipv6, least) in
        [(None, false, 64), (Some(7), false, 66), (None, true, 82), (Some(7), true, 86)]
    {
        let quick = QuickPlan {
            tx: vec!["a".to_owned()],
            rx: vec!["b".to_owned()],
            pattern: QuickPattern::ToAll,
            size: QuickSize::Imix,
            rate: Rate::Frames(FrameRate::per_second(1_000).unwrap()),
            length: QuickLength::Packets(12),
            streams: 1,
            vlan,
            ipv6,
            hosts: None,
        };
        let plan = Plan::from_text(&quick.to_yaml()).unwrap();
        let template = plan.streams[0].frames.template().unwrap();
        let smallest = template.spec().size.min_size();
        assert_eq!(smallest, FrameSize::new(least));
        assert_eq!(template.tag_form(smallest), Some(TagForm::Full));
        assert_eq!(quick.least_imix_size(), smallest);
    }
}

proptest! {
    #[test]
    fn quick_plan_reads_back_from_yaml_and_json(quick in any_quick()) {
        let plan = Plan::from_text(&quick.to_yaml()).map_err(|problems| TestCaseError::fail(format!("{problems}\n{}", quick.to_yaml())))?;
        prop_assert_eq!(plan.streams.len(), quick.streams as usize);
        // A VLAN tag or IPv6 leaves no room for the full test tag in the smallest frames; nothing else
        // is worth a warning.
        prop_assert!(plan.warnings.is_empty() || quick.vlan.is_some() || quick.ipv6, "{:?}", plan.warnings);
        let json = Plan::from_text(&quick.to_document().to_string()).unwrap();
        prop_assert_eq!(plan.streams[0].frames.template().unwrap().spec(), json.streams[0].frames.template().unwrap().spec());
        prop_assert_eq!(plan.streams[0].rate, json.streams[0].rate);
    }
}

#[test]
fn ipv6_in_a_vlan_reads_too() {
    let quick = QuickPlan {
        tx: vec!["eth1".into()],
        pattern: QuickPattern::ToAll,
        rx: vec!["eth2".into()],
        size: QuickSize::Fixed(FrameSize::new(128)),
        rate: "1Gbit/s".parse().unwrap(),
        length: QuickLength::Time(Nanos::from_secs(10)),
        streams: 1,
        vlan: Some(7),
        ipv6: true,
        hosts: None,
    };
    let plan = Plan::from_text(&quick.to_yaml()).unwrap();
    assert_eq!(plan.streams[0].frames.template().unwrap().header_len(), 14 + 4 + 40 + 8);
}

fn slow(rate: &str, streams: u32, length: QuickLength) -> Vec<crate::timeline::StreamTimeline> {
    let quick = QuickPlan {
        tx: vec!["eth1".into()],
        pattern: QuickPattern::ToAll,
        rx: vec!["eth2".into()],
        size: QuickSize::Fixed(FrameSize::new(128)),
        rate: rate.parse().unwrap(),
        length,
        streams,
        vlan: None,
        ipv6: false,
        hosts: None,
    };
    let bound = Plan::from_text(&quick.to_yaml()).unwrap().bind_to_links(&[None, None]).unwrap();
    bound.streams.iter().map(|stream| stream.timeline).collect()
}

#[test]
fn fractional_frame_rates_are_kept() {
    let one = slow("0.1pps", 1, QuickLength::Time(Nanos::from_secs(60)))[0];
    assert_eq!((one.total_frames(), one.due_time(3)), (Some(6), Nanos::from_secs(30)));
    let one = slow("2.5pps", 1, QuickLength::Packets(7))[0];
    assert_eq!((one.total_frames(), one.due_time(5)), (Some(7), Nanos::from_secs(2)));
    // 128 bytes are 1024 bits: one frame in two seconds.
    let one = slow("512bit/s", 1, QuickLength::Continuous)[0];
    assert_eq!((one.total_frames(), one.due_time(4)), (None, Nanos::from_secs(8)));
    let each = slow("1pps", 4, QuickLength::Continuous);
    assert!(each.iter().all(|timeline| timeline.due_time(1) == Nanos::from_secs(4)), "{each:?}");
}

/// (flow, sending port, receiving ports, frames of the stream) of a fleet's plan.
fn group(tx: &str, rx: &str, pattern: QuickPattern, streams: u32) -> Vec<(String, String, String, u64)> {
    let all = |text: &str| expand_copies(text, |_| Some(2)).unwrap();
    let quick = QuickPlan {
        tx: all(tx),
        rx: all(rx),
        pattern,
        size: QuickSize::Fixed(FrameSize::new(128)),
        rate: "1000pps".parse().unwrap(),
        length: QuickLength::Time(Nanos::from_secs(1)),
        streams,
        vlan: None,
        ipv6: false,
        hosts: None,
    };
    assert_eq!(pattern.explain_mismatch(quick.tx.len(), quick.rx.len()), None);
    let options = crate::PlanParseOptions { fleet: true, ..crate::PlanParseOptions::default() };
    let plan =
        Plan::from_text_with(&quick.to_yaml(), options).unwrap_or_else(|problems| panic!("{problems}"));
    let bound = plan.clone().bind_to_links(&vec![None; plan.ports.len()]).unwrap();
    let name = |port: &usize| plan.ports[*port].name.clone();
    let row = |(stream, bound): (&crate::Stream, &crate::BoundStream)| {
        let rx: Vec<String> = stream.rx.iter().map(name).collect();
        (stream.name.clone(), name(&stream.tx), rx.join(" "), bound.timeline.total_frames().unwrap())
    };
    plan.streams.iter().zip(&bound.streams).map(row).collect()
}

fn rows(rows: &[(&str, &str, &str, u64)]) -> Vec<(String, String, String, u64)> {
    rows.iter().map(|(name, tx, rx, frames)| ((*name).into(), (*tx).into(), (*rx).into(), *frames)).collect()
}

#[test]
fn group_patterns_create_expected_port_pairs() {
    let pairs = group("any-tx*3", "any-rx*3", QuickPattern::NToN, 1);
    let wanted = [
        ("tx1 to rx1", "tx1", "rx1", 1000),
        ("tx2 to rx2", "tx2", "rx2", 1000),
        ("tx3 to rx3", "tx3", "rx3", 1000),
    ];
    assert_eq!(pairs, rows(&wanted));
    let one = group("any-tx*all", "any-rx", QuickPattern::NToOne, 1);
    assert_eq!(one, rows(&[("tx1 to rx", "tx1", "rx", 1000), ("tx2 to rx", "tx2", "rx", 1000)]));
    let mesh = group("any-tx*2", "any-rx*2", QuickPattern::Mesh, 1);
    let wanted = [
        ("tx1 to rx1", "tx1", "rx1", 500),
        ("tx1 to rx2", "tx1", "rx2", 500),
        ("tx2 to rx1", "tx2", "rx1", 500),
        ("tx2 to rx2", "tx2", "rx2", 500),
    ];
    assert_eq!(mesh, rows(&wanted), "a sender's load is shared by those it sends to");
    let names: Vec<String> =
        group("any-tx", "any-rx*2", QuickPattern::Mesh, 2).into_iter().map(|row| row.0).collect();
    assert_eq!(names, ["tx to rx1 1", "tx to rx2 1", "tx to rx1 2", "tx to rx2 2"]);
}

#[test]
fn group_size_is_given_or_looked_up() {
    let known = |location: &str| (location == "any-tx").then_some(5);
    assert_eq!(expand_copies("any-tx*all", known).unwrap().len(), 5);
    assert_eq!(expand_copies("any-tx*2", known).unwrap(), ["any-tx", "any-tx"]);
    assert_eq!(expand_copies("node/eth1", known).unwrap(), ["node/eth1"]);
    for wrong in ["any-tx*0", "any-tx*x", "eth1*2", "any-rx*all", "any-tx*5000", "any-tx*"] {
        assert!(expand_copies(wrong, known).is_err(), "{wrong}");
    }
    let objects = |pattern: QuickPattern, tx, rx| pattern.explain_mismatch(tx, rx).is_some();
    assert!(
        objects(QuickPattern::NToN, 2, 3)
            && objects(QuickPattern::NToOne, 2, 2)
            && objects(QuickPattern::Mesh, 2, 0)
    );
    assert!(!objects(QuickPattern::ToAll, 1, 0));
}

#[test]
fn the_parts_of_a_load_add_up() {
    let each = slow("1000pps", 3, QuickLength::Time(Nanos::from_secs(1)));
    assert_eq!(each.iter().map(|timeline| timeline.total_frames().unwrap()).sum::<u64>(), 1000);
    let uneven = slow("1500.5pps", 1, QuickLength::Time(Nanos::from_secs(100)))[0];
    assert!((150_000..=150_100).contains(&uneven.total_frames().unwrap()), "{uneven:?}");
}
