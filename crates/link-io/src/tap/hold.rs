//! The interfaces of a tap: they are checked, locked, and made quiet ([`QuietInterface`]). They are restored
//! when the value is dropped, or by another process that finds the tap later.

use super::place::{TapInterface, TapState};
use crate::Error;
use packetrig_engine::packet::quiet::{InterfaceChange, InterfaceSettings, QuietInterface};
use packetrig_engine::packet::{guard, interface_lock_name};
use packetrig_plan::PortLocation;
use packetrig_sys::link::{Link, NamespaceLinks};
use packetrig_sys::lock::NameLock;
use packetrig_sys::netns::NetNs;

#[derive(Debug)]
pub(super) struct PreparedTapInterface {
    pub(super) netns: NetNs,
    pub(super) link: Link,
    pub(super) location: PortLocation,
    quieted: Option<QuietInterface>,
    /// True if the tap made the interface promiscuous.
    is_promiscuous: bool,
    _lock: NameLock,
}

impl PreparedTapInterface {
    /// Checks and locks an interface, and changes its settings for the tap. A side (`is_side`) becomes promiscuous, so
    /// that it receives all frames.
    pub(super) fn prepare_interface(
        location: &PortLocation,
        confirmed: bool,
        is_side: bool,
    ) -> Result<Self, Error> {
        let name = location.to_string();
        let netns = NetNs::open_named_or_current_namespace(location.namespace.as_deref())?;
        let mut links = NamespaceLinks::open_in(&netns)?;
        let link = links.find_link_by_name(&location.interface)?;
        guard::permit_port(&netns, link.index, &name, confirmed).map_err(packetrig_engine::Error::from)?;
        // The interface is locked by its index, because an interface may be renamed while the tap holds it.
        let lock = NameLock::acquire_name(&netns, &interface_lock_name(link.index), &format!("port {name}"))?;
        let quieted =
            QuietInterface::quieten_interface(&netns, &mut links, &link, InterfaceSettings::default())?;
        let mut held = Self {
            // The state is read again, because the interface was changed since the first reading.
            link: links.find_link_by_name(&location.interface)?,
            netns,
            location: location.clone(),
            quieted: Some(quieted),
            is_promiscuous: false,
            _lock: lock,
        };
        if is_side {
            // The mode is set on the interface and not by a socket: a socket's setting would end with its
            // process, but the kernel may forward longer.
            held.is_promiscuous = links.set_promiscuous(held.link.index, true)?;
        }
        Ok(held)
    }

    /// Describes the settings that could not be changed for the tap, and a missing carrier.
    pub(super) fn caveats(&self) -> &[String] {
        self.quieted.as_ref().map_or(&[], QuietInterface::caveats)
    }

    /// Changes so far, for the tap's file: another process may have to restore them.
    pub(super) fn changes(&self) -> Vec<InterfaceChange> {
        self.quieted.as_ref().map_or_else(Vec::new, |quieted| quieted.changes().to_vec())
    }

    /// True if the interface was made promiscuous.
    pub(super) const fn is_promiscuous(&self) -> bool {
        self.is_promiscuous
    }

    /// Attaches an XDP program that passes all frames, if the side is a veth whose GRO the tap has switched off.
    /// Without GRO or a program, the veth would no longer accept frames that a program redirects into it.
    pub(super) fn attach_pass_program(&mut self) {
        if let Some(quieted) = &mut self.quieted {
            quieted.attach_pass_program();
        }
    }

    /// Deletes the interface's own record of changes, so that only the tap's file has them. This is for a tap
    /// that keeps forwarding when its process is killed: another run on the interface must not restore it
    /// before the tap ends.
    pub(super) fn delete_saved_settings(&mut self) -> Result<(), Error> {
        if let Some(quieted) = &mut self.quieted {
            quieted.delete_saved_settings()?;
        }
        Ok(())
    }

    /// Switches the link up or down. The original state returns when the interface is restored.
    pub(super) fn switch_link(&mut self, up: bool) -> Result<(), Error> {
        if let Some(quieted) = &mut self.quieted {
            quieted.switch_link(up)?;
        }
        Ok(())
    }

    /// Restores the interface. Does nothing if the interface no longer exists.
    fn restore_interface(&mut self) -> Result<(), Error> {
        let promiscuous = if std::mem::take(&mut self.is_promiscuous) {
            end_promiscuous_mode(&self.netns, self.link.index)
        } else {
            Ok(())
        };
        // Both settings are restored even if one of them fails; the first error is returned.
        let settings = self.quieted.take().map_or(Ok(()), QuietInterface::restore_all_settings);
        promiscuous?;
        settings.map_err(Error::from)
    }

    /// Leaves the interface as it is now.
    fn leave_interface_unchanged(&mut self) {
        self.is_promiscuous = false;
        if let Some(quieted) = self.quieted.take() {
            quieted.forget_changes();
        }
    }
}

impl Drop for PreparedTapInterface {
    fn drop(&mut self) {
        // A destructor cannot return an error; a caller that needs the error has called `restore_interface` before.
        drop(self.restore_interface());
    }
}

/// Proof that each interface of a tap was restored or is gone. Only with this proof may the tap's files be removed.
#[must_use]
#[derive(Debug)]
pub(super) struct InterfacesRestored(());

/// All interfaces of a tap.
#[derive(Debug)]
pub(super) struct PreparedTapInterfaces {
    pub(super) sides: [PreparedTapInterface; 2],
    pub(super) mirrors: Vec<PreparedTapInterface>,
}

impl PreparedTapInterfaces {
    pub(super) fn iter_interfaces(&self) -> impl Iterator<Item = &PreparedTapInterface> {
        self.sides.iter().chain(&self.mirrors)
    }

    pub(super) fn iter_interfaces_mut(&mut self) -> impl Iterator<Item = &mut PreparedTapInterface> {
        self.sides.iter_mut().chain(&mut self.mirrors)
    }

    /// Restores each interface, even if another one cannot be restored.
    pub(super) fn restore_interfaces(&mut self) -> Result<InterfacesRestored, Error> {
        let outcomes = self.iter_interfaces_mut().map(PreparedTapInterface::restore_interface);
        // `fold` visits every interface, and `and` keeps the first error.
        outcomes.fold(Ok(()), Result::and).map(InterfacesRestored)
    }

    pub(super) fn leave_interfaces(&mut self) {
        self.iter_interfaces_mut().for_each(PreparedTapInterface::leave_interface_unchanged);
    }
}

/// Restores the interfaces of a dead tap. If one interface fails, the others are still restored.
pub(super) fn restore_abandoned_tap(state: &TapState) -> Result<InterfacesRestored, Error> {
    let parts = state.sides.iter().chain(&state.mirrors);
    // A namespace that no longer exists took its interfaces with it.
    let there = parts.filter_map(|part| Some((part, part.open_netns(state.process)?)));
    let outcomes = there.map(|(part, netns)| restore_abandoned_interface(part, &netns));
    outcomes.fold(Ok(()), Result::and).map(InterfacesRestored)
}

/// Restores an interface that a dead tap left, if it is still the same interface.
fn restore_abandoned_interface(part: &TapInterface, netns: &NetNs) -> Result<(), Error> {
    let Some(link) = NamespaceLinks::open_in(netns)?.find_link_if_present(part.index)? else { return Ok(()) };
    let location: Option<PortLocation> = part.location.parse().ok();
    // The index may belong to another interface by now, which must not be changed.
    if location.is_none_or(|location| location.interface != link.name) {
        return Ok(());
    }
    // Another process may have taken the interface meanwhile. That process will restore the state that the
    // tap made, so this restore has to wait for it.
    let _lock =
        NameLock::acquire_name(netns, &interface_lock_name(part.index), &format!("port {}", part.location))?;
    let promiscuous = if part.promiscuous { end_promiscuous_mode(netns, part.index) } else { Ok(()) };
    let settings =
        QuietInterface::with_unrestored_changes(netns, &link, part.changes.clone())?.restore_all_settings();
    promiscuous?;
    settings.map_err(Error::from)
}

/// Ends promiscuous mode. Does nothing if the interface no longer exists.
fn end_promiscuous_mode(netns: &NetNs, index: u32) -> Result<(), Error> {
    let mut links = NamespaceLinks::open_in(netns)?;
    if links.find_link_if_present(index)?.is_some() {
        links.set_promiscuous(index, false)?;
    }
    Ok(())
}
