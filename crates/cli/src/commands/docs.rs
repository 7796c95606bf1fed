//! `packetrig docs`: prints the book of this version, which is embedded in the program.

use crate::args::DocsArgs as Arguments;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::CommandOutput;
use packetrig_page::book::{self, BookPage};
use std::fmt::Write as _;

pub(crate) fn show_docs(arguments: &Arguments, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let pages = book::read_pages();
    let text = if arguments.all {
        join_book_pages(&pages)
    } else if let Some(words) = &arguments.search {
        find_matching_lines(&pages, words)?
    } else if let Some(name) = &arguments.page {
        find_book_page(&pages, name)?.text.to_owned()
    } else {
        format_table_of_contents(&pages)
    };
    output.write_text(text);
    Ok(CommandExit::Ok)
}

fn format_table_of_contents(pages: &[BookPage]) -> String {
    let width = pages.iter().map(|page| page.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    let mut section = "";
    for page in pages {
        if page.section != section {
            section = page.section;
            text.extend([if text.is_empty() { "" } else { "\n" }, section, "\n"]);
        }
        text.extend([format!("  {:width$}  {}\n", page.name, page.title)]);
    }
    text + "\n`packetrig docs PAGE` prints a page, `packetrig docs --search WORDS` finds lines.\n"
}

fn join_book_pages(pages: &[BookPage]) -> String {
    pages.iter().fold(String::new(), |mut text, page| {
        // Writing to a string does not fail.
        let _written =
            writeln!(text, "<!-- {}: packetrig docs {} -->\n\n{}", page.section, page.name, page.text);
        text
    })
}

fn find_book_page<'a>(pages: &'a [BookPage], name: &str) -> Result<&'a BookPage, Error> {
    if let Some(page) = pages.iter().find(|page| page.name == name) {
        return Ok(page);
    }
    let found: Vec<_> = pages.iter().filter(|page| page.name.starts_with(name)).collect();
    match found[..] {
        [page] => Ok(page),
        [] => Err(Error::Usage(format!(
            "the book has no page `{name}`; `packetrig docs` lists its pages, and `packetrig docs --search {name}` finds the word"
        ))),
        _ => {
            let names: Vec<_> = found.iter().map(|page| page.name).collect();
            Err(Error::Usage(format!("the names of several pages begin with `{name}`: {}", names.join(", "))))
        }
    }
}

/// Returns the lines that contain all words, each with the name of its page.
fn find_matching_lines(pages: &[BookPage], words: &str) -> Result<String, Error> {
    let found = book::search_book(pages, words);
    if found.is_empty() {
        return Err(Error::Usage(format!("no line of the book contains all of these words: {words}")));
    }
    let lines = found.iter().map(|found| format!("{}:{}: {}\n", found.page.name, found.line, found.text));
    Ok(lines.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_found_by_name_or_by_its_beginning() {
        let pages = book::read_pages();
        let found = |name: &str| {
            find_book_page(&pages, name).map(|page| page.name).map_err(|error| error.to_string())
        };
        assert_eq!(found("probe"), Ok("probe"));
        assert_eq!(found("getting"), Ok("getting-started"));
        assert!(found("probe-").unwrap_err().contains("probe-ping, probe-stamp"));
        assert!(found("nothing").unwrap_err().contains("no page `nothing`"));
    }

    #[test]
    fn search_names_page_and_line() {
        let text = "# Tap\n\nCopies  Frames.\n";
        let pages = [BookPage { section: "Links", name: "tap", title: "Tap", text }];
        assert_eq!(find_matching_lines(&pages, "frames copies").unwrap(), "tap:3: Copies  Frames.\n");
        assert!(find_matching_lines(&pages, "nothing").is_err());
    }

    #[test]
    fn contents_have_every_page_under_its_section() {
        let contents = format_table_of_contents(&book::read_pages());
        assert!(contents.starts_with("First steps\n  install "), "{contents}");
        assert!(contents.contains("\n\nFlows\n  meter "), "{contents}");
    }
}
