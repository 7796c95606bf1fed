//! The columns of a run in progress. Each column is described once: its key, kind and meaning, the source of its value, and
//! where it is shown. The API's JSON and its description, the live page, `packetrig watch`, the metrics for Prometheus and the
//! book are made from these lists. The lists of results are in `packetrig_report::columns`.
//!
//! Invariant: a published key or metric keeps its name. The order is that of the columns on every screen.

mod ports;
mod streams;
mod totals;

pub use ports::PORT_COLUMNS;
pub use streams::STREAM_COLUMNS;
pub(crate) use totals::TOTAL_COLUMNS;

use packetrig_report::columns::{CellValue, ColumnKind};
use serde_json::{Map, Value, json};
use std::fmt;

/// The largest number that every JSON reader reads exactly.
const MAX_EXACT_JSON_NUMBER: u64 = 1 << 53;

/// A column of a live table with rows of `R`.
pub struct LiveColumn<R> {
    /// Key in the API; a dot is before a member of a part, as in `tx.dropped`.
    pub name: &'static str,
    /// Type and unit of its values.
    pub kind: ColumnKind,
    /// Meaning of the column, in a sentence.
    pub meaning: &'static str,
    /// Its heading on the live page, if it is shown there.
    pub heading: Option<&'static str>,
    /// Its form in `packetrig watch`, if it is shown there.
    pub watch: Option<WatchColumn>,
    /// Name of its metric for Prometheus, if it has one.
    pub(crate) metric: Option<&'static str>,
    value: fn(&R) -> Option<CellValue>,
}

/// A column on a terminal.
#[derive(Clone, Copy, Debug)]
pub struct WatchColumn {
    pub heading: &'static str,
    /// Its smallest width.
    pub width: u16,
    /// Order in which columns are omitted on a narrow screen: columns with the highest rank come first.
    pub rank: u8,
    /// Name of the order by this column, if a key offers it.
    pub order: Option<&'static str>,
}

impl<R> LiveColumn<R> {
    const fn new(
        name: &'static str,
        kind: ColumnKind,
        meaning: &'static str,
        value: fn(&R) -> Option<CellValue>,
    ) -> Self {
        Self { name, kind, meaning, heading: None, watch: None, metric: None, value }
    }

    const fn on_page(self, heading: &'static str) -> Self {
        Self { heading: Some(heading), ..self }
    }

    const fn with_watch_column(self, heading: &'static str, width: u16, rank: u8) -> Self {
        Self { watch: Some(WatchColumn { heading, width, rank, order: None }), ..self }
    }

    /// Lets a key of `packetrig watch` sort by the column.
    const fn with_sort_order(self, order: &'static str) -> Self {
        match self.watch {
            Some(watch) => Self { watch: Some(WatchColumn { order: Some(order), ..watch }), ..self },
            None => self,
        }
    }

    const fn with_metric(self, metric: &'static str) -> Self {
        Self { metric: Some(metric), ..self }
    }

    /// True unless it is a member of a part.
    fn is_member(&self) -> bool {
        !self.name.contains('.')
    }

    /// The value in JSON; `null` if it was not measured.
    pub(crate) fn json_of(&self, row: &R) -> Value {
        (self.value)(row).map_or(Value::Null, cell_to_json)
    }

    /// The value as a metric, in the base units of Prometheus; absent if it was not measured.
    pub(crate) fn metric_value(&self, row: &R) -> Option<f64> {
        let number = match (self.value)(row)? {
            CellValue::Text(_) | CellValue::Names(_) => return None,
            CellValue::YesNo(value) => f64::from(u8::from(value)),
            CellValue::Count(count) => count as f64,
            CellValue::Signed(value) => value as f64,
            CellValue::Float(value) => value,
            CellValue::Share { percent, .. } => percent,
        };
        Some(if self.kind == ColumnKind::Nanoseconds { number / 1e9 } else { number })
    }

    /// Description of a value in OpenAPI.
    fn value_schema(&self) -> Value
    where
        R: Default,
    {
        let mut types = match self.kind {
            ColumnKind::Text => vec!["string"],
            ColumnKind::YesNo => vec!["boolean"],
            ColumnKind::Frames | ColumnKind::Bytes => vec!["integer", "string"],
            ColumnKind::Number | ColumnKind::BitsPerSecond => vec!["integer"],
            // A number that is not finite is `null`.
            _ => vec!["number", "null"],
        };
        // A column that has a value in an empty row has one in every row.
        if (self.value)(&R::default()).is_none() && !types.contains(&"null") {
            types.push("null");
        }
        json!({ "type": types, "description": self.meaning })
    }

    /// Name of the format in which the live page's script shows values.
    const fn page_form(&self) -> &'static str {
        match self.kind {
            ColumnKind::Text => "text",
            ColumnKind::YesNo => "yes_no",
            ColumnKind::Percent => "percent",
            ColumnKind::Nanoseconds => "time",
            ColumnKind::BitsPerSecond => "bit_rate",
            ColumnKind::BytesPerSecond => "byte_rate",
            ColumnKind::FramesPerSecond => "frame_rate",
            _ => "count",
        }
    }
}

impl<R> fmt::Debug for LiveColumn<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveColumn").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The columns that the live page shows, in their order.
pub(crate) fn page_columns() -> Value {
    json!({
        "streams": headed_columns(STREAM_COLUMNS),
        "ports": headed_columns(PORT_COLUMNS),
        "totals": headed_columns(TOTAL_COLUMNS),
    })
}

fn headed_columns<R>(columns: &[LiveColumn<R>]) -> Vec<Value> {
    let shown = columns.iter().filter_map(|column| Some((column, column.heading?)));
    shown
        .map(|(column, heading)| json!({ "name": column.name, "heading": heading, "form": column.page_form() }))
        .collect()
}

/// Adds the columns to the description of the API.
pub(crate) fn describe_columns(described: &mut Value) {
    let schemas = &mut described["components"]["schemas"];
    add_members(&mut schemas["LivePort"], PORT_COLUMNS, |value| value);
    add_members(&mut schemas["LiveTotals"], TOTAL_COLUMNS, |value| value);
    // One array for each column, and one value for each row.
    add_members(
        &mut schemas["StreamColumns"],
        STREAM_COLUMNS,
        |value| json!({ "type": "array", "items": value }),
    );
}

fn add_members<R: Default>(schema: &mut Value, columns: &[LiveColumn<R>], form: fn(Value) -> Value) {
    for column in columns.iter().filter(|column| column.is_member()) {
        schema["properties"][column.name] = form(column.value_schema());
        schema["required"].as_array_mut().expect("the file has the list").push(column.name.into());
    }
}

/// The members of a row in JSON, without the members of its parts.
pub(crate) fn row_to_json<R>(columns: &[LiveColumn<R>], row: &R) -> Map<String, Value> {
    let members = columns.iter().filter(|column| column.is_member());
    members.map(|column| (column.name.to_owned(), column.json_of(row))).collect()
}

fn cell_to_json(cell: CellValue) -> Value {
    match cell {
        CellValue::Text(text) => text.into(),
        CellValue::Names(names) => names.into(),
        CellValue::YesNo(value) => value.into(),
        CellValue::Count(count) => count_json(count),
        CellValue::Signed(value) => value.into(),
        CellValue::Float(value) => rate_to_json(value),
        // The number is not rounded: 3 lost frames of 10^9 must not look like no loss.
        CellValue::Share { percent, .. } => float_to_json(percent),
    }
}

/// A number if every reader reads it exactly, otherwise text, because JavaScript reads numbers as doubles.
pub(crate) fn count_json(count: u64) -> Value {
    if count <= MAX_EXACT_JSON_NUMBER { count.into() } else { count.to_string().into() }
}

/// A rate or a time with three digits after the point; infinite values and NaN are absent.
pub(crate) fn rate_to_json(value: f64) -> Value {
    float_to_json((value * 1000.0).round() / 1000.0)
}

/// A number with all its digits; infinite values and NaN are absent.
fn float_to_json(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// The reference of the book, which is made of the lists: `UPDATE_GOLDEN=1` writes it.
    #[test]
    fn the_book_describes_every_live_column() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/live-columns.md");
        let text = [
            "# Columns of a run in progress\n\nThe [API of the live page](page-api.md) has these figures. The live page and `packetrig watch` show some of them, and\nsome are [metrics](metrics.md#a-run-in-progress). `null` means *not known*, which is not zero.\n",
            &describe_table("Streams", "`streams`: counters since the stream last started.", "", STREAM_COLUMNS),
            &describe_table("Ports", "`ports`: `tx` and `rx` count since the run was opened.", "port", PORT_COLUMNS),
            &describe_table("Totals", "`totals`: over all streams, since the run was opened. `packetrig watch` has them in its first lines.", "run", TOTAL_COLUMNS),
        ]
        .concat();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&page, &text).expect("the book can be written");
        }
        assert_eq!(fs::read_to_string(&page).expect("a page"), text, "UPDATE_GOLDEN=1 writes it");
    }

    fn describe_table<R>(title: &str, about: &str, prefix: &str, columns: &[LiveColumn<R>]) -> String {
        let mut text = format!(
            "\n## {title}\n\n{about}\n\n| Key | Unit | Meaning | Live page | `watch` | Metric |\n|---|---|---|---|---|---|\n"
        );
        for column in columns {
            assert!(column.meaning.ends_with('.'), "{}", column.name);
            let metric = column.metric.map(|metric| format!("`packetrig_{prefix}_{metric}`"));
            text.extend([format!(
                "| `{}` | {} | {} | {} | {} | {} |\n",
                column.name,
                column.kind.unit().unwrap_or(""),
                column.meaning,
                column.heading.unwrap_or(""),
                column.watch.map_or("", |watch| watch.heading),
                metric.unwrap_or_default(),
            )]);
        }
        text
    }

    /// Nothing reads these members: streams have no metrics, because there may be thousands of them, and `packetrig watch`
    /// shows the totals in its first lines.
    #[test]
    fn columns_are_shown_only_where_they_are_read() {
        for column in STREAM_COLUMNS {
            assert_eq!(column.metric, None, "`{}` of streams cannot be a metric", column.name);
        }
        for column in TOTAL_COLUMNS {
            assert!(column.watch.is_none(), "`packetrig watch` has no table for the total `{}`", column.name);
        }
    }

    #[test]
    fn count_that_javascript_would_round_is_text() {
        assert_eq!(count_json(1 << 53), json!(9_007_199_254_740_992_u64));
        assert_eq!(count_json((1 << 53) + 1), json!("9007199254740993"));
        assert_eq!(rate_to_json(f64::NAN), Value::Null);
    }
}
