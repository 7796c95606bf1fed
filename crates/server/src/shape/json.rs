//! Reads JSON requests. A repeated key is refused, because one of its values would be ignored silently.

use super::path::{DocumentProblems, ValuePath};
use super::settle::normalise_text;
use prost_reflect::MessageDescriptor;

/// Maximum number of values of a document. A limit on the length does not suffice, because a value can take two bytes.
const MAX_VALUES: usize = 4_000_000;

/// Returns the document in normalised form, as text. An empty body counts as `{}`. `None` if `complaints`
/// is not empty afterwards.
pub(crate) fn normalise_json(
    bytes: &[u8],
    of: &MessageDescriptor,
    complaints: &mut DocumentProblems,
) -> Option<String> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Some("{}".to_owned());
    }
    // The count is an upper bound without parsing: every value but the first follows one of these bytes.
    let at_most = bytes.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
    if at_most > MAX_VALUES {
        complaints.add_complaint(
            ValuePath::Root,
            format!("the document has up to {at_most} values, but at most {MAX_VALUES} are allowed"),
        );
        return None;
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let settled = normalise_text(&mut reader, of, complaints).and_then(|text| reader.end().map(|()| text));
    match settled {
        Ok(text) => complaints.is_empty().then_some(text),
        Err(error) => {
            // Earlier complaints are dropped: if the text is not JSON, only the syntax error is reported.
            *complaints = DocumentProblems::default();
            complaints.add_complaint(ValuePath::Root, format!("the request is not a JSON document: {error}"));
            None
        }
    }
}
