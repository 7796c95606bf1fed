//! `packetrig probe oneprobe` as typed.

use super::{Bounds, Outlet, ProbeTarget};
use clap::Args;
use packetrig_units::Nanos;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct Oneprobe {
    /// Address or name of a web server; nothing of ours runs there
    #[arg(value_name = "TARGET")]
    pub(crate) target: ProbeTarget,
    /// Port of the server
    #[arg(long, value_name = "PORT", default_value_t = 80)]
    pub(crate) port: u16,
    /// What to ask for; something larger than 20 kB lets connections last
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub(crate) path: String,
    /// Name of the server, for the Host header [default: the target as typed]
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// Probes: pairs of data segments
    #[arg(short, long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// From one probe to the next
    #[arg(short, long, value_name = "TIME", default_value = "500ms")]
    pub(crate) interval: Nanos,
    /// Bytes of data in each segment that is sent
    #[arg(long, value_name = "BYTES", default_value_t = 300, value_parser = clap::value_parser!(u16).range(16..=1400))]
    pub(crate) payload: u16,
    /// Bytes of data in each segment that the server sends
    #[arg(long, value_name = "BYTES", default_value_t = 536, value_parser = clap::value_parser!(u16).range(64..=1400))]
    pub(crate) answer: u16,
    #[command(flatten)]
    pub(crate) outlet: Outlet,
    #[command(flatten)]
    pub(crate) bounds: Bounds,
    /// Write what each probe tells, as JSON lines
    #[arg(long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
