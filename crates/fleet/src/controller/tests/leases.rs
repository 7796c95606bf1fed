//! Leases and confirmations: permission to send, and the wait for silent nodes.

use super::*;

#[test]
fn fleet_lead_follows_round_trip() {
    let near = fleet_limits();
    assert_eq!((near.guard, near.lead), (Nanos::from_millis(30), Nanos::from_millis(80)));
    let far = RunLimits::for_fleet(Nanos::from_millis(50), Nanos::ZERO);
    assert_eq!((far.guard, far.lead), (Nanos::from_millis(120), Nanos::from_millis(370)));
    assert!(near.guard > CONFIRM_MARGIN, "what is confirmed at the last moment is not too late");
    let farther = RunLimits::for_fleet(Nanos::from_millis(700), Nanos::ZERO);
    assert_eq!((far.confirm, farther.confirm), (Nanos::from_millis(500), Nanos::from_millis(1400)));
}

#[test]
fn lease_is_renewed_only_for_current_attempt() {
    let mut controller = fleet(&["a", "b"], RunPolicies::default());
    let head = controller.head().clone();
    assert_eq!(may_node_continue(&mut controller, "a", &head, 100), Some(true));
    assert_eq!(may_node_continue(&mut controller, "stranger", &head, 100), Some(false));
    let other = MessageHead { run: RunId("other".into()), ..head.clone() };
    assert_eq!(may_node_continue(&mut controller, "a", &other, 100), Some(false));
    let behind = MessageHead { attempt: 0, ..head.clone() };
    assert_eq!(
        may_node_continue(&mut controller, "a", &behind, 100),
        None,
        "it is about to hear of the new attempt"
    );
    let later = MessageHead { epoch: 2, ..head.clone() };
    assert_eq!(may_node_continue(&mut controller, "a", &later, 100), None, "not for this controller to say");
    controller.handle_event(ControllerEvent::Restarted(node("b")), at(110));
    assert_eq!(may_node_continue(&mut controller, "b", &head, 120), Some(false));
    assert_eq!(
        may_node_continue(&mut controller, "a", &head, 120),
        Some(false),
        "the others are being stopped"
    );
}

#[test]
fn unreachable_node_is_awaited_until_lease_ends() {
    let mut controller = fleet(&["a", "b"], RunPolicies::default());
    let head = controller.head().clone();
    may_node_continue(&mut controller, "b", &head, 1000);
    say(&mut controller, "b", NodeReply::Refused("gone mad".into()), 1001);
    say(&mut controller, "a", NodeReply::SendersDone { sent: vec![], why: StopReason::Told }, 1100);
    let is_sent = |actions: &[ControllerAction]| {
        commands(actions).iter().any(|(_, command)| matches!(command, NodeCommand::Finish { .. }))
    };
    // 1000 + 2002 + 700, and the drain of 200.
    let mut first = None;
    for ms in (1100..5000).step_by(50) {
        if is_sent(&controller.handle_event(ControllerEvent::Tick, at(ms))) {
            first.get_or_insert(ms);
        }
    }
    assert_eq!(first, Some(3950), "drains from 3750, the first tick behind 3702");
}

#[test]
fn unacknowledged_confirmation_counts_as_not_started() {
    let mut controller = controller_with(&["a", "b"], fleet_limits());
    for reply in [NodeReply::Prepared { ports: vec![] }, NodeReply::Armed, NodeReply::Committed] {
        for name in ["a", "b"] {
            say(&mut controller, name, reply.clone(), 1);
        }
    }
    say(&mut controller, "a", NodeReply::Confirmed, 2);
    controller.handle_event(ControllerEvent::Tick, at(82));
    assert!(
        !commands(&controller.handle_event(ControllerEvent::Tick, at(580)))
            .contains(&("a", &NodeCommand::Stop))
    );
    let actions = controller.handle_event(ControllerEvent::Tick, at(581));
    assert!(commands(&actions).contains(&("a", &NodeCommand::Stop)), "{actions:?}");
    let split = "node b: did not confirm the start (split_start)".to_owned();
    let outcome = RunOutcome::Partial { reasons: vec![split.clone()], stopped: false };
    assert!(outcome.is_split_start() && !RunOutcome::Complete { stopped: false }.is_split_start());
    assert!(actions.contains(&ControllerAction::Emit(RunEventKind::Finding(split))));
}

#[test]
fn start_is_postponed_when_confirmations_may_be_late() {
    let mut controller = controller(&["a", "b"]);
    for reply in [NodeReply::Prepared { ports: vec![] }, NodeReply::Armed] {
        for name in ["a", "b"] {
            say(&mut controller, name, reply.clone(), 2);
        }
    }
    // T is at 152 ms. B takes 80 ms to acknowledge it, so it may take as long to receive the confirmation.
    say(&mut controller, "a", NodeReply::Committed, 3);
    let actions = say(&mut controller, "b", NodeReply::Committed, 82);
    let said = commands(&actions);
    assert!(said.iter().all(|(_, command)| matches!(command, NodeCommand::Prepare(_))), "{said:?}");
    assert_eq!((said.len(), controller.head().attempt), (2, 2));
    // The next T is later by twice the lead, which is enough for the same delay.
    for reply in [NodeReply::Prepared { ports: vec![] }, NodeReply::Armed] {
        for name in ["a", "b"] {
            say(&mut controller, name, reply.clone(), 90);
        }
    }
    say(&mut controller, "a", NodeReply::Committed, 91);
    let actions = say(&mut controller, "b", NodeReply::Committed, 170);
    assert!(commands(&actions).iter().all(|(_, command)| matches!(command, NodeCommand::Confirm { .. })));
}
