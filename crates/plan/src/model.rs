//! The plan: what a valid document means, in our words.

use crate::timeline::Timeline;
use crate::{Problem, Problems};
use packetrig_units::{BitRate, Nanos, Rate};
use packetrig_wire::{FrameSpec, filter::Filter};
use serde::{Deserialize, Serialize};

/// Everything a run needs to know.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Interfaces by the names the document gives them.
    pub ports: Vec<Port>,
    /// What is sent. A stream's index is its number in the test tag.
    pub streams: Vec<Stream>,
    /// What is captured.
    pub captures: Vec<Capture>,
    /// Things accepted but worth saying.
    pub warnings: Vec<Problem>,
}

/// Where a port is: `eth1`, or `ns/eth1` for an interface in a named network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Location {
    /// Named network namespace; `None` is the caller's own.
    pub namespace: Option<String>,
    /// Interface name.
    pub interface: String,
}

/// A network interface used for test traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name in the plan.
    pub name: String,
    /// Where it is.
    pub location: Location,
    /// Nominal speed (layer1.speed), if given.
    pub speed: Option<BitRate>,
    /// Wanted MTU, if given.
    pub mtu: Option<u32>,
    /// Whether it should receive everything (default yes).
    pub promiscuous: bool,
}

/// One OTG flow: frames from one port to others.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// Its name in the plan.
    pub name: String,
    /// Index of the sending port.
    pub tx: usize,
    /// Indices of the receiving ports; may be empty.
    pub rx: Vec<usize>,
    /// What its frames look like.
    pub frame: FrameSpec,
    /// How much.
    pub rate: Rate,
    /// How long.
    pub duration: Duration,
    /// What is measured.
    pub metrics: Metrics,
}

/// A pause, as OTG writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap {
    /// The time these bytes take on the link.
    Bytes(u64),
    /// A time.
    Time(Nanos),
}

/// How long a stream sends. `delay` is before the first frame; `gap` is the least idle time between frames, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "OTG's names")]
pub enum Duration {
    Continuous {
        gap: u32,
        delay: Gap,
    },
    Packets {
        packets: u64,
        gap: u32,
        delay: Gap,
    },
    Seconds {
        seconds: Nanos,
        gap: u32,
        delay: Gap,
    },
    /// `bursts` 0 = for ever. Frames of a burst at the stream's rate, then the inter-burst gap.
    Bursts {
        bursts: u64,
        packets: u64,
        gap: u32,
        between: Gap,
    },
}

/// What the user wants measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Frames carry the test tag.
    pub enable: bool,
    /// Latency is wanted.
    pub latency: bool,
    /// Frames expected per frame sent: 1, or the number of receivers (OTG `rx_tx_ratio: rx_count`), or a given value
    /// in thousandths.
    pub rx_per_tx_thousandths: u64,
}

/// A capture of what a port receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// Its name in the plan.
    pub name: String,
    /// Ports captured.
    pub ports: Vec<usize>,
    /// File format.
    pub format: CaptureFormat,
    /// Keep at most this many bytes of a frame.
    pub snap_len: Option<u32>,
    /// When full: overwrite the oldest (default) or stop.
    pub overwrite: bool,
    /// What is kept.
    pub filter: Filter,
}

/// Capture file formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum CaptureFormat {
    Pcap,
    Pcapng,
}

/// A plan whose rates and gaps are settled for the links at hand.
#[derive(Clone, Debug)]
pub struct BoundPlan {
    /// The plan.
    pub plan: Plan,
    /// Per stream, in plan order.
    pub streams: Vec<BoundStream>,
}

/// A stream's timeline.
#[derive(Clone, Debug)]
pub struct BoundStream {
    /// When each frame is due.
    pub timeline: Timeline,
}

impl Plan {
    /// Reads a document (YAML or JSON). `Ok` may carry warnings.
    pub fn read(text: &str) -> Result<Self, Problems> {
        let _ = text;
        todo!()
    }

    /// Settles rates and gaps for the given port speeds (one per port; layer1.speed wins over the link's own).
    /// Refuses a port asked for more than its speed.
    pub fn bind(self, speeds: &[Option<BitRate>]) -> Result<BoundPlan, Problems> {
        let _ = speeds;
        todo!()
    }
}
