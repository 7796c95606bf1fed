//! Targets of probes on the command line: an address, or a host name that the system resolves. Limits and
//! permits apply to the address.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// Maximum length of a DNS name, in characters.
const LONGEST_NAME: usize = 253;

/// The address of a target, and the host name that it was resolved from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeTarget {
    pub address: IpAddr,
    /// The host name; `None` if the user gave an address.
    pub name: Option<String>,
}

impl FromStr for ProbeTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The name is resolved only once, here: the permit and the limits are then checked for exactly the
        // address that receives the probes.
        match text.parse() {
            Ok(address) => Ok(Self { address, name: None }),
            Err(_) => Ok(Self { address: resolve_host(text)?, name: Some(text.to_owned()) }),
        }
    }
}

impl fmt::Display for ProbeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} ({})", self.address),
            None => write!(f, "{}", self.address),
        }
    }
}

/// A target with a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeTargetWithPort {
    pub target: ProbeTarget,
    pub port: u16,
}

impl ProbeTargetWithPort {
    /// Parses `ADDRESS`, `ADDRESS:PORT`, `NAME` or `NAME:PORT`; without a port, the result has `usual_port`.
    pub(super) fn parse_with_port(text: &str, usual_port: u16) -> Result<Self, String> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            let target = ProbeTarget { address: address.ip(), name: None };
            return Ok(Self { target, port: address.port() });
        }
        // An IPv6 address without brackets contains several colons, and none of them separates a port.
        let with_port = text.rsplit_once(':').filter(|(host, _)| !host.contains(':'));
        let Some((host, port)) = with_port else {
            return Ok(Self { target: text.parse()?, port: usual_port });
        };
        let port = port.parse().map_err(|_| format!("`{port}` is not a port: a number from 0 to 65535"))?;
        Ok(Self { target: host.parse()?, port })
    }

    pub const fn address(&self) -> SocketAddr {
        SocketAddr::new(self.target.address, self.port)
    }
}

/// Returns the first address that the system's resolver gives for a name.
fn resolve_host(name: &str) -> Result<IpAddr, String> {
    // The text of a mistyped address or network must not leave this machine as a DNS query.
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_host_character) {
        return Err(format!("`{name}` is neither an address nor the name of a host"));
    }
    // `to_socket_addrs` needs a port. It is 0 here, because only the addresses are used.
    let addresses = (name, 0).to_socket_addrs();
    let first = addresses.and_then(|mut all| all.next().ok_or_else(|| io::ErrorKind::NotFound.into()));
    let first = first
        .map_err(|error| format!("cannot find the address of `{name}`: {error}; use an address instead"))?;
    Ok(first.ip())
}

/// The underscore is accepted, too: RFC 952 forbids it in host names, but real names contain it.
fn is_host_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> ProbeTarget {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_taken_as_they_are() {
        for text in ["192.0.2.1", "2001:db8::1"] {
            assert_eq!((target(text).name.clone(), target(text).to_string()), (None, text.to_owned()));
        }
    }

    #[test]
    fn names_are_resolved_and_shown_with_their_address() {
        let local = target("localhost");
        assert!(local.address.is_loopback(), "{local}");
        assert_eq!(local.to_string(), format!("localhost ({})", local.address));
    }

    #[test]
    fn invalid_target_name_is_refused_before_lookup() {
        for text in ["", "10.0.0.0/8", "a b", "über.example", &"a".repeat(300)] {
            assert!(text.parse::<ProbeTarget>().unwrap_err().contains("neither an address"), "{text}");
        }
    }

    #[test]
    fn a_port_follows_an_address_or_a_name() {
        let parse = |text| {
            ProbeTargetWithPort::parse_with_port(text, 862)
                .map(|of| (of.address().to_string(), of.target.name))
        };
        assert_eq!(parse("192.0.2.1").unwrap(), ("192.0.2.1:862".to_owned(), None));
        assert_eq!(parse("192.0.2.1:7").unwrap(), ("192.0.2.1:7".to_owned(), None));
        assert_eq!(parse("2001:db8::1").unwrap(), ("[2001:db8::1]:862".to_owned(), None));
        assert_eq!(parse("[2001:db8::1]:7").unwrap(), ("[2001:db8::1]:7".to_owned(), None));
        let local = ProbeTargetWithPort::parse_with_port("localhost:7", 862).unwrap();
        assert!(local.target.address.is_loopback() && local.port == 7);
        assert!(parse("localhost:99999").unwrap_err().contains("not a port"));
    }
}
