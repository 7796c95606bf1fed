//! The record of a run, and its takeover by a later controller.

use super::*;

#[test]
fn commit_is_recorded_before_commands_are_sent() {
    let mut controller = controller_with(&["a"], fleet_limits());
    say(&mut controller, "a", NodeReply::Prepared { ports: vec![] }, 1);
    let actions = say(&mut controller, "a", NodeReply::Armed, 2);
    let record = actions.iter().position(
        |action| matches!(action, ControllerAction::Record(it) if it.state == RunState::Committed && it.start == Some(at(82))),
    );
    let sent = actions.iter().position(|action| matches!(action, ControllerAction::Send(..)));
    assert!(record.is_some() && record < sent, "{actions:?}");
    let Some(ControllerAction::Record(record)) = record.map(|index| &actions[index]) else {
        panic!("it is one")
    };
    let text = serde_json::to_string(record).expect("encodes");
    assert_eq!(serde_json::from_str::<RunRecord>(&text).expect("decodes"), *record);
}

#[test]
fn inherited_run_is_stopped_and_collected() {
    let head =
        MessageHead { run: RunId("r".into()), attempt: 2, epoch: 4, plan: PlanHash::from_document("p") };
    let record = |state| RunRecord {
        head: head.clone(),
        state,
        nodes: vec![node("a")],
        left_out: vec![],
        start: None,
        released: BTreeSet::new(),
    };
    let mut controller = ControllerMachine::from_record(record(RunState::Running), 5, fleet_limits());
    let actions = controller.handle_event(ControllerEvent::Begin, at(0));
    assert_eq!(commands(&actions), [("a", &NodeCommand::Stop)]);
    assert_eq!(*controller.head(), MessageHead { epoch: 5, ..head.clone() });
    let head = controller.head().clone();
    assert_eq!(may_node_continue(&mut controller, "a", &head, 1), Some(false));
    say(&mut controller, "a", NodeReply::SendersDone { sent: vec![], why: StopReason::Told }, 2);
    controller.handle_event(ControllerEvent::Tick, at(300));
    controller.handle_event(ControllerEvent::Collected(node("a"), Arc::default()), at(301));
    let reasons = vec!["the controller of this run was lost".to_owned()];
    assert_eq!(controller.outcome(), Some(&RunOutcome::Partial { reasons, stopped: false }));

    let mut before = ControllerMachine::from_record(record(RunState::Committed), 5, fleet_limits());
    assert_eq!(commands(&before.handle_event(ControllerEvent::Begin, at(0))), [("a", &NodeCommand::Abort)]);
}

#[test]
fn a_controller_that_was_deposed_says_nothing_more() {
    let mut controller = fleet(&["a"], RunPolicies::default());
    let actions = controller.handle_event(ControllerEvent::Deposed, at(200));
    assert!(actions.iter().all(|action| matches!(action, ControllerAction::Emit(_))), "{actions:?}");
    assert!(matches!(controller.outcome(), Some(RunOutcome::Partial { .. })));
    assert_eq!(controller.next_deadline(), None);
}

/// The record of this run still has the nodes that released it, and those that were never in it,
/// for the next controller.
#[test]
fn inherited_run_keeps_members_and_released_nodes() {
    let head =
        MessageHead { run: RunId("r".into()), attempt: 2, epoch: 4, plan: PlanHash::from_document("p") };
    let inherited = RunRecord {
        head,
        state: RunState::Running,
        nodes: vec![node("a"), node("b")],
        left_out: vec![node("c")],
        start: None,
        released: [node("b"), node("c")].into(),
    };
    let elsewhere = [node("b"), node("c")].into();
    let mut controller =
        ControllerMachine::from_record(inherited.clone(), 5, fleet_limits()).without_commands_to(elsewhere);
    let mut said = controller.handle_event(ControllerEvent::Begin, at(0));
    for _ in 0..100 {
        let Some(due) = controller.next_deadline() else { break };
        said.extend(controller.handle_event(ControllerEvent::Tick, due));
    }
    let written = records(&said);
    assert!(!written.is_empty());
    for record in written {
        assert_eq!(
            (record.all_nodes(), record.unreleased_nodes()),
            (inherited.all_nodes(), [node("a")].into())
        );
    }
    let Some(RunOutcome::Partial { reasons, .. }) = controller.outcome() else { panic!("{said:?}") };
    assert!(reasons.contains(&"node c was left out".to_owned()), "{reasons:?}");
    assert!(!reasons.contains(&"node c: another run uses it now".to_owned()), "{reasons:?}");
}

/// A later run has two of the four nodes, and ended this run there. The other two are led now.
#[test]
fn inherited_run_sends_nothing_to_nodes_led_elsewhere() {
    let head =
        MessageHead { run: RunId("r".into()), attempt: 1, epoch: 4, plan: PlanHash::from_document("p") };
    let nodes: Vec<NodeName> = ["a", "b", "c", "d"].map(node).into();
    let record = RunRecord {
        head,
        state: RunState::Running,
        nodes: nodes.clone(),
        left_out: vec![],
        start: None,
        released: [node("a"), node("b")].into(),
    };
    assert_eq!(record.unreleased_nodes(), [node("c"), node("d")].into());
    let elsewhere = record.released.clone();
    let mut controller =
        ControllerMachine::from_record(record, 5, fleet_limits()).without_commands_to(elsewhere);
    let mut said = controller.handle_event(ControllerEvent::Begin, at(0));
    for name in ["c", "d"] {
        let head = controller.head().clone();
        let done = NodeReply::SendersDone { sent: vec![], why: StopReason::Told };
        said.extend(controller.handle_event(ControllerEvent::Reply(node(name), head, done), at(2)));
    }
    said.extend(controller.handle_event(ControllerEvent::Tick, at(300)));
    // The counts of `a` were on their way; `b` delivers nothing.
    for name in ["a", "c", "d"] {
        said.extend(controller.handle_event(ControllerEvent::Collected(node(name), Arc::default()), at(301)));
    }
    assert_eq!(controller.outcome(), None, "late results have a while to come");
    said.extend(controller.handle_event(ControllerEvent::Tick, at(60_000)));
    let Some(RunOutcome::Partial { reasons, .. }) = controller.outcome() else { panic!("{said:?}") };
    assert_eq!(*reasons, ["the controller of this run was lost", "node b: another run uses it now"]);
    let told: BTreeSet<&str> = commands(&said).into_iter().map(|(node, _)| node).collect();
    assert_eq!(told, ["c", "d"].into());
}
