//! Compares the words of the code with the goals: names of types and functions, closures, tuples, comments,
//! sentences. A test fails if a row of the table becomes worse.

mod words;

use crate::{CheckFindings, list_files_with_ending, report};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;
use words::WordCounts;

/// Names that may name types in three files or more.
const MAX_SHARED_NAMES: usize = 12;
/// From this number of files on, a name does not help in a search.
const MIN_SHARED_NAME_FILES: usize = 3;
/// Names that are the same everywhere by custom.
const CUSTOMARY_NAMES: [&str; 9] =
    ["Error", "Result", "Config", "Options", "Builder", "Args", "Kind", "Iter", "Inner"];

/// Counts of the product's lines and names, by kind.
#[derive(Debug, Default)]
struct CodeCounts {
    /// Files that define a type of this name.
    types: BTreeMap<String, BTreeSet<String>>,
    definitions: usize,
    one_word: usize,
    code: usize,
    comments: usize,
    documentation: usize,
    short_documentation: usize,
    closures: usize,
    tuples: usize,
    words: WordCounts,
}

/// Fails if too many names are used for several types.
pub(crate) fn check_names(root: &Path) -> Result<CheckFindings> {
    let census = CodeCounts::of(root)?;
    let shared: Vec<String> =
        census.shared().map(|(name, files)| format!("{name} is a type in {files} files")).collect();
    let looked_at = format!(
        "{} names of types, {} in {MIN_SHARED_NAME_FILES} files or more",
        census.types.len(),
        shared.len()
    );
    Ok(CheckFindings {
        looked_at,
        violations: if shared.len() > MAX_SHARED_NAMES { shared } else { Vec::new() },
    })
}

/// Prints the measured values beside the goals; fails if a goal is missed.
pub(crate) fn compare_with_goals(root: &Path) -> Result<ExitCode> {
    let census = CodeCounts::of(root)?;
    report(&format!("{} lines of code, {} definitions of types", census.code, census.definitions));
    let rows = census.rows();
    for row in &rows {
        let HouseRow { name, measured, wanted, .. } = row;
        let outcome = if row.is_met() {
            "met"
        } else if row.is_held() {
            "missed"
        } else {
            "missed, and worse"
        };
        report(&format!("{name:52}{measured:8.1}   wanted {wanted:6.1}   {outcome}"));
    }
    Ok(if rows.iter().all(HouseRow::is_met) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A line of the table.
struct HouseRow {
    name: &'static str,
    measured: f64,
    wanted: f64,
    /// If a goal is not reached yet, a test keeps the present value.
    held: f64,
    is_more_better: bool,
}

impl HouseRow {
    const fn most(name: &'static str, measured: f64, wanted: f64) -> Self {
        Self { name, measured, wanted, held: wanted, is_more_better: false }
    }

    const fn reaches(&self, goal: f64) -> bool {
        if self.is_more_better { self.measured >= goal } else { self.measured <= goal }
    }

    const fn is_met(&self) -> bool {
        self.reaches(self.wanted)
    }

    const fn is_held(&self) -> bool {
        self.is_met() || self.reaches(self.held)
    }
}

impl CodeCounts {
    fn rows(&self) -> [HouseRow; 12] {
        let (words, most) = (&self.words, HouseRow::most);
        let thousands = self.code as f64 / 1000.0;
        let prose = (self.comments + self.documentation) as f64;
        let functions = words.functions as f64;
        [
            most("type names of one word, %", 100.0 * self.one_word as f64 / self.definitions as f64, 35.0),
            most(
                "type names defined in three files or more",
                self.shared().count() as f64,
                MAX_SHARED_NAMES as f64,
            ),
            HouseRow {
                held: 1.6,
                ..most("named closures per 1000 lines", self.closures as f64 / thousands, 1.0)
            },
            most("`let` of tuples per 1000 lines", self.tuples as f64 / thousands, 3.0),
            HouseRow {
                is_more_better: true,
                ..most(
                    "comments inside code, %",
                    100.0 * self.comments as f64 / (self.code as f64 + prose),
                    4.0,
                )
            },
            most("doc lines of three words or fewer", self.short_documentation as f64, 150.0),
            most("function names of one word, %", 100.0 * words.of_one_word as f64 / functions, 32.0),
            most(
                "functions named by a participle, per 1000",
                1000.0 * words.participles as f64 / functions,
                12.0,
            ),
            most("functions called `of`", words.called_of as f64, 0.0),
            most("function names in eight files or more", words.widespread() as f64, 40.0),
            most("sentences without a noun, per 1000 lines", 1000.0 * words.without_noun as f64 / prose, 2.0),
            most("names with a metaphor", words.metaphors as f64, 0.0),
        ]
    }

    fn of(root: &Path) -> Result<Self> {
        let mut census = Self::default();
        for name in list_files_with_ending(root, ".rs")?.iter().filter(|name| is_product(name)) {
            let text =
                std::fs::read_to_string(root.join(name)).with_context(|| format!("cannot read {name}"))?;
            census.take(name, &text);
        }
        Ok(census)
    }

    fn take(&mut self, file: &str, text: &str) {
        let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for line in product.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if line.starts_with("///") || line.starts_with("//!") {
                self.documentation += 1;
                self.short_documentation += usize::from(is_uninformative(line));
                self.words.add_comment(line);
            } else if line.starts_with("//") {
                self.comments += 1;
                self.words.add_comment(line);
            } else {
                self.code += 1;
                self.count_code_line(file, line);
            }
        }
    }

    fn count_code_line(&mut self, file: &str, line: &str) {
        self.words.add_code(file, line);
        self.tuples += usize::from(line.starts_with("let (") && !line.starts_with("let ()"));
        self.closures += usize::from(names_a_closure(line));
        if let Some(name) = type_defined_in(line) {
            self.definitions += 1;
            self.one_word += usize::from(is_single_word(name));
            self.types.entry(name.to_owned()).or_default().insert(file.to_owned());
        }
    }

    fn shared(&self) -> impl Iterator<Item = (&str, usize)> {
        let counts = self.types.iter().map(|(name, files)| (name.as_str(), files.len()));
        counts.filter(|(name, files)| *files >= MIN_SHARED_NAME_FILES && !CUSTOMARY_NAMES.contains(name))
    }
}

fn is_product(name: &str) -> bool {
    let is_test = ["/tests/", "/tests.rs", "/benches/", "_test.rs", "/examples/"]
        .iter()
        .any(|part| name.contains(part));
    name.starts_with("crates/") && !is_test
}

/// Three plain words or fewer. A line that ends a longer sentence with a name of the code or a number is none of them.
fn is_uninformative(documentation: &str) -> bool {
    let words: Vec<&str> = documentation.trim_start_matches(['/', '!']).split_whitespace().collect();
    let are_plain =
        words.iter().all(|word| word.trim_end_matches('.').chars().all(|c| c.is_alphanumeric() || c == '_'));
    (1..=3).contains(&words.len()) && are_plain
}

/// `let name = |…|`, also `mut` and `move`.
fn names_a_closure(line: &str) -> bool {
    let value = line.strip_prefix("let ").and_then(|rest| rest.split_once(" = "));
    value.is_some_and(|(name, value)| {
        let value = value.strip_prefix("move ").unwrap_or(value);
        value.starts_with('|')
            && name.trim_start_matches("mut ").chars().all(|c| c.is_alphanumeric() || c == '_')
    })
}

fn type_defined_in(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub") || *word == "unsafe");
    if !matches!(words.next()?, "struct" | "enum" | "trait" | "union") {
        return None;
    }
    words.next()?.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

fn is_single_word(name: &str) -> bool {
    name.chars().skip(1).all(|c| c.is_lowercase() || c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "//! Short.\n/// This says what it is.\npub(crate) struct One<'a> {\n    // why\n    pub enum TwoWords {\nuse a::struct_like;\nunsafe trait Three: Send {\nlet f = |x| x;\nlet (a, b) = c;\nlet x = a || b;\n#[cfg(test)]\nmod tests {\n struct Four;";

    #[test]
    fn census_counts_product_code_but_not_tests() {
        let mut census = CodeCounts::default();
        census.take("a.rs", TEXT);
        assert_eq!(census.types.keys().collect::<Vec<_>>(), ["One", "Three", "TwoWords"]);
        assert_eq!((census.definitions, census.one_word), (3, 2));
        assert_eq!((census.documentation, census.short_documentation, census.comments), (2, 1, 1));
        assert_eq!((census.code, census.closures, census.tuples), (7, 1, 1));
    }

    #[test]
    fn a_line_with_code_in_it_says_something() {
        assert!(is_uninformative("/// Its name."));
        assert!(!is_uninformative("/// See [`Port`]."));
        assert!(!is_uninformative("/// Its name in the plan."));
        assert!(!is_uninformative("///"));
    }

    #[test]
    fn name_in_three_files_is_shared_unless_customary() {
        let mut census = CodeCounts::default();
        for file in ["a.rs", "b.rs", "c.rs"] {
            census.take(file, "struct Place;\nenum Error {");
        }
        assert_eq!(census.shared().collect::<Vec<_>>(), [("Place", 3)]);
    }

    #[test]
    fn words_of_the_code_stay_plain() {
        let census = CodeCounts::of(&crate::promises::root()).unwrap();
        let worse = census.rows().into_iter().filter(|row| !row.is_held());
        let worse: Vec<_> = worse.map(|row| (row.name, row.measured, row.held)).collect();
        assert!(worse.is_empty(), "{worse:?}");
    }

    #[test]
    fn names_of_types_say_what_they_are() {
        let checked = check_names(&crate::promises::root()).unwrap();
        assert_eq!(checked.violations, [""; 0], "{}", checked.looked_at);
    }
}
