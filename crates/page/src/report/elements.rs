//! Elements that all pages share: tables, lists of figures, signs of verdicts, times.

use crate::markup::Markup;
use crate::quantity;

/// A result that is shown by word, sign and colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    Pass,
    Fail,
    Unknown,
}

impl Sign {
    const fn class(self) -> &'static str {
        match self {
            Self::Pass => "verdict-pass",
            Self::Fail => "verdict-fail",
            Self::Unknown => "verdict-unknown",
        }
    }

    const fn mark(self) -> &'static str {
        match self {
            Self::Pass => "✓",
            Self::Fail => "✗",
            Self::Unknown => "?",
        }
    }
}

/// Writes a verdict: its sign, which is not read aloud, and its word.
pub(super) fn verdict(page: &mut Markup, sign: Sign, word: &str, is_large: bool) {
    let size = if is_large { " verdict-large" } else { "" };
    page.open("span", &[("class", &format!("verdict {}{size}", sign.class()))]);
    page.element("span", &[("aria-hidden", "true")], sign.mark());
    page.element("span", &[], word).close("span");
}

/// A cell of a table.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    text: String,
    /// The exact value, for sorting and for programs.
    value: Option<String>,
    sign: Option<Sign>,
    is_absent: bool,
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    pub(super) fn number(value: u64, text: String) -> Self {
        Self { text, value: Some(value.to_string()), ..Self::default() }
    }

    /// A cell whose value for sorting is already text.
    pub(super) fn valued(value: String, text: String) -> Self {
        Self { text, value: Some(value), ..Self::default() }
    }

    pub(super) fn count(value: u64) -> Self {
        Self::number(value, quantity::count(value))
    }

    pub(super) fn verdict(sign: Sign, word: &str) -> Self {
        Self { text: word.to_owned(), sign: Some(sign), ..Self::default() }
    }

    /// A value that was not measured: a dash that is read aloud as words.
    pub(super) fn absent() -> Self {
        Self { is_absent: true, ..Self::default() }
    }

    pub(super) fn or_absent(cell: Option<Self>) -> Self {
        cell.unwrap_or_else(Self::absent)
    }
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heading {
    pub(super) name: &'static str,
    /// The unit of all values, if they do not show their own.
    pub(super) unit: &'static str,
    pub(super) is_number: bool,
    /// True for sentences, which need more width.
    pub(super) is_prose: bool,
}

pub(super) const fn words(name: &'static str) -> Heading {
    Heading { name, unit: "", is_number: false, is_prose: false }
}

/// A column of sentences.
pub(super) const fn prose(name: &'static str) -> Heading {
    Heading { name, unit: "", is_number: false, is_prose: true }
}

pub(super) const fn number(name: &'static str, unit: &'static str) -> Heading {
    Heading { name, unit, is_number: true, is_prose: false }
}

/// Writes a table. Its first column names the row. `id` makes it sortable.
pub(super) fn table(
    page: &mut Markup,
    label: &str,
    id: Option<&str>,
    headings: &[Heading],
    rows: &[Vec<Cell>],
) {
    page.open("div", &[("class", "table-box"), ("tabindex", "0"), ("role", "group"), ("aria-label", label)]);
    match id {
        Some(id) => page.open("table", &[("id", id), ("class", "sortable")]),
        None => page.open("table", &[]),
    };
    page.element("caption", &[("class", "visually-hidden")], label);
    table_head(page, headings);
    page.open("tbody", &[]);
    for row in rows {
        table_row(page, headings, row);
    }
    page.close("tbody").close("table").close("div");
}

pub(super) fn table_head(page: &mut Markup, headings: &[Heading]) {
    page.open("thead", &[]).open("tr", &[]);
    for heading in headings {
        let class = if heading.is_number { "number" } else { "words" };
        page.open("th", &[("scope", "col"), ("class", class)]).text(heading.name);
        if !heading.unit.is_empty() {
            page.text(" ").element("span", &[("class", "unit")], heading.unit);
        }
        page.close("th");
    }
    page.close("tr").close("thead");
}

fn table_row(page: &mut Markup, headings: &[Heading], row: &[Cell]) {
    page.open("tr", &[]);
    for (index, (heading, cell)) in headings.iter().zip(row).enumerate() {
        let tag = if index == 0 { "th" } else { "td" };
        let mut attributes = Vec::new();
        if index == 0 {
            attributes.push(("scope", "row"));
        }
        if heading.is_number {
            attributes.push(("class", "number"));
        } else if heading.is_prose {
            attributes.push(("class", "prose"));
        }
        if let Some(value) = &cell.value {
            attributes.push(("data-value", value));
        }
        page.open(tag, &attributes);
        match cell.sign {
            Some(sign) => verdict(page, sign, &cell.text, false),
            None if cell.is_absent => absent(page),
            None => {
                page.text(&cell.text);
            }
        }
        page.close(tag);
    }
    page.close("tr");
}

/// Writes the sign of a value that is not known.
pub(super) fn absent(page: &mut Markup) {
    page.open("span", &[("class", "absent")]).element("span", &[("aria-hidden", "true")], "–");
    page.element("span", &[("class", "visually-hidden")], "not measured").close("span");
}

/// A number with its name.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    pub(super) name: &'static str,
    /// `None` if it was not measured.
    pub(super) text: Option<String>,
    /// The exact value.
    pub(super) value: Option<u64>,
    /// A short addition: a bound, a share.
    pub(super) addition: String,
}

impl Figure {
    pub(super) fn new(name: &'static str, text: String) -> Self {
        Self { name, text: Some(text), value: None, addition: String::new() }
    }

    pub(super) fn counted(name: &'static str, value: Option<u64>) -> Self {
        let text = value.map(|value| quantity::counted(value, "frame"));
        Self { name, text, value, addition: String::new() }
    }

    #[must_use]
    pub(super) fn with(mut self, addition: String) -> Self {
        self.addition = addition;
        self
    }
}

pub(super) fn figures(page: &mut Markup, figures: &[Figure]) {
    page.open("dl", &[("class", "figures")]);
    for figure in figures {
        page.open("div", &[]).element("dt", &[], figure.name);
        match (&figure.text, figure.value) {
            (Some(text), Some(value)) => page.open("dd", &[("data-value", &value.to_string())]).text(text),
            (Some(text), None) => page.open("dd", &[]).text(text),
            (None, _) => page.open("dd", &[]).element("span", &[("class", "absent")], "not measured"),
        };
        if !figure.addition.is_empty() {
            page.open("small", &[("class", "muted")]).text(" ").text(&figure.addition).close("small");
        }
        page.close("dd").close("div");
    }
    page.close("dl");
}

/// Writes a time of day: UTC, to which the page's script adds the local time.
pub(super) fn wall_time(page: &mut Markup, wall_ns: u64) {
    let text = quantity::utc(wall_ns);
    match quantity::utc_machine(wall_ns) {
        Some(machine) => page.element("time", &[("datetime", &machine)], &text),
        None => page.text(&text),
    };
}

/// Writes a row of a list of names and values.
pub(super) fn fact(page: &mut Markup, name: &str, fill: impl FnOnce(&mut Markup)) {
    page.open("tr", &[]).element("th", &[("scope", "row")], name);
    page.within("td", &[], fill);
    page.close("tr");
}

/// Writes a part of the page with a heading.
pub(super) fn section(page: &mut Markup, id: &'static str, title: &str, fill: impl FnOnce(&mut Markup)) {
    let heading = format!("{id}-title");
    page.open("section", &[("id", id), ("class", "card"), ("aria-labelledby", &heading)]);
    page.element("h2", &[("id", &heading)], title);
    fill(page);
    page.close("section");
}
