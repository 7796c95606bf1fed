//! The captures of a port: those of the plan, or one of all frames if the user requests that.

use super::RunningPort;
use crate::Error;
use crate::capture::{CaptureOutcome, CaptureSpec, PortCapture, capture_file_name};
use crate::rig::RigOptions;
use packetrig_plan::{CaptureFormat, Plan, PlannedCapture};
use packetrig_sys::private_files;
use packetrig_wire::filter::FrameFilter;
use std::path::PathBuf;

/// Size limit of one capture on disk, in bytes.
const MAX_CAPTURE_BYTES: u64 = 1 << 30;

/// A capture of the plan, or the one that `capture_all` adds.
struct WantedCapture {
    format: CaptureFormat,
    snap_len: Option<u32>,
    filter: FrameFilter,
    overwrite: bool,
}

impl Default for WantedCapture {
    fn default() -> Self {
        let filter = FrameFilter::default();
        Self { format: CaptureFormat::Pcapng, snap_len: None, filter, overwrite: false }
    }
}

impl WantedCapture {
    fn from_plan(planned: &PlannedCapture) -> Self {
        Self {
            format: planned.format,
            snap_len: planned.snap_len,
            filter: planned.filter.clone(),
            overwrite: planned.overwrite,
        }
    }
}

impl RunningPort {
    /// Returns the captures of this port, each with the port's index.
    pub(in crate::rig) fn captures(&self) -> impl Iterator<Item = (usize, PortCapture)> {
        self.captures.iter().map(|capture| (self.port, capture.clone()))
    }

    /// Creates this port's captures and starts them, except in a steered run. `used` lists the file names taken so far;
    /// the new names are added.
    pub(in crate::rig) fn set_up_captures(
        &mut self,
        plan: &Plan,
        options: &RigOptions,
        used: &mut Vec<PathBuf>,
    ) -> Result<(), Error> {
        let planned = plan.captures.iter().filter(|capture| capture.ports.contains(&self.port));
        let mut wanted: Vec<WantedCapture> = planned.map(WantedCapture::from_plan).collect();
        // A capture of the plan replaces the capture of all frames, because the user chose its filter and limits.
        if options.terms.capture_all && wanted.is_empty() && !self.receives.is_empty() {
            wanted.push(WantedCapture::default());
        }
        for wanted in wanted {
            let port = &plan.ports[self.port];
            let dir = options.capture_dir.as_ref().ok_or(Error::NoCaptureDirectory)?;
            private_files::create_directories(dir)
                .map_err(|source| Error::File { path: dir.clone(), source })?;
            let mut again = 0;
            // Names would collide if a port has several captures, or if port names differ only in characters
            // that a file name cannot have.
            while used.contains(&capture_file_name(&port.name, wanted.format, again)) {
                again += 1;
            }
            let name = capture_file_name(&port.name, wanted.format, again);
            let file = dir.join(&name);
            used.push(name);
            let (capture, tap) = PortCapture::new(CaptureSpec {
                file,
                format: wanted.format.into(),
                interface: port.location.to_string(),
                comment: format!("received on port {}", port.name),
                snap_len: wanted.snap_len,
                filter: wanted.filter,
                budget: MAX_CAPTURE_BYTES,
                overwrite: wanted.overwrite,
            })?;
            // A steered run starts captures on request.
            if !options.terms.steered {
                capture.start_capture()?;
            }
            self.taps.push(tap);
            self.captures.push(capture);
        }
        Ok(())
    }

    /// Ends the captures. A capture that cannot be ended does not affect the other results of the run.
    pub(in crate::rig) fn finish_captures(&mut self) -> Vec<(usize, CaptureOutcome)> {
        // If the port was never armed, the taps are still here. Their recorders end when the taps are dropped.
        self.taps.clear();
        let stopped = self.captures().map(|(port, capture)| {
            let outcome = capture.stop_capture().unwrap_or_else(|error| capture.failed_outcome(&error));
            (port, outcome)
        });
        stopped.collect()
    }
}
