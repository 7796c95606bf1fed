//! An interface of a tap: guarded, locked, quiet. It is restored when dropped, or by the process that finds it later.

use super::place::TapInterface;
use crate::Error;
use packetrig_engine::packet::quiet::{InterfaceChange, InterfaceWish, QuietInterface};
use packetrig_engine::packet::{guard, lock_name};
use packetrig_plan::PortLocation;
use packetrig_sys::link::{Link, NamespaceLinks};
use packetrig_sys::lock::NameLock;
use packetrig_sys::netns::NetNs;

#[derive(Debug)]
pub(super) struct TapHold {
    pub(super) netns: NetNs,
    pub(super) link: Link,
    pub(super) location: PortLocation,
    quieted: Option<QuietInterface>,
    /// Whether we made it promiscuous.
    is_promiscuous: bool,
    _lock: NameLock,
}

impl TapHold {
    /// Takes an interface. `is_side` says that it is to hear everything.
    pub(super) fn take(location: &PortLocation, confirmed: bool, is_side: bool) -> Result<Self, Error> {
        let name = location.to_string();
        let netns = NetNs::open_or_current(location.namespace.as_deref())?;
        let mut links = NamespaceLinks::open(&netns)?;
        let link = links.by_name(&location.interface)?;
        guard::permit_port(&netns, link.index, &name, confirmed)?;
        let lock = NameLock::take(&netns, &lock_name(link.index), &format!("port {name}"))?;
        let quieted = QuietInterface::make(&netns, &mut links, &link, InterfaceWish::default())?;
        let mut held = Self {
            link: links.by_name(&location.interface)?,
            netns,
            location: location.clone(),
            quieted: Some(quieted),
            is_promiscuous: false,
            _lock: lock,
        };
        if is_side {
            // On the interface and not by a socket, which would end with its process: forwarding in the kernel may
            // outlive it.
            held.is_promiscuous = links.set_promiscuous(held.link.index, true)?;
        }
        Ok(held)
    }

    /// What could not be made quiet.
    pub(super) fn caveats(&self) -> &[String] {
        self.quieted.as_ref().map_or(&[], QuietInterface::caveats)
    }

    /// What was changed, for the tap's file: another process may have to restore it.
    pub(super) fn changes(&self) -> Vec<InterfaceChange> {
        self.quieted.as_ref().map_or_else(Vec::new, |quieted| quieted.changes().to_vec())
    }

    /// Whether it was made promiscuous.
    pub(super) const fn is_promiscuous(&self) -> bool {
        self.is_promiscuous
    }

    /// Lets frames arrive that a program redirects into this cable, where they did before. For a side without a program.
    pub(super) fn keep_redirects(&mut self) {
        if let Some(quieted) = &mut self.quieted {
            quieted.keep_redirects();
        }
    }

    /// Leaves it to the tap's own file to say what was changed: for a tap that goes on forwarding when its process is killed,
    /// because a run on the interface must not restore it before the tap ends.
    pub(super) fn stop_saving(&mut self) -> Result<(), Error> {
        if let Some(quieted) = &mut self.quieted {
            quieted.stop_saving()?;
        }
        Ok(())
    }

    /// Switches the link up or down, until the interface is given back.
    pub(super) fn switch_link(&mut self, up: bool) -> Result<(), Error> {
        if let Some(quieted) = &mut self.quieted {
            quieted.switch_link(up)?;
        }
        Ok(())
    }

    /// Leaves it as it is now.
    pub(super) fn leave(mut self) {
        self.is_promiscuous = false;
        if let Some(quieted) = self.quieted.take() {
            quieted.leave();
        }
    }
}

impl Drop for TapHold {
    fn drop(&mut self) {
        if self.is_promiscuous {
            end_promiscuous_mode(&self.netns, self.link.index);
        }
    }
}

/// Puts back what a tap has left, if the interface is still the one it was.
pub(super) fn restore(part: &TapInterface, netns: &NetNs) -> Result<(), Error> {
    let link = NamespaceLinks::open(netns)?.by_index(part.index)?;
    let location: Option<PortLocation> = part.location.parse().ok();
    if location.is_none_or(|location| location.interface != link.name) {
        return Ok(());
    }
    // Another process may have taken it since, and restores it then.
    let _lock = NameLock::take(netns, &lock_name(part.index), &format!("port {}", part.location))?;
    if part.promiscuous {
        end_promiscuous_mode(netns, part.index);
    }
    Ok(QuietInterface::resume(netns, &link, part.changes.clone())?.restore_all()?)
}

/// Best effort: the interface may be gone by now.
fn end_promiscuous_mode(netns: &NetNs, index: u32) {
    drop(NamespaceLinks::open(netns).and_then(|mut links| links.set_promiscuous(index, false)));
}
