//! The Open Traffic Generator (OTG) API over HTTP and gRPC.
//!
//! This room is transport and shape only: it turns requests into calls of [`Tester`] and what that says into answers. It
//! knows which members the model has and of what kind they are, and nothing of what they mean: that is the `plan`
//! room's. It is the only room with an async runtime, and it never touches the data plane.
//!
//! Invariant: nothing a client sends is ignored silently. A member or value that packetrig does not know is refused by
//! its JSON path, the same way over both transports.
#![forbid(unsafe_code)]

mod api;
mod error;
mod options;
mod serve;
mod shape;
mod tester;
mod transport;

pub use error::Error;
pub use options::{Bound, GRPC_PORT, HTTP_PORT, IdentityFiles, ServerOptions};
pub use serve::{run, serve};
pub use tester::{
    CaptureFile, CapturePart, Change, Family, FlowRow, Latency, Neighbour, Ping, PingResult, PortRow,
    Refusal, RefusalKind, State, Tester, Transmit,
};
