//! Opens a capture file, or the part of it that a client requested.

use super::slice;
use crate::tester::{CaptureFile, CaptureRange};
use std::fs::File;
use std::io;

pub(super) fn open_capture(path: &str, part: CaptureRange) -> io::Result<CaptureFile> {
    let file = File::open(path)?;
    Ok(match part {
        CaptureRange::All => {
            let length = file.metadata()?.len();
            CaptureFile { bytes: Box::new(file), length: Some(length) }
        }
        CaptureRange::Slice { start, count } => {
            let bytes = slice::slice_capture(io::BufReader::new(file), start, count)?;
            let length = Some(bytes.len() as u64);
            CaptureFile { bytes: Box::new(io::Cursor::new(bytes)), length }
        }
    })
}
