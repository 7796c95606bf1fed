//! Input and output of the flow meter: sources of packets, workers that meter the packets, threads that export the
//! records, and the collector that receives exported records.
//!
//! ```text
//!  source -> worker (parse, table) -> WorkerBatch -> queue -> export threads -> transport ~~~> collector -> sink
//! ```
//! `flow` defines packets and formats; `flow-store` writes files and databases.
//!
//! Invariant: memory is bounded. If a queue is full, the worker waits, or loses the batch and counts its records and
//! packets. Every record that an output was offered is stored, left to another meter of the group, or lost for a cause
//! that the report names ([`ledger::OutputReport`]).
#![forbid(unsafe_code)]

pub mod anonymise;
mod backpressure;
mod batch;
mod blame;
mod certificate;
pub mod collect;
mod error;
pub mod export;
pub mod group;
mod hexadecimal;
mod intake;
pub mod ledger;
mod memory;
mod outbox;
mod output_report;
mod placement;
mod reorder;
pub mod resend;
mod run;
mod share;
mod silence;
pub mod source;
pub mod top;
mod worker;

pub use backpressure::{BackpressurePolicy, OutputQueue};
pub use batch::WorkerBatch;
pub use error::Error;
pub use intake::{PACKETS_PER_BATCH, PacketIntake};
pub use outbox::{OfferedCounts, OutputChannels, OutputQueues};
pub use run::{MeterInput, MeterOptions, RunningMeter};
pub use share::FlowShareFilter;
pub use worker::{WorkerCounts, WorkerStatus};
