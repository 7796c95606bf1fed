//! `packetrig probe`: runs the commands of the crate `probe-cli`, and adds Parquet files to the formats of their records.

use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::CommandOutput;
use packetrig_probe_cli::RecordFiles;
use packetrig_probe_cli::args::ProbeCommand;

pub(super) fn run_probe(command: &ProbeCommand, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let parquet = |header: &_, records: &[_]| {
        packetrig_flow_store::probe_records::encode_parquet(header, records)
            .map_err(|error| error.to_string())
    };
    Ok(packetrig_probe_cli::run_probe_command(command, RecordFiles { parquet: Some(parquet) }, output)?)
}
