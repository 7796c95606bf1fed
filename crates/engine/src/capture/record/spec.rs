//! Parameters of a recording and the names of its files.

use super::super::encode::CaptureFileFormat;
use super::disk::RecordTarget;
use packetrig_units::Nanos;
use std::path::{Path, PathBuf};

/// Parameters of a recording.
#[derive(Clone, Debug)]
pub struct RecordSpec {
    pub target: RecordTarget,
    /// Format of the files.
    pub format: CaptureFileFormat,
    /// Interface name that is written into the files.
    pub interface: String,
    /// Further interfaces, for [`super::CaptureRecorder::record_interface_frame`]; distinguishable in pcapng only.
    pub further: Vec<String>,
    /// Comment that is written into the files.
    pub comment: String,
    /// Filter expression that is written into the files.
    pub filter: String,
    /// Maximum number of bytes to record of each frame.
    pub snap_len: Option<u32>,
    /// Whether frames are written with their FCS, which is computed, because the kernel does not deliver it.
    pub fcs: bool,
    /// Size limit of a file, bytes. No frame is written after the first one that exceeds it.
    pub budget: Option<u64>,
    /// Conditions for beginning another file.
    pub rotation: FileRotation,
    /// zstd compression level; `None` writes uncompressed files. Size limits apply to the bytes before compression.
    pub zstd: Option<i32>,
    /// Memory of the queue between capture and disk, bytes.
    pub queue: usize,
}

/// Conditions for beginning another file. Without any condition there is one file with the given name; otherwise
/// the names are numbered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileRotation {
    /// Files are no larger than this, bytes.
    pub bytes: Option<u64>,
    /// Longest time span of a file.
    pub every: Option<Nanos>,
    /// Maximum number of files; older ones are deleted.
    pub keep: Option<usize>,
    /// Number of files of that name that exist already: numbering continues after it.
    pub before: u64,
}

impl FileRotation {
    fn is_rotating(self) -> bool {
        self.bytes.is_some() || self.every.is_some()
    }
}

/// Returns the target of the n-th file, from 1.
pub(super) fn numbered_target(spec: &RecordSpec, n: u64) -> RecordTarget {
    match &spec.target {
        RecordTarget::File(path) if spec.rotation.is_rotating() => RecordTarget::File(numbered_path(path, n)),
        target => target.clone(),
    }
}

/// Inserts the number: `dir/a.pcapng` becomes `dir/a-00001.pcapng`, and `a.pcapng.zst` `a-00001.pcapng.zst`.
fn numbered_path(path: &Path, n: u64) -> PathBuf {
    let is_compressed = path.extension().is_some_and(|extension| extension == "zst");
    // The ending `.zst` is removed first, so that the number stands before the real extension.
    let inner = if is_compressed { path.with_extension("") } else { path.to_owned() };
    let mut name = inner.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{n:05}"));
    for extension in [inner.extension(), path.extension().filter(|_| is_compressed)].into_iter().flatten() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}
