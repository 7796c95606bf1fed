//! Reads the text of a plan from a file or standard input. The `plan` crate parses the text.

use crate::diagnostics::QuotedDocument;
use crate::error::Error;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Largest plan that is read, in bytes: more than the `plan` crate accepts. The limit also stops the reading of a file
/// without end, such as `/dev/zero`.
const MAX_BYTES: u64 = 64 << 20;

/// A plan's text and its origin.
#[derive(Debug)]
pub(crate) struct PlanText {
    /// File name, or a description such as `standard input`.
    pub(crate) name: String,
    pub(crate) text: String,
    /// True if the document was made from options: then an error in it is an error in the command line.
    pub(crate) is_from_options: bool,
}

impl PlanText {
    /// Reads `file`; `-` is standard input.
    pub(crate) fn read_file(file: &Path) -> Result<Self, Error> {
        if file == Path::new("-") {
            return Self::from_reader("standard input", io::stdin().lock());
        }
        let name = file.display().to_string();
        match File::open(file) {
            Ok(opened) => Self::from_reader(&name, opened),
            Err(source) => Err(Error::ReadPlan { name, source }),
        }
    }

    fn from_reader(name: &str, reader: impl Read) -> Result<Self, Error> {
        let name = name.to_owned();
        match read_text(reader) {
            Ok(text) => Ok(Self { name, text, is_from_options: false }),
            Err(source) => Err(Error::ReadPlan { name, source }),
        }
    }

    pub(crate) fn quoted_document(&self) -> QuotedDocument<'_> {
        QuotedDocument { name: &self.name, text: &self.text }
    }
}

fn read_text(reader: impl Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    // One byte more than the limit is read, to see whether the document is longer than the limit.
    reader.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(invalid_data(format!(
            "the document is larger than {} MiB, the limit for a plan",
            MAX_BYTES >> 20
        )));
    }
    // The message names the position of the first bad byte, so that the user sees that the file is binary.
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        invalid_data(format!("the document is not text: byte {at} is not UTF-8; a plan is YAML or JSON"))
    })
}

fn invalid_data(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_text_is_read_unchanged() {
        let document = PlanText::from_reader("x", "ports: []\n".as_bytes()).unwrap();
        assert_eq!(document.text, "ports: []\n");
    }

    #[test]
    fn invalid_utf8_plan_error_names_byte_offset() {
        let error = PlanText::from_reader("x.yaml", &b"ports\xff"[..]).unwrap_err().full_message();
        assert!(error.contains("x.yaml") && error.contains("byte 5"), "{error}");
    }

    #[test]
    fn endless_plan_input_is_refused() {
        let error = PlanText::from_reader("zeros", io::repeat(b' ')).unwrap_err().full_message();
        assert!(error.contains("64 MiB"), "{error}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = PlanText::read_file(Path::new("/no/such/plan.yaml")).unwrap_err().to_string();
        assert!(error.contains("/no/such/plan.yaml"), "{error}");
    }
}
