//! RFC 2544 against known truths.

use crate::lab::{QUEUE, limited, result, test};

#[test]
fn throughput_and_bursts_are_those_of_the_device() {
    const LIMIT: u64 = 8_000;
    const SIZE: u64 = 512;
    let Some(lab) = limited(LIMIT, SIZE) else { return };
    let finished = test(
        &lab,
        "rfc2544",
        &[
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
            "1s",
            "--resolution",
            "0.5%",
            "--burst-searches",
            "2",
        ],
    );
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let result = result(&finished);
    let size = &result["result"]["sizes"][0];
    let throughput = size["throughput"]["frames_per_second"].as_f64().unwrap();
    // A trial of a second may fill the queue besides.
    let most = (LIMIT + QUEUE) as f64;
    assert!((LIMIT as f64 * 0.99..=most * 1.001).contains(&throughput), "{throughput}\n{finished:?}");
    // At 16 kpps the queue fills by one frame for two that are sent.
    let burst = size["back_to_back"]["burst_frames"]["mean"].as_f64().unwrap();
    let truth = QUEUE as f64 * 2.0;
    assert!((burst - truth).abs() <= truth * 0.05, "{burst} frames, not {truth}\n{finished:?}");
    let highest = &size["frame_loss"]["points"][0];
    let lost = highest["most_loss_percent"].as_f64().unwrap();
    let wanted = 50.0 - QUEUE as f64 / 16_000.0 * 100.0;
    assert!((lost - wanted).abs() <= 0.1, "{lost} %, not {wanted} %\n{finished:?}");
}

#[test]
fn a_criterion_decides_the_exit_code() {
    let Some(lab) = limited(10_000, 128) else { return };
    let quick = [
        "--quick",
        "--only",
        "throughput",
        "--size",
        "128",
        "--link",
        "1Gbit/s",
        "--max-rate",
        "20kpps",
        "--trial-time",
        "500ms",
    ];
    let with = |least: &str| test(&lab, "rfc2544", &[&quick[..], &["--min-throughput", least]].concat());
    assert_eq!(with("8kpps").code, Some(0));
    assert_eq!(with("15kpps").code, Some(1));
}
