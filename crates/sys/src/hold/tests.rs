//! The programs themselves, at interfaces that exist for the test only.

use super::*;
use crate::bpf::BpfAttachment;
use crate::clock::{monotonic_ns, sleep_until_ns};
use crate::link::{NamespaceLinks, VethEnd};
use crate::netns::NetNs;
use crate::packet::{FrameOptions, FrameSocket, ReleaseClock, RxOptions, RxRing};
use crate::stamping::{KernelReport, PacketSendStage, WantedStamps};

/// Further ahead than any machine stands still.
const FAR_AHEAD_NS: u64 = 1_000_000 * MAX_HELD_NS;

/// A cable `a` - `b`; `None` without rights.
fn cable() -> Option<(NetNs, u32, RxRing, BpfAttachment)> {
    if let Some(error) = crate::xdp::bpf_obstacle() {
        assert!(error.is_permission_error(), "{error}");
        println!("skipped: {error}");
        return None;
    }
    let netns = NetNs::create_unnamed_namespace().unwrap();
    let mut links = NamespaceLinks::open_in(&netns).unwrap();
    let end = |name| VethEnd { name, netns: None, mac: None };
    links.create_veth(end("a"), end("b")).unwrap();
    for name in ["a", "b"] {
        crate::kernel::write_setting(&netns, &format!("net/ipv6/conf/{name}/disable_ipv6"), "1").unwrap();
        let index = links.find_link_by_name(name).unwrap().index;
        links.switch_interface(index, true).unwrap();
    }
    let (a, b) = (links.find_link_by_name("a").unwrap().index, links.find_link_by_name("b").unwrap().index);
    let pass = crate::xdp::attach_xdp_pass_program(&netns, b, "b").unwrap();
    let ring = RxRing::open_on_interface(
        &netns,
        b,
        "b",
        RxOptions { blocks: 128, retire_ms: 1, ..RxOptions::default() },
    );
    Some((netns, a, ring.unwrap(), pass))
}

fn frame(number: u8, length: usize) -> Vec<u8> {
    let mut frame = vec![number; length];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    frame
}

fn received(ring: &mut RxRing, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for _ in 0..100 {
        ring.receive_frames(usize::MAX, &mut |frame| frames.push(frame.bytes.to_vec()));
        if frames.len() >= count {
            break;
        }
        ring.wait_for_frames(20_000_000).unwrap();
    }
    frames
}

fn assert_same(got: &[Vec<u8>], sent: &[Vec<u8>]) {
    let short = |frames: &[Vec<u8>]| frames.iter().map(|f| (f[20], f.len())).collect::<Vec<_>>();
    assert_eq!(short(got), short(sent));
    assert!(got == sent, "the same bytes");
}

/// Sends a frame that is due soon. Returns true if the gate had it before it was due.
fn send_through_gate(socket: &FrameSocket, gate: &KernelGate, frame: &[u8]) -> bool {
    let at = monotonic_ns() + 300_000;
    let number = gate.passed_count();
    socket.send_frame_at(frame, at).unwrap();
    assert_eq!(gate.passed_count(), number + 1);
    let held = gate.gated_frame(number);
    assert_eq!(held.at_ns, at);
    assert!(held.released_ns >= at && held.left_ns >= held.released_ns, "{held:?}");
    assert!(monotonic_ns() >= held.left_ns);
    held.entered_ns < at
}

/// Sends frames until the gate has held 20 back, and returns all of them: a busy machine may keep this thread from the processor until a
/// frame is due, and then there is nothing to hold back.
fn send_until_twenty_were_held(socket: &FrameSocket, gate: &KernelGate) -> Vec<Vec<u8>> {
    let (mut sent, mut held_count) = (Vec::new(), 0);
    for n in 0..90 {
        let frame = frame(n, 60 + usize::from(n % 20) * 70);
        held_count += usize::from(send_through_gate(socket, gate, &frame));
        sent.push(frame);
        if held_count == 20 {
            return sent;
        }
    }
    panic!("the gate held only {held_count} of 90 frames");
}

#[test]
fn gate_holds_one_socket_until_departure_times() {
    let Some((netns, index, mut ring, _pass)) = cable() else { return };
    let stamps = WantedStamps { queued: true, sent: true, ..WantedStamps::default() };
    let options = FrameOptions { release: Some(ReleaseClock::Monotonic), stamps, ..FrameOptions::default() };
    let socket = FrameSocket::open_on_interface(&netns, index, "a", options).unwrap();
    let other = FrameSocket::open_on_interface(&netns, index, "a", options).unwrap();
    let gate = KernelGate::attach_gate_at_egress(&netns, index, "a", socket.cookie().unwrap()).unwrap();
    let sent = send_until_twenty_were_held(&socket, &gate);
    let count = sent.len();
    // Too early to be held: it goes at once, and says so.
    let at = monotonic_ns() + FAR_AHEAD_NS;
    socket.send_frame_at(&frame(99, 60), at).unwrap();
    assert_eq!(gate.gated_frame(count as u64).at_ns, 0);
    other.send_frame_at(&frame(98, 60), at).unwrap();
    assert_eq!(gate.passed_count(), count as u64 + 1, "frames of others are not looked at");
    let mut reports = Vec::new();
    socket.drain_reports(&mut |report| reports.push(report)).unwrap();
    let of = |wanted: PacketSendStage| {
        let is = |report: &&KernelReport| matches!(report, KernelReport::Departed { stage, .. } if *stage == wanted);
        reports.iter().filter(is).count()
    };
    assert_eq!((of(PacketSendStage::Queued), of(PacketSendStage::Sent)), (count + 1, count + 1));
    drop(gate);
    socket.send_frame_at(&frame(97, 60), at).unwrap();
    let expected = [&sent[..], &[frame(99, 60), frame(98, 60), frame(97, 60)]].concat();
    assert_same(&received(&mut ring, count + 3), &expected);
}

#[test]
fn live_train_sends_frames_at_their_departure_times() {
    let Some((netns, index, mut ring, _pass)) = cable() else { return };
    let mut train = LiveTrain::open_for_interface(index).unwrap();
    let sent: Vec<_> = (0..100).map(|n| frame(n, 60 + usize::from(n) * 14)).collect();
    let start = monotonic_ns() + 500_000;
    let at = |n: usize| start + 20_000 * n as u64;
    for (n, frame) in sent.iter().enumerate() {
        assert!(train.try_queue_frame(at(n), frame));
    }
    let run = |train: &mut LiveTrain| {
        netns
            .run_in_namespace(|| train.send_batch(MAX_TRAIN_FRAME_BYTES, MAX_TRAIN_FRAMES, 1).unwrap())
            .unwrap()
    };
    while run(&mut train) < 100 {
        sleep_until_ns(monotonic_ns() + 100_000);
    }
    for n in 0..100 {
        let held = train.gated_frame(n as u64);
        assert_eq!(held.at_ns, at(n));
        assert!(held.released_ns >= at(n) && held.left_ns >= held.released_ns, "{n}: {held:?}");
        let again = train.gated_frame(n as u64 + 1).entered_ns;
        assert!(again >= held.left_ns && again <= monotonic_ns(), "{n}: {held:?}, called again at {again}");
    }
    assert_eq!(train.failed_count(), 0);
    assert_same(&received(&mut ring, 100), &sent);
    // A frame that is due later stays, and can be taken back.
    assert!(train.try_queue_frame(monotonic_ns() + FAR_AHEAD_NS, &sent[0]));
    assert_eq!(run(&mut train), 100);
    assert_eq!(train.drop_unsent_frames(), 1);
    assert!(
        !train.try_queue_frame(0, &[0; MAX_TRAIN_FRAME_BYTES + 1]) && !train.try_queue_frame(0, &[0; 13])
    );
    assert!((0..MAX_TRAIN_FRAMES).all(|_| train.try_queue_frame(0, &sent[0])));
    assert!(!train.try_queue_frame(0, &sent[0]), "no room");
}
