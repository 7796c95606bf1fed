use super::filter;
use super::frames::{self, DeviceFrame, EchoHeader, Endpoints, is_link_protocol_frame};
use super::machine::{DeviceMachine, PingState};
use packetrig_plan::device::{DeviceAddress, DeviceInterface, DeviceNeighbour, Mac, VlanTag};
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::pattern::keyed_mix;
use packetrig_wire::tag::TagKey;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::net::IpAddr;

const KEY: TagKey = TagKey(77);
const A: Mac = [2, 0, 0, 0, 0, 0xa];
const B: Mac = [2, 0, 0, 0, 0, 0xb];
const WITHIN: Nanos = Nanos::from_millis(3_000);

fn at(ms: u64) -> MonoTime {
    MonoTime::default() + Nanos::from_millis(1_000 + ms)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn interface(mac: Mac, tags: &[u16], addresses: &[(&str, &str)]) -> DeviceInterface {
    let address = |(own, gateway): &(&str, &str)| DeviceAddress {
        name: (*own).into(),
        ip: ip(own),
        prefix: if own.contains(':') { 64 } else { 24 },
        gateway: Some(ip(gateway)),
        gateway_mac: None,
    };
    let vlans = tags.iter().map(|id| VlanTag { tpid: 0x8100, priority: 5, id: *id }).collect();
    let addresses = addresses.iter().map(address).collect();
    DeviceInterface { name: "e".into(), device: "d".into(), port: 0, mac, vlans, addresses }
}

fn machine(interfaces: Vec<DeviceInterface>) -> DeviceMachine {
    let mut machine = DeviceMachine::new(KEY, interfaces.into_iter().enumerate().collect::<BTreeMap<_, _>>());
    machine.set_interfaces_enabled(true, at(0), &mut Vec::new());
    machine
}

fn side(mac: Mac, own: u8, other: u8) -> DeviceMachine {
    let (v4, gateway4) = (format!("198.18.0.{own}"), format!("198.18.0.{other}"));
    let (v6, gateway6) = (format!("2001:2::{own}"), format!("2001:2::{other}"));
    machine(vec![interface(mac, &[7, 8], &[(&v4, &gateway4), (&v6, &gateway6)])])
}

/// A wire that loses `loss` of 256 frames, for this many milliseconds.
fn join(one: &mut DeviceMachine, other: &mut DeviceMachine, seed: u64, loss: u64, ms: std::ops::Range<u64>) {
    for now in ms {
        let (mut there, mut back) = (Vec::new(), Vec::new());
        one.handle_timeouts(at(now), &mut there);
        other.handle_timeouts(at(now), &mut back);
        let mut n = 0;
        while !there.is_empty() || !back.is_empty() {
            for (from, to) in [(&mut there, &mut *other), (&mut back, &mut *one)]
                .map(|(from, to)| (std::mem::take(from), to))
            {
                let mut out = Vec::new();
                for frame in from {
                    n += 1;
                    if keyed_mix(seed, now << 16 | n) & 0xff >= loss {
                        to.on_frame(&frame, at(now), &mut out);
                    }
                }
                if to.neighbours().next().is_some_and(|(neighbour, _)| neighbour.ip == ip("198.18.0.1")) {
                    back.extend(out);
                } else {
                    there.extend(out);
                }
            }
            assert!(n < 100, "an endless conversation");
        }
    }
}

fn macs(machine: &DeviceMachine) -> Vec<Option<Mac>> {
    machine.neighbours().map(|(_, mac)| mac).collect()
}

/// An echo message between two addresses.
fn echo(of: &DeviceInterface, mac: Mac, ends: [&str; 2], reply: bool, data: &[u8]) -> Option<Vec<u8>> {
    let ends = Endpoints { from: ip(ends[0]), to: ip(ends[1]) };
    frames::build_echo_frame(of, mac, ends, EchoHeader { reply, id: 1, sequence: 1 }, data)
}

#[test]
fn device_answers_address_queries_on_its_vlan_only() {
    let asks = |tags: &[u16], target: &str| {
        let asker = interface(B, tags, &[]);
        match ip(target) {
            IpAddr::V4(to) => {
                frames::build_arp_frame(&asker, 1, "198.18.0.9".parse().unwrap(), [0xff; 6], to)
            }
            IpAddr::V6(to) => frames::build_neighbour_solicitation(&asker, "2001:2::9".parse().unwrap(), to),
        }
    };
    let answers = |frame: &[u8]| {
        let mut out = Vec::new();
        side(A, 1, 2).on_frame(frame, at(1), &mut out);
        out
    };
    for target in ["198.18.0.1", "2001:2::1", "fe80::ff:fe00:a"] {
        let out = answers(&asks(&[7, 8], target));
        let frame = DeviceFrame::parse_frame(&out[0]).unwrap();
        assert_eq!((out.len(), frame.to, frame.from), (1, B, A), "{target}");
        assert_eq!(frame.parse_message(), Some(frames::DeviceMessage::Tells { target: ip(target), mac: A }));
        assert!(answers(&asks(&[7], target)).is_empty() && answers(&asks(&[8, 7], target)).is_empty());
    }
    for other in ["198.18.0.3", "2001:2::3", "fe80::ff:fe00:c"] {
        assert!(answers(&asks(&[7, 8], other)).is_empty(), "{other}");
    }
}

#[test]
fn disabled_interface_stays_silent_and_forgets_neighbours() {
    let (mut a, mut b) = (side(A, 1, 2), side(B, 2, 1));
    join(&mut a, &mut b, 1, 0, 0..300);
    assert_eq!((macs(&a), macs(&b)), (vec![Some(B); 2], vec![Some(A); 2]));
    let mut out = Vec::new();
    a.set_interfaces_enabled(false, at(300), &mut out);
    a.handle_timeouts(at(9_000), &mut out);
    let asker = interface(B, &[7, 8], &[]);
    let ask = frames::build_arp_frame(
        &asker,
        1,
        "198.18.0.2".parse().unwrap(),
        [0xff; 6],
        "198.18.0.1".parse().unwrap(),
    );
    a.on_frame(&ask, at(9_000), &mut out);
    assert!(out.is_empty() && macs(&a) == [None, None] && a.next_deadline().is_none());
}

#[test]
fn neighbour_requests_back_off_but_never_end() {
    let mut lonely = side(A, 1, 2);
    let asked: Vec<u64> = (0..20_000)
        .filter(|ms| {
            let mut out = Vec::new();
            lonely.handle_timeouts(at(*ms), &mut out);
            !out.is_empty()
        })
        .collect();
    assert_eq!(asked, [250, 750, 1750, 3750, 7750, 11_750, 15_750, 19_750]);
}

#[test]
fn pings_succeed_or_fail_in_time() {
    let (mut a, mut b) = (side(A, 1, 2), side(B, 2, 1));
    let (v4, v6) = (
        a.start_ping(0, 0, ip("198.18.0.2"), at(0), WITHIN),
        a.start_ping(0, 1, ip("2001:2::2"), at(0), WITHIN),
    );
    let nobody = a.start_ping(0, 0, ip("198.18.0.77"), at(0), WITHIN);
    let mixed = a.start_ping(0, 0, ip("2001:2::2"), at(0), WITHIN);
    assert_eq!((a.ping_state(v4), a.ping_state(mixed)), (Some(PingState::Waiting), Some(PingState::Failed)));
    join(&mut a, &mut b, 1, 0, 0..600);
    assert_eq!(
        (a.ping_state(v4), a.ping_state(v6)),
        (Some(PingState::Succeeded), Some(PingState::Succeeded))
    );
    assert_eq!(a.ping_state(nobody), Some(PingState::Waiting));
    join(&mut a, &mut b, 1, 0, 600..3_100);
    assert_eq!(a.ping_state(nobody), Some(PingState::Failed));
    a.remove_ping(nobody);
    assert_eq!(a.ping_state(nobody), None);
}

#[test]
fn test_frames_are_not_answered() {
    let to_us = |data: &[u8]| {
        let asker = interface(B, &[7, 8], &[]);
        echo(&asker, A, ["198.18.0.2", "198.18.0.1"], false, data).unwrap()
    };
    let answered = |frame: &[u8]| {
        let mut out = Vec::new();
        side(A, 1, 2).on_frame(frame, at(1), &mut out);
        out.len()
    };
    assert_eq!(answered(&to_us(&[0; 40])), 1);
    let spec = packetrig_wire::FrameSpec {
        headers: {
            use packetrig_wire::header::{HeaderKind, PacketHeader};
            let mac = |mac: Mac| mac.iter().fold(0, |v, b| v << 8 | u128::from(*b));
            vec![
                PacketHeader::new(HeaderKind::Ethernet).with_field("dst", mac(A)).with_field("src", mac(B)),
                PacketHeader::new(HeaderKind::Vlan).with_field("id", 7),
                PacketHeader::new(HeaderKind::Vlan).with_field("id", 8),
                PacketHeader::new(HeaderKind::Ipv4)
                    .with_field("src", 0xc612_0002)
                    .with_field("dst", 0xc612_0001),
                PacketHeader::new(HeaderKind::Icmp),
            ]
        },
        size: packetrig_wire::size::SizePattern::Fixed(packetrig_units::FrameSize::new(128)),
        payload: packetrig_wire::payload::PayloadPattern::default(),
        tagged: true,
        routed: false,
    };
    let template = packetrig_wire::FrameTemplate::new(spec).unwrap();
    let mut frame = [0; 256];
    let mut render = |key| {
        let len =
            template.render_frame(0, packetrig_wire::tag::TagStamp { key, stream: 0, time: 5 }, &mut frame);
        frame[..len].to_vec()
    };
    assert_eq!(answered(&render(KEY)), 0);
    assert_eq!(answered(&render(TagKey(1))), 1, "somebody else's test is a ping like any other");
}

#[test]
fn a_flood_is_not_answered_with_a_flood() {
    let mut a = side(A, 1, 2);
    let asker = interface(B, &[7, 8], &[]);
    let ping = echo(&asker, A, ["198.18.0.2", "198.18.0.1"], false, &[]).unwrap();
    let mut out = Vec::new();
    (0..10_000).for_each(|_| a.on_frame(&ping, at(1), &mut out));
    assert_eq!(out.len(), 2_000);
}

/// Runs a classic program as the kernel does.
fn passes(frame: &[u8]) -> bool {
    let program = filter::build_protocol_filter();
    let (mut at, mut value) = (0, 0u32);
    loop {
        let insn = program[at];
        let k = insn.k as usize;
        at += 1;
        match insn.code {
            0x28 => match frame.get(k..k + 2) {
                Some(half) => value = u32::from(u16::from_be_bytes([half[0], half[1]])),
                None => return false,
            },
            0x30 => match frame.get(k) {
                Some(byte) => value = u32::from(*byte),
                None => return false,
            },
            0x15 => at += usize::from(if value == insn.k { insn.jt } else { insn.jf }),
            _ => return insn.k > 0,
        }
    }
}

#[test]
fn kernel_filter_passes_device_protocols_not_udp() {
    for tags in [&[][..], &[7], &[7, 8], &[1, 2, 3, 4]] {
        let of = interface(A, tags, &[("198.18.0.1", "198.18.0.2"), ("2001:2::1", "2001:2::2")]);
        let neighbour = |address, text| DeviceNeighbour { interface: 0, address, ip: ip(text) };
        let mut all = Vec::new();
        let mut machine = DeviceMachine::new(KEY, BTreeMap::from([(0, of.clone())]));
        machine.request_neighbour(neighbour(0, "198.18.0.7"), at(0));
        machine.set_interfaces_enabled(true, at(0), &mut all);
        all.extend(echo(&of, B, ["198.18.0.1", "198.18.0.2"], false, &[1]));
        all.extend(echo(&of, B, ["2001:2::1", "2001:2::2"], true, &[1]));
        assert!(
            all.len() >= 8 && all.iter().all(|frame| passes(frame) && is_link_protocol_frame(frame)),
            "{tags:?}"
        );
        let mut udp = all[all.len() - 2].clone();
        udp[12 + 4 * tags.len() + 11] = 17;
        assert!(!passes(&udp) && !is_link_protocol_frame(&udp));
    }
}

proptest! {
    #[test]
    fn device_answers_only_own_queries_in_garbage(mut bytes in prop::collection::vec(any::<u8>(), 0..120), kind in 0usize..4, flip in any::<usize>()) {
        // Mutations of valid frames reach deeper into the parsers than noise.
        let asker = interface(B, &[7, 8], &[]);
        let seed = match kind {
            0 => None,
            1 => Some(frames::build_arp_frame(&asker, 1, "198.18.0.2".parse().unwrap(), [0xff; 6], "198.18.0.1".parse().unwrap())),
            2 => Some(frames::build_neighbour_solicitation(&asker, "2001:2::2".parse().unwrap(), "2001:2::1".parse().unwrap())),
            _ => echo(&asker, A, ["198.18.0.2", "198.18.0.1"], false, &bytes),
        };
        if let Some(mut seed) = seed {
            let at = flip % seed.len();
            seed[at] ^= u8::try_from(flip >> 8 & 0xff).unwrap();
            seed.truncate(seed.len().min(flip % 200 + 20));
            bytes = seed;
        }
        let mut out = Vec::new();
        let mut machine = side(A, 1, 2);
        machine.on_frame(&bytes, at(1), &mut out);
        for answer in &out {
            let frame = DeviceFrame::parse_frame(answer).unwrap();
            prop_assert_eq!((frame.from, &frame.tags[..]), (A, &[(0x8100, 7), (0x8100, 8)][..]));
            prop_assert!(bytes[..6] == A || bytes[0] & 1 == 1);
            prop_assert_eq!(&bytes[12..14], &[0x81, 0][..]);
        }
        is_link_protocol_frame(&bytes);
    }

    #[test]
    fn neighbours_resolve_over_half_lossy_wire(seed: u64) {
        let (mut a, mut b) = (side(A, 1, 2), side(B, 2, 1));
        join(&mut a, &mut b, seed, 128, 0..400_000);
        prop_assert_eq!((macs(&a), macs(&b)), (vec![Some(B); 2], vec![Some(A); 2]));
    }
}
