//! Files with the records of probes, which `--write` names. The extension decides the form. A file exists whole or not at all.

use packetrig_probe::ProbeRecord;
use packetrig_probe::files::{ProbeFileFormat, encode_json_lines, encode_pcapng};
use packetrig_probe::header::ProbeHeader;
use packetrig_sys::private_files;
use std::path::{Path, PathBuf};

/// The content of a Parquet file, or why there is none.
pub type ParquetEncoder = fn(&ProbeHeader, &[ProbeRecord]) -> Result<Vec<u8>, String>;

/// The kinds of files that this program can write.
#[derive(Clone, Copy, Debug)]
pub struct RecordFiles {
    /// `None` in a program without Parquet.
    pub parquet: Option<ParquetEncoder>,
}

/// Reason why records cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordFileError {
    /// The extension names no form.
    #[error("cannot tell the form of {} from its name; end it in .jsonl, .parquet or .pcapng", .0.display())]
    Form(PathBuf),
    /// A form that only the large program has.
    #[error("cannot write {}: this build has no Parquet; end the name in .jsonl, or use `packetrig probe`", .0.display())]
    NoParquet(PathBuf),
    /// A form with frames for records that have none.
    #[error(
        "{}: records go to .jsonl or .parquet files; to write frames of both directions, use `packetrig capture`",
        .0.display()
    )]
    NoFrames(PathBuf),
    #[error("cannot write {}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    /// The message of the encoder; it names the value that could not be encoded.
    #[error("{0}")]
    Encode(String),
    /// A value that cannot be written as JSON.
    #[error("cannot encode probe records as JSON: {0}; this is a bug in packetrig")]
    Json(#[from] serde_json::Error),
}

impl RecordFiles {
    /// Refuses a file that cannot be written. To be called before anything is sent: the result would be lost.
    pub(crate) fn check_file(self, file: &Path) -> Result<ProbeFileFormat, RecordFileError> {
        match ProbeFileFormat::from_path(file) {
            Some(ProbeFileFormat::Parquet) if self.parquet.is_none() => {
                Err(RecordFileError::NoParquet(file.to_owned()))
            }
            Some(form) => Ok(form),
            None => Err(RecordFileError::Form(file.to_owned())),
        }
    }

    /// Checks files for records of an exchange. Refuses the forms that hold frames, too: only `packetrig capture` has frames.
    pub(crate) fn check_table_files(self, files: &[PathBuf]) -> Result<(), RecordFileError> {
        for file in files {
            if self.check_file(file)? == ProbeFileFormat::Pcapng {
                return Err(RecordFileError::NoFrames(file.clone()));
            }
        }
        Ok(())
    }

    /// Writes a file. `frame` gives the bytes of a record's frame.
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
            // `check_file` has refused this already. The arm keeps the match complete without a panic.
            (ProbeFileFormat::Parquet, None) => return Err(RecordFileError::NoParquet(file.to_owned())),
        };
        // The file is replaced as a whole, so a reader never sees half of the records.
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
        assert!(refusal.to_string().contains("d/a.parquet: this build has no Parquet"), "{refusal}");
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
