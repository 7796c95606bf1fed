//! Messages between the machines of a fleet: what a stranger, or a node that lies, can put on the wire.

use super::cost::assert_linear;
use packetrig_nats::enrol::JoinLine;
use packetrig_nats::letter_reader::LetterReader;

const SUBJECT: &str = "reply.stranger";
/// Numbers of letters rise for each kind of subject by itself.
const AGAIN: &str = "again.stranger";

/// Any bytes under any seal are refused; under the node's own seal they are a message once, or refused with a reason. Either
/// costs in proportion to their number.
pub fn letter(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let (seal, bytes) = rest.split_at(rest.len().min(usize::from(*first)));
    let seal = String::from_utf8_lossy(seal);
    assert_linear(data.len(), || hear(&seal, bytes));
    drop(seal.parse::<JoinLine>());
}

fn hear(seal: &str, bytes: &[u8]) {
    let mut reader = LetterReader::new([7; 32]);
    assert!(reader.read_message(SUBJECT, seal, bytes).is_err(), "nobody guesses a seal");
    let own = reader.make_genuine_seal(SUBJECT, bytes);
    if let Ok(envelope) = reader.read_message(SUBJECT, &own, bytes) {
        let again = LetterReader::encode_message(&envelope);
        let read =
            again.map(|bytes| reader.read_message(AGAIN, &reader.make_genuine_seal(AGAIN, &bytes), &bytes));
        assert!(
            read.is_none_or(|read| read.as_ref() == Ok(&envelope)),
            "what was read can be written and read"
        );
    }
    assert!(reader.read_message(SUBJECT, &own, bytes).is_err(), "a message counts once");
    assert!(reader.read_message("renew.stranger", &own, bytes).is_err(), "a seal is for one subject");
}
