//! Encodes and decodes messages as JSON. Long messages are compressed, so that large plans fit into one message.

use crate::subject;
use packetrig_fleet::fabric::Error;
use packetrig_fleet::hello::{MAX_HELLO_BYTES, MAX_HELLO_JSON_BYTES};
use packetrig_fleet::message::{MessageBody, MessageEnvelope};
use packetrig_fleet::packed;

/// Messages of at least this many bytes are compressed.
const MIN_COMPRESSED_BYTES: usize = 32 << 10;
/// Maximum size of an encoded message in bytes: the default limit of a server, less a reserve for headers.
const MAX_LETTER_BYTES: usize = (1 << 20) - (16 << 10);
/// First bytes of a zstd frame; JSON never begins with them.
const ZSTD_MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();

/// Encodes a message for sending. Returns [`Error::TooLarge`] if the message is longer than a server accepts, or if it
/// is a hello that is longer than a controller accepts.
pub(crate) fn encode_message(envelope: &MessageEnvelope) -> Result<Vec<u8>, Error> {
    let text = serde_json::to_vec(envelope).map_err(|error| Error::NotPermitted(error.to_string()))?;
    if text.len() < MIN_COMPRESSED_BYTES {
        return Ok(text);
    }
    let bytes = packed::pack_text(&text).map_err(|error| Error::NotPermitted(error.to_string()))?;
    // A controller drops a longer hello without reading it.
    let most =
        if matches!(envelope.body, MessageBody::Hello(_)) { MAX_HELLO_BYTES } else { MAX_LETTER_BYTES };
    if bytes.len() > most { Err(Error::TooLarge(bytes.len())) } else { Ok(bytes) }
}

/// Decodes a message that a node sent on this subject. The length of a hello is checked before it is decoded. Hellos
/// are accepted only on their own subject.
pub(crate) fn decode_node_message(subject: &str, bytes: &[u8]) -> Result<MessageEnvelope, String> {
    let is_hello_subject = subject::is_hello_subject(subject);
    let envelope = if is_hello_subject { decode_hello(bytes)? } else { decode_message(bytes)? };
    let is_hello = matches!(envelope.body, MessageBody::Hello(_));
    // A hello on another subject, or another message on the subject of hellos, would bypass the limits for hellos.
    if is_hello == is_hello_subject {
        Ok(envelope)
    } else {
        Err("this kind of message must not be sent on this subject".to_owned())
    }
}

fn decode_hello(bytes: &[u8]) -> Result<MessageEnvelope, String> {
    if bytes.len() > MAX_HELLO_BYTES {
        return Err("the hello message is too long".to_owned());
    }
    if bytes.starts_with(&ZSTD_MAGIC) {
        return packed::unpack_value_with_limit(bytes, MAX_HELLO_JSON_BYTES)
            .map_err(|error| error.to_string());
    }
    decode_message(bytes)
}

/// Decodes bytes of [`encode_message`]. The bytes may come from an attacker, so [`packed`] limits the time and
/// memory that decompression takes.
pub(crate) fn decode_message(bytes: &[u8]) -> Result<MessageEnvelope, String> {
    if bytes.starts_with(&ZSTD_MAGIC) {
        return packed::unpack_value(bytes).map_err(|error| error.to_string());
    }
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_fleet::message::{
        MessageBody, MessageHead, NodeCommand, NodeName, PlanHash, RunId, RunPreparation,
    };

    fn letter(document: String) -> MessageEnvelope {
        let head = MessageHead {
            run: RunId("r".into()),
            attempt: 1,
            epoch: 1,
            plan: PlanHash::from_document(&document),
        };
        let wanted = RunPreparation { document: document.into(), ..RunPreparation::default() };
        let body = MessageBody::Command(head, NodeCommand::Prepare(Box::new(wanted)));
        MessageEnvelope { from: NodeName::controller(), body }
    }

    fn flows(count: u32) -> String {
        let flow = |n: u32| {
            let hash = n.wrapping_mul(2_654_435_761);
            format!("- {{name: stream {n}, size: {{choice: fixed, fixed: 128}}, src: 02:00:{hash:08x}}}\n")
        };
        (0..count).map(flow).collect()
    }

    #[test]
    fn a_plan_of_several_megabytes_is_a_message() {
        for count in [1, 500, 50_000] {
            let letter = letter(flows(count));
            let bytes = encode_message(&letter).expect("it fits");
            assert!(bytes.len() < 1 << 20, "{count}: {}", bytes.len());
            assert_eq!(decode_message(&bytes), Ok(letter));
        }
    }

    #[test]
    fn oversized_unpacked_hello_is_refused() {
        let spaces = |count| [vec![b' '; count], br#"{"from":"a","body":{"roll_call":1}}"#.to_vec()].concat();
        let read = |text: &[u8]| decode_node_message("hb.a", &packed::pack_text(text).expect("it is packed"));
        let long = read(&spaces(600 << 10)).expect_err("too much");
        assert!(long.contains("its limit of 524288 bytes"), "{long}");
        assert_eq!(
            read(&spaces(100 << 10)),
            Err("this kind of message must not be sent on this subject".to_owned())
        );
        let hello = MessageEnvelope { from: NodeName("a".into()), body: MessageBody::Hello(Box::default()) };
        let bytes = encode_message(&hello).expect("it is short");
        assert_eq!(decode_node_message("hb.a", &bytes), Ok(hello));
        assert!(decode_node_message("rep.a", &bytes).is_err(), "there it would not be bounded");
        assert!(
            decode_node_message("hb.a", &vec![b' '; MAX_HELLO_BYTES + 1])
                .expect_err("long")
                .contains("too long")
        );
    }

    #[test]
    fn oversized_message_is_an_encoding_error() {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(b'!' + u8::try_from((state >> 33) % 90).unwrap_or(0))
        };
        let noise: String = (0..3 << 20).map(|_| next()).collect();
        assert!(matches!(encode_message(&letter(noise)), Err(Error::TooLarge(_))));
    }
}
