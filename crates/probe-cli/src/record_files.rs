//! The files with the records of probes, which `--write` names. The extension of the name selects the format.
//! A file is written completely or not at all.

use packetrig_probe::ProbeRecord;
use packetrig_probe::files::{ProbeFileFormat, encode_json_lines, encode_pcapng};
use packetrig_probe::header::ProbeHeader;
use packetrig_sys::private_files;
use std::path::{Path, PathBuf};

/// Function that returns the content of a Parquet file, or the reason why the records cannot be encoded.
pub type ParquetEncoder = fn(&ProbeHeader, &[ProbeRecord]) -> Result<Vec<u8>, String>;

/// The file formats that this program can write.
#[derive(Clone, Copy, Debug)]
pub struct RecordFiles {
    /// Encoder of Parquet files; `None` in a program that cannot write Parquet.
    pub parquet: Option<ParquetEncoder>,
}

/// Reason why records cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordFileError {
    /// The extension of the name does not belong to any format.
    #[error(
        "cannot tell the file format of {} from its name; the name must end in .jsonl, .parquet or .pcapng",
        .0.display()
    )]
    Form(PathBuf),
    /// A format that only the program `packetrig` can write.
    #[error(
        "cannot write {}: this build cannot write Parquet; use a name that ends in .jsonl, or use \
            `packetrig probe`",
        .0.display()
    )]
    NoParquet(PathBuf),
    /// A format that stores frames, for records without frames.
    #[error(
        "{}: this command can write its records only to .jsonl or .parquet files; to write frames of both \
            directions, use `packetrig capture`",
        .0.display()
    )]
    NoFrames(PathBuf),
    #[error("cannot write {}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    /// The message of the encoder, which names the value that could not be encoded.
    #[error("{0}")]
    Encode(String),
    /// A value that cannot be written as JSON.
    #[error("cannot encode probe records as JSON: {0}; this is a bug in packetrig")]
    Json(#[from] serde_json::Error),
}

impl RecordFiles {
    /// Refuses a file whose format cannot be written. This must be called before anything is sent, because
    /// otherwise the result would be lost.
    pub(crate) fn check_file(self, file: &Path) -> Result<ProbeFileFormat, RecordFileError> {
        match ProbeFileFormat::from_path(file) {
            Some(ProbeFileFormat::Parquet) if self.parquet.is_none() => {
                Err(RecordFileError::NoParquet(file.to_owned()))
            }
            Some(form) => Ok(form),
            None => Err(RecordFileError::Form(file.to_owned())),
        }
    }

    /// Checks the files of a command whose records have no frames. Also refuses the formats that store
    /// frames, because only `packetrig capture` has the frames of both directions.
    pub(crate) fn check_table_files(self, files: &[PathBuf]) -> Result<(), RecordFileError> {
        for file in files {
            if self.check_file(file)? == ProbeFileFormat::Pcapng {
                return Err(RecordFileError::NoFrames(file.clone()));
            }
        }
        Ok(())
    }

    /// Writes a file. `frame` appends the bytes of a record's frame.
    pub(crate) fn write_file(
        self,
        file: &Path,
        header: &ProbeHeader,
        records: &[ProbeRecord],
        frame: &mut dyn FnMut(&ProbeRecord, &mut Vec<u8>),
    ) -> Result<(), RecordFileError> {
        let bytes = match (self.check_file(file)?, self.parquet) {
            (ProbeFileFormat::JsonLines, _) => encode_json_lines(header, records)?,
            (ProbeFileFormat::Pcapng, _) => encode_pcapng(header, records, frame)?,
            (ProbeFileFormat::Parquet, Some(encode)) => {
                encode(header, records).map_err(RecordFileError::Encode)?
            }
            // `check_file` has already refused this case. The arm makes the match complete without a panic.
            (ProbeFileFormat::Parquet, None) => return Err(RecordFileError::NoParquet(file.to_owned())),
        };
        // The file is replaced in one step, so a reader never sees only some of the records.
        private_files::replace_file(file, bytes)
            .map_err(|source| RecordFileError::File { path: file.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: RecordFiles = RecordFiles { parquet: None };
    const LARGE: RecordFiles = RecordFiles { parquet: Some(|_, _| Ok(b"table".to_vec())) };

    #[test]
    fn a_build_without_parquet_refuses_it_by_name() {
        let refusal = SMALL.check_file(Path::new("d/a.parquet")).unwrap_err();
        assert!(matches!(refusal, RecordFileError::NoParquet(_)));
        assert!(refusal.to_string().contains("d/a.parquet: this build cannot write Parquet"), "{refusal}");
        assert_eq!(LARGE.check_file(Path::new("a.parquet")).unwrap(), ProbeFileFormat::Parquet);
        assert!(
            SMALL.check_file(Path::new("a.jsonl")).is_ok() && SMALL.check_file(Path::new("a.pcapng")).is_ok()
        );
    }

    #[test]
    fn frameless_records_are_refused_for_capture_files() {
        let check = |name: &str| LARGE.check_table_files(&[PathBuf::from("a.jsonl"), PathBuf::from(name)]);
        assert!(check("b.parquet").is_ok());
        assert!(matches!(check("b.pcapng"), Err(RecordFileError::NoFrames(_))));
        assert!(matches!(check("b.txt"), Err(RecordFileError::Form(_))));
    }
}
