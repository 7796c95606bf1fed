//! The options that decide which targets a probing command may reach.

use clap::Args;
use packetrig_units::Network;
use std::path::PathBuf;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct PermittedTargetArgs {
    /// Allow probes to this network (its owner must agree), each address with limits: 20 probes/s, bursts of 50,
    /// 1 Mbit/s, 100000 probes in all, and an end at 15 % loss. With `reflect`, also answer probes from this
    /// network; repeat for more networks
    #[arg(long, value_name = "NETWORK")]
    pub allow: Vec<Network>,
    /// Permit file with allowed networks and their limits (TOML). If the owner's /etc/packetrig/probe.toml exists,
    /// this file can only narrow its limits
    #[arg(long, value_name = "FILE")]
    pub permit: Option<PathBuf>,
}
