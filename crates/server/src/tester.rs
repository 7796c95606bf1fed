//! The trait [`Tester`] behind the API, which the caller of [`serve_rig`](crate::serve_rig) implements, and the types
//! of its arguments and results.
//!
//! This module does not know HTTP, gRPC or protobuf. Unknown counts are `None`, and the API leaves them out.

use serde_json::Value;
use std::io::Read;
use std::net::IpAddr;

/// A traffic tester: it has at most one configuration at a time, and reports what it measures.
///
/// # For implementers
///
/// Every method may block. The server calls methods from several threads at once, all of which may block. It
/// guarantees one thing: calls that change something ([`set_config`](Self::set_config),
/// [`update_config`](Self::update_config), [`append_config`](Self::append_config),
/// [`delete_config`](Self::delete_config), [`set_state`](Self::set_state), [`send_pings`](Self::send_pings) and
/// [`open_capture`](Self::open_capture), which stops the capture) come one after the other, and run to their end even
/// if the client has disconnected. All other calls come at any time, also during a change. They should answer at once
/// with the latest values, because clients poll. Clients give up after 10 s, so a configuration or a start must
/// answer well before that.
///
/// JSON was checked against the Open Traffic Generator model: members are known, have the right type and are in its
/// range; 64-bit integers are strings; there is no `null`; `choice` is present wherever a member implies it. The
/// implementer checks limits, references and unique names, best with `packetrig_plan`. The server also checks the
/// current configuration against the model, and that all rates are finite; if not, the client gets an internal error.
///
/// A missing configuration is no error: the configuration is `{}`, and lists are empty.
pub trait Tester: Send + Sync + 'static {
    /// Replaces the configuration, clears all counters, and returns warnings. Clients send `{}` to clean up.
    /// The configuration is passed as text, because it may have many megabytes, and parsed values would take
    /// many times its length.
    fn set_config(&self, config: String) -> Result<Vec<String>, TesterRefusal>;

    /// The configuration in force; `{}` if there is none.
    fn current_config(&self) -> Value;

    /// Lists the problems for which [`set_config`](Self::set_config) would refuse a configuration; changes nothing.
    /// It is called only if a configuration does not match the model, so that the user sees all problems at once.
    /// Each line begins with the path: the server drops a line if it has reported a problem at the same path itself.
    fn config_problems(&self, config: String) -> Vec<String> {
        drop(config);
        Vec::new()
    }

    /// Changes rate or size of flows (OTG's `ConfigUpdate`). Transmitting flows continue. If it fails, nothing changes.
    fn update_config(&self, update: Value) -> Result<Vec<String>, TesterRefusal>;

    /// Adds flows (OTG's `ConfigAppend`). If it fails, nothing changes.
    fn append_config(&self, append: Value) -> Result<Vec<String>, TesterRefusal>;

    /// Removes flows (OTG's `ConfigDelete`). If it fails, nothing changes.
    fn delete_config(&self, delete: Value) -> Result<Vec<String>, TesterRefusal>;

    /// Starts, stops, pauses or resumes flows, or switches captures, links or protocols. Everything that the request
    /// does not name stays as it is.
    fn set_state(&self, state: RequestedState) -> Result<Vec<String>, TesterRefusal>;

    /// Sends one echo request for each task, and returns for each whether its reply arrived.
    fn send_pings(&self, requests: Vec<PingTask>) -> Result<Vec<PingResult>, TesterRefusal>;

    /// Rows of the named ports, or of all ports if none is named, in the order of the configuration. An unknown name
    /// is a validation error.
    fn port_rows(&self, names: &[String]) -> Result<Vec<PortRow>, TesterRefusal>;

    /// Rows of the named flows, or of all flows if none is named. A flow without metrics has no row. An unknown name
    /// is a validation error.
    fn flow_rows(&self, names: &[String]) -> Result<Vec<FlowRow>, TesterRefusal>;

    /// Neighbours of the named emulated Ethernet interfaces, or of all if none is named: one row for each interface and
    /// gateway, resolved or not.
    fn neighbour_rows(
        &self,
        family: IpFamily,
        ethernets: &[String],
    ) -> Result<Vec<NeighbourRow>, TesterRefusal>;

    /// Stops the capture on a port, if it still runs, and opens its file.
    fn open_capture(&self, port: &str, part: CaptureRange) -> Result<CaptureFile, TesterRefusal>;
}

/// A requested change of state. An empty list of names means all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestedState {
    Traffic { change: FlowChange, flows: Vec<String> },
    Capture { on: bool, ports: Vec<String> },
    Link { up: bool, ports: Vec<String> },
    Protocols { on: bool },
}

/// Change of the state of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowChange {
    /// Starts from the first frame; clears the counters of the flows it starts.
    Start,
    Stop,
    Pause,
    /// Continues a paused flow where it was paused; starts a stopped flow from its first frame.
    Resume,
}

/// An echo request to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PingTask {
    /// Name of the device address that sends it.
    pub source: String,
    /// Address to which the request is sent. Its family (IPv4 or IPv6) is the one that the client chose for the call.
    pub destination: IpAddr,
}

/// The result of an echo request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PingResult {
    pub source: String,
    pub destination: IpAddr,
    /// True if the reply arrived in time.
    pub succeeded: bool,
}

/// Counters of a port. Bytes include the FCS. Rates are per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PortRow {
    /// Name in the configuration.
    pub name: String,
    /// Location as the client wrote it in the configuration.
    pub location: String,
    /// True if the link is up, or its state is not known yet.
    pub link_up: bool,
    /// True if a capture runs.
    pub capturing: bool,
    /// True if any flow transmits from the port.
    pub transmitting: bool,
    pub frames_tx: u64,
    pub frames_rx: u64,
    pub bytes_tx: u64,
    pub bytes_rx: u64,
    /// Frames sent per second, over the last second.
    pub frames_tx_rate: f64,
    /// Frames received per second, over the last second.
    pub frames_rx_rate: f64,
    /// Bytes sent per second, over the last second.
    pub bytes_tx_rate: f64,
    /// Bytes received per second, over the last second.
    pub bytes_rx_rate: f64,
    /// Time of the link's last change, in ns since 1970.
    pub last_change_ns: Option<u64>,
    /// Speed of the link in kilobytes (1000 bytes) per second: 1 Gbit/s is 125000.
    pub speed_kbytes: Option<u64>,
}

/// Transmission state of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransmitState {
    /// Frames leave, or the last ones are still on their way.
    Started,
    /// No frame leaves: the flow was not started, was stopped, or has sent all its frames. Each sent frame was received
    /// or counts as lost.
    #[default]
    Stopped,
    /// The flow was paused, and not yet resumed or stopped.
    Paused,
}

/// Counters of one route of a flow: from one sending port to the same receiving ports. Bytes include the FCS.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowRow {
    /// Name in the configuration.
    pub name: String,
    /// Name of the sending port.
    pub port_tx: String,
    /// Name of the receiving port. Several names are joined by commas; empty if there is no receiving port.
    pub port_rx: String,
    pub transmit: TransmitState,
    pub frames_tx: u64,
    pub frames_rx: u64,
    pub bytes_tx: u64,
    pub bytes_rx: u64,
    /// Frames sent per second, over the last second.
    pub frames_tx_rate: f64,
    /// Frames received per second, over the last second.
    pub frames_rx_rate: f64,
    /// Bytes sent per second, over the last second. The other units are computed from it.
    pub bytes_tx_rate: f64,
    /// Bytes received per second, over the last second.
    pub bytes_rx_rate: f64,
    /// Loss in percent, if the configuration requests it.
    pub loss: Option<f64>,
    /// First and last arrival in ns since 1970 (0 without a frame), if the configuration requests them.
    pub timestamps: Option<(f64, f64)>,
    /// Latency, if the configuration requests it and it was measured.
    pub latency: Option<LatencyFigures>,
}

/// Least, mean and largest latency in ns.
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

/// A neighbour of an emulated interface, resolved or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighbourRow {
    /// Name of the Ethernet interface.
    pub ethernet: String,
    /// The neighbour's address, of the requested family.
    pub address: IpAddr,
    /// MAC address, such as `02:00:00:00:00:01`; `None` until it is resolved.
    pub mac: Option<String>,
}

/// The frames of a capture that are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureRange {
    All,
    /// At most `count` frames, beginning with number `start`. The first frame of the capture has number 1.
    Slice {
        start: u64,
        /// Maximum number of frames.
        count: u64,
    },
}

/// A capture file, as it would be on disk. The header is included, even if there is no frame.
pub struct CaptureFile {
    /// The content of the file. Reading may block.
    pub bytes: Box<dyn Read + Send>,
    /// Number of bytes, if known.
    pub length: Option<u64>,
}

impl std::fmt::Debug for CaptureFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaptureFile").field("length", &self.length).finish_non_exhaustive()
    }
}

/// Refusal of a call, with its reasons.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", errors.join("; "))]
pub struct TesterRefusal {
    pub kind: RefusalKind,
    /// All problems, one in each entry. An entry begins with the path in the document, if the problem
    /// has one: `flows[3].rate.percentage: …`.
    pub errors: Vec<String>,
}

/// The kind of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The request is wrong: HTTP 400, gRPC 3.
    Validation,
    /// The rig failed: HTTP 500, gRPC 13.
    Internal,
    /// OTG has the feature and packetrig does not: HTTP 501, gRPC 12.
    Unimplemented,
}

impl TesterRefusal {
    pub fn validation(error: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Validation, errors: vec![error.into()] }
    }

    pub fn internal(error: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Internal, errors: vec![error.into()] }
    }

    pub fn not_implemented(error: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Unimplemented, errors: vec![error.into()] }
    }
}
