//! A reference device that forwards at a known rate from a known queue, and the program in front of it.

use packetrig_link::{FaultPlan, QueueLimit, RateQueue};
use packetrig_testkit::Lab;
use packetrig_testkit::device::Error;
use packetrig_tests::program::{Finished, Running};
use packetrig_tests::skip::{self, OwnLab};
use packetrig_units::BitRate;
use serde_json::Value;

/// Frames that the queue of the device holds.
pub(crate) const QUEUE: u64 = 200;

/// A device that forwards frames of `size` at this rate; `None` without rights. For what judges no rate, or one that is so low that a busy
/// machine holds it.
pub(crate) fn limited(frames_per_second: u64, size: u64) -> Option<OwnLab> {
    skip::lab(|| device(frames_per_second, size))
}

/// The same with nothing beside it, for what judges the rate: a sender that is late makes a trial void, and it is made again.
pub(crate) fn limited_alone(frames_per_second: u64, size: u64) -> Option<OwnLab> {
    skip::quiet_lab(|| device(frames_per_second, size))
}

fn device(frames_per_second: u64, size: u64) -> Result<Lab, Error> {
    let rate = BitRate::new(frames_per_second * size * 8);
    let queue = Some(RateQueue { rate, room: QueueLimit::Frames(QUEUE) });
    let plan = FaultPlan { queue, ..FaultPlan::without_faults() };
    Lab::with_device(2, plan)
}

/// Starts `packetrig test METHOD` between the two ports of the lab.
pub(crate) fn start(lab: &Lab, method: &str, more: &[&str]) -> Running {
    let [tx, rx] = [0, 1].map(|port| lab.ports()[port].location());
    let mut arguments =
        vec!["test", method, "--tx", &tx, "--rx", &rx, "--out", "{out}", "--store", "{out}-store"];
    arguments.extend(more);
    Running::start(&arguments, "")
}

/// The same, to its end. On a machine that is too busy to sustain the trials, INCONCLUSIVE is the right answer: it is asked again.
pub(crate) fn test(lab: &Lab, method: &str, more: &[&str]) -> Finished {
    test_until(lab, method, more, |finished| finished.code != Some(7))
        .unwrap_or_else(|answers| panic!("test {method} decides nothing: {answers:?}"))
}

/// The same, asked again until its answer is this one: a machine that is too busy may spoil an answer. All answers, if none is right.
pub(crate) fn test_until(
    lab: &Lab,
    method: &str,
    more: &[&str],
    is_right: impl Fn(&Finished) -> bool,
) -> Result<Finished, Vec<Finished>> {
    const ATTEMPTS: u32 = 3;
    let mut answers = Vec::new();
    for _ in 0..ATTEMPTS {
        let finished = start(lab, method, more).finish();
        if is_right(&finished) {
            return Ok(finished);
        }
        answers.push(finished);
    }
    Err(answers)
}

/// What it wrote to `result.json`.
pub(crate) fn result(finished: &Finished) -> Value {
    let file = finished.out().join("result.json");
    let text = std::fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{}: {error}\n{finished:?}", file.display()));
    serde_json::from_str(&text).unwrap()
}
