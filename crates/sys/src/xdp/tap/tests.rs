//! The programs themselves, run by the kernel between interfaces that exist for the test only.

use super::*;
use crate::link::{NamespaceLinks, VethEnd};
use crate::packet::{RxOptions, RxRing, TxOptions, TxRing};

/// `a` - `a0 [tap] b0` - `b`, and the mirror `m0` - `m`, all in one namespace.
struct TapBed {
    netns: NetNs,
    _passes: Vec<BpfAttachment>,
}

const ENDS: [(&str, &str); 3] = [("a", "a0"), ("b", "b0"), ("m", "m0")];

impl TapBed {
    fn new() -> Option<Self> {
        if let Some(error) = crate::xdp::bpf_obstacle() {
            assert!(error.is_permission_error(), "{error}");
            println!("skipped: {error}");
            return None;
        }
        let netns = NetNs::create_unnamed_namespace().unwrap();
        let mut links = NamespaceLinks::open_in(&netns).unwrap();
        let mut passes = Vec::new();
        for (far, near) in ENDS {
            let end = |name| VethEnd { name, netns: None, mac: None };
            links.create_veth(end(far), end(near)).unwrap();
            for name in [far, near] {
                let key = format!("net/ipv6/conf/{name}/disable_ipv6");
                crate::kernel::write_setting(&netns, &key, "1").unwrap();
                let index = links.find_link_by_name(name).unwrap().index;
                links.switch_interface(index, true).unwrap();
            }
            passes.push(
                crate::xdp::attach_xdp_pass_program(&netns, links.find_link_by_name(far).unwrap().index, far)
                    .unwrap(),
            );
        }
        Some(Self { netns, _passes: passes })
    }

    fn index(&self, name: &str) -> u32 {
        NamespaceLinks::open_in(&self.netns).unwrap().find_link_by_name(name).unwrap().index
    }

    fn orders(&self) -> TapForwardingRules {
        TapForwardingRules {
            sides: [self.index("a0"), self.index("b0")],
            native: true,
            mirrors: vec![MirrorTarget {
                index: self.index("m0"),
                to: Some([2, 9, 9, 9, 9, 9]),
                longest: 1514,
            }],
            snap: 9600,
            trailer: false,
            capture: None,
        }
    }

    fn listen(&self, name: &str) -> RxRing {
        let options = RxOptions { blocks: 8, retire_ms: 1, ..RxOptions::default() };
        RxRing::open_on_interface(&self.netns, self.index(name), name, options).unwrap()
    }

    fn send(&self, name: &str, frames: &[Vec<u8>]) {
        let mut ring =
            TxRing::open_on_interface(&self.netns, self.index(name), name, TxOptions::default()).unwrap();
        for frame in frames {
            ring.next_slot().unwrap()[..frame.len()].copy_from_slice(frame);
            ring.commit_frame(frame.len());
        }
        while ring.pending_frames() > 0 {
            ring.kick_kernel().unwrap();
        }
    }
}

fn frame(number: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![number; len];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

fn received(ring: &mut RxRing, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for _ in 0..200 {
        ring.receive_frames(usize::MAX, &mut |frame| frames.push(frame.bytes.to_vec()));
        if frames.len() >= count {
            break;
        }
        ring.wait_for_frames(20_000_000).unwrap();
    }
    // One more look, for what should not be there.
    ring.wait_for_frames(20_000_000).unwrap();
    ring.receive_frames(usize::MAX, &mut |frame| frames.push(frame.bytes.to_vec()));
    frames
}

#[test]
fn tap_forwards_frames_unchanged_and_readdresses_copies() {
    let Some(bed) = TapBed::new() else { return };
    let (mut b, mut m) = (bed.listen("b"), bed.listen("m"));
    let forwarding = TapForwarding::begin_forwarding(&bed.netns, &bed.orders(), ["a0", "b0"], None).unwrap();
    let sent: Vec<Vec<u8>> = (0..20).map(|n| frame(n, 60 + usize::from(n) * 70)).collect();
    bed.send("a", &sent);
    assert_eq!(received(&mut b, 20), sent);
    let copies = received(&mut m, 20);
    assert_eq!(copies.len(), 20);
    for (copy, frame) in copies.iter().zip(&sent) {
        assert_eq!((&copy[..6], &copy[6..]), (&[2, 9, 9, 9, 9, 9][..], &frame[6..]));
    }
    let counts = forwarding.counts();
    let inbound = counts.read_inbound_counts(0).unwrap();
    assert_eq!((inbound.received, inbound.wanted, inbound.gone), (20, 20, 0));
    assert_eq!(counts.read_outbound_counts(0, 0).unwrap().passed, 20);
    assert!(forwarding.watch_error().is_none(), "{:?}", forwarding.watch_error());
    assert_eq!(counts.read_forwarded_counts(0).unwrap(), DriverSendCounts { sent: 20, dropped: 0 });
    assert_eq!(counts.read_mirrored_counts(0, 0).unwrap(), DriverSendCounts { sent: 20, dropped: 0 });
    assert_eq!(counts.read_inbound_counts(1).unwrap().received, 0);
}

#[test]
fn tap_trailer_describes_copy_but_not_forwarded_frame() {
    let Some(bed) = TapBed::new() else { return };
    let (mut a, mut m) = (bed.listen("a"), bed.listen("m"));
    let orders = TapForwardingRules { trailer: true, snap: 100, ..bed.orders() };
    let before = clock::wall_clock_ns();
    let _forwarding = TapForwarding::begin_forwarding(&bed.netns, &orders, ["a0", "b0"], None).unwrap();
    let sent: Vec<Vec<u8>> = (0..5).map(|n| frame(n, 60 + usize::from(n) * 100)).collect();
    bed.send("b", &sent);
    assert_eq!(received(&mut a, 5), sent);
    let after = clock::wall_clock_ns();
    let copies = received(&mut m, 5);
    assert_eq!(copies.len(), 5);
    for (number, (copy, frame)) in (1u64..).zip(copies.iter().zip(&sent)) {
        let kept = frame.len().min(100);
        assert_eq!(copy.len(), kept + 24);
        assert_eq!(copy[6..kept], frame[6..kept]);
        let trailer = &copy[kept..];
        assert_eq!(trailer[..6], [b'p', b'r', b'T', b'1', 1, 0]);
        assert_eq!(usize::from(u16::from_be_bytes([trailer[6], trailer[7]])), frame.len());
        assert_eq!(trailer[8..16], number.to_be_bytes());
        let at = u64::from_be_bytes(trailer[16..24].try_into().unwrap());
        assert!((before..=after).contains(&at), "{before} {at} {after}");
    }
}

#[test]
fn tap_rings_receive_arrived_frames() {
    let Some(bed) = TapBed::new() else { return };
    let orders = TapForwardingRules { capture: Some(9600), mirrors: Vec::new(), ..bed.orders() };
    let mut forwarding = TapForwarding::begin_forwarding(&bed.netns, &orders, ["a0", "b0"], None).unwrap();
    let mut rings = forwarding.take_rings().unwrap();
    let mut b = bed.listen("b");
    bed.send("a", &[frame(1, 60), frame(2, 1514)]);
    assert_eq!(received(&mut b, 2).len(), 2);
    let mut got = Vec::new();
    rings[0].receive_frames(10, &mut |frame| got.push(frame.bytes.to_vec()));
    assert_eq!(got, [frame(1, 60), frame(2, 1514)]);
    assert_eq!(rings[1].receive_frames(10, &mut |_| ()), 0);
}

#[test]
fn tap_counts_frames_to_down_or_removed_peer() {
    let Some(bed) = TapBed::new() else { return };
    let orders = TapForwardingRules { mirrors: Vec::new(), ..bed.orders() };
    let forwarding = TapForwarding::begin_forwarding(&bed.netns, &orders, ["a0", "b0"], None).unwrap();
    let mut links = NamespaceLinks::open_in(&bed.netns).unwrap();
    links.switch_interface(bed.index("b0"), false).unwrap();
    bed.send("a", &[frame(1, 60)]);
    let until = |is_true: &dyn Fn() -> bool| {
        (0..5_000).any(|_| {
            is_true() || {
                std::thread::sleep(std::time::Duration::from_millis(1));
                false
            }
        })
    };
    let counts = forwarding.counts();
    assert!(
        until(&|| counts.read_failed_redirects(0).unwrap().down == 1),
        "{:?}",
        counts.read_failed_redirects(0)
    );
    links.delete_link(bed.index("b0")).unwrap();
    bed.send("a", &[frame(1, 60)]);
    assert!(
        until(&|| counts.read_inbound_counts(0).unwrap().gone == 1),
        "{:?}",
        counts.read_inbound_counts(0)
    );
    assert_eq!(counts.read_inbound_counts(0).unwrap().received, 2);
}
