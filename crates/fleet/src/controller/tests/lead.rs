//! Time of nodes before T: to prepare, to arm, and to receive T.

use super::*;

/// Start time in the commit among these actions.
fn pointer_to_range(actions: &[ControllerAction]) -> MonoTime {
    let starts = commands(actions).into_iter().filter_map(|(_, command)| match command {
        NodeCommand::Commit { start, .. } => Some(*start),
        _ => None,
    });
    starts.max().expect("a commit")
}

/// Arms two nodes, of which one takes `ms`; returns the next actions of the controller.
fn armed_after(ms: u64) -> Vec<ControllerAction> {
    let mut controller = controller(&["a", "b"]);
    for name in ["a", "b"] {
        say(&mut controller, name, NodeReply::Prepared { ports: vec![] }, 2);
    }
    say(&mut controller, "a", NodeReply::Armed, 3);
    say(&mut controller, "b", NodeReply::Armed, 2 + ms)
}

#[test]
fn quickly_armed_fleet_starts_after_shortest_lead() {
    assert_eq!(pointer_to_range(&armed_after(1)), at(3 + 150));
}

#[test]
fn slowly_armed_fleet_starts_later() {
    assert_eq!(pointer_to_range(&armed_after(400)), at(402 + 3 * 400));
    assert_eq!(pointer_to_range(&armed_after(20_000)), at(20_002 + 10_000), "but not for ever later");
}

#[test]
fn controller_stall_extends_prepare_deadline() {
    let mut controller = controller(&["a", "b"]);
    let stood = Nanos::from_secs(35);
    controller.handle_event(ControllerEvent::StoodStill(stood), at(35_000));
    controller.handle_event(ControllerEvent::Tick, at(35_001));
    assert_eq!(controller.outcome(), None, "their 30 s have not passed");
    for name in ["a", "b"] {
        say(&mut controller, name, NodeReply::Prepared { ports: vec![] }, 35_002);
    }
    say(&mut controller, "a", NodeReply::Armed, 35_003);
    assert_eq!(pointer_to_range(&say(&mut controller, "b", NodeReply::Armed, 35_004)), at(35_004 + 150));
}

/// This machine's only node, which has accepted a commit.
fn only_node_committed() -> (ControllerMachine, MonoTime) {
    let mut controller = controller_with(&["a"], RunLimits::for_local(Nanos::from_millis(200)));
    say(&mut controller, "a", NodeReply::Prepared { ports: vec![] }, 2);
    let start = pointer_to_range(&say(&mut controller, "a", NodeReply::Armed, 60));
    say(&mut controller, "a", NodeReply::Committed, 61);
    (controller, start)
}

#[test]
fn single_machine_start_ignores_arming_time() {
    let (_, start) = only_node_committed();
    assert_eq!(start, at(60 + 20));
}

#[test]
fn late_confirmation_on_one_machine_retries_start() {
    for late in [75, 95] {
        let (mut controller, _) = only_node_committed();
        controller.handle_event(ControllerEvent::Tick, at(late));
        let actions = say(&mut controller, "a", NodeReply::Late, late);
        assert!(matches!(commands(&actions)[..], [("a", NodeCommand::Prepare(_))]), "{actions:?}");
        say(&mut controller, "a", NodeReply::Prepared { ports: vec![] }, late + 1);
        let again = pointer_to_range(&say(&mut controller, "a", NodeReply::Armed, late + 2));
        assert_eq!(again, at(late + 2 + 40), "the second attempt has twice the lead");
        say(&mut controller, "a", NodeReply::Committed, late + 3);
        say(&mut controller, "a", NodeReply::Confirmed, late + 4);
        controller.handle_event(ControllerEvent::Tick, again);
        say(&mut controller, "a", NodeReply::Started, late + 43);
        assert!(controller.outcome().is_none() && controller.next_deadline().is_some());
    }
}
