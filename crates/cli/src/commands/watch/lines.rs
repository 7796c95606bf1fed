//! The run in progress without a screen: one line for each state, or the events as JSON.

use super::facts::{
    LiveFacts, RunFacts, count_or_unmeasured, format_bit_rate_or_dash, format_latency_or_dash,
    format_rate_or_dash, make_printable,
};
use super::follow::{ServerLink, WatchEvent};
use super::is_interrupted;
use crate::error::Error;
use crate::numbers;
use crate::output::{CommandOutput, print_remark};
use serde_json::json;
use std::time::Duration;

/// Interval between two checks for signals.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Prints a line for each state of the run, unless the line is the same as the line before.
pub(super) fn print_lines(link: &ServerLink, output: &mut CommandOutput) -> Result<(), Error> {
    let mut last = String::new();
    print_events(link, output, |event, output| match event {
        WatchEvent::Server(event) if event.name == "live" => {
            // An unreadable state is left out: the next state comes within a second.
            let Ok(facts) = serde_json::from_value::<LiveFacts>(event.data) else { return };
            let line = facts.run.as_ref().map_or_else(|| "no configuration".to_owned(), format_run_line);
            // A paused run repeats its state. The repetitions are left out, so that a log stays short.
            if line != last {
                output.write_line(&line);
                last = line;
            }
        }
        WatchEvent::Lost(reason) => {
            print_remark(format_args!("watch: {}; trying again", make_printable(&reason)));
        }
        _ => {}
    })
}

/// Prints each event of the server as JSON. packetrig adds the event `connection_lost`, which no server sends.
pub(super) fn print_json(link: &ServerLink, output: &mut CommandOutput) -> Result<(), Error> {
    print_events(link, output, |event, output| match event {
        WatchEvent::Server(event) => output.write_line(json!({ "event": event.name, "data": event.data })),
        WatchEvent::Lost(reason) => {
            output.write_line(json!({ "event": "connection_lost", "data": { "reason": reason } }));
        }
        _ => {}
    })
}

fn print_events(
    link: &ServerLink,
    output: &mut CommandOutput,
    mut print: impl FnMut(WatchEvent, &mut CommandOutput),
) -> Result<(), Error> {
    while !is_interrupted() && !output.is_closed() {
        match link.next_event(SIGNAL_CHECK_INTERVAL)? {
            Some(WatchEvent::Ended) => {
                print_remark("watch: the run has ended; its command prints the result");
                return Ok(());
            }
            Some(event) => print(event, output),
            None => {}
        }
    }
    Ok(())
}

/// Formats a state of the run as one line.
pub(super) fn format_run_line(run: &RunFacts) -> String {
    let totals = &run.totals;
    let places: Vec<String> = run
        .losses
        .losses_by_place()
        .iter()
        .map(|(place, count)| format!("{place} {}", count_or_unmeasured(*count)))
        .collect();
    format!(
        "{:.1} s  {} of {} streams send  sent {} ({}, {})  received {} ({})  {}: {}  latency mean {}{}",
        run.elapsed_ms as f64 / 1000.0,
        totals.started,
        run.streams.total,
        numbers::format_count(totals.frames_tx.0),
        format_rate_or_dash(totals.frames_tx_rate, "pps"),
        format_bit_rate_or_dash(totals.bytes_tx_rate),
        numbers::format_count(totals.frames_rx.0),
        format_rate_or_dash(totals.frames_rx_rate, "pps"),
        run.losses.loss_sentence(),
        places.join(", "),
        format_latency_or_dash(totals.latency_ns.and_then(|figures| figures.mean)),
        run.ended.as_ref().map(|why| format!("  ended: {}", make_printable(why))).unwrap_or_default(),
    )
}
