//! Faults of an engine. They are always faults of the rig, never of the device under test.

use packetrig_units::Nanos;

/// Longest engine text that is shown to the user.
const MAX_ENGINE_TEXT_CHARACTERS: usize = 300;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EngineFault {
    #[error("it ended too early{}", reason_suffix(.0))]
    Ended(String),
    #[error("it sent a line longer than {0} bytes")]
    LongLine(usize),
    #[error("it sent more than {0} messages in a second")]
    Flood(usize),
    #[error("it sent `{line}`, which is not a message: {reason}")]
    NoMessage { line: String, reason: String },
    #[error("it sent message `{0}` at a time when this is not allowed")]
    Unexpected(&'static str),
    #[error("it uses version {0} of the protocol, but packetrig needs version {known}", known = super::ENGINE_PROTOCOL_VERSION)]
    Version(u32),
    #[error("it sent no message `{what}` within {within}")]
    NoReply { what: &'static str, within: Nanos },
    #[error("it sent no message for {0}")]
    Silent(Nanos),
    #[error("it does not read packetrig's messages")]
    Deaf,
    #[error("{0}")]
    Impossible(String),
    #[error("it reported an error: {0}")]
    GaveUp(String),
}

fn reason_suffix(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

/// Makes a text of an engine safe for a terminal: one line, no control characters, cut after 300 characters.
pub(super) fn to_terminal_safe_line(text: &str) -> String {
    let mut plain: String = text
        .trim()
        .chars()
        .take(MAX_ENGINE_TEXT_CHARACTERS)
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    // The limit is in characters, as above: a cut inside a character would be invalid.
    if text.trim().chars().nth(MAX_ENGINE_TEXT_CHARACTERS).is_some() {
        plain.push('…');
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_engines_cannot_steer_a_terminal() {
        assert_eq!(to_terminal_safe_line(" a\u{1b}[31mred\nb\n"), "a [31mred b");
        assert_eq!(to_terminal_safe_line(&"é".repeat(1000)).chars().count(), 301);
    }

    #[test]
    fn a_fault_says_what_happened() {
        assert_eq!(EngineFault::Ended(String::new()).to_string(), "it ended too early");
        assert_eq!(
            EngineFault::Ended("no such device".into()).to_string(),
            "it ended too early: no such device"
        );
        assert!(EngineFault::Version(2).to_string().ends_with("packetrig needs version 1"));
    }
}
