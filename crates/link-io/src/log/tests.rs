use super::*;
use packetrig_engine::capture::record::{
    CaptureFileFormat, CaptureRecorder, FileRotation, RecordSpec, RecordTarget,
};
use packetrig_engine::port::RxFrame;
use packetrig_stats::port::StampKind;
use packetrig_sys::clock::RealtimeOffset;
use packetrig_units::{MonoTime, Nanos, RetentionLimits};
use packetrig_wire::trailer::TapTrailer;
use std::fs;

const FILE: u64 = 64 << 10;

fn retention() -> LogRetention {
    LogRetention { file: FILE, ..LogRetention::default() }
}

fn limited(limits: RetentionLimits) -> LogRetention {
    LogRetention { limits, ..retention() }
}

/// Copies that arrive.
const M0: FrameLogSource<'_> = FrameLogSource { interface: "m0", direction: LoggedDirection::In };

/// A running log; frame `n` arrives at second `n`, which is also its number at the tap.
struct TestLog {
    recorder: CaptureRecorder,
    now: u64,
}

impl TestLog {
    fn begin(directory: &Path, retention: LogRetention, now: u64) -> Self {
        Self::squeezed(directory, retention, now, None)
    }

    fn squeezed(directory: &Path, retention: LogRetention, now: u64, zstd: Option<i32>) -> Self {
        let extension = if zstd.is_some() { "pcapng.zst" } else { "pcapng" };
        let keeper = LogKeeper::open_directory(directory, M0, retention).unwrap();
        let spec = RecordSpec {
            target: RecordTarget::File(directory.join(format!("{CAPTURE_FILE_PREFIX}.{extension}"))),
            format: CaptureFileFormat::Pcapng,
            interface: "m0".into(),
            further: Vec::new(),
            comment: String::new(),
            filter: String::new(),
            snap_len: None,
            fcs: false,
            budget: None,
            rotation: FileRotation {
                bytes: Some(retention.file),
                before: keeper.last_file(),
                ..FileRotation::default()
            },
            zstd,
            queue: 64 << 20,
        };
        let known = keeper.tap_numbers();
        let offset = RealtimeOffset { offset_ns: 0, bound_ns: 1 };
        let recorder = CaptureRecorder::start_with_keeper(
            spec,
            (Box::new(keeper), known),
            offset,
            MonoTime::from_nanos(now),
        )
        .unwrap();
        Self { recorder, now }
    }

    /// Records frames with these numbers, each of 1000 bytes.
    fn frames(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.now += 1_000_000_000;
            let trailer = TapTrailer { direction: 0, full_len: 976, number, at_ns: self.now };
            let bytes = [&[7; 976][..], &trailer.to_bytes()].concat();
            let at = MonoTime::from_nanos(self.now);
            self.recorder.record_frame(&RxFrame::single_packet(&bytes, 1000, at, StampKind::Software));
        }
    }

    fn end(self) -> u64 {
        self.recorder.finish_recording(MonoTime::from_nanos(self.now)).unwrap();
        self.now
    }
}

fn status_numbers(directory: &Path) -> Vec<u64> {
    list_files(directory).unwrap().into_iter().map(|(number, _)| number).collect()
}

fn entries(directory: &Path) -> Vec<LogFileEntry> {
    let files = LogIndex::read_index_entries(directory).unwrap().into_iter();
    files.filter_map(|entry| if let LogIndexEntry::File(file) = entry { Some(file) } else { None }).collect()
}

#[test]
fn log_numbering_continues_over_restarts_with_index() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = TestLog::begin(directory.path(), retention(), 0);
    log.frames(1..=150);
    let now = log.end();
    let mut log = TestLog::begin(directory.path(), retention(), now);
    log.frames(151..=300);
    log.end();
    let entries = entries(directory.path());
    let numbers: Vec<u64> = entries.iter().map(|entry| entry.file).collect();
    assert_eq!(numbers, (1..=6).collect::<Vec<_>>());
    assert_eq!(status_numbers(directory.path()), numbers);
    let mut next = 0;
    for entry in &entries {
        assert_eq!(entry.first_frame, next);
        assert!(entry.frames > 20 && entry.size <= FILE, "{entry:?}");
        assert_eq!(entry.frame_bytes, entry.frames * 1004);
        let (first, last) = entry.arrivals_ns.unwrap();
        assert_eq!((first, last), ((next + 1) * 1_000_000_000, (next + entry.frames) * 1_000_000_000));
        assert_eq!(fs::metadata(directory.path().join(&entry.name)).unwrap().len(), entry.size);
        next += entry.frames;
    }
    assert_eq!(next, 300);
    let checked = check_log(directory.path(), None).unwrap();
    assert!(!checked.is_incomplete(), "{checked:?}");
    assert_eq!((checked.files, checked.frames, checked.written), (6, 300, 300));
}

#[test]
fn log_check_separates_missing_copies_from_absent_ones() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = TestLog::begin(directory.path(), retention(), 0);
    log.frames((1..=50).filter(|number| number % 10 != 0));
    let now = log.end();
    let mut log = TestLog::begin(directory.path(), retention(), now);
    log.frames(61..=70);
    log.end();
    let checked = check_log(directory.path(), None).unwrap();
    let numbered = checked.numbers[0].unwrap();
    // 50 is one of the eleven between 49 and 61.
    assert_eq!((numbered.seen, numbered.missing, numbered.absent, numbered.last), (55, 4, 11, 70));
    assert!(checked.is_incomplete());
    let tap = r#"[{"name":"a-b","accounts":{"directions":[
        {"wanted":72,"mirrors":[{"to":"m0","mirrored":71}]},{"wanted":0,"mirrors":[{"to":"m0","mirrored":0}]}]}}]"#;
    let checked = check_log(directory.path(), Some((Path::new("tap.json"), tap))).unwrap();
    assert_eq!((checked.lost_copies(), checked.total_lost_copies()), ([Some(16), Some(0)], Some(16)));
    let error = check_log(directory.path(), Some((Path::new("tap.json"), "{}"))).unwrap_err();
    assert!(error.to_string().contains("one mirror"), "{error}");
}

/// Counters of a tap that copied and mirrored so many frames of each direction, as JSON.
fn counters(there: (u64, u64), back: (u64, u64)) -> String {
    let direction = |(wanted, mirrored): (u64, u64)| serde_json::json!({ "wanted": wanted, "mirrors": [{ "to": "m0", "mirrored": mirrored }] });
    serde_json::json!({ "directions": [direction(there), direction(back)] }).to_string()
}

fn held_against(directory: &Path, counters: &str) -> LogCheck {
    check_log(directory, Some((Path::new("tap.json"), counters))).unwrap()
}

#[test]
fn tap_accounts_older_than_log_report_no_loss() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = TestLog::begin(directory.path(), retention(), 0);
    log.frames(1..=70);
    log.end();
    for (there, frames) in [((60, 60), 10), ((70, 68), 2)] {
        let checked = held_against(directory.path(), &counters(there, (0, 0)));
        assert_eq!(
            (checked.find_doubt(), checked.lost_copies()),
            (Some(LogDoubt::Older { frames }), [None, Some(0)])
        );
        assert!(!checked.is_incomplete(), "{checked:?}");
    }
    let checked = held_against(directory.path(), &counters((70, 70), (0, 0)));
    assert_eq!((checked.find_doubt(), checked.lost_copies()), (None, [Some(0); 2]));
    assert!(!checked.is_incomplete(), "{checked:?}");
}

#[test]
fn empty_direction_counts_all_copies_as_lost() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = TestLog::begin(directory.path(), retention(), 0);
    log.frames(1..=70);
    log.end();
    let checked = held_against(directory.path(), &counters((70, 70), (5, 5)));
    assert_eq!((checked.find_doubt(), checked.lost_copies()), (None, [Some(0), Some(5)]));
    assert!(checked.is_incomplete(), "{checked:?}");
}

#[test]
fn restarted_tap_accounts_report_no_loss() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = TestLog::begin(directory.path(), retention(), 0);
    log.frames(1..=40);
    log.now += 5_000_000_000;
    log.frames(1..=30);
    log.end();
    let checked = held_against(directory.path(), &counters((30, 30), (0, 0)));
    assert_eq!((checked.find_doubt(), checked.lost_copies()), (Some(LogDoubt::Anew { times: 1 }), [None; 2]));
    assert!(!checked.is_incomplete(), "{checked:?}");
}

#[test]
fn log_retention_keeps_newest_and_index_counts_removed() {
    let directory = tempfile::tempdir().unwrap();
    let keep = limited(RetentionLimits { bytes: Some(3 * FILE), ..RetentionLimits::default() });
    let mut log = TestLog::begin(directory.path(), keep, 0);
    log.frames(1..=600);
    let now = log.end();
    let there = status_numbers(directory.path());
    assert_eq!(there.len(), 2, "two files, and room for the next: {there:?}");
    let checked = check_log(directory.path(), None).unwrap();
    assert!(!checked.is_incomplete(), "{checked:?}");
    assert_eq!((checked.written, checked.frames + checked.removed_frames), (600, 600));
    // The sum of the removed files survives when the index is written anew, and numbers go on.
    let last = *there.last().unwrap();
    let mut log = TestLog::begin(directory.path(), keep, now);
    log.frames(601..=610);
    log.end();
    let checked = check_log(directory.path(), None).unwrap();
    assert_eq!((checked.written, checked.removed_frames + checked.frames), (610, 610));
    assert_eq!(*status_numbers(directory.path()).last().unwrap(), last + 1);
    assert!(
        matches!(LogIndex::read_index_entries(directory.path()).unwrap()[0], LogIndexEntry::Before { files, .. } if files > 5)
    );
}

#[test]
fn files_that_are_too_old_go() {
    let directory = tempfile::tempdir().unwrap();
    // All of these frames are of 1970.
    let keep = limited(RetentionLimits { age: Some(Nanos::from_secs(3600)), ..RetentionLimits::default() });
    let mut log = TestLog::begin(directory.path(), keep, 0);
    log.frames(1..=150);
    log.end();
    assert_eq!(status_numbers(directory.path()), [0u64; 0]);
    let removed = LogIndex::read_index_entries(directory.path()).unwrap();
    let of_age = removed
        .iter()
        .filter(|entry| matches!(entry, LogIndexEntry::Removed { why: RemovalReason::Age, .. }))
        .count();
    assert_eq!(of_age, 3);
}

#[test]
fn log_files_are_removed_until_disk_has_room() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = TestLog::begin(
        directory.path(),
        limited(RetentionLimits { free: Some(0), ..RetentionLimits::default() }),
        0,
    );
    log.frames(1..=150);
    let now = log.end();
    assert_eq!(status_numbers(directory.path()), [1, 2, 3]);
    // No disk ever has that much.
    let mut log = TestLog::begin(
        directory.path(),
        limited(RetentionLimits { free: Some(u64::MAX), ..RetentionLimits::default() }),
        now,
    );
    log.frames(151..=160);
    log.end();
    assert_eq!(status_numbers(directory.path()), [0u64; 0]);
    let removed = LogIndex::read_index_entries(directory.path()).unwrap();
    let of_room = removed
        .iter()
        .filter(|entry| matches!(entry, LogIndexEntry::Removed { why: RemovalReason::Free, .. }))
        .count();
    assert_eq!(of_room, 4);
}

#[test]
fn killed_log_is_repaired_and_numbering_continues() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = TestLog::begin(directory.path(), retention(), 0);
    log.frames(1..=150);
    let now = log.end();
    // The state after a kill: the last file is not in the index, and ends in the middle of a record.
    let index = directory.path().join(INDEX_FILE_NAME);
    let text = fs::read_to_string(&index).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.iter().rposition(|line| line.contains("\"file\":3")).unwrap();
    fs::write(&index, format!("{}\n{{\"what\":\"fi", lines[..last].join("\n"))).unwrap();
    let file = directory.path().join("log-00003.pcapng");
    let size = fs::metadata(&file).unwrap().len();
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(size - 700).unwrap();
    let mut log = TestLog::begin(directory.path(), retention(), now);
    log.frames(151..=160);
    log.end();
    let entries = entries(directory.path());
    let mended = &entries[2];
    assert!(mended.mended && mended.frames > 10, "{mended:?}");
    assert_eq!((entries.len(), entries[3].first_frame), (4, mended.first_frame + mended.frames));
    let checked = check_log(directory.path(), None).unwrap();
    assert_eq!(checked.findings, [LogFinding::Mended { file: 3 }]);
    let numbered = checked.numbers[0].unwrap();
    assert_eq!((numbered.last, numbered.seen + numbered.absent), (160, 160));
    assert!(numbered.absent >= 1);
}

#[test]
fn files_of_killed_log_are_counted_when_they_are_added() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = TestLog::begin(directory.path(), retention(), 0);
    log.frames(1..=150);
    log.end();
    // Neither of the last two files is in the index.
    let index = directory.path().join(INDEX_FILE_NAME);
    let text = fs::read_to_string(&index).unwrap();
    let end = text.find("{\"what\":\"file\",\"file\":2").unwrap();
    fs::write(&index, &text[..end]).unwrap();
    let open = || LogKeeper::open_directory(directory.path(), M0, retention()).unwrap().added_files();
    assert_eq!((open(), entries(directory.path()).len()), (2, 3));
    assert_eq!(open(), 0, "all of them are in the index now");
}

#[test]
fn a_check_finds_what_somebody_changed() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = TestLog::begin(directory.path(), retention(), 0);
    log.frames(1..=200);
    log.end();
    fs::remove_file(directory.path().join("log-00001.pcapng")).unwrap();
    let second = directory.path().join("log-00002.pcapng");
    let file = fs::OpenOptions::new().write(true).open(&second).unwrap();
    file.set_len(fs::metadata(&second).unwrap().len() - 1500).unwrap();
    fs::write(directory.path().join("log-00003.pcapng"), [0; 100]).unwrap();
    let findings = check_log(directory.path(), None).unwrap().findings;
    assert!(matches!(findings[0], LogFinding::Gone { file: 1 }), "{findings:?}");
    assert!(
        matches!(findings[1], LogFinding::Differs { file: 2, said, found } if found < said),
        "{findings:?}"
    );
    assert!(matches!(findings[2], LogFinding::Damaged { file: 3, .. }), "{findings:?}");
}

#[test]
fn log_directory_is_exclusive_and_must_have_room() {
    let directory = tempfile::tempdir().unwrap();
    let log = TestLog::begin(directory.path(), retention(), 0);
    assert!(matches!(LogKeeper::open_directory(directory.path(), M0, retention()), Err(Error::InUse(_))));
    log.end();
    let huge = LogRetention { file: u64::MAX, when_full: FullDiskReaction::Refuse, ..retention() };
    assert!(matches!(LogKeeper::open_directory(directory.path(), M0, huge), Err(Error::NoRoom { .. })));
    LogKeeper::open_directory(directory.path(), M0, retention()).unwrap();
}

#[test]
fn compressed_log_is_numbered_counted_and_repaired() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = TestLog::squeezed(directory.path(), retention(), 0, Some(3));
    log.frames(1..=150);
    let now = log.end();
    let checked = check_log(directory.path(), None).unwrap();
    assert!(!checked.is_incomplete(), "{checked:?}");
    assert_eq!((checked.files, checked.frames, entries(directory.path())[1].first_frame), (3, 150, 62));
    // The last run was killed, so its file is not in the index.
    let index = directory.path().join(INDEX_FILE_NAME);
    let text = fs::read_to_string(&index).unwrap();
    let end = text.find("{\"what\":\"file\",\"file\":3").unwrap();
    fs::write(&index, &text[..end]).unwrap();
    TestLog::squeezed(directory.path(), retention(), now, Some(3)).end();
    let mended = &entries(directory.path())[2];
    assert!(mended.mended && mended.frames == 26, "{mended:?}");
}

/// Changes a byte at each of these places in turn; what a check finds must name the file.
fn assert_changes_are_found(
    directory: &Path,
    path: &Path,
    places: impl Iterator<Item = usize>,
    file: Option<u64>,
) {
    let whole = fs::read(path).unwrap();
    for place in places {
        let mut changed = whole.clone();
        changed[place] ^= 1 << (place % 8);
        fs::write(path, &changed).unwrap();
        let checked = check_log(directory, None).unwrap();
        let is_named = checked.findings.iter().any(|finding| match finding {
            LogFinding::Changed { file: found }
            | LogFinding::Damaged { file: found, .. }
            | LogFinding::Differs { file: found, .. } => Some(*found) == file,
            LogFinding::IndexDamaged { .. } | LogFinding::IndexCut => file.is_none(),
            _ => false,
        });
        assert!(is_named && checked.is_incomplete(), "{} {place}: {:?}", path.display(), checked.findings);
    }
    fs::write(path, &whole).unwrap();
}

#[test]
fn one_byte_that_changed_anywhere_is_found() {
    for zstd in [None, Some(3)] {
        let directory = tempfile::tempdir().unwrap();
        let mut log = TestLog::squeezed(directory.path(), retention(), 0, zstd);
        log.frames(1..=150);
        log.end();
        assert!(!check_log(directory.path(), None).unwrap().is_incomplete());
        for (number, path) in list_files(directory.path()).unwrap() {
            let size = usize::try_from(fs::metadata(&path).unwrap().len()).unwrap();
            // Headers byte for byte, and positions all over the file up to its last byte.
            let places =
                (0..64.min(size)).step_by(3).chain((64..size).step_by(size / 20 + 1)).chain([size - 1]);
            assert_changes_are_found(directory.path(), &path, places, Some(number));
        }
        let checked = check_log(directory.path(), None).unwrap();
        assert!(!checked.is_incomplete(), "it is as it was: {checked:?}");
    }
}

#[test]
fn index_check_detects_any_changed_byte() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = TestLog::begin(directory.path(), retention(), 0);
    log.frames(1..=3);
    log.end();
    let index = directory.path().join(INDEX_FILE_NAME);
    let size = fs::read(&index).unwrap().len();
    assert_changes_are_found(directory.path(), &index, 0..size, None);
    assert!(!check_log(directory.path(), None).unwrap().is_incomplete(), "it is as it was");
}

#[test]
fn checksumless_old_log_gains_checksums_for_new_files() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = TestLog::begin(directory.path(), retention(), 0);
    log.frames(1..=150);
    let now = log.end();
    let older: String = LogIndex::read_index_entries(directory.path())
        .unwrap()
        .into_iter()
        .map(|entry| match entry {
            LogIndexEntry::File(file) => LogIndexEntry::File(LogFileEntry { crc32: None, ..file }),
            entry => entry,
        })
        .map(|entry| serde_json::to_string(&entry).unwrap() + "\n")
        .collect();
    fs::write(directory.path().join(INDEX_FILE_NAME), older).unwrap();
    let checked = check_log(directory.path(), None).unwrap();
    assert!(!checked.is_incomplete(), "{checked:?}");
    let lines = LogIndex::read_index_entries(directory.path()).unwrap().len() as u64;
    let without = LogChecksums { files_without: 3, lines_without: lines, ..LogChecksums::default() };
    assert_eq!(checked.checksums, without);
    let mut log = TestLog::begin(directory.path(), retention(), now);
    log.frames(151..=200);
    log.end();
    let checked = check_log(directory.path(), None).unwrap();
    assert!(!checked.is_incomplete(), "{checked:?}");
    assert_eq!((checked.checksums.files, checked.checksums.files_without), (1, 3), "{checked:?}");
    assert_eq!(checked.checksums.lines_without, 0, "the index is written anew");
}
