//! `--metrics` of commands with a live progress line: each scrape gets the counts that were read last.

use crate::args::ListenArg;
use crate::error::Error;
use crate::output::print_remark;
use packetrig_engine::capture::record::RecordCounts;
use packetrig_link_io::tap::{TapAccounts, TapDirection, TapLossCause};
use packetrig_program::metrics::MetricsResponder;
use packetrig_units::exposition::MetricsText;
use std::sync::{Arc, Mutex, PoisonError};

/// A server of metrics, which serves the latest text of its command. It ends when this value is dropped.
pub(super) struct ServedMetrics {
    latest: Arc<Mutex<String>>,
    _responder: MetricsResponder,
}

impl ServedMetrics {
    /// Starts a server with this text; `None` if the user gave no address to listen at.
    pub(super) fn start_if_requested(
        command: &str,
        listen: Option<ListenArg>,
        first: String,
    ) -> Result<Option<Self>, Error> {
        let Some(listen) = listen else { return Ok(None) };
        let latest = Arc::new(Mutex::new(first));
        let served = Arc::clone(&latest);
        let responder = MetricsResponder::start_serving(listen.0, move || {
            served.lock().unwrap_or_else(PoisonError::into_inner).clone()
        })?;
        print_remark(format_args!("{command}: metrics at http://{}/metrics", responder.address()));
        Ok(Some(Self { latest, _responder: responder }))
    }

    pub(super) fn set_metrics_text(&self, text: String) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}

/// Formats the counts of a capture or a log as Prometheus metrics.
pub(super) fn format_recording_metrics(
    prefix: &'static str,
    interface: &str,
    counts: &RecordCounts,
) -> String {
    let mut text = MetricsText::with_prefix(prefix);
    text.write_metric("info", "The interface whose frames are recorded.", |samples| {
        samples.add_sample(&[("interface", interface)], 1_u64);
    });
    text.write_value("elapsed_seconds", "Time since the recording began.", counts.elapsed.as_secs_f64());
    text.write_value(
        "frames_total",
        "Frames that passed the filter and that the kernel delivered.",
        counts.frames,
    );
    text.write_value("bytes_total", "Bytes of the frames in frames_total, FCS included.", counts.bytes);
    text.write_value(
        "merged_frames_total",
        "Delivered frames that the kernel or the card had merged from several packets.",
        counts.merged,
    );
    text.write_metric("dropped_frames_total", "Frames that were dropped, by place.", |samples| {
        samples.add_sample(&[("place", "ring")], counts.kernel_dropped);
        samples.add_sample(&[("place", "queue")], counts.queue_dropped);
        samples.add_sample(&[("place", "disk")], counts.disk_lost);
    });
    text.into_text()
}

/// Formats the counters of a tap, by direction, as Prometheus metrics.
pub(super) fn format_tap_metrics(name: &str, accounts: &TapAccounts) -> String {
    let mut text = MetricsText::with_prefix("packetrig_tap_");
    text.write_metric("info", "The name of the tap.", |samples| samples.add_sample(&[("name", name)], 1_u64));
    text.write_value("elapsed_seconds", "Time since the tap began.", accounts.elapsed.as_secs_f64());
    let directions = &accounts.directions;
    let mut write = |name: &str, help: &str, value: &dyn Fn(&TapDirection) -> Option<u64>| {
        text.write_metric(name, help, |samples| {
            for way in directions {
                samples.add_sample(&[("from", &way.from)], value(way));
            }
        });
    };
    write("received_frames_total", "Frames that arrived at an interface.", &|way| Some(way.received));
    write("received_bytes_total", "Bytes of arrived frames, without FCS.", &|way| Some(way.received_bytes));
    write("made_frames_total", "Additional frames that an impairment made.", &|way| Some(way.made));
    write("forwarded_frames_total", "Frames that the other interface accepted.", &|way| way.forwarded);
    text.write_metric("dropped_frames_total", "Frames that were not forwarded, by cause.", |samples| {
        for way in directions {
            // Causes that have not occurred are listed, too: a rate needs a first value to begin from.
            for cause in TapLossCause::ALL {
                let frames = way.dropped.get(&cause).copied().unwrap_or(0);
                samples.add_sample(&[("from", &way.from), ("cause", cause.label())], frames);
            }
        }
    });
    text.write_metric("mirrored_frames_total", "Copies that a mirror interface accepted.", |samples| {
        for (way, mirror) in directions.iter().flat_map(|way| way.mirrors.iter().map(move |m| (way, m))) {
            samples.add_sample(&[("from", &way.from), ("mirror", &mirror.to)], mirror.mirrored);
        }
    });
    text.write_metric("lost_copies_total", "Copies that a mirror interface did not get.", |samples| {
        for (way, mirror) in directions.iter().flat_map(|way| way.mirrors.iter().map(move |m| (way, m))) {
            let lost: u64 = mirror.dropped.values().sum();
            samples.add_sample(&[("from", &way.from), ("mirror", &mirror.to)], lost);
        }
    });
    text.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tap_metrics_name_every_cause_and_omit_unknown_counts() {
        let way = TapDirection {
            from: "eth1".to_owned(),
            received: 7,
            dropped: [(TapLossCause::Impaired, 2)].into(),
            ..TapDirection::default()
        };
        let accounts = TapAccounts { directions: vec![way], ..TapAccounts::default() };
        let text = format_tap_metrics("t", &accounts);
        for line in [
            "packetrig_tap_received_frames_total{from=\"eth1\"} 7",
            "packetrig_tap_dropped_frames_total{from=\"eth1\",cause=\"impaired\"} 2",
            "packetrig_tap_dropped_frames_total{from=\"eth1\",cause=\"ring\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("packetrig_tap_forwarded_frames_total{"), "{text}");
    }
}
