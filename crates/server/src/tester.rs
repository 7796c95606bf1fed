//! What stands behind the API: the trait that the caller of [`serve`](crate::serve) implements, and its values.
//!
//! Nothing here knows HTTP, gRPC or protobuf. Counts that are not known are `None`; the API leaves them out.

use serde_json::Value;
use std::io::Read;
use std::net::IpAddr;

/// A tester: one configuration at a time, and what it measures.
///
/// # For implementers
///
/// Every method may block and is called from several threads at once, each time on a thread of its own that may block.
/// The server keeps one rule: calls that change something ([`set_config`](Self::set_config),
/// [`update_config`](Self::update_config), [`append_config`](Self::append_config),
/// [`delete_config`](Self::delete_config), [`set_state`](Self::set_state), [`ping`](Self::ping) and
/// [`capture`](Self::capture), which stops it) come one after the other, to their end even if the client has gone. The
/// others come at any time, also while a change is under way, and should answer from what is known then: clients poll.
/// Clients give up after 10 s, so a configuration or a start must answer well before that.
///
/// JSON is in the shape of the Open Traffic Generator model and has passed it: members are known ones, of the right
/// kind, in range of their type, 64-bit integers are strings, there is no `null`, `choice` is there wherever a member
/// says which it is. Limits, references and unique names are the implementer's, best by `packetrig_plan`. The server
/// checks what comes back against the same shape; what does not fit it is a bug and answered as one.
///
/// Before any configuration nothing is an error: the configuration is `{}`, lists are empty.
pub trait Tester: Send + Sync + 'static {
    /// Replaces the configuration, clears all counters, and says what is worth a warning. `{}` is the usual clean-up.
    fn set_config(&self, config: Value) -> Result<Vec<String>, TesterRefusal>;

    /// The configuration in force; `{}` before any.
    fn config(&self) -> Value;

    /// What [`set_config`](Self::set_config) would refuse, changing nothing. It is asked only when the shape of a
    /// configuration is wrong already, so that the user sees all problems at once. Lines begin with the path: the
    /// server drops those whose path it has complained about itself.
    fn problems(&self, config: &Value) -> Vec<String> {
        let _ = config;
        Vec::new()
    }

    /// Changes rate or size of flows (OTG's `ConfigUpdate`) without disturbing whether they transmit. All or nothing.
    fn update_config(&self, update: Value) -> Result<Vec<String>, TesterRefusal>;

    /// Adds flows (OTG's `ConfigAppend`). All or nothing.
    fn append_config(&self, append: Value) -> Result<Vec<String>, TesterRefusal>;

    /// Removes flows (OTG's `ConfigDelete`). All or nothing.
    fn delete_config(&self, delete: Value) -> Result<Vec<String>, TesterRefusal>;

    /// Starts, stops, pauses, switches. What is not named does not change.
    fn set_state(&self, state: SwitchedState) -> Result<Vec<String>, TesterRefusal>;

    /// Sends an echo request each, and says for each whether the reply came.
    fn ping(&self, requests: Vec<PingTask>) -> Result<Vec<PingResult>, TesterRefusal>;

    /// Rows of these ports, in the order of the configuration; of all if none is named. An unknown name is a validation
    /// error.
    fn ports(&self, names: &[String]) -> Result<Vec<PortRow>, TesterRefusal>;

    /// Rows of these flows, of those that have metrics; of all if none is named. An unknown name is a validation error.
    fn flows(&self, names: &[String]) -> Result<Vec<FlowRow>, TesterRefusal>;

    /// Neighbours of these emulated Ethernet interfaces, of all if none is named: one row for each interface and
    /// gateway, resolved or not.
    fn neighbours(
        &self,
        family: IpFamily,
        ethernets: &[String],
    ) -> Result<Vec<KnownNeighbour>, TesterRefusal>;

    /// Stops the capture on a port, if it still runs, and opens what was captured.
    fn capture(&self, port: &str, part: CapturePart) -> Result<CaptureFile, TesterRefusal>;
}

/// Something to switch. Empty lists of names mean all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchedState {
    Traffic { change: FlowChange, flows: Vec<String> },
    Capture { on: bool, ports: Vec<String> },
    Link { up: bool, ports: Vec<String> },
    Protocols { on: bool },
}

/// What happens to flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowChange {
    /// From the first frame; clears the counters of the flows it starts.
    Start,
    Stop,
    Pause,
    /// A paused flow goes on where it was, a stopped one starts from its first frame.
    Resume,
}

/// An echo request to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PingTask {
    /// Name of the address object of a device it is sent from.
    pub source: String,
    /// Where to. Its family is that of the request.
    pub destination: IpAddr,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PingResult {
    pub source: String,
    pub destination: IpAddr,
    /// Whether the reply came.
    pub succeeded: bool,
}

/// Counters of a port. Bytes include the FCS. Rates are per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PortRow {
    /// Its name in the configuration.
    pub name: String,
    /// As the configuration has it.
    pub location: String,
    /// Whether the link is up.
    pub link_up: bool,
    /// Whether a capture runs.
    pub capturing: bool,
    /// Whether any flow transmits.
    pub transmitting: bool,
    pub frames_tx: u64,
    pub frames_rx: u64,
    pub bytes_tx: u64,
    pub bytes_rx: u64,
    /// Frames sent per second, of late.
    pub frames_tx_rate: f64,
    /// Frames received per second, of late.
    pub frames_rx_rate: f64,
    /// Bytes sent per second, of late.
    pub bytes_tx_rate: f64,
    /// Bytes received per second, of late.
    pub bytes_rx_rate: f64,
    /// When the link last changed, in ns since 1970.
    pub last_change_ns: Option<u64>,
    /// Speed of the link in kilobytes (1000 bytes) per second: 1 Gbit/s is 125000.
    pub speed_kbytes: Option<u64>,
}

/// Whether a flow transmits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransmitState {
    /// Frames leave, or the last ones are still on their way.
    Started,
    /// All is sent, and received or lost.
    #[default]
    Stopped,
    /// Between pause and resume.
    Paused,
}

/// Counters of a flow, over all its receiving ports. Bytes include the FCS.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowRow {
    /// Its name in the configuration.
    pub name: String,
    /// Name of the sending port.
    pub port_tx: String,
    /// Name of the receiving port; several are joined by a comma, none is empty.
    pub port_rx: String,
    pub transmit: TransmitState,
    pub frames_tx: u64,
    pub frames_rx: u64,
    pub bytes_tx: u64,
    pub bytes_rx: u64,
    /// Frames sent per second, of late.
    pub frames_tx_rate: f64,
    /// Frames received per second, of late.
    pub frames_rx_rate: f64,
    /// Bytes sent per second, of late. Further units are worked out from it.
    pub bytes_tx_rate: f64,
    /// Bytes received per second, of late.
    pub bytes_rx_rate: f64,
    /// Loss in percent, if the configuration asks for it.
    pub loss: Option<f64>,
    /// First and last arrival in ns, if the configuration asks for them.
    pub timestamps: Option<(f64, f64)>,
    /// Latency, if the configuration asks for it.
    pub latency: Option<LatencyFigures>,
}

/// Latency in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatencyFigures {
    pub minimum: f64,
    pub average: f64,
    pub maximum: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFamily {
    /// IPv4: ARP.
    V4,
    /// IPv6: neighbour discovery.
    V6,
}

/// What an emulated interface knows of a neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownNeighbour {
    /// Name of the Ethernet interface.
    pub ethernet: String,
    /// The neighbour's address, of the family asked for.
    pub address: IpAddr,
    /// Its MAC address like `02:00:00:00:00:01`; `None` until it is resolved.
    pub mac: Option<String>,
}

/// Which frames of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapturePart {
    All,
    /// `count` frames from number `start`, which counts from 1.
    Slice {
        start: u64,
        /// How many at most.
        count: u64,
    },
}

/// A capture file, as it would be on disk: header included, also if no frame is in it.
pub struct CaptureFile {
    /// Its bytes. Reading may block.
    pub bytes: Box<dyn Read + Send>,
    /// How many, if known.
    pub length: Option<u64>,
}

impl std::fmt::Debug for CaptureFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaptureFile").field("length", &self.length).finish_non_exhaustive()
    }
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", errors.join("; "))]
pub struct TesterRefusal {
    pub kind: RefusalKind,
    /// All that is wrong, each line beginning with the path in the document where there is one:
    /// `flows[3].rate.percentage: …`.
    pub errors: Vec<String>,
}

/// Whose fault a refusal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The request's: HTTP 400, gRPC 3.
    Validation,
    /// The rig's: HTTP 500, gRPC 13.
    Internal,
    /// OTG has it and packetrig has not: HTTP 501, gRPC 12.
    Unimplemented,
}

impl TesterRefusal {
    /// The request is wrong.
    pub fn validation(error: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Validation, errors: vec![error.into()] }
    }

    pub fn internal(error: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Internal, errors: vec![error.into()] }
    }

    pub fn unimplemented(error: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Unimplemented, errors: vec![error.into()] }
    }
}
