//! The Open Traffic Generator (OTG) API over HTTP and gRPC.
//!
//! The modules `transport` and `shape` turn requests into calls of [`Tester`], and the results of these calls into
//! answers. They know the members of the OTG model and their types; only the `plan` crate knows what the members
//! mean. [`TestConsole`] implements [`Tester`]: it stores the configuration and controls a run. The crate has an
//! async runtime, but it never sends or receives test frames itself.
//!
//! Invariant: nothing that a client sends is ignored silently. An unknown member or value is refused with an
//! error that names its JSON path, in the same way on both transports.
#![forbid(unsafe_code)]

mod api;
mod blame;
pub mod client;
mod console;
mod error;
mod live_columns;
mod methods;
mod options;
mod page;
mod serve;
mod shape;
mod tester;
mod transport;
mod viewing;

pub use console::{TestConsole, WatchedRun, replace_aliases};
pub use error::Error;
pub use live_columns::{LiveColumn, PORT_COLUMNS, STREAM_COLUMNS, WatchColumn};
pub use methods::{MethodRefusal, MethodService};
pub use options::{
    BoundAddresses, ClientDeadlines, FindUser, GRPC_PORT, HTTP_PORT, IdentityFiles, LocalUsers,
    RejectionObserver, ServerOptions,
};
pub use page::write_large_counts_as_text;
pub use serve::{run_server, serve_rig};
pub use shape::OTG_DESCRIPTOR;
pub use tester::{
    CaptureFile, CaptureRange, FlowChange, FlowRow, IpFamily, LatencyFigures, NeighbourRow, PingResult,
    PingTask, PortRow, RefusalKind, RequestedState, Tester, TesterRefusal, TransmitState,
};
pub use transport::in_memory::InMemoryServer;
pub use transport::rejections::{RejectionCause, RejectionCounts};
pub use viewing::{
    FlowArchive, FlowSelection, FlowTopQuery, FlowTotalsQuery, HistoryPoint, LiveLosses, LivePort, LiveRun,
    LiveSource, LiveState, LiveStream, LiveTotals, ReceivedStream, ResultArchive, ResultPage, ResultQuery,
    ResultSummary, RigPartSource, ServedRig, ViewRefusal, ViewerGoneCheck,
};
