//! Reads an OTG document into a [`Plan`], or returns a list of [`PlanProblem`]s, each with its JSON
//! path and source line.
//!
//! Reading has three steps. The module [`document`] parses the text into a tree with positions. The reader gives typed
//! access to the tree and records every problem. The result is a [`Plan`], which is proof that packetrig can run the
//! document. [`Plan::bind_to_links`] computes the values that depend on the links (percentages, gaps in bytes), when
//! the speeds of the ports are known.
//!
//! The crate opens no file and no socket. Unknown or unsupported fields are refused by path, and harmless tuning fields
//! give a warning. Only fields without a value, and the few flags of OTG that change nothing here (such as
//! `location_preemption`), are accepted without a remark.
#![forbid(unsafe_code)]

pub mod criteria;
pub mod device;
pub mod document;
pub mod explain;
mod growth;
mod model;
mod nearest;
mod parts;
pub mod probes;
pub mod problem;
pub mod quick;
pub mod reach;
mod read;
mod reader;
pub mod recording;
pub mod replay;
pub mod steer;
pub mod timeline;
pub mod trial;

pub use growth::{GrowingPlan, PlanDocument, PlanGrowth, SentDocument};
pub use model::{
    BoundPlan, BoundStream, CaptureFormat, FlowShare, InterFrameGap, Plan, PlanParseOptions, PlannedCapture,
    Port, PortHost, PortLocation, Stream, StreamAmount, StreamDuration, WantedMetrics,
};
pub use parts::{PlanPart, PlanParts};
pub use problem::{PlanProblem, PlanProblems, ProblemSeverity};
pub use read::{LABEL_FORMAT, UNSUPPORTED_HEADERS, is_port_label};
pub use steer::{HeldStream, PingRequest, PlanChange};
