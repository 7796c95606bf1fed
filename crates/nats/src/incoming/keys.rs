//! Checks the seals of segments: a segment is accepted only with the seal of its node.

use crate::results::{SEAL_HEADER, SEGMENT_HEADER};
use crate::seal::{MacKeys, is_segment_genuine};
use crate::subject;
use async_nats::jetstream::Message;
use packetrig_fleet::fabric::SegmentId;

/// Finds the keys of nodes. With `None` no seal is checked, which is only for tests on one machine.
pub(super) struct NodeKeys(pub(super) Option<MacKeys>);

impl std::fmt::Debug for NodeKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeKeys")
    }
}

/// Reasons why a delivery is not accepted.
pub(super) enum SegmentRefusal {
    /// The segment cannot be identified, or its node has not sealed it. It will never be accepted.
    NotGenuine,
    /// The key of the node cannot be read now. The server delivers the segment again.
    Later(String),
}

impl NodeKeys {
    /// Returns the ID of the segment, if its node has sealed it and its subject matches the ID.
    pub(super) fn verify_segment(&self, message: &Message) -> Result<SegmentId, SegmentRefusal> {
        let SegmentIdHeader { id, json } =
            SegmentIdHeader::from_message(message).ok_or(SegmentRefusal::NotGenuine)?;
        let Some(keys) = &self.0 else { return Ok(id) };
        let key = keys(&id.node).map_err(SegmentRefusal::Later)?.ok_or(SegmentRefusal::NotGenuine)?;
        let headers = message.headers.as_ref();
        let seal = headers.and_then(|headers| headers.get(SEAL_HEADER)).ok_or(SegmentRefusal::NotGenuine)?;
        if is_segment_genuine(&key, message.subject.as_str(), json, &message.payload, seal.as_str()) {
            Ok(id)
        } else {
            Err(SegmentRefusal::NotGenuine)
        }
    }
}

/// The ID in the header of a segment.
struct SegmentIdHeader<'a> {
    id: SegmentId,
    /// The ID as it was sent, because the seal covers these bytes.
    json: &'a str,
}

impl<'a> SegmentIdHeader<'a> {
    /// Reads the ID; `None` if there is none, or if it does not match the subject. The server has checked that the
    /// node in the subject is the sender.
    fn from_message(message: &'a Message) -> Option<Self> {
        let json = message.headers.as_ref()?.get(SEGMENT_HEADER)?.as_str();
        let id: SegmentId = serde_json::from_str(json).ok()?;
        let is_on_own_subject = subject::segment_subject(&id.run.0, &id.node.0) == message.subject.as_str();
        is_on_own_subject.then_some(Self { id, json })
    }
}
