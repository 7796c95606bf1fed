//! Watches the links of a running tap: whether they exist, the MTU of each, and the carrier of each side. If
//! the user wants it, the tap passes a lost carrier on to the other side: the device at B then sees that a
//! cable was pulled at A.
//!
//! [`LinkStateForwarding`] contains the rule; [`LinkWatch`] reads the links from the kernel and applies the
//! rule. A side that the tap switched down has no carrier because of that, so its carrier means nothing until
//! the side is up again and has had time to find a carrier.
//!
//! Invariant: the tap holds at most one side down, and only while the other has no carrier.

use super::hold::{PreparedTapInterface, PreparedTapInterfaces};
use crate::Error;
use packetrig_sys::link::{Link, NamespaceLinks};
use packetrig_sys::netns::NetNs;
use packetrig_units::{MonoTime, Nanos};

/// Time that a link may take to find its carrier after it was brought up.
const CARRIER_TIMEOUT: Nanos = Nanos::from_secs(5);

/// Switches the link of the side with this index down or up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkAction {
    Down(usize),
    Up(usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LinkStateForwarding {
    /// The side that the tap holds down; `None` if both are up.
    down: Option<usize>,
    /// Time until which a missing carrier of each side is ignored.
    settled: [MonoTime; 2],
}

impl LinkStateForwarding {
    pub(super) fn new(now: MonoTime) -> Self {
        // The sides may have been switched up just before and not have found their carrier yet.
        Self { down: None, settled: [now + CARRIER_TIMEOUT; 2] }
    }

    /// Decides the next action from the current carriers.
    pub(super) fn decide_link_action(&mut self, now: MonoTime, carrier: [bool; 2]) -> Option<LinkAction> {
        if let Some(side) = self.down {
            // The side that the tap switched down has no carrier; only the other side can show that the cable
            // is back.
            if !carrier[1 - side] {
                return None;
            }
            self.down = None;
            // Both ends negotiate their rate first, which may take seconds.
            self.settled[side] = now + CARRIER_TIMEOUT;
            return Some(LinkAction::Up(side));
        }
        for (side, side_has_carrier) in carrier.into_iter().enumerate() {
            if side_has_carrier {
                // The side has found its carrier, so from now on a loss of the carrier counts immediately.
                self.settled[side] = now;
            } else if now >= self.settled[side] {
                self.down = Some(1 - side);
                return Some(LinkAction::Down(1 - side));
            }
        }
        None
    }
}

/// Current state of a tap's interfaces, the sides first; `None` for a removed interface.
pub(super) type PresentInterfaces = Vec<Option<Link>>;

/// True if the side has a carrier. An interface that is gone has none.
fn side_has_carrier(seen: &PresentInterfaces, side: usize) -> bool {
    seen.get(side).and_then(Option::as_ref).is_some_and(|link| link.carrier)
}

pub(super) struct LinkWatch {
    links: NamespaceLinks,
    /// `None` if the carrier of one side is not passed on to the other.
    passing: Option<LinkStateForwarding>,
}

impl LinkWatch {
    pub(super) fn open_links(netns: &NetNs, now: MonoTime, passes_on: bool) -> Result<Self, Error> {
        Ok(Self {
            links: NamespaceLinks::open_in(netns)?,
            passing: passes_on.then(|| LinkStateForwarding::new(now)),
        })
    }

    /// Reads the interfaces. Returns `None` if the kernel did not answer; the tap then continues.
    pub(super) fn poll_links(&mut self, held: &PreparedTapInterfaces) -> Option<PresentInterfaces> {
        held.iter_interfaces()
            .map(|held| match self.links.find_link_by_index(held.link.index) {
                Ok(link) => Some(Some(link)),
                // A missing interface is a valid answer. Other errors are ignored, because a busy kernel must
                // not end a tap.
                Err(packetrig_sys::Error::Missing { .. }) => Some(None),
                Err(_) => None,
            })
            .collect()
    }

    /// Passes on a change of the carrier; returns true if it switched a link.
    pub(super) fn forward_link_state(
        &mut self,
        now: MonoTime,
        seen: &PresentInterfaces,
        sides: &mut [PreparedTapInterface; 2],
    ) -> Result<bool, Error> {
        let Some(passing) = &mut self.passing else { return Ok(false) };
        match passing.decide_link_action(now, [side_has_carrier(seen, 0), side_has_carrier(seen, 1)]) {
            None => Ok(false),
            Some(LinkAction::Down(side)) => sides[side].switch_link(false).map(|()| true),
            Some(LinkAction::Up(side)) => sides[side].switch_link(true).map(|()| true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> MonoTime {
        MonoTime::from_nanos(0) + Nanos::from_millis(ms)
    }

    #[test]
    fn carrier_loss_passes_to_other_side_and_recovers() {
        let mut passing = LinkStateForwarding::new(at(0));
        assert_eq!(passing.decide_link_action(at(1), [true, true]), None);
        assert_eq!(passing.decide_link_action(at(2), [false, true]), Some(LinkAction::Down(1)));
        // B is down now, so it has no carrier.
        assert_eq!(passing.decide_link_action(at(3), [false, false]), None);
        assert_eq!(passing.decide_link_action(at(4), [true, false]), Some(LinkAction::Up(1)));
        // B takes a while to find its carrier; A stays up meanwhile.
        assert_eq!(passing.decide_link_action(at(5), [true, false]), None);
        assert_eq!(passing.decide_link_action(at(6), [true, true]), None);
        assert_eq!(passing.decide_link_action(at(7), [true, false]), Some(LinkAction::Down(0)));
    }

    #[test]
    fn recovered_side_without_carrier_takes_other_down() {
        let mut passing = LinkStateForwarding::new(at(0));
        passing.decide_link_action(at(1), [true, true]);
        assert_eq!(passing.decide_link_action(at(2), [false, true]), Some(LinkAction::Down(1)));
        assert_eq!(passing.decide_link_action(at(3), [true, false]), Some(LinkAction::Up(1)));
        assert_eq!(passing.decide_link_action(at(5002), [true, false]), None);
        assert_eq!(passing.decide_link_action(at(5003), [true, false]), Some(LinkAction::Down(0)));
        assert_eq!(passing.decide_link_action(at(5004), [false, true]), Some(LinkAction::Up(0)));
    }

    #[test]
    fn links_get_grace_time_to_come_up_initially() {
        let mut passing = LinkStateForwarding::new(at(0));
        assert_eq!(passing.decide_link_action(at(4999), [false, true]), None);
        assert_eq!(passing.decide_link_action(at(5000), [false, true]), Some(LinkAction::Down(1)));
    }
}
