//! Queries of stored flow records, like those of `packetrig flows`.

use super::{SCHEMA_VERSION, to_ms, view_refusal_from_error};
use crate::args::FlowOrderArg;
use crate::commands::{exporter_name, group_json, group_measures};
use crate::protocols;
use clap::ValueEnum as _;
use packetrig_flow_store::filter::FlowFilter;
use packetrig_flow_store::grouping::{FlowGrouping, GroupPart};
use packetrig_flow_store::scan::{ListedFiles, ScanTerms, TimeSpan, list_flow_files};
use packetrig_flow_store::top::{self, TopGroup, TopGroupsQuery, TopOrder};
use packetrig_flow_store::totals::{self, FlowTotals, TotalsRow};
use packetrig_flow_store::{Error, ledgers};
use packetrig_server::{
    FlowArchive, FlowSelection, FlowTopQuery, FlowTotalsQuery, ViewRefusal, ViewerGoneCheck,
    write_large_counts_as_text,
};
use serde_json::{Map, Value, json};
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

/// Directories with flow records.
pub(super) struct FlowDirectories {
    directories: Vec<PathBuf>,
}

impl FlowDirectories {
    pub(super) const fn new(directories: Vec<PathBuf>) -> Self {
        Self { directories }
    }

    /// Lists the files of all directories. A directory without files is no error: its collector has stored nothing yet.
    fn list_stored_flow_files(&self) -> Result<ListedFiles, ViewRefusal> {
        let mut files = ListedFiles::default();
        for directory in &self.directories {
            match list_flow_files(std::slice::from_ref(directory)) {
                Ok(found) => files.append_listed_files(found),
                // Only this error means an empty directory: an unreadable directory must not look empty.
                Err(Error::Nothing { .. }) => {}
                Err(error) => return Err(view_refusal_from_error(&error)),
            }
        }
        Ok(files)
    }
}

impl FlowArchive for FlowDirectories {
    fn top_flows(
        &self,
        query: &FlowTopQuery,
        is_given_up: &ViewerGoneCheck<'_>,
    ) -> Result<Value, ViewRefusal> {
        let grouping: FlowGrouping = query.by.parse().map_err(|error| invalid_parameter("by", error))?;
        // The page has no files with names, so a grouping by names is refused here.
        let grouping =
            grouping.with_names(&Arc::default()).map_err(|error| invalid_parameter("by", error))?;
        let order =
            // The words are those of the command line; `true` ignores upper and lower case.
            FlowOrderArg::from_str(&query.order, true).map_err(|error| invalid_parameter("order", error))?;
        let filter = to_flow_filter(&query.selection)?;
        let question = TopGroupsQuery::new(grouping.clone(), TopOrder::from(order), query.most);
        let top = top::find_top_groups_with_limits(
            &single_reader_scan_options(is_given_up),
            &self.list_stored_flow_files()?,
            &filter,
            &question,
        );
        let top = top.map_err(|error| view_refusal_from_error(&error))?;
        let parts = grouping.parts();
        // Counts that JavaScript would round become texts.
        Ok(write_large_counts_as_text(json!({
            "schema_version": SCHEMA_VERSION,
            "directories": self.directory_names(),
            "by": parts.iter().map(GroupPart::name).collect::<Vec<_>>(),
            "order": order.to_possible_value().map(|value| value.get_name().to_owned()),
            "groups": top.groups.iter().map(|group| build_top_json(parts, group)).collect::<Vec<_>>(),
            "total": top.total.sum,
            "sampled_records": top.total.sampled_records,
            "groups_seen": top.groups_seen,
            "groups_are_estimated": top.groups_are_estimated,
            "files_have_changed": top.files_have_changed,
        })))
    }

    fn flow_totals(
        &self,
        query: &FlowTotalsQuery,
        is_given_up: &ViewerGoneCheck<'_>,
    ) -> Result<Value, ViewRefusal> {
        let files = self.list_stored_flow_files()?;
        let filter = to_flow_filter(&query.selection)?;
        let totals = totals::sum_flow_totals_with_limits(
            &single_reader_scan_options(is_given_up),
            &files,
            &filter,
            query.bucket,
        );
        let totals = totals.map_err(|error| view_refusal_from_error(&error))?;
        let mut json = build_totals_json(&totals);
        json["schema_version"] = SCHEMA_VERSION.into();
        json["directories"] = self.directory_names();
        json["files"] = files.len().into();
        // The ledgers are shown beside the records, because only they say which packets are in no record.
        json["meters"] = self.newest_ledgers()?;
        Ok(write_large_counts_as_text(json))
    }
}

impl FlowDirectories {
    /// Returns the names of the directories for JSON. A name that is not UTF-8 is changed, because JSON must be UTF-8.
    fn directory_names(&self) -> Value {
        self.directories.iter().map(|directory| directory.display().to_string()).collect()
    }

    /// Returns the newest ledger, the counts of metered and lost packets, of each meter.
    fn newest_ledgers(&self) -> Result<Value, ViewRefusal> {
        let ledgers =
            ledgers::newest_ledgers(&self.directories).map_err(|error| view_refusal_from_error(&error))?;
        let rows = ledgers.into_iter().map(|(source, (at_ns, ledger))| {
            let imbalances: Vec<String> = ledger.find_imbalances().iter().map(ToString::to_string).collect();
            json!({
                "exporter": exporter_name(source),
                "at_ms": to_ms(at_ns),
                "ledger": ledger,
                "imbalances": imbalances,
            })
        });
        Ok(rows.collect())
    }
}

/// Returns the options of a scan with a single reader, which leaves the other processors to a rig that measures.
fn single_reader_scan_options<'a>(is_given_up: &'a ViewerGoneCheck<'a>) -> ScanTerms<'a> {
    ScanTerms { readers: 1, is_given_up }
}

fn invalid_parameter(name: &str, error: impl Display) -> ViewRefusal {
    ViewRefusal::Invalid(format!("{name}: {error}"))
}

fn to_flow_filter(selection: &FlowSelection) -> Result<FlowFilter, ViewRefusal> {
    let span = FlowFilter::started_in(TimeSpan { from_ns: selection.since_ns, to_ns: selection.before_ns });
    // The page sends an empty text if the user has typed nothing, and an empty text is not a valid filter.
    if selection.filter.trim().is_empty() {
        return Ok(span);
    }
    let filter: FlowFilter = selection.filter.parse().map_err(|error| invalid_parameter("filter", error))?;
    Ok(span.and(filter))
}

fn build_top_json(parts: &[GroupPart], group: &TopGroup) -> Value {
    let TopGroup { values, has } = group;
    let named =
        parts.iter().zip(values).map(|(part, value)| (part.name().to_owned(), group_json(part, value)));
    let mut json: Map<String, Value> = named.collect();
    json.extend(group_measures(has).map(|(name, value)| (name.to_owned(), value)));
    // The times are in milliseconds, like all times of this API.
    json.insert("first_ms".to_owned(), to_ms(has.first_ns).into());
    json.insert("last_ms".to_owned(), to_ms(has.last_ns).into());
    Value::Object(json)
}

fn build_totals_json(totals: &FlowTotals) -> Value {
    let protocols = totals.protocols.iter().map(|(number, row)| {
        json!({
            "protocol": number,
            "name": protocols::protocol_name(*number),
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
        "records_with_merges": totals.records_with_merges,
        "sampled_records": totals.sampled_records,
        "first_ms": totals.first_ns.map(to_ms),
        "last_ms": totals.last_ns.map(to_ms),
        "protocols": protocols.collect::<Vec<_>>(),
        "bucket_ms": to_ms(totals.bucket_ns),
        "timeline": {
            "at_ms": totals.timeline.keys().map(|at| to_ms(*at)).collect::<Vec<_>>(),
            "flows": counts_over_time(totals, |row| row.sum.flows),
            "packets": counts_over_time(totals, |row| row.sum.packets),
            "bytes": counts_over_time(totals, |row| row.sum.bytes),
        },
        "beside_timeline": totals.beside_timeline,
    })
}

/// Lists one count of each bucket of the timeline.
fn counts_over_time(totals: &FlowTotals, count: fn(&TotalsRow) -> u64) -> Vec<u64> {
    totals.timeline.values().map(count).collect()
}
