//! The ports of a plan, and their locations.

use packetrig_units::BitRate;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The interface of a port: `eth1`, or `ns/eth1` in a named network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortLocation {
    /// Name of the network namespace; `None` means the namespace of the packetrig process.
    pub namespace: Option<String>,
    pub interface: String,
}

impl FromStr for PortLocation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Only the first slash divides: a second one stays in the interface name, which is then refused.
        let namespace = text.split_once('/').map(|(namespace, _)| namespace);
        let interface = text.split_once('/').map_or(text, |(_, interface)| interface);
        // IFNAMSIZ is 16, including the final zero byte.
        if interface.len() > 15 || !is_valid_name(interface) || !namespace.is_none_or(is_valid_name) {
            return Err(format!("`{text}` is not an interface; write `eth1`, or `namespace/eth1`"));
        }
        Ok(Self { namespace: namespace.map(str::to_owned), interface: interface.to_owned() })
    }
}

fn is_valid_name(name: &str) -> bool {
    // The kernel refuses `.`, `..`, `/` and `:` in interface names. Other testers write `:`, `;` and `+`
    // between the parts of a location; such a location needs an alias and is no interface here.
    !matches!(name, "" | "." | "..") && !name.contains(['/', ':', ';', '+', ' ', '\0'])
}

impl fmt::Display for PortLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.interface)
    }
}

impl PortLocation {
    /// A placeholder for a location that is not known yet: no interface has an empty name.
    pub const fn unknown_location() -> Self {
        Self { namespace: None, interface: String::new() }
    }
}

/// The machine that a port is on. A plan for this machine alone has only [`PortHost::Here`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortHost {
    #[default]
    Here,
    /// The node of the fleet with this name.
    Node(String),
    /// Any port of a fleet with this label. The port is chosen when the nodes are known; until then
    /// its location is [`PortLocation::unknown_location`].
    Any(String),
}

/// A network interface used for test traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name of the port in the plan.
    pub name: String,
    pub site: PortHost,
    /// The network interface on the machine `site`.
    pub location: PortLocation,
    /// Speed that the document gives (`layer1.speed`); `None` if it gives none.
    pub speed: Option<BitRate>,
    /// MTU that the document requests.
    pub mtu: Option<u32>,
    /// True if the port receives frames for all MAC addresses, in promiscuous mode (the default).
    pub promiscuous: bool,
}

impl Port {
    /// The port's location as documents write it: `eth1`, `node7/eth1`, `any-tx`.
    pub fn full_location(&self) -> String {
        match &self.site {
            PortHost::Here => self.location.to_string(),
            PortHost::Node(node) => format!("{node}/{}", self.location),
            PortHost::Any(label) => format!("any-{label}"),
        }
    }
}
