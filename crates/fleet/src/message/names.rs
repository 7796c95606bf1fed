//! The names of runs, nodes and plans in messages. One that was read is one line of bounded length.

use crate::bounded::line;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// Names a run; sorts by the time it began.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(#[serde(deserialize_with = "line")] pub String);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Names a node; on one machine there is only [`NodeName::local`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeName(#[serde(deserialize_with = "line")] pub String);

impl NodeName {
    /// What a node may be called, for messages.
    pub const RULE: &str = "1 to 32 of a-z, 0-9 and -, and not `controller` or `controller-…`";
    /// What this machine is called when there is no fleet.
    pub const LOCAL: &str = "local";

    /// This machine, when there is no fleet.
    pub fn local() -> Self {
        Self(Self::LOCAL.to_owned())
    }
    /// How a node names the controller that leads it. A member with this name is the only controller and hears all nodes.
    pub fn controller() -> Self {
        Self(Self::CONTROLLER.to_owned())
    }
    /// The place of one controller among several. It hears the nodes that it [listens to](crate::fabric::Endpoint::listen_to).
    pub fn controller_of(controller: &str) -> Self {
        Self(format!("{}-{controller}", Self::CONTROLLER))
    }
    /// Whether it is the place of a controller: no node may be called so.
    pub fn is_controller(&self) -> bool {
        let rest = self.0.strip_prefix(Self::CONTROLLER);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }
    /// How the names of controllers begin.
    pub const fn controller_word() -> &'static str {
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
pub struct PlanHash(#[serde(deserialize_with = "line")] String);

impl PlanHash {
    /// The hash of `document`.
    pub fn of(document: &str) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_hash_is_sha256_in_hex() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(PlanHash::of("").as_str(), empty);
        assert_ne!(PlanHash::of("a"), PlanHash::of("b"));
    }
}
