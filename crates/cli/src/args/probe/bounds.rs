//! Which targets a probing command may reach, as typed.

use clap::Args;
use packetrig_units::Network;
use std::path::PathBuf;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub(crate) struct BoundsArgs {
    /// Allow probes to this network (its owner must agree), at most 20 per second and 1 Mbit/s. A reflector then
    /// answers probes from it; repeat for more networks
    #[arg(long, value_name = "NETWORK")]
    pub(crate) allow: Vec<Network>,
    /// Permit file that allows or forbids more. The owner's /etc/packetrig/probe.toml, if it
    /// exists, has the last word
    #[arg(long, value_name = "FILE")]
    pub(crate) permit: Option<PathBuf>,
}
