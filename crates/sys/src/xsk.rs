//! Sending whole frames through AF_XDP: the kernel reads the frames from memory of this process ([`XskTx`]).
//!
//! ```text
//!   frame memory:  [slot][slot][slot] ...      a slot is one chunk, or several for frames longer than a page
//!   transmit ring:    ours -> kernel           "the chunk at this address, this many bytes"
//!   completion ring:  kernel -> ours           "done with the chunk at this address"
//! ```
//! A zero-copy driver fetches frames from the slots; otherwise the kernel copies each frame into its own
//! memory during a send call ("kick"), in the caller's thread. This socket receives nothing. The kernel
//! requires a fill ring; it lends a zero-copy driver the chunks that its receive queue needs.
//!
//! The arithmetic (`slots`) works on any memory, so the tests can change the rings in place of the kernel.

mod ring;
mod slots;
mod socket;

pub use slots::TxCounts;
pub use socket::{CopyMode, XskOptions, XskTx, af_xdp_obstacle};
