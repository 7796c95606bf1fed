use super::*;
use crate::message::PlanHash;
use packetrig_stats::terms::SharedRunOptions;
use packetrig_units::Blame;

mod changes;

const DOCUMENT: &str = "plan";

fn head(run: &str, attempt: u32, epoch: u64) -> MessageHead {
    MessageHead { run: RunId(run.into()), attempt, epoch, plan: PlanHash::from_document(DOCUMENT) }
}

fn at(ms: u64) -> MonoTime {
    MonoTime::from_nanos(ms * 1_000_000)
}

fn preparation() -> NodeCommand {
    NodeCommand::Prepare(Box::new(RunPreparation {
        document: DOCUMENT.into(),
        terms: SharedRunOptions { tag_key: 1, seed: 2, ..SharedRunOptions::default() },
        ..RunPreparation::default()
    }))
}

fn tell(agent: &mut AgentMachine, head: &MessageHead, command: NodeCommand, ms: u64) -> Vec<AgentAction> {
    agent.handle_event(AgentEvent::Command(head.clone(), command), at(ms))
}

fn replies(actions: &[AgentAction]) -> Vec<&NodeReply> {
    actions
        .iter()
        .filter_map(|action| if let AgentAction::Reply(_, reply) = action { Some(reply) } else { None })
        .collect()
}

/// An agent of attempt `head` that receives.
fn armed(head: &MessageHead) -> AgentMachine {
    let mut agent = AgentMachine::new(Nanos::from_secs(10));
    assert!(matches!(tell(&mut agent, head, preparation(), 0)[..], [AgentAction::Prepare(_)]));
    agent.handle_event(AgentEvent::Prepared(vec![]), at(1));
    assert_eq!(tell(&mut agent, head, NodeCommand::Arm, 2), [AgentAction::Arm]);
    agent.handle_event(AgentEvent::Armed, at(3));
    agent
}

fn commit(start: u64) -> NodeCommand {
    NodeCommand::Commit { start: at(start), guard: Nanos::from_millis(50) }
}

#[test]
fn repeated_command_is_answered_without_repeating() {
    let head = head("r", 1, 1);
    let mut agent = armed(&head);
    for command in [preparation(), NodeCommand::Arm, NodeCommand::Query] {
        let actions = tell(&mut agent, &head, command, 4);
        assert_eq!(actions, [AgentAction::Reply(head.clone(), NodeReply::Armed)]);
    }
    tell(&mut agent, &head, commit(500), 5);
    let confirm = || NodeCommand::Confirm { start: at(500) };
    assert!(tell(&mut agent, &head, confirm(), 6).contains(&AgentAction::StartAt(at(500))));
    assert_eq!(replies(&tell(&mut agent, &head, confirm(), 7)), [&NodeReply::Confirmed]);
    assert!(!tell(&mut agent, &head, confirm(), 8).contains(&AgentAction::StartAt(at(500))));
}

#[test]
fn lower_epochs_and_attempts_are_refused() {
    let mut agent = armed(&head("r", 2, 7));
    for old in [head("r", 2, 6), head("r", 1, 7)] {
        for command in [preparation(), NodeCommand::Arm, commit(500), NodeCommand::Stop] {
            let actions = tell(&mut agent, &old, command, 4);
            assert!(matches!(replies(&actions)[..], [NodeReply::Refused(_)]), "{actions:?}");
        }
    }
    // An abort of an older attempt does not touch this one.
    let actions = tell(&mut agent, &head("r", 1, 7), NodeCommand::Abort, 4);
    assert!(!actions.contains(&AgentAction::Release));
    assert!(!agent.is_idle());
    let actions = tell(&mut agent, &head("other", 1, 7), preparation(), 5);
    assert_eq!(replies(&actions), [&NodeReply::Refused("this node is busy with run r".into())]);
}

#[test]
fn late_preparation_of_ended_attempt_is_refused() {
    let head_1 = head("r", 1, 1);
    let mut agent = armed(&head_1);
    tell(&mut agent, &head_1, NodeCommand::Abort, 4);
    assert!(agent.is_idle());
    assert!(matches!(replies(&tell(&mut agent, &head_1, preparation(), 5))[..], [NodeReply::Refused(_)]));
    // An abort that overtakes its preparation holds as well.
    tell(&mut agent, &head("s", 1, 1), NodeCommand::Abort, 6);
    assert!(matches!(
        replies(&tell(&mut agent, &head("s", 1, 1), preparation(), 7))[..],
        [NodeReply::Refused(_)]
    ));
    assert!(matches!(tell(&mut agent, &head("r", 2, 1), preparation(), 8)[..], [AgentAction::Prepare(_)]));
}

#[test]
fn a_new_attempt_uses_the_open_ports() {
    let mut agent = armed(&head("r", 1, 1));
    tell(&mut agent, &head("r", 1, 1), commit(500), 5);
    let actions = tell(&mut agent, &head("r", 2, 1), preparation(), 6);
    assert_eq!(replies(&actions), [&NodeReply::Prepared { ports: vec![] }]);
    assert!(!actions.iter().any(|action| matches!(action, AgentAction::Prepare(_) | AgentAction::Release)));
    // The old start is void.
    assert!(agent.handle_event(AgentEvent::Tick, at(600)).is_empty());
    assert!(!agent.is_running());
}

#[test]
fn node_without_start_reports_received_frames() {
    let head = head("r", 1, 1);
    for is_past in [false, true] {
        let mut agent = armed(&head);
        tell(&mut agent, &head, commit(500), 10);
        if is_past {
            assert_eq!(replies(&agent.handle_event(AgentEvent::Tick, at(500))), [&NodeReply::Late]);
        }
        assert_eq!(tell(&mut agent, &head, NodeCommand::Stop, 600), [AgentAction::StopSenders]);
        let confirm = NodeCommand::Confirm { start: at(500) };
        assert!(!tell(&mut agent, &head, confirm, 601).contains(&AgentAction::StartAt(at(500))));
        let ended = agent.handle_event(AgentEvent::SendersDone { sent: vec![], lease_ended: false }, at(602));
        assert!(matches!(replies(&ended)[..], [NodeReply::SendersDone { .. }]), "{ended:?}");
        let finish = NodeCommand::Finish { sent: Arc::default() };
        assert!(tell(&mut agent, &head, finish, 603).contains(&AgentAction::Finish(Vec::new())));
    }
}

#[test]
fn nothing_starts_without_a_confirmation_in_time() {
    let head = head("r", 1, 1);
    let mut late_commit = armed(&head);
    assert_eq!(replies(&tell(&mut late_commit, &head, commit(500), 450)), [&NodeReply::Late]);

    let mut late_confirm = armed(&head);
    tell(&mut late_confirm, &head, commit(500), 10);
    let actions = tell(&mut late_confirm, &head, NodeCommand::Confirm { start: at(500) }, 480);
    assert_eq!(replies(&actions), [&NodeReply::Late]);

    let mut none = armed(&head);
    tell(&mut none, &head, commit(500), 10);
    assert_eq!(replies(&none.handle_event(AgentEvent::Tick, at(500))), [&NodeReply::Late]);
    assert!(!none.is_running());

    let mut other_start = armed(&head);
    tell(&mut other_start, &head, commit(500), 10);
    let actions = tell(&mut other_start, &head, NodeCommand::Confirm { start: at(700) }, 20);
    assert_eq!(replies(&actions), [&NodeReply::Committed], "not that start");
}

#[test]
fn another_text_than_the_announced_one_is_refused() {
    let mut agent = AgentMachine::new(Nanos::from_secs(10));
    let mut wrong = head("r", 1, 1);
    wrong.plan = PlanHash::from_document("another");
    let actions = tell(&mut agent, &wrong, preparation(), 0);
    assert!(matches!(replies(&actions)[..], [NodeReply::Refused(_)]));
    assert!(agent.is_idle());
}

#[test]
fn failure_releases_ports_and_is_repeated_on_query() {
    let head = head("r", 1, 1);
    let mut agent = armed(&head);
    let fault = NodeFault { blame: Blame::World, text: "gone".into() };
    let actions = agent.handle_event(AgentEvent::Failed(fault.clone()), at(5));
    assert_eq!(actions[0], AgentAction::Release);
    assert_eq!(replies(&tell(&mut agent, &head, NodeCommand::Query, 6)), [&NodeReply::Failed(fault)]);
}

#[test]
fn a_silent_controller_is_given_up() {
    let head = head("r", 1, 1);
    let mut agent = armed(&head);
    tell(&mut agent, &head, NodeCommand::Query, 1000);
    assert!(agent.handle_event(AgentEvent::Tick, at(10_999)).is_empty());
    assert_eq!(agent.handle_event(AgentEvent::Tick, at(11_000)), [AgentAction::Release]);
    assert!(agent.is_idle());
}

/// A leased agent that receives and has its first lease, asked for at 3 ms.
fn leased(head: &MessageHead, longest: Option<Nanos>) -> AgentMachine {
    let terms = LeaseTerms::with_ttl(Nanos::from_secs(2));
    let mut agent =
        AgentMachine::new_leased(terms, PersistentAgentState { epoch: 0, nonce: Nonce(70), longest });
    let actions = tell(&mut agent, head, preparation(), 0);
    assert!(matches!(actions[..], [AgentAction::Remember(_), AgentAction::Prepare(_)]), "{actions:?}");
    agent.handle_event(AgentEvent::Prepared(vec![]), at(1));
    tell(&mut agent, head, NodeCommand::Arm, 2);
    assert_eq!(agent.handle_event(AgentEvent::Armed, at(3)), [AgentAction::Renew(head.clone(), Nonce(70))]);
    let armed = grant(&mut agent, head, 70, true, 4);
    assert_eq!(armed, [AgentAction::Extend(at(2003)), AgentAction::Reply(head.clone(), NodeReply::Armed)]);
    agent
}

fn grant(agent: &mut AgentMachine, head: &MessageHead, nonce: u64, go_on: bool, ms: u64) -> Vec<AgentAction> {
    agent.handle_event(AgentEvent::Granted(head.clone(), LeaseGrant { nonce: Nonce(nonce), go_on }), at(ms))
}

/// The same, sending since 100 ms.
fn sending(head: &MessageHead, longest: Option<Nanos>) -> AgentMachine {
    let mut agent = leased(head, longest);
    tell(&mut agent, head, commit(100), 5);
    tell(&mut agent, head, NodeCommand::Confirm { start: at(100) }, 6);
    let actions = agent.handle_event(AgentEvent::Tick, at(100));
    assert_eq!(replies(&actions), [&NodeReply::Started]);
    agent
}

fn why(actions: &[AgentAction]) -> Option<StopReason> {
    let of =
        |reply: &&NodeReply| if let NodeReply::SendersDone { why, .. } = reply { Some(*why) } else { None };
    replies(actions).iter().find_map(of)
}

fn done(agent: &mut AgentMachine, lease_ended: bool, ms: u64) -> Option<StopReason> {
    why(&agent.handle_event(AgentEvent::SendersDone { sent: vec![], lease_ended }, at(ms)))
}

#[test]
fn senders_stop_and_report_when_lease_expires() {
    let head = head("r", 1, 1);
    let mut agent = sending(&head, None);
    assert!(matches!(agent.handle_event(AgentEvent::Tick, at(503))[..], [AgentAction::Renew(_, Nonce(71))]));
    assert_eq!(agent.next_deadline(), Some(at(1003)));
    let over = agent.handle_event(AgentEvent::Tick, at(2003));
    assert!(over.contains(&AgentAction::StopSenders), "{over:?}");
    assert_eq!(grant(&mut agent, &head, 71, true, 2004), [AgentAction::Extend(at(2503))]);
    assert_eq!(done(&mut agent, false, 2005), Some(StopReason::LeaseOver), "a late answer changes nothing");
    // The gate may be quicker than the machine.
    assert_eq!(done(&mut sending(&head, None), true, 300), Some(StopReason::LeaseOver));
    assert_eq!(done(&mut sending(&head, None), false, 300), Some(StopReason::Done));
}

#[test]
fn lease_denial_stops_senders_or_releases_ports() {
    let head = head("r", 1, 1);
    let mut running = sending(&head, None);
    running.handle_event(AgentEvent::Tick, at(503));
    assert_eq!(grant(&mut running, &head, 71, false, 504), [AgentAction::StopSenders]);
    assert_eq!(done(&mut running, false, 505), Some(StopReason::Told));
    let mut waiting = leased(&head, None);
    waiting.handle_event(AgentEvent::Tick, at(503));
    assert_eq!(grant(&mut waiting, &head, 71, false, 504)[0], AgentAction::Release);
    assert!(waiting.is_idle());
}

#[test]
fn without_a_lease_at_t_nothing_starts() {
    let head = head("r", 1, 1);
    let mut agent = leased(&head, None);
    tell(&mut agent, &head, commit(5000), 5);
    tell(&mut agent, &head, NodeCommand::Confirm { start: at(5000) }, 6);
    let actions = agent.handle_event(AgentEvent::Tick, at(5000));
    assert!(actions.contains(&AgentAction::StopSenders));
    assert!(!replies(&actions).contains(&&NodeReply::Started));
    assert_eq!(done(&mut agent, true, 5001), Some(StopReason::NoLease));
}

#[test]
fn the_owner_s_longest_duration_ends_the_senders() {
    let mut agent = sending(&head("r", 1, 1), Some(Nanos::from_millis(400)));
    assert_eq!(agent.next_deadline(), Some(at(500)));
    assert!(agent.handle_event(AgentEvent::Tick, at(500)).contains(&AgentAction::StopSenders));
    assert_eq!(done(&mut agent, false, 501), Some(StopReason::OwnersLimit));
}

#[test]
fn emulated_interfaces_keep_lease_until_run_ends() {
    let head = head("r", 1, 1);
    let mut agent = sending(&head, Some(Nanos::from_secs(10)));
    done(&mut agent, false, 200);
    assert!(matches!(agent.handle_event(AgentEvent::Tick, at(503))[..], [AgentAction::Renew(_, Nonce(71))]));
    assert_eq!(grant(&mut agent, &head, 71, true, 504), [AgentAction::Extend(at(2503))]);
    assert_eq!(
        agent.handle_event(AgentEvent::Tick, at(10_100)),
        [],
        "no longer than the owner lets anything be sent"
    );
    let mut other = sending(&head, None);
    done(&mut other, false, 200);
    tell(&mut other, &head, NodeCommand::Finish { sent: Arc::default() }, 300);
    assert_eq!(other.handle_event(AgentEvent::Tick, at(900)), [], "what is finished needs no lease");
}

#[test]
fn spooled_result_does_not_delay_next_run() {
    let head = head("r", 1, 1);
    let mut agent = sending(&head, None);
    done(&mut agent, false, 200);
    assert!(matches!(
        tell(&mut agent, &head, NodeCommand::Finish { sent: Arc::default() }, 300)[..],
        [AgentAction::Finish(_)]
    ));
    assert_eq!(
        agent.handle_event(AgentEvent::Finished(Arc::default()), at(301)),
        [AgentAction::Spool(Arc::default())]
    );
    assert_eq!(
        tell(&mut agent, &head, NodeCommand::Finish { sent: Arc::default() }, 302),
        [],
        "not safe yet"
    );
    let spooled = NodeReply::Spooled { segments: 3 };
    assert_eq!(replies(&agent.handle_event(AgentEvent::Spooled { segments: 3 }, at(303))), [&spooled]);
    assert_eq!(
        replies(&tell(&mut agent, &head, NodeCommand::Finish { sent: Arc::default() }, 304)),
        [&spooled]
    );
    let next = MessageHead { run: RunId("s".into()), ..head };
    assert!(matches!(tell(&mut agent, &next, preparation(), 305)[..], [AgentAction::Prepare(_)]));
}

#[test]
fn orphaned_agent_finishes_and_spools_result() {
    let head = head("r", 1, 1);
    let mut agent = sending(&head, None);
    agent.handle_event(AgentEvent::Tick, at(2003));
    let sent = vec![SentTotal { stream: 0, frames: 9 }];
    agent.handle_event(AgentEvent::SendersDone { sent: sent.clone(), lease_ended: true }, at(2004));
    let asked = agent.handle_event(AgentEvent::Tick, at(30_005));
    assert!(
        matches!(asked[..], [AgentAction::Renew(..)]),
        "receivers and emulated interfaces go on: {asked:?}"
    );
    assert_eq!(agent.handle_event(AgentEvent::Tick, at(30_006)), [AgentAction::Finish(sent)]);
    assert!(matches!(
        agent.handle_event(AgentEvent::Finished(Arc::default()), at(30_007))[..],
        [AgentAction::Spool(_)]
    ));
    agent.handle_event(AgentEvent::Spooled { segments: 1 }, at(30_008));
    assert!(agent.is_idle());
}

#[test]
fn later_controller_may_only_end_earlier_run() {
    let old = head("r", 1, 1);
    let new = head("r", 1, 2);
    let mut agent = sending(&old, None);
    assert!(matches!(replies(&tell(&mut agent, &new, commit(900), 200))[..], [NodeReply::Refused(_)]));
    let stop = tell(&mut agent, &new, NodeCommand::Stop, 201);
    assert_eq!(stop, [AgentAction::StopSenders], "the epoch was remembered with the first command");
    assert!(matches!(replies(&tell(&mut agent, &old, NodeCommand::Query, 202))[..], [NodeReply::Refused(_)]));
    let actions = agent.handle_event(AgentEvent::SendersDone { sent: vec![], lease_ended: false }, at(203));
    assert!(matches!(&actions[..], [AgentAction::Reply(head, _)] if *head == new));
    // An answer of the earlier controller is worth nothing now.
    let mut other = sending(&old, None);
    other.handle_event(AgentEvent::Tick, at(503));
    tell(&mut other, &new, NodeCommand::Query, 504);
    assert_eq!(grant(&mut other, &old, 71, true, 505), []);
    assert_eq!(grant(&mut other, &new, 71, true, 505), [], "nor is it an answer of the later one");
}

#[test]
fn stored_epoch_holds_after_agent_restart() {
    let terms = LeaseTerms::with_ttl(Nanos::from_secs(2));
    let mut agent =
        AgentMachine::new_leased(terms, PersistentAgentState { epoch: 5, nonce: Nonce(0), longest: None });
    let actions = tell(&mut agent, &head("r", 1, 4), preparation(), 0);
    assert!(matches!(replies(&actions)[..], [NodeReply::Refused(_)]));
    assert_eq!(tell(&mut agent, &head("r", 1, 6), NodeCommand::Abort, 1)[0], AgentAction::Remember(6));
}

#[test]
fn late_query_of_spooled_result_is_answered() {
    let head = head("r", 1, 1);
    let mut agent = sending(&head, None);
    agent.handle_event(AgentEvent::SendersDone { sent: vec![], lease_ended: true }, at(3000));
    agent.handle_event(AgentEvent::Tick, at(60_000));
    agent.handle_event(AgentEvent::Finished(Arc::default()), at(60_001));
    agent.handle_event(AgentEvent::Spooled { segments: 3 }, at(60_002));
    assert!(agent.is_idle());
    for (epoch, command) in
        [(1, NodeCommand::Query), (1, NodeCommand::Finish { sent: Arc::default() }), (2, NodeCommand::Stop)]
    {
        let asked = MessageHead { epoch, ..head.clone() };
        assert_eq!(
            replies(&tell(&mut agent, &asked, command, 61_000)),
            [&NodeReply::Spooled { segments: 3 }]
        );
    }
    // It takes part in nothing of that attempt any more, nor does an earlier controller get an answer.
    assert!(matches!(
        replies(&tell(&mut agent, &MessageHead { epoch: 2, ..head.clone() }, NodeCommand::Arm, 61_001))[..],
        [NodeReply::Refused(_)]
    ));
    assert!(matches!(
        replies(&tell(&mut agent, &head, NodeCommand::Query, 61_002))[..],
        [NodeReply::Refused(_)]
    ));
}
