//! The shell turns orders that it cannot carry out into failures.

use super::turns::{MAX_WAIT_DURING_RUN, senders_check_interval};
use super::*;
use packetrig_fleet::fabric::Fabric;
use packetrig_fleet::local::LocalFabric;
use packetrig_fleet::message::{ChangeOrder, ChangeStep};
use packetrig_plan::PlanChange;
use packetrig_units::Blame;

/// Has no data plane.
struct NoPlane;

impl PlaneSource for NoPlane {
    fn prepare_plane(
        &mut self,
        _: &RunPreparation,
        _: Arc<packetrig_plan::Plan>,
    ) -> Result<crate::PreparedPlane, EngineError> {
        Err(EngineError::Bug("made to fail"))
    }
}

#[test]
fn short_run_end_is_polled_more_often() {
    let after = |ms| senders_check_interval(Nanos::from_millis(ms));
    assert_eq!(after(0), Nanos::from_millis(1));
    assert_eq!(after(128), Nanos::from_millis(2));
    assert_eq!(after(60_000), MAX_WAIT_DURING_RUN);
}

#[test]
fn order_without_data_plane_fails() {
    let endpoint = LocalFabric::default().open_endpoint(NodeName::local()).expect("the name is free");
    let mut planes = NoPlane;
    let mut shell = AgentShell::new(endpoint, &mut planes, AgentMachine::new(Nanos::from_secs(1)), None);
    let orders = [
        AgentAction::Arm,
        AgentAction::StartAt(MonoTime::default()),
        AgentAction::StopSenders,
        AgentAction::Steer(Box::new(ChangeOrder { number: 1, steer: PlanChange::Stop(Vec::new()) })),
        AgentAction::Step(1, Box::new(ChangeStep::Undo)),
        AgentAction::Finish(Vec::new()),
        AgentAction::Spool(Arc::default()),
    ];
    for order in orders {
        let name = format!("{order:?}");
        let event = shell.perform_action(order);
        let Some(AgentEvent::Failed(fault)) = event else { panic!("{name}: {event:?}") };
        assert_eq!(fault.blame, Blame::Bug, "{name}");
    }
}
