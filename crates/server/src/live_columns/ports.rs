//! Columns for the ports of a run in progress. Frames and bytes are counted since traffic last began; the members of
//! `tx` and `rx` are counted since the run was opened.

use super::LiveColumn;
use crate::viewing::LivePort;
use packetrig_report::columns::CellValue::{self, Count, Float, YesNo as Flag};
use packetrig_report::columns::ColumnKind::{
    BitsPerSecond, Bytes, BytesPerSecond, Frames, FramesPerSecond, Number, Text, YesNo,
};
use packetrig_stats::port::{PortInfo, RxCounters};

type Column = LiveColumn<LivePort>;

/// The columns of ports.
pub const PORT_COLUMNS: &[Column] = &[
    Column::new("name", Text, "Name in the configuration.", |port| Some(CellValue::from(&port.row.name)))
        .on_page("Port")
        .with_watch_column("Port", 10, 0),
    Column::new("location", Text, "Location in the configuration.", |port| {
        Some(CellValue::from(&port.row.location))
    })
    .on_page("Location")
    .with_watch_column("Location", 20, 7),
    Column::new("node", Text, "Node that has the port.", |port| port.node.as_ref().map(CellValue::from)),
    // `rx.link_up` is used, because `row.link_up` is true until the state of the link is known.
    Column::new("link_up", YesNo, "Whether the link is up.", |port| port.rx?.link_up.map(Flag))
        .on_page("Link")
        .with_watch_column("Link", 4, 1)
        .with_metric("link_up"),
    Column::new("back_end", Text, "Back end, such as packet or xdp.", |port| {
        open_port_fact(port, |info| Some(info.back_end.name().into()))
    })
    .on_page("Back end")
    .with_watch_column("Back end", 9, 5),
    Column::new("why", Text, "Why the port has this back end.", |port| {
        open_port_fact(port, |info| Some(CellValue::from(&info.why)))
    }),
    Column::new("driver", Text, "Driver of the interface.", |port| {
        open_port_fact(port, |info| Some(CellValue::from(&info.driver)))
    }),
    Column::new("speed_bits_per_second", BitsPerSecond, "Speed of the link.", |port| {
        open_port_fact(port, |info| info.speed.map(|speed| Count(speed.bits_per_second())))
    })
    .on_page("Speed")
    .with_watch_column("Speed", 11, 6),
    Column::new("link_changed_ms", Number, "When the link last changed, ms since 1970.", |port| {
        port.row.last_change_ns.map(|ns| Count(ns / 1_000_000))
    }),
    Column::new("capturing", YesNo, "Whether a capture runs.", |port| Some(Flag(port.row.capturing))),
    Column::new("transmitting", YesNo, "Whether a stream transmits.", |port| {
        Some(Flag(port.row.transmitting))
    }),
    Column::new("frames_tx", Frames, "Frames sent since traffic last began.", |port| {
        Some(Count(port.row.frames_tx))
    })
    .on_page("Sent, frames")
    .with_watch_column("Sent", 11, 2)
    .with_metric("sent_frames_total"),
    Column::new("bytes_tx_rate", BytesPerSecond, "Bytes sent per second, over the last second.", |port| {
        Some(Float(port.row.bytes_tx_rate))
    })
    .on_page("Sending")
    .with_metric("sent_bytes_per_second"),
    Column::new("frames_rx", Frames, "Frames received since traffic last began.", |port| {
        Some(Count(port.row.frames_rx))
    })
    .on_page("Received, frames")
    .with_watch_column("Received", 11, 2)
    .with_metric("received_frames_total"),
    Column::new(
        "bytes_rx_rate",
        BytesPerSecond,
        "Bytes received per second, over the last second.",
        |port| Some(Float(port.row.bytes_rx_rate)),
    )
    .on_page("Receiving")
    .with_metric("received_bytes_per_second"),
    Column::new(
        "frames_dropped",
        Frames,
        "Frames that the kernel refused to send, or that the interface or packetrig's receive ring dropped.",
        dropped_frames,
    )
    .with_watch_column("Dropped", 8, 1),
    Column::new("frames_tx_rate", FramesPerSecond, "Frames sent per second, over the last second.", |port| {
        Some(Float(port.row.frames_tx_rate))
    })
    .with_watch_column("Sent f/s", 9, 3)
    .with_metric("sent_frames_per_second"),
    Column::new(
        "frames_rx_rate",
        FramesPerSecond,
        "Frames received per second, over the last second.",
        |port| Some(Float(port.row.frames_rx_rate)),
    )
    .with_watch_column("Rec. f/s", 9, 3)
    .with_metric("received_frames_per_second"),
    Column::new("bytes_tx", Bytes, "Bytes sent since traffic last began, FCS included.", |port| {
        Some(Count(port.row.bytes_tx))
    })
    .with_metric("sent_bytes_total"),
    Column::new("bytes_rx", Bytes, "Bytes received since traffic last began, FCS included.", |port| {
        Some(Count(port.row.bytes_rx))
    })
    .with_metric("received_bytes_total"),
    Column::new("tx.refused", Frames, "Frames that the kernel refused to send.", |port| {
        Some(Count(port.tx?.refused))
    })
    .with_metric("refused_frames_total"),
    Column::new("tx.dropped", Frames, "Frames that the interface dropped on transmit.", |port| {
        port.tx?.dropped.map(Count)
    })
    .on_page("Dropped by interface")
    .with_metric("interface_dropped_frames_total"),
    Column::new("rx.ring_dropped", Frames, "Frames dropped by packetrig's full receive ring.", |port| {
        received_count(port, |rx| rx.ring_dropped)
    })
    .on_page("Dropped by ring")
    .with_metric("ring_dropped_frames_total"),
    Column::new("rx.foreign", Frames, "Received frames that do not belong to this run.", |port| {
        received_count(port, |rx| rx.foreign)
    })
    .on_page("Frames of others")
    .with_metric("foreign_frames_total"),
];

fn open_port_fact(port: &LivePort, fact: fn(&PortInfo) -> Option<CellValue>) -> Option<CellValue> {
    port.info.as_ref().and_then(fact)
}

fn received_count(port: &LivePort, count: fn(&RxCounters) -> u64) -> Option<CellValue> {
    port.rx.as_ref().map(|rx| Count(count(rx)))
}

fn dropped_frames(port: &LivePort) -> Option<CellValue> {
    let sent = port.tx.map(|tx| tx.refused.saturating_add(tx.dropped.unwrap_or(0)));
    let received = port.rx.map(|rx| rx.ring_dropped);
    // One of the two counts may be absent: a port that only sends has no ring to overflow.
    let dropped = [sent, received].into_iter().flatten().reduce(u64::saturating_add);
    dropped.map(Count)
}
