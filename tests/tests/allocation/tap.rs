//! The way `packet` of a tap: from ring to ring, and copies, without allocating. A treatment is called on the thread that
//! forwards, so it sees what that thread asks for.

use super::ALLOCATIONS;
use packetrig_link::{DepartureLateness, FrameTreatment};
use packetrig_link_io::tap::{MirrorSpec, RunningTap, TapMethod, TapSpec};
use packetrig_sys::clock;
use packetrig_testkit::Lab;
use packetrig_tests::{skip, station};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Frames until nothing is made for the first time, and those after them.
const WARM: u64 = 2_000;
const ALL: u64 = 20_000;
const PATIENCE_NS: u64 = 30_000_000_000;

/// Frames that passed, and what their thread had asked for when the first and the last of those that matter did.
#[derive(Default)]
struct Seen {
    frames: AtomicU64,
    warm: AtomicU64,
    last: AtomicU64,
}

struct Looking(Arc<Seen>);

impl FrameTreatment for Looking {
    fn accept_frame(&mut self, arrived_ns: u64, frame: &[u8], out: &mut dyn FnMut(&[u8], u64)) {
        out(frame, arrived_ns);
        let place = match self.0.frames.load(Ordering::Relaxed) + 1 {
            WARM => Some(&self.0.warm),
            ALL => Some(&self.0.last),
            _ => None,
        };
        if let Some(place) = place {
            place.store(ALLOCATIONS.get(), Ordering::Relaxed);
        }
        self.0.frames.fetch_add(1, Ordering::Release);
    }

    fn release_due_frames(&mut self, _: u64, _: &mut dyn FnMut(&[u8], u64)) {}

    fn next_due_time(&self) -> Option<u64> {
        None
    }

    fn release_all_frames(&mut self, _: &mut dyn FnMut(&[u8], u64)) {}

    fn record_lateness(&mut self, _: DepartureLateness) {}

    fn drop_and_copy_counts(&self) -> (u64, u64) {
        (0, 0)
    }
}

#[test]
fn process_tap_forwards_and_copies_without_allocating() {
    let Some(lab) = skip::quiet_lab(|| Lab::with_unconnected_ports(3)) else { return };
    let at = |number: usize| lab.device_location(number).parse().unwrap();
    let text = "udp or not udp".to_owned();
    let filter = packetrig_engine::filter::compile_filter(&text).unwrap();
    let spec = TapSpec {
        name: format!("allocation-{}", std::process::id()),
        sides: [at(0), at(1)],
        mirrors: vec![MirrorSpec { at: at(2), to: Some([2, 0, 0, 0, 0, 9]) }],
        filter: Some((text, filter)),
        snap_len: Some(96),
        trailer: true,
        capture: None,
        way: Some(TapMethod::Packet),
        fail_closed: false,
        link_state: false,
        confirmed: Vec::new(),
    };
    let seen = [(); 2].map(|()| Arc::<Seen>::default());
    let looking = seen.each_ref().map(|seen| Box::new(Looking(Arc::clone(seen))) as Box<dyn FrameTreatment>);
    let tap = RunningTap::begin_tap_with_treatments(&spec, Some(looking)).unwrap();
    let mut frame = vec![0x5a; 300];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    let frames = vec![frame; 500];
    let (mut sent, end) = (0, clock::monotonic_ns() + PATIENCE_NS);
    // In portions that find room in the ring, however slow this machine is.
    while sent < ALL {
        station::send(&lab.ports()[0], &frames);
        sent += frames.len() as u64;
        while seen[0].frames.load(Ordering::Acquire) < sent {
            assert!(clock::monotonic_ns() < end, "{sent} frames never passed");
            clock::sleep_until_ns(clock::monotonic_ns() + 1_000_000);
        }
    }
    let ended = tap.end_tap().unwrap();
    assert_eq!(ended.imbalances, Vec::<String>::new());
    let there = &ended.accounts.directions[0];
    assert_eq!((there.received, there.wanted), (ALL, ALL), "{there:?}");
    let asked = seen[0].last.load(Ordering::Relaxed) - seen[0].warm.load(Ordering::Relaxed);
    assert_eq!(asked, 0, "allocations while {} frames passed", ALL - WARM);
}
