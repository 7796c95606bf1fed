use super::record::CaptureFileFormat;
use super::*;
use crate::clock::RealClock;
use crate::port::{RingProgress, RxFrame, WorkerClock};
use packetrig_stats::port::StampKind;
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::checksum;
use packetrig_wire::filter::{FieldCondition, FilterBase, FrameFilter};
use packetrig_wire::pcap::{CaptureDecoder, DecodedElement};
use std::path::Path;

/// The length of everything in a file of the classic format that is not a frame's bytes.
const HEAD: usize = 24;
const RECORD: usize = 16;

fn spec(dir: &Path) -> CaptureSpec {
    CaptureSpec {
        file: dir.join("a.pcap"),
        format: CaptureFileFormat::Pcap,
        interface: "eth0".into(),
        comment: "a comment".into(),
        snap_len: None,
        filter: FrameFilter::default(),
        budget: 1 << 20,
        overwrite: false,
    }
}

/// Offers frames that arrive now and begin with these numbers.
fn offer(tap: &mut CaptureTap, numbers: std::ops::Range<u32>) {
    let clock = RealClock::new();
    for number in numbers {
        let mut bytes = [7; 60];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        tap.offer_frame(&RxFrame::single_packet(&bytes, 60, clock.now(), StampKind::User));
    }
}

/// The numbers of the frames in a file, by the reader of captures, and whether all have the right FCS.
fn numbers(file: &Path) -> (Vec<u32>, bool) {
    let bytes = std::fs::read(file).unwrap();
    let (mut decoder, mut rest, mut found, mut right) = (CaptureDecoder::new(), &bytes[..], Vec::new(), true);
    while !rest.is_empty() {
        match decoder.next_step(rest).unwrap() {
            DecodedElement::Record { record, used } => {
                assert_eq!((record.bytes.len(), record.full_len), (64, 64), "length with FCS");
                found.push(u32::from_be_bytes(*record.bytes.first_chunk().unwrap()));
                right &= record.bytes[60..] == checksum::compute_fcs(&record.bytes[..60]);
                rest = &rest[used..];
            }
            DecodedElement::Skip(bytes) => rest = &rest[usize::try_from(bytes).unwrap()..],
            DecodedElement::More(_) => panic!("a record is cut"),
        }
    }
    (found, right)
}

/// Ends a capture in the way of a receiver.
fn serve(tap: &mut CaptureTap) {
    let later = RealClock::new().now() + Nanos::from_secs(1);
    if tap.update_capture(later, true) {
        tap.on_ring_read(RingProgress::default(), later);
        tap.on_ring_dropped(0);
    }
}

/// Stops from another thread while this one receives.
fn stop(capture: &PortCapture, tap: &mut CaptureTap) -> CaptureOutcome {
    std::thread::scope(|scope| {
        let stopped = scope.spawn(|| capture.stop_capture().unwrap());
        while !stopped.is_finished() {
            serve(tap);
            std::thread::yield_now();
        }
        stopped.join().unwrap()
    })
}

#[test]
fn captured_frames_get_fcs_and_all_are_accounted() {
    let dir = tempfile::tempdir().unwrap();
    let condition =
        FieldCondition { base: FilterBase::Frame, bit_offset: 31, bits: 1, value: 1, mask: 0, negate: false };
    let filter = FrameFilter { conditions: vec![condition] };
    let (capture, mut tap) = PortCapture::new(CaptureSpec { filter, ..spec(dir.path()) }).unwrap();
    capture.start_capture().unwrap();
    offer(&mut tap, 0..20);
    drop(tap);
    let captured = capture.stop_capture().unwrap();
    assert_eq!(
        (captured.written, captured.missing, &captured.failure),
        (10, MissingFrames::default(), &None)
    );
    assert_eq!(numbers(&captured.file), ((0..20).filter(|n| n % 2 == 1).collect(), true));
    let bytes = std::fs::read(&captured.file).unwrap();
    assert_eq!(bytes.len(), HEAD + 10 * (RECORD + 64));
    assert_eq!(bytes[..4], [0xd4, 0xc3, 0xb2, 0xa1], "little-endian, microseconds");
}

#[test]
fn snap_length_includes_fcs_and_keeps_wire_length() {
    for (snap, kept) in [(62, 62), (64, 64), (30, 30), (1000, 64)] {
        let dir = tempfile::tempdir().unwrap();
        let spec = CaptureSpec { snap_len: Some(snap), ..spec(dir.path()) };
        let (capture, mut tap) = PortCapture::new(spec).unwrap();
        capture.start_capture().unwrap();
        offer(&mut tap, 5..6);
        drop(tap);
        let bytes = std::fs::read(capture.stop_capture().unwrap().file).unwrap();
        let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap());
        assert_eq!((word(HEAD + 8), word(HEAD + 12)), (kept, 64));
        assert_eq!(bytes.len(), HEAD + RECORD + kept as usize);
    }
}

#[test]
fn exhausted_budget_ends_file_and_counts_rest() {
    let dir = tempfile::tempdir().unwrap();
    let (capture, mut tap) = PortCapture::new(CaptureSpec { budget: 1500, ..spec(dir.path()) }).unwrap();
    capture.start_capture().unwrap();
    offer(&mut tap, 0..100);
    drop(tap);
    let captured = capture.stop_capture().unwrap();
    let beyond_budget = 100 - captured.written;
    assert_eq!(captured.missing, MissingFrames { beyond_budget, ..MissingFrames::default() });
    assert!(captured.written > 5 && std::fs::metadata(&captured.file).unwrap().len() <= 1500);
    let first = u32::try_from(captured.written).unwrap();
    assert_eq!(numbers(&captured.file).0, (0..first).collect::<Vec<_>>(), "the first, without a gap");
}

#[test]
fn overwriting_capture_keeps_newest_frames_in_order() {
    for format in [CaptureFileFormat::Pcap, CaptureFileFormat::Pcapng] {
        let dir = tempfile::tempdir().unwrap();
        let spec = CaptureSpec { format, budget: 2 << 20, overwrite: true, ..spec(dir.path()) };
        let (capture, mut tap) = PortCapture::new(spec).unwrap();
        capture.start_capture().unwrap();
        // A dozen files, which the queue holds if the disk does nothing: none depends on its speed.
        offer(&mut tap, 0..40_000);
        drop(tap);
        let captured = capture.stop_capture().unwrap();
        let (found, right) = numbers(&captured.file);
        let first = 40_000 - u32::try_from(captured.written).unwrap();
        let ends = (found.first(), found.last());
        assert!(right && found == (first..40_000).collect::<Vec<_>>(), "{first}: {ends:?}");
        let overwritten = u64::from(first);
        assert_eq!(captured.missing, MissingFrames { overwritten, ..MissingFrames::default() });
        let size = std::fs::metadata(&captured.file).unwrap().len();
        assert!((3 << 19..=2 << 20).contains(&size), "{size}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no parts are left");
    }
}

#[test]
fn capture_restarts_while_frames_keep_coming() {
    let dir = tempfile::tempdir().unwrap();
    let (capture, mut tap) = PortCapture::new(spec(dir.path())).unwrap();
    offer(&mut tap, 0..10);
    assert!(!capture.is_running());
    capture.start_capture().unwrap();
    assert!(capture.is_running());
    offer(&mut tap, 10..20);
    let first = stop(&capture, &mut tap);
    offer(&mut tap, 20..30);
    assert_eq!(numbers(&first.file).0, (10..20).collect::<Vec<_>>());
    assert_eq!(stop(&capture, &mut tap), first, "again the same");
    assert_eq!(numbers(&first.file).0, (10..20).collect::<Vec<_>>());
    capture.start_capture().unwrap();
    assert_eq!(numbers(&first.file).0.len(), 10, "there until the new one is complete");
    offer(&mut tap, 30..33);
    assert_eq!(stop(&capture, &mut tap).written, 3);
    assert_eq!(numbers(&first.file).0, [30, 31, 32]);
}

#[test]
fn stopping_capture_includes_only_frames_before_stop() {
    let dir = tempfile::tempdir().unwrap();
    let (capture, mut tap) = PortCapture::new(spec(dir.path())).unwrap();
    capture.start_capture().unwrap();
    let arrived = RealClock::new().now();
    serve(&mut tap);
    let show = |tap: &mut CaptureTap, at: MonoTime| {
        tap.offer_frame(&RxFrame::single_packet(&[7; 60], 60, at, StampKind::User));
    };
    let captured = std::thread::scope(|scope| {
        let stopped = scope.spawn(|| capture.stop_capture().unwrap());
        // Until the order to stop is in the slot.
        while !tap.has_pending_command() {
            std::thread::yield_now();
        }
        show(&mut tap, arrived);
        show(&mut tap, RealClock::new().now() + Nanos::from_secs(1));
        while !stopped.is_finished() {
            serve(&mut tap);
        }
        stopped.join().unwrap()
    });
    assert_eq!(captured.written, 1);
}

#[test]
fn empty_capture_still_writes_file() {
    for begins in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (capture, tap) = PortCapture::new(spec(dir.path())).unwrap();
        if begins {
            capture.start_capture().unwrap();
            capture.start_capture().unwrap();
        }
        // No receiver serves the tap.
        let captured = capture.stop_capture().unwrap();
        assert_eq!((captured.written, std::fs::read(&captured.file).unwrap().len()), (0, HEAD));
        drop(tap);
        assert_eq!(capture.stop_capture().unwrap(), captured);
    }
}

#[test]
fn pcapng_statistics_give_drops_where_known() {
    for (filter, osdrop) in [(FrameFilter::default(), true), (one_condition(), false)] {
        let dir = tempfile::tempdir().unwrap();
        let spec = CaptureSpec { format: CaptureFileFormat::Pcapng, filter, ..spec(dir.path()) };
        let (capture, mut tap) = PortCapture::new(spec).unwrap();
        capture.start_capture().unwrap();
        assert!(tap.update_capture(RealClock::new().now(), true), "wants to know where the count begins");
        tap.on_ring_dropped(100);
        offer(&mut tap, 0..4);
        tap.on_ring_dropped(107);
        drop(tap);
        let bytes = std::fs::read(capture.stop_capture().unwrap().file).unwrap();
        let count = |code: u8, value: u8| [code, 0, 8, 0, value, 0, 0, 0, 0, 0, 0, 0];
        let has = |option: [u8; 12]| bytes.windows(12).any(|window| window == option);
        assert_eq!(has(count(7, 7)), osdrop, "isb_osdrop");
        assert!(has(count(5, if osdrop { 7 } else { 0 })), "isb_ifdrop");
        assert!(has(count(4, if osdrop { 11 } else { 4 })), "isb_ifrecv");
        assert!(bytes.windows(9).any(|window| window == b"a comment"));
    }
}

fn one_condition() -> FrameFilter {
    let any = FieldCondition {
        base: FilterBase::Frame,
        bit_offset: 0,
        bits: 8,
        value: 0,
        mask: 0xff,
        negate: false,
    };
    FrameFilter { conditions: vec![any] }
}

#[test]
fn failed_disk_is_reported_with_lost_frames() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/full", dir.path().join("a.pcap.part")).unwrap();
    let (capture, mut tap) = PortCapture::new(spec(dir.path())).unwrap();
    capture.start_capture().unwrap();
    offer(&mut tap, 0..10);
    drop(tap);
    let captured = capture.stop_capture().unwrap();
    assert_eq!((captured.written, captured.missing.disk), (0, 10));
    assert!(captured.failure.unwrap().contains("No space left"));
}

#[test]
fn port_names_never_leave_the_directory() {
    assert_eq!(capture_file_name("../a b/c", CaptureFormat::Pcapng, 0), Path::new(".._a_b_c.pcapng"));
    assert_eq!(capture_file_name("a", CaptureFormat::Pcap, 1), Path::new("a-2.pcap"));
}
