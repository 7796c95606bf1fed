use super::*;
use packetrig_fleet::controller::RunLimits;
use packetrig_fleet::fabric::Error as FabricError;
use packetrig_fleet::message::{PlanHash, RunId, RunPreparation};
use packetrig_stats::terms::SharedRunOptions;

/// Nodes that answer every command at once. While they run, only the first one sends samples.
struct AnsweringNodes {
    name: NodeName,
    incoming: VecDeque<MessageEnvelope>,
    running: Option<MessageHead>,
}

impl AnsweringNodes {
    fn new() -> Self {
        Self { name: NodeName("controller".into()), incoming: VecDeque::new(), running: None }
    }

    fn reply(&mut self, from: &NodeName, head: &MessageHead, reply: NodeReply) {
        let body = MessageBody::Reply(head.clone(), reply);
        self.incoming.push_back(MessageEnvelope { from: from.clone(), body });
    }
}

impl Endpoint for AnsweringNodes {
    fn name(&self) -> &NodeName {
        &self.name
    }

    fn post_message(&mut self, to: &NodeName, body: MessageBody) -> Result<(), FabricError> {
        let MessageBody::Command(head, command) = body else { return Ok(()) };
        match command {
            NodeCommand::Prepare(_) => self.reply(to, &head, NodeReply::Prepared { ports: vec![] }),
            NodeCommand::Arm => self.reply(to, &head, NodeReply::Armed),
            NodeCommand::Commit { .. } => self.reply(to, &head, NodeReply::Committed),
            NodeCommand::Confirm { .. } => {
                self.reply(to, &head, NodeReply::Confirmed);
                self.reply(to, &head, NodeReply::Started);
                self.running = Some(head);
            }
            _ => {}
        }
        Ok(())
    }

    fn post_to_all_nodes(&mut self, _body: MessageBody) -> Result<(), FabricError> {
        Ok(())
    }

    fn listen_to(&mut self, _nodes: &[NodeName]) -> Result<(), FabricError> {
        Ok(())
    }

    fn stop_listening_to(&mut self, _nodes: &[NodeName]) {}

    fn receive_message(&mut self, within: Nanos) -> Option<MessageEnvelope> {
        self.incoming.pop_front().or_else(|| {
            std::thread::sleep(within.to_std());
            let body = MessageBody::Telemetry(self.running.clone()?, Box::default());
            Some(MessageEnvelope { from: NodeName("a".into()), body })
        })
    }

    fn dropped_telemetry(&self) -> u64 {
        0
    }
}

/// The process is stopped while it handles the first sample.
struct StoppedProcess {
    was_stopped: bool,
}

impl RunServices for StoppedProcess {
    fn next_local_event(&mut self) -> Result<Option<LocalRunEvent>, Error> {
        // The test is over.
        if self.was_stopped { Err(Error::NeverRan) } else { Ok(None) }
    }

    fn on_sample(&mut self, _from: &NodeName, _sample: &CountSample) {
        self.was_stopped = true;
        std::thread::sleep(SILENCE.to_std() + STANDSTILL_THRESHOLD.to_std());
    }
}

const SILENCE: Nanos = Nanos::from_millis(500);

#[test]
fn process_stopped_during_a_message_blames_no_node() {
    let head =
        MessageHead { run: RunId("r".into()), attempt: 1, epoch: 1, plan: PlanHash::from_document("p") };
    let preparation = RunPreparation {
        document: "p".into(),
        terms: SharedRunOptions::default(),
        ..RunPreparation::default()
    };
    let nodes = ["a", "b"].map(|name| NodeName(name.into()));
    let limits = RunLimits { silence: SILENCE, ..RunLimits::for_local(Nanos::from_millis(100)) };
    let machine = ControllerMachine::new(head, preparation, &nodes, limits);
    let mut findings = Vec::new();
    let ended = control_run(
        machine,
        &mut AnsweringNodes::new(),
        &mut StoppedProcess { was_stopped: false },
        RunUser {
            requests: &mut || None,
            turn: Nanos::from_millis(10),
            on_event: &mut |event| {
                if let RunEventKind::Finding(text) = &event.kind {
                    findings.push(text.clone());
                }
            },
        },
    );
    assert!(ended.is_err());
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].starts_with("the controller's own process did not run for"), "{findings:?}");
}
