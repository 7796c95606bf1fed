//! Properties of a port, and the counters of its two halves.

use packetrig_units::BitRate;
use packetrig_units::text::deserialize_line;
use serde::{Deserialize, Serialize};

/// Path of the frames through the machine. The result of a run names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackEnd {
    Packet,
    /// XDP: live frames and rings filled by a program.
    Xdp,
    /// AF_XDP sockets for sending; rings filled by a program, as with XDP, for receiving.
    #[serde(rename = "af-xdp")]
    AfXdp,
    /// The kernel's packet generator, for sending; AF_PACKET rings for receiving.
    Pktgen,
    /// Another program, the engine, for sending; AF_PACKET rings for receiving.
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

/// Origin of a time stamp; the later ones are further from the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StampKind {
    Hardware,
    Driver,
    /// The kernel's network stack.
    Software,
    User,
}

/// Longest text about a port, in characters.
const MAX_PORT_TEXT_CHARACTERS: usize = 1000;

/// Properties and abilities of a port. Its texts come from other machines, so they are read as one line each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortInfo {
    /// Name of the port in the plan.
    #[serde(deserialize_with = "deserialize_line::<MAX_PORT_TEXT_CHARACTERS, _>")]
    pub name: String,
    /// `ns/ifname`.
    #[serde(deserialize_with = "deserialize_line::<MAX_PORT_TEXT_CHARACTERS, _>")]
    pub location: String,
    /// Path of the frames.
    pub back_end: BackEnd,
    #[serde(deserialize_with = "deserialize_line::<MAX_PORT_TEXT_CHARACTERS, _>")]
    pub why: String,
    #[serde(deserialize_with = "deserialize_line::<MAX_PORT_TEXT_CHARACTERS, _>")]
    pub driver: String,
    /// Link speed, if the driver or the plan says.
    pub speed: Option<BitRate>,
    /// Largest frame that fits, FCS included.
    pub max_frame: u32,
    /// Origin of the stamps of departing frames.
    pub tx_stamp: StampKind,
    /// Origin of the stamps of arriving frames.
    pub rx_stamp: StampKind,
}

/// Cumulative counters of a transmit half. Frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxCounters {
    /// Frames that the kernel took.
    pub handed_over: u64,
    /// Frames that the kernel refused.
    pub refused: u64,
    /// Frames transmitted by the interface's counter; absent if not known.
    pub on_wire: Option<u64>,
    /// Frames dropped on transmit by the interface's counter.
    pub dropped: Option<u64>,
}

impl TxCounters {
    /// Returns whether frames of this run were sent here, so that the frames that the interface transmitted
    /// belong to its ledger.
    pub const fn has_sent_frames(&self) -> bool {
        self.handed_over > 0 || self.refused > 0
    }

    /// Returns the frames that the port received for sending and that its interface did not transmit, by the
    /// interface's own counters.
    pub fn unsent_by_interface(&self) -> Option<u64> {
        // The drop counter and the difference may count the same frames: the larger one, not the sum.
        let vanished = self.on_wire.map_or(0, |on_wire| self.handed_over.saturating_sub(on_wire));
        self.dropped.map(|dropped| dropped.max(vanished).saturating_add(self.refused))
    }
}

/// Cumulative counters of a receive half. Frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RxCounters {
    /// Frames received by the interface's counter; absent if not known.
    pub arrived: Option<u64>,
    /// Frames dropped on receive by the interface's counter.
    pub dropped: Option<u64>,
    /// Frames lost because our ring was full.
    pub ring_dropped: u64,
    /// Delivered to the receiver of the rig.
    pub seen: u64,
    /// Frames that are not of this run.
    pub foreign: u64,
    /// Frames of the protocols of emulated interfaces and their neighbours: ARP, neighbour discovery, echo.
    #[serde(default)]
    pub protocol: u64,
    /// Frames of this run by headers alone: the tag was damaged.
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
    /// Returns the frames that arrived at the port and that the receiver did not see.
    pub fn unseen_frames(&self) -> u64 {
        self.unexplained_unseen_frames(0)
    }

    /// Returns the same without frames that are `explained` by a faulty link.
    pub fn unexplained_unseen_frames(&self, explained: u64) -> u64 {
        // Drops of the ring are among the frames that arrived unseen. A ring is full for other reasons than its link.
        let unseen = self.arrived.map_or(0, |arrived| arrived.saturating_sub(self.seen));
        // A link can explain frames that the interface counted. It cannot explain frames that our own ring dropped.
        self.ring_dropped.max(unseen.saturating_sub(explained))
    }
}
