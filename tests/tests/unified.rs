//! The program in the driver and the parser read alike: every frame of the parser's corpus, whole, damaged at every byte and cut at
//! every length, through the program as the kernel runs it.

use packetrig_flow::parse::{ParseOptions, Parser, unified};
use packetrig_flow::{Ignored, Packet, flags};
use packetrig_sys::xdp::{self, meter};
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
    trial: meter::Trial,
    tally: Tally,
}

impl Pair {
    /// What the program's side makes of a frame. Fragments are compared without what came before.
    fn through_program(&mut self, frame: &[u8]) -> Result<Packet, Ignored> {
        let mut answer = None;
        let tally = &mut self.tally;
        self.trial
            .run(frame, &mut |put| {
                assert_eq!(put.full_len, frame.len());
                let mut packet = Packet { outer_source: [9; 16], flags: 0xff, ..Packet::default() };
                answer = Some(if put.is_header {
                    tally.records += 1;
                    assert!(unified::LENGTHS.contains(&put.bytes.len()));
                    assert!(unified::read(put.bytes, put.full_len, 1, 2, &mut packet), "{:02x?}", put.bytes);
                    Ok(packet)
                } else {
                    tally.beginnings += 1;
                    assert_eq!(put.bytes, &frame[..frame.len().min(meter::BEGINNING as usize)]);
                    Parser::new(options()).parse(put.bytes, put.full_len, 1, 2, &mut packet).map(|()| packet)
                });
            })
            .unwrap();
        answer.expect("one record for one frame")
    }

    fn compare(&mut self, frame: &[u8]) {
        let mut packet = Packet::default();
        let parsed = Parser::new(options()).parse(frame, frame.len(), 1, 2, &mut packet).map(|()| packet);
        let mut program = self.through_program(frame);
        if let (Ok(packet), Ok(parsed)) = (&mut program, &parsed)
            && frame.len() > meter::BEGINNING as usize
        {
            // The beginning of a long frame is one that was cut.
            packet.flags = (packet.flags & !flags::CUT) | (parsed.flags & flags::CUT);
        }
        assert_eq!(program, parsed, "{frame:02x?}");
    }
}

fn options() -> ParseOptions {
    ParseOptions { fragments: 4, ..ParseOptions::default() }
}

fn pair() -> Option<Pair> {
    if !skip::may_use_bpf(xdp::obstacle().map_or(Ok(()), Err)) {
        return None;
    }
    Some(Pair { trial: meter::Trial::load().unwrap(), tally: Tally::default() })
}

fn corpus() -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/flow_parse");
    let files = std::fs::read_dir(corpus).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
    files.flat_map(|file| fuzz::frames(&file).map(<[u8]>::to_vec).collect::<Vec<_>>()).collect()
}

#[test]
fn records_are_what_the_parser_makes_of_the_frame() {
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
fn plain_frames_come_as_records_and_others_as_they_are() {
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
