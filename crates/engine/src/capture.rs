//! Captures of the frames that a port receives.
//!
//! ```text
//!  receiver -> CaptureTap: started? stopped? filter -> recorder -> files     capture of a port in a run
//!  interface -> record_frames() ---------------------> recorder -> files     `packetrig capture`
//!                                     keeper of the files: index, retention     `packetrig log`
//! ```
//! All captures have the same writer, the recorder. They differ in the source of the frames, and in what happens to
//! complete files.
//!
//! Invariant: a frame that passed the filter is in the file or in exactly one of the loss counters.

pub(crate) mod encode;
mod join;
pub mod numbers;
mod port;
pub mod record;
mod tap;

pub use port::{CaptureOutcome, CaptureSpec, MissingFrames, PortCapture};
pub use tap::CaptureTap;

use packetrig_plan::CaptureFormat;
use std::path::PathBuf;

fn to_file_name_char(c: char) -> char {
    // Slashes and spaces become `_`, so a port name can neither leave the directory nor need quoting.
    if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }
}

/// Builds the file name of a port's capture; a port name with slashes cannot point into another directory. `again` is
/// the number of file names already tried; from 1 on, the name gets the suffix `-2`, `-3` and so on.
pub(crate) fn capture_file_name(port: &str, format: CaptureFormat, again: usize) -> PathBuf {
    let extension = match format {
        CaptureFormat::Pcap => "pcap",
        CaptureFormat::Pcapng => "pcapng",
    };
    let number = if again > 0 { format!("-{}", again + 1) } else { String::new() };
    format!("{}{number}.{extension}", port.chars().map(to_file_name_char).collect::<String>()).into()
}

#[cfg(test)]
mod tests;
