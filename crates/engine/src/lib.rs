//! The data plane: ports, workers, pacing, sending, receiving, capture.
//!
//! Two levels. *Frame level* ([`port::FrameTx`], [`port::FrameRx`]): batches of frames in and out. *Stream
//! level* ([`stream::StreamTx`], [`stream::StreamRx`]): "send these streams on their schedules", "count the
//! frames of these streams". A run uses the stream level only; captures without a run read the frame level.
//! A back end whose fast path never shows frames to user space implements the stream level itself. Every other
//! back end uses [`sender::TestSender`] and [`receiver::TestReceiver`], which work over any frame level.
//!
//! Threads, no async. A hot loop does not allocate, lock or log, and it makes no system call per frame. Time comes from
//! the [`port::WorkerClock`] of the worker, so the same code runs in virtual time on the `sim` back end.
#![forbid(unsafe_code)]

pub mod capture;
pub mod chaos;
pub mod clock;
pub mod device;
pub mod doctor;
pub mod filter;
pub mod packet;
pub mod pktgen;
pub mod port;
pub mod process;
pub mod receiver;
pub mod recorded;
pub mod replay;
pub mod rig;
pub mod segment;
pub mod sender;
pub mod sim;
pub mod stream;
pub mod tap_losses;
pub mod xdp;

mod blame;
mod error;
mod recent_runs;
mod send_doubts;
mod worker;

pub use error::Error;
pub use packetrig_guard::gate;
