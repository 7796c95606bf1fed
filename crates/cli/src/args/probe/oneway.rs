//! `packetrig probe oneway` as typed.

use super::stamp::target;
use super::{Asking, SessionFlags};
use clap::Args;
use packetrig_plan::PortLocation;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Where probes go.
#[derive(Clone, Debug)]
pub(crate) enum To {
    /// To an interface of this machine.
    Here(PortLocation),
    /// To another node, which reflects.
    Node(SocketAddr),
}

impl FromStr for To {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match target(text) {
            Ok(node) => Ok(Self::Node(node)),
            Err(_) => text.parse().map(Self::Here),
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct OneWay {
    /// Interface of this machine where probes arrive, IF or NAMESPACE/IF; or the address of a node that runs `packetrig probe reflect`, with a port if
    /// it is not 862. Where probes leave, --through says
    #[arg(value_name = "TO")]
    pub(crate) to: To,
    /// Which of the interface's addresses to send to [default: the first one of IPv4, else of IPv6]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) address: Option<IpAddr>,
    #[command(flatten)]
    pub(crate) asking: Asking,
    #[command(flatten)]
    pub(crate) session: SessionFlags,
}
