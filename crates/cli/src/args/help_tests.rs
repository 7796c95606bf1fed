//! Tests of all help pages: one line that describes the command, and examples that the parser accepts.

use super::*;
use clap::{Command as Page, CommandFactory};

/// Columns of a terminal that the one-line description of a command fits.
const MAX_HELP_LINE_COLUMNS: usize = 100;

/// Every command under `page`, with its full name.
fn pages(name: &str, page: &Page) -> Vec<(String, Page)> {
    let mut all = vec![(name.to_owned(), page.clone())];
    for child in page.get_subcommands() {
        all.extend(pages(&format!("{name} {}", child.get_name()), child));
    }
    all
}

/// A command that only groups others does nothing by itself.
fn is_group(page: &Page) -> bool {
    page.has_subcommands() && page.is_subcommand_required_set()
}

/// The command lines under the heading of the examples, up to a pipe or a redirection.
fn examples(page: &Page) -> Vec<String> {
    let text = page.get_after_help().map(ToString::to_string).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.strip_prefix("  packetrig "));
    lines.map(|line| line.split(" | ").next().unwrap_or(line).to_owned()).collect()
}

/// The words of a command line as a shell would split them, as far as examples need it.
fn words(line: &str) -> Vec<String> {
    let quoted = line.split('\'').enumerate();
    let mut words = Vec::new();
    for (index, part) in quoted {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            let plain = part.split_whitespace().take_while(|word| !matches!(*word, "<" | ">"));
            words.extend(plain.map(str::to_owned));
        }
    }
    words
}

#[test]
fn command_line_definition_is_valid() {
    CommandLine::command().debug_assert();
}

#[test]
fn every_command_has_an_example_that_parses() {
    let pages = pages("packetrig", &CommandLine::command());
    for (name, page) in pages.iter().filter(|(_, page)| !is_group(page)) {
        assert!(!examples(page).is_empty(), "`{name} --help` shows no example");
    }
    for (name, line) in
        pages.iter().flat_map(|(name, page)| examples(page).into_iter().map(move |line| (name, line)))
    {
        let typed = [vec!["packetrig".to_owned()], words(&line)].concat();
        let parsed = CommandLine::try_parse_from(typed);
        assert!(parsed.is_ok(), "example `{line}` in `{name} --help`: {}", parsed.unwrap_err());
    }
}

#[test]
fn every_description_is_one_line_of_a_terminal() {
    for (name, page) in pages("packetrig", &CommandLine::command()) {
        let text = page.get_about().map(ToString::to_string).unwrap_or_default();
        assert!(!text.is_empty() && text.chars().count() <= MAX_HELP_LINE_COLUMNS, "`{name}`: {text}");
    }
}

#[test]
fn option_help_has_at_most_two_sentences() {
    for (name, page) in pages("packetrig", &CommandLine::command()) {
        for argument in page.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let text = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let sentences = 1 + text.trim_end_matches('.').matches(". ").count();
            assert!(!text.is_empty() && sentences <= 2, "`{name}`, {}: {text}", argument.get_id());
        }
    }
}
