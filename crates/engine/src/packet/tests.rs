use super::*;
use crate::port::{FrameRx, FrameTx};
use packetrig_sys::ethtool::Offload;
use packetrig_sys::kernel;
use packetrig_sys::link::VethEnd;
use packetrig_units::Nanos;
use std::sync::atomic::{AtomicU32, Ordering};

/// A cable between `a` and `b` in a namespace of its own.
struct CableLab {
    name: String,
}

impl CableLab {
    /// `None` where rights are missing.
    fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("engine-packet-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let netns = match NetNs::create_named_namespace(&name) {
            Ok(netns) => netns,
            Err(error) => {
                assert!(error.is_permission_error(), "{error}");
                println!("skipped: {error}");
                return None;
            }
        };
        let lab = Self { name };
        let end = |name| VethEnd { name, netns: None, mac: None };
        NamespaceLinks::open_in(&netns).unwrap().create_veth(end("a"), end("b")).unwrap();
        Some(lab)
    }

    fn netns(&self) -> NetNs {
        NetNs::open_named_namespace(&self.name).unwrap()
    }

    fn links(&self) -> NamespaceLinks {
        NamespaceLinks::open_in(&self.netns()).unwrap()
    }

    fn port(&self, interface: &str) -> Port {
        Port {
            name: interface.into(),
            site: packetrig_plan::PortHost::Here,
            location: PortLocation { namespace: Some(self.name.clone()), interface: interface.into() },
            speed: None,
            mtu: None,
            promiscuous: true,
        }
    }

    fn up(&self, interface: &str) {
        let mut links = self.links();
        let index = links.find_link_by_name(interface).unwrap().index;
        links.switch_interface(index, true).unwrap();
    }

    fn open_both(&self) -> (OpenedPort, OpenedPort) {
        self.up("b");
        let a = open_port(&self.port("a"), OpenOptions::default()).unwrap();
        let b = open_port(&self.port("b"), OpenOptions::default()).unwrap();
        (a, b)
    }
}

impl Drop for CableLab {
    fn drop(&mut self) {
        packetrig_sys::netns::delete_named_namespace(&self.name).unwrap();
    }
}

/// A frame to an unused address, identified by its number.
fn frame(number: u32, length: usize) -> Vec<u8> {
    let mut frame = vec![0u8; length];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 0xee]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    for (at, byte) in frame[14..].iter_mut().enumerate() {
        *byte = number.to_be_bytes()[at % 4];
    }
    frame
}

/// Sends all frames, with as many flushes as necessary.
fn send(tx: &mut PacketTx, frames: &[Vec<u8>]) {
    let mut rest = frames;
    while !rest.is_empty() || tx.pending_frames() > 0 {
        let mut next = rest.iter();
        let filled = tx.fill_slots(rest.len().min(64), &mut |slot| {
            let frame = next.next()?;
            slot[..frame.len()].copy_from_slice(frame);
            Some(frame.len())
        });
        rest = &rest[filled..];
        tx.flush_frames().unwrap();
    }
}

/// Receives until `count` frames have come or nothing more comes.
fn receive(rx: &mut PacketRx, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let end = packetrig_sys::clock::monotonic_ns() + 5_000_000_000;
    while frames.len() < count && packetrig_sys::clock::monotonic_ns() < end {
        rx.wait_for_frames(Nanos::from_millis(50)).unwrap();
        rx.receive_frames(256, &mut |frame| frames.push(frame.bytes.to_vec())).unwrap();
    }
    frames
}

#[test]
fn frames_arrive_once_in_order_and_counters_agree() {
    let Some(lab) = CableLab::new() else { return };
    let (mut a, mut b) = lab.open_both();
    let frames: Vec<_> = (0..20_000u32).map(|n| frame(n, 60 + n as usize % 1_400)).collect();
    send(&mut a.tx, &frames);
    assert!(receive(&mut b.rx, frames.len()) == frames, "frames differ");
    let (tx, rx) = (a.tx.read_tx_counters().unwrap(), b.rx.read_rx_counters().unwrap());
    assert_eq!((tx.handed_over, tx.refused, tx.on_wire, tx.dropped), (20_000, 0, Some(20_000), Some(0)));
    assert_eq!((rx.arrived, rx.seen, rx.ring_dropped), (Some(20_000), 20_000, 0));
    assert_eq!(a.rx.read_rx_counters().unwrap().seen, 0, "what we send is not what we receive");
}

#[test]
fn arrival_stamp_lies_within_clock_bound() {
    let Some(lab) = CableLab::new() else { return };
    let (mut a, mut b) = lab.open_both();
    for number in 0..50 {
        let before = packetrig_sys::clock::monotonic_ns();
        send(&mut a.tx, &[frame(number, 60)]);
        let after = packetrig_sys::clock::monotonic_ns();
        let mut arrival = None;
        while arrival.is_none() {
            b.rx.wait_for_frames(Nanos::from_millis(50)).unwrap();
            b.rx.receive_frames(1, &mut |frame| arrival = Some((frame.at.as_nanos(), frame.stamp))).unwrap();
        }
        b.rx.read_rx_counters().unwrap();
        let (at, stamp) = arrival.unwrap();
        let bound = b.rx.clock_bound().as_u64();
        assert!(at + bound >= before && at <= after + bound, "{before} {at} {after}, bound {bound}");
        assert_eq!(stamp, StampKind::Software);
    }
}

#[test]
fn tags_of_both_kinds_survive_the_way() {
    let Some(lab) = CableLab::new() else { return };
    let (mut a, mut b) = lab.open_both();
    let tagged = |tpid: u16, tci: u16| {
        let plain = frame(7, 60);
        [&plain[..12], &tpid.to_be_bytes(), &tci.to_be_bytes(), &plain[12..]].concat()
    };
    let double = {
        let inner = tagged(0x8100, 5);
        [&inner[..12], &[0x88, 0xa8, 0xe0, 0x07], &inner[12..]].concat()
    };
    let frames = [tagged(0x8100, 0x6fff), tagged(0x88a8, 1), tagged(0x8100, 0), double];
    send(&mut a.tx, &frames);
    assert_eq!(receive(&mut b.rx, frames.len()), frames);
}

#[test]
fn oversized_frame_alone_is_counted_as_refused() {
    let Some(lab) = CableLab::new() else { return };
    let (mut a, mut b) = lab.open_both();
    let frames = [frame(1, 60), frame(2, 1518), frame(3, 60)];
    send(&mut a.tx, &frames);
    assert_eq!(receive(&mut b.rx, 2), [frame(1, 60), frame(3, 60)]);
    let tx = a.tx.read_tx_counters().unwrap();
    assert_eq!((tx.handed_over, tx.refused), (2, 1));
}

#[test]
fn frames_without_peer_are_counted_as_refused() {
    let Some(lab) = CableLab::new() else { return };
    let (mut a, b) = lab.open_both();
    drop(b);
    let mut links = lab.links();
    let index = links.find_link_by_name("b").unwrap().index;
    links.switch_interface(index, false).unwrap();
    send(&mut a.tx, &[frame(1, 60), frame(2, 60)]);
    let tx = a.tx.read_tx_counters().unwrap();
    assert_eq!((tx.handed_over, tx.refused), (0, 2));
    links.switch_interface(index, true).unwrap();
    send(&mut a.tx, &[frame(3, 60)]);
    assert_eq!(a.tx.read_tx_counters().unwrap().handed_over, 1);
}

#[test]
fn a_full_receive_ring_counts_what_it_lost() {
    let Some(lab) = CableLab::new() else { return };
    let (mut a, mut b) = lab.open_both();
    // More frames than the ring holds, all unread.
    let frames: Vec<_> = (0..40_000u32).map(|n| frame(n, 1_500)).collect();
    send(&mut a.tx, &frames);
    let mut seen = 0;
    loop {
        b.rx.wait_for_frames(Nanos::from_millis(20)).unwrap();
        match b.rx.receive_frames(1_000, &mut |_| ()).unwrap() {
            0 => break,
            more => seen += more as u64,
        }
    }
    let rx = b.rx.read_rx_counters().unwrap();
    assert!(rx.ring_dropped > 0);
    assert_eq!(rx.seen, seen);
    assert_eq!(rx.arrived, Some(40_000));
    assert_eq!(rx.seen + rx.ring_dropped, 40_000, "every frame is in one account");
    assert_eq!(b.rx.read_rx_counters().unwrap().ring_dropped, rx.ring_dropped, "reading does not reset");
}

/// Everything that opening may change.
fn settings(lab: &CableLab) -> (Link, Vec<bool>, String) {
    let netns = lab.netns();
    let ethtool = EthtoolCalls::open_in(&netns).unwrap();
    let offloads = Offload::ALL.iter().map(|offload| ethtool.is_offload_on("a", *offload).unwrap()).collect();
    let ipv6 = kernel::read_setting(&netns, "net/ipv6/conf/a/disable_ipv6").unwrap();
    // Carrier of a cable follows the other end, which is not ours; a queueing discipline comes with the first going up.
    (Link { carrier: false, qdisc: None, ..lab.links().find_link_by_name("a").unwrap() }, offloads, ipv6)
}

#[test]
fn open_port_is_quiet_and_close_restores_settings() {
    let Some(lab) = CableLab::new() else { return };
    lab.up("b");
    let before = settings(&lab);
    assert!(!before.0.up && before.2 == "0", "the test needs something to change");
    let port = Port { mtu: Some(9000), ..lab.port("a") };
    let opened = open_port(&port, OpenOptions::default()).unwrap();
    let during = settings(&lab);
    assert!(during.0.up && during.0.promiscuous && during.0.mtu == 9000);
    assert_eq!(during.2, "1");
    assert_eq!(opened.info.max_frame, 9018);
    let quiet = [Offload::Gro, Offload::Gso, Offload::Tso, Offload::RxVlan, Offload::TxVlan];
    for (offload, on) in Offload::ALL.iter().zip(&during.1) {
        assert!(!on || !quiet.contains(offload), "{offload:?} is on");
    }
    assert_eq!(opened.hold.caveats(), [] as [String; 0]);
    drop(opened);
    assert_eq!(settings(&lab), before);
}

#[test]
fn cable_carrier_needs_both_ports_open() {
    let Some(lab) = CableLab::new() else { return };
    let mut a = open_port(&lab.port("a"), OpenOptions::default()).unwrap();
    let mut b = open_port(&lab.port("b"), OpenOptions::default()).unwrap();
    a.hold.await_carrier().unwrap();
    b.hold.await_carrier().unwrap();
    assert_eq!([a.hold.caveats(), b.hold.caveats()].concat(), [] as [String; 0]);
    drop(b);
    a.hold.await_carrier().unwrap();
    assert!(a.hold.caveats()[0].contains("no carrier"));
}

#[test]
fn receiver_survives_interface_down_and_up() {
    let Some(lab) = CableLab::new() else { return };
    let (mut a, mut b) = lab.open_both();
    let mut links = lab.links();
    let index = links.find_link_by_name("b").unwrap().index;
    links.switch_interface(index, false).unwrap();
    let before = packetrig_sys::clock::monotonic_ns();
    b.rx.wait_for_frames(Nanos::from_millis(20)).unwrap();
    b.rx.wait_for_frames(Nanos::from_millis(20)).unwrap();
    assert!(packetrig_sys::clock::monotonic_ns() - before >= 20_000_000, "the second wait waits");
    links.switch_interface(index, true).unwrap();
    send(&mut a.tx, &[frame(1, 60)]);
    assert_eq!(receive(&mut b.rx, 1), [frame(1, 60)]);
}

#[test]
fn impossible_mtu_is_error_and_changes_nothing() {
    let Some(lab) = CableLab::new() else { return };
    let before = settings(&lab);
    let port = Port { mtu: Some(1_000_000), ..lab.port("a") };
    assert!(matches!(open_port(&port, OpenOptions::default()), Err(Error::Kernel(_))));
    assert_eq!(settings(&lab), before);
}

#[test]
fn a_panic_restores_the_interface() {
    let Some(lab) = CableLab::new() else { return };
    lab.up("b");
    let before = settings(&lab);
    let port = lab.port("a");
    let crashed = std::thread::spawn(move || {
        let _opened = open_port(&port, OpenOptions::default()).unwrap();
        panic!("as a worker might");
    });
    assert!(crashed.join().is_err());
    assert_eq!(settings(&lab), before);
}

#[test]
fn busy_port_names_holder_and_stays_unchanged() {
    let Some(lab) = CableLab::new() else { return };
    let (a, _b) = lab.open_both();
    let during = settings(&lab);
    let busy = open_port(&lab.port("a"), OpenOptions::default()).unwrap_err();
    assert!(matches!(&busy, Error::Kernel(packetrig_sys::Error::Busy { .. })), "{busy}");
    assert!(busy.to_string().contains(&std::process::id().to_string()), "{busy}");
    assert_eq!(settings(&lab), during);
    drop(a);
    open_port(&lab.port("a"), OpenOptions::default()).unwrap();
}

#[test]
fn foreign_address_needs_confirmation_to_open_port() {
    let Some(lab) = CableLab::new() else { return };
    lab.up("b");
    let mut links = lab.links();
    let index = links.find_link_by_name("a").unwrap().index;
    links.add_address(index, "10.1.2.3".parse().unwrap(), 24).unwrap();
    let before = settings(&lab);
    let refused = open_port(&lab.port("a"), OpenOptions::default()).unwrap_err();
    assert!(matches!(&refused, Error::Guard(_)) && refused.to_string().contains("10.1.2.3"), "{refused}");
    assert_eq!(settings(&lab), before);
    open_port(&lab.port("a"), OpenOptions { confirmed: true, ..OpenOptions::default() }).unwrap();
}

#[test]
fn ipv6_addresses_are_not_lost() {
    let Some(lab) = CableLab::new() else { return };
    lab.up("b");
    let mut links = lab.links();
    let index = links.find_link_by_name("a").unwrap().index;
    let address = "2001:2::77".parse().unwrap();
    links.add_address(index, address, 64).unwrap();
    let opened = open_port(&lab.port("a"), OpenOptions::default()).unwrap();
    assert!(opened.hold.caveats().iter().any(|text| text.contains("IPv6")), "{:?}", opened.hold.caveats());
    drop(opened);
    assert!(links.list_addresses().unwrap().iter().any(|a| a.ip == address));
}

#[test]
fn missing_interfaces_and_namespaces_are_named() {
    let port = |namespace: Option<&str>, interface: &str| Port {
        name: "p".into(),
        site: packetrig_plan::PortHost::Here,
        location: PortLocation { namespace: namespace.map(str::to_owned), interface: interface.into() },
        speed: None,
        mtu: None,
        promiscuous: true,
    };
    for (port, named) in
        [(port(None, "nosuchlink0"), "nosuchlink0"), (port(Some("nosuchns"), "a"), "nosuchns")]
    {
        let error = open_port(&port, OpenOptions::default()).unwrap_err();
        assert!(matches!(&error, Error::Kernel(packetrig_sys::Error::Missing { .. })), "{error}");
        assert!(error.to_string().contains(named), "{error}");
    }
}
