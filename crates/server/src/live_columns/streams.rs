//! Columns for the streams of a run in progress. Counters count since the stream last started.

use super::LiveColumn;
use crate::tester::{LatencyFigures, TransmitState};
use crate::viewing::{LiveStream, ReceivedStream};
use packetrig_report::columns::CellValue::{self, Count, Float};
use packetrig_report::columns::ColumnKind::{
    Bytes, BytesPerSecond, Frames, FramesPerSecond, Nanoseconds, Percent, Text,
};

type Column = LiveColumn<LiveStream>;

/// The columns of streams.
pub const STREAM_COLUMNS: &[Column] = &[
    Column::new("name", Text, "Name of the flow.", |row| Some(CellValue::from(&row.name)))
        .on_page("Stream")
        .with_watch_column("Stream", 12, 0)
        .with_sort_order("name"),
    Column::new("state", Text, "started, stopped or paused.", |row| {
        Some(stream_state_text(row.state).into())
    })
    .on_page("State")
    .with_watch_column("State", 8, 1)
    .with_sort_order("state"),
    Column::new("port_tx", Text, "Sending port.", |row| Some(CellValue::from(&row.port_tx)))
        .on_page("From")
        .with_watch_column("Ports", 20, 8),
    Column::new("port_rx", Text, "Receiving ports, joined by commas.", |row| {
        Some(CellValue::from(&row.port_rx))
    })
    .on_page("To"),
    Column::new("frames_tx", Frames, "Frames sent since the last start.", |row| Some(Count(row.frames_tx)))
        .on_page("Sent, frames")
        .with_watch_column("Sent", 11, 3)
        .with_sort_order("sent"),
    Column::new("frames_rx", Frames, "Frames received since the last start, copies included.", |row| {
        received_count(row, |rx| rx.frames)
    })
    .on_page("Received, frames")
    .with_watch_column("Received", 11, 2)
    .with_sort_order("received"),
    Column::new(
        "lost",
        Frames,
        "Frames missing between received frames; after the end of traffic, all frames that have not arrived.",
        |row| received_count(row, |rx| rx.loss.lost),
    )
    .on_page("Lost, frames")
    .with_watch_column("Lost", 10, 1)
    .with_sort_order("lost"),
    Column::new("loss_percent", Percent, "Lost frames in percent of lost and received frames.", loss_share)
        .on_page("Lost, share")
        .with_watch_column("Loss", 9, 5),
    Column::new(
        "in_flight_or_lost",
        Frames,
        "Sent frames that may still be on their way: no receiver has seen a later frame.",
        |row| received_count(row, |rx| rx.loss.in_flight_or_lost),
    )
    .on_page("In flight or lost, frames")
    .with_watch_column("In flight?", 10, 7),
    Column::new("bytes_tx", Bytes, "Bytes sent, FCS included.", |row| Some(Count(row.bytes_tx))),
    Column::new("bytes_rx", Bytes, "Bytes received, FCS included.", |row| received_count(row, |rx| rx.bytes)),
    Column::new("frames_tx_rate", FramesPerSecond, "Frames sent per second, over the last second.", |row| {
        Some(Float(row.frames_tx_rate))
    })
    .with_watch_column("Frames/s", 9, 2)
    .with_sort_order("rate"),
    Column::new(
        "frames_rx_rate",
        FramesPerSecond,
        "Frames received per second, over the last second.",
        |row| Some(Float(row.received?.frames_rate)),
    )
    .with_watch_column("Rec. f/s", 9, 4),
    Column::new("bytes_tx_rate", BytesPerSecond, "Bytes sent per second, over the last second.", |row| {
        Some(Float(row.bytes_tx_rate))
    })
    .on_page("Sending")
    .with_watch_column("L2 rate", 12, 6),
    Column::new("bytes_rx_rate", BytesPerSecond, "Bytes received per second, over the last second.", |row| {
        Some(Float(row.received?.bytes_rate))
    })
    .on_page("Receiving"),
    Column::new("latency_min_ns", Nanoseconds, "Least latency.", |row| {
        latency_figure(row, |times| times.minimum)
    }),
    Column::new("latency_mean_ns", Nanoseconds, "Mean latency.", |row| {
        latency_figure(row, |times| times.average)
    })
    .on_page("Mean latency")
    .with_watch_column("Latency", 9, 3)
    .with_sort_order("latency"),
    Column::new("latency_max_ns", Nanoseconds, "Largest latency.", |row| {
        latency_figure(row, |times| times.maximum)
    })
    .on_page("Largest latency")
    .with_watch_column("Max.", 9, 6),
];

fn received_count(row: &LiveStream, count: fn(&ReceivedStream) -> u64) -> Option<CellValue> {
    row.received.as_ref().map(|rx| Count(count(rx)))
}

fn latency_figure(row: &LiveStream, figure: fn(&LatencyFigures) -> f64) -> Option<CellValue> {
    row.received?.latency.as_ref().map(|figures| Float(figure(figures)))
}

fn loss_share(row: &LiveStream) -> Option<CellValue> {
    let rx = row.received?;
    // If no frame was sent, there is no share of lost frames.
    if row.frames_tx == 0 {
        return None;
    }
    let percent = rx.loss.loss_share(rx.frames).percent();
    Some(CellValue::Share { part: rx.loss.lost, whole: rx.loss.lost.saturating_add(rx.frames), percent })
}

/// Name of a state, as every answer has it.
const fn stream_state_text(state: TransmitState) -> &'static str {
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
    use serde_json::{Value, json};

    #[test]
    fn small_loss_is_not_rounded_to_none() {
        let loss = LiveLoss { lost: 3, in_flight_or_lost: 900 };
        let received = Some(ReceivedStream { frames: 999_999_997, loss, ..ReceivedStream::default() });
        let column = STREAM_COLUMNS.iter().find(|column| column.name == "loss_percent").expect("a column");
        let row = LiveStream { frames_tx: 1_000_000_000, received, ..LiveStream::default() };
        assert_eq!(column.value_to_json(&row), json!(3e-7));
        assert_eq!(column.value_to_json(&LiveStream { received, ..LiveStream::default() }), Value::Null);
    }
}
