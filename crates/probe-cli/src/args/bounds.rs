//! The options that decide which targets a probing command may reach.

use clap::Args;
use packetrig_units::Network;
use std::path::PathBuf;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct BoundsArgs {
    /// Allow probes to this network (its owner must agree): at most 20 probes/s in bursts of up to 50, 1
    /// Mbit/s, 100000 probes in all, ending at 15 % loss. A reflector then answers probes from this network;
    /// repeat for more networks
    #[arg(long, value_name = "NETWORK")]
    pub allow: Vec<Network>,
    /// Permit file with allowed networks and their limits (TOML). If the owner's /etc/packetrig/probe.toml exists,
    /// this file can only narrow its limits
    #[arg(long, value_name = "FILE")]
    pub permit: Option<PathBuf>,
}
