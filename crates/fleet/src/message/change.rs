//! Messages about changes to a steered run.

use packetrig_plan::{PlanChange, StreamResumePoint};
use packetrig_units::MonoTime;
use serde::{Deserialize, Serialize};

/// A change to a steered run that every node can make without waiting for the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeOrder {
    /// Number of the change, from 1.
    pub number: u64,
    pub steer: PlanChange,
}

/// A step of a change with new stream segments on several nodes. The receivers of all nodes must know the segments
/// before any sender begins, so no node gets the next step before all nodes have performed the current one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeStep {
    /// Hold the streams that this node sends, report their positions, and check whether the change can be made.
    Hold(PlanChange),
    /// Announce the new stream segments to the receivers. From this step on the change is final.
    Announce {
        /// The held streams of all nodes.
        held: Vec<StreamResumePoint>,
        /// Start time, if streams begin.
        at: Option<MonoTime>,
    },
    /// Make the senders continue.
    Begin {
        /// Start time, if streams begin. It may be later than announced.
        at: Option<MonoTime>,
    },
    /// Continue the held streams as before. Sent instead of `Announce` if a node could not hold its streams.
    Undo,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_survive_json() {
        let held =
            vec![StreamResumePoint { stream: 3, number: 1 << 40, index: 7, mac: Some([2, 0, 0, 0, 0, 1]) }];
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
