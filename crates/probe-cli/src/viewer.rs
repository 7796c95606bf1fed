//! Viewers of probes that are in progress. Only the large program has a server for them, so it gives a function that opens one.

use packetrig_probe::series::{AnswerMeaning, MeasuredTime};
use packetrig_probe_io::ask::AskEvent;
use packetrig_units::Nanos;

/// A series of probes, as viewers name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewedSeries {
    /// The kind of measurement and its target: `round trip to 192.0.2.1`.
    pub name: String,
    pub interface: String,
    pub target: String,
    /// Length of each probe's frame, FCS included.
    pub frame_bytes: u64,
    /// Time limit for an answer. A probe that had none by then is lost.
    pub answer_within: Nanos,
}

/// Shows series to other programs until it is dropped.
pub trait SeriesViewer {
    /// The probe with this number has left, of the series with this index.
    fn count_probe(&self, series: usize, number: u32);
    /// The first answer to a probe has arrived.
    fn count_answer(&self, series: usize, number: u32, took: Option<MeasuredTime>);
}

/// Opens a viewer of these series. The text names the command.
pub type ViewerOpener = fn(&str, Vec<ViewedSeries>) -> Box<dyn SeriesViewer>;

/// Passes an event of the series to a viewer.
pub(crate) fn show_event(viewer: &dyn SeriesViewer, event: &AskEvent<'_>) {
    match event {
        AskEvent::Sent { line, number } => viewer.count_probe(*line, *number),
        AskEvent::Answered { line, reply, meaning: AnswerMeaning::First(took), .. } => {
            viewer.count_answer(*line, reply.number, *took);
        }
        AskEvent::Answered { .. } | AskEvent::Ended { .. } => {}
    }
}
