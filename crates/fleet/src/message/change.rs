//! Messages about changes to a steered run.

use packetrig_plan::{HeldStream, PlanChange};
use packetrig_units::MonoTime;
use serde::{Deserialize, Serialize};

/// A change to a steered run, made by every node for itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeOrder {
    /// Which, from 1.
    pub number: u64,
    pub steer: PlanChange,
}

/// A step of a change whose takes concern several nodes: a node's receivers know them before another's senders begin. All
/// have taken a step before the first is told of the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeStep {
    /// Hold the streams that are sent here and say where; find out what could be wrong.
    Hold(PlanChange),
    /// Tell the receivers of the takes that follow. From here on the change is decided.
    Announce {
        /// The held streams of all nodes.
        held: Vec<HeldStream>,
        /// The instant of a start.
        at: Option<MonoTime>,
    },
    /// Have the senders go on.
    Begin {
        /// The instant of a start, perhaps a later one.
        at: Option<MonoTime>,
    },
    /// Instead of the announcement, because a node could not hold: go on as before.
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
