use super::*;
use crate::lab::{PlainRelease, ProbeLab};
use crate::listener::{SilencedPort, WantedPackets};
use crate::path;
use crate::release::FrameReleaser;
use packetrig_probe::oneprobe::{ArrivalOrder, ForwardOutcome, HttpRequest, OneprobeOptions, ProbeVerdict};
use packetrig_probe::{ProbeBudget, ProbePermit, ProbeStamp, ReleaseMechanism, StampSource};
use packetrig_sys::netns::NetNs;
use std::io::{Read, Write};
use std::net::TcpListener;

/// Least number of conclusive probes out of sixty: a machine that is away for 0.1 s makes a probe ambiguous.
const LEAST_TOLD: u64 = 48;

const MANNER: OneprobeOptions =
    OneprobeOptions { count: 60, every_ns: 50_000_000, payload: 300, answer: 536, seed: 1 };

/// A server that answers every request with this many bytes.
fn serve(lab: &ProbeLab, bytes: usize) -> u16 {
    let far = NetNs::open_named_namespace(&lab.far).unwrap();
    let listener = far.run_in_namespace(|| TcpListener::bind("192.0.2.2:0").unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut request = [0; 4096];
                while stream.read(&mut request).is_ok_and(|length| length > 0) {
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
                    let sent =
                        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&vec![7; bytes]));
                    if sent.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// Loses, swaps and holds back segments of pairs, in turns of ten.
struct FaultySegments {
    plain: PlainRelease,
    pairs: u32,
    /// Leaves behind the next frame.
    held: Option<Vec<u8>>,
}

impl FrameReleaser for FaultySegments {
    fn mechanism(&self) -> ReleaseMechanism {
        ReleaseMechanism::Sleep
    }

    fn release_train(&mut self, train: &[DueFrame<'_>], gone: &mut Vec<DepartedFrame>) -> Result<(), Error> {
        let [one, other] = train else {
            self.plain.release_train(train, gone)?;
            if let Some(frame) = self.held.take() {
                let at = MonoTime::from_nanos(clock::monotonic_ns());
                self.plain.release_train(&[DueFrame { at, frame: &frame }], &mut Vec::new())?;
            }
            return Ok(());
        };
        self.pairs += 1;
        self.held = (self.pairs % 10 == 8).then(|| other.frame.to_vec());
        let passing = match self.pairs % 10 {
            3 => vec![*other],
            5 | 8 => vec![*one],
            7 => vec![*other, *one],
            9 => vec![],
            _ => train.to_vec(),
        };
        self.plain.release_train(&passing, gone)?;
        let now = MonoTime::from_nanos(clock::monotonic_ns());
        let stamp = ProbeStamp::with_bound(StampSource::Program, now, 1_000);
        gone.resize(2, DepartedFrame { handed_over: Some(stamp), ..DepartedFrame::default() });
        Ok(())
    }
}

const OWNERS: &str = "[[target]]\nnetwork = \"192.0.2.0/24\"\nprobes_per_s = 1000\nbits_per_s = \"10Mbps\"\nloss_percent = 100\n";

fn run(lab: &ProbeLab, port: u16, is_faulty: bool) -> (OneprobeEndReason, OneprobeReport) {
    let target = ProbePermit::from_text(OWNERS)
        .unwrap()
        .permit_target("192.0.2.2".parse().unwrap(), "2026-11-22")
        .unwrap();
    let way = path::find_path(Some(&lab.near), target, None).unwrap();
    let hush = SilencedPort::reserve_any_port(Some(&lab.near), way.ends.source).unwrap();
    let wanted = WantedPackets { addresses: vec![way.ends.source], port: Some(hush.port()) };
    let mut listener = PacketListener::open_at_interface(&way.location, way.index, &wanted).unwrap();
    let plain = PlainRelease::open(&way);
    let release: Box<dyn FrameReleaser> =
        if is_faulty { Box::new(FaultySegments { plain, pairs: 0, held: None }) } else { Box::new(plain) };
    let mut dispatcher = ReleaseDispatcher::new(release, ProbeBudget::new(target.limits()));
    let mut machine = OneprobeMachine::new(MANNER, HttpRequest::new("lab.example", "/", None));
    let own_port = hush.port();
    let mut talk =
        OneprobeDriver { way: &way, port, own_port, dispatcher: &mut dispatcher, listener: &mut listener };
    let end = talk.run_series(&mut machine, &|| false, &mut |_| {}).unwrap();
    (end, machine.report().0.clone())
}

#[test]
fn the_kernels_own_tcp_answers_as_probes_expect() {
    let Some(lab) = ProbeLab::new() else { return };
    let port = serve(&lab, 100_000);
    let (end, report) = run(&lab, port, false);
    assert_eq!((end, report.probes), (OneprobeEndReason::Done, 60), "{report:?}");
    assert!(report.told >= LEAST_TOLD && report.forward.ordered >= LEAST_TOLD, "{report:?}");
    assert_eq!((report.forward.sent, report.forward.lost, report.reverse.lost), (2 * report.told, 0, 0));
    assert_eq!((report.forward.reordered, report.reverse.reordered), (0, 0));
    assert!(report.round_trips.len() as u64 >= LEAST_TOLD, "{report:?}");
}

#[test]
fn oneprobe_forward_loss_and_order_match_actual_faults() {
    let Some(lab) = ProbeLab::new() else { return };
    let port = serve(&lab, 100_000);
    let (end, report) = run(&lab, port, true);
    assert_eq!((end, report.probes), (OneprobeEndReason::Done, 60), "{:?}", report.outcomes);
    assert!(report.told >= LEAST_TOLD, "{:?}", report.outcomes);
    let mut lost = 0;
    for outcome in &report.outcomes {
        let ProbeVerdict::Told { forward, reverse } = outcome.verdict else { continue };
        let expected = match (outcome.number + 1) % 10 {
            3 => ForwardOutcome::FirstLost,
            5 => ForwardOutcome::SecondLost,
            7 => ForwardOutcome::Both(ArrivalOrder::Changed),
            9 => ForwardOutcome::BothLost,
            _ => ForwardOutcome::Both(ArrivalOrder::Kept),
        };
        assert_eq!((forward, reverse.lost_segments()), (expected, 0), "{outcome:?}");
        lost += forward.lost_segments();
    }
    // Six of the sixty pairs change their order, and thirty-six keep it.
    assert_eq!(report.forward.lost, lost);
    assert!(report.forward.reordered > 0 && lost > 0 && report.forward.ordered >= LEAST_TOLD - 18);
}

#[test]
fn oneprobe_reports_refused_or_too_short_web_server() {
    let Some(lab) = ProbeLab::new() else { return };
    assert_eq!(run(&lab, 1, false).0, OneprobeEndReason::Failed(OneprobeFailure::Refused));
    let port = serve(&lab, 50);
    assert_eq!(run(&lab, port, false).0, OneprobeEndReason::Failed(OneprobeFailure::TooShort));
}
