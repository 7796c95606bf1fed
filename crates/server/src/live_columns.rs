//! The columns of a run in progress. Each column is described once: its key, kind and meaning, the source of its
//! value, and where it is shown. The API's JSON and its description, the live page, `packetrig watch`, the metrics
//! for Prometheus and the book are made from these lists. The columns of results are in `packetrig_report::columns`.
//!
//! Invariant: a published key or metric keeps its name. Every screen shows the columns in the order of these lists.

mod ports;
mod streams;
mod totals;

pub use ports::PORT_COLUMNS;
pub use streams::STREAM_COLUMNS;
pub(crate) use totals::TOTAL_COLUMNS;

use packetrig_report::columns::{CellValue, ColumnKind};
use serde_json::{Map, Value, json};
use std::fmt;

/// A JSON reader that uses doubles reads every whole number up to 2^53 exactly.
const MAX_EXACT_JSON_NUMBER: u64 = 1 << 53;

/// A column of a live table with rows of `R`.
pub struct LiveColumn<R> {
    /// Key in the API. In the key of a nested member, a dot separates the two names, as in `tx.dropped`.
    pub name: &'static str,
    /// Type and unit of its values.
    pub kind: ColumnKind,
    /// Meaning of the column, in a sentence.
    pub meaning: &'static str,
    /// Heading of the column on the live page; `None` if the page does not show it.
    pub heading: Option<&'static str>,
    /// The column in `packetrig watch`; `None` if `packetrig watch` does not show it.
    pub watch: Option<WatchColumn>,
    /// Name of the Prometheus metric of this column, if there is one.
    pub(crate) metric: Option<&'static str>,
    value: fn(&R) -> Option<CellValue>,
}

/// How `packetrig watch` shows a column.
#[derive(Clone, Copy, Debug)]
pub struct WatchColumn {
    pub heading: &'static str,
    /// Minimum width of the column, in characters.
    pub width: u16,
    /// Order in which columns are omitted on a narrow screen: those with the highest rank are omitted first.
    pub rank: u8,
    /// Name of the sort order by this column; `None` if no key of `packetrig watch` selects that order.
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

    /// True unless the column is a member of a nested object, such as `tx`.
    fn is_top_level(&self) -> bool {
        !self.name.contains('.')
    }

    /// The value in JSON; `null` if it was not measured.
    pub(crate) fn value_to_json(&self, row: &R) -> Value {
        (self.value)(row).map_or(Value::Null, cell_to_json)
    }

    /// The value as a metric, in the base units of Prometheus; `None` if it was not measured or is text.
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

    /// The OpenAPI schema of a value.
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
        // If even a default row has a value in this column, every row has one.
        if (self.value)(&R::default()).is_none() && !types.contains(&"null") {
            types.push("null");
        }
        json!({ "type": types, "description": self.meaning })
    }

    /// Name of the format in which the script of the live page shows values.
    const fn page_format_name(&self) -> &'static str {
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
        "streams": columns_with_heading(STREAM_COLUMNS),
        "ports": columns_with_heading(PORT_COLUMNS),
        "totals": columns_with_heading(TOTAL_COLUMNS),
    })
}

fn columns_with_heading<R>(columns: &[LiveColumn<R>]) -> Vec<Value> {
    let shown = columns.iter().filter_map(|column| Some((column, column.heading?)));
    shown
        .map(|(column, heading)| json!({ "name": column.name, "heading": heading, "form": column.page_format_name() }))
        .collect()
}

/// Adds the schemas of the columns to the OpenAPI description of the API.
pub(crate) fn add_column_schemas(described: &mut Value) {
    let schemas = &mut described["components"]["schemas"];
    add_column_properties(&mut schemas["LivePort"], PORT_COLUMNS, |value| value);
    add_column_properties(&mut schemas["LiveTotals"], TOTAL_COLUMNS, |value| value);
    // One array for each column, and one value for each row.
    add_column_properties(
        &mut schemas["StreamColumns"],
        STREAM_COLUMNS,
        |value| json!({ "type": "array", "items": value }),
    );
}

fn add_column_properties<R: Default>(
    schema: &mut Value,
    columns: &[LiveColumn<R>],
    form: fn(Value) -> Value,
) {
    for column in columns.iter().filter(|column| column.is_top_level()) {
        schema["properties"][column.name] = form(column.value_schema());
        schema["required"].as_array_mut().expect("the file has the list").push(column.name.into());
    }
}

/// The members of a row in JSON, without its nested objects.
pub(crate) fn row_to_json<R>(columns: &[LiveColumn<R>], row: &R) -> Map<String, Value> {
    let members = columns.iter().filter(|column| column.is_top_level());
    members.map(|column| (column.name.to_owned(), column.value_to_json(row))).collect()
}

fn cell_to_json(cell: CellValue) -> Value {
    match cell {
        CellValue::Text(text) => text.into(),
        CellValue::Names(names) => names.into(),
        CellValue::YesNo(value) => value.into(),
        CellValue::Count(count) => count_to_json(count),
        CellValue::Signed(value) => value.into(),
        CellValue::Float(value) => rounded_float_to_json(value),
        // The number is not rounded: 3 lost frames of 10^9 must not look like no loss.
        CellValue::Share { percent, .. } => float_to_json(percent),
    }
}

/// A number up to 2^53, text above: JavaScript reads numbers as doubles and would round a larger one.
pub(crate) fn count_to_json(count: u64) -> Value {
    if count <= MAX_EXACT_JSON_NUMBER { count.into() } else { count.to_string().into() }
}

/// A rate or a time, rounded to three decimal places; `null` for infinite values and NaN.
pub(crate) fn rounded_float_to_json(value: f64) -> Value {
    float_to_json((value * 1000.0).round() / 1000.0)
}

/// A number that is not rounded; `null` for infinite values and NaN.
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
        assert_eq!(count_to_json(1 << 53), json!(9_007_199_254_740_992_u64));
        assert_eq!(count_to_json((1 << 53) + 1), json!("9007199254740993"));
        assert_eq!(rounded_float_to_json(f64::NAN), Value::Null);
    }
}
