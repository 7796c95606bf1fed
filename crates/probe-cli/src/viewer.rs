//! Shows the probes of a running command to viewers. Only the program `packetrig` has a server for viewers,
//! so it passes a function that opens a viewer.

use packetrig_probe::series::{AnswerMeaning, MeasuredTime};
use packetrig_probe_io::ask::ProbeSeriesEvent;
use packetrig_units::Nanos;

/// What viewers show about a series of probes, besides its counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewedSeries {
    /// The kind of measurement and its target: `round trip to 192.0.2.1`.
    pub name: String,
    pub interface: String,
    pub target: String,
    /// Length of each probe's frame, FCS included.
    pub frame_bytes: u64,
    /// Time limit for an answer. A probe without an answer within this time is lost.
    pub answer_within: Nanos,
}

/// Shows series of probes to other programs until it is dropped.
pub trait SeriesViewer {
    /// Counts a probe that has left: `series` is the index of its series, `number` the probe's number.
    fn count_probe(&self, series: usize, number: u32);
    /// Counts the first answer to a probe.
    fn count_answer(&self, series: usize, number: u32, took: Option<MeasuredTime>);
}

/// Opens a viewer of these series. The text names the command in the list of running commands.
pub type ViewerOpener = fn(&str, Vec<ViewedSeries>) -> Box<dyn SeriesViewer>;

/// Passes an event of the series to a viewer.
pub(crate) fn show_event(viewer: &dyn SeriesViewer, event: &ProbeSeriesEvent<'_>) {
    match event {
        ProbeSeriesEvent::Sent { line, number } => viewer.count_probe(*line, *number),
        ProbeSeriesEvent::Answered { line, reply, meaning: AnswerMeaning::First(took), .. } => {
            viewer.count_answer(*line, reply.number, *took);
        }
        ProbeSeriesEvent::Answered { .. } | ProbeSeriesEvent::Ended { .. } => {}
    }
}
