//! Words in names of functions, in other names, and at the beginning of sentences.

use std::collections::{BTreeMap, BTreeSet};

/// Functions that Rust or custom names.
const CUSTOMARY_FUNCTIONS: [&str; 8] = ["new", "fmt", "default", "drop", "from", "next", "deref", "main"];
/// Participles that do not end with `ed`.
const IRREGULAR_PARTICIPLES: [&str; 29] = [
    "heard", "left", "told", "said", "known", "found", "taken", "held", "kept", "begun", "owed", "given",
    "gone", "seen", "sent", "met", "made", "come", "meant", "lost", "led", "built", "shown", "drawn", "cut",
    "laid", "put", "set", "run",
];
/// Words that end with `ed` and are no participles.
const WORDS_THAT_ARE_NO_PARTICIPLES: [&str; 10] =
    ["speed", "seed", "feed", "need", "embed", "bed", "shed", "exceed", "proceed", "succeed"];
/// Words that once had a technical meaning here; each has an established technical word.
const METAPHOR_WORDS: [&str; 16] = [
    "desk", "shelf", "crew", "bench", "ground", "seat", "ears", "patience", "manner", "books", "hush",
    "charge", "remains", "reign", "throne", "loan",
];
/// Words that make a sentence without a noun as its subject, if one of the following words comes after them.
const SENTENCE_STARTS_WITHOUT_NOUN: [(&str, &[&str]); 3] = [
    (
        "What",
        &[
            "is", "was", "are", "were", "has", "have", "a", "the", "it", "they", "comes", "remains", "can",
            "must",
        ],
    ),
    ("Of", &["a", "the", "an", "each", "counts"]),
    ("Who", &[]),
];
/// From this number of files on, the name of a function does not help in a search.
const MIN_SHARED_FUNCTION_FILES: usize = 8;

/// Names of functions, and words to avoid in names and sentences.
#[derive(Debug, Default)]
pub(super) struct WordCounts {
    pub(super) functions: usize,
    pub(super) of_one_word: usize,
    pub(super) participles: usize,
    pub(super) called_of: usize,
    pub(super) without_noun: usize,
    pub(super) metaphors: usize,
    files: BTreeMap<String, BTreeSet<String>>,
}

impl WordCounts {
    pub(super) fn add_comment(&mut self, line: &str) {
        let text = line.trim_start_matches(['/', '!', ' ']);
        let sentences = text.split(". ").flat_map(|sentence| sentence.split(": "));
        self.without_noun += sentences.filter(|sentence| lacks_noun(sentence)).count();
    }

    pub(super) fn add_code(&mut self, file: &str, line: &str) {
        self.metaphors +=
            defined_names_in(line).flat_map(words_of).filter(|word| is_one_of(&METAPHOR_WORDS, word)).count();
        let Some(name) = function_defined_in(line).filter(|name| !is_one_of(&CUSTOMARY_FUNCTIONS, name))
        else {
            return;
        };
        self.functions += 1;
        self.called_of += usize::from(name == "of");
        self.files.entry(name.to_owned()).or_default().insert(file.to_owned());
        if !name.contains('_') {
            self.of_one_word += 1;
            let is_regular = name.ends_with("ed") && !is_one_of(&WORDS_THAT_ARE_NO_PARTICIPLES, name);
            self.participles += usize::from(is_regular || is_one_of(&IRREGULAR_PARTICIPLES, name));
        }
    }

    /// Returns the number of function names that many files define.
    pub(super) fn widespread(&self) -> usize {
        self.files.values().filter(|files| files.len() >= MIN_SHARED_FUNCTION_FILES).count()
    }
}

fn is_one_of(words: &[&str], word: &str) -> bool {
    words.contains(&word)
}

fn lacks_noun(sentence: &str) -> bool {
    let mut words = sentence.split_whitespace();
    let (first, second) = (words.next(), words.next().unwrap_or_default());
    SENTENCE_STARTS_WITHOUT_NOUN
        .iter()
        .any(|(begin, then)| first == Some(begin) && (then.is_empty() || is_one_of(then, second)))
}

fn identifiers_of(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

fn function_defined_in(line: &str) -> Option<&str> {
    let before = line.split('(').next().unwrap_or_default();
    let is_definition = line.starts_with("fn ") || line.starts_with("pub") || before.contains(" fn ");
    let mut words = identifiers_of(line);
    words.find(|word| *word == "fn").filter(|_| is_definition)?;
    words.next().filter(|_| !line.starts_with("let "))
}

/// Names that a line defines: types, functions, variables, modules, fields.
fn defined_names_in(line: &str) -> impl Iterator<Item = &str> {
    let words: Vec<&str> = identifiers_of(line).filter(|word| *word != "mut").collect();
    let defined = words
        .windows(2)
        .filter(|pair| matches!(pair[0], "struct" | "enum" | "trait" | "union" | "fn" | "let" | "mod"));
    let mut names: Vec<&str> = defined.map(|pair| pair[1]).collect();
    let field = line.split_once(": ").map(|(name, _)| name.rsplit(' ').next().unwrap_or(name));
    names.extend(field.filter(|name| identifiers_of(name).eq([*name])));
    names.into_iter()
}

/// Splits a name at underscores and capitals.
fn words_of(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for c in name.chars() {
        if c == '_' || c.is_uppercase() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c != '_') {
            word.extend(c.to_lowercase());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(lines: &[&str]) -> WordCounts {
        let mut census = WordCounts::default();
        for (number, line) in (0..).zip(lines) {
            census.add_code(&format!("{number}.rs"), line);
        }
        census
    }

    #[test]
    fn functions_are_counted_by_form_of_name() {
        let all = census(&[
            "pub(crate) const fn of(self) -> u8 {",
            "fn settled() {",
            "pub async fn speed(&self) {",
            "fn read_all(",
            "fn new() {",
            "let f = map(fn_pointer);",
            "call: fn(u8) -> u8,",
        ]);
        assert_eq!((all.functions, all.of_one_word, all.participles, all.called_of), (4, 3, 1, 1));
        assert_eq!(census(&["fn read_all() {"; 8]).widespread(), 1);
    }

    #[test]
    fn metaphor_is_found_as_a_whole_word() {
        let found = |line| census(&[line]).metaphors;
        assert_eq!(["struct FrontDesk;", "pub old_shelf: usize,", "let mut crew = 3;"].map(found), [1; 3]);
        assert_eq!(["struct Foreign;", "fn benchmark() {", "let x = desk();"].map(found), [0; 3]);
    }

    #[test]
    fn sentence_needs_a_noun_as_subject() {
        let mut census = WordCounts::default();
        for line in [
            "/// What is known of it.",
            "//! It holds: Of a port. Who reads it",
            "// Whatever. Offset of it.",
        ] {
            census.add_comment(line);
        }
        assert_eq!(census.without_noun, 3);
    }
}
