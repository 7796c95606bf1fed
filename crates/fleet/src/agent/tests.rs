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

/// A leased agent that receives and has its first lease, asked for at 3 ms.
fn leased(head: &Head, longest: Option<Nanos>) -> Agent {
    let terms = LeaseTerms::of(Nanos::from_secs(2));
    let mut agent = Agent::leased(terms, Past { epoch: 0, nonce: Nonce(70), longest });
    let actions = tell(&mut agent, head, preparation(), 0);
    assert!(matches!(actions[..], [Action::Remember(_), Action::Prepare(_)]), "{actions:?}");
    agent.handle(Event::Prepared(vec![]), at(1));
    tell(&mut agent, head, Command::Arm, 2);
    assert_eq!(agent.handle(Event::Armed, at(3)), [Action::Renew(head.clone(), Nonce(70))]);
    let armed = grant(&mut agent, head, 70, true, 4);
    assert_eq!(armed, [Action::Extend(at(2003)), Action::Reply(head.clone(), Reply::Armed)]);
    agent
}

fn grant(agent: &mut Agent, head: &Head, nonce: u64, go_on: bool, ms: u64) -> Vec<Action> {
    agent.handle(Event::Granted(head.clone(), Grant { nonce: Nonce(nonce), go_on }), at(ms))
}

/// The same, sending since 100 ms.
fn sending(head: &Head, longest: Option<Nanos>) -> Agent {
    let mut agent = leased(head, longest);
    tell(&mut agent, head, commit(100), 5);
    tell(&mut agent, head, Command::Confirm { start: at(100) }, 6);
    let actions = agent.handle(Event::Tick, at(100));
    assert_eq!(replies(&actions), [&Reply::Started]);
    agent
}

fn why(actions: &[Action]) -> Option<StopReason> {
    let of = |reply: &&Reply| if let Reply::SendersDone { why, .. } = reply { Some(*why) } else { None };
    replies(actions).iter().find_map(of)
}

fn done(agent: &mut Agent, shut: bool, ms: u64) -> Option<StopReason> {
    why(&agent.handle(Event::SendersDone { sent: vec![], shut }, at(ms)))
}

#[test]
fn senders_of_a_fleet_stop_when_their_lease_is_over_and_say_so() {
    let head = head("r", 1, 1);
    let mut agent = sending(&head, None);
    assert!(matches!(agent.handle(Event::Tick, at(503))[..], [Action::Renew(_, Nonce(71))]));
    assert_eq!(agent.next_deadline(), Some(at(1003)));
    let over = agent.handle(Event::Tick, at(2003));
    assert!(over.contains(&Action::StopSenders), "{over:?}");
    assert_eq!(grant(&mut agent, &head, 71, true, 2004), [Action::Extend(at(2503))]);
    assert_eq!(done(&mut agent, false, 2005), Some(StopReason::LeaseOver), "a late answer changes nothing");
    // The gate may be quicker than the machine.
    assert_eq!(done(&mut sending(&head, None), true, 300), Some(StopReason::LeaseOver));
    assert_eq!(done(&mut sending(&head, None), false, 300), Some(StopReason::Done));
}

#[test]
fn an_answer_that_says_stop_stops_senders_or_closes_the_ports() {
    let head = head("r", 1, 1);
    let mut running = sending(&head, None);
    running.handle(Event::Tick, at(503));
    assert_eq!(grant(&mut running, &head, 71, false, 504), [Action::StopSenders]);
    assert_eq!(done(&mut running, false, 505), Some(StopReason::Told));
    let mut waiting = leased(&head, None);
    waiting.handle(Event::Tick, at(503));
    assert_eq!(grant(&mut waiting, &head, 71, false, 504)[0], Action::Release);
    assert!(waiting.is_idle());
}

#[test]
fn without_a_lease_at_t_nothing_starts() {
    let head = head("r", 1, 1);
    let mut agent = leased(&head, None);
    tell(&mut agent, &head, commit(5000), 5);
    tell(&mut agent, &head, Command::Confirm { start: at(5000) }, 6);
    let actions = agent.handle(Event::Tick, at(5000));
    assert!(actions.contains(&Action::StopSenders));
    assert!(!replies(&actions).contains(&&Reply::Started));
    assert_eq!(done(&mut agent, true, 5001), Some(StopReason::NoLease));
}

#[test]
fn the_owner_s_longest_duration_ends_the_senders() {
    let mut agent = sending(&head("r", 1, 1), Some(Nanos::from_millis(400)));
    assert_eq!(agent.next_deadline(), Some(at(500)));
    assert!(agent.handle(Event::Tick, at(500)).contains(&Action::StopSenders));
    assert_eq!(done(&mut agent, false, 501), Some(StopReason::OwnersLimit));
}

#[test]
fn emulated_interfaces_keep_the_lease_until_the_run_is_over_or_the_owners_time_is() {
    let head = head("r", 1, 1);
    let mut agent = sending(&head, Some(Nanos::from_secs(10)));
    done(&mut agent, false, 200);
    assert!(matches!(agent.handle(Event::Tick, at(503))[..], [Action::Renew(_, Nonce(71))]));
    assert_eq!(grant(&mut agent, &head, 71, true, 504), [Action::Extend(at(2503))]);
    assert_eq!(agent.handle(Event::Tick, at(10_100)), [], "no longer than the owner lets anything be sent");
    let mut other = sending(&head, None);
    done(&mut other, false, 200);
    tell(&mut other, &head, Command::Finish { sent: Arc::default() }, 300);
    assert_eq!(other.handle(Event::Tick, at(900)), [], "what is finished needs no lease");
}

#[test]
fn a_result_goes_through_the_spool_and_does_not_keep_the_next_run_waiting() {
    let head = head("r", 1, 1);
    let mut agent = sending(&head, None);
    done(&mut agent, false, 200);
    assert!(matches!(
        tell(&mut agent, &head, Command::Finish { sent: Arc::default() }, 300)[..],
        [Action::Finish(_)]
    ));
    assert_eq!(agent.handle(Event::Finished(Arc::default()), at(301)), [Action::Spool(Arc::default())]);
    assert_eq!(tell(&mut agent, &head, Command::Finish { sent: Arc::default() }, 302), [], "not safe yet");
    let spooled = Reply::Spooled { segments: 3 };
    assert_eq!(replies(&agent.handle(Event::Spooled { segments: 3 }, at(303))), [&spooled]);
    assert_eq!(replies(&tell(&mut agent, &head, Command::Finish { sent: Arc::default() }, 304)), [&spooled]);
    let next = Head { run: RunId("s".into()), ..head };
    assert!(matches!(tell(&mut agent, &next, preparation(), 305)[..], [Action::Prepare(_)]));
}

#[test]
fn an_orphan_closes_its_accounts_by_itself_and_keeps_them() {
    let head = head("r", 1, 1);
    let mut agent = sending(&head, None);
    agent.handle(Event::Tick, at(2003));
    let sent = vec![SentTotal { stream: 0, frames: 9 }];
    agent.handle(Event::SendersDone { sent: sent.clone(), shut: true }, at(2004));
    let asked = agent.handle(Event::Tick, at(30_005));
    assert!(matches!(asked[..], [Action::Renew(..)]), "receivers and emulated interfaces go on: {asked:?}");
    assert_eq!(agent.handle(Event::Tick, at(30_006)), [Action::Finish(sent)]);
    assert!(matches!(agent.handle(Event::Finished(Arc::default()), at(30_007))[..], [Action::Spool(_)]));
    agent.handle(Event::Spooled { segments: 1 }, at(30_008));
    assert!(agent.is_idle());
}

#[test]
fn a_later_controller_may_end_what_an_earlier_one_began_and_nothing_else() {
    let old = head("r", 1, 1);
    let new = head("r", 1, 2);
    let mut agent = sending(&old, None);
    assert!(matches!(replies(&tell(&mut agent, &new, commit(900), 200))[..], [Reply::Refused(_)]));
    let stop = tell(&mut agent, &new, Command::Stop, 201);
    assert_eq!(stop, [Action::StopSenders], "the epoch was remembered with the first command");
    assert!(matches!(replies(&tell(&mut agent, &old, Command::Query, 202))[..], [Reply::Refused(_)]));
    let actions = agent.handle(Event::SendersDone { sent: vec![], shut: false }, at(203));
    assert!(matches!(&actions[..], [Action::Reply(head, _)] if *head == new));
    // What the earlier one answers now is worth nothing.
    let mut other = sending(&old, None);
    other.handle(Event::Tick, at(503));
    tell(&mut other, &new, Command::Query, 504);
    assert_eq!(grant(&mut other, &old, 71, true, 505), []);
    assert_eq!(grant(&mut other, &new, 71, true, 505), [], "nor is it an answer of the later one");
}

#[test]
fn an_epoch_from_before_the_start_of_the_agent_counts() {
    let terms = LeaseTerms::of(Nanos::from_secs(2));
    let mut agent = Agent::leased(terms, Past { epoch: 5, nonce: Nonce(0), longest: None });
    let actions = tell(&mut agent, &head("r", 1, 4), preparation(), 0);
    assert!(matches!(replies(&actions)[..], [Reply::Refused(_)]));
    assert_eq!(tell(&mut agent, &head("r", 1, 6), Command::Abort, 1)[0], Action::Remember(6));
}

#[test]
fn who_asks_late_for_a_result_that_is_kept_hears_so_and_not_that_the_attempt_is_over() {
    let head = head("r", 1, 1);
    let mut agent = sending(&head, None);
    agent.handle(Event::SendersDone { sent: vec![], shut: true }, at(3000));
    agent.handle(Event::Tick, at(60_000));
    agent.handle(Event::Finished(Arc::default()), at(60_001));
    agent.handle(Event::Spooled { segments: 3 }, at(60_002));
    assert!(agent.is_idle());
    for (epoch, command) in
        [(1, Command::Query), (1, Command::Finish { sent: Arc::default() }), (2, Command::Stop)]
    {
        let asked = Head { epoch, ..head.clone() };
        assert_eq!(replies(&tell(&mut agent, &asked, command, 61_000)), [&Reply::Spooled { segments: 3 }]);
    }
    // It takes part in nothing of that attempt any more, nor does an earlier controller get an answer.
    assert!(matches!(
        replies(&tell(&mut agent, &Head { epoch: 2, ..head.clone() }, Command::Arm, 61_001))[..],
        [Reply::Refused(_)]
    ));
    assert!(matches!(replies(&tell(&mut agent, &head, Command::Query, 61_002))[..], [Reply::Refused(_)]));
}
