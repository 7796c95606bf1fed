mod again;
mod tls;

use super::*;
use crate::BackpressurePolicy;
use packetrig_flow::export::ExportFormat;
use packetrig_flow::export::template::ExportTemplate;
use packetrig_flow::sim::{SimDecoder, SimEvent, SimItem};
use packetrig_flow::{FlowHalf, FlowKey, FlowRecord, IPV4_MAPPED_PREFIX};
use packetrig_sys::netns::NetNs;
use packetrig_sys::ports::ReservedPort;
use packetrig_units::Nanos;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::Path;
use std::time::Duration;

/// Room for 64 batches between workers and dispatcher.
const QUEUE: usize = 64 * BATCH_BYTES;
const IPFIX: ExportContent = ExportContent::Records(ExportFormat::Ipfix);
/// Longer than a busy machine keeps a collector that reads from the processor.
const LONG_LINGER: Nanos = Nanos::from_secs(20);

fn record(n: u64) -> FlowRecord {
    let address = |last: u64| {
        let mut address = [198; 16];
        address[..12].copy_from_slice(&IPV4_MAPPED_PREFIX);
        address[13] = 18;
        address[14..].copy_from_slice(&last.to_be_bytes()[6..]);
        address
    };
    let half =
        |packets| FlowHalf { packets, bytes: packets * 100, first_ns: 1, last_ns: 2, ..FlowHalf::default() };
    FlowRecord {
        key: FlowKey { source: address(n), destination: address(n + 1), protocol: 17, ..FlowKey::default() },
        forward: half(n % 7 + 1),
        reverse: half(n % 3),
        flow_id: n,
        sampling: 1,
        ..FlowRecord::default()
    }
}

fn to(targets: &[(String, ExportContent)]) -> MeterExport {
    let one = |(target, content): &(String, ExportContent)| ExportDestination {
        target: target.parse().unwrap(),
        content: *content,
    };
    MeterExport {
        destinations: targets.iter().map(one).collect(),
        linger: LONG_LINGER,
        flush_after: Nanos::from_millis(10),
        ..MeterExport::default()
    }
}

/// Hands over records 0 to `count`, waits while the queue is full, and ends.
fn export(options: &MeterExport, count: u64) -> ExportCounts {
    let (queue, incoming) = open_export_queue(QUEUE, &BackpressurePolicy::default());
    let thread = spawn_export(options, incoming, MeterLedger::default).unwrap();
    let mut outbox = queue.make_outbox();
    drop(queue);
    for n in 0..count {
        outbox.add_record(&record(n));
        while n % 256 == 255 && thread.total_counts().waiting.records > 2000 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    drop(outbox);
    let (counts, whole) = thread.join_threads();
    assert!(whole);
    assert_balanced(&counts);
    counts
}

fn assert_balanced(counts: &ExportCounts) {
    let ledger = MeterLedger { export: *counts, ..MeterLedger::default() };
    assert_eq!(ledger.find_imbalances(), []);
}

/// Length, sequence number and flow records (sets 256 to 267) of each IPFIX message of a stream; both kinds of records
/// count in sequence numbers.
fn messages(mut bytes: &[u8]) -> Vec<(u32, u32, u32)> {
    let length = ExportTemplate::all_templates(ExportFormat::Ipfix, false, false, false)[0]
        .record_length(&FlowRecord::default());
    let mut found = Vec::new();
    let number = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    while !bytes.is_empty() {
        assert_eq!(number(bytes, 0), 10);
        let (message, rest) = bytes.split_at(usize::from(number(bytes, 2)));
        let sequence = u32::from_be_bytes(message[8..12].try_into().unwrap());
        let (mut flows, mut templates) = (0, 0);
        let mut sets = &message[16..];
        while !sets.is_empty() {
            let (set, behind) = sets.split_at(usize::from(number(sets, 2)));
            match number(set, 0) {
                2 => templates += 1,
                256 => flows += u32::try_from((set.len() - 4) / length).unwrap(),
                _ => {}
            }
            sets = behind;
        }
        found.push((sequence, templates, flows));
        bytes = rest;
    }
    found
}

/// Uniflow records of records 0 to `count`.
fn halves(count: u64) -> u64 {
    (0..count).map(|n| 1 + u64::from(n % 3 > 0)).sum()
}

fn flows(messages: &[(u32, u32, u32)]) -> u64 {
    messages.iter().map(|(_, _, flows)| u64::from(*flows)).sum()
}

#[test]
fn datagrams_have_all_that_was_sent() {
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    collector.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let target = format!("udp://{}", collector.local_addr().unwrap());
    let exporter = std::thread::spawn(move || export(&to(&[(target, IPFIX)]), 400));
    let mut received = Vec::new();
    let mut found = 0;
    while found < halves(400) {
        let mut datagram = [0; 2000];
        let length = collector.recv(&mut datagram).unwrap();
        assert!(length <= 1472);
        found += flows(&messages(&datagram[..length]));
        received.extend_from_slice(&datagram[..length]);
    }
    let counts = exporter.join().unwrap();
    assert_eq!((counts.sent.records, counts.refused.records), (400, 0));
    assert!(messages(&received)[0].1 > 0, "templates come first");
}

#[test]
fn file_targets_get_same_records_with_templates_once() {
    let directory = tempfile::tempdir().unwrap();
    let paths = ["a.ipfix", "b.ipfix"].map(|name| directory.path().join(name));
    let targets = paths.clone().map(|path| (format!("file:{}", path.display()), IPFIX));
    let counts = export(&to(&targets), 5000);
    assert_eq!((counts.offered.records, counts.sent.records), (10_000, 10_000));
    let [a, b] = paths.map(|path| std::fs::read(path).unwrap());
    for bytes in [&a, &b] {
        let found = messages(bytes);
        assert_eq!(flows(&found), halves(5000));
        assert_eq!(found.iter().filter(|(_, templates, _)| *templates > 0).count(), 1, "templates once");
        assert!(found.is_sorted_by_key(|(sequence, _, _)| *sequence));
    }
    assert_eq!(counts.message_bytes, (a.len() + b.len()) as u64);
}

#[test]
fn full_disk_fails_only_its_own_target() {
    let directory = tempfile::tempdir().unwrap();
    let good = directory.path().join("good.ipfix");
    let targets = [("/dev/full".to_owned(), IPFIX), (format!("file:{}", good.display()), IPFIX)];
    let (queue, incoming) = open_export_queue(QUEUE, &BackpressurePolicy::default());
    let thread = spawn_export(&to(&targets), incoming, MeterLedger::default).unwrap();
    let mut outbox = queue.make_outbox();
    drop(queue);
    (0..1000).for_each(|n| outbox.add_record(&record(n)));
    drop(outbox);
    let watch = thread.export_watch();
    assert!(thread.join_threads().1);
    let counts = watch.output_reports();
    assert_eq!((counts[0].counts.refused.records, counts[0].counts.sent.records), (1000, 0));
    assert_eq!((counts[1].counts.refused.records, counts[1].counts.sent.records), (0, 1000));
    let lines = counts[0].loss_lines();
    assert!(lines.len() == 1 && lines[0].contains("No space left"), "{lines:?}");
    assert!(counts[1].loss_lines().is_empty());
    assert_eq!(flows(&messages(&std::fs::read(good).unwrap())), halves(1000));
}

/// Accepts one connection, reads at least `least` bytes, or all of it if that is `None`.
fn accept(listener: &TcpListener, least: Option<usize>) -> Vec<u8> {
    let (mut connection, _) = listener.accept().unwrap();
    let mut bytes = Vec::new();
    match least {
        None => drop(connection.read_to_end(&mut bytes).unwrap()),
        Some(least) => {
            let mut part = [0; 4096];
            while bytes.len() < least {
                let length = connection.read(&mut part).unwrap();
                assert!(length > 0);
                bytes.extend_from_slice(&part[..length]);
            }
        }
    }
    bytes
}

/// Waits until the exporter has caught up: losses of a full queue are the subject of other tests.
fn await_queue_room(thread: &RunningExport) {
    for _ in 0..50_000 {
        std::thread::sleep(Duration::from_micros(200));
        let counts = thread.total_counts();
        assert_balanced(&counts);
        if counts.waiting.records < full_batches_in_bytes(QUEUE) as u64 / 2 {
            return;
        }
    }
    panic!("the exporter takes nothing any more: {:?}", thread.total_counts());
}

#[test]
fn each_connection_begins_with_templates_and_number_0() {
    const RECORDS: u64 = 4_000;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("tcp://{}", listener.local_addr().unwrap());
    let collector = std::thread::spawn(move || {
        let first = accept(&listener, Some(20_000));
        (first, accept(&listener, None))
    });
    let (queue, incoming) = open_export_queue(QUEUE, &BackpressurePolicy::default());
    let thread = spawn_export(&to(&[(target, IPFIX)]), incoming, MeterLedger::default).unwrap();
    let mut outbox = queue.make_outbox();
    drop(queue);
    // Until the first connection has had enough and is gone, and then some.
    for n in 0..RECORDS {
        outbox.add_record(&record(n));
        outbox.flush_batches();
        await_queue_room(&thread);
    }
    drop(outbox);
    let (counts, whole) = thread.join_threads();
    let (first, second) = collector.join().unwrap();
    assert!(whole && counts.waiting.records == 0);
    assert_balanced(&counts);
    let cut = first.len();
    let whole_messages = |bytes: &[u8]| {
        let mut end = 0;
        while let Some(length) = bytes.get(end + 2..end + 4) {
            let next = end + usize::from(u16::from_be_bytes([length[0], length[1]]));
            if next > bytes.len() {
                break;
            }
            end = next;
        }
        messages(&bytes[..end])
    };
    for bytes in [&first[..cut], &second[..]] {
        let found = whole_messages(bytes);
        assert_eq!(found[0].0, 0, "sequence numbers are a connection's own");
        assert!(found[0].1 > 0, "templates come first");
        assert_eq!(found.iter().filter(|(_, templates, _)| *templates > 0).count(), 1, "and once");
    }
    // Records that the first connection took and did not read are the collector's loss, and no more than its buffers hold.
    assert_eq!(counts.sent.records, RECORDS);
    assert!(flows(&whole_messages(&second)) > 1000);
}

/// A port without a listener, reserved so that no other process gets it.
fn closed_port() -> ReservedPort {
    ReservedPort::reserve_any_tcp(&NetNs::current().unwrap(), Ipv4Addr::LOCALHOST.into()).unwrap()
}

#[test]
fn dead_collector_backlog_is_bounded_and_drops_counted() {
    let closed = closed_port();
    let target = format!("tcp://127.0.0.1:{}", closed.port());
    let options = MeterExport {
        backlog_bytes: 4 * BATCH_BYTES,
        linger: Nanos::from_millis(100),
        ..to(&[(target, IPFIX)])
    };
    let (queue, incoming) = open_export_queue(QUEUE, &BackpressurePolicy::default());
    let thread = spawn_export(&options, incoming, MeterLedger::default).unwrap();
    let mut outbox = queue.make_outbox();
    drop(queue);
    for n in 0..100_000 {
        outbox.add_record(&record(n));
        if n % 10_000 == 0 {
            assert_balanced(&thread.total_counts());
        }
    }
    let counts = thread.total_counts();
    assert!(counts.waiting.records <= 256 * (full_batches_in_bytes(QUEUE) as u64 + 4), "{counts:?}");
    drop(outbox);
    let watch = thread.export_watch();
    let (counts, whole) = thread.join_threads();
    assert!(whole);
    assert_balanced(&counts);
    assert_eq!((counts.offered.records, counts.sent.records, counts.waiting.records), (100_000, 0, 0));
    // Four batches were in the backlog when it ended.
    assert_eq!(counts.refused.records, 4 * 256);
    let report = watch.output_reports().remove(0);
    assert_eq!(report.losses.total_records(), counts.offered);
    let lines = report.loss_lines();
    assert!(lines.iter().any(|line| line.contains("could not be reached (cannot connect: ")), "{lines:?}");
}

/// The kernel takes a datagram before it learns that there is no listener.
#[test]
fn udp_datagram_without_listener_counts_as_refused() {
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = format!("udp://{}", closed.local_addr().unwrap());
    drop(closed);
    let counts = export(&to(&[(target, IPFIX)]), 1);
    assert_eq!((counts.offered.records, counts.sent.records, counts.refused.records), (1, 0, 1));
}

/// A collector that accepts and reads nothing.
#[test]
fn stalled_collector_is_given_up_after_linger() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("tcp://{}", listener.local_addr().unwrap());
    let options = MeterExport {
        linger: Nanos::from_millis(300),
        backlog_bytes: 1000 * BATCH_BYTES,
        ..to(&[(target, IPFIX)])
    };
    let (queue, incoming) = open_export_queue(QUEUE, &BackpressurePolicy::default());
    let thread = spawn_export(&options, incoming, MeterLedger::default).unwrap();
    let mut outbox = queue.make_outbox();
    drop(queue);
    // Several times the size of both socket buffers: the records cannot leave, however the kernel makes room.
    while thread.total_counts().waiting.records < 200_000 {
        (0..10_000).for_each(|n| outbox.add_record(&record(n)));
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(outbox);
    let (counts, whole) = thread.join_threads();
    assert!(whole && counts.refused.records > 0 && counts.sent.records > 0, "{counts:?}");
    assert_balanced(&counts);
    drop(listener);
}

/// This collector reads for longer than the export waits at its end for one that takes nothing.
#[test]
fn slow_collector_is_awaited_while_it_reads() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("tcp://{}", listener.local_addr().unwrap());
    let options = MeterExport { linger: Nanos::from_secs(3), ..to(&[(target, IPFIX)]) };
    let (queue, incoming) = open_export_queue(128 << 20, &BackpressurePolicy::default());
    let thread = spawn_export(&options, incoming, MeterLedger::default).unwrap();
    let mut outbox = queue.make_outbox();
    drop(queue);
    (0..200_000).for_each(|n| outbox.add_record(&record(n)));
    drop(outbox);
    let (mut connection, _) = listener.accept().unwrap();
    let mut part = vec![0; 1 << 18];
    let mut received = 0;
    loop {
        match connection.read(&mut part).unwrap() {
            0 => break,
            read => received += read as u64,
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let (counts, whole) = thread.join_threads();
    assert!(whole);
    assert_eq!((counts.sent.records, counts.queue_dropped.records, counts.refused.records), (200_000, 0, 0));
    assert_eq!(received, counts.message_bytes);
}

/// Many batches of one record take as much memory as many full ones, so they wait as messages.
#[test]
fn group_records_wait_as_encoded_messages() {
    let closed = closed_port();
    let place = (Ipv4Addr::LOCALHOST, closed.port());
    let backpressure = BackpressurePolicy::default();
    backpressure.enable_backpressure();
    let (queue, incoming) = open_export_queue(QUEUE, &backpressure);
    let options = MeterExport {
        has_history: true,
        backlog_bytes: 4 * BATCH_BYTES,
        linger: Nanos::from_secs(30),
        ..to(&[(format!("tcp://127.0.0.1:{}", closed.port()), IPFIX)])
    };
    let thread = spawn_export(&options, incoming, MeterLedger::default).unwrap();
    let mut outbox = queue.make_outbox();
    drop(queue);
    for n in 0..500 {
        outbox.add_record(&FlowRecord { history: Some(Box::default()), ..record(n) });
        outbox.flush_batches();
    }
    // Another process could take the port only between here and the next line.
    drop(closed);
    let listener = TcpListener::bind(place).unwrap();
    drop(outbox);
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
        bytes.len() as u64
    });
    let (counts, whole) = thread.join_threads();
    assert!(whole);
    assert_eq!((counts.sent.records, counts.queue_dropped.records, counts.refused.records), (500, 0, 0));
    assert_eq!(reader.join().unwrap(), counts.message_bytes);
}

fn sim(n: u64) -> SimEvent {
    SimEvent::Packet { flow_id: n, bytes: 46, at_ns: n * 1000 }
}

#[test]
fn every_packet_of_sim_arrives_also_the_last() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.sim");
    let options = to(&[(path.display().to_string(), ExportContent::Sim)]);
    let (queue, incoming) = open_export_queue(QUEUE, &BackpressurePolicy::default());
    let thread = spawn_export(&options, incoming, MeterLedger::default).unwrap();
    let mut outboxes = [queue.make_outbox(), queue.make_outbox()];
    drop(queue);
    for n in 0..3001 {
        outboxes[(n % 2) as usize].add_event(sim(n));
    }
    drop(outboxes);
    let (counts, whole) = thread.join_threads();
    assert!(whole);
    assert_eq!((counts.sent.packets, counts.sent.bytes), (3001, 3001 * 46));
    let bytes = std::fs::read(&path).unwrap();
    let mut rest = &bytes[..];
    let mut events = Vec::new();
    let mut ledgers = Vec::new();
    while !rest.is_empty() {
        let length = usize::from(SimDecoder::read_header(rest).unwrap().length);
        SimDecoder::decode_datagram(&rest[..length], &mut |item| match item {
            SimItem::Event(SimEvent::Packet { flow_id, .. }) => events.push(flow_id),
            SimItem::Event(SimEvent::Flow { .. }) => panic!("no flow was reported"),
            SimItem::Ledger { ledger, .. } => ledgers.push(ledger),
        })
        .unwrap();
        rest = &rest[length..];
    }
    events.sort_unstable();
    assert!(events.into_iter().eq(0..3001));
    // The last ledger says that everything before it was sent.
    let last = ledgers.last().unwrap().export;
    assert_eq!((last.sent.packets, last.waiting.packets), (3001, 0));
    assert_balanced(&last);
}

#[test]
fn invalid_export_option_is_refused_before_start() {
    let refusal = |target: &str, content| {
        let (_queue, incoming) = open_export_queue(QUEUE, &BackpressurePolicy::default());
        spawn_export(&to(&[(target.to_owned(), content)]), incoming, MeterLedger::default)
            .unwrap_err()
            .to_string()
    };
    let stream = refusal("tcp://127.0.0.1:4739", ExportContent::Records(ExportFormat::NetFlow9));
    assert!(stream.contains("netflow9") && stream.contains("udp://"), "{stream}");
    assert!(refusal("tls://localhost:4740", IPFIX).contains("--tls-ca"));
    assert!(refusal("/no/such/directory/x", IPFIX).contains("/no/such/directory/x"));
}
