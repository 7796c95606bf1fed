//! `packetrig flows replay`: sends stored records to a collector again.

use crate::args::ReplayFlows as Arguments;
use crate::commands::is_interrupted;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::numbers::format_count;
use crate::output::{CommandOutput, print_deciding_error};
use crate::secret_key::read_secret_key;
use packetrig_flow_io::anonymise::{AnonymiserKey, RecordAnonymiser};
use packetrig_flow_io::resend::{RecordSender, ResendError, ResentCounts};
use packetrig_flow_store::scan::list_flow_files;
use packetrig_flow_store::stored_records::{StoredRecord, for_each_record};
use packetrig_plan::recording::ReplaySpeed;
use packetrig_sys::{clock, signal};
use std::io;
use std::ops::ControlFlow;

/// Longest sleep between two checks for signals and for messages that wait to be sent.
const SIGNAL_CHECK_INTERVAL_NS: u64 = 100_000_000;

pub(super) fn replay_records(
    arguments: &Arguments,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let key = arguments
        .anonymise
        .as_deref()
        .map(|file| read_secret_key::<AnonymiserKey>("--anonymise", file))
        .transpose()?;
    let filter = arguments.filter.to_flow_filter(&*arguments.filter.read_names()?)?;
    let files = list_flow_files(&arguments.places)?;
    signal::record_end_signals()?;
    let sender = RecordSender::open_target(&arguments.export, arguments.domain, arguments.biflow)?;
    let mut replay = FlowRecordResender {
        sender,
        anonymiser: key.as_ref().map(RecordAnonymiser::new),
        pace: ReplayPace::new(arguments),
        failure: None,
    };
    for_each_record(&files, &filter, &mut |records| replay.send_records(records))?;
    let FlowRecordResender { sender, failure, .. } = replay;
    let finished = failure.map_or(Ok(()), Err).and_then(|()| sender.finish_sending(clock::wall_clock_ns()));
    let target = arguments.export.to_string();
    let (counts, refusal) =
        finished.map_err(|source| ResendError::Target { target: target.clone(), source })?;
    if arguments.json {
        output.write_json(&serde_json::json!({ "to": target, "counts": counts, "refusal": refusal }))?;
    } else {
        output.write_line(summary_line(&target, &counts));
    }
    if let Some(refusal) = refusal {
        let refused = format_count(counts.refused.records);
        print_deciding_error(format_args!("{target}: {refused} records were refused ({refusal})"));
        return Ok(CommandExit::World);
    }
    Ok(if is_interrupted() { CommandExit::Interrupted } else { CommandExit::Ok })
}

fn summary_line(target: &str, counts: &ResentCounts) -> String {
    format!(
        "sent {} records with {} packets to {target}: {} messages, {} bytes",
        format_count(counts.sent.records),
        format_count(counts.sent.packets),
        format_count(counts.messages),
        format_count(counts.message_bytes)
    )
}

struct FlowRecordResender {
    sender: RecordSender,
    anonymiser: Option<RecordAnonymiser>,
    pace: ReplayPace,
    failure: Option<io::Error>,
}

impl FlowRecordResender {
    fn send_records(&mut self, records: Vec<StoredRecord>) -> ControlFlow<()> {
        for (mut record, _) in records {
            if let Some(anonymiser) = &mut self.anonymiser {
                anonymiser.anonymise_record(&mut record);
            }
            let due_ns = self.pace.next_due_ns(record.first_ns());
            if !self.wait_until(due_ns) {
                return ControlFlow::Break(());
            }
            if let Err(error) = self.sender.send_record(&record, clock::wall_clock_ns()) {
                self.failure = Some(error);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// Waits until `due_ns`, and meanwhile sends messages that have waited long enough. Returns false after a
    /// signal or a failure.
    fn wait_until(&mut self, due_ns: Option<u64>) -> bool {
        loop {
            if is_interrupted() {
                return false;
            }
            let now_ns = clock::monotonic_ns();
            let Some(due_ns) = due_ns.filter(|due_ns| *due_ns > now_ns) else { return true };
            if let Err(error) = self.sender.send_waiting_message(clock::wall_clock_ns()) {
                self.failure = Some(error);
                return false;
            }
            clock::sleep_until_ns(due_ns.min(now_ns + SIGNAL_CHECK_INTERVAL_NS));
        }
    }
}

/// Computes when each record is sent.
struct ReplayPace {
    /// Number of records per second.
    rate: Option<u32>,
    speed: Option<ReplaySpeed>,
    began_ns: u64,
    /// Start of the first record's flow.
    first_ns: Option<u64>,
    records: u64,
}

impl ReplayPace {
    fn new(arguments: &Arguments) -> Self {
        Self {
            rate: arguments.rate,
            speed: arguments.speed,
            began_ns: clock::monotonic_ns(),
            first_ns: None,
            records: 0,
        }
    }

    /// Returns when the next record is due, on the monotonic clock; `None` if it is sent at once. With `--speed`, a
    /// record of a flow that began before the flow of the first record is also sent at once.
    fn next_due_ns(&mut self, start_ns: u64) -> Option<u64> {
        let first_ns = *self.first_ns.get_or_insert(start_ns);
        // The time is computed from the beginning for each record, so that errors do not add up.
        let after_ns = match (self.rate, self.speed) {
            (Some(rate), _) => u128::from(self.records) * 1_000_000_000 / u128::from(rate),
            (None, Some(speed)) => {
                u128::from(start_ns.saturating_sub(first_ns)) * 1_000_000 / u128::from(speed.millionths())
            }
            (None, None) => return None,
        };
        self.records += 1;
        Some(self.began_ns.saturating_add(u64::try_from(after_ns).unwrap_or(u64::MAX)))
    }
}
