//! `packetrig meter`: meters flows at interfaces or in capture files, exports or stores the records, and accounts for
//! every packet in a ledger.

mod options;
mod outputs;
mod show;
mod top;

use super::flows::directory_limits;
use super::is_interrupted;
use crate::alerts;
use crate::args::MeterArgs as Arguments;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::losses;
use crate::output::{CommandOutput, print_deciding_error, print_remark};
use crate::progress::LiveProgressLine;
use crate::sandbox::{self, needs};
use outputs::MeterOutputs;
use packetrig_flow::RecordLosses;
use packetrig_flow::RecordOriginMark;
use packetrig_flow_io::group::GroupReport;
use packetrig_flow_io::ledger::{LedgerReport, MeterAccounts, OutputReport, prometheus_text};
use packetrig_flow_io::source::InterfaceCounts;
use packetrig_flow_io::{MeterInput, RunningMeter};
use packetrig_flow_store::alert::AlertCountsReader;
use packetrig_program::metrics::MetricsResponder;
use packetrig_sys::{clock, signal};
use packetrig_units::Nanos;
use std::io::IsTerminal;
use std::sync::Arc;
use top::TopScreen;

/// Interval between two checks for the end and for signals.
const POLL_NS: u64 = 20_000_000;
/// Interval between two lines of progress.
const PROGRESS_LINE_INTERVAL_NS: u64 = 1_000_000_000;

pub(crate) fn run_meter(arguments: &Arguments, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let options = options::meter_options(arguments)?;
    // The limits are checked before anything is created. The outputs read them again.
    directory_limits(&arguments.keep, arguments.directory.as_deref())?;
    signal::record_end_signals()?;
    let opening = sandbox::begin_sandbox(
        &arguments.user.sandbox,
        needs::create_meter_files_and_list_needs(arguments)?,
    )?
    .suppress_report_if(arguments.quiet);
    let accounts = MeterAccounts::new();
    // Outputs are opened before the meter starts, so that an output that cannot be opened is reported at once.
    let outputs = MeterOutputs::open_outputs(arguments, &options, &accounts)?;
    let alerts = outputs.alert_counts();
    let started = serve_metrics(arguments, &accounts, &alerts).and_then(|metrics| {
        Ok(StartedMeter { metrics, meter: RunningMeter::start_metering(&options, &accounts)? })
    });
    let StartedMeter { metrics, meter } = match started {
        Ok(started) => started,
        Err(error) => {
            // The threads of the outputs already wait for records of workers, which will never start.
            outputs.abandon_outputs(&accounts);
            return Err(error);
        }
    };
    report_meter_start(arguments, &options.input, metrics.as_ref());
    opening.drop_rights()?;
    show_until_end(arguments, &meter, &accounts, output);
    // The order matters: workers hand over their last records, then outputs send them, and only then the
    // ledger is final.
    meter.stop_sources();
    await_meter_end(&accounts, || meter.has_ended());
    let metered = meter.join_workers();
    await_meter_end(&accounts, || outputs.has_ended());
    let failures = outputs.join_threads();
    let report = accounts.build_report(true);
    drop(metrics);
    let alerts = alerts.read_counts();
    // If the meter failed before it saw a packet, the error alone says more than a table of zeros.
    let is_worth_it = metered.is_ok() || report.ledger.capture.delivered > 0;
    if arguments.json && is_worth_it {
        output.write_json(&report)?;
    } else if is_worth_it {
        let text = show::result_text(&arguments.inputs.join(", "), &report);
        output.write_text(text + &alerts::format_alert_counts(&alerts));
    }
    // The result comes before the error: counts from before a failure are still worth printing.
    metered?;
    Ok(report_losses_and_choose_exit(&report, &failures, is_interrupted()))
}

/// A running meter, with the server of its metrics if the user asked for one.
struct StartedMeter {
    metrics: Option<MetricsResponder>,
    meter: RunningMeter,
}

fn serve_metrics(
    arguments: &Arguments,
    accounts: &Arc<MeterAccounts>,
    alerts: &AlertCountsReader,
) -> Result<Option<MetricsResponder>, Error> {
    let Some(listen) = arguments.metrics else { return Ok(None) };
    let (accounts, alerts) = (Arc::clone(accounts), alerts.clone());
    Ok(Some(MetricsResponder::start_serving(listen.0, move || {
        prometheus_text(&accounts.build_report(false))
            + &alerts::metrics_text("packetrig_meter_alert_", &alerts.read_counts())
    })?))
}

fn report_meter_start(arguments: &Arguments, input: &MeterInput, metrics: Option<&MetricsResponder>) {
    warn_of_interfaces_down(input);
    if arguments.quiet {
        return;
    }
    let doing = if matches!(input, MeterInput::Files(_)) { "reading" } else { "listening on" };
    print_remark(format_args!("meter: {doing} {}", arguments.inputs.join(", ")));
    if let Some(name) = &arguments.of_group.group {
        // Records contain only the number of the group, so a collector cannot show its name.
        print_remark(format_args!(
            "meter: group {name} is shown as {:016x} at collectors",
            RecordOriginMark::group_number(name)
        ));
    }
    if let Some(metrics) = metrics {
        print_remark(format_args!("meter: metrics at http://{}/metrics", metrics.address()));
    }
}

/// Warns that nothing arrives at an interface that is down, even with `--quiet`.
fn warn_of_interfaces_down(input: &MeterInput) {
    let MeterInput::Interfaces(locations, _) = input else { return };
    // A removed interface is left out here: the meter itself reports it.
    for interface in
        locations.iter().flat_map(InterfaceCounts::start_counting).filter(|interface| !interface.is_up)
    {
        print_remark(format_args!(
            "meter: warning: {} is down; nothing arrives until it is up",
            interface.name
        ));
    }
}

/// Shows progress until the source has ended or failed, `--time` has passed, or a signal arrives.
fn show_until_end(
    arguments: &Arguments,
    meter: &RunningMeter,
    accounts: &MeterAccounts,
    output: &mut CommandOutput,
) {
    let start_ns = clock::monotonic_ns();
    let end_ns = arguments.time.map_or(u64::MAX, |time| start_ns.saturating_add(time.as_u64()));
    let mut live = LiveProgressLine::new(!arguments.quiet && !arguments.top);
    let mut last = None;
    let mut screen = arguments.top.then(|| TopScreen::new(std::io::stdout().is_terminal()));
    let mut show_ns = start_ns + PROGRESS_LINE_INTERVAL_NS;
    let mut said = ReportedGroupState::default();
    let mut troubles = ReportedOutputFailures::default();
    while !meter.has_ended_or_failed() && !is_interrupted() && clock::monotonic_ns() < end_ns {
        let now_ns = clock::monotonic_ns();
        if !arguments.quiet {
            // Changes in the group are checked in each pass and not only once a second, because operators want to see
            // at once when the active meter changes.
            said.report_group_changes(accounts);
        }
        if now_ns >= show_ns {
            // The next time follows the schedule and not `now_ns`: a late line does not delay later lines.
            show_ns += PROGRESS_LINE_INTERVAL_NS;
            let report = accounts.build_report(false);
            troubles.report_new_output_failures(&report);
            live.show_progress_line(
                Nanos::new(report.elapsed_ns),
                show::progress_line(&report, last.as_ref()),
            );
            if let Some(screen) = &mut screen {
                output.write_text(screen.draw_screen(meter, &report));
            }
            last = Some(report);
        }
        clock::sleep_until_ns((now_ns + POLL_NS).min(show_ns).min(end_ns));
    }
    live.clear_line();
}

/// The last reported failure of each output, in the order of the outputs.
#[derive(Default)]
struct ReportedOutputFailures(Vec<Option<String>>);

impl ReportedOutputFailures {
    /// Reports the failure of an output if it is a new one, also with `--quiet`: a meter may run for days.
    fn report_new_output_failures(&mut self, report: &LedgerReport) {
        // Outputs appear while the meter starts, and never disappear, so positions stay the same.
        self.0.resize(report.outputs.len(), None);
        for (said, output) in self.0.iter_mut().zip(&report.outputs) {
            if let Some(failure) = output.failure.as_ref().filter(|failure| said.as_ref() != Some(*failure)) {
                print_remark(format_args!("meter: warning: {}: {failure}", output.to));
                *said = Some(failure.clone());
            }
        }
    }
}

/// The reported state of this meter in its group.
#[derive(Default)]
struct ReportedGroupState {
    has_begun: bool,
    switches: u64,
    is_ready: bool,
}

impl ReportedGroupState {
    /// Reports changes since the last call.
    fn report_group_changes(&mut self, accounts: &MeterAccounts) {
        let Some(group) = accounts.group_report() else { return };
        if !self.has_begun {
            print_remark(format_args!(
                "meter: group {}: meter {} starts as a standby",
                group.name, group.meter
            ));
        }
        // The report has only the newest changes of role. Older ones since the last call are not printed.
        let new = usize::try_from(group.switch_count.saturating_sub(self.switches)).unwrap_or(usize::MAX);
        let known = group.switches.len();
        for switch in &group.switches[known.saturating_sub(new)..] {
            let active = switch.term.as_ref().map(|term| format!("active, term {term}"));
            let role = active.unwrap_or_else(|| "a standby".to_owned());
            print_remark(format_args!("meter: group {}: meter {} is {role}", group.name, group.meter));
        }
        if group.is_ready != self.is_ready {
            let state = if group.is_ready { "ready".to_owned() } else { describe_why_not_ready(&group) };
            print_remark(format_args!("meter: group {}: meter {} is {state}", group.name, group.meter));
        }
        *self = Self { has_begun: true, switches: group.switch_count, is_ready: group.is_ready };
    }
}

/// Describes why a standby meter could no longer replace the active meter without losing packets.
fn describe_why_not_ready(group: &GroupReport) -> String {
    let why = if group.is_blind {
        "it missed packets that other meters received"
    } else if !group.can_export {
        "its records do not reach the collectors"
    } else {
        "it does not recognise all flows"
    };
    format!("not ready any more: {why}")
}

/// Waits until `has_ended` returns true. After a signal the user wants the program to end, so threads wait for a
/// shorter time for outputs that are blocked.
fn await_meter_end(accounts: &MeterAccounts, has_ended: impl Fn() -> bool) {
    while !has_ended() {
        if is_interrupted() {
            // This is repeated in each pass: an output may begin to wait after the first call.
            accounts.backpressure().shorten_waits();
        }
        clock::sleep_until_ns(clock::monotonic_ns() + POLL_NS);
    }
}

/// Prints imbalances of the ledger and losses of outputs, and returns the exit code. Only a signal that stops the
/// reading of files counts as an interruption: a meter at an interface always ends by a signal or by `--time`.
fn report_losses_and_choose_exit(
    report: &LedgerReport,
    failures: &[String],
    has_signal: bool,
) -> CommandExit {
    for rule in &report.imbalances {
        print_deciding_error(format_args!(
            "the counters of the meter do not add up: {rule}; the result cannot be trusted"
        ));
    }
    let mut losses = RecordLosses::default();
    report.outputs.iter().for_each(|output| losses.add_losses(&output.losses));
    let lost: Vec<String> = report.outputs.iter().flat_map(OutputReport::loss_lines).collect();
    for failure in report.damages.iter().chain(failures).chain(&lost) {
        print_deciding_error(failure);
    }
    let of_outputs = losses::choose_exit_for_losses(&losses);
    // An imbalance is worse than a failed output: then no number in the result can be trusted.
    if !report.imbalances.is_empty() {
        CommandExit::Inconclusive
    } else if !failures.is_empty() || of_outputs == CommandExit::World {
        CommandExit::World
    } else if !report.damages.is_empty() {
        CommandExit::Usage
    } else if report.stopped && has_signal {
        CommandExit::Interrupted
    } else {
        of_outputs
    }
}
