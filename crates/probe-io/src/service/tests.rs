//! The service with a release mechanism that the test plays, at the loopback interface, and clients over real sockets.

use super::*;
use crate::release::{DepartedFrame, DueFrame, MOST_BEGUN};
use packetrig_probe::frame::FrameEnds;
use packetrig_probe::{ProbePermit, ProbeStamp, StampSource};
use packetrig_release::message::{
    PacketKind, PacketOutcome, PacketReport, PacketToRelease, ReleaseClock, ReportFlags,
};
use packetrig_release::{ReleaseClient, ReleaseError, ReleaseEvent};
use packetrig_sys::clock;
use packetrig_sys::seqpacket::{ReceivedMessage, SeqpacketStream};
use packetrig_units::MonoTime;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest that a test waits for something that must come.
const SOON: Duration = Duration::from_secs(10);
const PERMIT: &str = "never = [\"127.0.0.9\"]\n[[target]]\nnetwork = \"127.0.0.0/8\"\nprobes_per_s = 100000\n\
    bits_per_s = \"1Gbps\"\nburst = 2000\nmost = 5000\n[[target]]\nnetwork = \"127.7.0.0/16\"\nburst = 4";

type Released = Arc<Mutex<Vec<(MonoTime, Vec<u8>)>>>;

/// Notes what it is given, and says that each frame left when it was due. Frames to 127.0.0.66 make it fail.
struct NotingRelease {
    released: Released,
    begun: VecDeque<Vec<(MonoTime, Vec<u8>)>>,
}

impl ReleasePipeline for NotingRelease {
    fn mechanism(&self) -> ReleaseMechanism {
        ReleaseMechanism::Spin
    }

    fn begin(&mut self, train: &[DueFrame<'_>]) -> Result<(), Error> {
        self.begun.push_back(train.iter().map(|due| (due.at, due.frame.to_vec())).collect());
        assert!(self.begun.len() <= MOST_BEGUN);
        Ok(())
    }

    fn finish(&mut self, gone: &mut Vec<DepartedFrame>) -> Result<(), Error> {
        for (at, frame) in self.begun.pop_front().unwrap() {
            if frame[30..34] == [127, 0, 0, 66] {
                return Err(Error::Gone);
            }
            clock::sleep_until_ns(at.as_nanos());
            let stamp = Some(ProbeStamp::around(StampSource::Program, at, 10));
            gone.push(DepartedFrame { handed_over: stamp, released: stamp, ..DepartedFrame::default() });
            self.released.lock().unwrap().push((at, frame));
        }
        Ok(())
    }

    fn lead(&self) -> Nanos {
        Nanos::from_millis(1)
    }

    fn longest_frame(&self) -> usize {
        1_000
    }

    fn remarks(&self) -> &[String] {
        &[]
    }
}

struct TestedService {
    socket: PathBuf,
    released: Released,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<PastClient>>>,
    _directory: TemporaryDirectory,
}

/// A directory that is removed at the end.
struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn new() -> Self {
        let name = format!("packetrig-service-{}-{}", std::process::id(), clock::monotonic_ns());
        let path = std::env::temp_dir().join(name);
        packetrig_sys::private_files::create_directory(&path).unwrap();
        Self(path)
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

impl TestedService {
    fn start(quota: u32) -> Self {
        let directory = TemporaryDirectory::new();
        let socket = directory.0.join("socket");
        let released = Released::default();
        let release = Box::new(NotingRelease { released: Arc::clone(&released), begun: VecDeque::new() });
        let permit = ProbePermit::from_text(PERMIT).unwrap();
        let options = ServiceOptions {
            allowed: Vec::new(),
            quota: ClientQuota { packets: quota, bytes: 1_000_000 },
            horizon: Nanos::from_secs(100),
            tolerance: Nanos::from_micros(50),
        };
        let location = PortLocation { namespace: None, interface: "lo".into() };
        let permission = Box::new(move |ip| permit.permitted(ip, "2026-11-25"));
        let service = ReleaseService::open(&socket, &location, release, options, permission).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || service.run(&|| told.load(Ordering::Relaxed)).unwrap());
        Self { socket, released, stop, thread: Some(thread), _directory: directory }
    }

    fn client(&self) -> ReleaseClient {
        ReleaseClient::connect(&self.socket, "test", 0).unwrap()
    }

    /// Waits until so many frames were released, and gives them out.
    fn wait_for(&self, count: usize) -> Vec<(MonoTime, Vec<u8>)> {
        let deadline = SOON.as_nanos();
        let began = clock::monotonic_ns();
        while self.released.lock().unwrap().len() < count {
            assert!(u128::from(clock::monotonic_ns() - began) < deadline, "the frames were not released");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.released.lock().unwrap().clone()
    }

    fn end(mut self) -> Vec<PastClient> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for TestedService {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// A frame from this machine to a loopback address.
fn frame(source: &str, target: &str) -> Vec<u8> {
    let (source, target) = (source.parse().unwrap(), target.parse().unwrap());
    let mut frame = Vec::new();
    FrameEnds { own_mac: [0; 6], next_mac: [0; 6], source, target, class: 0 }.udp(
        7,
        9,
        b"0123456789",
        &mut frame,
    );
    frame
}

/// A datagram that is due so many microseconds after a time.
fn datagram(cookie: u64, begin: MonoTime, us: u64, target: &str) -> PacketToRelease {
    let packet = frame("127.0.0.1", target)[14..][..38].to_vec();
    PacketToRelease::ip(cookie, (begin + Nanos::from_micros(us)).as_nanos(), packet)
}

fn soon() -> MonoTime {
    now() + Nanos::from_millis(30)
}

/// Reports until there are so many.
fn reports(client: &mut ReleaseClient, count: usize) -> Vec<PacketReport> {
    let mut all = Vec::new();
    while all.len() < count {
        match client.next_event(SOON).unwrap() {
            Some(ReleaseEvent::Reports(reports)) => all.extend(reports),
            Some(ReleaseEvent::Answer(_)) => {}
            None => panic!("{} of {count} packets were reported", all.len()),
        }
    }
    all.sort_by_key(|report| report.cookie);
    all
}

fn outcomes(reports: &[PacketReport]) -> Vec<PacketOutcome> {
    reports.iter().map(|report| report.outcome).collect()
}

#[test]
fn packets_leave_when_they_are_due_and_each_is_reported_once() {
    let service = TestedService::start(100);
    let mut client = service.client();
    assert_eq!((client.facts().interface_name.as_str(), client.facts().mechanism), ("lo", 1));
    let begin = soon();
    // Handed over out of order.
    let packets =
        [2_000, 0, 500].iter().zip(0..).map(|(us, cookie)| datagram(cookie, begin, *us, "127.0.0.1"));
    let (batch, accepted) = client.submit(packets.collect()).unwrap();
    assert_eq!((accepted.accepted, accepted.refused), (3, 0));
    let reports = reports(&mut client, 3);
    assert_eq!(outcomes(&reports), [PacketOutcome::Sent; 3]);
    assert!(reports.iter().all(|report| report.batch == batch && report.left().is_some()));
    assert_eq!(reports[0].planned, (begin + Nanos::from_micros(2_000)).as_nanos());
    let released = service.wait_for(3);
    assert_eq!(released[0].1, frame("127.0.0.1", "127.0.0.1"), "the service adds the Ethernet header");
    assert!(released.windows(2).all(|two| two[0].0 <= two[1].0));
    assert_eq!(client.next_event(Duration::from_millis(50)).unwrap(), None, "no packet is reported twice");
    drop(client);
    assert_eq!(service.end()[0].counts.sent, 3);
}

#[test]
fn times_of_the_wall_clock_are_understood() {
    let service = TestedService::start(100);
    let mut client = service.client();
    let begin = soon();
    let ahead = begin.since(now()).as_u64();
    let realtime = PacketToRelease {
        clock: ReleaseClock::Realtime,
        release_at: clock::wall_clock_ns() + ahead,
        ..datagram(1, begin, 0, "127.0.0.1")
    };
    let tai = PacketToRelease {
        clock: ReleaseClock::Tai,
        release_at: clock::tai_ns() + ahead,
        ..datagram(2, begin, 0, "127.0.0.1")
    };
    client.submit(vec![realtime, tai]).unwrap();
    for report in reports(&mut client, 2) {
        assert_eq!(report.outcome, PacketOutcome::Sent);
        // The clocks were read one after the other here, so the times are near and not equal.
        assert!(report.planned.abs_diff(begin.as_nanos()) < 1_000_000_000, "{}", report.planned);
    }
}

#[test]
fn a_hostile_client_sends_nothing_that_the_permit_forbids() {
    let service = TestedService::start(100);
    let mut client = service.client();
    let begin = soon();
    let good = || datagram(0, begin, 0, "127.0.0.1");
    let framed = |bytes| PacketToRelease { kind: PacketKind::Frame, bytes, ..good() };
    let mut foreign_mac = frame("127.0.0.1", "127.0.0.1");
    foreign_mac[0] = 0xff;
    let mut too_long = good();
    too_long.bytes = vec![0; 65_000 - 32];
    let cases = [
        (datagram(0, begin, 0, "127.0.0.9"), PacketOutcome::NotPermitted),
        (datagram(0, begin, 0, "192.0.2.1"), PacketOutcome::NotPermitted),
        (datagram(0, begin, 0, "255.255.255.255"), PacketOutcome::NotPermitted),
        (framed(frame("192.0.2.7", "127.0.0.1")), PacketOutcome::WrongSource),
        (framed(foreign_mac), PacketOutcome::WrongSource),
        (framed(vec![0; 60]), PacketOutcome::Malformed),
        (too_long, PacketOutcome::Malformed),
        (datagram(0, begin, 200_000_000, "127.0.0.1"), PacketOutcome::TooFarAhead),
        (
            PacketToRelease { latest: 1, ..datagram(0, MonoTime::from_nanos(5), 0, "127.0.0.1") },
            PacketOutcome::Late,
        ),
    ];
    let count = cases.len() as u64;
    for (packet, outcome) in cases {
        let (_, accepted) = client.submit(vec![packet]).unwrap();
        assert_eq!((accepted.accepted, accepted.refused), (0, 1), "{outcome:?}");
        assert_eq!(outcomes(&reports(&mut client, 1)), [outcome]);
    }
    client.submit(vec![framed(frame("127.0.0.1", "127.0.0.1"))]).unwrap();
    assert_eq!(service.wait_for(1).len(), 1, "only the good one left");
    drop(client);
    assert_eq!(service.end()[0].counts.refused.values().sum::<u64>(), count);
}

#[test]
fn limits_of_a_target_hold_also_for_packets_that_are_overdue() {
    let service = TestedService::start(100);
    let mut client = service.client();
    // At 20 packets per second, 50 packets would have been allowed in the seconds that have passed.
    let past = now() - Nanos::from_secs(5);
    let packets = (0..50).map(|n| datagram(n, past, n * 50_000, "127.7.0.1")).collect();
    client.submit(packets).unwrap();
    let reports = reports(&mut client, 50);
    let sent = reports.iter().filter(|report| report.outcome == PacketOutcome::Sent).count();
    assert!((4..=8).contains(&sent), "{sent}");
    assert!(reports.iter().all(|r| matches!(r.outcome, PacketOutcome::Sent | PacketOutcome::OverLimit)));
    assert_eq!(service.released.lock().unwrap().len(), sent);
}

#[test]
fn a_sparse_train_is_within_the_limits_as_a_whole() {
    let service = TestedService::start(1_000);
    let mut client = service.client();
    // Each packet would be a burst of its own, and all are overdue.
    let past = now() - Nanos::from_secs(5);
    let train: Vec<_> =
        (0..50).map(|n| PacketToRelease { train: 1, ..datagram(n, past, n * 2_000, "127.7.0.3") }).collect();
    client.submit(train).unwrap();
    assert_eq!(outcomes(&reports(&mut client, 50)), [PacketOutcome::OverLimit; 50]);
    assert!(service.released.lock().unwrap().is_empty());
}

#[test]
fn no_train_keeps_others_from_a_target() {
    let service = TestedService::start(1_000);
    let (mut far, mut other) = (service.client(), service.client());
    let begin = soon();
    let train = |seconds: u64| {
        let packets = [0, seconds * 1_000_000].into_iter();
        packets.map(|us| PacketToRelease { train: 1, ..datagram(us, begin, us, "127.7.0.4") }).collect()
    };
    far.submit(train(50)).unwrap();
    let refused = outcomes(&reports(&mut far, 2));
    assert_eq!(
        refused,
        [PacketOutcome::TrainRefused, PacketOutcome::Malformed],
        "it is too long for a train"
    );
    far.submit(train(0)).unwrap();
    other.submit(vec![datagram(1, begin, 10, "127.7.0.4")]).unwrap();
    assert_eq!(outcomes(&reports(&mut far, 2)), [PacketOutcome::Sent; 2]);
    assert_eq!(outcomes(&reports(&mut other, 1)), [PacketOutcome::Sent]);
}

#[test]
fn frames_that_the_mechanism_did_not_send_are_reported_as_failed() {
    let service = TestedService::start(100);
    let mut client = service.client();
    let begin = soon();
    client.submit(vec![datagram(1, begin, 0, "127.0.0.1"), datagram(2, begin, 100, "127.0.0.66")]).unwrap();
    assert_eq!(outcomes(&reports(&mut client, 2)), [PacketOutcome::Sent, PacketOutcome::Failed]);
    client.submit(vec![datagram(3, soon(), 0, "127.0.0.1")]).unwrap();
    assert_eq!(outcomes(&reports(&mut client, 1)), [PacketOutcome::Sent], "the service goes on");
}

#[test]
fn what_leaves_while_the_service_ends_is_reported() {
    let service = TestedService::start(1_000);
    let mut client = service.client();
    let begin = soon();
    client.submit((0..80).map(|n| datagram(n, begin, n * 1_000, "127.0.0.1")).collect()).unwrap();
    service.wait_for(20);
    service.stop.store(true, Ordering::Relaxed);
    let all = outcomes(&reports(&mut client, 80));
    let sent = all.iter().filter(|outcome| **outcome == PacketOutcome::Sent).count();
    assert!(
        sent >= 20 && all.iter().all(|o| matches!(o, PacketOutcome::Sent | PacketOutcome::Ended)),
        "{all:?}"
    );
    assert_eq!(service.released.lock().unwrap().len(), sent);
}

#[test]
fn a_user_who_is_not_allowed_is_told_so() {
    let options = ServiceOptions {
        allowed: vec![AllowedUser { user: 4_242, priority: 3 }],
        quota: ClientQuota { packets: 1, bytes: 1 },
        horizon: Nanos::from_secs(1),
        tolerance: Nanos::ZERO,
    };
    let own = ThreadRights::current().user;
    assert_eq!(rights(own, &options), Some(ClientRights { priority: 7, is_trusted: true }));
    assert_eq!(rights(4_242, &options), Some(ClientRights { priority: 3, is_trusted: false }));
    assert_eq!(rights(4_243, &options), None);
    let directory = TemporaryDirectory::new();
    let path = directory.0.join("socket");
    let listener = SeqpacketListener::bind(&path, SocketAccess::AllUsers).unwrap();
    let client = std::thread::spawn(move || ReleaseClient::connect(&path, "stranger", 0));
    let stream = listener.accept(10_000_000_000).unwrap().unwrap();
    let refused = RefusedConnection::new(stream, ProtocolErrorCode::NotAllowed, "user 7 may not".to_owned());
    while refused.is_open() {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(refused);
    let told = client.join().unwrap().unwrap_err();
    assert!(matches!(&told, ReleaseError::Refused(text) if text == "user 7 may not"), "{told}");
}

#[test]
fn a_train_leaves_whole_or_not_at_all() {
    let service = TestedService::start(100);
    let mut client = service.client();
    let begin = soon();
    let train = |number, target: &str| {
        (0..6)
            .map(|n| PacketToRelease { train: number, ..datagram(n, begin, n * 10, target) })
            .collect::<Vec<_>>()
    };
    // The target has a burst of four.
    client.submit(train(1, "127.7.0.2")).unwrap();
    assert_eq!(outcomes(&reports(&mut client, 6)), [PacketOutcome::OverLimit; 6]);
    let mut spoiled = train(2, "127.0.0.1");
    spoiled[3].bytes[12] = 9;
    client.submit(spoiled).unwrap();
    let spoiled = outcomes(&reports(&mut client, 6));
    assert_eq!(spoiled.iter().filter(|outcome| **outcome == PacketOutcome::TrainRefused).count(), 5);
    client.submit(train(3, "127.0.0.1")).unwrap();
    assert_eq!(outcomes(&reports(&mut client, 6)), [PacketOutcome::Sent; 6]);
    assert_eq!(service.released.lock().unwrap().len(), 6);
}

#[test]
fn packets_that_clash_are_moved_and_reported() {
    let service = TestedService::start(100);
    let (mut low, mut high) = (service.client(), ReleaseClient::connect(&service.socket, "high", 5).unwrap());
    assert_eq!(high.facts().priority, 5);
    let begin = soon();
    low.submit(vec![
        datagram(1, begin, 0, "127.0.0.1"),
        PacketToRelease { latest: 1_000, ..datagram(2, begin, 2, "127.0.0.1") },
    ])
    .unwrap();
    high.submit(vec![datagram(3, begin, 1, "127.0.0.1")]).unwrap();
    let kept = reports(&mut high, 1);
    assert_eq!((kept[0].outcome, kept[0].shifted), (PacketOutcome::Sent, 0));
    let moved = reports(&mut low, 2);
    assert_eq!(outcomes(&moved), [PacketOutcome::Sent, PacketOutcome::Clash]);
    assert!(moved[0].shifted >= 16_000 && moved[0].flags.has(ReportFlags::SHIFTED), "{}", moved[0].shifted);
}

#[test]
fn a_packet_between_those_of_another_client_leaves_on_time_if_it_is_handed_over_in_time() {
    let service = TestedService::start(1_000);
    let (mut steady, mut other) = (service.client(), service.client());
    let begin = soon();
    steady.submit((0..60).map(|n| datagram(n, begin, n * 1_000, "127.0.0.1")).collect()).unwrap();
    let at = begin + Nanos::from_micros(40_500);
    // As late as the service allows, and a little earlier: this thread may be kept from the processor.
    let lead = Nanos::new(other.facts().lead_ns) + Nanos::from_millis(10);
    clock::sleep_until_ns((at - lead).as_nanos());
    other.submit(vec![datagram(1_000, at, 0, "127.0.0.2")]).unwrap();
    assert_eq!(reports(&mut other, 1)[0].shifted, 0);
    reports(&mut steady, 60);
    let order: Vec<_> = service.released.lock().unwrap().iter().map(|(at, _)| *at).collect();
    assert!(order.is_sorted(), "a packet left after one that was due later");
}

#[test]
fn a_client_that_dies_takes_its_queued_packets_with_it() {
    let service = TestedService::start(100);
    let (mut dying, mut other) = (service.client(), service.client());
    let begin = soon();
    dying.submit((0..50).map(|n| datagram(n, begin, 1_000_000 + n, "127.0.0.1")).collect()).unwrap();
    other.submit(vec![datagram(7, begin, 1_200_000, "127.0.0.2")]).unwrap();
    drop(dying);
    assert_eq!(outcomes(&reports(&mut other, 1)), [PacketOutcome::Sent]);
    assert_eq!(service.released.lock().unwrap().len(), 1);
}

#[test]
fn what_is_cancelled_does_not_leave() {
    let service = TestedService::start(100);
    let mut client = service.client();
    let begin = soon();
    let late =
        |train| PacketToRelease { train, ..datagram(u64::from(train), begin, 60_000_000, "127.0.0.1") };
    let (batch, _) = client.submit(vec![late(1), late(2), late(3)]).unwrap();
    client.submit(vec![late(4)]).unwrap();
    assert_eq!(client.cancel(batch, 2).unwrap(), 1);
    assert_eq!(client.cancel(batch, 0).unwrap(), 2);
    assert_eq!(client.state().unwrap().queued, 1);
    assert_eq!(outcomes(&reports(&mut client, 3)), [PacketOutcome::Cancelled; 3]);
    drop(client);
    assert!(service.released.lock().unwrap().is_empty());
}

#[test]
fn a_quota_is_each_clients_own() {
    let service = TestedService::start(5);
    let (mut greedy, mut other) = (service.client(), service.client());
    let begin = soon();
    let packets = |count| (0..count).map(|n| datagram(n, begin, 50_000_000, "127.0.0.1")).collect::<Vec<_>>();
    let (_, accepted) = greedy.submit(packets(9)).unwrap();
    assert_eq!((accepted.accepted, accepted.refused, accepted.queued), (5, 4, 5));
    assert_eq!(outcomes(&reports(&mut greedy, 4)), [PacketOutcome::QueueFull; 4]);
    assert_eq!(other.submit(packets(5)).unwrap().1.accepted, 5);
}

#[test]
fn the_end_of_the_service_is_reported() {
    let service = TestedService::start(5);
    let mut client = service.client();
    client.submit(vec![datagram(1, soon(), 60_000_000, "127.0.0.1")]).unwrap();
    service.stop.store(true, Ordering::Relaxed);
    assert_eq!(outcomes(&reports(&mut client, 1)), [PacketOutcome::Ended]);
    assert!(matches!(client.next_event(SOON), Err(ReleaseError::Closed)));
}

#[test]
fn a_client_that_reads_nothing_does_not_disturb_others() {
    let service = TestedService::start(2_000);
    let deaf = SeqpacketStream::connect(&service.socket).unwrap();
    use packetrig_release::message::ClientMessage;
    let hello = ClientMessage::Hello { id: 0, version: 1, priority: 7, name: "deaf".into() };
    assert!(deaf.send(&hello.write()).unwrap());
    // More than the kernel keeps for it: each batch has an answer and a report.
    let mut sent = 0;
    for batch in 1..20_000 {
        let submit = ClientMessage::Submit {
            batch,
            packets: vec![datagram(batch, MonoTime::from_nanos(1), 0, "127.0.0.9")],
        };
        if !deaf.send(&submit.write()).unwrap() {
            break;
        }
        sent = batch;
        if batch % 100 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(sent > 100 && sent < 19_999, "the service stops reading from it: {sent}");
    let mut client = service.client();
    client.submit(vec![datagram(1, soon(), 0, "127.0.0.1")]).unwrap();
    assert_eq!(outcomes(&reports(&mut client, 1)), [PacketOutcome::Sent]);
}

#[test]
fn messages_that_break_the_protocol_end_the_connection() {
    use packetrig_release::message::{ClientMessage, ServiceMessage};
    let service = TestedService::start(10);
    let submit = ClientMessage::Submit { batch: 1, packets: vec![datagram(1, soon(), 0, "127.0.0.1")] };
    let version = ClientMessage::Hello { id: 3, version: 9, priority: 0, name: String::new() };
    for (message, code) in [(b"garbage".to_vec(), 1), (submit.write(), 1), (version.write(), 2)] {
        let stream = SeqpacketStream::connect(&service.socket).unwrap();
        assert!(stream.send(&message).unwrap());
        stream.wait(false, 10_000_000_000).unwrap();
        let mut buffer = [0; 1_000];
        let ReceivedMessage::Message(length) = stream.receive(&mut buffer).unwrap() else {
            panic!("an error is told")
        };
        let told = ServiceMessage::read(&buffer[..length]);
        assert!(
            matches!(told, Some(ServiceMessage::Error { code: found, closes: true, .. }) if found as u16 == code)
        );
        stream.wait(false, 10_000_000_000).unwrap();
        assert_eq!(stream.receive(&mut buffer).unwrap(), ReceivedMessage::Closed);
    }
    assert!(service.released.lock().unwrap().is_empty());
}
