//! `packetrig merge`: merges captures of one link into one file, and reports the packets that each of them lacks.

use crate::args::MergeArgs as Arguments;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::numbers::format_count;
use crate::output::{CommandOutput, print_remark};
use crate::table::format_table;
use packetrig_link::merge::ClockDrift;
use packetrig_link_io::merge::{self, CaptureClock, CaptureReport, MergeOptions, MergeReport};
use packetrig_units::{Nanos, clamp_to_usize};
use serde_json::{Value, json};

pub(crate) fn merge_captures(
    arguments: &Arguments,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let options = MergeOptions {
        captures: arguments.captures.clone(),
        into: arguments.write.clone(),
        tolerance: arguments.tolerance,
        memory: clamp_to_usize(arguments.memory.0),
    };
    let report = merge::merge_captures(&options)?;
    if arguments.json {
        output.write_json(&report_json(&report))?;
    } else {
        output.write_text(report_text(&report, arguments));
    }
    let remarks = report.captures.iter().flat_map(|capture| &capture.remarks);
    // This text goes to standard error, so that `--json` stays one document.
    remarks.for_each(|text| print_remark(format_args!("merge: warning: {text}")));
    if report.early > 0 {
        print_remark(format_args!(
            "merge: warning: --memory was too small for {} packets; some of them may be in the result twice",
            format_count(report.early)
        ));
    }
    let mut exit = CommandExit::Ok;
    for damage in report.captures.iter().flat_map(|capture| &capture.damages) {
        print_remark(format_args!("error: {damage}"));
        // For a damaged capture, the result still contains all packets that could be read.
        exit = CommandExit::Usage;
    }
    Ok(exit)
}

fn report_text(report: &MergeReport, arguments: &Arguments) -> String {
    let mut text = format_table(
        &["capture", "packets", "only here", "missing", "before or after", "clock", "drift", "jitter"],
        report.captures.iter().map(build_capture_row),
    );
    for capture in &report.captures {
        let steps = capture.clock.iter().flat_map(|clock| &clock.steps);
        text.extend(steps.map(|step| {
            let by = format_signed_time(step.by_ns);
            format!(
                "{}: its clock jumped ({by}); packets around the jump may be in the result twice\n",
                capture.name
            )
        }));
    }
    let file = arguments.write.display();
    let (packets, in_all) = (format_count(report.packets), format_count(report.in_all));
    text + &format!(
        "{file}: {packets} packets, {in_all} of them in all captures (tolerance {})\n",
        report.tolerance
    )
}

fn build_capture_row(capture: &CaptureReport) -> Vec<String> {
    let clock = capture.clock.as_ref();
    let counts = [capture.packets, capture.only_here, capture.missing, capture.outside].map(format_count);
    let clocks = [
        // All other captures are compared with the clock of the first capture, so the first capture has no offset.
        clock.map_or_else(|| "used".to_owned(), |clock| format_signed_time(clock.ahead_ns)),
        clock.and_then(|clock| clock.drift).map_or_else(|| "–".to_owned(), format_drift),
        clock.map_or_else(|| "–".to_owned(), |clock| clock.jitter.to_string()),
    ];
    [vec![capture.name.clone()], counts.to_vec(), clocks.to_vec()].concat()
}

/// Formats a drift. If it may be zero, only its bounds are shown.
fn format_drift(drift: ClockDrift) -> String {
    let ClockDrift { ppm, least_ppm, most_ppm } = drift;
    if drift.is_certainly_nonzero() {
        format!("{ppm:+.2} ppm ({least_ppm:+.2} to {most_ppm:+.2})")
    } else {
        format!("none seen ({least_ppm:+.2} to {most_ppm:+.2} ppm)")
    }
}

fn format_signed_time(ns: i64) -> String {
    format!("{}{}", if ns < 0 { "-" } else { "+" }, Nanos::new(ns.unsigned_abs()))
}

fn report_json(report: &MergeReport) -> Value {
    let captures: Vec<Value> = report.captures.iter().map(build_capture_json).collect();
    json!({
        "packets": report.packets,
        "in_all": report.in_all,
        "tolerance_ns": report.tolerance.as_u64(),
        "early": report.early,
        "captures": captures,
    })
}

fn build_capture_json(capture: &CaptureReport) -> Value {
    json!({
        "name": capture.name,
        "packets": capture.packets,
        "only_here": capture.only_here,
        "missing": capture.missing,
        "before_or_after": capture.outside,
        "clock": capture.clock.as_ref().map(build_clock_json),
        "damages": capture.damages,
        "remarks": capture.remarks,
    })
}

fn build_clock_json(clock: &CaptureClock) -> Value {
    let steps = clock.steps.iter().map(|step| json!({ "at_ns": step.at_ns, "by_ns": step.by_ns }));
    json!({
        "ahead_ns": clock.ahead_ns,
        "drift_ppm": clock.drift.filter(ClockDrift::is_certainly_nonzero).map(|drift| drift.ppm),
        "drift_least_ppm": clock.drift.map(|drift| drift.least_ppm),
        "drift_most_ppm": clock.drift.map(|drift| drift.most_ppm),
        "jitter_ns": clock.jitter.as_u64(),
        "pairs": clock.pairs,
        "steps": steps.collect::<Vec<_>>(),
    })
}
