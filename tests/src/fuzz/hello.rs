//! What a node of the fleet says that it is: every controller and `fleet up` read it, whoever the node is.

use super::cost::assert_linear;
use packetrig_fleet::hello::{
    MAX_HELLO_BYTES, MAX_HELLO_LIST_ENTRIES, MAX_PORTS, MAX_SPOOLED, MAX_TEXT_CHARACTERS, NodeHello,
};
use packetrig_fleet::message::MessageBody;
use packetrig_fleet::packed;
use packetrig_nats::letter_reader::LetterReader;

const SUBJECT: &str = "hb.stranger";
/// Where a node says anything else.
const OTHER: &str = "rep.stranger";

/// Any bytes of a node in the place of a hello: as they are, and as a packed text. What is read is within the bounds of hellos, and is the
/// same when it is written and read again.
pub fn hello(data: &[u8]) {
    assert_linear(data.len(), || hear(data));
    if let Ok(packed) = packed::pack_text(data) {
        assert_linear(packed.len(), || hear(&packed));
    }
}

fn hear(bytes: &[u8]) {
    let mut reader = LetterReader::new([7; 32]);
    let seal = reader.make_genuine_seal(SUBJECT, bytes);
    let Ok(envelope) = reader.read_message(SUBJECT, &seal, bytes) else { return };
    assert!(bytes.len() <= MAX_HELLO_BYTES);
    let MessageBody::Hello(hello) = &envelope.body else { panic!("nothing else is said there") };
    assert_bounds(hello);
    let elsewhere = reader.make_genuine_seal(OTHER, bytes);
    assert!(
        reader.read_message(OTHER, &elsewhere, bytes).is_err(),
        "hellos are read at their own place only"
    );
    if let Some(again) = LetterReader::encode_message(&envelope) {
        let seal = reader.make_genuine_seal(SUBJECT, &again);
        assert_eq!(LetterReader::new([7; 32]).read_message(SUBJECT, &seal, &again).as_ref(), Ok(&envelope));
    }
}

fn assert_bounds(hello: &NodeHello) {
    assert!(hello.ports.len() <= MAX_PORTS && hello.spooled.len() <= MAX_SPOOLED);
    let lists = [&hello.features, &hello.labels, &hello.troubles];
    let lists = lists.into_iter().chain(hello.ports.iter().map(|port| &port.labels));
    for list in lists {
        assert!(list.len() <= MAX_HELLO_LIST_ENTRIES);
        assert_lines(list.iter().map(String::as_str));
    }
    for port in &hello.ports {
        assert!(
            port.addresses.len() <= MAX_HELLO_LIST_ENTRIES && port.back_ends.len() <= MAX_HELLO_LIST_ENTRIES
        );
        assert_lines([&*port.interface, &*port.driver]);
    }
    assert_lines([&*hello.version, &*hello.clock.identity]);
    assert_lines(hello.spooled.iter().map(|(run, ..)| &*run.0));
}

fn assert_lines<'a>(texts: impl IntoIterator<Item = &'a str>) {
    for text in texts {
        assert!(text.chars().count() <= MAX_TEXT_CHARACTERS && !text.contains(char::is_control), "{text:?}");
    }
}
