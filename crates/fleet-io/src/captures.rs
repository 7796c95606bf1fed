//! Sends a node's captures to the fleet's operator, in ranges, on a separate thread.
//!
//! Invariant: only files in the directory of captures are read. The bytes of a run's captures that leave the node,
//! here and through the spool together, never exceed the limit that the owner of the node has set. A file is read one
//! range at a time.

use crate::error::{Error, ignore_failure};
use packetrig_fleet::captures::{
    CaptureAnswer, CaptureIdentity, CaptureName, CaptureQuestion, CaptureQuestions, CaptureRequest,
    MAX_RANGE_BYTES,
};
use packetrig_fleet::fabric;
use packetrig_report::RunId;
use packetrig_store::spool::CaptureAllowance;
use packetrig_units::{Nanos, clamp_to_u64};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, UNIX_EPOCH};

/// Interval at which the connected thread checks whether it should end.
const END_CHECK_INTERVAL: Nanos = Nanos::from_millis(500);
/// Pause before the next attempt to connect to a message server that does not answer. A request to end is noticed
/// only after the pause.
const SERVER_RETRY_PAUSE: Duration = Duration::from_secs(2);
/// Longest name of a run or file.
const MAX_NAME_BYTES: usize = 255;

/// Limits and counts the bytes of each run's captures that leave the node. All clones share the counts.
pub type SharedCaptureAllowance = Arc<Mutex<CaptureAllowance>>;

/// Opens the connection over which questions arrive; called again after an answer could not be sent.
pub type CaptureConnectionOpener =
    Box<dyn FnMut() -> Result<Box<dyn CaptureQuestions>, fabric::Error> + Send>;

/// Handle of the thread that answers questions. Dropping the handle ends the thread.
#[derive(Debug)]
pub struct CaptureServer {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CaptureServer {
    /// Serves the files below `directory`, which has one subdirectory for each run.
    pub fn start_serving(
        directory: PathBuf,
        allowance: SharedCaptureAllowance,
        open: CaptureConnectionOpener,
    ) -> Result<Self, Error> {
        let over = Arc::new(AtomicBool::new(false));
        let captures = CaptureDirectory { directory, allowance };
        let is_over = Arc::clone(&over);
        let thread = Builder::new()
            .name("captures".to_owned())
            .spawn(move || serve_questions(&captures, open, &is_over))
            .map_err(Error::Thread)?;
        Ok(Self { over, thread: Some(thread) })
    }
}

impl Drop for CaptureServer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // The thread's result is not needed any more, even if the thread panicked.
            ignore_failure(thread.join());
        }
    }
}

fn serve_questions(captures: &CaptureDirectory, mut open: CaptureConnectionOpener, over: &AtomicBool) {
    while !over.load(Ordering::Acquire) {
        let Ok(mut questions) = open() else {
            std::thread::sleep(SERVER_RETRY_PAUSE);
            continue;
        };
        while !over.load(Ordering::Acquire) {
            let Some(question) = questions.next_question(END_CHECK_INTERVAL) else { continue };
            let given = captures.answer_question(&question);
            let CaptureQuestion { asker, number, .. } = question;
            let answered = match given {
                Ok(ServedCaptureBytes { identity, bytes }) => {
                    questions.send_answer(&CaptureAnswer { asker, number, outcome: Ok(identity) }, bytes)
                }
                Err(why) => {
                    questions.send_answer(&CaptureAnswer { asker, number, outcome: Err(why) }, Vec::new())
                }
            };
            if answered.is_err() {
                // The answer could not be sent. The operator repeats the question.
                break;
            }
        }
    }
}

/// Directory of the captures, with the limit for bytes that may leave the node.
struct CaptureDirectory {
    directory: PathBuf,
    allowance: SharedCaptureAllowance,
}

/// Bytes of a capture or its hash, with the identity of the file's version (its size and modification time).
struct ServedCaptureBytes {
    identity: CaptureIdentity,
    bytes: Vec<u8>,
}

impl CaptureDirectory {
    fn answer_question(&self, question: &CaptureQuestion) -> Result<ServedCaptureBytes, String> {
        let CaptureName { run, file } = &question.capture;
        let opened = self.open_capture(run, file).map_err(|error| format!("{file} of run {run}: {error}"))?;
        // Size and time of the last write: ranges of two versions of a file must not be put together.
        let identity = read_file_identity(&opened).map_err(|error| error.to_string())?;
        let mut allowance = self.allowance.lock().unwrap_or_else(PoisonError::into_inner);
        // The first request counts the whole file. A file counts only once, however many ranges are requested.
        allowance.count_sent_file(run, file, identity.size).map_err(|error| error.to_string())?;
        // Unlocked before the range is read: the spool uses the same allowance and must not wait for the disk.
        drop(allowance);
        let bytes = match question.request {
            // A request may ask for more bytes, but memory and message have room for one range only.
            CaptureRequest::Range { offset, length } => {
                read_range(&opened, offset, length.min(MAX_RANGE_BYTES))
            }
            CaptureRequest::Sha256 => sha256_of_file(&opened),
        };
        let bytes = bytes.map_err(|error| format!("{file} of run {run}: {error}"))?;
        Ok(ServedCaptureBytes { identity, bytes })
    }

    fn open_capture(&self, run: &RunId, file: &str) -> io::Result<File> {
        if !is_plain_file_name(&run.0) || !is_plain_file_name(file) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the name of the run or file is not valid",
            ));
        }
        let path = self.directory.join(&run.0).join(file);
        // A symbolic link could lead out of the directory.
        if !std::fs::symlink_metadata(&path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the capture is not a regular file"));
        }
        File::open(path)
    }
}

/// Returns true if this is a valid file name: not a path, not hidden, only letters, digits and `-_.=`.
fn is_plain_file_name(name: &str) -> bool {
    let has_plain_characters =
        name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '='));
    // A dot at the beginning would allow `..`. Linux allows 255 bytes for the name of a file (NAME_MAX).
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.starts_with('.') && has_plain_characters
}

fn read_file_identity(file: &File) -> io::Result<CaptureIdentity> {
    let known = file.metadata()?;
    let modified = known.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    let modified_ns = clamp_to_u64(modified.as_nanos());
    Ok(CaptureIdentity { size: known.len(), modified_ns })
}

fn read_range(file: &File, offset: u64, length: u32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        // At the end of the file there are fewer bytes; the asker compares their number with the size.
        match file.read_at(&mut bytes[filled..], offset.saturating_add(filled as u64))? {
            0 => break,
            count => filled += count,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Computes the SHA-256 hash of a file. Reads the file in pieces, so that a large file does not fill the memory.
pub(crate) fn sha256_of_file(mut file: &File) -> io::Result<Vec<u8>> {
    let mut hash = Sha256::new();
    let mut piece = vec![0; MAX_RANGE_BYTES as usize];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hash.finalize().to_vec()),
            count => hash.update(&piece[..count]),
        }
    }
}

/// Computes the SHA-256 hash of the file at `path`.
pub(crate) fn sha256_of_path(path: &Path) -> io::Result<Vec<u8>> {
    sha256_of_file(&File::open(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_store::spool::{ResultSpool, SpoolLimits};

    fn captures(place: &Path, per_run: u64) -> CaptureDirectory {
        let limits = SpoolLimits { bytes: 1 << 20, keep_free: 0 };
        let spool = ResultSpool::open_or_create(&place.join("spool"), limits, Box::new(|_| None)).unwrap();
        let allowance = Arc::new(Mutex::new(spool.open_capture_allowance(per_run).unwrap()));
        CaptureDirectory { directory: place.join("captures"), allowance }
    }

    fn give(
        captures: &CaptureDirectory,
        run: &str,
        file: &str,
        request: CaptureRequest,
    ) -> Result<Vec<u8>, String> {
        let capture = CaptureName { run: RunId(run.into()), file: file.into() };
        captures
            .answer_question(&CaptureQuestion { asker: 1, number: 1, capture, request })
            .map(|given| given.bytes)
    }

    const ALL: CaptureRequest = CaptureRequest::Range { offset: 0, length: u32::MAX };

    #[test]
    fn capture_ranges_expose_no_other_files() {
        let place = tempfile::tempdir().unwrap();
        let of_run = place.path().join("captures/r1");
        std::fs::create_dir_all(&of_run).unwrap();
        let bytes: Vec<u8> = (0..600_000_u32).map(|n| (n % 251) as u8).collect();
        std::fs::write(of_run.join("rx.pcapng"), &bytes).unwrap();
        std::fs::write(place.path().join("secret"), b"key").unwrap();
        std::os::unix::fs::symlink("../../secret", of_run.join("link")).unwrap();
        let captures = captures(place.path(), u64::MAX);
        assert_eq!(give(&captures, "r1", "rx.pcapng", ALL).unwrap(), bytes[..MAX_RANGE_BYTES as usize]);
        let end = CaptureRequest::Range { offset: 599_990, length: 100 };
        assert_eq!(give(&captures, "r1", "rx.pcapng", end).unwrap(), bytes[599_990..]);
        assert_eq!(
            give(&captures, "r1", "rx.pcapng", CaptureRequest::Sha256).unwrap(),
            Sha256::digest(&bytes).to_vec()
        );
        for (run, file) in
            [("r1", "../../secret"), ("..", "secret"), ("r1", "link"), ("", "secret"), ("r1", "")]
        {
            assert!(give(&captures, run, file, ALL).is_err(), "{run}/{file}");
        }
    }

    #[test]
    fn capture_limit_counts_each_file_once() {
        let place = tempfile::tempdir().unwrap();
        let of_run = place.path().join("captures/r1");
        std::fs::create_dir_all(&of_run).unwrap();
        for file in ["one", "two"] {
            std::fs::write(of_run.join(file), vec![7; 60_000]).unwrap();
        }
        let captures = captures(place.path(), 100_000);
        for offset in [0, 10_000, 0] {
            give(&captures, "r1", "one", CaptureRequest::Range { offset, length: 50_000 }).unwrap();
        }
        let refused = give(&captures, "r1", "two", ALL).unwrap_err();
        assert!(refused.contains("the limit of 100000 B"), "{refused}");
    }
}
