//! Writes JSON for clients that read it as YAML 1.1: floats without exponent, and printable characters only.

use serde_json::{Number, Value};
use std::fmt::Write as _;

/// Writes the document on one line.
pub(crate) fn format_json(document: &Value) -> String {
    let mut text = String::new();
    print_value(&mut text, document);
    text
}

fn print_value(out: &mut String, printed: &Value) {
    match printed {
        Value::Null => out.push_str("null"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Number(read) => write_json_number(out, read),
        Value::String(read) => write_json_text(out, read),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                print_value(out, item);
            }
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            for (index, (name, member)) in members.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                write_json_text(out, name);
                out.push(':');
                print_value(out, member);
            }
            out.push('}');
        }
    }
}

fn write_json_number(out: &mut String, number: &Number) {
    match number.as_f64().filter(|_| number.is_f64()) {
        Some(read) => write_json_float(out, read),
        None => write!(out, "{number}").expect("writing to text cannot fail"),
    }
}

/// Writes the shortest decimal form of a float. `Display` never writes an exponent; serde_json may write one.
pub(crate) fn write_json_float(out: &mut String, number: f64) {
    let start = out.len();
    write!(out, "{number}").expect("writing to text cannot fail");
    // Without a decimal point, clients would read `3` as an integer.
    if !out[start..].contains('.') {
        out.push_str(".0");
    }
}

pub(crate) fn write_json_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            // Characters that are not printable in YAML (YAML 1.1, 5.1) and that four hexadecimal digits can express.
            '\0'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{feff}'
            | '\u{fffe}'
            | '\u{ffff}' => {
                write!(out, "\\u{:04x}", u32::from(c)).expect("writing to text cannot fail");
            }
            _ => out.push(c),
        }
    }
    out.push('"');
}
