//! Queries of stored flow records, as `packetrig flows` makes them.

use super::{SCHEMA_VERSION, failed, ms};
use crate::args::OrderBy;
use crate::commands::{exporter, group_json};
use crate::protocols;
use clap::ValueEnum as _;
use packetrig_server::{FlowArchive, FlowSelection, FlowTopQuery, FlowTotalsQuery, ViewRefusal};
use packetrig_store::flows::filter::FlowFilter;
use packetrig_store::flows::grouping::{FlowGrouping, GroupPart};
use packetrig_store::flows::scan::{TimeSpan, flow_files};
use packetrig_store::flows::top::{self, GroupSum, TopGroup, TopOrder, TopQuestion};
use packetrig_store::flows::totals::{self, FlowTotals, TotalsRow};
use packetrig_store::flows::{Error, ledgers};
use serde_json::{Map, Value, json};
use std::fmt::Display;
use std::path::PathBuf;

/// Directories with flow records.
pub(super) struct FlowDirectories {
    directories: Vec<PathBuf>,
}

impl FlowDirectories {
    pub(super) const fn new(directories: Vec<PathBuf>) -> Self {
        Self { directories }
    }

    /// Their files. A directory without any is that of a collector that has stored nothing yet.
    fn files(&self) -> Result<Vec<PathBuf>, ViewRefusal> {
        let mut files = Vec::new();
        for directory in &self.directories {
            match flow_files(std::slice::from_ref(directory)) {
                Ok(found) => files.extend(found),
                Err(Error::Nothing { .. }) => {}
                Err(error) => return Err(failed(&error)),
            }
        }
        Ok(files)
    }
}

impl FlowArchive for FlowDirectories {
    fn top(&self, query: &FlowTopQuery) -> Result<Value, ViewRefusal> {
        let grouping: FlowGrouping = query.by.parse().map_err(|error| invalid("by", error))?;
        let order = OrderBy::from_str(&query.order, true).map_err(|error| invalid("order", error))?;
        let filter = filter(&query.selection)?;
        let question = TopQuestion::new(grouping.clone(), TopOrder::from(order), query.most);
        let top = top::top(&self.files()?, &filter, &question).map_err(|error| failed(&error))?;
        let parts = grouping.parts();
        Ok(json!({
            "schema_version": SCHEMA_VERSION,
            "directories": self.directories,
            "by": parts.iter().map(GroupPart::name).collect::<Vec<_>>(),
            "order": query.order,
            "groups": top.groups.iter().map(|group| top_json(parts, group)).collect::<Vec<_>>(),
            "total": top.total.sum,
            "groups_seen": top.groups_seen,
            "doubt": top.doubt,
        }))
    }

    fn totals(&self, query: &FlowTotalsQuery) -> Result<Value, ViewRefusal> {
        let files = self.files()?;
        let filter = filter(&query.selection)?;
        let totals = totals::totals(&files, &filter, query.bucket).map_err(|error| failed(&error))?;
        let mut json = totals_json(&totals);
        json["schema_version"] = SCHEMA_VERSION.into();
        json["directories"] = json!(self.directories);
        json["files"] = files.len().into();
        json["meters"] = self.meters()?;
        Ok(json)
    }
}

impl FlowDirectories {
    /// The newest ledger of each meter.
    fn meters(&self) -> Result<Value, ViewRefusal> {
        let ledgers = ledgers::newest(&self.directories).map_err(|error| failed(&error))?;
        let rows = ledgers.into_iter().map(|(source, (at_ns, ledger))| {
            let imbalances: Vec<String> = ledger.imbalances().iter().map(ToString::to_string).collect();
            json!({
                "exporter": exporter(source),
                "at_ms": ms(at_ns),
                "ledger": ledger,
                "imbalances": imbalances,
            })
        });
        Ok(rows.collect())
    }
}

fn invalid(name: &str, error: impl Display) -> ViewRefusal {
    ViewRefusal::Invalid(format!("{name}: {error}"))
}

fn filter(selection: &FlowSelection) -> Result<FlowFilter, ViewRefusal> {
    let span = FlowFilter::started(TimeSpan { from_ns: selection.since_ns, to_ns: selection.before_ns });
    if selection.filter.trim().is_empty() {
        return Ok(span);
    }
    let filter: FlowFilter = selection.filter.parse().map_err(|error| invalid("filter", error))?;
    Ok(span.and(filter))
}

fn top_json(parts: &[GroupPart], group: &TopGroup) -> Value {
    let TopGroup { values, has } = group;
    let named =
        parts.iter().zip(values).map(|(part, value)| (part.name().to_owned(), group_json(part, value)));
    let mut json: Map<String, Value> = named.collect();
    json.extend(measures(has).map(|(name, value)| (name.to_owned(), value.into())));
    Value::Object(json)
}

fn measures(has: &GroupSum) -> [(&'static str, u64); 8] {
    [
        ("flows", has.sum.flows),
        ("packets", has.sum.packets),
        ("bytes", has.sum.bytes),
        ("first_ms", ms(has.first_ns)),
        ("last_ms", ms(has.last_ns)),
        ("packets_per_second", has.of(TopOrder::PacketRate)),
        ("bits_per_second", has.of(TopOrder::BitRate)),
        ("bytes_per_packet", has.of(TopOrder::PacketSize)),
    ]
}

fn totals_json(totals: &FlowTotals) -> Value {
    let rows = || totals.timeline.values();
    let column = |count: fn(&TotalsRow) -> u64| rows().map(count).collect::<Vec<u64>>();
    let protocols = totals.protocols.iter().map(|(number, row)| {
        json!({
            "protocol": number,
            "name": protocols::name(*number),
            "records": row.records,
            "flows": row.sum.flows,
            "packets": row.sum.packets,
            "bytes": row.sum.bytes,
        })
    });
    json!({
        "records": totals.records,
        "flows": totals.sum.flows,
        "packets": totals.sum.packets,
        "bytes": totals.sum.bytes,
        "frame_bytes": totals.frame_bytes,
        "records_with_loss": totals.records_with_loss,
        "first_ms": totals.first_ns.map(ms),
        "last_ms": totals.last_ns.map(ms),
        "protocols": protocols.collect::<Vec<_>>(),
        "bucket_ms": ms(totals.bucket_ns),
        "timeline": {
            "at_ms": totals.timeline.keys().map(|at| ms(*at)).collect::<Vec<_>>(),
            "flows": column(|row| row.sum.flows),
            "packets": column(|row| row.sum.packets),
            "bytes": column(|row| row.sum.bytes),
        },
        "beside_timeline": totals.beside_timeline,
    })
}
