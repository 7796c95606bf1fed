//! What to record, and under which names.

use super::super::encode::CaptureFileFormat;
use super::disk::RecordTarget;
use packetrig_units::Nanos;
use std::path::{Path, PathBuf};

/// What to record, and where to.
#[derive(Clone, Debug)]
pub struct RecordSpec {
    pub target: RecordTarget,
    /// Format of the files.
    pub format: CaptureFileFormat,
    /// Interface name to write into them.
    pub interface: String,
    /// Further interfaces, for [`super::DirectionRecorder::frame_of`]; told apart in pcapng.
    pub further: Vec<String>,
    /// A comment to write into them.
    pub comment: String,
    /// The filter expression, to be written into them.
    pub filter: String,
    /// Bytes kept of a frame.
    pub snap_len: Option<u32>,
    /// Frames get the FCS they had on the wire. It is computed, because the kernel does not deliver it.
    pub fcs: bool,
    /// Write nothing more when a file of this many bytes is full.
    pub budget: Option<u64>,
    /// When to begin another file.
    pub rotation: FileRotation,
    /// Compress with zstd at this level, off the capturing thread. Sizes of files are those before it.
    pub zstd: Option<i32>,
    /// Memory between capturing and disk, bytes.
    pub queue: usize,
}

/// When to begin another file. Without any of it there is one file, with the name that was given; else names are numbered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileRotation {
    /// Files are no larger than this, bytes.
    pub bytes: Option<u64>,
    /// Files span no more than this.
    pub every: Option<Nanos>,
    /// So many files are kept, the newest.
    pub keep: Option<usize>,
    /// Files of that name there have been before: numbers go on.
    pub before: u64,
}

impl FileRotation {
    fn is_any(self) -> bool {
        self.bytes.is_some() || self.every.is_some()
    }
}

/// The n-th file, from 1.
pub(super) fn target(spec: &RecordSpec, n: u64) -> RecordTarget {
    match &spec.target {
        RecordTarget::File(path) if spec.rotation.is_any() => RecordTarget::File(numbered(path, n)),
        target => target.clone(),
    }
}

/// `dir/a.pcapng` becomes `dir/a-00001.pcapng`, and `a.pcapng.zst` `a-00001.pcapng.zst`.
fn numbered(path: &Path, n: u64) -> PathBuf {
    let is_compressed = path.extension().is_some_and(|extension| extension == "zst");
    let inner = if is_compressed { path.with_extension("") } else { path.to_owned() };
    let mut name = inner.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{n:05}"));
    for extension in [inner.extension(), path.extension().filter(|_| is_compressed)].into_iter().flatten() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}
