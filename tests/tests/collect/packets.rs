//! A pair of meters that report each packet (SIM): a takeover repeats some of them and loses none.

use super::standby::{Pair, PairMeter};
use packetrig_flow::sim::{SimDecoder, SimEvent, SimItem};
use packetrig_tests::scraping;
use packetrig_tests::station::Station;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const FLOWS: u16 = 20;
const FIRST_PORT: u16 = 20_000;
/// Between two packets of a flow.
const PAUSE: Duration = Duration::from_millis(5);
/// Bytes of the IP packet with number 0.
const LEAST_BYTES: u16 = 60;

/// A standby that has left so many packets to the active meter has left the first ones of each flow.
const FORGOTTEN: u64 = 5 * FLOWS as u64;

/// Packets are told apart by their length: (port, bytes of the IP packet).
type PacketNames = BTreeSet<(u16, u32)>;

/// A receiver of SIM that knows nothing of groups.
struct SimReceiver {
    place: SocketAddr,
    /// What came on each connection, when it has ended.
    connections: Receiver<Vec<u8>>,
}

impl SimReceiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap();
        let (ended, connections) = channel();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let ended = ended.clone();
                std::thread::spawn(move || {
                    let mut bytes = Vec::new();
                    // A killed meter resets its connection; what came before counts.
                    drop(connection.unwrap().read_to_end(&mut bytes));
                    drop(ended.send(bytes));
                });
            }
        });
        Self { place, connections }
    }

    /// What came on so many connections.
    fn take(&self, connections: usize) -> Vec<Vec<SimEvent>> {
        let timeout = Duration::from_secs(20);
        (0..connections).map(|_| events_of(&self.connections.recv_timeout(timeout).unwrap())).collect()
    }
}

fn events_of(mut bytes: &[u8]) -> Vec<SimEvent> {
    let mut events = Vec::new();
    while let Ok(header) = SimDecoder::read_header(bytes)
        && bytes.len() >= usize::from(header.length)
    {
        let (datagram, rest) = bytes.split_at(usize::from(header.length));
        let mut take = |item| {
            if let SimItem::Event(event) = item {
                events.push(event);
            }
        };
        SimDecoder::decode_datagram(datagram, &mut take).unwrap();
        bytes = rest;
    }
    events
}

/// The packets of our flows that came on a connection. Their flows were told there, too.
fn packets_of(events: &[SimEvent]) -> PacketNames {
    let mut ports = BTreeMap::new();
    for event in events {
        if let SimEvent::Flow { flow_id, key, .. } = event {
            ports.insert(*flow_id, key.source_port);
        }
    }
    let packets = events.iter().filter_map(|event| match event {
        SimEvent::Packet { flow_id, bytes, .. } => {
            Some((*ports.get(flow_id).expect("the flow of each packet was told"), *bytes))
        }
        SimEvent::Flow { .. } => None,
    });
    packets.filter(|(port, _)| *port >= FIRST_PORT).collect()
}

/// A UDP packet of this length.
fn frame(flow: u16, bytes: u16) -> Vec<u8> {
    let mut head = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 19, 0, 2];
    head[2..4].copy_from_slice(&bytes.to_be_bytes());
    let sum: u32 = head.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    head[10..12].copy_from_slice(&sum.to_be_bytes());
    let ports = [(FIRST_PORT + flow).to_be_bytes(), 9_u16.to_be_bytes()].concat();
    let payload = vec![7; usize::from(bytes) - 28];
    let ethernet = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    [&ethernet[..], &head, &ports, &(bytes - 20).to_be_bytes(), &[0, 0], &payload].concat()
}

/// Sends packets of all flows, each of another length.
#[derive(Default)]
struct NumberedTraffic {
    next: u16,
    sent: PacketNames,
}

impl NumberedTraffic {
    fn send(&mut self, station: &mut Station) {
        let bytes = LEAST_BYTES + self.next;
        assert!(bytes <= 1400, "lengths have run out");
        let frames: Vec<_> = (0..FLOWS).map(|flow| frame(flow, bytes)).collect();
        station.send(frames.iter());
        self.sent.extend((0..FLOWS).map(|flow| (FIRST_PORT + flow, u32::from(bytes))));
        self.next += 1;
        std::thread::sleep(PAUSE);
    }

    fn send_until(
        &mut self,
        station: &mut Station,
        meter: &mut PairMeter,
        is_so: impl Fn(&PairMeter) -> bool,
    ) {
        while !is_so(meter) {
            assert!(!meter.running.has_ended(), "{}", meter.running.remarks());
            self.send(station);
            std::thread::sleep(4 * PAUSE);
        }
    }

    fn send_slowly(&mut self, station: &mut Station) {
        self.send(station);
        std::thread::sleep(20 * PAUSE);
    }

    /// Until the standby is ready, and has forgotten how the flows began. Returns the active meter first: one that stood still for a
    /// moment has given up its role.
    fn send_until_forgotten(&mut self, station: &mut Station, meters: [PairMeter; 2]) -> [PairMeter; 2] {
        let [mut one, mut two] = meters;
        loop {
            if two.is_active() {
                std::mem::swap(&mut one, &mut two);
            }
            let has_standby = one.is_active() && !two.is_active() && two.is_ready();
            if has_standby && packets_left(&two) >= FORGOTTEN {
                return [one, two];
            }
            assert!(!one.running.has_ended() && !two.running.has_ended(), "{}", two.running.remarks());
            self.send_slowly(station);
        }
    }

    fn send_some(&mut self, station: &mut Station) {
        for _ in 0..100 {
            self.send(station);
        }
    }
}

/// Packets that a meter has left to the active one.
fn packets_left(meter: &PairMeter) -> u64 {
    let text = scraping::scrape(&scraping::metrics_address(&meter.running));
    let line =
        text.lines().find(|line| line.starts_with("packetrig_meter_output_left_to_others_packets_total"));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

#[test]
fn a_takeover_repeats_packets_and_loses_none() {
    let Some(mut pair) = Pair::new() else { return };
    let receiver = SimReceiver::start();
    let target = format!("tcp://{}", receiver.place);
    let flags = ["--format", "sim", "--export", &target, "--metrics", "127.0.0.1:0"];
    pair.flags = flags.map(str::to_owned).to_vec();
    let mut station = Station::open(&pair.link.lab.ports()[0]);
    let mut traffic = NumberedTraffic::default();
    // From the first packet on: the meter that becomes active has kept all of them.
    let meters = pair.start_both(|| traffic.send_slowly(&mut station));
    let [mut one, mut two] = traffic.send_until_forgotten(&mut station, meters);
    // Frozen, and going on: it must find that it is not the active one any more.
    one.running.signal(Signal::STOP);
    traffic.send_until(&mut station, &mut two, PairMeter::is_active);
    traffic.send_some(&mut station);
    one.running.signal(Signal::CONT);
    traffic.send_until(&mut station, &mut one, |one| !one.is_active());
    traffic.send_some(&mut station);
    two.running.signal(Signal::KILL);
    drop(two.running.finish());
    traffic.send_some(&mut station);
    let outcome = pair.finish([one]);
    let came = receiver.take(2);
    let all: PacketNames = came.iter().flat_map(|events| packets_of(events)).collect();
    let missing: Vec<_> = traffic.sent.difference(&all).collect();
    assert!(missing.is_empty(), "{missing:?} {:#?}", outcome.meters);
    assert!(all.is_subset(&traffic.sent));
    // Our own collector has them too, each under the key of its flow; it cannot know which ones come twice.
    let stored: u64 = outcome
        .collected
        .rows()
        .iter()
        .filter(|row| row["sourceTransportPort"].as_u64() >= Some(FIRST_PORT.into()))
        .filter_map(|row| row["packetDeltaCount"].as_u64())
        .sum();
    assert!(stored >= all.len() as u64, "{stored} {:#}", outcome.collected.report);
}
