//! Checks and decodes messages of nodes as a controller does, but without a server, for tests with arbitrary bytes.

use crate::letter;
use crate::seal::{MAC_KEY_BYTES, NodeSealChecker, NodeSealer};
use packetrig_fleet::message::{MessageEnvelope, NodeName};
use std::sync::Arc;

/// Checks and decodes messages like a controller. All messages count as those of one node.
pub struct LetterReader {
    checker: NodeSealChecker,
    key: [u8; MAC_KEY_BYTES],
}

impl std::fmt::Debug for LetterReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LetterReader")
    }
}

impl LetterReader {
    /// Creates a reader that expects seals with `key` and has received no message yet.
    pub fn new(key: [u8; MAC_KEY_BYTES]) -> Self {
        Self { checker: NodeSealChecker::new(Arc::new(move |_| Ok(Some(key))), None), key }
    }

    /// Checks the seal of a message and decodes it. An error is the reason for refusing the message.
    pub fn read_message(
        &mut self,
        subject: &str,
        seal: &str,
        bytes: &[u8],
    ) -> Result<MessageEnvelope, String> {
        let node = NodeName("stranger".to_owned());
        self.checker
            .check_letter(&node, 1, subject, Some(seal), bytes)
            .map_err(|refusal| refusal.to_string())?;
        letter::decode_node_message(subject, bytes)
    }

    /// Returns the seal that the node would put on its first message, so that [`Self::read_message`] accepts it.
    pub fn make_genuine_seal(&self, subject: &str, bytes: &[u8]) -> String {
        NodeSealer::new(&self.key, 1).seal_letter(subject, bytes)
    }

    /// Encodes a message as it is sent; `None` if it is too long.
    pub fn encode_message(envelope: &MessageEnvelope) -> Option<Vec<u8>> {
        letter::encode_message(envelope).ok()
    }
}
