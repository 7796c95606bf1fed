//! Services for a run on a fleet: the run's record, the collected results, the clocks of its nodes.

use super::collector::{CollectorEvent, KnownFrameCounts, SegmentCollector, StoredPart};
use super::findings::ReportedFindings;
use super::leadership::FleetLeadership;
use super::record_writer::{RecordWriter, WrittenRecord};
use super::shares::{NodeRunParts, StreamSenders};
use crate::agent::now;
use crate::control::{LocalRunEvent, RecordState, RunServices};
use crate::error::Error;
use packetrig_fleet::controller::{ControllerEvent, RunRecord};
use packetrig_fleet::fabric;
use packetrig_fleet::hello::NodeHello;
use packetrig_fleet::members::{FleetMembers, MemberChange};
use packetrig_fleet::message::{MessageBody, NodeCommand, NodeReply, StoredWatermark};
use packetrig_report::outcome::RunState;
use packetrig_report::{NodeName, RunId};
use packetrig_stats::clock::{ClockFit, ClockRecord};
use packetrig_stats::result::CountSample;
use packetrig_units::Nanos;
use packetrig_units::text::one_line;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Longest finding, in characters.
const MAX_FINDING_CHARACTERS: usize = 4096;

/// How far the latest record is written.
#[derive(Clone, Copy, Debug)]
enum RecordWriteState {
    /// The record is not written here, because another controller writes it.
    Nothing,
    Record {
        /// True if the commands after the record let senders start.
        gives_start: bool,
    },
    /// The record is not written, so the command is not sent: it would start senders, which this controller
    /// must not do any more.
    Refused,
}

pub(super) struct FleetRunServices<'a> {
    run: RunId,
    /// The current attempt; results of other attempts do not count.
    attempt: u32,
    writer: RecordWriter,
    writing: RecordWriteState,
    members: &'a mut FleetMembers,
    collector: &'a SegmentCollector,
    leadership: &'a FleetLeadership,
    clocks: BTreeMap<NodeName, ClockFit>,
    /// Latest counts that nodes have reported.
    counted: BTreeMap<NodeName, KnownFrameCounts>,
    news: VecDeque<LocalRunEvent>,
    /// Watermark of each node: the end of its stored segments.
    marks: BTreeMap<NodeName, StoredWatermark>,
    is_deposed: bool,
    /// Findings that were reported already.
    reported: ReportedFindings,
    /// Nodes with machines that were reported to be overloaded.
    overloaded: BTreeSet<NodeName>,
    /// Number of segments of each node that were refused and will never be stored.
    refused: BTreeMap<NodeName, u64>,
    /// Parts of the run for each node; `None`: every node gets the whole run.
    shares: Option<NodeRunParts>,
    senders: StreamSenders,
    /// True if this controller must not change the run's record.
    writes_no_record: bool,
}

impl<'a> FleetRunServices<'a> {
    pub(super) fn new(
        run: RunId,
        writer: RecordWriter,
        members: &'a mut FleetMembers,
        collector: &'a SegmentCollector,
        leadership: &'a FleetLeadership,
    ) -> Self {
        Self {
            run,
            attempt: 1,
            writer,
            writing: RecordWriteState::Nothing,
            members,
            collector,
            leadership,
            clocks: BTreeMap::new(),
            counted: BTreeMap::new(),
            news: VecDeque::new(),
            marks: BTreeMap::new(),
            is_deposed: false,
            reported: ReportedFindings::default(),
            overloaded: BTreeSet::new(),
            refused: BTreeMap::new(),
            shares: None,
            senders: StreamSenders::default(),
            writes_no_record: false,
        }
    }

    /// Sets the parts of the run that each node gets; `None`: every node gets the whole run.
    pub(super) fn set_shares(&mut self, shares: Option<NodeRunParts>) {
        self.shares = shares;
    }

    /// Sets the sender of each stream. Entries of other nodes about a stream are dropped from replies.
    pub(super) fn set_senders(&mut self, senders: StreamSenders) {
        self.senders = senders;
    }

    /// Sets whether this controller leaves the run's record unchanged.
    pub(super) const fn set_writes_no_record(&mut self, writes_none: bool) {
        self.writes_no_record = writes_none;
    }

    /// Adds the stored results of an attempt that another controller began.
    pub(super) fn add_stored_parts(&mut self, attempt: u32, on_hand: Vec<StoredPart>) {
        self.attempt = attempt;
        for part in on_hand {
            self.on_part_stored(part);
        }
    }

    /// Returns the last watermark of each node, when the run is over.
    pub(super) fn final_watermarks(self) -> BTreeMap<NodeName, StoredWatermark> {
        self.marks
    }

    fn on_part_stored(&mut self, part: StoredPart) {
        let StoredPart { node, mark, contents, completed } = part;
        self.news.push_back(LocalRunEvent::Post(node.clone(), MessageBody::Stored(mark.clone())));
        // The report of an earlier run has become more complete. This run has no use for that result.
        if let Some(completed) = completed {
            self.report_finding(completed);
            return;
        }
        if mark.run != self.run {
            return;
        }
        self.marks.insert(node.clone(), mark.clone());
        // The node may delete the results of an earlier attempt, but they do not count for this attempt.
        if mark.attempt != self.attempt {
            return;
        }
        if let Some(unfinished) = contents.cut_short {
            // The reported counts of the node may be newer than its saved counts.
            let unfinished = unfinished.with_counts(self.counted.get(&node).copied());
            self.report_finding(format!("node {node} did not finish: {unfinished}"));
            self.news.push_back(LocalRunEvent::Event(ControllerEvent::Unfinished(node.clone())));
        } else {
            let doubts = contents.doubts.into_iter().map(|doubt| format!("node {doubt}"));
            self.news.extend(doubts.map(|doubt| LocalRunEvent::Event(ControllerEvent::Doubted(doubt))));
        }
        contents.elsewhere.into_iter().for_each(|capture| self.report_finding(format!("node {capture}")));
        // The result comes last, because it may end the run, and no news is read after that.
        if let Some(result) = contents.result {
            self.news.push_back(LocalRunEvent::Event(ControllerEvent::Collected(node, result)));
        }
    }

    /// Reports the number of refused segments of a node at the first, the tenth, the hundredth one and so on, because
    /// a node can send many.
    fn report_refused(&mut self, node: &NodeName, count: u64, why: &str) {
        let before = self.refused.get(node).copied().unwrap_or(0);
        let all = before.saturating_add(count);
        self.refused.insert(node.clone(), all);
        // The number of digits has grown; `None` means 0.
        if before.checked_ilog10() != all.checked_ilog10() {
            self.report_finding(format!(
                "node {node}: this controller refused segments of its results (number: {all}): {why}"
            ));
        }
    }

    /// Reports a finding once, as one line. Parts of it come from nodes, and a line break in them could imitate a
    /// line of packetrig itself.
    fn report_finding(&mut self, text: String) {
        let text = one_line(&text, MAX_FINDING_CHARACTERS);
        if self.reported.admit_finding(&text) {
            self.news.push_back(LocalRunEvent::Finding(text));
        }
    }
}

impl RunServices for FleetRunServices<'_> {
    fn next_local_event(&mut self) -> Result<Option<LocalRunEvent>, Error> {
        if self.leadership.is_lost() && !std::mem::replace(&mut self.is_deposed, true) {
            return Ok(Some(LocalRunEvent::Event(ControllerEvent::Deposed)));
        }
        match self.collector.next_event() {
            Some(CollectorEvent::Stored(arrival)) => self.on_part_stored(*arrival),
            Some(CollectorEvent::Trouble(text)) => self.report_finding(text),
            Some(CollectorEvent::Refused { node, count, why }) => self.report_refused(&node, count, &why),
            None => {}
        }
        Ok(self.news.pop_front())
    }

    fn command_for_node(&self, node: &NodeName, command: NodeCommand) -> NodeCommand {
        match (&self.shares, command) {
            (Some(shares), NodeCommand::Prepare(whole)) => {
                NodeCommand::Prepare(shares.build_preparation_for_node(node, whole))
            }
            (Some(shares), NodeCommand::Finish { sent }) => {
                NodeCommand::Finish { sent: shares.sent_totals_of_streams_received_by(node, &sent) }
            }
            (_, command) => command,
        }
    }

    fn filter_reply(&self, from: &NodeName, reply: NodeReply) -> NodeReply {
        self.senders.filter_reply(from, reply)
    }

    fn on_hello(&mut self, from: &NodeName, hello: NodeHello) {
        for trouble in &hello.troubles {
            self.report_finding(format!("node {from}: {trouble}"));
        }
        if let Some(overload) = hello.describe_overload() {
            self.news.push_back(LocalRunEvent::Event(ControllerEvent::Starved(from.clone(), hello.starved)));
            if self.overloaded.insert(from.clone()) {
                self.report_finding(format!("node {from}: {overload}"));
            }
        }
        for change in self.members.on_hello(from, hello, now()) {
            if matches!(change, MemberChange::Restarted { .. }) {
                self.news.push_back(LocalRunEvent::Event(ControllerEvent::Restarted(from.clone())));
            }
        }
    }

    fn on_sample(&mut self, from: &NodeName, sample: &CountSample) {
        let counts = KnownFrameCounts::from_sample(sample);
        self.counted.entry(from.clone()).and_modify(|known| *known = known.max(counts)).or_insert(counts);
    }

    fn on_clock_record(&mut self, from: NodeName, record: ClockRecord) {
        self.clocks.insert(from, record.before);
    }

    fn clock_fits(&self, node: &NodeName) -> Option<Vec<(NodeName, ClockFit)>> {
        Some(match &self.shares {
            Some(shares) => shares.clock_fits_of_senders_to(node, &self.clocks),
            None => self.clocks.iter().map(|(node, fit)| (node.clone(), *fit)).collect(),
        })
    }

    fn save_record(&mut self, record: RunRecord) {
        self.attempt = record.head.attempt;
        self.writing = match record.state {
            // A controller that could not refresh its record for long may have been replaced: it must not start
            // senders.
            RunState::Committed | RunState::Confirmed if !self.leadership.may_commit() => {
                RecordWriteState::Refused
            }
            _ if self.writes_no_record => RecordWriteState::Nothing,
            state => {
                self.writer.queue_record(record);
                RecordWriteState::Record {
                    gives_start: matches!(state, RunState::Committed | RunState::Confirmed),
                }
            }
        };
    }

    fn await_record_state(&mut self, within: Nanos) -> Result<RecordState, Error> {
        let gives_start = match self.writing {
            RecordWriteState::Nothing => return Ok(RecordState::Kept),
            RecordWriteState::Refused => return Ok(RecordState::Deposed),
            RecordWriteState::Record { gives_start } => gives_start,
        };
        let Some(outcome) = self.writer.next_outcome(within) else { return Ok(RecordState::Pending) };
        match outcome {
            Ok(WrittenRecord { not_noted }) => {
                if let Some(why) = not_noted {
                    self.report_finding(format!("cannot save the state of the run in the catalogue: {why}"));
                }
                // The leadership is checked again, because writing the record may have taken long.
                let may_go_on = !gives_start || self.leadership.may_commit();
                Ok(if may_go_on { RecordState::Kept } else { RecordState::Deposed })
            }
            Err(fabric::Error::Stale(_) | fabric::Error::Exists(_)) => Ok(RecordState::Deposed),
            // Without this record, a later controller would not know that senders may be running.
            Err(error) if gives_start => Err(error.into()),
            // This state starts no sender. Only the record is out of date, and the run continues.
            Err(error) => {
                self.report_finding(format!("cannot write the record of the run: {error}"));
                Ok(RecordState::Kept)
            }
        }
    }
}
