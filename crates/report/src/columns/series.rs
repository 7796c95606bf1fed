//! Frames and bytes of each second.

use super::ColumnKind::{Bytes, Frames, Number, Text};
use super::{CellValue, ReportColumn, ReportTable};
use crate::RunReport;
use packetrig_stats::series::RateSeries;

/// The table of `series.csv`.
#[derive(Clone, Copy, Debug)]
pub struct SeriesTable;

/// Subject of a series: a stream or port, and a direction.
#[derive(Clone, Copy, Debug)]
struct RateSeriesSubject<'a> {
    kind: &'static str,
    name: &'a str,
    direction: &'static str,
    node: &'a str,
}

/// A second of a series.
#[derive(Clone, Copy, Debug)]
pub struct SeriesRow<'a> {
    subject: RateSeriesSubject<'a>,
    second: u64,
    frames: u64,
    bytes: u64,
}

impl ReportTable for SeriesTable {
    const FILE: &'static str = "series.csv";
    const ABOUT: &'static str = "One row per stream or port, direction and second of the run.";
    const COLUMNS: &'static [ReportColumn<Self>] = SERIES_COLUMNS;
    type Row<'a> = SeriesRow<'a>;

    fn report_rows(report: &RunReport) -> Vec<Self::Row<'_>> {
        let mut rows = Vec::new();
        for stream in &report.streams {
            let subject = RateSeriesSubject { kind: "stream", name: &stream.name, direction: "tx", node: "" };
            rows.extend(stream.sent.iter().flat_map(|sent| build_second_rows(subject, &sent.series)));
            let subject = RateSeriesSubject { direction: "rx", ..subject };
            rows.extend(stream.received.iter().flat_map(|got| build_second_rows(subject, &got.series)));
        }
        for port in &report.ports {
            let subject =
                RateSeriesSubject { kind: "port", name: &port.info.name, direction: "tx", node: &port.node };
            rows.extend(build_second_rows(subject, &port.tx_series));
            rows.extend(build_second_rows(RateSeriesSubject { direction: "rx", ..subject }, &port.rx_series));
        }
        rows
    }
}

fn build_second_rows<'a>(
    subject: RateSeriesSubject<'a>,
    series: &'a RateSeries,
) -> impl Iterator<Item = SeriesRow<'a>> {
    (0..).zip(&series.seconds).map(move |(second, (frames, bytes))| SeriesRow {
        subject,
        second,
        frames: *frames,
        bytes: *bytes,
    })
}

type Column = ReportColumn<SeriesTable>;

const SERIES_COLUMNS: &[Column] = &[
    Column::new("kind", Text, "`stream` or `port`.", |row| Some(row.subject.kind.into())),
    Column::new("name", Text, "Name of the stream or port.", |row| Some(CellValue::from(row.subject.name))),
    Column::new("direction", Text, "`tx` or `rx`.", |row| Some(CellValue::from(row.subject.direction))),
    Column::new("second", Number, "Second of the run, from 0.", |row| Some(CellValue::Count(row.second))),
    Column::new("frames", Frames, "Frames in this second.", |row| Some(CellValue::Count(row.frames))),
    Column::new("bytes", Bytes, "Bytes of the frames in `frames`, with FCS.", |row| {
        Some(CellValue::Count(row.bytes))
    }),
    Column::new("node", Text, "The node that a port is on; empty for a stream.", |row| {
        Some(CellValue::from(row.subject.node))
    }),
];
