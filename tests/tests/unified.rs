//! The program in the driver and the parser read alike: every frame of the parser's corpus, whole, damaged at every byte and cut at
//! every length, through the program as the kernel runs it; and once on a cable.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use packetrig_engine::xdp::{HeaderListener, XdpTapOptions};
use packetrig_flow::parse::{FrameParser, ParseOptions, unified};
use packetrig_flow::{IgnoredReason, PacketInfo, flags};
use packetrig_sys::clock;
use packetrig_sys::packet::{TxOptions, TxRing};
use packetrig_sys::xdp::{self, meter};
use packetrig_testkit::Lab;
use packetrig_tests::{fuzz, skip};
use std::path::Path;

/// The kernel takes no shorter frames from a test.
const SHORTEST: usize = 14;

/// What both made of frames.
#[derive(Debug, Default)]
struct Tally {
    records: u64,
    beginnings: u64,
}

struct Pair {
    trial: meter::UnattachedMeterProgram,
    tally: Tally,
}

impl Pair {
    /// What the program's side makes of a frame. Fragments are compared without what came before.
    fn through_program(&mut self, frame: &[u8]) -> Result<PacketInfo, IgnoredReason> {
        let mut answer = None;
        let tally = &mut self.tally;
        self.trial
            .run_on_frame(frame, &mut |put| {
                assert_eq!(put.full_len, frame.len());
                let mut packet = PacketInfo { outer_source: [9; 16], flags: 0xff, ..PacketInfo::default() };
                answer = Some(if put.is_header {
                    tally.records += 1;
                    assert!(unified::UNIFIED_RECORD_LENGTHS.contains(&put.bytes.len()));
                    assert!(
                        unified::read_record(put.bytes, put.full_len, 1, 2, &mut packet),
                        "{:02x?}",
                        put.bytes
                    );
                    Ok(packet)
                } else {
                    tally.beginnings += 1;
                    assert_eq!(put.bytes, &frame[..frame.len().min(meter::UNPARSED_FRAME_BYTES as usize)]);
                    FrameParser::new(options())
                        .parse_frame(put.bytes, put.full_len, 1, 2, &mut packet)
                        .map(|()| packet)
                });
            })
            .unwrap();
        answer.expect("one record for one frame")
    }

    fn compare(&mut self, frame: &[u8]) {
        let mut packet = PacketInfo::default();
        let parsed =
            FrameParser::new(options()).parse_frame(frame, frame.len(), 1, 2, &mut packet).map(|()| packet);
        let mut program = self.through_program(frame);
        if let (Ok(packet), Ok(parsed)) = (&mut program, &parsed)
            && frame.len() > meter::UNPARSED_FRAME_BYTES as usize
        {
            // The beginning of a long frame is one that was cut.
            packet.flags = (packet.flags & !flags::CUT_FLAG) | (parsed.flags & flags::CUT_FLAG);
        }
        assert_eq!(program, parsed, "{frame:02x?}");
    }
}

fn options() -> ParseOptions {
    ParseOptions { fragments: 4, ..ParseOptions::default() }
}

fn pair() -> Option<Pair> {
    if !skip::may_use_bpf(xdp::bpf_obstacle().map_or(Ok(()), Err)) {
        return None;
    }
    Some(Pair {
        trial: meter::UnattachedMeterProgram::load_meter_program().unwrap(),
        tally: Tally::default(),
    })
}

fn corpus() -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/flow_parse");
    let files = std::fs::read_dir(corpus).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
    files.flat_map(|file| fuzz::frames(&file).map(<[u8]>::to_vec).collect::<Vec<_>>()).collect()
}

#[test]
fn header_records_match_frame_parser() {
    let Some(mut pair) = pair() else { return };
    for frame in corpus() {
        pair.compare(&frame);
        let long = [&frame[..], &[0x5a; 900]].concat();
        pair.compare(&long);
        for at in 0..frame.len() {
            for change in [1, 0x80, 0xff] {
                let mut damaged = frame.clone();
                damaged[at] ^= change;
                pair.compare(&damaged);
            }
        }
        for len in SHORTEST..frame.len() {
            pair.compare(&frame[..len]);
        }
    }
    assert!(pair.tally.records > 1000 && pair.tally.beginnings > 1000, "{:?}", pair.tally);
}

#[test]
fn only_plain_frames_become_header_records() {
    let Some(mut pair) = pair() else { return };
    let plain = ["udp", "tcp", "sctp", "icmp", "udp6", "tcp6", "icmp6", "tag", "two-tags"];
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/flow_parse");
    for entry in std::fs::read_dir(corpus).unwrap() {
        let path = entry.unwrap().path();
        let file = std::fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        for frame in fuzz::frames(&file) {
            let before = pair.tally.records;
            pair.compare(frame);
            assert_eq!(pair.tally.records > before, plain.contains(&name.as_str()), "{name}");
        }
    }
}

/// The corpus comes over a cable as it was sent, in order, each frame once; nothing is dropped.
#[test]
fn headers_from_cable_match_sent_frames() {
    const ROUNDS: usize = 20;
    const PATIENCE_NS: u64 = 10_000_000_000;
    if !skip::may_use_bpf(xdp::bpf_obstacle().map_or(Ok(()), Err)) {
        return;
    }
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let [tx, _] = lab.ports() else { panic!("two ports") };
    let options = XdpTapOptions { filter: None, snap_len: None, pass: false };
    let mut headers = HeaderListener::open_interface(&lab.location(1).parse().unwrap(), &options).unwrap();
    let options = TxOptions { slots: 1024, longest: 512, bypass_queue: true };
    let mut ring = TxRing::open_on_interface(tx.netns(), tx.link.index, &tx.location(), options).unwrap();
    let corpus = corpus();
    let source_mac = <[u8; 6]>::try_from(&corpus[0][6..12]).unwrap();
    for _ in 0..ROUNDS {
        for frame in &corpus {
            let slot = ring.next_slot().expect("more slots than frames of a round");
            slot[..frame.len()].copy_from_slice(frame);
            ring.commit_frame(frame.len());
        }
        ring.kick_kernel().unwrap();
        ring.reap_slots();
    }
    let mut expected = Vec::new();
    let mut parser = FrameParser::new(options_whole());
    for frame in corpus.iter().cycle().take(ROUNDS * corpus.len()) {
        let mut packet = PacketInfo::default();
        assert_eq!(parser.parse_frame(frame, frame.len(), 0, 0, &mut packet), Ok(()));
        expected.push(packet);
    }
    let (mut got, mut records, mut parser) = (Vec::new(), 0, FrameParser::new(options_whole()));
    let deadline = clock::monotonic_ns() + PATIENCE_NS;
    while got.len() < expected.len() && clock::monotonic_ns() < deadline {
        headers.receive_headers(1000, &mut |header| {
            let mut packet = PacketInfo::default();
            if header.is_record {
                assert!(unified::read_record(header.bytes, header.full_len, 0, 0, &mut packet));
            } else if parser.parse_frame(header.bytes, header.full_len, 0, 0, &mut packet).is_err() {
                return;
            }
            // Neighbours talk, too.
            if packet.source_mac == source_mac {
                records += usize::from(header.is_record);
                got.push(packet);
            }
        });
    }
    assert_eq!(got.len(), expected.len());
    assert_eq!(got, expected);
    assert!(records >= 9 * ROUNDS && records < got.len(), "{records}");
    let counters = headers.read_counters();
    assert_eq!((counters.ring_dropped, counters.arrived.is_some()), (0, true));
    assert!(counters.seen >= got.len() as u64);
}

fn options_whole() -> ParseOptions {
    ParseOptions { fragment_ns: u64::MAX, ..ParseOptions::default() }
}
