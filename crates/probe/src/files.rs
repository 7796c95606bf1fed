//! Records of probes as the content of files: JSON lines, or pcapng with the frames and the record of each.
//!
//! Invariant: every format has the header and all records.

mod json;
mod pcapng;

pub use json::encode_json_lines;
pub use pcapng::encode_pcapng;

use std::path::Path;

/// Format of a file of probe records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeFileFormat {
    /// One JSON object per line, the header first.
    JsonLines,
    /// A table, the header in the file's metadata.
    Parquet,
    /// Frames with the times at which they left.
    Pcapng,
}

impl ProbeFileFormat {
    /// Returns the format that belongs to the extension of a path; `None` for other extensions.
    pub fn from_path(path: &Path) -> Option<Self> {
        match path.extension().and_then(|end| end.to_str()) {
            Some("jsonl" | "ndjson") => Some(Self::JsonLines),
            Some("parquet") => Some(Self::Parquet),
            Some("pcapng") => Some(Self::Pcapng),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
