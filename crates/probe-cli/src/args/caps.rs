//! The arguments of `packetrig probe caps`.

use clap::Args;
use packetrig_plan::PortLocation;

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  packetrig probe caps eth1")]
pub struct CapsArgs {
    /// Interface to examine: IF or NAMESPACE/IF [default: all that are up, except loopback]
    #[arg(value_name = "IF")]
    pub interface: Option<PortLocation>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}
