//! The book: its pages as docs/SUMMARY.md lists them, as Markdown and as HTML. Pages about measurements and decisions are for
//! developers of packetrig, so they are left out.

mod html;
mod search;

pub use html::{render_book_contents, render_book_page};
pub use search::{BookMatch, search_book};

const BOOK_SUMMARY: &str = include_str!("../../../docs/SUMMARY.md");

/// A page of the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BookPage {
    pub section: &'static str,
    /// Name of the page's file, without directory and extension.
    pub name: &'static str,
    pub title: &'static str,
    /// Markdown.
    pub text: &'static str,
}

macro_rules! embedded {
    ($($path:literal,)*) => {
        &[$(($path, include_str!(concat!("../../../docs/", $path, ".md")))),*]
    };
}

/// For each page, its path below `docs` (without the extension) and its text. `include_str!` needs literal paths, so
/// the list repeats the paths of SUMMARY.md; a test compares both.
const BOOK_PAGES: &[(&str, &str)] = embedded![
    "book/install",
    "book/labs",
    "book/getting-started",
    "book/walk-engineer",
    "book/walk-researcher",
    "book/walk-operator",
    "book/how-it-works",
    "book/coming-from",
    "book/from-trex",
    "book/from-iperf3",
    "book/from-ixia-c",
    "book/from-bngblaster",
    "book/from-nfdump",
    "book/from-perfsonar",
    "book/rates",
    "book/glossary",
    "book/exit-codes",
    "book/event-log",
    "book/plan",
    "book/tag",
    "book/back-ends",
    "book/engines",
    "book/replay",
    "book/devices",
    "book/otg-api",
    "book/page",
    "book/watch",
    "book/page-api",
    "book/mcp",
    "book/live-columns",
    "book/verdicts",
    "book/figures",
    "book/inconclusive",
    "book/caveats",
    "book/latency",
    "book/results",
    "book/report-page",
    "book/result-columns",
    "book/test-methods",
    "book/gates",
    "book/capture",
    "book/log",
    "book/merge",
    "book/tap",
    "book/impair",
    "book/probe",
    "book/probe-ping",
    "book/probe-stamp",
    "book/probe-oneprobe",
    "book/probe-capacity",
    "book/probe-fleet",
    "book/probe-small",
    "book/release-service",
    "book/release-clients",
    "book/release-protocol",
    "book/meter",
    "book/meter-group",
    "book/parsing",
    "book/flow-table",
    "book/flow-export",
    "book/flow-collect",
    "book/flow-store",
    "book/flow-questions",
    "book/flow-alerts",
    "book/metrics",
    "book/sandbox",
    "book/service",
    "fleet",
    "book/fleet-results",
    "book/fleet-operating",
    "book/fleet-owner",
    "book/fleet-failures",
    "book/spool",
    "threat-model",
];

/// All pages, in the order of the book.
pub fn read_pages() -> Vec<BookPage> {
    let mut pages = Vec::new();
    let mut section = "";
    for line in BOOK_SUMMARY.lines() {
        if let Some(title) = line.strip_prefix("# ") {
            section = title;
        } else if let Some((title, path)) = parse_markdown_link(line)
            && let Some((_, text)) = BOOK_PAGES.iter().find(|(known, _)| *known == path)
        {
            let name = path.rsplit('/').next().unwrap_or(path);
            pages.push(BookPage { section, name, title, text });
        }
    }
    pages
}

/// Returns title and path (without `.md`) of a line `- [Title](path.md)`; `None` for any other line.
fn parse_markdown_link(line: &'static str) -> Option<(&'static str, &'static str)> {
    let (title, path) = line.trim_start().strip_prefix("- [")?.split_once("](")?;
    Some((title, path.strip_suffix(".md)")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn book_has_every_listed_page_and_no_other() {
        let listed: Vec<_> = BOOK_SUMMARY
            .lines()
            .filter_map(parse_markdown_link)
            .map(|(_, path)| path)
            .filter(|path| !path.starts_with("results/") && !path.starts_with("decisions/"))
            .collect();
        let embedded: Vec<_> = BOOK_PAGES.iter().map(|(path, _)| *path).collect();
        assert_eq!(embedded, listed, "book.rs embeds what docs/SUMMARY.md lists, in its order");
    }
}
