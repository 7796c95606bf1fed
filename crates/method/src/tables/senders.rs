//! The load of each sender. With several senders, the other tables have only the sum of their loads.

use super::{ResultTable, format_decimals, format_optional_cell, format_rate_cell, format_size_cell};
use crate::{Load, MethodOptions, MethodReport, MethodResult};
use packetrig_units::FrameSize;

/// A load of the result, with its name in the table.
struct NamedLoad {
    name: String,
    size: Option<FrameSize>,
    load: Option<Load>,
}

/// Makes a table of the senders' loads; it has no rows if there is one sender.
pub(super) fn tabulate_senders(report: &MethodReport) -> ResultTable {
    let headings = [
        "Frame size [B]",
        "Load",
        "Sender",
        "Of the sum [%]",
        "Of this sender [frames/s]",
        "In sum [frames/s]",
    ];
    let mut table = ResultTable::new("senders", "Load of each sender", &headings);
    for NamedLoad { name, size, load } in list_named_loads(report) {
        for sender in &report.senders {
            table.push_row(vec![
                format_optional_cell(size, format_size_cell),
                name.clone(),
                sender.name.clone(),
                format_decimals(sender.share * 100.0, 2),
                format_optional_cell(load, |load| format_rate_cell(load.scale_by(sender.share))),
                format_optional_cell(load, format_rate_cell),
            ]);
        }
    }
    if !table.rows.is_empty() {
        table.notes.push("The other tables have the total load of all senders.".to_owned());
    }
    table
}

fn list_named_loads(report: &MethodReport) -> Vec<NamedLoad> {
    let named = |name: &str, load: Option<Load>| NamedLoad { name: name.to_owned(), size: None, load };
    match (&report.result, &report.options) {
        (MethodResult::Rfc2544(result), _) => {
            let sizes =
                result.sizes.iter().filter_map(|row| Some((row.frame_size_bytes, row.throughput.as_ref()?)));
            let loads = sizes.map(|(size, bounds)| NamedLoad {
                size: Some(size),
                ..named("throughput", bounds.frames_per_second)
            });
            loads.collect()
        }
        (MethodResult::Mlrsearch(result), _) => result
            .goals
            .iter()
            .map(|goal| named(&format!("{} carried", goal.goal), goal.lower_bound))
            .collect(),
        (MethodResult::Bisect(result), _) => vec![named("carried", result.lower_bound)],
        (MethodResult::LossShare(result), _) => {
            result.rates.iter().map(|rate| named("sent", Some(rate.frames_per_second))).collect()
        }
        (MethodResult::Compare(result), _) => {
            result.loads.iter().map(|load| named("sent", Some(load.load.frames_per_second))).collect()
        }
        (MethodResult::Convergence(_), MethodOptions::Convergence(options)) => {
            vec![named("sent", Some(options.frames_per_second))]
        }
        // The result itself has no load, and these options belong to another method.
        (MethodResult::Convergence(_), _) => Vec::new(),
    }
}
