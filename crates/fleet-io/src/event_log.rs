//! Logs the decisions of a run's controller, and the states of the run on a node. The field `run` is the
//! same on all machines.

use packetrig_fleet::agent::{AgentAction, AgentEvent};
use packetrig_fleet::message::{MessageHead, NodeCommand};
use packetrig_report::event::{RunEvent, RunEventKind};
use packetrig_report::outcome::RunOutcome;
use tracing::{debug, info, warn};

/// Logs an event of the controller.
pub(crate) fn log_run_event(event: &RunEvent) {
    let run = &event.run;
    match &event.kind {
        RunEventKind::StateChanged(state) => info!(%run, %state, "run changed its state"),
        RunEventKind::StartSet { at } => {
            debug!(%run, at_ns = at.as_nanos(), "controller chose the start time");
        }
        RunEventKind::Ports { node, ports } => {
            debug!(%run, %node, ports = ports.len(), "node opened its ports");
        }
        // Every node sends several samples each second, so their level is lower than that of all other events.
        RunEventKind::Counters { node, .. } => tracing::trace!(%run, %node, "counter sample received"),
        RunEventKind::Steered { number, outcome: Ok(()) } => {
            info!(%run, number, "nodes applied the requested change");
        }
        RunEventKind::Steered { number, outcome: Err(fault) } => warn!(%run, number, %fault, "change failed"),
        RunEventKind::Finding(finding) => warn!(%run, finding = %finding, "run has a finding"),
        RunEventKind::Ended(RunOutcome::Failed { fault }) => warn!(%run, %fault, "run failed"),
        RunEventKind::Ended(outcome) => info!(%run, state = %outcome.state(), "run ended"),
    }
}

/// Logs an event of a node. `head`: the run that the node takes part in.
pub(crate) fn log_agent_event(head: Option<&MessageHead>, event: &AgentEvent) {
    let (run, attempt) = (run_name_of(head), head.map(|head| head.attempt));
    match event {
        AgentEvent::Prepared(ports) => info!(run, attempt, ports = ports.len(), "ports opened"),
        AgentEvent::Armed => info!(run, attempt, "receivers started"),
        AgentEvent::SendersDone { lease_ended: true, .. } => {
            warn!(run, attempt, "lease expired; senders stopped");
        }
        AgentEvent::SendersDone { sent, .. } => {
            let frames: u64 = sent.iter().map(|total| total.frames).sum();
            info!(run, attempt, frames, "senders ended");
        }
        AgentEvent::Spooled { segments } => {
            info!(run, attempt, segments, "result stored until it is collected");
        }
        AgentEvent::Failed(fault) => warn!(run, attempt, %fault, "run failed on this node"),
        AgentEvent::Granted(..) => debug!(run, "lease renewed"),
        AgentEvent::Command(head, command) => {
            debug!(run = %head.run, attempt = head.attempt, command = command_name(command), "command received");
        }
        _ => {}
    }
}

/// Logs the next action of a node.
pub(crate) fn log_agent_action(head: Option<&MessageHead>, action: &AgentAction) {
    let run = run_name_of(head);
    match action {
        AgentAction::StartAt(at) => info!(run, at_ns = at.as_nanos(), "start time confirmed"),
        AgentAction::StopSenders => info!(run, "stopping the senders"),
        AgentAction::Release => info!(run, "ports closed"),
        _ => {}
    }
}

const fn command_name(command: &NodeCommand) -> &'static str {
    match command {
        NodeCommand::Prepare(_) => "prepare",
        NodeCommand::Arm => "arm",
        NodeCommand::Commit { .. } => "commit",
        NodeCommand::Confirm { .. } => "confirm",
        NodeCommand::Query => "query",
        NodeCommand::Steer(_) => "steer",
        NodeCommand::Step { .. } => "step",
        NodeCommand::Stop => "stop",
        NodeCommand::Finish { .. } => "finish",
        NodeCommand::Collected => "collected",
        NodeCommand::Abort => "abort",
    }
}

fn run_name_of(head: Option<&MessageHead>) -> Option<&str> {
    head.map(|head| head.run.0.as_str())
}
