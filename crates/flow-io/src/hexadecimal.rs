//! Reads secret keys that are written as hexadecimal digits.

/// Returns the bytes; `None` unless the text consists of pairs of hexadecimal digits.
pub(crate) fn parse_hexadecimal(text: &str) -> Option<Vec<u8>> {
    // This is checked before `from_str_radix`, which would accept a sign.
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()).collect()
}
