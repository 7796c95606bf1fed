use super::*;

fn limit(back_end: BackEnd, size: u32, frames_per_second: u64) -> RigLimit {
    RigLimit {
        back_end,
        driver: "veth".into(),
        size,
        frames_per_second,
        latency_floor: None,
        send_error_p99: None,
        clock_reading: Nanos::new(20),
        kernel: "6.18".into(),
        measured_wall_ns: 0,
    }
}

fn needs(frames_per_second: u64) -> PortNeeds {
    PortNeeds { sends: true, frames_per_second, size: 64, ..PortNeeds::default() }
}

fn able() -> PortAbilities {
    PortAbilities { driver: "veth".into(), processors: 4, no_bpf: None, native: true }
}

const FAST: u64 = 10_000_000;
const SLOW: u64 = 1_000;

/// Tables of choices, without and with a calibration.
#[test]
fn the_choice_over_the_cases() {
    let no_bpf = || PortAbilities { no_bpf: Some("no rights".into()), ..able() };
    let generic = || PortAbilities { native: false, ..able() };
    let lone = || PortAbilities { processors: 1, ..able() };
    let live_send_obstacle = || PortNeeds { live_send_obstacle: Some("9000 B".into()), ..needs(FAST) };
    let tagged = || PortNeeds { tagged: true, ..needs(FAST) };
    let unpaced = || needs(UNLIMITED_FRAME_RATE);
    let other_driver = || PortAbilities { driver: "ice".into(), ..able() };
    let (p, a, x) = (BackEnd::Packet, BackEnd::AfXdp, BackEnd::Xdp);
    let cases = [
        ("nothing to do", PortNeeds::default(), able(), [p, x]),
        ("slow", needs(SLOW), able(), [p, x]),
        ("comfortable", needs(COMFORTABLE_FRAME_RATE), able(), [p, x]),
        ("more than comfortable", needs(COMFORTABLE_FRAME_RATE + 1), able(), [x, x]),
        ("as fast as it goes", unpaced(), able(), [x, x]),
        ("fast, no rights for BPF", needs(FAST), no_bpf(), [p, p]),
        ("fast, generic XDP only", needs(FAST), generic(), [p, p]),
        ("fast, one processor", needs(FAST), lone(), [p, p]),
        ("fast, VLAN tags over a virtual cable", tagged(), able(), [p, p]),
        ("fast, VLAN tags over a card", tagged(), other_driver(), [x, x]),
        ("fast, but not for live frames", live_send_obstacle(), able(), [p, a]),
        ("fast, on a card that was not calibrated", needs(FAST), other_driver(), [x, x]),
    ];
    let limits = [limit(p, 64, 300_000), limit(a, 64, 500_000), limit(x, 64, 2_000_000)];
    for (name, needs, abilities, wanted) in cases {
        let found = [&[][..], &limits].map(|limits| choose_back_end(&needs, &abilities, limits));
        assert_eq!(found.clone().map(|choice| choice.back_end), wanted, "{name}: {found:?}");
    }
}

#[test]
fn nearest_calibrated_size_decides_and_ties_prefer_rings() {
    let limits = [
        limit(BackEnd::Packet, 64, 300_000),
        limit(BackEnd::Xdp, 64, 900_000),
        limit(BackEnd::Packet, 1518, 200_000),
        limit(BackEnd::Xdp, 1518, 100_000),
        limit(BackEnd::Packet, 500, 100_000),
        limit(BackEnd::Xdp, 500, 100_000),
    ];
    let at = |size| choose_back_end(&PortNeeds { size, ..needs(SLOW) }, &able(), &limits).back_end;
    assert_eq!([64, 100, 500, 1518].map(at), [BackEnd::Xdp, BackEnd::Xdp, BackEnd::Packet, BackEnd::Packet]);
}

#[test]
fn reasons_name_loads_rates_and_obstacles() {
    let why = |needs: &PortNeeds, abilities: &PortAbilities, limits: &[RigLimit]| {
        choose_back_end(needs, abilities, limits).why
    };
    let no_bpf = PortAbilities { no_bpf: Some("no rights".into()), ..able() };
    assert!(why(&needs(SLOW), &able(), &[]).starts_with("the default"));
    assert!(
        why(&needs(FAST), &able(), &[])
            .starts_with("the plan asks for 10000000 frames/s, more than the 200000")
    );
    assert!(why(&needs(FAST), &no_bpf, &[]).ends_with("but no rights"));
    let limits = [limit(BackEnd::Packet, 64, 300_000), limit(BackEnd::Xdp, 64, 2_000_000)];
    let calibrated = why(&needs(SLOW), &able(), &limits);
    assert_eq!(
        calibrated,
        "as calibrated, 2000000 frames/s of 64 B without loss (driver veth); back end packet reached 300000 frames/s"
    );
    let refused = why(&needs(SLOW), &no_bpf, &limits);
    assert!(refused.ends_with("; back end xdp reached 2000000 frames/s, but no rights"), "{refused}");
}
