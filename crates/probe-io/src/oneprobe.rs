//! Probes a web server with pairs of TCP segments, for the state machine [`packetrig_probe::oneprobe`]: sends
//! its segments and passes it the answers.
//!
//! The kernel does not know the TCP connection and would reset it. A
//! [`SilencedPort`](crate::listener::SilencedPort), which the caller reserves, prevents this.
//!
//! Invariant: all segments go through the target's dispatcher, so its limits hold for acknowledgements, too.

use crate::listener::PacketListener;
use crate::path::ProbePath;
use crate::release::{DepartedFrame, DueFrame, ReleaseDispatcher};
use crate::{Error, frame_length, small_count};
use packetrig_probe::answer::{AnswerContent, PathFailure, ProbeAnswer};
use packetrig_probe::frame::TcpSegment;
use packetrig_probe::oneprobe::{
    IncomingSegment, OneprobeFailure, OneprobeMachine, OneprobeOutcome, OneprobeReport, OneprobeStep,
    OutgoingSegment, PairDeparture,
};
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use serde::Serialize;

/// Reason why a series ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OneprobeEndReason {
    /// All probes have been sent.
    Done,
    Stopped,
    /// Too many segments were lost in one of the two directions.
    Lossy,
    /// A host or router reported that probes are administratively prohibited.
    Prohibited,
    /// The target refused or ended the connections, or they gave no usable probe.
    Failed(OneprobeFailure),
}

/// The resources of this machine that a series needs.
#[derive(Debug)]
pub struct OneprobeDriver<'a> {
    pub way: &'a ProbePath,
    pub port: u16,
    pub own_port: u16,
    pub dispatcher: &'a mut ReleaseDispatcher,
    pub listener: &'a mut PacketListener,
}

impl OneprobeDriver<'_> {
    /// Runs a series to its end, and calls `on_outcome` with the outcome of each probe as soon as it is known.
    pub fn run_series(
        &mut self,
        machine: &mut OneprobeMachine,
        stop: &dyn Fn() -> bool,
        on_outcome: &mut dyn FnMut(&OneprobeOutcome),
    ) -> Result<OneprobeEndReason, Error> {
        let mut early = None;
        let mut known = 0;
        loop {
            let outcomes = &machine.report().0.outcomes;
            outcomes[known..].iter().for_each(&mut *on_outcome);
            known = outcomes.len();
            // The first reason stays: later reasons are its consequences.
            early = early
                .or_else(|| stop().then_some(OneprobeEndReason::Stopped))
                .or_else(|| self.lossy_end_reason(machine.report().0));
            // The state machine is asked to stop. It still resets its connection, so that the server does not
            // keep the connection half open.
            if early.is_some() {
                machine.stop_series();
            }
            match machine.next_step(clock::monotonic_ns()) {
                OneprobeStep::Over => break,
                OneprobeStep::Send(out) => {
                    self.send_segments(&[&out], clock::monotonic_ns())?;
                }
                OneprobeStep::Pair { at, segments: [one, other] } => {
                    let gone = self.send_segments(&[&one, &other], at)?;
                    machine.on_pair_sent(pair_departure(&gone), clock::monotonic_ns());
                }
                OneprobeStep::Wait(until) => {
                    let within = Nanos::new(until.saturating_sub(clock::monotonic_ns()));
                    early = self.handle_arrivals(machine, within)?;
                }
            }
        }
        machine.report().0.outcomes[known..].iter().for_each(&mut *on_outcome);
        let failed = machine.report().1.map(OneprobeEndReason::Failed);
        Ok(early.or(failed).unwrap_or(OneprobeEndReason::Done))
    }

    fn lossy_end_reason(&self, report: &OneprobeReport) -> Option<OneprobeEndReason> {
        let limits = self.way.permitted.limits();
        let directions = [report.forward, report.reverse];
        directions
            .iter()
            .any(|counts| limits.is_lossy(counts.sent, counts.lost))
            .then_some(OneprobeEndReason::Lossy)
    }

    fn send_segments(&mut self, outs: &[&OutgoingSegment], at: u64) -> Result<Vec<DepartedFrame>, Error> {
        let frames: Vec<_> = outs.iter().map(|out| self.segment_frame(out)).collect();
        let at = MonoTime::from_nanos(at);
        let due: Vec<_> = frames.iter().map(|frame| DueFrame { at, frame }).collect();
        // Both segments of a pair are sent, or none. Segments that the limits refuse stay unsent, and the
        // state machine tries again later or counts the probe as unsent. If only one segment of a pair were
        // sent, the server would have data that the state machine regards as unsent.
        let lengths = due.iter().map(|due| (Nanos::ZERO, frame_length(due.frame)));
        // A later start is not possible, because the state machine chose this time and the schedule does not
        // move.
        if !self.dispatcher.earliest_start(at, lengths).is_ok_and(|begins| begins <= at) {
            return Ok(vec![DepartedFrame::new_unsent(); due.len()]);
        }
        let mut gone = Vec::with_capacity(due.len());
        self.dispatcher.send_train(&due, &mut gone)?;
        Ok(gone)
    }

    fn segment_frame(&self, out: &OutgoingSegment) -> Vec<u8> {
        let segment = TcpSegment {
            source_port: self.own_port,
            target_port: self.port,
            sequence: out.sequence,
            acknowledgement: out.acknowledgement,
            flags: out.flags,
            window: out.window,
            options: &out.options,
            payload: &out.payload,
        };
        let mut frame = Vec::new();
        self.way.ends.write_tcp_frame(&segment, &mut frame);
        frame
    }

    /// Waits for frames, for at most `within`, and passes them to the state machine. Returns a reason to end
    /// the series if a router or host prohibits further probes.
    fn handle_arrivals(
        &mut self,
        machine: &mut OneprobeMachine,
        within: Nanos,
    ) -> Result<Option<OneprobeEndReason>, Error> {
        self.listener.wait_for_frames(within)?;
        let ends = self.way.ends;
        let ports = (self.port, self.own_port);
        let mut early = None;
        self.listener.receive_waiting_frames(|heard| {
            // A segment with a wrong checksum counts as not received, as for any TCP (RFC 9293, 3.1); the
            // server retransmits it.
            let Some(answer) = heard.read_answer().filter(|answer| answer.is_sound) else { return };
            match answer.content {
                AnswerContent::Tcp(tcp)
                    if is_from(&answer, ends.target, ends.source)
                        && (tcp.source_port, tcp.target_port) == ports =>
                {
                    let segment = IncomingSegment {
                        sequence: tcp.sequence,
                        acknowledgement: tcp.acknowledgement,
                        flags: tcp.flags,
                        window: tcp.window,
                        length: small_count(tcp.payload.len()),
                    };
                    machine.on_segment(&segment, heard.at.middle());
                }
                // The quoted packet must have the target and ports of this series, because anybody can
                // send such a message.
                AnswerContent::Error { what: PathFailure::Prohibited, about }
                    if about.target == ends.target && about.ports() == (ports.1, ports.0) =>
                {
                    early = Some(OneprobeEndReason::Prohibited);
                }
                _ => {}
            }
        });
        Ok(early)
    }
}

fn is_from(answer: &ProbeAnswer<'_>, target: std::net::IpAddr, source: std::net::IpAddr) -> bool {
    (answer.from, answer.to) == (target, source)
}

fn pair_departure(gone: &[DepartedFrame]) -> PairDeparture {
    let [first, second] = [0, 1].map(|segment| gone.get(segment).and_then(DepartedFrame::local_departure));
    match (first, second) {
        (Some(first), Some(_)) => PairDeparture::Both(first.middle()),
        (None, None) => PairDeparture::Neither,
        _ => PairDeparture::OnlyOne,
    }
}

#[cfg(test)]
mod tests;
