//! The plan: the contents of a valid document as Rust types.

mod bind;
mod port;
mod size;

pub use bind::{BoundPlan, BoundStream};
pub use port::{Port, PortHost, PortLocation};
pub(crate) use size::MeanSize;

use crate::device::{DeviceInterface, DeviceNeighbour, Mac};
use crate::document::TextPosition;
use crate::recording::{FrameOrigin, PlannedRecording};
use crate::{PlanProblem, PlanProblems};
use packetrig_units::{BitRate, FrameRate, Nanos, Rate, clamp_to_u64};
use packetrig_wire::FrameTemplate;
use packetrig_wire::filter::FrameFilter;
use packetrig_wire::header::FieldSetting;
use packetrig_wire::pattern::FieldPattern;
use std::sync::Arc;

/// Everything that a valid document says about a run.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub ports: Vec<Port>,
    /// Interfaces of emulated devices.
    pub interfaces: Vec<DeviceInterface>,
    /// True if the emulated interfaces start to answer and to resolve addresses as soon as their ports are open.
    pub auto_start: bool,
    /// The index of a stream in this list is also its number in the test tag.
    pub streams: Vec<Stream>,
    pub captures: Vec<PlannedCapture>,
    /// The probes; a plan with probes has no streams.
    pub probes: Option<crate::probes::ProbePlan>,
    pub criteria: crate::criteria::AcceptanceCriteria,
    pub warnings: Vec<PlanProblem>,
}

/// Frames from one port to other ports: a whole OTG flow, or the share of a flow that one pair
/// of emulated interfaces sends.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Position in the document of the stream's rate, or of its flow if the flow has no rate. Errors about the schedule
    /// of the stream are reported at this position.
    pub place: TextPosition,
    /// Name of the stream: the name of its flow, followed by the pair of interfaces if the flow has several pairs.
    pub name: String,
    /// Index of the stream's flow in the document.
    pub flow: usize,
    pub flow_name: String,
    /// The share of the flow's frames that this stream sends.
    pub part: FlowShare,
    /// The neighbour whose MAC address the frames need, if this address is known only at run time; see
    /// [`Stream::frames_with_mac`].
    pub awaits: Option<DeviceNeighbour>,
    /// Index of the sending port.
    pub tx: usize,
    /// Indices of the receiving ports; may be empty.
    pub rx: Vec<usize>,
    pub frames: FrameOrigin,
    pub rate: Rate,
    pub duration: StreamDuration,
    pub metrics: WantedMetrics,
}

/// A stream's share of the frames of a flow: `of` streams divide them, and this one sends frames `index`,
/// `index + of`, …
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowShare {
    /// Number of the stream among the `of` streams, counted from 0.
    pub index: u64,
    pub of: u64,
}

impl FlowShare {
    pub const WHOLE_FLOW: Self = Self { index: 0, of: 1 };

    /// Returns how many of the flow's `frames` frames the stream with this share sends.
    const fn count_frames_in_share(self, frames: u64) -> u64 {
        // The first `frames % of` streams send one frame more, so that all shares add up to `frames`.
        frames / self.of + (self.index < frames % self.of) as u64
    }
}

/// A pause as OTG gives it: as a time, or as a number of bytes that the link could send in that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtgPause {
    /// The time that these bytes take on the link.
    Bytes(u64),
    Time(Nanos),
}

/// How long a stream sends, and its pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamDuration {
    pub amount: StreamAmount,
    /// Pause before the first frame.
    pub delay: OtgPause,
    /// Minimum number of idle bytes between frames.
    pub gap: u32,
}

/// When a stream stops; the variants are OTG's kinds of duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamAmount {
    Continuous,
    /// Stops after this many frames.
    Packets(u64),
    Seconds(Nanos),
    /// Bursts of frames at the stream's rate.
    Bursts {
        /// Number of bursts; 0 = until stopped.
        bursts: u64,
        packets: u64,
        /// Pause from the end of one burst to the next.
        between: OtgPause,
    },
}

/// The measurements that a flow requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WantedMetrics {
    /// True if the flow is measured: its frames then carry the test tag.
    pub enable: bool,
    pub latency: bool,
    /// Number of received frames that are expected for each sent frame, in thousandths: 1000 unless
    /// OTG's `rx_tx_ratio` says otherwise.
    pub rx_per_tx_thousandths: u64,
}

/// A capture of the frames that ports receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedCapture {
    /// Name of the capture in the plan.
    pub name: String,
    pub ports: Vec<usize>,
    pub format: CaptureFormat,
    /// Maximum number of bytes that are captured from each frame; `None` captures whole frames.
    pub snap_len: Option<u32>,
    /// True to overwrite the oldest frames when the capture is full (default), false to stop.
    pub overwrite: bool,
    pub filter: FrameFilter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureFormat {
    Pcap,
    Pcapng,
}

/// Options for reading a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanParseOptions {
    /// Seed for random values for which the document gives no seed. The report names this seed, so that a
    /// run can be repeated.
    pub seed: u64,
    /// True if the plan is for a fleet: locations are `NODE/IF`, `NODE/NS/IF` or `any-LABEL`.
    pub fleet: bool,
    /// True if the document is the part of a plan that one node needs, see [`crate::PlanPartCutter`].
    pub part: bool,
}

impl Plan {
    /// Reads a document (YAML or JSON). The plan contains the warnings.
    pub fn from_text(text: &str) -> Result<Self, PlanProblems> {
        Self::from_text_with(text, PlanParseOptions::default())
    }

    /// Reads a document with options, like [`Self::from_text`].
    pub fn from_text_with(text: &str, options: PlanParseOptions) -> Result<Self, PlanProblems> {
        crate::read::read_plan(text, options)
    }
}

impl Stream {
    /// Returns the stream's frames with `mac` as their destination MAC address. If `awaits` is `None`,
    /// they are returned unchanged.
    pub fn frames_with_mac(&self, mac: Mac) -> Result<FrameOrigin, packetrig_wire::Error> {
        let template = match &self.frames {
            _ if self.awaits.is_none() => return Ok(self.frames.clone()),
            FrameOrigin::Recorded(recording) => {
                let mut recording = PlannedRecording::clone(recording);
                recording.rewrite.dst_mac = Some(mac);
                return Ok(FrameOrigin::Recorded(Arc::new(recording)));
            }
            FrameOrigin::Made(template) => template,
        };
        // A stream awaits an address only if its frames begin with an Ethernet header, so the first header
        // is the right one.
        let mut spec = template.spec().clone();
        // All frames of the stream get the same address, so a constant replaces the pattern.
        if let Some(ethernet) = spec.headers.first_mut() {
            let value = mac.iter().fold(0, |value, byte| value << 8 | u128::from(*byte));
            ethernet.set_field("dst", FieldSetting::Pattern(FieldPattern::Value(value)));
        }
        Ok(Arc::new(FrameTemplate::new(spec)?).into())
    }

    /// Layer 1 bits per second at this frame rate.
    pub fn l1_rate(&self, rate: FrameRate) -> BitRate {
        let size = MeanSize::from(self.frames.mean_size());
        rate.bit_rate(size.l1_bytes(), size.frames)
    }

    /// Layer 2 bits per second at this frame rate, FCS included.
    pub fn l2_rate(&self, rate: FrameRate) -> BitRate {
        let size = MeanSize::from(self.frames.mean_size());
        rate.bit_rate(size.bytes, size.frames)
    }

    /// Returns how many frames all receivers together should get if the stream sends `sent` frames.
    pub fn expected_copies(&self, sent: u64) -> u64 {
        // The product has 128 bits: the count of a long run times 1000 overflows 64.
        // The result is rounded down: a fraction of a frame cannot arrive.
        let expected = u128::from(sent) * u128::from(self.metrics.rx_per_tx_thousandths) / 1000;
        clamp_to_u64(expected)
    }
}
