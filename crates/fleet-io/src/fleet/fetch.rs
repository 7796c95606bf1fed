//! Fetches a capture from a node, range by range, into a file; continues where an earlier attempt stopped.
//!
//! ```text
//! <target>.part        the bytes that were received, from the beginning
//! <target>.part.json   the identity of their capture
//! ```
//! Invariant: a fetched file gets the name `target` only when it is whole and has the hash that the node reports. At
//! most [`MAX_RANGES_AHEAD`] ranges are in memory at once.

use crate::agent::now;
use crate::captures::sha256_of_path;
use crate::error::ignore_failure;
use packetrig_fleet::captures::{
    CaptureAnswer, CaptureAnswers, CaptureIdentity, CaptureName, CaptureRequest, MAX_RANGE_BYTES,
    MAX_RANGES_AHEAD,
};
use packetrig_fleet::fabric;
use packetrig_sys::private_files;
use packetrig_units::Nanos;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Wait for an answer before the question is repeated.
const ANSWER_TIMEOUT: Nanos = Nanos::from_secs(3);
/// Number of unanswered questions in a row after which the node counts as silent.
const MAX_UNANSWERED_QUESTIONS: u32 = 5;
/// Time to wait for a hash: the node must read the whole file for it.
const FILE_HASH_TIMEOUT: Nanos = Nanos::from_secs(600);
/// Interval at which the fetch checks whether the user wants to end it.
const END_CHECK_INTERVAL: Nanos = Nanos::from_millis(200);

/// Reason why a capture was not fetched. After most errors the fetched part stays, and the
/// next attempt continues there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The node refused, with its reason.
    #[error("{0}")]
    Refused(String),
    /// The node does not answer.
    #[error(
        "the node does not answer; bytes that were fetched are kept, and the next attempt continues after them"
    )]
    Silent,
    /// The user has interrupted the fetch.
    #[error("interrupted; bytes that were fetched are kept, and the next attempt continues after them")]
    Interrupted,
    /// The fetched bytes differ from the file on the node.
    #[error(
        "the fetched capture has another hash than the file on the node, so the fetched copy was removed; fetch it again"
    )]
    Differs,
    #[error(transparent)]
    Fabric(#[from] fabric::Error),
    /// A file on this machine could not be read or written.
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
}

/// Progress of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchProgress {
    /// Number of bytes that earlier attempts had fetched.
    pub resumed_at: u64,
    /// Number of bytes that were fetched so far, including earlier attempts.
    pub done: u64,
    /// Size of the capture, in bytes.
    pub size: u64,
}

/// Callbacks of a fetch: progress reports, and whether to continue.
pub struct FetchUser<'a> {
    /// Called with the progress.
    pub progress: &'a mut dyn FnMut(FetchProgress),
    /// Returns whether the user wants to continue.
    pub goes_on: &'a dyn Fn() -> bool,
}

impl std::fmt::Debug for FetchUser<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FetchUser").finish_non_exhaustive()
    }
}

/// Fetches a capture to `target`. An existing file is compared by its hash. If it differs, it is removed and fetched
/// again.
pub fn fetch_capture(
    node: &mut dyn CaptureAnswers,
    capture: &CaptureName,
    target: &Path,
    user: &mut FetchUser<'_>,
) -> Result<(), FetchError> {
    if target.exists() {
        let hash =
            request_until_answered(node, capture, CaptureRequest::Sha256, FILE_HASH_TIMEOUT, user.goes_on)?
                .bytes;
        if sha256_of_path(target).map_err(file_error(target))? == hash {
            return Ok(());
        }
        fs::remove_file(target).map_err(file_error(target))?;
    }
    let mut fetch = CaptureFetch::begin_fetch(node, capture, target)?;
    fetch.fetch_ranges(user)?;
    fetch.finish_fetch(target, user)
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> FetchError {
    let path = path.to_owned();
    move |source| FetchError::File { path, source }
}

fn path_beside(target: &Path, ending: &str) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    target.with_file_name(name)
}

struct CaptureFetch<'a> {
    node: &'a mut dyn CaptureAnswers,
    capture: &'a CaptureName,
    identity: CaptureIdentity,
    part: PathBuf,
    note: PathBuf,
    file: File,
    progress: FetchProgress,
    /// Number and offset of each unanswered question. The node answers in order.
    asked: VecDeque<(u64, u64)>,
}

impl<'a> CaptureFetch<'a> {
    fn begin_fetch(
        node: &'a mut dyn CaptureAnswers,
        capture: &'a CaptureName,
        target: &Path,
    ) -> Result<Self, FetchError> {
        // An empty range brings the identity of the file and no bytes.
        let nothing = CaptureRequest::Range { offset: 0, length: 0 };
        let identity = request_until_answered(node, capture, nothing, ANSWER_TIMEOUT, &|| true)?.identity;
        let part = path_beside(target, ".part");
        let note = path_beside(target, ".part.json");
        let known: Option<CaptureIdentity> =
            fs::read(&note).ok().and_then(|text| serde_json::from_slice(&text).ok());
        if known != Some(identity) {
            // This is the first attempt, or another capture with the same name. The part is emptied before the note is
            // written: a crash in between must not leave old bytes beside the new identity.
            private_files::create_file(&part).map_err(file_error(&part))?;
            let text = serde_json::to_vec(&identity).map_err(|error| file_error(&note)(error.into()))?;
            private_files::write_file(&note, text).map_err(file_error(&note))?;
        }
        let file = private_files::open_or_create(&part).map_err(file_error(&part))?;
        // A part that is too long is cut at the end; the hash then shows whether the remaining bytes are right.
        let done = file.metadata().map_err(file_error(&part))?.len().min(identity.size);
        let progress = FetchProgress { resumed_at: done, done, size: identity.size };
        Ok(Self { node, capture, identity, part, note, file, progress, asked: VecDeque::new() })
    }

    /// Requests ranges until all bytes have arrived.
    fn fetch_ranges(&mut self, user: &mut FetchUser<'_>) -> Result<(), FetchError> {
        (user.progress)(self.progress);
        let mut failures = 0;
        let mut waits_until = now() + ANSWER_TIMEOUT;
        while self.progress.done < self.progress.size {
            if !(user.goes_on)() {
                return Err(FetchError::Interrupted);
            }
            self.request_ranges()?;
            if let Some((answer, bytes)) = self.node.next_answer(END_CHECK_INTERVAL) {
                if self.accept_answer(answer, &bytes)? {
                    failures = 0;
                    waits_until = now() + ANSWER_TIMEOUT;
                    (user.progress)(self.progress);
                }
            } else if now() >= waits_until {
                failures += 1;
                if failures == MAX_UNANSWERED_QUESTIONS {
                    return Err(FetchError::Silent);
                }
                // Answers come in order: after a lost answer, all missing ranges are requested again.
                self.asked.clear();
                waits_until = now() + ANSWER_TIMEOUT;
            }
        }
        Ok(())
    }

    fn request_ranges(&mut self) -> Result<(), FetchError> {
        // Only the last range is shorter, so the number of ranges gives the next offset.
        let mut offset = self.progress.done + self.asked.len() as u64 * u64::from(MAX_RANGE_BYTES);
        while self.asked.len() < MAX_RANGES_AHEAD && offset < self.progress.size {
            let number = self
                .node
                .send_question(self.capture, CaptureRequest::Range { offset, length: MAX_RANGE_BYTES })?;
            self.asked.push_back((number, offset));
            offset += u64::from(MAX_RANGE_BYTES);
        }
        Ok(())
    }

    /// Writes the range of an answer if it is the next one; returns whether it was.
    fn accept_answer(&mut self, answer: CaptureAnswer, bytes: &[u8]) -> Result<bool, FetchError> {
        let Some((number, offset)) = self.asked.front().copied() else { return Ok(false) };
        if answer.number != number {
            // This answers a request that was given up, or it came after a lost answer.
            return Ok(false);
        }
        let identity = answer.outcome.map_err(FetchError::Refused)?;
        let whole = u64::from(MAX_RANGE_BYTES).min(self.progress.size - offset);
        if identity != self.identity || bytes.len() as u64 != whole {
            return Err(FetchError::Refused(
                "the capture has changed on the node; fetch it again".to_owned(),
            ));
        }
        // Ranges are written in order: the next attempt treats the length of the part as the number of received bytes.
        self.file.write_all_at(bytes, offset).map_err(file_error(&self.part))?;
        self.asked.pop_front();
        // The offset advances only after the write: the next attempt relies on it.
        self.progress.done = offset + whole;
        Ok(true)
    }

    fn finish_fetch(self, target: &Path, user: &FetchUser<'_>) -> Result<(), FetchError> {
        // The bytes are on the disk before the part gets its final name, because
        // a file at `target` counts as whole.
        self.file
            .set_len(self.progress.size)
            .and_then(|()| self.file.sync_all())
            .map_err(file_error(&self.part))?;
        let hash = request_until_answered(
            self.node,
            self.capture,
            CaptureRequest::Sha256,
            FILE_HASH_TIMEOUT,
            user.goes_on,
        )?
        .bytes;
        let is_same = sha256_of_path(&self.part).map_err(file_error(&self.part))? == hash;
        if is_same {
            fs::rename(&self.part, target).map_err(file_error(target))?;
        } else {
            // It is unknown which range is wrong, so all ranges must be fetched again.
            fs::remove_file(&self.part).map_err(file_error(&self.part))?;
        }
        // A note without its part has no meaning, so a leftover note does no harm.
        ignore_failure(fs::remove_file(&self.note));
        if is_same { Ok(()) } else { Err(FetchError::Differs) }
    }
}

/// An answer of the node.
struct NodeAnswer {
    identity: CaptureIdentity,
    bytes: Vec<u8>,
}

/// Sends a request, and repeats it until the node answers or counts as silent.
fn request_until_answered(
    node: &mut dyn CaptureAnswers,
    capture: &CaptureName,
    request: CaptureRequest,
    timeout: Nanos,
    goes_on: &dyn Fn() -> bool,
) -> Result<NodeAnswer, FetchError> {
    for _ in 0..MAX_UNANSWERED_QUESTIONS {
        let number = node.send_question(capture, request)?;
        let until = now() + timeout;
        while now() < until {
            if !goes_on() {
                return Err(FetchError::Interrupted);
            }
            let Some((answer, bytes)) = node.next_answer(END_CHECK_INTERVAL) else { continue };
            if answer.number == number {
                let identity = answer.outcome.map_err(FetchError::Refused)?;
                return Ok(NodeAnswer { identity, bytes });
            }
        }
    }
    Err(FetchError::Silent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_fleet::captures::CaptureQuestion;
    use packetrig_report::RunId;
    use sha2::{Digest, Sha256};

    /// A node with one capture, over a connection that may lose answers or break.
    struct CaptureNode {
        bytes: Vec<u8>,
        modified_ns: u64,
        waiting: VecDeque<CaptureQuestion>,
        asked: u64,
        /// The answer to this question is lost.
        loses: Option<u64>,
        /// Number of questions after which nothing is answered any more.
        breaks_at: u64,
    }

    impl CaptureNode {
        fn with(bytes: Vec<u8>) -> Self {
            Self {
                bytes,
                modified_ns: 1,
                waiting: VecDeque::new(),
                asked: 0,
                loses: None,
                breaks_at: u64::MAX,
            }
        }
    }

    impl CaptureAnswers for CaptureNode {
        fn send_question(
            &mut self,
            capture: &CaptureName,
            request: CaptureRequest,
        ) -> Result<u64, fabric::Error> {
            self.asked += 1;
            if self.asked > self.breaks_at {
                return Err(fabric::Error::Down("cut".into()));
            }
            let number = self.asked;
            self.waiting.push_back(CaptureQuestion { asker: 1, number, capture: capture.clone(), request });
            assert!(self.waiting.len() <= MAX_RANGES_AHEAD, "more is asked for than there is room");
            Ok(number)
        }

        fn next_answer(&mut self, _: Nanos) -> Option<(CaptureAnswer, Vec<u8>)> {
            let CaptureQuestion { asker, number, request, .. } = self.waiting.pop_front()?;
            if self.loses == Some(number) {
                std::thread::sleep(std::time::Duration::from_millis(1));
                return None;
            }
            let bytes = match request {
                CaptureRequest::Sha256 => Sha256::digest(&self.bytes).to_vec(),
                CaptureRequest::Range { offset, length } => {
                    let rest = &self.bytes[usize::try_from(offset).unwrap()..];
                    rest[..rest.len().min(length as usize)].to_vec()
                }
            };
            let size = self.bytes.len() as u64;
            let outcome = Ok(CaptureIdentity { size, modified_ns: self.modified_ns });
            Some((CaptureAnswer { asker, number, outcome }, bytes))
        }
    }

    fn bytes(count: u32) -> Vec<u8> {
        (0..count).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    fn fetch(node: &mut CaptureNode, target: &Path) -> (Result<(), FetchError>, Vec<FetchProgress>) {
        let capture = CaptureName { run: RunId("r".into()), file: "rx.pcapng".into() };
        let mut told = Vec::new();
        let mut progress = |progress| told.push(progress);
        let mut user = FetchUser { progress: &mut progress, goes_on: &|| true };
        let fetched = fetch_capture(node, &capture, target, &mut user);
        (fetched, told)
    }

    const PIECES: u32 = 20;

    #[test]
    fn interrupted_fetch_resumes_at_its_offset() {
        let place = tempfile::tempdir().unwrap();
        let target = place.path().join("a-rx.pcapng");
        let whole = bytes(MAX_RANGE_BYTES * PIECES + 77);
        let mut node = CaptureNode { breaks_at: 12, ..CaptureNode::with(whole.clone()) };
        assert!(matches!(fetch(&mut node, &target).0, Err(FetchError::Fabric(_))));
        assert!(!target.exists());
        let mut node = CaptureNode::with(whole.clone());
        let (fetched, told) = fetch(&mut node, &target);
        fetched.unwrap();
        assert!(told[0].resumed_at >= u64::from(MAX_RANGE_BYTES) * 6, "{:?}", told[0]);
        let left = whole.len() as u64 - told[0].resumed_at;
        assert_eq!(
            node.asked,
            left.div_ceil(u64::from(MAX_RANGE_BYTES)) + 2,
            "each missing range once, size and hash"
        );
        assert_eq!(fs::read(&target).unwrap(), whole);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "nothing is left beside it");
        // It is there: only compared.
        let mut node = CaptureNode::with(whole);
        fetch(&mut node, &target).0.unwrap();
        assert_eq!(node.asked, 1);
    }

    #[test]
    fn lost_capture_answer_is_requested_again() {
        let place = tempfile::tempdir().unwrap();
        let target = place.path().join("x");
        let mut node = CaptureNode { loses: Some(5), ..CaptureNode::with(bytes(MAX_RANGE_BYTES * PIECES)) };
        fetch(&mut node, &target).0.unwrap();
        assert_eq!(fs::read(&target).unwrap(), node.bytes);
        assert!(node.asked <= u64::from(PIECES) + 2 + MAX_RANGES_AHEAD as u64, "{}", node.asked);
    }

    #[test]
    fn changed_capture_is_refetched_and_corruption_detected() {
        let place = tempfile::tempdir().unwrap();
        let target = place.path().join("x");
        let mut cut = CaptureNode { breaks_at: 12, ..CaptureNode::with(bytes(MAX_RANGE_BYTES * PIECES)) };
        assert!(fetch(&mut cut, &target).0.is_err());
        let mut other =
            CaptureNode { modified_ns: 2, ..CaptureNode::with(vec![9; (MAX_RANGE_BYTES * PIECES) as usize]) };
        let (fetched, told) = fetch(&mut other, &target);
        assert!(fetched.is_ok() && told[0].resumed_at == 0, "{told:?}");
        assert_eq!(fs::read(&target).unwrap(), other.bytes);
        fs::remove_file(&target).unwrap();
        let mut cut = CaptureNode { breaks_at: 12, ..CaptureNode::with(other.bytes.clone()) };
        assert!(fetch(&mut cut, &target).0.is_err());
        let part = place.path().join("x.part");
        let mut damaged = fs::read(&part).unwrap();
        damaged[3] ^= 1;
        fs::write(&part, damaged).unwrap();
        assert!(matches!(
            fetch(&mut CaptureNode::with(other.bytes.clone()), &target).0,
            Err(FetchError::Differs)
        ));
        assert!(!target.exists());
        fetch(&mut CaptureNode::with(other.bytes.clone()), &target).0.unwrap();
    }
}
