//! Facts that the page shows beside runs: flow records, logs, taps, and the calibrated limits of this machine.
//!
//! These facts are read from files that other commands have written, so the page needs no access to interfaces.

mod calibration;
mod flows;
mod logs;
mod taps;

use crate::args::RecordDirectoryArgs;
use calibration::MachineCalibration;
use flows::FlowDirectories;
use logs::LogIndexReaders;
use packetrig_server::{FlowArchive, ServedRig, ViewRefusal};
use std::path::Path;
use std::sync::Arc;
use taps::UserTapFacts;

/// Version of the JSON documents with flows, logs, taps and calibration.
const SCHEMA_VERSION: u32 = 1;

/// Makes the parts of a served rig that are read from files. `store` is the directory of the catalogue; `None`
/// is the default one.
pub(crate) fn build_rig_from_files(places: &RecordDirectoryArgs, store: Option<&Path>) -> ServedRig {
    let flows = (!places.flows.is_empty())
        .then(|| Arc::new(FlowDirectories::new(places.flows.clone())) as Arc<dyn FlowArchive>);
    let logs = (!places.logs.is_empty()).then(|| Arc::new(LogIndexReaders::new(&places.logs)) as _);
    ServedRig {
        flows,
        logs,
        // Taps are always shown, because their descriptions are in a fixed directory.
        taps: Some(Arc::new(UserTapFacts)),
        calibration: Some(Arc::new(MachineCalibration { store: store.map(Path::to_owned) })),
        ..ServedRig::default()
    }
}

fn view_refusal_from_error(error: &(dyn std::error::Error + 'static)) -> ViewRefusal {
    ViewRefusal::Failed(packetrig_units::message_with_causes(error))
}

/// Converts to whole milliseconds, which every JSON reader reads exactly. Nanoseconds since 1970 are too
/// large for some readers.
const fn to_ms(ns: u64) -> u64 {
    ns / 1_000_000
}
