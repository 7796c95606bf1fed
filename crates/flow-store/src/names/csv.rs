//! Reads CSV texts: fields in quotes may have commas, line ends and doubled quotes (RFC 4180).

/// A record of a CSV text.
pub(super) struct CsvRecord {
    /// Number of the line where the record begins, from 1.
    pub(super) line: usize,
    pub(super) fields: Vec<String>,
}

/// Splits a text into records. Empty lines and lines that begin with `#` are left out.
pub(super) fn csv_records(text: &str) -> impl Iterator<Item = CsvRecord> {
    let mut rest = text;
    let mut line = 1;
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            let (record, length) = read_record(rest, line);
            let is_comment = rest.starts_with('#');
            line += rest[..length].matches('\n').count();
            rest = &rest[length..];
            if !is_comment && record.fields.iter().any(|field| !field.is_empty()) {
                return Some(record);
            }
        }
        None
    })
}

/// Reads the first record. Returns it with its length in bytes.
fn read_record(text: &str, line: usize) -> (CsvRecord, usize) {
    let mut fields = vec![String::new()];
    let mut is_quoted = false;
    let mut letters = text.char_indices().peekable();
    let is_comment = text.starts_with('#');
    while let Some((at, letter)) = letters.next() {
        let is_doubled = is_quoted && letters.peek().is_some_and(|(_, next)| *next == '"');
        match letter {
            '"' if is_doubled => {
                letters.next();
                append_character(&mut fields, '"');
            }
            // Within an unquoted field, a quotation mark is a character like any other: `5" disk`.
            '"' if !is_comment && (is_quoted || is_blank(&fields)) => is_quoted = !is_quoted,
            ',' if !is_quoted => fields.push(String::new()),
            '\n' if !is_quoted => return (trimmed_record(line, fields), at + 1),
            letter => append_character(&mut fields, letter),
        }
    }
    (trimmed_record(line, fields), text.len())
}

/// Returns true if the last field is empty so far.
fn is_blank(fields: &[String]) -> bool {
    fields.last().is_some_and(|field| field.trim().is_empty())
}

fn append_character(fields: &mut [String], letter: char) {
    if let Some(field) = fields.last_mut() {
        field.push(letter);
    }
}

fn trimmed_record(line: usize, mut fields: Vec<String>) -> CsvRecord {
    for field in &mut fields {
        // A line may end in CR LF.
        field.truncate(field.trim_end().len());
        field.drain(..field.len() - field.trim_start().len());
    }
    CsvRecord { line, fields }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_fields_span_lines_and_have_quotes() {
        let text = "a, b ,\"c, \"\"d\"\"\"\r\n\n# it's \"a comment\n\"two\nlines\",x\n5\" y,z";
        let records: Vec<_> =
            csv_records(text).map(|record| (record.line, record.fields.join("|"))).collect();
        let expected = [(1, "a|b|c, \"d\""), (4, "two\nlines|x"), (6, "5\" y|z")];
        assert_eq!(records, expected.map(|(line, fields)| (line, fields.to_owned())));
    }
}
