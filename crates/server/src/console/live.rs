//! Collects counts and states from the events of a run, for rows and viewers.
//!
//! A clone of [`LiveCounts`] is cheap: samples are shared. A viewer works on a clone, so that the events of the run
//! do not wait for it.

use super::history::TotalsHistory;
use packetrig_plan::Plan;
use packetrig_report::event::{RunEvent, RunEventKind};
use packetrig_report::outcome::{RunOutcome, RunState};
use packetrig_report::{NodeName, RunId};
use packetrig_stats::counts::{SinceStart, StreamRxCounts, StreamTxCounts};
use packetrig_stats::port::PortInfo;
use packetrig_stats::result::CountSample;
use packetrig_units::{MonoTime, Nanos};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Time over which rates are averaged.
const RATE_WINDOW: Nanos = Nanos::from_millis(1_000);
/// A flow counts as stopped this long after the first sample in which it does not send, plus the delay with which
/// receivers report. It counts as stopped earlier if all its frames have arrived.
const FLOW_STOP_DELAY: Nanos = Nanos::from_millis(300);

/// Frames and bytes that a port has sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PortTotals {
    pub(super) frames_tx: u64,
    pub(super) bytes_tx: u64,
    pub(super) frames_rx: u64,
    pub(super) bytes_rx: u64,
}

#[derive(Clone, Copy, Debug)]
struct LinkState {
    is_up: bool,
    since: MonoTime,
}

/// Maximum number of findings (remarks on a run) that viewers see. The oldest one is dropped.
const MAX_FINDINGS: usize = 20;

/// A port that a node has opened.
#[derive(Clone, Debug)]
pub(super) struct OpenPort {
    pub(super) node: NodeName,
    pub(super) info: PortInfo,
}

#[derive(Clone, Debug, Default)]
pub(super) struct LiveCounts {
    pub(super) ports: Vec<OpenPort>,
    /// Grows with every event, and whenever streams are hidden or shown.
    revision: u64,
    pub(super) run: Option<RunId>,
    pub(super) state: Option<RunState>,
    pub(super) findings: VecDeque<String>,
    pub(super) history: TotalsHistory,
    /// The last sample of each node of a fleet.
    nodes: BTreeMap<NodeName, Arc<CountSample>>,
    /// Samples with the sums over all nodes, the oldest first. Each sample is sorted by stream.
    samples: VecDeque<Arc<CountSample>>,
    /// For each idle stream: the time of the first sample without sending.
    quiet_since: HashMap<usize, MonoTime>,
    /// Link state of each port, with the time of its last change.
    links: HashMap<usize, LinkState>,
    ended: Option<String>,
    /// Counts of each port when traffic last began: the baseline of the counters that clients see.
    before: HashMap<usize, PortTotals>,
    /// Streams of new flows whose counts are hidden until they start. A new flow may have the name of a removed one,
    /// whose counts it must not show.
    reborn: HashSet<usize>,
}

impl LiveCounts {
    pub(super) fn on_event(&mut self, event: &RunEvent) {
        self.revision += 1;
        if self.run.as_ref() != Some(&event.run) {
            self.reset_for_run(&event.run);
        }
        match &event.kind {
            RunEventKind::Ports { node, ports } => {
                let opened = ports.iter().map(|info| OpenPort { node: node.clone(), info: info.clone() });
                self.ports.extend(opened);
            }
            RunEventKind::StateChanged(state) => self.state = Some(*state),
            RunEventKind::Finding(text) => self.add_finding(text),
            RunEventKind::Counters { node, sample } => {
                // A node's counts are cumulative, so the last sample of each node adds up to the whole fleet.
                let others = self.nodes.iter().filter(|(other, _)| *other != node);
                let together =
                    others.fold(CountSample::clone(sample), |sum, (_, counts)| sum.merged_with(counts));
                if *node == NodeName::local() {
                    self.add_sample(together);
                } else {
                    // Each node of a fleet has its own clock, so the controller's time of the event is used.
                    self.add_sample(CountSample { at: event.at, ..together });
                    self.nodes.insert(node.clone(), Arc::new(CountSample::clone(sample)));
                }
            }
            RunEventKind::Ended(outcome) => {
                self.ended = Some(match outcome {
                    RunOutcome::Partial { reasons, .. } => reasons.join("; "),
                    RunOutcome::Failed { fault } => fault.text.clone(),
                    RunOutcome::Complete { .. } => "it is complete".to_owned(),
                    // A served run has no planned end, so it was stopped.
                    RunOutcome::Aborted => "it was stopped".to_owned(),
                });
            }
            _ => {}
        }
    }

    /// Drops the counts of an earlier run. A configuration has several runs if its first start came too late for some
    /// nodes and was repeated.
    fn reset_for_run(&mut self, run: &RunId) {
        // The revision may only grow, and the findings may say why the earlier start failed.
        let (revision, findings) = (self.revision, std::mem::take(&mut self.findings));
        *self = Self { revision, findings, run: Some(run.clone()), ..Self::default() };
    }

    fn add_finding(&mut self, text: &str) {
        if self.findings.len() == MAX_FINDINGS {
            // The oldest finding is dropped, because the latest ones describe the present state.
            self.findings.pop_front();
        }
        self.findings.push_back(text.to_owned());
    }

    /// Returns a number that grows with every change that viewers can see.
    pub(super) const fn revision(&self) -> u64 {
        self.revision
    }

    fn add_sample(&mut self, mut sample: CountSample) {
        for (stream, counts) in &sample.tx {
            if counts.is_sending {
                self.quiet_since.remove(stream);
            } else {
                // The stream gets the time of the first sample without sending. The last frames may arrive for a
                // limited time after it.
                self.quiet_since.entry(*stream).or_insert(sample.at);
            }
        }
        for (port, _, rx) in &sample.ports {
            let Some(is_up) = rx.link_up else { continue };
            let now = LinkState { is_up, since: sample.at };
            // The first report counts as the last change, because the earlier state is unknown.
            let link = self.links.entry(*port).or_insert(now);
            if link.is_up != is_up {
                *link = now;
            }
        }
        // Later look-ups use binary search, so the samples must be sorted.
        sample.tx.sort_unstable_by_key(|(stream, _)| *stream);
        sample.rx.sort_unstable_by_key(|(stream, port, _)| (*stream, *port));
        clear_stream_counts(&mut sample, &self.reborn);
        let at = sample.at;
        self.history.add_sample(&sample);
        self.samples.push_back(Arc::new(sample));
        // One sample that is at least [`RATE_WINDOW`] old is kept, because the interval of a rate begins with it.
        while self.samples.get(1).is_some_and(|second| at.since(second.at) >= RATE_WINDOW) {
            self.samples.pop_front();
        }
    }

    /// Hides the counts of these streams until they are started.
    pub(super) fn hide_stream_counts(&mut self, streams: impl IntoIterator<Item = usize>) {
        self.revision += 1;
        self.reborn.extend(streams);
        for sample in &mut self.samples {
            // A viewer may still share the sample; then this makes a copy.
            clear_stream_counts(Arc::make_mut(sample), &self.reborn);
        }
    }

    /// Shows the counts of these streams, because the streams have been started.
    pub(super) fn show_streams(&mut self, streams: &[usize]) {
        self.revision += 1;
        for stream in streams {
            self.reborn.remove(stream);
        }
    }

    /// Returns whether an echo request was answered; `None` until that is known.
    pub(super) fn ping_result(&self, number: u64) -> Option<bool> {
        self.latest_sample()?.pings.iter().find(|(of, _)| *of == number)?.1
    }

    /// Path of the file of a port's last capture; `None` if there is none.
    pub(super) fn capture_file(&self, port: usize) -> Option<&str> {
        let captures = self.latest_sample()?.captures.iter();
        captures.filter(|capture| capture.port == port).find_map(|capture| capture.file.as_deref())
    }

    pub(super) fn is_capturing(&self, port: usize) -> bool {
        let captures = self.latest_sample().map(|latest| latest.captures.as_slice()).unwrap_or_default();
        captures.iter().any(|capture| capture.port == port && capture.is_running)
    }

    /// Returns whether a port's link is up; `None` if that is not known.
    pub(super) fn link_up(&self, port: usize) -> Option<bool> {
        self.links.get(&port).map(|link| link.is_up)
    }

    /// Time of the last change of a port's link, or of its first report; `None` before that.
    pub(super) fn link_change_time(&self, port: usize) -> Option<MonoTime> {
        self.links.get(&port).map(|link| link.since)
    }

    pub(super) fn latest_sample(&self) -> Option<&CountSample> {
        self.samples.back().map(|sample| &**sample)
    }

    /// Samples of the last second and the sample before them, the oldest first.
    pub(super) fn samples(&self) -> impl Iterator<Item = &CountSample> {
        self.samples.iter().map(|sample| &**sample)
    }

    /// Reason why the run has ended; `None` while it is in progress.
    pub(super) fn end_reason(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// Returns true if a stream sends, or if its last frames may still be on their way.
    pub(super) fn is_stream_active(&self, stream: usize, all_arrived: bool) -> bool {
        let Some(latest) = self.latest_sample() else { return false };
        let Some(counts) = sent_counts(latest, stream) else { return false };
        // Receivers report with a delay. A frame that they have not reported yet must not count as missing.
        let has_settled = self
            .quiet_since
            .get(&stream)
            .is_some_and(|since| latest.at.since(*since) >= FLOW_STOP_DELAY + latest.receivers_behind);
        // A stream that has sent no frame has none in flight, even if it stopped only just now.
        counts.is_sending || (counts.frames > 0 && !all_arrived && !has_settled)
    }

    /// Returns the counts of all ports if no stream sends or is paused, otherwise `None`. When traffic is started
    /// then, the port counters that clients see begin at zero, so the caller needs these counts as their baseline.
    pub(super) fn port_totals_if_idle(&self, plan: &Plan) -> Option<HashMap<usize, PortTotals>> {
        let latest = self.latest_sample()?;
        // A paused flow continues with its counts when it is resumed, so traffic has not ended.
        let is_quiet = !latest.tx.iter().any(|(_, counts)| counts.is_sending || counts.is_paused);
        is_quiet.then(|| (0..plan.ports.len()).map(|port| (port, port_totals(plan, latest, port))).collect())
    }

    /// Subtracts these counts from the counters of ports from now on, so that the counters begin at zero.
    pub(super) fn set_counter_baseline(&mut self, before: HashMap<usize, PortTotals>) {
        self.before = before;
    }

    /// Counts of a port in `sample`, since traffic last began.
    pub(super) fn port_totals_since_start(
        &self,
        plan: &Plan,
        sample: &CountSample,
        port: usize,
    ) -> PortTotals {
        let now = port_totals(plan, sample, port);
        // Samples from before the start have smaller counts than `before`. For these, the differences are 0.
        let before = self.before.get(&port).copied().unwrap_or_default();
        PortTotals {
            frames_tx: now.frames_tx.saturating_sub(before.frames_tx),
            bytes_tx: now.bytes_tx.saturating_sub(before.bytes_tx),
            frames_rx: now.frames_rx.saturating_sub(before.frames_rx),
            bytes_rx: now.bytes_rx.saturating_sub(before.bytes_rx),
        }
    }
}

fn clear_stream_counts(sample: &mut CountSample, streams: &HashSet<usize>) {
    for (_, counts) in sample.tx.iter_mut().filter(|(stream, _)| streams.contains(stream)) {
        // Only what rows show is cleared. The totals of the run keep the frames of the removed flow.
        counts.since_start = SinceStart::default();
        counts.is_paused = false;
    }
    for (.., counts) in sample.rx.iter_mut().filter(|(stream, ..)| streams.contains(stream)) {
        counts.since_start = SinceStart::default();
    }
}

/// Returns the sender's counts of a stream; `None` if the sample has none. This is a binary search, because a sample
/// may have thousands of streams.
pub(super) fn sent_counts(sample: &CountSample, stream: usize) -> Option<&StreamTxCounts> {
    let place = sample.tx.binary_search_by_key(&stream, |(index, _)| *index).ok()?;
    Some(&sample.tx[place].1)
}

/// Returns the counts of a stream at each port that has received it, with the index of the port.
pub(super) fn find_received_counts(
    sample: &CountSample,
    stream: usize,
) -> impl Iterator<Item = (usize, &StreamRxCounts)> {
    let from = sample.rx.partition_point(|(index, ..)| *index < stream);
    let of_stream = sample.rx[from..].iter().take_while(move |(index, ..)| *index == stream);
    of_stream.map(|(_, port, counts)| (*port, counts))
}

/// Frames and bytes that a port has sent and received since the run was opened.
fn port_totals(plan: &Plan, sample: &CountSample, port: usize) -> PortTotals {
    let mut moved = PortTotals::default();
    for (stream, counts) in &sample.tx {
        if plan.streams.get(*stream).is_some_and(|stream| stream.tx == port) {
            moved.frames_tx += counts.frames;
            moved.bytes_tx += counts.bytes;
        }
    }
    if let Some((.., rx)) = sample.ports.iter().find(|(index, ..)| *index == port) {
        // `bytes` of a port includes the bytes of streams, but the frames of streams are added below.
        moved.frames_rx = rx.foreign + rx.unnumbered;
        moved.bytes_rx = rx.bytes + rx.foreign_bytes;
    }
    let received = sample.rx.iter().filter(|(_, at, _)| *at == port);
    moved.frames_rx += received.map(|(.., counts)| counts.frames).sum::<u64>();
    moved
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_report::RunId;

    #[test]
    fn node_counts_are_merged_by_controller_clock() {
        let mut live = LiveCounts::default();
        let at = |seconds: u64| MonoTime::from_nanos(seconds * 1_000_000_000);
        let mut tell = |node: &str, when: u64, sample: CountSample| {
            let kind = RunEventKind::Counters { node: NodeName(node.into()), sample: Box::new(sample) };
            live.on_event(&RunEvent { run: RunId("r".into()), at: at(when), kind });
        };
        let sender = |frames| StreamTxCounts { frames, ..StreamTxCounts::default() };
        // Its clock is far ahead.
        tell("a", 1, CountSample { at: at(900), tx: vec![(0, sender(7))], ..CountSample::default() });
        let counts = StreamRxCounts { frames: 6, ..StreamRxCounts::default() };
        tell("b", 2, CountSample { at: at(5), rx: vec![(0, 1, counts)], ..CountSample::default() });
        tell("a", 3, CountSample { at: at(902), tx: vec![(0, sender(9))], ..CountSample::default() });
        let latest = live.latest_sample().unwrap();
        assert_eq!((latest.at, sent_counts(latest, 0).unwrap().frames), (at(3), 9));
        assert_eq!(
            find_received_counts(latest, 0).map(|(port, counts)| (port, counts.frames)).collect::<Vec<_>>(),
            [(1, 6)]
        );
    }

    #[test]
    fn flow_stays_active_until_receiver_reports_catch_up() {
        let mut live = LiveCounts::default();
        let mut tell = |ms: u64, behind_ms: u64| {
            let counts = StreamTxCounts { frames: 9, is_sending: ms == 0, ..StreamTxCounts::default() };
            let at = MonoTime::from_nanos(ms * 1_000_000);
            let receivers_behind = Nanos::from_millis(behind_ms);
            let sample =
                CountSample { at, receivers_behind, tx: vec![(0, counts)], ..CountSample::default() };
            let kind = RunEventKind::Counters { node: NodeName("a".into()), sample: Box::new(sample) };
            live.on_event(&RunEvent { run: RunId("r".into()), at, kind });
            live.is_stream_active(0, false)
        };
        assert_eq!([tell(0, 0), tell(100, 100), tell(450, 200)], [true; 3], "quiet since 100 ms");
        assert!(!tell(600, 100), "the receiver knows of all that came until 500 ms");
    }
}
