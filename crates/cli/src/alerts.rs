//! `--alerts` of `collect` and `meter`: reads the rules, and formats events and counts.

use crate::args::AlertArgs;
use crate::commands::group_json;
use crate::error::Error;
use crate::numbers::format_count;
use crate::table::format_table;
use jiff::Timestamp;
use packetrig_flow_store::StoreTarget;
use packetrig_flow_store::alert::{
    AlertCounts, AlertCountsReader, AlertDestination, AlertEvent, AlertOptions, AlertRules,
};
use packetrig_flow_store::names::FlowNames;
use packetrig_units::exposition::MetricsText;
use serde_json::{Map, Value, json};
use std::sync::Arc;

impl AlertArgs {
    /// Reads the rules and the names, and returns a target that checks records against the
    /// rules; `None` without `--alerts`.
    ///
    /// `is_live` is true if records arrive as flows end, and false if they come from files.
    pub(crate) fn to_target(
        &self,
        is_live: bool,
        counts: &AlertCountsReader,
    ) -> Result<Option<StoreTarget>, Error> {
        let Some(path) = &self.alerts else { return Ok(None) };
        let text = std::fs::read_to_string(path)
            .map_err(|source| Error::ReadFile { name: path.display().to_string(), source })?;
        let names = Arc::new(FlowNames::read_files(&self.alert_names)?);
        let rules = AlertRules::parse_with_names(&text, &names)
            .map_err(|error| Error::Usage(format!("{}: {error}", path.display())))?;
        let places = if self.alert_to.is_empty() {
            vec![AlertDestination::StandardOutput]
        } else {
            self.alert_to.clone()
        };
        let counts = counts.clone();
        Ok(Some(StoreTarget::Alerts(AlertOptions {
            rules,
            places,
            is_live,
            format_event: format_alert_event,
            counts,
        })))
    }
}

/// Formats an event, such as a raised alert, as a line of JSON.
fn format_alert_event(event: &AlertEvent) -> String {
    let rule = &event.rule;
    let parts = rule.grouping.parts().iter().zip(&event.group);
    let group: Map<String, Value> =
        parts.map(|(part, value)| (part.name().to_owned(), group_json(part, value))).collect();
    let mut line = json!({
        "event": event.kind,
        "alert": rule.name,
        "group": group,
        "measure": rule.measure,
        "value": event.value,
        "extreme": event.extreme,
        "from": format_rfc3339_time(event.from_ns),
        "to": format_rfc3339_time(event.to_ns),
        "since": format_rfc3339_time(event.since_ns),
    });
    if let (Some(line), Ok(Value::Object(threshold))) =
        (line.as_object_mut(), serde_json::to_value(rule.threshold))
    {
        line.extend(threshold);
    }
    line.to_string()
}

/// Formats a time (nanoseconds since 1970) in UTC, as in RFC 3339.
fn format_rfc3339_time(at_ns: u64) -> String {
    Timestamp::from_nanosecond(i128::from(at_ns)).unwrap_or(Timestamp::MAX).to_string()
}

/// Formats the counts of all rules as a table; empty without rules.
pub(crate) fn format_alert_counts(counts: &[AlertCounts]) -> String {
    if counts.is_empty() {
        return String::new();
    }
    format_table(
        &["alert", "raised", "active", "late records", "future records", "not raised"],
        counts.iter().map(format_alert_counts_row),
    )
}

fn format_alert_counts_row(counts: &AlertCounts) -> Vec<String> {
    let AlertCounts { alert, raised, active, late_records, future_records, left_out } = counts;
    let numbers = [raised, active, late_records, future_records, left_out];
    std::iter::once(alert.clone()).chain(numbers.map(|&number| format_count(number))).collect()
}

/// Formats the counts of all rules as Prometheus metrics; empty without rules.
pub(crate) fn metrics_text(prefix: &'static str, counts: &[AlertCounts]) -> String {
    type Metric = (&'static str, &'static str, fn(&AlertCounts) -> u64);
    let metrics: [Metric; 5] = [
        ("raised_total", "Alerts that were raised.", |one| one.raised),
        ("active", "Alerts that are active.", |one| one.active),
        ("late_records_total", "Records that came after the rule had judged their time window.", |one| {
            one.late_records
        }),
        (
            "future_records_total",
            "Records not counted, because their time is too far in the future.",
            |one| one.future_records,
        ),
        ("left_out_total", "Alerts that were not raised, because too many were active.", |one| one.left_out),
    ];
    let mut text = MetricsText::with_prefix(prefix);
    // Without rules there are no metrics, and no names of them either.
    for (name, help, value) in metrics.into_iter().filter(|_| !counts.is_empty()) {
        text.write_metric(name, help, |samples| {
            for one in counts {
                samples.add_sample(&[("alert", &one.alert)], value(one));
            }
        });
    }
    text.into_text()
}
