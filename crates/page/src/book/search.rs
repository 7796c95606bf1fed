//! Search in the book: lines that contain all words.

use super::BookPage;
use std::collections::BTreeSet;

/// A line of the book that contains all words of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookMatch {
    pub page: BookPage,
    /// Number of the line in the page's Markdown, from 1.
    pub line: usize,
    /// The line, without spaces at its ends.
    pub text: &'static str,
    /// Name of the heading above the line, for links; `None` before the first heading.
    pub heading: Option<String>,
}

/// Finds the lines that contain all words, in any order and in upper or lower case.
pub fn search_book(pages: &[BookPage], words: &str) -> Vec<BookMatch> {
    // A word that is repeated would be looked for again in each line.
    let words: BTreeSet<_> = words.split_whitespace().map(str::to_lowercase).collect();
    if words.is_empty() {
        return Vec::new();
    }
    pages.iter().flat_map(|page| search_page(*page, &words)).collect()
}

fn search_page(page: BookPage, words: &BTreeSet<String>) -> Vec<BookMatch> {
    let mut found = Vec::new();
    let mut heading = None;
    let mut is_code = false;
    for (line, text) in (1..).zip(page.text.lines()) {
        is_code ^= text.trim_start().starts_with("```");
        if !is_code && text.starts_with('#') {
            heading = Some(heading_name(text.trim_start_matches('#')));
        }
        if contains_words(text, words) {
            found.push(BookMatch { page, line, text: text.trim(), heading: heading.clone() });
        }
    }
    found
}

fn contains_words(line: &str, words: &BTreeSet<String>) -> bool {
    let line = line.to_lowercase();
    words.iter().all(|word| line.contains(word.as_str()))
}

/// Name of a heading in links: lower case, hyphens for spaces, no punctuation.
pub(super) fn heading_name(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_needs_all_words_in_a_line() {
        let text = "# Tap\n\nCopies  Frames.\n\n## How it copies\n\n```\n# copies frames\n```\n";
        let page = BookPage { section: "Links", name: "tap", title: "Tap", text };
        let found = search_book(&[page], "frames copies");
        let lines: Vec<_> = found.iter().map(|found| (found.line, found.text)).collect();
        assert_eq!(lines, [(3, "Copies  Frames."), (8, "# copies frames")]);
        let headings: Vec<_> = found.iter().map(|found| found.heading.as_deref()).collect();
        assert_eq!(headings, [Some("tap"), Some("how-it-copies")], "a line of code is no heading");
        assert_eq!(search_book(&[page], " "), []);
        assert_eq!(search_book(&[page], "nothing"), []);
    }
}
