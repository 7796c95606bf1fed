//! The arguments of `packetrig probe`.

mod asking;
mod bounds;
mod calibrate;
mod caps;
mod estimates;
mod oneprobe;
mod oneway;
mod outlet;
mod ping;
mod release;
mod send;
mod serve;
mod stamp;
mod target;

pub use asking::ProbeSeriesArgs;
pub use bounds::PermittedTargetArgs;
pub use calibrate::CalibrateProbes;
pub use caps::CapsArgs;
pub use estimates::{AvailableArgs, AvailableMethod, CapacityArgs, CapacityMethod, EstimatingArgs};
pub use oneprobe::OneprobeArgs;
pub use oneway::{OneWayArgs, ProbeDestination};
pub use outlet::SendingInterfaceArgs;
pub use ping::PingArgs;
pub use release::{MechanismArg, ReleaseFlags};
pub use send::{ContentFlags, ScheduleFlags, SendProbes};
pub use serve::ServeProbes;
pub use stamp::{ReflectArgs, SessionFlags, StampArgs};
pub use target::{ProbeTarget, ProbeTargetWithPort};

use clap::{Args, Subcommand};

/// Measure a path with probes that leave at planned times.
#[derive(Debug, Subcommand)]
pub enum ProbeCommand {
    /// Show whether this machine may probe a target, and how much
    Allowed(AllowedArgs),
    /// Ping targets with ICMP, UDP or TCP probes; targets need no special software
    Ping(Box<PingArgs>),
    /// Measure times, loss and reordering of each direction with a STAMP reflector
    Stamp(Box<StampArgs>),
    /// Run a STAMP reflector
    Reflect(Box<ReflectArgs>),
    /// Measure one-way delay between two interfaces of this machine, or to another node
    Oneway(Box<OneWayArgs>),
    /// Measure loss, reordering and round-trip time with the data of a TCP connection to a web server
    Oneprobe(OneprobeArgs),
    /// Measure the capacity of a path: the speed of its narrowest link
    Capacity(CapacityArgs),
    /// Measure the available bandwidth of a path: what other traffic leaves free
    Available(AvailableArgs),
    /// Send probes on any schedule and report when each one was queued, released and sent
    Send(Box<SendProbes>),
    /// Release packets of other programs at the times that these programs request
    Serve(Box<ServeProbes>),
    /// Show which release mechanisms and timestamps an interface supports
    Caps(CapsArgs),
    /// Measure the timing error of each release mechanism against timestamps at the far end
    Calibrate(CalibrateProbes),
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  packetrig probe allowed 192.0.2.1 --allow 192.0.2.0/24")]
pub struct AllowedArgs {
    /// Address or name of the target
    #[arg(value_name = "TARGET")]
    pub target: ProbeTarget,
    #[command(flatten)]
    pub bounds: PermittedTargetArgs,
    /// Print the result as JSON
    #[arg(long, help_heading = "Results")]
    pub json: bool,
}
