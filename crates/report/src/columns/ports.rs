//! One row per port, and one per node.

use super::ColumnKind::{BitsPerSecond, Bytes, Frames, Nanoseconds, Number, SignedNanoseconds, Text, YesNo};
use super::TerminalTable::{Counts, Every};
use super::{ALWAYS_SHOWN_RANK, CellValue, ReportColumn, ReportTable, serialised_variant_name};
use crate::{NodeReport, PortReport, RunReport};

/// The table of `ports.csv`.
#[derive(Clone, Copy, Debug)]
pub struct PortTable;

impl ReportTable for PortTable {
    const FILE: &'static str = "ports.csv";
    const ABOUT: &'static str = "One row per port.";
    const COLUMNS: &'static [ReportColumn<Self>] = PORT_COLUMNS;
    type Row<'a> = &'a PortReport;

    fn report_rows(report: &RunReport) -> Vec<Self::Row<'_>> {
        report.ports.iter().collect()
    }
}

type PortColumn = ReportColumn<PortTable>;

const PORT_COLUMNS: &[PortColumn] = &[
    PortColumn::new("port", Text, "Name of the port.", |row| Some(CellValue::from(&row.info.name)))
        .on_terminal(Every, 0, "port", ALWAYS_SHOWN_RANK),
    PortColumn::new("node", Text, "The node that the port is on.", |row| Some(CellValue::from(&row.node)))
        .on_terminal(Counts, 10, "node", ALWAYS_SHOWN_RANK),
    PortColumn::new("location", Text, "Interface, with its network namespace.", |row| {
        Some(CellValue::from(&row.info.location))
    })
    .on_terminal(Counts, 20, "location", 4),
    PortColumn::new("back_end", Text, "The back end that the port used.", |row| {
        serialised_variant_name(row.info.back_end)
    })
    .on_terminal(Counts, 30, "back end", 2),
    PortColumn::new("driver", Text, "Driver of the interface.", |row| {
        Some(CellValue::from(&row.info.driver))
    })
    .on_terminal(Counts, 40, "driver", 0),
    PortColumn::new(
        "speed_bps",
        BitsPerSecond,
        "Link speed, if the driver reports it or the plan contains it.",
        |row| Some(row.info.speed?.bits_per_second().into()),
    ),
    PortColumn::new("tx_stamp", Text, "Source of departure stamps.", |row| {
        serialised_variant_name(row.info.tx_stamp)
    })
    .on_terminal(Counts, 110, "tx stamp", 1),
    PortColumn::new("rx_stamp", Text, "Source of arrival stamps.", |row| {
        serialised_variant_name(row.info.rx_stamp)
    })
    .on_terminal(Counts, 120, "rx stamp", 1),
    PortColumn::new("tx_handed_over", Frames, "Frames that the kernel accepted for sending.", |row| {
        Some(CellValue::Count(row.tx.handed_over))
    })
    .on_terminal(Counts, 50, "sent", ALWAYS_SHOWN_RANK),
    PortColumn::new("tx_refused", Frames, "Frames that the kernel refused to send.", |row| {
        Some(CellValue::Count(row.tx.refused))
    }),
    PortColumn::new(
        "tx_on_wire",
        Frames,
        "Frames transmitted, according to the interface's own counter.",
        |row| row.tx.on_wire.map(CellValue::Count),
    ),
    PortColumn::new(
        "tx_dropped",
        Frames,
        "Frames dropped on transmit, according to the interface's own counter.",
        |row| row.tx.dropped.map(CellValue::Count),
    ),
    PortColumn::new("tx_bytes", Bytes, "Bytes of the streams sent here, with FCS.", |row| {
        Some(CellValue::Count(row.tx_bytes))
    }),
    PortColumn::new("tx_l2_bps", BitsPerSecond, "Mean rate sent on layer 2, over all streams.", |row| {
        Some(row.tx_rate?.l2.bits_per_second().into())
    })
    .on_terminal(Counts, 60, "tx rate", 3),
    PortColumn::new(
        "rx_arrived",
        Frames,
        "Frames that arrived, according to the interface's own counter.",
        |row| row.rx.arrived.map(CellValue::Count),
    ),
    PortColumn::new(
        "rx_dropped",
        Frames,
        "Frames dropped on receive, according to the interface's own counter.",
        |row| row.rx.dropped.map(CellValue::Count),
    ),
    PortColumn::new(
        "rx_ring_dropped",
        Frames,
        "Frames that were dropped because the receive ring was full.",
        |row| Some(CellValue::Count(row.rx.ring_dropped)),
    )
    .on_terminal(Counts, 100, "ring drops", ALWAYS_SHOWN_RANK),
    PortColumn::new("rx_seen", Frames, "Frames that the receiver examined.", |row| {
        Some(CellValue::Count(row.rx.seen))
    }),
    PortColumn::new(
        "rx_foreign",
        Frames,
        "Frames that belong neither to a known run nor to a protocol that emulated devices answer.",
        |row| Some(CellValue::Count(row.rx.foreign)),
    )
    .on_terminal(Counts, 90, "foreign", 5),
    PortColumn::new(
        "rx_unnumbered",
        Frames,
        "Frames with a damaged test tag, recognised by their headers.",
        |row| Some(CellValue::Count(row.rx.unnumbered)),
    ),
    PortColumn::new("rx_bytes", Bytes, "Bytes of the frames received, with FCS.", |row| {
        Some(CellValue::Count(row.rx.bytes))
    }),
    PortColumn::new("rx_l2_bps", BitsPerSecond, "Mean rate received on layer 2, over all streams.", |row| {
        Some(row.rx_rate?.l2.bits_per_second().into())
    })
    .on_terminal(Counts, 80, "rx rate", 3),
    PortColumn::new(
        "clock_bound_ns",
        Nanoseconds,
        "Largest error of the conversion of arrival stamps to the monotonic clock.",
        |row| Some(row.clock_bound.into()),
    ),
    PortColumn::new("rx_protocol", Frames, "Frames of protocols that emulated devices answer.", |row| {
        Some(CellValue::Count(row.rx.protocol))
    }),
    PortColumn::new("rx_of_run", Frames, "Frames of this run, misdelivered ones included.", |row| {
        let others = row.rx.foreign.saturating_add(row.rx.protocol).saturating_add(row.rx.other_runs);
        Some(CellValue::Count(row.rx.seen.saturating_sub(others)))
    })
    .on_terminal(Counts, 70, "received", ALWAYS_SHOWN_RANK),
];

/// The table of `nodes.csv`.
#[derive(Clone, Copy, Debug)]
pub struct NodeTable;

impl ReportTable for NodeTable {
    const FILE: &'static str = "nodes.csv";
    const ABOUT: &'static str = "One row per node of a run on several nodes.";
    const COLUMNS: &'static [ReportColumn<Self>] = NODE_COLUMNS;
    type Row<'a> = &'a NodeReport;

    fn report_rows(report: &RunReport) -> Vec<Self::Row<'_>> {
        report.nodes.iter().collect()
    }
}

type NodeColumn = ReportColumn<NodeTable>;

const NODE_COLUMNS: &[NodeColumn] = &[
    NodeColumn::new("node", Text, "Name of the node.", |row| Some(CellValue::from(&row.node))).on_terminal(
        Every,
        0,
        "node",
        ALWAYS_SHOWN_RANK,
    ),
    NodeColumn::new(
        "reported",
        YesNo,
        "Whether the node has reported; if not, its other values are unknown.",
        |row| Some(CellValue::YesNo(row.reported)),
    )
    .on_terminal(Counts, 10, "reported", ALWAYS_SHOWN_RANK),
    NodeColumn::new("ports", Number, "Ports of the plan on the node.", |row| {
        row.reported.then_some(CellValue::Count(row.ports as u64))
    })
    .on_terminal(Counts, 20, "ports", 0),
    NodeColumn::new("sent", Frames, "Frames that the node's senders handed over to the kernel.", |row| {
        row.sent.map(CellValue::Count)
    })
    .on_terminal(Counts, 30, "sent", ALWAYS_SHOWN_RANK),
    NodeColumn::new(
        "received",
        Frames,
        "Frames of the run that the node's receivers counted, with copies.",
        |row| row.received.map(CellValue::Count),
    )
    .on_terminal(Counts, 40, "received", ALWAYS_SHOWN_RANK),
    NodeColumn::new(
        "clock_source",
        Text,
        "How the node's clock was compared with the controller's clock.",
        |row| Some(CellValue::from(row.clock?.source.name())),
    )
    .on_terminal(Counts, 50, "clock", ALWAYS_SHOWN_RANK),
    NodeColumn::new(
        "clock_offset_ns",
        SignedNanoseconds,
        "The node's clock minus the controller's clock, at the start of the run.",
        |row| row.clock?.offset_ns.map(CellValue::Signed),
    )
    .on_terminal(Counts, 60, "offset", 2),
    NodeColumn::new("clock_bound_ns", Nanoseconds, "Largest error of `clock_offset_ns`.", |row| {
        row.clock?.bound.map(CellValue::from)
    })
    .on_terminal(Counts, 70, "bound", 1)
    .with_prefix("± "),
    NodeColumn::new(
        "start_skew_ns",
        SignedNanoseconds,
        "Departure of the node's first frame minus its due time, on the controller's clock.",
        |row| row.start?.skew_ns.map(CellValue::Signed),
    )
    .on_terminal(Counts, 80, "start", 3),
    NodeColumn::new("start_skew_bound_ns", Nanoseconds, "Largest error of `start_skew_ns`.", |row| {
        row.start?.bound.map(CellValue::from)
    })
    .on_terminal(Counts, 90, "bound", 1)
    .with_prefix("± "),
    NodeColumn::new("start_stamp", Text, "Source of the first departure's stamp.", |row| {
        serialised_variant_name(row.start?.stamp?)
    }),
    NodeColumn::new("kernel", Text, "Kernel release of the node.", |row| {
        Some(CellValue::from(&row.machine.as_ref()?.kernel))
    }),
    NodeColumn::new("architecture", Text, "Architecture of the node.", |row| {
        Some(CellValue::from(&row.machine.as_ref()?.architecture))
    }),
    NodeColumn::new("processor", Text, "Model of the node's processors, if the kernel names it.", |row| {
        row.machine.as_ref()?.processor.as_ref().map(CellValue::from)
    }),
    NodeColumn::new("processors", Number, "Processors that the node may use.", |row| {
        Some(CellValue::Count(row.machine.as_ref()?.processors?.into()))
    }),
];
