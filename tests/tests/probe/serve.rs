//! `packetrig probe serve`: packets of other programs leave on time, are reported with their stamps, and stay inside what the permit allows.

use crate::stations::{FAR, NEAR, Stations};
use packetrig_probe::frame::{ProbeFrameEndpoints, TcpSegment};
use packetrig_release::message::{PacketOutcome, PacketReport, PacketToRelease, StampReader};
use packetrig_release::{AnswerFilter, ReleaseClient, ReleaseEvent};
use packetrig_sys::clock;
use packetrig_tests::program::Running;
use packetrig_tests::scraping;
use rustix::process::Signal;
use serde_json::Value;
use std::net::{TcpListener, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

pub(crate) const SOON: Duration = Duration::from_secs(20);
/// A second in milliseconds, microseconds and so on is counted from here.
pub(crate) const MILLISECOND: u64 = 1_000_000;
const PERMIT: &str = "[[target]]\nnetwork = \"198.18.0.2/32\"\nprobes_per_s = 1000\nbits_per_s = \"1Gbps\"\nburst = 600\nmost = 3000\n";
/// Of the permit.
const BURST: u64 = 600;

pub(crate) struct Service {
    pub(crate) stations: Stations,
    program: Running,
    pub(crate) socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl Service {
    pub(crate) fn start(more: &[&str]) -> Option<Self> {
        let stations = Stations::cabled()?;
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("release.sock");
        let at = stations.lab.location(0);
        let path = socket.display().to_string();
        let usual = ["probe", "serve", &at, "--socket", &path, "--permit", "{plan}", "--json"];
        let mut program = Running::start(&[&usual[..], more].concat(), PERMIT);
        program.await_remark("listening on");
        Some(Self { stations, program, socket, _directory: directory })
    }

    fn client(&self, name: &str, priority: u8) -> ReleaseClient {
        ReleaseClient::connect(&self.socket, name, priority).unwrap()
    }

    /// Ends it; what it says of its clients.
    fn end(mut self) -> Value {
        self.program.signal(Signal::INT);
        let finished = self.program.finish();
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {}", finished.stderr))
    }
}

pub(crate) fn ends(target: &str) -> ProbeFrameEndpoints {
    let (source, target) = (NEAR.parse().unwrap(), target.parse().unwrap());
    ProbeFrameEndpoints { own_mac: [0; 6], next_mac: [0; 6], source, target, class: 0 }
}

/// The IP packet of a frame.
pub(crate) fn packet(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = Vec::new();
    write(&mut frame);
    let length = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    frame[14..14 + length].to_vec()
}

/// A datagram from a port: each client has its own.
pub(crate) fn datagram(port: u16, cookie: u64, at_ns: u64, target: &str) -> PacketToRelease {
    PacketToRelease::ip_packet(
        cookie,
        at_ns,
        packet(|frame| ends(target).write_udp_frame(port, 9, b"a probe of another", frame)),
    )
}

/// Reports of so many packets, in the order of their cookies, and answers that came meanwhile.
pub(crate) fn reports(
    client: &mut ReleaseClient,
    count: usize,
) -> (Vec<PacketReport>, Vec<packetrig_release::message::ReceivedAnswer>) {
    let (mut reports, mut answers) = (Vec::new(), Vec::new());
    while reports.len() < count {
        match client.next_event(SOON).unwrap() {
            Some(ReleaseEvent::Reports(more)) => reports.extend(more),
            Some(ReleaseEvent::Answer(answer)) => answers.push(answer),
            None => panic!("{} of {count} packets were reported", reports.len()),
        }
    }
    reports.sort_by_key(|report| report.cookie);
    (reports, answers)
}

#[test]
fn released_packets_leave_on_time_with_kernel_stamps() {
    let Some(service) = Service::start(&[]) else { return };
    let mut client = service.client("echo", 0);
    client.set_answer_filter(Some(AnswerFilter::default())).unwrap();
    let begin = clock::monotonic_ns() + 50 * MILLISECOND;
    let echo = |n: u16| packet(|frame| ends(FAR).write_echo_frame(77, n, b"", frame));
    let packets = (0..10)
        .map(|n| PacketToRelease::ip_packet(n.into(), begin + u64::from(n) * 20 * MILLISECOND, echo(n)))
        .collect();
    assert_eq!(client.submit_packets(packets).unwrap().1.accepted, 10);
    let (reports, mut answers) = reports(&mut client, 10);
    while answers.len() < 10 {
        match client.next_event(SOON).unwrap() {
            Some(ReleaseEvent::Answer(answer)) => answers.push(answer),
            other => panic!("{} of 10 answers came: {other:?}", answers.len()),
        }
    }
    for (report, answer) in reports.iter().zip(&answers) {
        assert_eq!(report.outcome, PacketOutcome::Sent);
        let (released, driver) = (report.released.unwrap(), report.driver.unwrap());
        assert!(released.lo >= report.planned, "no packet leaves early");
        assert_eq!((driver.reader, answer.arrival.reader), (StampReader::Kernel, StampReader::Kernel));
        assert!(released.lo <= driver.hi && driver.lo <= answer.arrival.hi, "{report:?} {answer:?}");
        assert_eq!(
            u16::from_be_bytes([answer.bytes[40], answer.bytes[41]]),
            u16::try_from(report.cookie).unwrap()
        );
    }
    drop(client);
    let said = service.end();
    assert_eq!((&said["clients"][0]["name"], &said["clients"][0]["sent"]), (&"echo".into(), &10.into()));
    assert_eq!(said["clients"][0]["answers"], 10, "{said}");
}

#[test]
fn release_service_serves_metrics() {
    let Some(mut service) = Service::start(&["--metrics", "127.0.0.1:0"]) else { return };
    let address = scraping::await_metrics(&mut service.program);
    scraping::await_line(&address, "packetrig_probe_serve_clients 0");
    let mut client = service.client("counted", 0);
    let soon = clock::monotonic_ns() + 50 * MILLISECOND;
    let packets = (0..10).map(|n| datagram(4000, n, soon + n * MILLISECOND, FAR)).collect();
    client.submit_packets(packets).unwrap();
    let (reports, _) = reports(&mut client, 10);
    let sent = reports.iter().filter(|report| report.outcome == PacketOutcome::Sent).count();
    let text = scraping::await_line(&address, &format!("packetrig_probe_serve_sent_packets_total {sent}"));
    for line in [
        "packetrig_probe_serve_clients 1",
        "packetrig_probe_serve_refused_packets_total{cause=\"over_limit\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    drop(client);
    scraping::await_line(&address, "packetrig_probe_serve_clients 0");
    service.end();
}

#[test]
fn answers_to_others_are_nobodys_business() {
    let Some(service) = Service::start(&[]) else { return };
    let (mut asking, mut curious) = (service.client("asking", 0), service.client("curious", 7));
    for client in [&mut asking, &mut curious] {
        client.set_answer_filter(Some(AnswerFilter::default())).unwrap();
    }
    let begin = clock::monotonic_ns() + 50 * MILLISECOND;
    let echo = |identifier| packet(|frame| ends(FAR).write_echo_frame(identifier, 1, b"", frame));
    curious.submit_packets(vec![PacketToRelease::ip_packet(1, begin, echo(5))]).unwrap();
    asking
        .submit_packets((0..5).map(|n| PacketToRelease::ip_packet(n, begin + n * 100_000, echo(6))).collect())
        .unwrap();
    let (mut answers, mut others) = (0, 0);
    while answers < 5 {
        match asking.next_event(SOON).unwrap() {
            Some(ReleaseEvent::Answer(answer)) => answers += u32::from(answer.bytes[39] == 6),
            Some(ReleaseEvent::Reports(_)) => {}
            None => panic!("{answers} of 5 answers came"),
        }
    }
    while let Some(event) = curious.next_event(Duration::from_millis(200)).unwrap() {
        if let ReleaseEvent::Answer(answer) = event {
            assert_eq!(answer.bytes[39], 5, "the answer to somebody else");
            others += 1;
        }
    }
    assert_eq!(others, 1);
}

#[test]
fn clients_keep_their_share_beside_greedy_one() {
    let Some(service) = Service::start(&[]) else { return };
    let begin = clock::monotonic_ns() + 1_000 * MILLISECOND;
    // The target may get 1000 packets a second. Nine want half of their share of it, and one wants three times the whole. A burst of each
    // share has all that one of the nine wants: the service may be away for half a second, and send what was due meanwhile at once.
    let mut modest: Vec<_> = (0..9).map(|n| service.client(&format!("modest {n}"), 0)).collect();
    let mut greedy = service.client("greedy", 7);
    let every = |port, count: u64, gap: u64| -> Vec<PacketToRelease> {
        (0..count).map(|n| datagram(port, n, begin + n * gap, FAR)).collect()
    };
    for part in every(7_000, 3_000, MILLISECOND / 3).chunks(500) {
        greedy.submit_packets(part.to_vec()).unwrap();
    }
    for (client, port) in modest.iter_mut().zip(7_001..) {
        assert_eq!(client.submit_packets(every(port, 50, 20 * MILLISECOND)).unwrap().1.accepted, 50);
    }
    let mut sent = Vec::new();
    for client in &mut modest {
        let (reports, _) = reports(client, 50);
        assert_eq!(departures(&reports).count(), 50, "{reports:?}");
        sent.extend(departures(&reports));
    }
    let (reports, _) = reports(&mut greedy, 3_000);
    assert!(reports.iter().any(|report| report.outcome == PacketOutcome::OverLimit), "{reports:?}");
    sent.extend(departures(&reports));
    // A burst, 1000 packets in each second until the last one left, and the one that is due then.
    let took_ms = (sent.iter().max().unwrap() - begin).div_ceil(MILLISECOND);
    assert!(sent.len() as u64 <= BURST + took_ms + 1, "{} in {took_ms} ms", sent.len());
}

/// When the packets left that were sent.
fn departures(reports: &[PacketReport]) -> impl Iterator<Item = u64> {
    let sent = reports.iter().filter(|report| report.outcome == PacketOutcome::Sent);
    sent.map(|report| report.released.unwrap().hi)
}

#[test]
fn release_service_drops_packets_of_killed_client() {
    let Some(service) = Service::start(&[]) else { return };
    let (dying, begin) = killed_in_time(&service);
    let mut other = service.client("other", 0);
    let refused = other.submit_packets(vec![datagram(7_001, 1, begin, "198.18.0.3")]).unwrap().1;
    assert_eq!((refused.accepted, refused.refused), (0, 1), "the permit names one address");
    other.submit_packets(vec![datagram(7_001, 2, begin + 200 * MILLISECOND, FAR)]).unwrap();
    let (reports, _) = reports(&mut other, 2);
    let outcomes: Vec<_> = reports.iter().map(|report| report.outcome).collect();
    assert_eq!(outcomes, [PacketOutcome::NotPermitted, PacketOutcome::Sent]);
    drop(other);
    let said = service.end();
    let clients = said["clients"].as_array().unwrap();
    let of = |name: &str| clients.iter().find(|client| client["name"] == name).unwrap().clone();
    assert_eq!(of(&dying)["sent"], 0, "{said}");
    assert_eq!((&of("other")["sent"], &of("other")["refused"]["not_permitted"]), (&1.into(), &1.into()));
}

/// Kills a client, and waits until the service has noticed. On a busy machine that may be after its packets were due: then it kills another
/// one. The name of the client, and when the first of its packets was due.
fn killed_in_time(service: &Service) -> (String, u64) {
    for port in 8_000..8_005 {
        let (name, begin) = (format!("dying {port}"), clock::monotonic_ns() + 500 * MILLISECOND);
        let mut dying = service.client(&name, 0);
        dying
            .submit_packets((0..100).map(|n| datagram(port, n, begin + n * MILLISECOND, FAR)).collect())
            .unwrap();
        drop(dying);
        // The service holds the port of a client that it has.
        let is_free = || UdpSocket::bind((NEAR, port)).is_ok();
        while !service.stations.netns(0).run_in_namespace(is_free).unwrap() {
            assert!(clock::monotonic_ns() < begin + 20_000 * MILLISECOND, "{name} is not forgotten");
            std::thread::sleep(Duration::from_millis(1));
        }
        if clock::monotonic_ns() < begin - 100 * MILLISECOND {
            return (name, begin);
        }
    }
    panic!("the service never notices in time that a client was killed");
}

#[test]
fn source_port_is_reserved_in_sandbox() {
    let Some(service) = Service::start(&[]) else { return };
    let (mut first, mut second) = (service.client("first", 0), service.client("second", 0));
    let begin = clock::monotonic_ns() + 50 * MILLISECOND;
    let segment = |port| {
        let segment = TcpSegment { source_port: port, target_port: 9, flags: 2, ..TcpSegment::default() };
        PacketToRelease::ip_packet(1, begin, packet(|frame| ends(FAR).write_tcp_frame(&segment, frame)))
    };
    for (port, packet) in [(7_000, datagram(7_000, 1, begin, FAR)), (7_001, segment(7_001))] {
        let outcome = |client: &mut ReleaseClient| {
            client.submit_packets(vec![packet.clone()]).unwrap();
            reports(client, 1).0[0].outcome
        };
        assert_eq!(outcome(&mut first), PacketOutcome::Sent);
        assert_eq!(outcome(&mut second), PacketOutcome::WrongSource);
        let address = (NEAR, port);
        let bound = service
            .stations
            .netns(0)
            .run_in_namespace(|| (UdpSocket::bind(address).map(drop), TcpListener::bind(address).map(drop)));
        let (udp, tcp) = bound.unwrap();
        let is_held = if port == 7_000 { udp.is_err() } else { tcp.is_err() };
        assert!(is_held, "a program beside the service cannot have port {port}: {udp:?} {tcp:?}");
    }
}

#[test]
fn a_second_service_at_one_socket_is_refused() {
    let Some(service) = Service::start(&[]) else { return };
    let at = service.stations.lab.location(0);
    let path = service.socket.display().to_string();
    let second = Running::start(&["probe", "serve", &at, "--socket", &path], "").finish();
    assert_eq!(second.code, Some(6), "{}", second.stderr);
    assert!(second.stderr.contains("in use"), "{}", second.stderr);
    assert_eq!(service.client("still served", 0).facts().interface_name, "eth0");
}
