//! Options with which a meter joins a group.

use super::{GroupError, GroupKey};
use packetrig_flow::group::{ElectionOptions, RoleSource};
use packetrig_units::Nanos;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The usual UDP port of advertisements.
pub(super) const PORT: u16 = 4741;

/// The program that decides the role of this meter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RoleDecisionSource {
    /// The meters elect the active one.
    #[default]
    Election,
    /// keepalived, with `vrrp_notify_fifo` or `notify_fifo` in its configuration.
    Keepalived {
        fifo: PathBuf,
        /// Name of the VRRP instance or group whose notices count; `None` means any.
        instance: Option<String>,
    },
    /// Scripts, such as those of ucarp, write `active` or `standby` into this file.
    StateFile(PathBuf),
}

#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// Name of the group, the same for all its meters.
    pub name: String,
    pub key: GroupKey,
    /// Options of the election. `role_source` is ignored here, because it follows from `orders`.
    pub election: ElectionOptions,
    /// Address to listen on. With port 0, the kernel chooses a free port.
    pub listen: SocketAddr,
    /// Interface on which multicast advertisements are sent and received.
    pub interface: Option<String>,
    /// Destinations: the addresses of the other meters, or a multicast group.
    pub peers: Vec<SocketAddr>,
    pub orders: RoleDecisionSource,
    /// Largest accepted difference between the clocks of two members; advertisements with a larger difference are
    /// dropped. The margin around watermarks should not be smaller: if the active meter's clock is ahead, a standby
    /// forgets records too early.
    pub clock_tolerance: Nanos,
}

impl GroupOptions {
    /// The usual UDP port of advertisements.
    pub const PORT: u16 = PORT;

    pub fn new(name: &str, key: GroupKey, meter: u32, listen: SocketAddr) -> Self {
        Self {
            name: name.to_owned(),
            key,
            election: ElectionOptions::new(meter),
            listen,
            interface: None,
            peers: Vec::new(),
            orders: RoleDecisionSource::Election,
            clock_tolerance: Nanos::from_secs(1),
        }
    }

    pub(super) fn check_consistency(&self) -> Result<(), GroupError> {
        if self.name.is_empty() {
            return Err(GroupError::NoName);
        }
        if self.peers.is_empty() {
            return Err(GroupError::NoPeers(self.name.clone()));
        }
        // One socket serves all peers, and it has one address family.
        if let Some(peer) = self.peers.iter().find(|peer| peer.is_ipv4() != self.listen.is_ipv4()) {
            return Err(GroupError::Family { peer: *peer, own: self.listen });
        }
        Ok(self.election.check_election_options()?)
    }

    pub(super) const fn election_options(&self) -> ElectionOptions {
        // `role_source` follows from `orders`, so that the two options cannot contradict each other.
        let role_source = match self.orders {
            RoleDecisionSource::Election => RoleSource::Election,
            RoleDecisionSource::Keepalived { .. } | RoleDecisionSource::StateFile(_) => RoleSource::Ordered,
        };
        ElectionOptions { role_source, ..self.election }
    }
}
