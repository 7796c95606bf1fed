//! Checks whether a report of two guests is right about their clocks: it is compared with the
//! output of their consoles.
//!
//! Asking over a console is slow, but independent of the program: whatever the delays, the guest read its
//! clock between the question and the answer. So one [`GuestClockReading`] bounds the offset from both sides.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// A guest's clock, read between two instants of ours. Nanoseconds of monotonic clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestClockReading {
    pub(super) asked: u64,
    pub(super) said: u64,
    pub(super) heard: u64,
}

impl GuestClockReading {
    /// The guest's clock less ours: not below, not above.
    fn offset(self) -> (i128, i128) {
        let said = i128::from(self.said);
        (said - i128::from(self.heard), said - i128::from(self.asked))
    }

    pub(super) fn width_ns(self) -> u64 {
        self.heard.saturating_sub(self.asked)
    }
}

/// A node's clock by its console: the narrowest look before the run, and the narrowest one after it.
#[derive(Debug)]
pub(super) struct NodeClockReadings {
    pub(super) node: &'static str,
    pub(super) before: GuestClockReading,
    pub(super) after: GuestClockReading,
}

/// `None`: complete. Otherwise why the run is not.
pub(super) fn incompleteness_of_report(report: &Value) -> Option<String> {
    let outcome = &report["outcome"];
    (outcome["state"] != "complete").then(|| outcome.to_string())
}

/// Checks a complete report; returns its findings for display.
pub(super) fn judge_fleet_report(
    report: &Value,
    witnesses: &[NodeClockReadings],
    frames: u64,
) -> Result<Vec<String>> {
    let mut told = Vec::new();
    for witness in witnesses {
        let nodes = report["nodes"].as_array().context("the report has no nodes")?;
        let node = nodes.iter().find(|node| node["node"] == witness.node);
        let clock = &node.with_context(|| format!("node {} is not in the report", witness.node))?["clock"];
        told.push(clock_of(clock, witness).with_context(|| format!("node {}: {clock}", witness.node))?);
    }
    told.push(stream_of(&report["streams"][0], frames)?);
    Ok(told)
}

fn clock_of(clock: &Value, witness: &NodeClockReadings) -> Result<String> {
    ensure!(clock["source"] == "in-band", "its clock was not compared in-band");
    let offset = i128::from(clock["offset_ns"].as_i64().context("no offset")?);
    let bound = i128::from(clock["bound"].as_u64().context("no bound")?);
    ensure!(bound > 0, "the clock bound is 0, but the kernels have different clocks");
    ensure!(
        offset.abs() > bound,
        "the guests booted after us, yet the report says that their clocks equal ours"
    );
    // The clocks may have drifted between the looks: the offset at T lies between both.
    let (looks, mut sides) = ([witness.before, witness.after], (i128::MAX, i128::MIN));
    for (least, most) in looks.map(GuestClockReading::offset) {
        sides = (sides.0.min(least), sides.1.max(most));
    }
    if offset + bound < sides.0 || offset - bound > sides.1 {
        bail!("the console says {} to {} ns", sides.0, sides.1);
    }
    let width = looks.map(GuestClockReading::width_ns);
    Ok(format!(
        "node {}: in-band, {offset} ns ± {bound} ns; its console says {} to {} ns (asked in {} and {} ns)",
        witness.node, sides.0, sides.1, width[0], width[1]
    ))
}

/// One-way latency is a figure with the clocks' bound, and possible.
fn stream_of(stream: &Value, frames: u64) -> Result<String> {
    let count = |path: &str| {
        stream.pointer(path).and_then(Value::as_u64).with_context(|| format!("the stream has no {path}"))
    };
    let (sent, received, lost) = (count("/sent/frames")?, count("/received/frames")?, count("/loss/lost")?);
    ensure!(
        sent == frames && received + lost == sent && received > 0,
        "{received} of {sent} frames, {lost} lost"
    );
    let (least, most, clocks) =
        (count("/latency/min")?, count("/latency/max")?, count("/latency/error/clock")?);
    // Two kernels' clocks may show a frame that arrived before it was sent, but no earlier than their bound allows.
    let early = count("/latency/early")?;
    ensure!(
        early <= clocks,
        "a frame arrived {early} ns before it was sent; the clocks' bound is {clocks} ns"
    );
    ensure!(clocks > 0, "latency between two clocks without their bound");
    // Wrong by an offset it would be seconds, or nothing at all.
    ensure!(
        (0 < least || early > 0) && least <= most && most < 1_000_000_000 + clocks,
        "latency of {least} to {most} ns"
    );
    Ok(format!(
        "stream: {received} of {sent} frames, latency {least} to {most} ns, of it clocks ± {clocks} ns"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const MS: u64 = 1_000_000;

    fn report(offset: i64) -> Value {
        json!({
            "outcome": {"state": "complete"},
            "nodes": [{"node": "a", "clock": {"source": "in-band", "offset_ns": offset, "bound": 300_000}}],
            "streams": [{"sent": {"frames": 9}, "received": {"frames": 9}, "loss": {"lost": 0},
                         "latency": {"min": 5, "max": 7, "early": 0, "error": {"clock": 500_000}}}],
        })
    }

    /// At 100 ms of ours the guest says 20 ms: its clock is 80 ms behind, give or take 10.
    fn witness() -> [NodeClockReadings; 1] {
        let look = |ahead| GuestClockReading {
            asked: 90 * MS + ahead,
            said: 20 * MS + ahead,
            heard: 110 * MS + ahead,
        };
        [NodeClockReadings { node: "a", before: look(0), after: look(500 * MS) }]
    }

    #[test]
    fn an_offset_that_the_console_confirms_is_right() {
        let told = judge_fleet_report(&report(-80_000_000), &witness(), 9).expect("it is right");
        assert!(told[0].contains("-90000000 to -70000000"), "{told:?}");
        assert!(judge_fleet_report(&report(-69_800_000), &witness(), 9).is_ok(), "right within its bound");
    }

    #[test]
    fn an_offset_that_the_console_denies_is_wrong() {
        for offset in [-69_600_000, -90_400_000, 80_000_000, 0] {
            assert!(judge_fleet_report(&report(offset), &witness(), 9).is_err(), "{offset}");
        }
    }

    #[test]
    fn a_figure_without_its_bound_is_wrong() {
        let without = |path: &str, value: Value| {
            let mut report = report(-80_000_000);
            *report.pointer_mut(path).expect("it is there") = value;
            judge_fleet_report(&report, &witness(), 9).is_err()
        };
        assert!(without("/nodes/0/clock/bound", json!(0)));
        assert!(without("/nodes/0/clock/source", json!("same")));
        assert!(without("/nodes/0/node", json!("c")));
        assert!(without("/streams/0/latency", Value::Null));
        assert!(without("/streams/0/latency/error/clock", Value::Null));
        assert!(without("/streams/0/latency/max", json!(80_000_000_000_u64)));
        assert!(without("/streams/0/latency/min", json!(0)), "no frame was early, and one took no time");
        assert!(without("/streams/0/latency/early", json!(500_001)), "earlier than the clocks' bound allows");
        assert!(without("/streams/0/received/frames", json!(8)));
    }

    #[test]
    fn frame_may_be_early_within_clock_bound() {
        let mut report = report(-80_000_000);
        report["streams"][0]["latency"] =
            json!({"min": 0, "max": 7, "early": 400_000, "error": {"clock": 500_000}});
        assert!(judge_fleet_report(&report, &witness(), 9).is_ok());
    }

    #[test]
    fn a_partial_run_says_why() {
        assert_eq!(incompleteness_of_report(&report(0)), None);
        let why = incompleteness_of_report(&json!({"outcome": {"state": "partial", "reasons": ["lease"]}}));
        assert!(why.is_some_and(|why| why.contains("lease")));
    }
}
