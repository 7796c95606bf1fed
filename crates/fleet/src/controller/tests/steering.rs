//! Changes to a steered run: one after another, step by step where several nodes take part.

use super::*;
use crate::message::ChangeStep;
use packetrig_plan::StreamResumePoint;
use packetrig_report::outcome::NodeFault;
use packetrig_units::Blame;

/// A steered run of `names` under way.
fn steered(names: &[&str]) -> ControllerMachine {
    let mut controller = committed(names);
    for reply in [NodeReply::Confirmed, NodeReply::Started] {
        for name in names {
            say(&mut controller, name, reply.clone(), 1);
        }
    }
    controller
}

/// A steered run whose nodes have accepted the start.
fn committed(names: &[&str]) -> ControllerMachine {
    let head =
        MessageHead { run: RunId("r".into()), attempt: 1, epoch: 1, plan: PlanHash::from_document("p") };
    let preparation = RunPreparation {
        document: "p".into(),
        terms: SharedRunOptions { steered: true, ..SharedRunOptions::default() },
        ..RunPreparation::default()
    };
    let names: Vec<NodeName> = names.iter().map(|name| node(name)).collect();
    let limits = several_nodes();
    let mut controller = ControllerMachine::new(head, preparation, &names, limits);
    controller.handle_event(ControllerEvent::Begin, at(0));
    for reply in [NodeReply::Prepared { ports: vec![] }, NodeReply::Armed, NodeReply::Committed] {
        for name in &names {
            say(&mut controller, &name.0, reply.clone(), 1);
        }
    }
    controller
}

/// A steered run whose nodes go on when another is lost.
fn steady(names: &[&str]) -> ControllerMachine {
    steered(names).with_policies(RunPolicies { on_loss: LostNodePolicy::Continue, ..RunPolicies::default() })
}

fn outcomes(actions: &[ControllerAction]) -> Vec<(u64, bool)> {
    let told = actions.iter().filter_map(|action| match action {
        ControllerAction::Emit(RunEventKind::Steered { number, outcome }) => Some((*number, outcome.is_ok())),
        _ => None,
    });
    told.collect()
}

fn start() -> ControllerEvent {
    ControllerEvent::Steer(PlanChange::Start(vec![0, 1]))
}

fn done(number: u64) -> NodeReply {
    NodeReply::Steered { number, fault: None, sample: Box::default() }
}

fn fault(text: &str) -> NodeFault {
    NodeFault { blame: Blame::World, text: text.into() }
}

fn held(number: u64, stream: usize) -> NodeReply {
    let held = vec![StreamResumePoint { stream, number: 40, index: 2, mac: None }];
    NodeReply::Held { number, fault: None, held }
}

fn announced(number: u64) -> NodeReply {
    NodeReply::Announced { number, fault: None }
}

/// Steps in the commands to the nodes.
fn steps<'a>(actions: &'a [ControllerAction]) -> Vec<(&'a str, u64, &'a ChangeStep)> {
    let step = |(to, command): (&'a str, &'a NodeCommand)| match command {
        NodeCommand::Step { number, step } => Some((to, *number, step.as_ref())),
        _ => None,
    };
    commands(actions).into_iter().filter_map(step).collect()
}

#[test]
fn a_steered_run_waits_for_no_instant() {
    let controller = steered(&["a", "b"]);
    assert!(matches!(controller.phase, ControllerPhase::Running { start } if start == at(1)));
}

#[test]
fn steered_run_requires_confirmation_from_all_nodes() {
    let is_running = |actions: &[ControllerAction]| {
        actions.contains(&ControllerAction::Emit(RunEventKind::StateChanged(RunState::Running)))
    };
    let mut late = committed(&["a", "b"]);
    assert!(!is_running(&say(&mut late, "a", NodeReply::Confirmed, 2)));
    let again = late.handle_event(ControllerEvent::Tick, at(2_000));
    assert_eq!(commands(&again), [("b", &NodeCommand::Confirm { start: at(1) })]);
    assert!(is_running(&say(&mut late, "b", NodeReply::Confirmed, 4_900)));

    let mut silent = committed(&["a", "b"]);
    say(&mut silent, "a", NodeReply::Confirmed, 2);
    let given_up = silent.handle_event(ControllerEvent::Tick, at(10_001));
    assert_eq!(commands(&given_up), [("a", &NodeCommand::Abort), ("b", &NodeCommand::Abort)]);
    for name in ["a", "b"] {
        say(&mut silent, name, NodeReply::Aborted, 10_002);
    }
    let Some(RunOutcome::Failed { fault }) = silent.outcome() else { panic!("{:?}", silent.outcome()) };
    assert!(fault.is_late_start(), "{fault}");
}

#[test]
fn changes_are_applied_one_at_a_time() {
    let mut controller = steered(&["a", "b"]);
    let first = controller.handle_event(ControllerEvent::Steer(PlanChange::Pause(vec![0])), at(10));
    assert!(matches!(commands(&first)[..], [("a", NodeCommand::Steer(_)), ("b", NodeCommand::Steer(_))]));
    let second = controller.handle_event(ControllerEvent::Steer(PlanChange::Stop(vec![0])), at(11));
    assert_eq!(commands(&second), []);
    assert_eq!(outcomes(&say(&mut controller, "a", done(1), 12)), []);
    assert_eq!(outcomes(&say(&mut controller, "a", done(1), 12)), [], "once more is not another node");
    let last = say(&mut controller, "b", done(1), 13);
    assert_eq!(outcomes(&last), [(1, true)]);
    assert!(
        matches!(commands(&last)[..], [("a", NodeCommand::Steer(order)), _] if order.steer == PlanChange::Stop(vec![0]))
    );
    // A command without an answer is repeated.
    say(&mut controller, "a", done(2), 14);
    let again = controller.handle_event(ControllerEvent::Tick, at(2_000));
    assert!(commands(&again).iter().any(|(to, what)| *to == "b" && matches!(what, NodeCommand::Steer(_))));
    let no = NodeReply::Steered { number: 2, fault: Some(fault("no")), sample: Box::default() };
    assert_eq!(outcomes(&say(&mut controller, "b", no, 2_001)), [(2, false)]);
    assert!(matches!(controller.phase, ControllerPhase::Running { .. }), "a change that failed ends nothing");
}

#[test]
fn one_node_makes_a_change_at_once() {
    let mut controller = steered(&["a"]);
    assert!(matches!(
        commands(&controller.handle_event(start(), at(10)))[..],
        [("a", NodeCommand::Steer(_))]
    ));
    assert_eq!(outcomes(&say(&mut controller, "a", done(1), 11)), [(1, true)]);
}

#[test]
fn change_steps_wait_for_every_node() {
    let mut controller = steered(&["a", "b"]);
    let hold = controller.handle_event(start(), at(10));
    assert!(matches!(steps(&hold)[..], [("a", 1, ChangeStep::Hold(_)), ("b", 1, ChangeStep::Hold(_))]));
    assert_eq!(steps(&say(&mut controller, "a", held(1, 0), 11)), []);
    assert_eq!(steps(&say(&mut controller, "a", held(1, 0), 11)), [], "once more is not another node");
    let told = say(&mut controller, "b", held(1, 1), 12);
    let [(_, _, ChangeStep::Announce { held: all, at: Some(instant) }), (_, _, other)] = steps(&told)[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!(all.iter().map(|held| held.stream).collect::<Vec<_>>(), [0, 1], "each node's once");
    assert!(matches!(other, ChangeStep::Announce { at, .. } if *at == Some(*instant)), "at one instant");
    // Echoes of an earlier step are not answers to this one.
    say(&mut controller, "b", held(1, 1), 13);
    say(&mut controller, "b", done(1), 13);
    assert_eq!(steps(&say(&mut controller, "a", announced(1), 14)), []);
    let begin = say(&mut controller, "b", announced(1), 15);
    let wanted = ChangeStep::Begin { at: Some(*instant) };
    assert_eq!(steps(&begin), [("a", 1, &wanted), ("b", 1, &wanted)]);
    assert_eq!(outcomes(&say(&mut controller, "a", done(1), 16)), []);
    assert_eq!(outcomes(&say(&mut controller, "b", done(1), 17)), [(1, true)]);
}

#[test]
fn slow_change_delays_start_and_repeats_steps() {
    let mut controller = steered(&["a", "b"]);
    controller.handle_event(start(), at(10));
    say(&mut controller, "a", held(1, 0), 11);
    let again = controller.handle_event(ControllerEvent::Tick, at(1_500));
    assert!(matches!(steps(&again)[..], [("b", 1, ChangeStep::Hold(_))]));
    say(&mut controller, "b", held(1, 1), 1_501);
    say(&mut controller, "a", announced(1), 1_502);
    assert!(matches!(
        steps(&controller.handle_event(ControllerEvent::Tick, at(3_000)))[..],
        [("b", 1, ChangeStep::Announce { .. })]
    ));
    let begin = say(&mut controller, "b", announced(1), 3_001);
    let instants: Vec<_> = steps(&begin)
        .iter()
        .map(|(_, _, step)| if let ChangeStep::Begin { at } = step { *at } else { None })
        .collect();
    assert_eq!(instants.len(), 2);
    assert!(instants[0] == instants[1] && instants[0] > Some(at(3_001)), "{instants:?}");
    // A change of rates has no instant.
    say(&mut controller, "a", done(1), 3_002);
    say(&mut controller, "b", done(1), 3_002);
    controller.handle_event(ControllerEvent::Steer(PlanChange::Replan("p".into())), at(3_003));
    say(&mut controller, "a", held(2, 0), 3_004);
    let told = say(&mut controller, "b", held(2, 1), 3_004);
    assert!(matches!(steps(&told)[..], [(_, 2, ChangeStep::Announce { at: None, .. }), _]));
}

#[test]
fn failed_hold_is_undone_on_all_nodes() {
    let mut controller = steered(&["a", "b"]);
    controller.handle_event(start(), at(10));
    let no = NodeReply::Held { number: 1, fault: Some(fault("nobody answers")), held: vec![] };
    assert_eq!(steps(&say(&mut controller, "b", no, 11)), [], "who holds is told when all have said so");
    let undo = say(&mut controller, "a", held(1, 0), 12);
    assert_eq!(steps(&undo), [("a", 1, &ChangeStep::Undo), ("b", 1, &ChangeStep::Undo)]);
    say(&mut controller, "a", done(1), 13);
    let over = say(&mut controller, "b", done(1), 14);
    let told = over.iter().find_map(|action| match action {
        ControllerAction::Emit(RunEventKind::Steered { outcome: Err(fault), .. }) => {
            Some(fault.text.as_str())
        }
        _ => None,
    });
    assert_eq!(told, Some("nobody answers"));
    assert_eq!(steps(&controller.handle_event(start(), at(20))).len(), 2, "and the next one is made");
}

#[test]
fn node_loss_undoes_change_only_during_hold() {
    let mut controller = steady(&["a", "b", "c"]);
    controller.handle_event(start(), at(10));
    say(&mut controller, "a", held(1, 0), 11);
    say(&mut controller, "c", held(1, 1), 11);
    let lost = say(&mut controller, "b", NodeReply::Failed(fault("cable")), 12);
    assert_eq!(steps(&lost), [("a", 1, &ChangeStep::Undo), ("c", 1, &ChangeStep::Undo)]);

    let mut controller = steady(&["a", "b", "c"]);
    controller.handle_event(start(), at(10));
    for (name, stream) in [("a", 0), ("b", 1), ("c", 2)] {
        say(&mut controller, name, held(1, stream), 11);
    }
    say(&mut controller, "a", announced(1), 12);
    say(&mut controller, "c", announced(1), 12);
    let begin = say(&mut controller, "b", NodeReply::Failed(fault("cable")), 13);
    assert!(matches!(
        steps(&begin)[..],
        [("a", 1, ChangeStep::Begin { .. }), ("c", 1, ChangeStep::Begin { .. })]
    ));
    say(&mut controller, "a", done(1), 14);
    assert_eq!(outcomes(&say(&mut controller, "c", done(1), 15)), [(1, true)]);
}

#[test]
fn change_fails_when_node_is_lost() {
    let mut controller = steered(&["a", "b"]);
    controller.handle_event(ControllerEvent::Steer(PlanChange::Stop(vec![0])), at(10));
    say(&mut controller, "a", done(1), 11);
    assert_eq!(outcomes(&say(&mut controller, "b", NodeReply::Failed(fault("cable")), 12)), [(1, false)]);
}

#[test]
fn change_ends_when_no_node_is_left() {
    let mut controller = steady(&["a", "b"]);
    controller.handle_event(start(), at(10));
    say(&mut controller, "a", NodeReply::Failed(fault("cable")), 11);
    assert_eq!(outcomes(&say(&mut controller, "b", NodeReply::Failed(fault("cable")), 12)), [(1, false)]);
}

#[test]
fn stop_cancels_undecided_change() {
    let mut controller = steered(&["a", "b"]);
    controller.handle_event(start(), at(10));
    let stop = controller.handle_event(ControllerEvent::Stop, at(11));
    assert_eq!(outcomes(&stop), [(1, false)]);
    let stops = |actions: &[ControllerAction]| {
        commands(actions).iter().filter(|(_, it)| **it == NodeCommand::Stop).count()
    };
    assert_eq!(stops(&stop), 2);

    let mut controller = steered(&["a", "b"]);
    controller.handle_event(start(), at(10));
    say(&mut controller, "a", held(1, 0), 11);
    say(&mut controller, "b", held(1, 1), 11);
    let stop = controller.handle_event(ControllerEvent::Stop, at(12));
    assert_eq!((stops(&stop), outcomes(&stop)), (2, vec![]));
    say(&mut controller, "a", announced(1), 13);
    say(&mut controller, "b", NodeReply::Announced { number: 1, fault: Some(fault("stopped")) }, 13);
    say(&mut controller, "a", done(1), 14);
    assert_eq!(outcomes(&say(&mut controller, "b", done(1), 14)), [(1, false)]);
}

#[test]
fn unsteerable_run_refuses_changes() {
    let mut plain = running(&["a"]);
    assert_eq!(
        outcomes(&plain.handle_event(ControllerEvent::Steer(PlanChange::Start(vec![0])), at(200))),
        [(1, false)]
    );
    let mut controller = steered(&["a"]);
    controller.handle_event(ControllerEvent::Stop, at(10));
    assert_eq!(
        outcomes(&controller.handle_event(ControllerEvent::Steer(PlanChange::Start(vec![0])), at(11))),
        [(1, false)]
    );
    say(&mut controller, "a", NodeReply::SendersDone { sent: vec![], why: StopReason::Done }, 20);
    controller.handle_event(ControllerEvent::Tick, at(300));
    say(&mut controller, "a", NodeReply::Result(Arc::default()), 301);
    assert_eq!(controller.outcome(), Some(&RunOutcome::Complete { stopped: false }));
}
