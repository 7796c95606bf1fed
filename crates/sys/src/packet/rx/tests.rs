use super::blocks::*;
use super::{RingDrainTarget, RingProgress, RxOptions, RxRing};
use crate::area::SharedArea;
use crate::link::NamespaceLinks;
use crate::netns::NetNs;
use crate::packet::{FrameOptions, FrameSocket};
use std::sync::atomic::Ordering;

const SHAPE: RxRingShape = RxRingShape { block: 4096, blocks: 3 };
/// Offset of a frame behind its header, with some space in front.
const MAC: u16 = 96;

/// Frame and the kernel's notes on it.
#[derive(Clone, Debug)]
struct NotedFrame {
    bytes: Vec<u8>,
    length: u32,
    ns: u64,
    status: u32,
    vlan: (u16, u16),
    direction: u8,
    vnet: [u8; VNET_HEADER_BYTES],
}

fn arrival(bytes: &[u8], ns: u64) -> NotedFrame {
    let length = u32::try_from(bytes.len()).unwrap();
    let direction = libc::PACKET_HOST;
    NotedFrame {
        bytes: bytes.to_vec(),
        length,
        ns,
        status: libc::TP_STATUS_TS_SOFTWARE,
        vlan: (0, 0),
        direction,
        vnet: [0; VNET_HEADER_BYTES],
    }
}

/// Plays the kernel: writes a block as `tpacket_rcv` does and hands it over.
fn hand_over(blocks: &mut RxBlocks, block: usize, arrivals: &[NotedFrame]) {
    let start = block * SHAPE.block;
    let first = 48usize;
    let mut at = start + first;
    for arrival in arrivals {
        let next = (usize::from(MAC) + arrival.bytes.len()).next_multiple_of(16);
        let mut put = |offset: usize, bytes: &[u8]| {
            blocks.area.bytes_mut(at + offset, bytes.len()).copy_from_slice(bytes);
        };
        put(NEXT_OFFSET, &u32::try_from(next).unwrap().to_ne_bytes());
        put(SECONDS_OFFSET, &u32::try_from(arrival.ns / 1_000_000_000).unwrap().to_ne_bytes());
        put(NANOSECONDS_OFFSET, &u32::try_from(arrival.ns % 1_000_000_000).unwrap().to_ne_bytes());
        put(CAPTURED_LENGTH_OFFSET, &u32::try_from(arrival.bytes.len()).unwrap().to_ne_bytes());
        put(LENGTH_OFFSET, &arrival.length.to_ne_bytes());
        put(STATUS_OFFSET, &arrival.status.to_ne_bytes());
        put(MAC_OFFSET, &MAC.to_ne_bytes());
        put(VLAN_TCI_OFFSET, &u32::from(arrival.vlan.1).to_ne_bytes());
        put(VLAN_TPID_OFFSET, &arrival.vlan.0.to_ne_bytes());
        put(DIRECTION_OFFSET, &[arrival.direction]);
        put(usize::from(MAC) - VNET_HEADER_BYTES, &arrival.vnet);
        put(usize::from(MAC), &arrival.bytes);
        at += next;
    }
    let count = u32::try_from(arrivals.len()).unwrap();
    blocks.area.bytes_mut(start + BLOCK_FRAMES_OFFSET, 4).copy_from_slice(&count.to_ne_bytes());
    blocks
        .area
        .bytes_mut(start + BLOCK_FIRST_OFFSET, 4)
        .copy_from_slice(&u32::try_from(first).unwrap().to_ne_bytes());
    blocks.area.atomic_u32(start + BLOCK_STATUS_OFFSET).store(libc::TP_STATUS_USER, Ordering::Release);
}

fn ring() -> RxBlocks {
    RxBlocks::new(SharedArea::plain(SHAPE.block * SHAPE.blocks), SHAPE)
}

fn is_kernels(blocks: &RxBlocks, block: usize) -> bool {
    blocks.area.atomic_u32(block * SHAPE.block + BLOCK_STATUS_OFFSET).load(Ordering::Acquire)
        == libc::TP_STATUS_KERNEL
}

fn collect(blocks: &mut RxBlocks, most: usize) -> Vec<(Vec<u8>, u64)> {
    let mut seen = Vec::new();
    let given =
        blocks.receive_frames(most, &mut |frame| seen.push((frame.bytes.to_vec(), frame.realtime_ns)));
    assert_eq!(given, seen.len());
    seen
}

#[test]
fn offsets_are_those_of_the_kernels_structures() {
    use std::mem::offset_of;
    assert_eq!(
        offset_of!(libc::tpacket_block_desc, hdr) + offset_of!(libc::tpacket_hdr_v1, block_status),
        BLOCK_STATUS_OFFSET
    );
    assert_eq!(
        offset_of!(libc::tpacket_block_desc, hdr) + offset_of!(libc::tpacket_hdr_v1, num_pkts),
        BLOCK_FRAMES_OFFSET
    );
    assert_eq!(
        offset_of!(libc::tpacket_block_desc, hdr) + offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt),
        BLOCK_FIRST_OFFSET
    );
    assert_eq!(offset_of!(libc::tpacket3_hdr, tp_next_offset), NEXT_OFFSET);
    assert_eq!(offset_of!(libc::tpacket3_hdr, tp_sec), SECONDS_OFFSET);
    assert_eq!(offset_of!(libc::tpacket3_hdr, tp_nsec), NANOSECONDS_OFFSET);
    assert_eq!(offset_of!(libc::tpacket3_hdr, tp_snaplen), CAPTURED_LENGTH_OFFSET);
    assert_eq!(offset_of!(libc::tpacket3_hdr, tp_len), LENGTH_OFFSET);
    assert_eq!(offset_of!(libc::tpacket3_hdr, tp_status), STATUS_OFFSET);
    assert_eq!(offset_of!(libc::tpacket3_hdr, tp_mac), MAC_OFFSET);
    let variant = offset_of!(libc::tpacket3_hdr, hv1);
    assert_eq!(variant + offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tci), VLAN_TCI_OFFSET);
    assert_eq!(variant + offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tpid), VLAN_TPID_OFFSET);
    assert_eq!(
        size_of::<libc::tpacket3_hdr>() + offset_of!(libc::sockaddr_ll, sll_pkttype),
        DIRECTION_OFFSET
    );
}

#[test]
fn frame_counts_as_read_when_delivered_or_skipped() {
    let mut blocks = ring();
    let ours = NotedFrame { direction: libc::PACKET_OUTGOING, ..arrival(&[7; 60], 3) };
    hand_over(&mut blocks, 0, &[arrival(&[1; 60], 1), ours, arrival(&[2; 60], 4)]);
    assert_eq!((collect(&mut blocks, 1).len(), blocks.read), (1, 1));
    assert_eq!((collect(&mut blocks, 10).len(), blocks.read), (1, 3));
}

#[test]
fn frames_keep_order_across_blocks_and_wraparound() {
    let mut blocks = ring();
    assert!(collect(&mut blocks, 10).is_empty());
    let mut number = 0u8;
    for round in 0..10 {
        let arrivals: Vec<_> =
            (0..3).map(|i| arrival(&[number + i; 60], 1_000 + u64::from(number + i))).collect();
        hand_over(&mut blocks, round % SHAPE.blocks, &arrivals);
        let seen = collect(&mut blocks, 10);
        assert_eq!(seen, arrivals.iter().map(|a| (a.bytes.clone(), a.ns)).collect::<Vec<_>>());
        assert!(is_kernels(&blocks, round % SHAPE.blocks));
        number += 3;
    }
}

#[test]
fn ring_block_is_kept_until_fully_read() {
    let mut blocks = ring();
    hand_over(&mut blocks, 0, &[arrival(&[1; 60], 1), arrival(&[2; 60], 2), arrival(&[3; 60], 3)]);
    assert_eq!(collect(&mut blocks, 2).len(), 2);
    assert!(!is_kernels(&blocks, 0) && blocks.is_ready());
    assert_eq!(collect(&mut blocks, 2), [(vec![3; 60], 3)]);
    assert!(is_kernels(&blocks, 0) && !blocks.is_ready());
}

#[test]
fn an_empty_block_is_given_back() {
    let mut blocks = ring();
    hand_over(&mut blocks, 0, &[]);
    hand_over(&mut blocks, 1, &[arrival(&[1; 60], 1)]);
    assert_eq!(collect(&mut blocks, 5).len(), 1);
    assert!(is_kernels(&blocks, 0) && is_kernels(&blocks, 1));
}

#[test]
fn outgoing_frames_are_not_delivered() {
    let mut blocks = ring();
    let sent = NotedFrame { direction: libc::PACKET_OUTGOING, ..arrival(&[1; 60], 1) };
    hand_over(&mut blocks, 0, &[sent.clone(), arrival(&[2; 60], 2), sent]);
    assert_eq!(collect(&mut blocks, 5), [(vec![2; 60], 2)]);
    assert!(is_kernels(&blocks, 0));
}

#[test]
fn merged_frame_reports_segment_size_behind_vlan_tag() {
    // Flags, type, then 16 bits each: what is in one piece, bytes of a segment, where the checksum begins and is.
    let vnet = |flags: u8, kind: u8| {
        let [s0, s1] = 1448u16.to_ne_bytes();
        let [c0, c1] = 34u16.to_ne_bytes();
        [flags, kind, 9, 9, s0, s1, c0, c1, 0, 0]
    };
    let with = libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID;
    let merged = |transport_at| Some(MergedFrame { segment_bytes: 1448, transport_at });
    for (vnet, tag, expected) in [
        (vnet(0, 0), false, None),
        (vnet(NEEDS_CHECKSUM, GSO_ECN), false, None),
        (vnet(NEEDS_CHECKSUM, 1 | GSO_ECN), false, merged(Some(34))),
        (vnet(NEEDS_CHECKSUM, 4), true, merged(Some(38))),
        (vnet(0, 5), true, merged(None)),
    ] {
        let mut blocks = ring();
        blocks.has_vnet = true;
        let status = if tag { with } else { 0 };
        hand_over(&mut blocks, 0, &[NotedFrame { vnet, status, vlan: (0x8100, 7), ..arrival(&[7; 60], 1) }]);
        let mut seen = Vec::new();
        blocks.receive_frames(5, &mut |frame| seen.push((frame.merged, frame.bytes.len())));
        assert_eq!(seen, [(expected, if tag { 64 } else { 60 })]);
    }
}

#[test]
fn a_tag_is_put_back_with_its_tpid() {
    let frame: Vec<u8> = (0..60).collect();
    let with = libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID | libc::TP_STATUS_TS_SOFTWARE;
    for (status, vlan, tpid) in
        [(with, (0x88a8, 0xe123), 0x88a8u16), (libc::TP_STATUS_VLAN_VALID, (0, 0xe123), 0x8100)]
    {
        let mut blocks = ring();
        hand_over(&mut blocks, 0, &[NotedFrame { status, vlan, ..arrival(&frame, 1) }, arrival(&frame, 2)]);
        let mut seen = Vec::new();
        blocks.receive_frames(5, &mut |frame| seen.push((frame.bytes.to_vec(), frame.full_len)));
        let tag = [tpid.to_be_bytes(), [0xe1, 0x23]].concat();
        let tagged = [&frame[..12], &tag, &frame[12..]].concat();
        assert_eq!(seen, [(tagged, 64), (frame.clone(), 60)]);
    }
}

#[test]
fn cut_frame_reports_full_length_and_stamp_source() {
    let mut blocks = ring();
    let cut = NotedFrame {
        length: 9000,
        status: libc::TP_STATUS_TS_RAW_HARDWARE,
        ..arrival(&[1; 100], 5_000_000_007)
    };
    hand_over(&mut blocks, 0, &[cut, NotedFrame { status: 0, ..arrival(&[2; 60], 1) }]);
    let mut seen = Vec::new();
    blocks.receive_frames(5, &mut |f| seen.push((f.bytes.len(), f.full_len, f.realtime_ns, f.stamp)));
    assert_eq!(seen, [(100, 9000, 5_000_000_007, ArrivalStamp::Hardware), (60, 60, 1, ArrivalStamp::Ring)]);
}

/// The kernel hands over a block that is not full after a timeout, and is late with it when its processor stands still.
#[test]
fn frames_in_unfinished_block_are_arrived_but_unread() {
    if !crate::caps::ThreadRights::current().has_capability("CAP_NET_RAW") {
        return println!("skipped: no right to open rings");
    }
    let netns = NetNs::create_unnamed_namespace().unwrap();
    let mut links = NamespaceLinks::open_in(&netns).unwrap();
    let index = links.find_link_by_name("lo").unwrap().index;
    links.switch_interface(index, true).unwrap();
    let options = RxOptions { blocks: 4, retire_ms: 3_600_000, ..RxOptions::default() };
    let mut ring = RxRing::open_on_interface(&netns, index, "lo", options).unwrap();
    assert!(ring.read_progress().unwrap().is_read());
    let socket = FrameSocket::open_on_interface(&netns, index, "lo", FrameOptions::default()).unwrap();
    for _ in 0..3 {
        socket.send_frame(&[0x55; 60]).unwrap();
    }
    for _ in 0..1000 {
        if ring.read_progress().unwrap().arrived == 3 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(ring.receive_frames(usize::MAX, &mut |_| {}), 0);
    assert_eq!(ring.read_progress().unwrap(), RingProgress { arrived: 3, read: 0 });
    assert!(!ring.read_progress().unwrap().is_read());
}

#[test]
fn later_arrivals_do_not_delay_ring_drain() {
    let mut rest = RingDrainTarget::default();
    let at = |arrived, read| RingProgress { arrived, read };
    assert!(!rest.is_read(at(10, 7)));
    assert!(!rest.is_read(at(5_000, 9)));
    assert!(rest.is_read(at(9_000, 10)));
    assert!(RingDrainTarget::default().is_read(at(0, 0)), "nothing had arrived");
}
