//! What the kernel says of an interface and of those stacked on it.

use super::guard::Relative;
use packetrig_sys::facts::Interface;
use packetrig_sys::link::{Counters, Link, Links};
use packetrig_sys::netns::NetNs;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Kinds of interfaces that send through another one, which their `peer` names.
const STACKED: [&str; 6] = ["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec"];

/// The interface with this number and all that send through it: its bridge or bond, VLANs on top, and theirs in turn.
/// `all` are the interfaces of its namespace.
pub(crate) fn relatives(all: &[Interface], index: u32) -> Vec<Relative> {
    let links: Vec<&Link> = all.iter().map(|interface| &interface.link).collect();
    let related = related(&links, index);
    let describe = |interface: &Interface| Relative {
        name: interface.link.name.clone(),
        itself: interface.link.index == index,
        loopback: interface.link.loopback,
        default_route: interface.default_route,
        addresses: interface.addresses.clone(),
    };
    all.iter().filter(|interface| related.contains(&interface.link.index)).map(describe).collect()
}

fn related(all: &[&Link], index: u32) -> BTreeSet<u32> {
    let mut found = BTreeSet::from([index]);
    loop {
        let masters = all.iter().filter(|link| found.contains(&link.index)).filter_map(|link| link.master);
        let stacked = all.iter().filter(|link| {
            link.kind.as_deref().is_some_and(|kind| STACKED.contains(&kind))
                && link.peer.is_some_and(|below| found.contains(&below))
        });
        let more: Vec<u32> = masters.chain(stacked.map(|link| link.index)).collect();
        let before = found.len();
        found.extend(more);
        if found.len() == before {
            return found;
        }
    }
}

/// Counts of an interface since the meter was started.
#[derive(Debug)]
pub(crate) struct Meter {
    links: Links,
    index: u32,
    start: Counters,
    /// Frames sent since then that are not the test's.
    aside: Arc<AtomicU64>,
    /// Frames that arrived while the ring was opened: the ring has them or not.
    while_opening: u64,
}

impl Meter {
    pub(crate) fn start(netns: &NetNs, index: u32) -> Result<Self, packetrig_sys::Error> {
        let mut links = Links::open(netns)?;
        let start = links.counters(index)?;
        Ok(Self { links, index, start, aside: Arc::default(), while_opening: 0 })
    }

    /// The same without the frames that are counted there.
    pub(crate) fn without(self, aside: &Arc<AtomicU64>) -> Self {
        Self { aside: Arc::clone(aside), ..self }
    }

    /// Starts anew from here, where a ring has been opened since the first start.
    pub(crate) fn restart(&mut self) -> Result<(), packetrig_sys::Error> {
        let start = self.links.counters(self.index)?;
        self.while_opening = start.rx_frames.saturating_sub(self.start.rx_frames);
        self.start = start;
        Ok(())
    }

    /// Frames that arrived, of which `accounted` are known to have been in the ring. Ring and meter cannot be opened at one
    /// instant, so frames that came in between are taken to be where they balance.
    pub(crate) fn arrived(&self, counters: &Counters, accounted: u64) -> u64 {
        accounted.clamp(counters.rx_frames, counters.rx_frames + self.while_opening)
    }

    /// What was counted since the start; `None` once the interface is gone.
    pub(crate) fn read(&mut self) -> Option<Counters> {
        // Read first: a frame counted aside is in the interface's count by then.
        let aside = self.aside.load(Ordering::Acquire);
        let now = self.links.counters(self.index).ok()?;
        let start = self.start;
        // Some drivers start from zero when they are brought up again.
        let since = |now: u64, start: u64| now.checked_sub(start).unwrap_or(now);
        Some(Counters {
            carrier: now.carrier,
            rx_frames: since(now.rx_frames, start.rx_frames),
            rx_bytes: since(now.rx_bytes, start.rx_bytes),
            rx_errors: since(now.rx_errors, start.rx_errors),
            rx_dropped: since(now.rx_dropped, start.rx_dropped),
            tx_frames: since(now.tx_frames, start.tx_frames).saturating_sub(aside),
            tx_bytes: since(now.tx_bytes, start.tx_bytes),
            tx_errors: since(now.tx_errors, start.tx_errors),
            tx_dropped: since(now.tx_dropped, start.tx_dropped),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, kind: Option<&str>, master: Option<u32>, peer: Option<u32>) -> Link {
        Link {
            index,
            name: format!("if{index}"),
            kind: kind.map(str::to_owned),
            mac: None,
            mtu: 1500,
            mtu_limit: None,
            up: true,
            carrier: true,
            loopback: false,
            promiscuous: false,
            master,
            peer,
            qdisc: None,
        }
    }

    #[test]
    fn bridges_bonds_and_vlans_above_are_related_cables_are_not() {
        let all = [
            link(1, None, Some(2), None),
            link(2, Some("bond"), Some(3), None),
            link(3, Some("bridge"), None, None),
            link(4, Some("vlan"), None, Some(3)),
            link(5, Some("veth"), None, Some(1)),
            link(6, Some("vlan"), None, Some(5)),
            link(7, None, Some(3), None),
        ];
        assert_eq!(related(&all.each_ref(), 1), BTreeSet::from([1, 2, 3, 4]));
        assert_eq!(related(&all.each_ref(), 5), BTreeSet::from([5, 6]));
    }
}
