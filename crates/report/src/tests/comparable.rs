//! The figures by which runs are compared.

use super::*;
use packetrig_stats::figure::{FigureLimits, FigureVerdict, ReportFigure, compare_figures};

fn figure<'a>(figures: &'a [ReportFigure], name: &str, subject: &str) -> &'a ReportFigure {
    let found = figures.iter().find(|figure| figure.name == name && figure.subject == subject);
    found.unwrap_or_else(|| panic!("{name} of {subject} in {figures:?}"))
}

#[test]
fn run_figures_match_report() {
    let report = kernel_report_from(vec![node(&[999])]);
    let figures = run_figures(&report);
    let loss = figure(&figures, "loss", "s");
    assert_eq!((loss.value, loss.uncertainty), (Some(200.0 / 1001.0), Some(0.0)));
    let latency = figure(&figures, "latency-max", "s");
    assert_eq!((latency.value, latency.uncertainty), (Some(2_000_000.0), Some(1000.0)));
    assert_eq!(figure(&figures, "sent-rate", "s").value, Some(1000.0));
    // 999 different frames in the 1001 ms that were asked for.
    let throughput = figure(&figures, "throughput", "s").value.unwrap();
    assert!((throughput - 999.0 / 1.001).abs() < 0.01, "{throughput}");
    assert!(figures.iter().all(|figure| figure.subject == "s"), "the sums of one stream are its own");
}

#[test]
fn several_streams_have_figures_of_all_together() {
    let mut report = kernel_report_from(vec![node(&[999])]);
    let second = StreamReport { name: "t".into(), ..report.streams[0].clone() };
    report.streams.push(second);
    let figures = run_figures(&report);
    assert_eq!(figure(&figures, "loss", "run").value, Some(400.0 / 2002.0));
    let one = figure(&figures, "throughput", "t").value.unwrap();
    assert_eq!(figure(&figures, "throughput", "run").value, Some(2.0 * one));
    let second = &mut report.streams[1];
    (second.received, second.loss, second.delivered_milli) = (None, None, None);
    let figures = run_figures(&report);
    assert!(figures.iter().all(|figure| figure.subject != "run"), "a sum without one of its parts is no sum");
}

#[test]
fn run_figures_omit_unknowns_but_keep_zero_throughput() {
    assert_eq!(run_figures(&kernel_report_from(vec![])), []);
    assert_eq!(
        figure(&run_figures(&kernel_report_from(vec![node(&[0])])), "throughput", "s").value,
        Some(0.0)
    );
    // Sent as fast as it could: the rate is that between two arrivals.
    let mut report = kernel_report_from(vec![node(&[999])]);
    report.streams[0].delivered_milli = None;
    let received = report.streams[0].received.as_mut().unwrap();
    received.frames = 0;
    received.rate = None;
    assert_eq!(figure(&run_figures(&report), "throughput", "s").value, Some(0.0));
    report.streams[0].received.as_mut().unwrap().frames = 1;
    assert!(run_figures(&report).iter().all(|figure| figure.name != "throughput"), "one frame has no rate");
}

#[test]
fn slow_rig_or_full_ring_is_no_regression() {
    let good = run_figures(&kernel_report_from(vec![node(&[1001])]));
    let limits = FigureLimits::new(vec!["throughput=5%".parse().unwrap()]);
    let mut slow = node(&[1001]);
    slow.send[0].counts.last = Some(at(1250));
    slow.receive[0].counts.last = Some(at(1251));
    let slow = run_figures(&kernel_report_from(vec![slow]));
    let throughput = figure(&slow, "throughput", "s");
    assert!(throughput.value < Some(810.0) && throughput.uncertainty > Some(190.0), "{throughput:?}");
    assert_eq!(compare_figures(&good, &slow, &limits).verdict, FigureVerdict::Unknown);

    let of = |node: NodeResult| {
        compare_figures(&good, &run_figures(&kernel_report_from(vec![node])), &limits).verdict
    };
    assert_eq!(of(node(&[500])), FigureVerdict::Fail, "the device has lost them");
    let mut full = node(&[500]);
    full.ports[1] = port(1, "rx0", 501);
    assert_eq!(of(full), FigureVerdict::Unknown, "the rig may have lost them");
}

#[test]
fn device_dead_for_half_run_halves_throughput() {
    let mut half = node(&[501]);
    half.receive[0].counts.last = Some(at(501));
    let figures = run_figures(&kernel_report_from(vec![half]));
    let throughput = figure(&figures, "throughput", "s").value.unwrap();
    assert!((throughput - 501.0 / 1.001).abs() < 0.01, "{throughput}");
}

#[test]
fn unpaced_lossless_stream_has_uncertain_throughput() {
    let mut report = kernel_report_from(vec![node(&[1001])]);
    (report.streams[0].asked_milli, report.streams[0].delivered_milli) = (None, None);
    let figures = run_figures(&report);
    let throughput = figure(&figures, "throughput", "s");
    assert_eq!(throughput.uncertainty, throughput.value);
}
