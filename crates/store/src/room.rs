//! Disk space for a report, reserved before the run begins, so that a capture that fills the disk cannot take it.

use crate::Error;
use crate::spool::is_full_disk_kind;
use packetrig_sys::disk;
use std::path::{Path, PathBuf};

/// Minimum space for a report. The smallest one needs far less, but caveats and reasons cannot
/// be predicted from the plan.
const MIN_RESERVED_BYTES: u64 = 4 << 20;
/// Space for a row of the catalogue: pages of its tables and of its write-ahead log.
const CATALOGUE_ROW_BYTES: u64 = 256 << 10;
/// Bytes for the row of a stream or a port, in all files together.
const BYTES_PER_ROW: u64 = 6 << 10;
/// Bytes for one second of one series, in all files together, without the name of its stream or port.
const BYTES_PER_SECOND: u64 = 320;
/// Seconds of a run without an end for which space is reserved.
const ENDLESS_RUN_SECONDS: u64 = 600;
/// Largest space that is reserved. A larger report depends on the free space when it is written.
const MAX_RESERVED_BYTES: u64 = 64 << 20;

/// The parts of a plan that determine the size of its report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportSize {
    pub document_bytes: u64,
    pub streams: u64,
    pub ports: u64,
    /// Length of the longest name of a stream or port.
    pub name_bytes: u64,
    /// Seconds for which the run sends and waits; `None` if it has no end.
    pub seconds: Option<u64>,
}

impl ReportSize {
    /// Number of bytes to reserve for the files of the report.
    pub fn wanted_bytes(&self) -> u64 {
        let rows = self.streams.saturating_add(self.ports);
        // A minute more than planned, because a run may take longer.
        let seconds = self.seconds.map_or(ENDLESS_RUN_SECONDS, |seconds| seconds.saturating_add(60));
        let per_second = BYTES_PER_SECOND.saturating_add(self.name_bytes.saturating_mul(3));
        let per_row = BYTES_PER_ROW
            .saturating_add(self.name_bytes.saturating_mul(16))
            .saturating_add(seconds.saturating_mul(per_second));
        let all = rows
            .saturating_mul(per_row)
            .saturating_add(self.document_bytes)
            .saturating_add(MIN_RESERVED_BYTES);
        all.min(MAX_RESERVED_BYTES)
    }
}

/// Placeholder files that reserve disk space, and are removed on drop.
#[derive(Debug, Default)]
pub(crate) struct ReportSpaceReservation {
    files: Option<PathBuf>,
    row: Option<PathBuf>,
}

impl ReportSpaceReservation {
    /// Reserves space in `directory`. Replaces the placeholders that an earlier process has left there.
    pub(crate) fn reserve_space_in(directory: &Path, size: ReportSize) -> Result<Self, Error> {
        let mut room = Self::default();
        room.files = Some(create_reserve_file(directory, "files", size.wanted_bytes())?);
        // If this fails, dropping `room` removes the file that reserves the space for the files.
        room.row = Some(create_reserve_file(directory, "row", CATALOGUE_ROW_BYTES)?);
        Ok(room)
    }

    /// Frees the space that is reserved for the files of the report.
    pub(crate) fn release_file_space(&mut self) {
        release_file(&mut self.files);
    }

    /// Frees the space that is reserved for the row. The placeholder may have moved to `directory` in the meantime.
    pub(crate) fn release_row_space(&mut self, directory: &Path) {
        // When the run's directory is renamed, the placeholder moves with it.
        if let Some(name) = self.row.as_ref().and_then(|row| row.file_name()) {
            self.row = Some(directory.join(name));
        }
        release_file(&mut self.row);
    }
}

impl Drop for ReportSpaceReservation {
    fn drop(&mut self) {
        release_file(&mut self.files);
        release_file(&mut self.row);
    }
}

/// First part of the names of placeholder files, which are not content of a run.
pub(crate) const RESERVED_FILE_PREFIX: &str = ".room-for-";

fn create_reserve_file(directory: &Path, what: &str, bytes: u64) -> Result<PathBuf, Error> {
    let path = directory.join(format!("{RESERVED_FILE_PREFIX}{what}"));
    match disk::create_file_with_reserved_space(&path, bytes) {
        Ok(()) => Ok(path),
        Err(error) if is_full_disk_kind(error.kind()) => {
            let free = disk::free_bytes(directory).unwrap_or(0);
            Err(Error::NoRoom { path: directory.to_owned(), wanted: bytes, free })
        }
        Err(error) => Err(Error::file("reserve space in", &path)(error)),
    }
}

fn release_file(path: &mut Option<PathBuf>) {
    if let Some(path) = path.take() {
        // This fails only if the file was removed already and so takes no space.
        drop(std::fs::remove_file(path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::write_run_files;
    use crate::sample::report;
    use packetrig_stats::series::{QualitySecond, RateSeries};

    #[test]
    fn reserved_report_space_covers_largest_numbers() {
        let (seconds, streams) = (300, 40);
        let mut long = RateSeries::default();
        long.seconds = vec![(u64::MAX / 100_000, u64::MAX / 1000); seconds + 60];
        let mut full = report("r");
        let mut stream = full.streams[0].clone();
        stream.sent.iter_mut().for_each(|sent| sent.series = long.clone());
        let second = QualitySecond { lost: 9_999_999, delayed: 9_999_999, ..QualitySecond::default() };
        if let Some(got) = &mut stream.received {
            got.series = long.clone();
            got.quality.seconds = vec![second; seconds + 60];
            got.quality.percentiles = vec![Some([9_999_999_999; 2]).into(); seconds + 60];
        }
        full.streams = vec![stream; streams];
        full.ports[0].tx_series = long.clone();
        full.ports[0].rx_series = long;
        let place = tempfile::tempdir().unwrap();
        write_run_files(place.path(), &full, "flows: []", crate::files::PageChoice::Write).unwrap();
        let sizes =
            std::fs::read_dir(place.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len());
        let size = ReportSize {
            document_bytes: 9,
            streams: streams as u64,
            ports: 1,
            name_bytes: full.streams[0].name.len() as u64,
            seconds: Some(seconds as u64),
        };
        let written: u64 = sizes.sum();
        assert!(written > 1 << 20, "{written}");
        assert!(
            size.wanted_bytes() - MIN_RESERVED_BYTES > written,
            "{} {written}",
            size.wanted_bytes() - MIN_RESERVED_BYTES
        );
        assert!(
            size.wanted_bytes() < 4 * written + 2 * MIN_RESERVED_BYTES,
            "{} {written}",
            size.wanted_bytes()
        );
    }

    #[test]
    fn sizes_have_a_floor_and_a_ceiling() {
        assert!(ReportSize::default().wanted_bytes() >= MIN_RESERVED_BYTES);
        let huge = ReportSize { streams: u64::MAX, seconds: Some(u64::MAX), ..ReportSize::default() };
        assert_eq!(huge.wanted_bytes(), MAX_RESERVED_BYTES);
    }
}
