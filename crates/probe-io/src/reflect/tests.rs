use super::*;
use crate::ask::{self, ProbeLine, ProbeSeriesOptions};
use crate::lab::{PlainRelease, ProbeLab, permitted};
use crate::listener::{PacketListener, SilencedPort, WantedPackets};
use crate::path;
use crate::release::ReleaseDispatcher;
use packetrig_probe::session::reflector::ReflectorSettings;
use packetrig_probe::session::sender::{StampSender, StampSenderSettings};
use packetrig_probe::session::{SessionKey, TimeFormat};
use packetrig_probe::{ProbeBudget, ProbeSchedule};
use packetrig_sys::netns::NetNs;
use packetrig_units::Nanos;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn reflect_session_returns_ordered_far_stamps() {
    let Some(lab) = ProbeLab::new() else { return };
    for key in [None, SessionKey::new(vec![7; 32])] {
        session(&lab, key);
    }
}

fn session(lab: &ProbeLab, key: Option<SessionKey>) {
    let far = NetNs::open_named_namespace(&lab.far).unwrap();
    let mut socket = WatchedSocket::bind_in(&far, "192.0.2.2:0".parse().unwrap()).unwrap();
    let port = socket.address().unwrap().port();
    let done = AtomicBool::new(false);
    let way = path::find_path(Some(&lab.near), permitted("192.0.2.2"), None).unwrap();
    let hush = SilencedPort::reserve_any_port(Some(&lab.near), way.ends.source).unwrap();
    let settings = ReflectorSettings {
        key: key.clone(),
        is_stateful: true,
        interval: Nanos::ZERO,
        burst: 1,
        synchronised_ns: None,
    };
    let session = StampSenderSettings {
        ports: (hush.port(), port),
        key,
        format: TimeFormat::Ptp,
        number: 5,
        realtime_offset_ns: clock::measure_realtime_offset().offset_ns,
        synchronised_ns: None,
        follow_up: true,
    };
    let line = ProbeLine {
        method: Box::new(StampSender::new(way.ends, session)),
        dispatcher: ReleaseDispatcher::new(
            Box::new(PlainRelease::open(&way)),
            ProbeBudget::new(way.permitted.limits()),
        ),
        schedule: ProbeSchedule::periodic(8, Nanos::from_millis(20), 200).unwrap(),
        shift: Nanos::ZERO,
        way,
    };
    let (outcome, counts) = std::thread::scope(|scope| {
        let reflecting = scope.spawn(|| {
            let mut reflector = StampReflector::new(settings);
            run_reflector(&mut socket, &mut reflector, &|ip| ip.is_ipv4(), &|_| done.load(Ordering::Acquire))
        });
        let wanted = WantedPackets { addresses: vec![line.way.ends.source], port: Some(hush.port()) };
        let listener =
            PacketListener::open_at_interface(&line.way.location, line.way.index, &wanted).unwrap();
        let asked = ProbeSeriesOptions { answer: Nanos::from_millis(500), stop: &|| false };
        let outcome = ask::run_lines(&mut [line], &mut [listener], asked, &mut |_| {}).unwrap().remove(0);
        done.store(true, Ordering::Release);
        (outcome, reflecting.join().unwrap().unwrap())
    });
    assert_eq!((counts.requests, counts.reflected), (8, 8));
    assert_eq!(outcome.series.counts().answered, 8);
    let offset = clock::measure_realtime_offset();
    for record in outcome.series.records() {
        // One machine: the far end's clock is ours, and the four stamps are in order.
        let far = |stamp: Option<packetrig_probe::ProbeStamp>| offset.to_monotonic(stamp.unwrap().middle());
        let (arrived, departed) = (far(record.far_arrival), far(record.far_departure));
        let slack = 100_000;
        assert!(
            record.local_departure().unwrap().lo <= arrived + slack && arrived <= departed + slack,
            "{record:?}"
        );
        assert!(departed <= record.answered.unwrap().hi + slack, "{record:?}");
    }
}

#[test]
fn nobody_is_answered_who_is_not_allowed() {
    let Some(lab) = ProbeLab::new() else { return };
    let (near, far) =
        (NetNs::open_named_namespace(&lab.near).unwrap(), NetNs::open_named_namespace(&lab.far).unwrap());
    let mut socket = WatchedSocket::bind_in(&far, "192.0.2.2:0".parse().unwrap()).unwrap();
    let to = socket.address().unwrap();
    let asking = near.run_in_namespace(|| std::net::UdpSocket::bind("192.0.2.1:0").unwrap()).unwrap();
    asking.send_to(&[0; 44], to).unwrap();
    let settings = ReflectorSettings {
        key: None,
        is_stateful: false,
        interval: Nanos::ZERO,
        burst: 1,
        synchronised_ns: None,
    };
    let mut reflector = StampReflector::new(settings);
    let counts =
        run_reflector(&mut socket, &mut reflector, &|_| false, &|counts| counts.requests > 0).unwrap();
    assert_eq!((counts.foreign, counts.reflected), (1, 0));
    asking.set_nonblocking(true).unwrap();
    assert!(asking.recv(&mut [0; 9]).is_err());
}
