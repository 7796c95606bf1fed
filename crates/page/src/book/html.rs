//! Pages of the book as HTML, for the live page.
//!
//! Invariant: the book's text goes through [`Markup`], so it is escaped, and a page has no script.

use super::search::heading_name;
use super::{BookPage, search_book};
use crate::markup::Markup;
use pulldown_cmark::{CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use std::collections::BTreeSet;

/// Longest list of results of a search.
const MAX_SHOWN_MATCHES: usize = 200;
/// Longest text to search for. Every client may search, and each word costs a pass over the book.
const MAX_SEARCH_CHARACTERS: usize = 100;

/// The contents of the book as a page; with words to search for, the lines that contain them.
pub fn render_book_contents(pages: &[BookPage], words: &str) -> String {
    let mut body = Markup::new();
    add_search_form(&mut body, words);
    if words.chars().count() > MAX_SEARCH_CHARACTERS {
        body.open_element("p", &[("class", "card")]).add_text("Search for at most ");
        body.add_value(MAX_SEARCH_CHARACTERS).add_text(" characters.").close_element("p");
    } else if words.trim().is_empty() {
        add_contents(&mut body, pages);
    } else {
        add_matches(&mut body, pages, words);
    }
    wrap_document("The book", &body)
}

/// A page of the book; `None` if the book has no page of this name.
pub fn render_book_page(pages: &[BookPage], name: &str) -> Option<String> {
    let at = pages.iter().position(|page| page.name == name)?;
    let mut body = Markup::new();
    add_search_form(&mut body, "");
    body.open_element("article", &[("class", "card book")]);
    MarkdownWriter::new(pages, &mut body).write_markdown(pages[at].text);
    body.close_element("article");
    let neighbours = [("Before: ", at.checked_sub(1)), ("Next: ", Some(at + 1))];
    body.open_element("nav", &[("class", "controls"), ("aria-label", "Neighbouring pages")]);
    for (what, at) in neighbours {
        if let Some(page) = at.and_then(|at| pages.get(at)) {
            body.open_element("a", &[("href", page.name)]).add_text(what).add_text(page.title);
            body.close_element("a");
        }
    }
    body.close_element("nav");
    Some(wrap_document(pages[at].title, &body))
}

fn wrap_document(title: &str, body: &Markup) -> String {
    let mut page = Markup::new();
    page.add_unescaped_text("<!doctype html>\n").open_element("html", &[("lang", "en")]);
    page.open_element("head", &[]).empty_element("meta", &[("charset", "utf-8")]);
    page.empty_element("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
    page.empty_element("meta", &[("name", "color-scheme"), ("content", "light dark")]);
    page.add_element("title", &[], &format!("{title} · packetrig"));
    page.empty_element("link", &[("rel", "icon"), ("href", "data:,")]);
    for styles in ["style.css", "live.css"] {
        page.empty_element("link", &[("rel", "stylesheet"), ("href", &format!("../ui/{styles}"))]);
    }
    page.close_element("head").open_element("body", &[]);
    page.add_element("a", &[("class", "skip-link"), ("href", "#main")], "To the content");
    page.open_element("header", &[("class", "live-head")]).open_element("p", &[("class", "brand")]);
    page.add_element("a", &[("href", "../ui/")], "packetrig").add_text(" ");
    page.add_element("span", &[("class", "muted")], env!("CARGO_PKG_VERSION")).close_element("p");
    page.open_element("nav", &[("aria-label", "Pages")]);
    page.add_element("a", &[("href", "../ui/")], "Live page").add_element("a", &[("href", "./")], "Contents");
    page.close_element("nav").close_element("header");
    page.open_element("main", &[("id", "main"), ("tabindex", "-1")]).append(body);
    page.close_element("main").close_element("body").close_element("html");
    page.into_string()
}

fn add_search_form(body: &mut Markup, words: &str) {
    body.open_element("form", &[("action", "./"), ("role", "search"), ("class", "controls")]);
    body.add_element("label", &[("for", "words")], "Search the book");
    body.empty_element("input", &[("type", "search"), ("id", "words"), ("name", "q"), ("value", words)]);
    body.add_element("button", &[("type", "submit")], "Search").close_element("form");
}

fn add_contents(body: &mut Markup, pages: &[BookPage]) {
    body.add_element("h1", &[], "The book");
    body.open_element("div", &[("class", "book-contents")]);
    for section in pages.chunk_by(|one, next| one.section == next.section) {
        body.open_element("section", &[("class", "card")]).add_element("h2", &[], section[0].section);
        body.open_element("ul", &[("class", "plain")]);
        for page in section {
            body.add_element_with("li", &[], |item| {
                item.add_element("a", &[("href", page.name)], page.title);
            });
        }
        body.close_element("ul").close_element("section");
    }
    body.close_element("div");
}

fn add_matches(body: &mut Markup, pages: &[BookPage], words: &str) {
    let found = search_book(pages, words);
    body.open_element("h1", &[]).add_value(found.len()).add_text(" lines with all of these words");
    body.close_element("h1");
    let shown = &found[..found.len().min(MAX_SHOWN_MATCHES)];
    for of_page in shown.chunk_by(|one, next| one.page.name == next.page.name) {
        let page = of_page[0].page;
        body.open_element("section", &[("class", "card")]);
        body.add_element_with("h2", &[], |heading| {
            heading.add_element("a", &[("href", page.name)], page.title);
        });
        body.open_element("ul", &[]);
        for found in of_page {
            let link = format!("{}#{}", page.name, found.heading.as_deref().unwrap_or_default());
            body.add_element_with("li", &[], |item| {
                item.add_element("a", &[("href", &link)], &text_without_marks(found.text));
            });
        }
        body.close_element("ul").close_element("section");
    }
    if shown.len() < found.len() {
        body.add_element(
            "p",
            &[],
            "The list has only the first of these lines; add words to narrow the search.",
        );
    }
}

/// The words of a line of Markdown. A line alone may be a part of a table or a list.
fn text_without_marks(line: &str) -> String {
    let cells = line.trim_matches(['|', ' ']).replace(" | ", " · ");
    let words = Parser::new(&cells).filter_map(|event| match event {
        Event::Text(text) | Event::Code(text) | Event::Html(text) | Event::InlineHtml(text) => Some(text),
        _ => None,
    });
    words.map(CowStr::into_string).collect()
}

/// Writes the HTML of Markdown.
struct MarkdownWriter<'a> {
    pages: &'a [BookPage],
    out: &'a mut Markup,
    /// The heading that is being read: its element and its content so far. Its name is known at its end.
    heading: Option<(&'static str, String, Markup)>,
    /// Names of the headings so far.
    names: BTreeSet<String>,
    /// Number of tables so far. Regions of a page need different labels.
    tables: usize,
    /// True in the first row of a table.
    is_head: bool,
}

impl<'a> MarkdownWriter<'a> {
    fn new(pages: &'a [BookPage], out: &'a mut Markup) -> Self {
        Self { pages, out, heading: None, names: BTreeSet::new(), tables: 0, is_head: false }
    }

    fn write_markdown(&mut self, text: &str) {
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            self.write_event(event);
        }
    }

    fn write_event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.open_tag(&tag),
            Event::End(tag) => self.close_tag(tag),
            // The book has no HTML of its own; if it had, the reader would see its text.
            Event::Text(text) | Event::Html(text) | Event::InlineHtml(text) => self.write_text(&text, None),
            Event::Code(text) => self.write_text(&text, Some("code")),
            Event::SoftBreak | Event::HardBreak => self.write_text("\n", None),
            Event::Rule => {
                self.target().empty_element("hr", &[]);
            }
            // These need options that are not given to the parser.
            Event::InlineMath(_)
            | Event::DisplayMath(_)
            | Event::FootnoteReference(_)
            | Event::TaskListMarker(_) => {}
        }
    }

    fn target(&mut self) -> &mut Markup {
        match &mut self.heading {
            Some((.., content)) => content,
            None => self.out,
        }
    }

    fn write_text(&mut self, text: &str, element: Option<&'static str>) {
        if let Some((_, name, _)) = &mut self.heading {
            name.push_str(text);
        }
        match element {
            Some(element) => self.target().add_element(element, &[], text),
            None => self.target().add_text(text),
        };
    }

    fn open_tag(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::Heading { level, .. } => {
                self.heading = Some((heading_element(*level), String::new(), Markup::new()));
            }
            // Wide tables and long lines of code scroll, also with the keyboard.
            Tag::CodeBlock(_) => {
                self.out.open_element("pre", &[("tabindex", "0")]);
            }
            Tag::Table(_) => {
                self.tables += 1;
                let label = format!("Table {}", self.tables);
                let attributes =
                    [("class", "table-box"), ("role", "region"), ("tabindex", "0"), ("aria-label", &*label)];
                self.out.open_element("div", &attributes).open_element("table", &[]);
            }
            Tag::TableHead => {
                self.is_head = true;
                self.out.open_element("thead", &[]).open_element("tr", &[]);
            }
            Tag::TableCell if self.is_head => {
                self.out.open_element("th", &[("scope", "col")]);
            }
            Tag::Link { dest_url, .. } => self.open_link(dest_url),
            Tag::Image { .. } => {
                self.out.open_element("span", &[("class", "muted")]).add_text("Picture: ");
            }
            tag => {
                if let Some(element) = plain_element(tag.to_end()) {
                    self.target().open_element(element, &[]);
                }
            }
        }
    }

    fn close_tag(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(_) => {
                if let Some((element, text, content)) = self.heading.take() {
                    let name = self.unused_heading_name(&text);
                    self.out.open_element(element, &[("id", &name)]).append(&content).close_element(element);
                    self.names.insert(name);
                }
            }
            TagEnd::CodeBlock => {
                self.out.close_element("pre");
            }
            TagEnd::Table => {
                self.out.close_element("tbody").close_element("table").close_element("div");
            }
            TagEnd::TableHead => {
                self.is_head = false;
                self.out.close_element("tr").close_element("thead").open_element("tbody", &[]);
            }
            TagEnd::TableCell if self.is_head => {
                self.out.close_element("th");
            }
            TagEnd::Link => {
                self.target().close_element("a");
            }
            TagEnd::Image => {
                self.target().close_element("span");
            }
            tag => {
                if let Some(element) = plain_element(tag) {
                    self.target().close_element(element);
                }
            }
        }
    }

    /// Links lead to the first of several headings with the same text; the others get a number.
    fn unused_heading_name(&self, heading: &str) -> String {
        let name = heading_name(heading);
        let numbered = (1..).map(|number| format!("{name}-{number}"));
        std::iter::once(name.clone())
            .chain(numbered)
            .find(|name| !self.names.contains(name))
            .unwrap_or_default()
    }

    /// Opens a link to a page of the book or to a web page. Files of the repository are not in the program, so links to them have no
    /// target.
    fn open_link(&mut self, target: &str) {
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let file = path.rsplit('/').next().unwrap_or(path);
        // Directories and programs may have the names of pages.
        let name = file.strip_suffix(".md").unwrap_or_default();
        let is_page = path.is_empty() || self.pages.iter().any(|page| page.name == name);
        let anchor = if anchor.is_empty() { String::new() } else { format!("#{anchor}") };
        if target.starts_with("http://") || target.starts_with("https://") {
            self.target().open_element("a", &[("href", target), ("rel", "noreferrer")]);
        } else if is_page {
            self.target().open_element("a", &[("href", &format!("{name}{anchor}"))]);
        } else {
            self.target().open_element("a", &[]);
        }
    }
}

const fn heading_element(level: HeadingLevel) -> &'static str {
    match level {
        HeadingLevel::H1 => "h1",
        HeadingLevel::H2 => "h2",
        HeadingLevel::H3 => "h3",
        _ => "h4",
    }
}

/// The element of a tag that needs no attributes; `None` if the book does not use it.
const fn plain_element(tag: TagEnd) -> Option<&'static str> {
    Some(match tag {
        TagEnd::Paragraph => "p",
        TagEnd::BlockQuote(_) => "blockquote",
        TagEnd::List(true) => "ol",
        TagEnd::List(false) => "ul",
        TagEnd::Item => "li",
        TagEnd::TableRow => "tr",
        TagEnd::TableCell => "td",
        TagEnd::Emphasis => "em",
        TagEnd::Strong => "strong",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::read_pages;
    use std::collections::BTreeMap;

    fn values_of(html: &str, attribute: &str) -> BTreeSet<String> {
        let before = format!("{attribute}=\"");
        html.split(&before)
            .skip(1)
            .filter_map(|rest| rest.split_once('"'))
            .map(|(value, _)| value.into())
            .collect()
    }

    #[test]
    fn every_link_of_the_book_leads_to_a_page_and_a_heading() {
        let pages = read_pages();
        let written: BTreeMap<_, _> = pages
            .iter()
            .map(|page| (page.name, render_book_page(&pages, page.name).expect("it is listed")))
            .collect();
        let mut links = 0;
        for (name, html) in &written {
            assert!(!html.contains("<script"), "{name}");
            for link in
                values_of(html, "href").iter().filter(|link| !link.contains(':') && !link.contains('/'))
            {
                let (page, anchor) = link.split_once('#').unwrap_or((link, ""));
                let target = if page.is_empty() { Some(html) } else { written.get(page) };
                let target = target.unwrap_or_else(|| panic!("{name}: no page for {link}"));
                assert!(anchor.is_empty() || values_of(target, "id").contains(anchor), "{name}: {link}");
                links += 1;
            }
        }
        assert!(links > 300, "{links}");
    }

    #[test]
    fn markdown_becomes_escaped_html() {
        let text = "# A `b`\n\nOne **two** [page](other.md#x), [file](../../a.rs), [folder](../other), <b>.\n\n| H |\n|---|\n| 1 |\n\n```sh\na < b\n```\n";
        let pages = ["page", "other"].map(|name| BookPage { section: "S", name, title: "T", text });
        let html = render_book_page(&pages, "page").expect("it is listed");
        for part in [
            "<h1 id=\"a-b\">A <code>b</code></h1>",
            "<p>One <strong>two</strong> <a href=\"other#x\">page</a>, <a>file</a>, <a>folder</a>, &lt;b&gt;.</p>",
            "<thead><tr><th scope=\"col\">H</th></tr></thead><tbody><tr><td>1</td></tr></tbody>",
            "<pre tabindex=\"0\">a &lt; b\n</pre>",
            "Next: T",
        ] {
            assert!(html.contains(part), "{part} is not in {html}");
        }
        assert_eq!(render_book_page(&pages, "nothing"), None);
    }

    #[test]
    fn contents_list_pages_and_search_lists_lines() {
        let pages = read_pages();
        let contents = render_book_contents(&pages, "");
        assert!(pages.iter().all(|page| contents.contains(&format!("href=\"{}\"", page.name))));
        let found = render_book_contents(&pages, "landlock <script>");
        assert!(found.contains("0 lines") && found.contains("value=\"landlock &lt;script&gt;\""), "{found}");
        assert!(render_book_contents(&pages, "landlock").contains("href=\"sandbox#"));
        assert!(render_book_contents(&pages, "the").contains("has only the first"));
        let long = render_book_contents(&pages, &"e ".repeat(60));
        assert!(long.contains("at most 100 characters") && !long.contains("lines with all"), "{long}");
        assert_eq!(text_without_marks("| `a` | the [group](g.md) <b> |"), "a · the group <b>");
    }
}
