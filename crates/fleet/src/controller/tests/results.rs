//! Results that arrive late or not at all, and their effect on the report.

use super::*;

#[test]
fn collected_results_count_even_when_late() {
    let mut controller = fleet(&["a", "b"], RunPolicies::default());
    controller.handle_event(ControllerEvent::Restarted(node("b")), at(100));
    say(&mut controller, "a", NodeReply::SendersDone { sent: vec![], why: StopReason::Told }, 110);
    controller.handle_event(ControllerEvent::Tick, at(400));
    assert_eq!(commands(&say(&mut controller, "a", NodeReply::Spooled { segments: 4 }, 410)), []);
    assert_eq!(controller.outcome(), None, "safe with the node is not here");
    let result = |name: &str| Arc::new(NodeResult { node: name.into(), ..NodeResult::default() });
    let collected = controller.handle_event(ControllerEvent::Collected(node("a"), result("a")), at(420));
    assert_eq!(commands(&collected), [("a", &NodeCommand::Collected)]);
    assert_eq!(controller.outcome(), None, "the one that was lost may have something on its disk");
    controller.handle_event(ControllerEvent::Collected(node("b"), result("b")), at(430));
    controller.handle_event(ControllerEvent::Collected(node("b"), result("b")), at(431));
    let reasons = vec!["node b: its agent was started again".to_owned()];
    assert_eq!(controller.outcome(), Some(&RunOutcome::Partial { reasons, stopped: false }));
    assert_eq!(controller.into_results().len(), 2);
}

#[test]
fn node_without_result_is_not_awaited() {
    let mut controller = fleet(&["a", "b"], RunPolicies::default());
    controller.handle_event(ControllerEvent::Restarted(node("b")), at(100));
    say(&mut controller, "a", NodeReply::SendersDone { sent: vec![], why: StopReason::Told }, 110);
    controller.handle_event(ControllerEvent::Tick, at(400));
    controller.handle_event(ControllerEvent::Collected(node("a"), Arc::default()), at(420));
    assert_eq!(controller.outcome(), None, "it may still have something on its disk");
    controller.handle_event(ControllerEvent::Unfinished(node("b")), at(430));
    assert_eq!(controller.outcome().map(RunOutcome::state), Some(RunState::Partial));
    assert_eq!(controller.into_results().len(), 1);
}

#[test]
fn user_stop_limits_drain_to_planned_time() {
    let far = || {
        Box::new(CountSample {
            latency: Some((Nanos::ZERO, Nanos::ZERO, Nanos::from_millis(800))),
            ..CountSample::default()
        })
    };
    let drains_at = |stop: Option<u64>| {
        let mut controller = running(&["a"]);
        say(&mut controller, "a", NodeReply::SendersDone { sent: vec![], why: StopReason::Done }, 200);
        let head = controller.head().clone();
        controller.handle_event(ControllerEvent::Telemetry(node("a"), head, far()), at(205));
        if let Some(stop) = stop {
            controller.handle_event(ControllerEvent::Stop, at(stop));
        }
        let mut times = (210..3000).step_by(10);
        times.find(|ms| {
            controller.handle_event(ControllerEvent::Tick, at(*ms));
            controller.is_collecting()
        })
    };
    assert_eq!(drains_at(None), Some(1800), "twice the longest delay");
    assert_eq!(drains_at(Some(210)), Some(400), "the drain time of the plan");
}

#[test]
fn overloaded_machine_is_named_in_findings() {
    let mut controller = fleet(&["a", "b"], RunPolicies::default());
    for (node_name, waited) in [("a", 3200), ("a", 1100), ("b", 900)] {
        controller
            .handle_event(ControllerEvent::Starved(node(node_name), Nanos::from_millis(waited)), at(90));
    }
    let lost = controller.handle_event(ControllerEvent::Restarted(node("b")), at(100));
    let finding = |text: &str| ControllerAction::Emit(RunEventKind::Finding(text.to_owned()));
    assert!(lost.contains(&finding("node b: its agent was started again")), "{lost:?}");
    let mut controller = fleet(&["a", "b"], RunPolicies::default());
    controller.handle_event(ControllerEvent::Starved(node("a"), Nanos::from_millis(3200)), at(90));
    let reply = NodeReply::SendersDone { sent: vec![], why: StopReason::LeaseOver };
    let stopped = say(&mut controller, "a", reply, 110);
    let text = "node a: its senders stopped because their lease was not renewed; its machine is overloaded: the agent waited 3.2s \
                for a processor";
    assert!(stopped.contains(&finding(text)), "{stopped:?}");
}

#[test]
fn the_owner_s_limit_makes_a_run_partial() {
    let mut controller = fleet(&["a"], RunPolicies::default());
    say(&mut controller, "a", NodeReply::SendersDone { sent: vec![], why: StopReason::OwnersLimit }, 200);
    controller.handle_event(ControllerEvent::Tick, at(500));
    controller.handle_event(ControllerEvent::Collected(node("a"), Arc::default()), at(501));
    let Some(RunOutcome::Partial { reasons, .. }) = controller.outcome() else { panic!("must be partial") };
    assert_eq!(
        reasons[..],
        ["node a: its senders stopped after the longest duration that the node's owner allows"]
    );
}

#[test]
fn absent_nodes_are_reported_as_left_out() {
    let head =
        MessageHead { run: RunId("r".into()), attempt: 1, epoch: 1, plan: PlanHash::from_document("p") };
    let preparation = RunPreparation { document: "p".into(), ..RunPreparation::default() };
    let absent = BTreeMap::from([(node("b"), "not heard for 60s".to_owned())]);
    let mut controller = ControllerMachine::new(head, preparation, &[node("a"), node("b")], several_nodes())
        .without_nodes(absent);
    let actions = controller.handle_event(ControllerEvent::Begin, at(0));
    assert_eq!(commands(&actions).iter().map(|(to, _)| *to).collect::<Vec<_>>(), ["a"]);
    let [record] = &records(&actions)[..] else { panic!("{actions:?}") };
    assert_eq!(record.all_nodes(), [node("a"), node("b")]);
    assert_eq!(record.unreleased_nodes(), [node("a")].into(), "nobody has to make `b` let go");
    for (reply, ms) in [
        (NodeReply::Prepared { ports: vec![] }, 1),
        (NodeReply::Armed, 2),
        (NodeReply::Committed, 3),
        (NodeReply::Confirmed, 4),
        (NodeReply::Started, 160),
        (NodeReply::SendersDone { sent: vec![], why: StopReason::Done }, 200),
    ] {
        say(&mut controller, "a", reply, ms);
    }
    controller.handle_event(ControllerEvent::Tick, at(500));
    say(&mut controller, "a", NodeReply::Result(Arc::default()), 501);
    let reasons = vec!["node b was left out: not heard for 60s".to_owned()];
    assert_eq!(controller.outcome(), Some(&RunOutcome::Partial { reasons, stopped: false }));
}

#[test]
fn returning_node_with_result_is_awaited() {
    let mut controller = fleet(&["a", "b"], RunPolicies::default());
    // B is cut off, and given up; the others stop.
    for ms in (200..8000).step_by(500) {
        let head = controller.head().clone();
        may_node_continue(&mut controller, "a", &head, ms);
        controller.handle_event(ControllerEvent::Tick, at(ms));
    }
    say(&mut controller, "a", NodeReply::SendersDone { sent: vec![], why: StopReason::Told }, 8000);
    controller.handle_event(ControllerEvent::Tick, at(8300));
    let result = |name: &str| Arc::new(NodeResult { node: name.into(), ..NodeResult::default() });
    controller.handle_event(ControllerEvent::Collected(node("a"), result("a")), at(8400));
    // It answers at last. Its data takes longer than the time for silent nodes.
    say(&mut controller, "b", NodeReply::Spooled { segments: 900 }, 9000);
    controller.handle_event(ControllerEvent::Tick, at(40_000));
    assert_eq!(controller.outcome(), None, "its result is on the way");
    controller.handle_event(ControllerEvent::Collected(node("b"), result("b")), at(41_000));
    let reasons = vec!["node b: silent for 3s".to_owned()];
    assert_eq!(controller.outcome(), Some(&RunOutcome::Partial { reasons, stopped: false }));
    assert_eq!(controller.into_results().len(), 2);
}

#[test]
fn silence_of_all_nodes_is_named_as_common() {
    let silent = |names: &[&str], talking: Option<&str>| {
        let mut controller = fleet(names, RunPolicies::default());
        let head = controller.head().clone();
        let mut said = Vec::new();
        for ms in (200..6000).step_by(100) {
            let renewal = |name| ControllerEvent::Renewal(node(name), head.clone(), Nonce(9));
            let event = talking.map_or(ControllerEvent::Tick, renewal);
            let actions = controller.handle_event(event, at(ms));
            said.extend(actions.into_iter().filter_map(|action| match action {
                ControllerAction::Emit(RunEventKind::Finding(text)) => Some(text),
                _ => None,
            }));
        }
        said
    };
    assert_eq!(silent(&["a", "b"], Some("a")), ["node b: silent for 3s"]);
    let all = silent(&["a", "b"], None);
    assert!(all.len() == 2 && all.iter().all(|text| text.contains("no node sent a message")), "{all:?}");
    assert_eq!(silent(&["a"], None), ["node a: silent for 3s"]);
}

#[test]
fn a_controller_that_stood_still_blames_itself() {
    let mut controller = fleet(&["a", "b"], RunPolicies::default());
    let actions = controller.handle_event(ControllerEvent::StoodStill(Nanos::from_secs(5)), at(5300));
    let own = "the controller's own process did not run for 5s".to_owned();
    assert!(actions.contains(&ControllerAction::Emit(RunEventKind::Finding(own.clone()))), "{actions:?}");
    assert_eq!(
        commands(&actions).iter().filter(|(_, it)| **it == NodeCommand::Stop).count(),
        0,
        "nobody is given up"
    );
    for name in ["a", "b"] {
        let why = StopReason::LeaseOver;
        say(&mut controller, name, NodeReply::SendersDone { sent: vec![], why }, 5301);
    }
    controller.handle_event(ControllerEvent::Tick, at(9000));
    for name in ["a", "b"] {
        let result = Arc::new(NodeResult { node: name.into(), ..NodeResult::default() });
        controller.handle_event(ControllerEvent::Collected(node(name), result), at(9001));
    }
    let Some(RunOutcome::Partial { reasons, .. }) = controller.outcome() else {
        panic!("{:?}", controller.outcome())
    };
    assert_eq!(reasons[0], own);
}
