//! Elements that all pages share: tables, lists of figures, signs of verdicts, times.

use crate::markup::Markup;
use crate::quantity;
use packetrig_units::Nanos;

/// A result that is shown by word, sign and colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResultSign {
    Pass,
    Fail,
    Unknown,
}

impl ResultSign {
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
pub(super) fn write_verdict_sign(page: &mut Markup, sign: ResultSign, word: &str, is_large: bool) {
    let size = if is_large { " verdict-large" } else { "" };
    page.open_element("span", &[("class", &format!("verdict {}{size}", sign.class()))]);
    // The word has a sign, so that colour alone never carries a meaning. Screen readers read only the word.
    page.add_element("span", &[("aria-hidden", "true")], sign.mark());
    page.add_element("span", &[], word).close_element("span");
}

/// A cell of a table.
#[derive(Clone, Debug, Default)]
pub(super) struct TableCell {
    text: String,
    /// The exact value, for sorting and for programs.
    value: Option<String>,
    sign: Option<ResultSign>,
    is_absent: bool,
}

impl TableCell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    pub(super) fn number(value: u64, text: String) -> Self {
        // The exact value goes with the text: the script sorts by it, and the text may be rounded.
        Self { text, value: Some(value.to_string()), ..Self::default() }
    }

    pub(super) fn time(time: Nanos) -> Self {
        Self::number(time.as_u64(), quantity::format_time(time))
    }

    /// A cell with a value for sorting that is already text.
    pub(super) fn with_value(value: String, text: String) -> Self {
        Self { text, value: Some(value), ..Self::default() }
    }

    pub(super) fn count(value: u64) -> Self {
        Self::number(value, quantity::format_count(value))
    }

    pub(super) fn verdict(sign: ResultSign, word: &str) -> Self {
        Self { text: word.to_owned(), sign: Some(sign), ..Self::default() }
    }

    /// A value that was not measured: a dash that is read aloud as words.
    pub(super) fn absent() -> Self {
        Self { is_absent: true, ..Self::default() }
    }

    pub(super) fn from_optional(cell: Option<Self>) -> Self {
        cell.unwrap_or_else(Self::absent)
    }
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct ColumnHeading {
    pub(super) name: &'static str,
    /// The unit of all values, if they do not show their own.
    pub(super) unit: &'static str,
    pub(super) is_number: bool,
    /// True for sentences, which need more width.
    pub(super) is_prose: bool,
}

pub(super) const fn word_column(name: &'static str) -> ColumnHeading {
    ColumnHeading { name, unit: "", is_number: false, is_prose: false }
}

/// A column of sentences.
pub(super) const fn prose_column(name: &'static str) -> ColumnHeading {
    ColumnHeading { name, unit: "", is_number: false, is_prose: true }
}

pub(super) const fn number_column(name: &'static str, unit: &'static str) -> ColumnHeading {
    ColumnHeading { name, unit, is_number: true, is_prose: false }
}

/// Writes a table. Its first column names the row. `id` makes it sortable.
pub(super) fn tabulate_rows(
    page: &mut Markup,
    label: &str,
    id: Option<&str>,
    headings: &[ColumnHeading],
    rows: &[Vec<TableCell>],
) {
    // A box that scrolls must be reachable by keyboard: hence `tabindex`, with a role and a name.
    page.open_element(
        "div",
        &[("class", "table-box"), ("tabindex", "0"), ("role", "group"), ("aria-label", label)],
    );
    match id {
        Some(id) => page.open_element("table", &[("id", id), ("class", "sortable")]),
        None => page.open_element("table", &[]),
    };
    // The heading above is enough for the eye. Screen readers list tables by their captions.
    page.add_element("caption", &[("class", "visually-hidden")], label);
    write_table_head(page, headings);
    page.open_element("tbody", &[]);
    for row in rows {
        write_table_row(page, headings, row);
    }
    page.close_element("tbody").close_element("table").close_element("div");
}

pub(super) fn write_table_head(page: &mut Markup, headings: &[ColumnHeading]) {
    page.open_element("thead", &[]).open_element("tr", &[]);
    for heading in headings {
        let class = if heading.is_number { "number" } else { "words" };
        page.open_element("th", &[("scope", "col"), ("class", class)]).add_text(heading.name);
        if !heading.unit.is_empty() {
            page.add_text(" ").add_element("span", &[("class", "unit")], heading.unit);
        }
        page.close_element("th");
    }
    page.close_element("tr").close_element("thead");
}

fn write_table_row(page: &mut Markup, headings: &[ColumnHeading], row: &[TableCell]) {
    page.open_element("tr", &[]);
    // `zip` ends with the shorter list: every row has a cell for each heading, and an absent one is a cell, too.
    for (index, (heading, cell)) in headings.iter().zip(row).enumerate() {
        // A screen reader names the row by this cell when it reads another one.
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
        page.open_element(tag, &attributes);
        match cell.sign {
            Some(sign) => write_verdict_sign(page, sign, &cell.text, false),
            None if cell.is_absent => write_absent_value(page),
            None => {
                page.add_text(&cell.text);
            }
        }
        page.close_element(tag);
    }
    page.close_element("tr");
}

/// Says how many entries the page leaves out, and names the file that has them.
pub(super) fn describe_omitted_entries(count: usize) -> String {
    format!("{count} more {} in report.json.", if count == 1 { "entry is" } else { "entries are" })
}

/// Writes the sign of a value that is not known.
pub(super) fn write_absent_value(page: &mut Markup) {
    page.open_element("span", &[("class", "absent")]).add_element("span", &[("aria-hidden", "true")], "–");
    // A dash alone would be read as punctuation or not at all.
    page.add_element("span", &[("class", "visually-hidden")], "not measured").close_element("span");
}

/// A named value of a result, as text.
#[derive(Clone, Debug)]
pub(super) struct NamedFigure {
    pub(super) name: &'static str,
    /// `None` if it was not measured.
    pub(super) text: Option<String>,
    /// The exact value, for programs that read the page.
    pub(super) value: Option<u64>,
    /// Short text shown after the value, such as its error bound or its share of a total; may be empty.
    pub(super) addition: String,
}

impl NamedFigure {
    pub(super) fn new(name: &'static str, text: String) -> Self {
        Self { name, text: Some(text), value: None, addition: String::new() }
    }

    pub(super) fn frame_count(name: &'static str, value: Option<u64>) -> Self {
        let text = value.map(|value| quantity::format_count_with_unit(value, "frame"));
        Self { name, text, value, addition: String::new() }
    }

    #[must_use]
    pub(super) fn with_addition(mut self, addition: String) -> Self {
        self.addition = addition;
        self
    }
}

pub(super) fn write_figure_list(page: &mut Markup, figures: &[NamedFigure]) {
    page.open_element("dl", &[("class", "figures")]);
    for figure in figures {
        page.open_element("div", &[]).add_element("dt", &[], figure.name);
        match (&figure.text, figure.value) {
            (Some(text), Some(value)) => {
                page.open_element("dd", &[("data-value", &value.to_string())]).add_text(text)
            }
            (Some(text), None) => page.open_element("dd", &[]).add_text(text),
            (None, _) => {
                page.open_element("dd", &[]).add_element("span", &[("class", "absent")], "not measured")
            }
        };
        if !figure.addition.is_empty() {
            page.open_element("small", &[("class", "muted")])
                .add_text(" ")
                .add_text(&figure.addition)
                .close_element("small");
        }
        page.close_element("dd").close_element("div");
    }
    page.close_element("dl");
}

/// Writes a time of day: UTC, to which the page's script adds the local time.
pub(super) fn write_wall_time(page: &mut Markup, wall_ns: u64) {
    let text = quantity::format_utc(wall_ns);
    match quantity::format_iso_utc(wall_ns) {
        Some(machine) => page.add_element("time", &[("datetime", &machine)], &text),
        // `time` needs a date that machines read, and this value has none.
        None => page.add_text(&text),
    };
}

/// Writes a row of a list of names and values.
pub(super) fn write_fact(page: &mut Markup, name: &str, fill: impl FnOnce(&mut Markup)) {
    page.open_element("tr", &[]).add_element("th", &[("scope", "row")], name);
    page.add_element_with("td", &[], fill);
    page.close_element("tr");
}

/// Writes a part of the page with a heading.
pub(super) fn write_section(
    page: &mut Markup,
    id: &'static str,
    title: &str,
    fill: impl FnOnce(&mut Markup),
) {
    let heading = format!("{id}-title");
    page.open_element("section", &[("id", id), ("class", "card"), ("aria-labelledby", &heading)]);
    page.add_element("h2", &[("id", &heading)], title);
    fill(page);
    page.close_element("section");
}
