//! Whom a probing command may reach, as typed.

use clap::Args;
use packetrig_units::Network;
use std::path::PathBuf;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub(crate) struct Bounds {
    /// Allow probes to this network, whose owner agrees, at most 20 a second and 1 Mbit/s; or to reflect what comes from there. May be given several times
    #[arg(long, value_name = "NETWORK")]
    pub(crate) allow: Vec<Network>,
    /// A file that allows more, and forbids; where there is /etc/packetrig/probe.toml, never more than the owner of this machine allows in that
    #[arg(long, value_name = "FILE")]
    pub(crate) permit: Option<PathBuf>,
}
