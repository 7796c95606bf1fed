//! The machine of the exporting meter is switched off (R1's E1.4): when the other one exports, and what is missing.

use crate::decider::Decider;
use crate::echo::EchoTraffic;
use crate::rig::{FailoverRig, TrialEnd};
use anyhow::Context;
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_eval::{Effort, median, process};
use packetrig_sys::clock;
use serde_json::Value;

/// A request and its answer every 5 ms; of so many flows that records leave as often.
const TRAFFIC: EchoTraffic = EchoTraffic { every_ns: 5_000_000, at_once: 1, flows: 400 };
const DECIDERS: [Decider; 6] = [
    Decider::Meters(10),
    Decider::Meters(100),
    Decider::Meters(1000),
    Decider::Keepalived(1),
    Decider::Keepalived(100),
    Decider::Ucarp,
];
/// After a takeover a message with records is longer than what a meter says of itself.
const OWN_BYTES: usize = 6000;

struct Reboot {
    detection_ms: f64,
    gap_ms: f64,
    end: TrialEnd,
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let trials = if effort.quick { 1 } else { 5 };
    output.say(
        "## Reboots\n\nA request and its answer every 5 ms; the machine of the exporting meter is switched off (SIGKILL to its meter and to the program \
         that decides). Detection: until the other meter is active. Export gap: from the last bytes of the one at the collector to the first records of \
         the other. Missing: packets that were sent and are not stored.\n",
    )?;
    let head =
        ["decided by", "trials", "detection, ms", "export gap, ms", "packets sent", "missing", "twice"];
    let mut table = Table::new(&head);
    let (mut missing, mut carp_ms, mut fast_ms) = (0, None, None);
    let mut not_measured = Vec::new();
    for decider in DECIDERS {
        let reboots: anyhow::Result<Vec<Reboot>> = (0..trials).map(|_| perform(decider)).collect();
        let reboots = match reboots {
            Ok(reboots) => reboots,
            Err(error) => {
                output.say(&format!("{}: not measured: {error:#}\n", decider.name()))?;
                not_measured.push(decider.name());
                continue;
            }
        };
        let of = |value: fn(&Reboot) -> f64| reboots.iter().map(value).collect::<Vec<f64>>();
        let sum = |value: fn(&TrialEnd) -> u64| reboots.iter().map(|reboot| value(&reboot.end)).sum::<u64>();
        let gap = median(&of(|reboot| reboot.gap_ms));
        match decider {
            Decider::Meters(10) => fast_ms = gap,
            Decider::Ucarp => carp_ms = gap,
            _ => {}
        }
        missing += sum(|end| end.missing) + sum(|end| end.surplus);
        table.rows.push(vec![
            decider.name(),
            reboots.len().to_string(),
            spread(&of(|reboot| reboot.detection_ms)),
            spread(&of(|reboot| reboot.gap_ms)),
            sum(|end| end.sent).to_string(),
            sum(|end| end.missing).to_string(),
            sum(|end| end.surplus).to_string(),
        ]);
    }
    output.table("reboots", &table)?;
    let all = if not_measured.is_empty() || missing > 0 {
        Goal::from(missing == 0)
    } else {
        Goal::Unsupported(format!("not measured: {}", not_measured.join(", ")))
    };
    output.goal("missing", &format!("{missing} packets"), "0 in all trials", &all);
    let text = |ms: Option<f64>| ms.map_or_else(|| "nothing".to_owned(), |ms| format!("{ms:.0} ms"));
    let measured = format!("{} with 3 × 10 ms, {} with CARP", text(fast_ms), text(carp_ms));
    let verdict =
        fast_ms.map_or_else(|| Goal::Unsupported("not measured".into()), |ms| Goal::from(ms < 100.0));
    output.goal("gap", &measured, "less than 100 ms", &verdict);
    Ok(())
}

/// Least, middle and most.
fn spread(figures: &[f64]) -> String {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.first(), median(&sorted), sorted.last()) {
        (Some(least), Some(median), Some(most)) => format!("{least:.0} / {median:.0} / {most:.0}"),
        _ => "–".to_owned(),
    }
}

fn perform(decider: Decider) -> anyhow::Result<Reboot> {
    let rig = FailoverRig::new(decider)?;
    let (echo, [one, mut two]) = rig.start_both(TRAFFIC)?;
    process::pause(1000);
    let killed_ns = clock::wall_clock_ns();
    one.kill();
    let active = two.active();
    two.await_said(&active)?;
    process::pause(2000);
    let sent = echo.stop()?;
    // The relays end with the rig.
    let last_ns = rig.exports[0].passed().last().map_or(killed_ns, |(at_ns, _)| *at_ns);
    let first_ns =
        first_records(&rig.exports[1].passed(), killed_ns).context("no records after the takeover")?;
    let end = rig.finish([two], &sent)?;
    let switches = end.meters[0].pointer("/group/switches").and_then(Value::as_array).context("switches")?;
    let took_over = switches.iter().rfind(|switch| switch["is_active"] == true).context("no takeover")?;
    let at_ns = took_over["at_ns"].as_u64().context("when")?;
    let ms = |from_ns: u64, to_ns: u64| to_ns.saturating_sub(from_ns) as f64 / 1e6;
    Ok(Reboot { detection_ms: ms(killed_ns, at_ns), gap_ms: ms(last_ns, first_ns), end })
}

/// When more had come than a meter says of itself.
fn first_records(passed: &[(u64, usize)], after_ns: u64) -> Option<u64> {
    let mut bytes = 0;
    let later = passed.iter().filter(|(at_ns, _)| *at_ns >= after_ns);
    later
        .into_iter()
        .find(|(_, length)| {
            bytes += length;
            bytes > OWN_BYTES
        })
        .map(|(at_ns, _)| *at_ns)
}
