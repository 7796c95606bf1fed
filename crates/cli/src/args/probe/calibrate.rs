//! `packetrig probe calibrate` as typed.

use clap::Args;
use packetrig_plan::PortLocation;
use packetrig_probe::ReleaseMechanism;
use packetrig_units::Nanos;

#[derive(Args, Debug)]
pub(crate) struct CalibrateProbes {
    /// Two interfaces of this machine that are connected, the sending one first; without them, a virtual cable made for it
    #[arg(value_name = "IF", num_args = 2)]
    pub(crate) interfaces: Vec<PortLocation>,
    /// Probes with each mechanism
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(50..=1_000_000))]
    pub(crate) count: u32,
    /// Between two probes
    #[arg(long, value_name = "TIME", default_value = "200us")]
    pub(crate) gap: Nanos,
    /// Only these mechanisms [default: all that can be had]
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub(crate) mechanism: Vec<ReleaseMechanism>,
    /// Keep it in this file instead of $XDG_DATA_HOME/packetrig/probe.json, which alone `--mechanism auto` goes by
    #[arg(long, value_name = "FILE")]
    pub(crate) keep: Option<std::path::PathBuf>,
    /// Yes, this interface may carry probes although it looks like part of a real network
    #[arg(long, value_name = "IF", value_delimiter = ',')]
    pub(crate) confirm: Vec<PortLocation>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
