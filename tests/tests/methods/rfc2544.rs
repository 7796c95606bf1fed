//! RFC 2544 against known truths. That losses are counted to the frame is tested in `api`.

use crate::lab::{QUEUE, limited, limited_alone, result, test_until};
use packetrig_tests::program::Finished;
use serde_json::Value;

/// What the device forwards in a second.
const LIMIT: u64 = 8_000;

#[test]
fn throughput_and_bursts_are_those_of_the_device() {
    let Some(lab) = limited_alone(LIMIT, 512) else { return };
    let flags = [
        "--quick",
        "--only",
        "throughput,frame-loss,back-to-back",
        "--size",
        "512",
        "--link",
        "1Gbit/s",
        "--max-rate",
        "16kpps",
        "--trial-time",
        "500ms",
        "--resolution",
        "1%",
        "--burst-searches",
        "1",
        // 2000 frames: twice what `is_of_the_device` takes for a burst that fits.
        "--longest-burst",
        "125ms",
    ];
    let is_right = |finished: &Finished| finished.code == Some(0) && is_of_the_device(finished);
    if let Err(answers) = test_until(&lab, "rfc2544", &flags, is_right) {
        // A machine that is busy all the time knows that it holds no trial.
        assert!(answers.iter().all(|finished| finished.code == Some(7)), "{answers:?}");
    }
}

/// Whether results can be those of the device, also of a machine that holds senders up. Such a sender catches up at 5/4 of its rate, and
/// may end 20 ms late.
fn is_of_the_device(finished: &Finished) -> bool {
    let result = result(finished);
    let number = |path: &str| {
        let found = result["result"]["sizes"][0].pointer(path).and_then(Value::as_f64);
        found.unwrap_or_else(|| panic!("no {path}\n{finished:?}"))
    };
    let (limit, queue) = (LIMIT as f64, QUEUE as f64);
    // At most what a trial of half a second carries and the queue takes. A sender that catches up below the limit loses nothing.
    let throughput = number("/throughput/frames_per_second");
    let is_carried = (limit / 1.25 * 0.99..=limit * 1.03 + 2.0 * queue).contains(&throughput);
    // What fits into the queue is not lost. The truth is twice that, and more if the sender is held up in the middle.
    let burst = number("/back_to_back/burst_frames/mean");
    let is_held = (queue * 0.99..=queue * 5.0).contains(&burst);
    // The truth is 47.5 %, and more if the sender is held up while the queue is empty.
    let lost = number("/frame_loss/points/0/most_loss_percent");
    is_carried && is_held && (46.0..=60.0).contains(&lost)
}

#[test]
fn a_criterion_decides_the_exit_code() {
    // In half a second it takes 700 frames: between 800 and 1400 in a second lose none.
    let Some(lab) = limited(1_000, 128) else { return };
    let quick = [
        "--quick",
        "--only",
        "throughput",
        "--size",
        "128",
        "--link",
        "1Gbit/s",
        "--max-rate",
        "3kpps",
        "--trial-time",
        "500ms",
        "--resolution",
        "10%",
    ];
    for (least, code) in [("800pps", 0), ("2kpps", 1)] {
        let flags = [&quick[..], &["--min-throughput", least]].concat();
        let answer = test_until(&lab, "rfc2544", &flags, |finished| finished.code == Some(code));
        if let Err(answers) = answer {
            assert!(answers.iter().all(|finished| finished.code == Some(7)), "{least}: {answers:?}");
        }
    }
}
