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

/// Probes sent when planned, and what they measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Probe {
    /// Say whether and how much this machine may probe a target
    Allowed(Allowed),
    /// Ask targets that run nothing of ours: echo requests, datagrams or offers of connections, at their instants
    Ping(Box<Ping>),
    /// Hold a session with a STAMP reflector: times, loss and order of both directions
    Stamp(Box<Stamp>),
    /// Be a STAMP reflector
    Reflect(Box<Reflect>),
    /// Measure one-way delay between two interfaces of this machine, which have one clock, or to another node and back
    Oneway(Box<OneWay>),
    /// Measure loss and reordering of each direction and round trips with the data of a TCP connection, against any web server that speaks plain HTTP
    Oneprobe(Oneprobe),
    /// Measure how fast the narrowest link of a path is
    Capacity(Capacity),
    /// Measure how much of a path is free
    Available(Available),
    /// Send probes by any schedule, and say of each when it was handed over, released and gone
    Send(Box<SendProbes>),
    /// Say which mechanisms can hold probes back at an interface, and what else they have to go by
    Caps(ProbeCaps),
    /// Measure how exact each mechanism is, by the far end's stamps
    Calibrate(CalibrateProbes),
}

#[derive(Args, Debug)]
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
