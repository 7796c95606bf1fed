//! Our own export thread sends, over each transport; a relay in between loses datagrams.

use super::*;
use crate::BackpressurePolicy;
use crate::export::{self, ExportContent, ExportDestination, ExportTarget};
use packetrig_flow::collect::{ExportProtocol, ExporterIdentity};
use packetrig_flow::export::ExportFormat;
use packetrig_flow::sim::SimEvent;
use packetrig_flow::{
    CaptureCounts, ExportCounts, FlowHalf, FlowKey, FlowRecord, IPV4_MAPPED_PREFIX, MeterLedger, PacketCounts,
};
use packetrig_sys::udp::UdpReceiver;
use std::io::Write;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

mod bounds;
mod connections;

const LOCAL: &str = "127.0.0.1:0";

#[derive(Default)]
struct KeptRecords {
    records: Vec<FlowRecord>,
    ledgers: Vec<MeterLedger>,
}

impl CollectedRecordReceiver for KeptRecords {
    fn accept_records(&mut self, records: &[FlowRecord], _: &ExporterIdentity) {
        self.records.extend_from_slice(records);
    }

    fn accept_ledger(&mut self, ledger: &MeterLedger, _: &ExporterIdentity, _: u64) {
        self.ledgers.push(*ledger);
    }
}

fn record(n: u64) -> FlowRecord {
    let address = |last: u8| {
        let mut address = [198; 16];
        address[..12].copy_from_slice(&IPV4_MAPPED_PREFIX);
        address[15] = last;
        address
    };
    FlowRecord {
        key: FlowKey { source: address(1), destination: address(2), protocol: 17, ..FlowKey::default() },
        forward: FlowHalf {
            packets: n % 7 + 1,
            bytes: 100,
            first_ns: 1_000_000,
            last_ns: 2_000_000,
            ..FlowHalf::default()
        },
        flow_id: n,
        sampling: 1,
        ..FlowRecord::default()
    }
}

fn packets(count: u64) -> u64 {
    (0..count).map(|n| record(n).packets()).sum()
}

fn start(listen: &[String], files: &[&Path], tls: Option<TlsFiles>) -> RunningCollector<KeptRecords> {
    let options = CollectOptions {
        listen: listen.iter().map(|text| text.parse().unwrap()).collect(),
        files: files.iter().map(|path| path.to_path_buf()).collect(),
        tls,
        receive_buffer_bytes: 8 << 20,
        ..CollectOptions::default()
    };
    RunningCollector::start_listening(&options, KeptRecords::default()).unwrap()
}

/// The whole ledger of a meter that saw the packets of `count` records and 10 frames that are not IP, and lost 5 in its ring.
fn ledger(count: u64) -> MeterLedger {
    let metered = packets(count);
    let mut packets = PacketCounts {
        seen: metered + 10,
        metered,
        recorded: metered,
        records: count,
        flows: count,
        ..PacketCounts::default()
    };
    packets.ignored[1] = 10;
    let capture = CaptureCounts {
        arrived: Some(metered + 15),
        driver_dropped: Some(0),
        ring_dropped: 5,
        delivered: metered + 10,
        ..CaptureCounts::default()
    };
    MeterLedger { capture, packets, ..MeterLedger::default() }
}

/// Sends so many records, or packets of SIM, and ends.
fn export(
    target: ExportTarget,
    content: ExportContent,
    count: u64,
    tls: Option<export::TlsFiles>,
) -> ExportCounts {
    let options = export::MeterExport {
        destinations: vec![ExportDestination { target, content }],
        flush_after: Nanos::from_millis(10),
        linger: Nanos::from_secs(5),
        tls,
        ..export::MeterExport::default()
    };
    let (queue, incoming) = export::open_export_queue(4 << 20, &BackpressurePolicy::default());
    let thread = export::spawn_export(&options, incoming, move || ledger(count)).unwrap();
    let mut outbox = queue.make_outbox();
    drop(queue);
    for n in 0..count {
        match content {
            ExportContent::Records(_) => outbox.add_record(&record(n)),
            ExportContent::Sim => {
                outbox.add_event(SimEvent::Packet { flow_id: n % 10, bytes: 100, at_ns: n });
            }
        }
        while n % 256 == 255 && thread.total_counts().waiting.records > 2000 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    drop(outbox);
    let (counts, whole) = thread.join_threads();
    assert!(whole);
    counts
}

/// Looks until it is so, and gives up after a long time.
fn wait(mut is_so: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("what was waited for did not come");
}

const IPFIX: ExportContent = ExportContent::Records(ExportFormat::Ipfix);

#[test]
fn every_record_arrives_over_every_transport() {
    let dir = tempfile::tempdir().unwrap();
    let tls = identity(dir.path());
    let certificate = tls.certificate.clone();
    let listen = ["udp", "tcp", "tls"].map(|transport| format!("{transport}://{LOCAL}"));
    let collecting = start(&listen, &[], Some(tls));
    let trusted = export::TlsFiles { authorities: certificate, ..export::TlsFiles::default() };
    for bound in collecting.bound_addresses() {
        let target = bound.to_string().parse().unwrap();
        let tls = (bound.transport == MessageTransport::Tls).then(|| trusted.clone());
        assert_eq!(export(target, IPFIX, 1000, tls).sent.records, 1000);
    }
    let reading = collecting.ledger_reader();
    wait(|| reading.read_ledger().total.records == 3000);
    let (ledger, kept) = collecting.stop_and_join().unwrap();
    assert_eq!((ledger.total.lost, ledger.total.malformed, ledger.refused.total_messages()), (0, 0, 0));
    assert_eq!((ledger.handed.records, ledger.handed.packets), (3000, 3 * packets(1000)));
    let mut found = kept.records;
    found.sort_by_key(|record| record.flow_id);
    let expected: Vec<_> = (0..1000).flat_map(|n| std::iter::repeat_n(record(n), 3)).collect();
    assert!(found == expected, "records differ");
    assert!(!kept.ledgers.is_empty());
    assert_eq!(ledger.intake.iter().map(|intake| intake.connections).collect::<Vec<_>>(), [0, 1, 1]);
}

#[test]
fn every_format_arrives_in_datagrams() {
    for (content, protocol) in [
        (ExportContent::Records(ExportFormat::NetFlow9), ExportProtocol::NetFlow9),
        (ExportContent::Records(ExportFormat::NetFlow5), ExportProtocol::NetFlow5),
        (ExportContent::Sim, ExportProtocol::Sim),
    ] {
        let collecting = start(&[format!("udp://{LOCAL}")], &[], None);
        let target = collecting.bound_addresses()[0].to_string().parse().unwrap();
        let sent = export(target, content, 1000, None).sent;
        let reading = collecting.ledger_reader();
        wait(|| reading.read_ledger().total.packets == sent.packets);
        let (ledger, kept) = collecting.stop_and_join().unwrap();
        assert_eq!(ledger.exporters[0].exporter.protocol, protocol);
        assert_eq!(
            (ledger.total.lost, ledger.handed.packets, ledger.handed.open_packets),
            (0, sent.packets, 0)
        );
        assert_eq!(kept.records.iter().map(FlowRecord::packets).sum::<u64>(), sent.packets);
    }
}

/// Passes datagrams on to an address, except every so-manieth, until an empty one comes. Gives how many were passed,
/// and how many not.
fn relay(to: SocketAddr, every: usize) -> (SocketAddr, JoinHandle<(u64, u64)>) {
    let mut receiver = UdpReceiver::bind_with_buffer(LOCAL.parse().unwrap(), 8 << 20).unwrap();
    let address = receiver.address().unwrap();
    let sender = UdpSocket::bind(LOCAL).unwrap();
    let thread = std::thread::spawn(move || {
        let (mut n, mut is_over) = (0, false);
        let mut counts = (0, 0);
        while !is_over {
            let pass = |bytes: &[u8], _| {
                n += 1;
                match (bytes.len(), n % every) {
                    (0, _) => is_over = true,
                    (_, 0) => counts.1 += 1,
                    _ => counts.0 += u64::from(sender.send_to(bytes, to).is_ok()),
                }
            };
            receiver.receive_datagrams(Duration::from_secs(1), 1, pass).unwrap();
        }
        assert_eq!(receiver.dropped_datagrams().unwrap(), 0);
        counts
    });
    (address, thread)
}

#[test]
fn udp_loss_is_counted_exactly() {
    for (content, every) in [(IPFIX, 9), (ExportContent::Sim, 7)] {
        let collecting = start(&[format!("udp://{LOCAL}")], &[], None);
        let (between, thread) = relay(collecting.bound_addresses()[0].address, every);
        let sent = export(format!("udp://{between}").parse().unwrap(), content, 5000, None);
        UdpSocket::bind(LOCAL).unwrap().send_to(&[], between).unwrap();
        let (messages, dropped) = thread.join().unwrap();
        assert!(messages + dropped >= sent.messages);
        let reading = collecting.ledger_reader();
        wait(|| reading.read_ledger().total.messages == messages);
        let (ledger, _) = collecting.stop_and_join().unwrap();
        let total = &ledger.total;
        assert!(dropped > 3 && total.lost > 0, "{dropped} dropped, {total:?}");
        // Templates are in the first messages, which arrive. Options records are numbered, too.
        let units = if content == IPFIX { total.records + total.options_records } else { total.events };
        let all = if content == IPFIX { 5000 + total.options_records } else { 5000 };
        assert!(units + total.lost >= all, "{total:?}");
        assert_eq!(total.untold, 0);
        if content == ExportContent::Sim {
            assert_eq!(total.events + total.lost, 5000);
        }
        let balance = ledger.packet_balance();
        if let Some(balance) = balance {
            let lost: u64 = balance.losses.iter().map(|loss| loss.packets).sum();
            assert_eq!(balance.received, total.packets);
            assert!(balance.received + lost <= balance.arrived, "{balance:?}");
        }
    }
}

#[test]
fn the_balance_names_every_place() {
    let collecting = start(&[format!("tcp://{LOCAL}")], &[], None);
    let target = collecting.bound_addresses()[0].to_string().parse().unwrap();
    export(target, IPFIX, 500, None);
    let reading = collecting.ledger_reader();
    wait(|| reading.read_ledger().total.records == 500);
    let (ledger, kept) = collecting.stop_and_join().unwrap();
    let balance = ledger.packet_balance().unwrap();
    let last = kept.ledgers.last().unwrap();
    assert_eq!(last.export.sent.packets, packets(500), "the last ledger follows the last record");
    assert_eq!((balance.arrived, balance.received), (packets(500) + 15, packets(500)));
    let losses: Vec<_> = balance.losses.iter().map(|loss| (loss.place, loss.packets)).collect();
    assert_eq!(losses, [("ring", 5), ("ignored: not ip", 10)]);
    let metrics = ledger.prometheus_text();
    assert!(metrics.contains("packetrig_collect_wire_lost_packets{place=\"ring\"} 5\n"), "{metrics}");
    assert!(metrics.contains("protocol=\"ipfix\",domain=\"1\"} 500\n"), "{metrics}");
}

#[test]
fn files_are_read_to_their_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.ipfix");
    export(ExportTarget::File(path.clone()), IPFIX, 700, None);
    let whole = std::fs::read(&path).unwrap();
    let cut = dir.path().join("cut.ipfix");
    std::fs::write(&cut, &whole[..=whole.len() / 2]).unwrap();
    let collecting = start(&[], &[&path, &cut], None);
    wait(|| collecting.is_done());
    let (ledger, _) = collecting.stop_and_join().unwrap();
    assert_eq!(ledger.exporters.len(), 1, "both were read and are gone");
    assert!(ledger.total.records >= 700 && ledger.total.records < 1400);
    assert_eq!(ledger.intake.iter().map(|intake| intake.broken).collect::<Vec<_>>(), [0, 1]);
}

/// A certificate of this machine and its key, in a directory.
fn identity(directory: &Path) -> TlsFiles {
    let certificate = directory.join("cert.pem");
    let key = directory.join("key.pem");
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    TlsFiles { certificate, key, client_ca: None }
}

/// The book says so.
#[test]
fn memory_is_divided_between_exporters_and_flows() {
    let mut options = CollectOptions::default();
    options.set_memory_bytes(256 << 20);
    assert_eq!((options.collector.memory, options.gather.flows), (128 << 20, 114_688));
    assert_eq!(options.groups.flows, 28_672);
    assert_eq!(options.collector.exporter_limit(), 1024);
}

#[test]
fn disallowed_exporter_is_only_counted() {
    let allowed = ["192.0.2.1".parse().unwrap()].into_iter().collect();
    let options = CollectOptions {
        listen: ["udp://127.0.0.1:0", "tcp://127.0.0.1:0"].map(|text| text.parse().unwrap()).into(),
        collector: CollectorOptions { allowed, ..CollectorOptions::default() },
        ..CollectOptions::default()
    };
    let collecting = RunningCollector::start_listening(&options, KeptRecords::default()).unwrap();
    let [udp, tcp] = [0, 1].map(|at| collecting.bound_addresses()[at].address);
    UdpSocket::bind(LOCAL).unwrap().send_to(&[0, 10, 0, 16], udp).unwrap();
    let stream = TcpStream::connect(tcp).unwrap();
    let reading = collecting.ledger_reader();
    wait(|| reading.read_ledger().intake.iter().all(|intake| intake.not_allowed == 1));
    let (ledger, _) = collecting.stop_and_join().unwrap();
    assert_eq!((ledger.total.messages, ledger.refused_by_cause()[0]), (0, ("not_allowed", 1)));
    assert_eq!(ledger.imbalances(), []);
    assert!(ledger.prometheus_text().contains("packetrig_collect_refused_total{cause=\"not_allowed\"} 1\n"));
    drop(stream);
}

#[test]
fn collector_refuses_unusable_inputs() {
    let listen =
        |text: &str| CollectOptions { listen: vec![text.parse().unwrap()], ..CollectOptions::default() };
    let refused =
        |options: &CollectOptions| match RunningCollector::start_listening(options, KeptRecords::default()) {
            Ok(_) => panic!("it listens"),
            Err(error) => error,
        };
    assert!(matches!(refused(&listen("tls://127.0.0.1:0")), Error::NoIdentity(_)));
    let taken = std::net::TcpListener::bind(LOCAL).unwrap();
    let text = format!("tcp://{}", taken.local_addr().unwrap());
    assert!(matches!(refused(&listen(&text)), Error::Listen { .. }));
    let missing = CollectOptions { files: vec!["/nowhere/a.ipfix".into()], ..CollectOptions::default() };
    assert!(matches!(refused(&missing), Error::File { .. }));
}

/// The listener accepts at intervals; most of these connections arrive in between.
#[test]
fn pending_connection_is_read_at_stop() {
    let message = [&[0, 10, 0, 20][..], &[0; 16]].concat();
    for _ in 0..10 {
        let collecting = start(&["tcp://127.0.0.1:0".to_owned()], &[], None);
        let mut stream = TcpStream::connect(collecting.bound_addresses()[0].address).unwrap();
        stream.write_all(&message).unwrap();
        drop(stream);
        let (ledger, _) = collecting.stop_and_join().unwrap();
        let counts = &ledger.intake[0];
        assert_eq!((counts.connections, counts.messages, counts.broken), (1, 1, 0));
    }
}

/// An outlet that is wrong.
struct WrongOutlet;

impl CollectedRecordReceiver for WrongOutlet {
    fn accept_records(&mut self, _: &[FlowRecord], _: &ExporterIdentity) {}

    fn on_tick(&mut self, _: &[ExporterLedger]) {
        panic!("as wanted");
    }
}

#[test]
fn collector_is_done_after_decoder_panic() {
    let options =
        CollectOptions { listen: vec!["udp://127.0.0.1:0".parse().unwrap()], ..CollectOptions::default() };
    let collecting = RunningCollector::start_listening(&options, WrongOutlet).unwrap();
    // Longer than a test may last, if it never is.
    while !collecting.is_done() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(collecting.stop_and_join(), Err(Error::Panicked("the decoding thread"))));
}
