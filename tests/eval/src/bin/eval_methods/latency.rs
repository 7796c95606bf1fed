//! Latency by RFC 2544 against a known delay: the forwarder of the verdict tests (`tests/judge`), which is written in C and logs
//! when it read and sent each frame.
//!
//! The method measures twice: with a forwarder that sends frames on at once, and with one that holds them back. The difference of
//! both latencies must be the difference of what the forwarder's log says. The rest of the path is the same.

use crate::lab::{row, test};
use anyhow::{Context, ensure};
use packetrig_eval::Effort;
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_testkit::Lab;
use packetrig_tests::judge::Judge;

/// Rules of the forwarder, least delay first.
const DELAYS: [&str; 3] = ["delay ms=1", "delay ms=5", "delay ms=20"];

pub(super) fn evaluate(effort: Effort, _seed: u64, output: &mut Output) -> anyhow::Result<()> {
    output.say(
        "## Latency\n\n512 B, 2000 frames/s. The forwarder logs when it read and sent each frame. The truth is the latency without a \
         delay, plus what the forwarder held frames longer. The bound is the sum of both measurements' stated bounds.\n",
    )?;
    let direct = measure(effort, "")?;
    let mut table = Table::new(&["device", "what", "truth", "measured", "error"]);
    let mut worst = LatencyError::default();
    for rule in DELAYS {
        let delayed = measure(effort, rule)?;
        let truth = direct.mean_ns + delayed.residence_ns - direct.residence_ns;
        row(
            &mut table,
            &format!("forwarder, `{rule}`"),
            "mean latency, us",
            truth / 1e3,
            delayed.mean_ns / 1e3,
        );
        let error = LatencyError {
            error_ns: (delayed.mean_ns - truth).abs(),
            bound_ns: delayed.bound_ns + direct.bound_ns,
        };
        worst = if error.share_of_bound() > worst.share_of_bound() { error } else { worst };
    }
    output.table("latency", &table)?;
    output.goal(
        "latency of a known delay",
        &format!(
            "at most {:.1} us from the truth, bound {:.1} us",
            worst.error_ns / 1e3,
            worst.bound_ns / 1e3
        ),
        "within the stated bound",
        &Goal::from(worst.error_ns <= worst.bound_ns),
    );
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct LatencyError {
    error_ns: f64,
    bound_ns: f64,
}

impl LatencyError {
    fn share_of_bound(self) -> f64 {
        self.error_ns / self.bound_ns.max(1.0)
    }
}

/// What the method says of a forwarder, and what the forwarder says of itself.
#[expect(clippy::struct_field_names, reason = "each is in nanoseconds")]
struct MeasuredLatency {
    mean_ns: f64,
    bound_ns: f64,
    /// Mean time between reading and sending a frame, by the forwarder's log.
    residence_ns: f64,
}

fn measure(effort: Effort, rules: &str) -> anyhow::Result<MeasuredLatency> {
    let lab = Lab::with_unconnected_ports(2)?;
    let judge = Judge::start(&lab, rules).context("no C compiler for the forwarder")?;
    let (time, trials) = if effort.quick { ("2s", "3") } else { ("10s", "20") };
    let more = ["--quick", "--only", "throughput,latency", "--size", "512", "--link", "1Gbit/s"];
    let loads = ["--max-rate", "2kpps", "--trial-time", time, "--latency-trials", trials];
    let result = test(&lab, "rfc2544", &[&more[..], &loads].concat())?;
    let latency = &result["result"]["sizes"][0]["latency"];
    let residences = judge.stop().residences_ns();
    ensure!(!residences.is_empty(), "no frame passed the forwarder: {result}");
    Ok(MeasuredLatency {
        mean_ns: latency["mean_latency_ns"]["mean"]
            .as_f64()
            .with_context(|| format!("no latency: {latency}"))?,
        bound_ns: latency["bound_ns"].as_f64().context("no bound")?,
        residence_ns: residences.iter().sum::<u64>() as f64 / residences.len() as f64,
    })
}
