//! Counts of a run so far: the sum of the newest counts of every node, and its rates over the last second.

use crate::numbers::{format_count, format_percent, format_scaled, per_second};
use packetrig_stats::counts::StreamRxCounts;
use packetrig_stats::live_loss::LiveLoss;
use packetrig_stats::result::{CountSample, ProbeProgress};
use packetrig_units::{MonoTime, Nanos, clamp_to_u64};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// Time over which rates are averaged.
const RATE_WINDOW: Nanos = Nanos::from_secs(1);

/// Adds the newest counts of all nodes and computes rates from earlier sums.
#[derive(Debug, Default)]
pub(crate) struct ProgressTotals {
    nodes: BTreeMap<String, NodeProgress>,
    /// Sums at earlier times, oldest first. Of the sums that are at least [`RATE_WINDOW`] old, only the newest is kept.
    past: VecDeque<(MonoTime, FrameTotals)>,
}

/// Counts of a node so far.
#[derive(Clone, Copy, Debug, Default)]
struct NodeProgress {
    totals: FrameTotals,
    /// The last latency that the node measured; `None` for a node that only sends.
    latency: Option<LatencyRange>,
    /// Counts of the node's probes; `None` in a run without probes.
    probes: Option<ProbeProgress>,
}

#[derive(Clone, Copy, Debug)]
struct LatencyRange {
    least: Nanos,
    mean: Nanos,
    most: Nanos,
}

#[derive(Clone, Copy, Debug, Default)]
struct FrameTotals {
    sent: u64,
    sent_bytes: u64,
    received: u64,
    received_bytes: u64,
    loss: LiveLoss,
}

impl FrameTotals {
    fn from_sample(sample: &CountSample) -> Self {
        Self {
            sent: sample.tx.iter().map(|(_, tx)| tx.frames).sum(),
            sent_bytes: sample.tx.iter().map(|(_, tx)| tx.bytes).sum(),
            received: sample.rx.iter().map(|(_, _, rx)| rx.frames).sum(),
            received_bytes: sample.rx.iter().map(|(_, _, rx)| rx.bytes).sum(),
            loss: sample
                .rx
                .iter()
                .map(|(_, _, rx)| loss_seen_by_receiver(rx))
                .fold(LiveLoss::default(), LiveLoss::plus),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            received: self.received + other.received,
            received_bytes: self.received_bytes + other.received_bytes,
            loss: self.loss.plus(other.loss),
        }
    }
}

impl ProgressTotals {
    /// Replaces the counts of a node by its newest ones.
    pub(crate) fn set_node_sample(&mut self, node: &str, at: MonoTime, sample: &CountSample) {
        // Counts are cumulative: a lost or repeated sample changes nothing, since the newest sample
        // replaces the earlier ones.
        let progress = self.nodes.entry(node.to_owned()).or_default();
        progress.totals = FrameTotals::from_sample(sample);
        progress.probes = sample.probes;
        if let Some((least, mean, most)) = sample.latency {
            progress.latency = Some(LatencyRange { least, mean, most });
        }
        let sum = self.nodes.values().map(|node| node.totals).fold(FrameTotals::default(), FrameTotals::plus);
        // The newest sum that is at least a second old stays, so that rates cover a whole second.
        self.past.push_back((at, sum));
        while self.past.get(1).is_some_and(|(then, _)| at.since(*then) >= RATE_WINDOW) {
            self.past.pop_front();
        }
    }

    /// Returns the latency over all nodes; `None` if no node has measured one. The mean of each node is weighted with
    /// the number of frames that the node received.
    fn combine_node_latencies(&self) -> Option<LatencyRange> {
        let measured: Vec<(LatencyRange, u128)> = self
            .nodes
            .values()
            // The weight is at least 1, because a latency can arrive before the count of its frames.
            .filter_map(|node| Some((node.latency?, u128::from(node.totals.received.max(1)))))
            .collect();
        // The product uses 128 bits, because nanoseconds times frames exceed 64 bits in a long run.
        let weight: u128 = measured.iter().map(|(_, weight)| weight).sum();
        let sum: u128 = measured.iter().map(|(range, weight)| u128::from(range.mean.as_u64()) * weight).sum();
        Some(LatencyRange {
            least: measured.iter().map(|(range, _)| range.least).min()?,
            // `min()?` has returned if nothing was measured, so `weight` is not 0. A mean of `u64` values fits `u64`.
            mean: Nanos::new(clamp_to_u64(sum / weight)),
            most: measured.iter().map(|(range, _)| range.most).max()?,
        })
    }

    /// Returns texts for the sent frames, the received frames, and the losses with the latency. In a run with probes:
    /// texts for the sent and the answered probes.
    pub(crate) fn format_progress_parts(&self) -> Vec<String> {
        if let Some(probes) = self.nodes.values().filter_map(|node| node.probes).reduce(ProbeProgress::plus) {
            return vec![
                format!("sent {} probes", format_count(probes.sent)),
                format!("{} answered", format_count(probes.answered)),
            ];
        }
        let Some(((then, before), (at, now))) = self.past.front().zip(self.past.back()) else {
            return vec!["nothing yet".to_owned()];
        };
        let length = at.since(*then);
        let share = now.loss.loss_share(now.received);
        let mut lost =
            format!("lost {} ({})", format_count(now.loss.lost), format_percent(share.part, share.whole));
        if let Some(LatencyRange { least, mean, most }) = self.combine_node_latencies() {
            lost.extend([format!("  latency {least}/{mean}/{most}")]);
        }
        vec![
            format!(
                "sent {} ({})",
                format_count(now.sent),
                format_rates(
                    now.sent.saturating_sub(before.sent),
                    now.sent_bytes.saturating_sub(before.sent_bytes),
                    length
                )
            ),
            format!(
                "received {} ({})",
                format_count(now.received),
                format_rates(
                    now.received.saturating_sub(before.received),
                    now.received_bytes.saturating_sub(before.received_bytes),
                    length
                )
            ),
            lost,
        ]
    }
}

/// Returns the losses that a receiver sees as gaps in sequence numbers. A node does not know what
/// its senders have sent.
fn loss_seen_by_receiver(rx: &StreamRxCounts) -> LiveLoss {
    LiveLoss::new(rx.sequence.unique, rx.sequence.unique, rx.sequence.lost, true)
}

fn format_rates(frames: u64, bytes: u64, length: Nanos) -> String {
    let bits = per_second(bytes, length) * 8.0;
    format!("{}, {}", format_scaled(per_second(frames, length), "fps"), format_scaled(bits, "bit/s"))
}

impl fmt::Display for ProgressTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.format_progress_parts().join("  "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_stats::counts::StreamTxCounts;

    fn sample(sent: u64, received: u64, lost: u64) -> CountSample {
        let tx = StreamTxCounts { frames: sent, bytes: sent * 125, ..StreamTxCounts::default() };
        let mut rx = StreamRxCounts { frames: received, bytes: received * 125, ..StreamRxCounts::default() };
        rx.sequence.lost = lost;
        CountSample { tx: vec![(0, tx)], rx: vec![(0, 1, rx)], ..CountSample::default() }
    }

    fn at(ms: u64) -> MonoTime {
        MonoTime::default() + Nanos::from_millis(ms)
    }

    #[test]
    fn rates_are_those_of_the_last_second() {
        let mut totals = ProgressTotals::default();
        assert_eq!(totals.to_string(), "nothing yet");
        totals.set_node_sample("local", at(0), &sample(0, 0, 0));
        totals.set_node_sample("local", at(1_000), &sample(1_000, 990, 10));
        totals.set_node_sample("local", at(2_000), &sample(4_000, 3_900, 100));
        assert_eq!(
            totals.to_string(),
            "sent 4 000 (3 kfps, 3 Mbit/s)  received 3 900 (2.91 kfps, 2.91 Mbit/s)  lost 100 (2.5 %)"
        );
    }

    #[test]
    fn totals_sum_nodes_and_ignore_repeated_samples() {
        let mut totals = ProgressTotals::default();
        totals.set_node_sample("a", at(0), &sample(10, 0, 0));
        totals.set_node_sample("b", at(1), &sample(0, 8, 2));
        totals.set_node_sample("b", at(2), &sample(0, 8, 2));
        assert!(totals.to_string().starts_with("sent 10 ("), "{totals}");
        assert!(totals.to_string().contains("received 8 (") && totals.to_string().contains("lost 2 (20 %)"));
    }

    #[test]
    fn probe_totals_are_labelled_as_probes() {
        let mut totals = ProgressTotals::default();
        for (node, sent, answered) in [("a", 1200, 1150), ("b", 0, 0), ("a", 1300, 1250)] {
            let probes = Some(ProbeProgress { sent, answered });
            totals.set_node_sample(node, at(0), &CountSample { probes, ..CountSample::default() });
        }
        assert_eq!(totals.to_string(), "sent 1 300 probes  1 250 answered");
    }

    #[test]
    fn latency_survives_sample_without_latency() {
        let mut totals = ProgressTotals::default();
        let times = (Nanos::from_micros(1), Nanos::from_micros(2), Nanos::from_micros(3));
        totals.set_node_sample("rx", at(0), &CountSample { latency: Some(times), ..CountSample::default() });
        totals.set_node_sample("tx", at(1), &sample(1, 0, 0));
        assert!(totals.to_string().ends_with("latency 1us/2us/3us"), "{totals}");
    }

    #[test]
    fn latency_total_combines_all_nodes() {
        let mut totals = ProgressTotals::default();
        let times = |least, mean, most| Some((Nanos::new(least), Nanos::new(mean), Nanos::new(most)));
        totals.set_node_sample("a", at(0), &CountSample { latency: times(10, 20, 90), ..sample(0, 300, 0) });
        totals.set_node_sample("b", at(1), &CountSample { latency: times(5, 60, 70), ..sample(0, 100, 0) });
        assert!(totals.to_string().ends_with("latency 5ns/30ns/90ns"), "{totals}");
    }
}
