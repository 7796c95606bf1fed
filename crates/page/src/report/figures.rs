//! Charts on a page: with a title, a legend that has exact extremes, and notes; or the reason for their absence.

use crate::draw::chart::Chart;
use crate::draw::columns::SampleColumns;
use crate::markup::Markup;

/// A line of a chart, explained below it with its exact extremes.
pub(super) struct LegendEntry {
    pub(super) name: String,
    pub(super) style: usize,
    pub(super) is_level: bool,
    pub(super) text: String,
}

impl LegendEntry {
    pub(super) fn from_columns(
        name: &str,
        style: usize,
        columns: &SampleColumns,
        text: &dyn Fn(u64) -> String,
    ) -> Self {
        let text = match columns.low().zip(columns.high()) {
            None => "not measured".to_owned(),
            // A constant series has one value, and `5 to 5` would look like a mistake.
            Some((low, high)) if low == high => text(low),
            Some((low, high)) => format!("{} to {}", text(low), text(high)),
        };
        Self { name: name.to_owned(), style, is_level: false, text }
    }
}

/// Writes a chart with its title, a legend of its lines, and a note. `heading` is the element of the title:
/// one level below the heading above the charts.
pub(super) fn write_figure(
    page: &mut Markup,
    heading: &'static str,
    title: &str,
    chart: &Chart,
    legend: &[LegendEntry],
    note: Option<&str>,
) {
    page.open_element("figure", &[])
        .add_element(heading, &[], title)
        .append(&chart.draw_chart())
        .open_element("figcaption", &[]);
    if !legend.is_empty() {
        page.open_element("ul", &[("class", "legend")]);
        for entry in legend {
            page.open_element("li", &[]);
            page.open_element(
                "svg",
                &[("class", "swatch"), ("viewBox", "0 0 28 8"), ("aria-hidden", "true")],
            );
            let level = if entry.is_level { " level" } else { "" };
            page.empty_element(
                "path",
                &[("class", &format!("line line-{}{level}", entry.style)), ("d", "M0 4h28")],
            );
            page.close_element("svg")
                .add_text(&format!("{}: {}", entry.name, entry.text))
                .close_element("li");
        }
        page.close_element("ul");
    }
    if let Some(note) = note {
        page.add_element("p", &[("class", "note")], note);
    }
    page.close_element("figcaption").close_element("figure");
}

/// Writes the reason for an absent chart in its place.
pub(super) fn write_absent_figure(page: &mut Markup, heading: &'static str, title: &str, reason: &str) {
    // The figure stays on the page: a chart that is simply missing would look like a fault of the page.
    page.open_element("figure", &[("class", "absent-figure")]).add_element(heading, &[], title);
    page.open_element("p", &[("class", "absent")])
        .add_text("Not measured: ")
        .add_text(reason)
        .close_element("p")
        .close_element("figure");
}
