//! Messages of the release service, at the service and at its clients, and the packets in them.

use packetrig_probe::service::{check_frame, check_packet};
use packetrig_release::message::{ClientMessage, PacketKind, ServiceMessage};

/// A message that either end may get: it is read or refused at a place in it, what was read says the same when it is written again, and
/// each packet is one that may be sent or is refused at a place in it. Bytes that are no text are replaced when they are read, so messages
/// are compared from the second reading on.
#[expect(clippy::expect_used, reason = "a finding of the fuzzer is a panic")]
pub fn release(data: &[u8]) {
    match ClientMessage::from_bytes(data) {
        Ok(message) => {
            let again = ClientMessage::from_bytes(&message.to_bytes()).expect("what was written is read");
            assert_eq!(ClientMessage::from_bytes(&again.to_bytes()), Ok(again));
            if let ClientMessage::Submit { packets, .. } = message {
                for packet in &packets {
                    check(packet.kind, &packet.bytes);
                }
            }
        }
        Err(broken) => assert!(broken.byte as usize <= data.len(), "{broken}"),
    }
    if let Some(message) = ServiceMessage::from_bytes(data) {
        let again = ServiceMessage::from_bytes(&message.to_bytes()).expect("what was written is read");
        assert_eq!(ServiceMessage::from_bytes(&again.to_bytes()), Some(again));
    }
    check(PacketKind::Frame, data);
    check(PacketKind::IpPacket, data);
}

fn check(kind: PacketKind, bytes: &[u8]) {
    let checked = match kind {
        PacketKind::Frame => check_frame(bytes).map(|(_, ends)| ends),
        PacketKind::IpPacket => check_packet(bytes),
    };
    match checked {
        Ok(ends) => assert!(ends.length <= bytes.len()),
        Err(wrong) => assert!(wrong.byte <= bytes.len(), "byte {} of {}", wrong.byte, bytes.len()),
    }
}
