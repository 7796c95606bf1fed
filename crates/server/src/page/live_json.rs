//! The live state as JSON: all totals, all ports and the ledger, and the rows of streams that a viewer requests.
//! These rows are written as columns.
//!
//! Counters are cumulative, so a viewer that has missed an event gets the right totals with the next one. A count
//! above 2^53 is text, because JavaScript reads numbers as doubles.

use super::PAGE_API_VERSION;
use super::query::QueryParameters;
use crate::live_columns::{
    PORT_COLUMNS, STREAM_COLUMNS, TOTAL_COLUMNS, count_to_json, rounded_float_to_json, row_to_json,
};
use crate::viewing::{HistoryPoint, LivePort, LiveRun, LiveState, LiveStream, LiveTotals, ViewRefusal};
use packetrig_stats::ledger::FrameLedger;
use serde_json::{Map, Value, json};
use std::cmp::Reverse;

/// Number of rows if the query has no `rows`, and the largest number that it can request.
const DEFAULT_ROWS: usize = 60;
const MAX_ROWS: usize = 10_000;

/// The rows of streams that a viewer requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StreamWindow {
    /// Text in lower case that the name of the stream, or of one of its ports, must contain.
    filter: String,
    /// Index of the column to sort by; `None` keeps the order of the configuration.
    sort: Option<usize>,
    is_descending: bool,
    from: usize,
    rows: usize,
}

impl StreamWindow {
    /// Reads `sort=COLUMN` or `sort=-COLUMN` (the largest first), `filter`, `from`, `rows`.
    pub(super) fn from_query(query: &mut QueryParameters) -> Result<Self, ViewRefusal> {
        let sort = query.take_text_parameter("sort");
        let column = sort.trim_start_matches('-');
        let index = STREAM_COLUMNS.iter().position(|known| known.name == column);
        if index.is_none() && !sort.is_empty() {
            let names: Vec<&str> = STREAM_COLUMNS.iter().map(|known| known.name).collect();
            let message = format!("sort: `{column}` is not one of {}", names.join(", "));
            return Err(ViewRefusal::Invalid(message));
        }
        Ok(Self {
            filter: query.take_text_parameter("filter").to_lowercase(),
            sort: index,
            is_descending: sort.starts_with('-'),
            from: query.take_number_parameter("from", 0, usize::MAX)?,
            rows: query.take_number_parameter("rows", DEFAULT_ROWS, MAX_ROWS)?,
        })
    }

    fn matches_row(&self, row: &LiveStream) -> bool {
        self.filter.is_empty()
            || [&row.name, &row.port_tx, &row.port_rx]
                .iter()
                .any(|text| text.to_lowercase().contains(&self.filter))
    }

    fn select_rows<'a>(&self, streams: &'a [LiveStream]) -> Vec<&'a LiveStream> {
        let mut rows: Vec<&LiveStream> = streams.iter().filter(|row| self.matches_row(row)).collect();
        if let Some(column) = self.sort.and_then(|column| STREAM_COLUMNS.get(column)) {
            // The sort is stable: equal rows keep the order of the configuration in both directions, so they
            // do not jump about.
            if self.is_descending {
                rows.sort_by_cached_key(|row| Reverse(SortKey::from_value(&column.value_to_json(row))));
            } else {
                rows.sort_by_cached_key(|row| SortKey::from_value(&column.value_to_json(row)));
            }
        }
        rows
    }
}

/// Orders the values of a column: absent values come before all others.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum SortKey {
    Absent,
    /// Bits of a float. No value here is negative, and floats that are not negative have the same order as their bits.
    Number(u64),
    Text(String),
}

impl SortKey {
    fn from_value(value: &Value) -> Self {
        match value {
            Value::Number(number) => Self::Number(number.as_f64().unwrap_or(0.0).to_bits()),
            // A count above 2^53 is a text.
            Value::String(text) => match text.parse::<u64>() {
                Ok(count) => Self::Number((count as f64).to_bits()),
                Err(_) => Self::Text(text.to_lowercase()),
            },
            _ => Self::Absent,
        }
    }
}

/// Builds the JSON of the state, with the stream rows of `window`.
pub(super) fn live_json(state: &LiveState, window: &StreamWindow) -> Value {
    json!({
        "schema_version": PAGE_API_VERSION,
        "configuration": state.configuration,
        "run": state.run.as_ref().map(|run| build_run_json(run, window)),
    })
}

fn build_run_json(run: &LiveRun, window: &StreamWindow) -> Value {
    json!({
        "id": run.id,
        "state": run.state,
        "ended": run.ended,
        "sampled_ms": run.sampled_wall_ns.map(|ns| ns / 1_000_000),
        "elapsed_ms": run.elapsed.as_u64() / 1_000_000,
        "totals": build_totals_json(&run.totals),
        "ledger": build_ledger_json(&run.ledger),
        "losses": {
            "lost": count_to_json(run.losses.loss.lost),
            "in_flight_or_lost": count_to_json(run.losses.loss.in_flight_or_lost),
            "in_motion": run.losses.in_motion,
            "sender": run.losses.sender.map(count_to_json),
            "receiver": count_to_json(run.losses.receiver),
            "path_or_in_doubt": run.losses.path_or_in_doubt.map(count_to_json),
        },
        "ports": run.ports.iter().map(build_port_json).collect::<Vec<_>>(),
        "streams": build_streams_json(&run.streams, window),
        "neighbours": run.neighbours.iter().map(|neighbour| json!({
            "interface": neighbour.ethernet, "address": neighbour.address, "mac": neighbour.mac,
        })).collect::<Vec<_>>(),
        "findings": run.findings,
    })
}

fn build_totals_json(totals: &LiveTotals) -> Value {
    let mut members = row_to_json(TOTAL_COLUMNS, totals);
    let latency = totals.latency.map(|figures| {
        json!({
            "min": rounded_float_to_json(figures.minimum), "mean": rounded_float_to_json(figures.average), "max": rounded_float_to_json(figures.maximum),
        })
    });
    members.insert("latency_ns".to_owned(), json!(latency));
    members.into()
}

/// Frames in each account, by its name. An account that was not measured is absent.
fn build_ledger_json(ledger: &FrameLedger) -> Value {
    let accounts = ledger.accounts().filter_map(|(account, frames)| {
        // The account's name in JSON is that of the report.
        let name = serde_json::to_value(account).ok()?.as_str()?.to_owned();
        Some((name, count_to_json(frames)))
    });
    Value::Object(accounts.collect::<Map<String, Value>>())
}

fn build_port_json(port: &LivePort) -> Value {
    let mut members = row_to_json(PORT_COLUMNS, port);
    members.insert("tx".to_owned(), json!(port.tx));
    members.insert("rx".to_owned(), json!(port.rx));
    members.into()
}

fn build_streams_json(streams: &[LiveStream], window: &StreamWindow) -> Value {
    let matching = window.select_rows(streams);
    // The rows are cut after sorting: a window is a part of the sorted rows.
    let shown: Vec<&LiveStream> = matching.iter().copied().skip(window.from).take(window.rows).collect();
    let columns = STREAM_COLUMNS.iter().map(|column| {
        let cells = shown.iter().map(|row| column.value_to_json(row)).collect();
        (column.name.to_owned(), Value::Array(cells))
    });
    json!({
        "total": streams.len(),
        "matching": matching.len(),
        "from": window.from,
        "columns": columns.collect::<Map<String, Value>>(),
    })
}

/// Builds the JSON of the history of the totals: one array for each column, empty without a run.
pub(super) fn build_history_json(state: &LiveState) -> Value {
    let points = state.run.as_ref().map(|run| run.history.as_slice()).unwrap_or_default();
    let column = |of: fn(&HistoryPoint) -> u64| {
        points.iter().map(|point| count_to_json(of(point))).collect::<Vec<_>>()
    };
    json!({
        "schema_version": PAGE_API_VERSION,
        "configuration": state.configuration,
        "columns": {
            "elapsed_ms": column(|point| point.elapsed.as_u64() / 1_000_000),
            "frames_tx": column(|point| point.frames_tx),
            "frames_rx": column(|point| point.frames_rx),
            "bytes_tx": column(|point| point.bytes_tx),
            "bytes_rx": column(|point| point.bytes_rx),
            "gaps": column(|point| point.gaps),
        },
    })
}

/// Replaces each whole number above 2^53 in a document by text, because readers that use doubles would round it.
pub fn write_large_counts_as_text(value: Value) -> Value {
    match value {
        // Floats and negative numbers stay as they are: only counts grow beyond 2^53.
        Value::Number(number) => number.as_u64().map_or(Value::Number(number), count_to_json),
        Value::Array(values) => values.into_iter().map(write_large_counts_as_text).collect(),
        Value::Object(members) => {
            let members = members.into_iter().map(|(name, value)| (name, write_large_counts_as_text(value)));
            Value::Object(members.collect())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::viewing::ReceivedStream;
    use packetrig_stats::live_loss::LiveLoss;

    fn streams() -> Vec<LiveStream> {
        let stream = |name: &str, lost: Option<u64>| LiveStream {
            name: name.to_owned(),
            port_tx: "left".to_owned(),
            frames_tx: 100,
            received: lost.map(|lost| ReceivedStream {
                frames: 100 - lost,
                loss: LiveLoss { lost, in_flight_or_lost: 0 },
                ..Default::default()
            }),
            ..LiveStream::default()
        };
        vec![stream("video", Some(3)), stream("Voice", None), stream("data", Some(50))]
    }

    fn names(query: &str) -> Vec<String> {
        let mut query = QueryParameters::parse_query(Some(query)).expect("reads");
        let window = StreamWindow::from_query(&mut query).expect("a window");
        let shown = build_streams_json(&streams(), &window);
        shown["columns"]["name"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|name| name.as_str().unwrap_or("").to_owned())
            .collect()
    }

    #[test]
    fn counts_sent_as_text_are_sorted_by_number() {
        let key = |count: &str| SortKey::from_value(&json!(count));
        assert!(key("9007199254740993") < key("10000000000000000"));
        assert!(SortKey::from_value(&json!(5)) < key("9007199254740993"));
    }

    #[test]
    fn live_rows_are_sorted_filtered_and_paged() {
        assert_eq!(names(""), ["video", "Voice", "data"]);
        assert_eq!(names("sort=name"), ["data", "video", "Voice"]);
        assert_eq!(names("sort=-lost"), ["data", "video", "Voice"], "absent is not 0 and not the largest");
        assert_eq!(names("sort=-frames_tx"), ["video", "Voice", "data"], "equal rows keep their order");
        assert_eq!(names("filter=V"), ["video", "Voice"]);
        assert_eq!(names("filter=LEFT&from=1&rows=1"), ["Voice"]);
        let mut query = QueryParameters::parse_query(Some("sort=colour")).expect("reads");
        assert!(
            StreamWindow::from_query(&mut query)
                .is_err_and(|refusal| refusal.to_string().contains("frames_tx"))
        );
    }
}
