//! Whether promises have their tests: each promise of SPECIFICATION.md names a test function, and the pages about safety and the goals of
//! `make eval-safety` name tests, too. Every test that they name must exist.

use crate::CheckFindings;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// The page where each item of a list is a promise.
const SPECIFICATION_PAGE: &str = "SPECIFICATION.md";
/// Pages that name tests.
const PAGES_WITH_TEST_NAMES: [&str; 3] =
    [SPECIFICATION_PAGE, "docs/threat-model.md", "docs/results/safety/README.md"];
/// Goals that are met when the tests with these names pass.
const GOALS_FILE: &str = "eval/safety_goals.py";

/// Where the pages are.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Finds every test that these pages name and that is not there, and every promise without a test.
pub(crate) fn check(root: &Path) -> Result<CheckFindings> {
    let mut named = 0;
    let mut missing = Vec::new();
    for page in PAGES_WITH_TEST_NAMES {
        let text = std::fs::read_to_string(root.join(page)).with_context(|| format!("cannot read {page}"))?;
        if page == SPECIFICATION_PAGE {
            let untested = promises_without_test(&text).into_iter();
            missing.extend(untested.map(|promise| format!("{page}: no test function below {promise:?}")));
        }
        for name in names_in(&text) {
            named += 1;
            if !does_promised_test_exist(root, &name) {
                missing.push(format!("{page}: {name} is not there"));
            }
        }
    }
    let goals = std::fs::read_to_string(root.join(GOALS_FILE))
        .with_context(|| format!("cannot read {GOALS_FILE}"))?;
    let sources = read_sources(root)?;
    for name in tests_of_goals(&goals) {
        named += 1;
        if !is_test_there(&sources, name) {
            missing.push(format!("{GOALS_FILE}: no test or module {name}"));
        }
    }
    Ok(CheckFindings { looked_at: format!("{named} tests that promises name"), violations: missing })
}

/// The names in `test(NAME)`.
fn tests_of_goals(goals: &str) -> impl Iterator<Item = &str> {
    goals.split("test(").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0))
}

/// The paths and texts of all files with tests.
fn read_sources(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    let mut waiting = vec![root.join("crates"), root.join("tests")];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.is_dir() {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path)?;
                found.push((path, text));
            }
        }
    }
    Ok(found)
}

/// Whether there is a test or a module of this name: the runner selects tests by parts of their paths.
fn is_test_there(sources: &[(PathBuf, String)], name: &str) -> bool {
    let last = name.rsplit("::").next().unwrap_or(name);
    let function = format!("fn {last}(");
    sources
        .iter()
        .any(|(path, text)| path.file_stem().is_some_and(|stem| stem == last) || text.contains(&function))
}

/// The first lines of promises that name no test function. A promise ends with its list or where the next one begins.
fn promises_without_test(text: &str) -> Vec<&str> {
    let promises = text.split("\n* ").skip(1).map(|rest| rest.split("\n\n").next().unwrap_or(rest));
    let untested = promises.filter(|promise| !names_in(promise).iter().any(|name| name.contains("::")));
    untested.filter_map(|promise| promise.lines().next()).collect()
}

/// Finds the paths between backticks and expands their braces.
fn names_in(text: &str) -> Vec<String> {
    let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted.filter(|name| is_path(name)).flat_map(expand_name).collect()
}

fn is_path(name: &str) -> bool {
    const SEARCHED_DIRECTORIES: [&str; 6] = ["crates/", "tests/", "fuzz/", "xtask/", "scripts/", "eval/"];
    SEARCHED_DIRECTORIES.iter().any(|place| name.starts_with(place)) && !name.contains(['*', ' '])
}

/// `a/{b,c}.rs` names two files.
fn expand_name(name: &str) -> Vec<String> {
    let braces = name.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    let Some((before, (choices, behind))) = braces else { return vec![name.to_owned()] };
    choices.split(',').flat_map(|choice| expand_name(&format!("{before}{choice}{behind}"))).collect()
}

/// Whether the file is there, and the function that is named in it.
fn does_promised_test_exist(root: &Path, name: &str) -> bool {
    let (path, function) = name.split_once("::").unwrap_or((name, ""));
    let path = root.join(path);
    if function.is_empty() || path.is_dir() {
        return path.exists();
    }
    let last = function.rsplit("::").next().unwrap_or(function);
    let definitions = [format!("fn {last}("), format!("mod {last};"), format!("mod {last} {{")];
    std::fs::read_to_string(path)
        .is_ok_and(|text| definitions.iter().any(|definition| text.contains(definition)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_paths_between_backticks() {
        let text = "| `make fuzz` holds | `fuzz/{a,b}.rs`, `tests/x.rs::y` tests, `crates/*/c` |\n`tests/z`";
        assert_eq!(names_in(text), ["fuzz/a.rs", "fuzz/b.rs", "tests/x.rs::y", "tests/z"]);
    }

    #[test]
    fn promises_without_test_functions_are_found() {
        let text = "# S\n\n* One.\n  `tests/a.rs::b`\n* Two\n  lines.\n  `make x`\n* Three.\n  `tests/a.rs`\n\n`tests/a.rs::c`\n";
        assert_eq!(promises_without_test(text), ["Two", "Three."]);
    }

    #[test]
    fn goals_name_tests_or_modules() {
        let goals = "binary(a) & (test(one) | test(x::two))";
        assert_eq!(tests_of_goals(goals).collect::<Vec<_>>(), ["one", "x::two"]);
        let sources = [(PathBuf::from("tests/x/two.rs"), "fn one() {}".to_owned())];
        let found = ["one", "x::two", "on", "x"].map(|name| is_test_there(&sources, name));
        assert_eq!(found, [true, true, false, false]);
    }

    #[test]
    fn every_test_that_a_promise_names_is_there() {
        let root = root();
        assert!(!does_promised_test_exist(&root, "xtask/src/promises.rs::no_such_test"));
        assert!(
            !does_promised_test_exist(&root, "xtask/src/promises.rs::every_test_that_a_promise"),
            "half a name"
        );
        assert!(!does_promised_test_exist(&root, "xtask/src/no_such_file.rs"));
        let checked = check(&root).unwrap();
        assert_eq!(checked.violations, [""; 0], "{}", checked.looked_at);
    }
}
