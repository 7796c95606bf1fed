//! Mechanisms that need queueing disciplines and cards the developers' kernel lacks: `fq`, `etf`, stamps of a card.
//!
//! What is held: order, nothing early, what is dropped and that it is said. How late a frame is means nothing here.

use super::inside;
use packetrig_plan::PortLocation;
use packetrig_probe::{DepartureStage, DepartureStamp, ProbeFlag, ReleaseMechanism, StampClock};
use packetrig_probe_io::Error;
use packetrig_probe_io::release::{self, DepartedFrame, DueFrame, ReleaseOptions};
use packetrig_sys::clock;
use packetrig_sys::ethtool::EthtoolCalls;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::packet::{ArrivalStamp, RxOptions, RxRing};
use packetrig_testkit::Lab;
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::skip::{self, OwnLab};
use packetrig_units::{MonoTime, Nanos};

const FRAMES: u8 = 30;
const GAP: Nanos = Nanos::from_millis(5);
/// `etf` is asked to wake up this long before an instant, and may release as early; an emulated processor is slow.
const DELTA: Nanos = Nanos::from_millis(20);

/// IPv4 to nobody, with a number behind the header.
fn frame(number: u8) -> Vec<u8> {
    let mut frame =
        vec![2, 0, 0, 0, 0, 0xfe, 2, 0, 0, 0, 0, 0xfd, 8, 0, 0x45, 0, 0, 86, 0, 0, 0, 0, 64, 253, 0, 0];
    frame.extend([198, 19, 0, 1, 198, 19, 0, 2]);
    frame.resize(100, number);
    frame
}

/// Opens a mechanism at a location and releases a train that begins so long from now; negative: that began before.
fn release(
    location: &PortLocation,
    mechanism: ReleaseMechanism,
    from_ms: i64,
) -> Result<(Vec<DepartedFrame>, Vec<u64>), Error> {
    let ahead = Nanos::from_millis(50);
    let options = ReleaseOptions { ahead, priority: None, ..ReleaseOptions::common() };
    let mut open = release::open_release(location, mechanism, options)?;
    let frames: Vec<Vec<u8>> = (0..FRAMES).map(frame).collect();
    let start = clock::monotonic_ns().saturating_add_signed(from_ms * 1_000_000);
    let at = |n: u64| MonoTime::from_nanos(start + GAP.as_u64() * n);
    let train: Vec<DueFrame<'_>> =
        (0..).zip(&frames).map(|(n, frame)| DueFrame { at: at(n), frame }).collect();
    let mut gone = Vec::new();
    open.release_train(&train, &mut gone)?;
    assert_eq!(gone.len(), usize::from(FRAMES));
    Ok((gone, train.iter().map(|due| due.at.as_nanos()).collect()))
}

fn near(lab: &Lab) -> PortLocation {
    PortLocation { namespace: Some(lab.ports()[0].namespace().to_owned()), interface: INTERFACE.to_owned() }
}

/// Numbers and arrivals of our frames in order of their stamps, as far as `wanted` came; bounds of the clocks' comparison added. What two
/// processors put on a virtual cable may be handed to the ring in another order than it was stamped in.
fn arrived(ring: &mut RxRing, wanted: usize) -> Vec<(u8, u64)> {
    let mut found = Vec::new();
    let end = clock::monotonic_ns() + 3_000_000_000;
    while found.len() < wanted && clock::monotonic_ns() < end {
        ring.wait_for_frames(100_000_000).unwrap();
        ring.receive_frames(usize::MAX, &mut |frame| {
            if frame.bytes.len() == 100 && frame.bytes[23] == 253 {
                found.push((frame.bytes[60], frame.realtime_ns));
            }
        });
    }
    found.sort_by_key(|(_, at)| *at);
    let offset = clock::measure_realtime_offset();
    found.iter().map(|(number, at)| (*number, offset.to_monotonic(*at) + offset.bound_ns)).collect()
}

/// What is reported of a departure is before the arrival: the truth, as the far end's kernel saw it.
fn reported_before_true(gone: &[DepartedFrame], arrived: &[(u8, u64)]) {
    let mut reports = 0;
    for (number, at) in arrived {
        let gone = &gone[usize::from(*number)];
        let Some(reported) = DepartureStamp::stamp_of_stage(&gone.departures, DepartureStage::Driver) else {
            assert!(gone.flags.contains(&ProbeFlag::StampMissing), "{gone:?}");
            continue;
        };
        assert!(reported.lo <= *at, "{number}: reported {} ns after it arrived", reported.lo - at);
        reports += 1;
    }
    assert!(reports * 2 > arrived.len(), "{reports} of {} departures reported", arrived.len());
}

fn far(lab: &Lab) -> RxRing {
    let port = &lab.ports()[1];
    RxRing::open_on_interface(port.netns(), port.link.index, INTERFACE, RxOptions::default()).unwrap()
}

/// A cable with this discipline at its near end.
fn cable(discipline: &str) -> Option<OwnLab> {
    let lab = skip::lab(Lab::cabled_pair)?;
    if !discipline.is_empty() {
        inside(lab.ports()[0].netns(), &format!("tc qdisc replace dev {INTERFACE} root {discipline}"));
    }
    Some(lab)
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn disciplines_that_ignore_release_times_are_refused() {
    for discipline in ["", "pfifo", "prio"] {
        let Some(lab) = cable(discipline) else { return };
        for mechanism in [ReleaseMechanism::Fq, ReleaseMechanism::Etf, ReleaseMechanism::Launch] {
            let refused = release(&near(&lab), mechanism, 100);
            assert!(
                matches!(refused, Err(Error::Mechanism { .. })),
                "{mechanism} behind `{discipline}`: {refused:?}"
            );
        }
    }
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn fq_releases_in_order_and_never_early() {
    let Some(lab) = cable("fq") else { return };
    let mut ring = far(&lab);
    let (gone, due) = release(&near(&lab), ReleaseMechanism::Fq, 200).unwrap();
    assert!(gone.iter().all(|gone| !gone.flags.contains(&ProbeFlag::Dropped)), "{gone:?}");
    let arrived = arrived(&mut ring, usize::from(FRAMES));
    assert!(arrived.iter().map(|(number, _)| *number).eq(0..FRAMES), "{arrived:?}");
    for ((number, at), due) in arrived.iter().zip(&due) {
        assert!(at >= due, "{number} left {} ns early", due - at);
    }
    reported_before_true(&gone, &arrived);
    // Handed over ahead: held back by the discipline, not by us.
    let ahead =
        gone.iter().zip(&due).filter(|(gone, due)| gone.handed_over.is_some_and(|stamp| stamp.hi < **due));
    assert!(ahead.count() > 0, "{gone:?}");
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn etf_releases_within_delta_and_reports_late_packets() {
    let Some(lab) = cable(&format!("etf clockid CLOCK_TAI delta {}", DELTA.as_u64())) else { return };
    let mut ring = far(&lab);
    let (gone, due) = release(&near(&lab), ReleaseMechanism::Etf, 300).unwrap();
    let dropped = |gone: &DepartedFrame| gone.flags.contains(&ProbeFlag::Dropped);
    let kept: Vec<usize> = (0..gone.len()).filter(|n| !dropped(&gone[*n])).collect();
    let came = arrived(&mut ring, kept.len());
    let numbers: Vec<usize> = came.iter().map(|(number, _)| usize::from(*number)).collect();
    assert_eq!(numbers, kept, "what is not said to be dropped arrives, in order");
    assert!(!kept.is_empty(), "{gone:?}");
    for (number, at) in &came {
        let due = due[usize::from(*number)];
        assert!(at + DELTA.as_u64() >= due, "{number} left {} ns before its instant", due - at);
    }
    reported_before_true(&gone, &came);
    let (gone, _) = release(&near(&lab), ReleaseMechanism::Etf, -5_000).unwrap();
    assert!(gone.iter().all(dropped), "{gone:?}");
    assert_eq!(arrived(&mut ring, 1), [], "what is past does not leave");
}

/// Two cards with clocks and a hub between them; `igb` where QEMU has it (8.1), which stamps, else `e1000e`, which only says so.
fn cards() -> (NetNs, [(String, u32); 2], bool) {
    let here = NetNs::current().unwrap();
    let ethtool = EthtoolCalls::open_in(&here).unwrap();
    let mut links = NamespaceLinks::open_in(&here).unwrap();
    let mut found = Vec::new();
    let mut stamps = false;
    for link in links.list_links().unwrap() {
        let driver = ethtool.read_driver_name(&link.name).map(|driver| driver.name).unwrap_or_default();
        if driver == "igb" || driver == "e1000e" {
            stamps = driver == "igb";
            links.switch_interface(link.index, true).unwrap();
            found.push((link.name, link.index));
        }
    }
    inside(
        &here,
        "for n in $(seq 100); do [ $(cat /sys/class/net/eth[01]/carrier | grep -c 1) = 2 ] && exit 0; sleep 0.1; done; exit 1",
    );
    (here, found.try_into().unwrap(), stamps)
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn a_card_stamps_departures_or_that_is_said() {
    let (here, [(near, _), (far, index)], stamps) = cards();
    let mut ring = RxRing::open_on_interface(&here, index, &far, RxOptions::default()).unwrap();
    let location = PortLocation { namespace: None, interface: near.clone() };
    let ethtool = EthtoolCalls::open_in(&here).unwrap();
    let before = ethtool.read_card_stamping(&near).unwrap();
    let (gone, _) = release(&location, ReleaseMechanism::Sleep, 100).unwrap();
    assert_eq!(ethtool.read_card_stamping(&near).unwrap(), before, "the card is left as it was");
    assert_eq!(arrived(&mut ring, usize::from(FRAMES)).len(), usize::from(FRAMES));
    let (mut by_driver, mut on_wire) = (0, 0);
    let mut last = 0;
    for gone in &gone {
        let of = |stage| DepartureStamp::stamp_of_stage(&gone.departures, stage);
        let is_said = gone.flags.contains(&ProbeFlag::StampMissing);
        // A guest without a processor for a while may get a stamp too late.
        assert!(of(DepartureStage::Driver).is_some() || is_said, "{gone:?}");
        by_driver += usize::from(of(DepartureStage::Driver).is_some());
        match of(DepartureStage::Wire) {
            Some(stamp) => {
                assert!(matches!(stamp.clock, StampClock::Device(_)) && stamp.lo > last, "{gone:?}");
                last = stamp.lo;
                on_wire += 1;
            }
            None => assert!(is_said, "{gone:?}"),
        }
    }
    assert!(by_driver > 0, "the driver of each card stamps: {gone:?}");
    assert!(!stamps || on_wire > 0, "an igb stamps: {gone:?}");
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn arrivals_are_stamped_by_the_stack() {
    let Some(lab) = cable("") else { return };
    let mut ring = far(&lab);
    let (gone, _) = release(&near(&lab), ReleaseMechanism::Spin, 100).unwrap();
    assert!(gone.iter().all(|gone| gone.released.is_some()));
    let mut by_stack = 0;
    while by_stack < usize::from(FRAMES) - 5 {
        ring.wait_for_frames(1_000_000_000).unwrap();
        let took = ring.receive_frames(usize::MAX, &mut |frame| {
            by_stack += usize::from(frame.stamp == ArrivalStamp::Software);
        });
        assert!(took > 0, "{by_stack} of {FRAMES} stamped by the stack");
    }
}
