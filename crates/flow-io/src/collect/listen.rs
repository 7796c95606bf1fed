//! Listen addresses, as users write them.

use packetrig_flow::collect::MessageTransport;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// Transport and address on which a collector listens, such as `udp://0.0.0.0:4739`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    pub transport: MessageTransport,
    /// Address to listen on. With port 0, the kernel chooses a free port.
    pub address: SocketAddr,
}

/// The text is not a listen address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a valid listen address: write udp://0.0.0.0:4739, tcp://[::1]:4739 or tls://127.0.0.1:4740"
)]
pub struct ListenAddressError(String);

impl FromStr for ListenAddress {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<Self, ListenAddressError> {
        parse_listen_address(text).ok_or_else(|| ListenAddressError(text.to_owned()))
    }
}

fn parse_listen_address(text: &str) -> Option<ListenAddress> {
    let (transport, address) = text.split_once("://")?;
    let transport = match transport {
        "udp" => MessageTransport::Udp,
        "tcp" => MessageTransport::Tcp,
        "tls" => MessageTransport::Tls,
        _ => return None,
    };
    Some(ListenAddress { transport, address: address.parse().ok()? })
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.transport.name(), self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_address_round_trips_as_text() {
        for text in ["udp://0.0.0.0:4739", "tcp://[::1]:4739", "tls://127.0.0.1:0"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        for text in ["udp://4739", "sctp://127.0.0.1:1", "127.0.0.1:4739", "udp://localhost:1"] {
            assert!(text.parse::<ListenAddress>().unwrap_err().to_string().contains(text));
        }
    }
}
