use super::*;
use crate::agent::CONFIRM_MARGIN;
use crate::message::{PlanHash, RunId, SentTotal, StopReason};
use packetrig_stats::terms::SharedRunOptions;
use packetrig_units::Nanos;
use std::sync::Arc;

mod inherit;
mod lead;
mod leases;
mod results;
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

/// Limits for several nodes without leases.
fn several_nodes() -> RunLimits {
    RunLimits {
        lead: Nanos::from_millis(150),
        guard: Nanos::from_millis(50),
        margin: CONFIRM_MARGIN,
        arming_rounds: 3,
        attempts: 5,
        ..RunLimits::for_local(Nanos::from_millis(200))
    }
}

fn controller_with(names: &[&str], limits: RunLimits) -> ControllerMachine {
    let head =
        MessageHead { run: RunId("r".into()), attempt: 1, epoch: 1, plan: PlanHash::from_document("p") };
    let preparation = RunPreparation {
        document: "p".into(),
        terms: SharedRunOptions { tag_key: 1, seed: 2, ..SharedRunOptions::default() },
        ..RunPreparation::default()
    };
    let names: Vec<NodeName> = names.iter().map(|name| node(name)).collect();
    let mut controller = ControllerMachine::new(head, preparation, &names, limits);
    controller.handle_event(ControllerEvent::Begin, at(0));
    controller
}

fn say(controller: &mut ControllerMachine, name: &str, reply: NodeReply, ms: u64) -> Vec<ControllerAction> {
    let head = controller.head().clone();
    controller.handle_event(ControllerEvent::Reply(node(name), head, reply), at(ms))
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
    controller.handle_event(ControllerEvent::Tick, at(152));
    for name in names {
        say(&mut controller, name, NodeReply::Started, 153);
    }
    controller
}

#[test]
fn start_is_committed_only_when_all_are_armed() {
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
fn receivers_finish_after_senders_and_drain() {
    let mut controller = running(&["a", "b"]);
    let done = |stream| NodeReply::SendersDone {
        sent: vec![SentTotal { stream, frames: 5 }],
        why: StopReason::Done,
    };
    say(&mut controller, "a", done(0), 200);
    assert_eq!(commands(&controller.handle_event(ControllerEvent::Tick, at(900))), [], "b still sends");
    say(&mut controller, "b", done(1), 1000);
    assert_eq!(
        commands(&controller.handle_event(ControllerEvent::Tick, at(1199)))
            .iter()
            .filter(|(_, c)| matches!(c, NodeCommand::Finish { .. }))
            .count(),
        0
    );
    let finish = controller.handle_event(ControllerEvent::Tick, at(1200));
    let sent = vec![SentTotal { stream: 0, frames: 5 }, SentTotal { stream: 1, frames: 5 }];
    let wanted = NodeCommand::Finish { sent: sent.into() };
    assert_eq!(commands(&finish), [("a", &wanted), ("b", &wanted)]);
}

#[test]
fn replies_from_other_attempts_or_nodes_are_ignored() {
    let mut controller = controller(&["a"]);
    let mut old = controller.head().clone();
    old.attempt = 0;
    controller
        .handle_event(ControllerEvent::Reply(node("a"), old, NodeReply::Prepared { ports: vec![] }), at(1));
    assert_eq!(commands(&say(&mut controller, "stranger", NodeReply::Prepared { ports: vec![] }, 2)), []);
    assert!(!commands(&say(&mut controller, "a", NodeReply::Prepared { ports: vec![] }, 3)).is_empty());
}

#[test]
fn older_samples_are_not_shown() {
    let mut controller = running(&["a"]);
    let head = controller.head().clone();
    let mut shown = |ms| {
        let sample = Box::new(CountSample { at: at(ms), ..CountSample::default() });
        let actions =
            controller.handle_event(ControllerEvent::Telemetry(node("a"), head.clone(), sample), at(300));
        actions.iter().any(|action| matches!(action, ControllerAction::Emit(RunEventKind::Counters { .. })))
    };
    assert!(shown(200));
    assert!(!shown(200));
    assert!(!shown(190));
    assert!(shown(210));
}

#[test]
fn unanswered_command_is_repeated_to_silent_nodes() {
    let mut controller = controller(&["a", "b"]);
    say(&mut controller, "a", NodeReply::Prepared { ports: vec![] }, 1);
    assert_eq!(commands(&controller.handle_event(ControllerEvent::Tick, at(999))), []);
    let repeated = controller.handle_event(ControllerEvent::Tick, at(1000));
    assert!(matches!(commands(&repeated)[..], [("b", NodeCommand::Prepare(_))]));
}

#[test]
fn result_is_stored_once_and_always_acknowledged() {
    let mut controller = running(&["a"]);
    say(&mut controller, "a", NodeReply::SendersDone { sent: vec![], why: StopReason::Done }, 200);
    controller.handle_event(ControllerEvent::Tick, at(400));
    let result = || NodeReply::Result(Arc::new(NodeResult { node: "a".into(), ..NodeResult::default() }));
    let first = say(&mut controller, "a", result(), 410);
    assert_eq!(commands(&first), [("a", &NodeCommand::Collected)]);
    assert_eq!(controller.outcome(), Some(&RunOutcome::Complete { stopped: false }));
    assert_eq!(commands(&say(&mut controller, "a", result(), 420)), [("a", &NodeCommand::Collected)]);
    assert_eq!(controller.into_results().len(), 1);
}

#[test]
fn unready_nodes_fail_run_by_name() {
    let mut controller = controller(&["a", "b"]);
    say(&mut controller, "a", NodeReply::Prepared { ports: vec![] }, 1);
    let abort = controller.handle_event(ControllerEvent::Tick, at(30_000));
    assert!(commands(&abort).contains(&("a", &NodeCommand::Abort)));
    say(&mut controller, "a", NodeReply::Aborted, 30_001);
    controller.handle_event(ControllerEvent::Tick, at(45_000));
    let Some(RunOutcome::Failed { fault }) = controller.outcome() else {
        panic!("{:?}", controller.outcome())
    };
    assert_eq!(fault.text, "node b: did not get ready within 30s");
}

fn fleet_limits() -> RunLimits {
    RunLimits::for_fleet(Nanos::from_millis(2), Nanos::from_millis(200))
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
    controller.handle_event(ControllerEvent::Tick, at(82));
    for name in names {
        say(&mut controller, name, NodeReply::Started, 83);
    }
    controller
}

fn may_node_continue(
    controller: &mut ControllerMachine,
    name: &str,
    head: &MessageHead,
    ms: u64,
) -> Option<bool> {
    let actions =
        controller.handle_event(ControllerEvent::Renewal(node(name), head.clone(), Nonce(9)), at(ms));
    actions
        .iter()
        .find_map(|action| if let ControllerAction::Grant(_, _, it) = action { Some(it.go_on) } else { None })
}
