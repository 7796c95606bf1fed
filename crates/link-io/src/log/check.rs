//! Compares a log's index with its files, and both with the counters of the tap whose copies the log keeps.
//!
//! Every byte is compared: a file by the checksum in its entry, an entry by the one in its line. Logs of older versions have none.
//! It changes nothing. A file that is being written is not in the index yet; it is counted, not checked.

use super::index::{DamagedLine, FileEntry, IndexContent, IndexEntry};
use super::keeper::{index_of, is_held};
use super::{Error, files, survey};
use packetrig_engine::capture::numbers::{NumberedDirection, TapNumbers};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

/// What is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub enum LogFinding {
    /// A file of the index is gone, although the log did not remove it.
    Gone { file: u64 },
    /// A file holds other frames than the index says.
    Differs {
        file: u64,
        /// What the index says.
        said: u64,
        found: u64,
    },
    /// A number that no file ever had.
    Skipped { file: u64 },
    /// A file has other bytes than were written to it, although it has as many frames.
    Changed { file: u64 },
    /// A line of the index is not as it was written.
    IndexDamaged {
        /// From 1.
        line: u64,
        why: String,
    },
    /// The index ends within a line, and no log is running: it was killed, or the index is damaged.
    IndexCut,
    /// A file that cannot be read.
    Damaged { file: u64, why: String },
    /// A log was killed: what it had not written yet is lost. Only trailers tell how many frames that were.
    Mended {
        /// The file it was writing.
        file: u64,
    },
}

/// What the tap says of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TapBooks {
    /// Frames to be copied: the highest number it gave.
    pub wanted: u64,
    /// Copies that the mirror's driver took; `None` if that is not known.
    pub mirrored: Option<u64>,
}

/// What was compared by checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogChecksums {
    /// Files with a checksum in the index.
    pub files: u64,
    /// Files without one, written by an older version.
    pub files_without: u64,
    /// Lines of the index with a checksum.
    pub lines: u64,
    /// Lines without one, written by an older version.
    pub lines_without: u64,
}

/// What came of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogCheck {
    /// Complete files in the directory.
    pub files: u64,
    /// Frames in them, counted.
    pub frames: u64,
    /// Frames ever written to files, those removed included.
    pub written: u64,
    /// Files removed as the log was told to.
    pub removed_files: u64,
    pub removed_frames: u64,
    /// Frames that the logger lost in the kernel's ring, for the files still in the directory.
    pub dropped_kernel: u64,
    /// The disk was too slow.
    pub dropped_queue: u64,
    pub dropped_disk: u64,
    /// Files that are not in the index yet: being written, or left by a process that was killed.
    pub open_files: u64,
    pub checksums: LogChecksums,
    /// What trailers say, by direction.
    pub numbers: TapNumbers,
    /// What the tap says, by direction.
    pub tap: Option<[TapBooks; 2]>,
    /// What is not as it should be.
    pub findings: Vec<LogFinding>,
}

/// Why the number of copies that the log lacks is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "doubt", rename_all = "snake_case")]
pub enum LogDoubt {
    /// The log has this many frames more than the tap's counters, which were saved before the log ended. Without
    /// trailers, some of them may not be copies at all.
    Older { frames: u64 },
    /// The tap restarted while it was logged: its counters are those of the last run only.
    Anew { times: u64 },
}

impl LogCheck {
    /// Copies that left the tap and are not in the log, by direction; `None` where either side does not know, or where the tap's
    /// books are not of the same copies ([`LogCheck::doubt`]). Without trailers the log does not know directions, so only
    /// their sum is known ([`LogCheck::lost_in_all`]).
    pub fn lost(&self) -> [Option<u64>; 2] {
        [self.lost_in(0), self.lost_in(1)]
    }

    fn lost_in(&self, direction: usize) -> Option<u64> {
        // A difference of two counts means "lost" only if both count the same copies. A tap that restarted counts
        // from zero again; a log that is ahead of the tap's saved counters was compared with an old copy of them.
        if !self.is_numbered() || self.times_anew() > 0 || self.newer(direction)? > 0 {
            return None;
        }
        let mirrored = self.tap?[direction].mirrored?;
        Some(mirrored.saturating_sub(self.numbered(direction).seen))
    }

    /// The same over both directions, by counting frames: those written or dropped by the logger have arrived.
    pub fn lost_in_all(&self) -> Option<u64> {
        if self.times_anew() > 0 {
            return None;
        }
        self.mirrored_in_all()?.checked_sub(self.written)
    }

    /// Why the number of lost copies is not known, although the tap's counters are.
    pub fn doubt(&self) -> Option<LogDoubt> {
        self.tap?;
        let times = self.times_anew();
        if times > 0 {
            return Some(LogDoubt::Anew { times });
        }
        let frames = if self.is_numbered() {
            self.newer(0).unwrap_or(0) + self.newer(1).unwrap_or(0)
        } else {
            self.written.saturating_sub(self.mirrored_in_all()?)
        };
        (frames > 0).then_some(LogDoubt::Older { frames })
    }

    /// How many frames the log has beyond the tap's counters.
    fn newer(&self, direction: usize) -> Option<u64> {
        let tap = self.tap?[direction];
        let numbered = self.numbered(direction);
        let uncounted = tap.mirrored.map_or(0, |mirrored| numbered.seen.saturating_sub(mirrored));
        Some(numbered.last.saturating_sub(tap.wanted).max(uncounted))
    }

    /// Whether copies come with trailers: then a direction without any has none.
    fn is_numbered(&self) -> bool {
        self.numbers.iter().any(Option::is_some)
    }

    fn numbered(&self, direction: usize) -> NumberedDirection {
        self.numbers[direction].unwrap_or_default()
    }

    fn times_anew(&self) -> u64 {
        self.numbers.iter().flatten().map(|numbered| numbered.anew).sum()
    }

    fn mirrored_in_all(&self) -> Option<u64> {
        let [there, back] = self.tap?;
        Some(there.mirrored? + back.mirrored?)
    }

    /// Whether something is known to be missing.
    pub fn is_incomplete(&self) -> bool {
        let numbered = self.numbers.iter().flatten();
        let gaps: u64 = numbered.map(|numbered| numbered.missing + numbered.absent).sum();
        let dropped = self.dropped_kernel + self.dropped_queue + self.dropped_disk;
        let by_tap = if self.is_numbered() {
            self.lost().into_iter().flatten().any(|lost| lost > 0)
        } else {
            self.lost_in_all().unwrap_or(0) > 0
        };
        gaps > 0 || dropped > 0 || by_tap || !self.findings.is_empty()
    }
}

/// Checks the log in a directory; `tap` is what `packetrig tap` printed as JSON.
pub fn check(directory: &Path, tap: Option<(&Path, &str)>) -> Result<LogCheck, Error> {
    // Before and after: a line that a running log is writing is no damage.
    let was_held = is_held(directory);
    let content = IndexContent::read(directory)?;
    if content.entries.is_empty() && content.damaged.is_empty() {
        return Err(Error::Damaged {
            path: index_of(directory),
            why: "not found, so this is not the directory of \
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
    if content.ends_within_line && !was_held && !is_held(directory) {
        checked.findings.push(LogFinding::IndexCut);
    }
    if let Some((path, text)) = tap {
        let books = serde_json::from_str(text).ok().and_then(|value: Value| books(&value));
        checked.tap = Some(books.ok_or_else(|| Error::Damaged {
            path: path.to_owned(),
            why: "it does not hold the counters of one tap with one mirror; write it with `packetrig tap status \
                NAME --json`"
                .into(),
        })?);
    }
    let there = files(directory)?;
    let mut known: Vec<FileEntry> = Vec::new();
    for entry in content.entries {
        take(entry, &mut known, &mut checked);
    }
    checked.numbers = known.last().map_or(checked.numbers, |file| file.numbers);
    let mut before: TapNumbers = [None; 2];
    for entry in &known {
        match there.iter().find(|(number, _)| *number == entry.file) {
            // One that was never made, because the disk was full: what was for it is among what the disk lost.
            None if entry.frames == 0 && entry.size == 0 => {}
            None => checked.findings.push(LogFinding::Gone { file: entry.file }),
            Some((_, path)) => hold(entry, path, before, &mut checked),
        }
        before = entry.numbers;
    }
    let open = there.iter().filter(|(number, _)| !known.iter().any(|entry| entry.file == *number));
    checked.open_files = open.count() as u64;
    Ok(checked)
}

fn take(entry: IndexEntry, known: &mut Vec<FileEntry>, checked: &mut LogCheck) {
    match entry {
        IndexEntry::Before { files, frames, .. } => {
            checked.removed_files += files;
            checked.removed_frames += frames;
            checked.written += frames;
        }
        IndexEntry::File(file) => {
            if let Some(last) = known.last() {
                // Numbers have no gap over all runs of the log (see the module), so a gap means that an entry is
                // missing.
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
        IndexEntry::Removed { file, frames, .. } => {
            checked.removed_files += 1;
            checked.removed_frames += frames;
            known.retain(|entry| entry.file != file);
        }
        IndexEntry::Began { .. } | IndexEntry::Ended { .. } => {}
    }
}

fn hold(entry: &FileEntry, path: &Path, before: TapNumbers, checked: &mut LogCheck) {
    checked.files += 1;
    checked.checksums.files += u64::from(entry.crc32.is_some());
    checked.checksums.files_without += u64::from(entry.crc32.is_none());
    match survey(path, before) {
        Ok(found) => {
            checked.frames += found.frames;
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
        Err(error) => checked.findings.push(LogFinding::Damaged { file: entry.file, why: error.to_string() }),
    }
}

/// The two directions of a tap, wherever they are in what it printed; of one tap and one mirror, for there is one log.
fn books(value: &Value) -> Option<[TapBooks; 2]> {
    if let Some(directions) = value.get("directions").and_then(Value::as_array) {
        let [there, back] = directions.as_slice() else { return None };
        return Some([direction(there)?, direction(back)?]);
    }
    let inside: Vec<[TapBooks; 2]> = match value {
        Value::Array(values) => values.iter().filter_map(books).collect(),
        Value::Object(values) => values.values().filter_map(books).collect(),
        _ => return None,
    };
    match inside[..] {
        [books] => Some(books),
        _ => None,
    }
}

fn direction(value: &Value) -> Option<TapBooks> {
    let wanted = value.get("wanted")?.as_u64()?;
    let [mirror] = value.get("mirrors")?.as_array()?.as_slice() else { return None };
    Some(TapBooks { wanted, mirrored: mirror.get("mirrored").and_then(Value::as_u64) })
}
