//! The flow meter at work: where packets come from, the workers that meter them, the thread that exports records, and the
//! collector that receives them.
//!
//! ```text
//!  source -> worker (parse, table) -> Batch -> queue -> export thread -> transport ~~~> collector -> sink
//! ```
//! What packets and formats mean is `flow`'s; files and databases are `store`'s.
//!
//! Invariant: memory is bounded. A queue that is full loses batches, and says what they carried.
#![forbid(unsafe_code)]

mod batch;
pub mod collect;
mod error;
pub mod export;
mod intake;
pub mod ledger;
mod memory;
pub mod metrics;
mod outbox;
mod patience;
mod placement;
mod reorder;
mod run;
mod share;
pub mod source;
pub mod top;
mod worker;

pub use batch::WorkerBatch;
pub use error::Error;
pub use intake::{BATCH, PacketIntake};
pub use outbox::{OfferedCounts, OutputChannels, OutputQueues};
pub use patience::{OutputQueue, SharedPatience};
pub use run::{MeterInput, MeterOptions, RunningMeter};
pub use share::FlowShareFilter;
pub use worker::{WorkerCounts, WorkerMeeting};
