use super::*;
use crate::message::{PlanHash, RunId};
use packetrig_units::Nanos;
use std::sync::Arc;

mod steering;

fn at(ms: u64) -> MonoTime {
    MonoTime::from_nanos(ms * 1_000_000)
}

fn node(name: &str) -> NodeName {
    NodeName(name.into())
}

fn controller(names: &[&str]) -> Controller {
    let head = Head { run: RunId("r".into()), attempt: 1, epoch: 1, plan: PlanHash::of("p") };
    let preparation = Preparation { document: "p".into(), tag_key: 1, seed: 2, ..Preparation::default() };
    let names: Vec<NodeName> = names.iter().map(|name| node(name)).collect();
    let mut controller = Controller::new(head, preparation, &names, Limits::local(Nanos::from_millis(200)));
    controller.handle(Event::Begin, at(0));
    controller
}

fn say(controller: &mut Controller, name: &str, reply: Reply, ms: u64) -> Vec<Action> {
    let head = controller.head().clone();
    controller.handle(Event::Reply(node(name), head, reply), at(ms))
}

fn commands<'a>(actions: &'a [Action]) -> Vec<(&'a str, &'a Command)> {
    let sent = |action: &'a Action| match action {
        Action::Send(to, _, what) => Some((to.0.as_str(), what)),
        _ => None,
    };
    actions.iter().filter_map(sent).collect()
}

/// Runs `names` up to T at 152 ms (plus the lead's 150).
fn running(names: &[&str]) -> Controller {
    let mut controller = controller(names);
    for reply in [Reply::Prepared { ports: vec![] }, Reply::Armed, Reply::Committed, Reply::Confirmed] {
        for name in names {
            say(&mut controller, name, reply.clone(), 2);
        }
    }
    controller.handle(Event::Tick, at(152));
    for name in names {
        say(&mut controller, name, Reply::Started, 153);
    }
    controller
}

#[test]
fn a_start_is_given_out_only_when_all_are_armed() {
    let mut controller = controller(&["a", "b"]);
    say(&mut controller, "a", Reply::Prepared { ports: vec![] }, 1);
    let arm = say(&mut controller, "b", Reply::Prepared { ports: vec![] }, 2);
    assert_eq!(commands(&arm), [("a", &Command::Arm), ("b", &Command::Arm)]);
    assert_eq!(commands(&say(&mut controller, "a", Reply::Armed, 3)), []);
    assert_eq!(commands(&say(&mut controller, "a", Reply::Armed, 4)), [], "once more is not another node");
    let commit = say(&mut controller, "b", Reply::Armed, 5);
    assert!(matches!(commands(&commit)[..], [("a", Command::Commit { .. }), ("b", Command::Commit { .. })]));
    assert_eq!(commands(&say(&mut controller, "a", Reply::Committed, 6)), []);
    let confirm = say(&mut controller, "b", Reply::Committed, 7);
    assert!(matches!(
        commands(&confirm)[..],
        [("a", Command::Confirm { .. }), ("b", Command::Confirm { .. })]
    ));
}

#[test]
fn receivers_are_told_to_finish_when_every_sender_is_done_and_the_path_has_drained() {
    let mut controller = running(&["a", "b"]);
    let done =
        |stream| Reply::SendersDone { sent: vec![SentTotal { stream, frames: 5 }], why: StopReason::Done };
    say(&mut controller, "a", done(0), 200);
    assert_eq!(commands(&controller.handle(Event::Tick, at(900))), [], "b still sends");
    say(&mut controller, "b", done(1), 1000);
    assert_eq!(
        commands(&controller.handle(Event::Tick, at(1199)))
            .iter()
            .filter(|(_, c)| matches!(c, Command::Finish { .. }))
            .count(),
        0
    );
    let finish = controller.handle(Event::Tick, at(1200));
    let sent = vec![SentTotal { stream: 0, frames: 5 }, SentTotal { stream: 1, frames: 5 }];
    let wanted = Command::Finish { sent };
    assert_eq!(commands(&finish), [("a", &wanted), ("b", &wanted)]);
}

#[test]
fn what_belongs_to_another_attempt_or_node_is_ignored() {
    let mut controller = controller(&["a"]);
    let mut old = controller.head().clone();
    old.attempt = 0;
    controller.handle(Event::Reply(node("a"), old, Reply::Prepared { ports: vec![] }), at(1));
    assert_eq!(commands(&say(&mut controller, "stranger", Reply::Prepared { ports: vec![] }, 2)), []);
    assert!(!commands(&say(&mut controller, "a", Reply::Prepared { ports: vec![] }, 3)).is_empty());
}

#[test]
fn older_samples_are_not_shown() {
    let mut controller = running(&["a"]);
    let head = controller.head().clone();
    let mut shown = |ms| {
        let sample = Box::new(Sample { at: at(ms), ..Sample::default() });
        let actions = controller.handle(Event::Telemetry(node("a"), head.clone(), sample), at(300));
        actions.iter().any(|action| matches!(action, Action::Emit(RunEventKind::Counters { .. })))
    };
    assert!(shown(200));
    assert!(!shown(200));
    assert!(!shown(190));
    assert!(shown(210));
}

#[test]
fn unanswered_commands_are_repeated_to_those_who_did_not_answer() {
    let mut controller = controller(&["a", "b"]);
    say(&mut controller, "a", Reply::Prepared { ports: vec![] }, 1);
    assert_eq!(commands(&controller.handle(Event::Tick, at(999))), []);
    let repeated = controller.handle(Event::Tick, at(1000));
    assert!(matches!(commands(&repeated)[..], [("b", Command::Prepare(_))]));
}

#[test]
fn a_result_is_taken_once_and_each_copy_is_acknowledged() {
    let mut controller = running(&["a"]);
    say(&mut controller, "a", Reply::SendersDone { sent: vec![], why: StopReason::Done }, 200);
    controller.handle(Event::Tick, at(400));
    let result = || Reply::Result(Arc::new(NodeResult { node: "a".into(), ..NodeResult::default() }));
    let first = say(&mut controller, "a", result(), 410);
    assert_eq!(commands(&first), [("a", &Command::Collected)]);
    assert_eq!(controller.outcome(), Some(&Outcome::Complete { stopped: false }));
    assert_eq!(commands(&say(&mut controller, "a", result(), 420)), [("a", &Command::Collected)]);
    assert_eq!(controller.into_results().len(), 1);
}

#[test]
fn nodes_that_never_get_ready_fail_the_run_by_name() {
    let mut controller = controller(&["a", "b"]);
    say(&mut controller, "a", Reply::Prepared { ports: vec![] }, 1);
    let abort = controller.handle(Event::Tick, at(30_000));
    assert!(commands(&abort).contains(&("a", &Command::Abort)));
    say(&mut controller, "a", Reply::Aborted, 30_001);
    controller.handle(Event::Tick, at(45_000));
    let Some(Outcome::Failed { fault }) = controller.outcome() else { panic!("{:?}", controller.outcome()) };
    assert_eq!(fault.text, "node b: did not get ready within 30s");
}
