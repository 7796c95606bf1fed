//! The run in progress without a screen: one line for each state, or the events as JSON.

use super::facts::{LiveFacts, RunFacts, bit_rate, known, latency, printable, rate};
use super::follow::{ServerLink, WatchEvent};
use super::is_interrupted;
use crate::error::Error;
use crate::numbers;
use crate::output::{CommandOutput, remark};
use serde_json::json;
use std::time::Duration;

/// Interval between two checks for signals.
const LOOK: Duration = Duration::from_millis(100);

/// Prints a line for each state.
pub(super) fn print_lines(link: &ServerLink, output: &mut CommandOutput) -> Result<(), Error> {
    let mut last = String::new();
    print_events(link, output, |event, output| match event {
        WatchEvent::Server(event) if event.name == "live" => {
            let Ok(facts) = serde_json::from_value::<LiveFacts>(event.data) else { return };
            let line = facts.run.as_ref().map_or_else(|| "no configuration".to_owned(), run_line);
            if line != last {
                output.line(&line);
                last = line;
            }
        }
        WatchEvent::Server(event) if event.name == "stopping" => remark("watch: the server stops"),
        WatchEvent::Lost(reason) => remark(format_args!("watch: {}; trying again", printable(&reason))),
        _ => {}
    })
}

/// Prints each event of the server, and a lost connection as an event of our own.
pub(super) fn print_json(link: &ServerLink, output: &mut CommandOutput) -> Result<(), Error> {
    print_events(link, output, |event, output| match event {
        WatchEvent::Server(event) => output.line(json!({ "event": event.name, "data": event.data })),
        WatchEvent::Lost(reason) => {
            output.line(json!({ "event": "connection_lost", "data": { "reason": reason } }));
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
        if let Some(event) = link.next(LOOK)? {
            print(event, output);
        }
    }
    Ok(())
}

/// A state of the run in one line.
pub(super) fn run_line(run: &RunFacts) -> String {
    let totals = &run.totals;
    let places: Vec<String> =
        run.losses.places().iter().map(|(place, count)| format!("{place} {}", known(*count))).collect();
    format!(
        "{:.1} s  {} of {} streams send  sent {} ({}, {})  received {} ({})  {}: {}  latency mean {}{}",
        run.elapsed_ms as f64 / 1000.0,
        totals.started,
        run.streams.total,
        numbers::count(totals.frames_tx.0),
        rate(totals.frames_tx_rate, "pps"),
        bit_rate(totals.bytes_tx_rate),
        numbers::count(totals.frames_rx.0),
        rate(totals.frames_rx_rate, "pps"),
        run.losses.sentence(),
        places.join(", "),
        latency(totals.latency_ns.and_then(|figures| figures.mean)),
        run.ended.as_ref().map(|why| format!("  ended: {}", printable(why))).unwrap_or_default(),
    )
}
