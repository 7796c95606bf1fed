//! Whether the pages hang together: every link leads to a file and a heading that exist, every page of the book is in its table
//! of contents, prose is wrapped, and no figure is missing.

use crate::{CheckFindings, list_files_with_ending};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// Columns of wrapped prose. Tables, code and lines with a link may be longer.
const MAX_PROSE_COLUMNS: usize = 110;
const CONTENTS_PAGE: &str = "docs/SUMMARY.md";

pub(crate) fn check(root: &Path) -> Result<CheckFindings> {
    let mut pages = BTreeMap::new();
    for name in list_files_with_ending(root, ".md")? {
        let text =
            std::fs::read_to_string(root.join(&name)).with_context(|| format!("cannot read {name}"))?;
        pages.insert(PathBuf::from(name), text);
    }
    let mut violations = Vec::new();
    for (page, text) in &pages {
        violations.extend(dead_links(root, page, text, &pages));
        if page.starts_with("docs/book") || page == Path::new("README.md") {
            violations.extend(long_lines(page, text));
        }
        violations.extend(placeholders(page, text));
    }
    violations.extend(pages_without_a_place(&pages));
    Ok(CheckFindings { looked_at: format!("{} pages", pages.len()), violations })
}

fn dead_links(root: &Path, page: &Path, text: &str, pages: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let mut dead = Vec::new();
    for link in links_of_page(text) {
        let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
        let target = if file.is_empty() { page.to_owned() } else { resolve_link(page, file) };
        let is_dead = match pages.get(&target) {
            Some(target) => !anchor.is_empty() && !anchors(target).contains(anchor),
            None => !root.join(&target).exists(),
        };
        if is_dead {
            dead.push(format!("{}: {link} leads nowhere", page.display()));
        }
    }
    dead
}

/// The path that `file` means in `page`.
fn resolve_link(page: &Path, file: &str) -> PathBuf {
    let mut path = page.parent().unwrap_or_else(|| Path::new("")).to_owned();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

/// Targets of links and pictures that are in this repository.
fn links_of_page(text: &str) -> Vec<String> {
    let prose = without_code(text);
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    targets
        .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        .map(str::to_owned)
        .collect()
}

/// The text without fenced blocks and code spans.
fn without_code(text: &str) -> String {
    let mut is_code = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            prose.extend(line.split('`').step_by(2));
            prose.push('\n');
        }
    }
    prose
}

/// Names of the headings in links: lower case, spaces as hyphens, no punctuation.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut is_code = false;
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        if is_code || !line.starts_with('#') {
            continue;
        }
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        anchors.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
    }
    anchors
}

fn long_lines(page: &Path, text: &str) -> Vec<String> {
    let mut long = Vec::new();
    let mut is_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        is_code ^= line.trim_start().starts_with("```");
        let may_be_long = is_code || line.starts_with(['|', '<', '#']) || line.contains("](");
        if !may_be_long && line.chars().count() > MAX_PROSE_COLUMNS {
            long.push(format!("{}:{number}: longer than {MAX_PROSE_COLUMNS} columns", page.display()));
        }
    }
    long
}

/// Lines that still wait for a figure, such as `@@HOUR@@`.
fn placeholders(page: &Path, text: &str) -> Vec<String> {
    let waiting = (1..).zip(text.lines()).filter(|(_, line)| line.contains("@@"));
    waiting.map(|(number, line)| format!("{}:{number}: `{line}` is not filled in", page.display())).collect()
}

fn pages_without_a_place(pages: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let contents = pages.get(Path::new(CONTENTS_PAGE)).map(String::as_str).unwrap_or_default();
    let listed: BTreeSet<PathBuf> =
        links_of_page(contents).iter().map(|link| resolve_link(Path::new(CONTENTS_PAGE), link)).collect();
    let all = pages.keys().filter(|page| page.starts_with("docs") && *page != Path::new(CONTENTS_PAGE));
    let missing = all.filter(|page| !listed.contains(*page));
    missing.map(|page| format!("{CONTENTS_PAGE} does not list {}", page.display())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(texts: &[(&str, &str)]) -> BTreeMap<PathBuf, String> {
        texts.iter().map(|(name, text)| (PathBuf::from(name), (*text).to_owned())).collect()
    }

    #[test]
    fn dead_page_and_heading_links_are_found() {
        let text = "[a](b.md#two-words) [c](gone.md) ![d](../x.svg) [e](https://example.org) `[f](code)`\n[g](#here)\n# Here";
        let all = pages(&[("docs/a.md", text), ("docs/b.md", "# One\n## Two, *words*")]);
        let dead = dead_links(Path::new("/nowhere"), Path::new("docs/a.md"), text, &all);
        assert_eq!(dead, ["docs/a.md: gone.md leads nowhere", "docs/a.md: ../x.svg leads nowhere"]);
        let wrong = dead_links(Path::new("/nowhere"), Path::new("docs/a.md"), "[a](b.md#three)", &all);
        assert_eq!(wrong.len(), 1);
    }

    #[test]
    fn placeholders_are_found() {
        let found = placeholders(Path::new("p.md"), "one\n| @@HOUR@@ |\nlast");
        assert_eq!(found, ["p.md:2: `| @@HOUR@@ |` is not filled in"]);
    }

    #[test]
    fn long_lines_are_found_outside_tables_and_code() {
        let long = "x ".repeat(60);
        let text = format!("{long}\n| {long} |\n```\n{long}\n```\n[link]({long})");
        assert_eq!(long_lines(Path::new("p.md"), &text), ["p.md:1: longer than 110 columns"]);
    }

    #[test]
    fn every_page_has_a_place_in_the_contents() {
        let all =
            pages(&[("docs/SUMMARY.md", "- [A](book/a.md)"), ("docs/book/a.md", ""), ("docs/book/b.md", "")]);
        assert_eq!(pages_without_a_place(&all), ["docs/SUMMARY.md does not list docs/book/b.md"]);
    }

    #[test]
    fn the_pages_hang_together() {
        let checked = check(&crate::promises::root()).unwrap();
        assert_eq!(checked.violations, [""; 0], "{}", checked.looked_at);
    }
}
