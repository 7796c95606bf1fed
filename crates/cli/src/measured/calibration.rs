//! Calibration of this machine: limits of the rig and errors of release mechanisms, from the last measurements.

use super::{SCHEMA_VERSION, to_ms, view_refusal_from_error};
use crate::commands::open_catalogue_to_read;
use packetrig_server::{RigPartSource, ViewRefusal};
use packetrig_stats::limit::RigLimit;
use packetrig_sys::kernel;
use serde_json::{Value, json};
use std::path::PathBuf;

pub(super) struct MachineCalibration {
    /// Directory of the catalogue; `None` is the default one.
    pub(super) store: Option<PathBuf>,
}

impl RigPartSource for MachineCalibration {
    fn read_facts(&self) -> Result<Value, ViewRefusal> {
        let catalogue =
            open_catalogue_to_read(self.store.as_deref()).map_err(|error| view_refusal_from_error(&error))?;
        let limits = match catalogue {
            Some(catalogue) => {
                catalogue.read_all_rig_limits().map_err(|error| view_refusal_from_error(&error))?
            }
            None => Vec::new(),
        };
        let kernel = kernel::kernel_release_name();
        Ok(json!({
            "schema_version": SCHEMA_VERSION,
            "rig": limits.iter().map(|limit| build_limit_json(limit, &kernel)).collect::<Vec<_>>(),
            "release": packetrig_probe_cli::kept_calibration().map(|kept| json!({
                "kernel": kept.kernel,
                "driver": kept.driver,
                "is_of_this_kernel": kept.kernel == kernel,
                "mechanisms": kept.mechanisms,
            })),
        }))
    }
}

fn build_limit_json(limit: &RigLimit, kernel: &str) -> Value {
    json!({
        "back_end": limit.back_end.name(),
        "driver": limit.driver,
        "size": limit.size,
        "frames_per_second": limit.frames_per_second,
        "latency_floor": limit.latency_floor,
        "send_error_p99": limit.send_error_p99,
        "clock_reading": limit.clock_reading,
        "kernel": limit.kernel,
        "measured_ms": to_ms(limit.measured_wall_ns),
        // Limits of another kernel are not used for runs, and the page says so.
        "is_of_this_kernel": limit.kernel == kernel,
    })
}
