//! Reads a capture before the merge and collects the facts that the merge needs.

use super::Error;
use super::input::CaptureReader;
use packetrig_link::merge::{PacketContent, PacketSample};
use std::path::PathBuf;

/// Number of packets with which clocks are compared. Over an hour, this is one packet every 55 ms, enough
/// to follow any clock.
const CLOCK_SAMPLE_PACKETS: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct CaptureSurvey {
    pub(super) packets: u64,
    /// Time of the first and of the last packet in the file, according to the capture's own clock.
    pub(super) times_ns: Option<(u64, u64)>,
    /// Captured bytes of the packet that was cut most; `None` if no packet was cut.
    pub(super) shortest_cut: Option<usize>,
    pub(super) sample: PacketSample,
    pub(super) damages: Vec<String>,
    pub(super) remarks: Vec<String>,
}

/// Reads a capture. `compared`: how many bytes of a packet identify it; all if `None`.
pub(super) fn survey_capture(files: &[PathBuf], compared: Option<usize>) -> Result<CaptureSurvey, Error> {
    let mut reader = CaptureReader::new(files)?;
    let mut packets = 0;
    let mut times_ns = None;
    let mut shortest_cut: Option<usize> = None;
    let mut sample = PacketSample::new(CLOCK_SAMPLE_PACKETS);
    while let Some(at_ns) = reader.advance_to_next_packet()? {
        let content = PacketContent::from_record(&reader.current_packet());
        // The packet that was cut most decides how many bytes of each packet can be compared.
        if content.is_cut() {
            let kept = content.bytes.len();
            shortest_cut = Some(shortest_cut.map_or(kept, |shortest| shortest.min(kept)));
        }
        sample.add_packet(content.compute_identity(compared), packets, at_ns);
        times_ns = Some(times_ns.map_or((at_ns, at_ns), |(first, _)| (first, at_ns)));
        packets += 1;
    }
    let (damages, remarks) = (std::mem::take(&mut reader.damages), std::mem::take(&mut reader.remarks));
    Ok(CaptureSurvey { packets, times_ns, shortest_cut, sample, damages, remarks })
}
