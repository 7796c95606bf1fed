//! Arguments of emulated hosts at both ends, for tests through a router.

use super::MacArg;
use clap::Args;
use packetrig_plan::quick::{HostAddress, HostRequest, QuickHosts};
use std::net::IpAddr;

/// Emulated hosts at both ends. Each one answers ARP or neighbour discovery. A host that sends asks for the MAC address
/// of its next hop, unless `--dst-mac` gives it.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct HostArgs {
    #[command(flatten)]
    addresses: HostAddressArgs,
    /// Address of the router on the side of the receiver, for --both-ways
    #[arg(long, value_name = "ADDR", requires = "both_ways")]
    rx_gateway: Option<IpAddr>,
    /// Send to this MAC address instead of asking a gateway for its MAC address
    #[arg(long, value_name = "MAC", requires = "rx", conflicts_with = "gateway")]
    dst_mac: Option<MacArg>,
    /// Also send from the receiver to the sender, with the same load and for the same time
    #[arg(long, requires = "rx")]
    both_ways: bool,
}

/// Addresses of both hosts and of the sender's router.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct HostAddressArgs {
    /// Send to the router with this address on the side of the sender, found by ARP or neighbour discovery
    #[arg(long, value_name = "ADDR", requires = "rx")]
    gateway: Option<IpAddr>,
    /// Address of the sender [default: 198.18.0.1 or 2001:2::1; LEN is 24 or 64]
    #[arg(long, value_name = "ADDR[/LEN]", requires = "rx")]
    src_ip: Option<HostAddress>,
    /// Address of the receiver, which answers ARP or neighbour discovery for it [default: 198.19.0.1 or 2001:2:0:1::1]
    #[arg(long, value_name = "ADDR[/LEN]", requires = "rx")]
    dst_ip: Option<HostAddress>,
}

impl HostArgs {
    /// Returns true if at least one address is an IPv6 address.
    pub(crate) fn has_ipv6(&self) -> bool {
        self.addresses.has_ipv6() || self.rx_gateway.is_some_and(|ip| ip.is_ipv6())
    }

    /// Returns the hosts, or `None` if no flag asks for hosts. The error is a message for the user.
    pub(crate) fn make_hosts(&self, ipv6: bool) -> Result<Option<QuickHosts>, String> {
        // `--rx-gateway` needs `--both-ways`, so it need not be checked here.
        if self.addresses.is_empty() && self.dst_mac.is_none() && !self.both_ways {
            return Ok(None);
        }
        let sender = self.addresses.sender_request(self.dst_mac);
        let receiver = HostRequest { gateway: self.rx_gateway, ..self.addresses.receiver_request() };
        QuickHosts::new(sender, receiver, self.both_ways, ipv6).map(Some)
    }
}

impl HostAddressArgs {
    fn has_ipv6(&self) -> bool {
        let own = [self.src_ip, self.dst_ip].into_iter().flatten().map(HostAddress::ip);
        own.chain(self.gateway).any(|ip| ip.is_ipv6())
    }

    const fn is_empty(&self) -> bool {
        self.gateway.is_none() && self.src_ip.is_none() && self.dst_ip.is_none()
    }

    fn sender_request(&self, next_hop: Option<MacArg>) -> HostRequest {
        let next_hop = next_hop.map(|mac| mac.0);
        HostRequest { address: self.src_ip, gateway: self.gateway, next_hop }
    }

    fn receiver_request(&self) -> HostRequest {
        HostRequest { address: self.dst_ip, ..HostRequest::default() }
    }

    /// Returns the hosts of a replay, or `None` if no flag asks for hosts. Frames go to `next_hop` if it is given. The
    /// error is a message for the user.
    pub(crate) fn make_replay_hosts(&self, next_hop: Option<MacArg>) -> Result<Option<QuickHosts>, String> {
        if self.is_empty() {
            return Ok(None);
        }
        // `false`: a recording has one direction, and the receiver sends no answer.
        QuickHosts::new(self.sender_request(next_hop), self.receiver_request(), false, self.has_ipv6())
            .map(Some)
    }
}
