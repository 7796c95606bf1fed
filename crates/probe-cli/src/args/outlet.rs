//! The arguments that select the sending interface and its release mechanism.

use super::ReleaseFlags;
use clap::Args;
use packetrig_plan::PortLocation;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Release")]
pub struct SendingInterfaceArgs {
    /// Send probes through this interface: IF or NAMESPACE/IF [default: by the routing table]
    #[arg(long, value_name = "IF")]
    pub through: Option<PortLocation>,
    #[command(flatten)]
    pub release: ReleaseFlags,
}
