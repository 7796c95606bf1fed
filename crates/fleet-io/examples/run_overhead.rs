//! Measures the overhead of short runs: the wall time minus sending and drain, for runs in a row in one process.
//!
//! `cargo run -q -p xtask -- lab -- target/debug/examples/run_overhead [BACK-END] [RUNS] [kept]`
//!
//! With `kept`, ports stay open between the runs.
//!
//! Two ports with a cable between them. Each run sends for 0.1 s at 1000 frames/s and drains for 20 ms. A run
//! that loses frames is an error: otherwise a run could look fast because it does less work.
#![expect(clippy::print_stdout, reason = "an example that prints")]

use packetrig_fleet_io::{EnginePlaneSource, LocalExecutor, RunExecutor, RunOptions, run_document};
use packetrig_report::outcome::RunState;
use packetrig_report::{AcceptanceCriteria, RunId, RunReport};
use packetrig_stats::port::BackEnd;
use packetrig_stats::terms::SharedRunOptions;
use packetrig_sys::clock;
use packetrig_testkit::Lab;
use packetrig_units::Nanos;
use std::error::Error;

const SENDING: Nanos = Nanos::from_millis(100);
const DRAIN: Nanos = Nanos::from_millis(20);
const FRAMES: u64 = 100;
const RUNS: u64 = 20;

/// Times of one run, in milliseconds.
struct RunTimes {
    overhead: f64,
    preparing: f64,
    lead: f64,
    collecting: f64,
    closing: f64,
    /// Largest distance of a first frame from its schedule, in microseconds.
    send_error: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let back_end = arguments.next().unwrap_or_else(|| "packet".to_owned());
    let runs = arguments.next().map_or(Ok(RUNS), |runs| runs.parse())?;
    let back_end: BackEnd = serde_json::from_value(back_end.into())?;
    let mut lab = Lab::cabled_pair()?;
    lab.enable_live_frames()?;
    let document = document(&lab);
    let plane = EnginePlaneSource::default();
    let is_kept = arguments.next().is_some_and(|word| word == "kept");
    let mut executor = LocalExecutor(if is_kept { plane.with_ports_kept_open() } else { plane });
    let mut times = Vec::new();
    for number in 0..runs {
        times.push(measure(&mut executor, &document, options(number, back_end))?);
    }
    print_times(&times);
    Ok(())
}

fn document(lab: &Lab) -> String {
    let [from, to] = [lab.location(0), lab.location(1)];
    format!(
        "ports: [{{name: a, location: {from}}}, {{name: b, location: {to}}}]
flows:
- {{name: f, tx_rx: {{choice: port, port: {{tx_name: a, rx_names: [b]}}}}, size: {{choice: fixed, fixed: 128}},
   rate: {{choice: pps, pps: 1000}}, duration: {{choice: fixed_packets, fixed_packets: {{packets: {FRAMES}}}}},
   metrics: {{enable: true, latency: {{enable: true}}}}}}
"
    )
}

fn options(number: u64, back_end: BackEnd) -> RunOptions {
    RunOptions {
        run: RunId(format!("overhead-{number}")),
        name: "overhead".to_owned(),
        started_wall_ns: clock::wall_clock_ns(),
        terms: SharedRunOptions {
            tag_key: number + 1,
            seed: 1,
            back_end: Some(back_end),
            ..SharedRunOptions::default()
        },
        confirmed: Vec::new(),
        capture_dir: None,
        drain: DRAIN,
        criteria: AcceptanceCriteria::default(),
    }
}

fn measure(
    executor: &mut dyn RunExecutor,
    document: &str,
    options: RunOptions,
) -> Result<RunTimes, Box<dyn Error>> {
    let began = clock::monotonic_ns();
    let report = run_document(executor, document, options, (&|| false, &mut |_| ()))?;
    let wall = milliseconds(clock::monotonic_ns() - began);
    let stream = &report.streams[0];
    if stream.received.as_ref().map(|received| received.frames) != Some(FRAMES) {
        return Err(format!("not every frame arrived: {stream:?}").into());
    }
    let sent = stream.sent.as_ref().ok_or("nothing was sent")?;
    let at = |state| state_at(&report, state);
    let ended = report
        .times
        .as_ref()
        .and_then(|times| times.states.last())
        .map_or(0.0, |last| last.at.as_u64() as f64 / 1e6);
    let start =
        report.times.as_ref().and_then(|times| times.start).map_or(0.0, |start| milliseconds(start.as_u64()));
    Ok(RunTimes {
        overhead: wall - milliseconds(SENDING.as_u64()) - milliseconds(DRAIN.as_u64()),
        preparing: at(RunState::Committed),
        lead: start - at(RunState::Committed),
        collecting: ended - at(RunState::Collecting),
        closing: wall - ended,
        send_error: sent.send_error.map_or(0.0, |error| error.max.as_u64() as f64 / 1e3),
    })
}

/// Time at which the run entered a state.
fn state_at(report: &RunReport, state: RunState) -> f64 {
    let states = report.times.iter().flat_map(|times| &times.states);
    states.filter(|at| at.state == state).map(|at| milliseconds(at.at.as_u64())).fold(0.0, f64::max)
}

fn milliseconds(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

fn print_times(times: &[RunTimes]) {
    println!("{:<14} {:>8} {:>8} {:>8}   ({} runs)", "", "first", "median", "max", times.len());
    print_row("overhead ms", times, |of| of.overhead);
    print_row("preparing ms", times, |of| of.preparing);
    print_row("lead ms", times, |of| of.lead);
    print_row("collecting ms", times, |of| of.collecting);
    print_row("closing ms", times, |of| of.closing);
    print_row("send error us", times, |of| of.send_error);
}

fn print_row(name: &str, times: &[RunTimes], figure: fn(&RunTimes) -> f64) {
    let mut figures: Vec<f64> = times.iter().map(figure).collect();
    let first = figures.first().copied().unwrap_or_default();
    figures.sort_by(f64::total_cmp);
    let median = figures.get(figures.len() / 2).copied().unwrap_or_default();
    let most = figures.last().copied().unwrap_or_default();
    println!("{name:<14} {first:>8.1} {median:>8.1} {most:>8.1}");
}
