//! Messages between the rig and an engine: one JSON object on each line, as `docs/book/engines.md` describes them.
//!
//! Unknown members of a message are ignored, so that engines and rigs of different versions understand each other.
//! Counts and times are whole numbers: frames, bytes without FCS, nanoseconds of CLOCK_MONOTONIC.

use packetrig_plan::timeline::{SendPattern, StreamTimeline};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Version of the protocol.
pub const ENGINE_PROTOCOL_VERSION: u32 = 1;

/// Message from packetrig to the engine.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum MessageToEngine<'a> {
    Prepare(&'a EnginePreparation),
    /// `in_ns` is the time from writing the message until `at_ns`.
    Start {
        at_ns: u64,
        in_ns: u64,
    },
    Stop,
}

/// The part of a plan that an engine sends.
#[derive(Debug, Serialize)]
pub(super) struct EnginePreparation {
    pub(super) protocol: u32,
    pub(super) interface: String,
    pub(super) link_bits_per_second: Option<u64>,
    /// Directory for files of the engine. It is removed when the engine has ended.
    pub(super) directory: PathBuf,
    pub(super) streams: Vec<EngineStream>,
}

#[derive(Debug, Serialize)]
pub(super) struct EngineStream {
    /// Number of the stream in the engine's counts.
    pub(super) stream: u16,
    pub(super) rate: EngineRate,
    /// Time from the start to the first frame.
    pub(super) delay_ns: u64,
    /// Number of frames; absent means until stopped.
    pub(super) count: Option<u64>,
    /// Time limit from which `count` was computed, counted from the first frame; absent if there is none.
    pub(super) within_ns: Option<u64>,
    pub(super) burst: Option<EngineBurst>,
    /// Lengths of the shortest and the longest frame, without FCS.
    pub(super) frame_bytes: [u64; 2],
    pub(super) capture: EngineCapture,
}

/// `frames` in every `seconds`.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct EngineRate {
    pub(super) frames: u64,
    pub(super) seconds: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct EngineBurst {
    pub(super) frames: u64,
    /// Pause after a burst. A burst ends one frame interval after its last frame was due.
    pub(super) pause_ns: u64,
}

/// File with the frames of a stream.
#[derive(Debug, Serialize)]
pub(super) struct EngineCapture {
    pub(super) file: PathBuf,
    pub(super) frames: u64,
    /// Whether the engine begins the file again after its last frame.
    pub(super) repeat: bool,
}

impl EngineStream {
    /// Describes a stream: its schedule, its frame lengths and the file with its frames.
    pub(super) fn new(
        number: u16,
        timeline: &StreamTimeline,
        bytes: [u64; 2],
        capture: EngineCapture,
    ) -> Self {
        Self {
            stream: number,
            rate: EngineRate { frames: timeline.rate.frames(), seconds: timeline.rate.seconds() },
            delay_ns: timeline.delay.as_u64(),
            count: timeline.total_frames(),
            within_ns: match timeline.shape {
                SendPattern::Within(length) => Some(length.as_u64()),
                _ => None,
            },
            burst: match timeline.shape {
                SendPattern::Bursts { frames, pause, .. } => {
                    Some(EngineBurst { frames, pause_ns: pause.as_u64() })
                }
                _ => None,
            },
            frame_bytes: bytes,
            capture,
        }
    }
}

/// Message from the engine to packetrig.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum EngineReply {
    Hello(EngineHello),
    Ready,
    Refused(EngineRefusal),
    /// Running totals of all frames sent so far.
    Counters {
        streams: Vec<EngineStreamCount>,
    },
    /// Final totals of all frames sent. It is the last message.
    Ledger {
        streams: Vec<EngineStreamCount>,
    },
    /// A remark for the report.
    Note {
        text: String,
    },
    /// The engine cannot continue.
    Failed {
        text: String,
    },
}

impl EngineReply {
    /// Returns the type as it is written in the message.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Ready => "ready",
            Self::Refused(_) => "refused",
            Self::Counters { .. } => "counters",
            Self::Ledger { .. } => "ledger",
            Self::Note { .. } => "note",
            Self::Failed { .. } => "failed",
        }
    }
}

/// The engine's description of itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct EngineHello {
    pub protocol: u32,
    pub name: String,
    #[serde(default)]
    pub version: String,
    #[serde(default)]
    pub abilities: EngineAbilities,
}

/// Abilities of an engine. An ability that it does not mention is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an ability of its own, as it is in the message")]
pub struct EngineAbilities {
    /// Number of streams that the engine can send at the same time; 0 counts as 1.
    pub streams: u64,
    /// Can start a stream later than the other streams.
    pub delay: bool,
    /// Can send bursts with pauses.
    pub bursts: bool,
    /// Can send until it is stopped.
    pub endless: bool,
    /// Can begin a file again after its last frame.
    pub repeat: bool,
    /// Maximum number of frames in one file, if it is limited.
    pub frames: Option<u64>,
    /// Lengths of the shortest and the longest frame without FCS, if limited.
    pub frame_bytes: Option<[u64; 2]>,
    /// Maximum frames per second of a stream, if they are limited.
    pub frames_per_second: Option<u64>,
}

/// A setting of the plan that the engine cannot send.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct EngineRefusal {
    /// The stream concerned, if it is a single one.
    #[serde(default)]
    pub(super) stream: Option<u16>,
    pub(super) feature: String,
    pub(super) needs: String,
    pub(super) found: String,
}

/// Totals of one stream since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct EngineStreamCount {
    pub(super) stream: u16,
    /// Frames that the kernel accepted for sending.
    pub(super) frames: u64,
    /// Bytes of the accepted frames, without FCS.
    pub(super) bytes: u64,
    /// Frames that the kernel refused.
    #[serde(default)]
    pub(super) refused: u64,
    #[serde(default)]
    pub(super) first_ns: Option<u64>,
    #[serde(default)]
    pub(super) last_ns: Option<u64>,
    /// Uncertainty of `first_ns` and `last_ns`.
    #[serde(default)]
    pub(super) bound_ns: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_units::{FrameRate, Nanos};

    #[test]
    fn orders_are_objects_with_a_type() {
        let text = |order| serde_json::to_string(&order).unwrap();
        assert_eq!(text(MessageToEngine::Stop), r#"{"type":"stop"}"#);
        let start = MessageToEngine::Start { at_ns: 7, in_ns: 2 };
        assert_eq!(text(start), r#"{"type":"start","at_ns":7,"in_ns":2}"#);
        let timeline = StreamTimeline {
            rate: FrameRate::new(1000, 3).unwrap(),
            delay: Nanos::new(5),
            shape: SendPattern::Bursts { bursts: 0, frames: 10, pause: Nanos::new(9) },
        };
        let capture = EngineCapture { file: "/d/0.pcap".into(), frames: 1, repeat: true };
        let stream = EngineStream::new(4, &timeline, [60, 60], capture);
        let preparation = EnginePreparation {
            protocol: ENGINE_PROTOCOL_VERSION,
            interface: "eth0".to_owned(),
            link_bits_per_second: None,
            directory: "/d".into(),
            streams: vec![stream],
        };
        let text = text(MessageToEngine::Prepare(&preparation));
        assert!(text.starts_with(r#"{"type":"prepare","protocol":1,"interface":"eth0","#), "{text}");
        for part in [
            r#""rate":{"frames":1000,"seconds":3}"#,
            r#""count":null,"within_ns":null,"burst":{"frames":10,"pause_ns":9}"#,
            r#""capture":{"file":"/d/0.pcap","frames":1,"repeat":true}"#,
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn replies_may_say_more_than_is_known() {
        let hello = r#"{"type":"hello","protocol":1,"name":"x","license":"MIT","abilities":{"bursts":true,"sings":1}}"#;
        let EngineReply::Hello(hello) = serde_json::from_str(hello).unwrap() else { panic!("no hello") };
        assert_eq!(
            (hello.name.as_str(), hello.abilities.bursts, hello.abilities.endless),
            ("x", true, false)
        );
        assert_eq!(
            serde_json::from_str::<EngineReply>(r#"{"type":"ready","in":3}"#).unwrap(),
            EngineReply::Ready
        );
        let counters = r#"{"type":"counters","streams":[{"stream":0,"frames":5,"bytes":300}]}"#;
        let count = EngineStreamCount { frames: 5, bytes: 300, ..EngineStreamCount::default() };
        assert_eq!(
            serde_json::from_str::<EngineReply>(counters).unwrap(),
            EngineReply::Counters { streams: vec![count] }
        );
        for wrong in [
            "{}",
            r#"{"type":"sing"}"#,
            r#"{"type":"counters","streams":[{"stream":0,"frames":-1,"bytes":0}]}"#,
        ] {
            assert!(serde_json::from_str::<EngineReply>(wrong).is_err(), "{wrong}");
        }
    }
}
