//! The transmit half: an engine sends the streams and reports the number of frames.
//!
//! ```text
//!  arm:     hello -> check of its abilities -> files with frames -> prepare -> ready
//!  start:   start -> counters … -> ledger -> the process ends
//!  stop:    stop  -> ledger within `FINAL_COUNTS_TIMEOUT`, or the engine is killed
//! ```
//! The engine's counts are checked for plausibility here. At the end of the run, the port's ledger compares them with
//! the interface's own counters.
//!
//! Invariant: [`ProcessTx::send_due`] always reaches [`NextStep::Done`], and then the engine process is gone.

use super::child::EngineProcess;
use super::fault::{EngineFault, to_terminal_safe_line};
use super::lane::EngineStreamState;
use super::messages::{
    ENGINE_PROTOCOL_VERSION, EngineHello, EnginePreparation, EngineRefusal, EngineReply, EngineStream,
    EngineStreamCount, MessageToEngine,
};
use super::{EngineInterface, abilities, render};
use crate::Error;
use crate::clock::RealClock;
use crate::packet::facts::InterfaceMeter;
use crate::port::WorkerClock;
use crate::send_doubts::SendDoubts;
use crate::sender::{LATE_FRAME_THRESHOLD, LATE_SENDING_GRACE};
use crate::stream::{NextStep, SendingRecord, StreamControl, StreamTx, TxJob};
use packetrig_plan::{PlanProblem, PlanProblems};
use packetrig_stats::counts::StreamTxCounts;
use packetrig_stats::port::TxCounters;
use packetrig_stats::port_event::{PortEvent, PortEventKind};
use packetrig_stats::result::SendResult;
use packetrig_units::{MonoTime, Nanos};

/// Time limit for an engine to prepare itself.
const PREPARE_TIMEOUT: Nanos = Nanos::from_secs(60);
/// Time limit for an engine to report its final counts after a stop.
const FINAL_COUNTS_TIMEOUT: Nanos = Nanos::from_millis(2_000);
/// Time limit for an engine to exit after its last message.
const EXIT_TIMEOUT: Nanos = Nanos::from_millis(300);
/// Longest time for which a sending engine may send no message.
const MAX_ENGINE_SILENCE: Nanos = Nanos::from_secs(5);
/// Time that an engine may take beyond the end of its streams.
const ENGINE_END_TIMEOUT: Nanos = Nanos::from_secs(5);
const ENGINE_CHECK_INTERVAL: Nanos = Nanos::from_millis(5);
/// Maximum number of notes of an engine that the report shows.
const MAX_NOTES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EnginePhase {
    /// The engine has not been started yet.
    Waiting,
    Sending,
    /// The engine has received the order to stop.
    Stopping {
        since: MonoTime,
    },
    /// The engine has sent its last message.
    Leaving {
        since: MonoTime,
    },
    /// The engine process has ended.
    Over,
}

#[derive(Debug)]
pub struct ProcessTx {
    engine: EngineProcess,
    hello: EngineHello,
    site: EngineInterface,
    meter: InterfaceMeter,
    doubts: SendDoubts,
    clock: RealClock,
    lanes: Vec<EngineStreamState>,
    phase: EnginePhase,
    start: Option<MonoTime>,
    /// Time at which the run was stopped, if the engine had not sent its last message by then.
    stopped: Option<MonoTime>,
    /// Time at which the start message was sent. The engine sent no frame before it.
    ordered_at: MonoTime,
    heard_at: MonoTime,
    notes: usize,
    fault: Option<EngineFault>,
}

impl ProcessTx {
    pub(super) fn new(
        engine: EngineProcess,
        hello: EngineHello,
        site: EngineInterface,
        meter: InterfaceMeter,
        doubts: SendDoubts,
    ) -> Self {
        Self {
            engine,
            hello,
            site,
            meter,
            doubts,
            clock: RealClock::new(),
            lanes: Vec::new(),
            phase: EnginePhase::Waiting,
            start: None,
            stopped: None,
            ordered_at: MonoTime::default(),
            heard_at: MonoTime::default(),
            notes: 0,
            fault: None,
        }
    }

    fn prepare_streams(&mut self, job: &TxJob) -> Result<EnginePreparation, Error> {
        // This is checked before files are written: a refused plan leaves no files behind.
        let needs = abilities::check_streams(&self.hello, &job.streams)?;
        let mut streams = Vec::with_capacity(job.streams.len());
        for (spec, need) in job.streams.iter().zip(needs) {
            let template = spec
                .source
                .template()
                .ok_or(Error::Bug("an engine received a stream from a capture file"))?;
            let size = &template.spec().size;
            let bytes = [size.min_size(), size.max_size()].map(|size| size.kernel_len() as u64);
            let capture = render::write_capture(self.engine.directory(), spec, template, need, job.key)?;
            streams.push(EngineStream::new(spec.number, &spec.timeline, bytes, capture));
            self.lanes.push(EngineStreamState::new(spec.clone(), bytes, job.streams.len()));
        }
        Ok(EnginePreparation {
            protocol: ENGINE_PROTOCOL_VERSION,
            interface: self.site.interface.clone(),
            link_bits_per_second: self.site.link_bits_per_second,
            directory: self.engine.directory().to_owned(),
            streams,
        })
    }

    fn await_ready(&mut self, preparation: &EnginePreparation) -> Result<(), Error> {
        let failed =
            |fault: EngineFault| Error::Engine { engine: self.hello.name.clone(), reason: fault.to_string() };
        self.engine.send_message(&MessageToEngine::Prepare(preparation)).map_err(failed)?;
        loop {
            match self.engine.await_reply("ready", PREPARE_TIMEOUT).map_err(failed)? {
                EngineReply::Ready => return Ok(()),
                EngineReply::Refused(refusal) => return Err(refusal_error(&self.hello, &refusal)),
                EngineReply::Note { text } => add_note(&self.doubts, &mut self.notes, &self.hello, &text),
                EngineReply::Failed { text } => {
                    return Err(failed(EngineFault::GaveUp(to_terminal_safe_line(&text))));
                }
                other => return Err(failed(EngineFault::Unexpected(other.name()))),
            }
        }
    }

    fn start_engine(&mut self, start: MonoTime) {
        let now = self.clock.now();
        self.ordered_at = now;
        // Silence counts from the start of sending, which may be in the future.
        self.heard_at = now.max(start);
        self.phase = EnginePhase::Sending;
        // Both forms of the time are sent: an engine without CLOCK_MONOTONIC can wait for the difference.
        let order = MessageToEngine::Start { at_ns: start.as_nanos(), in_ns: start.since(now).as_u64() };
        if let Err(fault) = self.engine.send_message(&order) {
            self.fail_engine(fault);
        }
    }

    fn ask_engine_to_stop(&mut self, now: MonoTime) {
        // An engine that was not told to start has sent nothing, so no ledger is awaited.
        if matches!(self.phase, EnginePhase::Waiting) {
            self.kill_engine();
        }
        if matches!(self.phase, EnginePhase::Sending) {
            self.phase = EnginePhase::Stopping { since: now };
            if let Err(fault) = self.engine.send_message(&MessageToEngine::Stop) {
                self.fail_engine(fault);
            }
        }
    }

    fn kill_engine(&mut self) {
        self.engine.kill_group();
        self.phase = EnginePhase::Over;
    }

    fn fail_engine(&mut self, fault: EngineFault) {
        // The first fault is the cause; later ones follow from it.
        self.fault.get_or_insert(fault);
        self.kill_engine();
    }

    /// Handles the messages that the engine has sent.
    fn read_replies(&mut self, now: MonoTime) -> Result<(), EngineFault> {
        loop {
            let reply = match self.engine.receive_reply(now) {
                Ok(Some(reply)) => reply,
                Ok(None) => return Ok(()),
                // The engine may exit after its last message.
                Err(_) if matches!(self.phase, EnginePhase::Leaving { .. }) => {
                    self.kill_engine();
                    return Ok(());
                }
                Err(fault) => return Err(fault),
            };
            // `heard_at` may be in the future: a message before the start must not shorten the
            // silence allowed after it.
            self.heard_at = self.heard_at.max(now);
            match reply {
                EngineReply::Note { text } => add_note(&self.doubts, &mut self.notes, &self.hello, &text),
                EngineReply::Failed { text } => {
                    return Err(EngineFault::GaveUp(to_terminal_safe_line(&text)));
                }
                EngineReply::Counters { streams } if self.is_sending() => {
                    self.update_counts(&streams, now)?;
                }
                EngineReply::Ledger { streams } if self.is_sending() => {
                    self.update_counts(&streams, now)?;
                    self.check_ledger(&streams)?;
                    // End of file tells the engine that it may exit.
                    self.engine.close_input();
                    self.phase = EnginePhase::Leaving { since: now };
                }
                other => return Err(EngineFault::Unexpected(other.name())),
            }
        }
    }

    const fn is_sending(&self) -> bool {
        matches!(self.phase, EnginePhase::Sending | EnginePhase::Stopping { .. })
    }

    fn update_counts(&mut self, streams: &[EngineStreamCount], now: MonoTime) -> Result<(), EngineFault> {
        let start = self.start.unwrap_or(now);
        for told in streams {
            let lane = self.lanes.iter_mut().find(|lane| lane.spec.number == told.stream);
            let lane = lane.ok_or_else(|| {
                EngineFault::Impossible(format!(
                    "it reports counts of stream {}, which it does not send",
                    told.stream
                ))
            })?;
            // An engine that begins too early gets a doubt in the report. Before the start message it
            // cannot have sent anything.
            lane.update_counts(*told, start, (self.ordered_at.min(start), now))
                .map_err(EngineFault::Impossible)?;
        }
        Ok(())
    }

    /// Checks that a ledger names every stream.
    fn check_ledger(&self, streams: &[EngineStreamCount]) -> Result<(), EngineFault> {
        match self.lanes.iter().find(|lane| !streams.iter().any(|told| told.stream == lane.spec.number)) {
            None => Ok(()),
            Some(lane) => {
                let text = format!("its ledger has no entry for stream {}", lane.spec.number);
                Err(EngineFault::Impossible(text))
            }
        }
    }

    /// Stops or kills an engine that exceeds a time limit.
    fn check_engine_timeouts(&mut self, now: MonoTime) {
        match self.phase {
            EnginePhase::Sending if now > self.heard_at + MAX_ENGINE_SILENCE => {
                self.fail_engine(EngineFault::Silent(now.since(self.heard_at)));
            }
            EnginePhase::Sending => {
                // The engine is asked to end and not killed, because its ledger is still needed.
                if self.is_overdue(now) {
                    self.ask_engine_to_stop(now);
                }
            }
            EnginePhase::Stopping { since } if now > since + FINAL_COUNTS_TIMEOUT => {
                self.fail_engine(EngineFault::NoReply { what: "ledger", within: FINAL_COUNTS_TIMEOUT });
            }
            EnginePhase::Leaving { since } if now > since + EXIT_TIMEOUT => self.kill_engine(),
            EnginePhase::Waiting
            | EnginePhase::Stopping { .. }
            | EnginePhase::Leaving { .. }
            | EnginePhase::Over => {}
        }
    }

    /// Returns whether all streams should have ended by now, with a reserve; false if one of them is endless.
    fn is_overdue(&self, now: MonoTime) -> bool {
        let Some(start) = self.start else { return false };
        let latest_ends = self.lanes.iter().map(EngineStreamState::latest_end);
        let ends: Option<Vec<Nanos>> = latest_ends.collect();
        // One endless stream makes the whole job endless.
        let end = ends.and_then(|ends| ends.into_iter().max());
        end.is_some_and(|end| now > start + end + LATE_SENDING_GRACE + ENGINE_END_TIMEOUT)
    }

    /// Adds a doubt if the engine started late or early.
    fn report_start_offset(&self) {
        let Some(start) = self.start else { return };
        let Self { hello, site, .. } = self;
        let most = |of: fn(&EngineStreamState, MonoTime) -> Option<Nanos>| {
            self.lanes
                .iter()
                .filter_map(|lane| of(lane, start))
                .max()
                .filter(|time| *time > LATE_FRAME_THRESHOLD)
        };
        for (time, word) in
            [(most(EngineStreamState::start_lag), "late"), (most(EngineStreamState::start_lead), "early")]
        {
            if let Some(time) = time {
                self.doubts
                    .add_doubt(format!("{}: engine {} started {time} {word}", site.interface, hello.name));
            }
        }
    }

    /// Describes a fault of the engine in words.
    fn describe_engine_fault(&self) -> Option<String> {
        let fault = self.fault.as_ref()?;
        Some(format!("engine {} failed: {fault}; its count of sent frames is uncertain", self.hello.name))
    }
}

impl StreamTx for ProcessTx {
    fn arm_sender(&mut self, job: TxJob) -> Result<(), Error> {
        let preparation = self.prepare_streams(&job)?;
        self.await_ready(&preparation)
    }

    fn apply_control(&mut self, control: StreamControl) {
        match control {
            StreamControl::StartAt(start) if self.start.is_none() && self.stopped.is_none() => {
                self.start = Some(start);
                if self.phase == EnginePhase::Waiting {
                    self.start_engine(start);
                }
            }
            StreamControl::StartAt(_) => {}
            StreamControl::Stop => {
                let now = self.clock.now();
                if self.stopped.is_none() && (self.is_sending() || self.phase == EnginePhase::Waiting) {
                    self.stopped = Some(now);
                }
                self.ask_engine_to_stop(now);
            }
        }
    }

    fn send_due(&mut self, now: MonoTime) -> Result<NextStep, Error> {
        if self.phase == EnginePhase::Over {
            return Ok(NextStep::Done);
        }
        let heard = self.read_replies(now);
        match heard {
            Ok(()) => self.check_engine_timeouts(now),
            Err(fault) => self.fail_engine(fault),
        }
        if self.phase == EnginePhase::Over {
            self.report_start_offset();
            return Ok(NextStep::Done);
        }
        // At the end of a run the caller repeats this call without waiting, which would keep a processor busy.
        if !matches!(self.phase, EnginePhase::Waiting | EnginePhase::Sending) {
            self.clock.wait_until(self.clock.now() + ENGINE_CHECK_INTERVAL);
        }
        Ok(NextStep::IdleUntil(now + ENGINE_CHECK_INTERVAL))
    }

    fn stream_counts(&self) -> Vec<StreamTxCounts> {
        let is_sending = self.is_sending();
        self.lanes.iter().map(|lane| lane.stream_counts(self.start, is_sending)).collect()
    }

    fn port_counters(&mut self) -> Result<TxCounters, Error> {
        // The interface is read after the engine's counts: otherwise it would lack frames that
        // the engine counts already.
        let refused: u64 = self.lanes.iter().map(EngineStreamState::refused_frames).sum();
        let taken: u64 = self.lanes.iter().map(EngineStreamState::attempted_frames).sum();
        // Refused frames never reached the interface, so its counters lack them.
        let sent = taken - refused;
        let interface = self.meter.read_counters();
        Ok(TxCounters {
            handed_over: sent,
            refused,
            on_wire: interface.map(|counters| counters.tx_frames),
            dropped: interface.map(|counters| {
                crate::packet::frames_lost_on_transmit(sent, counters.tx_frames, counters.tx_dropped)
            }),
        })
    }

    fn sending_record(&self) -> SendingRecord {
        let stalls = self.fault.iter().map(|_| PortEvent {
            what: PortEventKind::EngineFailed,
            // It is unknown since when the counts are wrong, so the whole run is in doubt.
            from: self.start.unwrap_or_default(),
            until: None,
            only_sending: true,
        });
        SendingRecord {
            stalls: stalls.collect(),
            peaks: None,
            ahead: Vec::new(),
            fault: self.describe_engine_fault(),
        }
    }

    fn finish_sending(&mut self) -> Vec<SendResult> {
        if self.phase != EnginePhase::Over {
            self.fail_engine(EngineFault::NoReply { what: "ledger", within: FINAL_COUNTS_TIMEOUT });
        }
        let (start, stopped) = (self.start, self.stopped);
        self.lanes.drain(..).map(|lane| lane.into_result(start, stopped)).collect()
    }
}

fn add_note(doubts: &SendDoubts, notes: &mut usize, hello: &EngineHello, text: &str) {
    // The number of notes is bounded: a chatty engine must not fill the report.
    if *notes < MAX_NOTES {
        *notes += 1;
        doubts.add_doubt(format!("engine {}: {}", hello.name, to_terminal_safe_line(text)));
    }
}

/// Turns a refusal of the engine into an error of the plan.
fn refusal_error(hello: &EngineHello, refusal: &EngineRefusal) -> Error {
    let [feature, needs, found] =
        [&refusal.feature, &refusal.needs, &refusal.found].map(|text| to_terminal_safe_line(text));
    let path = refusal.stream.map_or_else(|| "flows".to_owned(), |stream| format!("flows[{stream}]"));
    let message = format!("engine {} cannot do this: {feature} needs {needs}; found {found}", hello.name);
    Error::Plan(PlanProblems(vec![PlanProblem::error(path, message)]))
}
