//! Makes an interface quiet for the time of a run: nothing sends on it but us, and nothing merges or changes frames.
//!
//! Each change is noted with the value before it; dropping [`QuietInterface`] puts them back in reverse order. What cannot be
//! changed is a caveat, not an error. Promiscuous mode is not here: it belongs to the receive ring and ends with it.
//!
//! Invariant: while a setting is changed, a file holds the value before ([`super::saved_settings`]). A process that is
//! killed restores nothing; the next one does so from the file before it takes a setting for the original one.

mod settings;

use super::saved_settings::SettingsFile;
use crate::Error;
use packetrig_sys::bpf::BpfAttachment;
use packetrig_sys::clock;
use packetrig_sys::ethtool::{EthtoolCalls, Offload};
use packetrig_sys::link::{Link, NamespaceLinks};
use packetrig_sys::netns::NetNs;
use packetrig_sys::{kernel, xdp};
use settings::QuietSettings;
use std::net::IpAddr;

/// Offloads that merge, split or rewrite frames.
pub const LOUD: [Offload; 6] =
    [Offload::Gro, Offload::Lro, Offload::Gso, Offload::Tso, Offload::RxVlan, Offload::TxVlan];
/// The value of the setting that switches IPv6 off.
const IPV6_OFF: &str = "1";
/// How long a link that was down may take to come up.
const LINK_PATIENCE_NS: u64 = 3_000_000_000;
const LINK_POLL_NS: u64 = 2_000_000;

/// What the plan asks of the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceWish {
    /// The MTU, if the plan names one.
    pub mtu: Option<u32>,
}

/// A quiet interface; dropping it restores what it was.
#[derive(Debug)]
pub struct QuietInterface {
    netns: NetNs,
    link: Link,
    changes: Vec<InterfaceChange>,
    caveats: Vec<String>,
    /// Of those, how many [`Self::make`] found.
    caveats_of_settings: usize,
    /// What was quiet after [`Self::make`].
    quiet: QuietSettings,
    /// A program that changes nothing, where there has to be one.
    pass: Option<BpfAttachment>,
    /// Where the changes are saved; `None` if the caller saves them itself.
    file: Option<SettingsFile>,
}

/// A change, with what was there before.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InterfaceChange {
    Mtu(u32),
    Offload(Offload, bool),
    /// A setting of the kernel, by its key.
    Setting(String, String),
    Up,
    /// Taken down for a while, at the user's wish.
    Down,
}

impl QuietInterface {
    /// Makes it quiet and brings it up. Fails if the wanted MTU cannot be had; whatever was changed by then is put back.
    ///
    /// To be called with the lock of the port: what a process that was killed has left is restored first.
    pub fn make(
        netns: &NetNs,
        links: &mut NamespaceLinks,
        link: &Link,
        wish: InterfaceWish,
    ) -> Result<Self, Error> {
        let file = SettingsFile::of(netns, link)?;
        let unreadable = Self::restore_saved(&file, netns, link)?;
        // Asked again, because the caller's `link` shows the settings that the killed process had made.
        let mut quieted = Self::resume(netns, &links.by_index(link.index)?, Vec::new())?;
        quieted.caveats.extend(unreadable);
        if let Err(error) = file.write(&quieted.planned_changes(wish)?) {
            let name = &link.name;
            quieted.caveats.push(format!(
                "{name}: its settings stay changed if packetrig is killed, because the original ones cannot be \
                    saved: {error}"
            ));
        }
        quieted.set_mtu(links, wish.mtu)?;
        quieted.switch_offloads_off()?;
        quieted.silence_ipv6(links)?;
        quieted.bring_up(links)?;
        quieted.caveats_of_settings = quieted.caveats.len();
        quieted.quiet = QuietSettings::read(netns, &link.name, &quieted.ipv6_key())?;
        Ok(quieted)
    }

    /// Restores what a process that was killed has changed. A file that cannot be read is set aside, and a caveat says so:
    /// the settings that are found are then perhaps not the original ones.
    fn restore_saved(file: &SettingsFile, netns: &NetNs, link: &Link) -> Result<Option<String>, Error> {
        let error = match file.read() {
            Ok(None) => return Ok(None),
            Ok(Some(changes)) => {
                Self::resume(netns, link, changes)?.restore_all()?;
                return Ok(None);
            }
            Err(error) => error,
        };
        let kept = match file.set_aside() {
            Ok(path) => format!("the file is kept as {}", path.display()),
            Err(error) => format!("the file cannot be set aside: {error}"),
        };
        Ok(Some(format!(
            "{}: settings that a killed process changed may not be restored, because its file cannot be read: \
                {error}; {kept}",
            link.name
        )))
    }

    /// Takes over an interface that another process made quiet and left so; dropping it restores the interface.
    pub fn resume(netns: &NetNs, link: &Link, changes: Vec<InterfaceChange>) -> Result<Self, Error> {
        let file = Some(SettingsFile::of(netns, link)?);
        Ok(Self {
            netns: netns.duplicate()?,
            link: link.clone(),
            changes,
            caveats: Vec::new(),
            caveats_of_settings: 0,
            quiet: QuietSettings::default(),
            pass: None,
            file,
        })
    }

    /// The changes that [`Self::make`] may have to make. Undoing one that was not made changes nothing.
    fn planned_changes(&self, wish: InterfaceWish) -> Result<Vec<InterfaceChange>, Error> {
        let mut planned = Vec::new();
        if wish.mtu.is_some_and(|mtu| mtu != self.link.mtu) {
            planned.push(InterfaceChange::Mtu(self.link.mtu));
        }
        let ethtool = EthtoolCalls::open(&self.netns)?;
        let on = LOUD.into_iter().filter(|loud| ethtool.offload(&self.link.name, *loud).unwrap_or(false));
        planned.extend(on.map(|offload| InterfaceChange::Offload(offload, true)));
        let key = self.ipv6_key();
        if let Ok(before) = kernel::read_setting(&self.netns, &key)
            && before != IPV6_OFF
        {
            planned.push(InterfaceChange::Setting(key, before));
        }
        if !self.link.up {
            planned.push(InterfaceChange::Up);
        }
        Ok(planned)
    }

    /// The setting that switches IPv6 off.
    fn ipv6_key(&self) -> String {
        format!("net/ipv6/conf/{}/disable_ipv6", self.link.name)
    }

    /// A virtual cable accepts redirected frames only while its end has GRO on or an XDP program. Where it had GRO and is
    /// quiet now, this attaches a program that passes every frame. For callers without a program of their own there.
    pub fn keep_redirects(&mut self) {
        let is_cable = self.link.kind.as_deref() == Some("veth");
        if !is_cable || !self.changes.contains(&InterfaceChange::Offload(Offload::Gro, true)) {
            return;
        }
        let name = &self.link.name;
        match xdp::pass(&self.netns, self.link.index, name) {
            Ok(pass) => self.pass = Some(pass),
            // There is one already.
            Err(packetrig_sys::Error::Busy { .. }) => {}
            Err(error) => self.caveats.push(format!(
                "{name}: GRO is off, so frames from live sending or from a tap with back end xdp do not arrive \
                    through this cable: {error}"
            )),
        }
    }

    /// What was changed, in order.
    pub fn changes(&self) -> &[InterfaceChange] {
        &self.changes
    }

    /// Leaves the interface as it is now, and keeps no file about it.
    pub fn leave(mut self) {
        self.changes.clear();
    }

    /// Keeps no file about the interface from now on: the caller remembers [`Self::changes`] elsewhere.
    pub fn stop_saving(&mut self) -> Result<(), Error> {
        self.file.take().map_or(Ok(()), |file| file.remove())
    }

    /// Saves the changes as they are now.
    fn save(&self) -> Result<(), Error> {
        self.file.as_ref().map_or(Ok(()), |file| file.write(&self.changes))
    }

    /// What could not be made quiet.
    pub fn caveats(&self) -> &[String] {
        &self.caveats
    }

    fn set_mtu(
        &mut self,
        links: &mut NamespaceLinks,
        wanted: Option<u32>,
    ) -> Result<(), packetrig_sys::Error> {
        match wanted {
            Some(mtu) if mtu != self.link.mtu => {
                links.set_mtu(self.link.index, mtu)?;
                self.changes.push(InterfaceChange::Mtu(self.link.mtu));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn switch_offloads_off(&mut self) -> Result<(), packetrig_sys::Error> {
        let ethtool = EthtoolCalls::open(&self.netns)?;
        for offload in LOUD {
            match ethtool.set_offload(&self.link.name, offload, false) {
                Ok(true) => self.changes.push(InterfaceChange::Offload(offload, true)),
                // Many drivers refuse to set what they do not have, so only an offload that is on afterwards is worth
                // a warning.
                Err(error) if ethtool.offload(&self.link.name, offload).unwrap_or(false) => {
                    self.caveats.push(format!("{}: {} stays on: {error}", self.link.name, offload.name()));
                }
                // Off already, or a driver that has no such thing to switch.
                Ok(false) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Keeps the kernel from sending neighbour and router messages of its own.
    fn silence_ipv6(&mut self, links: &mut NamespaceLinks) -> Result<(), packetrig_sys::Error> {
        let key = self.ipv6_key();
        // No such setting: a kernel without IPv6 is quiet.
        let Ok(before) = kernel::read_setting(&self.netns, &key) else { return Ok(()) };
        if before == IPV6_OFF {
            return Ok(());
        }
        let addresses = links.addresses()?;
        let mut own = addresses.iter().filter(|address| address.index == self.link.index);
        if own.any(|address| matches!(address.ip, IpAddr::V6(six) if !six.is_unicast_link_local())) {
            // Switching IPv6 off would take the addresses away for good.
            self.caveats.push(format!("{}: IPv6 stays on, because it has addresses", self.link.name));
            return Ok(());
        }
        match kernel::write_setting(&self.netns, &key, IPV6_OFF) {
            Ok(()) => self.changes.push(InterfaceChange::Setting(key, before)),
            Err(error) => self.caveats.push(format!("{}: IPv6 stays on: {error}", self.link.name)),
        }
        Ok(())
    }

    fn bring_up(&mut self, links: &mut NamespaceLinks) -> Result<(), packetrig_sys::Error> {
        if !self.link.up {
            links.set_up(self.link.index, true)?;
            self.changes.push(InterfaceChange::Up);
        }
        Ok(())
    }

    /// Switches the link up or down, for a while: it was up or was brought up, and is up when it is given back.
    pub fn switch_link(&mut self, up: bool) -> Result<(), Error> {
        if !up && !self.changes.contains(&InterfaceChange::Down) {
            self.changes.push(InterfaceChange::Down);
            self.save()?;
        }
        NamespaceLinks::open(&self.netns)?.set_up(self.link.index, up)?;
        if up {
            self.changes.retain(|change| *change != InterfaceChange::Down);
            self.save()?;
        }
        Ok(())
    }

    /// Waits until the link has a carrier, some seconds at most; without one, a caveat says so.
    pub fn await_carrier(&mut self) -> Result<(), packetrig_sys::Error> {
        let mut links = NamespaceLinks::open(&self.netns)?;
        let end = clock::monotonic_ns() + LINK_PATIENCE_NS;
        while !links.by_name(&self.link.name)?.carrier {
            if clock::monotonic_ns() >= end {
                self.caveats.push(format!(
                    "{}: no carrier; check that the other end is connected and up",
                    self.link.name
                ));
                return Ok(());
            }
            clock::sleep_until_ns(clock::monotonic_ns() + LINK_POLL_NS);
        }
        Ok(())
    }

    fn restore(&self, change: &InterfaceChange) -> Result<(), packetrig_sys::Error> {
        match change {
            InterfaceChange::Mtu(before) => {
                NamespaceLinks::open(&self.netns)?.set_mtu(self.link.index, *before)
            }
            InterfaceChange::Down => NamespaceLinks::open(&self.netns)?.set_up(self.link.index, true),
            InterfaceChange::Up => self.take_down(),
            InterfaceChange::Setting(key, before) => kernel::write_setting(&self.netns, key, before),
            InterfaceChange::Offload(offload, before) => {
                EthtoolCalls::open(&self.netns)?.set_offload(&self.link.name, *offload, *before).map(drop)
            }
        }
    }

    /// The kernel forgets IPv6 addresses of an interface that goes down, unless told not to.
    fn take_down(&self) -> Result<(), packetrig_sys::Error> {
        let key = format!("net/ipv6/conf/{}/keep_addr_on_down", self.link.name);
        let before = kernel::read_setting(&self.netns, &key);
        if before.is_ok() {
            // Best effort: the interface has to go down either way.
            drop(kernel::write_setting(&self.netns, &key, "1"));
        }
        let down = NamespaceLinks::open(&self.netns)?.set_up(self.link.index, false);
        before.map_or(Ok(()), |before| kernel::write_setting(&self.netns, &key, &before))?;
        down
    }
}

impl QuietInterface {
    /// Puts everything back, and says if something could not be. An interface that is gone needs nothing.
    pub fn restore_all(mut self) -> Result<(), Error> {
        self.undo_changes()
    }

    /// A kernel that does not answer does not say that it is gone.
    fn is_gone(&self) -> bool {
        let found = NamespaceLinks::open(&self.netns).and_then(|mut links| links.find_index(self.link.index));
        matches!(found, Ok(None))
    }

    /// Undoes the changes, the last one first. What fails does not keep the others from being undone; the file stays then,
    /// unless there is no interface any more.
    fn undo_changes(&mut self) -> Result<(), Error> {
        let mut outcome = Ok(());
        // In reverse, so that each setting meets the state in which it was changed: a link that was down is down
        // again before IPv6 is switched on, and sends nothing.
        for change in std::mem::take(&mut self.changes).iter().rev() {
            let restored = self.restore(change).map_err(Error::from);
            outcome = outcome.and(restored);
        }
        if outcome.is_err() && self.is_gone() {
            outcome = Ok(());
        }
        if let Some(file) = self.file.take().filter(|_| outcome.is_ok()) {
            file.remove()?;
        }
        outcome
    }
}

impl Drop for QuietInterface {
    fn drop(&mut self) {
        // The interface may be gone by now, and a destructor has no caller to tell.
        drop(self.undo_changes());
    }
}

impl std::fmt::Display for InterfaceChange {
    /// What was the case before the change.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mtu(before) => write!(f, "MTU {before}"),
            Self::Offload(offload, true) => write!(f, "{} on", offload.name()),
            Self::Offload(offload, false) => write!(f, "{} off", offload.name()),
            Self::Setting(key, before) => write!(f, "{key} = {before}"),
            Self::Up => f.write_str("down"),
            Self::Down => f.write_str("up"),
        }
    }
}
