//! The arguments of `packetrig probe oneway`.

use super::stamp::parse_reflector_address;
use super::{ProbeSeriesArgs, SessionFlags};
use clap::Args;
use packetrig_plan::PortLocation;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

#[derive(Clone, Debug)]
pub enum ProbeDestination {
    /// An interface of this machine.
    Here(PortLocation),
    /// Another node, which runs a reflector.
    Node(SocketAddr),
}

impl FromStr for ProbeDestination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The text is tried as an address first, because every address is also a valid interface name.
        match parse_reflector_address(text) {
            Ok(node) => Ok(Self::Node(node)),
            Err(_) => text.parse().map(Self::Here),
        }
    }
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig probe oneway eth2 --through eth1 --allow 192.0.2.0/24 --count 100\n  \
    packetrig probe oneway 192.0.2.1 --allow 192.0.2.0/24 --count 100")]
pub struct OneWayArgs {
    /// Interface of this machine that receives the probes (IF or NAMESPACE/IF; --through names the sending one).
    /// Or the address of a node that runs `packetrig probe reflect`, with its port if that is not 862
    #[arg(value_name = "TO")]
    pub to: ProbeDestination,
    /// Address of the receiving interface to send to [default: its first IPv4 address, otherwise IPv6]
    #[arg(long, value_name = "ADDRESS")]
    pub address: Option<IpAddr>,
    #[command(flatten)]
    pub asking: ProbeSeriesArgs,
    #[command(flatten)]
    pub session: SessionFlags,
}
