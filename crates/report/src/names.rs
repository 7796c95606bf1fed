//! Names of runs, nodes, plans and places of ports. A name from a message is one line of bounded length.

use packetrig_units::text::deserialize_line;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// Longest name from a message, in characters.
const LONGEST_NAME: usize = 300;

/// Name of a run; sorts by the time at which it began.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(#[serde(deserialize_with = "deserialize_line::<LONGEST_NAME, _>")] pub String);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Name of a node; on one machine there is only [`NodeName::local`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeName(#[serde(deserialize_with = "deserialize_line::<LONGEST_NAME, _>")] pub String);

impl NodeName {
    /// Rule for names of nodes, for error messages.
    pub const NAME_RULE: &str =
        "1 to 32 characters of a-z, 0-9 and -, but not `controller` or `controller-…`";
    /// Name of the only node of a run on one machine, without a fleet.
    pub const LOCAL_NAME: &str = "local";

    /// Name of this machine, without a fleet.
    pub fn local() -> Self {
        Self(Self::LOCAL_NAME.to_owned())
    }
    /// Name that nodes use for the controller that leads them. A member with this name is the only controller and
    /// receives messages of all nodes.
    pub fn controller() -> Self {
        Self(Self::CONTROLLER.to_owned())
    }
    /// Name of the endpoint of one controller among several. This endpoint receives messages of the nodes
    /// that it listens to.
    pub fn controller_of(controller: &str) -> Self {
        Self(format!("{}-{controller}", Self::CONTROLLER))
    }
    /// True for the endpoint of a controller: no node may have such a name.
    pub fn is_controller(&self) -> bool {
        let rest = self.0.strip_prefix(Self::CONTROLLER);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }
    /// Prefix of the names of controllers.
    pub const fn controller_name_prefix() -> &'static str {
        Self::CONTROLLER
    }
    const CONTROLLER: &str = "controller";
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// SHA-256 of the plan's text, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PlanHash(#[serde(deserialize_with = "deserialize_line::<LONGEST_NAME, _>")] String);

impl PlanHash {
    /// Hashes `document`.
    pub fn from_document(document: &str) -> Self {
        let digest = Sha256::digest(document.as_bytes());
        Self(digest.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}")))
    }
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PlanHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Node and interface of a port in a fleet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortPlace {
    pub node: NodeName,
    /// The interface, as a location on the machine of that node.
    pub interface: String,
}

impl PortPlace {
    /// Placeholder for the location of a port on another node, which the receiving node does not need.
    pub const fn elsewhere() -> Self {
        Self { node: NodeName(String::new()), interface: String::new() }
    }

    /// True if it is [`Self::elsewhere`].
    pub const fn is_elsewhere(&self) -> bool {
        self.node.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_hash_is_sha256_in_hex() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(PlanHash::from_document("").as_str(), empty);
        assert_ne!(PlanHash::from_document("a"), PlanHash::from_document("b"));
    }
}
