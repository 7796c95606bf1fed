//! The form of refusals on both transports: OTG's `Error`, as JSON.

use crate::shape;
use crate::tester::{RefusalKind, TesterRefusal};
use packetrig_units::text::one_line;
use serde_json::{Value, json};

/// Maximum length of the message of a gRPC status on the wire: clients accept no more than 8 KiB of headers.
const MAX_ENCODED_STATUS_BYTES: usize = 7_500;

impl RefusalKind {
    pub(super) const fn http_status(self) -> u16 {
        match self {
            Self::Validation => 400,
            Self::Internal => 500,
            Self::Unimplemented => 501,
        }
    }

    pub(super) const fn grpc_code(self) -> tonic::Code {
        match self {
            Self::Validation => tonic::Code::InvalidArgument,
            Self::Internal => tonic::Code::Internal,
            Self::Unimplemented => tonic::Code::Unimplemented,
        }
    }

    /// Name of the kind in OTG, which has only two kinds.
    const fn otg_name(self) -> &'static str {
        match self {
            Self::Internal => "internal",
            Self::Validation | Self::Unimplemented => "validation",
        }
    }
}

/// Maximum length of an error in an answer, in characters. Errors repeat names of the request, which may be very long.
const MAX_ERROR_CHARACTERS: usize = 4096;

/// Builds the body of a refusal. Each error becomes one line of bounded length.
pub(super) fn build_refusal_json(code: u16, kind: RefusalKind, errors: &[String]) -> Value {
    let errors: Vec<String> = errors.iter().map(|error| one_line(error, MAX_ERROR_CHARACTERS)).collect();
    json!({ "code": code, "kind": kind.otg_name(), "errors": errors })
}

/// Builds a gRPC status from a refusal. If the status has no room for all errors, its last error says
/// how many are missing.
pub(super) fn grpc_status(refusal: &TesterRefusal) -> tonic::Status {
    let code = refusal.kind.grpc_code();
    let whole = refusal_to_json_text(refusal.kind, &refusal.errors);
    if wire_length(&whole) <= MAX_ENCODED_STATUS_BYTES {
        return tonic::Status::new(code, whole);
    }
    // 200 bytes for the members around the errors, and 10 for the quotes and the comma of each.
    let mut kept: Vec<String> = Vec::new();
    let mut length = 200;
    for error in &refusal.errors {
        // One error gets at most half of the space, so that further errors also have room.
        let error = shorten_for_wire(error, MAX_ENCODED_STATUS_BYTES / 2);
        length += wire_length(&error) + 10;
        if length > MAX_ENCODED_STATUS_BYTES {
            break;
        }
        kept.push(error);
    }
    // The client must not take a shortened list for a complete one.
    let more = refusal.errors.len() - kept.len();
    if more > 0 {
        kept.push(format!("{more} more problem(s) are not listed here; the HTTP API lists all of them"));
    }
    tonic::Status::new(code, refusal_to_json_text(refusal.kind, &kept))
}

fn refusal_to_json_text(kind: RefusalKind, errors: &[String]) -> String {
    // gRPC codes are 0 to 16.
    let code = u16::try_from(kind.grpc_code() as i32).unwrap_or_default();
    shape::format_json(&build_refusal_json(code, kind, errors))
}

/// Upper bound of the length of a text in `grpc-message`. The text is first escaped for JSON and then
/// percent-encoded, which makes up to three bytes of one.
fn wire_length(text: &str) -> usize {
    text.chars().map(wire_length_of_char).sum()
}

fn wire_length_of_char(c: char) -> usize {
    match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | ',' | '-' | '_' | ':' | '[' | ']' | '(' | ')' => 1,
        ' '..='~' if c != '"' && c != '\\' => 3,
        '"' | '\\' => 6,
        // A control character becomes `\u001f` in JSON: three bytes for the encoded backslash, and five more.
        c => (3 * c.len_utf8()).max(8),
    }
}

/// Shortens a text to at most `length` bytes on the wire.
fn shorten_for_wire(text: &str, length: usize) -> String {
    if wire_length(text) <= length {
        return text.to_owned();
    }
    // Room for the ellipsis: three bytes of UTF-8, percent-encoded.
    let mut used = 10;
    let mut short = String::new();
    for c in text.chars() {
        used += wire_length_of_char(c);
        if used > length {
            break;
        }
        short.push(c);
    }
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Encodes a text as tonic writes it into a header.
    fn header_length(status: &tonic::Status) -> usize {
        let headers = status.clone().into_http::<tonic::body::Body>();
        headers.headers().get("grpc-message").map_or(0, http::HeaderValue::len)
    }

    #[test]
    fn short_error_list_is_complete() {
        let status = grpc_status(&TesterRefusal::validation("flows[3].rate.percentage: `101` is too much"));
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert_eq!(
            status.message(),
            r#"{"code":3,"errors":["flows[3].rate.percentage: `101` is too much"],"kind":"validation"}"#
        );
    }

    #[test]
    fn error_of_refusal_is_one_bounded_line() {
        let long = format!("{}\n\u{1b}[2J", "x".repeat(1 << 20));
        let errors = ["a\nb\u{1b}[2J\u{202e}".to_owned(), long];
        let body = build_refusal_json(400, RefusalKind::Validation, &errors);
        assert_eq!(body["errors"][0], "a\\u{a}b\\u{1b}[2J\\u{202e}");
        assert_eq!(body["errors"][1].as_str().map(|error| error.chars().count()), Some(MAX_ERROR_CHARACTERS));
    }

    #[test]
    fn many_errors_are_cut_and_counted() {
        let errors = (0..5_000).map(|index| format!("flows[{index}].name: \"f\" is there already")).collect();
        let status = grpc_status(&TesterRefusal { kind: RefusalKind::Validation, errors });
        let read: Value = serde_json::from_str(status.message()).expect("still JSON");
        let listed = read["errors"].as_array().expect("a list");
        assert!(listed.len() > 50, "{}", listed.len());
        let last = listed.last().and_then(Value::as_str).expect("a text");
        assert_eq!(
            last,
            format!(
                "{} more problem(s) are not listed here; the HTTP API lists all of them",
                5_000 - (listed.len() - 1)
            )
        );
        assert!(header_length(&status) < 8_000);
    }

    proptest! {
        #[test]
        fn grpc_message_fits_size_limit(errors in prop::collection::vec(".{0,3000}", 0..40)) {
            let status = grpc_status(&TesterRefusal { kind: RefusalKind::Internal, errors });
            prop_assert!(header_length(&status) < 8_000, "{}", header_length(&status));
            prop_assert!(serde_json::from_str::<Value>(status.message()).is_ok());
        }
    }
}
