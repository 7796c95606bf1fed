//! Holds the hellos that wait to be read: the newest one of each node.

use crate::runtime::deadline_ns;
use crate::subject::publishing_node;
use async_nats::Message;
use bytes::Bytes;
use packetrig_fleet::message::NodeName;
use packetrig_sys::clock::monotonic_ns;
use packetrig_units::MonoTime;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of nodes with a waiting hello; a fleet has fewer.
const MAX_NODES: usize = 16_384;

/// The waiting hellos. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct HelloMailbox(Arc<SharedMailbox>);

#[derive(Debug, Default)]
struct SharedMailbox {
    mail: Mutex<MailboxContents>,
    has_come: Condvar,
}

#[derive(Debug, Default)]
struct MailboxContents {
    newest: BTreeMap<NodeName, WaitingHello>,
    /// The nodes in `newest`. The node whose hello has waited longest comes first.
    order: VecDeque<NodeName>,
}

/// A message with the time at which it arrived.
#[derive(Debug)]
pub(super) struct WaitingHello {
    pub(super) at: MonoTime,
    pub(super) message: Message,
}

impl HelloMailbox {
    fn lock_mail(&self) -> MutexGuard<'_, MailboxContents> {
        self.0.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a hello, in place of an earlier one of the same node.
    pub(super) fn store_hello(&self, message: &Message, at: MonoTime) {
        let Some(node) = publishing_node(&message.subject) else { return };
        let mut mail = self.lock_mail();
        if !mail.newest.contains_key(&node) {
            // Only new nodes are refused here; nodes with a waiting hello are not affected.
            if mail.newest.len() >= MAX_NODES {
                return;
            }
            mail.order.push_back(node.clone());
        }
        // A node with a waiting hello keeps its position in `order`, so a node that sends often does not wait longer.
        mail.newest.insert(node, WaitingHello { at, message: copy_message(message) });
        self.0.has_come.notify_one();
    }

    /// Removes and returns the hello of the node that has waited longest. If no hello waits, waits for one; returns
    /// `None` if none arrives within the time `within`.
    pub(super) fn take_oldest_hello(&self, within: Duration) -> Option<WaitingHello> {
        let until = deadline_ns(within);
        let mut mail = self.lock_mail();
        loop {
            if let Some(node) = mail.order.pop_front() {
                return mail.newest.remove(&node);
            }
            let left =
                until.checked_sub(monotonic_ns()).filter(|left| *left > 0).map(Duration::from_nanos)?;
            let waited = self.0.has_come.wait_timeout(mail, left);
            mail = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Copies a message into its own memory, because a received message keeps its whole receive buffer in memory.
fn copy_message(message: &Message) -> Message {
    Message {
        subject: message.subject.to_string().into(),
        reply: None,
        payload: Bytes::copy_from_slice(&message.payload),
        headers: message.headers.clone(),
        status: None,
        description: None,
        length: message.length,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(node: &str, number: u8) -> Message {
        Message {
            subject: format!("hb.{node}").into(),
            reply: None,
            payload: vec![number].into(),
            headers: None,
            status: None,
            description: None,
            length: 1,
        }
    }

    #[test]
    fn mailbox_keeps_newest_hello_per_node_in_turn() {
        let mailbox = HelloMailbox::default();
        let put = |node: &str, number| {
            mailbox.store_hello(&hello(node, number), MonoTime::from_nanos(number.into()));
        };
        for number in 0..200 {
            put("flood", number);
        }
        put("a", 200);
        put("flood", 201);
        let take = || {
            let WaitingHello { at, message } = mailbox.take_oldest_hello(Duration::ZERO)?;
            Some((message.subject.to_string(), message.payload[0], at.as_nanos()))
        };
        assert_eq!(take(), Some(("hb.flood".into(), 201, 201)));
        put("flood", 202);
        assert_eq!(take(), Some(("hb.a".into(), 200, 200)));
        assert_eq!(take(), Some(("hb.flood".into(), 202, 202)));
        assert_eq!(take(), None);
    }

    #[test]
    fn a_waiting_reader_is_woken() {
        let mailbox = HelloMailbox::default();
        let filled = mailbox.clone();
        let reader = std::thread::spawn(move || mailbox.take_oldest_hello(Duration::from_mins(1)).is_some());
        filled.store_hello(&hello("a", 1), MonoTime::default());
        assert!(reader.join().expect("it ends"));
    }
}
