//! State of a rig for viewers: the run in progress, past results and the nodes of a fleet. The caller of
//! [`serve_rig`](crate::serve_rig) implements the traits of this module, as it implements [`Tester`].
//!
//! This module cannot change the run. An unknown count is `None`, never 0.

use crate::methods::MethodService;
use crate::tester::{LatencyFigures, NeighbourRow, PortRow, Tester, TransmitState};
use packetrig_stats::ledger::FrameLedger;
use packetrig_stats::live_loss::LiveLoss;
use packetrig_stats::port::{PortInfo, RxCounters, TxCounters};
use packetrig_units::Nanos;
use serde_json::Value;
use std::sync::Arc;

/// The parts of a rig that the server offers. Calls that need a part that is `None` are answered with status 404.
#[derive(Clone, Default)]
pub struct ServedRig {
    pub tester: Option<Arc<dyn Tester>>,
    pub live: Option<Arc<dyn LiveSource>>,
    pub results: Option<Arc<dyn ResultArchive>>,
    /// The nodes of a fleet, one entry for each.
    pub nodes: Option<Arc<dyn RigPartSource>>,
    pub methods: Option<Arc<dyn MethodService>>,
    pub flows: Option<Arc<dyn FlowArchive>>,
    /// Logs: continuous captures of frames in numbered files.
    pub logs: Option<Arc<dyn RigPartSource>>,
    pub taps: Option<Arc<dyn RigPartSource>>,
    /// Measured limits of this machine itself.
    pub calibration: Option<Arc<dyn RigPartSource>>,
}

impl std::fmt::Debug for ServedRig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServedRig")
            .field("tester", &self.tester.is_some())
            .field("live", &self.live.is_some())
            .field("results", &self.results.is_some())
            .field("nodes", &self.nodes.is_some())
            .field("methods", &self.methods.is_some())
            .field("flows", &self.flows.is_some())
            .field("logs", &self.logs.is_some())
            .field("taps", &self.taps.is_some())
            .field("calibration", &self.calibration.is_some())
            .finish()
    }
}

impl ServedRig {
    /// Serves only a tester, without a live page, results or nodes.
    pub fn from_tester(tester: Arc<dyn Tester>) -> Self {
        Self { tester: Some(tester), ..Self::default() }
    }
}

/// The run in progress.
///
/// # For implementers
///
/// While there is a viewer, `revision` is called ten times a second, and `live_state` whenever the revision has
/// changed. Single requests call `live_state`, too. The functions are called on threads that may block. They must not
/// wait for a change or for the run, and the run must not wait for them.
pub trait LiveSource: Send + Sync + 'static {
    /// A number that changes whenever the latest state changes.
    fn revision(&self) -> u64;
    /// Returns the latest state of the rig.
    fn live_state(&self) -> LiveState;
}

/// The state of a rig at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveState {
    pub revision: u64,
    /// Number of the configuration since the server started, from 1; 0 while there is none. A new number means
    /// that all counters and names are new.
    pub configuration: u64,
    /// The run in progress; absent if there is no configuration.
    pub run: Option<LiveRun>,
}

/// A run in progress. All counters count from its opening, except where a field says otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveRun {
    /// Id of the run in the catalogue; absent until the run has reported it.
    pub id: Option<String>,
    /// State of the controller of the run; absent until the run has reported it.
    pub state: Option<String>,
    /// Reason why the run ended; absent while it is in progress.
    pub ended: Option<String>,
    /// Time of the latest counters, ns since 1970.
    pub sampled_wall_ns: Option<u64>,
    /// Time from the first counters to the latest.
    pub elapsed: Nanos,
    pub totals: LiveTotals,
    /// Ports in plan order.
    pub ports: Vec<LivePort>,
    /// Streams in the order of the configuration.
    pub streams: Vec<LiveStream>,
    pub ledger: FrameLedger,
    pub losses: LiveLosses,
    pub neighbours: Vec<NeighbourRow>,
    /// Remarks on the run, the latest last.
    pub findings: Vec<String>,
    /// Totals over time, the latest last. The points are evenly spaced, except the last one.
    pub history: Vec<HistoryPoint>,
}

/// Sums over all streams.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LiveTotals {
    pub counts: HistoryPoint,
    /// Rates per second over the last second. Bytes include the FCS.
    pub frames_tx_rate: f64,
    pub frames_rx_rate: f64,
    pub bytes_tx_rate: f64,
    pub bytes_rx_rate: f64,
    /// Streams that transmit, and streams that are paused.
    pub started: usize,
    pub paused: usize,
    /// Latency in ns since the last start of each stream, over all streams.
    pub latency: Option<LatencyFigures>,
}

/// Totals at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryPoint {
    /// Time since the first counters.
    pub elapsed: Nanos,
    pub frames_tx: u64,
    pub frames_rx: u64,
    pub bytes_tx: u64,
    pub bytes_rx: u64,
    /// Frames missing between received frames so far. Lost frames after the last arrival are not counted.
    pub gaps: u64,
}

/// A port: its row, and the counters of its sender and its receiver since the run was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LivePort {
    pub row: PortRow,
    /// The node that has the port; absent until the port is open.
    pub node: Option<String>,
    pub info: Option<PortInfo>,
    pub tx: Option<TxCounters>,
    pub rx: Option<RxCounters>,
}

/// Counters of a stream since its last start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveStream {
    pub name: String,
    pub port_tx: String,
    /// Name of the receiving port; several names are joined by commas.
    pub port_rx: String,
    pub state: TransmitState,
    pub frames_tx: u64,
    pub bytes_tx: u64,
    /// Absent if receivers cannot recognise the frames of the stream.
    pub received: Option<ReceivedStream>,
    pub frames_tx_rate: f64,
    pub bytes_tx_rate: f64,
}

/// Receivers' counts of a stream since its last start. Rates are per second, over the last second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReceivedStream {
    pub frames: u64,
    pub bytes: u64,
    pub frames_rate: f64,
    pub bytes_rate: f64,
    pub loss: LiveLoss,
    /// Latency of the received frames, in ns.
    pub latency: Option<LatencyFigures>,
}

/// Losses of this run, by the place where frames were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveLosses {
    /// All losses. Where `sender` and `path_or_in_doubt` are known, the three counts below add up to the lost frames.
    pub loss: LiveLoss,
    /// True if a stream transmits, so that frames may still be on the way.
    pub in_motion: bool,
    /// Frames that the kernel refused to send, or that the sending interface dropped; `None` if not measured.
    pub sender: Option<u64>,
    /// Frames that packetrig's receivers dropped.
    pub receiver: u64,
    /// Frames lost elsewhere: by the device under test and on the path to and from it, or at a time when the
    /// rig was not in order. The report has the times of losses and distinguishes these two.
    pub path_or_in_doubt: Option<u64>,
}

/// Results of past runs and test methods.
pub trait ResultArchive: Send + Sync + 'static {
    /// Returns a page of the results that match `query`, the newest first.
    fn list_results(&self, query: &ResultQuery) -> Result<ResultPage, ViewRefusal>;
    /// Returns the JSON file of the result with this id: `report.json` of a run, or `result.json` of a method. The
    /// first characters of an id suffice if no other id begins with them; `last` means the newest result.
    fn result_json(&self, id: &str) -> Result<String, ViewRefusal>;
    /// Returns the result as an HTML page that needs no other file.
    fn result_page(&self, id: &str) -> Result<String, ViewRefusal>;
    /// Returns the counts of a run for each second, with one entry for each stream and each port.
    fn result_series(&self, id: &str) -> Result<Value, ViewRefusal>;
    /// Compares the figures of two results. `anyway`: compares them even if they are results of different tests.
    fn compare_results(&self, before: &str, after: &str, anyway: bool) -> Result<Value, ViewRefusal>;
    /// Lists runs that have files but no entry in the list of results: they are in progress in some process, were
    /// interrupted, or have a report that was not entered.
    fn unlisted_runs(&self) -> Result<Value, ViewRefusal>;
}

/// The results that a viewer requests. An empty text matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultQuery {
    /// A part of the name or of the id; ASCII letters in any case.
    pub text: String,
    /// PASS, FAIL or INCONCLUSIVE.
    pub verdict: String,
    /// `run`, or the name of a method.
    pub kind: String,
    /// Hash of the plan, or its first characters.
    pub plan: String,
    /// Started at this time or later, ns since 1970.
    pub since_ns: Option<u64>,
    /// Started before this time, ns since 1970.
    pub before_ns: Option<u64>,
    /// Number of matching results that are skipped.
    pub from: usize,
    /// Maximum number of results to return.
    pub most: usize,
}

/// A page of results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultPage {
    /// Number of results that match.
    pub matching: usize,
    /// Number of results that are stored.
    pub total: usize,
    pub results: Vec<ResultSummary>,
}

/// A result in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ResultSummary {
    pub id: String,
    /// `run`, or the name of the method.
    pub kind: String,
    pub name: String,
    /// Start in ms since 1970 (UTC): exact in every JSON reader, which ns are not.
    pub started_ms: u64,
    pub verdict: String,
    /// How the run or test method ended.
    pub outcome: String,
    /// Hash of the plan; absent for a test method.
    pub plan_sha256: Option<String>,
    /// Number of streams; absent for a test method.
    pub streams: Option<u64>,
    pub sent: Option<u64>,
    pub lost: Option<u64>,
    /// Number of trials of a test method; absent for a run.
    pub trials: Option<u64>,
}

/// A part of the rig that is shown as one JSON object, such as the nodes of a fleet.
pub trait RigPartSource: Send + Sync + 'static {
    /// Reads the present state of the part.
    fn read_facts(&self) -> Result<Value, ViewRefusal>;
}

/// Flow records that a collector or a meter has stored.
///
/// # For implementers
///
/// A query may read gigabytes on a machine that measures. It should keep few processors busy, and end soon after
/// `is_given_up` has returned true, because then no viewer waits for the answer any more.
pub trait FlowArchive: Send + Sync + 'static {
    /// Groups the selected records by the requested columns, and returns the largest groups.
    fn top_flows(
        &self,
        query: &FlowTopQuery,
        is_given_up: &ViewerGoneCheck<'_>,
    ) -> Result<Value, ViewRefusal>;
    /// Sums over the selected records: in total, by protocol and over time, and the counts of the meters.
    fn flow_totals(
        &self,
        query: &FlowTotalsQuery,
        is_given_up: &ViewerGoneCheck<'_>,
    ) -> Result<Value, ViewRefusal>;
}

/// Returns true once no viewer waits for the answer any more.
pub type ViewerGoneCheck<'a> = dyn Fn() -> bool + Sync + 'a;

/// Records that a viewer requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowSelection {
    /// Filter in nfdump's language; an empty text matches everything.
    pub filter: String,
    /// Flows that began at this time or later, ns since 1970.
    pub since_ns: Option<u64>,
    /// Flows that began before this time, ns since 1970.
    pub before_ns: Option<u64>,
}

/// A request for the largest groups of flow records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowTopQuery {
    pub selection: FlowSelection,
    /// Columns, comma-separated. Records with the same values in these columns form a group.
    pub by: String,
    /// The quantity that ranks groups.
    pub order: String,
    /// Maximum number of groups to return.
    pub most: usize,
}

/// A request for sums over flow records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowTotalsQuery {
    pub selection: FlowSelection,
    /// The step of the timeline; `None` for a step that is chosen to fit the records.
    pub bucket: Option<Nanos>,
}

/// Reason why a viewer gets no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewRefusal {
    /// Nothing has the requested id, or this server does not have the requested part.
    #[error("{0}")]
    Unknown(String),
    /// The request is wrong.
    #[error("{0}")]
    Invalid(String),
    /// A file or the catalogue cannot be read.
    #[error("{0}")]
    Failed(String),
}
