//! Checks the addresses of a controller's clock server before a node sends probes to them.

use packetrig_fleet::message::ClockServer;
use std::net::{IpAddr, SocketAddr};

/// Maximum number of addresses of the controller's clock server.
const MAX_CLOCKS: usize = 64;
/// First port that is not reserved for services.
const FIRST_FREE_PORT: u16 = 1024;

/// Refuses addresses to which a node must not send clock probes. The probes leave through this machine's own
/// routes, several each second: a controller must not direct them to many machines (broadcast, multicast) or to the
/// port of a service.
pub(crate) fn check_clock_addresses(clock: &ClockServer) -> Result<(), String> {
    if clock.at.len() <= MAX_CLOCKS && clock.at.iter().all(is_unicast_and_unreserved) {
        return Ok(());
    }
    Err(format!(
        "the controller's clock server must have at most {MAX_CLOCKS} addresses, each of them unicast and \
         with port {FIRST_FREE_PORT} or higher"
    ))
}

/// Returns whether this is a unicast address with a port that is not reserved for services.
fn is_unicast_and_unreserved(at: &SocketAddr) -> bool {
    // An IPv4-mapped address (RFC 4291, 2.5.5.2) such as `::ffff:255.255.255.255` reaches the IPv4 address in it.
    let ip = at.ip().to_canonical();
    let is_many = match ip {
        IpAddr::V4(four) => four.is_broadcast() || four.is_multicast(),
        // IPv6 has no broadcast and uses multicast instead (RFC 4291, 2).
        IpAddr::V6(six) => six.is_multicast(),
    };
    !is_many && !ip.is_unspecified() && at.port() >= FIRST_FREE_PORT
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_fleet::message::ClockKey;

    #[test]
    fn clock_server_must_be_unicast_in_any_notation() {
        let asked = |at: &str| {
            let at = vec![at.parse().unwrap()];
            check_clock_addresses(&ClockServer {
                at,
                key: ClockKey([0; 32]),
                identity: String::new(),
                key_number: 0,
            })
        };
        for one in ["192.0.2.1:5000", "[2001:db8::1]:5000", "[::ffff:192.0.2.1]:5000"] {
            assert_eq!(asked(one), Ok(()), "{one}");
        }
        for many in
            ["255.255.255.255:5000", "224.0.0.1:5000", "0.0.0.0:5000", "192.0.2.1:53", "[ff02::1]:5000"]
        {
            assert!(asked(many).is_err(), "{many}");
        }
        for mapped in ["[::ffff:255.255.255.255]:5000", "[::ffff:224.0.0.1]:5000", "[::ffff:0.0.0.0]:5000"] {
            assert!(asked(mapped).is_err(), "{mapped}");
        }
    }
}
