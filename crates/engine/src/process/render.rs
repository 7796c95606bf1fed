//! Writes the frames of a stream into a capture file that an engine plays.
//!
//! Time stamps are the due times since the start of the run. Tags are those of packetrig's own sender except for the
//! send time, which is unknown yet and zero.

use super::messages::EngineCapture;
use crate::Error;
use crate::capture::encode::{
    CaptureFileFormat, CaptureHeader, FrameEnvelope, FrameRecord, write_file_header,
};
use crate::stream::StreamSpec;
use packetrig_sys::private_files;
use packetrig_units::{Nanos, clamp_to_u32};
use packetrig_wire::FrameTemplate;
use packetrig_wire::size::SizePattern;
use packetrig_wire::tag::{TagKey, TagStamp};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Maximum number of frames per file.
pub(super) const MAX_FRAMES: u64 = 1_000_000;
/// Maximum number of bytes per file.
pub(super) const MAX_BYTES: u64 = 1 << 30;

/// Number of frames that a stream's file needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EngineFileFrames {
    pub(super) frames: u64,
    /// Whether the engine has to play the file again, because the stream has more frames than the file.
    pub(super) repeat: bool,
}

impl EngineFileFrames {
    /// Computes how many frames the file of a stream needs; `None` if no finite file is enough.
    pub(super) fn from_template(template: &FrameTemplate, number: u16, total: Option<u64>) -> Option<Self> {
        let period = find_repeat_period(template, number);
        match (total, period) {
            (Some(total), Some(period)) if total > period => Some(Self { frames: period, repeat: true }),
            (Some(total), _) => Some(Self { frames: total, repeat: false }),
            (None, Some(period)) => Some(Self { frames: period, repeat: true }),
            (None, None) => None,
        }
    }
}

/// Returns after how many frames a stream repeats byte for byte. `None` if its frames have tags or several sizes, or if
/// the number is too large.
fn find_repeat_period(template: &FrameTemplate, number: u16) -> Option<u64> {
    let spec = template.spec();
    let SizePattern::Fixed(size) = spec.size else { return None };
    // A tag carries the frame's number, so tagged frames never repeat.
    if template.tag_form(size).is_some() {
        return None;
    }
    let fields = template.split_into_parts(size, number).fields;
    fields.iter().try_fold(1, |period: u64, field| {
        let own = field.pattern.period();
        // The least common multiple: all fields must be back at their first value.
        (period / greatest_common_divisor(period, own)).checked_mul(own)
    })
}

const fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    if a == 0 { 1 } else { a }
}

/// Writes the capture file with the frames of a stream into `directory`.
pub(super) fn write_capture(
    directory: &Path,
    spec: &StreamSpec,
    template: &FrameTemplate,
    need: EngineFileFrames,
    key: TagKey,
) -> Result<EngineCapture, Error> {
    let file: PathBuf = directory.join(format!("{}.pcap", spec.number));
    let failed = |source| Error::File { path: file.clone(), source };
    let mut out = BufWriter::new(private_files::create_new_private_file(&file).map_err(failed)?);
    let mut head = Vec::new();
    write_file_header(CaptureFileFormat::PcapNanos, &CaptureHeader::default(), &mut head);
    out.write_all(&head).map_err(failed)?;
    let mut frame = vec![0; template.spec().size.max_size().kernel_len()];
    for number in 0..need.frames {
        let stamp = TagStamp { key, stream: spec.number, time: 0 };
        let length = template.render_frame(number, stamp, &mut frame);
        let due: Nanos = spec.timeline.due_time(number);
        let full_len = clamp_to_u32(length as u64);
        // Time stamps begin at 1970: engines use only their differences.
        let record = FrameRecord { at_ns: due.as_u64(), kept: length, full_len, interface: 0, merged: None };
        let envelope = FrameEnvelope::for_frame(CaptureFileFormat::PcapNanos, record);
        let written = out.write_all(envelope.head_bytes()).and_then(|()| out.write_all(&frame[..length]));
        written.map_err(failed)?;
    }
    out.flush().map_err(failed)?;
    Ok(EngineCapture { file, frames: need.frames, repeat: need.repeat })
}
