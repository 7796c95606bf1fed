//! JSON with a line for each member of an object, but without line breaks between the elements of an array. So a
//! series of a thousand seconds takes one line instead of thousands.

use serde_json::ser::{Formatter, PrettyFormatter};
use std::io;

#[derive(Debug, Default)]
pub(super) struct CompactArrayFormatter(PrettyFormatter<'static>);

impl Formatter for CompactArrayFormatter {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        // Compact form: without the line breaks and the indentation of the usual form.
        if first { Ok(()) } else { writer.write_all(b",") }
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Serialize;

    #[test]
    fn members_have_lines_and_arrays_have_none() {
        let value = serde_json::json!({"a": [[1, 2], [3, 4]], "b": [{"c": []}, {"c": {}}]});
        let mut bytes = Vec::new();
        value
            .serialize(&mut serde_json::Serializer::with_formatter(
                &mut bytes,
                CompactArrayFormatter::default(),
            ))
            .unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(
            text,
            "{\n  \"a\": [[1,2],[3,4]],\n  \"b\": [{\n    \"c\": []\n  },{\n    \"c\": {}\n  }]\n}"
        );
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
