//! The service with a release mechanism that the test plays, at the loopback interface, and clients over real sockets.

mod hostile_clients;
mod releases;
mod several_clients;

use super::*;
use crate::now;
use crate::release::{DepartedFrame, DueFrame, MAX_UNFINISHED_TRAINS};
use packetrig_probe::frame::ProbeFrameEndpoints;
use packetrig_probe::{ProbePermit, ProbeStamp, StampSource};
use packetrig_release::message::{
    PacketFault, PacketKind, PacketOutcome, PacketReport, PacketToRelease, ReleaseClock, ReportFlags,
};
use packetrig_release::{ReleaseClient, ReleaseError, ReleaseEvent};
use packetrig_sys::clock;
use packetrig_sys::seqpacket::{ReceivedMessage, SeqpacketStream};
use packetrig_units::MonoTime;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest that a test waits for something that must come.
const SOON: Duration = Duration::from_secs(10);
const PERMIT: &str = "never = [\"127.0.0.9\"]\n[[target]]\nnetwork = \"127.0.0.0/8\"\nprobes_per_s = 100000\n\
    bits_per_s = \"1Gbps\"\nburst = 2000\nmost = 5000\n[[target]]\nnetwork = \"127.7.0.0/16\"\nburst = 4";

type Released = Arc<Mutex<Vec<(MonoTime, Vec<u8>)>>>;

/// Records the frames that it is given, and reports that each left when it was due. Frames to 127.0.0.66 make it fail.
struct NotingRelease {
    released: Released,
    begun: VecDeque<BegunTrain>,
}

struct BegunTrain {
    at: MonoTime,
    frames: Vec<(MonoTime, Vec<u8>)>,
}

impl ReleasePipeline for NotingRelease {
    fn mechanism(&self) -> ReleaseMechanism {
        ReleaseMechanism::Spin
    }

    fn begin_train(&mut self, train: &[DueFrame<'_>]) -> Result<(), Error> {
        let frames = train.iter().map(|due| (due.at, due.frame.to_vec())).collect();
        self.begun.push_back(BegunTrain { at: now(), frames });
        assert!(self.begun.len() <= MAX_UNFINISHED_TRAINS);
        Ok(())
    }

    fn finish_train(&mut self, gone: &mut Vec<DepartedFrame>) -> Result<(), Error> {
        let train = self.begun.pop_front().unwrap();
        let stamp = |at| Some(ProbeStamp::with_bound(StampSource::Program, at, 10));
        for (at, frame) in train.frames {
            if frame[30..34] == [127, 0, 0, 66] {
                return Err(Error::Gone);
            }
            clock::sleep_until_ns(at.as_nanos());
            let (handed_over, released) = (stamp(train.at), stamp(at));
            gone.push(DepartedFrame { handed_over, released, ..DepartedFrame::default() });
            self.released.lock().unwrap().push((at, frame));
        }
        Ok(())
    }

    fn lead_time(&self) -> Nanos {
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
            least_limits: permit.least_limits(),
        };
        let location = PortLocation { namespace: None, interface: "lo".into() };
        let permission = Box::new(move |ip| permit.permit_target(ip, "2026-11-25"));
        let service = ReleaseService::listen_at(&socket, &location, release, options, permission).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread =
            std::thread::spawn(move || service.serve_until(&|| told.load(Ordering::Relaxed)).unwrap());
        Self { socket, released, stop, thread: Some(thread), _directory: directory }
    }

    fn client(&self) -> ReleaseClient {
        ReleaseClient::connect(&self.socket, "test", 0).unwrap()
    }

    /// Waits until this many frames were released, and returns them.
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
    ProbeFrameEndpoints { own_mac: [0; 6], next_mac: [0; 6], source, target, class: 0 }.write_udp_frame(
        7,
        9,
        b"0123456789",
        &mut frame,
    );
    frame
}

/// A datagram that is due this many microseconds after a time.
fn datagram(cookie: u64, begin: MonoTime, us: u64, target: &str) -> PacketToRelease {
    let packet = frame("127.0.0.1", target)[14..][..38].to_vec();
    PacketToRelease::ip_packet(cookie, (begin + Nanos::from_micros(us)).as_nanos(), packet)
}

/// A copy of the datagram from another port.
fn from_port(port: u16, mut packet: PacketToRelease) -> PacketToRelease {
    packet.bytes[20..22].copy_from_slice(&port.to_be_bytes());
    packet
}

fn soon() -> MonoTime {
    now() + Nanos::from_millis(30)
}

/// Receives reports until there are this many.
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
