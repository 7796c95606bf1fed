//! `packetrig probe`: runs the commands of the crate `probe-cli`. Here they can also write their records to Parquet
//! files, and `packetrig watch` can show the probes while they run.

mod watched;

use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::CommandOutput;
use packetrig_probe_cli::args::ProbeCommand;
use packetrig_probe_cli::{HostProgram, RecordFiles};

pub(super) fn run_probe(command: &ProbeCommand, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let parquet = |header: &_, records: &[_]| {
        packetrig_flow_store::probe_records::encode_parquet(header, records)
            .map_err(|error| error.to_string())
    };
    let files = RecordFiles { parquet: Some(parquet) };
    let host = HostProgram { files, open_viewer: Some(watched::open_viewer) };
    Ok(packetrig_probe_cli::run_probe_command(command, host, output)?)
}
