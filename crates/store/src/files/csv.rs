//! CSV by RFC 4180.

use std::fmt::Display;

/// A table under construction: a header line, then rows of the same width.
pub(super) struct Csv {
    text: String,
    width: usize,
}

impl Csv {
    pub(super) fn new(columns: &[&str]) -> Self {
        let mut csv = Self { text: String::new(), width: columns.len() };
        csv.line(columns.iter().map(|name| (*name).to_owned()));
        csv
    }

    /// Adds a row; as many fields as there are columns.
    pub(super) fn row(&mut self, fields: Vec<String>) {
        debug_assert_eq!(fields.len(), self.width, "a row has as many fields as the table has columns");
        self.line(fields.into_iter());
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    fn line(&mut self, fields: impl Iterator<Item = String>) {
        for (index, field) in fields.enumerate() {
            if index > 0 {
                self.text.push(',');
            }
            self.text.push_str(&quoted(field));
        }
        self.text.push_str("\r\n");
    }
}

/// A field that may be absent: empty then, since nothing is not zero.
pub(super) fn cell(value: Option<impl Display>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn quoted(field: String) -> String {
    if field.contains([',', '"', '\r', '\n']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_when_they_must_be() {
        let mut csv = Csv::new(&["a", "b"]);
        csv.row(vec!["plain".into(), "with, comma".into()]);
        csv.row(vec!["a \"word\"".into(), "two\nlines".into()]);
        let wanted = "a,b\r\nplain,\"with, comma\"\r\n\"a \"\"word\"\"\",\"two\nlines\"\r\n";
        assert_eq!(csv.into_text(), wanted);
    }

    #[test]
    fn what_is_absent_is_empty() {
        assert_eq!(cell(None::<u64>), "");
        assert_eq!(cell(Some(0)), "0");
    }
}
