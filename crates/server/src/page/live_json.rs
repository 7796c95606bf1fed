//! The live state as JSON: totals, ports and the ledger as they are, and the streams' rows that a viewer requests, as columns.
//!
//! Counters are cumulative, so a viewer that misses an event misses nothing but its moment. A count above 2^53 is text, because
//! JavaScript reads numbers as doubles.

use super::PAGE_API_VERSION;
use super::query::QueryParameters;
use crate::tester::{LatencyFigures, TransmitState};
use crate::viewing::{
    HistoryPoint, LivePort, LiveRun, LiveState, LiveStream, LiveTotals, ReceivedStream, ViewRefusal,
};
use packetrig_stats::ledger::FrameLedger;
use packetrig_units::BitRate;
use serde_json::{Map, Value, json};

/// Rows of streams without `rows`, and the most that can be requested.
const DEFAULT_ROWS: usize = 60;
const MOST_ROWS: usize = 10_000;
/// The largest number that every JSON reader reads exactly.
const EXACT: u64 = 1 << 53;

/// The columns of streams: name, and its value in a row. Absent is `null`.
type StreamColumn = (&'static str, fn(&LiveStream) -> Value);

const COLUMNS: [StreamColumn; 18] = [
    ("name", |row| row.name.clone().into()),
    ("port_tx", |row| row.port_tx.clone().into()),
    ("port_rx", |row| row.port_rx.clone().into()),
    ("state", |row| state_word(row.state).into()),
    ("frames_tx", |row| count_json(row.frames_tx)),
    ("frames_rx", |row| received_value(row, |rx| count_json(rx.frames))),
    ("lost", |row| received_value(row, |rx| count_json(rx.loss.lost))),
    ("in_flight_or_lost", |row| received_value(row, |rx| count_json(rx.loss.in_flight_or_lost))),
    ("bytes_tx", |row| count_json(row.bytes_tx)),
    ("bytes_rx", |row| received_value(row, |rx| count_json(rx.bytes))),
    ("frames_tx_rate", |row| rate_json(row.frames_tx_rate)),
    ("frames_rx_rate", |row| received_value(row, |rx| rate_json(rx.frames_rate))),
    ("bytes_tx_rate", |row| rate_json(row.bytes_tx_rate)),
    ("bytes_rx_rate", |row| received_value(row, |rx| rate_json(rx.bytes_rate))),
    ("latency_min_ns", |row| latency_json(row, |figures| figures.minimum)),
    ("latency_mean_ns", |row| latency_json(row, |figures| figures.average)),
    ("latency_max_ns", |row| latency_json(row, |figures| figures.maximum)),
    ("loss_percent", |row| received_value(row, |rx| loss_percent(row, rx))),
];

/// The rows of streams that a viewer requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StreamWindow {
    /// A part of the name or of a port, in any case.
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
        let sort = query.take_text("sort");
        let column = sort.trim_start_matches('-');
        let index = COLUMNS.iter().position(|(name, _)| *name == column);
        if index.is_none() && !sort.is_empty() {
            let names: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
            let message = format!("sort: `{column}` is none of {}", names.join(", "));
            return Err(ViewRefusal::Invalid(message));
        }
        Ok(Self {
            filter: query.take_text("filter").to_lowercase(),
            sort: index,
            is_descending: sort.starts_with('-'),
            from: query.take_number("from", 0, usize::MAX)?,
            rows: query.take_number("rows", DEFAULT_ROWS, MOST_ROWS)?,
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
        if let Some((_, value)) = self.sort.and_then(|column| COLUMNS.get(column)) {
            // Stable: equal rows keep the order of the configuration, so they do not jump about.
            rows.sort_by_cached_key(|row| SortKey::from_value(&value(row)));
            if self.is_descending {
                rows.reverse();
            }
        }
        rows
    }
}

/// Orders values of a column; absent ones come first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum SortKey {
    Absent,
    /// Bits of a float. Counts and rates are never negative, and such floats are ordered like their bits.
    Number(u64),
    Text(String),
}

impl SortKey {
    fn from_value(value: &Value) -> Self {
        match value {
            Value::Number(number) => Self::Number(number.as_f64().unwrap_or(0.0).to_bits()),
            Value::String(text) => Self::Text(text.to_lowercase()),
            _ => Self::Absent,
        }
    }
}

/// The state for one viewer.
pub(super) fn live_json(state: &LiveState, window: &StreamWindow) -> Value {
    json!({
        "schema_version": PAGE_API_VERSION,
        "configuration": state.configuration,
        "run": state.run.as_ref().map(|run| run_json(run, window)),
    })
}

fn run_json(run: &LiveRun, window: &StreamWindow) -> Value {
    json!({
        "id": run.id,
        "state": run.state,
        "ended": run.ended,
        "sampled_ms": run.sampled_wall_ns.map(|ns| ns / 1_000_000),
        "elapsed_ms": run.elapsed.as_u64() / 1_000_000,
        "totals": totals_json(&run.totals),
        "ledger": ledger_json(&run.ledger),
        "losses": {
            "lost": count_json(run.losses.loss.lost),
            "in_flight_or_lost": count_json(run.losses.loss.in_flight_or_lost),
            "in_motion": run.losses.in_motion,
            "sender": run.losses.sender.map(count_json),
            "receiver": count_json(run.losses.receiver),
            "path_or_in_doubt": run.losses.path_or_in_doubt.map(count_json),
        },
        "ports": run.ports.iter().map(port_json).collect::<Vec<_>>(),
        "streams": streams_json(&run.streams, window),
        "neighbours": run.neighbours.iter().map(|neighbour| json!({
            "interface": neighbour.ethernet, "address": neighbour.address, "mac": neighbour.mac,
        })).collect::<Vec<_>>(),
        "findings": run.findings,
    })
}

fn totals_json(totals: &LiveTotals) -> Value {
    let HistoryPoint { frames_tx, frames_rx, bytes_tx, bytes_rx, gaps, .. } = totals.counts;
    json!({
        "frames_tx": count_json(frames_tx),
        "frames_rx": count_json(frames_rx),
        "bytes_tx": count_json(bytes_tx),
        "bytes_rx": count_json(bytes_rx),
        "gaps": count_json(gaps),
        "frames_tx_rate": rate_json(totals.frames_tx_rate),
        "frames_rx_rate": rate_json(totals.frames_rx_rate),
        "bytes_tx_rate": rate_json(totals.bytes_tx_rate),
        "bytes_rx_rate": rate_json(totals.bytes_rx_rate),
        "started": totals.started,
        "paused": totals.paused,
        "latency_ns": totals.latency.map(|figures| json!({
            "min": rate_json(figures.minimum), "mean": rate_json(figures.average), "max": rate_json(figures.maximum),
        })),
    })
}

/// Accounts in the order in which a frame goes through them. One that was not measured is absent.
fn ledger_json(ledger: &FrameLedger) -> Value {
    let accounts = ledger.accounts().filter_map(|(account, frames)| {
        // The account's name in JSON is that of the report.
        let name = serde_json::to_value(account).ok()?.as_str()?.to_owned();
        Some((name, count_json(frames)))
    });
    Value::Object(accounts.collect::<Map<String, Value>>())
}

fn port_json(port: &LivePort) -> Value {
    let row = &port.row;
    json!({
        "name": row.name,
        "location": row.location,
        "node": port.node,
        "back_end": port.info.as_ref().map(|info| info.back_end.name()),
        "why": port.info.as_ref().map(|info| info.why.as_str()),
        "driver": port.info.as_ref().map(|info| info.driver.as_str()),
        "speed_bits_per_second": port.info.as_ref().and_then(|info| info.speed).map(BitRate::bits_per_second),
        // Not that of the row, which counts a port as up until its link is known.
        "link_up": port.rx.and_then(|rx| rx.link_up),
        "link_changed_ms": row.last_change_ns.map(|ns| ns / 1_000_000),
        "capturing": row.capturing,
        "transmitting": row.transmitting,
        "frames_tx": count_json(row.frames_tx),
        "frames_rx": count_json(row.frames_rx),
        "bytes_tx": count_json(row.bytes_tx),
        "bytes_rx": count_json(row.bytes_rx),
        "frames_tx_rate": rate_json(row.frames_tx_rate),
        "frames_rx_rate": rate_json(row.frames_rx_rate),
        "bytes_tx_rate": rate_json(row.bytes_tx_rate),
        "bytes_rx_rate": rate_json(row.bytes_rx_rate),
        "tx": port.tx,
        "rx": port.rx,
    })
}

fn streams_json(streams: &[LiveStream], window: &StreamWindow) -> Value {
    let matching = window.select_rows(streams);
    // Cut after sorting: a window is a part of the sorted rows.
    let shown: Vec<&LiveStream> = matching.iter().copied().skip(window.from).take(window.rows).collect();
    let columns = COLUMNS.iter().map(|(name, value)| {
        let cells = shown.iter().map(|row| value(row)).collect();
        ((*name).to_owned(), Value::Array(cells))
    });
    json!({
        "total": streams.len(),
        "matching": matching.len(),
        "from": window.from,
        "columns": columns.collect::<Map<String, Value>>(),
    })
}

/// The history of a run as columns.
pub(super) fn history_json(state: &LiveState) -> Value {
    let points = state.run.as_ref().map(|run| run.history.as_slice()).unwrap_or_default();
    let column =
        |of: fn(&HistoryPoint) -> u64| points.iter().map(|point| count_json(of(point))).collect::<Vec<_>>();
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

/// A number if every reader reads it exactly, otherwise text.
pub(super) fn count_json(count: u64) -> Value {
    if count <= EXACT { count.into() } else { count.to_string().into() }
}

/// Writes the numbers of a document as text where some readers would round them.
pub fn exact_counts(value: Value) -> Value {
    match value {
        // Floats and negative numbers stay as they are: only counts grow beyond 2^53.
        Value::Number(number) => number.as_u64().map_or(Value::Number(number), count_json),
        Value::Array(values) => values.into_iter().map(exact_counts).collect(),
        Value::Object(members) => {
            let members = members.into_iter().map(|(name, value)| (name, exact_counts(value)));
            Value::Object(members.collect())
        }
        other => other,
    }
}

/// A rate or a time with three digits after the point; what is not finite is absent.
fn rate_json(value: f64) -> Value {
    float_json((value * 1000.0).round() / 1000.0)
}

/// A number with all its digits; what is not finite is absent.
fn float_json(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number)
}

fn received_value(row: &LiveStream, value: impl Fn(&ReceivedStream) -> Value) -> Value {
    row.received.as_ref().map_or(Value::Null, value)
}

fn latency_json(row: &LiveStream, value: fn(&LatencyFigures) -> f64) -> Value {
    received_value(row, |rx| rx.latency.as_ref().map_or(Value::Null, |figures| rate_json(value(figures))))
}

fn loss_percent(row: &LiveStream, rx: &ReceivedStream) -> Value {
    // Nothing was sent, so there is no share of it that could be lost.
    if row.frames_tx == 0 {
        return Value::Null;
    }
    // Not rounded: 3 lost frames of 10^9 must not read as none.
    float_json(rx.loss.loss_share(rx.frames).percent())
}

/// The word for a state in every answer.
const fn state_word(state: TransmitState) -> &'static str {
    match state {
        TransmitState::Started => "started",
        TransmitState::Stopped => "stopped",
        TransmitState::Paused => "paused",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let shown = streams_json(&streams(), &window);
        shown["columns"]["name"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|name| name.as_str().unwrap_or("").to_owned())
            .collect()
    }

    #[test]
    fn live_rows_are_sorted_filtered_and_paged() {
        assert_eq!(names(""), ["video", "Voice", "data"]);
        assert_eq!(names("sort=name"), ["data", "video", "Voice"]);
        assert_eq!(names("sort=-lost"), ["data", "video", "Voice"], "absent is not 0 and not the largest");
        assert_eq!(names("filter=V"), ["video", "Voice"]);
        assert_eq!(names("filter=LEFT&from=1&rows=1"), ["Voice"]);
        let mut query = QueryParameters::parse_query(Some("sort=colour")).expect("reads");
        assert!(
            StreamWindow::from_query(&mut query)
                .is_err_and(|refusal| refusal.to_string().contains("frames_tx"))
        );
    }

    #[test]
    fn a_small_loss_is_not_rounded_to_none() {
        let loss = LiveLoss { lost: 3, in_flight_or_lost: 900 };
        let received = ReceivedStream { frames: 999_999_997, loss, ..ReceivedStream::default() };
        let row = LiveStream { frames_tx: 1_000_000_000, ..LiveStream::default() };
        assert_eq!(loss_percent(&row, &received), json!(3e-7));
        assert_eq!(loss_percent(&LiveStream::default(), &received), Value::Null);
    }

    #[test]
    fn a_count_that_javascript_would_round_is_text() {
        assert_eq!(count_json(1 << 53), json!(9_007_199_254_740_992_u64));
        assert_eq!(count_json((1 << 53) + 1), json!("9007199254740993"));
        assert_eq!(rate_json(f64::NAN), Value::Null);
    }
}
