//! Labels that the operator of a fleet gives to nodes, in addition to the owners' labels.
//!
//! A label is a word (`spare`), or a key with a value (`rack=2`). A plan chooses ports
//! by either: `any-spare`, `any-rack=2`.
//!
//! Invariant: if the owner of a machine uses a key, on the node or on one of its ports, the operator's label
//! with that key has no effect on that machine.

use crate::hello::NodeHello;
use packetrig_plan::is_port_label;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// Maximum number of labels of one node.
const MAX_LABELS_PER_NODE: usize = 32;

/// Key of a label. A node has only one label with each key.
fn label_key(label: &str) -> &str {
    label.split_once('=').map_or(label, |(key, _)| key)
}

/// A change of the labels of a node, as the operator types it: `key=value` and `word` set a label, `key-` removes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelChange {
    /// Sets this label. It replaces a label with the same key.
    Set(String),
    /// Removes the label with this key.
    Remove(String),
}

impl FromStr for LabelChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_suffix('-') {
            // A label is removed by its key, whatever its value. `key=value-` is refused, because it would look as if
            // only a label with that value were removed.
            Some(key) if is_port_label(key) && !key.contains('=') => Ok(Self::Remove(key.to_owned())),
            None if is_port_label(text) => Ok(Self::Set(text.to_owned())),
            _ => {
                Err(format!("`{text}` is not a label; write `key=value` or `word`, or `key-` to remove one"))
            }
        }
    }
}

/// Labels that the operator of the fleet has given to one node, by key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperatorLabels(BTreeMap<String, String>);

/// A node would have more labels from the operator than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operator can give a node at most {MAX_LABELS_PER_NODE} labels")]
pub struct TooManyLabels;

impl OperatorLabels {
    /// Applies all changes; none of them if the node would have too many labels.
    pub fn apply_changes(&mut self, changes: &[LabelChange]) -> Result<(), TooManyLabels> {
        // The changes are made on a copy, so that refused changes have no partial effect.
        let mut changed = self.0.clone();
        for change in changes {
            match change {
                LabelChange::Set(label) => _ = changed.insert(label_key(label).to_owned(), label.clone()),
                LabelChange::Remove(key) => _ = changed.remove(key),
            }
        }
        if changed.len() > MAX_LABELS_PER_NODE {
            return Err(TooManyLabels);
        }
        self.0 = changed;
        Ok(())
    }

    /// Iterates over all labels, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.values().map(String::as_str)
    }

    /// True if there is no label.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the operator's labels that are in effect on the node with this hello: those with keys that its
    /// owner does not use.
    pub fn effective_labels(&self, hello: &NodeHello) -> Vec<String> {
        let owned = owner_label_keys(hello);
        self.0
            .iter()
            .filter(|(key, _)| !owned.contains(key.as_str()))
            .map(|(_, label)| label.clone())
            .collect()
    }

    /// Returns the operator's labels without effect on the node with this hello, because its owner uses their keys.
    pub fn overruled_labels(&self, hello: &NodeHello) -> Vec<String> {
        let owned = owner_label_keys(hello);
        self.0
            .iter()
            .filter(|(key, _)| owned.contains(key.as_str()))
            .map(|(_, label)| label.clone())
            .collect()
    }
}

impl fmt::Display for OperatorLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.iter().collect::<Vec<_>>().join(" "))
    }
}

fn owner_label_keys(hello: &NodeHello) -> BTreeSet<&str> {
    let of_ports = hello.ports.iter().flat_map(|port| &port.labels);
    hello.labels.iter().chain(of_ports).map(|label| label_key(label)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello::OfferedPort;

    fn changed(mut labels: OperatorLabels, changes: &str) -> OperatorLabels {
        let changes: Vec<LabelChange> = changes.split(' ').map(|text| text.parse().unwrap()).collect();
        labels.apply_changes(&changes).unwrap();
        labels
    }

    fn port(labels: &[&str]) -> OfferedPort {
        OfferedPort {
            interface: "eth0".into(),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            driver: String::new(),
            speed: None,
            up: true,
            back_ends: Vec::new(),
            addresses: Vec::new(),
        }
    }

    #[test]
    fn label_replaces_label_with_same_key() {
        let labels = changed(OperatorLabels::default(), "rack=2 spare room=b");
        assert_eq!(labels.to_string(), "rack=2 room=b spare");
        let labels = changed(labels, "rack=3 room- nothing-");
        assert_eq!(labels.to_string(), "rack=3 spare");
        let text = serde_json::to_string(&labels).unwrap();
        assert_eq!(serde_json::from_str::<OperatorLabels>(&text).unwrap(), labels);
        let many: Vec<LabelChange> = (0..40).map(|number| LabelChange::Set(format!("k{number}"))).collect();
        let mut full = labels.clone();
        assert_eq!((full.apply_changes(&many), &full), (Err(TooManyLabels), &labels));
    }

    #[test]
    fn invalid_labels_are_refused() {
        for text in ["", "-", "=", "a=", "=b", "a=b=c", "a b", "a.b", "a=b-", "any*", &"x".repeat(64)] {
            assert!(text.parse::<LabelChange>().is_err(), "{text}");
        }
    }

    #[test]
    fn owner_labels_overrule_operator_labels() {
        let labels = changed(OperatorLabels::default(), "rack=2 tx spare");
        let bare = NodeHello::default();
        assert_eq!(labels.effective_labels(&bare), ["rack=2", "spare", "tx"]);
        assert!(labels.overruled_labels(&bare).is_empty());
        let owned =
            NodeHello { labels: vec!["rack=7".into()], ports: vec![port(&["tx"])], ..NodeHello::default() };
        assert_eq!(
            (labels.effective_labels(&owned), labels.overruled_labels(&owned)),
            (vec!["spare".to_owned()], vec!["rack=2".to_owned(), "tx".to_owned()])
        );
    }
}
