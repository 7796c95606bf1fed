//! Changes to a steered run: each step is done once, however often and in whatever order it arrives.

use super::*;
use packetrig_plan::PlanChange;

fn order(number: u64) -> NodeCommand {
    NodeCommand::Steer(Box::new(ChangeOrder { number, steer: PlanChange::Start(vec![0]) }))
}

fn step(number: u64, step: ChangeStep) -> NodeCommand {
    NodeCommand::Step { number, step: Box::new(step) }
}

fn hold(number: u64) -> NodeCommand {
    step(number, ChangeStep::Hold(PlanChange::Start(vec![0])))
}

fn announce(number: u64) -> NodeCommand {
    step(number, ChangeStep::Announce { held: streams(), at: None })
}

fn begin(number: u64) -> NodeCommand {
    step(number, ChangeStep::Begin { at: None })
}

fn undo(number: u64) -> NodeCommand {
    step(number, ChangeStep::Undo)
}

fn streams() -> Vec<StreamResumePoint> {
    vec![StreamResumePoint { stream: 0, number: 9, index: 3, mac: None }]
}

/// An agent of a steered run that has begun to receive.
fn steered() -> AgentMachine {
    let head = head("r", 1, 1);
    let mut agent = AgentMachine::new(Nanos::from_secs(10));
    let preparation = RunPreparation {
        document: DOCUMENT.into(),
        terms: SharedRunOptions { steered: true, ..SharedRunOptions::default() },
        ..RunPreparation::default()
    };
    tell(&mut agent, &head, NodeCommand::Prepare(Box::new(preparation)), 0);
    agent.handle_event(AgentEvent::Prepared(vec![]), at(1));
    tell(&mut agent, &head, NodeCommand::Arm, 2);
    agent.handle_event(AgentEvent::Armed, at(3));
    agent
}

/// An agent of a steered run after T.
fn draft_under_way() -> AgentMachine {
    let mut agent = steered();
    tell(&mut agent, &head("r", 1, 1), commit(2), 4);
    tell(&mut agent, &head("r", 1, 1), NodeCommand::Confirm { start: at(2) }, 4);
    agent.handle_event(AgentEvent::Tick, at(4));
    agent
}

fn hear(agent: &mut AgentMachine, command: NodeCommand) -> Vec<AgentAction> {
    tell(agent, &head("r", 1, 1), command, 5)
}

/// Simulates a data plane that does everything the agent asks for.
fn perform(agent: &mut AgentMachine, command: NodeCommand) -> Vec<AgentAction> {
    let asked = hear(agent, command);
    let [AgentAction::Step(number, step)] = &asked[..] else { panic!("{asked:?}") };
    let event = match step.as_ref() {
        ChangeStep::Hold(_) => AgentEvent::Held(*number, streams(), None),
        ChangeStep::Announce { .. } => AgentEvent::Announced(*number, None),
        ChangeStep::Begin { .. } | ChangeStep::Undo => AgentEvent::Steered(*number, None, Box::default()),
    };
    agent.handle_event(event, at(6))
}

#[test]
fn each_change_is_made_once_and_answered_again() {
    let head = head("r", 1, 1);
    let mut agent = steered();
    // T is past when the commit arrives, and past when it is confirmed.
    assert_eq!(replies(&tell(&mut agent, &head, commit(2), 4)), [&NodeReply::Committed]);
    assert_eq!(tell(&mut agent, &head, order(1), 5), [], "not before T is confirmed");
    assert_eq!(tell(&mut agent, &head, hold(1), 5), [], "not before T is confirmed");
    let confirmed = tell(&mut agent, &head, NodeCommand::Confirm { start: at(2) }, 6);
    assert_eq!(confirmed[0], AgentAction::StartAt(at(2)));
    agent.handle_event(AgentEvent::Tick, at(6));
    assert!(matches!(tell(&mut agent, &head, order(1), 7)[..], [AgentAction::Steer(_)]));
    let done = NodeReply::Steered { number: 1, fault: None, sample: Box::default() };
    assert_eq!(replies(&agent.handle_event(AgentEvent::Steered(1, None, Box::default()), at(8))), [&done]);
    assert_eq!(replies(&tell(&mut agent, &head, order(1), 9)), [&done]);
    assert!(matches!(tell(&mut agent, &head, order(2), 10)[..], [AgentAction::Steer(_)]));
    agent.handle_event(AgentEvent::Steered(2, None, Box::default()), at(11));
    assert_eq!(tell(&mut agent, &head, order(1), 12), [], "an older one comes late");
}

#[test]
fn change_step_is_performed_once_and_reanswered() {
    let mut agent = draft_under_way();
    assert_eq!(hear(&mut agent, announce(1)), [], "what is not held is not announced");
    let held = perform(&mut agent, hold(1));
    assert_eq!(replies(&held), [&NodeReply::Held { number: 1, fault: None, held: streams() }]);
    assert_eq!(hear(&mut agent, hold(1)), held);
    assert_eq!(hear(&mut agent, begin(1)), [], "what is not announced does not begin");
    let announced = perform(&mut agent, announce(1));
    assert_eq!(replies(&announced), [&NodeReply::Announced { number: 1, fault: None }]);
    assert_eq!(hear(&mut agent, announce(1)), announced);
    assert_eq!(hear(&mut agent, hold(1)), [], "an echo");
    assert_eq!(hear(&mut agent, undo(1)), [], "it is decided");
    let begun = perform(&mut agent, begin(1));
    let done = NodeReply::Steered { number: 1, fault: None, sample: Box::default() };
    assert_eq!(replies(&begun), [&done]);
    assert_eq!(replies(&hear(&mut agent, begin(1))), [&done]);
    for echo in [hold(1), announce(1)] {
        assert_eq!(hear(&mut agent, echo), []);
    }
    assert_eq!(replies(&perform(&mut agent, hold(2))).len(), 1);
    assert_eq!(hear(&mut agent, begin(1)), [], "an older one comes late");
}

#[test]
fn change_is_undone_exactly_once() {
    let mut agent = draft_under_way();
    perform(&mut agent, hold(1));
    let done = |number| NodeReply::Steered { number, fault: None, sample: Box::default() };
    assert_eq!(replies(&perform(&mut agent, undo(1))), [&done(1)]);
    assert_eq!(replies(&hear(&mut agent, undo(1))), [&done(1)]);
    assert_eq!(hear(&mut agent, announce(1)), []);
    // The order to hold was lost, and comes after all.
    assert_eq!(replies(&hear(&mut agent, undo(2))), [&done(2)]);
    assert_eq!(hear(&mut agent, hold(2)), []);
    // An agent that could not hold has nothing to undo.
    assert!(matches!(hear(&mut agent, hold(3))[..], [AgentAction::Step(3, _)]));
    let fault = Some(NodeFault { blame: Blame::Plan, text: "no".into() });
    let refused = agent.handle_event(AgentEvent::Held(3, vec![], fault.clone()), at(7));
    assert_eq!(replies(&refused), [&NodeReply::Held { number: 3, fault, held: vec![] }]);
    assert_eq!(hear(&mut agent, hold(3)), refused);
    assert_eq!(replies(&hear(&mut agent, undo(3))), [&done(3)]);
}

#[test]
fn change_steps_are_refused_after_senders_stop() {
    let stop = |agent: &mut AgentMachine| {
        agent.handle_event(AgentEvent::SendersDone { sent: vec![], lease_ended: false }, at(6));
    };
    let is_refused = |actions: &[AgentAction]| {
        matches!(
            replies(actions)[..],
            [NodeReply::Held { fault: Some(_), .. }
                | NodeReply::Announced { fault: Some(_), .. }
                | NodeReply::Steered { fault: Some(_), .. }]
        )
    };
    let mut agent = draft_under_way();
    stop(&mut agent);
    assert!(is_refused(&hear(&mut agent, order(1))));
    assert!(is_refused(&hear(&mut agent, hold(2))));
    let mut agent = draft_under_way();
    perform(&mut agent, hold(1));
    stop(&mut agent);
    // Its receivers get the streams that another node may still begin; it begins nothing itself.
    let announced = perform(&mut agent, announce(1));
    assert_eq!(replies(&announced), [&NodeReply::Announced { number: 1, fault: None }]);
    assert!(is_refused(&hear(&mut agent, begin(1))));
    assert!(is_refused(&hear(&mut agent, begin(1))), "again");
}
