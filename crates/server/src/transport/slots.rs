//! Distributes the limited number of connections so that no client locks out the other clients.
//!
//! Invariant: trusted clients can always connect unless all connections are busy with admitted requests. Clients that
//! have not sent the token share at most three quarters of the connections. A client that is not trusted gets at most
//! one quarter; the code calls it a *stranger*. A refused request keeps no connection: even if it arrives slowly, its
//! connection can be closed to make room.

use super::access::{ClientPeer, PeerKey};
use super::rejections::RejectionCause;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Maximum number of clients that are remembered as holders of the token.
const MAX_TOKEN_HOLDERS: usize = 64;

/// The state of a connection. The tasks and wrappers that serve the connection share it.
#[derive(Debug)]
pub(crate) struct ConnectionRecord {
    id: u64,
    pub(crate) peer: ClientPeer,
    /// True if the client was trusted when it connected, or since one of its requests had the token.
    is_trusted: AtomicBool,
    /// True once a request was admitted.
    pub(crate) was_admitted: AtomicBool,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    /// True while bytes wait because the client does not read.
    pub(crate) is_write_blocked: AtomicBool,
    /// Number of requests so far whose heads have arrived.
    pub(crate) requests: AtomicU64,
    /// Requests whose responses have not ended.
    pub(crate) in_flight: AtomicUsize,
    /// Requests that were admitted, among those in [`Self::in_flight`].
    pub(crate) being_served: AtomicUsize,
    /// Requests whose responses wait for the client to read.
    pub(crate) unfetched: AtomicUsize,
    /// [`Self::bytes_read`] when the last response ended.
    pub(crate) read_when_idle: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Time when a request last began or ended, by [`ConnectionSlots::clock`].
    active_at: AtomicU64,
    close: Mutex<Option<RejectionCause>>,
    closing: Notify,
}

impl ConnectionRecord {
    pub(crate) fn is_trusted(&self) -> bool {
        self.is_trusted.load(Ordering::Relaxed)
    }

    pub(crate) fn mark_trusted(&self) {
        self.is_trusted.store(true, Ordering::Relaxed);
    }

    fn is_stranger_with(&self, key: PeerKey) -> bool {
        !self.is_trusted() && self.peer.key == key
    }

    /// Returns whether the connection is not trusted, and its client is not a remembered holder of the token.
    fn is_without_token(&self, token_holders: &VecDeque<PeerKey>) -> bool {
        !self.is_trusted() && !token_holders.contains(&self.peer.key)
    }

    fn is_idle(&self) -> bool {
        // Refused requests do not count: the slow body of a refused request must not keep its connection busy.
        self.being_served.load(Ordering::Acquire) == 0
    }

    /// Tells the task that serves the connection to close it.
    pub(crate) fn request_close(&self, cause: RejectionCause) {
        let mut close = self.close.lock().unwrap_or_else(PoisonError::into_inner);
        // `notify_one` keeps a permit if no task waits yet, so a close before the wait is not lost.
        close.get_or_insert(cause);
        self.closing.notify_one();
    }

    /// Waits until the connection must be closed, and returns the cause.
    pub(crate) async fn wait_for_close(&self) -> RejectionCause {
        loop {
            let close = *self.close.lock().unwrap_or_else(PoisonError::into_inner);
            match close {
                Some(cause) => return cause,
                None => self.closing.notified().await,
            }
        }
    }
}

/// The connections of one transport.
#[derive(Debug)]
pub(crate) struct ConnectionSlots {
    most: usize,
    table: Mutex<BTreeMap<u64, Arc<ConnectionRecord>>>,
    /// Clients whose requests had the token, the latest last.
    token_holders: Mutex<VecDeque<PeerKey>>,
    /// A logical clock: it counts beginnings and ends of connections and requests.
    clock: AtomicU64,
    freed: Notify,
}

/// The result of a request for a connection slot.
#[derive(Debug)]
pub(crate) enum SlotAdmission {
    Admitted(ConnectionSlot),
    /// All connections are busy with admitted requests. Only trusted clients wait.
    Wait,
    Refused(RejectionCause),
}

/// The right to a connection; dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    pub(crate) record: Arc<ConnectionRecord>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.lock_table().remove(&self.record.id);
        // One permit is enough, because only the accept loop waits.
        self.slots.freed.notify_one();
    }
}

impl ConnectionSlots {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let slots = Self {
            // With a limit of 0, trusted clients would wait forever.
            most: most.max(1),
            table: Mutex::default(),
            token_holders: Mutex::default(),
            clock: AtomicU64::new(0),
            freed: Notify::new(),
        };
        Arc::new(slots)
    }

    /// Maximum number of connections of all clients that are not trusted: three quarters.
    const fn max_stranger_connections(&self) -> usize {
        // The number is rounded up, so that a small server has room for strangers, too. The table's
        // own limit still applies.
        self.most.div_ceil(4) * 3
    }

    /// Maximum number of connections of one client that is not trusted: a quarter.
    const fn max_connections_per_stranger(&self) -> usize {
        self.most.div_ceil(4)
    }

    /// Waits until a slot may be free.
    pub(crate) async fn wait_until_freed(&self) {
        self.freed.notified().await;
    }

    /// Decides whether a new connection is admitted, must wait or is refused. May close an idle
    /// connection to make room.
    pub(crate) fn admit_peer(self: &Arc<Self>, peer: ClientPeer) -> SlotAdmission {
        let mut table = self.lock_table();
        if let Err(outcome) = self.make_room_for_peer(&mut table, &peer) {
            return outcome;
        }
        // Ids come from the clock of activity, so a new connection counts as active just now.
        let id = self.next_tick();
        let record = Arc::new(new_record(id, peer));
        table.insert(id, Arc::clone(&record));
        SlotAdmission::Admitted(ConnectionSlot { slots: Arc::clone(self), record })
    }

    /// Closes an idle connection if the new one needs its slot. The error says that the new one must
    /// wait or is refused.
    fn make_room_for_peer(
        &self,
        table: &mut BTreeMap<u64, Arc<ConnectionRecord>>,
        peer: &ClientPeer,
    ) -> Result<(), SlotAdmission> {
        // Decision 0018, 7. A trusted client displaces an idle stranger first, then an idle trusted client. A
        // stranger beyond its quarter displaces only its own connections; otherwise it displaces only strangers that
        // never had the token.
        if peer.is_trusted {
            if table.len() < self.most
                || close_idle_connection(table, |record| !record.is_trusted())
                || close_idle_connection(table, |_| true)
            {
                return Ok(());
            }
            return Err(SlotAdmission::Wait);
        }
        let own = table.values().filter(|record| record.is_stranger_with(peer.key)).count();
        if own >= self.max_connections_per_stranger() {
            // A client beyond its quarter may only replace one of its own connections.
            let made = close_idle_connection(table, |record| record.is_stranger_with(peer.key));
            return if made { Ok(()) } else { Err(SlotAdmission::Refused(RejectionCause::PeerLimit)) };
        }
        // Lock order: first the table, then the token holders. No other code holds both locks.
        let holders = self.lock_token_holders();
        let unknown = table.values().filter(|record| record.is_without_token(&holders)).count();
        let has_no_part = !holders.contains(&peer.key) && unknown >= self.max_stranger_connections();
        let is_full = has_no_part || table.len() >= self.most;
        if !is_full || close_idle_connection(table, |record| record.is_without_token(&holders)) {
            return Ok(());
        }
        Err(SlotAdmission::Refused(RejectionCause::AllTaken))
    }

    /// Remembers that a client has the token, so that strangers cannot block its next connections.
    pub(crate) fn remember_token_holder(&self, peer: &ClientPeer) {
        let mut holders = self.lock_token_holders();
        // The client moves to the end: the one without a request for the longest time is forgotten first.
        holders.retain(|key| *key != peer.key);
        if holders.len() == MAX_TOKEN_HOLDERS {
            holders.pop_front();
        }
        holders.push_back(peer.key);
    }

    /// Notes that a connection began or ended a request.
    pub(crate) fn record_activity(&self, record: &ConnectionRecord) {
        record.active_at.store(self.next_tick(), Ordering::Relaxed);
        // An idle connection can be closed for a client that waits for a slot.
        if record.is_idle() {
            self.freed.notify_one();
        }
    }

    fn lock_token_holders(&self) -> MutexGuard<'_, VecDeque<PeerKey>> {
        self.token_holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_tick(&self) -> u64 {
        // Relaxed: only the order of these numbers counts, and they order no other memory.
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    fn lock_table(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<ConnectionRecord>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn new_record(id: u64, peer: ClientPeer) -> ConnectionRecord {
    ConnectionRecord {
        id,
        peer,
        is_trusted: AtomicBool::new(peer.is_trusted),
        was_admitted: AtomicBool::new(false),
        bytes_read: AtomicU64::new(0),
        bytes_written: AtomicU64::new(0),
        is_write_blocked: AtomicBool::new(false),
        requests: AtomicU64::new(0),
        in_flight: AtomicUsize::new(0),
        being_served: AtomicUsize::new(0),
        unfetched: AtomicUsize::new(0),
        read_when_idle: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        active_at: AtomicU64::new(id),
        close: Mutex::new(None),
        closing: Notify::new(),
    }
}

/// Closes the connection that has been idle the longest, among those that `is_meant` selects. Returns false if none
/// of these is idle.
fn close_idle_connection(
    table: &mut BTreeMap<u64, Arc<ConnectionRecord>>,
    is_meant: impl Fn(&ConnectionRecord) -> bool,
) -> bool {
    let idle = table.values().filter(|record| record.is_idle() && is_meant(record));
    let oldest = idle.min_by_key(|record| record.active_at.load(Ordering::Relaxed)).map(|record| record.id);
    // The connection is removed from the table at once, not when its task has ended: the slot is
    // for the new connection.
    let Some(record) = oldest.and_then(|id| table.remove(&id)) else { return false };
    record.request_close(RejectionCause::MadeRoom);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: ClientPeer = ClientPeer { key: PeerKey::User(0), is_trusted: true };

    fn stranger(user: u32) -> ClientPeer {
        ClientPeer { key: PeerKey::User(user), is_trusted: false }
    }

    fn admitted(slots: &Arc<ConnectionSlots>, peer: ClientPeer) -> ConnectionSlot {
        match slots.admit_peer(peer) {
            SlotAdmission::Admitted(slot) => slot,
            other => panic!("{other:?}"),
        }
    }

    fn busy(slots: &Arc<ConnectionSlots>, peer: ClientPeer) -> ConnectionSlot {
        let slot = admitted(slots, peer);
        slot.record.being_served.store(1, Ordering::Release);
        slot
    }

    fn is_closed(slot: &ConnectionSlot) -> bool {
        slot.record.close.lock().unwrap().is_some()
    }

    #[test]
    fn oldest_idle_connection_is_closed_for_new_one() {
        let slots = ConnectionSlots::new(3);
        let held = [busy(&slots, ROOT), admitted(&slots, ROOT), admitted(&slots, ROOT)];
        slots.record_activity(&held[1].record);
        let new = admitted(&slots, ROOT);
        assert_eq!([&held[0], &held[1], &held[2], &new].map(is_closed), [false, false, true, false]);
        // The closed connection frees no second slot when its task ends.
        drop(held);
        assert_eq!(slots.lock_table().len(), 1);
    }

    #[test]
    fn busy_connections_are_kept_and_new_one_waits() {
        let slots = ConnectionSlots::new(2);
        let held = [busy(&slots, ROOT), busy(&slots, ROOT)];
        assert!(matches!(slots.admit_peer(ROOT), SlotAdmission::Wait));
        held[0].record.being_served.store(0, Ordering::Release);
        admitted(&slots, ROOT);
        assert!(is_closed(&held[0]) && !is_closed(&held[1]));
    }

    #[test]
    fn peer_over_its_share_closes_only_own_connections() {
        let slots = ConnectionSlots::new(8);
        let other = admitted(&slots, stranger(7));
        let held = [busy(&slots, stranger(9)), admitted(&slots, stranger(9))];
        let new = admitted(&slots, stranger(9));
        assert!(!is_closed(&other) && is_closed(&held[1]));
        new.record.being_served.store(1, Ordering::Release);
        assert!(matches!(slots.admit_peer(stranger(9)), SlotAdmission::Refused(RejectionCause::PeerLimit)));
    }

    #[test]
    fn trusted_clients_displace_idle_strangers() {
        let slots = ConnectionSlots::new(8);
        let strangers: Vec<_> = (1..=6).map(|user| busy(&slots, stranger(user))).collect();
        assert!(matches!(slots.admit_peer(stranger(7)), SlotAdmission::Refused(RejectionCause::AllTaken)));
        let trusted = [admitted(&slots, ROOT), busy(&slots, ROOT)];
        // Trusted clients make room for each other, and never for a stranger.
        assert!(matches!(slots.admit_peer(stranger(7)), SlotAdmission::Refused(RejectionCause::AllTaken)));
        assert!(!is_closed(&trusted[0]));
        strangers[3].record.being_served.store(0, Ordering::Release);
        let next = admitted(&slots, ROOT);
        assert!(is_closed(&strangers[3]) && !is_closed(&trusted[0]));
        // A client that has sent the token is no stranger any more.
        strangers[0].record.mark_trusted();
        drop((next, trusted));
        assert!(matches!(slots.admit_peer(stranger(7)), SlotAdmission::Admitted(_)));
    }

    #[test]
    fn token_holder_is_admitted_despite_busy_strangers() {
        let slots = ConnectionSlots::new(8);
        slots.remember_token_holder(&stranger(100));
        let strangers: Vec<_> = (1..=6).map(|user| busy(&slots, stranger(user))).collect();
        let again = [admitted(&slots, stranger(100)), admitted(&slots, stranger(100))];
        assert!(matches!(slots.admit_peer(stranger(7)), SlotAdmission::Refused(RejectionCause::AllTaken)));
        strangers[0].record.being_served.store(0, Ordering::Release);
        let next = admitted(&slots, stranger(7));
        assert!(is_closed(&strangers[0]) && !again.iter().any(is_closed) && !is_closed(&next));
        for user in 200..300 {
            slots.remember_token_holder(&stranger(user));
        }
        assert_eq!(slots.lock_token_holders().len(), MAX_TOKEN_HOLDERS);
    }
}
