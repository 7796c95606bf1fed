//! `x_replay`, a flow whose frames come from a capture file: packetrig's own addition to OTG.

use super::timing;
use crate::reader::{DocumentItem, DocumentObject};
use crate::recording::{FrameOrigin, PlannedRecording, RecordingFacts, ReplayTiming};
use crate::timeline::SendPattern;
use crate::{InterFrameGap, StreamAmount, StreamDuration};
use packetrig_units::{FrameSize, Nanos, Rate, Share};
use packetrig_wire::foreign::FrameRewrite;
use std::str::FromStr;
use std::sync::Arc;

const INSTEAD: &str = "the frames come from `x_replay`";
/// Larger than any frame that a port accepts; the port's own limit is checked when it is known.
const LARGEST: u64 = 300_000;

/// A flow's frames and their times.
pub(super) struct ReplaySource {
    pub(super) frames: FrameOrigin,
    pub(super) rate: Rate,
    pub(super) duration: StreamDuration,
}

/// Reads `x_replay` and `rate` of a flow.
pub(super) fn source(
    flow: &DocumentObject<'_>,
    replay: DocumentObject<'_>,
    tagged: bool,
) -> Option<ReplaySource> {
    flow.refuse(&["packet", "size", "payload", "duration"], INSTEAD);
    let recording = recording(&replay, tagged);
    replay.close();
    let recording = recording?;
    let rate = if recording.timing == ReplayTiming::Even {
        timing::rate(flow)?
    } else {
        flow.refuse(&["rate"], "the times come from `x_replay`");
        recording.mean_rate().map_or(Rate::Share(Share::WHOLE), Rate::Frames)
    };
    let amount = match recording.shape() {
        SendPattern::Frames(frames) => StreamAmount::Packets(frames),
        _ => StreamAmount::Continuous,
    };
    let duration = StreamDuration { amount, delay: InterFrameGap::Bytes(0), gap: 12 };
    Some(ReplaySource { frames: FrameOrigin::Recorded(Arc::new(recording)), rate, duration })
}

fn recording(replay: &DocumentObject<'_>, tagged: bool) -> Option<PlannedRecording> {
    let file = replay.require("file").and_then(|item| item.text().map(std::path::PathBuf::from));
    let timing = timing(replay);
    let loops = replay.number("loops", 1, 0, u64::MAX);
    let rewrite = rewrite(replay);
    let facts = replay.require("facts").and_then(|item| facts(item.object()?));
    let mut recording =
        PlannedRecording { file: file?, timing: timing?, loops, rewrite: rewrite?, tagged, facts: facts? };
    if matches!(recording.timing, ReplayTiming::Recorded(_)) && recording.mean_rate().is_none() {
        // A recording without duration (a single time stamp for all frames) has no rate: send it as fast as possible.
        recording.timing = ReplayTiming::Fastest;
    }
    Some(recording)
}

fn timing(replay: &DocumentObject<'_>) -> Option<ReplayTiming> {
    match replay.word("timing", &["recorded", "even", "fastest"], "recorded") {
        "even" => Some(ReplayTiming::Even),
        "fastest" => Some(ReplayTiming::Fastest),
        _ => parsed(replay.get("speed"), "1x").map(ReplayTiming::Recorded),
    }
}

fn rewrite(replay: &DocumentObject<'_>) -> Option<FrameRewrite> {
    let Some(object) = replay.object("rewrite") else { return Some(FrameRewrite::default()) };
    // All members are read before one of them is given up, so that problems of all are noted.
    let src_mac = object.get("src_mac").map(|item| mac(&item).ok_or(())).transpose();
    let dst_mac = object.get("dst_mac").map(|item| mac(&item).ok_or(())).transpose();
    let vlan = object.get("vlan").map(|item| parsed(Some(item), "").ok_or(())).transpose();
    let addresses: Option<Vec<_>> =
        object.items("map_ip").into_iter().map(|item| parsed(Some(item), "")).collect();
    object.close();
    Some(FrameRewrite {
        src_mac: src_mac.ok()?,
        dst_mac: dst_mac.ok()?,
        addresses: addresses?,
        vlan: vlan.ok()?,
    })
}

/// Reads a value that is written as text, or its default.
fn parsed<T: FromStr<Err: std::fmt::Display>>(item: Option<DocumentItem<'_>>, default: &str) -> Option<T> {
    let Some(item) = item else { return default.parse().ok() };
    match item.text()?.parse() {
        Ok(value) => Some(value),
        Err(error) => {
            item.error(error.to_string());
            None
        }
    }
}

fn mac(item: &DocumentItem<'_>) -> Option<[u8; 6]> {
    let text = item.text()?;
    let read = crate::recording::mac(text);
    if read.is_none() {
        item.error(format!("`{text}` is not a MAC address; write it like 02:00:00:00:00:01"));
    }
    read
}

fn required_number(object: &DocumentObject<'_>, name: &'static str, least: u128) -> Option<u64> {
    object.require(name).and_then(|item| u64::try_from(item.number(least, u64::MAX.into())?).ok())
}

fn facts(object: DocumentObject<'_>) -> Option<RecordingFacts> {
    // The command line's survey writes these values, but users can edit them, so they are checked.
    let file_size = required_number(&object, "file_size", 0);
    let frames = required_number(&object, "frames", 1);
    let bytes = required_number(&object, "bytes", 1);
    let span = required_number(&object, "span_ns", 0);
    let largest = object.number("largest", 1518, 14, LARGEST);
    let largest_untagged = object.number("largest_untagged", largest, 14, largest);
    let has_fcs = object.flag("has_fcs", false);
    object.close();
    Some(RecordingFacts {
        file_size: file_size?,
        frames: frames?,
        bytes: bytes?,
        largest: FrameSize::new(u32::try_from(largest).ok()?),
        largest_untagged: FrameSize::new(u32::try_from(largest_untagged).ok()?),
        span: Nanos::new(span?),
        has_fcs,
    })
}
