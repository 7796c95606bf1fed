//! The address of a server: `https://127.0.0.1:8443`, `http://rig2:8080`, `127.0.0.1:8443`.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// A server's address. Without a scheme it has TLS, as `packetrig serve` has by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiAddress {
    pub(super) has_tls: bool,
    /// Host name or IP address; an IPv6 address is stored without brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl ApiAddress {
    /// The default address of `packetrig serve`.
    pub fn default_server() -> Self {
        Self { has_tls: true, host: "127.0.0.1".to_owned(), port: crate::HTTP_PORT }
    }

    /// Host and port as in a URL.
    pub(super) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Returns whether the host is a loopback address or `localhost`, so that the server runs on this machine.
    pub(super) fn is_loopback(&self) -> bool {
        let ip = self.host.parse::<std::net::IpAddr>();
        ip.map_or(self.host == "localhost", |ip| ip.to_canonical().is_loopback())
    }
}

/// The address of a server without TLS.
impl From<SocketAddr> for ApiAddress {
    fn from(address: SocketAddr) -> Self {
        Self { has_tls: false, host: address.ip().to_string(), port: address.port() }
    }
}

impl fmt::Display for ApiAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.has_tls { "https" } else { "http" }, self.authority())
    }
}

impl FromStr for ApiAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is not an address of a server; write 127.0.0.1:8443 or http://rig:8080");
        let (has_tls, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            Some(_) => return Err(wrong()),
            None => (true, text),
        };
        // Users copy the URL of the live page from a browser, so its path `/ui/` is accepted and dropped.
        let rest = rest.strip_suffix("/ui/").or_else(|| rest.strip_suffix("/ui")).unwrap_or(rest);
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        // The last colon begins the port: an IPv6 address also contains colons.
        let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_valid = match bare {
            Some(ip) => ip.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.chars().all(is_host_character),
        };
        let port = port.parse().ok().filter(|port| *port > 0 && is_valid).ok_or_else(wrong)?;
        Ok(Self { has_tls, host: bare.unwrap_or(host).to_owned(), port })
    }
}

/// True for characters of host names. None of them can end the line of the Host header and begin another one.
const fn is_host_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_printed_by_serve_are_accepted() {
        for (text, shown) in [
            ("127.0.0.1:8443", "https://127.0.0.1:8443"),
            ("http://127.0.0.1:8080/ui/", "http://127.0.0.1:8080"),
            ("https://[::1]:8443/", "https://[::1]:8443"),
            ("rig-2.lab:443", "https://rig-2.lab:443"),
        ] {
            assert_eq!(text.parse::<ApiAddress>().expect("an address").to_string(), shown);
        }
        for bad in [
            "",
            "rig",
            "ftp://rig:1",
            "rig:0",
            ":80",
            "rig:70000",
            "a b:1",
            "::1:80",
            "http://u@rig:1",
            "r/x:1",
        ] {
            assert!(bad.parse::<ApiAddress>().is_err(), "{bad}");
        }
        let is_local = |text: &str| text.parse::<ApiAddress>().expect("an address").is_loopback();
        assert!(is_local("[::1]:1") && is_local("localhost:1") && !is_local("localhost.example:1"));
    }
}
