use super::*;
use crate::agent::CONFIRM_MARGIN;
use crate::message::{PlanHash, RunId, SentTotal, StopReason};
use packetrig_stats::terms::RunTerms;
use packetrig_units::Nanos;
use std::sync::Arc;

mod lead;
mod steering;

fn at(ms: u64) -> MonoTime {
    MonoTime::from_nanos(ms * 1_000_000)
}

fn node(name: &str) -> NodeName {
    NodeName(name.into())
}

fn controller(names: &[&str]) -> ControllerMachine {
    controller_with(names, several_nodes())
}

/// For several nodes without leases.
fn several_nodes() -> RunLimits {
    RunLimits {
        lead: Nanos::from_millis(150),
        guard: Nanos::from_millis(50),
        margin: CONFIRM_MARGIN,
        arming_rounds: 3,
        attempts: 5,
        ..RunLimits::local(Nanos::from_millis(200))
    }
}

fn controller_with(names: &[&str], limits: RunLimits) -> ControllerMachine {
    let head = MessageHead { run: RunId("r".into()), attempt: 1, epoch: 1, plan: PlanHash::of("p") };
    let preparation = RunPreparation {
        document: "p".into(),
        terms: RunTerms { tag_key: 1, seed: 2, ..RunTerms::default() },
        ..RunPreparation::default()
    };
    let names: Vec<NodeName> = names.iter().map(|name| node(name)).collect();
    let mut controller = ControllerMachine::new(head, preparation, &names, limits);
    controller.handle(ControllerEvent::Begin, at(0));
    controller
}

fn say(controller: &mut ControllerMachine, name: &str, reply: NodeReply, ms: u64) -> Vec<ControllerAction> {
    let head = controller.head().clone();
    controller.handle(ControllerEvent::Reply(node(name), head, reply), at(ms))
}

fn commands<'a>(actions: &'a [ControllerAction]) -> Vec<(&'a str, &'a NodeCommand)> {
    let sent = |action: &'a ControllerAction| match action {
        ControllerAction::Send(to, _, what) => Some((to.0.as_str(), what)),
        _ => None,
    };
    actions.iter().filter_map(sent).collect()
}

fn records(actions: &[ControllerAction]) -> Vec<RunRecord> {
    let record = |action: &ControllerAction| {
        if let ControllerAction::Record(record) = action { Some(record.clone()) } else { None }
    };
    actions.iter().filter_map(record).collect()
}

/// Runs `names` up to T at 152 ms (plus the lead's 150).
fn running(names: &[&str]) -> ControllerMachine {
    let mut controller = controller(names);
    for reply in
        [NodeReply::Prepared { ports: vec![] }, NodeReply::Armed, NodeReply::Committed, NodeReply::Confirmed]
    {
        for name in names {
            say(&mut controller, name, reply.clone(), 2);
        }
    }
    controller.handle(ControllerEvent::Tick, at(152));
    for name in names {
        say(&mut controller, name, NodeReply::Started, 153);
    }
    controller
}

#[test]
fn a_start_is_given_out_only_when_all_are_armed() {
    let mut controller = controller(&["a", "b"]);
    say(&mut controller, "a", NodeReply::Prepared { ports: vec![] }, 1);
    let arm = say(&mut controller, "b", NodeReply::Prepared { ports: vec![] }, 2);
    assert_eq!(commands(&arm), [("a", &NodeCommand::Arm), ("b", &NodeCommand::Arm)]);
    assert_eq!(commands(&say(&mut controller, "a", NodeReply::Armed, 3)), []);
    assert_eq!(
        commands(&say(&mut controller, "a", NodeReply::Armed, 4)),
        [],
        "once more is not another node"
    );
    let commit = say(&mut controller, "b", NodeReply::Armed, 5);
    assert!(matches!(
        commands(&commit)[..],
        [("a", NodeCommand::Commit { .. }), ("b", NodeCommand::Commit { .. })]
    ));
    assert_eq!(commands(&say(&mut controller, "a", NodeReply::Committed, 6)), []);
    let confirm = say(&mut controller, "b", NodeReply::Committed, 7);
    assert!(matches!(
        commands(&confirm)[..],
        [("a", NodeCommand::Confirm { .. }), ("b", NodeCommand::Confirm { .. })]
    ));
}

#[test]
fn receivers_are_told_to_finish_when_every_sender_is_done_and_the_path_has_drained() {
    let mut controller = running(&["a", "b"]);
    let done = |stream| NodeReply::SendersDone {
        sent: vec![SentTotal { stream, frames: 5 }],
        why: StopReason::Done,
    };
    say(&mut controller, "a", done(0), 200);
    assert_eq!(commands(&controller.handle(ControllerEvent::Tick, at(900))), [], "b still sends");
    say(&mut controller, "b", done(1), 1000);
    assert_eq!(
        commands(&controller.handle(ControllerEvent::Tick, at(1199)))
            .iter()
            .filter(|(_, c)| matches!(c, NodeCommand::Finish { .. }))
            .count(),
        0
    );
    let finish = controller.handle(ControllerEvent::Tick, at(1200));
    let sent = vec![SentTotal { stream: 0, frames: 5 }, SentTotal { stream: 1, frames: 5 }];
    let wanted = NodeCommand::Finish { sent: sent.into() };
    assert_eq!(commands(&finish), [("a", &wanted), ("b", &wanted)]);
}

#[test]
fn what_belongs_to_another_attempt_or_node_is_ignored() {
    let mut controller = controller(&["a"]);
    let mut old = controller.head().clone();
    old.attempt = 0;
    controller.handle(ControllerEvent::Reply(node("a"), old, NodeReply::Prepared { ports: vec![] }), at(1));
    assert_eq!(commands(&say(&mut controller, "stranger", NodeReply::Prepared { ports: vec![] }, 2)), []);
    assert!(!commands(&say(&mut controller, "a", NodeReply::Prepared { ports: vec![] }, 3)).is_empty());
}

#[test]
fn older_samples_are_not_shown() {
    let mut controller = running(&["a"]);
    let head = controller.head().clone();
    let mut shown = |ms| {
        let sample = Box::new(CountSample { at: at(ms), ..CountSample::default() });
        let actions = controller.handle(ControllerEvent::Telemetry(node("a"), head.clone(), sample), at(300));
        actions.iter().any(|action| matches!(action, ControllerAction::Emit(RunEventKind::Counters { .. })))
    };
    assert!(shown(200));
    assert!(!shown(200));
    assert!(!shown(190));
    assert!(shown(210));
}

#[test]
fn unanswered_commands_are_repeated_to_those_who_did_not_answer() {
    let mut controller = controller(&["a", "b"]);
    say(&mut controller, "a", NodeReply::Prepared { ports: vec![] }, 1);
    assert_eq!(commands(&controller.handle(ControllerEvent::Tick, at(999))), []);
    let repeated = controller.handle(ControllerEvent::Tick, at(1000));
    assert!(matches!(commands(&repeated)[..], [("b", NodeCommand::Prepare(_))]));
}

#[test]
fn a_result_is_taken_once_and_each_copy_is_acknowledged() {
    let mut controller = running(&["a"]);
    say(&mut controller, "a", NodeReply::SendersDone { sent: vec![], why: StopReason::Done }, 200);
    controller.handle(ControllerEvent::Tick, at(400));
    let result = || NodeReply::Result(Arc::new(NodeResult { node: "a".into(), ..NodeResult::default() }));
    let first = say(&mut controller, "a", result(), 410);
    assert_eq!(commands(&first), [("a", &NodeCommand::Collected)]);
    assert_eq!(controller.outcome(), Some(&RunOutcome::Complete { stopped: false }));
    assert_eq!(commands(&say(&mut controller, "a", result(), 420)), [("a", &NodeCommand::Collected)]);
    assert_eq!(controller.into_results().len(), 1);
}

#[test]
fn nodes_that_never_get_ready_fail_the_run_by_name() {
    let mut controller = controller(&["a", "b"]);
    say(&mut controller, "a", NodeReply::Prepared { ports: vec![] }, 1);
    let abort = controller.handle(ControllerEvent::Tick, at(30_000));
    assert!(commands(&abort).contains(&("a", &NodeCommand::Abort)));
    say(&mut controller, "a", NodeReply::Aborted, 30_001);
    controller.handle(ControllerEvent::Tick, at(45_000));
    let Some(RunOutcome::Failed { fault }) = controller.outcome() else {
        panic!("{:?}", controller.outcome())
    };
    assert_eq!(fault.text, "node b: did not get ready within 30s");
}

fn fleet_limits() -> RunLimits {
    RunLimits::fleet(Nanos::from_millis(2), Nanos::from_millis(200))
}

/// A fleet's run of `names`, sending since T at 77 ms.
fn fleet(names: &[&str], policies: RunPolicies) -> ControllerMachine {
    let mut controller = controller_with(names, fleet_limits()).with_policies(policies);
    for reply in
        [NodeReply::Prepared { ports: vec![] }, NodeReply::Armed, NodeReply::Committed, NodeReply::Confirmed]
    {
        for name in names {
            say(&mut controller, name, reply.clone(), 1);
        }
    }
    controller.handle(ControllerEvent::Tick, at(82));
    for name in names {
        say(&mut controller, name, NodeReply::Started, 83);
    }
    controller
}

fn may_go_on(controller: &mut ControllerMachine, name: &str, head: &MessageHead, ms: u64) -> Option<bool> {
    let actions = controller.handle(ControllerEvent::Renewal(node(name), head.clone(), Nonce(9)), at(ms));
    actions
        .iter()
        .find_map(|action| if let ControllerAction::Grant(_, _, it) = action { Some(it.go_on) } else { None })
}

#[test]
fn the_lead_of_a_fleet_follows_its_round_trip_and_keeps_a_trial_short() {
    let near = fleet_limits();
    assert_eq!((near.guard, near.lead), (Nanos::from_millis(30), Nanos::from_millis(80)));
    let far = RunLimits::fleet(Nanos::from_millis(50), Nanos::ZERO);
    assert_eq!((far.guard, far.lead), (Nanos::from_millis(120), Nanos::from_millis(370)));
    assert!(near.guard > CONFIRM_MARGIN, "what is confirmed at the last moment is not too late");
    let farther = RunLimits::fleet(Nanos::from_millis(700), Nanos::ZERO);
    assert_eq!((far.confirm, farther.confirm), (Nanos::from_millis(500), Nanos::from_millis(1400)));
}

#[test]
fn a_renewal_is_granted_to_the_attempt_under_way_while_it_sends_and_to_nobody_else() {
    let mut controller = fleet(&["a", "b"], RunPolicies::default());
    let head = controller.head().clone();
    assert_eq!(may_go_on(&mut controller, "a", &head, 100), Some(true));
    assert_eq!(may_go_on(&mut controller, "stranger", &head, 100), Some(false));
    let other = MessageHead { run: RunId("other".into()), ..head.clone() };
    assert_eq!(may_go_on(&mut controller, "a", &other, 100), Some(false));
    let behind = MessageHead { attempt: 0, ..head.clone() };
    assert_eq!(may_go_on(&mut controller, "a", &behind, 100), None, "it is about to hear of the new attempt");
    let later = MessageHead { epoch: 2, ..head.clone() };
    assert_eq!(may_go_on(&mut controller, "a", &later, 100), None, "not for this controller to say");
    controller.handle(ControllerEvent::Restarted(node("b")), at(110));
    assert_eq!(may_go_on(&mut controller, "b", &head, 120), Some(false));
    assert_eq!(may_go_on(&mut controller, "a", &head, 120), Some(false), "the others are being stopped");
}

#[test]
fn a_node_that_cannot_be_heard_is_waited_for_until_its_lease_has_certainly_ended() {
    let mut controller = fleet(&["a", "b"], RunPolicies::default());
    let head = controller.head().clone();
    may_go_on(&mut controller, "b", &head, 1000);
    say(&mut controller, "b", NodeReply::Refused("gone mad".into()), 1001);
    say(&mut controller, "a", NodeReply::SendersDone { sent: vec![], why: StopReason::Told }, 1100);
    let is_sent = |actions: &[ControllerAction]| {
        commands(actions).iter().any(|(_, command)| matches!(command, NodeCommand::Finish { .. }))
    };
    // 1000 + 2002 + 700, and the drain of 200.
    let mut first = None;
    for ms in (1100..5000).step_by(50) {
        if is_sent(&controller.handle(ControllerEvent::Tick, at(ms))) {
            first.get_or_insert(ms);
        }
    }
    assert_eq!(first, Some(3950), "drains from 3750, the first tick behind 3702");
}

#[test]
fn a_confirmation_that_is_not_acknowledged_counts_as_not_started() {
    let mut controller = controller_with(&["a", "b"], fleet_limits());
    for reply in [NodeReply::Prepared { ports: vec![] }, NodeReply::Armed, NodeReply::Committed] {
        for name in ["a", "b"] {
            say(&mut controller, name, reply.clone(), 1);
        }
    }
    say(&mut controller, "a", NodeReply::Confirmed, 2);
    controller.handle(ControllerEvent::Tick, at(82));
    assert!(
        !commands(&controller.handle(ControllerEvent::Tick, at(580))).contains(&("a", &NodeCommand::Stop))
    );
    let actions = controller.handle(ControllerEvent::Tick, at(581));
    assert!(commands(&actions).contains(&("a", &NodeCommand::Stop)), "{actions:?}");
    let split = "node b: did not confirm the start (split_start)".to_owned();
    assert!(actions.contains(&ControllerAction::Emit(RunEventKind::Finding(split))));
}

#[test]
fn results_come_by_their_own_way_and_late_ones_count() {
    let mut controller = fleet(&["a", "b"], RunPolicies::default());
    controller.handle(ControllerEvent::Restarted(node("b")), at(100));
    say(&mut controller, "a", NodeReply::SendersDone { sent: vec![], why: StopReason::Told }, 110);
    controller.handle(ControllerEvent::Tick, at(400));
    assert_eq!(commands(&say(&mut controller, "a", NodeReply::Spooled { segments: 4 }, 410)), []);
    assert_eq!(controller.outcome(), None, "safe with the node is not here");
    let result = |name: &str| Arc::new(NodeResult { node: name.into(), ..NodeResult::default() });
    let collected = controller.handle(ControllerEvent::Collected(node("a"), result("a")), at(420));
    assert_eq!(commands(&collected), [("a", &NodeCommand::Collected)]);
    assert_eq!(controller.outcome(), None, "the one that was lost may have something on its disk");
    controller.handle(ControllerEvent::Collected(node("b"), result("b")), at(430));
    controller.handle(ControllerEvent::Collected(node("b"), result("b")), at(431));
    let reasons = vec!["node b: its agent was started again".to_owned()];
    assert_eq!(controller.outcome(), Some(&RunOutcome::Partial { reasons, stopped: false }));
    assert_eq!(controller.into_results().len(), 2);
}

#[test]
fn what_is_sent_is_recorded_before() {
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
fn a_run_that_was_left_behind_is_stopped_and_collected() {
    let head = MessageHead { run: RunId("r".into()), attempt: 2, epoch: 4, plan: PlanHash::of("p") };
    let record = |state| RunRecord {
        head: head.clone(),
        state,
        nodes: vec![node("a")],
        left_out: vec![],
        start: None,
        released: BTreeSet::new(),
    };
    let mut controller = ControllerMachine::collecting(record(RunState::Running), 5, fleet_limits());
    let actions = controller.handle(ControllerEvent::Begin, at(0));
    assert_eq!(commands(&actions), [("a", &NodeCommand::Stop)]);
    assert_eq!(*controller.head(), MessageHead { epoch: 5, ..head.clone() });
    let head = controller.head().clone();
    assert_eq!(may_go_on(&mut controller, "a", &head, 1), Some(false));
    say(&mut controller, "a", NodeReply::SendersDone { sent: vec![], why: StopReason::Told }, 2);
    controller.handle(ControllerEvent::Tick, at(300));
    controller.handle(ControllerEvent::Collected(node("a"), Arc::default()), at(301));
    let reasons = vec!["the controller of this run was lost".to_owned()];
    assert_eq!(controller.outcome(), Some(&RunOutcome::Partial { reasons, stopped: false }));

    let mut before = ControllerMachine::collecting(record(RunState::Committed), 5, fleet_limits());
    assert_eq!(commands(&before.handle(ControllerEvent::Begin, at(0))), [("a", &NodeCommand::Abort)]);
}

#[test]
fn a_controller_that_was_deposed_says_nothing_more() {
    let mut controller = fleet(&["a"], RunPolicies::default());
    let actions = controller.handle(ControllerEvent::Deposed, at(200));
    assert!(actions.iter().all(|action| matches!(action, ControllerAction::Emit(_))), "{actions:?}");
    assert!(matches!(controller.outcome(), Some(RunOutcome::Partial { .. })));
    assert_eq!(controller.next_deadline(), None);
}

#[test]
fn the_owner_s_limit_makes_a_run_partial() {
    let mut controller = fleet(&["a"], RunPolicies::default());
    say(&mut controller, "a", NodeReply::SendersDone { sent: vec![], why: StopReason::OwnersLimit }, 200);
    controller.handle(ControllerEvent::Tick, at(500));
    controller.handle(ControllerEvent::Collected(node("a"), Arc::default()), at(501));
    let Some(RunOutcome::Partial { reasons, .. }) = controller.outcome() else { panic!("must be partial") };
    assert_eq!(reasons[..], ["node a: its senders stopped at the longest duration its owner allows"]);
}

#[test]
fn a_start_is_not_confirmed_when_confirmations_may_come_too_late() {
    let mut controller = controller(&["a", "b"]);
    for reply in [NodeReply::Prepared { ports: vec![] }, NodeReply::Armed] {
        for name in ["a", "b"] {
            say(&mut controller, name, reply.clone(), 2);
        }
    }
    // T is at 152 ms. B takes 80 ms to acknowledge it, so it may take as long to hear that it holds.
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

#[test]
fn a_run_without_nodes_that_are_known_to_be_absent_reports_them_as_left_out() {
    let head = MessageHead { run: RunId("r".into()), attempt: 1, epoch: 1, plan: PlanHash::of("p") };
    let preparation = RunPreparation { document: "p".into(), ..RunPreparation::default() };
    let absent = BTreeMap::from([(node("b"), "not heard for 60s".to_owned())]);
    let mut controller =
        ControllerMachine::new(head, preparation, &[node("a"), node("b")], several_nodes()).without(absent);
    let actions = controller.handle(ControllerEvent::Begin, at(0));
    assert_eq!(commands(&actions).iter().map(|(to, _)| *to).collect::<Vec<_>>(), ["a"]);
    let [record] = &records(&actions)[..] else { panic!("{actions:?}") };
    assert_eq!(record.members(), [node("a"), node("b")]);
    assert_eq!(record.unreleased(), [node("a")].into(), "nobody has to make `b` let go");
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
    controller.handle(ControllerEvent::Tick, at(500));
    say(&mut controller, "a", NodeReply::Result(Arc::default()), 501);
    let reasons = vec!["node b was left out: not heard for 60s".to_owned()];
    assert_eq!(controller.outcome(), Some(&RunOutcome::Partial { reasons, stopped: false }));
}

#[test]
fn a_node_that_comes_back_with_its_result_is_waited_for() {
    let mut controller = fleet(&["a", "b"], RunPolicies::default());
    // B is cut off, and given up; the others stop.
    for ms in (200..8000).step_by(500) {
        let head = controller.head().clone();
        may_go_on(&mut controller, "a", &head, ms);
        controller.handle(ControllerEvent::Tick, at(ms));
    }
    say(&mut controller, "a", NodeReply::SendersDone { sent: vec![], why: StopReason::Told }, 8000);
    controller.handle(ControllerEvent::Tick, at(8300));
    let result = |name: &str| Arc::new(NodeResult { node: name.into(), ..NodeResult::default() });
    controller.handle(ControllerEvent::Collected(node("a"), result("a")), at(8400));
    // It answers at last. What it has takes longer than what is waited for nodes that say nothing.
    say(&mut controller, "b", NodeReply::Spooled { segments: 900 }, 9000);
    controller.handle(ControllerEvent::Tick, at(40_000));
    assert_eq!(controller.outcome(), None, "its result is on the way");
    controller.handle(ControllerEvent::Collected(node("b"), result("b")), at(41_000));
    let reasons = vec!["node b: silent for 3s".to_owned()];
    assert_eq!(controller.outcome(), Some(&RunOutcome::Partial { reasons, stopped: false }));
    assert_eq!(controller.into_results().len(), 2);
}

#[test]
fn what_all_nodes_have_in_common_is_named_and_not_each_of_them() {
    let silent = |names: &[&str], talking: Option<&str>| {
        let mut controller = fleet(names, RunPolicies::default());
        let head = controller.head().clone();
        let mut said = Vec::new();
        for ms in (200..6000).step_by(100) {
            let renewal = |name| ControllerEvent::Renewal(node(name), head.clone(), Nonce(9));
            let event = talking.map_or(ControllerEvent::Tick, renewal);
            let actions = controller.handle(event, at(ms));
            said.extend(actions.into_iter().filter_map(|action| match action {
                ControllerAction::Emit(RunEventKind::Finding(text)) => Some(text),
                _ => None,
            }));
        }
        said
    };
    assert_eq!(silent(&["a", "b"], Some("a")), ["node b: silent for 3s"]);
    let all = silent(&["a", "b"], None);
    assert!(all.len() == 2 && all.iter().all(|text| text.contains("nor was any other")), "{all:?}");
    assert_eq!(silent(&["a"], None), ["node a: silent for 3s"]);
}

#[test]
fn a_controller_that_stood_still_blames_itself() {
    let mut controller = fleet(&["a", "b"], RunPolicies::default());
    let actions = controller.handle(ControllerEvent::StoodStill(Nanos::from_secs(5)), at(5300));
    let own = "the controller itself stood still for 5s".to_owned();
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
    controller.handle(ControllerEvent::Tick, at(9000));
    for name in ["a", "b"] {
        let result = Arc::new(NodeResult { node: name.into(), ..NodeResult::default() });
        controller.handle(ControllerEvent::Collected(node(name), result), at(9001));
    }
    let Some(RunOutcome::Partial { reasons, .. }) = controller.outcome() else {
        panic!("{:?}", controller.outcome())
    };
    assert_eq!(reasons[0], own);
}

/// Whoever takes it over after this one still knows who let go of it, and who was never in it.
#[test]
fn an_inherited_run_keeps_its_members_and_those_that_have_let_go() {
    let head = MessageHead { run: RunId("r".into()), attempt: 2, epoch: 4, plan: PlanHash::of("p") };
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
        ControllerMachine::collecting(inherited.clone(), 5, fleet_limits()).without_saying_to(elsewhere);
    let mut said = controller.handle(ControllerEvent::Begin, at(0));
    for _ in 0..100 {
        let Some(due) = controller.next_deadline() else { break };
        said.extend(controller.handle(ControllerEvent::Tick, due));
    }
    let written = records(&said);
    assert!(!written.is_empty());
    for record in written {
        assert_eq!((record.members(), record.unreleased()), (inherited.members(), [node("a")].into()));
    }
    let Some(RunOutcome::Partial { reasons, .. }) = controller.outcome() else { panic!("{said:?}") };
    assert!(reasons.contains(&"node c was left out".to_owned()), "{reasons:?}");
    assert!(!reasons.contains(&"node c: another run has it now".to_owned()), "{reasons:?}");
}

/// Of four nodes a later run has two, and ended its part there. The other two are led now.
#[test]
fn a_run_that_was_left_behind_is_ended_without_a_word_to_nodes_that_others_lead() {
    let head = MessageHead { run: RunId("r".into()), attempt: 1, epoch: 4, plan: PlanHash::of("p") };
    let nodes: Vec<NodeName> = ["a", "b", "c", "d"].map(node).into();
    let record = RunRecord {
        head,
        state: RunState::Running,
        nodes: nodes.clone(),
        left_out: vec![],
        start: None,
        released: [node("a"), node("b")].into(),
    };
    assert_eq!(record.unreleased(), [node("c"), node("d")].into());
    let elsewhere = record.released.clone();
    let mut controller =
        ControllerMachine::collecting(record, 5, fleet_limits()).without_saying_to(elsewhere);
    let mut said = controller.handle(ControllerEvent::Begin, at(0));
    for name in ["c", "d"] {
        let head = controller.head().clone();
        let done = NodeReply::SendersDone { sent: vec![], why: StopReason::Told };
        said.extend(controller.handle(ControllerEvent::Reply(node(name), head, done), at(2)));
    }
    said.extend(controller.handle(ControllerEvent::Tick, at(300)));
    // What `a` counted was on its way; of `b` nothing comes.
    for name in ["a", "c", "d"] {
        said.extend(controller.handle(ControllerEvent::Collected(node(name), Arc::default()), at(301)));
    }
    assert_eq!(controller.outcome(), None, "late results have a while to come");
    said.extend(controller.handle(ControllerEvent::Tick, at(60_000)));
    let Some(RunOutcome::Partial { reasons, .. }) = controller.outcome() else { panic!("{said:?}") };
    assert_eq!(*reasons, ["the controller of this run was lost", "node b: another run has it now"]);
    let told: BTreeSet<&str> = commands(&said).into_iter().map(|(node, _)| node).collect();
    assert_eq!(told, ["c", "d"].into());
}
