//! Emulated hosts at both ends of a plan from flags: they resolve the address of their router and answer its requests.

use super::headers::{RECEIVER_MAC, SENDER_MAC};
use crate::device::{DeviceAddress, Mac, format_mac};
use serde_json::{Value, json};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The two emulated hosts of a plan from flags: one at its only sender, one at its only receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuickHosts {
    sender: DeviceAddress,
    receiver: DeviceAddress,
    /// True if the receiver also sends to the sender.
    both_ways: bool,
}

/// A host as the flags describe it.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostRequest {
    pub address: Option<HostAddress>,
    pub gateway: Option<IpAddr>,
    /// MAC address that the host's frames go to, in place of the gateway's MAC address.
    pub next_hop: Option<Mac>,
}

/// An address and its prefix length: `10.0.0.2/24`. The default length is 24, or 64 for IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostAddress {
    ip: IpAddr,
    prefix: u8,
}

impl HostAddress {
    const fn new(ip: IpAddr) -> Self {
        Self { ip, prefix: if ip.is_ipv6() { 64 } else { 24 } }
    }

    pub const fn ip(self) -> IpAddr {
        self.ip
    }

    const fn ip_bits(self) -> u8 {
        if self.ip.is_ipv6() { 128 } else { 32 }
    }
}

impl FromStr for HostAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (ip, prefix) = text.split_once('/').map_or((text, None), |(ip, prefix)| (ip, Some(prefix)));
        let usual = ip.parse().ok().map(Self::new);
        let found = usual.and_then(|usual| {
            let prefix = prefix.map_or(Some(usual.prefix), |prefix| prefix.parse().ok())?;
            Some(Self { prefix, ..usual })
        });
        found.filter(|found| (1..=found.ip_bits()).contains(&found.prefix)).ok_or_else(|| {
            format!("`{text}` is not the address of a host; write it like 10.0.0.2/24 or fd00::2")
        })
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl HostRequest {
    const fn has_next_hop(&self) -> bool {
        self.gateway.is_some() || self.next_hop.is_some()
    }

    /// The addresses of this host and of its gateway, each with the name of its flag.
    fn addresses_by_flag(&self, flags: [&'static str; 2]) -> impl Iterator<Item = (&'static str, IpAddr)> {
        let addresses = [self.address.map(HostAddress::ip), self.gateway];
        flags.into_iter().zip(addresses).filter_map(|(flag, address)| Some((flag, address?)))
    }

    /// The host with the address of the flags, or with `usual` if they give none.
    fn to_device_address(self, name: &str, usual: HostAddress) -> DeviceAddress {
        let HostAddress { ip, prefix } = self.address.unwrap_or(usual);
        DeviceAddress { name: name.to_owned(), ip, prefix, gateway: self.gateway, gateway_mac: self.next_hop }
    }
}

impl QuickHosts {
    /// Builds the hosts from the flags. Fails if the flags contradict each other; the error names the flag.
    pub fn new(
        sender: HostRequest,
        receiver: HostRequest,
        both_ways: bool,
        ipv6: bool,
    ) -> Result<Self, String> {
        let addresses = sender
            .addresses_by_flag(["--src-ip", "--gateway"])
            .chain(receiver.addresses_by_flag(["--dst-ip", "--rx-gateway"]));
        if let Some((flag, ip)) = addresses.into_iter().find(|(_, ip)| ip.is_ipv6() != ipv6) {
            let (is, sent) = if ipv6 { ("IPv4", "IPv6") } else { ("IPv6", "IPv4") };
            return Err(format!("{flag} {ip} is an {is} address, but the other flags need {sent}"));
        }
        let has_router = sender.has_next_hop() || receiver.has_next_hop();
        let [of_sender, of_receiver] = default_host_addresses(ipv6, has_router);
        let hosts = Self {
            sender: sender.to_device_address("sender", of_sender),
            receiver: receiver.to_device_address("receiver", of_receiver),
            both_ways,
        };
        check_next_hop(&hosts.sender, &hosts.receiver, "--gateway")?;
        // If traffic goes in one direction only, the receiver only answers questions for its address. For that
        // it needs no route.
        if both_ways {
            check_next_hop(&hosts.receiver, &hosts.sender, "--rx-gateway")?;
        }
        Ok(hosts)
    }

    /// OTG's `devices`, on the ports `tx` and `rx`.
    pub(crate) fn build_devices_json(&self, vlan: Option<u16>) -> Value {
        json!([
            build_device_json(&self.sender, "tx", SENDER_MAC, vlan),
            build_device_json(&self.receiver, "rx", RECEIVER_MAC, vlan)
        ])
    }

    /// OTG's `tx_rx` of a flow.
    pub(crate) fn device_endpoints_value(&self) -> Value {
        json!({"choice": "device", "device": {
            "tx_names": [self.sender.name], "rx_names": [self.receiver.name], "bidirectional": self.both_ways}})
    }
}

/// Addresses reserved for benchmarking, for both hosts: with a router each host has its own network, otherwise both are
/// in the same one.
fn default_host_addresses(ipv6: bool, has_router: bool) -> [HostAddress; 2] {
    let (sender, receiver, shared) = if ipv6 {
        let ip = |network| Ipv6Addr::new(0x2001, 2, 0, network, 0, 0, 0, 1);
        // The shared networks are the whole reserved ranges, which contain both addresses.
        (IpAddr::V6(ip(0)), IpAddr::V6(ip(1)), 48)
    } else {
        (Ipv4Addr::new(198, 18, 0, 1).into(), Ipv4Addr::new(198, 19, 0, 1).into(), 15)
    };
    [sender, receiver].map(|ip| match HostAddress::new(ip) {
        own if has_router => own,
        own => HostAddress { prefix: shared, ..own },
    })
}

/// Refuses two hosts if `from` cannot send to `to`, or would bypass the gateway that the flags give it. `flag` is the
/// name of the flag for the gateway of `from`.
fn check_next_hop(from: &DeviceAddress, to: &DeviceAddress, flag: &str) -> Result<(), String> {
    let network = HostAddress { ip: from.ip, prefix: from.prefix };
    let (name, other) = (&from.name, to.ip);
    if from.ip == other {
        return Err(format!("sender and receiver cannot have the same address {other} (--src-ip, --dst-ip)"));
    }
    match (from.gateway, from.is_on_link(other)) {
        // With the MAC address of the next hop, frames need no route, so any two addresses are possible.
        _ if from.gateway_mac.is_some() => Ok(()),
        (Some(_), true) => Err(format!(
            "no frame would go to the router of {flag}: {other} is in the network of the {name} ({network}); \
            give a smaller network"
        )),
        // IPv6 routers have link-local addresses, which are in none of the networks that a user names.
        (Some(gateway), false) if !from.is_on_link(gateway) && !is_link_local(gateway) => {
            Err(format!("{flag} {gateway} is not in the network of the {name} ({network})"))
        }
        (None, false) => Err(format!(
            "{other} is not in the network of the {name} ({network}); give the router's address with {flag}"
        )),
        _ => Ok(()),
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// OTG's device for one host, on its port.
fn build_device_json(host: &DeviceAddress, port: &str, mac: &str, vlan: Option<u16>) -> Value {
    let (list, no_gateway) = match host.ip {
        // OTG requires a gateway. The unspecified address says that there is none.
        IpAddr::V4(_) => ("ipv4_addresses", IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        IpAddr::V6(_) => ("ipv6_addresses", IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    };
    let mut address = json!({"name": host.name, "address": host.ip, "prefix": host.prefix,
        "gateway": host.gateway.unwrap_or(no_gateway)});
    if let Some(mac) = host.gateway_mac {
        address["gateway_mac"] = json!({"choice": "value", "value": format_mac(mac)});
    }
    let mut ethernet = json!({"name": format!("{port} interface"), "mac": mac,
        "connection": {"choice": "port_name", "port_name": port}});
    ethernet[list] = json!([address]);
    if let Some(id) = vlan {
        ethernet["vlans"] = json!([{"name": format!("{port} vlan"), "id": id}]);
    }
    json!({"name": format!("{port} host"), "ethernets": [ethernet]})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quick::{QuickLength, QuickPattern, QuickPlan, QuickSize};
    use crate::{Plan, Stream};
    use packetrig_units::{FrameSize, Nanos};

    fn host(address: &str, gateway: &str) -> HostRequest {
        HostRequest { address: address.parse().ok(), gateway: gateway.parse().ok(), next_hop: None }
    }

    fn streams(hosts: QuickHosts, ipv6: bool, vlan: Option<u16>) -> Vec<Stream> {
        let quick = QuickPlan {
            tx: vec!["eth1".into()],
            rx: vec!["eth2".into()],
            pattern: QuickPattern::ToAll,
            size: QuickSize::Fixed(FrameSize::new(128)),
            rate: "1kpps".parse().unwrap(),
            length: QuickLength::Time(Nanos::from_secs(1)),
            streams: 2,
            vlan,
            ipv6,
            hosts: Some(hosts),
        };
        let plan = Plan::from_text(&quick.to_yaml()).unwrap_or_else(|problems| panic!("{problems}"));
        assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
        plan.streams
    }

    /// The neighbour that a stream asks for, and whether it expects a router.
    fn next_hop(stream: &Stream) -> (Option<String>, bool) {
        let routed = stream.frames.template().unwrap().spec().routed;
        (stream.awaits.map(|neighbour| neighbour.ip.to_string()), routed)
    }

    #[test]
    fn gateway_is_the_next_hop_of_its_side() {
        for (from, gateway, to, back) in [
            ("10.0.0.2", "10.0.0.1", "10.0.1.2/24", "10.0.1.1"),
            ("fd00::2/64", "fe80::1", "fd00:1::2", "fd00:1::1"),
            ("", "198.18.0.254", "", "198.19.0.254"),
        ] {
            let ipv6 = from.contains(':');
            let one = QuickHosts::new(host(from, gateway), host(to, ""), false, ipv6).unwrap();
            let sent = streams(one, ipv6, Some(7));
            assert_eq!(sent.len(), 2);
            assert_eq!((sent[0].name.as_str(), sent[0].tx, &sent[0].rx[..]), ("stream 1", 0, &[1][..]));
            assert_eq!(next_hop(&sent[0]), (Some(gateway.to_owned()), true));
            let ip = if ipv6 { 40 } else { 20 };
            assert_eq!(sent[0].frames.template().unwrap().header_len(), 14 + 4 + ip + 8);
            let both = QuickHosts::new(host(from, gateway), host(to, back), true, ipv6).unwrap();
            let sent = streams(both, ipv6, None);
            assert_eq!((sent.len(), sent[1].tx), (4, 1));
            assert_eq!(sent[1].name, "stream 1: receiver > sender");
            assert_eq!(next_hop(&sent[1]), (Some(back.to_owned()), true));
        }
    }

    #[test]
    fn hosts_of_one_network_need_no_router() {
        let mac = Some([2, 0, 0, 0, 0, 9]);
        for (ipv6, to) in [(false, "198.19.0.1"), (true, "2001:2:0:1::1")] {
            let ends = HostRequest::default();
            let direct = streams(QuickHosts::new(ends, ends, true, ipv6).unwrap(), ipv6, None);
            assert_eq!(next_hop(&direct[0]), (Some(to.to_owned()), false));
            let fixed = HostRequest { next_hop: mac, ..ends };
            let fixed = streams(QuickHosts::new(fixed, ends, false, ipv6).unwrap(), ipv6, None);
            assert_eq!(next_hop(&fixed[0]), (None, true));
        }
    }

    #[test]
    fn hosts_that_do_not_fit_are_refused() {
        let [plain, none] = [host("10.0.0.2", ""), HostRequest::default()];
        let routed = host("10.0.0.2", "10.0.0.1");
        for (sender, receiver, both_ways, ipv6, why) in [
            (plain, host("10.0.1.2", ""), false, false, "10.0.1.2 is not in the network of the sender"),
            (host("10.0.0.2", "10.0.9.1"), none, false, false, "--gateway 10.0.9.1 is not in the network"),
            (routed, host("10.0.0.3", ""), false, false, "no frame would go to the router of --gateway"),
            (routed, host("10.0.1.2", ""), true, false, "give the router's address with --rx-gateway"),
            (plain, host("10.0.0.2", ""), false, false, "the same address 10.0.0.2"),
            (host("fd00::2", "10.0.0.1"), none, false, true, "10.0.0.1 is an IPv4 address"),
            (routed, none, false, true, "10.0.0.2 is an IPv4 address"),
        ] {
            let refused = QuickHosts::new(sender, receiver, both_ways, ipv6).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn host_address_has_usual_network() {
        for (text, read) in
            [("10.0.0.2", "10.0.0.2/24"), ("fd00::2", "fd00::2/64"), ("10.1.2.3/8", "10.1.2.3/8")]
        {
            assert_eq!(text.parse::<HostAddress>().unwrap().to_string(), read);
        }
        for wrong in ["", "10.0.0", "10.0.0.2/", "10.0.0.2/0", "10.0.0.2/33", "fd00::2/129", "10.0.0.2/24/8"]
        {
            assert!(wrong.parse::<HostAddress>().is_err(), "{wrong}");
        }
    }
}
