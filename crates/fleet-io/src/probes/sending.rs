//! The threads that send the probes of a port: they wait for the start time, send according to their schedules,
//! and listen for answers.
//!
//! Invariant: a sender that finds the lease expired ends for good, and reports this reason.

use super::findings::{self, EstimatedProbeLine, SentProbeLine, SessionClock};
use super::ready::{ProbeLineDepartures, ReadyProbeLine, ReadyProbeSender};
use crate::error::ignore_failure;
use packetrig_engine::Error;
use packetrig_engine::gate::SendGate;
use packetrig_plan::probes::{PlannedProbeMethod, ProbePlan};
use packetrig_probe::estimate::{PairEstimator, PairSelection, RateEstimator};
use packetrig_probe::method::{EchoMethod, ProbeMethod};
use packetrig_probe::series::AnswerMeaning;
use packetrig_probe::session::TimeFormat;
use packetrig_probe::session::sender::{StampSender, StampSenderSettings};
use packetrig_probe_io::ask::{self, ProbeLine, ProbeSeriesEvent, ProbeSeriesOptions, ProbeSeriesOutcome};
use packetrig_probe_io::listener::PacketListener;
use packetrig_probe_io::send::{self, ProbeContent, ScheduleTarget};
use packetrig_probe_io::trains::{MeasuredArrival, TrainSender};
use packetrig_stats::probe::{FirstProbe, ProbeLineEndReason, ProbeLineResult};
use packetrig_stats::result::ProbeProgress;
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Interval at which a sender that waits for its start checks whether it was stopped.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Results of the lines that a node sent.
#[derive(Debug, Default)]
pub(super) struct SentProbeLines {
    pub(super) lines: Vec<ProbeLineResult>,
    pub(super) first: Option<FirstProbe>,
}

impl SentProbeLines {
    pub(super) fn append_lines(&mut self, other: Self) {
        self.lines.extend(other.lines);
        self.first = self.first.into_iter().chain(other.first).min_by_key(|first| first.due);
    }
}

/// Flags and counts that a sender's thread shares with the data plane.
#[derive(Debug, Default)]
struct ProbeSenderState {
    stop: AtomicBool,
    lost_lease: AtomicBool,
    sent: AtomicU64,
    answered: AtomicU64,
}

impl ProbeSenderState {
    fn count_sent(&self, probes: usize) {
        self.sent.fetch_add(probes as u64, Ordering::Relaxed);
    }

    /// Counts a sent probe, or the first answer to a probe.
    fn count_event(&self, event: &ProbeSeriesEvent<'_>) {
        match event {
            ProbeSeriesEvent::Sent { .. } => self.count_sent(1),
            // A second answer to a probe is a duplicate, so only the first one is counted.
            ProbeSeriesEvent::Answered { meaning: AnswerMeaning::First(_), .. } => {
                self.answered.fetch_add(1, Ordering::Relaxed);
            }
            ProbeSeriesEvent::Answered { .. } | ProbeSeriesEvent::Ended { .. } => {}
        }
    }
}

#[derive(Debug)]
pub(super) struct RunningSender {
    state: Arc<ProbeSenderState>,
    start: Sender<MonoTime>,
    /// Number and planned probes of each line, for the result if the thread panics.
    lines: Vec<(usize, u64)>,
    /// `None` once the thread was joined.
    thread: Option<JoinHandle<SentProbeLines>>,
}

impl RunningSender {
    /// Starts a thread for each sender. A sender sends nothing before it knows the start time.
    pub(super) fn start_senders(
        probes: &ProbePlan,
        ready: Vec<ReadyProbeSender>,
        gate: &SendGate,
    ) -> Result<Vec<Self>, Error> {
        ready.into_iter().map(|sender| Self::start_sender(probes, sender, gate)).collect()
    }

    fn start_sender(probes: &ProbePlan, ready: ReadyProbeSender, gate: &SendGate) -> Result<Self, Error> {
        let state = Arc::new(ProbeSenderState::default());
        let (start, started) = mpsc::channel();
        let lines = ready.lines.iter().map(|line| (line.number, line.departures.planned_probes())).collect();
        let job = ProbeSenderJob { probes: probes.clone(), gate: gate.clone(), state: Arc::clone(&state) };
        let thread = Builder::new().name("probes".to_owned()).spawn(move || job.send_lines(ready, &started));
        let thread = thread.map_err(|source| Error::Thread { name: "probes".to_owned(), source })?;
        Ok(Self { state, start, lines, thread: Some(thread) })
    }

    pub(super) fn start_at(&self, at: MonoTime) {
        // A thread that has ended receives no message; its result has the reason.
        ignore_failure(self.start.send(at));
    }

    pub(super) fn stop_sending(&self) {
        self.state.stop.store(true, Ordering::Release);
    }

    pub(super) fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Returns how many probes were sent and answered so far.
    pub(super) fn probe_progress(&self) -> ProbeProgress {
        let [sent, answered] =
            [&self.state.sent, &self.state.answered].map(|count| count.load(Ordering::Relaxed));
        ProbeProgress { sent, answered }
    }

    pub(super) fn has_lost_lease(&self) -> bool {
        self.state.lost_lease.load(Ordering::Acquire)
    }

    /// Stops the thread, and returns its results.
    pub(super) fn stop_and_join(mut self) -> SentProbeLines {
        self.stop_sending();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(sent)) => sent,
            // The counts of the probes are lost, so the lines are reported as failed, without counts.
            Some(Err(_)) | None => {
                self.failed_lines("the thread that sends probes panicked: this is a bug in packetrig")
            }
        }
    }

    fn failed_lines(&self, why: &str) -> SentProbeLines {
        let end = ProbeLineEndReason::Failed(why.to_owned());
        let lines = self
            .lines
            .iter()
            .map(|(line, planned)| ProbeLineResult::without_probes(*line, *planned, end.clone()));
        SentProbeLines { lines: lines.collect(), first: None }
    }
}

impl Drop for RunningSender {
    fn drop(&mut self) {
        self.stop_sending();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            drop(thread.join());
        }
    }
}

struct ProbeSenderJob {
    probes: ProbePlan,
    gate: SendGate,
    state: Arc<ProbeSenderState>,
}

impl ProbeSenderJob {
    fn send_lines(&self, ready: ReadyProbeSender, started: &Receiver<MonoTime>) -> SentProbeLines {
        let lines: Vec<(usize, u64)> =
            ready.lines.iter().map(|line| (line.number, line.departures.planned_probes())).collect();
        let Some(start) = self.await_start(started) else {
            let unsent = lines.iter().map(|(line, planned)| {
                ProbeLineResult::without_probes(*line, *planned, ProbeLineEndReason::Stopped)
            });
            return SentProbeLines { lines: unsent.collect(), first: None };
        };
        let sent = match self.probes.method {
            PlannedProbeMethod::Send => self.send_unanswered_probes(ready, start),
            PlannedProbeMethod::OneWay | PlannedProbeMethod::Stamp | PlannedProbeMethod::Ping => {
                self.send_answered_probes(ready, start)
            }
            PlannedProbeMethod::Capacity => Ok(self.estimate_line_rates(ready, start)),
        };
        sent.unwrap_or_else(|error| {
            let end = ProbeLineEndReason::Failed(error.to_string());
            let failed = lines
                .iter()
                .map(|(line, planned)| ProbeLineResult::without_probes(*line, *planned, end.clone()));
            SentProbeLines { lines: failed.collect(), first: None }
        })
    }

    /// Waits for the start time; `None` if the sender is stopped before it gets one.
    fn await_start(&self, started: &Receiver<MonoTime>) -> Option<MonoTime> {
        while !self.is_stopped() {
            match started.recv_timeout(STOP_CHECK_INTERVAL) {
                Ok(at) => return Some(at),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        None
    }

    fn is_stopped(&self) -> bool {
        self.state.stop.load(Ordering::Acquire)
    }

    /// Returns whether to stop now, and records whether the lease has ended. The lease is checked first: when it ends,
    /// the agent also stops its senders, and the lease must count as the reason.
    fn must_stop(&self) -> bool {
        if self.gate.remaining_time() == Some(Nanos::ZERO) {
            self.state.lost_lease.store(true, Ordering::Release);
        }
        self.is_stopped() || self.state.lost_lease.load(Ordering::Acquire)
    }

    /// Sends probes that are answered.
    fn send_answered_probes(
        &self,
        ready: ReadyProbeSender,
        start: MonoTime,
    ) -> Result<SentProbeLines, packetrig_probe_io::Error> {
        let ReadyProbeSender { lines, listener, own_port, about, number } = ready;
        let clock = clock::measure_realtime_offset();
        let own = PortProbeIdentity { port: own_port.port(), about, number };
        let mut methods: Vec<ProbeLineMethod> =
            lines.iter().map(|line| self.build_line_method(line, &own, clock.offset_ns)).collect();
        let mut kept = Vec::with_capacity(lines.len());
        let mut asked = Vec::with_capacity(lines.len());
        for (line, method) in lines.into_iter().zip(&mut methods) {
            let ReadyProbeLine { number, way, dispatcher, departures, shift, mechanism, .. } = line;
            let ProbeLineDepartures::Scheduled(schedule) = departures else { continue };
            kept.push(SentProbeLine { number, planned: schedule.probes().len() as u64, mechanism });
            asked.push(ProbeLine { way, method: method.borrow_probe_method(), dispatcher, schedule, shift });
        }
        let options = ProbeSeriesOptions { answer: self.probes.wait, stop: &|| self.must_stop() };
        let mut listeners: Vec<_> = listener.into_iter().collect();
        let count = &mut |event: ProbeSeriesEvent<'_>| self.state.count_event(&event);
        let outcomes = ask::run_lines_from(start, &mut asked, &mut listeners, options, count)?;
        // `asked` borrows the methods that are read below.
        drop(asked);
        let clock = SessionClock { before: clock, after: clock::measure_realtime_offset() };
        Ok(self.line_results(kept, &outcomes, &methods, clock))
    }

    fn line_results(
        &self,
        kept: Vec<SentProbeLine>,
        outcomes: &[ProbeSeriesOutcome],
        methods: &[ProbeLineMethod],
        clock: SessionClock,
    ) -> SentProbeLines {
        let lost_lease = self.state.lost_lease.load(Ordering::Acquire);
        let compares = self.probes.method == PlannedProbeMethod::OneWay;
        let mut sent = SentProbeLines::default();
        for ((line, outcome), method) in kept.into_iter().zip(outcomes).zip(methods) {
            let session = method.stamp_session();
            let mut row = findings::answered_line_result(line, outcome, session, clock, compares);
            row.end = findings::end_reason_with_lease(row.end, lost_lease);
            sent.lines.push(row);
            let first = findings::find_first_probe(outcome.series.records());
            sent.first = sent.first.into_iter().chain(first).min_by_key(|first| first.due);
        }
        sent
    }

    fn build_line_method(
        &self,
        line: &ReadyProbeLine,
        own: &PortProbeIdentity,
        realtime_offset_ns: i64,
    ) -> ProbeLineMethod {
        let ends = line.way.ends;
        // The identifiers of an ICMP echo (RFC 792) and of a session (RFC 8972) have 16 bits.
        let [.., high, low] = own.number.to_be_bytes();
        let identifier = u16::from_be_bytes([high, low]);
        if self.probes.method == PlannedProbeMethod::Ping {
            return ProbeLineMethod::Echo(EchoMethod::new(ends, identifier, own.about.clone()));
        }
        let follow_up = self.probes.method != PlannedProbeMethod::Capacity;
        ProbeLineMethod::Stamp(Box::new(StampSender::new(
            ends,
            StampSenderSettings {
                ports: (own.port, line.target_port),
                key: None,
                format: TimeFormat::Ptp,
                // In RFC 8972 the value zero means that a session has no identifier.
                number: identifier.max(1),
                realtime_offset_ns,
                synchronised_ns: None,
                follow_up,
            },
        )))
    }

    /// Estimates the capacity of each line, one after the other, each in its own time slot.
    fn estimate_line_rates(&self, ready: ReadyProbeSender, start: MonoTime) -> SentProbeLines {
        let ReadyProbeSender { mut lines, listener, own_port, about, number } = ready;
        // Lines are handled in the order of their time slots, because one listener serves them one after the other.
        lines.sort_by_key(|line| line.shift);
        let own = PortProbeIdentity { port: own_port.port(), about, number };
        let mut sent = SentProbeLines::default();
        let Some(mut listener) = listener else { return sent };
        for line in lines {
            let begins = start + line.shift;
            self.wait_for_turn(begins);
            let found;
            (found, listener) = self.estimate_line_rate(line, &own, listener, begins);
            sent.append_lines(found);
        }
        sent
    }

    fn wait_for_turn(&self, begins: MonoTime) {
        while !self.must_stop() && clock::monotonic_ns() < begins.as_nanos() {
            let now = MonoTime::from_nanos(clock::monotonic_ns());
            std::thread::sleep(STOP_CHECK_INTERVAL.min(Duration::from_nanos(begins.since(now).as_u64())));
        }
    }

    fn estimate_line_rate(
        &self,
        line: ReadyProbeLine,
        own: &PortProbeIdentity,
        listener: PacketListener,
        begins: MonoTime,
    ) -> (SentProbeLines, PacketListener) {
        let method =
            self.build_line_method(&line, own, clock::measure_realtime_offset().offset_ns).into_boxed();
        let ReadyProbeLine { number, way, dispatcher, departures, mechanism, .. } = line;
        let ProbeLineDepartures::Asked(shape) = departures else {
            return (SentProbeLines::default(), listener);
        };
        let mut estimator = PairEstimator::new(PairSelection::Mode, self.probes.count as usize, shape);
        let over = begins + self.probes.slot;
        let is_over = || self.must_stop() || clock::monotonic_ns() >= over.as_nanos();
        let mut trains = TrainSender::new(&way, method, dispatcher, listener, MeasuredArrival::Far);
        trains.answer_timeout = self.probes.wait;
        let end = trains.run_estimator(&mut estimator, &is_over, &mut |_| self.state.count_sent(1));
        let is_stopped = self.must_stop();
        let lost_lease = self.state.lost_lease.load(Ordering::Acquire);
        let found = EstimatedProbeLine {
            series: trains.series(),
            end,
            answer: estimator.estimate_rate(),
            slot: self.probes.slot,
        };
        let mut row = findings::estimated_line_result(number, mechanism, &found, is_stopped);
        row.end = findings::end_reason_with_lease(row.end, lost_lease);
        let first = findings::find_first_probe(trains.records());
        (SentProbeLines { lines: vec![row], first }, trains.into_listener())
    }

    /// Sends trains that are not answered.
    fn send_unanswered_probes(
        &self,
        ready: ReadyProbeSender,
        start: MonoTime,
    ) -> Result<SentProbeLines, packetrig_probe_io::Error> {
        // The UDP port stays reserved until all lines are sent: otherwise the kernel would answer the packets that
        // come back to it.
        let ReadyProbeSender { lines, own_port, about, .. } = ready;
        let mut sent = SentProbeLines::default();
        for line in lines {
            let ReadyProbeLine { number, target_port, way, dispatcher, departures, shift, mechanism } = line;
            let ProbeLineDepartures::Scheduled(schedule) = departures else { continue };
            let ports = (own_port.port(), target_port);
            let content = ProbeContent::Datagram { ends: way.ends, ports, about: about.clone() };
            let mut aims = [ScheduleTarget { way, dispatcher, content }];
            let outcome = send::send_schedule_from(
                start + shift,
                &schedule,
                &mut aims,
                &|| self.must_stop(),
                &|probes| self.state.count_sent(probes),
            )?;
            let lost_lease = self.state.lost_lease.load(Ordering::Acquire);
            let line = SentProbeLine { number, planned: schedule.probes().len() as u64, mechanism };
            let mut row = findings::build_unanswered_line_result(line, &outcome);
            row.end = findings::end_reason_with_lease(row.end, lost_lease);
            sent.append_lines(SentProbeLines {
                lines: vec![row],
                first: findings::find_first_probe(&outcome.records),
            });
        }
        Ok(sent)
    }
}

/// Identity of a port in its probes.
struct PortProbeIdentity {
    port: u16,
    about: Option<String>,
    number: u64,
}

/// The method of a line. The series of probes only borrows the method, because the session's data is
/// read from it afterwards.
enum ProbeLineMethod {
    Stamp(Box<StampSender>),
    Echo(EchoMethod),
}

impl ProbeLineMethod {
    fn borrow_probe_method(&mut self) -> Box<dyn ProbeMethod + '_> {
        match self {
            Self::Stamp(sender) => Box::new(sender.as_mut()),
            Self::Echo(echo) => Box::new(echo),
        }
    }

    fn into_boxed(self) -> Box<dyn ProbeMethod> {
        match self {
            Self::Stamp(sender) => sender,
            Self::Echo(echo) => Box::new(echo),
        }
    }

    fn stamp_session(&self) -> Option<&StampSender> {
        if let Self::Stamp(sender) = self { Some(sender) } else { None }
    }
}
