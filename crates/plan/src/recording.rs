//! A capture file as the source of a stream's frames.
//!
//! OTG has no such source. In packetrig a flow has `x_replay` (see `docs/book/replay.md`), which names the file and
//! contains the results of a survey of the file. So a plan can be read, bound and reported without opening the file.
//!
//! This module opens no file. The code that opens the file must check that it is still the surveyed one.

use crate::timeline::SendPattern;
use packetrig_units::number::trim_trailing_zeros;
use packetrig_units::{FrameRate, FrameSize, Nanos, clamp_to_u64};
use packetrig_wire::FrameTemplate;
use packetrig_wire::foreign::FrameRewrite;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// Bytes of an 802.1Q tag.
pub const VLAN_TAG_BYTES: u32 = 4;

/// The source of a stream's frames.
#[derive(Clone, Debug)]
pub enum FrameOrigin {
    Made(Arc<FrameTemplate>),
    /// Read from a capture file.
    Recorded(Arc<PlannedRecording>),
}

impl FrameOrigin {
    /// The template; `None` for frames from a file.
    pub fn template(&self) -> Option<&FrameTemplate> {
        match self {
            Self::Made(template) => Some(template),
            Self::Recorded(_) => None,
        }
    }

    /// The capture file and its replay; `None` for frames made from a template.
    pub fn recording(&self) -> Option<&PlannedRecording> {
        match self {
            Self::Made(_) => None,
            Self::Recorded(recording) => Some(recording),
        }
    }

    pub fn largest_frame(&self) -> FrameSize {
        match self {
            Self::Made(template) => template.spec().size.max_size(),
            Self::Recorded(recording) => recording.facts.largest,
        }
    }

    /// Size of the largest frame, not counting an outer 802.1Q tag: an interface accepts a tag in addition to its MTU.
    pub fn largest_untagged(&self) -> FrameSize {
        match self {
            Self::Made(template) if template.begins_with_vlan_tag() => {
                FrameSize::new(template.spec().size.max_size().bytes().saturating_sub(VLAN_TAG_BYTES))
            }
            Self::Made(_) => self.largest_frame(),
            Self::Recorded(recording) => recording.facts.largest_untagged,
        }
    }

    /// The mean size as a fraction: bytes with FCS, and the number of frames that have them.
    pub fn mean_size(&self) -> (u64, u64) {
        match self {
            Self::Made(template) => template.spec().size.mean_size(),
            // The count is the divisor of the mean, so it must not be zero.
            Self::Recorded(recording) => (recording.facts.bytes, recording.facts.frames.max(1)),
        }
    }

    /// True if the frames are sent as fast as the link takes them, without a schedule.
    pub fn is_unpaced(&self) -> bool {
        self.recording().is_some_and(|recording| recording.timing == ReplayTiming::Fastest)
    }
}

impl From<Arc<FrameTemplate>> for FrameOrigin {
    fn from(template: Arc<FrameTemplate>) -> Self {
        Self::Made(template)
    }
}

/// A capture file, and how it is replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRecording {
    pub file: PathBuf,
    /// Times at which the frames of the recording are sent.
    pub timing: ReplayTiming,
    /// Number of passes; 0 = until stopped.
    pub loops: u64,
    /// Changes that the sender makes to the recorded frames.
    pub rewrite: FrameRewrite,
    /// True if frames get the test tag where it fits.
    pub tagged: bool,
    pub facts: RecordingFacts,
}

impl PlannedRecording {
    /// Number of frames in all passes together; `u64::MAX` if the recording is sent until stopped.
    pub const fn frames_of_all_passes(&self) -> u64 {
        if self.loops == 0 { u64::MAX } else { self.facts.frames.saturating_mul(self.loops) }
    }
}

/// The results of a survey of a capture file. They describe the frames that can be sent, in the form in which
/// they will be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordingFacts {
    /// Size of the file, in bytes.
    pub file_size: u64,
    pub frames: u64,
    /// Bytes of all frames, FCS included.
    pub bytes: u64,
    pub largest: FrameSize,
    /// Size of the largest frame, not counting an 802.1Q tag after its MAC addresses: an interface accepts a tag in
    /// addition to its MTU.
    pub largest_untagged: FrameSize,
    /// Time from the first frame to the last.
    pub span: Nanos,
    /// True if frames in the file end with their FCS, which the sender computes again.
    pub has_fcs: bool,
}

/// Times at which the frames of a recording are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayTiming {
    /// At the times of the recording, faster or slower by a factor.
    Recorded(ReplaySpeed),
    /// Evenly, at the stream's rate.
    Even,
    /// As fast as the link allows.
    Fastest,
}

/// Speed of a replay, as a factor of the recorded speed, exact to a millionth; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplaySpeed {
    millionths: u64,
}

impl ReplaySpeed {
    pub const ORIGINAL_SPEED: Self = Self { millionths: 1_000_000 };

    /// The factor, in millionths.
    pub const fn millionths(self) -> u64 {
        self.millionths
    }

    /// The time that `ns` nanoseconds of the recording take in the replay.
    fn replay_duration_of_recorded(self, ns: u128) -> Nanos {
        // 128 bits: the nanoseconds of a long recording times a million overflow 64.
        let scaled = ns.saturating_mul(1_000_000) / u128::from(self.millionths);
        Nanos::new(clamp_to_u64(scaled))
    }
}

impl fmt::Display for ReplaySpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:06}", self.millionths / 1_000_000, self.millionths % 1_000_000);
        f.pad(&format!("{}x", trim_trailing_zeros(&text)))
    }
}

impl FromStr for ReplaySpeed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The text is read digit by digit: a float would not be exact to a millionth.
        let number = text.trim().trim_end_matches(['x', 'X']);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let is_number = !whole.is_empty() && is_digits(whole) && is_digits(fraction) && fraction.len() <= 6;
        let millionths = is_number.then(|| format!("{whole}{fraction:0<6}").parse().ok()).flatten();
        let millionths = millionths.filter(|millionths| (1..=1_000_000_000_000).contains(millionths));
        millionths.map(|millionths| Self { millionths }).ok_or_else(|| {
            format!(
                "`{text}` is not a speed; write it like 2x or 0.5x (at most 1000000x, with at most 6 \
                decimals)"
            )
        })
    }
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

impl PlannedRecording {
    /// Returns when a frame is due, from the start of the run: the frame of pass `pass` (counted from 0) that was
    /// recorded `since_first` after the first frame. Returns 0 if frames are not sent at their recorded times. Between
    /// two passes there is a pause of the mean time between two frames. The time is computed from the start of the run,
    /// not from frame to frame, so that it does not drift.
    pub fn due_time(&self, pass: u64, since_first: Nanos) -> Nanos {
        let ReplayTiming::Recorded(speed) = self.timing else { return Nanos::ZERO };
        speed.replay_duration_of_recorded(
            self.recorded_duration_of_passes(pass).saturating_add(since_first.as_u64().into()),
        )
    }

    /// Duration of this many passes at the recorded speed, each with the pause after it, in nanoseconds.
    fn recorded_duration_of_passes(&self, passes: u64) -> u128 {
        let span = u128::from(self.facts.span.as_u64());
        let frames = u128::from(self.facts.frames);
        // n frames have n - 1 gaps, and a pass has one more gap to the next pass: span * n / (n - 1). A single frame
        // has no distance to the next one, and is sent once a second.
        let length = if frames > 1 { span * frames / (frames - 1) } else { 1_000_000_000 };
        length.saturating_mul(passes.into())
    }

    /// The mean frame rate of the recorded timing; `None` for another timing, or if the recording has no duration.
    pub fn mean_rate(&self) -> Option<FrameRate> {
        let ReplayTiming::Recorded(speed) = self.timing else { return None };
        let length = speed.replay_duration_of_recorded(self.recorded_duration_of_passes(1)).as_u64();
        // A pass includes the pause to the next one, so the rate holds over any number of passes.
        FrameRate::new(self.facts.frames.saturating_mul(1_000_000_000), length)
    }

    pub fn send_pattern(&self) -> SendPattern {
        if self.loops == 0 {
            SendPattern::Endless
        } else {
            SendPattern::Frames(self.facts.frames.saturating_mul(self.loops))
        }
    }
}

/// Reads a MAC address like `02:00:00:00:00:01`.
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        // `from_str_radix` alone would accept a sign as one of the two characters.
        let part = parts.next().filter(|part| part.len() == 2 && !part.starts_with('+'))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(speed: &str, frames: u64, span: u64) -> PlannedRecording {
        PlannedRecording {
            file: "a.pcap".into(),
            timing: ReplayTiming::Recorded(speed.parse().unwrap()),
            loops: 3,
            rewrite: FrameRewrite::default(),
            tagged: true,
            facts: RecordingFacts {
                file_size: 0,
                frames,
                bytes: frames * 100,
                largest: FrameSize::new(100),
                largest_untagged: FrameSize::new(100),
                span: Nanos::new(span),
                has_fcs: false,
            },
        }
    }

    #[test]
    fn speeds_are_exact_and_read_back() {
        for (text, shown) in [("2x", "2x"), ("0.5", "0.5x"), ("1.000001X", "1.000001x"), ("1000", "1000x")] {
            assert_eq!(text.parse::<ReplaySpeed>().unwrap().to_string(), shown);
        }
        for text in ["", "x", "0", "0x", "-1x", "1e3", "0.0000001x", "1000001x", "max"] {
            assert!(text.parse::<ReplaySpeed>().is_err(), "{text}");
        }
    }

    #[test]
    fn replay_due_times_count_from_origin() {
        let half = recording("0.5x", 11, 1_000);
        assert_eq!(half.due_time(0, Nanos::new(7)), Nanos::new(14));
        // A pass takes its span and one mean distance more.
        assert_eq!(half.due_time(1, Nanos::ZERO), Nanos::new(2 * 1_100));
        assert_eq!(half.due_time(1_000_000, Nanos::new(7)), Nanos::new(2 * (1_100 * 1_000_000 + 7)));
        let third = recording("3x", 2, 1_000_000_000);
        assert_eq!(third.due_time(0, Nanos::new(1_000_000_000)), Nanos::new(333_333_333));
        assert_eq!(third.due_time(3, Nanos::ZERO), Nanos::from_secs(2));
    }

    #[test]
    fn mean_rate_spreads_frames_over_pass() {
        let rate = recording("2x", 101, 1_000_000_000).mean_rate().unwrap();
        assert_eq!(rate.due_time(100), Nanos::from_millis(500));
        assert_eq!(recording("1x", 1, 0).mean_rate(), FrameRate::per_second(1));
        assert_eq!(recording("1x", 5, 0).mean_rate(), None);
    }
}
