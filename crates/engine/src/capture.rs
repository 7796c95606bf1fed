//! Captures of the frames that a port receives.
//!
//! ```text
//!  receiver -> Tap: begun? stopped? filter --> Recorder --> files          a run's capture: [`PortCapture`], any thread
//!  an interface listened at -> record() -----> Recorder --> files          `packetrig capture`: [`record`]
//!                                          FileShelf: numbering, index, retention   `packetrig log`: [`log`]
//! ```
//! There is one writer, the recorder: the two kinds of capture differ only in the source of its frames.
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

fn file_name_char(c: char) -> char {
    // Slashes and spaces become `_`, so a port name can neither leave the directory nor need quoting.
    if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }
}

/// Builds a file name for a port's capture that no port name can turn into a path. `again` numbers further
/// captures of that name.
pub(crate) fn capture_file_name(port: &str, format: CaptureFormat, again: usize) -> PathBuf {
    let extension = match format {
        CaptureFormat::Pcap => "pcap",
        CaptureFormat::Pcapng => "pcapng",
    };
    let number = if again > 0 { format!("-{}", again + 1) } else { String::new() };
    format!("{}{number}.{extension}", port.chars().map(file_name_char).collect::<String>()).into()
}

#[cfg(test)]
mod tests;
