//! Settings of the machine that a user may have changed, and later changed back: switches of the kernel, interfaces, modules.
//!
//! Each change can be reversed: the caller gets the reverse change from [`SettingChange::find_reverse_change`] first.

use crate::link::NamespaceLinks;
use crate::netns::NetNs;
use crate::{Error, kernel};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::process::Command;

pub const STATE_UP: &str = "up";
const STATE_DOWN: &str = "down";
const MODULE_LOADED: &str = "loaded";
const MODULE_ABSENT: &str = "absent";
/// Module with the kernel's packet generator.
const PKTGEN_MODULE: &str = "pktgen";

/// The switches of the kernel that may be changed. A record of changes cannot name any other file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelSwitch {
    /// Whether bridges pass frames through iptables, which drops frames with a wrong IP checksum.
    BridgeFilter,
    BridgeFilterIpv6,
    /// Whether ordinary users may make user namespaces (Debian).
    UserNamespaces,
    /// Whether AppArmor prevents ordinary users from using their user namespaces (Ubuntu).
    AppArmorUserNamespaces,
    /// Maximum number of user namespaces that each user may make.
    MaxUserNamespaces,
}

impl KernelSwitch {
    /// Path of the switch below `/proc/sys`.
    pub const fn key(self) -> &'static str {
        match self {
            Self::BridgeFilter => "net/bridge/bridge-nf-call-iptables",
            Self::BridgeFilterIpv6 => "net/bridge/bridge-nf-call-ip6tables",
            Self::UserNamespaces => "kernel/unprivileged_userns_clone",
            Self::AppArmorUserNamespaces => "kernel/apparmor_restrict_unprivileged_userns",
            Self::MaxUserNamespaces => "user/max_user_namespaces",
        }
    }
}

/// A setting of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum MachineSetting {
    /// A number in a file below `/proc/sys`.
    Kernel { switch: KernelSwitch },
    /// State of an interface: `up` or `down`.
    Interface { namespace: Option<String>, name: String },
    /// The kernel's packet generator: `loaded` or `absent`.
    PacketGenerator,
}

/// A setting, and the value that it is to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingChange {
    pub setting: MachineSetting,
    pub value: String,
}

impl SettingChange {
    pub fn new(setting: MachineSetting, value: &str) -> Self {
        Self { setting, value: value.to_owned() }
    }

    /// Returns the change that undoes this one; `None` if the setting already has the value.
    pub fn find_reverse_change(&self) -> Result<Option<Self>, Error> {
        let before = self.setting.read_value()?;
        Ok((before != self.value).then(|| Self { setting: self.setting.clone(), value: before }))
    }

    pub fn make_change(&self) -> Result<(), Error> {
        self.setting.write_value(&self.value)
    }
}

impl MachineSetting {
    fn read_value(&self) -> Result<String, Error> {
        Ok(match self {
            Self::Kernel { switch } => kernel::read_setting(&NetNs::current()?, switch.key())?,
            Self::Interface { namespace, name } => {
                let netns = NetNs::open_named_or_current_namespace(namespace.as_deref())?;
                let link = NamespaceLinks::open_in(&netns)?.find_link_by_name(name)?;
                if link.up { STATE_UP } else { STATE_DOWN }.to_owned()
            }
            Self::PacketGenerator => {
                // This directory also exists if pktgen is built into the kernel, where the list of modules
                // would not show it.
                let is_loaded = std::path::Path::new("/proc/net/pktgen").exists();
                if is_loaded { MODULE_LOADED } else { MODULE_ABSENT }.to_owned()
            }
        })
    }

    fn write_value(&self, value: &str) -> Result<(), Error> {
        match self {
            Self::Kernel { switch } => kernel::write_setting(&NetNs::current()?, switch.key(), value),
            Self::Interface { namespace, name } => {
                let netns = NetNs::open_named_or_current_namespace(namespace.as_deref())?;
                let mut links = NamespaceLinks::open_in(&netns)?;
                let index = links.find_link_by_name(name)?.index;
                links.switch_interface(index, value == STATE_UP)
            }
            Self::PacketGenerator if value == MODULE_LOADED => run_modprobe(&[PKTGEN_MODULE]),
            Self::PacketGenerator => run_modprobe(&["--remove", PKTGEN_MODULE]),
        }
    }
}

/// Settings of this machine and namespace that hinder packetrig, each with a better value. Settings that the
/// kernel lacks are left out.
pub fn hindering_settings() -> Vec<SettingChange> {
    const HINDERING_SETTINGS: [(KernelSwitch, &str, &str); 5] = [
        (KernelSwitch::BridgeFilter, "1", "0"),
        (KernelSwitch::BridgeFilterIpv6, "1", "0"),
        (KernelSwitch::UserNamespaces, "0", "1"),
        (KernelSwitch::AppArmorUserNamespaces, "1", "0"),
        (KernelSwitch::MaxUserNamespaces, "0", "10000"),
    ];
    // A setting that cannot be read does not exist in this kernel.
    let has_value = |setting: &MachineSetting, value| setting.read_value().is_ok_and(|found| found == value);
    let switches = HINDERING_SETTINGS.into_iter().filter_map(|(switch, hindering, wanted)| {
        let setting = MachineSetting::Kernel { switch };
        has_value(&setting, hindering).then(|| SettingChange::new(setting, wanted))
    });
    let generator = MachineSetting::PacketGenerator;
    // `modprobe` knows which modules this kernel has, in any form of compression.
    let may_load =
        has_value(&generator, MODULE_ABSENT) && run_modprobe(&["--dry-run", PKTGEN_MODULE]).is_ok();
    switches.chain(may_load.then(|| SettingChange::new(generator, MODULE_LOADED))).collect()
}

fn run_modprobe(arguments: &[&str]) -> Result<(), Error> {
    let call = |error| Error::from_call("modprobe", arguments.join(" "), error);
    let output = Command::new("modprobe").args(arguments).output().map_err(call)?;
    if output.status.success() {
        return Ok(());
    }
    // `modprobe` gives the reason in its own words, for example that the module is not found.
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(call(std::io::Error::other(said)))
}

impl fmt::Display for MachineSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel { switch } => f.write_str(&switch.key().replace('/', ".")),
            Self::Interface { namespace: Some(namespace), name } => write!(f, "{namespace}/{name}"),
            Self::Interface { namespace: None, name } => f.write_str(name),
            Self::PacketGenerator => f.write_str("the kernel module pktgen"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_with_wanted_value_needs_no_change() {
        // The loopback interface of the lab is up; reading it needs no rights.
        let setting = MachineSetting::Interface { namespace: None, name: "lo".to_owned() };
        let value = setting.read_value().unwrap();
        assert_eq!(SettingChange::new(setting, &value).find_reverse_change().unwrap(), None);
    }

    #[test]
    fn missing_interface_cannot_be_changed() {
        let setting = MachineSetting::Interface { namespace: None, name: "nosuch0".to_owned() };
        let error = SettingChange::new(setting, STATE_UP).find_reverse_change().unwrap_err();
        assert!(error.to_string().contains("nosuch0"), "{error}");
    }
}
