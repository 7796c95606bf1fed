use super::*;
use crate::link::VethEnd;
use crate::packet::{RxOptions, RxRing};

/// A virtual cable whose far end is down; `None` without rights.
struct VirtualCable {
    netns: NetNs,
    links: NamespaceLinks,
    near: u32,
    far: u32,
}

impl VirtualCable {
    fn lay(mtu: u32) -> Option<Self> {
        let netns = match NetNs::create_unnamed_namespace() {
            Ok(netns) => netns,
            Err(error) => {
                assert!(error.is_permission_error(), "{error}");
                println!("skipped: {error}");
                return None;
            }
        };
        for key in ["net/ipv6/conf/all/disable_ipv6", "net/ipv6/conf/default/disable_ipv6"] {
            kernel::write_setting(&netns, key, "1").unwrap_or(());
        }
        let mut links = NamespaceLinks::open_in(&netns).unwrap();
        let end = |name| VethEnd { name, netns: None, mac: None };
        links.create_veth(end("a"), end("b")).unwrap();
        let [near, far] = ["a", "b"].map(|name| links.find_link_by_name(name).unwrap().index);
        for index in [near, far] {
            links.set_mtu(index, mtu).unwrap();
        }
        links.switch_interface(near, true).unwrap();
        Some(Self { netns, links, near, far })
    }

    fn socket(&self, longest: usize) -> XskTx {
        let options = XskOptions { slots: 8, longest, zero_copy: false };
        XskTx::open_on_interface(&self.netns, self.near, "a", options).unwrap()
    }

    fn ring(&self) -> RxRing {
        let options = RxOptions { blocks: 8, ..RxOptions::default() };
        RxRing::open_on_interface(&self.netns, self.far, "b", options).unwrap()
    }
}

fn frame(number: u8, len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..251).map(|at| at ^ number).cycle().take(len).collect();
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    frame[14] = number;
    frame
}

fn enter(socket: &mut XskTx, bytes: &[u8]) {
    socket.next_slot().expect("a free slot")[..bytes.len()].copy_from_slice(bytes);
    socket.commit_frame(bytes.len());
}

fn send_all(socket: &mut XskTx) {
    let until = clock::monotonic_ns() + 10_000_000_000;
    while socket.pending_frames() > 0 {
        assert!(clock::monotonic_ns() < until, "{} frames stand still", socket.pending_frames());
        socket.kick_kernel().unwrap();
    }
}

fn received(ring: &mut RxRing, count: usize) -> Vec<Vec<u8>> {
    let until = clock::monotonic_ns() + 10_000_000_000;
    let mut frames = Vec::new();
    while frames.len() < count && clock::monotonic_ns() < until {
        ring.receive_frames(64, &mut |frame| frames.push(frame.bytes.to_vec()));
    }
    frames
}

#[test]
fn frames_dropped_without_carrier_are_reentered_in_order() {
    for len in [60, 1514, 9014] {
        let Some(mut cable) = VirtualCable::lay(9000) else { return };
        let (mut socket, mut ring) = (cable.socket(len), cable.ring());
        let frames: Vec<_> = (0..5).map(|number| frame(number, len)).collect();
        for (n, bytes) in frames.iter().enumerate() {
            enter(&mut socket, bytes);
            socket.kick_kernel().unwrap();
            assert_eq!((socket.pending_frames(), socket.counts().taken), (n + 1, 0));
        }
        cable.links.switch_interface(cable.far, true).unwrap();
        send_all(&mut socket);
        assert_eq!(received(&mut ring, 5), frames, "{len} B");
        assert_eq!(socket.counts(), TxCounts { taken: 5, refused: 0 });
        assert_eq!(socket.faulty_entries(), 0);
    }
}

#[test]
fn frames_withdrawn_without_carrier_never_leave() {
    for len in [60, 9014] {
        let Some(mut cable) = VirtualCable::lay(9000) else { return };
        let (mut socket, mut ring) = (cable.socket(len), cable.ring());
        for number in 0..5 {
            enter(&mut socket, &frame(number, len));
        }
        socket.kick_kernel().unwrap();
        assert_eq!(socket.withdraw_untaken(), 5);
        assert_eq!((socket.pending_frames(), socket.counts()), (0, TxCounts { taken: 0, refused: 5 }));
        cable.links.switch_interface(cable.far, true).unwrap();
        let frames: Vec<_> = (10..16).map(|number| frame(number, len)).collect();
        for bytes in &frames {
            enter(&mut socket, bytes);
            send_all(&mut socket);
        }
        assert_eq!(received(&mut ring, 6), frames);
        assert_eq!(socket.counts(), TxCounts { taken: 6, refused: 5 });
        assert_eq!(socket.faulty_entries(), 0);
    }
}

#[test]
fn released_xsk_queue_is_reusable_used_is_busy() {
    let Some(mut cable) = VirtualCable::lay(1500) else { return };
    cable.links.switch_interface(cable.far, true).unwrap();
    for number in 0..20 {
        let mut socket = cable.socket(1514);
        assert_eq!(socket.mode(), CopyMode::Copy);
        enter(&mut socket, &frame(number, 60));
        send_all(&mut socket);
    }
    let _holder = cable.socket(60);
    let options = XskOptions { slots: 8, longest: 60, zero_copy: true };
    let refused = XskTx::open_on_interface(&cable.netns, cable.near, "a", options).unwrap_err();
    assert!(refused.to_string().contains("queue 0 of a is in use"), "{refused}");
}
