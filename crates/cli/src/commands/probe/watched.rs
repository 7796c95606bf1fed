//! Shows the probes of this process to viewers: each series appears as a stream, and an answer as a received frame.

use crate::commands::run_viewer::ViewerServer;
use packetrig_probe::series::MeasuredTime;
use packetrig_probe_cli::{SeriesViewer, ViewedSeries};
use packetrig_server::{
    LatencyFigures, LiveLosses, LiveRun, LiveSource, LiveState, LiveStream, LiveTotals, ReceivedStream,
    ServedRig, TransmitState,
};
use packetrig_stats::live_loss::LiveLoss;
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SECOND_NS: u64 = 1_000_000_000;

/// Serves viewers of these series until the returned value is dropped.
pub(super) fn open_viewer(name: &str, series: Vec<ViewedSeries>) -> Box<dyn SeriesViewer> {
    let counts = series.iter().map(|_| SeriesCounts::default()).collect();
    let watched = Arc::new(WatchedSeries { began: monotonic_now(), series, counts: Mutex::new(counts) });
    let rig = ServedRig { live: Some(Arc::clone(&watched) as _), ..ServedRig::default() };
    Box::new(ServedSeries { watched, _server: ViewerServer::start(rig, name) })
}

fn monotonic_now() -> MonoTime {
    MonoTime::from_nanos(clock::monotonic_ns())
}

struct ServedSeries {
    watched: Arc<WatchedSeries>,
    /// The server for viewers; `None` if it could not start. The probes run without it, too.
    _server: Option<ViewerServer>,
}

impl SeriesViewer for ServedSeries {
    fn count_probe(&self, series: usize, number: u32) {
        // The clock is read before the lock is taken: a viewer that copies the counts must not make
        // the probe look late.
        let now = monotonic_now();
        let watched = &self.watched;
        if let (Some(counts), Some(series)) =
            (watched.lock_counts().get_mut(series), watched.series.get(series))
        {
            counts.count_probe(number, now, series.answer_within);
        }
    }

    fn count_answer(&self, series: usize, number: u32, took: Option<MeasuredTime>) {
        let now = monotonic_now();
        if let Some(counts) = self.watched.lock_counts().get_mut(series) {
            counts.count_answer(number, now, took);
        }
    }
}

struct WatchedSeries {
    began: MonoTime,
    series: Vec<ViewedSeries>,
    counts: Mutex<Vec<SeriesCounts>>,
}

impl WatchedSeries {
    /// Locks also after a panic: a viewer that panicked must not end the probes.
    fn lock_counts(&self) -> MutexGuard<'_, Vec<SeriesCounts>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveSource for WatchedSeries {
    fn revision(&self) -> u64 {
        // Each probe, answer and second changes the revision. With time alone, rates fall and probes become lost.
        let events: u64 = self.lock_counts().iter().map(|counts| counts.sent + counts.answered).sum();
        events.wrapping_add(monotonic_now().since(self.began).as_u64() / SECOND_NS)
    }

    fn live_state(&self) -> LiveState {
        let now = monotonic_now();
        // The counts are copied, because the thread that sends probes must not wait while viewers are served.
        let counts = self.lock_counts().clone();
        let streams: Vec<LiveStream> =
            self.series.iter().zip(&counts).map(|(series, counts)| counts.to_stream(series, now)).collect();
        let elapsed = now.since(self.began);
        let losses = streams.iter().filter_map(|stream| stream.received).map(|received| received.loss);
        let loss = losses.fold(LiveLoss::default(), LiveLoss::plus);
        let run = LiveRun {
            state: Some("sending".to_owned()),
            sampled_wall_ns: Some(clock::wall_clock_ns()),
            elapsed,
            totals: sum_totals(&streams, &counts, elapsed),
            // There are no counts of ports for probes, so it is not known where a probe was lost.
            losses: LiveLosses { loss, in_motion: true, ..LiveLosses::default() },
            streams,
            ..LiveRun::default()
        };
        // One command has one set of series, so the configuration never changes.
        LiveState { revision: self.revision(), configuration: 1, run: Some(run) }
    }
}

fn sum_totals(streams: &[LiveStream], counts: &[SeriesCounts], elapsed: Nanos) -> LiveTotals {
    let mut totals = LiveTotals { started: streams.len(), ..LiveTotals::default() };
    totals.counts.elapsed = elapsed;
    for stream in streams {
        totals.counts.frames_tx += stream.frames_tx;
        totals.counts.bytes_tx += stream.bytes_tx;
        totals.frames_tx_rate += stream.frames_tx_rate;
        totals.bytes_tx_rate += stream.bytes_tx_rate;
        let received = stream.received.unwrap_or_default();
        totals.counts.frames_rx += received.frames;
        totals.counts.bytes_rx += received.bytes;
        totals.counts.gaps += received.loss.lost;
        totals.frames_rx_rate += received.frames_rate;
        totals.bytes_rx_rate += received.bytes_rate;
    }
    // A mean of the means would give a series with few answers too much weight.
    let mut all = AnswerTimeSum::default();
    for counts in counts {
        all.add_sum(&counts.times);
    }
    totals.latency = all.figures();
    totals
}

/// Live counts of the probes of one series.
#[derive(Clone, Debug, Default)]
struct SeriesCounts {
    sent: u64,
    answered: u64,
    /// Probes without an answer before their deadline.
    lost: u64,
    /// Probes that may still be answered in time, in the order in which they left.
    waiting: VecDeque<WaitingProbe>,
    sent_rate: EventsPerSecond,
    answer_rate: EventsPerSecond,
    times: AnswerTimeSum,
}

impl SeriesCounts {
    fn count_probe(&mut self, number: u32, now: MonoTime, answer_within: Nanos) {
        self.count_lost(now);
        self.waiting.push_back(WaitingProbe { number, deadline: now + answer_within, is_answered: false });
        self.sent += 1;
        self.sent_rate.count_event(now);
    }

    fn count_answer(&mut self, number: u32, now: MonoTime, took: Option<MeasuredTime>) {
        // An answer that comes at its deadline is late, as in the result of the series.
        self.count_lost(now);
        self.answered += 1;
        match self.waiting.iter_mut().rfind(|probe| probe.number == number) {
            Some(probe) => probe.is_answered = true,
            // The answer comes late: the probe was already counted as lost.
            None => self.lost = self.lost.saturating_sub(1),
        }
        self.answer_rate.count_event(now);
        if let Some(took) = took {
            self.times.add_time(took);
        }
    }

    fn count_lost(&mut self, now: MonoTime) {
        while let Some(probe) = self.waiting.pop_front_if(|probe| probe.deadline <= now) {
            self.lost += u64::from(!probe.is_answered);
        }
    }

    fn to_stream(&self, series: &ViewedSeries, now: MonoTime) -> LiveStream {
        let mut counts = self.clone();
        counts.count_lost(now);
        let loss = LiveLoss::new(self.sent, self.answered, counts.lost, true);
        let (sent_rate, answer_rate) =
            (self.sent_rate.last_second_rate(now), self.answer_rate.last_second_rate(now));
        LiveStream {
            name: series.name.clone(),
            port_tx: series.interface.clone(),
            port_rx: series.target.clone(),
            state: TransmitState::Started,
            frames_tx: self.sent,
            bytes_tx: self.sent * series.frame_bytes,
            received: Some(ReceivedStream {
                frames: self.answered,
                bytes: self.answered * series.frame_bytes,
                frames_rate: answer_rate,
                bytes_rate: answer_rate * series.frame_bytes as f64,
                loss,
                latency: self.times.figures(),
            }),
            frames_tx_rate: sent_rate,
            bytes_tx_rate: sent_rate * series.frame_bytes as f64,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct WaitingProbe {
    number: u32,
    /// An answer at this time or later is late.
    deadline: MonoTime,
    is_answered: bool,
}

/// Events in the current and in the last whole second of the monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
struct EventsPerSecond {
    second: u64,
    in_second: u64,
    in_last_second: u64,
}

impl EventsPerSecond {
    fn count_event(&mut self, now: MonoTime) {
        *self = self.advance_to(now);
        self.in_second += 1;
    }

    fn advance_to(self, now: MonoTime) -> Self {
        // The rate is that of a whole second of the clock and not of the last 1000 ms, because that needs two numbers
        // instead of a list of times.
        let second = now.as_nanos() / SECOND_NS;
        match second - self.second {
            0 => self,
            1 => Self { second, in_second: 0, in_last_second: self.in_second },
            _ => Self { second, in_second: 0, in_last_second: 0 },
        }
    }

    /// Returns the number of events in the last whole second before `now`.
    fn last_second_rate(self, now: MonoTime) -> f64 {
        self.advance_to(now).in_last_second as f64
    }
}

/// Number, sum and range of the times that answers took, in ns.
#[derive(Clone, Copy, Debug, Default)]
struct AnswerTimeSum {
    answers: u64,
    sum: f64,
    range: Option<(f64, f64)>,
}

impl AnswerTimeSum {
    fn add_time(&mut self, took: MeasuredTime) {
        let ns = took.ns as f64;
        self.add_sum(&Self { answers: 1, sum: ns, range: Some((ns, ns)) });
    }

    fn add_sum(&mut self, other: &Self) {
        self.answers += other.answers;
        self.sum += other.sum;
        self.range = match (self.range, other.range) {
            (Some((least, most)), Some((low, high))) => Some((least.min(low), most.max(high))),
            (range, None) | (None, range) => range,
        };
    }

    fn figures(&self) -> Option<LatencyFigures> {
        // Without an answer there is no range, and a mean would divide by zero.
        let (minimum, maximum) = self.range?;
        Some(LatencyFigures { minimum, average: self.sum / self.answers as f64, maximum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Nanos = Nanos::from_millis(500);

    fn at_ms(ms: u64) -> MonoTime {
        MonoTime::from_nanos(10 * SECOND_NS + ms * 1_000_000)
    }

    fn series() -> ViewedSeries {
        ViewedSeries {
            name: "round trip to 198.18.0.2".to_owned(),
            interface: "a0".to_owned(),
            target: "198.18.0.2".to_owned(),
            frame_bytes: 64,
            answer_within: WAIT,
        }
    }

    #[test]
    fn unanswered_probe_is_lost_after_its_deadline() {
        let mut counts = SeriesCounts::default();
        counts.count_probe(0, at_ms(0), WAIT);
        counts.count_probe(1, at_ms(100), WAIT);
        counts.count_answer(1, at_ms(101), Some(MeasuredTime { ns: 1_000_000, bound_ns: 0 }));
        let loss_at =
            |counts: &SeriesCounts, ms| counts.to_stream(&series(), at_ms(ms)).received.unwrap().loss;
        assert_eq!(loss_at(&counts, 400), LiveLoss { lost: 0, in_flight_or_lost: 1 });
        assert_eq!(loss_at(&counts, 700), LiveLoss { lost: 1, in_flight_or_lost: 0 });
        // Answers to later probes hide no loss.
        counts.count_probe(2, at_ms(750), WAIT);
        counts.count_answer(2, at_ms(751), None);
        assert_eq!(loss_at(&counts, 800), LiveLoss { lost: 1, in_flight_or_lost: 0 });
        // A late answer takes the loss back.
        counts.count_answer(0, at_ms(900), None);
        assert_eq!(loss_at(&counts, 901), LiveLoss { lost: 0, in_flight_or_lost: 0 });
    }

    #[test]
    fn rate_is_that_of_last_second() {
        let mut counts = SeriesCounts::default();
        (0..10).for_each(|n| counts.count_probe(n, at_ms(u64::from(n) * 100), WAIT));
        let rate_at = |ms| counts.to_stream(&series(), at_ms(ms)).frames_tx_rate;
        assert_eq!((rate_at(900), rate_at(1500), rate_at(2500)), (0.0, 10.0, 0.0));
    }

    #[test]
    fn times_of_several_series_are_joined() {
        let mut all = AnswerTimeSum::default();
        for ns in [2_000, -10, 4_010] {
            let mut one = AnswerTimeSum::default();
            one.add_time(MeasuredTime { ns, bound_ns: 20 });
            all.add_sum(&one);
        }
        let figures = all.figures().unwrap();
        assert_eq!((figures.minimum, figures.average, figures.maximum), (-10.0, 2_000.0, 4_010.0));
        assert!(AnswerTimeSum::default().figures().is_none());
    }
}
