//! Where probes leave and who lets them go, as typed.

use super::MannerFlags;
use clap::Args;
use packetrig_plan::PortLocation;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Release")]
pub(crate) struct OutletArgs {
    /// Send probes through this interface: IF or NAMESPACE/IF [default: by the routing table]
    #[arg(long, value_name = "IF")]
    pub(crate) through: Option<PortLocation>,
    #[command(flatten)]
    pub(crate) manner: MannerFlags,
}
