//! Messages between the rig and an engine: one JSON object on each line, as `docs/book/engines.md` describes them.
//!
//! Members that a message has beyond these are passed over, so that engines and rigs of later versions understand each
//! other. Counts and times are whole numbers: frames, bytes without FCS, nanoseconds of CLOCK_MONOTONIC.

use packetrig_plan::timeline::{SendPattern, StreamTimeline};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The version of the protocol.
pub const PROTOCOL: u32 = 1;

/// From the rig to the engine.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum EngineOrder<'a> {
    Prepare(&'a EnginePreparation),
    /// `in_ns` is how far away `at_ns` was when the message was written.
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
    /// A directory of the engine's own, which goes away with it.
    pub(super) directory: PathBuf,
    pub(super) streams: Vec<EngineStream>,
}

#[derive(Debug, Serialize)]
pub(super) struct EngineStream {
    /// Its number, by which the engine counts it.
    pub(super) stream: u16,
    pub(super) rate: EngineRate,
    /// From the start to its first frame.
    pub(super) delay_ns: u64,
    /// Frames in all; absent: until stopped.
    pub(super) count: Option<u64>,
    /// No frame later than this after the first.
    pub(super) within_ns: Option<u64>,
    pub(super) burst: Option<EngineBurst>,
    /// The shortest and the longest frame, without FCS.
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
    /// From the end of the last frame's slot to the next burst.
    pub(super) pause_ns: u64,
}

/// The frames of a stream as a file.
#[derive(Debug, Serialize)]
pub(super) struct EngineCapture {
    pub(super) file: PathBuf,
    pub(super) frames: u64,
    /// After the last frame the first one follows again.
    pub(super) repeat: bool,
}

impl EngineStream {
    /// A stream on its schedule.
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
            count: timeline.total(),
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

/// From the engine to the rig.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum EngineReply {
    Hello(EngineHello),
    Ready,
    Refused(EngineRefusal),
    /// What has been sent so far.
    Counters {
        streams: Vec<EngineCount>,
    },
    /// What has been sent in all. It is the last message.
    Ledger {
        streams: Vec<EngineCount>,
    },
    /// Something that the report is to say.
    Note {
        text: String,
    },
    /// The engine gives up.
    Failed {
        text: String,
    },
}

impl EngineReply {
    /// Its type, as it is written.
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

/// What an engine says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct EngineHello {
    pub protocol: u32,
    pub name: String,
    #[serde(default)]
    pub version: String,
    #[serde(default)]
    pub abilities: EngineAbilities,
}

/// What an engine can do. What it does not mention, it cannot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an ability of its own, as it is in the message")]
pub struct EngineAbilities {
    /// Sends this many streams side by side; 0 counts as 1.
    pub streams: u64,
    /// Starts a stream later than the others.
    pub delay: bool,
    /// Sends bursts with pauses.
    pub bursts: bool,
    /// Sends until it is stopped.
    pub endless: bool,
    /// Begins a file again after its last frame.
    pub repeat: bool,
    /// Frames of one file at most, if there is a limit.
    pub frames: Option<u64>,
    /// The shortest and the longest frame, without FCS, if there is a limit.
    pub frame_bytes: Option<[u64; 2]>,
    /// Frames per second of a stream at most, if there is a limit.
    pub frames_per_second: Option<u64>,
}

/// What an engine cannot do of this plan.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct EngineRefusal {
    /// Which stream cannot be sent, if it is one of them.
    #[serde(default)]
    pub(super) stream: Option<u16>,
    pub(super) feature: String,
    pub(super) needs: String,
    pub(super) found: String,
}

/// What has been sent of a stream so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct EngineCount {
    pub(super) stream: u16,
    /// Frames that the kernel took.
    pub(super) frames: u64,
    /// Their bytes, without FCS.
    pub(super) bytes: u64,
    /// Frames that it refused.
    #[serde(default)]
    pub(super) refused: u64,
    #[serde(default)]
    pub(super) first_ns: Option<u64>,
    #[serde(default)]
    pub(super) last_ns: Option<u64>,
    /// By how much the two times may be wrong.
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
        assert_eq!(text(EngineOrder::Stop), r#"{"type":"stop"}"#);
        let start = EngineOrder::Start { at_ns: 7, in_ns: 2 };
        assert_eq!(text(start), r#"{"type":"start","at_ns":7,"in_ns":2}"#);
        let timeline = StreamTimeline {
            rate: FrameRate::new(1000, 3).unwrap(),
            delay: Nanos::new(5),
            shape: SendPattern::Bursts { bursts: 0, frames: 10, pause: Nanos::new(9) },
        };
        let capture = EngineCapture { file: "/d/0.pcap".into(), frames: 1, repeat: true };
        let stream = EngineStream::new(4, &timeline, [60, 60], capture);
        let preparation = EnginePreparation {
            protocol: PROTOCOL,
            interface: "eth0".to_owned(),
            link_bits_per_second: None,
            directory: "/d".into(),
            streams: vec![stream],
        };
        let text = text(EngineOrder::Prepare(&preparation));
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
        let count = EngineCount { frames: 5, bytes: 300, ..EngineCount::default() };
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
