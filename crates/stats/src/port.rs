//! Properties of a port, and the counters of its transmit and receive halves.

use packetrig_units::BitRate;
use packetrig_units::text::deserialize_line;
use serde::{Deserialize, Serialize};

/// How the machine sends and receives frames. The result of a run names the back end of each port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackEnd {
    Packet,
    /// XDP: frames are sent as live frames; a BPF program fills the receive rings.
    Xdp,
    /// AF_XDP sockets for sending. For receiving, a BPF program fills rings, as with `Xdp`.
    #[serde(rename = "af-xdp")]
    AfXdp,
    /// The kernel's packet generator, for sending; AF_PACKET rings for receiving.
    Pktgen,
    /// An external program, the engine, for sending; AF_PACKET rings for receiving.
    Process,
    /// A simulated link in virtual time.
    Sim,
    Mock,
}

impl BackEnd {
    /// Returns the name that users write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Xdp => "xdp",
            Self::AfXdp => "af-xdp",
            Self::Pktgen => "pktgen",
            Self::Process => "process",
            Self::Sim => "sim",
            Self::Mock => "mock",
        }
    }
}

/// The origin of a timestamp, ordered by increasing distance from the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StampKind {
    Hardware,
    Driver,
    /// The kernel's network stack.
    Software,
    User,
}

/// Maximum length of a text about a port, in characters.
const MAX_PORT_TEXT_CHARACTERS: usize = 1000;

/// Properties of a port. Its texts come from other machines, so each is read as one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortInfo {
    /// Name of the port in the plan.
    #[serde(deserialize_with = "deserialize_line::<MAX_PORT_TEXT_CHARACTERS, _>")]
    pub name: String,
    /// `ns/ifname`.
    #[serde(deserialize_with = "deserialize_line::<MAX_PORT_TEXT_CHARACTERS, _>")]
    pub location: String,
    /// The back end that sends and receives the frames; `why` is the reason for its choice.
    pub back_end: BackEnd,
    #[serde(deserialize_with = "deserialize_line::<MAX_PORT_TEXT_CHARACTERS, _>")]
    pub why: String,
    #[serde(deserialize_with = "deserialize_line::<MAX_PORT_TEXT_CHARACTERS, _>")]
    pub driver: String,
    /// Link speed, if the driver or the plan states it.
    pub speed: Option<BitRate>,
    /// Size of the largest possible frame, FCS included.
    pub max_frame: u32,
    /// Origin of the timestamps of departing frames.
    pub tx_stamp: StampKind,
    /// Origin of the timestamps of arriving frames.
    pub rx_stamp: StampKind,
}

/// Cumulative counters of the transmit half of a port, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxCounters {
    /// Frames that the kernel accepted.
    pub handed_over: u64,
    /// Frames that the kernel refused.
    pub refused: u64,
    /// Transmitted frames, according to the counter of the interface; absent if not known.
    pub on_wire: Option<u64>,
    /// Frames dropped on transmit, according to the counter of the interface; absent if not known.
    pub dropped: Option<u64>,
}

impl TxCounters {
    /// Returns whether frames of this run were handed to the kernel at this port, even if it refused them.
    /// Only then does the interface's counter of transmitted frames belong in the ledger.
    pub const fn has_tried_to_send(&self) -> bool {
        self.handed_over > 0 || self.refused > 0
    }

    /// Returns the number of frames that the port was asked to send and that its interface did not transmit, according
    /// to the counters of the interface; `None` if the interface does not count drops.
    pub fn unsent_by_interface(&self) -> Option<u64> {
        // The drop counter and the difference may contain the same frames, so the larger number is used
        // instead of the sum.
        let vanished = self.on_wire.map_or(0, |on_wire| self.handed_over.saturating_sub(on_wire));
        self.dropped.map(|dropped| dropped.max(vanished).saturating_add(self.refused))
    }
}

/// Cumulative counters of the receive half of a port, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RxCounters {
    /// Received frames, according to the counter of the interface; absent if not known.
    pub arrived: Option<u64>,
    /// Frames dropped on receive, according to the counter of the interface; absent if not known.
    pub dropped: Option<u64>,
    /// Frames that were lost because the receive ring was full.
    pub ring_dropped: u64,
    /// Frames that were delivered to the receiver of the rig.
    pub seen: u64,
    /// Frames that the receiver assigns neither to a run of packetrig nor to `protocol`.
    pub foreign: u64,
    /// Frames of the protocols of emulated interfaces and their neighbours: ARP, neighbour discovery, echo.
    #[serde(default)]
    pub protocol: u64,
    /// Frames that belong to this run according to their headers, but whose tag was damaged.
    pub unnumbered: u64,
    /// Frames of this run that are not expected at this port: misdelivered, flooded or reflected.
    #[serde(default)]
    pub misdelivered: u64,
    /// Frames of another run of packetrig.
    #[serde(default)]
    pub other_runs: u64,
    /// Bytes of the frames of this run, FCS included.
    pub bytes: u64,
    /// Bytes of foreign frames, FCS included.
    #[serde(default)]
    pub foreign_bytes: u64,
    /// True if the link is up; absent if not known.
    #[serde(default)]
    pub link_up: Option<bool>,
}

impl RxCounters {
    /// Returns the number of frames that arrived at the port and that the receiver did not see.
    pub fn unseen_frames(&self) -> u64 {
        self.unexplained_unseen_frames(0)
    }

    /// Like [`Self::unseen_frames`], but without up to `explained` frames, whose loss a faulty link explains.
    pub fn unexplained_unseen_frames(&self, explained: u64) -> u64 {
        // The drops of the ring are among the frames that arrived and were not seen. A full ring has other
        // causes than the link.
        let unseen = self.arrived.map_or(0, |arrived| arrived.saturating_sub(self.seen));
        // A faulty link can explain frames that the interface counted, but not frames that the receive ring dropped.
        self.ring_dropped.max(unseen.saturating_sub(explained))
    }
}
