//! Arguments of `packetrig meter` for groups of meters.

use super::quantities::{BytesArg, parse_positive_number};
use clap::Args;
use packetrig_flow_io::group::{GroupOptions, RoleDecisionSource};
use packetrig_units::Nanos;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Args, Debug)]
#[command(next_help_heading = "Groups of meters")]
pub(crate) struct MeterGroupArgs {
    /// Name of this meter's group, whose meters see copies of the same link; `packetrig collect` counts each packet
    /// once. Without --peer, all meters of the group export all the time
    #[arg(long, value_name = "NAME", requires_all = ["member", "export"], conflicts_with = "uniflow")]
    pub(crate) group: Option<String>,
    /// Number of this meter in its group
    #[arg(long, value_name = "N", requires = "group")]
    pub(crate) member: Option<u32>,
    /// Another meter of the group, or a multicast group; repeat for more. With peers, one meter exports, and the others
    /// stand by and take over
    #[arg(long, value_name = "ADDRESS[:PORT]", requires_all = ["group", "peer_key"])]
    pub(crate) peer: Vec<PeerAddress>,
    /// File with the key that all meters of the group share: at least 32 hexadecimal digits, readable by its owner only
    #[arg(long, value_name = "FILE", requires = "peer")]
    pub(crate) peer_key: Option<PathBuf>,
    /// Address that receives the messages of the peers (UDP) [default: port 4741 of all addresses]
    #[arg(long, value_name = "ADDRESS[:PORT]", requires = "peer")]
    pub(crate) peer_listen: Option<PeerAddress>,
    /// Interface for a multicast group of peers
    #[arg(long, value_name = "IF", requires = "peer")]
    pub(crate) peer_interface: Option<String>,
    /// Of several standbys, the one with the highest priority takes over
    #[arg(long, value_name = "1…255", default_value_t = 100, value_parser = parse_positive_number::<u8>, requires = "peer")]
    pub(crate) priority: u8,
    /// Take over from an active meter of lower priority
    #[arg(long, requires = "peer")]
    pub(crate) preempt: bool,
    /// Time between two messages to the peers, 10ms to 10s
    #[arg(long, value_name = "TIME", default_value = "100ms", requires = "peer")]
    pub(crate) advertise: Nanos,
    /// Number of missed messages in a row after which a peer counts as failed
    #[arg(long, value_name = "N", default_value_t = 3, requires = "peer")]
    pub(crate) misses: u8,
    /// Another program decides which meter exports: keepalived:PIPE or keepalived:PIPE:INSTANCE (its notify_fifo), or
    /// file:PATH (a file with the word `active` or `standby`) [default: the meters decide]
    #[arg(long, value_name = "SOURCE", requires = "peer")]
    pub(crate) role_from: Option<RoleSourceArg>,
    /// Memory of a standby for records that it may have to export
    #[arg(long, value_name = "SIZE", default_value = "256MiB", requires = "peer")]
    pub(crate) standby_memory: BytesArg,
}

/// The address of a peer. If the user gives no port, the port is [`GroupOptions::PORT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerAddress(pub(crate) SocketAddr);

impl FromStr for PeerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // An address without a port is tried first: `2001:db8::2` has colons, and none of them begins a port.
        let alone = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, GroupOptions::PORT));
        alone.or_else(|_| text.parse()).map(Self).map_err(|_| {
            format!("`{text}` is not an address; write 198.18.0.2, 198.18.0.2:4741 or [2001:db8::2]:4741")
        })
    }
}

/// Program or election that decides which meter exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoleSourceArg(pub(crate) RoleDecisionSource);

impl FromStr for RoleSourceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let source = match text.split_once(':') {
            Some(("file", path)) if !path.is_empty() => RoleDecisionSource::StateFile(path.into()),
            Some(("keepalived", rest)) if !rest.is_empty() => {
                // The first colon ends the path, so a name of an instance may have colons.
                let (pipe, instance) =
                    rest.split_once(':').map_or((rest, None), |(pipe, name)| (pipe, Some(name)));
                RoleDecisionSource::Keepalived { fifo: pipe.into(), instance: instance.map(str::to_owned) }
            }
            _ => {
                return Err(format!(
                    "`{text}` is not a source of the meter's role; write keepalived:PIPE or file:PATH"
                ));
            }
        };
        Ok(Self(source))
    }
}

impl MeterGroupArgs {
    /// Returns what decides whether this meter exports; without `--role-from`, the meters elect the active one.
    pub(crate) fn role_source(&self) -> RoleDecisionSource {
        self.role_from.clone().map_or(RoleDecisionSource::Election, |source| source.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_address_without_port_gets_default() {
        let parsed = |text: &str| text.parse::<PeerAddress>().map(|address| address.0.to_string());
        assert_eq!(parsed("198.18.0.2").unwrap(), "198.18.0.2:4741");
        assert_eq!(parsed("198.18.0.2:5").unwrap(), "198.18.0.2:5");
        assert_eq!(parsed("2001:db8::2").unwrap(), "[2001:db8::2]:4741");
        assert!(parsed("host").is_err());
    }

    #[test]
    fn role_source_is_keepalived_or_file() {
        let parsed = |text: &str| text.parse::<RoleSourceArg>().map(|source| source.0);
        let keepalived = |instance: Option<&str>| RoleDecisionSource::Keepalived {
            fifo: "/run/vrrp".into(),
            instance: instance.map(str::to_owned),
        };
        assert_eq!(parsed("keepalived:/run/vrrp"), Ok(keepalived(None)));
        assert_eq!(parsed("keepalived:/run/vrrp:VI_1"), Ok(keepalived(Some("VI_1"))));
        assert_eq!(parsed("file:/run/role"), Ok(RoleDecisionSource::StateFile("/run/role".into())));
        assert!(["", "file:", "keepalived", "vrrp:/x"].iter().all(|text| parsed(text).is_err()));
    }
}
