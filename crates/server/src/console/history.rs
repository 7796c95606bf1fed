//! The totals of a run over time, in bounded memory: when the list of points is full, every second point is dropped,
//! and from then on points are added half as often.

use crate::viewing::HistoryPoint;
use packetrig_stats::result::CountSample;
use packetrig_units::{MonoTime, Nanos};

/// Maximum number of points that are kept.
const MAX_POINTS: usize = 1000;
/// Time between two points at the beginning of a run. It is the interval of the samples.
const FIRST_INTERVAL: Nanos = Nanos::from_millis(100);

#[derive(Clone, Debug)]
pub(super) struct TotalsHistory {
    points: Vec<HistoryPoint>,
    interval: Nanos,
    /// Time of the first sample.
    origin: Option<MonoTime>,
    latest: HistoryPoint,
}

impl Default for TotalsHistory {
    fn default() -> Self {
        Self { points: Vec::new(), interval: FIRST_INTERVAL, origin: None, latest: HistoryPoint::default() }
    }
}

impl TotalsHistory {
    pub(super) fn add_sample(&mut self, sample: &CountSample) {
        let elapsed = sample.at.since(*self.origin.get_or_insert(sample.at));
        // Viewers also see the latest totals between two points, so they are stored even if no point is due.
        self.latest = sum_totals(sample, elapsed);
        let due = self.points.last().is_none_or(|last| {
            // Samples do not come exactly on time: one that is up to half an interval early counts as due.
            elapsed.as_u64() + FIRST_INTERVAL.as_u64() / 2 >= last.elapsed.as_u64() + self.interval.as_u64()
        });
        if !due {
            return;
        }
        if self.points.len() == MAX_POINTS {
            // The first point is kept, so that the history always begins with the run.
            let mut index = 0;
            self.points.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.interval = Nanos::new(self.interval.as_u64() * 2);
        }
        self.points.push(self.latest);
    }

    /// All points. The last one has the latest totals.
    pub(super) fn points(&self) -> Vec<HistoryPoint> {
        let mut points = self.points.clone();
        // The latest sample is always the last point, even if no point was due.
        if self.origin.is_some() && points.last() != Some(&self.latest) {
            points.push(self.latest);
        }
        points
    }

    pub(super) const fn latest(&self) -> HistoryPoint {
        self.latest
    }
}

fn sum_totals(sample: &CountSample, elapsed: Nanos) -> HistoryPoint {
    let mut totals = HistoryPoint { elapsed, ..HistoryPoint::default() };
    for (_, sent) in &sample.tx {
        totals.frames_tx += sent.frames;
        totals.bytes_tx += sent.bytes;
    }
    for (.., received) in &sample.rx {
        totals.frames_rx += received.frames;
        totals.bytes_rx += received.bytes;
        totals.gaps += received.sequence.lost;
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_stats::counts::StreamTxCounts;

    #[test]
    fn totals_history_covers_long_run_in_bounded_memory() {
        let mut history = TotalsHistory::default();
        assert!(history.points().is_empty());
        for tick in 0..10_000_u64 {
            let sent = StreamTxCounts { frames: tick, ..StreamTxCounts::default() };
            let at = MonoTime::from_nanos(7_000_000_000 + tick * 100_000_000);
            history.add_sample(&CountSample { at, tx: vec![(0, sent)], ..CountSample::default() });
        }
        let points = history.points();
        assert!((500..=MAX_POINTS + 1).contains(&points.len()), "{}", points.len());
        assert_eq!((points[0].elapsed, points[0].frames_tx), (Nanos::ZERO, 0));
        assert_eq!(points.last().map(|point| point.frames_tx), Some(9_999));
        // Evenly spaced: steps differ by at most one sample.
        let steps: Vec<u64> = points.windows(2).map(|two| two[1].frames_tx - two[0].frames_tx).collect();
        let (least, most) = (steps[..steps.len() - 1].iter().min(), steps[..steps.len() - 1].iter().max());
        assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "{least:?} {most:?}");
    }
}
