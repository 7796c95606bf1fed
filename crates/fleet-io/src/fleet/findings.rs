//! Limits the findings that a run reports: each finding once, and only a limited number for each node.
//!
//! Parts of findings come from nodes. Without a limit for each node, one node could fill the whole report,
//! and findings about other nodes would be missing.

use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of findings about one node, and of findings that are about no node.
const MAX_FINDINGS_PER_NODE: usize = 200;

#[derive(Debug, Default)]
pub(super) struct ReportedFindings {
    reported: BTreeSet<String>,
    by_subject: BTreeMap<String, usize>,
}

impl ReportedFindings {
    /// Returns whether this finding should be reported: it is new, and its node has not reached its
    /// limit. Counts it then.
    pub(super) fn admit_finding(&mut self, text: &str) -> bool {
        let count = self.by_subject.entry(node_named_in_finding(text).to_owned()).or_default();
        // The limit is checked first: texts beyond the limit must not fill the memory either.
        let is_admitted = *count < MAX_FINDINGS_PER_NODE && self.reported.insert(text.to_owned());
        *count += usize::from(is_admitted);
        is_admitted
    }
}

/// Name of the node that a finding is about; empty if it is about no node.
fn node_named_in_finding(text: &str) -> &str {
    // Every text about a node begins with `node` and its name.
    let named = text.strip_prefix("node ").and_then(|rest| rest.split([':', ' ']).next());
    named.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_is_reported_once_within_node_limit() {
        let mut told = ReportedFindings::default();
        let of_one = (0..5000).filter(|number| told.admit_finding(&format!("node a: trouble {number}")));
        assert_eq!(of_one.count(), MAX_FINDINGS_PER_NODE);
        assert!(told.admit_finding("node b: trouble") && !told.admit_finding("node b: trouble"));
        assert!(told.admit_finding("node b did not finish: why"));
        assert!(told.admit_finding("cannot write the record of the run"));
    }
}
