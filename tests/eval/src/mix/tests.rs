//! The generator against the program's own parser, and against what was published.

use super::*;
use packetrig_flow::PacketInfo;
use packetrig_flow::parse::{FrameParser, ParseOptions};

#[test]
fn mix_is_determined_by_its_seed() {
    let [imix, ..] = Mix::PUBLISHED;
    let [one, same, other] = [7, 7, 8].map(|seed| make(&imix, seed, 3000));
    assert_eq!(one.bytes, same.bytes);
    assert_eq!(one.truth, same.truth);
    assert_ne!(one.bytes, other.bytes);
}

#[test]
fn mix_truth_matches_frames_and_covers_stacks() {
    for mix in Mix::PUBLISHED {
        let made = make(&mix, 3, 20_000);
        let packets: u64 = made.truth.values().map(|flow| flow.packets[0] + flow.packets[1]).sum();
        let frame_bytes: u64 = made.truth.values().map(|flow| flow.frame_bytes).sum();
        assert_eq!(packets, 20_000);
        assert_eq!(frame_bytes, made.lengths.iter().map(|length| u64::from(*length)).sum::<u64>());
        let mut parser = FrameParser::new(ParseOptions::default());
        let mut packet = PacketInfo::default();
        for (frame, length) in made.frames() {
            parser.parse_frame(frame, length, 1, 0, &mut packet).unwrap();
            assert!(made.truth.contains_key(&FlowKey::from_packet(&packet).to_canonical()), "{packet:?}");
        }
        let has = |is: &dyn Fn(&FlowKey) -> bool| made.truth.keys().any(is);
        assert!(
            has(&|key| key.inner_vlan != 0)
                && has(&|key| key.tunnel_id != 0)
                && has(&|key| key.source[0] == 0x20)
        );
    }
}

/// The share of flows with so many packets at most.
fn share_up_to(lengths: FlowLengths, most: u32) -> f64 {
    let mut draw = Draw::of(1, 1);
    let flows = 100_000;
    let short = (0..flows).filter(|_| length_of_flow(lengths, &mut draw) <= most).count();
    short as f64 / f64::from(flows)
}

#[test]
fn flow_lengths_are_as_published() {
    let [_, campus, search] = Mix::PUBLISHED.map(|mix| mix.lengths);
    for (most, share) in [(6, 0.15), (53, 0.53), (1333, 0.8), (6667, 0.97), (20_000, 1.0)] {
        assert!((share_up_to(search, most) - share).abs() < 0.01, "{most}");
    }
    // The uniform parts: all of the first, half of the second and so on.
    let one = 0.305 + 0.2484 / 2.0 + 0.0637 / 3.0 + 0.0492 / 4.0 + 0.0093 / 5.0 + 0.0822 / 6.0;
    assert!((share_up_to(campus, 1) - one).abs() < 0.01);
    let long = 1.0 - share_up_to(campus, 1000);
    assert!((0.004..0.008).contains(&long), "{long}");
}
