//! Messages made by hand, and hostile ones.

mod bounds;
mod foreign;
mod hostile;

use super::*;
use crate::record::{EndReason, FlowRecord};
use std::net::{IpAddr, Ipv4Addr};

/// A message while it is made.
#[derive(Clone, Debug, Default)]
struct MessageBytes(Vec<u8>);

impl MessageBytes {
    fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn bytes(mut self, value: &[u8]) -> Self {
        self.0.extend(value);
        self
    }

    fn set(self, id: u16, content: Self) -> Self {
        let length = u16::try_from(content.0.len() + 4).expect("short");
        self.u16(id).u16(length).bytes(&content.0)
    }
}

const SENT: u32 = 1_800_000_000;

fn ipfix(number: u32, sets: MessageBytes) -> Vec<u8> {
    let length = u16::try_from(sets.0.len() + 16).expect("short");
    MessageBytes::default().u16(10).u16(length).u32(SENT).u32(number).u32(7).bytes(&sets.0).0
}

fn netflow9(number: u32, uptime_ms: u32, sent_s: u32, sets: MessageBytes) -> Vec<u8> {
    MessageBytes::default().u16(9).u16(1).u32(uptime_ms).u32(sent_s).u32(number).u32(3).bytes(&sets.0).0
}

/// Source and destination, protocol, packets and octets, start and end in milliseconds, the octets that came back.
fn template(id: u16) -> MessageBytes {
    let fields = [(8, 4), (12, 4), (4, 1), (2, 4), (1, 4), (152, 8), (153, 8), (136, 1), (14, 4)];
    let head = MessageBytes::default().u16(id).u16(11);
    let all = fields.into_iter().fold(head, |bytes, (field, length)| bytes.u16(field).u16(length));
    all.u16(0x8002).u16(2).u32(29305).u16(82).u16(0xffff)
}

fn record(packets: u32) -> MessageBytes {
    let addresses = MessageBytes::default().bytes(&[198, 18, 0, 1]).bytes(&[198, 18, 0, 2]).u8(17);
    let times = addresses.u32(packets).u32(packets * 100).u64(1_799_999_990_000).u64(1_799_999_999_000);
    times.u8(3).u32(2).u16(1).u8(4).bytes(b"eth0")
}

fn source() -> MessageSource {
    MessageSource { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 4739, transport: MessageTransport::Udp }
}

struct HeardRecords {
    collector: FlowCollector,
    records: Vec<FlowRecord>,
    others: Vec<ReceivedMessage>,
    now_ns: u64,
}

impl HeardRecords {
    fn new(options: CollectorOptions) -> Self {
        let collector = FlowCollector::new(options);
        Self { collector, records: Vec::new(), others: Vec::new(), now_ns: 1_000_000_000_000 }
    }

    fn take(&mut self, message: &[u8]) -> Result<(), MalformedMessage> {
        let Self { collector, records, others, now_ns } = self;
        collector.receive_message(source(), message, *now_ns, &mut |_, received| match received {
            ReceivedMessage::Record(record) => records.push(record),
            other => others.push(other),
        })
    }

    fn counts(&self) -> SessionCounts {
        self.collector.total_counts()
    }
}

fn heard(messages: &[Vec<u8>]) -> HeardRecords {
    let mut heard = HeardRecords::new(CollectorOptions::default());
    for message in messages {
        heard.take(message).expect("is well formed");
    }
    heard
}

#[test]
fn ipfix_records_are_read() {
    let data = record(5).bytes(&record(6).0).bytes(&[0, 0, 0]);
    let heard = heard(&[ipfix(0, MessageBytes::default().set(2, template(256)).set(256, data))]);
    let [first, second] = &heard.records[..] else { panic!("two records") };
    assert_eq!((first.forward.packets, first.forward.bytes, second.forward.packets), (5, 500, 6));
    assert_eq!((first.reverse.packets, first.end), (1, EndReason::EndOfFlow));
    assert_eq!(first.key.source[12..], [198, 18, 0, 1]);
    assert!(first.key.is_ipv4());
    assert_eq!(first.forward.first_ns, 1_799_999_990_000_000_000);
    assert_eq!(first.reverse.last_ns, 1_799_999_999_000_000_000);
    let counts = heard.counts();
    assert_eq!((counts.records, counts.packets, counts.lost, counts.timeless), (2, 13, 0, 0));
    let skipped: Vec<_> = counts.skipped.iter().map(String::as_str).collect();
    assert_eq!(skipped, ["interfaceName"]);
    let foreign = first.foreign.as_deref().expect("a router told it");
    assert_eq!(foreign.output, 2);
    let mut json = String::new();
    foreign.others.append_json(&mut json);
    assert_eq!(json, r#"{"interfaceName":"eth0"}"#);
}

#[test]
fn unmapped_reverse_field_is_listed_as_skipped() {
    let fields = [(8_u16, 4_u16), (12, 4), (2, 4), (0x8002, 4), (0x8007, 2), (0x8088, 1)];
    let head = MessageBytes::default().u16(300).u16(6);
    let template = fields.into_iter().fold(head, |bytes, (id, length)| {
        let field = bytes.u16(id).u16(length);
        if id < 0x8000 { field } else { field.u32(29305) }
    });
    let data = MessageBytes::default().bytes(&[198, 18, 0, 1, 198, 18, 0, 2]).u32(3).u32(4).u16(53).u8(2);
    let heard = heard(&[ipfix(0, MessageBytes::default().set(2, template).set(300, data))]);
    let [record] = &heard.records[..] else { panic!("one record") };
    assert_eq!((record.forward.packets, record.reverse.packets), (3, 4));
    assert_eq!((record.key.source_port, record.end), (0, EndReason::Idle));
    let skipped: Vec<_> = heard.counts().skipped.into_iter().collect();
    assert_eq!(skipped, ["reverseFlowEndReason", "reverseSourceTransportPort"]);
}

#[test]
fn data_waits_for_its_template() {
    let data = |number| ipfix(number, MessageBytes::default().set(256, record(1).bytes(&record(2).0)));
    let mut heard = heard(&[data(0), data(2)]);
    assert_eq!((heard.records.len(), heard.counts().template_misses), (0, 2));
    assert!(heard.counts().pending_bytes > 0);
    heard.take(&ipfix(4, MessageBytes::default().set(2, template(256)))).expect("reads");
    let counts = heard.counts();
    assert_eq!((heard.records.len(), counts.lost, counts.untold, counts.pending_bytes), (4, 0, 0, 0));
    heard.take(&data(4)).expect("reads");
    assert_eq!((heard.records.len(), heard.counts().lost), (6, 0));
}

#[test]
fn data_waits_only_so_long_and_so_much() {
    let session = SessionOptions { hold_bytes: 4000, ..SessionOptions::default() };
    let mut heard = HeardRecords::new(CollectorOptions { session, ..CollectorOptions::default() });
    for number in 0..90 {
        heard.take(&ipfix(number, MessageBytes::default().set(256, record(1)))).expect("reads");
    }
    let counts = heard.counts();
    assert!(counts.pending_bytes <= 4000 && counts.pending_bytes > 0);
    assert_eq!(counts.pending_bytes + counts.undecoded_bytes, 90 * record(1).0.len() as u64);
    heard.now_ns += 601 * 1_000_000_000;
    heard.take(&ipfix(90, MessageBytes::default())).expect("reads");
    assert_eq!((heard.counts().pending_bytes, heard.counts().untold, heard.counts().lost), (0, 90, 0));
}

#[test]
fn udp_templates_expire_and_tcp_templates_are_withdrawn() {
    let data = |number| ipfix(number, MessageBytes::default().set(256, record(1)));
    let mut heard = heard(&[ipfix(0, MessageBytes::default().set(2, template(256))), data(0)]);
    let withdrawal = ipfix(1, MessageBytes::default().set(2, MessageBytes::default().u16(256).u16(0)));
    heard.take(&withdrawal).expect("reads");
    heard.take(&data(1)).expect("reads");
    assert_eq!(heard.records.len(), 2, "nobody withdraws over UDP");
    heard.now_ns += 3_601 * 1_000_000_000;
    heard.take(&data(2)).expect("reads");
    assert_eq!((heard.records.len(), heard.counts().templates_expired), (2, 1));

    let mut session = ExportSession::new(
        ExportProtocol::Ipfix,
        SessionOptions { template_life: None, ..SessionOptions::default() },
    );
    let mut records = 0;
    for message in [ipfix(0, MessageBytes::default().set(2, template(256))), data(0), withdrawal, data(1)] {
        let count = &mut |received| records += u32::from(matches!(received, ReceivedMessage::Record(_)));
        session.decode_message(&message, u64::MAX, count).expect("reads");
    }
    assert_eq!((records, session.template_count(), session.counts().template_misses), (1, 0, 1));
}

#[test]
fn lost_late_and_doubled_messages_are_told_apart() {
    let data = |number| ipfix(number, MessageBytes::default().set(256, record(number)));
    let all = MessageBytes::default().set(2, template(256));
    let heard = heard(&[ipfix(1, all), data(1), data(4), data(4), data(3), data(6)]);
    let counts = heard.counts();
    assert_eq!((counts.lost, counts.gaps, counts.late_units, counts.duplicates), (2, 2, 1, 1));
    assert_eq!(heard.records.iter().map(|record| record.forward.packets).collect::<Vec<_>>(), [1, 4, 3, 6]);
    assert_eq!(heard.others, [ReceivedMessage::Gap { units: 2 }, ReceivedMessage::Gap { units: 1 }]);
}

/// Returns the message as sent a minute later.
fn later(mut message: Vec<u8>) -> Vec<u8> {
    message[7] += 60;
    message
}

#[test]
fn an_exporter_that_begins_anew_has_lost_nothing() {
    let data = |number| ipfix(number, MessageBytes::default().set(256, record(1)));
    let begin = || ipfix(0, MessageBytes::default().set(2, template(256)));
    let mut heard = heard(&[begin(), data(0), data(1), data(2), data(3)]);
    heard.now_ns += 5_000_000_000;
    // Templates come first; those of the former life that were not repeated are forgotten.
    for message in [later(begin()), later(data(0))] {
        heard.take(&message).expect("reads");
    }
    let counts = heard.counts();
    assert_eq!((counts.restarts, counts.lost, counts.records), (1, 0, 5));
}

/// A template of the new life says nothing of the former one's data, nor of its numbers.
#[test]
fn exporter_restart_drops_and_counts_pending_sets() {
    let data = |number| ipfix(number, MessageBytes::default().set(256, record(1)));
    let mut heard = heard(&[data(5_000), data(5_001)]);
    let waited = 2 * record(1).0.len() as u64;
    assert_eq!(heard.counts().pending_bytes, waited);
    heard.now_ns += 5_000_000_000;
    heard.take(&later(data(0))).expect("reads");
    let counts = heard.counts();
    assert_eq!((counts.restarts, counts.undecoded_bytes, counts.pending_bytes), (1, waited, waited / 2));
    heard.take(&later(ipfix(1, MessageBytes::default().set(2, template(256))))).expect("reads");
    heard.take(&later(data(1))).expect("reads");
    let counts = heard.counts();
    assert_eq!((heard.records.len(), counts.lost, counts.untold), (2, 0, 1));
    assert_eq!((counts.undecoded_bytes, counts.pending_bytes), (waited, 0));
}

#[test]
fn options_tell_of_sampling_boot_and_losses() {
    let fields = [(143_u16, 4_u16), (160, 8), (305, 4), (306, 4), (164, 8), (167, 8)];
    let head = MessageBytes::default().u16(257).u16(6).u16(1);
    let options = fields.into_iter().fold(head, |bytes, (id, length)| bytes.u16(id).u16(length));
    let boot_ms = u64::from(SENT) * 1000 - 60_000;
    let values = MessageBytes::default().u32(1).u64(boot_ms).u32(1).u32(9).u64(11).u64(12);
    let plain = MessageBytes::default().u16(256).u16(3).u16(22).u16(4).u16(21).u16(4).u16(2).u16(2);
    let data = MessageBytes::default().u32(1_000).u32(2_000).u16(4);
    let sets = MessageBytes::default().set(3, options).set(257, values).set(2, plain).set(256, data);
    let heard = heard(&[ipfix(0, sets)]);
    let [record] = &heard.records[..] else { panic!("one record") };
    assert_eq!(record.forward.first_ns, (boot_ms + 1_000) * 1_000_000);
    assert_eq!((record.sampling, record.forward.packets), (10, 4));
    let [ReceivedMessage::Statistics(said)] = &heard.others[..] else { panic!("{:?}", heard.others) };
    assert_eq!((said.ignored_packets, said.not_sent_packets, said.packets), (Some(11), Some(12), None));
    assert_eq!(heard.counts().options_records, 1);
}

#[test]
fn netflow9_counts_packets_and_tells_time_by_uptime() {
    let fields = [(8_u16, 4_u16), (22, 4), (21, 4), (2, 4), (1, 4), (4, 1), (11, 2)];
    let head = MessageBytes::default().u16(300).u16(7);
    let template = fields.into_iter().fold(head, |bytes, (id, length)| bytes.u16(id).u16(length));
    let options = MessageBytes::default().u16(301).u16(4).u16(4).u16(1).u16(4).u16(34).u16(4);
    let values = MessageBytes::default().u32(0).u32(50);
    let record = |first: u32| {
        MessageBytes::default()
            .bytes(&[198, 18, 0, 9])
            .u32(first)
            .u32(first + 500)
            .u32(3)
            .u32(180)
            .u8(1)
            .u16(0x0800)
    };
    let first =
        MessageBytes::default().set(0, template).set(1, options).set(301, values).set(300, record(9_000));
    let mut heard = heard(&[
        netflow9(100, 10_000, SENT, first),
        netflow9(103, 12_000, SENT + 2, MessageBytes::default().set(300, record(11_000))),
    ]);
    let [a, b] = &heard.records[..] else { panic!("two records") };
    assert_eq!(a.forward.first_ns, u64::from(SENT) * 1_000_000_000 - 1_000_000_000);
    assert_eq!(b.forward.last_ns, u64::from(SENT) * 1_000_000_000 + 1_500_000_000);
    assert_eq!((a.sampling, a.icmp, heard.counts().lost), (50, 0x0800, 2));
    let reboot = netflow9(104, 5, SENT + 3, MessageBytes::default().set(300, record(0)));
    heard.take(&reboot).expect("reads");
    assert_eq!((heard.counts().restarts, heard.counts().lost), (1, 2));
}

#[test]
fn netflow5_is_read() {
    let head = |number| {
        MessageBytes::default().u16(5).u16(1).u32(60_000).u32(SENT).u32(500_000_000).u32(number).u16(0x0102)
    };
    let record = MessageBytes::default()
        .bytes(&[198, 18, 0, 1, 198, 18, 0, 2, 0, 0, 0, 0])
        .u16(4)
        .u16(5)
        .u32(10)
        .u32(6_400)
        .u32(50_000)
        .u32(59_500)
        .u16(1234)
        .u16(80)
        .bytes(&[0, 0x1b, 6, 8])
        .bytes(&[0; 8]);
    let message = |number| head(number).u16(0x4064).bytes(&record.0).0;
    let heard = heard(&[message(10), message(13)]);
    let found = &heard.records[0];
    let now_ns = u64::from(SENT) * 1_000_000_000 + 500_000_000;
    assert_eq!(
        (found.forward.first_ns, found.forward.last_ns),
        (now_ns - 10_000_000_000, now_ns - 500_000_000)
    );
    assert_eq!((found.forward.packets, found.forward.bytes, found.forward.tcp_flags), (10, 6_400, 0x1b));
    assert_eq!((found.key.source_port, found.key.destination_port, found.key.protocol), (1234, 80, 6));
    assert_eq!((found.input, found.tos, found.sampling), (4, 8, 100));
    assert_eq!(heard.counts().lost, 2);
    let (exporter, ..) = heard.collector.exporters().next().expect("one exporter");
    assert_eq!(exporter.domain, 0x0102);
}

/// RFC 9565: the header has twelve bits of flags, and the element sixteen.
#[test]
fn tcp_flags_beyond_the_eighth_are_kept() {
    let template = MessageBytes::default().u16(300).u16(2).u16(6).u16(2).u16(2).u16(8);
    let record = MessageBytes::default().u16(0x01c2).bytes(&[0, 0, 0, 0, 0, 0, 0, 9]);
    let heard = heard(&[ipfix(0, MessageBytes::default().set(2, template).set(300, record))]);
    assert_eq!((heard.records[0].forward.packets, heard.records[0].forward.tcp_flags), (9, 0x01c2));
}

#[test]
fn malformed_message_is_reported_with_cause() {
    let mut heard = HeardRecords::new(CollectorOptions::default());
    let take = |heard: &mut HeardRecords, bytes: &[u8]| heard.take(bytes).expect_err("is malformed");
    assert_eq!(take(&mut heard, &[0]), MalformedMessage::Short { found: 1, needed: 2 });
    assert_eq!(take(&mut heard, &[0, 7, 0, 0]), MalformedMessage::Version(7));
    assert_eq!(take(&mut heard, &[0, 10, 0, 0]), MalformedMessage::Short { found: 4, needed: 16 });
    let mut long = ipfix(0, MessageBytes::default());
    long.push(0);
    assert_eq!(take(&mut heard, &long), MalformedMessage::Length { said: 16, found: 17 });
    let cut = ipfix(0, MessageBytes::default().set(2, template(256)).u16(256).u16(3));
    assert_eq!(take(&mut heard, &cut), MalformedMessage::Set { id: 256, said: 3, left: 4 });
    let reserved = ipfix(0, MessageBytes::default().set(2, template(255)));
    assert!(matches!(take(&mut heard, &reserved), MalformedMessage::Template { id: 255, .. }));
    let long_value = MessageBytes::default().bytes(&record(1).0[..40]).u8(200).bytes(&[0; 20]);
    let overlong = ipfix(0, MessageBytes::default().set(2, template(256)).set(256, long_value));
    assert_eq!(take(&mut heard, &overlong), MalformedMessage::Record { id: 256 });
    assert_eq!((heard.counts().malformed, heard.collector.refused_messages().unknown_protocol), (4, 3));
}

#[test]
fn streams_are_cut_into_messages() {
    let message = ipfix(0, MessageBytes::default());
    assert_eq!(message_length(&message[..3]), Ok(None));
    assert_eq!(message_length(&message), Ok(Some(16)));
    assert!(message_length(&[0, 9, 0, 40, 0, 0]).is_err() && message_length(&[0, 10, 0, 15, 0, 0]).is_err());
}
