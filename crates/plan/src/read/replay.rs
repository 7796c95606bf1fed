//! `x_replay`, a flow whose frames come from a capture file: packetrig's own addition to OTG.

use super::timing;
use crate::reader::{DocumentItem, DocumentObject};
use crate::recording::{FrameOrigin, PlannedRecording, RecordingFacts, ReplayTiming};
use crate::timeline::SendPattern;
use crate::{OtgPause, StreamAmount, StreamDuration};
use packetrig_units::{FrameSize, Nanos, Rate, Share};
use packetrig_wire::foreign::FrameRewrite;
use std::str::FromStr;
use std::sync::Arc;

const REPLAY_FRAMES_REASON: &str = "the frames come from `x_replay`";
/// Larger than any frame that a port accepts; the port's own limit is checked when it is known.
const MAX_REPLAYED_FRAME_BYTES: u64 = 300_000;

/// The frames of a flow, with their rate and duration.
pub(super) struct FrameSourceAndPace {
    pub(super) frames: FrameOrigin,
    pub(super) rate: Rate,
    pub(super) duration: StreamDuration,
}

/// Reads `x_replay` and `rate` of a flow.
pub(super) fn read_source(
    flow: &DocumentObject<'_>,
    replay: DocumentObject<'_>,
    tagged: bool,
) -> Option<FrameSourceAndPace> {
    flow.refuse_members(&["packet", "size", "payload", "duration"], REPLAY_FRAMES_REASON);
    let recording = read_recording(&replay, tagged);
    replay.refuse_unread_members();
    let recording = recording?;
    let rate = if recording.timing == ReplayTiming::Even {
        timing::read_flow_rate(flow)?
    } else {
        flow.refuse_members(&["rate"], "the times come from `x_replay`");
        // The rate is used only to estimate load and duration. Frames leave at their recorded times, or
        // as fast as possible.
        recording.mean_rate().map_or(Rate::Share(Share::WHOLE_LINK), Rate::Frames)
    };
    let amount = match recording.send_pattern() {
        SendPattern::Frames(frames) => StreamAmount::Packets(frames),
        _ => StreamAmount::Continuous,
    };
    let duration = StreamDuration { amount, delay: OtgPause::Bytes(0), gap: 12 };
    Some(FrameSourceAndPace { frames: FrameOrigin::Recorded(Arc::new(recording)), rate, duration })
}

fn read_recording(replay: &DocumentObject<'_>, tagged: bool) -> Option<PlannedRecording> {
    let file = replay.require_member("file").and_then(|item| item.as_text().map(std::path::PathBuf::from));
    let timing = read_timing(replay);
    let loops = replay.read_number("loops", 1, 0, u64::MAX);
    let rewrite = read_rewrite(replay);
    let facts = replay.require_member("facts").and_then(|item| read_facts(item.as_object()?));
    let mut recording =
        PlannedRecording { file: file?, timing: timing?, loops, rewrite: rewrite?, tagged, facts: facts? };
    if matches!(recording.timing, ReplayTiming::Recorded(_)) && recording.mean_rate().is_none() {
        // A recording without duration (a single time stamp for all frames) has no rate: send it as fast as possible.
        recording.timing = ReplayTiming::Fastest;
    }
    Some(recording)
}

fn read_timing(replay: &DocumentObject<'_>) -> Option<ReplayTiming> {
    match replay.read_word("timing", &["recorded", "even", "fastest"], "recorded") {
        "even" => Some(ReplayTiming::Even),
        "fastest" => Some(ReplayTiming::Fastest),
        _ => parse_or_default(replay.read_member("speed"), "1x").map(ReplayTiming::Recorded),
    }
}

fn read_rewrite(replay: &DocumentObject<'_>) -> Option<FrameRewrite> {
    let Some(object) = replay.read_object("rewrite") else { return Some(FrameRewrite::default()) };
    // All members are read before an error in one of them ends the reading, so that the problems of all are noted.
    let src_mac = object.read_member("src_mac").map(|item| read_mac(&item).ok_or(())).transpose();
    let dst_mac = object.read_member("dst_mac").map(|item| read_mac(&item).ok_or(())).transpose();
    let vlan = object.read_member("vlan").map(|item| parse_or_default(Some(item), "").ok_or(())).transpose();
    let addresses: Option<Vec<_>> =
        object.read_items("map_ip").into_iter().map(|item| parse_or_default(Some(item), "")).collect();
    object.refuse_unread_members();
    Some(FrameRewrite {
        src_mac: src_mac.ok()?,
        dst_mac: dst_mac.ok()?,
        addresses: addresses?,
        vlan: vlan.ok()?,
    })
}

/// Parses the text of an item; without an item, parses `default`. An invalid text is recorded as an error.
fn parse_or_default<T: FromStr<Err: std::fmt::Display>>(
    item: Option<DocumentItem<'_>>,
    default: &str,
) -> Option<T> {
    let Some(item) = item else { return default.parse().ok() };
    match item.as_text()?.parse() {
        Ok(value) => Some(value),
        Err(error) => {
            item.add_item_error(error.to_string());
            None
        }
    }
}

fn read_mac(item: &DocumentItem<'_>) -> Option<[u8; 6]> {
    let text = item.as_text()?;
    let read = crate::recording::parse_mac(text);
    if read.is_none() {
        item.add_item_error(format!("`{text}` is not a MAC address; write it like 02:00:00:00:00:01"));
    }
    read
}

fn require_number(object: &DocumentObject<'_>, name: &'static str, least: u128) -> Option<u64> {
    object.require_member(name).and_then(|item| u64::try_from(item.as_number(least, u64::MAX.into())?).ok())
}

fn read_facts(object: DocumentObject<'_>) -> Option<RecordingFacts> {
    // The command line's survey writes these values, but users can edit them, so they are checked.
    let file_size = require_number(&object, "file_size", 0);
    let frames = require_number(&object, "frames", 1);
    let bytes = require_number(&object, "bytes", 1);
    let span = require_number(&object, "span_ns", 0);
    let largest = object.read_number("largest", 1518, 14, MAX_REPLAYED_FRAME_BYTES);
    // Without the member, the largest frame counts as untagged.
    let largest_untagged = object.read_number("largest_untagged", largest, 14, largest);
    let has_fcs = object.read_flag("has_fcs", false);
    object.refuse_unread_members();
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
