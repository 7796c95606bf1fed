//! Limits the messages of one node that wait to be read.
//!
//! Each node has its own limit, so no letter is dropped because of another node. If a node writes faster than the
//! endpoint reads, only its own letters are lost, and they are counted. The state machines of both sides repeat lost
//! letters. Telemetry also waits in one queue that all nodes share, so it can be dropped because of other nodes.

use async_nats::Message;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts the waiting messages of each node and limits them. Clones share the counts.
#[derive(Clone, Debug)]
pub(super) struct NodeQuota {
    /// Maximum number of waiting messages of one node.
    messages: usize,
    /// Maximum number of bytes of waiting messages of one node.
    bytes: usize,
    waiting: Arc<Mutex<BTreeMap<String, WaitingMessages>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct WaitingMessages {
    messages: usize,
    bytes: usize,
}

fn publisher_subject_token(message: &Message) -> &str {
    message.subject.rsplit('.').next().unwrap_or_default()
}

impl NodeQuota {
    pub(super) fn for_letters() -> Self {
        Self { messages: 4096, bytes: 16 << 20, waiting: Arc::default() }
    }

    pub(super) fn for_renewals() -> Self {
        // The limit is small: a renewal that has waited long is useless.
        Self { messages: 256, bytes: 128 << 10, waiting: Arc::default() }
    }

    pub(super) fn for_telemetry() -> Self {
        // The limit is small: counters and hellos are short, and the next counter or hello repeats the values.
        Self { messages: 256, bytes: 2 << 20, waiting: Arc::default() }
    }

    fn lock_waiting(&self) -> MutexGuard<'_, BTreeMap<String, WaitingMessages>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves space for one more message of its node. Returns false if the node's limit is reached.
    pub(super) fn reserve_quota(&self, message: &Message) -> bool {
        let mut all = self.lock_waiting();
        let waiting = all.entry(publisher_subject_token(message).to_owned()).or_default();
        let bytes = waiting.bytes + message.length;
        // One message is always accepted, however long it is.
        if waiting.messages > 0 && (waiting.messages >= self.messages || bytes > self.bytes) {
            return false;
        }
        *waiting = WaitingMessages { messages: waiting.messages + 1, bytes };
        true
    }

    /// Releases the space that [`Self::reserve_quota`] reserved for a message.
    pub(super) fn release_quota(&self, message: &Message) {
        let mut all = self.lock_waiting();
        if let Some(waiting) = all.get_mut(publisher_subject_token(message)) {
            waiting.messages = waiting.messages.saturating_sub(1);
            waiting.bytes = waiting.bytes.saturating_sub(message.length);
            // Without this, an entry would remain for every name that has ever sent a message.
            if waiting.messages == 0 {
                all.remove(publisher_subject_token(message));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(subject: &str, length: usize) -> Message {
        Message {
            subject: subject.into(),
            reply: None,
            payload: Vec::new().into(),
            headers: None,
            status: None,
            description: None,
            length,
        }
    }

    #[test]
    fn a_node_uses_up_its_own_room_only() {
        let quota = NodeQuota::for_letters();
        let taken = (0..2 * quota.messages).filter(|_| quota.reserve_quota(&letter("rep.a", 10))).count();
        assert_eq!(taken, quota.messages);
        assert!(quota.reserve_quota(&letter("rep.b", 10)), "another node");
        assert!(!quota.reserve_quota(&letter("lease.a", 10)), "the same node by another subject");
        quota.release_quota(&letter("rep.a", 10));
        assert!(quota.reserve_quota(&letter("rep.a", 10)));
    }

    #[test]
    fn bytes_count_too_and_one_letter_always_fits() {
        let quota = NodeQuota::for_letters();
        let most = quota.bytes;
        assert!(quota.reserve_quota(&letter("rep.a", most + 1)));
        assert!(!quota.reserve_quota(&letter("rep.a", 1)));
        quota.release_quota(&letter("rep.a", most + 1));
        assert!(quota.reserve_quota(&letter("rep.a", most)));
        assert!(quota.lock_waiting().len() == 1);
    }
}
