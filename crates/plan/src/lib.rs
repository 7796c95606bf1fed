//! Reads an OTG (Open Traffic Generator) document into a [`Plan`], or returns a list of [`PlanProblem`]s, each with its
//! JSON path and, if known, its source line.
//!
//! Reading has three steps. The module [`document`] parses the text into a tree with positions. The private modules
//! `reader` and `read` turn the tree into a [`Plan`] and record every problem; a document with errors gives no
//! [`Plan`]. When the speeds of the ports are known, [`Plan::bind_to_links`] computes the values that depend on them
//! (percentages, gaps in bytes).
//!
//! The crate opens no file and no socket. An unknown or unsupported field is an error that names its path; a tuning
//! field that has no effect in packetrig gives a warning. Only fields without a value, and the few flags of OTG that
//! change nothing here (such as `location_preemption`), are accepted without a remark.
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
    BoundPlan, BoundStream, CaptureFormat, FlowShare, OtgPause, Plan, PlanParseOptions, PlannedCapture, Port,
    PortHost, PortLocation, Stream, StreamAmount, StreamDuration, WantedMetrics,
};
pub use parts::{PlanPart, PlanPartCutter};
pub use problem::{PlanProblem, PlanProblems, ProblemSeverity};
pub use read::{LABEL_FORMAT, is_port_label};
pub use steer::{PingRequest, PlanChange, StreamResumePoint};
