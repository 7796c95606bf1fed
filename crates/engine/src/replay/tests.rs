use super::player::{NextFrame, ReplayPlayer, WrittenFrame};
use super::*;
use packetrig_plan::recording::{PlannedRecording, RecordingFacts, ReplayTiming};
use packetrig_units::Nanos;
use packetrig_wire::checksum;
use packetrig_wire::foreign::FrameRewrite;
use packetrig_wire::tag::{TagKey, TagStamp};
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

const STAMP: TagStamp = TagStamp { key: TagKey(1), stream: 0, time: 0 };

/// A classic file with nanoseconds.
fn file(link_type: u32, packets: &[(u64, Vec<u8>, usize)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut words = |words: &[u32]| words.iter().for_each(|word| out.extend(word.to_le_bytes()));
    words(&[0xa1b2_3c4d, 2 | 4 << 16, 0, 0, 65_535, link_type]);
    for (at, bytes, full) in packets {
        let (seconds, rest) = (at / 1_000_000_000, at % 1_000_000_000);
        let number = |value: u64| u32::try_from(value).unwrap();
        for word in [number(seconds), number(rest), number(bytes.len() as u64), number(*full as u64)] {
            out.extend(word.to_le_bytes());
        }
        out.extend(bytes);
    }
    out
}

fn packet(at: u64, fill: u8, len: usize) -> (u64, Vec<u8>, usize) {
    (at, vec![fill; len], len)
}

fn stored(bytes: &[u8]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pcap");
    std::fs::write(&path, bytes).unwrap();
    (directory, path)
}

fn track(path: PathBuf, loops: u64, speed: &str, facts: RecordingFacts) -> Arc<ReplayTrack> {
    let timing = ReplayTiming::Recorded(speed.parse().unwrap());
    let rewrite = FrameRewrite::default();
    Arc::new(ReplayTrack::new(Arc::new(PlannedRecording {
        file: path,
        timing,
        loops,
        rewrite,
        tagged: false,
        facts,
    })))
}

/// Everything a player has: due times and frames.
fn played(player: &mut ReplayPlayer) -> Vec<(u64, Vec<u8>)> {
    let mut frames = Vec::new();
    let mut slot = vec![0; 70_000];
    loop {
        match player.peek_frame() {
            NextFrame::Due(due) => {
                let WrittenFrame { len, has_tag } = player.write_frame(0, STAMP, &mut slot).unwrap();
                assert!(!has_tag);
                frames.push((due.as_u64(), slot[..len].to_vec()));
            }
            NextFrame::NotYet => std::thread::yield_now(),
            NextFrame::Ended => return frames,
        }
    }
}

#[test]
fn replay_passes_keep_order_at_scaled_times() {
    // The third is out of order, and the last pass ends a mean distance before the next would begin.
    let packets = [packet(1_000, 1, 60), packet(1_400, 2, 1500), packet(1_300, 3, 20), packet(1_900, 4, 60)];
    let (_directory, path) = stored(&file(1, &packets));
    let survey = survey_file(&path, &FrameRewrite::default()).unwrap();
    assert_eq!((survey.facts.frames, survey.facts.span, survey.facts.bytes), (4, Nanos::new(900), 1656));
    let track = track(path, 2, "0.5x", survey.facts);
    let frames = played(&mut ReplayPlayer::start_reader(&track, 0).unwrap());
    let times: Vec<u64> = frames.iter().map(|(due, _)| *due).collect();
    assert_eq!(times, [0, 800, 800, 1800, 2400, 3200, 3200, 4200]);
    let sent: Vec<_> = frames.iter().map(|(_, bytes)| (bytes[0], bytes.len())).collect();
    assert_eq!(sent[..4], [(1, 60), (2, 1500), (3, 20), (4, 60)]);
    assert_eq!(sent[..4], sent[4..]);
    assert_eq!(track.remarks(), []);
}

#[test]
fn many_batches_go_round() {
    let packets: Vec<_> =
        (0..20_000u64).map(|n| packet(n, n.to_le_bytes()[0], 60 + (n % 900) as usize)).collect();
    let (_directory, path) = stored(&file(1, &packets));
    let facts = survey_file(&path, &FrameRewrite::default()).unwrap().facts;
    let frames = played(&mut ReplayPlayer::start_reader(&track(path, 1, "1x", facts), 0).unwrap());
    let wanted = packets.iter().map(|(at, bytes, _)| (*at, bytes.clone()));
    assert!(frames.iter().cloned().eq(wanted));
}

#[test]
fn skipped_packets_are_counted_by_reason() {
    let packets = [packet(0, 1, 60), (1, vec![2; 60], 1500), packet(2, 3, 9), packet(3, 4, 60)];
    let (_directory, path) = stored(&file(1, &packets));
    let survey = survey_file(&path, &FrameRewrite::default()).unwrap();
    assert_eq!(survey.skipped, SkippedPackets { cut: 1, short: 1, other_link: 0 });
    let track = track(path, 3, "1x", survey.facts);
    assert_eq!(played(&mut ReplayPlayer::start_reader(&track, 0).unwrap()).len(), 6);
    let said = track.remarks();
    assert!(
        said.len() == 2 && said[0].0.ends_with("the capture truncated them (snap length): 1"),
        "{said:?}"
    );
}

#[test]
fn truncated_file_is_replayed_up_to_cut() {
    let whole = file(1, &[packet(0, 1, 60), packet(1, 2, 60), packet(2, 3, 60)]);
    for cut in [whole.len() - 1, whole.len() - 60, whole.len() - 70] {
        let (_directory, path) = stored(&whole[..cut]);
        let survey = survey_file(&path, &FrameRewrite::default()).unwrap();
        assert_eq!((survey.facts.frames, survey.ending), (2, FileEnding::Cut));
        let track = track(path, 1, "1x", survey.facts);
        assert_eq!(played(&mut ReplayPlayer::start_reader(&track, 0).unwrap()).len(), 2);
        assert!(track.remarks()[0].0.contains("ends inside its last packet"));
    }
}

#[test]
fn files_without_frames_are_refused_with_the_reason() {
    for (bytes, why) in [
        (file(1, &[]), "no packet"),
        (file(101, &[packet(0, 1, 60)]), "not Ethernet frames"),
        (file(1, &[(0, vec![1; 60], 90)]), "snap length"),
        (b"ports:\n- name: a\n".to_vec(), "neither a pcap nor a pcapng"),
    ] {
        let (_directory, path) = stored(&bytes);
        let error = survey_file(&path, &FrameRewrite::default()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    assert!(survey_file(Path::new("/dev/zero"), &FrameRewrite::default()).is_err());
}

#[test]
fn changed_file_is_refused_or_remarked() {
    let (_directory, path) = stored(&file(1, &[packet(0, 1, 60), packet(1, 2, 60)]));
    let facts = survey_file(&path, &FrameRewrite::default()).unwrap().facts;
    let other = RecordingFacts { file_size: 1, ..facts };
    assert!(ReplayPlayer::start_reader(&track(path.clone(), 1, "1x", other), 0).is_err());
    std::fs::write(&path, file(1, &[packet(0, 1, 120), packet(1, 2, 0)])).unwrap();
    let track = track(path, 1, "1x", facts);
    assert_eq!(played(&mut ReplayPlayer::start_reader(&track, 0).unwrap()), []);
    assert!(track.remarks().iter().any(|(text, matters)| *matters && text.contains("changed")));
}

#[test]
fn an_fcs_in_the_file_is_taken_off() {
    let mut bytes = vec![7; 60];
    bytes.extend(checksum::compute_fcs(&bytes));
    let (_directory, path) = stored(&file(1, &[(0, bytes, 64)]));
    let facts = survey_file(&path, &FrameRewrite::default()).unwrap().facts;
    assert!(facts.has_fcs);
    assert_eq!(
        played(&mut ReplayPlayer::start_reader(&track(path, 1, "1x", facts), 0).unwrap()),
        [(0, vec![7; 60])]
    );
}

#[test]
fn own_capture_is_replayed_unchanged() {
    use crate::capture::{CaptureSpec, PortCapture, record::CaptureFileFormat};
    use crate::clock::RealClock;
    use crate::port::{RxFrame, WorkerClock};
    use packetrig_stats::port::StampKind;
    for format in [CaptureFileFormat::Pcap, CaptureFileFormat::PcapNanos, CaptureFileFormat::Pcapng] {
        let directory = tempfile::tempdir().unwrap();
        let (file, filter) = (directory.path().join("a"), packetrig_wire::filter::FrameFilter::default());
        let (interface, comment) = ("eth0".to_owned(), String::new());
        let (snap_len, budget, overwrite) = (None, 1 << 20, false);
        let spec = CaptureSpec { file, format, interface, comment, snap_len, filter, budget, overwrite };
        let (capture, mut tap) = PortCapture::new(spec).unwrap();
        capture.start_capture().unwrap();
        let begin = RealClock::new().now();
        let frames: Vec<Vec<u8>> = (0..50u8).map(|n| vec![n; 60 + usize::from(n)]).collect();
        for (n, bytes) in frames.iter().enumerate() {
            let at = begin + Nanos::new(5_000 * n as u64);
            tap.offer_frame(&RxFrame::single_packet(bytes, bytes.len(), at, StampKind::User));
        }
        drop(tap);
        let path = capture.stop_capture().unwrap().file;
        let facts = survey_file(&path, &FrameRewrite::default()).unwrap().facts;
        // The format has microseconds, so each end is rounded.
        assert!(facts.span.as_u64().abs_diff(49 * 5_000) <= 1_000, "{}", facts.span);
        let played = played(&mut ReplayPlayer::start_reader(&track(path, 1, "1x", facts), 0).unwrap());
        assert!(played.iter().map(|(_, bytes)| bytes).eq(&frames));
    }
}

#[test]
fn compressed_file_replays_content_and_refuses_truncation() {
    let record = |at: u32| [words(&[1, at, 60, 60]), vec![u8::try_from(at).unwrap(); 60]].concat();
    let head = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1]);
    let bytes: Vec<u8> = [head].into_iter().chain((0..9).map(record)).collect::<Vec<_>>().concat();
    // Two frames of zstd, the border inside a packet.
    let squeezed: Vec<u8> = bytes.chunks(333).flat_map(|part| zstd::encode_all(part, 1).unwrap()).collect();
    let (_directory, path) = stored(&squeezed);
    let facts = survey_file(&path, &FrameRewrite::default()).unwrap().facts;
    assert_eq!(facts.frames, 9);
    let found = played(&mut ReplayPlayer::start_reader(&track(path.clone(), 2, "1x", facts), 0).unwrap());
    let numbers: Vec<u8> = found.iter().map(|(_, bytes)| bytes[30]).collect();
    assert_eq!(numbers, (0..9).chain(0..9).collect::<Vec<_>>(), "twice, from the beginning again");
    // Compressed bytes of a file that ends in a packet, and a compressed file that ends too early.
    std::fs::write(&path, zstd::encode_all(&bytes[..bytes.len() - 1], 1).unwrap()).unwrap();
    assert_eq!(survey_file(&path, &FrameRewrite::default()).unwrap().facts.frames, 8);
    std::fs::write(&path, &squeezed[..squeezed.len() - 1]).unwrap();
    assert!(survey_file(&path, &FrameRewrite::default()).unwrap_err().to_string().contains("incomplete"));
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn huge_pcapng_block_is_skipped_without_reading() {
    use std::os::unix::fs::FileExt;
    const HUGE: u32 = 0xf000_0000;
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let packet = |at: u32| [words(&[6, 92, 0, 0, at, 60, 60]), vec![7; 60], words(&[92])].concat();
    let begin = [
        words(&[0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28, 1, 20, 1, 0, 20]),
        packet(1),
        words(&[0xbad, HUGE]),
    ];
    let (_directory, path) = stored(&begin.concat());
    let end = begin.concat().len() as u64 - 8 + u64::from(HUGE);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(end).unwrap();
    assert_eq!(survey_file(&path, &FrameRewrite::default()).unwrap().facts.frames, 1);
    file.write_all_at(&packet(3), end).unwrap();
    let found = survey_file(&path, &FrameRewrite::default()).unwrap();
    assert_eq!((found.facts.frames, found.facts.span), (2, Nanos::from_micros(2)));
    file.set_len(end - 1).unwrap();
    assert_eq!(survey_file(&path, &FrameRewrite::default()).unwrap().ending, FileEnding::Cut);
}

#[test]
fn a_dropped_player_ends_its_reader() {
    let packets: Vec<_> = (0..20_000u64).map(|n| packet(n, 1, 60)).collect();
    let (_directory, path) = stored(&file(1, &packets));
    let facts = survey_file(&path, &FrameRewrite::default()).unwrap().facts;
    let track = track(path, 0, "1x", facts);
    let mut player = ReplayPlayer::start_reader(&track, 0).unwrap();
    while player.peek_frame() == NextFrame::NotYet {}
    drop(player);
    // The reader's reference was dropped with its thread.
    assert_eq!(Arc::strong_count(&track), 1);
}

#[test]
fn seconds_are_those_of_the_frames_sent() {
    let facts = RecordingFacts {
        file_size: 0,
        frames: 1,
        bytes: 64,
        largest: packetrig_units::FrameSize::MIN,
        largest_untagged: packetrig_units::FrameSize::MIN,
        span: Nanos::ZERO,
        has_fcs: false,
    };
    let track = track("a".into(), 1, "1x", facts);
    let next = track.store_first_number_of_seconds(0, 0, 0);
    let next = track.store_first_number_of_seconds(next, 3, 10);
    assert_eq!(next, 4);
    assert_eq!([0, 9, 10, 11].map(|number| track.due_second_of_sent_frame(number)), [0, 0, 3, 3]);
}
