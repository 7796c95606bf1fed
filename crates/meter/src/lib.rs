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
pub mod export;

pub use batch::Batch;
