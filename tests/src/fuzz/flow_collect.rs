//! Hostile exporters: one session after the other hears what they send.

use super::cost;
use packetrig_flow::collect::{
    CollectorOptions, FlowCollector, MessageSource, MessageTransport, ReceivedMessage, SessionOptions,
};
use std::net::{IpAddr, Ipv4Addr};

const HOLD: usize = 100_000;
/// Memory for everything that is kept.
const MEMORY: usize = 1 << 20;

/// Any IPFIX messages are decoded or refused; memory stays bounded.
pub fn flow_ipfix(data: &[u8]) {
    collect(data, |message, length| {
        if let [_, _, _, _, ..] = message {
            message[..4].copy_from_slice(&[0, 10, length[0], length[1]]);
        }
    });
}

/// Any packets of NetFlow 5 and 9.
pub fn flow_netflow(data: &[u8]) {
    collect(data, |message, _| {
        if let [first, second, ..] = message {
            *first = 0;
            *second = if *second == 5 { 5 } else { 9 };
        }
    });
}

/// Any datagrams of SIM.
pub fn flow_sim(data: &[u8]) {
    collect(data, |message, length| {
        if let [_, _, _, _, _, _, ..] = message {
            message[..6].copy_from_slice(&[b'S', b'I', b'M', 1, length[0], length[1]]);
        }
    });
}

/// Any datagrams of sFlow.
pub fn flow_sflow(data: &[u8]) {
    collect(data, |message, _| {
        if let [_, _, _, _, _, _, _, _, ..] = message {
            message[..4].copy_from_slice(&[0, 0, 0, 5]);
            // Any kind of agent's address but the two that exist would be refused at once.
            let kind = 1 + (message[7] & 1);
            message[4..8].copy_from_slice(&[0, 0, 0, kind]);
        }
    });
}

/// Messages follow each other, each behind its length; `head` makes their heads say what they are. Whatever they are, they cost
/// what their bytes are worth.
fn collect(data: &[u8], head: impl Fn(&mut [u8], [u8; 2])) {
    cost::assert_bounded(data.len(), || collect_once(data, &head));
}

fn collect_once(mut data: &[u8], head: &impl Fn(&mut [u8], [u8; 2])) {
    let session = SessionOptions {
        templates: 1024,
        template_fields: 8200,
        hold_bytes: HOLD,
        ..SessionOptions::default()
    };
    let options = CollectorOptions { exporters: 16, memory: MEMORY, session, ..CollectorOptions::default() };
    let mut collector = FlowCollector::new(options);
    let source =
        MessageSource { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1, transport: MessageTransport::Udp };
    let (mut now_ns, mut records, mut events) = (0, 0_u64, 0_u64);
    while let Some(([high, low], rest)) = data.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (message, behind) = rest.split_at(length);
        data = behind;
        let mut message = message.to_vec();
        let said = u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes();
        head(&mut message, said);
        now_ns += 700_000_000;
        let taken = collector.receive_message(source, &message, now_ns, &mut |_, received| match received {
            ReceivedMessage::Record(_) => records += 1,
            ReceivedMessage::Sim(_) => events += 1,
            _ => {}
        });
        // Refused is as good as read.
        taken.unwrap_or(());
        assert!(collector.memory_bytes() <= MEMORY, "more is kept than may be");
    }
    let counts = collector.total_counts();
    assert_eq!((counts.records, counts.events), (records, events));
    assert_eq!(counts.find_imbalances(), []);
}
