//! How many letters of one node may wait to be read.
//!
//! Letters are never dropped for the sake of another node: each has room of its own. A node that writes faster than it is
//! read loses its own letters, which are counted; the machines of both sides repeat what was lost.

use async_nats::Message;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most letters of one node that wait.
const LETTERS: usize = 4096;
/// Most bytes of them.
const BYTES: usize = 16 << 20;

/// Clones are the same quota.
#[derive(Clone, Debug, Default)]
pub(super) struct LetterQuota(Arc<Mutex<BTreeMap<String, WaitingLetters>>>);

#[derive(Clone, Copy, Debug, Default)]
struct WaitingLetters {
    letters: usize,
    bytes: usize,
}

fn speaker(message: &Message) -> &str {
    message.subject.rsplit('.').next().unwrap_or_default()
}

impl LetterQuota {
    fn own(&self) -> MutexGuard<'_, BTreeMap<String, WaitingLetters>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is room for one more of that node; then it is taken.
    pub(super) fn take(&self, message: &Message) -> bool {
        let mut all = self.own();
        let waiting = all.entry(speaker(message).to_owned()).or_default();
        let bytes = waiting.bytes + message.length;
        // One letter always fits, however long.
        if waiting.letters > 0 && (waiting.letters >= LETTERS || bytes > BYTES) {
            return false;
        }
        *waiting = WaitingLetters { letters: waiting.letters + 1, bytes };
        true
    }

    /// The letter was read.
    pub(super) fn give_back(&self, message: &Message) {
        let mut all = self.own();
        if let Some(waiting) = all.get_mut(speaker(message)) {
            waiting.letters = waiting.letters.saturating_sub(1);
            waiting.bytes = waiting.bytes.saturating_sub(message.length);
            if waiting.letters == 0 {
                all.remove(speaker(message));
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
        let quota = LetterQuota::default();
        let taken = (0..2 * LETTERS).filter(|_| quota.take(&letter("rep.a", 10))).count();
        assert_eq!(taken, LETTERS);
        assert!(quota.take(&letter("rep.b", 10)), "another node");
        assert!(!quota.take(&letter("lease.a", 10)), "the same node by another subject");
        quota.give_back(&letter("rep.a", 10));
        assert!(quota.take(&letter("rep.a", 10)));
    }

    #[test]
    fn bytes_count_too_and_one_letter_always_fits() {
        let quota = LetterQuota::default();
        assert!(quota.take(&letter("rep.a", BYTES + 1)));
        assert!(!quota.take(&letter("rep.a", 1)));
        quota.give_back(&letter("rep.a", BYTES + 1));
        assert!(quota.take(&letter("rep.a", BYTES)));
        assert!(quota.own().len() == 1);
    }
}
