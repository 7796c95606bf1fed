//! HTML and SVG with a structure that no content can break: all texts and attribute values are escaped.

use serde::Serialize;
use std::borrow::Cow;
use std::fmt;

/// Attribute names with their values. The names are constants of this program; the values are escaped.
pub type Attributes<'a> = &'a [(&'a str, &'a str)];

/// Text of a page. All text that is added is escaped, except constants of this program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Markup(String);

impl Markup {
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts an element; [`Self::close_element`] ends it.
    pub fn open_element(&mut self, tag: &'static str, attributes: Attributes<'_>) -> &mut Self {
        self.begin_tag(tag, attributes);
        self.0.push('>');
        self
    }

    pub fn close_element(&mut self, tag: &'static str) -> &mut Self {
        self.0.push_str("</");
        self.0.push_str(tag);
        self.0.push('>');
        self
    }

    /// Adds an element without content: `<br>`, `<meta …>`, or an element of a drawing.
    pub fn empty_element(&mut self, tag: &'static str, attributes: Attributes<'_>) -> &mut Self {
        self.begin_tag(tag, attributes);
        // Valid in SVG and, for elements that have no content, in HTML.
        self.0.push_str("/>");
        self
    }

    /// Adds an element that contains a text.
    pub fn add_element(&mut self, tag: &'static str, attributes: Attributes<'_>, text: &str) -> &mut Self {
        self.open_element(tag, attributes).add_text(text).close_element(tag)
    }

    /// Adds text, escaped.
    pub fn add_text(&mut self, text: &str) -> &mut Self {
        self.0.push_str(&escape_text(text));
        self
    }

    /// Adds the text of a value, escaped.
    pub fn add_value(&mut self, value: impl fmt::Display) -> &mut Self {
        self.add_text(&value.to_string())
    }

    pub fn append(&mut self, other: &Self) -> &mut Self {
        self.0.push_str(&other.0);
        self
    }

    /// Adds an element with the content that `fill` adds.
    pub fn add_element_with(
        &mut self,
        tag: &'static str,
        attributes: Attributes<'_>,
        fill: impl FnOnce(&mut Self),
    ) -> &mut Self {
        self.open_element(tag, attributes);
        fill(self);
        self.close_element(tag)
    }

    /// Adds text of the program itself without escaping: styles and scripts.
    pub fn add_unescaped_text(&mut self, text: &'static str) -> &mut Self {
        self.0.push_str(text);
        self
    }

    /// Adds a value as JSON for the page's script, which finds the value by its `id`.
    pub fn add_json_data(&mut self, id: &str, value: &impl Serialize) -> &mut Self {
        self.open_element("script", &[("type", "application/json"), ("id", id)]);
        // The caller must pass a value that can be JSON. If it does not, the page contains `null` and stays valid.
        let json = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
        // The element's content is not HTML: `&lt;` would stay as it is, so JSON has its own escapes.
        self.0.push_str(&escape_json(&json));
        self.close_element("script")
    }

    fn begin_tag(&mut self, tag: &'static str, attributes: Attributes<'_>) {
        self.0.push('<');
        self.0.push_str(tag);
        for (name, value) in attributes {
            self.0.push(' ');
            self.0.push_str(name);
            self.0.push_str("=\"");
            // Tags and names of attributes are constants of this program. Only values can come from outside.
            self.0.push_str(&escape_text(value));
            self.0.push('"');
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn into_string(self) -> String {
        self.0
    }
}

/// Escapes text for HTML, both between tags and in a quoted attribute. Control characters, which HTML does not allow,
/// and marks that change the direction of text become visible signs.
pub fn escape_text(text: &str) -> Cow<'_, str> {
    // Most texts contain nothing to escape. A page with thousands of streams must not copy all of them.
    if !text.chars().any(|c| html_replacement_of(c).is_some()) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match html_replacement_of(c) {
            Some(replacement) => escaped.push_str(replacement),
            None => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

const fn html_replacement_of(c: char) -> Option<&'static str> {
    match c {
        '&' => Some("&amp;"),
        '<' => Some("&lt;"),
        '>' => Some("&gt;"),
        '"' => Some("&quot;"),
        '\'' => Some("&#39;"),
        // White space of plans stays as it is, because the page shows plans in `pre`.
        '\n' | '\t' | '\r' => None,
        // Control characters, and marks that would reverse the text beside a name.
        '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' => Some("\u{fffd}"),
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            Some("\u{fffd}")
        }
        _ => None,
    }
}

/// Escapes JSON for a script element: nothing in it ends the element or a line of the script.
fn escape_json(json: &str) -> String {
    // In HTML, `</script` ends the element and `<!--` begins a comment, wherever they stand in the JSON.
    json.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn markup_in_foreign_text_is_escaped() {
        let mut page = Markup::new();
        page.add_element("p", &[("title", "\"><script>")], "</p><script>alert(1)</script>");
        assert_eq!(
            page.as_str(),
            "<p title=\"&quot;&gt;&lt;script&gt;\">&lt;/p&gt;&lt;script&gt;alert(1)&lt;/script&gt;</p>"
        );
    }

    #[test]
    fn direction_marks_in_names_become_visible() {
        for mark in ['\u{202e}', '\u{7}', '\u{200e}', '\u{200f}', '\u{61c}', '\u{2066}'] {
            assert_eq!(escape_text(&format!("a{mark}b")), "a\u{fffd}b", "{mark:?}");
        }
    }

    proptest! {
        #[test]
        fn escaped_text_contains_no_markup_characters(text in any::<String>()) {
            let escaped = escape_text(&text);
            prop_assert!(!escaped.contains(['<', '>', '"', '\'']));
        }

        #[test]
        fn escaped_json_keeps_its_value_in_script(text in any::<String>()) {
            let json = serde_json::to_string(&text).unwrap();
            let safe = escape_json(&json);
            prop_assert!(!safe.contains("</"));
            prop_assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), text);
        }
    }
}
