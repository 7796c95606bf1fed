//! Reads JSON requests. A key that is given twice is refused: one of its values would be ignored silently.

use super::path::{ShapeComplaints, ValuePath};
use super::settle::settle_text;
use prost_reflect::MessageDescriptor;

/// Limits work: a value may take two bytes in the document.
const MAX_VALUES: usize = 4_000_000;

/// The document in its settled form, as text. An empty one is `{}`, as clients mean it. `None` after a complaint.
pub(crate) fn settle_json(
    bytes: &[u8],
    of: &MessageDescriptor,
    complaints: &mut ShapeComplaints,
) -> Option<String> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Some("{}".to_owned());
    }
    // An upper bound without parsing: every value but the first follows one of these bytes.
    let at_most = bytes.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
    if at_most > MAX_VALUES {
        complaints.add_complaint(
            ValuePath::Root,
            format!("the document has {at_most} values; at most {MAX_VALUES} are read"),
        );
        return None;
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let settled = settle_text(&mut reader, of, complaints).and_then(|text| reader.end().map(|()| text));
    match settled {
        Ok(text) => complaints.is_empty().then_some(text),
        Err(error) => {
            // Earlier complaints are dropped: a text that is not JSON gets only the error of its syntax.
            *complaints = ShapeComplaints::default();
            complaints.add_complaint(ValuePath::Root, format!("this is not a JSON document: {error}"));
            None
        }
    }
}
