//! `packetrig probe caps` as typed.

use clap::Args;
use packetrig_plan::PortLocation;

#[derive(Args, Debug)]
pub(crate) struct ProbeCaps {
    /// Interface: IF or NAMESPACE/IF; without one, all that are up and no loopback
    #[arg(value_name = "IF")]
    pub(crate) interface: Option<PortLocation>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
