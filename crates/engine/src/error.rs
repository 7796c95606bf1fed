//! Errors of the data plane.

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused a request.
    #[error(transparent)]
    Kernel(#[from] packetrig_sys::Error),
    /// The interface looks like part of a production network.
    #[error(transparent)]
    Guard(#[from] crate::packet::guard::GuardRefusal),
    /// The owner of the machine forbids an action that the fleet requests.
    #[error("not permitted by the owner of this node: {}", .0.join("; "))]
    NotPermitted(Vec<String>),
    /// The plan asks for something that its ports or the back end cannot do.
    #[error(transparent)]
    Plan(#[from] packetrig_plan::PlanProblems),
    /// The requested back end cannot send this flow.
    #[error("back end {back_end} cannot send flows[{stream}]: {reason}")]
    NotForBackEnd {
        /// The stream, by index.
        stream: u16,
        back_end: &'static str,
        reason: String,
    },
    /// The requested back end sends all its streams or none.
    #[error("port {port}: back end {back_end} cannot start and stop single flows; use another back end")]
    CannotSteer { port: String, back_end: &'static str },
    /// The requested back end does not stop when the lease expires.
    #[error(
        "port {port}: back end {back_end} cannot be used on a fleet, because it keeps sending when its node \
            loses the controller"
    )]
    NoLease { port: String, back_end: &'static str },
    /// An engine (a traffic generator of another project) cannot be used.
    #[error("engine {engine}: {reason}")]
    Engine {
        /// The name of the engine.
        engine: String,
        /// Why the engine cannot be used.
        reason: String,
    },
    /// Back end `process` was requested, but only a user of this machine can name its program.
    #[error("port {port}: back end `process` needs an engine; name one with `--engine` on this machine")]
    NoEngine { port: String },
    /// The port has no kernel interface, so it cannot have emulated interfaces.
    #[error("port {port} cannot have emulated interfaces: the port has no kernel interface")]
    NoDevices { port: String },
    /// No station answers ARP or neighbour discovery for the destination of the frames.
    #[error(
        "flow {flow}: the destination MAC address is unknown, because {address} does not answer ARP or \
            neighbour discovery requests from {interface}"
    )]
    Unresolved {
        flow: String,
        /// The interface that sends the requests.
        interface: String,
        address: std::net::IpAddr,
    },
    /// The filter expression is invalid, or libpcap is missing.
    #[error(transparent)]
    Expression(#[from] packetrig_sys::pcap::PcapError),
    /// libpcap compiles the filter expression to a program that packetrig cannot run.
    #[error("{filter} cannot be used: {reason}")]
    Filter {
        /// Names the filter, by the expression that the user wrote or by its interface.
        filter: String,
        reason: packetrig_wire::bpf::ProgramRefusal,
    },
    /// A thread cannot be started: the kernel allows no more threads, or has no memory for another one.
    #[error("cannot start thread `{name}`: {source}")]
    Thread { name: String, source: std::io::Error },
    /// A file or directory cannot be created, written or removed.
    #[error("cannot write {}: {source}", path.display())]
    File { path: std::path::PathBuf, source: std::io::Error },
    /// A capture file cannot be replayed.
    #[error("cannot replay {}: {why}", path.display())]
    Recording { path: std::path::PathBuf, why: String },
    /// The plan contains captures, but the caller named no directory.
    #[error("the plan captures frames, but no directory is set for the capture files")]
    NoCaptureDirectory,
    /// A failure that [`crate::chaos`] injected.
    #[error("injected failure of call {call}")]
    Injected {
        /// Number of the call, from 0.
        call: u64,
    },
    /// A thread panicked. Changed interfaces are restored all the same, when their ports are dropped.
    #[error("worker `{0}` panicked")]
    Panicked(String),
    /// Two parts of this crate disagree about the state of a run.
    #[error("internal error: {0}; this is a bug in packetrig")]
    Bug(&'static str),
}

impl From<packetrig_guard::Error> for Error {
    fn from(error: packetrig_guard::Error) -> Self {
        match error {
            packetrig_guard::Error::Kernel(error) => Self::Kernel(error),
            packetrig_guard::Error::Refused(refusal) => Self::Guard(refusal),
        }
    }
}
