//! What can go wrong in the data plane.

/// By whose fault: see each variant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// World: the kernel refused.
    #[error(transparent)]
    Kernel(#[from] packetrig_sys::Error),
    /// User: the interface looks like part of a network that people use.
    #[error(transparent)]
    Guard(#[from] crate::packet::guard::GuardRefusal),
    /// User: the owner of the machine does not allow what a fleet asks of it.
    #[error("not permitted by the owner of this node: {}", .0.join("; "))]
    NotPermitted(Vec<String>),
    /// User: a tap cannot be like that.
    #[error(transparent)]
    Tap(#[from] crate::tap::TapRefusal),
    /// User: the plan does not fit these ports.
    #[error(transparent)]
    Plan(#[from] packetrig_plan::PlanProblems),
    /// User: the back end that was asked for cannot do this.
    #[error("back end {back_end} cannot send flows[{stream}]: {reason}")]
    NotForBackEnd {
        /// The stream, by index.
        stream: u16,
        back_end: &'static str,
        reason: String,
    },
    /// User: the back end that was asked for sends all its streams or none.
    #[error("port {port}: back end {back_end} cannot start and stop single flows")]
    CannotSteer { port: String, back_end: &'static str },
    /// User: the back end that was asked for cannot be stopped without being told to.
    #[error(
        "port {port}: back end {back_end} cannot be used on a fleet, because it keeps sending when its node \
            loses the controller"
    )]
    NoLease { port: String, back_end: &'static str },
    /// User: the port is none that emulated interfaces can be on.
    #[error("port {port} cannot have emulated interfaces: they need a kernel interface")]
    NoDevices { port: String },
    /// World: nobody has the address that frames go to.
    #[error(
        "flow {flow}: no MAC address to send to, because {address} does not answer {interface}'s ARP or \
            neighbour discovery"
    )]
    Unresolved {
        flow: String,
        /// The interface that asks.
        interface: String,
        address: std::net::IpAddr,
    },
    /// User: the filter expression is not understood. World, when libpcap is missing.
    #[error(transparent)]
    Expression(#[from] packetrig_sys::pcap::PcapError),
    /// User: libpcap understands the filter expression, and we do not understand libpcap.
    #[error("filter `{expression}` cannot be used: {reason}")]
    Filter {
        /// As it was given.
        expression: String,
        reason: packetrig_wire::bpf::ProgramRefusal,
    },
    /// World: a file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    File { path: std::path::PathBuf, source: std::io::Error },
    /// User: a capture file cannot be replayed.
    #[error("cannot replay {}: {why}", path.display())]
    Recording { path: std::path::PathBuf, why: String },
    /// User: the plan wants captures, and nobody said where to.
    #[error("the plan captures frames, but there is no directory for the capture files")]
    NoCaptureDirectory,
    /// World, made up: [`crate::chaos`] was told to fail here.
    #[error("injected failure of call {call}")]
    Injected {
        /// Which call, from 0.
        call: u64,
    },
    /// Bug: a worker thread panicked; interfaces were restored.
    #[error("worker `{0}` panicked")]
    Panicked(String),
    /// Bug: something that cannot happen did.
    #[error("{0}")]
    Bug(&'static str),
}
