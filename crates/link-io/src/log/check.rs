//! Compares a log's index with its files, and both with the counters of the tap whose copies the log records.
//!
//! Every byte is checked: a file by the checksum in its entry, an entry by the checksum in its line. Logs of
//! older versions have no checksums. The check changes nothing. A file that is being written is not in the
//! index yet; it is counted but not checked.

use super::index::{DamagedLine, LogFileEntry, LogIndexContent, LogIndexEntry, LoggedDirection};
use super::keeper::{index_path, is_log_running};
use super::{Error, list_files, survey_file};
use packetrig_engine::capture::numbers::{NumberedDirection, TapNumbers};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

/// A fault of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub enum LogFinding {
    /// A file of the index is missing, although the log did not remove it.
    Gone { file: u64 },
    /// A file has another number of frames than the index states, or ends within a record.
    Differs {
        file: u64,
        /// The number of frames in the index.
        said: u64,
        found: u64,
    },
    /// The index has no entry for this number, although files are numbered without gaps.
    Skipped { file: u64 },
    /// The bytes of a file differ from the written bytes, although the number of frames is the same.
    Changed { file: u64 },
    /// A line of the index does not match its checksum or cannot be parsed.
    IndexDamaged {
        /// The line's number, from 1.
        line: u64,
        why: String,
    },
    /// The index ends within a line, and no log is running: the log was killed, or the index is damaged.
    IndexCut,
    /// A file cannot be read.
    Damaged { file: u64, why: String },
    /// A log was killed, and the frames that it had not written yet are lost. Their number is known only
    /// if frames have trailers.
    Mended {
        /// The file that the log was writing.
        file: u64,
    },
}

/// The tap's counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TapCounters {
    /// Frames to be copied: the highest trailer number that the tap assigned.
    pub wanted: u64,
    /// Copies that the mirror's driver accepted; `None` if that is not known.
    pub mirrored: Option<u64>,
}

/// Numbers of files and index lines with and without a checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogChecksums {
    /// Files with a checksum in the index.
    pub files: u64,
    /// Files without a checksum in the index, written by an older version.
    pub files_without: u64,
    /// Lines of the index with a correct checksum.
    pub lines: u64,
    /// Lines of the index without a checksum, written by an older version.
    pub lines_without: u64,
}

/// Number of files by the direction of their frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LoggedFiles {
    /// Files with only frames that arrived.
    pub arriving: u64,
    /// Files that also have frames that this machine sent.
    pub both: u64,
}

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogCheck {
    /// Complete files in the directory.
    pub files: u64,
    /// Frames in the complete files, counted by reading the files.
    pub frames: u64,
    /// Frames in all files that the index names, including removed files.
    pub written: u64,
    /// Files that the log removed because of its limits.
    pub removed_files: u64,
    pub removed_frames: u64,
    /// Frames that the logger lost in the kernel's ring, over all files with an entry in the index, also removed ones.
    pub dropped_kernel: u64,
    /// Frames that were lost because the disk was too slow.
    pub dropped_queue: u64,
    pub dropped_disk: u64,
    /// Files that are not in the index yet: they are being written, or were left by a process that was killed.
    pub open_files: u64,
    pub checksums: LogChecksums,
    pub directions: LoggedFiles,
    /// Trailer numbers of the log, by direction.
    pub numbers: TapNumbers,
    /// The tap's counters, by direction.
    pub tap: Option<[TapCounters; 2]>,
    /// Faults that the check found.
    pub findings: Vec<LogFinding>,
}

/// Reason why the number of copies that the log lacks is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "doubt", rename_all = "snake_case")]
pub enum LogDoubt {
    /// The log has this many frames more than the tap's counters, so the counters were saved before the log
    /// ended. Without trailers, some of these frames may not be copies at all.
    Older { frames: u64 },
    /// The tap restarted while the log ran, so its counters cover only its last run.
    Anew { times: u64 },
}

impl LogCheck {
    /// Number of copies that left the tap and are not in the log, by direction. `None` if the tap or the log does not
    /// know the number, or if the tap's counters do not count the same copies ([`LogCheck::find_doubt`]). Without
    /// trailers the log does not know directions, so only their sum is known ([`LogCheck::total_lost_copies`]).
    pub fn lost_copies(&self) -> [Option<u64>; 2] {
        [self.lost_copies_in_direction(0), self.lost_copies_in_direction(1)]
    }

    fn lost_copies_in_direction(&self, direction: usize) -> Option<u64> {
        // The difference of two counts means lost copies only if both count the same copies. A restarted tap
        // counts from zero again, and if the log has more frames than the tap's saved counters, these were
        // saved too early.
        if !self.is_numbered() || self.tap_restarts() > 0 || self.frames_beyond_tap(direction)? > 0 {
            return None;
        }
        let mirrored = self.tap?[direction].mirrored?;
        Some(mirrored.saturating_sub(self.numbers_in_direction(direction).seen))
    }

    /// Number of mirrored copies of both directions that the log has not written, computed from frame counts. Frames
    /// that the logger dropped count as lost, too. `None` if the number is unknown.
    pub fn total_lost_copies(&self) -> Option<u64> {
        if self.tap_restarts() > 0 {
            return None;
        }
        self.total_mirrored()?.checked_sub(self.written)
    }

    /// Returns the reason why the number of lost copies is unknown although the tap's counters are known.
    pub fn find_doubt(&self) -> Option<LogDoubt> {
        self.tap?;
        let times = self.tap_restarts();
        if times > 0 {
            return Some(LogDoubt::Anew { times });
        }
        let frames = if self.is_numbered() {
            self.frames_beyond_tap(0).unwrap_or(0) + self.frames_beyond_tap(1).unwrap_or(0)
        } else {
            self.written.saturating_sub(self.total_mirrored()?)
        };
        (frames > 0).then_some(LogDoubt::Older { frames })
    }

    /// Returns how many frames the log has beyond the tap's counters; `None` without counters of the tap.
    fn frames_beyond_tap(&self, direction: usize) -> Option<u64> {
        let tap = self.tap?[direction];
        let numbered = self.numbers_in_direction(direction);
        let uncounted = tap.mirrored.map_or(0, |mirrored| numbered.seen.saturating_sub(mirrored));
        Some(numbered.last.saturating_sub(tap.wanted).max(uncounted))
    }

    /// True if copies have trailers. Then a direction without numbers has no copies.
    fn is_numbered(&self) -> bool {
        self.numbers.iter().any(Option::is_some)
    }

    fn numbers_in_direction(&self, direction: usize) -> NumberedDirection {
        self.numbers[direction].unwrap_or_default()
    }

    fn tap_restarts(&self) -> u64 {
        self.numbers.iter().flatten().map(|numbered| numbered.anew).sum()
    }

    fn total_mirrored(&self) -> Option<u64> {
        let [there, back] = self.tap?;
        Some(there.mirrored? + back.mirrored?)
    }

    /// True if frames are known to be missing, or the check found a fault.
    pub fn is_incomplete(&self) -> bool {
        let numbered = self.numbers.iter().flatten();
        let gaps: u64 = numbered.map(|numbered| numbered.missing + numbered.absent).sum();
        let dropped = self.dropped_kernel + self.dropped_queue + self.dropped_disk;
        let by_tap = if self.is_numbered() {
            self.lost_copies().into_iter().flatten().any(|lost| lost > 0)
        } else {
            self.total_lost_copies().unwrap_or(0) > 0
        };
        gaps > 0 || dropped > 0 || by_tap || !self.findings.is_empty()
    }
}

/// Checks the log in a directory. `tap` is the JSON that `packetrig tap` printed, with the path that errors name.
pub fn check_log(directory: &Path, tap: Option<(&Path, &str)>) -> Result<LogCheck, Error> {
    // Whether a log is running is checked before and after reading: a partial line that a running log is
    // writing is not damage.
    let was_held = is_log_running(directory);
    let content = LogIndexContent::read_index(directory)?;
    if content.entries.is_empty() && content.damaged.is_empty() {
        return Err(Error::Damaged {
            path: index_path(directory),
            why: "not found or without entries, so this is not the directory of \
            a log; name the directory given to `packetrig log --into`"
                .into(),
        });
    }
    let mut checked = LogCheck::default();
    checked.checksums.lines = content.checked as u64;
    checked.checksums.lines_without =
        (content.entries.len() - content.checked.min(content.entries.len())) as u64;
    let damaged = content.damaged.into_iter();
    checked
        .findings
        .extend(damaged.map(|DamagedLine { number, why }| LogFinding::IndexDamaged { line: number, why }));
    if content.ends_within_line && !was_held && !is_log_running(directory) {
        checked.findings.push(LogFinding::IndexCut);
    }
    if let Some((path, text)) = tap {
        let counters = serde_json::from_str(text).ok().and_then(|value: Value| find_tap_counters(&value));
        checked.tap = Some(counters.ok_or_else(|| Error::Damaged {
            path: path.to_owned(),
            why: "it does not contain the counters of one tap with one mirror; write it with `packetrig tap status \
                NAME --json`"
                .into(),
        })?);
    }
    // The files are listed after the index was read: a file that is finished in between counts as open.
    let there = list_files(directory)?;
    let mut known: Vec<LogFileEntry> = Vec::new();
    for entry in content.entries {
        apply_index_entry(entry, &mut known, &mut checked);
    }
    checked.numbers = known.last().map_or(checked.numbers, |file| file.numbers);
    let mut before: TapNumbers = [None; 2];
    for entry in &known {
        match there.iter().find(|(number, _)| *number == entry.file) {
            // This file was never created because the disk was full. Its frames already count as lost to the
            // disk.
            None if entry.frames == 0 && entry.size == 0 => {}
            None => checked.findings.push(LogFinding::Gone { file: entry.file }),
            Some((_, path)) => compare_file_with_entry(entry, path, before, &mut checked),
        }
        before = entry.numbers;
    }
    let open = there.iter().filter(|(number, _)| !known.iter().any(|entry| entry.file == *number));
    checked.open_files = open.count() as u64;
    Ok(checked)
}

fn apply_index_entry(entry: LogIndexEntry, known: &mut Vec<LogFileEntry>, checked: &mut LogCheck) {
    match entry {
        LogIndexEntry::Before { files, frames, .. } => {
            checked.removed_files += files;
            checked.removed_frames += frames;
            checked.written += frames;
        }
        LogIndexEntry::File(file) => {
            if let Some(last) = known.last() {
                // File numbers have no gaps over all runs of the log (see the module), so a gap means that an
                // entry is missing.
                checked.findings.extend((last.file + 1..file.file).map(|file| LogFinding::Skipped { file }));
            }
            if file.mended {
                checked.findings.push(LogFinding::Mended { file: file.file });
            }
            checked.written += file.frames;
            checked.dropped_kernel += file.dropped_kernel;
            checked.dropped_queue += file.dropped_queue;
            checked.dropped_disk += file.dropped_disk;
            checked.numbers = file.numbers;
            known.push(file);
        }
        LogIndexEntry::Removed { file, frames, .. } => {
            checked.removed_files += 1;
            checked.removed_frames += frames;
            known.retain(|entry| entry.file != file);
        }
        LogIndexEntry::Began { .. } | LogIndexEntry::Ended { .. } => {}
    }
}

fn compare_file_with_entry(entry: &LogFileEntry, path: &Path, before: TapNumbers, checked: &mut LogCheck) {
    checked.files += 1;
    match entry.direction {
        LoggedDirection::In => checked.directions.arriving += 1,
        LoggedDirection::Both => checked.directions.both += 1,
    }
    checked.checksums.files += u64::from(entry.crc32.is_some());
    checked.checksums.files_without += u64::from(entry.crc32.is_none());
    match survey_file(path, before) {
        Ok(found) => {
            checked.frames += found.frames;
            // A wrong number of frames is more informative than a wrong checksum, so it is reported instead.
            if found.frames != entry.frames || found.is_cut {
                checked.findings.push(LogFinding::Differs {
                    file: entry.file,
                    said: entry.frames,
                    found: found.frames,
                });
            } else if entry.crc32.is_some_and(|crc32| crc32 != found.crc32) {
                checked.findings.push(LogFinding::Changed { file: entry.file });
            }
        }
        // An unreadable file is a finding; the other files are still compared.
        Err(error) => checked.findings.push(LogFinding::Damaged { file: entry.file, why: error.to_string() }),
    }
}

/// Finds the two directions of a tap anywhere in its JSON output. The output must contain exactly one tap
/// with one mirror, because there is one log.
fn find_tap_counters(value: &Value) -> Option<[TapCounters; 2]> {
    if let Some(directions) = value.get("directions").and_then(Value::as_array) {
        let [there, back] = directions.as_slice() else { return None };
        return Some([read_direction(there)?, read_direction(back)?]);
    }
    let inside: Vec<[TapCounters; 2]> = match value {
        Value::Array(values) => values.iter().filter_map(find_tap_counters).collect(),
        Value::Object(values) => values.values().filter_map(find_tap_counters).collect(),
        _ => return None,
    };
    // With several taps it is unknown which of them feeds this log.
    match inside[..] {
        [account] => Some(account),
        _ => None,
    }
}

fn read_direction(value: &Value) -> Option<TapCounters> {
    let wanted = value.get("wanted")?.as_u64()?;
    // With several mirrors it is unknown which of them feeds this log.
    let [mirror] = value.get("mirrors")?.as_array()?.as_slice() else { return None };
    Some(TapCounters { wanted, mirrored: mirror.get("mirrored").and_then(Value::as_u64) })
}
