//! Limits of the exporter table: which exporter gets a place, which one keeps it, and what is given up when there is no room.

use super::*;

const SECOND: u64 = 1_000_000_000;

/// A sender with an address, a port and a domain.
#[derive(Clone, Copy)]
struct BoundedSender {
    address: u32,
    port: u16,
    domain: u32,
}

fn source(sender: BoundedSender) -> MessageSource {
    MessageSource {
        address: Ipv4Addr::from_bits(sender.address).into(),
        port: sender.port,
        transport: MessageTransport::Udp,
    }
}

struct ManySenders {
    collector: FlowCollector,
    most: usize,
    records: u64,
}

impl ManySenders {
    fn new(options: CollectorOptions) -> Self {
        let most = options.memory;
        Self { collector: FlowCollector::new(options), most, records: 0 }
    }

    /// Sends sets from a sender; memory stays within its bound, whatever they are.
    fn send(&mut self, sender: BoundedSender, number: u32, sets: MessageBytes, now_ns: u64) {
        let mut message = ipfix(number, sets);
        message[12..16].copy_from_slice(&sender.domain.to_be_bytes());
        let records = &mut self.records;
        let count = &mut |_: &ExporterIdentity, received| {
            *records += u64::from(matches!(received, ReceivedMessage::Record(_)));
        };
        self.collector.receive_message(source(sender), &message, now_ns, count).unwrap_or(());
        assert!(
            self.collector.memory_bytes() <= self.most,
            "{} of {}",
            self.collector.memory_bytes(),
            self.most
        );
    }

    fn assert_balanced(&self, messages: u64) {
        let counts = self.collector.total_counts();
        assert_eq!(counts.messages + self.collector.refused_messages().total_messages(), messages);
        assert_eq!(counts.find_imbalances(), []);
        assert_eq!(counts.records, self.records);
    }
}

const fn sender(n: u32) -> BoundedSender {
    BoundedSender { address: 0x0a00_0000 + n, port: 2055, domain: 1 }
}

fn whole(number: u32) -> MessageBytes {
    MessageBytes::default().set(2, template(256)).set(256, record(number))
}

fn data() -> MessageBytes {
    MessageBytes::default().set(256, record(1))
}

#[test]
fn new_exporters_enter_without_displacing_established() {
    let mut many = ManySenders::new(CollectorOptions { exporters: 40, ..CollectorOptions::default() });
    let honest = sender(1);
    for second in 0..20 {
        let sets = if second == 0 { whole(1) } else { data() };
        many.send(honest, second, sets, u64::from(second) * SECOND);
    }
    // Each of a thousand addresses sends one datagram, within a second.
    for n in 0..1000 {
        many.send(sender(1000 + n), 0, whole(1), 20 * SECOND + u64::from(n));
    }
    let before = many.records;
    many.send(honest, 20, data(), 21 * SECOND);
    assert_eq!(many.records, before + 1, "its template is still known");
    many.send(sender(2), 0, whole(1), 21 * SECOND);
    assert_eq!(many.records, before + 2, "who is new is heard");
    assert_eq!(many.collector.exporters().count(), 40);
    assert_eq!(many.collector.forgotten_exporters().on_trial, 1002 - 40);
    many.assert_balanced(20 + 1000 + 2);
}

#[test]
fn a_slow_attacker_does_not_keep_newcomers_out() {
    let mut many = ManySenders::new(CollectorOptions { exporters: 40, ..CollectorOptions::default() });
    // Each address sends often enough to be established and never silent: they get all places but ten.
    for second in 0..100 {
        for n in 0..60 {
            many.send(sender(1000 + n), second, whole(1), u64::from(second) * SECOND + u64::from(n));
        }
        if second >= 50 {
            let before = many.records;
            many.send(
                sender(2),
                second - 50,
                if second == 50 { whole(1) } else { data() },
                u64::from(second) * SECOND + 30,
            );
            let is_heard = many.records > before;
            assert!(is_heard || second > 50, "a newcomer is heard at once");
        }
    }
    many.assert_balanced(100 * 60 + 50);
}

#[test]
fn recordless_exporters_are_evicted_and_limited_per_64() {
    let options = CollectorOptions { exporters: 40, ..CollectorOptions::default() };
    let mut collector = FlowCollector::new(options);
    let source = |last: u16, port| MessageSource {
        address: [0x2001, 0xdb8, 0, 0, last, 0, 0, 1].into(),
        port,
        transport: MessageTransport::Tcp,
    };
    let mut send = |source, sets| {
        assert!(collector.receive_message(source, &ipfix(0, sets), 0, &mut |_, _| {}).is_ok());
        collector.exporters().count()
    };
    assert_eq!(send(source(0, 1), whole(0)), 1);
    // Sixteen bytes each, and after them the one that delivers.
    for port in 2..1000 {
        send(source(port, port), MessageBytes::default());
    }
    assert_eq!(send(source(0, 1), data()), 40);
    assert!(
        collector.exporters().any(|(exporter, counts, _)| exporter.source.port == 1 && counts.records == 2)
    );
    assert_eq!(collector.forgotten_exporters().on_trial, 999 - 40);
    let mut collector =
        FlowCollector::new(CollectorOptions { exporters_per_address: 3, ..CollectorOptions::default() });
    for port in 1..100 {
        assert!(
            collector.receive_message(source(port, port), &ipfix(0, whole(0)), 0, &mut |_, _| {}).is_ok()
        );
    }
    assert_eq!((collector.exporters().count(), collector.refused_messages().address_full), (3, 96));
}

#[test]
fn silent_exporters_make_room_for_lasting_ones() {
    let mut many = ManySenders::new(CollectorOptions { exporters: 2, ..CollectorOptions::default() });
    for second in [0, 15, 30] {
        many.send(sender(1), second, whole(1), u64::from(second) * SECOND);
    }
    for second in [95, 110, 112] {
        many.send(sender(2), second, whole(1), u64::from(second) * SECOND);
    }
    assert_eq!(
        (many.collector.forgotten_exporters().silent, many.collector.ended_exporters().count()),
        (1, 1)
    );
    assert_eq!(many.collector.total_counts().records, 6, "the sum keeps what the first has counted");
}

#[test]
fn one_address_takes_only_its_own_places() {
    let mut many = ManySenders::new(CollectorOptions::default());
    for n in 0..500 {
        many.send(sender(n), 0, whole(1), 0);
    }
    for domain in 0..10_000 {
        many.send(BoundedSender { domain, ..sender(1_000_000) }, 0, whole(1), 1);
    }
    assert_eq!(
        (many.collector.exporters().count(), many.collector.forgotten_exporters().on_trial),
        (564, 10_000 - 64)
    );
    // An exporter with established domains is bounded too.
    let mut many =
        ManySenders::new(CollectorOptions { exporters_per_address: 3, ..CollectorOptions::default() });
    for second in 0..15 {
        for domain in 0..3 {
            many.send(BoundedSender { domain, ..sender(1) }, second, whole(1), u64::from(second) * SECOND);
        }
    }
    many.send(BoundedSender { domain: 3, ..sender(1) }, 0, whole(1), 15 * SECOND);
    assert_eq!(
        many.collector.refused_messages(),
        RefusedMessages { address_full: 1, ..RefusedMessages::default() }
    );
    many.send(BoundedSender { domain: 3, ..sender(1) }, 0, whole(1), 80 * SECOND);
    assert_eq!(
        (many.collector.refused_messages().address_full, many.collector.forgotten_exporters().silent),
        (1, 1)
    );
    many.assert_balanced(47);
}

#[test]
fn unlisted_exporter_is_only_counted() {
    let allowed = ["10.0.0.1", "10.1.0.0/16"].map(|text| text.parse::<ExporterNetwork>().expect("is one"));
    let allowed = allowed.into_iter().collect();
    let mut many =
        ManySenders::new(CollectorOptions { exporters: 4, allowed, ..CollectorOptions::default() });
    many.send(sender(1), 0, whole(1), 0);
    // Exporters of an allowed network may be new, and take no place of one that is listed as a host.
    for n in 0..100 {
        many.send(sender(0x1_0000 + n), 0, whole(1), 1);
        many.send(sender(0x2_0000 + n), 0, whole(1), 1);
    }
    many.send(sender(1), 1, data(), 2);
    assert_eq!((many.records, many.collector.refused_messages().not_allowed), (102, 100));
    many.assert_balanced(202);
}

/// Messages that each hold a template, data without one, another domain, from as many addresses as there are.
#[test]
fn memory_is_bounded_for_everybody_together() {
    let session = SessionOptions { hold_bytes: 1 << 20, ..SessionOptions::default() };
    for memory in [1 << 20, 8 << 20] {
        let mut many = ManySenders::new(CollectorOptions { memory, session, ..CollectorOptions::default() });
        for n in 0..3000_u32 {
            let filling = MessageBytes::default()
                .set(300, MessageBytes(vec![1; 1000]))
                .set(301, MessageBytes(vec![1; 400]));
            let wide = (0..100_u16)
                .fold(MessageBytes::default().u16(400).u16(100), |all, id| all.u16(0x7000 + id).u16(4));
            let sets = filling.set(2, wide);
            // A third of the messages comes from addresses that sent before and go on.
            let from = if n % 3 == 0 { sender(n % 30) } else { sender(1000 + n) };
            many.send(from, n, sets, u64::from(n) * SECOND / 50);
        }
        let counts = many.collector.total_counts();
        assert!(many.collector.forgotten_exporters().for_memory > 0);
        assert!(counts.undecoded_no_room_bytes + counts.undecoded_ended_bytes > 0, "{counts:?}");
        many.assert_balanced(3000);
    }
}

/// The rule holds even if the exporters that hold much are established.
#[test]
fn largest_memory_holders_give_up_first() {
    let memory = 4 << 20;
    let mut many = ManySenders::new(CollectorOptions { memory, ..CollectorOptions::default() });
    let honest = sender(1);
    for second in 0..600 {
        for n in 0..40 {
            let filling = MessageBytes::default()
                .set(300, MessageBytes(vec![1; 1200]))
                .set(301, MessageBytes(vec![1; 100]));
            let sets = if second < 20 { whole(1) } else { filling };
            many.send(sender(1000 + n), second, sets, u64::from(second) * SECOND);
        }
        if second >= 100 {
            let sets = if second == 100 { whole(1) } else { data() };
            let before = many.records;
            many.send(honest, second, sets, u64::from(second) * SECOND);
            assert_eq!(many.records, before + 1, "second {second}");
        }
    }
    assert!(many.collector.memory_bytes() > memory / 2, "{}", many.collector.memory_bytes());
    assert!(many.collector.total_counts().undecoded_no_room_bytes > 0);
    many.assert_balanced(600 * 40 + 500);
}

#[test]
fn an_address_has_a_share_of_the_memory() {
    let memory = 8 << 20;
    let mut many = ManySenders::new(CollectorOptions { memory, ..CollectorOptions::default() });
    for domain in 0..64 {
        for number in 0..200 {
            let sets = MessageBytes::default().set(300, MessageBytes(vec![1; 1000]));
            many.send(BoundedSender { domain, ..sender(1) }, number, sets, 0);
        }
    }
    assert!(many.collector.memory_bytes() < memory / 4, "{}", many.collector.memory_bytes());
    assert!(many.collector.total_counts().undecoded_no_room_bytes > 10_000_000);
    many.assert_balanced(64 * 200);
}

#[test]
fn sets_without_content_are_not_kept() {
    let mut many = ManySenders::new(CollectorOptions::default());
    let before = many.collector.memory_bytes();
    for number in 0..1000 {
        let sets = (0..300).fold(MessageBytes::default(), |sets, _| sets.set(256, MessageBytes::default()));
        many.send(sender(1), number, sets, 0);
    }
    assert!(many.collector.memory_bytes() - before < 64 << 10, "{}", many.collector.memory_bytes());
    assert_eq!(many.collector.total_counts().template_misses, 300_000);
}

#[test]
fn tiny_records_beyond_budget_are_only_counted() {
    let tiny = MessageBytes::default().u16(256).u16(1).u16(4).u16(1);
    let sets = MessageBytes::default().set(2, tiny).set(256, MessageBytes(vec![6; 8000]));
    let mut heard = heard(&[ipfix(0, sets)]);
    let counts = heard.counts();
    assert_eq!((counts.records, counts.over_budget), (2016, 5984));
    heard.take(&ipfix(8000, MessageBytes::default())).expect("reads");
    assert_eq!(heard.counts().lost, 0, "they are numbered all the same");
}

#[test]
fn fields_without_a_byte_change_nothing() {
    let fields = [(8_u16, 4_u16), (12, 4), (2, 4), (2, 0), (1, 4), (210, 0)];
    let head = MessageBytes::default().u16(256).u16(6);
    let template = fields.into_iter().fold(head, |bytes, (field, length)| bytes.u16(field).u16(length));
    let data = MessageBytes::default().bytes(&[198, 18, 0, 1, 198, 18, 0, 2]).u32(7).u32(700);
    let heard = heard(&[ipfix(0, MessageBytes::default().set(2, template).set(256, data))]);
    let [record] = &heard.records[..] else { panic!("one record") };
    assert_eq!((record.forward.packets, record.forward.bytes), (7, 700));
}
