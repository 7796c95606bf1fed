//! `packetrig collect`: receives flow records, stores them where the user says, and counts what is lost on the way.

mod counters;
mod earlier;
mod show;
mod sinks;

use super::flows::directory_limits;
use super::is_interrupted;
use crate::alerts;
use crate::args::CollectArgs as Arguments;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::{CommandOutput, print_deciding_error, print_remark};
use crate::progress::LiveProgressLine;
use crate::sandbox::{self, needs};
use packetrig_flow::collect::{
    CollectorOptions, GroupOptions, GroupRecordJoiner, MessageTransport, SessionOptions,
};
use packetrig_flow_io::collect::{
    CollectLedger, CollectOptions, IntakeCounts, LedgerReader, ListenAddress, RunningCollector, TlsFiles,
};
use packetrig_flow_store::alert::{AlertCounts, AlertCountsReader};
use packetrig_flow_store::{self, recall::RecentRecords};
use packetrig_program::metrics::MetricsResponder;
use packetrig_sys::{clock, signal};
use packetrig_units::{Nanos, clamp_to_usize};
use sinks::{RecordSinks, SinkAccounts, SinkKinds, SinkStoredCounts};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

/// The port that IANA assigned to IPFIX.
const IPFIX_PORT: u16 = 4739;
/// Largest `--receive-buffer`, in bytes. The kernel doubles the size and stores it in 31 bits (socket(7)), so for this
/// value the collector requests one byte less.
const MAX_RECEIVE_BUFFER: u64 = 1 << 30;
/// Smallest `--memory`, in bytes: less memory may not hold all templates of a single exporter.
const MIN_MEMORY_BYTES: u64 = 8 << 20;
/// Shortest time between two reports of refused connections.
const REFUSAL_REPORT_INTERVAL_NS: u64 = 10_000_000_000;
/// Interval between two checks for signals and for the end of `--time`.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) fn run_collector(arguments: &Arguments, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let limits = directory_limits(&arguments.keep, arguments.directory.as_deref())?;
    // This comes before the sinks: the sandbox must be active before a second thread starts, and sinks start threads.
    let opening =
        sandbox::begin_sandbox(&arguments.user.sandbox, needs::collector_program_needs(arguments)?)?;
    let sinks = RecordSinks::open_sinks(&SinkKinds {
        directory: arguments.directory.as_deref(),
        limits,
        is_live: arguments.files.is_empty() || !arguments.listen.is_empty(),
        stores: &arguments.stores,
        alerts: &arguments.alerts,
    })?;
    let mut options = collector_options_from_arguments(arguments)?;
    if !sinks.stores_records() && !arguments.quiet {
        print_remark(
            "collect: records are counted but not stored; give --directory, --kafka or --clickhouse to store them",
        );
    }
    let accounts = sinks.accounts();
    let alerts = sinks.alert_counts();
    signal::record_end_signals()?;
    // Stored flows are read before the collector starts: the first records to arrive may be ones that a meter repeats.
    let known = read_stored_group_flows_or_warn(arguments, &mut options);
    let collecting = RunningCollector::start_with_stored_flows(&options, sinks, known)?;
    print_remark(describe_collector_limits(&options, arguments));
    for bound in collecting.bound_addresses() {
        print_remark(format_args!("collect: listening at {bound}"));
    }
    let reading = collecting.ledger_reader();
    let responder = match serve_metrics(arguments, &reading, &accounts, &alerts) {
        Ok(responder) => responder,
        Err(error) => {
            // Ends the threads and the sinks first, so that nothing writes after the error message.
            drop(collecting.stop_and_join());
            return Err(error);
        }
    };
    // Sockets are bound, keys are read and sinks are open: from here on nothing needs rights any more.
    opening.drop_rights()?;
    show_progress_until_end(&collecting, &accounts, arguments);
    drop(responder);
    // The order matters: the ledger is complete when the listeners have ended, and the sinks are complete when they
    // have stored the records in their queues.
    let (ledger, sinks) = collecting.stop_and_join()?;
    let sinks = sinks.close_all_sinks();
    // The last alerts are raised when the sinks are closed.
    print_result(&ledger, &sinks, &alerts.read_counts(), arguments, output)
}

/// Reads the stored flows of meter groups from `--directory`, so that records that meters send again are not stored
/// twice. If the flows cannot be read, prints a warning, clears `options.has_memory` and returns no flows.
fn read_stored_group_flows_or_warn(arguments: &Arguments, options: &mut CollectOptions) -> GroupRecordJoiner {
    let now_ns = clock::wall_clock_ns();
    let nothing = || GroupRecordJoiner::new(options.groups, now_ns);
    let Some(directory) = arguments.directory.as_deref() else { return nothing() };
    match read_stored_group_flows(directory, options.groups, now_ns) {
        Ok(known) => known,
        // One damaged file must not keep a collector from collecting.
        Err(error) => {
            let known = nothing();
            options.has_memory = false;
            print_remark(format_args!(
                "collect: warning: the stored records cannot be read, so records of meter groups from \
                before the start of this collector are skipped: {error}"
            ));
            known
        }
    }
}

/// Rebuilds the flows of meter groups from recent records.
fn read_stored_group_flows(
    directory: &Path,
    groups: GroupOptions,
    now_ns: u64,
) -> Result<GroupRecordJoiner, packetrig_flow_store::Error> {
    let recent = RecentRecords::find_in(directory, groups.memory, now_ns)?;
    let mut known = GroupRecordJoiner::new(groups, recent.since_ns());
    recent.for_each_group_record(&mut |record| known.restore_stored_record(record, now_ns))?;
    Ok(known)
}

/// Shows the progress until a signal arrives, `--time` has passed or the collector has ended by itself.
fn show_progress_until_end(
    collecting: &RunningCollector<RecordSinks>,
    accounts: &SinkAccounts,
    arguments: &Arguments,
) {
    let reading = collecting.ledger_reader();
    let mut live = LiveProgressLine::new(!arguments.quiet);
    let mut last = None;
    let mut refusals = ReportedHandshakeFailures::default();
    let until_ns = arguments.time.map(|time| clock::monotonic_ns().saturating_add(time.as_u64()));
    while !is_interrupted()
        && !collecting.is_done()
        && until_ns.is_none_or(|until_ns| clock::monotonic_ns() < until_ns)
    {
        std::thread::sleep(SIGNAL_POLL_INTERVAL);
        // `--quiet` does not hide this warning: the records of a refused exporter are lost.
        refusals.report_handshake_failures(&reading);
        if live.is_due(reading.elapsed_time()) {
            let ledger = reading.read_ledger();
            live.show_progress_line(
                Nanos::new(ledger.elapsed_ns),
                show::progress_line(&ledger, last.as_ref(), accounts),
            );
            last = Some(ledger);
        }
    }
    live.clear_line();
}

/// Number of failed TLS handshakes at the last report, and the time of that report.
#[derive(Default)]
struct ReportedHandshakeFailures {
    sum: u64,
    at_ns: u64,
}

impl ReportedHandshakeFailures {
    /// Reports why connections are refused, at most once in `REFUSAL_REPORT_INTERVAL_NS`: a refused exporter tries again and again.
    fn report_handshake_failures(&mut self, reading: &LedgerReader) {
        let now_ns = clock::monotonic_ns();
        // 0 means that no refusal was reported yet: the first refusal is reported at once.
        if self.at_ns > 0 && now_ns.saturating_sub(self.at_ns) < REFUSAL_REPORT_INTERVAL_NS {
            return;
        }
        let failures = reading.handshake_failures();
        let sum = failures.iter().map(|(_, times, _)| times).sum();
        if sum > self.sum {
            for (place, _, why) in failures {
                print_remark(format_args!("collect: warning: {place}: the TLS handshake failed with {why}"));
            }
            *self = Self { sum, at_ns: now_ns };
        }
    }
}

/// Prints the result and returns the exit code.
fn print_result(
    ledger: &CollectLedger,
    stored: &[SinkStoredCounts],
    alerts: &[AlertCounts],
    arguments: &Arguments,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    if arguments.json {
        output.write_json(&show::collector_report(ledger, stored, alerts))?;
    } else {
        output.write_text(show::report_tables(ledger, stored) + &alerts::format_alert_counts(alerts));
    }
    for intake in ledger.intake.iter().filter(|intake| intake.is_damaged_file()) {
        print_deciding_error(show::describe_file_damage(intake));
    }
    // The exit code tells the reason that the operator must act on first: a failure, then damage, then lost data.
    let has_failed =
        ledger.intake.iter().any(|intake| intake.failed) || stored.iter().any(SinkStoredCounts::has_failed);
    let is_whole = counters::missing_data(ledger, stored).is_empty()
        && counters::find_imbalances(ledger, stored).is_empty();
    Ok(choose_collector_exit_code(
        ledger,
        CollectorOutcome { has_failed, is_whole, has_signal: is_interrupted() },
    ))
}

fn serve_metrics(
    arguments: &Arguments,
    reading: &LedgerReader,
    accounts: &SinkAccounts,
    alerts: &AlertCountsReader,
) -> Result<Option<MetricsResponder>, Error> {
    let Some(listen) = arguments.metrics else { return Ok(None) };
    let reading = reading.clone();
    let (accounts, alerts) = (accounts.clone(), alerts.clone());
    let responder = MetricsResponder::start_serving(listen.0, move || {
        show::metrics_text(&reading.read_ledger(), &accounts.read_counts())
            + &alerts::metrics_text("packetrig_collect_alert_", &alerts.read_counts())
    })?;
    print_remark(format_args!("collect: metrics at http://{}/metrics", responder.address()));
    Ok(Some(responder))
}

/// Facts at the end of the collector that decide its exit code.
#[derive(Clone, Copy, Debug)]
struct CollectorOutcome {
    /// A listener, a file or a sink failed.
    has_failed: bool,
    /// All data that exporters sent, as far as their counts show, is stored, and the counters agree.
    is_whole: bool,
    has_signal: bool,
}

/// Returns the exit code; it is not zero if data is missing. For listeners, a signal is the regular end. For files
/// that are not read to their end, it is an interruption.
fn choose_collector_exit_code(ledger: &CollectLedger, end: CollectorOutcome) -> CommandExit {
    if end.has_failed {
        return CommandExit::World;
    }
    // A damaged file is the user's fault. A connection that breaks off is the sender's fault, and its data counts as
    // missing.
    if ledger.intake.iter().any(IntakeCounts::is_damaged_file) {
        return CommandExit::Usage;
    }
    if end.has_signal && ledger.intake.iter().any(|intake| intake.stopped) {
        return CommandExit::Interrupted;
    }
    if end.is_whole { CommandExit::Ok } else { CommandExit::Inconclusive }
}

/// Describes the limits of the collector: memory, number of exporters, and which senders are accepted.
fn describe_collector_limits(options: &CollectOptions, arguments: &Arguments) -> String {
    let who = match &arguments.allow_exporter[..] {
        [] => "from any sender (--allow-exporter restricts the senders)".to_owned(),
        named => {
            format!("only from {}", named.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
        }
    };
    format!(
        "collect: uses at most {} MiB (--memory) for at most {} exporters, {} per address; accepts records {who}",
        arguments.memory.0 >> 20,
        options.collector.exporter_limit(),
        options.collector.exporters_per_address,
    )
}

fn collector_options_from_arguments(arguments: &Arguments) -> Result<CollectOptions, Error> {
    let local = ListenAddress {
        transport: MessageTransport::Udp,
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, IPFIX_PORT)),
    };
    // A collector that only reads files needs no socket; one without any source listens on the default port.
    let listens_nowhere = arguments.listen.is_empty() && arguments.files.is_empty();
    let tls = arguments.cert.clone().zip(arguments.key.clone());
    if arguments.memory.0 < MIN_MEMORY_BYTES {
        return Err(Error::Usage(format!(
            "--memory {} bytes is too small; it must be at least {} MiB",
            arguments.memory.0,
            MIN_MEMORY_BYTES >> 20
        )));
    }
    if arguments.receive_buffer.0 > MAX_RECEIVE_BUFFER {
        return Err(Error::Usage("--receive-buffer is too large; Linux allows at most 1GiB".into()));
    }
    let has_tls = arguments.listen.iter().any(|place| place.transport == MessageTransport::Tls);
    if tls.is_some() && !has_tls {
        return Err(Error::Usage(
            "--cert and --key have an effect with --listen tls://ADDRESS:PORT only".into(),
        ));
    }
    let mut options = CollectOptions {
        has_memory: arguments.directory.is_some(),
        listen: if listens_nowhere { vec![local] } else { arguments.listen.clone() },
        files: arguments.files.clone(),
        tls: tls.map(|(certificate, key)| TlsFiles {
            certificate,
            key,
            client_ca: arguments.client_ca.clone(),
        }),
        receive_buffer_bytes: clamp_to_usize(arguments.receive_buffer.0.min(MAX_RECEIVE_BUFFER - 1)),
        connections: arguments.max_connections.into(),
        collector: CollectorOptions {
            exporters: arguments.max_exporters as usize,
            exporters_per_address: arguments.exporters_per_address as usize,
            allowed: arguments.allow_exporter.iter().copied().collect(),
            session: SessionOptions {
                template_life: Some(arguments.template_life),
                ..SessionOptions::default()
            },
            ..CollectorOptions::default()
        },
        relays: arguments.relay.clone(),
        ..CollectOptions::default()
    };
    options.set_memory_bytes(clamp_to_usize(arguments.memory.0));
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_flow::collect::{ForgottenExporters, RefusedMessages, SessionCounts};
    use packetrig_flow_io::collect::HandedOverRecords;

    fn ledger(intake: IntakeCounts) -> CollectLedger {
        let (total, handed) = (SessionCounts::default(), HandedOverRecords::default());
        CollectLedger {
            elapsed_ns: 1,
            intake: vec![intake],
            exporters: vec![],
            total,
            refused: RefusedMessages::default(),
            forgotten: ForgottenExporters::default(),
            memory: 0,
            handed,
            groups: vec![],
            relays: vec![],
        }
    }

    #[test]
    fn an_interrupted_reading_is_neither_done_nor_damaged() {
        let of =
            |broken, stopped| IntakeCounts { place: "a.ipfix".into(), broken, stopped, ..Default::default() };
        let (whole, cut, stopped) = (ledger(of(0, false)), ledger(of(1, false)), ledger(of(0, true)));
        let end = CollectorOutcome { has_failed: false, is_whole: true, has_signal: false };
        let by_signal = CollectorOutcome { has_signal: true, ..end };
        assert_eq!(
            choose_collector_exit_code(&whole, by_signal),
            CommandExit::Ok,
            "it was read before the signal"
        );
        assert_eq!(choose_collector_exit_code(&cut, by_signal), CommandExit::Usage);
        assert_eq!(choose_collector_exit_code(&stopped, by_signal), CommandExit::Interrupted);
        assert_eq!(
            choose_collector_exit_code(&stopped, end),
            CommandExit::Ok,
            "--time is what the user asked for"
        );
        assert_eq!(
            choose_collector_exit_code(&whole, CollectorOutcome { has_failed: true, ..by_signal }),
            CommandExit::World
        );
        assert_eq!(
            choose_collector_exit_code(&whole, CollectorOutcome { is_whole: false, ..by_signal }),
            CommandExit::Inconclusive
        );
        assert!(show::report_tables(&stopped, &[]).contains("a.ipfix: not read to its end"));
        assert!(show::report_tables(&cut, &[]).contains("a.ipfix has no whole IPFIX or SIM message"));
        let mut later = of(1, false);
        later.messages = 3;
        assert!(show::report_tables(&ledger(later), &[]).contains("ends within a message, or is damaged"));
    }
}
