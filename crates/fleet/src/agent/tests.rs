use super::*;
use crate::message::PlanHash;
use crate::outcome::Blame;

mod changes;

const DOCUMENT: &str = "plan";

fn head(run: &str, attempt: u32, epoch: u64) -> Head {
    Head { run: RunId(run.into()), attempt, epoch, plan: PlanHash::of(DOCUMENT) }
}

fn at(ms: u64) -> MonoTime {
    MonoTime::from_nanos(ms * 1_000_000)
}

fn preparation() -> Command {
    Command::Prepare(Box::new(Preparation {
        document: DOCUMENT.into(),
        tag_key: 1,
        seed: 2,
        ..Preparation::default()
    }))
}

fn tell(agent: &mut Agent, head: &Head, command: Command, ms: u64) -> Vec<Action> {
    agent.handle(Event::Command(head.clone(), command), at(ms))
}

fn replies(actions: &[Action]) -> Vec<&Reply> {
    actions
        .iter()
        .filter_map(|action| if let Action::Reply(_, reply) = action { Some(reply) } else { None })
        .collect()
}

/// An agent of attempt `head` that receives.
fn armed(head: &Head) -> Agent {
    let mut agent = Agent::new(Nanos::from_secs(10));
    assert!(matches!(tell(&mut agent, head, preparation(), 0)[..], [Action::Prepare(_)]));
    agent.handle(Event::Prepared(vec![]), at(1));
    assert_eq!(tell(&mut agent, head, Command::Arm, 2), [Action::Arm]);
    agent.handle(Event::Armed, at(3));
    agent
}

fn commit(start: u64) -> Command {
    Command::Commit { start: at(start), guard: Nanos::from_millis(50) }
}

#[test]
fn a_repeated_command_is_answered_again_and_does_nothing_twice() {
    let head = head("r", 1, 1);
    let mut agent = armed(&head);
    for command in [preparation(), Command::Arm, Command::Query] {
        let actions = tell(&mut agent, &head, command, 4);
        assert_eq!(actions, [Action::Reply(head.clone(), Reply::Armed)]);
    }
    tell(&mut agent, &head, commit(500), 5);
    let confirm = || Command::Confirm { start: at(500) };
    assert!(tell(&mut agent, &head, confirm(), 6).contains(&Action::StartAt(at(500))));
    assert_eq!(replies(&tell(&mut agent, &head, confirm(), 7)), [&Reply::Confirmed]);
    assert!(!tell(&mut agent, &head, confirm(), 8).contains(&Action::StartAt(at(500))));
}

#[test]
fn lower_epochs_and_attempts_are_refused() {
    let mut agent = armed(&head("r", 2, 7));
    for old in [head("r", 2, 6), head("r", 1, 7)] {
        for command in [preparation(), Command::Arm, commit(500), Command::Stop] {
            let actions = tell(&mut agent, &old, command, 4);
            assert!(matches!(replies(&actions)[..], [Reply::Refused(_)]), "{actions:?}");
        }
    }
    // An abort of an older attempt does not touch this one.
    let actions = tell(&mut agent, &head("r", 1, 7), Command::Abort, 4);
    assert!(!actions.contains(&Action::Release));
    assert!(!agent.is_idle());
    let actions = tell(&mut agent, &head("other", 1, 7), preparation(), 5);
    assert_eq!(replies(&actions), [&Reply::Refused("busy with run r".into())]);
}

#[test]
fn a_late_preparation_of_an_ended_attempt_opens_nothing() {
    let head_1 = head("r", 1, 1);
    let mut agent = armed(&head_1);
    tell(&mut agent, &head_1, Command::Abort, 4);
    assert!(agent.is_idle());
    assert!(matches!(replies(&tell(&mut agent, &head_1, preparation(), 5))[..], [Reply::Refused(_)]));
    // An abort that overtakes its preparation holds as well.
    tell(&mut agent, &head("s", 1, 1), Command::Abort, 6);
    assert!(matches!(
        replies(&tell(&mut agent, &head("s", 1, 1), preparation(), 7))[..],
        [Reply::Refused(_)]
    ));
    assert!(matches!(tell(&mut agent, &head("r", 2, 1), preparation(), 8)[..], [Action::Prepare(_)]));
}

#[test]
fn a_new_attempt_uses_the_open_ports() {
    let mut agent = armed(&head("r", 1, 1));
    tell(&mut agent, &head("r", 1, 1), commit(500), 5);
    let actions = tell(&mut agent, &head("r", 2, 1), preparation(), 6);
    assert_eq!(replies(&actions), [&Reply::Prepared { ports: vec![] }]);
    assert!(!actions.iter().any(|action| matches!(action, Action::Prepare(_) | Action::Release)));
    // The old start is void.
    assert!(agent.handle(Event::Tick, at(600)).is_empty());
    assert!(!agent.is_running());
}

#[test]
fn nothing_starts_without_a_confirmation_in_time() {
    let head = head("r", 1, 1);
    let mut late_commit = armed(&head);
    assert_eq!(replies(&tell(&mut late_commit, &head, commit(500), 450)), [&Reply::Late]);

    let mut late_confirm = armed(&head);
    tell(&mut late_confirm, &head, commit(500), 10);
    let actions = tell(&mut late_confirm, &head, Command::Confirm { start: at(500) }, 480);
    assert_eq!(replies(&actions), [&Reply::Late]);

    let mut none = armed(&head);
    tell(&mut none, &head, commit(500), 10);
    assert_eq!(replies(&none.handle(Event::Tick, at(500))), [&Reply::Late]);
    assert!(!none.is_running());

    let mut other_start = armed(&head);
    tell(&mut other_start, &head, commit(500), 10);
    let actions = tell(&mut other_start, &head, Command::Confirm { start: at(700) }, 20);
    assert_eq!(replies(&actions), [&Reply::Committed], "not that start");
}

#[test]
fn another_text_than_the_announced_one_is_refused() {
    let mut agent = Agent::new(Nanos::from_secs(10));
    let mut wrong = head("r", 1, 1);
    wrong.plan = PlanHash::of("another");
    let actions = tell(&mut agent, &wrong, preparation(), 0);
    assert!(matches!(replies(&actions)[..], [Reply::Refused(_)]));
    assert!(agent.is_idle());
}

#[test]
fn a_failure_closes_the_ports_and_is_told_as_often_as_asked() {
    let head = head("r", 1, 1);
    let mut agent = armed(&head);
    let fault = Fault { blame: Blame::World, text: "gone".into() };
    let actions = agent.handle(Event::Failed(fault.clone()), at(5));
    assert_eq!(actions[0], Action::Release);
    assert_eq!(replies(&tell(&mut agent, &head, Command::Query, 6)), [&Reply::Failed(fault)]);
}

#[test]
fn a_silent_controller_is_given_up() {
    let head = head("r", 1, 1);
    let mut agent = armed(&head);
    tell(&mut agent, &head, Command::Query, 1000);
    assert!(agent.handle(Event::Tick, at(10_999)).is_empty());
    assert_eq!(agent.handle(Event::Tick, at(11_000)), [Action::Release]);
    assert!(agent.is_idle());
}
