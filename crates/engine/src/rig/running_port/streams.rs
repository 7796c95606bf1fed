//! Selects the streams of a plan that concern a port.

use crate::segment::StreamSegment;
use crate::stream::StreamSpec;
use packetrig_plan::Plan;
use std::sync::Arc;

/// Returns the streams with index `first` and higher that the plan expects only at other ports.
pub(super) fn streams_expected_elsewhere(plan: &Plan, port: usize, first: usize) -> Vec<usize> {
    let streams = plan.streams.iter().enumerate().skip(first);
    streams
        .filter(|(_, stream)| !stream.rx.is_empty() && !stream.rx.contains(&port))
        .map(|(i, _)| i)
        .collect()
}

/// Returns the streams with index `first` and higher that a port sends.
pub(super) fn streams_sent_by(plan: &Plan, port: usize, first: usize) -> Vec<usize> {
    let streams = plan.streams.iter().enumerate().skip(first);
    streams.filter(|(_, stream)| stream.tx == port).map(|(index, _)| index).collect()
}

/// Returns the streams with index `first` and higher that a port receives.
pub(super) fn streams_received_by(plan: &Plan, port: usize, first: usize) -> Vec<usize> {
    let streams = plan.streams.iter().enumerate().skip(first);
    streams.filter(|(_, stream)| stream.rx.contains(&port)).map(|(index, _)| index).collect()
}

pub(super) fn select_specs(specs: &[Arc<StreamSpec>], streams: &[usize]) -> Vec<Arc<StreamSpec>> {
    streams.iter().map(|stream| Arc::clone(&specs[*stream])).collect()
}

pub(super) fn stream_numbers<'a>(streams: impl Iterator<Item = &'a usize>) -> Vec<u16> {
    streams.filter_map(|stream| u16::try_from(*stream).ok()).collect()
}

/// Returns the segments of these streams. `streams` must be in ascending order.
pub(super) fn segments_of_streams(
    segments: &[(u16, StreamSegment)],
    streams: &[usize],
) -> Vec<(u16, StreamSegment)> {
    let mine = segments.iter().filter(|(number, _)| streams.binary_search(&usize::from(*number)).is_ok());
    mine.cloned().collect()
}
