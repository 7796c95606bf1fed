//! Records of probes as files: JSON lines, Parquet, or pcapng with the frames and the record of each.
//!
//! The file's extension decides. A file exists whole or not at all. Invariant: every form has the header and all records.

mod json;
mod parquet;
mod pcapng;

use crate::disk;
use packetrig_probe::ProbeRecord;
use packetrig_probe::header::ProbeHeader;
use std::path::{Path, PathBuf};

/// The form of a file of probe records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeForm {
    /// One JSON object per line, the header first.
    JsonLines,
    /// A table, the header in the file's metadata.
    Parquet,
    /// Frames with the times at which they left.
    Pcapng,
}

/// Why records cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The extension names no form.
    #[error("cannot tell the form of {} from its name; end it in .jsonl, .parquet or .pcapng", .0.display())]
    Form(PathBuf),
    #[error("cannot write {}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    /// A table that cannot be encoded.
    #[error("cannot encode probe records as Parquet: {0}; this is a bug")]
    Encode(#[from] ::parquet::errors::ParquetError),
    /// A value that cannot be written as JSON.
    #[error("cannot encode probe records as JSON: {0}; this is a bug")]
    Json(#[from] serde_json::Error),
}

impl ProbeForm {
    /// The form that the extension of a path names.
    pub fn of(path: &Path) -> Result<Self, Error> {
        match path.extension().and_then(|end| end.to_str()) {
            Some("jsonl" | "ndjson") => Ok(Self::JsonLines),
            Some("parquet") => Ok(Self::Parquet),
            Some("pcapng") => Ok(Self::Pcapng),
            _ => Err(Error::Form(path.to_owned())),
        }
    }
}

/// Writes a file. `frame` gives the bytes of a record's frame.
pub fn write(
    path: &Path,
    header: &ProbeHeader,
    records: &[ProbeRecord],
    frame: &mut dyn FnMut(&ProbeRecord, &mut Vec<u8>),
) -> Result<(), Error> {
    let bytes = match ProbeForm::of(path)? {
        ProbeForm::JsonLines => json::encode(header, records)?,
        ProbeForm::Parquet => parquet::encode(header, records)?,
        ProbeForm::Pcapng => pcapng::encode(header, records, frame)?,
    };
    // The parent of a bare file name is the empty path, which cannot be opened.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| Error::Form(path.to_owned()))?;
    disk::write_whole(directory.unwrap_or_else(|| Path::new(".")), name, &bytes)
        .map_err(|source| Error::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
