//! `packetrig meter`: flows at interfaces or of capture files, exported, with a ledger that adds up.

mod options;
mod outputs;
mod show;
mod top;

use crate::args::MeterArgs as Arguments;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::{CommandOutput, TextStyle, remark};
use crate::progress::LiveLine;
use crate::sandbox::{self, needs};
use outputs::MeterOutputs;
use packetrig_meter::ledger::{LedgerReport, MeterBooks, exposition};
use packetrig_meter::metrics::MetricsResponder;
use packetrig_meter::source::InterfaceCounts;
use packetrig_meter::{MeterInput, MeterOptions, RunningMeter};
use packetrig_sys::{clock, signal};
use packetrig_units::Nanos;
use std::io::IsTerminal;
use std::sync::Arc;
use top::TopScreen;

/// How often to look whether it is over.
const LOOK_NS: u64 = 20_000_000;
/// How often the ledger is shown.
const SHOW_NS: u64 = 1_000_000_000;

pub(crate) fn perform(arguments: &Arguments, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let options = options::understand(arguments)?;
    signal::latch()?;
    let opening = sandbox::begin(&arguments.user.sandbox, needs::meter(arguments)?)?;
    let books = MeterBooks::new();
    // Before the meter: what is wrong with an output is said before anything is metered.
    let outputs = MeterOutputs::open(arguments, &options, &books)?;
    let (metrics, meter) = match begin(arguments, &options, &books) {
        Ok(begun) => begun,
        Err(error) => {
            outputs.abandon(&books);
            return Err(error);
        }
    };
    say_start(arguments, &options.input, metrics.as_ref());
    opening.close()?;
    watch(arguments, &meter, &books, output);
    meter.stop();
    await_end(&meter, &books);
    let metered = meter.join();
    let failures = outputs.join();
    let report = books.report(true);
    drop(metrics);
    // Where nothing came of it, the reason says it all.
    let is_worth_it = metered.is_ok() || report.ledger.capture.delivered > 0;
    if arguments.json && is_worth_it {
        output.json(&report)?;
    } else if is_worth_it {
        output.text(show::result(&arguments.inputs.join(", "), &report));
    }
    metered?;
    Ok(judge(&report, &failures, signal::received().is_some()))
}

fn begin(
    arguments: &Arguments,
    options: &MeterOptions,
    books: &Arc<MeterBooks>,
) -> Result<(Option<MetricsResponder>, RunningMeter), Error> {
    let metrics = serve_metrics(arguments, books)?;
    Ok((metrics, RunningMeter::start(options, books)?))
}

fn serve_metrics(arguments: &Arguments, books: &Arc<MeterBooks>) -> Result<Option<MetricsResponder>, Error> {
    let Some(listen) = arguments.metrics else { return Ok(None) };
    let books = Arc::clone(books);
    Ok(Some(MetricsResponder::start(listen.0, move || exposition(&books.report(false)))?))
}

fn say_start(arguments: &Arguments, input: &MeterInput, metrics: Option<&MetricsResponder>) {
    say_down(input);
    if arguments.quiet {
        return;
    }
    let doing = if matches!(input, MeterInput::Files(_)) { "reading" } else { "listening on" };
    remark(format_args!("meter: {doing} {}", arguments.inputs.join(", ")));
    if let Some(metrics) = metrics {
        remark(format_args!("meter: metrics at http://{}/metrics", metrics.address()));
    }
}

/// Nothing arrives where an interface is down: that is worth a word also where little is said.
fn say_down(input: &MeterInput) {
    let MeterInput::Interfaces(locations, _) = input else { return };
    // One that is gone by now is said by the ledger.
    for interface in locations.iter().flat_map(InterfaceCounts::open).filter(|interface| !interface.is_up) {
        remark(format_args!("meter: {} is down; nothing arrives until it is up", interface.name));
    }
}

/// Shows how it goes until the source ends, the time is up, or the user has had enough.
fn watch(arguments: &Arguments, meter: &RunningMeter, books: &MeterBooks, output: &mut CommandOutput) {
    let start_ns = clock::monotonic_ns();
    let end_ns = arguments.time.map_or(u64::MAX, |time| start_ns.saturating_add(time.as_u64()));
    let mut live = LiveLine::new(!arguments.quiet && !arguments.top);
    let mut last = None;
    let mut screen = arguments.top.then(|| TopScreen::new(std::io::stdout().is_terminal()));
    let mut show_ns = start_ns + SHOW_NS;
    while !meter.is_over() && signal::received().is_none() && clock::monotonic_ns() < end_ns {
        let now_ns = clock::monotonic_ns();
        if now_ns >= show_ns {
            show_ns += SHOW_NS;
            let report = books.report(false);
            live.show(Nanos::new(report.elapsed_ns), show::line(&report, last.as_ref()));
            if let Some(screen) = &mut screen {
                output.text(screen.draw(meter, &report));
            }
            last = Some(report);
        }
        clock::sleep_until_ns((now_ns + LOOK_NS).min(show_ns).min(end_ns));
    }
    live.finish();
}

/// Waits until the workers have handed over what they have. Each output is waited for while it takes something; after a signal one
/// that takes nothing is given up sooner.
fn await_end(meter: &RunningMeter, books: &MeterBooks) {
    while !meter.has_ended() {
        if signal::received().is_some() {
            books.patience().hurry();
        }
        clock::sleep_until_ns(clock::monotonic_ns() + LOOK_NS);
    }
}

/// A ledger that does not add up is said, and so is an output that failed. Of files the user may want less than all by
/// `--time`; a signal interrupts. A meter at an interface has no other end than these.
fn judge(report: &LedgerReport, failures: &[String], has_signal: bool) -> CommandExit {
    let style = TextStyle::of_remarks();
    for rule in &report.imbalances {
        remark(format_args!("{} the ledger does not balance: {rule}", style.bad("error:")));
    }
    for failure in failures {
        remark(format_args!("{} {failure}", style.bad("error:")));
    }
    match (report.imbalances.is_empty(), failures.is_empty()) {
        (false, _) => CommandExit::Inconclusive,
        (true, false) => CommandExit::World,
        (true, true) if report.stopped && has_signal => CommandExit::Interrupted,
        (true, true) => CommandExit::Ok,
    }
}
