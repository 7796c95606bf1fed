//! `packetrig flows`: queries of stored flow records.

mod compact;
mod compare;
mod prune;
mod recover;
mod replay;
mod series;
mod show;
mod shown;
mod stats;
mod top;
mod values;

use crate::args::FlowsCommand;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::CommandOutput;
use jiff::Timestamp;
use packetrig_flow_store::RecordExporter;
use packetrig_flow_store::filter::canonical_address;

pub(super) use prune::directory_limits;
pub(super) use recover::recover_killed_files;
pub(crate) use top::group_measures;
pub(crate) use values::group_json;

pub(crate) fn run_flows_command(
    arguments: &FlowsCommand,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    match arguments {
        FlowsCommand::Top(arguments) => top::show_top_flows(arguments, output)?,
        FlowsCommand::Show(arguments) => show::show_flows(arguments, output)?,
        FlowsCommand::Compare(arguments) => compare::compare_flows(arguments, output)?,
        FlowsCommand::Stats(arguments) => stats::show_flow_stats(arguments, output)?,
        FlowsCommand::Recover(arguments) => return recover::recover_directory(arguments, output),
        FlowsCommand::Prune(arguments) => prune::prune_directory(arguments, output)?,
        FlowsCommand::Replay(arguments) => return replay::replay_records(arguments, output),
        FlowsCommand::Compact(arguments) => return compact::compact_directory(arguments, output),
    }
    Ok(CommandExit::Ok)
}

/// Formats a time in UTC with milliseconds.
fn utc_time_text(at_ns: u64) -> String {
    // 64 bits of nanoseconds end in the year 2554, and jiff's range in 9999, so the conversion never fails.
    let time = Timestamp::from_nanosecond(i128::from(at_ns)).unwrap_or(Timestamp::MAX);
    time.strftime("%Y-%m-%d %H:%M:%S%.3f").to_string()
}

/// Formats an address and, if it is not 0, a port.
fn endpoint_text(bytes: [u8; 16], port: u64) -> String {
    match (canonical_address(bytes), port) {
        // Protocols without ports have a zero in the record.
        (address, 0) => address.to_string(),
        (address, port) if address.is_ipv4() => format!("{address}:{port}"),
        (address, port) => format!("[{address}]:{port}"),
    }
}

/// Returns the address of the exporter that made a record, and its domain if that is not 0.
pub(crate) fn exporter_name(source: RecordExporter) -> String {
    let RecordExporter { exporter, domain } = source;
    // A meter that writes files itself has no exporter address.
    let name =
        if exporter == [0; 16] { "this machine".to_owned() } else { canonical_address(exporter).to_string() };
    if domain == 0 { name } else { format!("{name}, domain {domain}") }
}
