//! Total rates of all streams over time, for the sparklines of the screen.

use super::facts::{FrameCount, RunFacts};
use serde::Deserialize;
use serde_json::Value;
use std::collections::VecDeque;

/// Largest number of points that are kept: more than the widest terminal has columns.
const MAX_POINTS: usize = 600;
/// Shortest time between two points that are added from states.
const MIN_POINT_INTERVAL_MS: u64 = 1000;

/// Points with the sent and received frames per second, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct RateHistory {
    /// Number of the configuration that the points belong to.
    configuration: u64,
    points: VecDeque<RatePoint>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RatePoint {
    elapsed_ms: u64,
    pub(super) sent: f64,
    pub(super) received: f64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HistoryColumns {
    elapsed_ms: Vec<u64>,
    frames_tx: Vec<FrameCount>,
    frames_rx: Vec<FrameCount>,
}

impl RateHistory {
    /// Removes the points if they belong to another configuration.
    pub(super) fn clear_if_other_configuration(&mut self, number: u64) {
        if self.configuration != number {
            self.configuration = number;
            self.points.clear();
        }
    }

    /// Replaces all points by the data of the event `history`.
    pub(super) fn replace_history(&mut self, data: &Value) {
        self.configuration = data["configuration"].as_u64().unwrap_or_default();
        let columns: HistoryColumns = serde_json::from_value(data["columns"].clone()).unwrap_or_default();
        let counts = columns.frames_tx.iter().zip(&columns.frames_rx);
        let points: Vec<(u64, u64, u64)> =
            columns.elapsed_ms.iter().zip(counts).map(|(ms, (tx, rx))| (*ms, tx.0, rx.0)).collect();
        self.points.clear();
        // The server sends cumulative counts: a rate needs two points.
        for pair in points.windows(2) {
            let [(before, tx_before, rx_before), (now, tx, rx)] = [pair[0], pair[1]];
            // The divisor is at least a millisecond: two points with the same time must not divide by zero.
            let per_second = |count: u64| count as f64 * 1000.0 / now.saturating_sub(before).max(1) as f64;
            let (sent, received) = (tx.saturating_sub(tx_before), rx.saturating_sub(rx_before));
            self.push_point(RatePoint {
                elapsed_ms: now,
                sent: per_second(sent),
                received: per_second(received),
            });
        }
    }

    /// Adds the rates of a state, unless the last point is less than a second old or a rate is not known.
    pub(super) fn add_rates(&mut self, run: &RunFacts) {
        let is_due =
            self.points.back().is_none_or(|last| run.elapsed_ms >= last.elapsed_ms + MIN_POINT_INTERVAL_MS);
        if let (true, Some(sent), Some(received)) =
            (is_due, run.totals.frames_tx_rate, run.totals.frames_rx_rate)
        {
            self.push_point(RatePoint { elapsed_ms: run.elapsed_ms, sent, received });
        }
    }

    fn push_point(&mut self, point: RatePoint) {
        if self.points.len() == MAX_POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// Returns the latest points, at most `most`, oldest first.
    pub(super) fn latest_rate_points(&self, most: usize) -> impl Iterator<Item = &RatePoint> {
        self.points.iter().skip(self.points.len().saturating_sub(most))
    }
}
