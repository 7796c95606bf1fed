//! Makes an interface quiet during a run: the kernel sends no IPv6 messages of its own on it, and nothing
//! merges or changes frames.
//!
//! Each change is saved with the value before it; dropping [`QuietInterface`] restores the values in reverse order. An
//! offload or an IPv6 switch that cannot be changed is a caveat; an MTU or a link state that cannot be changed is an
//! error. Promiscuous mode is not here: it belongs to the receive ring and ends with it.
//!
//! Invariant: while a setting is changed, a file holds the original value ([`super::saved_settings`]). A
//! killed process restores nothing. The next process restores the value from the file before it reads the
//! setting as the original.

mod settings;

use super::saved_settings::SavedSettingsFile;
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
pub const FRAME_CHANGING_OFFLOADS: [Offload; 6] =
    [Offload::Gro, Offload::Lro, Offload::Gso, Offload::Tso, Offload::RxVlan, Offload::TxVlan];
/// Value of the kernel setting that switches IPv6 off.
const IPV6_OFF: &str = "1";
/// Time that a link may take to come up.
const CARRIER_TIMEOUT_NS: u64 = 3_000_000_000;
const LINK_POLL_NS: u64 = 2_000_000;

/// Settings that the plan requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceSettings {
    /// The MTU, if the plan names one.
    pub mtu: Option<u32>,
}

/// A quiet interface; dropping it restores the former settings.
#[derive(Debug)]
pub struct QuietInterface {
    netns: NetNs,
    link: Link,
    changes: Vec<InterfaceChange>,
    caveats: Vec<String>,
    /// Number of caveats that [`Self::quieten_interface`] found.
    caveats_of_settings: usize,
    /// Quiet settings as [`Self::quieten_interface`] left them.
    quiet: QuietSettings,
    /// XDP program that passes every frame, if [`Self::attach_pass_program`] attached one.
    pass: Option<BpfAttachment>,
    /// File that holds the changes; `None` if the caller saves them itself.
    file: Option<SavedSettingsFile>,
}

/// A change of an interface, with the value before it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InterfaceChange {
    Mtu(u32),
    Offload(Offload, bool),
    /// A setting of the kernel: its key, and its value before the change.
    Setting(String, String),
    /// The interface was down and was brought up.
    Up,
    /// Taken down temporarily at the user's request.
    Down,
}

impl QuietInterface {
    /// Makes the interface quiet and brings it up. Fails if the requested MTU cannot be set or the interface cannot be
    /// brought up; changes made by then are restored.
    ///
    /// The caller must hold the lock of the interface, because this also restores the changes of a killed process.
    pub fn quieten_interface(
        netns: &NetNs,
        links: &mut NamespaceLinks,
        link: &Link,
        request: InterfaceSettings,
    ) -> Result<Self, Error> {
        let file = SavedSettingsFile::for_link(netns, link)?;
        let unreadable = Self::restore_saved_settings(&file, netns, link)?;
        // The link is read again, because the caller's `link` shows the settings that the killed process had made.
        let mut quieted =
            Self::with_unrestored_changes(netns, &links.find_link_by_index(link.index)?, Vec::new())?;
        quieted.caveats.extend(unreadable);
        // The file is written before the first change: a process that is killed in between must leave a file.
        if let Err(error) = file.write_changes(&quieted.read_settings_to_change(request)?) {
            let name = &link.name;
            quieted.caveats.push(format!(
                "{name}: its settings stay changed if packetrig is killed, because the original settings \
                cannot be saved: {error}"
            ));
        }
        // The MTU comes first: if it cannot be set, the run fails before anything else has changed.
        quieted.set_mtu(links, request.mtu)?;
        quieted.switch_offloads_off()?;
        quieted.switch_ipv6_off(links)?;
        quieted.switch_interface_up(links)?;
        // Caveats of the carrier are added later and forgotten between runs; these caveats stay.
        quieted.caveats_of_settings = quieted.caveats.len();
        quieted.quiet = QuietSettings::read_settings(netns, &link.name, &quieted.ipv6_key())?;
        Ok(quieted)
    }

    /// Restores the changes of a killed process. An unreadable file is renamed, and a caveat says so: the settings
    /// found may then not be the original ones.
    fn restore_saved_settings(
        file: &SavedSettingsFile,
        netns: &NetNs,
        link: &Link,
    ) -> Result<Option<String>, Error> {
        let error = match file.read_changes() {
            Ok(None) => return Ok(None),
            Ok(Some(changes)) => {
                Self::with_unrestored_changes(netns, link, changes)?.restore_all_settings()?;
                return Ok(None);
            }
            Err(error) => error,
        };
        let kept = match file.rename_unreadable_file() {
            Ok(path) => format!("the file is kept as {}", path.display()),
            Err(error) => format!("the file cannot be renamed: {error}"),
        };
        Ok(Some(format!(
            "{}: a killed process changed settings that could not be restored, because the file with the old values cannot be read: \
                {error}; {kept}; check MTU, offloads and IPv6 of this interface",
            link.name
        )))
    }

    /// Adopts the changes that another process made and did not undo. Dropping the value undoes them.
    pub fn with_unrestored_changes(
        netns: &NetNs,
        link: &Link,
        changes: Vec<InterfaceChange>,
    ) -> Result<Self, Error> {
        let file = Some(SavedSettingsFile::for_link(netns, link)?);
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

    /// Returns the changes that [`Self::quieten_interface`] may have to make. Undoing a change that was not
    /// made has no effect.
    fn read_settings_to_change(&self, request: InterfaceSettings) -> Result<Vec<InterfaceChange>, Error> {
        let mut planned = Vec::new();
        if request.mtu.is_some_and(|mtu| mtu != self.link.mtu) {
            planned.push(InterfaceChange::Mtu(self.link.mtu));
        }
        let ethtool = EthtoolCalls::open_in(&self.netns)?;
        let on = FRAME_CHANGING_OFFLOADS
            .into_iter()
            .filter(|loud| ethtool.is_offload_on(&self.link.name, *loud).unwrap_or(false));
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

    /// Returns the key of the setting that switches IPv6 off.
    fn ipv6_key(&self) -> String {
        format!("net/ipv6/conf/{}/disable_ipv6", self.link.name)
    }

    /// Attaches an XDP program that passes every frame, if the interface is a veth whose GRO was switched
    /// off: a veth accepts redirected frames only while it has GRO or an XDP program. For callers that attach
    /// no XDP program themselves.
    pub fn attach_pass_program(&mut self) {
        let is_cable = self.link.kind.as_deref() == Some("veth");
        if !is_cable || !self.changes.contains(&InterfaceChange::Offload(Offload::Gro, true)) {
            return;
        }
        let name = &self.link.name;
        match xdp::attach_xdp_pass_program(&self.netns, self.link.index, name) {
            Ok(pass) => self.pass = Some(pass),
            // Another XDP program is attached already.
            Err(packetrig_sys::Error::Busy { .. }) => {}
            Err(error) => self.caveats.push(format!(
                "{name}: cannot attach an XDP program: {error}; GRO is off too, so frames that XDP sends to \
                    this virtual cable do not arrive"
            )),
        }
    }

    /// Returns the changes in the order in which they were made.
    pub fn changes(&self) -> &[InterfaceChange] {
        &self.changes
    }

    /// Forgets the changes, so that dropping the value restores nothing, and removes the settings file.
    pub fn forget_changes(mut self) {
        self.changes.clear();
    }

    /// Removes the settings file: the caller stores [`Self::changes`] elsewhere.
    pub fn delete_saved_settings(&mut self) -> Result<(), Error> {
        self.file.take().map_or(Ok(()), |file| file.remove_file())
    }

    /// Writes the current changes into the settings file, if there is one.
    fn save_changes(&self) -> Result<(), Error> {
        self.file.as_ref().map_or(Ok(()), |file| file.write_changes(&self.changes))
    }

    /// Returns texts for caveats: settings that could not be made quiet or read, and a missing carrier.
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
        let ethtool = EthtoolCalls::open_in(&self.netns)?;
        for offload in FRAME_CHANGING_OFFLOADS {
            match ethtool.set_offload(&self.link.name, offload, false) {
                Ok(true) => self.changes.push(InterfaceChange::Offload(offload, true)),
                // Many drivers refuse to set an offload that they lack, so only an offload that is still on
                // afterwards is worth a caveat.
                Err(error) if ethtool.is_offload_on(&self.link.name, offload).unwrap_or(false) => {
                    let name = &self.link.name;
                    self.caveats.push(format!("{name}: offload {} stays on: {error}", offload.name()));
                }
                // Off already, or not supported by the driver.
                Ok(false) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Switches IPv6 off, so that the kernel sends no neighbour and router messages. IPv6 stays on, with a caveat, if
    /// the interface has addresses other than link-local ones.
    fn switch_ipv6_off(&mut self, links: &mut NamespaceLinks) -> Result<(), packetrig_sys::Error> {
        let key = self.ipv6_key();
        // A kernel without IPv6 has no such setting and is quiet.
        let Ok(before) = kernel::read_setting(&self.netns, &key) else { return Ok(()) };
        if before == IPV6_OFF {
            return Ok(());
        }
        let addresses = links.list_addresses()?;
        let mut own = addresses.iter().filter(|address| address.index == self.link.index);
        if own.any(|address| matches!(address.ip, IpAddr::V6(six) if !six.is_unicast_link_local())) {
            // Switching IPv6 off would remove the addresses permanently.
            self.caveats.push(format!("{}: IPv6 stays on: the interface has IPv6 addresses", self.link.name));
            return Ok(());
        }
        match kernel::write_setting(&self.netns, &key, IPV6_OFF) {
            Ok(()) => self.changes.push(InterfaceChange::Setting(key, before)),
            Err(error) => self.caveats.push(format!("{}: IPv6 stays on: {error}", self.link.name)),
        }
        Ok(())
    }

    fn switch_interface_up(&mut self, links: &mut NamespaceLinks) -> Result<(), packetrig_sys::Error> {
        if !self.link.up {
            links.switch_interface(self.link.index, true)?;
            self.changes.push(InterfaceChange::Up);
        }
        Ok(())
    }

    /// Switches the link down, or up again. If the link is still down when the settings are restored, it is switched up
    /// first: before this call it was up, or had been brought up for the run.
    pub fn switch_link(&mut self, up: bool) -> Result<(), Error> {
        if !up && !self.changes.contains(&InterfaceChange::Down) {
            self.changes.push(InterfaceChange::Down);
            // The change is saved before the link goes down, so that a killed process leaves a record of it.
            self.save_changes()?;
        }
        NamespaceLinks::open_in(&self.netns)?.switch_interface(self.link.index, up)?;
        if up {
            // The link is up again, so a process that is killed now leaves nothing to restore here.
            self.changes.retain(|change| *change != InterfaceChange::Down);
            self.save_changes()?;
        }
        Ok(())
    }

    /// Waits up to 3 s for the link's carrier; if there is none, it adds a caveat.
    pub fn await_carrier(&mut self) -> Result<(), packetrig_sys::Error> {
        let mut links = NamespaceLinks::open_in(&self.netns)?;
        let end = clock::monotonic_ns() + CARRIER_TIMEOUT_NS;
        while !links.find_link_by_name(&self.link.name)?.carrier {
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

    fn restore_setting(&self, change: &InterfaceChange) -> Result<(), packetrig_sys::Error> {
        match change {
            InterfaceChange::Mtu(before) => {
                NamespaceLinks::open_in(&self.netns)?.set_mtu(self.link.index, *before)
            }
            // `Down` records that the link was up before.
            InterfaceChange::Down => {
                NamespaceLinks::open_in(&self.netns)?.switch_interface(self.link.index, true)
            }
            InterfaceChange::Up => self.switch_link_down(),
            InterfaceChange::Setting(key, before) => kernel::write_setting(&self.netns, key, before),
            InterfaceChange::Offload(offload, before) => {
                EthtoolCalls::open_in(&self.netns)?.set_offload(&self.link.name, *offload, *before).map(drop)
            }
        }
    }

    /// Switches the link down without losing IPv6 addresses, which the kernel removes unless told to keep them.
    fn switch_link_down(&self) -> Result<(), packetrig_sys::Error> {
        let key = format!("net/ipv6/conf/{}/keep_addr_on_down", self.link.name);
        let before = kernel::read_setting(&self.netns, &key);
        if before.is_ok() {
            // An error is ignored: the interface has to go down either way.
            drop(kernel::write_setting(&self.netns, &key, "1"));
        }
        let down = NamespaceLinks::open_in(&self.netns)?.switch_interface(self.link.index, false);
        // The setting is restored even if the link could not be switched.
        before.map_or(Ok(()), |before| kernel::write_setting(&self.netns, &key, &before))?;
        down
    }
}

impl QuietInterface {
    /// Restores everything and returns the first error. A removed interface needs no restoring.
    pub fn restore_all_settings(mut self) -> Result<(), Error> {
        self.undo_changes()
    }

    /// Returns whether the interface is gone. An error of the kernel proves nothing.
    fn is_interface_gone(&self) -> bool {
        let found = NamespaceLinks::open_in(&self.netns)
            .and_then(|mut links| links.find_link_if_present(self.link.index));
        matches!(found, Ok(None))
    }

    /// Undoes the changes, the last one first. After a failure it still undoes the remaining changes. It then
    /// keeps the file, unless the interface is gone.
    fn undo_changes(&mut self) -> Result<(), Error> {
        let mut outcome = Ok(());
        // The changes are undone in reverse. For example, a link that was down is down again before IPv6 is
        // switched on, so it sends nothing.
        for change in std::mem::take(&mut self.changes).iter().rev() {
            let restored = self.restore_setting(change).map_err(Error::from);
            outcome = outcome.and(restored);
        }
        if outcome.is_err() && self.is_interface_gone() {
            outcome = Ok(());
        }
        // The file stays until every setting is restored: the next process tries again.
        if let Some(file) = self.file.take().filter(|_| outcome.is_ok()) {
            file.remove_file()?;
        }
        outcome
    }
}

impl Drop for QuietInterface {
    fn drop(&mut self) {
        // The interface may be gone by now, and a destructor cannot report errors.
        drop(self.undo_changes());
    }
}

impl std::fmt::Display for InterfaceChange {
    /// Writes the former value.
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
