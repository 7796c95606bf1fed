//! Messages about changes to a steered run.

use packetrig_plan::{HeldStream, PlanChange};
use packetrig_units::MonoTime;
use serde::{Deserialize, Serialize};

/// A change to a steered run that every node makes for itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeOrder {
    /// Number of the change, from 1.
    pub number: u64,
    pub steer: PlanChange,
}

/// A step of a change with new stream segments that concern several nodes: the receivers of a node must
/// know them before the senders of another node begin. No node gets the next step before all nodes have
/// performed the current one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeStep {
    /// Hold the streams that this node sends, report their positions, and check whether the change can be made.
    Hold(PlanChange),
    /// Announce the new stream segments to the receivers. The change is final from here on.
    Announce {
        /// The held streams of all nodes.
        held: Vec<HeldStream>,
        /// Start time, if streams begin.
        at: Option<MonoTime>,
    },
    /// Make the senders continue.
    Begin {
        /// Start time, possibly later than announced.
        at: Option<MonoTime>,
    },
    /// Continue the held streams as before. Sent instead of the announcement if a node could not hold its streams.
    Undo,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_survive_json() {
        let held = vec![HeldStream { stream: 3, number: 1 << 40, index: 7, mac: Some([2, 0, 0, 0, 0, 1]) }];
        let steps = [
            ChangeStep::Hold(PlanChange::Resume(vec![3])),
            ChangeStep::Announce { held, at: Some(MonoTime::from_nanos(9)) },
            ChangeStep::Begin { at: None },
            ChangeStep::Undo,
        ];
        for step in steps {
            let text = serde_json::to_string(&step).expect("encodes");
            assert_eq!(serde_json::from_str::<ChangeStep>(&text).expect("decodes"), step);
        }
    }
}
