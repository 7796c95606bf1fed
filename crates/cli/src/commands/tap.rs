//! `packetrig tap`: forwards the frames between two interfaces, copies them to mirrors or a file, and impairs them if
//! the user asks for it. Also shows and stops running taps (docs/decisions/0013-the-tap.md).

mod found;
mod impair;
mod refusing;
mod show;

use super::metrics::{self, ServedMetrics};
use super::{is_interrupted, notify, recorded};
use crate::args::{BeginTap as Arguments, MirrorArg, TapAction, TapArgs as Command, TapBackEndArg};
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::{CommandOutput, print_deciding_error, print_remark};
use crate::progress::LiveProgressLine;
use impair::TapImpairments;
use packetrig_engine::capture::record::RecordingOutcome;
use packetrig_engine::filter;
use packetrig_link_io::tap::{
    EndedTapResult, MirrorSpec, RunningTap, TapAccounts, TapMethod, TapSpec, TapState,
};
use packetrig_sys::{clock, signal};
use refusing::RefusingInterfaceWatch;

/// Interval between two checks of the tap's links.
const LINK_CHECK_INTERVAL_NS: u64 = 20_000_000;
/// Interval between two progress lines.
const PROGRESS_LINE_INTERVAL_NS: u64 = 1_000_000_000;
/// Longest wait for the carriers of a tap's interfaces before the tap is left to the kernel.
const DETACH_TIMEOUT_NS: u64 = 5_000_000_000;

pub(crate) fn run_tap(command: &Command, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    match &command.action {
        None => begin_tap(&command.begin, output),
        Some(TapAction::Status(named)) => found::show_status(named, output),
        Some(TapAction::Stop(named)) => found::stop_tap(named, output),
    }
}

fn begin_tap(arguments: &Arguments, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let spec = build_tap_spec(arguments)?;
    let prepared = TapImpairments::prepare_impairments(&arguments.impair)?;
    let (impairments, treatments) = prepared.map(|all| (all.impairments, all.treatments)).unzip();
    // Signals are caught before the interfaces change: from here on a signal ends the tap and restores the interfaces.
    signal::record_end_signals()?;
    let mut tap = RunningTap::begin_tap_with_treatments(&spec, treatments)?;
    let state = tap.state().clone();
    print_start_remarks(arguments, &state);
    if arguments.detach {
        return leave_forwarding_to_kernel(arguments, tap, &state);
    }
    run_until_end(arguments, &mut tap)?;
    // The tap is ended here and not by drop: only `end_tap` returns whether its counters contradict each other.
    let mut ended = tap.end_tap()?;
    // `end_tap` drops the treatments; only after that are the accounts of the impairments final.
    let impaired = impairments.map(TapImpairments::read_final_impair_accounts).transpose()?;
    ended.imbalances.extend(impaired.iter().flat_map(|impaired| impaired.imbalances.iter().cloned()));
    let impaired = impaired.as_ref().map(|impaired| &impaired.accounts);
    if arguments.json {
        let mut value = result_json(&state, &ended.accounts, Some(&ended));
        value["impairments"] = impair::build_accounts_json(impaired);
        output.write_json(&value)?;
    } else {
        output.write_text(show::format_accounts(&state, &ended.accounts, ended.recorded.as_ref()));
        output.write_text(impaired.map_or_else(String::new, impair::format_accounts_table));
    }
    Ok(report_imbalances_and_choose_exit(&ended))
}

fn build_tap_spec(arguments: &Arguments) -> Result<TapSpec, Error> {
    let Some((a, b)) = arguments.a.as_ref().zip(arguments.b.as_ref()) else {
        return Err(Error::Usage("a tap needs two interfaces: packetrig tap A B".into()));
    };
    // `--to` is the destination MAC address for mirrors that name none.
    let station = arguments.to.map(|mac| mac.0);
    let mirrors = arguments.mirror.iter();
    let mirrors =
        mirrors.map(|MirrorArg { at, to }| MirrorSpec { at: at.clone(), to: to.or(station) }).collect();
    let filter = match &arguments.filter {
        Some(text) => Some((text.clone(), filter::compile_filter(text)?)),
        None => None,
    };
    Ok(TapSpec {
        name: arguments.name.clone().unwrap_or_default(),
        sides: [a.clone(), b.clone()],
        mirrors,
        filter,
        snap_len: arguments.snap,
        trailer: arguments.trailer,
        capture: arguments.capture.clone(),
        way: arguments.back_end.map(|name| match name {
            TapBackEndArg::Xdp => TapMethod::Xdp,
            TapBackEndArg::Packet => TapMethod::Packet,
        }),
        fail_closed: arguments.fail_closed,
        link_state: !arguments.no_link_state,
        confirmed: arguments.confirm.clone(),
    })
}

fn print_start_remarks(arguments: &Arguments, state: &TapState) {
    for caveat in &state.caveats {
        print_remark(format_args!("tap: {caveat}"));
    }
    if arguments.quiet {
        return;
    }
    let [a, b] = &state.sides;
    print_remark(format_args!("tap: {} starts between {} and {}", state.name, a.location, b.location));
}

/// Reports once that the tap is ready. If it is not ready at first, reports once which interfaces lack a carrier.
struct TapReadiness<'a> {
    state: &'a TapState,
    is_quiet: bool,
    is_told: bool,
    /// Time at which to report the missing carriers.
    tell_waiting_ns: u64,
}

impl<'a> TapReadiness<'a> {
    fn new(arguments: &Arguments, state: &'a TapState) -> Self {
        let tell_waiting_ns = clock::monotonic_ns() + PROGRESS_LINE_INTERVAL_NS;
        Self { state, is_quiet: arguments.quiet, is_told: false, tell_waiting_ns }
    }

    /// Reports a change of the state. Called after each check of the links.
    fn report_state(&mut self, tap: &RunningTap) {
        if self.is_told {
            return;
        }
        if tap.is_ready() {
            self.is_told = true;
            announce_ready(self.state, self.is_quiet);
        } else if clock::monotonic_ns() >= self.tell_waiting_ns {
            // The maximum time never comes, so the report is made only once.
            self.tell_waiting_ns = u64::MAX;
            let sides = tap.waiting_sides().join(" and ");
            print_remark(format_args!(
                "tap: not ready: no carrier at {sides}; bring up the other end of the cable. Frames from or \
                 to an interface without a carrier are lost"
            ));
        }
    }
}

/// Reports that the tap is ready. Scripts begin to send after this line, so it must not come
/// before frames are forwarded.
fn announce_ready(state: &TapState, is_quiet: bool) {
    // `--quiet` suppresses lines for people, not the notice to the service manager.
    notify::notify_manager("READY=1");
    if is_quiet {
        return;
    }
    let death = if state.fail_closed {
        "stops when this process dies"
    } else {
        "keeps forwarding if this \
        process dies"
    };
    print_remark(format_args!("tap: forwarding with back end {}: {}; the tap {death}", state.way, state.why));
}

/// Detaches the tap: waits until it is ready, but at most [`DETACH_TIMEOUT_NS`], and leaves the forwarding to the
/// kernel. Fails with the packet back end, because that forwards in this process.
fn leave_forwarding_to_kernel(
    arguments: &Arguments,
    mut tap: RunningTap,
    state: &TapState,
) -> Result<CommandExit, Error> {
    // With this back end, rings in this process forward, so nothing would be left in the kernel.
    if state.way == TapMethod::Packet {
        // The tap is ended properly first, which restores the interfaces.
        let why = state.why.clone();
        tap.end_tap()?;
        let refusal = packetrig_link_io::tap::TapRefusal::NeedsProcess(why);
        return Err(packetrig_link_io::Error::from(refusal).into());
    }
    let mut readiness = TapReadiness::new(arguments, state);
    // A tap without a carrier is left to the kernel, too: when the carrier comes, the kernel forwards.
    let give_up_ns = clock::monotonic_ns() + DETACH_TIMEOUT_NS;
    while !tap.is_ready() && !is_interrupted() && clock::monotonic_ns() < give_up_ns {
        tap.poll_once()?;
        readiness.report_state(&tap);
        clock::sleep_until_ns(clock::monotonic_ns() + LINK_CHECK_INTERVAL_NS);
    }
    tap.leave_forwarding_to_kernel()?;
    print_remark(format_args!(
        "tap: the kernel goes on forwarding; `packetrig tap stop {}` ends the tap",
        state.name
    ));
    Ok(CommandExit::Ok)
}

/// Keeps the tap running until the time is up or a signal comes.
fn run_until_end(arguments: &Arguments, tap: &mut RunningTap) -> Result<(), Error> {
    let start_ns = clock::monotonic_ns();
    let end_ns = arguments.time.map_or(u64::MAX, |time| start_ns.saturating_add(time.as_u64()));
    let mut live = LiveProgressLine::new(!arguments.quiet);
    let state = tap.state().clone();
    let mut readiness = TapReadiness::new(arguments, &state);
    let mut refusing = RefusingInterfaceWatch::default();
    let metrics_text = |accounts: &TapAccounts| metrics::format_tap_metrics(&state.name, accounts);
    let first = metrics_text(&tap.read_accounts()?);
    let metrics = ServedMetrics::start_if_requested("tap", arguments.metrics, first)?;
    let mut last = None;
    let mut show_ns = start_ns + PROGRESS_LINE_INTERVAL_NS;
    while !is_interrupted() && clock::monotonic_ns() < end_ns {
        let now_ns = clock::monotonic_ns();
        tap.poll_once()?;
        readiness.report_state(tap);
        if now_ns >= show_ns {
            // The next time follows the schedule and not `now_ns`: a late line does not delay later lines.
            show_ns += PROGRESS_LINE_INTERVAL_NS;
            let accounts = tap.read_accounts()?;
            for text in [
                refusing.take_gone_interface_remarks(tap.gone_interfaces()),
                refusing.take_refusal_remarks(&accounts),
            ]
            .concat()
            {
                print_remark(format_args!("tap: {text}"));
            }
            if let Some(metrics) = &metrics {
                metrics.set_metrics_text(metrics_text(&accounts));
            }
            live.show_progress_line(accounts.elapsed, show::format_progress_line(&accounts, last.as_ref()));
            last = Some(accounts);
        }
        clock::sleep_until_ns((now_ns + LINK_CHECK_INTERVAL_NS).min(show_ns).min(end_ns));
    }
    live.clear_line();
    Ok(())
}

/// Builds the result of a tap for `--json`.
fn result_json(
    state: &TapState,
    accounts: &TapAccounts,
    ended: Option<&EndedTapResult>,
) -> serde_json::Value {
    serde_json::json!({
        "state": state,
        "accounts": accounts,
        "imbalances": ended.map(|ended| &ended.imbalances),
        "capture": ended.and_then(|ended| ended.recorded.as_ref()).map(build_recording_json),
    })
}

fn build_recording_json(recorded: &RecordingOutcome) -> serde_json::Value {
    let failure = recorded.failure.as_ref().map(|(path, error)| format!("{}: {error}", path.display()));
    serde_json::json!({ "files": recorded.files, "written": recorded.written, "failure": failure })
}

/// Prints counters that contradict each other and a file that could not be written, and returns the exit code. A signal
/// is the regular end of a tap, so it is no failure.
fn report_imbalances_and_choose_exit(ended: &EndedTapResult) -> CommandExit {
    for rule in &ended.imbalances {
        print_deciding_error(format_args!(
            "the counters of the tap contradict each other, so its result is not reliable: {rule}"
        ));
    }
    let written = recorded::report_failure(ended.recorded.as_ref());
    if ended.imbalances.is_empty() { written } else { CommandExit::Inconclusive }
}
