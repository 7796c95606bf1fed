//! The journal of a method: its options, then each trial as one line of JSON.
//!
//! A method that was interrupted, by Ctrl-C or a crash, resumes from its replayed journal. A last line without a
//! newline is ignored if it cannot be read; any other unreadable line is an error.

use crate::{TrialRequest, TrialResult};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// A trial in the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MethodJournalEntry {
    /// Number of the trial, from 1; repeated trials count.
    pub number: u32,
    /// Start time, nanoseconds since 1970 (UTC).
    pub started_wall_ns: u64,
    pub order: TrialRequest,
    pub result: TrialResult,
}

/// Error: a journal cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {source}")]
pub struct JournalError {
    pub line: usize,
    #[source]
    pub source: serde_json::Error,
}

/// Serialises a value as one line of JSON.
pub fn to_json_line(value: &impl Serialize) -> serde_json::Result<String> {
    let mut text = serde_json::to_string(value)?;
    text.push('\n');
    Ok(text)
}

/// Reads a journal: its first line, and the trials.
pub fn parse_journal<H: DeserializeOwned>(text: &str) -> Result<MethodJournal<H>, JournalError> {
    let at = |index: usize| move |source| JournalError { line: index + 1, source };
    let mut lines = text.lines().enumerate();
    let first = lines.next().map_or("", |(_, line)| line);
    let head = serde_json::from_str(first).map_err(at(0))?;
    let mut trials = Vec::new();
    for (index, line) in lines {
        match serde_json::from_str(line) {
            Ok(entry) => trials.push(entry),
            // The process ended while it wrote this line.
            Err(_) if is_last_line(text, index) && !text.ends_with('\n') => break,
            // A line with a newline was written completely. If it cannot be parsed, the journal is damaged, and after
            // damage trials may be missing, so the journal is refused.
            Err(source) => return Err(at(index)(source)),
        }
    }
    Ok(MethodJournal { head, trials })
}

fn is_last_line(text: &str, index: usize) -> bool {
    text.lines().count() == index + 1
}

/// Content of a journal.
#[derive(Clone, Debug, PartialEq)]
pub struct MethodJournal<H> {
    /// The first line: the options of the method.
    pub head: H,
    pub trials: Vec<MethodJournalEntry>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Load, TrialLength, TrialPurpose};
    use packetrig_units::Nanos;

    fn entry(number: u32) -> MethodJournalEntry {
        let order = TrialRequest::with_constant_load(
            TrialPurpose::Search,
            None,
            Load::new(1000.5),
            TrialLength::Time(Nanos::from_secs(1)),
        );
        MethodJournalEntry { number, started_wall_ns: 7, order, result: TrialResult::default() }
    }

    #[test]
    fn journal_reading_skips_truncated_last_line() {
        let whole = [
            to_json_line(&"head").unwrap(),
            to_json_line(&entry(1)).unwrap(),
            to_json_line(&entry(2)).unwrap(),
        ]
        .concat();
        let read_back = parse_journal::<String>(&whole).unwrap();
        assert_eq!(read_back, MethodJournal { head: "head".to_owned(), trials: vec![entry(1), entry(2)] });
        let cut = &whole[..whole.len() - 10];
        assert_eq!(parse_journal::<String>(cut).unwrap().trials, [entry(1)]);
    }

    #[test]
    fn journal_keeps_loads_to_the_last_bit() {
        let mut odd = entry(1);
        odd.order.load = Load::new(1_105.415_554_370_269_3);
        let text = [to_json_line(&"head").unwrap(), to_json_line(&odd).unwrap()].concat();
        assert_eq!(parse_journal::<String>(&text).unwrap().trials, [odd]);
    }

    #[test]
    fn a_damaged_line_in_the_middle_is_named() {
        let text =
            format!("{}nonsense\n{}", to_json_line(&"head").unwrap(), to_json_line(&entry(2)).unwrap());
        assert_eq!(parse_journal::<String>(&text).unwrap_err().line, 2);
        assert_eq!(parse_journal::<String>("").unwrap_err().line, 1);
    }
}
