//! The lab guard: test traffic stays off networks that people use.
//!
//! RFC 6815 confines benchmark traffic to isolated test networks. An interface that carries a default route, or an
//! address outside the blocks set aside for benchmarking, is refused until the user confirms it for that interface.
//! Interfaces above it (its bridge, VLANs on it) count like itself. This module decides; it asks the kernel nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The interface, or one that sends through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relative {
    /// Its name.
    pub name: String,
    /// It is the interface asked for.
    pub itself: bool,
    /// It is the loopback interface.
    pub loopback: bool,
    /// A default route leaves through it.
    pub default_route: bool,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

/// Why an interface is refused. The user's to decide.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("port {port} is refused: {reason}; use an isolated test network, or confirm with `--confirm {port}`")]
pub struct Refusal {
    /// The interface as the user wrote it.
    pub port: String,
    /// What it carries.
    pub reason: String,
}

/// Whether test traffic may leave through `port`.
pub fn judge(port: &str, relatives: &[Relative], confirmed: bool) -> Result<(), Refusal> {
    if confirmed {
        return Ok(());
    }
    match relatives.iter().find_map(objection) {
        Some(reason) => Err(Refusal { port: port.to_owned(), reason }),
        None => Ok(()),
    }
}

fn objection(relative: &Relative) -> Option<String> {
    let who =
        if relative.itself { "it".to_owned() } else { format!("{}, which sends through it,", relative.name) };
    if relative.loopback {
        return Some(format!("{who} is the loopback interface, which carries this machine's own traffic"));
    }
    if relative.default_route {
        return Some(format!(
            "{who} carries the default route, so test traffic could reach other people's networks"
        ));
    }
    let foreign = relative.addresses.iter().find(|address| !is_for_tests(**address))?;
    Some(format!(
        "{who} has the address {foreign}, which is not one for benchmarking (198.18.0.0/15, 2001:2::/48)"
    ))
}

/// Addresses set aside for benchmarking (RFC 2544, RFC 5180), and those that never leave a link.
fn is_for_tests(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => in_block(four, Ipv4Addr::new(198, 18, 0, 0), 15) || four.is_link_local(),
        IpAddr::V6(six) => {
            in_block_6(six, Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0), 48) || six.is_unicast_link_local()
        }
    }
}

fn in_block(address: Ipv4Addr, block: Ipv4Addr, prefix: u32) -> bool {
    (address.to_bits() ^ block.to_bits()) >> (32 - prefix) == 0
}

fn in_block_6(address: Ipv6Addr, block: Ipv6Addr, prefix: u32) -> bool {
    (address.to_bits() ^ block.to_bits()) >> (128 - prefix) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Relative {
        Relative {
            name: "eth1".into(),
            itself: true,
            loopback: false,
            default_route: false,
            addresses: Vec::new(),
        }
    }

    fn with(addresses: &[&str]) -> Vec<Relative> {
        vec![Relative { addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(), ..plain() }]
    }

    #[test]
    fn interfaces_without_addresses_or_with_those_for_tests_pass() {
        for addresses in [
            &[][..],
            &["198.18.0.1", "198.19.255.254"],
            &["2001:2::1", "2001:2:0:ffff::1"],
            &["169.254.7.7", "fe80::1"],
        ] {
            assert_eq!(judge("eth1", &with(addresses), false), Ok(()), "{addresses:?}");
        }
    }

    #[test]
    fn foreign_addresses_are_refused_by_name_until_confirmed() {
        for address in
            ["10.0.0.1", "198.17.255.255", "198.20.0.0", "2001:2:1::1", "2001:db8::1", "fd00::1", "8.8.8.8"]
        {
            let relatives = with(&["198.18.0.1", address]);
            let refusal = judge("ns/eth1", &relatives, false).unwrap_err().to_string();
            assert!(refusal.contains(address) && refusal.contains("--confirm ns/eth1"), "{refusal}");
            assert_eq!(judge("ns/eth1", &relatives, true), Ok(()));
        }
    }

    #[test]
    fn default_routes_and_loopback_are_refused() {
        let routed = Relative { default_route: true, ..plain() };
        assert!(judge("eth1", &[routed], false).unwrap_err().reason.contains("default route"));
        let loopback = Relative { loopback: true, ..plain() };
        assert!(judge("lo", &[loopback], false).unwrap_err().reason.contains("loopback"));
    }

    #[test]
    fn what_sends_through_the_interface_counts_and_is_named() {
        let bridge = Relative { name: "br0".into(), itself: false, default_route: true, ..plain() };
        let reason = judge("eth1", &[plain(), bridge], false).unwrap_err().reason;
        assert!(reason.contains("br0"), "{reason}");
    }
}
