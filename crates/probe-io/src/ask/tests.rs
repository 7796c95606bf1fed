use super::*;
use crate::lab::{PlainRelease, ProbeLab, permitted};
use crate::listener::{SilencedPort, WantedPackets};
use crate::path;
use packetrig_probe::method::{DatagramMethod, EchoMethod, SynMethod};
use packetrig_probe::{ProbeBudget, ProbeFlag, ProbePermit};
use packetrig_sys::netns::NetNs;
use std::net::{TcpListener, UdpSocket};

const EVERY: Nanos = Nanos::from_millis(50);

fn line(way: &ProbePath, method: Box<dyn ProbeMethod>, count: u32) -> ProbeLine<'static> {
    let budget = ProbeBudget::new(way.permitted.limits());
    ProbeLine {
        way: way.clone(),
        method,
        dispatcher: ReleaseDispatcher::new(Box::new(PlainRelease::open(way)), budget),
        schedule: ProbeSchedule::periodic(count, EVERY, 98).unwrap(),
        shift: Nanos::ZERO,
    }
}

fn ask(lines: &mut [ProbeLine<'_>], port: Option<u16>) -> Vec<ProbeSeriesOutcome> {
    let way = lines[0].way.clone();
    let addresses = lines.iter().map(|line| line.way.ends.source).collect();
    let listener =
        PacketListener::open_at_interface(&way.location, way.index, &WantedPackets { addresses, port })
            .unwrap();
    let asked = ProbeSeriesOptions { answer: Nanos::from_millis(500), stop: &|| false };
    run_lines(lines, &mut [listener], asked, &mut |_| {}).unwrap()
}

fn way(lab: &ProbeLab, ip: &str) -> ProbePath {
    path::find_path(Some(&lab.near), permitted(ip), None).unwrap()
}

#[test]
fn probes_are_answered_once_at_exact_intervals() {
    let Some(lab) = ProbeLab::new() else { return };
    let (four, six) = (way(&lab, "192.0.2.2"), way(&lab, "2001:db8::2"));
    let mut lines = [
        line(&four, Box::new(EchoMethod::new(four.ends, 77, None)), 5),
        line(&six, Box::new(EchoMethod::new(six.ends, 77, None)), 5),
    ];
    lines[1].shift = Nanos::from_millis(25);
    for outcome in ask(&mut lines, None) {
        assert_eq!(outcome.end, SeriesEndReason::Done);
        let counts = outcome.series.counts();
        assert_eq!((counts.sent, counts.answered, counts.lost, counts.duplicates), (5, 5, 0, 0));
        let records = outcome.series.records();
        for two in records.windows(2) {
            assert_eq!(two[1].planned.since(two[0].planned), EVERY);
        }
        assert!(records[0].flags.contains(&ProbeFlag::First) && records[1].flags.is_empty());
        let rtt = outcome.series.summary().rtt.unwrap();
        // On a busy machine the clocks are compared badly, and the bound says so.
        let longest_minimum = rtt.min_ns.saturating_add_unsigned(rtt.bound_ns);
        assert!(rtt.samples == 4 && longest_minimum > 0 && rtt.max_ns < 500_000_000, "{rtt:?}");
    }
}

#[test]
fn closed_and_open_ports_are_told_apart() {
    let Some(lab) = ProbeLab::new() else { return };
    let far = NetNs::open_named_namespace(&lab.far).unwrap();
    let listener = far.run_in_namespace(|| TcpListener::bind("192.0.2.2:0").unwrap()).unwrap();
    let echo = far.run_in_namespace(|| UdpSocket::bind("192.0.2.2:0").unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let echo_port = echo.local_addr().unwrap().port();
    echo.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    let echoing = std::thread::spawn(move || {
        let mut buffer = [0; 2000];
        for _ in 0..3 {
            let (length, from) = echo.recv_from(&mut buffer).unwrap();
            echo.send_to(&buffer[..length], from).unwrap();
        }
    });
    let way = way(&lab, "192.0.2.2");
    let hush = SilencedPort::reserve_any_port(Some(&lab.near), way.ends.source).unwrap();
    let own = hush.port();
    let methods: [(Box<dyn ProbeMethod>, ReplyMeaning); 3] = [
        (Box::new(SynMethod::new(way.ends, own, port, 1)), ReplyMeaning::Open),
        (Box::new(SynMethod::new(way.ends, own, 1, 2)), ReplyMeaning::Closed),
        (Box::new(DatagramMethod::new(way.ends, own, echo_port, None)), ReplyMeaning::Echo),
    ];
    // One at a time, and the last three times: a target remembers the half-open connection of the first.
    for ((method, says), count) in methods.into_iter().zip([1, 3, 3]) {
        let outcome = ask(&mut [line(&way, method, count)], Some(own)).remove(0);
        let summary = outcome.series.summary();
        assert_eq!(summary.counts.answered, u64::from(count), "{says:?} {summary:?}");
        assert_eq!(summary.said[0].0, says);
    }
    echoing.join().unwrap();
    let closed: Box<dyn ProbeMethod> = Box::new(DatagramMethod::new(way.ends, own, 9, None));
    let outcome = ask(&mut [line(&way, closed, 1)], Some(own)).remove(0);
    assert_eq!(outcome.series.summary().said, [(ReplyMeaning::Closed, 1)]);
}

#[test]
fn lossy_probe_series_ends_early() {
    let Some(lab) = ProbeLab::new() else { return };
    // The far end has the address on its cable and drops echo requests.
    let far = NetNs::open_named_namespace(&lab.far).unwrap();
    packetrig_sys::kernel::write_setting(&far, "net/ipv4/icmp_echo_ignore_all", "1").unwrap();
    let way = way(&lab, "192.0.2.2");
    let mut lines = [line(&way, Box::new(EchoMethod::new(way.ends, 1, None)), 80)];
    let outcome = ask(&mut lines, None).remove(0);
    assert_eq!(outcome.end, SeriesEndReason::Lossy);
    let counts = outcome.series.counts();
    assert!((50..70).contains(&counts.sent) && counts.lost == counts.sent, "{counts:?}");
}

/// The state after ten seconds without a processor: all probes are overdue, their answers lie in the ring, and none of them is late.
#[test]
fn probes_sent_late_are_not_counted_as_lost() {
    let Some(lab) = ProbeLab::new() else { return };
    let permit = "[[target]]\nnetwork = \"192.0.2.0/24\"\nprobes_per_s = 1000\nburst = 100\n";
    let permitted =
        ProbePermit::from_text(permit).unwrap().permit_target("192.0.2.2".parse().unwrap(), "today");
    let way = path::find_path(Some(&lab.near), permitted.unwrap(), None).unwrap();
    let mut lines = [line(&way, Box::new(EchoMethod::new(way.ends, 1, None)), 60)];
    let wanted = WantedPackets { addresses: vec![way.ends.source], port: None };
    let listener = PacketListener::open_at_interface(&way.location, way.index, &wanted).unwrap();
    let asked = ProbeSeriesOptions { answer: Nanos::from_secs(2), stop: &|| false };
    let start = MonoTime::from_nanos(now().as_nanos() - 10_000_000_000);
    let outcome = run_lines_from(start, &mut lines, &mut [listener], asked, &mut |_| {}).unwrap().remove(0);
    assert_eq!(outcome.end, SeriesEndReason::Done);
    let counts = outcome.series.counts();
    assert_eq!((counts.sent, counts.answered, counts.lost), (60, 60, 0));
}

#[test]
fn more_than_is_allowed_does_not_begin() {
    let Some(lab) = ProbeLab::new() else { return };
    let way = way(&lab, "192.0.2.2");
    let mut lines = [line(&way, Box::new(EchoMethod::new(way.ends, 1, None)), 1)];
    lines[0].schedule =
        ProbeSchedule::periodic(200, Nanos::from_millis(40), 98).unwrap_or_else(|e| panic!("{e}"));
    assert!(check_limits(&lines[0]).is_ok(), "a burst and the rate");
    lines[0].schedule =
        ProbeSchedule::periodic(300, Nanos::from_millis(40), 98).unwrap_or_else(|e| panic!("{e}"));
    let asked = ProbeSeriesOptions { answer: Nanos::ZERO, stop: &|| false };
    let refused = run_lines(&mut lines, &mut [], asked, &mut |_| panic!("nothing happens"));
    assert!(matches!(refused, Err(Error::Limits(BudgetExceeded::Probes(_)))), "{refused:?}");
}
