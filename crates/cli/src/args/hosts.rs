//! Arguments of emulated hosts at both ends, for tests through a router.

use super::MacArg;
use clap::Args;
use packetrig_plan::quick::{HostAddress, HostRequest, QuickHosts};
use std::net::IpAddr;

/// Emulated hosts at both ends: they ask for the MAC address of their router, and answer it.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct HostArgs {
    /// Send to this router of the sender, found by ARP or neighbour discovery
    #[arg(long, value_name = "ADDR", requires = "rx", conflicts_with = "plan")]
    gateway: Option<IpAddr>,
    /// Router of the receiver, for the way back
    #[arg(long, value_name = "ADDR", requires = "both_ways", conflicts_with = "plan")]
    rx_gateway: Option<IpAddr>,
    /// Address of the sender and its network [default: 198.18.0.1 or 2001:2::1; a network of /24 or /64]
    #[arg(long, value_name = "ADDR[/LEN]", requires = "rx", conflicts_with = "plan")]
    src_ip: Option<HostAddress>,
    /// Address of the receiver, for which it answers ARP or neighbour discovery [default: 198.19.0.1 or 2001:2:0:1::1]
    #[arg(long, value_name = "ADDR[/LEN]", requires = "rx", conflicts_with = "plan")]
    dst_ip: Option<HostAddress>,
    /// Send to this MAC address and ask for none
    #[arg(long, value_name = "MAC", requires = "rx", conflicts_with_all = ["plan", "gateway"])]
    dst_mac: Option<MacArg>,
    /// Also send from the receiver to the sender, with the same load and for the same time
    #[arg(long, requires = "rx", conflicts_with = "plan")]
    both_ways: bool,
}

impl HostArgs {
    /// True if an address is one of IPv6.
    pub(crate) fn has_ipv6(&self) -> bool {
        let own = [self.src_ip, self.dst_ip].into_iter().flatten().map(HostAddress::ip);
        own.chain(self.gateway).chain(self.rx_gateway).any(|ip| ip.is_ipv6())
    }

    /// The hosts, if these flags ask for them. The error is for the user.
    pub(crate) fn make_hosts(&self, ipv6: bool) -> Result<Option<QuickHosts>, String> {
        let Self { gateway, rx_gateway, src_ip, dst_ip, dst_mac, both_ways } = *self;
        let is_plain = gateway.is_none() && src_ip.is_none() && dst_ip.is_none() && dst_mac.is_none();
        if is_plain && !both_ways {
            return Ok(None);
        }
        let sender = HostRequest { address: src_ip, gateway, next_hop: dst_mac.map(|mac| mac.0) };
        let receiver = HostRequest { address: dst_ip, gateway: rx_gateway, next_hop: None };
        QuickHosts::new(sender, receiver, both_ways, ipv6).map(Some)
    }
}
