//! Rings shared with the kernel for sending ([`TxRing`]) and receiving ([`RxRing`]) whole frames of one interface.
//!
//! Each ring owns one AF_PACKET socket and one mapping of its memory. Dropping the ring unmaps the memory and closes
//! the socket; the kernel then also ends promiscuous mode. A ring stays in the network namespace it was opened in.
//! Frames are without FCS.
//!
//! The arithmetic of the rings (`TxSlots`, `RxBlocks`) works on any memory, so the tests can change the status words in
//! place of the kernel. Invariant: a byte is accessed only while the status word says that it belongs to this process.

mod plain;
mod promiscuous;
mod rx;
pub(crate) mod socket;
mod tx;

pub use plain::{FrameOptions, FrameSocket, ReleaseClock};
pub use promiscuous::PromiscuousMode;
pub use rx::{
    ArrivalStamp, MergedFrame, RawFrame, RingDrainTarget, RingProgress, RxOptions, RxRing, RxStats,
};
pub use tx::{TxCounts, TxOptions, TxRing};
