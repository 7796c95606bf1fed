//! What mirrors and files get.

use crate::testbed::{Testbed, number, stop, udp};
use packetrig_sys::clock;
use packetrig_tests::skip;
use pcap_parser::traits::PcapReaderIterator;
use pcap_parser::{Block, PcapBlockOwned, PcapNGReader};
use std::path::Path;
use std::process::Command;

const LOGGER: [u8; 6] = [2, 9, 9, 9, 9, 9];
const TO: &str = "02:09:09:09:09:09";

fn readdressed(frame: &[u8]) -> Vec<u8> {
    [&LOGGER, &frame[6..]].concat()
}

fn copied(way: &str) {
    let Some(testbed) = Testbed::new(way, 3) else { return };
    let (mut b, mut m) = (testbed.listen(1), testbed.listen(2));
    let mirror = testbed.side(2);
    let tap = testbed.tap(way, &["--mirror", &mirror, "--to", TO]);
    let frames: Vec<_> = (0..40).map(|n| udp(n, 9, 60 + n as usize * 36)).collect();
    testbed.send(0, &frames[..30]);
    assert_eq!(b.hear(30), frames[..30], "{way}: the frames themselves");
    let wanted: Vec<_> = frames[..30].iter().map(|frame| readdressed(frame)).collect();
    assert_eq!(m.hear(30), wanted, "{way}");
    testbed.send(1, &frames[30..]);
    let wanted: Vec<_> = frames[30..].iter().map(|frame| readdressed(frame)).collect();
    assert_eq!(m.hear(10), wanted, "{way}: back");
    let result = stop(tap);
    for (direction, count) in [(0, 30), (1, 10)] {
        let path = format!("/accounts/directions/{direction}");
        assert_eq!(number(&result, &format!("{path}/wanted")), count);
        assert_eq!(number(&result, &format!("{path}/mirrors/0/mirrored")), count);
    }
}

#[test]
fn both_directions_are_copied_to_another_address() {
    copied("xdp");
    copied("packet");
}

/// A copy's frame, direction, number, length and time.
fn parted(copy: &[u8]) -> (&[u8], u8, u64, usize, u64) {
    let (frame, trailer) = copy.split_at(copy.len() - 24);
    assert_eq!(trailer[..4], *b"prT1", "{copy:?}");
    let long = |at: usize| u64::from_be_bytes(trailer[at..at + 8].try_into().unwrap());
    let length = usize::from(u16::from_be_bytes([trailer[6], trailer[7]]));
    (frame, trailer[4], long(8), length, long(16))
}

fn trailed(way: &str) {
    let Some(testbed) = Testbed::new(way, 3) else { return };
    let (mut a, mut m) = (testbed.listen(0), testbed.listen(2));
    let mirror = testbed.side(2);
    let flags = ["--mirror", &mirror, "--trailer", "--snap", "80", "--filter", "udp dst port 53"];
    let tap = testbed.tap(way, &flags);
    let before = clock::wall_clock_ns();
    let frames: Vec<_> =
        (0..20).map(|n| udp(n, if n % 2 == 0 { 53 } else { 54 }, 60 + n as usize * 9)).collect();
    testbed.send(1, &frames);
    assert_eq!(a.hear(20), frames, "{way}: the frames themselves");
    let copies = m.hear(10);
    let after = clock::wall_clock_ns();
    assert_eq!(copies.len(), 10, "{way}");
    for ((number, copy), frame) in (1..).zip(&copies).zip(frames.iter().step_by(2)) {
        let (kept, direction, said, length, at) = parted(copy);
        assert_eq!(kept, &frame[..frame.len().min(80)], "{way}");
        assert_eq!((direction, said, length), (1, number, frame.len()), "{way}");
        // The kernel's stamp may be older than the call that sent the frame by what a clock tick is.
        assert!((before - 20_000_000..=after).contains(&at), "{way}: {before} {at} {after}");
    }
    let result = stop(tap);
    assert_eq!(number(&result, "/accounts/directions/1/uncopied/filter"), 10);
}

#[test]
fn a_trailer_says_where_when_and_which() {
    trailed("xdp");
    trailed("packet");
}

/// Then the mirror gets the frame itself, which may end where its memory ends.
fn trailed_where_a_side_is_deaf(snap: usize) {
    let Some(mut testbed) = Testbed::new("xdp", 3) else { return };
    let mut m = testbed.listen(2);
    let mirror = testbed.side(2);
    let tap =
        testbed.tap("xdp", &["--mirror", &mirror, "--to", TO, "--trailer", "--snap", &snap.to_string()]);
    testbed.deafen(1);
    let frames: Vec<_> = (60..3500).step_by(13).chain([3499, 3500]).map(|len| udp(7, 9, len)).collect();
    testbed.send(0, &frames);
    let copies = m.hear(frames.len());
    let result = stop(tap);
    let direction = &result["accounts"]["directions"][0];
    assert_eq!(direction["mirrors"][0]["dropped"], serde_json::json!({}), "{direction}");
    assert_eq!(number(direction, "/forwarded"), 0);
    assert_eq!(copies.len(), frames.len());
    for ((number, copy), frame) in (1..).zip(&copies).zip(&frames) {
        let (kept, direction, said, length, _) = parted(copy);
        assert_eq!(kept, &readdressed(frame)[..frame.len().min(snap)]);
        assert_eq!((direction, said, length), (0, number, frame.len()));
    }
}

#[test]
fn copy_trailer_fits_where_side_refuses_frames() {
    // Whole, so that a copy takes 24 bytes more, and cut, so that some take fewer.
    trailed_where_a_side_is_deaf(9000);
    trailed_where_a_side_is_deaf(650);
}

fn two_mirrors(way: &str) {
    let Some(testbed) = Testbed::new(way, 4) else { return };
    let (mut b, mut first, mut second) = (testbed.listen(1), testbed.listen(2), testbed.listen(3));
    let (near, far) = (testbed.side(2), format!("{}={TO}", testbed.side(3)));
    let tap = testbed.tap(way, &["--mirror", &near, "--mirror", &far]);
    let frames: Vec<_> = (0..10).map(|n| udp(n, 9, 500)).collect();
    testbed.send(0, &frames);
    assert_eq!(b.hear(10), frames, "{way}");
    assert_eq!(first.hear(10), frames, "{way}");
    let wanted: Vec<_> = frames.iter().map(|frame| readdressed(frame)).collect();
    assert_eq!(second.hear(10), wanted, "{way}");
    stop(tap);
}

#[test]
fn each_mirror_has_its_own_address() {
    two_mirrors("xdp");
    two_mirrors("packet");
}

fn own_copies(way: &str) {
    let Some(testbed) = Testbed::new(way, 3) else { return };
    let (mut b, mut m) = (testbed.listen(1), testbed.listen(2));
    let mirror = testbed.side(2);
    let tap = testbed.tap(way, &["--mirror", &mirror, "--to", TO]);
    let back = readdressed(&udp(1, 9, 100));
    testbed.send(0, std::slice::from_ref(&back));
    assert_eq!(b.hear(1), [back], "{way}");
    assert!(m.hear(0).is_empty(), "{way}: a copy of a copy");
    let result = stop(tap);
    assert_eq!(number(&result, "/accounts/directions/0/uncopied/own"), 1);
}

#[test]
fn returning_copy_is_not_copied_again() {
    own_copies("xdp");
    own_copies("packet");
}

/// Interface, bytes and full length of a frame in a file.
type Kept = (u32, Vec<u8>, u32);

/// All frames of a file, and its interfaces' names.
fn recorded(file: &Path) -> (Vec<Kept>, Vec<String>) {
    let bytes = std::fs::read(file).unwrap();
    let mut reader = PcapNGReader::new(1 << 16, &bytes[..]).unwrap();
    let (mut frames, mut names) = (Vec::new(), Vec::new());
    while let Ok((used, block)) = reader.next() {
        match block {
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                let kept = packet.data[..packet.caplen as usize].to_vec();
                frames.push((packet.if_id, kept, packet.origlen));
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                let name = interface.options.iter().find(|option| option.code.0 == 2).unwrap();
                names.push(String::from_utf8_lossy(&name.value[..usize::from(name.len)]).into_owned());
            }
            _ => {}
        }
        reader.consume(used);
    }
    (frames, names)
}

fn captured(way: &str) {
    let Some(testbed) = Testbed::new(way, 2) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("link.pcapng");
    let name = file.display().to_string();
    let tap = testbed.tap(way, &["--capture", &name, "--snap", "100"]);
    let (mut a, mut b) = (testbed.listen(0), testbed.listen(1));
    let frames: Vec<_> = (0..50).map(|n| udp(n, 9, 60 + n as usize * 20)).collect();
    testbed.send(0, &frames);
    testbed.send(1, &frames[..20]);
    assert_eq!(b.hear(50), frames);
    assert_eq!(a.hear(20), frames[..20]);
    let result = stop(tap);
    assert_eq!(number(&result, "/capture/written"), 70, "{result}");
    let (written, names) = recorded(&file);
    assert_eq!(names, [testbed.side(0), testbed.side(1)]);
    for (interface, sent) in [(0, &frames[..]), (1, &frames[..20])] {
        let of: Vec<_> = written.iter().filter(|frame| frame.0 == interface).collect();
        assert_eq!(of.len(), sent.len(), "{way}");
        for ((_, kept, full), frame) in of.into_iter().zip(sent) {
            assert_eq!((&kept[..], *full as usize), (&frame[..frame.len().min(100)], frame.len()), "{way}");
        }
    }
}

#[test]
fn a_file_tells_the_directions_apart() {
    captured("xdp");
    captured("packet");
}

/// A capture file of these frames, byte by byte.
fn written(frames: &[Vec<u8>], file: &Path) {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let mut bytes = words(&[0xa1b2_c3d4, 2 | 4 << 16, 0, 0, 65_535, 1]);
    for frame in frames {
        let len = u32::try_from(frame.len()).unwrap();
        bytes.extend(words(&[1, 0, len, len]));
        bytes.extend(frame);
    }
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn the_dissector_shows_what_is_in_trailers() {
    if !skip::has_tool("tshark") {
        return;
    }
    let Some(testbed) = Testbed::new("packet", 3) else { return };
    let mut m = testbed.listen(2);
    let mirror = testbed.side(2);
    let tap = testbed.tap("packet", &["--mirror", &mirror, "--trailer", "--snap", "60"]);
    testbed.send(1, &[udp(0, 9, 100), udp(1, 9, 300)]);
    let mut frames = m.hear(2);
    stop(tap);
    // One without a trailer, of which nothing is shown.
    frames.push(udp(2, 9, 100));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("copies.pcap");
    written(&frames, &file);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/packetrig_trailer.lua");
    let field = |name: &str| format!("packetrig_trailer.{name}");
    let output = Command::new("tshark")
        .args([
            "-X",
            &format!("lua_script:{}", script.display()),
            "-o",
            "packetrig_trailer.enable:TRUE",
            "-r",
        ])
        .arg(&file)
        .args(["-n", "-T", "fields", "-E", "separator=,"])
        .args(["-e", &field("direction"), "-e", &field("number"), "-e", &field("length")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(shown.lines().collect::<Vec<_>>(), ["1,1,100", "1,2,300", ",,"], "{shown}");
}
