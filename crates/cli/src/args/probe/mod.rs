//! `packetrig probe` as typed.

mod asking;
mod bounds;
mod calibrate;
mod caps;
mod estimates;
mod manner;
mod oneprobe;
mod oneway;
mod outlet;
mod ping;
mod send;
mod stamp;
mod target;

pub(crate) use asking::Asking;
pub(crate) use bounds::Bounds;
pub(crate) use calibrate::CalibrateProbes;
pub(crate) use caps::ProbeCaps;
pub(crate) use estimates::{Available, AvailableMethod, Capacity, CapacityMethod, Estimating};
pub(crate) use manner::{MannerFlags, Wish};
pub(crate) use oneprobe::Oneprobe;
pub(crate) use oneway::{OneWay, To};
pub(crate) use outlet::Outlet;
pub(crate) use ping::Ping;
pub(crate) use send::{ContentFlags, ScheduleFlags, SendProbes};
pub(crate) use stamp::{Reflect, SessionFlags, Stamp};
pub(crate) use target::{ProbeTarget, ProbeTargetPort};

use clap::{Args, Subcommand};

/// Measure a path with probes that leave at planned times.
#[derive(Debug, Subcommand)]
pub(crate) enum Probe {
    /// Show whether this machine may probe a target, and how much
    Allowed(Allowed),
    /// Ping targets with ICMP, UDP or TCP probes; targets need no special software
    Ping(Box<Ping>),
    /// Measure times, loss and reordering of each direction with a STAMP reflector
    Stamp(Box<Stamp>),
    /// Run a STAMP reflector
    Reflect(Box<Reflect>),
    /// Measure one-way delay between two interfaces of this machine, or to another node
    Oneway(Box<OneWay>),
    /// Measure loss, reordering and round-trip time with the data of a TCP connection to a web server
    Oneprobe(Oneprobe),
    /// Measure the capacity of a path: the speed of its narrowest link
    Capacity(Capacity),
    /// Measure the available bandwidth of a path: what other traffic leaves free
    Available(Available),
    /// Send probes on any schedule and report when each one was queued, released and sent
    Send(Box<SendProbes>),
    /// Show which release mechanisms and timestamps an interface supports
    Caps(ProbeCaps),
    /// Measure the timing error of each release mechanism against timestamps at the far end
    Calibrate(CalibrateProbes),
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  packetrig probe allowed 192.0.2.1 --allow 192.0.2.0/24")]
pub(crate) struct Allowed {
    /// Address or name of the target
    #[arg(value_name = "TARGET")]
    pub(crate) target: ProbeTarget,
    #[command(flatten)]
    pub(crate) bounds: Bounds,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
